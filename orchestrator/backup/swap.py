"""Replace the files of a home by unpacked ones: all of them or none, even if the process is killed.

The home is Andy's folder. All moves are written to `data/restore.json` before the first is made. A later
process that finds moves there undoes them; they are final when the same file says that the restore is done.
If the owner requests a restore in the console, the request is stored in that file, too, and later its result.
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
from orchestrator.domain.errors import BackupError
from orchestrator.home.directory import Home

STAGE = ".restore"
PARTS = ("groups", "data", "store")
WAL, SHM = f"{archive.DATABASE}-wal", f"{archive.DATABASE}-shm"
STORE = (WAL, SHM, archive.DATABASE)
"""The files of the database. Its write-ahead log (`WAL`) is moved first: a program that opens the database
meanwhile must not read the log of another one.
"""
NOT_MOVED = frozenset({STAGE, ".gitkeep"})


class Move(BaseModel):
    """One rename. Its paths are relative to the home, which may be mounted elsewhere when it is undone."""

    model_config = ConfigDict(frozen=True)

    before: str
    after: str
    brings_new: bool
    """Whether it moves a file of the backup into place; otherwise it moves an earlier file away."""


class RestoreRecord(BaseModel):
    """The newest restore of a home: its request, its state, and its result."""

    model_config = ConfigDict(frozen=True)

    id: str
    state: Literal["asked", "moving", "done", "failed"]
    by: Literal["console", "command"]
    source: str
    """The path of the backup; if the console requested it, relative to the home."""
    at_ms: int
    """The time of the request, or of the end, in epoch ms."""
    tries: int = 0
    """Starts of the host that have tried it."""
    moves: tuple[Move, ...] = ()
    made_ms: int | None = None
    """The time when the backup was made, by its manifest, in epoch ms; None for a bare database."""
    files: int = 0
    safety: str | None = None
    """The name in `backups/` of the backup that was made before this restore."""
    has_env: bool = False
    """Whether the backup has `.env`."""
    error: str = ""
    is_audited: bool = False

    @property
    def is_pending(self) -> bool:
        """Whether the restore was requested or begun, and has neither succeeded nor failed."""
        return self.state in ("asked", "moving")

    def to(self, **changes: object) -> RestoreRecord:
        """Return a copy with these fields changed; `write_record` stores it."""
        return self.model_copy(update=changes)


def read_record(home: Home) -> RestoreRecord | None:
    """Return the record of a home's newest restore; None if there was none.

    One that cannot be read counts as none if no restore was begun: then nothing depends on it.

    Raises:
        BackupError: it cannot be read, and the stage exists, which may have the only copy of files of the
            home.
    """
    try:
        return RestoreRecord.model_validate_json(home.restore_file.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        if not Stage(home).is_there():
            return None
        reason = error.strerror if isinstance(error, OSError) else "it is damaged"
        raise BackupError(
            f"{home.restore_file} cannot be read ({reason}), and a restore was begun. Check the disk, and try"
            f" again. If the file stays damaged: the files that were replaced are in the folders {STAGE}/old"
            f" of groups/, data/, store/ and {home.root}, or in {home.root}.before-restore-TIME. Move them"
            f" back to their places, then remove the folders {STAGE} and this file."
        ) from error


def has_moves(home: Home) -> bool:
    """Return whether a home's record has moves that are neither undone nor final, or cannot be read.

    Until `recover` has undone them, the stage may have the only copy of files of the home.
    """
    try:
        record = read_record(home)
    except BackupError:
        return True
    return record is not None and record.state == "moving"


def refuse_moves(home: Home) -> None:
    """Raise `BackupError`, with the fix, if a restore has not ended: the home may be a mixture of two.

    What is written to such a home would be lost when `recover` undoes the moves.
    """
    record = read_record(home)
    if record is not None and record.state == "moving":
        raise BackupError(
            f"A restore of {home.root} is under way, or was interrupted:"
            " the next start of Andy undoes what is half done. Repeat this command after that."
        )


def write_record(home: Home, record: RestoreRecord) -> None:
    """Store the record of a home's newest restore so that it survives a power cut.

    Raises:
        BackupError: it has a path that is not UTF-8.
        OSError: it cannot be written. In both cases the earlier record stays.
    """
    for path in (record.source, *(path for move in record.moves for path in (move.before, move.after))):
        try:
            path.encode()
        except UnicodeEncodeError as error:
            raise BackupError(
                f"{path!a} is no UTF-8, and a restore cannot record such a name: rename it."
                " Nothing was changed."
            ) from error
    write_whole(home.restore_file, record.model_dump_json(), mode=0o600)
    os.sync()


class Stage:
    """The folders into which a backup is unpacked: one inside each part of the home.

    With Docker Compose each part is a mount of its own, and nothing can be renamed from one mount to another.
    """

    def __init__(self, home: Home) -> None:
        """Nothing is created before `open`."""
        self._root = home.root
        # With Docker Compose the home's top folder is read-only.
        self._can_write_top = os.access(home.root, os.W_OK)

    def base(self, name: str) -> Path:
        """Return the folder in which a file of a backup is unpacked; `name` is its path in the backup."""
        return self._stage_of(name) / "new"

    def path(self, name: str) -> Path:
        """Return the path of the unpacked file `name` of a backup, before it is moved into the home."""
        return self.base(name) / name

    def former(self, name: str) -> Path:
        """Return the path to which the file `name` of the home is moved until the restore is done."""
        return self._stage_of(name) / "old" / name

    def can_place(self, name: str) -> bool:
        """Return whether a restore can put the file `name`, a path in the home, into the home.

        With Docker Compose the home's top folder, where `andy.toml` is, is read-only.
        """
        return self._can_write_top or name.split("/", 1)[0] in PARTS

    def _stage_of(self, name: str) -> Path:
        """Return the stage's folder for a file of the home: inside of the part that has the file.

        A file in the home's top folder has its stage in that folder, or in `data/` if that is read-only.
        """
        top = name.split("/", 1)[0]
        if top in PARTS:
            return self._root / top / STAGE
        return self._root / ("." if self._can_write_top else "data") / STAGE

    def open(self) -> None:
        """Create the stage's folder in each part of the home, after deleting that of an earlier restore.

        Only its owner can enter it. Inside is an empty folder for the unpacked files, its `base`. Raises
        `OSError`.
        """
        self.clear()
        # If the home's top folder is read-only, the settings file shares the folder in `data`, which exists.
        for name in (*PARTS, archive.SETTINGS):
            self._stage_of(name).mkdir(mode=0o700, exist_ok=True)
            self.base(name).mkdir(exist_ok=True)

    def is_there(self) -> bool:
        """Return whether one of the stage's folders exists, or cannot be looked up.

        A restore that was killed left them.
        """
        try:
            return any(is_present(self._stage_of(name)) for name in (*PARTS, archive.SETTINGS))
        except OSError:
            return True

    def clear(self) -> None:
        """Delete the stage's folders, with the unpacked and the replaced files. Raises `OSError`."""
        for name in (*PARTS, archive.SETTINGS):
            _remove(self._stage_of(name))

    def children(self, name: str) -> list[str]:
        """Return the paths of all entries that the folder `name` has in the home or in the unpacked backup.

        The stage itself is left out.
        """
        names = {entry for folder in (self._root, self.base(name)) for entry in _listed(folder / name)}
        return [f"{name}/{entry}" for entry in sorted(names - NOT_MOVED)]


