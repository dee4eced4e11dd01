"""Notice that a file has changed since the agent read it: by content, never by time alone."""

from __future__ import annotations

import hashlib
import os
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

from agent_runner.ans.event import Happening
from agent_runner.ans.folder import read_plain

MAX_FILES = 200
MAX_FILE_BYTES = 4 * 1024 * 1024
MAX_CHECKED_BYTES = 16 * 1024 * 1024
"""How much one check of all files reads at most; what is left is read by the next."""
_SHOWN_HASH = 8
_GONE = "gone"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """How a file was when the agent last knew it."""

    mtime_ns: int
    size: int
    sha256: str


class FileMarks:
    """Remembers files that the agent has read or written, in one run. Its methods block: use a thread.

    Only ordinary files up to `MAX_FILE_BYTES` are remembered, the `MAX_FILES` used last; links are not
    followed and pipes not waited for. A change is told once; then the file is known as it is now.
    """

    def __init__(self, cwd: Path) -> None:
        self._cwd = cwd
        self._marks: OrderedDict[str, Mark] = OrderedDict()

    def __len__(self) -> int:
        return len(self._marks)

    def known(self, path: str) -> None:
        """Take note of how a file is: the agent has just read it, or written it itself."""
        name = self._name(path)
        mark = _mark(name)
        self._marks.pop(name, None)
        if mark is not None:
            self._marks[name] = mark
            if len(self._marks) > MAX_FILES:
                self._marks.popitem(last=False)

    def check(self, path: str) -> Happening | None:
        """Tell whether a file has changed since the agent knew it: `source.stale`, before it is edited."""
        name = self._name(path)
        return self._checked(name)[0] if name in self._marks else None

    def check_all(self) -> list[Happening]:
        """Tell which files have changed since the agent knew them, at the start of a turn."""
        found: list[Happening] = []
        budget = MAX_CHECKED_BYTES
        for name in list(self._marks):
            if budget <= 0:
                break
            happening, cost = self._checked(name)
            budget -= cost
            if happening is not None:
                found.append(happening)
        return found

    def _name(self, path: str) -> str:
        return os.path.normpath(self._cwd / path)

    def _checked(self, name: str) -> tuple[Happening | None, int]:
        """Compare a file with its mark, and say how many bytes that took."""
        before, status = self._marks[name], _status(name)
        if status is not None and (status.st_mtime_ns, status.st_size) == (before.mtime_ns, before.size):
            return None, 0
        now = _mark(name)
        if now is None:
            del self._marks[name]
            return self._stale(name, before, _GONE), 0
        self._marks[name] = now
        is_same = now.sha256 == before.sha256
        return None if is_same else self._stale(name, before, now.sha256[:_SHOWN_HASH]), now.size

    def _stale(self, name: str, before: Mark, current: str) -> Happening:
        path = Path(name)
        shown = path.relative_to(self._cwd) if path.is_relative_to(self._cwd) else path
        what = (
            "it is gone, or no longer a plain file" if current == _GONE else "read it again before you use it"
        )
        return Happening(
            type="source.stale",
            severity="warning",
            payload={
                "path": str(shown),
                "previous_hash": before.sha256[:_SHOWN_HASH],
                "current_hash": current,
                "message": what,
            },
        )


def _status(name: str) -> os.stat_result | None:
    try:
        return os.lstat(name)
    except (OSError, ValueError):
        return None


def _mark(name: str) -> Mark | None:
    """Read an ordinary file of a bounded size; None for anything else."""
    try:
        content = read_plain(name, limit=MAX_FILE_BYTES)
    except (OSError, ValueError):
        return None
    digest = hashlib.sha256(content.data).hexdigest()
    return Mark(mtime_ns=content.mtime_ns, size=len(content.data), sha256=digest)
