"""Read a time: find the forms in a text, then work out what they name."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta, tzinfo

from agent_runner.wire.times.forms import FORMS
from agent_runner.wire.times.model import (
    AskHalf,
    CalendarDay,
    DateOnly,
    DaysAhead,
    Duration,
    Form,
    Half,
    Instant,
    Parts,
    Reading,
    Reason,
    Recurrence,
    Repeat,
    Shift,
    TimePolicy,
    TimeRefusal,
    Weekday,
)

MAX_CHARS = 200
"""A longer text is refused unread."""
MAX_TIME_CHARS = 80
"""How far from the end of a text a time that ends it can begin."""
FIRST_YEAR = 1900
_LEAP_CYCLE_YEARS = 8
_RECURRENCE_DAYS = 366 * (_LEAP_CYCLE_YEARS + 1)
_GAP = re.compile(r"(?:[\s,]+|T(?=\d))?")
_EDGE = re.compile(r"\s|[,:;](?:\s|$)|[.!?]?$|까지")
_WORD_START = re.compile(r"(?:(?<=\s)|^)\S")
_SAME = str.maketrans("’‘ʼ\u00a0\u3000０１２３４５６７８９：，", "'''  0123456789:,")
"""Signs that some keyboards send for an ASCII one."""


class _Refused(Exception):
    def __init__(self, reason: Reason, at: datetime | None = None) -> None:
        super().__init__(reason.value)
        self.reason, self.at = reason, at


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A time in a text, from `start` up to `end`."""

    parts: Parts
    start: int
    end: int


def read(text: str, *, now: datetime, zone: tzinfo, policy: TimePolicy | None = None) -> Reading:
    """Read a whole text as a time, seen from `now` (aware) in `zone`. Never raises: it refuses."""
    said = normalized(text).strip()
    parts = _whole(said) or _whole(said.rstrip(".!")) if len(said) <= MAX_CHARS else None
    if parts is None:
        return TimeRefusal(reason=Reason.NO_TIME)
    return resolve(parts, now=now, zone=zone, policy=policy)


def normalized(text: str) -> str:
    """Return a text as the forms are written: Hangul composed, one sign where keyboards send several."""
    return unicodedata.normalize("NFC", text).translate(_SAME)


def is_time(text: str) -> bool:
    """Return whether a whole text has the form of a time, even of one that can never come."""
    return len(text) <= MAX_CHARS and _whole(text.strip()) is not None


def leading(text: str) -> Found | None:
    """Find the longest time at the start of `text`, or None."""
    return max(_runs(text, 0, _WITHIN), key=lambda found: found.end, default=None)


def trailing(text: str) -> Found | None:
    """Find the longest time that ends `text`, or None."""
    text = text.rstrip()
    for start in _WORD_START.finditer(text, max(0, len(text) - MAX_TIME_CHARS)):
        for found in _runs(text, start.start(), _WITHIN):
            if found.end == len(text):
                return found
    return None


def resolve(parts: Parts, *, now: datetime, zone: tzinfo, policy: TimePolicy | None = None) -> Reading:
    """Return the time that the parts name, or why they name none."""
    policy = policy or TimePolicy()
    now = now.astimezone(zone)
    try:
        result = _result(parts, now, policy)
        at = result.first if isinstance(result, Recurrence) else result.at
        _check_bounds(result, at, now, policy)
    except _Refused as refused:
        return TimeRefusal(reason=refused.reason, at=refused.at)
    except (OverflowError, OSError):
        return TimeRefusal(reason=Reason.TOO_FAR)
    return result


# Finding

_ALL = FORMS
_WITHIN = tuple(form for form in FORMS if not form.is_whole)


def _whole(text: str) -> Parts | None:
    for forms in (_WITHIN, _ALL):
        for found in _runs(text, 0, forms):
            if found.end == len(text):
                return found.parts
    return None


def _runs(text: str, start: int, forms: tuple[Form, ...]) -> Iterator[Found]:
    """Yield every run of forms from `start` that ends at the end of a word, shortest first."""
    parts, place = Parts(), start
    while step := _next_form(text, place, parts, forms):
        parts, place = step.parts, step.end
        if _EDGE.match(text, place):
            yield Found(parts=parts, start=start, end=place)
        gap = _GAP.match(text, place)
        place = gap.end() if gap else place


