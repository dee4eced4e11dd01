"""Copy files between chats and the folders of groups.

Containers can write these folders, so no link in them is followed. All access is relative to directory
descriptors, so that a path that the container swaps meanwhile leads nowhere.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from agent_runner.wire.unicode_forms import composed
from orchestrator.base.dirfd import give_to_owner_of, inner, open_file, opened
from orchestrator.domain.errors import BadRequest

FOLDER = "attachments"
MAX_NAME_BYTES = 120
"""Most bytes of a stored file's name."""
MAX_DEPTH = 20
"""Most folders and the name in the path of a file that an agent names."""
_UNSAFE = re.compile(r"[^\w.,()+-]+")


class FileRefused(BadRequest):
    """The file cannot be sent."""

    code = "bad_file"


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedFile:
    """A copy of a group's file, where no container can change it."""

    path: Path
    name: str
    size: int


def safe_name(name: str) -> str:
    """Return a file name like `name` that is safe to use: letters, digits and a few marks, and not hidden.

    Folders before the name are left out, and it is cut to `MAX_NAME_BYTES`. Empty if nothing remains.
    """
    bare = composed(name.replace("\\", "/").rsplit("/", 1)[-1])
    bare = _UNSAFE.sub("_", bare).strip("._ ")
    stem, dot, ending = bare.rpartition(".")
    # What follows the last dot is an ending only if it is short; it is never cut off.
    if not dot or not stem or len(ending.encode()) > 10:
        stem, ending = bare, ""
    room = MAX_NAME_BYTES - len(ending.encode()) - 1
    stem = stem.encode()[:room].decode(errors="ignore").rstrip("._ ")
    return f"{stem}.{ending}" if ending else stem


def keep(home: Path, folder: str, name: str, source: Path) -> str:
    """Copy the file `source` to a group's attachments, and return the path as the agent sees it. Blocks.

    The copy is called `name`, made safe, with a number if the group has such a file. `home` is Andy's
    home directory and `folder` the group's folder in it.

    Raises:
        OSError: a link or a file is in the way, or the disk is full; no half-written file remains.
    """
    with source.open("rb") as body:
        return keep_body(home, folder, name, body)


def keep_body(home: Path, folder: str, name: str, body: BinaryIO) -> str:
    """Copy the open file `body` to a group's attachments, and return the path as the agent sees it. Blocks.

    The arguments and errors are those of `keep`.
    """
    name = safe_name(name) or "file"
    with ExitStack() as stack:
        groups = stack.enter_context(opened(home / "groups"))
        group = stack.enter_context(inner(groups, folder, makes=True))
        place = stack.enter_context(inner(group, FOLDER, makes=True))
        return f"{FOLDER}/{_write_new(place, name, body)}"


def _write_new(directory_fd: int, name: str, body: BinaryIO) -> str:
    """Write `body` to a new file in the open directory `directory_fd`, and return the file's name.

    It is `name`, with a number if there is such a file. Nothing half-written remains after an error.

    Raises `FileExistsError` if a thousand numbers are taken, and other `OSError`.
    """
    for number in range(1, 1_000):
        unique = name if number == 1 else _numbered(name, number)
        with suppress(FileExistsError):
            descriptor = os.open(
                unique, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644, dir_fd=directory_fd
            )
            try:
                with os.fdopen(descriptor, "wb") as file:
                    shutil.copyfileobj(body, file)
                    # Whatever the umask, because the container reads the file as another user.
                    os.fchmod(file.fileno(), 0o644)
                    give_to_owner_of(directory_fd, file.fileno())
            except BaseException:
                os.unlink(unique, dir_fd=directory_fd)
                raise
            return unique
    raise FileExistsError(f"{FOLDER} has a thousand files named {name}")


def _numbered(name: str, number: int) -> str:
    """Return a file name with a number before its ending: `image-2.jpg`."""
    path = PurePosixPath(name)
    return f"{path.stem}-{number}{path.suffix}"


