"""Compute the moment that the parts of a time name, relative to the present time, in a zone. Pure."""

from __future__ import annotations

from calendar import monthrange
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo

from agent_runner.wire.times.model import (
    AskHalf,
    CalendarDay,
    ClockTime,
    DateOnly,
    DaysAhead,
    Duration,
    Half,
    Instant,
    MonthDay,
    NamedZone,
    NthDay,
    Parts,
    Reading,
    Reason,
    Recurrence,
    Repeat,
    Shift,
    TimePolicy,
    TimeRefusal,
    TimeSpan,
    Weekday,
    WeekdaysAhead,
)

FIRST_YEAR = 1900
"""The first year that a date may name; earlier ones are refused as past."""
_LEAP_CYCLE_YEARS = 8
"""Most years between two 29ths of February."""
_RECURRENCE_DAYS = 366 * (_LEAP_CYCLE_YEARS + 1)
"""Days ahead in which the first day of a repetition is looked for."""
_MONTHS_SEARCHED = 12 * _LEAP_CYCLE_YEARS
"""Months ahead in which a day of the month is looked for."""
_MAX_MONTHS = 12 * 1000
"""Most months of a span; longer ones are refused as too far."""

Choice = Instant | DateOnly | Duration | Recurrence


class _Refused(Exception):
    """The parts name no time that can be used; `choices` are those that they may mean."""

    def __init__(self, reason: Reason, at: datetime | None = None, choices: tuple[Choice, ...] = ()) -> None:
        """`at` is the named moment, if that is the reason; None otherwise."""
        super().__init__(reason.value)
        self.reason, self.at, self.choices = reason, at, choices


def resolve(parts: Parts, *, now: datetime, zone: tzinfo, policy: TimePolicy | None = None) -> Reading:
    """Return the time that the parts name, relative to `now`, in `zone`, or a refusal with the reason.

    Parts with several meanings are refused with all their times, unless these are the same. `policy` decides
    what the parts leave open; None is the default `TimePolicy`.
    """
    policy = policy or TimePolicy()
    now = now.astimezone(zone)
    meanings, reason = _meanings(parts, now.date())
    readings = [_resolved(meaning, now, policy) for meaning in meanings]
    if reason is None or all(reading == readings[0] for reading in readings):
        return readings[0]
    return _question(readings, reason)


def _question(readings: Sequence[Reading], reason: Reason) -> Reading:
    """Return the reading of an ambiguous text; `readings` are the results of its meanings.

    This is the first of these that applies:

    - If no meaning has a time, nor times to choose from: the refusal of the first meaning.
    - If the weekday is wrong for all meanings but one, and that is a time: this time.
    - If a meaning lacks a time of day: a refusal that asks for it.
    - Otherwise a refusal with `reason` that offers all times: of the meanings, and of their own refusals.
    """
    refusals = [reading for reading in readings if isinstance(reading, TimeRefusal)]
    results = [reading for reading in readings if not isinstance(reading, TimeRefusal)]
    choices = [*results, *(choice for refusal in refusals for choice in refusal.choices)]
    if not choices and refusals:
        return refusals[0]
    # `12/4 Friday`: the weekday shows which of the two numbers is the month.
    if len(results) == 1 and all(refusal.reason is Reason.WRONG_WEEKDAY for refusal in refusals):
        return results[0]
    # `the last day of the month` may be that of each month, which needs a time of day: ask for that first, so
    # that the next question can name both times.
    if any(refusal.reason is Reason.NEEDS_CLOCK for refusal in refusals):
        return TimeRefusal(reason=Reason.NEEDS_CLOCK)
    return TimeRefusal(reason=reason, choices=tuple(dict.fromkeys(choices)))


def _meanings(parts: Parts, today: date) -> tuple[Sequence[Parts], Reason | None]:
    """Return the possible meanings of the parts, and the reason to ask which one; None for one meaning."""
    if parts.either is not None:
        meanings = parts.meanings()
        return meanings, parts.reason if len(meanings) > 1 else None
    if parts.weekday is None or not parts.weekday.is_next:
        return (parts,), None
    if parts.day is not None:  # beside a date, `next Friday` only names the weekday
        return (replace(parts, weekday=Weekday(index=parts.weekday.index)),), None
    days = _next_weekdays(parts.weekday.index, today)
    return [replace(parts, weekday=None, day=day) for day in days], Reason.WHICH_WEEK


