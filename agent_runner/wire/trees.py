"""Compare and copy directories between two machines by content: plain files, directories and links.

A hostile program may write to one side. A tree is scanned into `{path: Entry}`, and the changes between two
scans are applied below an open directory, so that a link which is put in place meanwhile cannot lead out of
it. Devices, pipes and sockets are left out; a link is copied with its target and never followed.
"""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import stat
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Literal

MAX_ENTRIES = 50_000
"""Most entries of a tree that is transferred."""
MAX_FILE_BYTES = 256 * 1024 * 1024
"""Most bytes of one file that is transferred."""
MAX_TREE_BYTES = 2 * 1024 * 1024 * 1024
"""Most bytes of all files of a tree that is transferred."""
MAX_PATH_BYTES = 4_000
"""Most bytes of a path, and most characters of a link's target."""
MAX_DEPTH = 64
"""Most parts of a path."""
JUST_NOW_NS = 100_000_000
"""Nanoseconds after its last change during which a file's hash is not cached."""
CHUNK_BYTES = 256 * 1024
"""Most bytes of a file that are read at once."""
PARTIAL = ".andy-partial-"
"""The prefix of files that are being written. Scans skip them, and those of `write_whole`."""

Kind = Literal["file", "dir", "link"]


class TreeError(Exception):
    """A tree is too large, or has an entry or path that is not valid; the text says which."""


class StaleFile(TreeError):
    """A file does not have the content of its entry: it has changed since, or never had it."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One path of a tree. `content` is the SHA-256 of a file in hex, or the target of a link."""

    kind: Kind
    mode: int = 0
    size: int = 0
    content: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanLimits:
    """Limits of a scan: bytes of one file, bytes of all files, and number of entries."""

    file_bytes: int
    tree_bytes: int
    entries: int
    allows_unread: bool = False
    """Whether files beyond the byte limits, and unreadable ones, are entered with size and times, unread.

    Otherwise the scan fails.
    """


UNREAD = "unread:"
"""Prefix of the `content` of a file that was not read: its device, inode and times follow."""
GiveAway = Callable[[int, int], None]
"""Called with the descriptors of a directory and of a new file in it, to set the file's owner."""
Tree = dict[str, Entry]
HashCache = dict[tuple[int, int, int, int, int], str]
"""Map a file's device, inode, size, modification time and change time (ns) to the hash of its content."""


def checked_path(path: str) -> str:
    """Return a relative path unchanged.

    Raises:
        TreeError: no file can have it (`_can_be_name`), it is too deep, or a part of it is empty, `.`, `..`,
            or begins with `PARTIAL`.
    """
    parts = path.split("/")
    is_valid = (
        _can_be_name(path)
        and len(parts) <= MAX_DEPTH
        and not any(part in {"", ".", ".."} or part.startswith(PARTIAL) for part in parts)
    )
    if not is_valid:
        raise TreeError(f"{path[:80]!r} is no path of a tree")
    return path


def _can_be_name(text: str) -> bool:
    """Return whether a text can be a path or the target of a link: short, without NUL, and encodable."""
    try:
        return "\0" not in text and len(text.encode("utf-8", "surrogateescape")) <= MAX_PATH_BYTES
    except UnicodeEncodeError:  # half of a character, as JSON can write it: no file can have it in its name
        return False


def entry_from(fields: Any) -> Entry:
    """Return the entry in fields that the other side sent. Raises `TreeError` if they are not valid."""
    if not isinstance(fields, Mapping):
        raise TreeError("an entry without fields")
    kind, mode, size, content = (fields.get(name) for name in ("kind", "mode", "size", "content"))
    # The content of a link becomes a path on this machine. A tuple, because `kind` may have no hash.
    if kind not in ("file", "dir", "link") or not isinstance(content, str) or not _can_be_name(content):
        raise TreeError("an entry of no known kind")
    # One message for all of these: only the size can be wrong in what an honest other side sends.
    if not isinstance(mode, int) or not isinstance(size, int) or not 0 <= size <= MAX_FILE_BYTES:
        raise TreeError(f"a file of more than {MAX_FILE_BYTES // 1024**2} MiB")
    # Set-id and sticky bits are dropped: the other side must not get them onto this machine.
    return Entry(kind=kind, mode=mode & 0o777, size=size, content=content)


