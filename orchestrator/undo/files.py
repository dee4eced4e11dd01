"""Record a group's files before each turn, where no container reaches, and put them back for an undo.

They are in `data/undo/FOLDER/`:

    content/HASH    the content of a file, each once
    trees/HASH      the paths of a folder with their hashes, at one moment
    turns/NUMBER    names the tree before a turn that has not been compared with what came after it

Whatever is in a group's folder is read and written below directory descriptors (`agent_runner.wire.trees`):
no link is followed, no pipe opened, and what is too large or too much is named and not read. All of it
blocks; any thread may call it.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shutil
import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import structlog

from agent_runner.wire import trees
from agent_runner.wire.files import write_whole
from agent_runner.wire.trees import Entry, HashCache, Tree, TreeError
from orchestrator.base.dirfd import give_to_owner_of
from orchestrator.domain.home import UNDO

log = structlog.get_logger(__name__)

LIMITS = trees.ScanLimits(
    file_bytes=16 * 1024**2, tree_bytes=256 * 1024**2, entries=20_000, names_the_rest=True
)
"""Limits of a snapshot: a file beyond the bytes is identified by size and times;
beyond the entries, nothing is recorded.
"""
STORE_BYTES = 512 * 1024**2
"""Bytes of one group's stored contents; further contents are not stored and cannot be restored."""
MAX_CHANGED = 2_000
"""Most files that a turn may change and still be undone."""
OWN = frozenset({"attachments", "conversations", ".andy-talk.json"})
"""Entries of a group's folder with its chat history, which no undo changes."""
FICLONE = 0x40049409
"""The ioctl by which Linux lets two files share their blocks until one of them is written."""
TOO_SLOW = "it took too long to read them"
HOLD_SECONDS = 0.2
"""Seconds that an undo waits for a folder that is being read: the whole database waits with it."""
SMALL_ENTRIES, SMALL_BYTES = 2_000, 16 * 1024**2
"""Bounds of a folder that may be compared within a transaction: until that ends, nobody else can write."""
Fields = dict[str, Any]


class FolderBusy(Exception):
    """A group's folder is being read or written for its snapshots."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedFile:
    """A path that a turn changed, with the fields of its entries; None where there is none."""

    path: str
    before: Fields | None
    """The entry before the turn, as `trees.fields_of` gives it; None if there was none."""
    after: Fields | None
    """The entry after the turn; None if there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderChanges:
    """A turn's changes in its group's folder; `files` is empty if they are unknown."""

    files: tuple[ChangedFile, ...] = ()
    unknown_reason: str | None = None
    """The reason why the changes are unknown; None if they are known."""


@dataclass(slots=True)
class _Folder:
    """The cache of one group's snapshots, so that an unchanged file is not read twice."""

    lock: Any = field(default_factory=threading.RLock)
    cache: HashCache = field(default_factory=dict)
    stored_bytes: int | None = None
    stored: set[str] = field(default_factory=set)
    last: tuple[Tree, str] | None = None
    is_collected: bool = False
    """Whether nothing was stored, and no turn ended, since unneeded contents were last removed."""


