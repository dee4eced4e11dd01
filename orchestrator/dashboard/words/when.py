"""Read a time or a day as people and models write it, with the parser of `agent_runner.wire.times`. Pure.

A local time that the clocks skip is moved on by the skipped span; of a time shown twice, the first is meant.
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
"""Milliseconds in the past up to which a time is still accepted: writing a message takes a while."""
DAY_STARTS = time(9)
"""The time of day at which a notification is sent if only a day was given."""
MAX_CHARS = 100
FORMS = (
    "give an ISO time such as 2026-02-10T18:00 (local) or 2026-02-10T18:00+09:00, a day such as 2026-02-10, "
    "'in 2 hours 30 minutes', 'tomorrow 9am', 'today 18:00', 'monday 9am', '내일 오전 9시' or '2시간 후'"
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
    """Return the time that a text names, such as `tomorrow 9am` or an ISO time; a day alone means 09:00.

    A time without an offset is one in `zone`.

    Raises:
        ToolRefused: UNPARSEABLE_TIME, or TOO_FAR beyond five years.
    """
    local_now = datetime.fromtimestamp(now_ms / 1000, UTC).astimezone(zone)
    read = times.read(text, now=local_now, zone=zone, policy=POLICY)
    is_iso = _ISO.match(text.strip()) is not None
    match read:
        case DateOnly(day=day, at=at):
            return ParsedTime(at_ms=_ms(at), day=day, is_iso=is_iso)
        case Instant(at=at) | Duration(at=at):
            return ParsedTime(at_ms=_ms(at), is_iso=is_iso)
        case TimeRefusal(reason=Reason.TOO_FAR):
            raise ToolRefused("TOO_FAR", f"'{_short(text)}' is more than five years away.")
        # Two times or more that the text may mean.
        case TimeRefusal(choices=(_, _, *_)):
            meant = times.say_choices(read, Language.ENGLISH)
            example = times.say(read.choices[-1], Language.ENGLISH)  # the earliest may be past
            raise ToolRefused(
                "UNPARSEABLE_TIME", f"'{_short(text)}' could be {meant}: say which, such as '{example}'."
            )
        # An hour alone, such as `9`.
        case TimeRefusal() if _BARE_HOUR.fullmatch(text.strip()):
            hour = int(text)
            meant = f"write {hour}am or {hour}pm"
            raise ToolRefused("UNPARSEABLE_TIME", f"'{_short(text)}' could be morning or evening: {meant}.")
        case _:
            raise ToolRefused("UNPARSEABLE_TIME", f"'{_short(text)}' is no time I can read: {FORMS}.")


def parse_due_time(text: str, *, now_ms: int, zone: ZoneInfo) -> ParsedTime:
    """Return the time that a text names, such as `tomorrow 9am`, which is not past.

    A time up to `GRACE_MS` ago is accepted, too. A day alone means 09:00; a time without an offset is one in
    `zone`.

    Raises:
        ToolRefused: UNPARSEABLE_TIME, TOO_FAR beyond five years, or PAST_TIME if it is more than a minute
            ago.
    """
    point = parse_datetime(text, now_ms=now_ms, zone=zone)
    if point.at_ms < now_ms - GRACE_MS:
        raise ToolRefused(
            "PAST_TIME",
            f"{format_time(point.at_ms, zone)} is past; it is {format_time(now_ms, zone)} now ({zone.key}).",
        )
    return point


def parse_deadline(text: str, *, now_ms: int, zone: ZoneInfo) -> Deadline | None:
    """Return the deadline that a text names; None for an empty text. A past deadline is accepted.

    Raises:
        ToolRefused: BAD_DATE, if the text is no day and no time.
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
    """Return whether a deadline has passed; a deadline of a whole day passes at the end of that day."""
    if deadline.date is None:
        return deadline.at_ms <= now_ms
    return deadline.date < datetime.fromtimestamp(now_ms / 1000, zone).date().isoformat()


def day_deadline(day: date, zone: ZoneInfo, *, text: str) -> Deadline:
    """Return a deadline of a whole day; its time is the start of the day in `zone`.

    `text` is the text in which a person named the day.
    """
    return Deadline(at_ms=local_ms(datetime.combine(day, time()), zone), date=day.isoformat(), text=text)


def local_ms(naive: datetime, zone: ZoneInfo) -> int:
    """Return a local time of a zone, without an offset, in epoch ms.

    A time that the clocks skip is moved on by the skipped span; of one shown twice the first counts.
    """
    return round(naive.replace(tzinfo=zone, fold=0).timestamp() * 1000)


def format_time(at_ms: int, zone: ZoneInfo) -> str:
    """Return a moment as the group's clocks show it: `2026-02-10 09:00`."""
    return datetime.fromtimestamp(at_ms / 1000, zone).strftime("%Y-%m-%d %H:%M")


def _ms(moment: datetime) -> int:
    """Return a time in epoch ms."""
    return round(moment.timestamp() * 1000)


def _short(text: str) -> str:
    """Return a text on one line, cut to `MAX_CHARS` for an error message."""
    shown = " ".join(text.split())
    return shown if len(shown) <= MAX_CHARS else f"{shown[:MAX_CHARS]}…"
