"""The limits that keep the host far from those who connect to it, and how it writes to them."""

from __future__ import annotations

import asyncio
import errno
import logging
import resource
import socket
import subprocess
import sys

import pytest

from agent_runner.wire import listeners
from agent_runner.wire.listeners import QUEUE, ScreenedListener, listen
from orchestrator.base.asgi_server import (
    JOINED_BYTES,
    MAX_OPEN_FILES,
    JoiningTransport,
)
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

    assert len(throttle._passes_at) <= MAX_THROTTLE_KEYS + 1
    assert len(throttle._dropped_counts) <= MAX_THROTTLE_KEYS + 1


def test_many_keys_within_one_interval_neither_pile_up_nor_pass_without_end():
    throttle = LogThrottle(seconds=10, monotonic=lambda: 0.0)
    passed = [number for number in range(5 * MAX_THROTTLE_KEYS) if throttle.passes(number)]

    assert passed == list(range(MAX_THROTTLE_KEYS + 1))
    assert len(throttle._passes_at) <= MAX_THROTTLE_KEYS + 1
    assert len(throttle._dropped_counts) <= MAX_THROTTLE_KEYS + 1


def test_a_key_keeps_its_count_when_the_table_is_full():
    now = 0.0
    throttle = LogThrottle(seconds=10, monotonic=lambda: now)
    assert throttle.passes("a")
    assert not throttle.passes("a")
    for number in range(MAX_THROTTLE_KEYS - 1):
        assert throttle.passes(number)
    now = 10.0

    assert throttle.passes("a")
    assert throttle.take_dropped("a") == 1


def test_the_count_of_a_forgotten_key_is_reported_by_another():
    now = 0.0
    throttle = LogThrottle(seconds=10, monotonic=lambda: now)
    assert throttle.passes("a")
    assert not throttle.passes("a")
    now = 10.0
    for number in range(MAX_THROTTLE_KEYS):  # the last one takes the place of "a"
        assert throttle.passes(number)

    assert throttle.passes("one too many")
    assert throttle.take_dropped("one too many") == 1


class RecordingTransport(asyncio.Transport):
    """Records what is written to it, and how it was ended."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[bytes | str] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.seen.append(bytes(data))

    def close(self) -> None:
        self.seen.append("closed")

    def abort(self) -> None:
        self.seen.append("aborted")


def joining() -> tuple[JoiningTransport, RecordingTransport]:
    below = RecordingTransport()
    return JoiningTransport(below, asyncio.get_running_loop()), below


async def test_the_head_leaves_with_the_first_piece_and_the_rest_together() -> None:
    transport, below = joining()
    for piece in (b"head", b"first", b"second", b"", b"end"):
        transport.write(piece)
    assert below.seen == [b"headfirst"]

    await asyncio.sleep(0)
    assert below.seen == [b"headfirst", b"secondend"]


async def test_each_turn_of_the_event_loop_begins_anew() -> None:
    transport, below = joining()
    for piece in (b"one", b"two"):
        transport.write(piece)
        await asyncio.sleep(0)
        assert below.seen[-1] == piece


async def test_what_is_large_waits_for_nothing() -> None:
    transport, below = joining()
    large = bytes(JOINED_BYTES + 1)
    transport.write(large)
    assert below.seen == [large]


async def test_what_waits_is_written_before_the_end_and_dropped_by_an_abort() -> None:
    closed, below_closed = joining()
    closed.write(b"last words")
    closed.close()
    aborted, below_aborted = joining()
    aborted.write(b"last words")
    aborted.abort()
    await asyncio.sleep(0)

    assert below_closed.seen == [b"last words", "closed"]
    assert below_aborted.seen == ["aborted"]


def connection(listener: socket.socket, address: str) -> socket.socket:
    """Begin to connect to a listening socket from an address."""
    made = socket.socket()
    made.setblocking(False)
    made.bind((address, 0))
    made.connect_ex(listener.getsockname())
    return made


def is_connected(made: socket.socket, listener: socket.socket) -> bool:
    return made.connect_ex(listener.getsockname()) in {0, errno.EISCONN}


@pytest.mark.skipif(sys.platform != "linux", reason="other kernels have no filter for a listening socket")
async def test_an_address_that_goes_on_connecting_is_not_heard_for_a_while_and_others_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listeners, "DROP_SECONDS", 3_600.0)  # the test ends it itself
    loop = asyncio.get_running_loop()

    with ScreenedListener(listen("127.0.0.1", 0), lambda address: address == "127.0.0.2") as listener:
        listener.setblocking(False)
        greedy = [connection(listener, "127.0.0.2") for _ in range(listeners.MAX_REFUSED)]
        assert len(greedy) < QUEUE
        for _ in greedy:
            with pytest.raises(BlockingIOError):
                listener.accept()

        unheard, other = connection(listener, "127.0.0.2"), connection(listener, "127.0.0.3")
        accepted, address = listener.accept()
        assert address[0] == "127.0.0.3"
        assert is_connected(other, listener)
        assert not is_connected(unheard, listener)

        listener._stop_dropping()
        again = connection(listener, "127.0.0.2")
        assert is_connected(again, listener)
        assert listener._timer is None
        with pytest.raises(BlockingIOError):
            listener.accept()  # it has too many still
        assert isinstance(listener._timer, asyncio.TimerHandle)
        assert loop.time() < listener._timer.when()
    for each in (*greedy, unheard, other, accepted, again):
        each.close()


@pytest.mark.skipif(sys.platform != "linux", reason="other kernels have no filter for a listening socket")
async def test_of_more_addresses_than_a_filter_holds_the_one_that_has_just_gone_too_far_is_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listeners, "DROP_SECONDS", 3_600.0)  # the test ends it itself
    monkeypatch.setattr(listeners, "MAX_REFUSED", 2)
    monkeypatch.setattr(listeners, "_MAX_DROPPED", 2)

    with ScreenedListener(listen("127.0.0.1", 0), lambda _: True) as listener:
        listener.setblocking(False)
        # The first address is refused first, and reaches the limit last.
        made = [connection(listener, f"127.0.0.{number}") for number in (2, 3, 3, 4, 4, 2)]
        for _ in made:
            with pytest.raises(BlockingIOError):
                listener.accept()
        newest, before, oldest = (connection(listener, f"127.0.0.{number}") for number in (2, 4, 3))
        assert not is_connected(newest, listener)
        assert not is_connected(before, listener)
        assert is_connected(oldest, listener)
    for each in (*made, newest, before, oldest):
        each.close()


async def test_where_the_kernel_has_no_filter_connections_are_refused_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOPROTOOPT, "Protocol not available")

    monkeypatch.setattr(listeners.sys, "platform", "linux")
    monkeypatch.setattr(listeners, "_attach_filter", refuse)
    monkeypatch.setattr(listeners, "MAX_REFUSED", 2)
    with ScreenedListener(listen("127.0.0.1", 0), lambda address: address == "127.0.0.1") as listener:
        listener.setblocking(False)
        made = [connection(listener, "127.0.0.1") for _ in range(3)]
        for _ in made:
            with pytest.raises(BlockingIOError):
                listener.accept()
        listener._stop_dropping()
    for each in made:
        each.close()