def _next_weekdays(index: int, today: date) -> list[DaysAhead]:
    """Return the days that people may mean by `next Friday`, nearest first; `index` is 0 for Monday.

    They may mean the first Friday after today, or the Friday of next week; and a week begins on Monday for
    some people, on Sunday for others. These are at most three different days.
    """
    # Each is the days to the weekday after today, or to the next Monday or Sunday and then on to the weekday.
    coming = (index - today.weekday() - 1) % 7 + 1
    of_monday_week = 7 - today.weekday() + index
    of_sunday_week = 7 - (today.weekday() + 1) % 7 + (index + 1) % 7
    return [DaysAhead(days=days) for days in sorted({coming, of_monday_week, of_sunday_week})]


def _resolved(parts: Parts, now: datetime, policy: TimePolicy) -> Reading:
    """Return the time of parts with one meaning, or a refusal.

    If the half of the day is left open, the refusal has the times that the hour can mean.
    """
    try:
        result = _result(parts, now, policy)
        at = result.at
        _check_bounds(result, at, now, policy)
    except _Refused as refused:
        choices = refused.choices
        if refused.reason is Reason.WHICH_HALF:
            # At night, 12 is not am or pm, but one midnight or the other; 2 is after one of them.
            if (at_night := _after_midnight(parts, now, policy)) is not None:
                return at_night
            choices = _by_half(parts, now, policy)
        return TimeRefusal(reason=refused.reason, at=refused.at, choices=choices)
    except (OverflowError, OSError):
        return TimeRefusal(reason=Reason.TOO_FAR)
    return result


def _by_half(parts: Parts, now: datetime, policy: TimePolicy) -> tuple[Choice, ...]:
    """Return the times that an hour can mean, the morning's first, without those that are refused.

    There are none if the text has no hour, or names a part of the day: in the time (`9 pm`) or beside it.
    """
    if parts.clock is None or parts.clock.half or parts.half:
        return ()
    # A quarter to 12 is before noon as pm, and at night before midnight.
    morning = Half.NIGHT if _is_before_twelve(parts.clock) else Half.AM
    # No longer bare, so that `_resolved` does not refuse the hour as ambiguous again.
    clocks = (replace(parts.clock, half=half, is_bare=False) for half in (morning, Half.PM))
    readings = (_resolved(replace(parts, clock=clock), now, policy) for clock in clocks)
    choices = (reading for reading in readings if not isinstance(reading, TimeRefusal))
    return tuple(sorted(choices, key=lambda choice: choice.at.hour))


def _is_before_twelve(clock: ClockTime) -> bool:
    """Return whether a time of day is given as minutes before 12: `a quarter to 12`."""
    return clock.hour == _NOON and clock.minutes_before > 0


def _after_midnight(parts: Parts, now: datetime, policy: TimePolicy) -> Reading | None:
    """Return the reading of `내일 밤 12시` (12 at night), which is at the start or the end of the day.

    Likewise for 1 to 5 at night. It is the next one if no day is named, the one at the end of the day if the
    other is past, and the one at the start of days that repeat; else a refusal with both times. If the first
    time is refused for another reason, that is the refusal. None for any other hour, and for words that
    contradict themselves.
    """
    clock = parts.clock
    if clock is None or Half.NIGHT not in (clock.half, parts.half):
        return None
    # `tonight at 2` may be meant as this afternoon.
    is_early = 1 <= clock.hour < 6 and parts.day != DaysAhead(days=0)
    if clock.hour != _NOON and not is_early:
        return None
    hour = clock.hour % _NOON
    at_start = replace(parts, half=None, clock=replace(clock, hour=hour, half=None, is_bare=False))
    match first := _resolved(at_start, now, policy):
        case Instant() if not (parts.day is None and parts.weekday is None and parts.span is None):
            later = _day_later(first.at, at_start, now, policy)
            return TimeRefusal(reason=Reason.WHICH_MEANING, choices=(first, later))
        # `tonight at 12pm` contradicts itself.
        case TimeRefusal() if clock.half not in (None, Half.NIGHT):
            return None
        case TimeRefusal(reason=Reason.PAST, at=datetime() as past) if past.date() == now.date():
            return _day_later(past, at_start, now, policy)
        case _:
            return first


