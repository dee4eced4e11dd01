"""Distribute tests to the processes of pytest.

The tests of a file go to the same process, unless they share nothing.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from xdist.scheduler import LoadScopeScheduling

TESTS = Path(__file__).parents[1]
SHARED = re.compile(r"""scope="(module|class|package)"|\bhomeserver\b""")


@cache
def is_apart(path: Path) -> bool:
    """Return whether each test of a file starts a host of its own, and shares nothing with the others."""
    return path.is_relative_to(TESTS / "e2e") and SHARED.search(path.read_text()) is None


class FilesTogether(LoadScopeScheduling):
    """Give a file to one process, in the order of its tests.

    xdist 3.8 does not do so for `loadgroup`: it writes the group into an attribute that pytest 9.2 no longer
    reads, and then shares out each test by itself, without a word.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return nodeid if is_apart(TESTS.parent / file) else file
