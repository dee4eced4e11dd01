"""Record a group's files before each turn, where no container reaches, and put them back for an undo.

They are in `data/undo/FOLDER/`:

    content/HASH    the content of a file, each once
    trees/HASH      the paths of a folder with their hashes, at one moment
    turns/NUMBER    names the tree before a turn that has not been compared with what came after it
    last            names the tree that was stored last

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
from orchestrator.home.directory import UNDO

log = structlog.get_logger(__name__)

LIMITS = trees.ScanLimits(
    file_bytes=16 * 1024**2, tree_bytes=256 * 1024**2, entries=20_000, allows_unread=True
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
"""An entry (`trees.Entry`) as it is stored with an effect: its kind, mode, size, and hash or link target."""


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
    """The bytes of the stored contents; None until they are counted."""
    stored: set[str] = field(default_factory=set)
    """Hashes of contents that are known to be stored."""
    last: tuple[Tree, str] | None = None
    """The last stored tree and its name; None if none was stored since the host started."""
    is_collected: bool = False
    """Whether nothing is left to remove: unneeded contents were removed, and nothing has changed since."""


class GroupFiles:
    """The snapshots of all groups of a home."""

    def __init__(self, home: Path) -> None:
        """`home` has the groups' folders, and the directory in which their snapshots are stored."""
        self._groups = home / "groups"
        self._root = home / UNDO
        self._folders: dict[str, _Folder] = defaultdict(_Folder)

    @contextmanager
    def held(self, folder: str, *, seconds: float = HOLD_SECONDS) -> Iterator[None]:
        """Lock a group's snapshots during the `with` block, against other threads.

        Raises:
            FolderBusy: another thread still has the lock after `seconds`.
        """
        lock = self._folders[folder].lock
        if not lock.acquire(timeout=seconds):
            raise FolderBusy
        try:
            yield
        finally:
            lock.release()

    def is_small(self, folder: str) -> bool:
        """Return whether reading a group's folder takes only a moment, judged by its size when last read.

        Return False if it was not read since the host started.
        """
        last = self._folders[folder].last
        if last is None:
            return False
        tree, _ = last
        return len(tree) <= SMALL_ENTRIES and sum(entry.size for entry in tree.values()) <= SMALL_BYTES

    # Around a turn

    def begin(self, folder: str, turn_id: int, *, is_late: Callable[[], bool] = lambda: False) -> None:
        """Take a snapshot of a group's folder before a turn. Repeated for the same turn, it changes nothing.

        A file for the turn then names the snapshot. Or it has `!` and the reason why there is none: the
        folder cannot be read, or `is_late` returns True at the end, because the turn may have started
        meanwhile.
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
            _make_private_directory(turn_file.parent)
            write_whole(turn_file, name, mode=0o600)

    def open_turns(self, folder: str) -> list[int]:
        """Return the ids of a group's turns whose changes of files were not recorded yet, oldest first."""
        with suppress(OSError):
            return sorted(
                int(turn_file.name)
                for turn_file in (self._root / folder / "turns").iterdir()
                if turn_file.name.isdecimal()
            )
        return []

    def folders(self) -> list[str]:
        """Return the folders of the groups that have snapshots, sorted."""
        with suppress(OSError):
            return sorted(folder.name for folder in self._root.iterdir())
        return []

    def with_open_turns(self) -> list[str]:
        """Return the folders of the groups with turns whose changes of files were not recorded yet."""
        return [folder for folder in self.folders() if self.open_turns(folder)]

    def is_open(self, folder: str, turn_id: int) -> bool:
        """Return whether a turn has started, and its changes of files were not recorded yet."""
        return self._turn_file(folder, turn_id).exists()

    def changes(self, folder: str, turn_id: int) -> FolderChanges:
        """Store the present state of a group's folder, and return how it differs from the one before a turn.

        The changes are unknown if there is no snapshot before the turn, the folder cannot be read, or there
        are too many.
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
        paths = sorted(
            path for path in {*before, *after} if not is_same_entry(before.get(path), after.get(path))
        )
        if len(paths) > MAX_CHANGED:
            return FolderChanges(unknown_reason=f"more than {MAX_CHANGED:,} were changed")
        return FolderChanges(
            files=tuple(
                ChangedFile(path=path, before=_fields(before.get(path)), after=_fields(after.get(path)))
                for path in paths
            )
        )

    def close(self, folder: str, turn_id: int) -> None:
        """Delete the file that names the snapshot before a turn, because the turn's changes are recorded.

        The snapshot itself is deleted by the next `collect`, unless something else needs it.
        """
        with self._folders[folder].lock:
            self._turn_file(folder, turn_id).unlink(missing_ok=True)
            self._folders[folder].is_collected = False

    # Putting back

    def now(self, folder: str, path: str, *, compared_with: Fields | None = None) -> Fields | None:
        """Return what is now at a path of a group's folder: its kind, mode, size, and hash or link target.

        None if there is nothing, or it cannot be read.

        `compared_with` is the entry with which the result will be compared. If that is a file whose content
        was not read, because it was too large, the content of the present one is not read either.
        """
        group = self._folders[folder]
        reads_content = compared_with is None or not trees.is_unread(_entry(compared_with))
        with group.lock, suppress(OSError), self._opened(folder) as root:
            return _fields(trees.entry_at(root, path, group.cache, LIMITS, reads=reads_content))
        return None

    def can_put(self, folder: str, fields: Fields | None) -> bool:
        """Return whether an entry with these fields can be restored: a file only if its content is stored.

        None stands for no entry, which is restored by removing what is there.
        """
        return fields is None or fields["kind"] != "file" or self._content(folder, fields["content"]).exists()

    def store_content(self, folder: str, path: str) -> None:
        """Store the present content of a file, so that it can be restored after it was replaced.

        A file that is missing, unreadable or too large is left out.
        """
        with self._folders[folder].lock, suppress(OSError, TreeError), self._opened(folder) as root:
            entry = trees.entry_at(root, path, self._folders[folder].cache, LIMITS)
            if entry is not None:
                self._store_file(folder, root, path, entry)

    def put(self, folder: str, path: str, target: Fields | None, *, expected: Fields | None) -> bool:
        """Bring a path of a group's folder from the state `expected` to `target`.

        Both are fields of an entry; None stands for no entry. Return whether the path has the state `target`
        afterwards. A path in any other state than these two is left unchanged, so a repetition changes
        nothing. A directory that was to be removed and stays counts as done: others may have put files into
        it. A failure is logged, and the result is False.
        """
        with self._folders[folder].lock:
            try:
                # The present entry is read anew for each comparison: an entry whose file was too large to be
                # read can only be equal to one that was made without reading the file, too.
                now = self.now(folder, path, compared_with=expected)
                is_done = is_same(self.now(folder, path, compared_with=target), target)
                if not is_done and is_same(now, expected):
                    with self._opened(folder) as root:
                        self._put(folder, root, path, target)
                is_done = is_same(self.now(folder, path, compared_with=target), target)
                return is_done or (target is None and _is_directory(now) and _is_directory(expected))
            except (TreeError, OSError) as error:
                log.warning("undo.file_left", group=folder, path=path[:200], reason=_reason(error))
                return False

    def _put(self, folder: str, root_fd: int, path: str, target: Fields | None) -> None:
        """Write the file, link or directory that `target` describes at `path`; None removes what is there.

        A directory with other files in it is not removed. `root_fd` is the open folder of the group.
        """
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
            trees.make_room(root_fd, path)  # removes an empty directory that is in the place
        if entry.kind == "dir":
            trees.put_directory(root_fd, path, entry, set_owner=give_to_owner_of)
        elif entry.kind == "link":
            trees.put_link(root_fd, path, entry)
        else:
            with self._content(folder, entry.content).open("rb") as content:
                trees.put_file(root_fd, path, entry, content.read, set_owner=give_to_owner_of)

    # What is stored

    def uncollected(self) -> list[str]:
        """Return the folders of the groups that may have stored contents which nothing needs any more.

        After a start of the host, these are all groups with snapshots.
        """
        return [folder for folder in self.folders() if not self._folders[folder].is_collected]

    def collect(self, folder: str, recorded: Collection[str]) -> None:
        """Remove a group's stored file contents and trees that nothing needs any more.

        A tree is a stored list of a folder's files. Needed are the last tree, and the trees from before turns
        whose changes are not recorded yet, with the contents of the files in them. Needed, too, are the
        contents whose hashes are in `recorded`: effects in the database name them. If one of these lists
        cannot be read, nothing is removed, and that is logged.
        """
        with self._folders[folder].lock:
            store = self._root / folder
            contents = set(recorded)
            try:
                # The names of trees. A turn without a snapshot has `!` and a reason, which names no tree.
                wanted = {
                    self._turn_file(folder, turn).read_text(encoding="utf-8")
                    for turn in self.open_turns(folder)
                }
                with suppress(FileNotFoundError):
                    wanted.add((store / "last").read_text(encoding="utf-8"))
                for name in wanted:
                    if not name.startswith("!"):
                        contents |= self._contents_of(folder, name)
            except OSError as error:
                log.warning("undo.nothing_collected", group=folder, reason=str(error))
                return
            for kind, needed in (("content", contents), ("trees", wanted)):
                with suppress(OSError):
                    for file in (store / kind).iterdir():
                        if file.name not in needed:
                            file.unlink(missing_ok=True)
            self._forget_stored(folder)
            self._folders[folder].is_collected = True

    def _contents_of(self, folder: str, name: str) -> set[str]:
        """Return the hashes of the contents that a stored tree names; none if it is missing or damaged.

        Raises `OSError` if it cannot be read.
        """
        with suppress(FileNotFoundError, ValueError, TreeError):
            return {entry.content for entry in self._read_tree(folder, name).values()}
        return set()

    def drop(self, folder: str) -> None:
        """Remove all snapshots of a group."""
        with self._folders[folder].lock:
            shutil.rmtree(self._root / folder, ignore_errors=True)
            self._forget_stored(folder)

    def _forget_stored(self, folder: str) -> None:
        """Forget what is known of a group's stored contents, so that it is read from the disk again."""
        self._folders[folder].stored_bytes = None
        self._folders[folder].stored.clear()

    def stored_bytes(self, folder: str) -> int:
        """Return the number of bytes of a group's stored file contents."""
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
        """Return the present entries of a group's folder by path, without those of its chat history.

        Raises:
            TreeError: it has too many entries.
            OSError: it cannot be read.
        """
        with self._opened(folder) as root:
            return trees.scan(root, self._folders[folder].cache, limits=LIMITS, skips=OWN)

    def _store(self, folder: str, tree: Mapping[str, Entry]) -> None:
        """Store the contents of a tree's files that are not stored yet."""
        group = self._folders[folder]
        # The contents may have been deleted, because somebody asked to forget for good. That deletes all of
        # them together, so it is enough to look for one (`islice` takes one of the set).
        if any(not self._content(folder, digest).exists() for digest in islice(group.stored, 1)):
            self._forget_stored(folder)
        with self._opened(folder) as root:
            for path, entry in tree.items():
                if entry.content in group.stored:
                    continue
                # A file that changes or is removed meanwhile is left out: no turn has left it in this state.
                with suppress(TreeError, FileNotFoundError, NotADirectoryError, PermissionError):
                    self._store_file(folder, root, path, entry)

    def _store_file(self, folder: str, root_fd: int, path: str, entry: Entry) -> None:
        """Store the content of a file below the open directory `root_fd`, unless it is stored already.

        Nothing is stored of a file that was too large to be read, or if the group's contents would become too
        many bytes. Raises `TreeError` if the file has changed since `entry` was read.
        """
        if entry.kind != "file" or trees.is_unread(entry):
            return
        target = self._content(folder, entry.content)
        # A power cut may have left it empty.
        if target.exists() and target.stat().st_size == entry.size:
            self._folders[folder].stored.add(entry.content)
            return
        if self.stored_bytes(folder) + entry.size > STORE_BYTES:
            return
        _make_private_directory(target.parent)
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
        self._folders[folder].is_collected = False  # `collect` may find something to remove again

    def _write_tree(self, folder: str, tree: Tree) -> str:
        """Store a tree, the entries of a group's folder, as the last one; return its name, a hash of it."""
        last = self._folders[folder].last
        # If nothing has changed since the last tree, that is the one, and nothing is written.
        if last is not None:
            last_tree, last_name = last
            if last_tree == tree and (self._root / folder / "trees" / last_name).exists():
                return last_name
        body = json.dumps({path: trees.fields_of(entry) for path, entry in tree.items()}, sort_keys=True)
        name = hashlib.sha256(body.encode()).hexdigest()
        path = self._root / folder / "trees" / name
        _make_private_directory(path.parent)
        write_whole(path, body, mode=0o600)  # also if it exists: a power cut may have left it empty
        write_whole(self._root / folder / "last", name, mode=0o600)
        self._folders[folder].last = (tree, name)
        # The former last tree may not be needed any more, so `collect` has something to remove.
        self._folders[folder].is_collected = False
        return name

    def _read_tree(self, folder: str, name: str) -> Tree:
        """Return the stored tree with this name. Raises `OSError`, and `ValueError` if it is damaged."""
        body = json.loads((self._root / folder / "trees" / name).read_text(encoding="utf-8"))
        return {path: _entry(fields) for path, fields in body.items()}

    @contextmanager
    def _opened(self, folder: str) -> Iterator[int]:
        """Open a group's folder, following no link, and yield its descriptor; close it after the block.

        Raises `OSError`.
        """
        with trees.opened_root(self._groups / folder) as root:
            yield root

    def _turn_file(self, folder: str, turn_id: int) -> Path:
        """Return the path of the file that names the tree before a turn, or after `!` why there is none."""
        return self._root / folder / "turns" / str(turn_id)

    def _content(self, folder: str, digest: str) -> Path:
        """Return the path of the stored content with this hash."""
        return self._root / folder / "content" / digest


