"""Read files of a folder that others write to: whole, of limited size and number, never through a link."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

MAX_LISTED = 500
"""Most entries of a folder that are listed."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class FileStamp:
    """The name of a file and the properties that change with its content."""

    name: str
    mtime_ns: int
    size: int


class NotPlain(OSError):
    """The file is no ordinary file of a readable size."""


@contextmanager
def opened(folder: Path | None) -> Iterator[int | None]:
    """Open a folder and yield its descriptor, which is closed after the block.

    Yields None without a folder, or if it is missing, a link, or cannot be opened.
    """
    if folder is None:
        yield None
        return
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        yield None
        return
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def stamps(descriptor: int, suffixes: tuple[str, ...]) -> list[FileStamp]:
    """Return the ordinary files of an open folder whose names end in one of `suffixes`, sorted by name.

    `descriptor` is that of the folder. Only its first `MAX_LISTED` entries are looked at.
    """
    files = []
    # The agent writes to the folder, so it may contain any number of files.
    with os.scandir(descriptor) as entries:
        for entry in islice(entries, MAX_LISTED):
            if entry.name.endswith(suffixes) and entry.is_file(follow_symlinks=False):
                with suppress(FileNotFoundError):
                    status = entry.stat(follow_symlinks=False)
                    files.append(FileStamp(name=entry.name, mtime_ns=status.st_mtime_ns, size=status.st_size))
    return sorted(files)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileContent:
    """A whole file, and when it was last changed."""

    data: bytes
    mtime_ns: int


def read_plain(name: str, *, limit: int, inside_fd: int | None = None) -> FileContent:
    """Return the content of an ordinary file of at most `limit` bytes.

    `name` is a path, or with `inside_fd`, the descriptor of an open folder, a name in that folder.

    Raises:
        OSError: it is missing, is a link, a pipe or a folder, or is longer than `limit`.
        ValueError: the name is not possible for a file, as with a null character.
    """
    # Without O_NONBLOCK, opening a pipe would wait for somebody to write into it.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(name, flags, dir_fd=inside_fd)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise NotPlain("it is no ordinary file")
        # One byte more than allowed shows that the file is longer, even if it grows while it is read.
        data = _read(descriptor, limit + 1)
    finally:
        os.close(descriptor)
    if len(data) > limit:
        raise NotPlain(f"it is longer than {limit:,} bytes")
    return FileContent(data=data, mtime_ns=status.st_mtime_ns)


def _read(descriptor: int, limit: int) -> bytes:
    """Return the next bytes of an open file, at most `limit`."""
    data = bytearray()
    while len(data) < limit and (chunk := os.read(descriptor, min(limit - len(data), 1 << 20))):
        data += chunk
    return bytes(data)
