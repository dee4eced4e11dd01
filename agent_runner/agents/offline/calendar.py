"""The events of calendars that the group follows, from the host's file `calendar.json`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime, time, timedelta, tzinfo
from pathlib import Path

from pydantic import BaseModel, TypeAdapter, ValidationError

from agent_runner.wire import times

FILE = "calendar.json"
"""The name of the file in the folder of what the host has written for the agent."""
MAX_SHOWN = 20
"""The most events of an answer; the earliest are shown."""


class Event(BaseModel):
    """One event; `start` and `end` are dates if it lasts whole days."""

    start: datetime | date
    end: datetime | date
    title: str
    place: str
    calendar: str

    def moments(self, zone: tzinfo) -> tuple[datetime, datetime]:
        """Return the event's start and end as times in `zone`; a date is the midnight that begins it."""
        return _moment(self.start, zone), _moment(self.end, zone)


def events(snapshots: Path, zone: tzinfo) -> list[tuple[datetime, datetime, Event]]:
    """Return (start, end, event) for each event in the file `calendar.json`, by start. Blocks.

    `snapshots` is the folder with the file; `zone` is that of the returned times. Empty if the file is
    missing or not valid.
    """
    try:
        all_events = TypeAdapter(list[Event]).validate_json((snapshots / FILE).read_bytes())
    except (OSError, ValidationError):
        return []
    return sorted(((*event.moments(zone), event) for event in all_events), key=lambda row: row[0])


def between(
    timed_events: Sequence[tuple[datetime, datetime, Event]],
    first: date,
    last: date,
    language: times.Language,
) -> list[str]:
    """Return a line for each event that overlaps the days from `first` to `last`, both included.

    `timed_events` is what `events` returns. A line has the day only if `first` and `last` differ, and the
    time of day only if the event starts on one of these days. After `MAX_SHOWN` lines, "…" stands for more.
    """
    lines = []
    for start, end, event in timed_events:
        first_midnight = _moment(first, start.tzinfo)
        # An event without a duration is on its day, too: it counts as one microsecond long.
        if start.date() > last or max(end, start + timedelta(microseconds=1)) <= first_midnight:
            continue
        day = "" if first == last else f"{times.say_day(start.date(), language)} "
        clock = f"{start:%H:%M}" if isinstance(event.start, datetime) and start.date() >= first else ""
        words = f"{event.title or '…'}{f' · {event.place}' if event.place else ''} ({event.calendar})"
        lines.append(f"📅 {day}{clock} {words}".replace("  ", " "))  # two blanks if there is no time of day
    return [*lines[:MAX_SHOWN], *(["…"] if len(lines) > MAX_SHOWN else [])]


def _moment(at: datetime | date, zone: tzinfo | None) -> datetime:
    """Return a time in `zone`; for a date, the midnight that begins it."""
    return at.astimezone(zone) if isinstance(at, datetime) else datetime.combine(at, time(), zone)