def is_same_entry(first: Entry | None, second: Entry | None) -> bool:
    """Return whether two entries have the same kind, content and rights. Pure.

    Rights that the owner of a file always has are not compared. None stands for no entry.
    """
    if first is None or second is None:
        return first is second
    compared_bits = 0 if first.kind == "link" else 0o777  # the mode of a link means nothing
    # The owner always has these rights, so they are set in both modes.
    owner_bits = 0o700 if first.kind == "dir" else 0o400
    return (first.kind, first.size, first.content, (first.mode & compared_bits) | owner_bits) == (
        second.kind,
        second.size,
        second.content,
        (second.mode & compared_bits) | owner_bits,
    )


def is_same(first: Fields | None, second: Fields | None) -> bool:
    """Return whether the fields of two entries have the same kind, content and rights. Pure.

    None stands for no entry.
    """
    first_entry = None if first is None else _entry(first)
    second_entry = None if second is None else _entry(second)
    return is_same_entry(first_entry, second_entry)


def _is_directory(fields: Fields | None) -> bool:
    """Return whether the fields of an entry are those of a directory; None stands for no entry. Pure."""
    return fields is not None and fields["kind"] == "dir"


def _entry(fields: Mapping[str, Any]) -> Entry:
    """Return the entry with these fields, as they are stored."""
    return Entry(kind=fields["kind"], mode=fields["mode"], size=fields["size"], content=fields["content"])


