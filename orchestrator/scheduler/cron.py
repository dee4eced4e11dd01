"""Compute when a cron expression is due: five fields, by the clocks of a zone. Pure.

Beyond the usual fields, `L` is the last day of the month, `2#1` its first Tuesday and `5L` its last Friday. A
rhythm may follow the fields: `0 8 * * 2 every 2 weeks from 2026-11-24`. The reader of times writes both.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import date, datetime, time, timedelta
from functools import lru_cache
from heapq import heappop, heappush
from itertools import product
from zoneinfo import ZoneInfo

from agent_runner.wire.times import LAST, Rhythm, StepUnit
from orchestrator.domain.errors import BadSchedule
from orchestrator.domain.values import Dst

MAX_YEARS = 10
"""Years without a due time after which an expression never comes: 29 February skips at most seven."""
LATEST_START = date.max - timedelta(days=366 * MAX_YEARS)
"""The last day from which `MAX_YEARS` can be searched: the calendar of Python ends with the year 9999."""
LONGEST_SHIFT = timedelta(hours=3)
"""More than any zone sets its clocks back at once today."""

_ITEM = re.compile(r"(\*|(\w+)(?:-(\w+))?)(?:/(\d{1,2}))?", re.ASCII)
_STEPPED = re.compile(
    r"(?P<fields>.+) every (?P<step>[1-9]\d{0,3}) (?P<unit>days|weeks|months)"
    r" from (?P<start>\d{4}-\d\d-\d\d)",
    re.ASCII,
)
_LONGEST_STEP = {
    StepUnit.DAYS: 366 * MAX_YEARS,
    StepUnit.WEEKS: 52 * MAX_YEARS,
    StepUnit.MONTHS: 12 * MAX_YEARS,
}
_PLACED = re.compile(r"(?P<weekday>\w{1,3}?)(?P<place>#[1-5]|l)", re.ASCII)
_DAY = timedelta(days=1)
_LAST_MINUTE = time(23, 59)
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Field:
    """One of the five fields: the numbers that it takes, and the words for them, the first for `low`."""

    name: str
    low: int
    high: int
    words: tuple[str, ...] = ()

    def check(self, text: str) -> None:
        """Raise `BadSchedule` if the text is not valid in this field."""
        for item in text.split(","):
            match = _ITEM.fullmatch(item)
            if match is None or not self._fits(*match.groups()):
                raise BadSchedule(f"cron: '{item}' is no {self.name}: {self._rule()}.")

    def _fits(self, whole: str, first: str | None, last: str | None, step: str | None) -> bool:
        """Return whether one part of a field is valid: `*`, a number or a range, each perhaps with a step.

        `whole` is `*` or the number or range, `first` and `last` its numbers as text, `step` the text after
        the slash; each of these three is None if the part has none.
        """
        # croniter reads `5/15` as `5-59/15`, but not every cron does: refuse it instead of guessing.
        if step is not None and not (0 < int(step) <= self.high - self.low and (whole == "*" or last)):
            return False
        if first is None:
            return True
        start, end = self._number(first), self._number(last or first)
        return start is not None and end is not None and start <= end

    def _number(self, text: str) -> int | None:
        """Return the number that a text (`5`, `mon`) has in this field; None if it is out of range."""
        if text in self.words:
            return self.words.index(text) + self.low
        number = int(text) if text.isdigit() and len(text) <= 2 else -1
        return number if self.low <= number <= self.high else None

    def _rule(self) -> str:
        """Return what this field accepts, for the text of an error."""
        named = f" or {self.words[0]}-{self.words[-1]}" if self.words else ""
        return f"use {self.low}-{self.high}{named}, *, lists, ranges and steps such as */{self.high // 4}"


_FIELDS = (
    _Field(name="minute", low=0, high=59),
    _Field(name="hour", low=0, high=23),
    _Field(name="day of the month", low=1, high=31),
    _Field(name="month", low=1, high=12, words=_MONTHS),
    _Field(name="day of the week", low=0, high=7, words=_DAYS),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Expression:
    """The usual five fields, and the rhythm that narrows their days."""

    fields: tuple[str, ...]
    rhythm: Rhythm

    @property
    def text(self) -> str:
        """The five fields as one cron expression."""
        return " ".join(self.fields)

    @property
    def text_of_days(self) -> str:
        """The cron expression of midnight on each day that the fields name."""
        return " ".join(("0", "0", *self.fields[2:]))


def checked(text: str) -> str:
    """Check a cron expression, and return it in normal form: lower case except for `L`, with single spaces.

    Raises:
        BadSchedule: it does not have five fields, one of them is invalid, or no date fits it. Words such as
        `@daily`, seconds and `?` are refused.
    """
    expression = " ".join(text.lower().split())
    parsed = _parsed(expression)
    for field, value in zip(_FIELDS, parsed.fields, strict=True):
        field.check(value)
    # The 30th of February passes each field alone, and every look would search all years for it. It may be
    # tried from any day after the start, but not from the first of the calendar, before which is none.
    from_day = max(parsed.rhythm.start or date.min, date(2024, 1, 1))
    if next(_wall_times(expression, datetime.combine(from_day, datetime.min.time())), None) is None:
        raise BadSchedule(f"cron: '{expression}' never comes: there is no such date.")
    words = expression.split()
    if parsed.rhythm.month_day == LAST:
        words[2] = "L"  # the third field: the day of the month
    elif parsed.rhythm.nth == LAST:
        words[4] = f"{words[4][:-1]}L"  # the fifth field, the day of the week: `5l` → `5L`
    return " ".join(words)


def _parsed(expression: str) -> _Expression:
    """Split an expression into the five usual fields, and a rhythm that selects some of the fields' days.

    The rhythm is written as `L`, the last day of a month; `2#1`, its first Tuesday; `5L`, its last Friday; or
    as words after the fields, such as `every 2 weeks from 2026-11-24`. Raises `BadSchedule`.
    """
    stepped = _STEPPED.fullmatch(expression.lower())
    fields = (stepped["fields"] if stepped else expression.lower()).split()
    if len(fields) != len(_FIELDS):
        raise BadSchedule(
            f"cron: '{expression}' has {len(fields)} fields; use five: minute hour day month weekday,"
            " such as 0 9 * * 1-5."
        )
    minute, hour, day, month, weekday = fields
    month_day = nth = None
    if day == "l" and weekday == "*":
        month_day, day = LAST, "28-31"  # the rhythm selects the last of these days
    elif day == "*" and (placed := _PLACED.fullmatch(weekday)) is not None:
        nth = LAST if placed["place"] == "l" else int(placed["place"][1:])  # without the `#`
        weekday = placed["weekday"]
    rhythm = Rhythm(month_day=month_day, nth=nth)
    if stepped is not None:
        rhythm = _with_step(expression, stepped, rhythm)
    return _Expression(fields=(minute, hour, day, month, weekday), rhythm=rhythm)


def _with_step(expression: str, stepped: re.Match[str], rhythm: Rhythm) -> Rhythm:
    """Return the rhythm with the step of an expression such as `… every 2 weeks from 2026-11-24`.

    `stepped` is the match of that expression. Raises `BadSchedule` if the date does not exist or is too late,
    or the step is longer than `MAX_YEARS`.
    """
    step, unit = int(stepped["step"]), StepUnit(stepped["unit"])
    try:
        start = date.fromisoformat(stepped["start"])
    except ValueError:
        raise BadSchedule(f"cron: '{expression}' has no such date: {stepped['start']}.") from None
    if step > _LONGEST_STEP[unit]:
        raise BadSchedule(f"cron: '{expression}' counts further than {MAX_YEARS} years.")
    if start > LATEST_START:
        raise BadSchedule(f"cron: '{expression}' begins too late: {stepped['start']}.")
    return replace(rhythm, step=step, unit=unit, start=start)


def usual_dst(expression: str) -> Dst:
    """Return the default for a time that the clocks show twice when daylight saving time ends.

    It is `both` for an expression whose hour begins with `*`, as in `*/2`; else `once`.
    """
    hour = expression.split()[1]
    return Dst.BOTH if hour.startswith("*") else Dst.ONCE


# The same due time is asked for again and again, and an expression is slow to parse.
@lru_cache(maxsize=8_192)
def next_ms(expression: str, *, after_ms: int, zone: ZoneInfo, dst: Dst) -> int:
    """Return the first due time of a cron expression later than `after_ms`, in epoch milliseconds.

    `dst` decides about times that the clocks of `zone` show twice or never. Raises `BadSchedule` when there
    is no due time within `MAX_YEARS`.
    """
    first_ms = next(following(expression, after_ms=after_ms, zone=zone, dst=dst), None)
    if first_ms is None:
        raise BadSchedule(f"cron: '{expression}' does not come in {MAX_YEARS} years.")
    return first_ms


def following(expression: str, *, after_ms: int, zone: ZoneInfo, dst: Dst) -> Iterator[int]:
    """Yield the due times of a cron expression later than `after_ms`, in epoch milliseconds, in their order.

    `dst` decides about times that the clocks of `zone` show twice or never. The iteration ends when no due
    time follows within `MAX_YEARS`. The expression is parsed only once, so many due times are cheap.
    """
    last = after_ms // 1000  # epoch seconds of the last yielded due time
    pending: list[int] = []  # a heap of moments later than `last`, in epoch seconds
    # Wall times do not come in the order of their moments. When clocks are set back, a later moment shows an
    # earlier wall time. When they skip 2:00 to 3:00, 2:30 may be due at 3:30, after 3:10. So a moment is
    # yielded only when no wall time that is still to come can mean an earlier one. `_readings` are all
    # moments that a wall time can mean, `_moments` those at which it is due.
    for wall in _wall_times(expression, _search_start(last, zone)):
        earliest = min(_readings(wall, zone))
        while pending and pending[0] < earliest:
            moment = heappop(pending)
            if moment > last:
                yield moment * 1000
                last = moment
        for moment in _moments(wall, zone, dst):
            if moment > last:
                heappush(pending, moment)
    yield from (moment * 1000 for moment in sorted(set(pending)) if moment > last)


def _wall_times(expression: str, after: datetime) -> Iterator[datetime]:
    """Yield the times later than `after` that an expression names, as if clocks were never changed.

    `after` and the yielded times have no zone. The iteration ends when no time follows within `MAX_YEARS` of
    the previous one, or of `after`.
    """
    # Imported late: most commands never read a cron expression.
    from croniter import CroniterBadDateError, croniter

    parsed = _parsed(expression)
    rhythm = parsed.rhythm
    furthest = after.date() + timedelta(days=366 * MAX_YEARS)
    if rhythm.start is not None and rhythm.start > after.date():
        if rhythm.start > furthest:
            return
        # Nothing comes before the start, so the days until then need not be searched.
        after = datetime.combine(rhythm.start, datetime.min.time()) - timedelta(minutes=1)
    minutes, hours = (
        list(range(field.high + 1)) if numbers == ["*"] else sorted({int(number) for number in numbers})
        for field, numbers in zip(_FIELDS, croniter(parsed.text).expanded[:2], strict=False)
    )
    # croniter is used only to find the days: it is much slower at finding the minutes of a day than the loop
    # below. Its times have no zone, so it applies no daylight saving: `_moments` decides about it.
    midnight = datetime.combine(after.date(), datetime.min.time())
    midnights = croniter(
        parsed.text_of_days, midnight - timedelta(minutes=1), max_years_between_matches=MAX_YEARS
    )
    try:
        while (day := midnights.get_next(datetime).date()) <= furthest:
            if rhythm.is_on(day):
                for hour, minute in product(hours, minutes):
                    wall = datetime.combine(day, time(hour, minute))
                    if wall > after:
                        yield wall
                        furthest = day + timedelta(days=366 * MAX_YEARS)
            else:
                # Skip all days on which the rhythm pauses, which may be years: for each of them croniter
                # would take a hundred times as long.
                while day < furthest and not rhythm.is_on(day + _DAY):
                    day += _DAY
                midnights.set_current(datetime.combine(day, _LAST_MINUTE), force=True)
    except CroniterBadDateError:
        return


def _search_start(after_seconds: int, zone: ZoneInfo) -> datetime:
    """Return the time, as the clocks of `zone` show it, after which due times have to be searched.

    That is the time of `after_seconds` (epoch), or an earlier one if the clocks were put forward in the
    `LONGEST_SHIFT` before it, or will be set back in the `LONGEST_SHIFT` after it.
    """
    now = datetime.fromtimestamp(after_seconds, zone)
    earlier = datetime.fromtimestamp(after_seconds - LONGEST_SHIFT.total_seconds(), zone)
    later = datetime.fromtimestamp(after_seconds + LONGEST_SHIFT.total_seconds(), zone)
    # When clocks are about to be set back, they will show times again that they have shown. When they have
    # just skipped an hour, the times of that hour may still be due, at a later moment.
    moved_back = max(timedelta(0), _offset(now) - _offset(later), _offset(now) - _offset(earlier))
    return now.replace(tzinfo=None, second=0) - moved_back


def _moments(wall: datetime, zone: ZoneInfo, dst: Dst) -> list[int]:
    """Return the moments, in epoch seconds, at which the clocks show `wall`.

    A wall time that the clocks skip has one moment with `Dst.ONCE`, as much later as they skip, else none.
    One that they show twice has the first moment with `Dst.ONCE`, else both.
    """
    first, second = _readings(wall, zone)
    if first == second:
        return [first]
    if first < second:
        return [first] if dst is Dst.ONCE else [first, second]
    # In a skipped hour the first reading uses the offset before the jump, so it is after the jump.
    return [first] if dst is Dst.ONCE else []


def _readings(wall: datetime, zone: ZoneInfo) -> tuple[int, int]:
    """Return the two readings of a wall time as moments, in epoch seconds.

    They differ only in an hour that the clocks skip or repeat.
    """
    first, second = (int(wall.replace(tzinfo=zone, fold=fold).timestamp()) for fold in (0, 1))
    return first, second


def _offset(at: datetime) -> timedelta:
    """Return the offset from UTC of a time that has a zone."""
    offset = at.utcoffset()
    assert offset is not None
    return offset
