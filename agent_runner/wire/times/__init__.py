"""The one reader of times in words, English and Korean. Pure: `now`, zone and policy are arguments.

`read` turns a whole text into a named result; `leading` and `trailing` find a time at the start or end of a
longer text; `say` writes a result in words that `read` reads as the same result. The table in `forms` has all
accepted forms; any other text is refused with a reason, never guessed. Start with `reader.py`.
"""

from __future__ import annotations

from agent_runner.wire.times.model import (
    LAST,
    AskHalf,
    DateOnly,
    Duration,
    Instant,
    MonthDay,
    Reading,
    Reason,
    Recurrence,
    Rhythm,
    Shift,
    StepUnit,
    TimePolicy,
    TimeRefusal,
)
from agent_runner.wire.times.reader import MAX_CHARS, TimeInText, is_time, leading, normalized, read, trailing
from agent_runner.wire.times.saying import Language, say, say_choices, say_day, say_long_day, say_moment
from agent_runner.wire.times.zones import names_town_time

__all__ = [
    "LAST",
    "MAX_CHARS",
    "AskHalf",
    "DateOnly",
    "Duration",
    "Instant",
    "Language",
    "MonthDay",
    "Reading",
    "Reason",
    "Recurrence",
    "Rhythm",
    "Shift",
    "StepUnit",
    "TimeInText",
    "TimePolicy",
    "TimeRefusal",
    "is_time",
    "leading",
    "names_town_time",
    "normalized",
    "read",
    "say",
    "say_choices",
    "say_day",
    "say_long_day",
    "say_moment",
    "trailing",
]
