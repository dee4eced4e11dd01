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
    """The clocks skip it: the result lies as much later."""
    TWICE = "twice"
    """The clocks show it twice: the result is the first that lies ahead."""


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
    """When an hour from 1 to 12 without a half of the day is refused as ambiguous."""

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
    """The time of day of a day that is named alone: `DateOnly.at`."""
    parts_of_day: Mapping[Half, time] = field(default_factory=lambda: MappingProxyType(_USUAL_PARTS))
    """What `tomorrow evening` means; a part that is not in it is refused as `NEEDS_CLOCK`."""
    ask_half: AskHalf = AskHalf.UNLESS_WORKING_MORNING
    is_next_weekday_next_week: bool = False
    """Whether `next Friday` is the Friday of next week; else it is refused."""
    takes_past: bool = False
    """Whether a time that has passed is a result; else it is refused."""
    days_ahead: int = 3660
    """How far ahead a time may lie."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Instant:
    """A moment: a day with its time of day, in the zone that was given."""

    at: datetime
    shift: Shift = Shift.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class DateOnly:
    """A day without a time of day. `at` is the moment of that day that the policy says."""

    day: date
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Duration:
    """A span from now. Days keep what the clocks show; `elapsed` is time that goes by. `at` is its end."""

    days: int = 0
    elapsed: timedelta = timedelta(0)
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Recurrence:
    """A time that comes again and again: every `interval`, or at `clock` on the days that are named."""

    first: datetime
    """The first one ahead."""
    interval: timedelta | None = None
    clock: time = time(0)
    weekdays: tuple[int, ...] = ()
    """Monday is 0. Empty: not bound to days of the week."""
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
        """The five fields of cron; None of an interval."""
        if self.interval is not None:
            return None
        days = ",".join(str((day + 1) % 7) for day in self.weekdays) or "*"
        return f"{self.clock.minute} {self.clock.hour} {self.month_day or '*'} {self.month or '*'} {days}"

    @classmethod
    def of_cron(cls, cron: str, *, first: datetime) -> Recurrence | None:
        """Read the five fields that `cron` writes; None of any others."""
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
    """No time. `at` is the moment that the text would mean, where it means one that cannot be."""

    reason: Reason
    at: datetime | None = None


Reading = Instant | DateOnly | Duration | Recurrence | TimeRefusal


# What was written, before a clock has been looked at.


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockTime:
    """A time of day as written. `is_bare` is an hour alone; `offset` is its distance from UTC if named."""

    hour: int
    minute: int = 0
    second: int = 0
    half: Half | None = None
    is_bare: bool = False
    offset: timezone | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DaysAhead:
    """So many days from today."""

    days: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CalendarDay:
    """A day of the calendar; without a year, the next one there is."""

    month: int
    day: int
    year: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Weekday:
    """A day of the week, Monday is 0. `weeks_ahead` counts calendar weeks, None is the next one there is."""

    index: int
    weeks_ahead: int | None = None
    is_next: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeSpan:
    """So long from now."""

    days: int = 0
    elapsed: timedelta = timedelta(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeat:
    """Again and again, as the fields of `Recurrence`."""

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
        """Return both together, or None where they name the same part twice or do not go together."""
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
        """Whether a moment is named, and not days alone."""
        return self.clock is not None or self.span is not None or self.half is not None


def _fit(names: set[str]) -> bool:
    """Whether parts of these names can stand in one time: a weekday beside a date only repeats it."""
    days = names & {"span", "repeat", "day", "weekday"}
    return len(days) <= 1 or days == {"day", "weekday"}


# A row of the table

Make = Callable[["re.Match[str]"], Parts | None]


@dataclass(frozen=True, slots=True)
class Shape:
    """How a form is written in one language. `make` may find that a match is none after all."""

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
    """Only as a whole text: within a sentence it may be something else."""
