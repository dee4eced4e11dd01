"""A backup that a browser sends in, where it cannot be stored."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from orchestrator.domain.errors import BackupError
from orchestrator.web.console.pages.care import _store_backup


def test_a_sent_backup_that_cannot_be_stored_is_refused_with_the_reason(tmp_path: Path) -> None:
    # Nothing can be removed there, either: a read-only disk refuses also to remove what does not exist.
    folder = tmp_path / "backups"
    folder.write_text("no folder")
    with pytest.raises(BackupError, match="cannot be kept"):
        _store_backup(io.BytesIO(b"\x1f\x8b"), folder, "mine.tar.gz")
