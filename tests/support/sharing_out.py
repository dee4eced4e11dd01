"""Distribute tests to the processes of pytest.

The tests of a file go to the same process, unless they share nothing. Files that take minutes come first.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from xdist.scheduler import LoadScopeScheduling

TESTS = Path(__file__).parents[1]
SHARED = re.compile(r"""scope="(module|class|package)"|\bhomeserver\b""")


APART = (TESTS / "e2e", TESTS / "faults", TESTS / "integration" / "test_containment.py")
"""Folders and files in which each test starts a host of its own, unless a file shares one."""
LONGEST = tuple(
    TESTS / name
    for name in (
        "docker/test_compose.py",
        "faults/test_hostile_runner.py",
        "contract/test_channel_contract.py",
        "docker/test_release.py",
        "docker/test_docker_engine.py",
    )
)
"""Files that take minutes in one process, in the order in which they start.

The first one builds the agent image. The next two do without it at first, so that they need not wait. The
release finds most layers of its images built by the first.
"""


@cache
def is_apart(path: Path) -> bool:
    """Return whether each test of a file starts a host of its own, and shares nothing with the others."""
    return any(path.is_relative_to(place) for place in APART) and SHARED.search(path.read_text()) is None


def place_in_run(path: Path) -> int:
    """Return when the tests of a file start, as a number to sort by; equal ones keep their order.

    The longest files come first and tests that share nothing last, so that no process has a whole file left
    while the others have nothing to do.
    """
    if path in LONGEST:
        return LONGEST.index(path)
    return len(LONGEST) + is_apart(path)


class FilesTogether(LoadScopeScheduling):
    """Give a file to one process, in the order of its tests.

    xdist 3.8 does not do so for `loadgroup`: it writes the group into an attribute that pytest 9.2 no longer
    reads, and then shares out each test by itself, without a word.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return nodeid if is_apart(TESTS.parent / file) else file
