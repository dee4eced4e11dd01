"""Report that a file's content has changed since the agent read it; a changed time alone is not reported.

The agent's own changes do not count: after its edits a file counts as known, and while one of its commands
runs, all changes count as its own. Changes by a background process that a command left count as foreign.
"""

from __future__ import annotations

import hashlib
import os
import stat
import threading
from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from agent_runner.ans.event import EventDraft
from agent_runner.ans.safe_folder import read_plain

MAX_FILES = 200
"""Most files that are remembered."""
MAX_FILE_BYTES = 4 * 1024 * 1024
"""Most bytes of a file that is remembered."""
MAX_CHECKED_BYTES = 16 * 1024 * 1024
"""Bytes after which a check of all files stops reading; the next check reads the rest."""
_SHOWN_HASH = 8
"""Characters of a hash that an event shows."""
_GONE = "gone"
"""Stands for the hash of a file that is missing, or is a link, a pipe or a folder now."""
_UNREAD = "unread"
"""Stands for the hash of a file that is there, but has grown too long or can no longer be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileState:
    """The state of a file when the agent last knew it."""

    mtime_ns: int
    size: int
    sha256: str


class KnownFiles:
    """Remembers files that the agent has read or written, in one run. Its methods block: use a thread.

    Only ordinary files up to `MAX_FILE_BYTES` are remembered, the `MAX_FILES` that were used last; links are
    not followed, and a pipe does not block. A change is reported once; then the file's present state counts
    as known.
    """

    def __init__(self, cwd: Path) -> None:
        """`cwd` is the agent's working directory, from which relative paths are resolved."""
        self._cwd = cwd
        self._lock = threading.Lock()
        self._states: OrderedDict[str, FileState] = OrderedDict()
        self._commands: set[str] = set()
        """The ids of the agent's running commands."""
        self._changed_before: set[str] = set()
        """Files that changed before the first running command started, but were too many to read then."""
        self._changes: deque[EventDraft] = deque()
        """Changes that `take` has not returned yet: a caller may be cancelled while its thread goes on."""

    def __len__(self) -> int:
        return len(self._states)

    def remember(self, path: str) -> None:
        """Record the present state of a file that the agent has just read or written.

        A file that cannot be remembered, such as one that is too large, is forgotten.
        """
        name = self._name(path)
        with self._lock:
            state = _state_of(name)
            # Removed and added again, so that the dict is ordered by last use.
            self._drop(name)
            if state is not None:
                self._states[name] = state
                if len(self._states) > MAX_FILES:
                    self._drop(next(iter(self._states)))

    def take(self) -> list[EventDraft]:
        """Return the changes that were found and not returned before, each as an event `source.stale`."""
        # Counted first, because a thread may add changes while this removes some.
        return [self._changes.popleft() for _ in range(len(self._changes))]

    def check(self, path: str) -> None:
        """Look whether a file that is about to be edited has changed since the agent knew it.

        A change by others is returned by the next `take`; a change of the agent's own is only recorded.
        """
        name = self._name(path)
        with self._lock:
            if name in self._states:
                is_own = self._is_own(name)
                change, _ = self._update_state(name)
                if change is not None and not is_own:
                    self._changes.append(change)

    def check_all(self) -> None:
        """Look which files have changed since the agent knew them, at the start of a turn.

        The next `take` returns the changes.
        """
        with self._lock:
            self._commands.clear()  # the end of a command of an earlier turn may never have been reported
            self._check_known()

    def begin_command(self, call_id: str) -> None:
        """Record that a command of the agent starts (`call_id`), and look for changes by others until now.

        If another command is running, its changes cannot be distinguished from those by others: none are
        reported.
        """
        with self._lock:
            if self._commands:
                self._record_own_changes()
            else:
                # Changes before the command starts are by others; afterwards they could be the command's.
                self._check_known()
                # Changed files that `_check_known` did not read, because of its limit: a later look must not
                # count their change as the command's.
                self._changed_before = {name for name in self._states if not self._is_as_recorded(name)}
            self._commands.add(call_id)

    def end_commands(self, call_ids: Iterable[str]) -> None:
        """Record that the commands with these ids have ended: changes since they started are the agent's."""
        with self._lock:
            ended = self._commands.intersection(call_ids)
            if ended:
                self._record_own_changes()
                self._commands -= ended

    def _check_known(self) -> None:
        """Look for changes of the remembered files by others, until `MAX_CHECKED_BYTES` were read."""
        # Limited, because this runs before a prompt: 200 files of 4 MiB would take too long to read.
        budget = MAX_CHECKED_BYTES
        for name in list(self._states):
            if budget <= 0:
                break
            change, bytes_read = self._update_state(name)
            budget -= bytes_read
            if change is not None:
                self._changes.append(change)

    def _record_own_changes(self) -> None:
        """Record the present state of files that a running command of the agent may have changed.

        Files that changed before it started are left out. Once `MAX_CHECKED_BYTES` were read, the others that
        changed are forgotten.
        """
        budget = MAX_CHECKED_BYTES
        changed = [name for name in self._states if self._is_own(name) and not self._is_as_recorded(name)]
        for name in changed:
            if budget > 0:
                _, bytes_read = self._update_state(name)
                budget -= bytes_read
            else:
                self._drop(name)

    def _is_own(self, name: str) -> bool:
        """Return whether a change of this file that is found now counts as the agent's own.

        It does while a command of the agent runs, unless the file had changed before the command started.
        """
        return bool(self._commands) and name not in self._changed_before

    def _is_as_recorded(self, name: str) -> bool:
        """Return whether the time and size of a file are those that were recorded: it is unchanged then."""
        state, status = self._states[name], _status(name)
        return status is not None and (status.st_mtime_ns, status.st_size) == (state.mtime_ns, state.size)

    def _drop(self, name: str) -> None:
        """Forget a file."""
        self._states.pop(name, None)
        self._changed_before.discard(name)

    def _name(self, path: str) -> str:
        """Return the path under which a file is remembered."""
        return os.path.normpath(self._cwd / path)

    def _update_state(self, name: str) -> tuple[EventDraft | None, int]:
        """Record the present state of a remembered file, and return (event, bytes that were read).

        The event reports the change; it is None if the content is as recorded. A file that can no longer be
        read is forgotten, and its event says why.
        """
        if self._is_as_recorded(name):
            return None, 0
        before, now = self._states[name], _state_of(name)
        # If the file had changed before the running command started, that is recorded now: a later change is
        # the command's.
        self._changed_before.discard(name)
        if now is None:
            self._drop(name)
            return self._stale(name, before, *_why_unread(name)), 0
        self._states[name] = now
        # A file that was saved unchanged, or got only another time, is not reported.
        if now.sha256 == before.sha256:
            return None, now.size
        shown_hash = now.sha256[:_SHOWN_HASH]
        return self._stale(name, before, shown_hash, "read it again before you use it"), now.size

    def _stale(self, name: str, before: FileState, current: str, message: str) -> EventDraft:
        """Return the event about a changed file.

        `before` is its state as the agent knows it, `current` is the beginning of its new hash, or `_GONE` or
        `_UNREAD`. `message` tells the agent what to do, or why the file was not read.
        """
        path = Path(name)
        shown_path = path.relative_to(self._cwd) if path.is_relative_to(self._cwd) else path
        return EventDraft(
            type="source.stale",
            severity="warning",
            payload={
                "path": str(shown_path),
                "previous_hash": before.sha256[:_SHOWN_HASH],
                "current_hash": current,
                "message": message,
            },
        )