def _day_later(at: datetime, parts: Parts, now: datetime, policy: TimePolicy) -> Instant:
    """Return the moment a day after `at` at the time of day of `parts`, which `at` was read from."""
    clock = _clock(parts, policy)
    # `at` itself shows another time of day if the clocks skip that one. With an offset from UTC, it is the
    # one in the zone of `now`, and that of `parts` is not.
    has_offset = parts.clock is not None and parts.clock.offset is not None
    time_of_day = at.time() if has_offset or clock is None else clock
    return _in_zone(datetime.combine(at.date() + timedelta(days=1), time_of_day), now)


def _check_bounds(result: Reading, at: datetime, now: datetime, policy: TimePolicy) -> None:
    """Raise `_Refused` for a past time, unless the policy takes it, and for one too far from now.

    `at` is the moment of `result`; today's date without a time of day is not past.
    """
    is_past = result.day < now.date() if isinstance(result, DateOnly) else at.timestamp() <= now.timestamp()
    if is_past and not policy.takes_past:
        raise _Refused(Reason.PAST, at)
    if abs(at.timestamp() - now.timestamp()) > policy.days_ahead * 86_400:
        raise _Refused(Reason.TOO_FAR)


def _result(parts: Parts, now: datetime, policy: TimePolicy) -> Choice:
    """Return the time that the parts name, not checked against the bounds. Raises `_Refused`."""
    if parts.repeat is not None:
        return _recurrence(parts, parts.repeat, now, policy)
    if parts.months is not None:  # months restrict only a repetition
        raise _Refused(Reason.NO_TIME)
    if parts.span is not None and not (parts.clock or parts.half):
        return _duration(parts.span, now)
    # With a time of day, a span names the day: `in 3 days at 9`.
    clock = _clock(parts, policy)
    if clock is None:
        return _day_alone(parts, now, policy)
    return _first_ahead(parts, clock, now)


def _duration(span: TimeSpan, now: datetime) -> Duration:
    """Return a span from now with its end, rounded up to a whole second.

    Days and months keep the time of day; hours and less are added as real time.
    """
    start = now
    if span.days or span.months:
        start = _in_zone(datetime.combine(_day_after(span, now.date()), now.time()), now).at
    at = start.astimezone(UTC) + span.elapsed
    whole = at if at.microsecond == 0 else at.replace(microsecond=0) + timedelta(seconds=1)
    return Duration(months=span.months, days=span.days, elapsed=span.elapsed, at=whole.astimezone(now.tzinfo))


def _day_after(span: TimeSpan, today: date) -> date:
    """Return the day on which a span from today ends, by its months and days. Raises `_Refused` if too far.

    A month later is the same day of the month, or the month's last day if it has no such day.
    """
    if span.days > 366 * 1000 or span.months > _MAX_MONTHS:
        raise _Refused(Reason.TOO_FAR)
    year, month = _month_ahead(today, span.months)
    day = min(today.day, monthrange(year, month)[1])
    return date(year, month, day) + timedelta(days=span.days)


def _month_ahead(today: date, months: int) -> tuple[int, int]:
    """Return the year and the month that are `months` months after today's."""
    years, month = divmod(today.month - 1 + months, 12)
    return today.year + years, month + 1


def _day_alone(parts: Parts, now: datetime, policy: TimePolicy) -> DateOnly:
    """Return the first day from today on that the parts name without a time of day.

    If all are past, return the last. Raises `_Refused` if the named day does not exist, a time of day is
    needed, or the parts name a date and another weekday than that of the date.
    """
    # A part of the day (`half`) comes here only if the policy has no time for it, as usually for `am`. Then,
    # and if nothing at all is named, an hour is needed.
    if parts.half is not None or not parts.written():
        raise _Refused(Reason.NEEDS_CLOCK)
    day = None
    for day in _days(parts, now.date()):
        if day >= now.date():
            break  # if there is none, `day` is the last one that is past
    if day is None:
        raise _Refused(Reason.NO_SUCH_DAY)
    at = _in_zone(datetime.combine(day, policy.default_clock), now).at
    if parts.day is not None and parts.weekday and day.weekday() != parts.weekday.index:
        raise _Refused(Reason.WRONG_WEEKDAY, at)
    return DateOnly(day=day, at=at)


