"""A lock between processes: a file that one of them has locked, until it lets go or dies."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from pathlib import Path
from types import TracebackType

POLL_SECONDS = 0.05
TAKEN = frozenset({errno.EACCES, errno.EAGAIN})


class LockTaken(Exception):
    """Another one holds the lock."""


class FileLock:
    """Holds the lock of a file from its making until `release`; as a context, until the block ends."""

    def __init__(
        self, path: Path, *, seconds: float = 0, mode: int = 0o644, poll_seconds: float = POLL_SECONDS
    ) -> None:
        """Take the lock, and wait up to `seconds` for who holds it. Blocks.

        Raises:
            LockTaken: it is still held, be it by this process.
            OSError: the file cannot be made or locked.
        """
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, mode)
        try:
            is_taken = self._takes_within(seconds, poll_seconds)
        except BaseException:
            self.release()
            raise
        if not is_taken:
            self.release()
            raise LockTaken(str(path))

    def _takes_within(self, seconds: float, poll_seconds: float) -> bool:
        until = time.monotonic() + seconds
        while not self._takes():
            if time.monotonic() >= until:
                return False
            time.sleep(poll_seconds)
        return True

    def _takes(self) -> bool:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in TAKEN:
                raise
            return False
        return True

    def release(self) -> None:
        """Let go of the lock; again does nothing. The file stays: without it two could hold the lock."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None
    ) -> None:
        self.release()
