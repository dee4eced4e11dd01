"""The results of reading a time, and the parts of a time as somebody wrote them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import date, datetime, time, timedelta, timezone
from enum import StrEnum
from types import MappingProxyType


class Reason(StrEnum):
    """Why a text is refused."""

    NO_TIME = "no_time"
    """The text has none of the accepted forms."""
    NEEDS_CLOCK = "needs_clock"
    """It names days, but no time of day, where one is needed."""
    WHICH_HALF = "which_half"
    """Its hour could be in either half of the day."""
    WHICH_WEEK = "which_week"
    """`next Friday` means two days to different people."""
    NO_SUCH_TIME = "no_such_time"
    NO_SUCH_DAY = "no_such_day"
    WRONG_WEEKDAY = "wrong_weekday"
    """It names a date and another weekday than that date has."""
    PAST = "past"
    TOO_FAR = "too_far"


class Shift(StrEnum):
    """What a change of the clocks did to a time."""

    NONE = "none"
    SKIPPED = "skipped"
    """The clocks skip the time that is named: the result is later by what they skip."""
    TWICE = "twice"
    """The clocks show the time that is named twice: the result is the first that lies ahead."""


class Half(StrEnum):
    """A part of the day, which says which of the two nines of a day is meant."""

    AM = "am"
    PM = "pm"
    DAWN = "dawn"
    MORNING = "morning"
    MIDDAY = "midday"
    AFTERNOON = "afternoon"
    EVENING = "evening"
    NIGHT = "night"


class AskHalf(StrEnum):
    """The policy for an hour from 1 to 12 without a half of the day: when it is refused as ambiguous."""

    ALWAYS = "always"
    UNLESS_WORKING_MORNING = "unless_working_morning"
    """7 to 11 on a day that is named and is not today mean the morning."""


_USUAL_PARTS = {
    Half.DAWN: time(6),
    Half.MORNING: time(9),
    Half.MIDDAY: time(12),
    Half.AFTERNOON: time(14),
    Half.EVENING: time(18),
    Half.NIGHT: time(21),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TimePolicy:
    """What a caller decides where a text leaves something open."""

    default_clock: time = time(9)
    """The time of day that `DateOnly.at` takes where a day is named alone."""
    parts_of_day: Mapping[Half, time] = field(default_factory=lambda: MappingProxyType(_USUAL_PARTS))
    """What `tomorrow evening` means; a part that is not in it is refused as `NEEDS_CLOCK`."""
    ask_half: AskHalf = AskHalf.UNLESS_WORKING_MORNING
    is_next_weekday_next_week: bool = False
    """Whether `next Friday` is the Friday of next week; else it is refused."""
    takes_past: bool = False
    """Whether a time that has passed is a result; else it is refused."""
    days_ahead: int = 3660
    """How many days ahead a time may lie."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Instant:
    """A moment, in the zone that was given."""

    at: datetime
    shift: Shift = Shift.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class DateOnly:
    """A day without a time of day. `at` is that day at the policy's `default_clock`."""

    day: date
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Duration:
    """A span from now, which ends `at`. Its days keep the time of day, `elapsed` is added as real time."""

    days: int = 0
    elapsed: timedelta = timedelta(0)
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Recurrence:
    """A repeating time: every `interval`, or at `clock` on the days that are named."""

    first: datetime
    """The first time that lies ahead."""
    interval: timedelta | None = None
    clock: time = time(0)
    weekdays: tuple[int, ...] = ()
    """Monday is 0. Empty: any day of the week."""
    month_day: int | None = None
    month: int | None = None

    def is_on(self, day: date) -> bool:
        """Return whether it comes on a day. Only for one without an interval."""
        return (
            (not self.weekdays or day.weekday() in self.weekdays)
            and self.month_day in (None, day.day)
            and self.month in (None, day.month)
        )

    @property
    def cron(self) -> str | None:
        """Return the five fields of cron, None for an interval."""
        if self.interval is not None:
            return None
        days = ",".join(str((day + 1) % 7) for day in self.weekdays) or "*"
        return f"{self.clock.minute} {self.clock.hour} {self.month_day or '*'} {self.month or '*'} {days}"

    @classmethod
    def of_cron(cls, cron: str, *, first: datetime) -> Recurrence | None:
        """Read the five fields that `cron` returns; return None for any others."""
        try:
            minute, hour, day, month, weekdays = cron.split()
            found = cls(
                first=first,
                clock=time(int(hour), int(minute)),
                weekdays=()
                if weekdays == "*"
                else tuple(sorted((int(each) + 6) % 7 for each in weekdays.split(","))),
                month_day=None if day == "*" else int(day),
                month=None if month == "*" else int(month),
            )
        except ValueError:
            return None
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeRefusal:
    """The text is refused. `at` is the moment that it names, where that moment cannot be taken."""

    reason: Reason
    at: datetime | None = None