def _first_ahead(parts: Parts, clock: time, now: datetime) -> Instant:
    """Return the first moment ahead with this time of day on one of the days that the parts name.

    If all are past, return the last. Raises `_Refused` if the named day does not exist, or if the parts name
    a date and another weekday than that of the date.
    """
    instant = day = None
    offset = parts.clock.offset if parts.clock is not None else None
    assert not isinstance(offset, Reason)  # `_clock` has refused it
    for day in _days(parts, now.date()):
        instant = _at(day, clock, offset, now)
        if instant.at.timestamp() > now.timestamp():
            break  # if none is ahead, `instant` and `day` are the last ones
    if instant is None or day is None:
        raise _Refused(Reason.NO_SUCH_DAY)
    if parts.weekday and day.weekday() != parts.weekday.index:
        raise _Refused(Reason.WRONG_WEEKDAY, instant.at)
    if _is_before_am_midnight(parts) and (parts.day or parts.weekday or parts.span):
        # `Friday, a quarter to 12 am`: that midnight may be at the start of Friday, or at its end.
        evening_before = replace(instant, at=instant.at - timedelta(days=1))
        if evening_before.at.timestamp() > now.timestamp():
            raise _Refused(Reason.WHICH_MEANING, choices=(evening_before, instant))
    return instant


def _is_before_am_midnight(parts: Parts) -> bool:
    """Return whether the time of day is given as minutes before 12 am."""
    clock = parts.clock
    return clock is not None and _is_before_twelve(clock) and Half.AM in (clock.half, parts.half)


def _at(day: date, clock: time, offset: timezone | NamedZone | None, now: datetime) -> Instant:
    """Return the moment of a time of day on a day, as a time in the zone of `now`.

    The time of day is that of the zone or offset from UTC in `offset`; None stands for the zone of `now`.
    Raises `_Refused` if a zone's name and its season do not fit.
    """
    naive = datetime.combine(day, clock)
    if offset is None:
        return _in_zone(naive, now)
    if isinstance(offset, timezone):
        return Instant(at=naive.replace(tzinfo=offset).astimezone(now.tzinfo))
    place = ZoneInfo(offset.place)
    exact = naive.replace(tzinfo=offset.offset or place)
    as_written = Instant(at=exact.astimezone(now.tzinfo))
    if exact.astimezone(place).utcoffset() != exact.utcoffset():
        # `9am EST` in July: the clocks of the place show summer time, which may be meant instead.
        as_shown_there = Instant(at=naive.replace(tzinfo=place).astimezone(now.tzinfo))
        raise _Refused(Reason.WHICH_MEANING, choices=(as_shown_there, as_written))
    return as_written


def _in_zone(naive: datetime, now: datetime) -> Instant:
    """Return the moment at which the clocks of the zone of `now` show the time `naive`.

    A time that they skip is moved on by the skipped span. Of a time that they show twice, the first moment is
    returned, or the second if the first is past. The result's `shift` says so.
    """
    first, second = (naive.replace(tzinfo=now.tzinfo, fold=fold) for fold in (0, 1))
    if first.utcoffset() == second.utcoffset():
        return Instant(at=first)
    # A time that the clocks show comes back from UTC unchanged, one that they skip does not.
    ahead = first.astimezone(UTC).astimezone(now.tzinfo)
    if ahead.replace(tzinfo=None) != naive:
        return Instant(at=ahead, shift=Shift.SKIPPED)
    return Instant(at=first if first.timestamp() > now.timestamp() else second, shift=Shift.TWICE)


# Days


def _days(parts: Parts, today: date) -> Iterator[date]:
    """Yield the days that the parts can mean, nearest first; without any day, today and tomorrow."""
    match parts.day:
        case DaysAhead(days=days):
            yield today + timedelta(days=days)
        case CalendarDay() as day:
            yield from _calendar_days(day, today)
        case MonthDay() as day:
            yield from _month_days(day, today)
        case NthDay() as day:
            yield from _nth_days(day, today)
        case WeekdaysAhead(index=index, count=count):
            # From 1 to 7: today itself does not count.
            days_to_first = (index - today.weekday() - 1) % 7 + 1
            yield today + timedelta(days=days_to_first + 7 * (count - 1))
        case None if parts.span is not None:
            yield _day_after(parts.span, today)
        case None if parts.weekday is not None:
            yield from _weekdays(parts.weekday, today)
        case None:
            yield from (today, today + timedelta(days=1))


def _years(year: int | None, today: date) -> Sequence[int]:
    """Return the years in which a day of the calendar is looked for: the named one, or the coming ones.

    Raises `_Refused` for a year that is too far away.
    """
    if year is None:
        return range(today.year, today.year + _LEAP_CYCLE_YEARS + 1)
    if year > today.year + 1000:
        raise _Refused(Reason.TOO_FAR)
    if year < FIRST_YEAR:
        raise _Refused(Reason.PAST)
    return (year,)


