"""Writes what is to come in a group as a calendar (RFC 5545), for programs such as Thunderbird or a phone's.

Each reminder and deadline is an event. A scheduled task that comes once on a day is an event of that day; one
that comes more often is an event of the whole day, which lists its times.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

from agent_runner.wire.order import ECHO
from orchestrator.domain.values import Group
from orchestrator.reports import upcoming
from orchestrator.reports.upcoming import UpcomingView
from orchestrator.store.database import Tx

if TYPE_CHECKING:
    from icalendar import Event

DAYS = 60
"""Days after today that a calendar shows."""
MAX_EVENTS = 5_000
"""The most events of a calendar; the earliest are taken."""
EVENT_LENGTH = timedelta(minutes=15)
"""The length of an event: long enough to be seen, and to be touched, in a day of a calendar."""
REFRESH_PAUSE = timedelta(hours=1)
"""The pause after which a program is asked to fetch a calendar again."""
KINDS = frozenset({"reminder", "task", "deadline"})
"""The kinds of `UpcomingView` that are a calendar's; the others are about Andy's own work."""
MAX_TITLE_CHARS = 200
CLOCKS_SHOWN = 6


async def read(tx: Tx, group: Group, *, now_ms: int, zone: ZoneInfo) -> bytes:
    """Return what is to come in a group in the next `DAYS` days as iCalendar text in UTF-8.

    Days are those of `zone`.
    """
    rows = await upcoming.week(tx, group.folder, now_ms=now_ms, zone=zone, days=DAYS)
    return as_icalendar(group, rows, now_ms=now_ms)


def as_icalendar(group: Group, upcoming_rows: Sequence[UpcomingView], *, now_ms: int) -> bytes:
    """Return what is to come in a group as iCalendar text in UTF-8.

    `upcoming_rows` are as `upcoming.week` returns them; only reminders, scheduled tasks and deadlines become
    events, at most `MAX_EVENTS`: later ones are left out.
    """
    # Imported here: it takes 0.1 s and some MiB, which a host whose calendars nobody reads need not spend.
    from icalendar import Calendar

    calendar = Calendar()
    calendar.add("prodid", "-//Andy//Andy//EN")
    calendar.add("version", "2.0")
    calendar.add("method", "PUBLISH")
    calendar.add("x-wr-calname", f"Andy: {_one_line(group.name)}")
    calendar.add("refresh-interval", REFRESH_PAUSE, parameters={"VALUE": "DURATION"})
    calendar.add("x-published-ttl", "PT1H")  # the same pause, under the name that older programs read
    rows = [row for row in upcoming_rows if row["kind"] in KINDS]
    for row in rows[:MAX_EVENTS]:
        calendar.add_component(_event(row, now_ms=now_ms))
    return bytes(calendar.to_ical())


def _event(row: UpcomingView, *, now_ms: int) -> Event:
    """Return the calendar's event of one row of `upcoming.week`.

    The event lasts all day if the row has several times on that day, or no time of day. `now_ms` is when the
    calendar is made.
    """
    from icalendar import Event

    # A repeating reminder is a task whose prompt is `ECHO`, an order to its agent, and then the text.
    text = row["text"].removeprefix(ECHO).strip()
    title = _one_line(text)[:MAX_TITLE_CHARS]
    # A task has an event on each of its days, so the date is part of the event's id. A reminder or deadline
    # has one event, whose id stays when its time changes: programs then move that event and add no other.
    day_suffix = f"-{row['date']}" if row["kind"] == "task" else ""
    event = Event()
    event.add("uid", f"{row['kind']}-{row['id']}{day_suffix}@{row['group']}.andy")
    event.add("dtstamp", datetime.fromtimestamp(now_ms / 1000, UTC))
    if row["times"] > 1:
        times = ", ".join(row["at"][:CLOCKS_SHOWN]) + (" …" if row["times"] > CLOCKS_SHOWN else "")
        # More times of a day are not counted.
        count = f"{row['times']} times" + (" or more" if row["times"] >= upcoming.MAX_TIMES_A_DAY else "")
        title = f"{title} ({count}: {times})"
    if row["times"] > 1 or not row["at"][0]:
        event.add("dtstart", date.fromisoformat(row["date"]))
    else:
        start = datetime.fromtimestamp(row["due_ms"] // 1000, UTC)
        event.add("dtstart", start)
        event.add("dtend", start + EVENT_LENGTH)
    event.add("summary", f"Due: {title}" if row["kind"] == "deadline" else title)
    event.add("description", _without_forbidden(text))
    # Calendars then show the person as free: a reminder takes no time.
    event.add("transp", "TRANSPARENT")
    return event


def _one_line(text: str) -> str:
    """Return a text on one line, as a title needs it."""
    return " ".join(_without_forbidden(text).split())


def _without_forbidden(text: str) -> str:
    """Return a text without the characters that calendars (RFC 5545) forbid, and with `\\n` as line ends.

    Control characters are left out except tabs and line ends. Lone surrogates, which UTF-8 cannot encode,
    become `?`.
    """
    encodable = text.encode("utf-8", "replace").decode()
    normalised = encodable.replace("\r\n", "\n").replace("\r", "\n")
    return "".join(char for char in normalised if char in "\t\n" or unicodedata.category(char) != "Cc")