def _fields(entry: Entry | None) -> Fields | None:
    """Return the fields of an entry, as they are stored; None for no entry."""
    return None if entry is None else trees.fields_of(entry)


def _reason(error: Exception) -> str:
    """Return the text of an error; for an `OSError`, without the path of the file."""
    return str(error.strerror or error) if isinstance(error, OSError) else str(error)


def _make_private_directory(directory: Path) -> None:
    """Create a directory of a group's snapshots and its parents, for the owner alone."""
    # One by one, since `mkdir` gives the mode to the last directory only, and not to the parents it makes.
    for place in (directory.parent.parent, directory.parent, directory):
        place.mkdir(mode=0o700, parents=True, exist_ok=True)


def _clone_or_copy(source: BinaryIO, copy: BinaryIO, entry: Entry) -> None:
    """Copy an open file to `copy`. Both share their blocks on the disk if the file system can do that.

    `entry` describes the file. No more bytes are copied than it has.

    Raises:
        TreeError: the file has grown since.
    """
    try:
        # Never a hard link: it shares the inode, so that what a container writes in place would change the
        # copy.
        fcntl.ioctl(copy.fileno(), FICLONE, source.fileno())
    except OSError as error:
        # With these errors, the file system or the system cannot let files share their blocks.
        if error.errno not in {errno.EOPNOTSUPP, errno.EXDEV, errno.EINVAL, errno.ENOTTY, errno.EPERM}:
            raise
        remaining_bytes = entry.size
        while remaining_bytes > 0 and (data := source.read(min(trees.CHUNK_BYTES, remaining_bytes))):
            copy.write(data)
            remaining_bytes -= len(data)
    copy.flush()
    if os.fstat(copy.fileno()).st_size > entry.size:
        raise TreeError("a file that grew")
