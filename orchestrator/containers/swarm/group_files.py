"""The files of one run: what the host sends to its container, and what it keeps of what comes back.

What a turn left is *staged*, beside the host's own files, before the turn's end is heard. Once the store says
that the end counts, the stage is put in place; a stage of a turn that does not count is dropped. So a turn's
files and its answer are kept together, at whatever moment the host or the node dies.
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
"""Return the number of the last frame of a run that the store has."""
BOXES = {f"/workspace/ipc/{name}": name for name in ("messages", "tasks")}
INPUT = "/workspace/ipc/input"
LIVE = ("/workspace/ipc/replies", "/workspace/env", INPUT)
"""Folders that the host writes to while an agent works. Input is sent last: a turn may need the others."""
PLAN = "changes.json"
RUN_FILE = "run.json"
MAX_SEALED = 4
"""Turn ends that may wait for the store. One is usual: a turn starts after the one before has ended."""
MAX_REMOVED = 4 * trees.MAX_ENTRIES
"""Paths that a turn may remove: all that its trees may hold."""
IMPOSSIBLE = frozenset({errno.ENOTDIR, errno.ELOOP, errno.ENOENT, errno.EISDIR, errno.ENAMETOOLONG})


@dataclass(slots=True)
class SharedTree:
    """A directory, or one file, that a run has a copy of; `base` is what both sides have of it."""

    target: str
    source: Path
    is_writable: bool
    only: str | None = None
    """The name of the one file that is shared of `source`."""
    base: Tree | None = None

    def read(self, cache: HashCache) -> Tree:
        """Return what the host has. Blocks. Raises `TreeError`, `OSError`."""
        with trees.opened_root(self.source) as root:
            return (
                trees.scan(root, cache)
                if self.only is None
                else {self.only: trees.scan_file(root, self.only)}
            )


def shared_trees(mounts: Sequence[Mount]) -> dict[str, SharedTree]:
    """Return the trees of a run by their target, in the order in which they are laid down. Blocks.

    The mailboxes are none: what is written there is sent as requests. A mount with others inside it is left
    out, as it is a frame of theirs and holds nothing. Raises `OSError` for one that is not there.
    """
    targets = {mount.target for mount in mounts}
    found: dict[str, SharedTree] = {}
    for mount in mounts:
        is_frame = any(other.startswith(f"{mount.target}/") for other in targets)
        if is_frame or mount.target in BOXES:
            continue
        mount.source.stat()
        if mount.source.is_dir():
            found[mount.target] = SharedTree(mount.target, mount.source, mount.is_writable)
        else:
            target, _, name = mount.target.rpartition("/")
            key = f"{target}#{name}"
            found[key] = SharedTree(target, mount.source.parent, is_writable=False, only=name)
    return found


class OpenStage:
    """The changes that one turn end left, while they come in. Nothing of it counts before it is sealed."""

    def __init__(self, directory: Path, n: int) -> None:
        """Begin anew: what an earlier connection left of the same turn end is dropped. Blocks."""
        self.n = n
        self._final = directory / str(n)
        self._partial = directory / f".{n}"
        self._plan: dict[str, tuple[list[str], dict[str, Entry]]] = {}
        self._put_paths = 0
        self._put_bytes = 0
        self._removed_paths = 0
        shutil.rmtree(self._partial, ignore_errors=True)
        self._partial.mkdir(parents=True)

    def extend(self, target: str, changed: Changes) -> None:
        """Add changes of a tree, whose files are to come. Raises `TreeError` for more than may travel."""
        # In sums and in place: a hostile carrier sends 50,000 such messages of one path each.
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
        """Append bytes of a file that was announced. Blocks. Raises `TreeError`, `OSError`."""
        entry = self._plan[target][1].get(path) if target in self._plan else None
        if entry is None or entry.kind != "file":
            raise TreeError(f"{path[:80]!r} was not announced")
        with (self._partial / _blob(target, path)).open("ab") as file:
            if file.tell() + len(data) > entry.size:
                raise TreeError(f"{path[:80]!r} is larger than announced")
            file.write(data)

    def seal(self) -> None:
        """Make it whole and lasting: from now on it counts if its turn does. Blocks.

        Raises:
            TreeError: a file of it has not come, or not as it was announced.
        """
        for target, (_, put) in self._plan.items():
            for path, entry in put.items():
                if entry.kind == "file":
                    blob = self._partial / _blob(target, path)
                    blob.touch()
                    trees.check_file(blob, entry)
        plan = {
            target: {
                "removed": removed,
                "put": {path: trees.fields_of(entry) for path, entry in put.items()},
            }
            for target, (removed, put) in self._plan.items()
        }
        (self._partial / PLAN).write_text(json.dumps(plan), encoding="utf-8")
        _sync(self._partial)
        shutil.rmtree(self._final, ignore_errors=True)
        self._partial.rename(self._final)
        _sync_directory(self._final.parent)


class Stages:
    """The sealed stages of one run: a directory for each turn end, under `data/swarm/{run}/`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def open(self, n: int) -> OpenStage:
        """Begin the stage of turn end `n`; one that another turn end began is dropped. Blocks.

        Raises:
            TreeError: so many wait that no honest carrier sent them.
        """
        if len(self.sealed()) >= MAX_SEALED:
            raise TreeError("more turns than may wait")
        for left in self.directory.glob(".[0-9]*"):
            shutil.rmtree(left, ignore_errors=True)
        return OpenStage(self.directory, n)

    def sealed(self) -> list[int]:
        """Return the turn ends whose files wait to be put in place, oldest first. Blocks."""
        if not self.directory.is_dir():
            return []
        # One without its plan is in place already: a host was killed while it removed it.
        found = (one for one in self.directory.iterdir() if one.name.isdecimal() and (one / PLAN).is_file())
        return sorted(int(one.name) for one in found)

    def apply(self, n: int, shared: Mapping[str, Path]) -> dict[str, Changes]:
        """Put a sealed stage in place, and drop it; done twice, it is as done once. Blocks.

        `shared` are the host's directories by target; of other trees nothing is taken.
        """
        stage = self.directory / str(n)
        plan = json.loads((stage / PLAN).read_text(encoding="utf-8"))
        applied = {}
        for target, tree in plan.items():
            if target not in shared:
                continue
            put = {path: trees.entry_from(fields) for path, fields in tree["put"].items()}
            changed = Changes(tuple(tree["removed"]), put)
            with trees.opened_root(shared[target]) as root:
                _apply(root, changed, stage, target)
            applied[target] = changed
        # In one step, for a removal is many: a host that is killed in it would leave half a stage.
        done = self.directory / f".{n}.done"
        shutil.rmtree(done, ignore_errors=True)
        stage.rename(done)
        shutil.rmtree(done)
        return applied

    def drop(self) -> None:
        """Remove all that was staged of the run. Blocks."""
        shutil.rmtree(self.directory, ignore_errors=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFiles:
    """The files that a run shares with the host: trees by target, mailboxes by name, and its stages."""

    shared: dict[str, SharedTree]
    boxes: dict[str, Path]
    stages: Stages
    keeps: bool = True
    """Whether they stay on the node for the group's next run there: those of one run at a time do."""
    caches: dict[str, HashCache] = field(default_factory=dict)

    def write_down(self) -> None:
        """Write what a host that starts anew has to know of them. Blocks."""
        record = {
            "shared": [
                [each.target, str(each.source), each.is_writable, each.only] for each in self.shared.values()
            ],
            "boxes": {name: str(path) for name, path in self.boxes.items()},
            "keeps": self.keeps,
        }
        write_whole(self.stages.directory / RUN_FILE, json.dumps(record), mode=0o600)

    @classmethod
    def read(cls, directory: Path) -> RunFiles | None:
        """Return what was written down in the directory of a run; None where nothing was. Blocks."""
        try:
            record = json.loads((directory / RUN_FILE).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        shared = {}
        for target, source, is_writable, only in record["shared"]:
            key = target if only is None else f"{target}#{only}"
            shared[key] = SharedTree(target, Path(source), is_writable, only)
        boxes = {name: Path(path) for name, path in record["boxes"].items()}
        return cls(shared=shared, boxes=boxes, stages=Stages(directory), keeps=record.get("keeps", True))

    @property
    def writable(self) -> dict[str, Path]:
        """Return the host's directories that take what the agent changed, by target."""
        return {one.target: one.source for one in self.shared.values() if one.is_writable}


async def settle_stages(files: RunFiles, run_id: RunId, last_frame: LastFrame) -> list[dict[str, Changes]]:
    """Put the sealed stages of a run in place whose turn ends the store has; return what that changed."""
    recorded = await last_frame(run_id)
    due = [n for n in await asyncio.to_thread(files.stages.sealed) if n <= recorded]
    return [await asyncio.to_thread(files.stages.apply, n, files.writable) for n in due]


def _blob(target: str, path: str) -> str:
    return hashlib.sha256(f"{target}\0{path}".encode("utf-8", "surrogateescape")).hexdigest()


def _apply(root: int, changed: Changes, stage: Path, target: str) -> None:
    for path in changed.removed:
        trees.remove(root, path)
    for path, entry in changed.put.items():
        try:
            _put(root, path, entry, stage / _blob(target, path))
        except OSError as error:
            # A hostile carrier names a path below a link or a file: it costs that path alone, not the stage.
            if error.errno not in IMPOSSIBLE:
                raise


def _put(root: int, path: str, entry: Entry, blob: Path) -> None:
    if entry.kind == "dir":
        trees.put_directory(root, path, entry)
    elif entry.kind == "link":
        trees.put_link(root, path, entry)
    else:
        with blob.open("rb") as file:
            trees.put_file(root, path, entry, file.read)


def _sync(directory: Path) -> None:
    """Have the disk keep a directory and the files in it."""
    for each in directory.iterdir():
        _sync_directory(each)
    _sync_directory(directory)


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