def fields_of(entry: Entry) -> dict[str, Any]:
    """Return an entry as JSON fields, which `entry_from` reads."""
    return {"kind": entry.kind, "mode": entry.mode, "size": entry.size, "content": entry.content}


def scan(
    root_fd: int,
    cache: HashCache | None = None,
    *,
    limits: ScanLimits | None = None,
    skips: Collection[str] = (),
) -> Tree:
    """Return the entries below an open directory by path, with the hashes of files. Blocks.

    `root_fd` is a descriptor of the directory; entries at its top that `skips` names are left out. `cache`
    has the hashes of files from the last scan, and gets those of this one; files with a hash in it are not
    read. Without `limits`, those for a transfer apply. A file that changes meanwhile has the content that was
    read; the next scan finds the change.

    Raises:
        TreeError: it exceeds the limits, or has a path that is too long or too deep.
    """
    if limits is None:
        limits = ScanLimits(file_bytes=MAX_FILE_BYTES, tree_bytes=MAX_TREE_BYTES, entries=MAX_ENTRIES)
    scanning = _Scan({} if cache is None else cache, limits, frozenset(skips))
    scanning.read(root_fd, "")
    if cache is not None:
        cache.clear()
        cache.update(scanning.known)
    return scanning.tree


class _Scan:
    """One running scan."""

    def __init__(self, cache: HashCache, limits: ScanLimits, skips: Collection[str]) -> None:
        """`cache` has hashes of earlier scans; `skips` names entries of the top directory to leave out."""
        self.tree: Tree = {}
        self.known: HashCache = {}
        """The hashes of all files that this scan found, for the next one."""
        self._cache = cache
        self._limits = limits
        self._skips = skips
        self._bytes_left = limits.tree_bytes

    def read(self, directory_fd: int, prefix: str) -> None:
        """Add the entries of an open directory and of all directories below it to `tree`.

        `prefix` is the path of the directory in the tree, with a slash at its end; empty for the top. Raises
        `TreeError` if a limit is exceeded, or a path is too long or too deep.
        """
        for name in sorted(os.listdir(directory_fd)):
            # Files that are being written would be copied unfinished.
            if name.startswith(PARTIAL) or (name.startswith(".") and name.endswith(".partial")):
                continue
            if not prefix and name in self._skips:
                continue
            path = checked_path(f"{prefix}{name}")
            if len(self.tree) >= self._limits.entries:
                raise TreeError(f"more than {self._limits.entries} files")
            with suppress(FileNotFoundError):  # removed since the listing
                self._read_entry(directory_fd, name, path)

    def _read_entry(self, directory_fd: int, name: str, path: str) -> None:
        """Add the entry `name` of an open directory under `path`, with those below it.

        One that is no file, directory or link is left out. A directory that may not be opened raises
        `PermissionError`; if the limits have `allows_unread`, it is added without what is in it.
        """
        info = os.stat(name, dir_fd=directory_fd, follow_symlinks=False)
        if stat.S_ISDIR(info.st_mode):
            self.tree[path] = Entry("dir", stat.S_IMODE(info.st_mode) & 0o777)
            try:
                with _inner(directory_fd, name) as inner:
                    self.read(inner, f"{path}/")
            except PermissionError:
                if not self._limits.allows_unread:
                    raise
        elif stat.S_ISLNK(info.st_mode):
            self.tree[path] = Entry("link", content=os.readlink(name, dir_fd=directory_fd))
        elif stat.S_ISREG(info.st_mode):
            self.tree[path] = self._file(directory_fd, name, path, info)

    def _file(self, directory_fd: int, name: str, path: str, info: os.stat_result) -> Entry:
        """Return the entry of the file `name` in an open directory; `info` is the file's status.

        A file beyond the limits on bytes is not read: if the limits have `allows_unread`, its entry has its
        size and times in place of a hash, else `TreeError` is raised.
        """
        is_large = info.st_size > self._limits.file_bytes
        if not is_large:
            self._bytes_left -= info.st_size
        if not is_large and self._bytes_left >= 0:
            return _read_or_unread(directory_fd, name, info, self._cache, self.known, self._limits)
        if not self._limits.allows_unread:
            limit = self._limits.file_bytes if is_large else self._limits.tree_bytes
            raise TreeError(f"{path[:80]!r} goes beyond {limit // 1024**2} MiB")
        return _unread_entry(info)


