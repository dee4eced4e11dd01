"""Define the results of reading a time, the parts of a time as written, and a row of the table of forms."""

from __future__ import annotations

import re
from calendar import monthrange
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import date, datetime, time, timedelta, timezone
from enum import StrEnum
from functools import cache
from types import MappingProxyType


class Reason(StrEnum):
    """The reason why a text is refused."""

    NO_TIME = "no_time"
    """The text has none of the accepted forms."""
    NEEDS_CLOCK = "needs_clock"
    """The text names days, but no time of day, where one is needed."""
    WHICH_HALF = "which_half"
    """The hour could be in either half of the day."""
    WHICH_WEEK = "which_week"
    """`next Friday` means two days to different people."""
    WHICH_MEANING = "which_meaning"
    """The text means different times to different people: `2/3`, `1h30`."""
    NO_SUCH_TIME = "no_such_time"
    NO_SUCH_DAY = "no_such_day"
    WRONG_WEEKDAY = "wrong_weekday"
    """The text names a date and a weekday which that date is not."""
    PAST = "past"
    TOO_FAR = "too_far"


class Shift(StrEnum):
    """The effect of a change of the clocks, such as the start of summer time, on a time."""

    NONE = "none"
    SKIPPED = "skipped"
    """The clocks skip the named time: the result is later by the skipped span."""
    TWICE = "twice"
    """The clocks show the named time twice: the result is the first moment, or the second if that is past."""


class Half(StrEnum):
    """A part of the day, which decides whether `9` means 9:00 or 21:00."""

    AM = "am"
    PM = "pm"
    DAWN = "dawn"
    MORNING = "morning"
    MIDDAY = "midday"
    AFTERNOON = "afternoon"
    EVENING = "evening"
    NIGHT = "night"


class AskHalf(StrEnum):
    """The policy that decides when an hour from 1 to 12 without a half of the day is refused as ambiguous."""

    ALWAYS = "always"
    UNLESS_WORKING_MORNING = "unless_working_morning"
    """The hours 7 to 11 on a named day other than today mean the morning, and are not refused."""


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
    """The caller's decisions about points that a text leaves open."""

    default_clock: time = time(9)
    """The time of day of `DateOnly.at`, for a day that is named alone."""
    parts_of_day: Mapping[Half, time] = field(default_factory=lambda: MappingProxyType(_USUAL_PARTS))
    """The time of day for each part, as in `tomorrow evening`; other parts are refused as `NEEDS_CLOCK`."""
    ask_half: AskHalf = AskHalf.UNLESS_WORKING_MORNING
    takes_past: bool = False
    """Whether a past time is a result; otherwise it is refused."""
    days_ahead: int = 3660
    """The most days that a time may be away from now, ahead or past."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Instant:
    """A moment, as a time in the caller's zone."""

    at: datetime
    shift: Shift = Shift.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class DateOnly:
    """A day without a time of day. `at` is that day at the policy's `default_clock`."""

    day: date
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Duration:
    """A span from now, which ends at the moment `at`.

    Its months and days keep the time of day across a change of the clocks; `elapsed` is added as real time.
    """

    months: int = 0
    days: int = 0
    elapsed: timedelta = timedelta(0)
    at: datetime


class StepUnit(StrEnum):
    """The unit that `every other …` counts."""

    DAYS = "days"
    WEEKS = "weeks"
    MONTHS = "months"


