"""Read iCalendar text (RFC 5545), or a CalDAV server's answer (RFC 4791), in a process of its own.

Anyone who may send an invitation controls the input: a rule that repeats every second, nested XML, a title of
a megabyte. So the process has limits of time and memory.
"""

from __future__ import annotations

import hashlib
import json
import resource
import signal
import sys
import time
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from datetime import date, datetime, timedelta
from operator import itemgetter
from typing import Any
from xml.etree import ElementTree as ET
from zoneinfo import ZoneInfo

from orchestrator.store.schedule.followed_calendars import CalendarEvent

MAX_EVENTS = 1_000
"""Most events of a calendar: the first of each series, then the second of each, the earliest of them."""
MAX_EVENTS_A_SERIES = 100
"""Most events of a series, the earliest ones: one that repeats every second leaves room for others."""
MAX_TEXT_CHARS = 200
REPEATING_SECONDS = 10.0
"""Seconds of processor time that all events may take together, far more than a large calendar needs."""
SERIES_SHARE = 0.1
"""Most of the time that is left which one series may take, so that an endless one leaves time for others."""
MEMORY_BYTES = 1024**3
"""Most memory of the process that reads a calendar."""
MULTISTATUS = "{DAV:}multistatus"
CALENDAR_DATA = "{urn:ietf:params:xml:ns:caldav}calendar-data"
DAY = timedelta(days=1)


class _TakesTooLong(Exception):
    """The repetitions of a series take too much time."""


class NotACalendar(ValueError):
    """The bytes are no calendar."""


def read(body: bytes, *, zone: ZoneInfo, first: date, days: int) -> list[CalendarEvent]:
    """Return the events of `days` days from `first` on, in the order of their start.

    They are at most `MAX_EVENTS`, and at most `MAX_EVENTS_A_SERIES` of each series. Events that are cancelled
    or cannot be parsed are left out, and so are series that take too long. `body` is iCalendar text, or the
    XML of CalDAV. `zone` applies to times without one, and to the start of whole days.

    Raises:
        NotACalendar: `body` is neither, or has more events that repeat than can be read in the time.
    """
    since = datetime(first.year, first.month, first.day, tzinfo=zone)
    until = since + days * DAY
    all_series = (series for calendar in _calendars(body) for series in _series_of(calendar))
    events = [
        event
        for component in _between(all_series, since, until)
        if (event := _event(component, zone)) is not None
    ]
    in_series: Counter[str] = Counter()
    chosen = []
    for event in sorted(events, key=_order):
        in_series[event.id] += 1
        if in_series[event.id] <= MAX_EVENTS_A_SERIES:
            chosen.append((in_series[event.id], _order(event), event))
    # Not only the earliest: some series that come every second would leave no room for what comes later.
    return sorted((event for _, _, event in sorted(chosen, key=itemgetter(0, 1))[:MAX_EVENTS]), key=_order)


def _order(event: CalendarEvent) -> tuple[int, str, str]:
    """Return the key by which events are sorted: by their start, then by title and id."""
    return event.start_ms, event.title, event.id


def _series_of(calendar: Any) -> list[Any]:
    """Return the series of a calendar, each with all events of one UID, as the library's objects.

    An event that cannot be parsed is left out with its series.
    """
    import recurring_ical_events

    # RFC 5545 allows an invitation to have no start, but the library expects one.
    calendar.subcomponents = [
        component
        for component in calendar.subcomponents
        if component.name != "VEVENT" or "DTSTART" in component
    ]
    try:
        return list(recurring_ical_events.of(calendar, skip_bad_series=True).series)
    except MemoryError:
        raise  # the text may be valid, and is too large for this process
    except Exception:  # noqa: BLE001 - whatever one event has: the others are read without it
        # The series are read one by one, and one that fails alone, too, is left out.
        parts = _split_by_uid(calendar)
        if len(parts) == 1:
            return []
        return [series for part in parts for series in _series_of(part)]


def _between(all_series: Iterable[Any], since: datetime, until: datetime) -> Iterator[Any]:
    """Yield the events between two times; each repetition of an event is an event of its own.

    Of a series that has more than `MAX_EVENTS_A_SERIES`, some later ones may be missing. A series that cannot
    be read, or takes too long, is left out; so are the last ones if such series have used up the time.

    Raises:
        NotACalendar: the time is used up by many series of which none takes too long.
    """
    seconds_left, has_slow_one = REPEATING_SECONDS, False
    # From the end of the list, so first those that come once: none that takes too long costs one of them.
    waiting = sorted(all_series, key=_is_repeated, reverse=True)
    while waiting and seconds_left > REPEATING_SECONDS * SERIES_SHARE:
        series = waiting.pop()  # so that the memory of its repetitions is freed
        began = time.process_time()
        try:
            with _time_limit(seconds_left * SERIES_SHARE):
                events = _earliest(series, since, until)
        except MemoryError:
            raise  # the text may be valid, and is too large for this process
        except _TakesTooLong:
            events, has_slow_one = [], True
        except Exception:  # noqa: BLE001 - whatever one series has: the others are read without it
            events = []
        seconds_left -= time.process_time() - began
        yield from events
    if waiting and not has_slow_one:
        raise NotACalendar("it takes too long to read: it has too many events that repeat")