Reading = Instant | DateOnly | Duration | Recurrence | TimeRefusal


# What was written, before a clock has been looked at.


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockTime:
    """A time of day as written. `is_bare` marks an hour alone; `offset` is the named distance from UTC."""

    hour: int
    minute: int = 0
    second: int = 0
    half: Half | None = None
    is_bare: bool = False
    offset: timezone | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DaysAhead:
    """A day, as a number of days from today."""

    days: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CalendarDay:
    """A day of the calendar; without a year, the next such day."""

    month: int
    day: int
    year: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Weekday:
    """A day of the week; Monday is 0. `weeks_ahead` counts calendar weeks; None is the next such day."""

    index: int
    weeks_ahead: int | None = None
    is_next: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeSpan:
    """A span of time from now."""

    days: int = 0
    elapsed: timedelta = timedelta(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeat:
    """A repetition as written; the fields are those of `Recurrence`."""

    interval: timedelta | None = None
    weekdays: tuple[int, ...] = ()
    month_day: int | None = None
    month: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The parts of a time that were written. Nothing here has been checked yet."""

    span: TimeSpan | None = None
    day: DaysAhead | CalendarDay | None = None
    weekday: Weekday | None = None
    clock: ClockTime | None = None
    half: Half | None = None
    repeat: Repeat | None = None

    def written(self) -> dict[str, object]:
        """Return the parts that were written, by name."""
        named = ((one.name, getattr(self, one.name)) for one in fields(self))
        return {name: part for name, part in named if part is not None}

    def joined(self, other: Parts) -> Parts | None:
        """Return both as one, or None where they name a part twice or contradict each other."""
        mine, theirs = self.written(), other.written()
        both = {*mine, *theirs}
        if len(both) < len(mine) + len(theirs) or not _fit(both):
            return None
        joined = replace(self, **theirs)  # type: ignore[arg-type] # the names and types are those of the fields
        has_clock = "clock" in both or "half" in both
        if joined.span is not None and joined.span.elapsed and has_clock:
            return None
        if joined.repeat is not None and joined.repeat.interval is not None and has_clock:
            return None
        return joined

    @property
    def has_clock(self) -> bool:
        """Return whether a moment is named, not only days."""
        return self.clock is not None or self.span is not None or self.half is not None


def _fit(names: set[str]) -> bool:
    """Return whether parts of these names can stand in one time: a weekday may stand beside its date."""
    days = names & {"span", "repeat", "day", "weekday"}
    return len(days) <= 1 or days == {"day", "weekday"}


# A row of the table

Make = Callable[["re.Match[str]"], Parts | None]


@dataclass(frozen=True, slots=True)
class Shape:
    """How a form is written in one language. `make` returns None where a match is no time after all."""

    pattern: str
    make: Make
    examples: tuple[str, ...]

    def match(self, text: str, place: int) -> re.Match[str] | None:
        """Match from `place` on. ASCII beside Hangul: no foreign digits, no letters that look alike."""
        return re.compile(self.pattern, re.IGNORECASE | re.ASCII).match(text, place)


@dataclass(frozen=True, slots=True)
class Form:
    """One accepted form."""

    name: str
    meaning: str
    shapes: tuple[Shape, ...]
    is_whole: bool = False
    """Whether it is read only as a whole text, since within a sentence it may be something else."""