LAST = -1
"""Stands for the last day of a month, or the last such weekday in it."""
_DAY_NAMES = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_DAY_NAME = re.compile(r"\b(?:sun|mon|tue|wed|thu|fri|sat)\b", re.IGNORECASE)
# `every … from …` is no cron: it is Andy's own addition for rhythms with a step.
_CRON = re.compile(
    r"(?P<minute>\d{1,2}) (?P<hour>\d{1,2}) (?P<day>\d{1,2}|L|\*) (?P<months>[\d,]+|\*)"
    r" (?:(?P<nth_weekday>[0-6])(?P<nth>#[1-5]|L)|(?P<weekdays>[0-6](?:,[0-6])*)|\*)"
    r"(?: every (?P<step>\d{1,3}) (?P<unit>days|weeks|months) from (?P<start>\d{4}-\d\d-\d\d))?",
    re.ASCII,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rhythm:
    """The days on which something repeats. Each field that is set restricts them."""

    weekdays: tuple[int, ...] = ()
    """The days of the week; Monday is 0."""
    nth: int | None = None
    """The place of the weekday in its month, from 1, or `LAST`."""
    month_day: int | None = None
    """The day of the month, from 1, or `LAST`."""
    months: tuple[int, ...] = ()
    step: int = 1
    """The interval in `unit`s, counted from `start`."""
    unit: StepUnit = StepUnit.DAYS
    start: date | None = None

    @property
    def has_words(self) -> bool:
        """Return whether words can name the rhythm.

        They cannot name days of the week and of the month together, nor days and months that no calendar has.
        Of the rhythms that are counted from a `start`, they can name those with a step of two or more whose
        unit fits the days, such as weeks for weekdays; up to 99 weeks or months.
        """
        if self.month_day not in (None, LAST, *range(1, 32)) or not set(self.months) <= set(range(1, 13)):
            return False
        if self.month_day is not None and self.weekdays:  # in cron, either is enough
            return False
        if self.start is None:
            return True
        may_count = {
            StepUnit.DAYS: self.month_day is None and not self.weekdays,
            StepUnit.WEEKS: bool(self.weekdays) and self.nth is None and self.step < 100,
            StepUnit.MONTHS: self.month_day is not None and self.step < 100,
        }
        return self.step > 1 and may_count[self.unit]

    def is_on(self, day: date) -> bool:
        """Return whether the rhythm occurs on a day."""
        return (
            (not self.weekdays or day.weekday() in self.weekdays)
            and (self.nth is None or is_nth(day, self.nth))
            and (self.month_day is None or day.day == self.month_day or self._is_last(day))
            and (not self.months or day.month in self.months)
            and self._is_in_step(day)
        )

    def _is_last(self, day: date) -> bool:
        """Return whether the rhythm is on the last day of each month, and the day is one."""
        return self.month_day == LAST and day.day == monthrange(day.year, day.month)[1]

    def _is_in_step(self, day: date) -> bool:
        """Return whether a day, its week or its month (`unit`) is a multiple of `step` after the start's.

        False before the start; True without one. `is_on` checks which day of its week or month it is.
        """
        if self.start is None:
            return True
        match self.unit:
            case StepUnit.DAYS:
                units = (day - self.start).days
            case StepUnit.WEEKS:  # calendar weeks from Monday, so that all days of one week count alike
                units = ((day - self.start).days + self.start.weekday()) // 7
            case StepUnit.MONTHS:
                units = (day.year - self.start.year) * 12 + day.month - self.start.month
        return day >= self.start and units % self.step == 0


def is_nth(day: date, nth: int) -> bool:
    """Return whether a day is the nth of its weekday in its month, from 1; `LAST` stands for the last."""
    if nth == LAST:
        # The same weekday a week later is in the next month.
        return day.day + 7 > monthrange(day.year, day.month)[1]
    # Days 1 to 7 of a month are the first of their weekday, days 8 to 14 the second.
    return (day.day + 6) // 7 == nth


@dataclass(frozen=True, slots=True, kw_only=True)
class Recurrence:
    """A repeating time: every `interval`, or at `clock` on the days of `rhythm`."""

    first: datetime
    """The first of its times that is ahead."""
    interval: timedelta | None = None
    clock: time = time(0)
    rhythm: Rhythm = Rhythm()

    @property
    def at(self) -> datetime:
        """The first time, under the name that every result has for its moment."""
        return self.first

    def is_on(self, day: date) -> bool:
        """Return whether the time occurs on a day. Only for a recurrence without an interval."""
        return self.rhythm.is_on(day)

    @property
    def cron(self) -> str | None:
        """Return the recurrence in Andy's form of cron, five fields and more; None for an interval.

        `L` is the last day of the month, `2#1` its first Tuesday, `5L` its last Friday. A rhythm that is
        counted from a day has its step behind the fields: `0 8 * * 2 every 2 weeks from 2026-11-24`.
        """
        if self.interval is not None:
            return None
        rhythm = self.rhythm
        day = {None: "*", LAST: "L"}.get(rhythm.month_day, str(rhythm.month_day))
        months = ",".join(map(str, rhythm.months)) or "*"
        place = {None: "", LAST: "L"}.get(rhythm.nth, f"#{rhythm.nth}")
        # In cron, Sunday is 0; here Monday is.
        weekdays = ",".join(f"{(index + 1) % 7}{place}" for index in rhythm.weekdays) or "*"
        counted = f" every {rhythm.step} {rhythm.unit.value} from {rhythm.start}" if rhythm.start else ""
        return f"{self.clock.minute} {self.clock.hour} {day} {months} {weekdays}{counted}"

    @property
    def schedule(self) -> tuple[str, str]:
        """Return (type, value) of a scheduled task of the host that runs at these times.

        They are `interval` with milliseconds, or `cron` with its fields.
        """
        if self.interval is not None:
            return "interval", str(round(self.interval.total_seconds() * 1000))
        return "cron", self.cron or ""

    @classmethod
    def of_schedule(cls, kind: str, value: str, *, first: datetime) -> Recurrence | None:
        """Return the recurrence of a scheduled task with this type (`kind`) and value.

        These have the forms that the property `schedule` returns; None for others. `first` is the task's
        first time ahead.
        """
        if kind == "interval" and value.isdecimal():
            return cls(first=first, interval=timedelta(milliseconds=int(value)))
        return cls.of_cron(value, first=first)

    @classmethod
    def of_cron(cls, cron: str, *, first: datetime) -> Recurrence | None:
        """Return the recurrence that a text of cron describes, in the form that the property `cron` returns.

        Names of days, such as `mon`, may stand for their numbers. Return None if the text has another form,
        or days for which there are no words. `first` is the first time of the recurrence that is ahead.
        """
        numbered = _DAY_NAME.sub(lambda name: str(_DAY_NAMES.index(name[0].lower())), cron)
        match = _CRON.fullmatch(numbered)
        if match is None:
            return None
        days = match["nth_weekday"] or match["weekdays"] or ""
        try:
            months = sorted(set(map(int, match["months"].split(",")))) if match["months"] != "*" else []
            rhythm = Rhythm(
                # In cron, Sunday is 0; here Monday is.
                weekdays=tuple(sorted({(int(digit) + 6) % 7 for digit in days.split(",") if digit})),
                # `#2` → 2, `L` → `LAST`
                nth=_number_or_last((match["nth"] or "*").removeprefix("#")),
                month_day=_number_or_last(match["day"]),
                months=tuple(months) if months != list(range(1, 13)) else (),
                step=int(match["step"] or 1),
                unit=StepUnit(match["unit"] or StepUnit.DAYS),
                start=date.fromisoformat(match["start"]) if match["start"] else None,
            )
            clock = time(int(match["hour"]), int(match["minute"]))
        except ValueError:
            return None
        return cls(first=first, clock=clock, rhythm=rhythm) if rhythm.has_words else None


def _number_or_last(text: str) -> int | None:
    """Return the number in a part of a cron text; `LAST` for `L`, None for `*`."""
    if text == "*":
        return None
    return LAST if text == "L" else int(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeRefusal:
    """The refusal of a text. `at` is the named moment if that is the reason, as when it is past."""

    reason: Reason
    at: datetime | None = None
    choices: tuple[Instant | DateOnly | Duration | Recurrence, ...] = ()
    """The times that an ambiguous text can mean, for the question to ask."""


Reading = Instant | DateOnly | Duration | Recurrence | TimeRefusal


# The parts of a time as written, before the present time is known.


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedZone:
    """A zone word such as `CET`: its offset from UTC, and a place whose clocks show it in its season.

    `New York time` has no fixed offset: it is the time that the clocks of the place show.
    """

    offset: timezone | None = None
    place: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockTime:
    """A time of day as written.

    `is_bare` marks an hour that may be in either half of the day. `minutes_before` are subtracted (`quarter
    to nine`). `offset` is the named offset from UTC, or zone; for an offset that does not exist, it is the
    reason to refuse the time. `is_to_come` marks the midnight after today, or minutes past it, which has its
    day with it.
    """

    hour: int
    minute: int = 0
    second: int = 0
    half: Half | None = None
    is_bare: bool = False
    minutes_before: int = 0
    is_to_come: bool = False
    offset: timezone | NamedZone | Reason | None = None


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
class MonthDay:
    """A day of the month, from 1, in the month that is `months_ahead`; None means the next such day."""

    day: int
    months_ahead: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NthDay:
    """The nth day or weekday of a month, from 1; below 0, counted from the end of the month.

    The month is `month`, or else the one that is `months_ahead`. Without a year, it is the next such day.
    """

    nth: int
    weekday: int | None = None
    month: int | None = None
    year: int | None = None
    months_ahead: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WeekdaysAhead:
    """The `count`th such day of the week after today."""

    index: int
    count: int


WrittenDay = DaysAhead | CalendarDay | MonthDay | NthDay | WeekdaysAhead


@dataclass(frozen=True, slots=True, kw_only=True)
class Weekday:
    """A day of the week; Monday is 0. `weeks_ahead` counts calendar weeks; None means the next such day.

    `is_next` marks `next Friday`, which is ambiguous.
    """

    index: int
    weeks_ahead: int | None = None
    is_next: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeSpan:
    """A span of time from now."""

    months: int = 0
    days: int = 0
    elapsed: timedelta = timedelta(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeat:
    """A repetition as written: an interval, or a rhythm whose `start` is not known yet."""

    interval: timedelta | None = None
    rhythm: Rhythm = Rhythm()


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The written parts of a time, before they are checked and resolved."""

    span: TimeSpan | None = None
    day: WrittenDay | None = None
    weekday: Weekday | None = None
    clock: ClockTime | None = None
    half: Half | None = None
    repeat: Repeat | None = None
    months: tuple[int, ...] | None = None
    """The months in which something repeats."""
    either: tuple[Parts, ...] | None = None
    """The meanings of an ambiguous text: `2/3`."""
    reason: Reason | None = None
    """The question to ask if several meanings remain."""

    def written(self) -> dict[str, object]:
        """Return the parts that are set, by the names of their fields."""
        named = ((part_field.name, getattr(self, part_field.name)) for part_field in fields(self))
        return {name: part for name, part in named if part is not None}

    def meanings(self) -> tuple[Parts, ...]:
        """Return one `Parts` for each meaning of an ambiguous text, combined with the other parts.

        Meanings that do not fit the other parts are left out. Without ambiguity, that is `self` alone.
        """
        if self.either is None:
            return (self,)
        other_parts = replace(self, either=None, reason=None)
        joined = (other_parts.joined(meaning) for meaning in self.either)
        return tuple(meaning for meaning in joined if meaning is not None)

    def joined(self, other: Parts) -> Parts | None:
        """Return these parts and those of `other` combined; None if both name the same one or do not fit."""
        own, others = self._beside(other).written(), other._beside(self).written()
        both = {*own, *others}
        if len(both) < len(own) + len(others) or not _fit_together(both):
            return None
        joined = Parts(**own, **others)  # type: ignore[arg-type] # the names and types are those of the fields
        if joined.either is not None:  # ambiguous: at least one of its meanings has to fit the other parts
            return joined if joined.meanings() else None
        # A time of day fits a span or an interval only if that counts whole days.
        has_clock = "clock" in both or "half" in both
        if joined.span is not None and joined.span.elapsed and has_clock:
            return None
        if joined.repeat is not None and joined.repeat.interval is not None and has_clock:
            return None
        return joined

    def _beside(self, other: Parts) -> Parts:
        """Return these parts for a text with `other` in it, too: midnight is then 12 at night of its days."""
        names_days = bool(other.day or other.weekday or other.repeat)
        names_days |= other.span is not None and not other.span.elapsed
        if self.clock is None or not self.clock.is_to_come or not names_days:
            return self
        clock = replace(self.clock, hour=12, half=Half.NIGHT, is_to_come=False)
        return replace(self, day=None, clock=clock)

    @property
    def has_clock(self) -> bool:
        """Return whether a moment is named, not only days."""
        named = (self.clock, self.span, self.half)
        return any(part is not None for part in named) or any(
            meaning.has_clock for meaning in self.either or ()
        )


def _fit_together(names: set[str]) -> bool:
    """Return whether one time can have parts with these names: at most one of them names days.

    Only a date and its weekday go together. Always true with the name `either`, which stands for several
    meanings: `Parts.meanings` checks each of them.
    """
    days = names & {"span", "repeat", "day", "weekday"}
    return "either" in names or len(days) <= 1 or days == {"day", "weekday"}


# A row of the table

Make = Callable[["re.Match[str]"], Parts | None]


@dataclass(frozen=True, slots=True)
class Shape:
    """The pattern of a form in one language. `make` returns None if a match is no time after all."""

    pattern: str
    make: Make
    examples: tuple[str, ...]

    def match(self, text: str, place: int) -> re.Match[str] | None:
        """Return the match of the pattern at a place of a text; None if it does not match there."""
        return _compiled(self.pattern).match(text, place)


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    """Return a compiled pattern. Each is compiled when it is first needed: most processes read no time."""
    # `re.ASCII` excludes digits of other scripts and letters that look like ASCII ones; Hangul matches.
    return re.compile(pattern, re.IGNORECASE | re.ASCII)


class Where(StrEnum):
    """The positions in a text at which a form is read."""

    ANYWHERE = "anywhere"
    START = "start"
    """The form is read only at the start of a text, which may be the whole text: `9 tomorrow`."""
    WHOLE = "whole"
    """The form is read only as the whole text: within a sentence it may mean something else."""


@dataclass(frozen=True, slots=True)
class Form:
    """One accepted form: its name, its meaning for the documentation, and its patterns."""

    name: str
    meaning: str
    shapes: tuple[Shape, ...]
    where: Where = Where.ANYWHERE