def swap(
    home: Home, stage: Stage, names: Iterable[str], *, aside: Path | None, record: RestoreRecord
) -> RestoreRecord:
    """Move the unpacked files into place, and the earlier ones away. Blocks.

    `names` are the paths in the home that are replaced; a name that the backup lacks is only moved away, and
    one in the home's top folder is skipped if that is read-only, as with Docker Compose. The earlier files go
    to the folder `aside`, or into the stage if that is None. `record` is that of this restore; return it with
    the state "done", in which it is also stored in the home.

    Raises:
        OSError: a move failed; all moves were undone.
        BackupError: a move failed, and the moves cannot be undone now; `has_moves(home)` is true then.
    """
    moves = tuple(_planned(home.root, stage, [name for name in names if stage.can_place(name)], aside))
    earlier_record = read_record(home)
    done_record = record.to(state="done", moves=(), error="")
    # First the unpacked files are flushed to the disk: after a power cut, the record must not name files that
    # are not there.
    os.sync()
    try:
        write_record(home, record.to(state="moving", moves=moves))
        for move in moves:
            _rename(home.root / move.before, home.root / move.after)
        # The moves are flushed to the disk before the record that makes them final.
        os.sync()
        write_record(home, done_record)
    except BaseException as error:
        # Nothing was moved yet, or all of it is final: a signal can come after the record was stored.
        if not has_moves(home):
            raise
        try:
            _undo(home.root, moves)
        except OSError as undo_error:
            raise BackupError(
                f"The restore failed ({error}) and cannot be undone now ({undo_error}):"
                " the next start of Andy undoes it."
            ) from undo_error
        # All moves are undone, so the record of the earlier restore comes back. The record of this one is
        # deleted first: if it stayed because the disk is full, `recover` would undo the moves a second time.
        os.sync()
        home.restore_file.unlink(missing_ok=True)
        if earlier_record is not None:
            write_record(home, earlier_record)
        raise
    return done_record


