"""Copies of files on their way to a chat: out of their containers' reach, gone once they were sent."""

from __future__ import annotations

import mimetypes
import secrets
from collections.abc import Callable, Collection
from pathlib import Path

from orchestrator.domain.values import Attachment
from orchestrator.groups import attachments
from orchestrator.groups.attachments import FileRefused

CopyFile = Callable[[str, str], Attachment]
"""`(folder, path)`: copy a group's file. Blocks. Raises `FileRefused`."""
_PREFIX = "out-"


def no_files(folder: str, path: str) -> Attachment:
    """Where files are not sent at all."""
    del folder
    raise FileRefused(f"'{path}' cannot be sent: files are switched off here.")


class OutgoingFiles:
    """`data/outgoing/`, for the owner alone."""

    def __init__(self, home: Path, *, limit: int) -> None:
        """`limit` is in bytes; 0 sends none."""
        self._home = home
        self._limit = limit
        self._directory = home / "data" / "outgoing"

    def copy(self, folder: str, path: str) -> Attachment:
        """Copy a file that a group's agent names. Blocks. Raises `FileRefused`."""
        if not self._limit:
            return no_files(folder, path)
        target = self._directory / f"{_PREFIX}{secrets.token_hex(12)}"
        taken = attachments.take(self._home, folder, path, target, limit=self._limit)
        mime, _ = mimetypes.guess_type(taken.name)
        return Attachment(path=taken.path, name=taken.name, mime=mime or "application/octet-stream")

    def sweep(self, kept: Collection[Path]) -> int:
        """Remove copies that no message has; tells how many. Blocks.

        Only while nothing is being copied: a copy is there before its message is.
        """
        stray = [path for path in self._directory.glob(f"{_PREFIX}*") if path not in kept]
        for path in stray:
            path.unlink(missing_ok=True)
        return len(stray)