def _read_or_unread(
    directory_fd: int, name: str, info: os.stat_result, cache: HashCache, known: HashCache, limits: ScanLimits
) -> Entry:
    """Return the entry of the file `name` in an open directory; `info` is the file's status.

    With `limits.allows_unread`, a file that cannot be read is identified by its size and times. `cache` has
    the hashes of earlier scans, and `known` gets that of this file, unless it was changed just now. Raises
    `OSError`, also for a file that is gone.
    """
    try:
        return _file_entry(directory_fd, name, info, cache, known)
    except FileNotFoundError:
        raise  # it is gone, not unreadable
    except OSError:
        if not limits.allows_unread:
            raise
        return _unread_entry(info)


def _unread_entry(info: os.stat_result) -> Entry:
    """Return the entry of a file without its content: too large, unreadable, or the caller wants no read.

    Its device, inode and times stand in place of a hash: a change of the file changes its size or these.
    """
    times = f"{info.st_dev}:{info.st_ino}:{info.st_mtime_ns}:{info.st_ctime_ns}"
    return Entry("file", stat.S_IMODE(info.st_mode) & 0o777, info.st_size, f"{UNREAD}{times}")


def is_unread(entry: Entry) -> bool:
    """Return whether an entry is that of a file that was not read. Pure."""
    return entry.content.startswith(UNREAD)


def entry_at(
    root_fd: int, path: str, cache: HashCache, limits: ScanLimits, *, reads: bool = True
) -> Entry | None:
    """Return the entry at one path below an open directory; None if there is no file, directory or link.

    `cache` has the hashes of files; a new one is added. If `reads` is false, or the file is larger than
    `limits` allow, it is identified by its size and times. Blocks.

    Raises:
        OSError: a parent is no directory.
    """
    with suppress(FileNotFoundError), _parent(root_fd, path) as (directory, name):
        info = os.stat(name, dir_fd=directory, follow_symlinks=False)
        if stat.S_ISDIR(info.st_mode):
            return Entry("dir", stat.S_IMODE(info.st_mode) & 0o777)
        if stat.S_ISLNK(info.st_mode):
            return Entry("link", content=os.readlink(name, dir_fd=directory))
        if stat.S_ISREG(info.st_mode):
            if not reads or info.st_size > limits.file_bytes:
                return _unread_entry(info)
            # The same cache has the earlier hashes and gets the new one.
            return _read_or_unread(directory, name, info, cache, cache, limits)
    return None


def scan_file(directory_fd: int, name: str) -> Entry:
    """Return the entry of the plain file `name` in an open directory. Blocks. Raises `OSError`."""
    info = os.stat(name, dir_fd=directory_fd, follow_symlinks=False)
    return _file_entry(directory_fd, name, info, {}, {})


def check_file(path: str | os.PathLike[str], entry: Entry) -> None:
    """Check that a local file has the content of an entry. Blocks. Raises `StaleFile`."""
    with open(path, "rb") as file:  # noqa: PTH123  # any path-like
        if hashlib.file_digest(file, "sha256").hexdigest() != entry.content:
            raise StaleFile("a file that is not what was announced")


