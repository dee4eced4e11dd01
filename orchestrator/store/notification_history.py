"""`notification_history`: what became of each notification, when and by whom."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.domain.values import Folder
from orchestrator.store.database import Tx

REWORDED = "reworded"


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryEntry:
    """One change of one notification."""

    folder: Folder
    notification_id: str
    at_ms: int
    what: str
    """`created`, `moved`, `postponed`, `reworded`, `reprioritised`, `not sent`, or the status it ended in."""
    by: str
    """`worker`, `user`, `main_agent`, or `host`."""
    turn_id: int | None = None
    """The turn in which an agent did it."""
    detail: Mapping[str, Any]


async def add(tx: Tx, entry: HistoryEntry) -> None:
    await tx.execute(
        """
        INSERT INTO notification_history
            (group_folder, notification_id, at_ms, what, by_whom, turn_id, detail_json)
        VALUES (?, ?, ?, ?, ?, ?, ?)
        """,
        (
            entry.folder,
            entry.notification_id,
            entry.at_ms,
            entry.what,
            entry.by,
            entry.turn_id,
            json.dumps(dict(entry.detail), ensure_ascii=False),
        ),
    )


async def of_notification(tx: Tx, folder: Folder, notification_id: str) -> list[HistoryEntry]:
    """Return all that became of one notification, the oldest first."""
    rows = await tx.execute_fetchall(
        "SELECT * FROM notification_history WHERE group_folder = ? AND notification_id = ? ORDER BY id",
        (folder, notification_id),
    )
    return [_from_row(row) for row in rows]


async def newest(tx: Tx, *, limit: int) -> list[HistoryEntry]:
    """Return the newest entries of all groups, the oldest of them first."""
    rows = await tx.execute_fetchall("SELECT * FROM notification_history ORDER BY id DESC LIMIT ?", (limit,))
    return [_from_row(row) for row in rows][::-1]


async def was_reworded(tx: Tx, folder: Folder, notification_id: str) -> bool:
    """Return whether somebody has put the text of a notification in words of their own."""
    cursor = await tx.execute(
        """
        SELECT 1 FROM notification_history
        WHERE group_folder = ? AND notification_id = ? AND what = ? LIMIT 1
        """,
        (folder, notification_id, REWORDED),
    )
    return await cursor.fetchone() is not None


def _from_row(row: Any) -> HistoryEntry:
    return HistoryEntry(
        folder=Folder(row["group_folder"]),
        notification_id=row["notification_id"],
        at_ms=row["at_ms"],
        what=row["what"],
        by=row["by_whom"],
        turn_id=row["turn_id"],
        detail=json.loads(row["detail_json"]),
    )