def _next_form(text: str, place: int, so_far: Parts, forms: tuple[Form, ...]) -> Found | None:
    for form in forms:
        for shape in form.shapes:
            match = shape.match(text, place)
            made = shape.make(match) if match else None
            if match and made is not None and (joined := so_far.joined(made)) is not None:
                return Found(parts=joined, start=place, end=match.end())
    return None


# Working out


def _check_bounds(result: Reading, at: datetime, now: datetime, policy: TimePolicy) -> None:
    is_past = result.day < now.date() if isinstance(result, DateOnly) else at.timestamp() <= now.timestamp()
    if is_past and not policy.takes_past:
        raise _Refused(Reason.PAST, at)
    if abs(at.timestamp() - now.timestamp()) > policy.days_ahead * 86_400:
        raise _Refused(Reason.TOO_FAR)


def _result(parts: Parts, now: datetime, policy: TimePolicy) -> Instant | DateOnly | Duration | Recurrence:
    if parts.repeat is not None:
        return _recurrence(parts, parts.repeat, now, policy)
    if parts.span is not None and not (parts.clock or parts.half):
        return _duration(parts, now)
    clock = _clock(parts, policy)
    if clock is None:
        return _day_alone(parts, now, policy)
    if parts.clock is not None and parts.clock.offset is not None:
        day = next(_days(parts, now.date(), policy))
        at = datetime.combine(day, clock, parts.clock.offset).astimezone(now.tzinfo)
        return Instant(at=at)
    return _first_ahead(parts, clock, now, policy)


def _duration(parts: Parts, now: datetime) -> Duration:
    """Return the end of a span. Days keep the time of day; hours and less are added as real time."""
    assert parts.span is not None
    start = now
    if parts.span.days:
        if parts.span.days > 366 * 1000:
            raise _Refused(Reason.TOO_FAR)
        start = _in_zone(datetime.combine(now.date() + timedelta(days=parts.span.days), now.time()), now).at
    at = start.astimezone(UTC) + parts.span.elapsed
    whole = at if at.microsecond == 0 else at.replace(microsecond=0) + timedelta(seconds=1)
    return Duration(days=parts.span.days, elapsed=parts.span.elapsed, at=whole.astimezone(now.tzinfo))


def _day_alone(parts: Parts, now: datetime, policy: TimePolicy) -> DateOnly:
    if parts.half is not None or not parts.written():
        raise _Refused(Reason.NEEDS_CLOCK)
    day = None
    for day in _days(parts, now.date(), policy):
        if day >= now.date():
            break
    if day is None:
        raise _Refused(Reason.NO_SUCH_DAY)
    at = _in_zone(datetime.combine(day, policy.default_clock), now).at
    if isinstance(parts.day, CalendarDay) and parts.weekday and day.weekday() != parts.weekday.index:
        raise _Refused(Reason.WRONG_WEEKDAY, at)
    return DateOnly(day=day, at=at)


def _first_ahead(parts: Parts, clock: time, now: datetime, policy: TimePolicy) -> Instant:
    found = None
    for day in _days(parts, now.date(), policy):
        found = _in_zone(datetime.combine(day, clock), now)
        if found.at.timestamp() > now.timestamp():
            break
    if found is None:
        raise _Refused(Reason.NO_SUCH_DAY)
    if parts.weekday and found.at.weekday() != parts.weekday.index:
        raise _Refused(Reason.WRONG_WEEKDAY, found.at)
    return found


def _in_zone(naive: datetime, now: datetime) -> Instant:
    """Find the moment at which the clocks of the zone of `now` show `naive`."""
    first, second = (naive.replace(tzinfo=now.tzinfo, fold=fold) for fold in (0, 1))
    if first.utcoffset() == second.utcoffset():
        return Instant(at=first)
    ahead = first.astimezone(UTC).astimezone(now.tzinfo)
    if ahead.replace(tzinfo=None) != naive:
        return Instant(at=ahead, shift=Shift.SKIPPED)
    return Instant(at=first if first.timestamp() > now.timestamp() else second, shift=Shift.TWICE)


# Days


def _days(parts: Parts, today: date, policy: TimePolicy) -> Iterator[date]:
    """Return the days that are meant, nearest first."""
    match parts.day:
        case DaysAhead(days=days):
            yield today + timedelta(days=days)
        case CalendarDay() as day:
            yield from _calendar_days(day, today)
        case None if parts.span is not None:
            yield today + timedelta(days=parts.span.days)
        case None if parts.weekday is not None:
            yield from _weekdays(parts.weekday, today, policy)
        case None:
            yield from (today, today + timedelta(days=1))


