"""Read and remove entries of a directory that a container may write, through a descriptor of it.

No call here follows a link, waits for another process or trusts a name: the kind of an entry is read from the
open file itself, because a container may swap it at any moment.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from agent_runner.wire.mailbox import MAX_FILE_BYTES
from orchestrator.domain.errors import MailboxError

Version = tuple[int, int, int]
"""Device, inode and change time in ns of a file: a different one means different content."""

_OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Without O_NONBLOCK, a FIFO, or a lease that a container holds on its own file, would block the host.
_OPEN_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_DIRECTORY_FAULTS = {errno.ENOTDIR, errno.ELOOP, errno.EACCES, errno.EPERM}
_OPEN_FAULTS = {errno.ELOOP, errno.EACCES, errno.EPERM, errno.EAGAIN, errno.ENXIO, errno.ENODEV}
_REMOVE_FAULTS = {errno.ENOENT, errno.EISDIR, errno.EPERM, errno.EACCES, errno.EBUSY}
_KINDS = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFBLK: "a block device",
    stat.S_IFCHR: "a character device",
    stat.S_IFDIR: "a directory",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryContent:
    """The content of an acceptable file when it was read."""

    body: bytes
    version: Version


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryFault:
    """The reason why an entry is not acceptable."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectorySurvey:
    """The names in a directory, sorted, without those of directories."""

    names: tuple[str, ...]
    is_cut: bool
    """Whether there are more entries than were looked at."""


@contextmanager
def opened(directory: Path) -> Iterator[int | None]:
    """Open `directory`, which a container may write, and yield its descriptor; None when it is missing.

    If a container has taken away the host's right to write in it, that is restored.

    Raises:
        MailboxError: it or its parent is a link or no directory, or the host may not read it.
    """
    try:
        descriptor = _open_within_parent(directory)
    except FileNotFoundError:
        yield None
        return
    try:
        _restore_writable(descriptor)
        yield descriptor
    finally:
        os.close(descriptor)


def survey(directory_fd: int, limit: int) -> DirectorySurvey:
    """Return the sorted names in an open directory, without directories.

    At most `limit` entries are looked at. These are the first ones in the order of the file system.
    """
    # Limited while listing: a container may fill its directory with millions of names.
    with os.scandir(directory_fd) as entries:
        looked_at = list(islice(entries, limit))
        is_cut = next(entries, None) is not None
    names = sorted(entry.name for entry in looked_at if not entry.is_dir(follow_symlinks=False))
    return DirectorySurvey(names=tuple(names), is_cut=is_cut)


def status_of(directory_fd: int, name: str) -> os.stat_result | None:
    """Return the status of an entry of an open directory, without following a link; None when it is gone."""
    try:
        return os.stat(name, dir_fd=directory_fd, follow_symlinks=False)
    except FileNotFoundError:
        return None


def read(
    directory_fd: int, name: str, owner_uids: frozenset[int], *, limit: int = MAX_FILE_BYTES
) -> EntryContent | EntryFault | None:
    """Read the file `name` in an open directory, and return its content, or why it is not acceptable.

    Only a regular file with one link, of at most `limit` bytes and of one of the users `owner_uids` is
    acceptable. Return None when it is gone.

    Raises:
        OSError: the host cannot read, whatever the entry is (too many open files, a broken disk).
    """
    try:
        file = os.open(name, _OPEN_FILE, dir_fd=directory_fd)
    except FileNotFoundError:
        return None
    # Errors caused by the entry are the container's fault and rejected; errors of the machine are raised and
    # retried.
    except OSError as error:
        if error.errno not in _OPEN_FAULTS:
            raise
        return EntryFault(reason=f"it cannot be opened: {os.strerror(error.errno)}")
    try:
        return _read_open(file, owner_uids, limit)
    finally:
        os.close(file)


def remove(directory_fd: int, name: str) -> bool:
    """Remove an entry that is no directory; return whether this call removed it.

    Return False if it is gone, is a directory by now, or is protected. Raises `OSError` for any other
    fault, such as a broken disk.
    """
    try:
        os.unlink(name, dir_fd=directory_fd)
    # Another entry of this name may be there by now, such as a directory. The next pass looks at it like any
    # new one.
    except OSError as error:
        if error.errno not in _REMOVE_FAULTS:
            raise
        return False
    return True


