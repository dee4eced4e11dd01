"""`undos`: each undo is a turn of its own, with the turn that it undoes."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass

from orchestrator.domain.values import Folder, TurnId
from orchestrator.store.database import Tx
from orchestrator.store.row_mapper import RowMapper


@dataclass(frozen=True, slots=True, kw_only=True)
class Undo:
    """One undo."""

    turn_id: TurnId
    """The undo's own turn: its effects are those of the other turn, reversed."""
    undoes: TurnId
    folder: Folder
    by: str
    """The address of the person in the chat, "console" or "command line"."""
    at_ms: int
    has_files_due: bool = False
    """Whether files of the group still have to be restored."""


_MAPPER = RowMapper(Undo, "undos", {"folder": "group_folder", "by": "by_whom"})


async def add(tx: Tx, undo: Undo) -> None:
    """Store that a turn was undone, and by which turn."""
    await _MAPPER.insert(tx, undo)


async def get(tx: Tx, turn_id: TurnId) -> Undo | None:
    """Return the undo whose own turn this is; None for a turn that is no undo."""
    return await _MAPPER.fetch_one(tx, "SELECT * FROM undos WHERE turn_id = ?", (turn_id,))


async def of_turn(tx: Tx, turn_id: TurnId) -> Undo | None:
    """Return the undo in effect for a turn; None if the turn was not undone, or that undo was undone."""
    undo = await _MAPPER.fetch_one(
        tx, "SELECT * FROM undos WHERE undoes = ? ORDER BY turn_id DESC LIMIT 1", (turn_id,)
    )
    # An undo is a turn itself, and may be undone like any other.
    is_undone = undo is not None and await of_turn(tx, undo.turn_id) is not None
    return None if is_undone else undo


async def undoable(tx: Tx, turn_ids: Collection[int]) -> set[int]:
    """Return the ids among `turn_ids` of turns that have ended, changed something, and are not undone."""
    rows = await tx.execute_fetchall(
        """
        SELECT t.id FROM turns AS t
        WHERE t.id IN (SELECT value FROM json_each(?)) AND t.ended_ms IS NOT NULL
            AND EXISTS (SELECT 1 FROM turn_effects AS e WHERE e.turn_id = t.id AND e.before IS NOT e.after)
        """,
        (json.dumps(sorted(turn_ids)),),
    )
    return {row["id"] for row in rows if await of_turn(tx, TurnId(row["id"])) is None}


async def due(tx: Tx, folder: Folder | None = None) -> list[Undo]:
    """Return the undos whose files still have to be restored, oldest first.

    Those of the group `folder`, or of all groups if it is None.
    """
    undos = await _MAPPER.fetch_all(tx, "SELECT * FROM undos WHERE has_files_due = 1 ORDER BY turn_id")
    return [undo for undo in undos if folder in (None, undo.folder)]


async def note_files_done(tx: Tx, turn_id: TurnId) -> None:
    """Record that all files of an undo are restored; `turn_id` is the undo's own turn."""
    await tx.execute("UPDATE undos SET has_files_due = 0 WHERE turn_id = ?", (turn_id,))