def _calendar_days(day: CalendarDay, today: date) -> Iterator[date]:
    """Yield the days that a day of the calendar can mean; a year that lacks it (29 February) is skipped."""
    for year in _years(day.year, today):
        try:
            yield date(year, day.month, day.day)
        except ValueError:
            continue


def _month_days(day: MonthDay, today: date) -> Iterator[date]:
    """Yield the days that a day of the month can mean.

    With `months_ahead` (0 is this month), it is the day of that month, even if it is past; else the day of
    each month, from today on. A month that lacks the day is skipped.
    """
    ahead = range(_MONTHS_SEARCHED) if day.months_ahead is None else (day.months_ahead,)
    for months in ahead:
        year, month = _month_ahead(today, months)
        if 1 <= day.day <= monthrange(year, month)[1]:
            candidate = date(year, month, day.day)
            if day.months_ahead is not None or candidate >= today:
                yield candidate


def _nth_days(day: NthDay, today: date) -> Iterator[date]:
    """Yield the days that `the second Tuesday` or `the last day` of a month can mean, one for each month.

    Raises `_Refused` for a month that does not exist.
    """
    if day.month is None:
        months = [_month_ahead(today, day.months_ahead or 0)]
    elif 1 <= day.month <= 12:
        months = [(year, day.month) for year in _years(day.year, today)]
    else:
        raise _Refused(Reason.NO_SUCH_DAY)
    for year, month in months:
        days = [date(year, month, number) for number in range(1, monthrange(year, month)[1] + 1)]
        fitting = [candidate for candidate in days if day.weekday in (None, candidate.weekday())]
        # The index in that list; a place below 0 is counted from its end.
        place = day.nth - 1 if day.nth > 0 else len(fitting) + day.nth
        if 0 <= place < len(fitting):
            yield fitting[place]


def _weekdays(weekday: Weekday, today: date) -> Iterator[date]:
    """Yield the days that a day of the week can mean: the one in a named week, or the next two."""
    if weekday.weeks_ahead is not None:
        monday = today - timedelta(days=today.weekday())
        yield monday + timedelta(weeks=weekday.weeks_ahead, days=weekday.index)
        return
    first = today + timedelta(days=(weekday.index - today.weekday()) % 7)
    yield from (first, first + timedelta(weeks=1))


# Times of day

_NOON, _MIDNIGHT = 12, 24
"""The hour of noon, and that of the midnight at the end of a day."""
_HOURS: dict[Half, dict[int, int]] = {
    Half.AM: {_NOON: 0} | {hour: hour for hour in range(1, 12)},
    Half.PM: {_NOON: _NOON} | {hour: hour + 12 for hour in range(1, 12)},
    Half.DAWN: {hour: hour for hour in range(1, 7)},
    Half.MORNING: {hour: hour for hour in range(1, 12)},
    Half.MIDDAY: {11: 11, _NOON: _NOON} | {hour: hour + 12 for hour in range(1, 6)},
    Half.AFTERNOON: {_NOON: _NOON} | {hour: hour + 12 for hour in range(1, 8)},
    Half.EVENING: {hour: hour + 12 for hour in range(4, 12)},
    Half.NIGHT: {hour: hour + 12 for hour in range(6, 12)},
}


def _clock(parts: Parts, policy: TimePolicy) -> time | None:
    """Return the time of day that the parts name, or the policy's for a part of the day; None for neither.

    A `half` is am or pm, or a part of the day such as the evening. Raises `_Refused` if there is no such
    time, or if am or pm is left open and the policy does not take the hour for one of the morning.
    """
    if parts.clock is None:
        return policy.parts_of_day.get(parts.half) if parts.half else None
    written, hour = parts.clock, parts.clock.hour
    if isinstance(written.offset, Reason):  # no such offset, or a range (`9:00-10:00`)
        raise _Refused(written.offset)
    if written.half:  # the part of the day in the time itself, as in `9 pm`
        hour = _hour_in(written.half, hour, minutes_before=written.minutes_before)
    # `parts.half` is named beside the time. Where both are, as in `9 pm in the evening`, they have to agree.
    if parts.half and (not written.half or hour not in _HOURS[parts.half].values()):
        in_part = _hour_in(parts.half, hour, minutes_before=written.minutes_before)
        if written.half:  # `9 am in the evening` is not 21:00
            raise _Refused(Reason.NO_SUCH_TIME)
        hour = in_part
    if written.is_bare and not parts.half and 1 <= hour <= _NOON and not _is_working_morning(parts, policy):
        raise _Refused(Reason.WHICH_HALF)
    return _exact(hour, written.minute, written.second, written.minutes_before)


