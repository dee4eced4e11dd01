"""Files as effects of turns: record a turn's changes in its group's folder, and restore files."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from functools import partial

import structlog

from orchestrator.domain.values import Folder, TurnId
from orchestrator.store.conversation import outbox
from orchestrator.store.database import Database, Tx, announce
from orchestrator.store.runs import turns
from orchestrator.store.undo import turn_effects, undos
from orchestrator.store.undo.turn_effects import FILE, UNKNOWN_FILES, RowEffect
from orchestrator.store.undo.undos import Undo
from orchestrator.undo import texts
from orchestrator.undo.files import FolderChanges, GroupFiles
from orchestrator.undo.plan import is_listed, item_of

log = structlog.get_logger(__name__)


async def catch_up(database: Database, files: GroupFiles, folder: Folder, *, now_ms: int) -> None:
    """Record the file changes of a group's ended turns, and restore the files for its undos."""
    for number in await asyncio.to_thread(files.open_turns, folder):
        await settle(database, files, folder, number, now_ms=now_ms)
    await put_due(database, files, folder, now_ms=now_ms)


async def settle(database: Database, files: GroupFiles, folder: Folder, number: int, *, now_ms: int) -> None:
    """Record the changes that a turn made in its group's folder, and delete the snapshot before it.

    `number` is the turn's id. Nothing is done if the turn has not ended. For a turn that is not stored any
    more, only the snapshot is deleted.
    """

    async def is_over(tx: Tx) -> bool | None:
        """Return whether the turn has ended; None if it is not stored any more."""
        turn = await turns.get(tx, TurnId(number))
        return None if turn is None else turn.ended_ms is not None

    has_ended = await database.read(is_over)
    if has_ended is False:
        return
    if has_ended:  # not for None, a turn that is not stored any more
        changed = await asyncio.to_thread(files.changes, folder, number)

        async def work(tx: Tx) -> None:
            """Record the files that the turn changed, unless that was done meanwhile."""
            # `is_open` is false if an undo has recorded the turn's changes meanwhile: it may have changed the
            # files again.
            if files.is_open(folder, number):
                await record(tx, TurnId(number), changed, now_ms=now_ms)

        await database.write(work)
    await asyncio.to_thread(files.close, folder, number)


async def record(tx: Tx, turn_id: TurnId, changed: FolderChanges, *, now_ms: int) -> None:
    """Record each file that a turn changed as an effect of the turn, or the reason why the files are unknown.

    An effect has the state of a file, or row, before and after the turn, so that it can be undone.
    """
    if changed.unknown_reason is not None:
        # Such an effect has no states. It only says that the turn may have changed files, and why it is not
        # known which.
        effect = RowEffect(
            turn_id=turn_id,
            table=UNKNOWN_FILES,
            row_key=json.dumps([changed.unknown_reason]),
            before=None,
            after={},
        )
        await turn_effects.add(tx, effect, now_ms=now_ms)
    for file in changed.files:
        effect = RowEffect(
            turn_id=turn_id,
            table=FILE,
            row_key=json.dumps([file.path]),
            before=file.before,
            after=file.after,
        )
        await turn_effects.add(tx, effect, now_ms=now_ms)


async def put_due(database: Database, files: GroupFiles, folder: Folder, *, now_ms: int) -> None:
    """Restore the files of a group's undos that have not been restored yet, and record that it was done.

    An undo first changes the database, and its files follow. After a crash this is simply repeated. A file
    that cannot be restored is logged and not tried again. A message then corrects the reply to the undo,
    which had announced that all files are restored.
    """
    for undo in await database.read(partial(undos.due, folder=folder)):
        effects = await database.read(partial(turn_effects.of_turn, turn_id=undo.turn_id))
        of_files = [effect for effect in effects if effect.table == FILE]
        unrestored = await asyncio.to_thread(put_all, files, folder, of_files)
        if unrestored:
            paths = [effect.key[0] for effect in unrestored]
            log.warning("undo.files_left", group=folder, turn=undo.turn_id, files=paths[:20])
        await database.write(partial(_finish, undo=undo, unrestored=unrestored, now_ms=now_ms))


async def _finish(tx: Tx, undo: Undo, unrestored: Sequence[RowEffect], *, now_ms: int) -> None:
    """Record that the files of an undo are dealt with; queue a message about those that were not restored."""
    await undos.note_files_done(tx, undo.turn_id)
    turn = await turns.get(tx, undo.turn_id)
    if unrestored and turn is not None:
        # Directories are named only if there is no file to name.
        named = list(filter(is_listed, unrestored)) or unrestored
        await outbox.add(
            tx,
            chat_jid=turn.chat_jid,
            folder=turn.folder,
            text=texts.files_left([item_of(effect) for effect in named]),
            dedupe_key=f"undo-left:{undo.turn_id}",
            now_ms=now_ms,
        )
        announce(tx, "outbox.changed", group=turn.folder)


def put_all(files: GroupFiles, folder: str, effects: Sequence[RowEffect]) -> list[RowEffect]:
    """Bring each file that is in the state `before` its effect to the state `after` it. Blocks.

    To undo a turn, pass the effects of the undo's own turn, which lead back. Return the effects whose files
    are in neither state, or could not be changed. Files in the state `after` stay as they are, so a host that
    was killed in between can simply call this again.
    """
    deletions = [effect for effect in effects if effect.after is None]
    writes = [effect for effect in effects if effect.after is not None]
    # The key of such an effect is the path. Deletions start with the deepest path, writes with the outermost
    # directory.
    ordered = sorted(deletions, key=lambda effect: effect.key[0], reverse=True) + sorted(
        writes, key=lambda effect: effect.key[0]
    )
    return [
        effect
        for effect in ordered
        if not files.put(folder, effect.key[0], effect.after, expected=effect.before)
    ]


async def hashes(tx: Tx, folder: Folder) -> set[str]:
    """Return the hashes of all file contents that undoing a group's turns may need."""
    # The content of a link is its target, which may be no UTF-8: the database could not return it.
    rows = await tx.execute_fetchall(
        """
        SELECT
            iif(json_extract(before, '$.kind') = 'file', json_extract(before, '$.content'), NULL) AS earlier,
            iif(json_extract(after, '$.kind') = 'file', json_extract(after, '$.content'), NULL) AS later
        FROM turn_effects WHERE table_name = ? AND turn_id IN (SELECT id FROM turns WHERE group_folder = ?)
        """,
        (FILE, folder),
    )
    return {digest for row in rows for digest in (row["earlier"], row["later"]) if digest}