class GroupFiles:
    """The snapshots of all groups of a home."""

    def __init__(self, home: Path) -> None:
        self._groups = home / "groups"
        self._root = home / UNDO
        self._folders: dict[str, _Folder] = defaultdict(_Folder)

    @contextmanager
    def held(self, folder: str, *, seconds: float = HOLD_SECONDS) -> Iterator[None]:
        """Lock a group's snapshots for the block.

        Raises:
            FolderBusy: another holds the lock for longer than `seconds`.
        """
        lock = self._folders[folder].lock
        if not lock.acquire(timeout=seconds):
            raise FolderBusy
        try:
            yield
        finally:
            lock.release()

    def is_small(self, folder: str) -> bool:
        """Return whether comparing a folder takes only a moment, as far as its last reading shows."""
        last = self._folders[folder].last
        return (
            last is not None
            and len(last[0]) <= SMALL_ENTRIES
            and sum(entry.size for entry in last[0].values()) <= SMALL_BYTES
        )

    # Around a turn

    def begin(self, folder: str, turn_id: int, *, is_late: Callable[[], bool] = lambda: False) -> None:
        """Take a snapshot of the folder before a turn; repeated for the same turn, it changes nothing.

        The turn's file has the name of the snapshot, or `!` and the reason why there is none: the folder
        cannot be read, or the snapshot `is_late`, so the turn may have started meanwhile.
        """
        with self._folders[folder].lock:
            turn_file = self._turn_file(folder, turn_id)
            # A turn that is tried again is compared with the files before its first attempt.
            if turn_file.exists():
                return
            try:
                tree = self._read(folder)
                self._store(folder, tree)
                name = self._write_tree(folder, tree)
            except (TreeError, OSError) as error:
                name = f"!{_reason(error)}"
            if is_late():
                name = f"!{TOO_SLOW}"
            _private(turn_file.parent)
            write_whole(turn_file, name, mode=0o600)

    def open_turns(self, folder: str) -> list[int]:
        """Return the turns that have started and were not compared yet, oldest first."""
        with suppress(OSError):
            return sorted(
                int(turn_file.name)
                for turn_file in (self._root / folder / "turns").iterdir()
                if turn_file.name.isdecimal()
            )
        return []

    def folders(self) -> list[str]:
        """Return the groups that have snapshots."""
        with suppress(OSError):
            return sorted(folder.name for folder in self._root.iterdir())
        return []

    def with_open_turns(self) -> list[str]:
        """Return the groups with turns that have started and were not compared yet."""
        return [folder for folder in self.folders() if self.open_turns(folder)]

    def is_open(self, folder: str, turn_id: int) -> bool:
        """Return whether a turn has started and was not compared yet."""
        return self._turn_file(folder, turn_id).exists()

    def changes(self, folder: str, turn_id: int) -> FolderChanges:
        """Store the present state of a group's folder, and return how it differs from the snapshot before a
        turn.
        """
        with self._folders[folder].lock:
            try:
                name = self._turn_file(folder, turn_id).read_text(encoding="utf-8")
                if name.startswith("!"):  # `begin` could take no snapshot
                    return FolderChanges(unknown_reason=name[1:])
                before, after = self._read_tree(folder, name), self._read(folder)
                self._store(folder, after)
                self._write_tree(folder, after)
            except (TreeError, OSError, ValueError) as error:
                return FolderChanges(unknown_reason=_reason(error))
        paths = sorted(path for path in {*before, *after} if not same(before.get(path), after.get(path)))
        if len(paths) > MAX_CHANGED:
            return FolderChanges(unknown_reason=f"more than {MAX_CHANGED:,} were changed")
        return FolderChanges(
            files=tuple(
                ChangedFile(path=path, before=_fields(before.get(path)), after=_fields(after.get(path)))
                for path in paths
            )
        )

    def close(self, folder: str, turn_id: int) -> None:
        """Delete the snapshot before a turn, because its changes are recorded."""
        with self._folders[folder].lock:
            self._turn_file(folder, turn_id).unlink(missing_ok=True)
            self._folders[folder].is_collected = False

    # Putting back

    def now(self, folder: str, path: str, *, like: Fields | None = None) -> Fields | None:
        """Return the present entry at a path of the folder; None if there is none or it cannot be read.

        `like` is the entry with which it will be compared: if that is a file whose content was not read, as
        it was too large, the content of this one is not read either.
        """
        group = self._folders[folder]
        reads = like is None or not trees.is_unread(_entry(like))
        with group.lock, suppress(OSError), self._opened(folder) as root:
            return _fields(trees.entry_at(root, path, group.cache, LIMITS, reads=reads))
        return None

    def can_put(self, folder: str, fields: Fields | None) -> bool:
        """Return whether an entry can be restored: its content is stored, or it is None, as there was no
        file.
        """
        return fields is None or fields["kind"] != "file" or self._content(folder, fields["content"]).exists()

    def store_content(self, folder: str, path: str) -> None:
        """Store the present content of a file, before it is replaced."""
        with self._folders[folder].lock, suppress(OSError, TreeError), self._opened(folder) as root:
            entry = trees.entry_at(root, path, self._folders[folder].cache, LIMITS)
            if entry is not None:
                self._store_file(folder, root, path, entry)

    def put(self, folder: str, path: str, target: Fields | None, *, expected: Fields | None) -> bool:
        """Restore a path to `target`; return whether it has that state now.

        A repetition changes nothing. A path in any other state than that or `expected` is left unchanged.
        """
        with self._folders[folder].lock:
            try:
                now = self.now(folder, path, like=expected)
                is_done = is_same(self.now(folder, path, like=target), target)
                if not is_done and is_same(now, expected):
                    with self._opened(folder) as root:
                        self._put(folder, root, path, target)
                is_done = is_same(self.now(folder, path, like=target), target)
                return is_done or _is_full_directory(now, target)
            except (TreeError, OSError) as error:
                log.warning("undo.file_left", group=folder, path=path[:200], reason=_reason(error))
                return False

    def _put(self, folder: str, root_fd: int, path: str, target: Fields | None) -> None:
        """Write the file, link or directory that `target` describes; None removes what is there."""
        if target is None:
            try:
                trees.remove_one(root_fd, path)
            except OSError as error:
                # A directory stays if others have put files into it since.
                if error.errno not in {errno.ENOTEMPTY, errno.EEXIST}:
                    raise
            return
        entry = trees.entry_from(target)
        if entry.kind != "dir":
            trees.make_room(root_fd, path)
        if entry.kind == "dir":
            trees.put_directory(root_fd, path, entry, own=give_to_owner_of)
        elif entry.kind == "link":
            trees.put_link(root_fd, path, entry)
        else:
            with self._content(folder, entry.content).open("rb") as content:
                trees.put_file(root_fd, path, entry, content.read, own=give_to_owner_of)

    # What is stored

    def uncollected(self) -> list[str]:
        """Return the groups that may have contents which nothing needs: at first all with snapshots."""
        return [folder for folder in self.folders() if not self._folders[folder].is_collected]

    def collect(self, folder: str, recorded: Collection[str]) -> None:
        """Remove the contents and trees that nothing needs.

        Needed are the last tree, those before the turns that are not compared yet, the contents of all these,
        and the contents with the hashes in `recorded`, which stored effects name.
        """
        with self._folders[folder].lock:
            store = self._root / folder
            wanted = {
                self._turn_file(folder, turn).read_text(encoding="utf-8") for turn in self.open_turns(folder)
            }
            with suppress(OSError):
                wanted.add((store / "last").read_text(encoding="utf-8"))
            contents = set(recorded)
            for name in wanted:
                with suppress(OSError, ValueError, TreeError):
                    contents |= {entry.content for entry in self._read_tree(folder, name).values()}
            for kind, needed in (("content", contents), ("trees", wanted)):
                with suppress(OSError):
                    for file in (store / kind).iterdir():
                        if file.name not in needed:
                            file.unlink(missing_ok=True)
            self._forget_stored(folder)
            self._folders[folder].is_collected = True

    def drop(self, folder: str) -> None:
        """Remove all snapshots of a group."""
        with self._folders[folder].lock:
            shutil.rmtree(self._root / folder, ignore_errors=True)
            self._forget_stored(folder)

    def _forget_stored(self, folder: str) -> None:
        self._folders[folder].stored_bytes = None
        self._folders[folder].stored.clear()

    def stored_bytes(self, folder: str) -> int:
        """Return the bytes of a group's stored contents."""
        group = self._folders[folder]
        with group.lock:
            if group.stored_bytes is None:
                group.stored_bytes = 0
                with suppress(OSError):
                    group.stored_bytes = sum(
                        content.stat().st_size for content in (self._root / folder / "content").iterdir()
                    )
            return group.stored_bytes

    def _read(self, folder: str) -> Tree:
        """Return the present tree of a group's folder. Raises `TreeError`, `OSError`."""
        with self._opened(folder) as root:
            return trees.scan(root, self._folders[folder].cache, limits=LIMITS, skips=OWN)

    def _store(self, folder: str, tree: Mapping[str, Entry]) -> None:
        """Store the contents of a tree's files that are not stored yet."""
        group = self._folders[folder]
        # A forgetting for good deletes all contents at once, so looking for one of them is enough.
        if any(not self._content(folder, digest).exists() for digest in islice(group.stored, 1)):
            self._forget_stored(folder)
        with self._opened(folder) as root:
            for path, entry in tree.items():
                if entry.content in group.stored:
                    continue
                # One that changes or goes meanwhile was no state that a turn has left.
                with suppress(TreeError, FileNotFoundError, NotADirectoryError, PermissionError):
                    self._store_file(folder, root, path, entry)

    def _store_file(self, folder: str, root_fd: int, path: str, entry: Entry) -> None:
        """Store the content of a file, unless it is too large or the group's store is full."""
        if entry.kind != "file" or trees.is_unread(entry):
            return
        target = self._content(folder, entry.content)
        if target.exists():
            self._folders[folder].stored.add(entry.content)
            return
        if self.stored_bytes(folder) + entry.size > STORE_BYTES:
            return
        _private(target.parent)
        partial = target.with_name(f"{target.name}.partial")
        try:
            with trees.opened(root_fd, path) as source, partial.open("wb") as copy:
                partial.chmod(0o600)
                _clone_or_copy(source, copy, entry)
            trees.check_file(partial, entry)
            partial.rename(target)
        finally:
            partial.unlink(missing_ok=True)
        self._folders[folder].stored_bytes = self.stored_bytes(folder) + entry.size
        self._folders[folder].stored.add(entry.content)
        self._folders[folder].is_collected = False

    def _write_tree(self, folder: str, tree: Tree) -> str:
        """Store a tree as the group's last one, and return its name, which is its hash."""
        last = self._folders[folder].last
        if last is not None and last[0] == tree and (self._root / folder / "trees" / last[1]).exists():
            return last[1]
        body = json.dumps({path: trees.fields_of(entry) for path, entry in tree.items()}, sort_keys=True)
        name = hashlib.sha256(body.encode()).hexdigest()
        path = self._root / folder / "trees" / name
        if not path.exists():
            _private(path.parent)
            write_whole(path, body, mode=0o600)
        write_whole(self._root / folder / "last", name, mode=0o600)
        self._folders[folder].last = (tree, name)
        self._folders[folder].is_collected = False
        return name

    def _read_tree(self, folder: str, name: str) -> Tree:
        body = json.loads((self._root / folder / "trees" / name).read_text(encoding="utf-8"))
        return {path: _entry(fields) for path, fields in body.items()}

    @contextmanager
    def _opened(self, folder: str) -> Iterator[int]:
        with trees.opened_root(self._groups / folder) as root:
            yield root

    def _turn_file(self, folder: str, turn_id: int) -> Path:
        """Return the path of the file that names the tree before a turn, or after `!` why there is none."""
        return self._root / folder / "turns" / str(turn_id)

    def _content(self, folder: str, digest: str) -> Path:
        return self._root / folder / "content" / digest


