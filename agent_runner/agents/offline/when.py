"""The parts of a time that somebody wrote, before a clock has been looked at."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum


class Half(StrEnum):
    """What tells the two nines of a day apart."""

    AM = "am"
    PM = "pm"
    DAWN = "dawn"
    MORNING = "morning"
    MIDDAY = "midday"
    AFTERNOON = "afternoon"
    EVENING = "evening"
    NIGHT = "night"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockTime:
    """A time of day as written. `is_bare` means an hour alone, where 1 to 12 could be either half."""

    hour: int
    minute: int = 0
    second: int = 0
    half: Half | None = None
    is_bare: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DaysAhead:
    """So many days from today. `keeps_clock`: without a time of day it means the same one as now."""

    days: int
    keeps_clock: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CalendarDay:
    """A day of a calendar; without a year, the next one there is. A month by name is still unread."""

    month: int | str
    day: int
    year: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Weekday:
    """A day of the week, Monday is 0. `weeks_ahead` counts calendar weeks, None is the next one there is."""

    index: int
    weeks_ahead: int | None = None
    is_next: bool = False


Day = DaysAhead | CalendarDay


@dataclass(frozen=True, slots=True, kw_only=True)
class When:
    """What was written about a time. Nothing here has been checked yet."""

    elapsed: timedelta | None = None
    day: Day | None = None
    weekday: Weekday | None = None
    clock: ClockTime | None = None
    half: Half | None = None

    def fields(self) -> dict[str, object]:
        """The parts that were written."""
        every = {
            "elapsed": self.elapsed,
            "day": self.day,
            "weekday": self.weekday,
            "clock": self.clock,
            "half": self.half,
        }
        return {name: part for name, part in every.items() if part is not None}

    def joined(self, other: When) -> When | None:
        """Both together, or None when they say the same thing twice or a duration meets a date."""
        mine, theirs = self.fields(), other.fields()
        both = mine | theirs
        if len(both) < len(mine) + len(theirs) or ("elapsed" in both and len(both) > 1):
            return None
        return When(**both)  # type: ignore[arg-type] # the names and types are those of `fields`

    @property
    def is_complete(self) -> bool:
        """Whether no part is missing to name a moment."""
        keeps_clock = isinstance(self.day, DaysAhead) and self.day.keeps_clock
        return self.elapsed is not None or self.clock is not None or keeps_clock
