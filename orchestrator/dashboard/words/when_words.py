"""The words for times, English and Korean: a text as a whole, or nothing. Pure; no clock is looked at.

Digits are ASCII: others look alike and are refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date, time, timedelta

_NOON = 12
_LEAP_CYCLE_YEARS = 9
_UNITS = {
    "s": ("s", "sec", "secs", "second", "seconds", "초"),
    "m": ("m", "min", "mins", "minute", "minutes", "분"),
    "h": ("h", "hr", "hrs", "hour", "hours", "시간"),
    "d": ("d", "day", "days", "일"),
    "w": ("w", "week", "weeks", "주", "주일"),
}
_UNIT_OF = {word: unit for unit, words in _UNITS.items() for word in words}
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
_AMOUNT = re.compile(
    r"(\d{1,12}(?:\.\d{1,6})?|an?)\s*([a-z]+|시간|분|초|일|주일|주)\s*(반)?(?:\s*,?\s*(?:and\s+)?)", re.ASCII
)
_ENGLISH_AHEAD = re.compile(r"in\s+(.+)|(.+?)\s+from\s+now|((?:\d+[a-z]\s?)+)", re.ASCII)
_KOREAN_AHEAD = re.compile(r"(.+?)\s*(?:후|뒤)(?:에)?", re.ASCII)
_KOREAN_DAYS = {"하루": 1, "이틀": 2, "사흘": 3, "나흘": 4, "일주일": 7, "한 주": 7}
_KOREAN_NUMBERS = ("한", "두", "세", "네", "다섯", "여섯", "일곱", "여덟", "아홉", "열", "열한", "열두")
_COUNTED = re.compile(r"(열한|열두|[한두세네열]|다섯|여섯|일곱|여덟|아홉)\s?(?=시)")
_DAYS = {
    "today": 0,
    "tomorrow": 1,
    "day after tomorrow": 2,
    "the day after tomorrow": 2,
    "오늘": 0,
    "내일": 1,
    "모레": 2,
    "내일모레": 2,
    "글피": 3,
}
_WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_WEEKDAYS_KO = "월화수목금토일"
_MONTHS = (
    *("january", "february", "march", "april", "may", "june"),
    *("july", "august", "september", "october", "november", "december"),
)
_PARTS = {
    "dawn": time(6),
    "morning": time(9),
    "forenoon": time(10),
    "noon": time(12),
    "afternoon": time(14),
    "evening": time(18),
    "night": time(21),
    "새벽": time(6),
    "아침": time(9),
    "오전": time(10),
    "정오": time(12),
    "낮": time(12),
    "점심": time(12),
    "오후": time(14),
    "저녁": time(18),
    "밤": time(21),
}
_KOREAN_HOURS = {
    "오전": {12: 0} | {hour: hour for hour in range(1, 12)},
    "오후": {12: 12} | {hour: hour + 12 for hour in range(1, 12)},
    "새벽": {hour: hour for hour in range(1, 7)},
    "아침": {hour: hour for hour in range(5, 12)},
    "낮": {11: 11, 12: 12} | {hour: hour + 12 for hour in range(1, 6)},
    "저녁": {hour: hour + 12 for hour in range(5, 12)},
    "밤": {hour: hour + 12 for hour in range(7, 12)},
    # Without a half, hours that only one half has, and those that people mean in the morning.
    "": {hour: hour for hour in (0, *range(7, 24))},
}
_CLOCK = re.compile(r"(?:at\s+)?(\d{1,2})(?::(\d{2}))?(?:\s*(am|pm|a\.m\.|p\.m\.))?", re.ASCII)
_CLOCK_KO = re.compile(
    r"(오전|오후|새벽|아침|낮|저녁|밤)?\s*(\d{1,2})시\s*(?:(\d{1,2})분|(반))?(?:에)?", re.ASCII
)
_CLOCK_KO_DIGITS = re.compile(r"(오전|오후)\s*(\d{1,2}):(\d{2})(?:에)?", re.ASCII)
_DATE_KO = re.compile(r"(?:(\d{4})년\s*)?(\d{1,2})월\s*(\d{1,2})일", re.ASCII)
_WEEKDAY_KO = re.compile(r"(?:(이번|다음|다다음)\s*주?\s*)?([월화수목금토일])요일", re.ASCII)
_DATE_EN = re.compile(
    r"(?:on\s+)?(?:([a-z]{3,9})\.?\s+(\d{1,2})(?:st|nd|rd|th)?|(\d{1,2})(?:st|nd|rd|th)?\s+(?:of\s+)?([a-z]{3,9})\.?)"
    r"(?:,?\s+(\d{4}))?",
    re.ASCII,
)
_WEEKDAY_EN = re.compile(r"(?:on\s+)?(?:(this|next)\s+)?([a-z]{3,9})", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Weekday:
    """A day of the week, Monday is 0; `weeks` counts calendar weeks, None is the first one after today."""

    index: int
    weeks: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MonthDay:
    month: int
    day: int
    year: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """The parts that were said."""

    days_ahead: int | None = None
    """With the clock kept: in two days, at this time."""
    elapsed: timedelta | None = None
    days: int | None = None
    weekday: Weekday | None = None
    month_day: MonthDay | None = None
    clock: time | None = None

    def day(self, today: date) -> date | None:
        """The day that was said, seen from today; None when none was, or there is none."""
        if self.days is not None:
            return today + timedelta(days=self.days)
        if self.weekday is not None:
            return _weekday(self.weekday, today)
        return None if self.month_day is None else _month_day(self.month_day, today)


def read(said: str) -> Words | None:
    """Read a text that is in lower case, with single spaces; None when any of it is no known form."""
    said = _COUNTED.sub(lambda found: str(_KOREAN_NUMBERS.index(found[1]) + 1), said)
    if said in _PARTS:
        return Words(days=0, clock=_PARTS[said])
    if said == "tonight":
        return Words(days=0, clock=_PARTS["night"])
    return _ahead(said) or _on_a_day(said)


def _ahead(said: str) -> Words | None:
    korean = _KOREAN_AHEAD.fullmatch(said)
    if korean and korean[1] in _KOREAN_DAYS:
        return Words(days_ahead=_KOREAN_DAYS[korean[1]])
    found = korean or _ENGLISH_AHEAD.fullmatch(said)
    return None if found is None else _amounts(next(part for part in found.groups() if part))


def _amounts(said: str) -> Words | None:
    """Add up `2 hours 30 minutes`; whole days and weeks count by the calendar."""
    days, seconds, place = 0, 0.0, 0
    units: set[str] = set()
    while place < len(said):
        found = _AMOUNT.match(said, place)
        unit = _UNIT_OF.get(found[2]) if found else None
        if found is None or unit is None or unit in units:
            return None
        units.add(unit)
        amount = (1.0 if found[1].startswith("a") else float(found[1])) + (0.5 if found[3] else 0.0)
        if unit in ("d", "w") and amount.is_integer():
            days += int(amount) * (7 if unit == "w" else 1)
        else:
            seconds += amount * _SECONDS[unit]
        place = found.end()
    is_calendar = bool(units & {"d", "w"})
    return Words(days_ahead=days if is_calendar else None, elapsed=timedelta(seconds=seconds))


def _on_a_day(said: str) -> Words | None:
    """A day, a time of day, or both in either order."""
    if (whole := _day(said) or _clock_only(said)) is not None:
        return whole
    pieces = said.split(" ")
    for cut in range(1, len(pieces)):
        first, second = " ".join(pieces[:cut]).rstrip(","), " ".join(pieces[cut:])
        if (joined := _joined(first, second) or _joined(second, first)) is not None:
            return joined
    return None


def _joined(day_said: str, clock_said: str) -> Words | None:
    clock = _clock(clock_said)
    day = Words(days=0) if day_said == "tonight" else _day(day_said)
    if clock is None or day is None:
        return None
    if day_said == "tonight" and clock < time(_NOON):
        return None
    return Words(days=day.days, weekday=day.weekday, month_day=day.month_day, clock=clock)


def _clock_only(said: str) -> Words | None:
    clock = _clock(said)
    return None if clock is None else Words(clock=clock)


def _day(said: str) -> Words | None:
    if said in _DAYS:
        return Words(days=_DAYS[said])
    if korean := _WEEKDAY_KO.fullmatch(said):
        weeks = {None: None, "이번": 0, "다음": 1, "다다음": 2}[korean[1]]
        return Words(weekday=Weekday(index=_WEEKDAYS_KO.index(korean[2]), weeks=weeks))
    if korean := _DATE_KO.fullmatch(said):
        year = int(korean[1]) if korean[1] else None
        return Words(month_day=MonthDay(month=int(korean[2]), day=int(korean[3]), year=year))
    return _english_weekday(said) or _english_date(said)


def _english_weekday(said: str) -> Words | None:
    found = _WEEKDAY_EN.fullmatch(said)
    index = None if found is None else _place(found[2], _WEEKDAYS)
    if found is None or index is None:
        return None
    weeks = {"this": 0, "next": 1, None: None}[found[1]]
    return Words(weekday=Weekday(index=index, weeks=weeks))


def _english_date(said: str) -> Words | None:
    found = _DATE_EN.fullmatch(said)
    index = None if found is None else _place(found[1] or found[4], _MONTHS)
    if found is None or index is None:
        return None
    year = int(found[5]) if found[5] else None
    return Words(month_day=MonthDay(month=index + 1, day=int(found[2] or found[3]), year=year))


def _place(word: str, names: tuple[str, ...]) -> int | None:
    """Which of the names it is, in full or by three or four letters (`sept`)."""
    fitting = [
        at for at, name in enumerate(names) if name == word or (len(word) <= 4 and name.startswith(word))
    ]
    return fitting[0] if len(fitting) == 1 else None


def _clock(said: str) -> time | None:
    if said in _PARTS:
        return _PARTS[said]
    if said.startswith("in the ") and said[7:] in _PARTS:
        return _PARTS[said[7:]]
    for pattern, made in (
        (_CLOCK, _english_clock),
        (_CLOCK_KO, _korean_clock),
        (_CLOCK_KO_DIGITS, _korean_digits),
    ):
        if found := pattern.fullmatch(said):
            return made(found)
    return None


def _english_clock(found: re.Match[str]) -> time | None:
    """`9am`, `9:30 pm`, `18:00`; an hour alone could be either half."""
    hour, minute, half = int(found[1]), int(found[2] or 0), (found[3] or "")[:1]
    if half:
        if not 1 <= hour <= _NOON:
            return None
        hour = hour % _NOON + (_NOON if half == "p" else 0)
    elif found[2] is None:
        return None
    return _time(hour, minute)


def _korean_clock(found: re.Match[str]) -> time | None:
    hour = _KOREAN_HOURS[found[1] or ""].get(int(found[2]))
    minute = 30 if found[4] else int(found[3] or 0)
    return None if hour is None else _time(hour, minute)


def _korean_digits(found: re.Match[str]) -> time | None:
    hour = _KOREAN_HOURS[found[1]].get(int(found[2]))
    return None if hour is None else _time(hour, int(found[3]))


def _time(hour: int, minute: int) -> time | None:
    return time(hour, minute) if hour < 24 and minute < 60 else None


def _weekday(weekday: Weekday, today: date) -> date:
    if weekday.weeks is None:
        return today + timedelta(days=(weekday.index - today.weekday() - 1) % 7 + 1)
    monday = today - timedelta(days=today.weekday()) + timedelta(weeks=weekday.weeks)
    return monday + timedelta(days=weekday.index)


def _month_day(said: MonthDay, today: date) -> date | None:
    years = [said.year] if said.year else range(today.year, today.year + _LEAP_CYCLE_YEARS)
    for year in years:
        try:
            found = date(year, said.month, said.day)
        except ValueError:
            continue
        if said.year or found >= today:
            return found
    return None
