"""Put what was unpacked in the place of what a home has: all of it or nothing, even if the process is killed.

Every move is written to `data/restore.json` before the first is made. Whoever finds moves there undoes them;
they count once the same file says that they are done. It also holds what the owner asked for in the console,
and how that ended.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from agent_runner.wire.files import write_whole
from orchestrator.backup import archive
from orchestrator.domain.home import Home

STAGE = ".restore"
PARTS = ("groups", "data", "store")
WAL, SHM = f"{archive.DATABASE}-wal", f"{archive.DATABASE}-shm"
STORE = (WAL, SHM, archive.DATABASE)
"""The log goes first: a database that somebody opens meanwhile must not meet the log of another one."""
NOT_MOVED = frozenset({STAGE, ".gitkeep"})


class Move(BaseModel):
    """One rename. Its paths are relative to the home, which may be mounted elsewhere when it is undone."""

    model_config = ConfigDict(frozen=True)

    before: str
    after: str
    brings_new: bool
    """Whether it puts something of the backup in place; else it takes away what was there."""


class RestoreRecord(BaseModel):
    """The newest restore of a home: what was asked for, how far it is, and how it ended."""

    model_config = ConfigDict(frozen=True)

    id: str
    state: Literal["asked", "moving", "done", "failed"]
    by: Literal["console", "command"]
    source: str
    """The path of the backup; for one that the console asked for, relative to the home."""
    at_ms: int
    """The time when it was asked for, and then when it ended."""
    tries: int = 0
    moves: tuple[Move, ...] = ()
    made_ms: int | None = None
    """The time when the backup was made, as it says itself; None for a bare database."""
    files: int = 0
    safety: str | None = None
    """The name of the backup of what was there before, in `backups/`."""
    has_env: bool = False
    error: str = ""
    is_audited: bool = False

    @property
    def is_pending(self) -> bool:
        return self.state in ("asked", "moving")

    def to(self, **changes: object) -> RestoreRecord:
        return self.model_copy(update=changes)


def read_record(home: Home) -> RestoreRecord | None:
    """Return the newest restore of a home; None where there was none, or where its record is unreadable."""
    try:
        return RestoreRecord.model_validate_json((home.restore_file).read_bytes())
    except (OSError, ValidationError):
        return None


def write_record(home: Home, record: RestoreRecord) -> None:
    """Write the record so that it outlives a power cut. Raises `OSError`."""
    write_whole(home.restore_file, record.model_dump_json(), mode=0o600)
    os.sync()


class Stage:
    """The folders into which a backup is unpacked: one inside each part of the home.

    With Docker Compose each part is a mount of its own, and nothing can be renamed from one mount to another.
    """

    def __init__(self, home: Home) -> None:
        self._root = home.root
        self._can_write_top = os.access(home.root, os.W_OK)

    def base(self, name: str) -> Path:
        """Return the directory below which a member of a backup is unpacked under its own name."""
        return self._of(name) / "new"

    def path(self, name: str) -> Path:
        return self.base(name) / name

    def former(self, name: str) -> Path:
        """Return where what is replaced waits until the restore is done."""
        return self._of(name) / "old" / name

    def can_place(self, name: str) -> bool:
        """Whether the home can get this file.

        With Docker Compose its top, where `andy.toml` is, is read-only.
        """
        return self._can_write_top or name.split("/", 1)[0] in PARTS

    def _of(self, name: str) -> Path:
        top = name.split("/", 1)[0]
        inside = top if top in PARTS else "." if self._can_write_top else "data"
        return self._root / inside / STAGE

    def open(self) -> None:
        """Make the directories anew, which no agent can look into. Raises `OSError`."""
        self.clear()
        for name in (*PARTS, archive.SETTINGS):
            self._of(name).mkdir(mode=0o700, exist_ok=True)
            self.base(name).mkdir(exist_ok=True)

    def is_there(self) -> bool:
        """Whether a restore was killed before it cleared away."""
        return any(os.path.lexists(self._of(name)) for name in (*PARTS, archive.SETTINGS))

    def clear(self) -> None:
        """Remove what was unpacked, and what it replaced. Raises `OSError`."""
        for name in (*PARTS, archive.SETTINGS):
            _remove(self._of(name))

    def children(self, name: str) -> list[str]:
        """Return the names of what stands below `name`, in the home or unpacked."""
        found = {entry for folder in (self._root, self.base(name)) for entry in _listed(folder / name)}
        return [f"{name}/{entry}" for entry in sorted(found - NOT_MOVED)]


def swap(
    home: Home, stage: Stage, names: Iterable[str], *, aside: Path | None, record: RestoreRecord
) -> RestoreRecord:
    """Move what is unpacked in place, and what was there to `aside`, else to where the stage drops it.

    Blocks. Returns the record, which then says that it is done.

    Raises:
        OSError: a move failed; everything is as it was.
    """
    moves = tuple(_planned(home.root, stage, [name for name in names if stage.can_place(name)], aside))
    earlier = read_record(home)
    done = record.to(state="done", moves=(), error="")
    os.sync()
    try:
        write_record(home, record.to(state="moving", moves=moves))
        for move in moves:
            _rename(home.root / move.before, home.root / move.after)
        os.sync()
        write_record(home, done)
    except BaseException:
        _undo(home.root, moves)
        if earlier is None:
            (home.restore_file).unlink(missing_ok=True)
        else:
            write_record(home, earlier)
        raise
    return done


def recover(home: Home) -> RestoreRecord | None:
    """Undo the moves of a restore that was killed, and clear away what it left. Blocks; needs the lock.

    Returns the newest restore. One that was asked for in the console is then asked for again.

    Raises:
        OSError: a move cannot be undone yet; the next call goes on with it.
    """
    record = read_record(home)
    if record is not None and record.state == "moving":
        _undo(home.root, record.moves)
        is_asked = record.by == "console"
        record = record.to(
            state="asked" if is_asked else "failed",
            moves=(),
            error="" if is_asked else "It was broken off. Everything is as it was.",
        )
        write_record(home, record)
    Stage(home).clear()
    for partial in home.data.glob(f".{home.restore_file.name}.*.partial"):
        partial.unlink(missing_ok=True)
    return record


def _planned(root: Path, stage: Stage, names: list[str], aside: Path | None) -> Iterable[Move]:
    for name in names:
        former = aside / name if aside is not None else stage.former(name)
        if os.path.lexists(root / name):
            yield Move(before=name, after=os.path.relpath(former, root), brings_new=False)
        if os.path.lexists(stage.path(name)):
            yield Move(before=os.path.relpath(stage.path(name), root), after=name, brings_new=True)


def _undo(root: Path, moves: tuple[Move, ...]) -> None:
    """Undo those of `moves` that were made. It may be killed, too, and begun again."""
    for move in reversed(moves):
        before, after = root / move.before, root / move.after
        if move.brings_new:
            # What is still unpacked was not moved: what stands in its place is not from the backup.
            if not os.path.lexists(before) and os.path.lexists(after):
                _rename(after, before)
        elif os.path.lexists(after):
            _remove(before)  # another program has made it since: a command that found no database
            _rename(after, before)
            with suppress(OSError):  # up to the first directory that has something in it
                for parent in after.parents:
                    parent.rmdir()


def _rename(before: Path, after: Path) -> None:
    after.parent.mkdir(parents=True, exist_ok=True)
    before.rename(after)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
        return
    path.unlink(missing_ok=True)
    if path.suffix == ".db":
        for end in ("-wal", "-shm"):
            path.with_name(path.name + end).unlink(missing_ok=True)


def _listed(folder: Path) -> list[str]:
    try:
        return [path.name for path in folder.iterdir()]
    except FileNotFoundError:
        return []
