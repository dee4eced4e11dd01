"""Opens directories and files below an open directory, so that a path swapped meanwhile leads nowhere."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

ROOT = 0
"""The user id of root."""


@contextmanager
def opened(path: Path) -> Iterator[int]:
    """Yield the descriptor of a directory of the host's own. Raises `OSError`."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def inner(parent_fd: int, name: str, *, makes: bool = False) -> Iterator[int]:
    """Yield the descriptor of a directory inside `parent_fd`; with `makes`, it is created if missing.

    Raises:
        OSError: it is missing, no directory, or a link.
    """
    is_new = False
    if makes:
        with suppress(FileExistsError):
            os.mkdir(name, 0o755, dir_fd=parent_fd)
            is_new = True
    descriptor = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent_fd)
    try:
        if is_new:
            # The process's umask has taken rights away from the mode that `mkdir` was given.
            os.fchmod(descriptor, 0o755)
            give_to_owner_of(parent_fd, descriptor)
        yield descriptor
    finally:
        os.close(descriptor)


def open_file(parent_fd: int, name: str) -> int:
    """Open a file inside `parent_fd` without blocking; the caller has to check whether it is a pipe.

    Raises:
        OSError: it is a link or a directory.
    """
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=parent_fd)
    if stat.S_ISDIR(os.fstat(descriptor).st_mode):
        os.close(descriptor)  # a failing file object would leave it open
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), name)
    return descriptor


def give_to_owner_of(directory_fd: int, file_fd: int) -> None:
    """Give a file to the owner of its directory, so that a container may read and remove it."""
    if os.geteuid() == ROOT:
        owner = os.fstat(directory_fd)
        os.fchown(file_fd, owner.st_uid, owner.st_gid)
