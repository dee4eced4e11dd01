"""Restore a backup that the owner chose in the console: at the next start, before the store is opened.

The request is stored in `data/restore.json`. A backup of the present home is made first. A failure changes
nothing, and is shown in the console and in the audit.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from orchestrator.backup import make
from orchestrator.backup.restore import as_backup_error, locked, place
from orchestrator.backup.swap import RestoreRecord, Stage, has_moves, read_record, write_record
from orchestrator.base.clock import Clock
from orchestrator.domain.errors import AndyError, BackupError
from orchestrator.home.directory import Home
from orchestrator.store import audit
from orchestrator.store.database import Database, Tx

BACKUPS = "backups"
MAX_TRIES = 3
"""Starts that try a restore: one that kills each start must not prevent all further starts."""


def request_restore(home: Home, name: str, *, has_env: bool, now_ms: int) -> RestoreRecord:
    """Request that the next start restores the backup `name` of the folder `backups/`. Blocks.

    The request is flushed to the disk, so it survives a power cut. `has_env` says that the backup has `.env`.

    Raises:
        BackupError: the request cannot be stored.
    """
    record = RestoreRecord(
        id=secrets.token_hex(4),
        state="asked",
        by="console",
        source=f"{BACKUPS}/{name}",
        at_ms=now_ms,
        has_env=has_env,
    )
    with as_backup_error(home.root / record.source):
        write_record(home, record)
    return record


def carry_out(home: Home, *, clock: Clock, say: Callable[[str], None]) -> None:
    """Undo a restore that was killed half way, then carry out the requested one, if there is one. Blocks.

    A restore that fails changes nothing and raises nothing: its record and the audit log have the error. The
    database must be closed. `say` shows a line of the progress to a person.

    Raises:
        HomeError: Andy runs on this home.
        BackupError: a killed or failed restore cannot be undone, or its record cannot be read; until it is
            undone, nothing may run on this home.
    """
    record = read_record(home)
    # A requested restore has no entry in the audit log yet, and a killed one has left its stage (the folders
    # with the unpacked files). Without either, nothing is to be done.
    if (record is None or record.is_audited) and not Stage(home).is_there():
        return
    with locked(home):  # this undoes a restore that was killed
        # Read again, because that changes the record.
        record = read_record(home)
        if record is None or record.is_audited:
            return
        if record.is_pending:
            record = _try_restore(home, record, clock=clock, say=say)
        with suppress(AndyError):  # the store cannot be opened: the start reports it
            asyncio.run(_audit(home, record))
        try:
            write_record(home, record.to(is_audited=True))
        except OSError:  # for example a full disk, on which Andy can still start
            # The record as it was would make each start do all of this again.
            home.restore_file.unlink(missing_ok=True)


def _try_restore(
    home: Home, record: RestoreRecord, *, clock: Clock, say: Callable[[str], None]
) -> RestoreRecord:
    """Back up the home, restore the requested backup, and return the record with the result.

    An error of Andy's is a result, too: the returned record has the state "failed" then, and the error.

    Raises:
        BackupError: the restore failed, and only a later start can move the home's files back.
    """
    try:
        if record.tries >= MAX_TRIES:
            raise BackupError(f"It was interrupted {record.tries} times. Nothing was changed.")
        with as_backup_error(home.root / record.source):
            # Counted before the try, so that one which kills the process counts, too.
            record = record.to(tries=record.tries + 1)
            write_record(home, record)
            # The name of the backup is stored at once, so that a further try makes no second one.
            record = record.to(safety=_back_up_first(home, record, clock=clock, say=say))
            write_record(home, record)
            say(f"Restoring {record.source} …")
            place(home, home.root / record.source, record=record, aside=None, clock=clock, say=say)
        # `place` has stored the record with the state "done".
        return read_record(home) or record
    except AndyError as error:
        # `place` has moved files and could not move them back. A later start does, by the stored record: that
        # must not be replaced by one of a failure.
        if has_moves(home):
            raise
        say(f"{record.source} was not restored: {error}")
        return record.to(state="failed", error=str(error), at_ms=clock.now_ms())


def _back_up_first(home: Home, record: RestoreRecord, *, clock: Clock, say: Callable[[str], None]) -> str:
    """Back up the home into its folder `backups`, unless an earlier try did; return the backup's name."""
    folder = home.root / BACKUPS
    if record.safety is not None and (folder / record.safety).is_file():
        return record.safety
    at = datetime.fromtimestamp(clock.now_ms() / 1000).astimezone()
    # The second backup of the same second gets a number: `before-restore-20261122-031500-1.tar.gz`.
    base = f"before-restore-{at:%Y%m%d-%H%M%S}"
    names = (f"{base}-{number}.tar.gz" if number else f"{base}.tar.gz" for number in itertools.count())
    name = next(name for name in names if not (folder / name).exists())
    say(f"Backing up what is there now to {BACKUPS}/{name} …")
    # With `.env` if the restore replaces that: its present secrets would be nowhere else.
    make.back_up(home, folder / name, with_env=record.has_env, replaces=False, clock=clock, say=say)
    return name


async def _audit(home: Home, record: RestoreRecord) -> None:
    """Add the result of a restore to the audit log of the home's present database, unless it is there."""
    database = await Database.open(home.database)
    try:
        async with database.transaction() as tx:
            if not await _is_audited(tx, record):
                await audit.append(tx, _result_event(record))
    finally:
        await database.close()


async def _is_audited(tx: Tx, record: RestoreRecord) -> bool:
    """Return whether the audit log already has the entry about the result of this restore."""
    rows = await tx.execute_fetchall(
        "SELECT 1 FROM audit WHERE kind = ? AND json_extract(detail, '$.id') = ?",
        (f"restore.{record.state}", record.id),
    )
    return bool(list(rows))


def request_event(record: RestoreRecord, *, session: str) -> audit.AuditEvent:
    """Return the entry of the audit log about a requested restore.

    `session` is the sign-in of the browser that requested it. The entry is written to the database that the
    restore replaces.
    """
    detail = {"id": record.id, "file": Path(record.source).name, "session": session}
    return audit.AuditEvent(at_ms=record.at_ms, kind="restore.asked", detail=detail)


def _result_event(record: RestoreRecord) -> audit.AuditEvent:
    """Return the entry of the audit log about a restore that ended; `record` has its result."""
    detail: dict[str, Any] = {
        "id": record.id,
        "ok": record.state == "done",
        "file": Path(record.source).name,
        "by": record.by,
        "before": record.safety,  # the backup that was made before this restore
        "reason": record.error,
    }
    return audit.AuditEvent(at_ms=record.at_ms, kind=f"restore.{record.state}", detail=detail)