def _exact(hour: int, minute: int, second: int, minutes_before: int) -> time:
    """Return the time of day with these figures, or the one that is `minutes_before` before the full hour.

    That is in the same day, also before midnight: a quarter to 0:00 is 23:45. Beside `minutes_before`, the
    minute and the second are not used: forms such as `ten to nine` have none.

    Raises `_Refused` if there is no such time.
    """
    if not minutes_before:
        try:
            return time(hour, minute, second)
        except ValueError as error:
            raise _Refused(Reason.NO_SUCH_TIME) from error
    minutes = (hour or _MIDNIGHT) * 60 - minutes_before
    if not 0 <= minutes < _MIDNIGHT * 60:
        raise _Refused(Reason.NO_SUCH_TIME)
    return time(minutes // 60, minutes % 60)


def _is_working_morning(parts: Parts, policy: TimePolicy) -> bool:
    """Return whether an hour without am or pm means the morning: 7 to 11 on named days other than today.

    False under the policy by which a person is always asked for am or pm.
    """
    assert parts.clock is not None
    has_day = any((parts.weekday, parts.repeat, parts.span, parts.day)) and parts.day != DaysAhead(days=0)
    is_morning = 7 <= parts.clock.hour < _NOON
    return policy.ask_half is AskHalf.UNLESS_WORKING_MORNING and has_day and is_morning


def _hour_in(half: Half, hour: int, *, minutes_before: int) -> int:
    """Return, on the 24-hour clock, an hour that was named with a part of the day: 21 for 9 in the evening.

    With `minutes_before`, 12 is the end of a part that lasts until then: 24 for a quarter to 12 at night.
    Raises `_Refused` for an hour that is not in that part of the day; for one from 1 to 12, the refusal asks
    for am or pm.
    """
    hours = _HOURS[half]
    if hour in hours:
        return hours[hour]
    if minutes_before and hour == _NOON and hour - 1 in hours:
        return hours[hour - 1] + 1
    # `15 in the afternoon` is on the 24-hour clock already.
    if hour > _NOON and hour in hours.values() and half not in (Half.AM, Half.PM):
        return hour
    raise _Refused(Reason.NO_SUCH_TIME if hour > _NOON or hour == 0 else Reason.WHICH_HALF)


# Again and again


def _recurrence(parts: Parts, repeat: Repeat, now: datetime, policy: TimePolicy) -> Recurrence:
    """Return the repetition that the parts name, with its first time ahead.

    Repetitions such as "every second week" are counted from that time. Raises `_Refused` if a repetition on
    days lacks a time of day or never occurs, or for what the host's schedules lack: seconds, another zone, or
    an interval that leaves out months.
    """
    if repeat.interval is not None:
        if parts.months is not None:  # the host's schedules of an interval leave out no months
            raise _Refused(Reason.NO_TIME)
        first = (now.astimezone(UTC) + repeat.interval).astimezone(now.tzinfo)
        return Recurrence(first=first.replace(microsecond=0), interval=repeat.interval)
    clock = _clock(parts, policy)
    if clock is None:
        raise _Refused(Reason.NEEDS_CLOCK)
    # The host's schedules have neither seconds nor other zones.
    if clock.second or (parts.clock is not None and parts.clock.offset is not None):
        raise _Refused(Reason.NO_SUCH_TIME)
    rhythm = repeat.rhythm
    if parts.months is not None:
        remaining_months = [month for month in parts.months if not rhythm.months or month in rhythm.months]
        if not remaining_months:  # an empty tuple would be every month
            raise _Refused(Reason.NO_SUCH_DAY)
        rhythm = replace(rhythm, months=tuple(remaining_months))
    for days_ahead in range(_RECURRENCE_DAYS):
        day = now.date() + timedelta(days=days_ahead)
        if not rhythm.is_on(day):
            continue
        # As in the host's schedules: of a time that the clocks show twice, the first; a time that they skip
        # is later by the skipped span.
        first = datetime.combine(day, clock, now.tzinfo).astimezone(UTC)
        if first.timestamp() > now.timestamp():
            counted = replace(rhythm, start=day) if rhythm.step > 1 else rhythm
            return Recurrence(first=first.astimezone(now.tzinfo), clock=clock, rhythm=counted)
    raise _Refused(Reason.NO_SUCH_DAY)