def _earliest(series: Any, since: datetime, until: datetime) -> list[Any]:
    """Return a series' events between two times: all, or at least the earliest `MAX_EVENTS_A_SERIES`."""
    from recurring_ical_events import CalendarQuery

    suppressed_errors: Any = CalendarQuery.suppressed_errors
    # Each changed event may be a cancelled one, which does not count.
    enough = MAX_EVENTS_A_SERIES + len(series.components)
    occurrences: list[Any] = []
    for part in (512, 64, 8, 1):  # so that of one that comes every second only some hours are read
        if len(occurrences) < enough:
            occurrences = []
            with suppress(*suppressed_errors):  # at a bad event; those before it are used
                occurrences.extend(series.between(since, since + (until - since) / part))
    return [occurrence.as_component(keep_recurrence_attributes=False) for occurrence in occurrences]


def _is_repeated(series: Any) -> bool:
    """Return whether an event of a series has rules or dates by which it is repeated."""
    return any(component.has_recurrence_rules() for component in series.components)


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Raise `_TakesTooLong` as soon as the block has taken this processor time; for the main thread.

    Time in the system does not count. The error may come just after the end of the block, too.
    """

    def stop(*_: object) -> None:
        """Handle the signal of the timer."""
        raise _TakesTooLong

    signal.signal(signal.SIGVTALRM, stop)
    # The timer sends its signal once at most, so that none comes after the block.
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def _split_by_uid(calendar: Any) -> list[Any]:
    """Return a calendar for each series, the events with the same UID, with the time zones of `calendar`."""
    by_uid: dict[str, list[Any]] = {}
    # Only top-level components: a series that contained another would be split again without end.
    for event in calendar.subcomponents:
        if event.name == "VEVENT":
            by_uid.setdefault(str(event.get("UID")), []).append(event)
    zones = calendar.walk("VTIMEZONE")
    calendars = []
    for events in by_uid.values():
        series_calendar = type(calendar)()
        series_calendar.subcomponents = [*zones, *events]
        calendars.append(series_calendar)
    return calendars


def _calendars(body: bytes) -> Iterator[Any]:
    """Yield the calendars in a server's answer, none for CalDAV without events. Raises `NotACalendar`."""
    is_caldav = body.lstrip()[:1] == b"<"
    try:
        # `utf-8-sig` drops a byte order mark before the text.
        texts = _from_caldav(body) if is_caldav else [body.decode("utf-8-sig", "replace")]
        components = [component for text in texts for component in _components(text)]
    except MemoryError:
        raise  # the text may be valid, and is too large for this process
    except Exception as error:  # the parser reads untrusted bytes, and raises errors of many kinds
        raise NotACalendar(str(error)[:MAX_TEXT_CHARS]) from error
    calendars = [component for component in components if component.name == "VCALENDAR"]
    if not calendars and not is_caldav:
        raise NotACalendar("it has no VCALENDAR")
    yield from calendars


def _components(text: str) -> list[Any]:
    """Return the outermost components of iCalendar text. Raises errors of many kinds if it is none.

    If the text cannot be parsed, its calendars are returned without the components that cannot be parsed.
    """
    from icalendar import Calendar

    try:
        if components := Calendar.from_ical(text, multiple=True):
            return components
    except MemoryError:
        raise  # the text may be valid, and is too large for this process
    except Exception:  # noqa: BLE001, S110 - parsed part by part below
        pass
    return Calendar.from_ical(_parsable(text), multiple=True)


def _parsable(text: str) -> str:
    """Return the calendars of iCalendar text with only their events and time zones that can be parsed.

    The alarms of events, and other components that no event needs, are left out.
    """
    lines: list[str] = []
    part: list[str] = []
    """The lines of the event or time zone that is being read."""
    for opened, keyword, line in _nested(text):
        if keyword == "BEGIN" and len(opened) == 2:
            part = []
        match opened:
            case ["VCALENDAR"] if keyword in {"BEGIN", "END", "X-WR-TIMEZONE"}:
                lines.append(line)
            case ["VCALENDAR", "VEVENT"] | ["VCALENDAR", "VTIMEZONE", *_]:
                part.append(line)
        if keyword == "END" and len(opened) == 2 and _can_be_parsed(part):
            lines += part
    return "\r\n".join(lines)


