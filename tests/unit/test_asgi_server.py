"""What keeps the host's own limits far from those who connect to it."""

from __future__ import annotations

import logging
import resource
import subprocess
import sys

from orchestrator.base.asgi_server import MAX_OPEN_FILES
from orchestrator.base.logging import MAX_THROTTLE_KEYS, LogThrottle, ThrottledLogger

RAISE = """
import resource
from orchestrator.base.asgi_server import allow_open_files
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
allow_open_files()
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


def test_a_low_limit_of_open_files_is_raised():
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    told = subprocess.run([sys.executable, "-c", RAISE], capture_output=True, text=True, check=True)

    wanted = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_OPEN_FILES)
    assert int(told.stdout) == wanted


def test_a_line_that_repeats_is_logged_now_and_then_with_how_many_were_left_out(caplog):
    now = 0.0
    logger = logging.getLogger("throttled-in-a-test")
    throttled = ThrottledLogger(LogThrottle(seconds=10, monotonic=lambda: now))
    logger.addFilter(throttled)
    try:
        for number in range(100):
            logger.error("no more files\nsocket %s", number)
        logger.error("something else")
        now = 10.0
        logger.error("no more files\nsocket 100")
    finally:
        logger.removeFilter(throttled)

    assert caplog.messages == [
        "no more files\nsocket 0",
        "something else",
        "(and 99 more like this were not logged) no more files\nsocket 100",
    ]


def test_keys_that_others_choose_do_not_pile_up():
    now = 0.0
    throttle = LogThrottle(seconds=10, monotonic=lambda: now)
    for number in range(10 * MAX_THROTTLE_KEYS):
        now = number / 10
        assert throttle.passes(number)
        assert not throttle.passes(number)

    assert len(throttle._next) <= MAX_THROTTLE_KEYS + 1
    assert len(throttle._held) <= MAX_THROTTLE_KEYS + 1