def recover(home: Home) -> RestoreRecord | None:
    """Undo the moves of a restore that was killed, and delete the files that it had unpacked. Blocks.

    The caller holds the home's lock. Return the record of the newest restore; None if there is none. The
    record of a killed restore is stored with a new state: "asked" if the console requested it, else "failed".

    Raises:
        OSError: a move cannot be undone now; the next call continues.
        BackupError: the record of the restore cannot be read.
    """
    record = read_record(home)
    if record is not None and record.state == "moving":
        _undo(home.root, record.moves)
        is_asked = record.by == "console"
        # A restore that the console requested is tried again at the next start. One of a command is not: its
        # owner saw it end, and can repeat the command.
        record = record.to(
            state="asked" if is_asked else "failed",
            moves=(),
            error="" if is_asked else "It was interrupted. Nothing was changed.",
        )
        write_record(home, record)
    if record is None:
        # There may be a record that cannot be read. It counts as none while there is no stage, but beside the
        # stage of the next restore it would be an error: so it is deleted.
        with suppress(OSError):
            home.restore_file.unlink(missing_ok=True)
    Stage(home).clear()
    # A write of the record that was killed leaves such a file.
    for partial in home.data.glob(f".{home.restore_file.name}.*.partial"):
        partial.unlink(missing_ok=True)
    return record


def _planned(root: Path, stage: Stage, names: list[str], aside: Path | None) -> Iterable[Move]:
    """Yield the moves that replace these paths of the home: the earlier file away, then the new one in place.

    The earlier files go to the folder `aside`, or into the stage if that is None.
    """
    for name in names:
        former = aside / name if aside is not None else stage.former(name)
        if is_present(root / name):
            yield Move(before=name, after=os.path.relpath(former, root), brings_new=False)
        if is_present(stage.path(name)):
            yield Move(before=os.path.relpath(stage.path(name), root), after=name, brings_new=True)


def _undo(root: Path, moves: tuple[Move, ...]) -> None:
    """Undo those of `moves` that were made, the last one first.

    If the process is killed during a call, the next call completes it.
    """
    for move in reversed(moves):
        before, after = root / move.before, root / move.after
        if move.brings_new:
            # A new file, moved from the unpacked folder (`before`) into the home (`after`). If it is still in
            # the unpacked folder, it was not moved, and the file in the home is the old one, which stays.
            if not is_present(before) and is_present(after):
                _rename(after, before)
        # An old file, moved away from its place in the home (`before`) to `after`: it is put back.
        elif is_present(after):
            # A file there was created meanwhile by another program, such as a command that found no database.
            _remove(before)
            _rename(after, before)
            # The folders that held the old file are removed, up to the first that is not empty.
            with suppress(OSError):
                for parent in after.parents:
                    parent.rmdir()


def is_present(path: Path) -> bool:
    """Return whether there is a file, folder or link at `path`.

    Raises:
        OSError: that cannot be looked up. `os.path.lexists` would return False, as for a missing file.
    """
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _rename(before: Path, after: Path) -> None:
    """Move a file or folder to the path `after`, whose missing parents are created. Raises `OSError`."""
    after.parent.mkdir(parents=True, exist_ok=True)
    before.rename(after)


def _remove(path: Path) -> None:
    """Delete a file or folder, and a database's write-ahead log with it; a missing file is no error."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
        return
    path.unlink(missing_ok=True)
    # The log of a deleted database is deleted, too: SQLite would apply it to the database that takes its
    # place.
    if path.suffix == ".db":
        for ending in ("-wal", "-shm"):
            path.with_name(path.name + ending).unlink(missing_ok=True)


def _listed(folder: Path) -> list[str]:
    """Return the names in a folder; none if it is missing."""
    try:
        return [path.name for path in folder.iterdir()]
    except FileNotFoundError:
        return []