def _why_unread(name: str) -> tuple[str, str]:
    """Return (`_GONE` or `_UNREAD`, reason in words) for a path whose file could not be read."""
    try:
        status = os.lstat(name)
    except (FileNotFoundError, NotADirectoryError):
        return _GONE, "it is gone"
    except OSError:
        return _UNREAD, "it can no longer be read"
    if not stat.S_ISREG(status.st_mode):
        return _GONE, "it is no longer a plain file"
    if status.st_size > MAX_FILE_BYTES:
        return _UNREAD, f"it is now longer than {MAX_FILE_BYTES:,} bytes, so its changes are not followed"
    return _UNREAD, "it can no longer be read"


def _status(name: str) -> os.stat_result | None:
    """Return the status of a file, or of a link itself; None if there is neither."""
    try:
        return os.lstat(name)
    except (OSError, ValueError):
        return None


def _state_of(name: str) -> FileState | None:
    """Return the state of an ordinary file of up to `MAX_FILE_BYTES`; None for anything else."""
    try:
        content = read_plain(name, limit=MAX_FILE_BYTES)
    except (OSError, ValueError):
        return None
    digest = hashlib.sha256(content.data).hexdigest()
    return FileState(mtime_ns=content.mtime_ns, size=len(content.data), sha256=digest)
