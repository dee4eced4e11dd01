"""Test that a directory can be read while others remove its files."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.live_files import contents


def test_each_matching_file_is_read_and_directories_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "one.json").write_text("1")
    (tmp_path / "two.txt").write_text("2")
    (tmp_path / "three.json").mkdir()
    assert contents(tmp_path, "*.json") == {tmp_path / "one.json": b"1"}
    assert contents(tmp_path / "nowhere") == {}


def test_a_file_that_goes_before_it_is_read_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "two"):
        (tmp_path / name).write_text(name)
    read = Path.read_bytes

    def taken_meanwhile(path: Path) -> bytes:
        if path.name == "one":
            path.unlink()
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", taken_meanwhile)
    assert contents(tmp_path) == {tmp_path / "two": b"two"}
