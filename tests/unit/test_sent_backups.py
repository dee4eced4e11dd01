"""A backup that a browser sends in, where it cannot be stored."""

from __future__ import annotations

import errno
import io
import os
import time
from pathlib import Path

import pytest

from orchestrator.domain.errors import BackupError
from orchestrator.web.console.pages.care import _delete_leftover_uploads, _store_backup


def test_a_sent_backup_that_cannot_be_stored_is_refused_with_the_reason(tmp_path: Path) -> None:
    # Nothing can be removed there, either: a read-only disk refuses also to remove what does not exist.
    folder = tmp_path / "backups"
    folder.write_text("no folder")
    with pytest.raises(BackupError, match="cannot be kept"):
        _store_backup(io.BytesIO(b"\x1f\x8b"), folder, "mine.tar.gz")


def test_what_a_killed_upload_left_is_deleted_after_a_day(tmp_path: Path) -> None:
    old, new, other = (
        tmp_path / name for name in (".upload-0123abcd", ".upload-4567cdef", ".upload-of-mine")
    )
    for path in (old, new, other):
        path.write_bytes(b"a whole backup")
    day_ago = time.time() - 90_000
    for path in (old, other):
        os.utime(path, (day_ago, day_ago))
    _delete_leftover_uploads(tmp_path, now_ms=round(time.time() * 1000))
    assert sorted(tmp_path.iterdir()) == [new, other]


@pytest.mark.parametrize("has_links", [True, False])
def test_a_sent_backup_replaces_none_that_another_page_stored_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_links: bool
) -> None:
    other = tmp_path / "mine.tar.gz"
    link, rename = os.link, Path.rename

    def store_other() -> None:
        if not other.exists():
            other.write_bytes(b"the other")

    def link_later(source: Path, target: Path) -> None:
        store_other()
        if not has_links:
            raise PermissionError(errno.EPERM, "Operation not permitted")
        link(source, target)

    def rename_later(source: Path, target: Path) -> Path:
        store_other()
        return rename(source, target)

    monkeypatch.setattr(os, "link", link_later)
    monkeypatch.setattr(Path, "rename", rename_later)
    assert _store_backup(io.BytesIO(b"new"), tmp_path, "mine.tar.gz") == "mine-1.tar.gz"
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {
        "mine.tar.gz": b"the other",
        "mine-1.tar.gz": b"new",
    }
