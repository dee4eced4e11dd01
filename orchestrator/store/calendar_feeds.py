"""`calendar_feeds`: the addresses by which calendar programs read what is to come in a group.

An address holds a secret, of which the store has the hash alone: a copy of the database opens no calendar.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

from orchestrator.domain.errors import BadRequest
from orchestrator.domain.values import Folder
from orchestrator.store.database import Tx, returned


class UnknownCalendar(BadRequest):
    """There is no such calendar."""

    code = "unknown_calendar"
    http_status = 404


@dataclass(frozen=True, slots=True, kw_only=True)
class CalendarFeed:
    """One address that was given out."""

    id: int
    folder: Folder
    name: str
    """The device or person that it was made for, in the owner's words; may be empty."""
    created_ms: int
    fetched_ms: int | None
    """The time when it was fetched last, in epoch milliseconds; None before the first time."""


async def add(tx: Tx, folder: Folder, *, name: str, secret_hash: str, now_ms: int) -> CalendarFeed:
    cursor = await tx.execute(
        "INSERT INTO calendar_feeds (group_folder, name, secret_hash, created_ms) VALUES (?, ?, ?, ?)"
        " RETURNING *",
        (folder, name, secret_hash, now_ms),
    )
    return _from_row(await returned(cursor))


async def every(tx: Tx, folder: str | None = None) -> list[CalendarFeed]:
    """Return the calendars of a group, or of all groups; the oldest first."""
    rows = await tx.execute_fetchall(
        "SELECT * FROM calendar_feeds WHERE ? IS NULL OR group_folder = ? ORDER BY id", (folder, folder)
    )
    return [_from_row(row) for row in rows]


async def by_secret(tx: Tx, secret_hash: str) -> CalendarFeed | None:
    cursor = await tx.execute("SELECT * FROM calendar_feeds WHERE secret_hash = ?", (secret_hash,))
    row = await cursor.fetchone()
    return _from_row(row) if row else None


async def note_fetch(tx: Tx, feed_id: int, *, now_ms: int) -> None:
    """Set when a calendar was fetched last."""
    await tx.execute("UPDATE calendar_feeds SET fetched_ms = ? WHERE id = ?", (now_ms, feed_id))


async def remove_of(tx: Tx, folder: Folder) -> None:
    """Remove the calendars of a group that is unregistered: another may be given its folder."""
    await tx.execute("DELETE FROM calendar_feeds WHERE group_folder = ?", (folder,))


async def remove(tx: Tx, feed_id: int) -> CalendarFeed:
    """Remove a calendar and return it. Raises `UnknownCalendar`."""
    cursor = await tx.execute("DELETE FROM calendar_feeds WHERE id = ? RETURNING *", (feed_id,))
    row = await cursor.fetchone()
    if row is None:
        raise UnknownCalendar(f"There is no calendar {feed_id}: see 'andy calendar list'.")
    return _from_row(row)


def _from_row(row: sqlite3.Row) -> CalendarFeed:
    return CalendarFeed(
        id=row["id"],
        folder=Folder(row["group_folder"]),
        name=row["name"],
        created_ms=row["created_ms"],
        fetched_ms=row["fetched_ms"],
    )