def take(home: Path, folder: str, path: str, target: Path, *, limit: int) -> StagedFile:
    """Copy a file of a group, which its agent names by `path`, to the new file `target`. Blocks.

    The agent may change the file meanwhile: at most `limit` bytes are copied. `home` is Andy's home directory
    and `folder` the group's folder in it.

    Raises:
        FileRefused: it is no regular file of the group, or larger than `limit` bytes.
    """
    try:
        with open_own(home, folder, path, limit=limit) as body:
            size = _copy(body, target, limit)
    except OSError as error:
        raise _unreadable(path, error) from error
    return StagedFile(path=target, name=safe_name(PurePosixPath(path).name) or "file", size=size)


def open_own(home: Path, folder: str, path: str, *, limit: int) -> BinaryIO:
    """Open a file of a group, which its agent names by `path`, for reading. Blocks.

    The caller closes it. No link is followed. `home` is Andy's home directory and `folder` the group's
    folder.

    Raises:
        FileRefused: it is no regular file of the group, or larger than `limit` bytes.
    """
    parts = _parts(path)
    try:
        with ExitStack() as stack:
            directory = stack.enter_context(opened(home / "groups"))
            for part in (folder, *parts[:-1]):
                directory = stack.enter_context(inner(directory, part))
            body = os.fdopen(open_file(directory, parts[-1]), "rb")
    except OSError as error:
        raise _unreadable(path, error) from error
    try:
        _check(os.fstat(body.fileno()), path, limit)
    except FileRefused:
        body.close()
        raise
    return body


def _unreadable(path: str, error: OSError) -> FileRefused:
    """Return the error that an agent's file cannot be read, with the system's reason."""
    return FileRefused(f"'{path}' cannot be read ({error.strerror}): name a file of yours.")


def _parts(path: str) -> tuple[str, ...]:
    """Return the folders and the name in a path that an agent names, relative to its group's folder.

    The agent sees that folder as `/workspace/group/`.

    Raises:
        FileRefused: the path leads out of the folder, or cannot be one.
    """
    bare = PurePosixPath(path.removeprefix("/workspace/group/"))
    if bare.is_absolute() or ".." in bare.parts or not bare.parts or len(bare.parts) > MAX_DEPTH:
        raise FileRefused(f"'{path}' is not in your own folder: copy the file there and name it from there.")
    if "\0" in path:
        raise FileRefused("A file name has no NUL in it.")
    return bare.parts


def _check(status: os.stat_result, path: str, limit: int) -> None:
    """Check that a file is a regular one without other links, of 1 to `limit` bytes.

    `status` is the system's description of the file, and `path` its path for the error. Raises `FileRefused`.
    """
    if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
        raise FileRefused(f"'{path}' is not a file of its own: no directory, link or pipe can be sent.")
    if status.st_size > limit:
        raise FileRefused(f"'{path}' has {status.st_size:,} bytes; at most {limit:,} can be sent.")
    if status.st_size == 0:
        raise FileRefused(f"'{path}' is empty.")


def _copy(body: BinaryIO, target: Path, limit: int) -> int:
    """Copy at most `limit` bytes of `body` to the new file `target`, which only this user may read.

    Return how many bytes were copied. Raises `OSError`, for an existing file as well.
    """
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with target.open("xb") as file:
        target.chmod(0o600)
        # A file may grow while it is read.
        shutil.copyfileobj(LimitedReader(body, limit), file)
        return file.tell()


class LimitedReader:
    """Reads at most `limit` bytes of a file, however long it is."""

    def __init__(self, body: BinaryIO, limit: int) -> None:
        """`body` is the open file to read, and `limit` the most bytes of it to return."""
        self._body = body
        self._left = limit

    def read(self, size: int = -1) -> bytes:
        """Return the next `size` bytes, but none beyond the limit; all up to it if `size` is negative."""
        data = self._body.read(min(size, self._left) if size >= 0 else self._left)
        self._left -= len(data)
        return data
