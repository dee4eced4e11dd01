"""`reminders`: texts that are sent at a time, without an agent."""

from __future__ import annotations

import sqlite3

from orchestrator.domain.values import ChatJid, Folder, Group, Reminder, ReminderState
from orchestrator.store.database import Tx, returned


async def add(
    tx: Tx, group: Group, *, text: str, due_ms: int, now_ms: int, asked_by: str | None = None
) -> int:
    cursor = await tx.execute(
        """
        INSERT INTO reminders (group_folder, chat_jid, text, due_ms, state, created_ms, asked_by)
        VALUES (?, ?, ?, ?, 'pending', ?, ?) RETURNING id
        """,
        (group.folder, group.jid, text, due_ms, now_ms, asked_by),
    )
    return int((await returned(cursor))["id"])


async def pending(tx: Tx, folder: Folder | None = None) -> list[Reminder]:
    """Return the reminders that are still to come, the next first."""
    rows = await tx.execute_fetchall(
        """
        SELECT * FROM reminders
        WHERE state = 'pending' AND (:folder IS NULL OR group_folder = :folder) ORDER BY due_ms, id
        """,
        {"folder": folder},
    )
    return [_from_row(row) for row in rows]


async def due(tx: Tx, now_ms: int) -> list[Reminder]:
    rows = await tx.execute_fetchall(
        "SELECT * FROM reminders WHERE state = 'pending' AND due_ms <= ? ORDER BY due_ms, id", (now_ms,)
    )
    return [_from_row(row) for row in rows]


async def next_due_ms(tx: Tx) -> int | None:
    cursor = await tx.execute("SELECT min(due_ms) AS due FROM reminders WHERE state = 'pending'")
    return (await returned(cursor))["due"]  # type: ignore[no-any-return]


async def close(tx: Tx, reminder_id: int, state: ReminderState) -> None:
    await tx.execute("UPDATE reminders SET state = ? WHERE id = ?", (state, reminder_id))


async def set_due(tx: Tx, reminder_id: int, due_ms: int) -> None:
    await tx.execute("UPDATE reminders SET due_ms = ? WHERE id = ?", (due_ms, reminder_id))


async def change(tx: Tx, reminder_id: int, *, text: str, due_ms: int) -> None:
    await tx.execute("UPDATE reminders SET text = ?, due_ms = ? WHERE id = ?", (text, due_ms, reminder_id))


async def move(tx: Tx, folder: Folder, jid: ChatJid) -> None:
    """Move a group's pending reminders to another chat."""
    await tx.execute(
        "UPDATE reminders SET chat_jid = ? WHERE group_folder = ? AND state = 'pending'", (jid, folder)
    )


async def get(tx: Tx, reminder_id: int) -> Reminder | None:
    cursor = await tx.execute("SELECT * FROM reminders WHERE id = ?", (reminder_id,))
    row = await cursor.fetchone()
    return _from_row(row) if row else None


def _from_row(row: sqlite3.Row) -> Reminder:
    return Reminder(
        id=row["id"],
        folder=Folder(row["group_folder"]),
        chat_jid=ChatJid(row["chat_jid"]),
        text=row["text"],
        due_ms=row["due_ms"],
        state=ReminderState(row["state"]),
        created_ms=row["created_ms"],
        asked_by=row["asked_by"],
    )
