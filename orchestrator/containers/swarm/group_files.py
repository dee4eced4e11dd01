"""The files of one run: those that the host sends to its container, and the changes that come back.

The files that a turn changed are *staged*: they are stored apart from the host's own files, before the host
receives the frame of the turn's end. When the store has recorded that frame, the stage is put in place. If
the turn's end is never recorded, the stage is dropped. So either both the files and the answer of a turn
count, or neither does, at whatever moment the host or the node dies.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import json
import os
import shutil
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from agent_runner.wire import trees
from agent_runner.wire.files import write_whole
from agent_runner.wire.trees import Changes, Entry, HashCache, Tree, TreeError
from orchestrator.domain.protocols import Mount
from orchestrator.domain.values import RunId

LastFrame = Callable[[RunId], Awaitable[int]]
"""Return the number of the last frame of a run that the store has recorded."""
MAILBOXES = {f"/workspace/ipc/{name}": name for name in ("messages", "tasks")}
"""The mailboxes in which agents write requests, by their path in the container."""
INPUT = "/workspace/ipc/input"
"""The folder in the container with the turns that the host hands over."""
LIVE_TARGETS = ("/workspace/ipc/replies", "/workspace/env", INPUT)
"""Folders that the host writes to while an agent works.

Input is sent last, because a turn may need the others.
"""
PLAN = "changes.json"
"""The file in a sealed stage that lists its changes."""
RUN_FILE = "run.json"
"""The file from which a restarted host reads the folders of a run."""
MAX_SEALED = 4
"""Sealed stages that may wait for the store.

