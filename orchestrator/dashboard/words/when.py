"""Read a time or a day as people and models write it, by the one reader of times. Pure.

A local time that the clocks skip lies as much later; one that they show twice is the first to come.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

from agent_runner.wire import times
from agent_runner.wire.times import DateOnly, Duration, Instant, Language, Reason, TimeRefusal
from orchestrator.domain.dashboard import Deadline, ToolRefused

FURTHEST = timedelta(days=5 * 366)
GRACE_MS = 60_000
"""So long ago is still now: it takes a while to say a time."""
DAY_STARTS = time(9)
"""The time of day at which a notification is sent that was scheduled for a day without one."""
MAX_CHARS = 100
FORMS = (
    "give an ISO time such as 2026-02-10T18:00 (local) or 2026-02-10T18:00+09:00, a day such as 2026-02-10, "
    "'in 2 hours 30 minutes', 'tomorrow 9am', 'today 18:00', 'next monday', '내일 오전 9시' or '2시간 후'"
)

POLICY = times.TimePolicy(default_clock=DAY_STARTS, takes_past=True, days_ahead=FURTHEST.days)
"""The dashboard's choices for reading times, which `agent_runner.wire.times` applies."""
_ISO = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)

_BARE_HOUR = re.compile(r"0?[1-9]|1[0-2]", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedTime:
    """The time that a text named: a moment, or a `day` without a time of day."""

    at_ms: int
    day: date | None = None
    is_iso: bool = False


def parse_datetime(text: str, *, now_ms: int, zone: ZoneInfo) -> ParsedTime:
    """Read when something is to be sent; a day alone means 09:00.

    Raises:
        Refused: UNPARSEABLE_TIME, or TOO_FAR beyond five years.
    """
    now = datetime.fromtimestamp(now_ms / 1000, UTC).astimezone(zone)
    read = times.read(text, now=now, zone=zone, policy=POLICY)
    is_iso = _ISO.match(text.strip()) is not None
    match read:
        case DateOnly(day=day, at=at):
            return ParsedTime(at_ms=_ms(at), day=day, is_iso=is_iso)
        case Instant(at=at) | Duration(at=at):
            return ParsedTime(at_ms=_ms(at), is_iso=is_iso)
        case TimeRefusal(reason=Reason.TOO_FAR):
            raise ToolRefused("TOO_FAR", f"'{_short(text)}' is more than five years away.")
        case TimeRefusal(choices=(_, _, *_)):
            meant = times.say_choices(read, Language.ENGLISH)
            raise ToolRefused("UNPARSEABLE_TIME", f"'{_short(text)}' could be {meant}: say which.")
        case TimeRefusal() if _BARE_HOUR.fullmatch(text.strip()):
            hour = int(text)
            meant = f"write {hour}am or {hour}pm"
            raise ToolRefused("UNPARSEABLE_TIME", f"'{_short(text)}' could be morning or evening: {meant}.")
        case _:
            raise ToolRefused("UNPARSEABLE_TIME", f"'{_short(text)}' is no time I can read: {FORMS}.")


def due_ms(text: str, *, now_ms: int, zone: ZoneInfo) -> ParsedTime:
    """Read a time like `parse_datetime` that must be to come; `in 0 minutes` is now.

    Raises:
        Refused: PAST_TIME too, when it lies more than a minute back.
    """
    point = parse_datetime(text, now_ms=now_ms, zone=zone)
    if point.at_ms < now_ms - GRACE_MS:
        raise ToolRefused(
            "PAST_TIME",
            f"{format_time(point.at_ms, zone)} is past; it is {format_time(now_ms, zone)} now ({zone.key}).",
        )
    return point


def parse_deadline(text: str, *, now_ms: int, zone: ZoneInfo) -> Deadline | None:
    """Read a deadline; None of an empty text. A past one is accepted.

    Raises:
        Refused: BAD_DATE.
    """
    if not text.strip():
        return None
    try:
        point = parse_datetime(text, now_ms=now_ms, zone=zone)
    except ToolRefused as error:
        raise ToolRefused("BAD_DATE", str(error)) from error
    if point.day is None:
        return Deadline(at_ms=point.at_ms, text=text.strip())
    return day_deadline(point.day, zone, text=text.strip())


def is_over(deadline: Deadline, *, now_ms: int, zone: ZoneInfo) -> bool:
    """Return whether a deadline is over: one of a day is at the end of that day."""
    if deadline.date is None:
        return deadline.at_ms <= now_ms
    return deadline.date < datetime.fromtimestamp(now_ms / 1000, zone).date().isoformat()


def day_deadline(day: date, zone: ZoneInfo, *, text: str) -> Deadline:
    """Return a day as a deadline, which counts from the start of the day."""
    return Deadline(at_ms=local_ms(datetime.combine(day, time()), zone), date=day.isoformat(), text=text)


def local_ms(naive: datetime, zone: ZoneInfo) -> int:
    """Return what the clocks of a zone show as epoch ms: a skipped time is later, of two the first."""
    return round(naive.replace(tzinfo=zone, fold=0).timestamp() * 1000)


def format_time(at_ms: int, zone: ZoneInfo) -> str:
    """Return a moment as the group's clocks show it: `2026-02-10 09:00`."""
    return datetime.fromtimestamp(at_ms / 1000, zone).strftime("%Y-%m-%d %H:%M")


def _ms(at: datetime) -> int:
    return round(at.timestamp() * 1000)


def _short(text: str) -> str:
    said = " ".join(text.split())
    return said if len(said) <= MAX_CHARS else f"{said[:MAX_CHARS]}…"