def _file_entry(
    directory_fd: int, name: str, info: os.stat_result, cache: HashCache, known: HashCache
) -> Entry:
    """Return the entry of the file `name` in an open directory; `info` is the file's status.

    It is hashed unless `cache` has its hash. The hash is stored in `known`, unless the file was changed just
    now.
    """
    # The change time is in the key, because a container can reset the modification time after a write.
    key = (info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns)
    digest = cache.get(key)
    if digest is None:
        with open_file(directory_fd, name) as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    # File times have steps of some milliseconds: a file that was just changed may change again in the same
    # step, and would then look unchanged.
    if time.clock_gettime_ns(time.CLOCK_REALTIME) - info.st_ctime_ns > JUST_NOW_NS:
        known[key] = digest
    return Entry("file", stat.S_IMODE(info.st_mode) & 0o777, info.st_size, digest)


@dataclass(frozen=True, slots=True)
class Changes:
    """The steps from one tree to another: paths to remove, deepest first; entries to put, parents first."""

    removed: tuple[str, ...]
    put: dict[str, Entry]

    def __bool__(self) -> bool:
        return bool(self.removed or self.put)


def changes(before: Tree, after: Tree) -> Changes:
    """Return the steps from `before` to `after`. Pure.

    A path whose kind has changed, say from file to directory, is removed and created again.
    """
    # Sorted below by depth, the deepest first, so that a directory is empty when it is removed.
    removed = [path for path, entry in before.items() if path not in after or after[path].kind != entry.kind]
    put = {path: after[path] for path in sorted(after) if before.get(path) != after[path]}
    return Changes(tuple(sorted(removed, key=lambda path: (-path.count("/"), path))), put)


def remove_one(root_fd: int, path: str) -> None:
    """Remove a file, a link or an empty directory at a path below an open directory. It may be missing.

    Raises:
        OSError: the directory is not empty, and stays.
    """
    with suppress(FileNotFoundError, NotADirectoryError), _parent(root_fd, path) as (directory, name):
        if _is_directory(directory, name):
            os.rmdir(name, dir_fd=directory)
        else:
            os.unlink(name, dir_fd=directory)


def make_room(root_fd: int, path: str) -> None:
    """Remove an empty directory at a path where a file or link will be put; a file or link there stays.

    Raises:
        OSError: the directory is not empty.
    """
    with suppress(FileNotFoundError, NotADirectoryError), _parent(root_fd, path) as (directory, name):
        if _is_directory(directory, name):
            os.rmdir(name, dir_fd=directory)


def remove(root_fd: int, path: str) -> None:
    """Remove a path below an open directory with everything in it, following no link. It may be missing."""
    with suppress(FileNotFoundError, NotADirectoryError), _parent(root_fd, path) as (directory, name):
        _remove_entry(directory, name)


def _remove_entry(directory_fd: int, name: str) -> None:
    """Remove an entry of an open directory, with everything below it."""
    info = os.stat(name, dir_fd=directory_fd, follow_symlinks=False)
    if not stat.S_ISDIR(info.st_mode):
        os.unlink(name, dir_fd=directory_fd)
        return
    with _inner(directory_fd, name) as inner:
        for child in os.listdir(inner):  # noqa: PTH208  # below an open directory there are no paths
            _remove_entry(inner, child)
    os.rmdir(name, dir_fd=directory_fd)


def _keep_owner(directory_fd: int, file_fd: int) -> None:
    """Do nothing: the default for `set_owner`, with which a new entry belongs to the user of this process."""
    del directory_fd, file_fd


def put_directory(root_fd: int, path: str, entry: Entry, *, set_owner: GiveAway = _keep_owner) -> None:
    """Create a directory with the entry's mode, replacing anything else at its path.

    An existing directory keeps its content and gets the mode. `set_owner` sets the directory's owner.
    """
    with _parent(root_fd, path) as (directory, name):
        try:
            os.mkdir(name, 0o700, dir_fd=directory)
        except FileExistsError:
            if not stat.S_ISDIR(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode):
                _remove_entry(directory, name)
                os.mkdir(name, 0o700, dir_fd=directory)
        with _inner(directory, name) as inner:
            # Without its owner's rights, nothing could be created in it or removed from it later.
            os.fchmod(inner, entry.mode | 0o700)
            set_owner(directory, inner)