def changed_ms(info: os.stat_result) -> int:
    """Return the time when a file or its status was last changed, in epoch milliseconds.

    This is the change time (ctime), which a container cannot set, unlike the modification time.
    """
    return info.st_ctime_ns // 1_000_000


def version(info: os.stat_result) -> Version:
    """Return the version of a file, which is another one once the file or its content has changed."""
    return info.st_dev, info.st_ino, info.st_ctime_ns


def fault_of(info: os.stat_result, owner_uids: frozenset[int], *, limit: int = MAX_FILE_BYTES) -> str | None:
    """Return why an entry with this status is not acceptable as a request file; None when it is.

    `owner_uids` are the ids of the users to whom it may belong; `limit` is the most bytes that it may have.
    """
    if not stat.S_ISREG(info.st_mode):
        return f"it is {_KINDS.get(stat.S_IFMT(info.st_mode), 'no regular file')}"
    # A second link could make the host read a file that the container can still change under another name.
    if info.st_nlink != 1:
        return f"it has {info.st_nlink} links"
    if info.st_size > limit:
        return f"it has {info.st_size} bytes; at most {limit} are taken"
    if info.st_uid not in owner_uids:
        return f"it belongs to user {info.st_uid}"
    return None


def _read_open(file_fd: int, owner_uids: frozenset[int], limit: int) -> EntryContent | EntryFault:
    """Return the content of an open file of at most `limit` bytes, or why it is not acceptable. Blocks."""
    # Checked on the open descriptor: since its name was looked at, the entry may have been swapped.
    info = os.fstat(file_fd)
    if reason := fault_of(info, owner_uids, limit=limit):
        return EntryFault(reason=reason)
    # One byte more than allowed distinguishes a file that grew from one that just fits.
    body = _read_at_most(file_fd, limit + 1)
    if len(body) > limit:
        return EntryFault(reason=f"it grew above {limit} bytes while it was read")
    return EntryContent(body=body, version=version(info))


def _read_at_most(file_fd: int, limit: int) -> bytes:
    """Return the first bytes of an open file, at most `limit`. Blocks."""
    parts: list[bytes] = []
    while limit > 0 and (part := os.read(file_fd, limit)):
        parts.append(part)
        limit -= len(part)
    return b"".join(parts)


def _open_within_parent(directory: Path) -> int:
    """Open a directory and return its descriptor.

    Raises:
        FileNotFoundError: it or its parent is missing.
        MailboxError: it or its parent is a link or no directory, or the host may not read it.
    """
    # The parent is opened first, so that a link in its place is noticed, too.
    parent = _open_directory(directory.parent)
    try:
        return _open_directory(Path(directory.name), within_fd=parent)
    finally:
        os.close(parent)


def _open_directory(path: Path, *, within_fd: int | None = None) -> int:
    """Open a directory and return its descriptor.

    `path` is relative to the open directory `within_fd`, if passed.

    Raises:
        FileNotFoundError: it is missing.
        MailboxError: it is a link or no directory, or the host may not read it.
    """
    try:
        return os.open(path, _OPEN_DIRECTORY, dir_fd=within_fd)
    except OSError as error:
        if error.errno not in _DIRECTORY_FAULTS:
            raise
        raise MailboxError(
            f"'{path.name}' is not the directory that the host made ({os.strerror(error.errno)}): "
            "stop the group's container and remove it"
        ) from error


def _restore_writable(directory_fd: int) -> None:
    """Give the host's user all rights in an open directory again, if that user owns it.

    A container of the same user may have taken them away. The host could then not remove an entry, and would
    read it again and again.
    """
    info = os.fstat(directory_fd)
    if info.st_uid == os.geteuid() and info.st_mode & stat.S_IRWXU != stat.S_IRWXU:
        os.fchmod(directory_fd, stat.S_IMODE(info.st_mode) | stat.S_IRWXU)
