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
    """Yield a descriptor of a directory, which is closed after the block. Links in its path are followed.

    So only the host may be able to change that path. Raises `OSError`.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def inner(parent_fd: int, name: str, *, makes: bool = False) -> Iterator[int]:
    """Yield a descriptor of the directory `name` in the open directory `parent_fd`; it is closed afterwards.

    With `makes`, a missing one is created, and belongs to the owner of its parent.

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
    """Open the file `name` in the open directory `parent_fd` for reading, and return its descriptor.

    Opening a pipe does not wait for its writer, so the caller has to check whether the file is one. The
    caller also closes the descriptor.

    Raises:
        OSError: it is missing, a link or a directory.
    """
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=parent_fd)
    if stat.S_ISDIR(os.fstat(descriptor).st_mode):
        os.close(descriptor)  # a failing file object would leave it open
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), name)
    return descriptor


def give_to_owner_of(directory_fd: int, file_fd: int) -> None:
    """Make the owner of an open directory the owner of an open file in it, if this process is root.

    A container that owns the directory can then read and remove the file.
    """
    if os.geteuid() == ROOT:
        owner = os.fstat(directory_fd)
        os.fchown(file_fd, owner.st_uid, owner.st_gid)
