"""Opens directories and files below an open directory, so that a path swapped meanwhile leads nowhere."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

ROOT = 0
"""The user id of root."""
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Opens a directory without the right to read it, where the system has this flag.
_PATH_ONLY = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def opened(path: Path) -> Iterator[int]:
    """Yield a descriptor of a directory, which is closed after the block. Links in its path are followed.

    So use it only for a path that no container can change. Raises `OSError`.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def inner(parent_fd: int, name: str, *, makes: bool = False) -> Iterator[int]:
    """Yield a descriptor of the directory `name` in the open directory `parent_fd`; it is closed afterwards.

    With `makes`, a missing directory is created, and belongs to the owner of its parent.

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

    Opening a pipe does not wait for its writer, so the caller has to check whether the file is a pipe. The
    caller also closes the descriptor.

    Raises:
        OSError: it is missing, a link or a directory.
    """
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=parent_fd)
    if stat.S_ISDIR(os.fstat(descriptor).st_mode):
        os.close(descriptor)  # `os.fdopen`, which refuses directories, would leave it open
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), name)
    return descriptor


def give_to_owner_of(directory_fd: int, file_fd: int) -> None:
    """Make the owner of an open directory the owner of an open file in it, if this process is root.

    A container that owns the directory can then read and remove the file.
    """
    if os.geteuid() == ROOT:
        owner = os.fstat(directory_fd)
        os.fchown(file_fd, owner.st_uid, owner.st_gid)


def set_mode(descriptor: int, mode: int) -> None:
    """Change the mode of an open file, also of one that was opened without the right to read it.

    The file is not found by its name, because another file may have taken the name since it was opened.
    """
    if hasattr(os, "O_PATH"):
        # fchmod does not work on a descriptor that was opened with O_PATH.
        Path(f"/proc/self/fd/{descriptor}").chmod(stat.S_IMODE(mode))
    else:
        os.fchmod(descriptor, stat.S_IMODE(mode))


def remove_tree(path: Path) -> None:
    """Remove a directory that an agent could write, with everything in it. No link in it is followed.

    It may be deeper than `shutil.rmtree` can go, and have directories whose rights were taken away from their
    owner. Blocks. Raises `OSError`.
    """
    with opened(path.parent) as parent:
        with _opened_for_removal(parent, path.name) as top:
            waiting = _remove_files(top)
            while waiting:
                name = waiting.pop()
                with _opened_for_removal(top, name) as directory:
                    for inner_name in _remove_files(directory):
                        # Moved to the top: a deep tree would need more nested calls, or more open
                        # descriptors, than the system allows. Opening it gives its owner the rights that
                        # moving a directory needs.
                        with _opened_for_removal(directory, inner_name):
                            new_name = secrets.token_hex(16)
                            os.rename(inner_name, new_name, src_dir_fd=directory, dst_dir_fd=top)
                        waiting.append(new_name)
                os.rmdir(name, dir_fd=top)
        os.rmdir(path.name, dir_fd=parent)


def _remove_files(directory_fd: int) -> list[str]:
    """Remove everything but directories from an open directory; return the names of its directories."""
    with os.scandir(directory_fd) as entries:
        listed = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    for name, is_directory in listed:
        if not is_directory:
            os.unlink(name, dir_fd=directory_fd)
    return [name for name, is_directory in listed if is_directory]


@contextmanager
def _opened_for_removal(parent_fd: int, name: str) -> Iterator[int]:
    """Yield a descriptor of the directory `name` in an open directory, after giving its owner all rights."""
    path_only = os.open(name, _PATH_ONLY, dir_fd=parent_fd)
    try:
        mode = os.fstat(path_only).st_mode
        if mode & stat.S_IRWXU != stat.S_IRWXU:
            set_mode(path_only, mode | stat.S_IRWXU)
    finally:
        os.close(path_only)
    descriptor = os.open(name, _DIRECTORY, dir_fd=parent_fd)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