def _calendar_days(day: CalendarDay, today: date) -> Iterator[date]:
    if day.year is not None and day.year > today.year + 1000:
        raise _Refused(Reason.TOO_FAR)
    if day.year is not None and day.year < FIRST_YEAR:
        raise _Refused(Reason.PAST)
    years = [day.year] if day.year is not None else range(today.year, today.year + _LEAP_CYCLE_YEARS + 1)
    for year in years:
        try:
            yield date(year, day.month, day.day)
        except ValueError:
            continue


def _weekdays(weekday: Weekday, today: date, policy: TimePolicy) -> Iterator[date]:
    weeks = weekday.weeks_ahead
    if weekday.is_next:
        if not policy.is_next_weekday_next_week:
            raise _Refused(Reason.WHICH_WEEK)
        weeks = 1
    if weeks is not None:
        yield today - timedelta(days=today.weekday()) + timedelta(weeks=weeks, days=weekday.index)
        return
    first = today + timedelta(days=(weekday.index - today.weekday()) % 7)
    yield from (first, first + timedelta(weeks=1))


# Times of day

_NOON = 12
_HOURS: dict[Half, dict[int, int]] = {
    Half.AM: {_NOON: 0} | {hour: hour for hour in range(1, 12)},
    Half.PM: {_NOON: _NOON} | {hour: hour + 12 for hour in range(1, 12)},
    Half.DAWN: {hour: hour for hour in range(1, 7)},
    Half.MORNING: {hour: hour for hour in range(4, 12)},
    Half.MIDDAY: {11: 11, _NOON: _NOON} | {hour: hour + 12 for hour in range(1, 6)},
    Half.AFTERNOON: {_NOON: _NOON} | {hour: hour + 12 for hour in range(1, 8)},
    Half.EVENING: {hour: hour + 12 for hour in range(4, 12)},
    Half.NIGHT: {hour: hour + 12 for hour in range(6, 12)},
}


def _clock(parts: Parts, policy: TimePolicy) -> time | None:
    """Return the time of day; None where none was written."""
    if parts.clock is None:
        return policy.parts_of_day.get(parts.half) if parts.half else None
    written, hour = parts.clock, parts.clock.hour
    if written.half:
        hour = _hour_in(written.half, hour)
    if parts.half and (not written.half or hour not in _HOURS[parts.half].values()):
        hour = _hour_in(parts.half, hour)
    if written.is_bare and not parts.half and 1 <= hour <= _NOON and not _is_working_morning(parts, policy):
        raise _Refused(Reason.WHICH_HALF)
    try:
        return time(hour, written.minute, written.second)
    except ValueError as error:
        raise _Refused(Reason.NO_SUCH_TIME) from error


def _is_working_morning(parts: Parts, policy: TimePolicy) -> bool:
    assert parts.clock is not None
    has_day = any((parts.weekday, parts.repeat, parts.span, parts.day)) and parts.day != DaysAhead(days=0)
    is_morning = 7 <= parts.clock.hour < _NOON
    return policy.ask_half is AskHalf.UNLESS_WORKING_MORNING and has_day and is_morning


def _hour_in(half: Half, hour: int) -> int:
    hours = _HOURS[half]
    if hour in hours:
        return hours[hour]
    if hour > _NOON and hour in hours.values() and half not in (Half.AM, Half.PM):
        return hour
    raise _Refused(Reason.NO_SUCH_TIME if hour > _NOON or hour == 0 else Reason.WHICH_HALF)


# Again and again


def _recurrence(parts: Parts, repeat: Repeat, now: datetime, policy: TimePolicy) -> Recurrence:
    if repeat.interval is not None:
        first = (now.astimezone(UTC) + repeat.interval).astimezone(now.tzinfo)
        return Recurrence(first=first.replace(microsecond=0), interval=repeat.interval)
    clock = _clock(parts, policy)
    if clock is None:
        raise _Refused(Reason.NEEDS_CLOCK)
    if clock.second or (parts.clock is not None and parts.clock.offset is not None):
        raise _Refused(Reason.NO_SUCH_TIME)
    found = Recurrence(
        first=now, clock=clock, weekdays=repeat.weekdays, month_day=repeat.month_day, month=repeat.month
    )
    for ahead in range(_RECURRENCE_DAYS):
        day = now.date() + timedelta(days=ahead)
        first = _in_zone(datetime.combine(day, clock), now).at if found.is_on(day) else now
        if first.timestamp() > now.timestamp():
            return replace(found, first=first)
    raise _Refused(Reason.NO_SUCH_DAY)