def put_link(root_fd: int, path: str, entry: Entry) -> None:
    """Create a link with the entry's target, replacing anything at its path."""
    with _parent(root_fd, path) as (directory, name):
        with suppress(FileNotFoundError):
            _remove_entry(directory, name)
        os.symlink(entry.content, name, dir_fd=directory)


def put_file(
    root_fd: int,
    path: str,
    entry: Entry,
    read: Callable[[int], bytes],
    *,
    set_owner: GiveAway = _keep_owner,
) -> None:
    """Write a file under a temporary name, check its content, and rename it into place.

    `read(n)` returns up to `n` of the file's next bytes; `set_owner` sets the file's owner.

    Raises:
        StaleFile: the bytes are not those of the entry. The old file stays.
    """
    with _parent(root_fd, path) as (directory, name):
        partial = f"{PARTIAL}{secrets.token_hex(6)}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(partial, flags, 0o600, dir_fd=directory)
        try:
            with os.fdopen(descriptor, "wb") as file:
                _copy(file.write, read, entry)
                os.fchmod(file.fileno(), entry.mode | 0o400)
                set_owner(directory, file.fileno())
            # A rename replaces a file, but not a directory.
            if _is_directory(directory, name):
                _remove_entry(directory, name)
            os.rename(partial, name, src_dir_fd=directory, dst_dir_fd=directory)
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(partial, dir_fd=directory)
            raise


def _copy(write: Callable[[bytes], object], read: Callable[[int], bytes], entry: Entry) -> None:
    """Copy the bytes of a file. Raises `StaleFile` if they are not those of the entry.

    `read(n)` returns up to `n` of the next bytes, `write` stores them.
    """
    digest, remaining = hashlib.sha256(), entry.size
    while remaining > 0 and (data := read(min(CHUNK_BYTES, remaining))):
        digest.update(data)
        write(data)
        remaining -= len(data)
    # The caller renames the copy only after this check, so that a file that changed during the transfer does
    # not replace the old one.
    if remaining or digest.hexdigest() != entry.content:
        raise StaleFile("a file that is not what was announced")


def _is_directory(directory_fd: int, name: str) -> bool:
    """Return whether the entry `name` of an open directory is a directory itself, no link to one."""
    try:
        return stat.S_ISDIR(os.stat(name, dir_fd=directory_fd, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return False


@contextmanager
def open_file(directory_fd: int, name: str) -> Iterator[Any]:
    """Yield the plain file `name` of an open directory, opened for reading; close it after the block.

    Raises `OSError` for anything else.
    """
    # Without O_NONBLOCK, opening a pipe would wait for a writer.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(name, flags, dir_fd=directory_fd)
    # Before `fdopen`, which refuses a directory without closing its descriptor.
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "no plain file", name)
    with os.fdopen(descriptor, "rb") as file:
        yield file


@contextmanager
def opened(root_fd: int, path: str) -> Iterator[Any]:
    """Yield the plain file at a path below an open directory, opened for reading. Raises `OSError`."""
    with _parent(root_fd, path) as (directory, name), open_file(directory, name) as file:
        yield file


@contextmanager
def _parent(root_fd: int, path: str) -> Iterator[tuple[int, str]]:
    """Yield a descriptor of the directory that contains a path, and the last part of the path.

    No link on the way is followed; `OSError` is raised for one. The descriptor is closed after the block.
    """
    *parents, name = checked_path(path).split("/")
    directory = os.dup(root_fd)
    try:
        for part in parents:
            inner = os.open(part, _DIRECTORY, dir_fd=directory)
            os.close(directory)
            directory = inner
        yield directory, name
    finally:
        os.close(directory)


_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def _inner(directory_fd: int, name: str) -> Iterator[int]:
    """Yield a descriptor of a directory in another; close it after the block. Raises `OSError` for a link."""
    descriptor = os.open(name, _DIRECTORY, dir_fd=directory_fd)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def opened_root(path: str | os.PathLike[str]) -> Iterator[int]:
    """Yield a descriptor of the directory at a path, and close it after the block.

    Raises `OSError`, also if the path is a link.
    """
    descriptor = os.open(path, _DIRECTORY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
