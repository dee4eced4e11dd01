"""Clear the setuid and setgid bits of the files that agents write.

In the container such a bit does nothing (no-new-privileges). On the host the same file would let every
local user act as its owner, whom Andy runs as. A bind mount of Docker takes no `nosuid`, and a container's
mount options would not count on the host anyway, so the bits are cleared where they are found.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import structlog

from orchestrator.containers.mounts import NO_FILES, places
from orchestrator.domain.values import Group

log = structlog.get_logger(__name__)

SET_ID = stat.S_ISUID | stat.S_ISGID
MAX_DEPTH = 64
"""The depth of nested directories. Each is opened step by step, so a tree costs its depth squared."""
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# With it a file is held whatever its own mode allows, and a pipe or a link is held, not followed.
_HOLD = getattr(os, "O_PATH", os.O_RDONLY | os.O_NONBLOCK) | os.O_NOFOLLOW | os.O_CLOEXEC


def clear_group(group: Group, *, home: Path) -> int:
    """Clear the bits in all that a group's container writes; return the number of files. Blocks."""
    written = {
        place.path for rights in (None, NO_FILES) for place in places(group, rights) if place.is_writable
    }
    cleared = sum(clear(home / path) for path in written)
    if cleared:
        log.warning("group.set_id_cleared", group=group.folder, files=cleared)
    return cleared


def clear(top: Path) -> int:
    """Clear the bits of regular files in a directory; return their number. Blocks.

    No link is followed. A directory that its owner may not read is opened to it, for a file can lie there;
    one at `MAX_DEPTH` is closed to all others, with whatever is below.
    """
    cleared = 0
    waiting: list[tuple[str, ...]] = [()]
    while waiting:
        path = waiting.pop()
        with suppress(OSError), _entered(top, path) as directory:
            if len(path) == MAX_DEPTH:
                os.fchmod(directory, stat.S_IRWXU)
                continue
            with os.scandir(directory) as entries:
                found = [(one.name, one.is_dir(follow_symlinks=False)) for one in entries]
            waiting += [(*path, name) for name, is_directory in found if is_directory]
            cleared += sum(_clear_file(directory, name) for name, is_directory in found if not is_directory)
    return cleared


@contextmanager
def _entered(top: Path, path: tuple[str, ...]) -> Iterator[int]:
    """Open a directory below `top` for reading, step by step: none of the steps is a link."""
    here = os.open(top, _DIRECTORY)
    try:
        for name in path:
            inner = _opened(here, name)
            os.close(here)
            here = inner
        yield here
    finally:
        os.close(here)


def _opened(parent: int, name: str) -> int:
    try:
        return os.open(name, _DIRECTORY, dir_fd=parent)
    except PermissionError:
        held = os.open(name, _HOLD | os.O_DIRECTORY, dir_fd=parent)
        try:
            _set_mode(held, os.fstat(held).st_mode | stat.S_IRWXU)
        finally:
            os.close(held)
        return os.open(name, _DIRECTORY, dir_fd=parent)


def _clear_file(directory: int, name: str) -> bool:
    """Clear the bits of one file; tell whether it had any."""
    try:
        if not _has_set_id(os.stat(name, dir_fd=directory, follow_symlinks=False)):
            return False
        held = os.open(name, _HOLD, dir_fd=directory)
    except OSError:
        return False  # it went away meanwhile
    try:
        seen = os.fstat(held)
        if not _has_set_id(seen):
            return False  # another has taken its place
        _set_mode(held, seen.st_mode & ~SET_ID)
    except OSError as error:
        log.warning("group.set_id_not_cleared", file=name, reason=str(error))
        return False
    finally:
        os.close(held)
    return True


def _has_set_id(seen: os.stat_result) -> bool:
    return stat.S_ISREG(seen.st_mode) and bool(seen.st_mode & SET_ID)


def _set_mode(held: int, mode: int) -> None:
    """Change the mode of the open file itself, and not of a file that has taken its name since."""
    if hasattr(os, "O_PATH"):
        # A descriptor of this kind takes no fchmod.
        Path(f"/proc/self/fd/{held}").chmod(stat.S_IMODE(mode))
    else:
        os.fchmod(held, stat.S_IMODE(mode))
