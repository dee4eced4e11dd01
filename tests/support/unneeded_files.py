"""Leave out test files whose tests `-m` deselects anyway, before they are imported.

Importing takes long, and each process of pytest imports all collected files. One file in six has tests of
engines or of whole hosts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import chain, combinations
from pathlib import Path
from typing import Any

import pytest
from _pytest.mark.expression import Expression

TESTS = Path(__file__).parents[1]
KINDS = frozenset({"docker", "host", "browser", "swarm", "slow"})
"""The marks by which the Makefile divides the tests."""
FOLDERS = {TESTS / "browser": "browser", TESTS / "e2e": "host", TESTS / "simulation": "slow"}
"""Folder → the mark that all of its tests get."""
MENTION = re.compile(rf"\bmark\.({'|'.join(sorted(KINDS))})\b")
FOR_ALL = re.compile(r"^pytestmark = (?:\[$.*?^\]|.*?$)", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Marks:
    """The kinds of a file's tests, as its text shows them."""

    on_all: frozenset[str]
    on_some: frozenset[str]
    """Marks that a test may have besides, by itself or by a fixture."""

    def combinations(self) -> Iterator[frozenset[str]]:
        """Return all the sets of marks that a test of the file may have."""
        sizes = range(len(self.on_some) + 1)
        for more in chain.from_iterable(combinations(sorted(self.on_some), size) for size in sizes):
            yield self.on_all.union(more)


@cache
def marks_of(path: Path) -> Marks:
    """Return the marks of a file of tests without importing it."""
    text = path.read_text()
    folders = [folder for folder in path.parents if folder.is_relative_to(TESTS)]
    on_all = {FOLDERS[folder] for folder in folders if folder in FOLDERS}
    on_all.update(*(MENTION.findall(found) for found in FOR_ALL.findall(text)))
    mentioned = {*MENTION.findall(text), *chain.from_iterable(map(_mentions_for_folder, folders))}
    return Marks(on_all=frozenset(on_all), on_some=frozenset(mentioned - on_all))


@cache
def _mentions_for_folder(folder: Path) -> frozenset[str]:
    shared = folder / "conftest.py"
    return frozenset(MENTION.findall(shared.read_text()) if shared.exists() else ())


class UnneededFiles:
    """A plugin of pytest. Files that are named on the command line are collected in any case."""

    def __init__(self, chosen: str) -> None:
        words = set(re.findall(r"\w+", chosen)) - {"and", "or", "not"}
        # What other marks a file has is not known here.
        self._chosen = Expression.compile(chosen) if words and words <= KINDS else None
        self.left_out: set[Path] = set()

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        is_folder = collection_path.is_dir()
        files = list(collection_path.rglob("test_*.py")) if is_folder else [collection_path]
        if not files or not all(map(self._is_unneeded, files)):
            return None
        self.left_out.update(files)
        return True

    def _is_unneeded(self, path: Path) -> bool:
        if self._chosen is None or not path.match("test_*.py"):
            return False
        return not any(self._picks(marks) for marks in marks_of(path).combinations())

    def _picks(self, marks: frozenset[str]) -> bool:
        def is_marked(name: str, /, **_: Any) -> bool:
            return name in marks

        assert self._chosen is not None
        return self._chosen.evaluate(is_marked)

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Give a folder's tests its mark, and refuse a mark that a file's text does not show.

        Each file is collected in one of the runs, so none is left out everywhere for a mark that it has not.
        """
        for item in items:
            for folder, kind in FOLDERS.items():
                if item.path.is_relative_to(folder):
                    item.add_marker(kind)
            marks = KINDS.intersection(mark.name for mark in item.iter_markers())
            if item.path.is_relative_to(TESTS) and marks not in marks_of(item.path).combinations():
                raise pytest.UsageError(
                    f"{item.nodeid} has the marks {sorted(marks)}, which the text of its file does not show: "
                    "write 'pytest.mark.…' in the file itself, or in its folder's conftest.py."
                )