def _nested(text: str) -> Iterator[tuple[list[str], str, str]]:
    """Yield for each line of iCalendar text the components that it is in, its keyword, and the line.

    The components are given by their names, from the outermost on, in a list that changes with the next line.
    The lines with which a component begins and ends count as in it. An end without a beginning is left out.

    A component whose end is missing ends before the next event, or where a component around it ends.
    """
    from icalendar.parser import Contentlines

    opened: list[str] = []
    lines: list[str] = Contentlines.from_ical(text)  # type: ignore[no-untyped-call]
    for line in lines:
        keyword, _, name = line.upper().partition(":")
        if keyword == "BEGIN":
            if name == "VEVENT":  # an event is only ever directly in a calendar
                del opened[1:]
            opened.append(name)
        elif keyword == "END":
            if name not in opened:
                continue
            while opened[-1] != name:
                opened.pop()
        yield opened, keyword, line
        if keyword == "END":
            opened.pop()


def _can_be_parsed(component: list[str]) -> bool:
    """Return whether the lines of a component are valid.

    Raises `MemoryError`: they are too large for this process.
    """
    from icalendar import Component

    try:
        Component.from_ical("\r\n".join(component), multiple=True)
    except MemoryError:
        raise  # the text may be valid, and is too large for this process
    except Exception:  # noqa: BLE001 - whatever one component has: the others are read without it
        return False
    return True


def _from_caldav(body: bytes) -> list[str]:
    """Return the iCalendar text of each calendar in the XML answer of a CalDAV server.

    Raises:
        NotACalendar: it is XML of another kind.
        ParseError: it is no XML.
    """
    root = ET.fromstring(body)  # noqa: S314 - expat bounds entities, this process time and memory
    if root.tag != MULTISTATUS:
        raise NotACalendar(f"it is XML of another kind: {root.tag}")
    return [element.text for element in root.iter(CALENDAR_DATA) if element.text]


def _event(event: Any, zone: ZoneInfo) -> CalendarEvent | None:
    """Return an event as it is stored; None if it is cancelled or cannot be read.

    Its id is made of its UID, or of its title without one, so all occurrences of a repeating event share it.
    Raises `MemoryError`.
    """
    try:
        if str(event.get("STATUS")).upper() == "CANCELLED":  # in any case, by RFC 5545
            return None
        uid = _text(event, "UID") or _text(event, "SUMMARY")
        return CalendarEvent(
            id=hashlib.sha256(uid.encode("utf-8", "replace")).hexdigest()[:16],
            start_ms=_ms(event.start, zone),
            end_ms=_ms(event.end, zone),
            is_all_day=not isinstance(event.start, datetime),
            title=_line(_text(event, "SUMMARY")),
            place=_line(_text(event, "LOCATION")),
        )
    except MemoryError:
        raise  # the calendar is too large for this process: events would be missing for no fault of their own
    except Exception:  # noqa: BLE001 - whatever one event has: the others are read without it
        return None


def _text(event: Any, name: str) -> str:
    """Return the text of an event's property, the first one if it has several; empty if there is none."""
    value = event.get(name)
    values = value if isinstance(value, list) else [value]
    return next((str(text) for text in values if isinstance(text, str)), "")


def _ms(at: date, zone: ZoneInfo) -> int:
    """Return a day or a time as epoch milliseconds; `zone` is for a day, and for a time without a zone."""
    if not isinstance(at, datetime):
        at = datetime(at.year, at.month, at.day, tzinfo=zone)
    return round((at if at.tzinfo else at.replace(tzinfo=zone)).timestamp() * 1000)


def _line(text: str) -> str:
    """Return a text on one line of at most `MAX_TEXT_CHARS` characters.

    Control characters become blanks, and runs of blanks one blank. Invisible marks that change the direction
    of writing are removed.
    """
    # Cut before each character is looked at, because a title may have a megabyte. Ten times the limit are
    # kept, since characters are removed below.
    start = text.encode("utf-8", "replace").decode()[: 10 * MAX_TEXT_CHARS]
    plain = "".join(
        " " if unicodedata.category(character) in {"Cc", "Zl", "Zp"} else character for character in start
    )
    visible = "".join(
        character for character in plain if unicodedata.bidirectional(character) not in _DIRECTION_MARKS
    )
    return " ".join(visible.split())[:MAX_TEXT_CHARS]


_DIRECTION_MARKS = frozenset({"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"})
"""Classes of invisible characters that change the direction of text."""


def main() -> None:
    """Read a calendar from stdin, and write its events to stdout as JSON, or why it is no calendar.

    The arguments are a time zone, the first day, the number of days, and the seconds of processor time after
    which the system kills this process.
    """
    zone, first, days, cpu_seconds = sys.argv[1:5]
    resource.setrlimit(resource.RLIMIT_CPU, (int(cpu_seconds), int(cpu_seconds)))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    try:
        events = read(
            sys.stdin.buffer.read(), zone=ZoneInfo(zone), first=date.fromisoformat(first), days=int(days)
        )
    except NotACalendar as error:
        json.dump({"refused": str(error)}, sys.stdout)
        return
    json.dump({"events": [asdict(event) for event in events]}, sys.stdout)


if __name__ == "__main__":
    main()
