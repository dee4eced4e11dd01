"""The files of a simulated disk as a failure of power or a full disk leaves them.

The database is a real SQLite file. Its connections are watched here: no commit that wrote something gets
through while the disk is full, and what was committed without being synced is gone once the power fails.
"""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

FULL = 2
"""The value of `PRAGMA synchronous` at which each commit is synced before it returns."""


class WatchedConnection(sqlite3.Connection):
    """A connection of the host to its database."""

    storage: Storage | None = None
    is_synced = True
    changes_before = 0

    def execute(self, sql: str, *given: Any) -> sqlite3.Cursor:
        if self.storage is not None:
            if sql == "BEGIN IMMEDIATE":
                self.storage.note_begin(self)
            elif sql == "COMMIT" and self.storage.is_full and self.total_changes != self.changes_before:
                self.storage.refused += 1
                super().execute("ROLLBACK")
                error = sqlite3.OperationalError("database or disk is full")
                error.sqlite_errorcode = sqlite3.SQLITE_FULL
                raise error
            elif sql == "COMMIT":
                found = super().execute(sql, *given)
                if self.total_changes != self.changes_before:
                    self.storage.on_commit()
                return found
        return super().execute(sql, *given)


class Storage:
    """The database's files in one world."""

    def __init__(self, path: Path) -> None:
        self.is_full = False
        self.refused = 0
        """Number of commits that a full disk has refused."""
        self.on_commit: Callable[[], None] = lambda: None
        """Called after a commit that wrote something."""
        self._path = path
        self._barrier: dict[Path, bytes] | None = None
        """The files before the first commit that was not synced; None while all is on the disk."""
        self._moved_ns = 0
        self._sweeper: sqlite3.Connection | None = None

    @contextmanager
    def open(self) -> Iterator[None]:
        """Hold a connection, so that no other is the last one, which would tidy up after a kill."""
        self._hold()
        try:
            yield
        finally:
            self._let_go()

    def _hold(self) -> None:
        self._sweeper = sqlite3.connect(self._path)
        self._sweeper.execute("SELECT count(*) FROM turns").fetchone()

    def _let_go(self) -> None:
        if self._sweeper is not None:
            self._sweeper.close()
            self._sweeper = None

    @contextmanager
    def closed(self) -> Iterator[None]:
        """Let go of the files meanwhile: SQLite tidies up after the last connection."""
        self._let_go()
        self._barrier = None
        try:
            yield
        finally:
            self._hold()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch the connections that are opened meanwhile."""
        connect = partial(sqlite3.connect, factory=WatchedConnection)
        with patch.object(sqlite3, "connect", connect):
            yield

    def watch(self, connection: sqlite3.Connection) -> None:
        """Begin to watch a connection whose settings are made."""
        if isinstance(connection, WatchedConnection):
            (level,) = connection.execute("PRAGMA synchronous").fetchone()
            connection.is_synced = level >= FULL
            connection.storage = self

    def note_begin(self, connection: WatchedConnection) -> None:
        """Note the state of the files where the transaction that begins now will not be synced."""
        connection.changes_before = connection.total_changes
        if connection.is_synced:
            return
        # A checkpoint syncs all that was committed before it, and shows in the time of the database's file.
        moved_ns = self._path.stat().st_mtime_ns
        if self._barrier is None or moved_ns != self._moved_ns:
            self._barrier, self._moved_ns = self._files(), moved_ns

    def _files(self) -> dict[Path, bytes]:
        log = self._path.with_name(f"{self._path.name}-wal")
        return {path: path.read_bytes() for path in (self._path, log) if path.exists()}

    def before_power_loss(self) -> dict[Path, bytes]:
        """Return the files as the disk has them: cut back to the last barrier.

        To be called while the connections of the host are open, so that none has tidied up.
        """
        left = self._files()
        if self._barrier is not None and self._path.stat().st_mtime_ns == self._moved_ns:
            left = self._barrier
        self._barrier = None
        return left

    def after_power_loss(self, left: dict[Path, bytes]) -> None:
        """Put the files there that the disk had; to be called once the host's connections are closed."""
        self._let_go()
        for ending in ("", "-wal", "-shm"):
            self._path.with_name(f"{self._path.name}{ending}").unlink(missing_ok=True)
        for path, data in left.items():
            path.write_bytes(data)
            path.chmod(0o600)
        self._hold()


class UnsyncedFiles:
    """Files that were put into place and of which the disk may not have all yet."""

    WRITTEN_BACK_SECONDS = 30.0
    """Seconds after which the kernel has written everything by itself."""

    def __init__(self, seed: str) -> None:
        self._chance = random.Random(f"{seed}:power")
        self._synced: set[tuple[int, int]] = set()
        """Device and number of each file that was synced before it was put into place."""
        self._moved: list[tuple[float, Path, bytes | None, bool]] = []
        """When and where a file was put, what was there before, and whether its content was synced."""
        self.lost = 0

    def note_sync(self, device: int, number: int) -> None:
        self._synced.add((device, number))

    def note_directory_sync(self, directory: Path) -> None:
        """Make what was put into a directory outlast a power loss from now on."""
        self._moved = [one for one in self._moved if one[1].parent != directory or not one[3]]

    def before_move(self, source: Path, target: Path, now_s: float) -> None:
        """Note what is lost of a file that is being put into place, should the power fail."""
        try:
            found = source.stat()
        except OSError:
            return
        if not source.is_file():
            return
        is_synced = (found.st_dev, found.st_ino) in self._synced
        self._synced.discard((found.st_dev, found.st_ino))
        before = None
        with suppress(OSError):
            before = target.read_bytes()
        oldest_s = now_s - self.WRITTEN_BACK_SECONDS
        self._moved = [one for one in self._moved if one[0] >= oldest_s]
        self._moved.append((now_s, target, before, is_synced))

    def lose(self, now_s: float) -> list[Path]:
        """Let a drawn part of what was not synced be gone: the file is empty, or what was there before.

        Return the files that are left of it, which have the time of the real clock.
        """
        left: list[Path] = []
        for at_s, target, before, is_synced in reversed(self._moved):
            fate = self._chance.choice(("whole", "before", "empty"))
            if now_s - at_s > self.WRITTEN_BACK_SECONDS or fate == "whole" or not target.is_file():
                continue
            if fate == "empty" and is_synced:
                continue
            self.lost += 1
            if fate == "before" and before is None:
                target.unlink()
            else:
                target.write_bytes(b"" if fate == "empty" else before or b"")
                left.append(target)
        self._moved.clear()
        return [path for path in left if path.exists()]
