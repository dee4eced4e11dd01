"""`followed_calendars` and `calendar_events`: the owner's calendars, and their events as last read."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass

from orchestrator.domain.errors import BadRequest
from orchestrator.domain.values import Folder
from orchestrator.store.database import Tx, returned
from orchestrator.store.row_mapper import RowMapper


class UnknownFollowedCalendar(BadRequest):
    """The group follows no calendar of this name."""

    code = "unknown_calendar"
    http_status = 404


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowedCalendar:
    """One calendar that is read for a group. Times are epoch milliseconds."""

    id: int = 0
    folder: Folder
    name: str
    address: str
    """Its `https://` address, or the name of the line in `.env` that has it."""
    user: str | None
    password_env: str | None
    """The name of the line in `.env` that has the password."""
    notice_minutes: int | None
    """Minutes before an event at which the chat gets a message; None for no message."""
    created_ms: int = 0
    looked_ms: int | None = None
    """When a read was last attempted."""
    read_ms: int | None = None
    """When it was last read successfully."""
    failures: int = 0
    """Times in a row that it could not be read."""
    problem: str | None = None
    """The reason why the last read failed; None if it succeeded."""


_MAPPER = RowMapper(FollowedCalendar, "followed_calendars", {"folder": "group_folder"})


@dataclass(frozen=True, slots=True, kw_only=True)
class CalendarEvent:
    """One coming event, or one occurrence of a series."""

    id: str
    """The id of the event, shared by all occurrences of a series."""
    start_ms: int
    end_ms: int
    is_all_day: bool
    """Whether it lasts whole days: from midnight to midnight in the zone of the group."""
    title: str
    place: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowedEvent:
    """An event and its calendar."""

    calendar: FollowedCalendar
    event: CalendarEvent


async def add(tx: Tx, calendar: FollowedCalendar, *, now_ms: int) -> FollowedCalendar:
    """Store a calendar that a group follows, and return it with its id.

    A calendar of the same name in the group is replaced, and its events are deleted.
    """
    await tx.execute(
        "DELETE FROM followed_calendars WHERE group_folder = ? AND name = ?", (calendar.folder, calendar.name)
    )
    cursor = await tx.execute(
        """
        INSERT INTO followed_calendars
            (group_folder, name, address, user, password_env, notice_minutes, created_ms)
        VALUES (?, ?, ?, ?, ?, ?, ?) RETURNING *
        """,
        (
            calendar.folder,
            calendar.name,
            calendar.address,
            calendar.user,
            calendar.password_env,
            calendar.notice_minutes,
            now_ms,
        ),
    )
    return _MAPPER.read(await returned(cursor))


async def every(tx: Tx, folder: str | None = None) -> list[FollowedCalendar]:
    """Return the calendars that the group `folder` follows, or those of all groups if it is None."""
    return await _MAPPER.fetch_all(
        tx,
        "SELECT * FROM followed_calendars WHERE ? IS NULL OR group_folder = ? ORDER BY group_folder, name",
        (folder, folder),
    )


async def remove(tx: Tx, folder: str, name: str) -> None:
    """Delete a calendar that a group follows, with its events.

    Raises `UnknownFollowedCalendar` if there is none of this name.
    """
    cursor = await tx.execute(
        "DELETE FROM followed_calendars WHERE group_folder = ? AND name = ?", (folder, name)
    )
    if not cursor.rowcount:
        raise UnknownFollowedCalendar(
            f"'{folder}' follows no calendar '{name}': see 'andy calendar followed'."
        )


async def remove_of(tx: Tx, folder: Folder) -> None:
    """Delete the calendars of a group that is unregistered, since another group may get its folder."""
    await tx.execute("DELETE FROM followed_calendars WHERE group_folder = ?", (folder,))


async def note_read(tx: Tx, calendar_id: int, events: Iterable[CalendarEvent], *, now_ms: int) -> bool:
    """Record that a calendar was read, and replace its events. Return False if the calendar was deleted."""
    cursor = await tx.execute(
        "UPDATE followed_calendars SET looked_ms = ?, read_ms = ?, failures = 0, problem = NULL WHERE id = ?",
        (now_ms, now_ms, calendar_id),
    )
    if not cursor.rowcount:
        return False
    await tx.execute("DELETE FROM calendar_events WHERE calendar_id = ?", (calendar_id,))
    await tx.executemany(
        # A calendar may list one occurrence twice: then it is stored once.
        "INSERT OR IGNORE INTO calendar_events VALUES (?, ?, ?, ?, ?, ?, ?)",
        [
            (calendar_id, event.id, event.start_ms, event.end_ms, event.is_all_day, event.title, event.place)
            for event in events
        ],
    )
    return True


async def note_failure(tx: Tx, calendar_id: int, problem: str, *, now_ms: int) -> int:
    """Record why a calendar could not be read, and return how many times in a row that happened.

    Return 0 if the calendar was deleted.
    """
    cursor = await tx.execute(
        "UPDATE followed_calendars SET looked_ms = ?, failures = failures + 1, problem = ? WHERE id = ?"
        " RETURNING failures",
        (now_ms, problem, calendar_id),
    )
    row = await cursor.fetchone()
    return int(row["failures"]) if row else 0


async def between(tx: Tx, folder: str | None, from_ms: int, until_ms: int) -> list[FollowedEvent]:
    """Return the events in the calendars of the group `folder` (None: of all groups) in a span of time.

    They overlap the span from `from_ms` up to but not including `until_ms`, and are ordered by their start.
    """
    # An event without a duration counts as one millisecond, or it would overlap nothing.
    rows = await tx.execute_fetchall(
        """
        SELECT c.*, e.id AS event_id, e.start_ms, e.end_ms, e.is_all_day, e.title, e.place
        FROM calendar_events e JOIN followed_calendars c ON c.id = e.calendar_id
        WHERE (? IS NULL OR c.group_folder = ?) AND e.start_ms < ? AND max(e.end_ms, e.start_ms + 1) > ?
        ORDER BY e.start_ms, e.title, e.id
        """,
        (folder, folder, until_ms, from_ms),
    )
    return [_followed(row) for row in rows]


async def count_events(tx: Tx, folder: str) -> int:
    """Return the number of stored events in the calendars that a group follows."""
    cursor = await tx.execute(
        """
        SELECT count(*) AS n FROM calendar_events
        WHERE calendar_id IN (SELECT id FROM followed_calendars WHERE group_folder = ?)
        """,
        (folder,),
    )
    return int((await returned(cursor))["n"])


async def to_announce(tx: Tx, *, now_ms: int) -> list[FollowedEvent]:
    """Return the events of all groups that have not begun and about which the chat is due to get a message.

    An event that was announced already is returned, too, until it begins: the caller queues each message
    once. They are ordered by their start. Events of whole days, and of calendars without `notice_minutes`,
    are never announced.
    """
    rows = await tx.execute_fetchall(
        """
        SELECT c.*, e.id AS event_id, e.start_ms, e.end_ms, e.is_all_day, e.title, e.place
        FROM calendar_events e JOIN followed_calendars c ON c.id = e.calendar_id
        WHERE NOT e.is_all_day AND e.start_ms > ? AND e.start_ms - c.notice_minutes * 60000 <= ?
        ORDER BY e.start_ms, e.title, e.id
        """,
        (now_ms, now_ms),
    )
    return [_followed(row) for row in rows]


async def next_notice_ms(tx: Tx, *, now_ms: int) -> int | None:
    """Return when the next message about a coming event is due (epoch ms); None if none is."""
    cursor = await tx.execute(
        """
        SELECT min(e.start_ms - c.notice_minutes * 60000) AS next_ms
        FROM calendar_events e JOIN followed_calendars c ON c.id = e.calendar_id
        WHERE NOT e.is_all_day AND e.start_ms - c.notice_minutes * 60000 > ?
        """,
        (now_ms,),
    )
    row = await returned(cursor)
    return None if row["next_ms"] is None else int(row["next_ms"])


def _followed(row: sqlite3.Row) -> FollowedEvent:
    """Return the event and its calendar from a row that joins `followed_calendars` and `calendar_events`."""
    event = CalendarEvent(
        id=row["event_id"],
        start_ms=row["start_ms"],
        end_ms=row["end_ms"],
        is_all_day=bool(row["is_all_day"]),
        title=row["title"],
        place=row["place"],
    )
    return FollowedEvent(calendar=_MAPPER.read(row), event=event)