def same(one: Entry | None, other: Entry | None) -> bool:
    """Return whether two entries are the same file, apart from rights that its owner always has. Pure.

    None stands for no file.
    """
    if one is None or other is None:
        return one is other
    compared_bits = 0 if one.kind == "link" else 0o777  # the mode of a link means nothing
    owner_bits = 0o700 if one.kind == "dir" else 0o400
    return (one.kind, one.size, one.content, one.mode & compared_bits | owner_bits) == (
        other.kind,
        other.size,
        other.content,
        other.mode & compared_bits | owner_bits,
    )


def is_same(one: Fields | None, other: Fields | None) -> bool:
    """Return whether the fields of two entries are of the same file, as `same` does. Pure."""
    return same(None if one is None else _entry(one), None if other is None else _entry(other))


def _is_full_directory(now: Fields | None, target: Fields | None) -> bool:
    """Return whether a directory rightly stays because it contains other files. Pure.

    `now` is the present entry, `target` what should be there; None for nothing.
    """
    return target is None and now is not None and now["kind"] == "dir"


def _entry(fields: Mapping[str, Any]) -> Entry:
    return Entry(kind=fields["kind"], mode=fields["mode"], size=fields["size"], content=fields["content"])


def _fields(entry: Entry | None) -> Fields | None:
    return None if entry is None else trees.fields_of(entry)


def _reason(error: Exception) -> str:
    return str(error.strerror or error) if isinstance(error, OSError) else str(error)


def _private(directory: Path) -> None:
    """Create a directory of a group's snapshots and its parents, for the owner alone."""
    for place in (directory.parent.parent, directory.parent, directory):
        place.mkdir(mode=0o700, parents=True, exist_ok=True)


def _clone_or_copy(source: BinaryIO, copy: BinaryIO, entry: Entry) -> None:
    """Make a copy that shares the file's blocks if the file system can, else copy at most its size.

    Raises `TreeError`.
    """
    try:
        # Never a hard link: it shares the inode, so that what a container writes in place would change the
        # copy.
        fcntl.ioctl(copy.fileno(), FICLONE, source.fileno())
    except OSError as error:
        if error.errno not in {errno.EOPNOTSUPP, errno.EXDEV, errno.EINVAL, errno.ENOTTY, errno.EPERM}:
            raise
        left = entry.size
        while left > 0 and (data := source.read(min(trees.CHUNK_BYTES, left))):
            copy.write(data)
            left -= len(data)
    copy.flush()
    if os.fstat(copy.fileno()).st_size > entry.size:
        raise TreeError("a file that grew")