One is usual, because a turn starts after the one before has ended.
"""
MAX_REMOVED = 4 * trees.MAX_ENTRIES
"""Paths that a turn may remove: as many as its trees may contain."""
IMPOSSIBLE_PATH_ERRORS = frozenset(
    {errno.ENOTDIR, errno.ELOOP, errno.ENOENT, errno.EISDIR, errno.ENAMETOOLONG}
)


@dataclass(slots=True)
class SharedTree:
    """A directory, or one file of a directory, that a run has a copy of.

    `base` is the content that the host and the container have in common; None before it is known.
    """

    target: str
    source: Path
    is_writable: bool
    single_file: str | None = None
    """The name of the only file of `source` that is shared; None if the whole directory is."""
    base: Tree | None = None

    def read(self, cache: HashCache) -> Tree:
        """Return the present entries of the host's directory, or the entry of its single shared file. Blocks.

        `cache` has the hashes of files that have not changed. Raises `TreeError` if there are too many
        entries, and `OSError`.
        """
        with trees.opened_root(self.source) as root:
            if self.single_file is None:
                return trees.scan(root, cache)
            return {self.single_file: trees.scan_file(root, self.single_file)}


def shared_trees(mounts: Sequence[Mount]) -> dict[str, SharedTree]:
    """Return the directories and files that are sent to a run's container, in the order of the mounts.

    Blocks. The key of a directory is its path in the container; that of a single file is `{folder}#{name}`.

    The mailboxes are left out, because their files are sent as requests. A mount that contains other mounts
    is left out too, because it has no files of its own.

    Raises:
        OSError: the source of a mount is missing.
    """
    targets = {mount.target for mount in mounts}
    shared: dict[str, SharedTree] = {}
    for mount in mounts:
        contains_mounts = any(other.startswith(f"{mount.target}/") for other in targets)
        if contains_mounts or mount.target in MAILBOXES:
            continue
        mount.source.stat()
        if mount.source.is_dir():
            shared[mount.target] = SharedTree(mount.target, mount.source, mount.is_writable)
        else:
            target, _, name = mount.target.rpartition("/")
            key = f"{target}#{name}"
            shared[key] = SharedTree(target, mount.source.parent, is_writable=False, single_file=name)
    return shared


class OpenStage:
    """The file changes of one turn while they are received. They have no effect until the stage is sealed.

    `n` is the number of the frame that ends the turn, or 0 for changes that count at once.
    """

    def __init__(self, directory: Path, n: int) -> None:
        """Begin an empty stage in `directory`, the run's own. Blocks.

        A partial stage of the same turn, which an earlier connection left, is removed first.
        """
        self.n = n
        self._final = directory / str(n)
        self._partial = directory / f".{n}"
        # The removed paths and the new entries by their paths, for each tree by its target.
        self._plan: dict[str, tuple[list[str], dict[str, Entry]]] = {}
        self._put_paths = 0
        self._put_bytes = 0
        self._removed_paths = 0
        shutil.rmtree(self._partial, ignore_errors=True)
        self._partial.mkdir(parents=True)

    def extend(self, target: str, changed: Changes) -> None:
        """Add changes of the tree at `target`, its path in the container. The contents follow with `write`.

        Raises:
            TreeError: the stage has more changes than a turn may make.
        """
        # The totals are updated here, and the plan is changed in place: summing up or copying all changes for
        # each message would be slow if a hostile carrier sends 50,000 messages of one path each.
        self._put_paths += len(changed.put)
        self._put_bytes += sum(entry.size for entry in changed.put.values())
        self._removed_paths += len(changed.removed)
        if (
            self._put_paths > trees.MAX_ENTRIES
            or self._put_bytes > trees.MAX_TREE_BYTES
            or self._removed_paths > MAX_REMOVED
        ):
            raise TreeError("more than a turn may leave")
        removed, put = self._plan.setdefault(target, ([], {}))
        removed += changed.removed
        put |= changed.put

    def write(self, target: str, path: str, data: bytes) -> None:
        """Append bytes to a file of the changes that `extend` announced. Blocks.

        `target` is the path of the tree in the container, and `path` that of the file in the tree.

        Raises:
            TreeError: the file was not announced, or is larger than announced.
            OSError: the bytes cannot be written.
        """
        _, put = self._plan.get(target, ((), {}))
        entry = put.get(path)
        if entry is None or entry.kind != "file":
            raise TreeError(f"{path[:80]!r} was not announced")
        with (self._partial / _blob(target, path)).open("ab") as file:
            if file.tell() + len(data) > entry.size:
                raise TreeError(f"{path[:80]!r} is larger than announced")
            file.write(data)

    def seal(self) -> None:
        """Check that all announced contents were received, and write the stage durably to disk. Blocks.

        From then on its changes are applied to the host's folders as soon as its turn's end is recorded.

        Raises:
            TreeError: a file is missing, or differs from what was announced.
            OSError: the stage cannot be written.
        """
        for target, (_, put) in self._plan.items():
            for path, entry in put.items():
                if entry.kind == "file":
                    blob = self._partial / _blob(target, path)
                    blob.touch()  # for an empty file no bytes were received
                    trees.check_file(blob, entry)
        plan = {
            target: {
                "removed": removed,
                "put": {path: trees.fields_of(entry) for path, entry in put.items()},
            }
            for target, (removed, put) in self._plan.items()
        }
        (self._partial / PLAN).write_text(json.dumps(plan), encoding="utf-8")
        _sync_with_content(self._partial)
        shutil.rmtree(self._final, ignore_errors=True)
        self._partial.rename(self._final)
        _sync(self._final.parent)


class Stages:
    """The stages of one run.

    Each sealed one is a directory `data/swarm/{run}/{n}`, for the turn's last frame `n`.
    """

    def __init__(self, directory: Path) -> None:
        """`directory` is `data/swarm/{run}`."""
        self.directory = directory

    def open(self, n: int) -> OpenStage:
        """Begin the stage of a turn, in which the changes of its files are collected. Blocks.

        `n` is the number of the frame, a line of the container's output, that ends the turn. Other stages
        that are not complete are dropped.

        Raises:
            TreeError: more sealed stages wait than an honest carrier can cause.
        """
        if len(self.sealed()) >= MAX_SEALED:
            raise TreeError("more turns than may wait")
        for partial_stage in self.directory.glob(".[0-9]*"):
            shutil.rmtree(partial_stage, ignore_errors=True)
        return OpenStage(self.directory, n)

    def sealed(self) -> list[int]:
        """Return the numbers of the sealed stages that wait to be put in place, oldest first. Blocks."""
        if not self.directory.is_dir():
            return []
        # A stage without its plan is in place already: a host was killed while it removed the stage.
        stages = (
            entry for entry in self.directory.iterdir() if entry.name.isdecimal() and (entry / PLAN).is_file()
        )
        return sorted(int(stage.name) for stage in stages)

    def apply(self, n: int, shared: Mapping[str, Path]) -> dict[str, Changes]:
        """Apply the file changes of the sealed stage `n` to the host's directories, and remove the stage.

        Blocks. `shared` contains the host's directories by their paths in the container, the targets. Changes
        of other targets are ignored. Return the applied changes by target. Applying a stage again, after a
        crash, has the same result.
        """
        stage = self.directory / str(n)
        plan = json.loads((stage / PLAN).read_text(encoding="utf-8"))
        applied = {}
        for target, tree in plan.items():
            if target not in shared:
                continue
            # The host's own file: its entries were checked when they were received.
            put = {path: Entry(**fields) for path, fields in tree["put"].items()}
            changed = Changes(tuple(tree["removed"]), put)
            with trees.opened_root(shared[target]) as root:
                _apply(root, changed, stage, target)
            applied[target] = changed
        # Renamed first, which is a single step. Removing takes many, and a host that is killed during them
        # would leave half a stage.
        renamed = self.directory / f".{n}.done"
        shutil.rmtree(renamed, ignore_errors=True)
        stage.rename(renamed)
        shutil.rmtree(renamed)
        return applied

    def drop(self) -> None:
        """Remove the run's directory with all stages. Blocks."""
        shutil.rmtree(self.directory, ignore_errors=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFiles:
    """The files that a run shares with the host: trees by target, mailboxes by name, and its stages."""

    shared: dict[str, SharedTree]
    mailboxes: dict[str, Path]
    stages: Stages
    uses_group_volume: bool = True
    """Whether the run works in its group's volume, whose files the node retains for the group's next run.

    Only one run at a time may do so. Any other run gets a volume that is removed with its container.
    """
    caches: dict[str, HashCache] = field(default_factory=dict)

    def write_record(self) -> None:
        """Write which folders the run shares and which volume it uses to a file. Blocks.

        A restarted host reads it (`read`).
        """
        record = {
            # A list for each tree, whose four values `read` unpacks in this order.
            "shared": [
                [tree.target, str(tree.source), tree.is_writable, tree.single_file]
                for tree in self.shared.values()
            ],
            "boxes": {name: str(path) for name, path in self.mailboxes.items()},
            "keeps": self.uses_group_volume,
        }
        write_whole(self.stages.directory / RUN_FILE, json.dumps(record), mode=0o600)

    @classmethod
    def read(cls, directory: Path) -> RunFiles | None:
        """Return what `write_record` recorded in a run's directory. Blocks.

        None if the record is missing, cannot be read, or is damaged.
        """
        try:
            record = json.loads((directory / RUN_FILE).read_text(encoding="utf-8"))
            shared = {}
            for target, source, is_writable, single_file in record["shared"]:
                key = target if single_file is None else f"{target}#{single_file}"
                shared[key] = SharedTree(target, Path(source), is_writable, single_file)
            return cls(
                shared=shared,
                mailboxes={name: Path(path) for name, path in record["boxes"].items()},
                stages=Stages(directory),
                # An older version did not record it: every run of that version used its group's volume.
                uses_group_volume=record.get("keeps", True),
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    @property
    def writable(self) -> dict[str, Path]:
        """The host's directories that the agent may change, by their paths in the container."""
        return {tree.target: tree.source for tree in self.shared.values() if tree.is_writable}


async def settle_stages(files: RunFiles, run_id: RunId, last_frame: LastFrame) -> list[dict[str, Changes]]:
    """Apply the changed files of a run's turns to the host's folders, if the store has recorded their ends.

    Other turns' files go on waiting, each in a sealed stage on disk. `last_frame` returns the number of the
    run's last frame that the store has. Return the applied changes of each turn, by target: the path of a
    tree in the container.
    """
    last_recorded = await last_frame(run_id)
    # A stage's number is that of the frame that ends its turn.
    due_numbers = [n for n in await asyncio.to_thread(files.stages.sealed) if n <= last_recorded]
    return [await asyncio.to_thread(files.stages.apply, n, files.writable) for n in due_numbers]


def _blob(target: str, path: str) -> str:
    """Return the name under which the content of a changed file is stored in its stage."""
    return hashlib.sha256(f"{target}\0{path}".encode("utf-8", "surrogateescape")).hexdigest()


def _apply(root_fd: int, changed: Changes, stage: Path, target: str) -> None:
    """Apply the changes of one tree to the host's directory that is open as `root_fd`.

    `target` is the tree's path in the container. `stage` is the directory with the contents of the changed
    files. A path that cannot exist in the host's directory is skipped.
    """
    for path in changed.removed:
        trees.remove(root_fd, path)
    for path, entry in changed.put.items():
        try:
            _put(root_fd, path, entry, stage / _blob(target, path))
        except ValueError:
            # A link's target that is no path. An error here would be met again at each start of the host.
            continue
        except OSError as error:
            # A hostile carrier may name a path below a link or a file. That path is skipped; the rest of the
            # stage is applied.
            if error.errno not in IMPOSSIBLE_PATH_ERRORS:
                raise


def _put(root_fd: int, path: str, entry: Entry, blob: Path) -> None:
    """Create or replace a directory, link or file at `path` below the open directory `root_fd`.

    `blob` is the path of the content of a file.
    """
    if entry.kind == "dir":
        trees.put_directory(root_fd, path, entry)
    elif entry.kind == "link":
        trees.put_link(root_fd, path, entry)
    else:
        with blob.open("rb") as file:
            trees.put_file(root_fd, path, entry, file.read)


def _sync_with_content(directory: Path) -> None:
    """Write a directory and the files in it durably to disk. Blocks."""
    for file in directory.iterdir():
        _sync(file)
    _sync(directory)


def _sync(path: Path) -> None:
    """Write a file, or the list of a directory's entries, durably to disk. Blocks."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
