"""Test that a seed decides the order of files, and that the tests of a file keep their order."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

from tests.support.shuffling import shuffled


def test_files_are_shuffled_by_the_seed_and_tests_in_them_are_not():
    items = [
        SimpleNamespace(path=Path(f"test_{file}.py"), name=name) for file in range(20) for name in ("a", "b")
    ]

    def order(seed: str) -> list[tuple[str, str]]:
        return [(one.path.name, one.name) for one in shuffled(items, seed)]

    assert order("1") == order("1") != order("2")
    for found in (order("1"), order("2")):
        assert sorted(found) == sorted((one.path.name, one.name) for one in items)
        assert [name for _, name in found] == ["a", "b"] * 20
        assert all(one[0] == other[0] for one, other in zip(found[::2], found[1::2], strict=True))
