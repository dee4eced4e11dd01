"""Clear the setuid and setgid bits of the files that agents write.

In the container such a bit has no effect (no-new-privileges). On the host the same file would let every local
user act as the file's owner, which is the user that Andy runs as. Docker's bind mounts do not support
`nosuid`, and a container's mount options would not apply on the host anyway. So the host clears the bits in
the files.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import structlog

from orchestrator.base import dirfd
from orchestrator.containers.mounts import NO_FILES, group_directories
from orchestrator.domain.values import Group

log = structlog.get_logger(__name__)

SET_ID = stat.S_ISUID | stat.S_ISGID
"""The mode bits to clear."""
MAX_DEPTH = 64
"""The depth of directories below which nothing is searched.

Each directory is opened step by step from the top, so the cost of a chain of them grows with the square of
its depth.
"""
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Opens a file whatever its mode allows, without following a link or waiting for the other end of a pipe.
_OPEN_ANY = getattr(os, "O_PATH", os.O_RDONLY | os.O_NONBLOCK) | os.O_NOFOLLOW | os.O_CLOEXEC


def clear_group(group: Group, *, home: Path) -> int:
    """Clear the setuid and setgid bits of all files in the folders that containers of a group can write.

    Return the number of changed files. Blocks.
    """
    # The directories of an ordinary container, and those of a restricted one, which has some of its own.
    directories = (*group_directories(group, None), *group_directories(group, NO_FILES))
    writable = {directory.path for directory in directories if directory.is_writable}
    cleared = sum(clear(home / path) for path in writable)
    if cleared:
        log.warning("group.set_id_cleared", group=group.folder, files=cleared)
    return cleared


def clear(top: Path) -> int:
    """Clear the setuid and setgid bits of the regular files below a directory. Blocks.

    Return the number of changed files. No link is followed. A directory that its owner may not read is made
    readable for the owner first, because it can contain such files. A directory at `MAX_DEPTH` is not
    searched but closed to all other users, so that they cannot reach anything below it. A directory that
    cannot be opened or listed is skipped.
    """
    cleared = 0
    # Paths of directories that are still to be searched, each as its components below `top`.
    waiting: list[tuple[str, ...]] = [()]
    while waiting:
        path = waiting.pop()
        with suppress(OSError), _opened_below(top, path) as directory:
            if len(path) == MAX_DEPTH:
                os.fchmod(directory, stat.S_IRWXU)
                continue
            with os.scandir(directory) as entries:
                listed = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
            waiting += [(*path, name) for name, is_directory in listed if is_directory]
            cleared += sum(_clear_file(directory, name) for name, is_directory in listed if not is_directory)
    return cleared


@contextmanager
def _opened_below(top: Path, path: tuple[str, ...]) -> Iterator[int]:
    """Open a directory below `top` for reading, and yield its descriptor.

    `path` are the names on the way to it. They are opened one after the other, so that no link is followed.
    """
    current = os.open(top, _DIRECTORY)
    try:
        for name in path:
            inner = _open_directory(current, name)
            os.close(current)
            current = inner
        yield current
    finally:
        os.close(current)


def _open_directory(parent_fd: int, name: str) -> int:
    """Open the directory `name` in the open directory `parent_fd`, and return its descriptor.

    If its owner may not read it, it is made readable for the owner first.
    """
    try:
        return os.open(name, _DIRECTORY, dir_fd=parent_fd)
    except PermissionError:
        descriptor = os.open(name, _OPEN_ANY | os.O_DIRECTORY, dir_fd=parent_fd)
        try:
            dirfd.set_mode(descriptor, os.fstat(descriptor).st_mode | stat.S_IRWXU)
        finally:
            os.close(descriptor)
        return os.open(name, _DIRECTORY, dir_fd=parent_fd)


def _clear_file(directory_fd: int, name: str) -> bool:
    """Clear the setuid and setgid bits of a file in an open directory; return whether it had any.

    Return False, too, if the file is gone, or cannot be changed, which is logged.
    """
    try:
        if not _has_set_id(os.stat(name, dir_fd=directory_fd, follow_symlinks=False)):
            return False
        descriptor = os.open(name, _OPEN_ANY, dir_fd=directory_fd)
    except OSError:
        return False  # the file was removed meanwhile
    try:
        status = os.fstat(descriptor)
        if not _has_set_id(status):
            return False  # another file has taken its name since the first look
        dirfd.set_mode(descriptor, status.st_mode & ~SET_ID)
    except OSError as error:
        log.warning("group.set_id_not_cleared", file=name, reason=str(error))
        return False
    finally:
        os.close(descriptor)
    return True


def _has_set_id(status: os.stat_result) -> bool:
    """Return whether a file's `status` is that of a regular file with the setuid or the setgid bit."""
    return stat.S_ISREG(status.st_mode) and bool(status.st_mode & SET_ID)
