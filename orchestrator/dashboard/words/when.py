"""Read a time or a day as people and models write it. Pure; whole texts only, and no guessing.

A local time that the clocks skip lies as much later; one that they show twice is the first.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

from orchestrator.dashboard.models import Deadline
from orchestrator.dashboard.results import Refused
from orchestrator.dashboard.words import when_words

FURTHEST = timedelta(days=5 * 366)
GRACE_MS = 60_000
"""So long ago is still now: it takes a while to say a time."""
DAY_STARTS = time(9)
"""When a day without a time of day is meant, for whoever is to be told something."""
MAX_CHARS = 100
FORMS = (
    "give an ISO time such as 2026-02-10T18:00 (local) or 2026-02-10T18:00+09:00, a day such as 2026-02-10, "
    "'in 2 hours 30 minutes', 'tomorrow 9am', 'today 18:00', 'next monday', '내일 오전 9시' or '2시간 후'"
)

_DAY = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)
_MOMENT = re.compile(
    r"(\d{4}-\d{2}-\d{2})[T ](\d{2}:\d{2}(?::\d{2}(?:\.\d{1,6})?)?)\s?(Z|[+-]\d{2}:?\d{2})?", re.ASCII
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """What was meant: a moment, or a `day` whose time of day was not said."""

    at_ms: int
    day: date | None = None
    is_iso: bool = False


def parse_datetime(text: str, *, now_ms: int, zone: ZoneInfo) -> Point:
    """Read when something is to be told; a day alone means 09:00.

    Raises:
        Refused: UNPARSEABLE_TIME, or TOO_FAR beyond five years.
    """
    said = " ".join(text.strip().split())
    now = datetime.fromtimestamp(now_ms / 1000, UTC).astimezone(zone)
    point = _iso(said, zone) or _words(said, now, zone)
    if point is None:
        raise Refused("UNPARSEABLE_TIME", f"'{_short(text)}' is no time I can read: {FORMS}.")
    if abs(point.at_ms - now_ms) > FURTHEST / timedelta(milliseconds=1):
        raise _too_far(text)
    return point


def due_ms(text: str, *, now_ms: int, zone: ZoneInfo) -> Point:
    """Like `parse_datetime`, for what is to come; `in 0 minutes` is now.

    Raises:
        Refused: PAST_TIME too, when it lies more than a minute back.
    """
    point = parse_datetime(text, now_ms=now_ms, zone=zone)
    if point.at_ms < now_ms - GRACE_MS:
        raise Refused(
            "PAST_TIME", f"{shown(point.at_ms, zone)} is past; it is {shown(now_ms, zone)} now ({zone.key})."
        )
    return point


def parse_deadline(text: str, *, now_ms: int, zone: ZoneInfo) -> Deadline | None:
    """Read until when something is to be done; None of an empty text. A past one is taken.

    Raises:
        Refused: BAD_DATE.
    """
    if not text.strip():
        return None
    try:
        point = parse_datetime(text, now_ms=now_ms, zone=zone)
    except Refused as error:
        raise Refused("BAD_DATE", str(error)) from error
    if point.day is None:
        return Deadline(at_ms=point.at_ms, text=text.strip())
    return day_deadline(point.day, zone, text=text.strip())


def day_deadline(day: date, zone: ZoneInfo, *, text: str) -> Deadline:
    """A day as a deadline: it counts from the start of the day."""
    return Deadline(at_ms=local_ms(datetime.combine(day, time()), zone), date=day.isoformat(), text=text)


def local_ms(naive: datetime, zone: ZoneInfo) -> int:
    """What the clocks of a zone show as epoch ms: skipped times lie later, of two the first is meant."""
    return round(naive.replace(tzinfo=zone, fold=0).timestamp() * 1000)


def shown(at_ms: int, zone: ZoneInfo) -> str:
    """`2026-02-10 09:00`: as the group's clocks show it."""
    return datetime.fromtimestamp(at_ms / 1000, zone).strftime("%Y-%m-%d %H:%M")


def _iso(said: str, zone: ZoneInfo) -> Point | None:
    try:
        if _DAY.fullmatch(said):
            day = date.fromisoformat(said)
            return Point(at_ms=local_ms(datetime.combine(day, DAY_STARTS), zone), day=day, is_iso=True)
        found = _MOMENT.fullmatch(said.upper())
        if found is None:
            return None
        return Point(at_ms=_moment_ms(found, zone), is_iso=True)
    except (ValueError, OverflowError):
        return None


def _moment_ms(found: re.Match[str], zone: ZoneInfo) -> int:
    at = datetime.fromisoformat(f"{found[1]}T{found[2]}{found[3] or ''}")
    return local_ms(at, zone) if at.tzinfo is None else round(at.timestamp() * 1000)


def _words(said: str, now: datetime, zone: ZoneInfo) -> Point | None:
    if len(said) > MAX_CHARS:
        return None
    try:
        words = when_words.read(said.casefold())
        return None if words is None else _point(words, now, zone)
    except OverflowError as error:
        raise _too_far(said) from error


def _point(words: when_words.Words, now: datetime, zone: ZoneInfo) -> Point | None:
    if words.days_ahead is not None or words.elapsed is not None:
        return _ahead(words, now, zone)
    day = words.day(now.date())
    clock = words.clock
    if day is None and clock is not None:
        today = local_ms(datetime.combine(now.date(), clock), zone)
        if today >= now.timestamp() * 1000:
            return Point(at_ms=today)
        return Point(at_ms=local_ms(datetime.combine(now.date() + timedelta(days=1), clock), zone))
    if day is None:
        return None
    at_ms = local_ms(datetime.combine(day, clock or DAY_STARTS), zone)
    return Point(at_ms=at_ms, day=None if clock else day)


def _ahead(words: when_words.Words, now: datetime, zone: ZoneInfo) -> Point:
    """Days and weeks keep what the clocks show; hours and less are time that goes by."""
    day = now.date() + timedelta(days=words.days_ahead or 0)
    start = now if words.days_ahead is None else _at_clock(day, now, zone)
    return Point(at_ms=round((start.timestamp() + (words.elapsed or timedelta()).total_seconds()) * 1000))


def _at_clock(day: date, now: datetime, zone: ZoneInfo) -> datetime:
    return datetime.fromtimestamp(local_ms(datetime.combine(day, now.time()), zone) / 1000, zone)


def _too_far(text: str) -> Refused:
    return Refused("TOO_FAR", f"'{_short(text)}' is more than five years away.")


def _short(text: str) -> str:
    said = " ".join(text.split())
    return said if len(said) <= MAX_CHARS else f"{said[:MAX_CHARS]}…"
