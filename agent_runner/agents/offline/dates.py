"""Make a moment of what was written about a time, or say why none can be made. Pure: `now` is handed in.

Everything is plain arithmetic on the calendar but the English names of months, which dateparser reads:
it guesses without a word at what it does not understand, so it is shown one known shape only and its
answer is checked.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from enum import StrEnum

from agent_runner.agents.offline.when import (
    CalendarDay,
    ClockTime,
    DaysAhead,
    Half,
    Weekday,
    When,
)

MAX_YEARS_AHEAD = 10
FIRST_YEAR = 1900
"""Days before it are past without being worked out."""
_LEAP_CYCLE_YEARS = 8


class Trouble(StrEnum):
    """Why there is no moment."""

    NO_TIME = "no_time"
    NEEDS_CLOCK = "needs_clock"
    WHICH_HALF = "which_half"
    WHICH_WEEK = "which_week"
    NO_SUCH_TIME = "no_such_time"
    NO_SUCH_DAY = "no_such_day"
    WRONG_WEEKDAY = "wrong_weekday"
    PAST = "past"
    TOO_FAR = "too_far"
    REPEATS = "repeats"
    TIME_FIRST = "time_first"
    NO_TEXT = "no_text"


class Unclear(ValueError):
    """No moment can be made of the words. `at` is the one they mean, where they mean one that cannot be."""

    def __init__(self, trouble: Trouble, at: datetime | None = None) -> None:
        super().__init__(trouble.value)
        self.trouble = trouble
        self.at = at


class Shift(StrEnum):
    """What daylight saving did to a time."""

    NONE = "none"
    SKIPPED = "skipped"
    """The clock skips it: the moment lies as much later."""
    TWICE = "twice"
    """It comes twice that day: the moment is the first that lies ahead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """A time in the future, in the zone of `now`."""

    at: datetime
    shift: Shift = Shift.NONE


def resolve(when: When, now: datetime) -> Moment:
    """Find the moment that `when` names, seen from `now` (aware, in the zone that is meant).

    Raises:
        Unclear: it is ambiguous, impossible or past.
    """
    moment = _after(when.elapsed, now) if when.elapsed is not None else _on_a_day(when, now)
    if moment.at.year > now.year + MAX_YEARS_AHEAD:
        raise Unclear(Trouble.TOO_FAR)
    return moment


def _after(elapsed: timedelta, now: datetime) -> Moment:
    if elapsed > timedelta(days=366 * MAX_YEARS_AHEAD):
        raise Unclear(Trouble.TOO_FAR)
    if elapsed <= timedelta(0):
        raise Unclear(Trouble.PAST, now)
    at = now.astimezone(UTC) + elapsed
    whole = at if at.microsecond == 0 else at.replace(microsecond=0) + timedelta(seconds=1)
    return Moment(at=whole.astimezone(now.tzinfo))


def _on_a_day(when: When, now: datetime) -> Moment:
    if not when.is_complete:
        raise Unclear(Trouble.NEEDS_CLOCK if when.fields() else Trouble.NO_TIME)
    clock = _clock(when.clock, when.half) if when.clock else now.time().replace(microsecond=0)
    moment = _first_ahead(_days(when, now.date()), clock, now)
    if when.weekday and moment.at.weekday() != when.weekday.index:
        raise Unclear(Trouble.WRONG_WEEKDAY, moment.at)
    return moment


def _first_ahead(days: Iterator[date], clock: time, now: datetime) -> Moment:
    moment = None
    for day in days:
        moment = _in_zone(datetime.combine(day, clock), now)
        if moment.at.timestamp() > now.timestamp():
            return moment
    raise Unclear(Trouble.PAST, moment.at) if moment else Unclear(Trouble.NO_SUCH_DAY)


def _in_zone(naive: datetime, now: datetime) -> Moment:
    first, second = (naive.replace(tzinfo=now.tzinfo, fold=fold) for fold in (0, 1))
    if first.utcoffset() == second.utcoffset():
        return Moment(at=first)
    ahead = first.astimezone(UTC).astimezone(now.tzinfo)
    if ahead.replace(tzinfo=None) != naive:
        return Moment(at=ahead, shift=Shift.SKIPPED)
    return Moment(at=first if first.timestamp() > now.timestamp() else second, shift=Shift.TWICE)


def _days(when: When, today: date) -> Iterator[date]:
    match when.day:
        case DaysAhead(days=days):
            if days > 366 * MAX_YEARS_AHEAD:
                raise Unclear(Trouble.TOO_FAR)
            yield today + timedelta(days=days)
        case CalendarDay() as day:
            yield from _calendar_days(day, today)
        case None if when.weekday:
            yield from _weekdays(when.weekday, today)
        case None:
            yield from (today, today + timedelta(days=1))


def _calendar_days(day: CalendarDay, today: date) -> Iterator[date]:
    if day.year is not None and day.year > today.year + MAX_YEARS_AHEAD:
        raise Unclear(Trouble.TOO_FAR)
    if day.year is not None and day.year < FIRST_YEAR:
        raise Unclear(Trouble.PAST)
    month = _month(day.month) if isinstance(day.month, str) else day.month
    years = [day.year] if day.year is not None else range(today.year, today.year + _LEAP_CYCLE_YEARS + 1)
    for year in years:
        try:
            yield date(year, month, day.day)
        except ValueError:
            continue


def _weekdays(weekday: Weekday, today: date) -> Iterator[date]:
    if weekday.is_next:
        raise Unclear(Trouble.WHICH_WEEK)
    if weekday.weeks_ahead is not None:
        monday = today - timedelta(days=today.weekday()) + timedelta(weeks=weekday.weeks_ahead)
        yield monday + timedelta(days=weekday.index)
        return
    first = today + timedelta(days=(weekday.index - today.weekday()) % 7)
    yield from (first, first + timedelta(weeks=1))


def _month(name: str) -> int:
    import dateparser

    read = dateparser.parse(
        f"1 {name} 2000", languages=["en"], settings={"STRICT_PARSING": True, "DATE_ORDER": "DMY"}
    )
    if read is None or (read.day, read.year) != (1, 2000) or not _is_named(read, name):
        raise Unclear(Trouble.NO_TIME)
    return read.month


def _is_named(read: datetime, name: str) -> bool:
    return f"{read:%B}".lower().startswith(name[:3])


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


def _clock(clock: ClockTime, half: Half | None) -> time:
    hour = clock.hour
    if clock.half:
        hour = _hour_in(clock.half, hour)
    if half and (not clock.half or hour not in _HOURS[half].values()):
        hour = _hour_in(half, hour)
    if clock.is_bare and not half and not clock.half and 1 <= hour <= _NOON:
        raise Unclear(Trouble.WHICH_HALF)
    try:
        return time(hour, clock.minute, clock.second)
    except ValueError as error:
        raise Unclear(Trouble.NO_SUCH_TIME) from error


def _hour_in(half: Half, hour: int) -> int:
    hours = _HOURS[half]
    if hour in hours:
        return hours[hour]
    if hour > _NOON and hour in hours.values():
        return hour
    raise Unclear(Trouble.NO_SUCH_TIME if hour > _NOON or hour == 0 else Trouble.WHICH_HALF)
