"""The English shapes of time, and the shapes that are nobody's own: `18:30`, `2026-12-12`."""

from __future__ import annotations

import re
from datetime import timedelta

from agent_runner.agents.offline.rules import Rule
from agent_runner.agents.offline.when import CalendarDay, ClockTime, DaysAhead, Half, Weekday, When

_NUMBERS = {
    "a": 1,
    "an": 1,
    "one": 1,
    "two": 2,
    "three": 3,
    "four": 4,
    "five": 5,
    "six": 6,
    "seven": 7,
    "eight": 8,
    "nine": 9,
    "ten": 10,
    "eleven": 11,
    "twelve": 12,
    "fifteen": 15,
    "twenty": 20,
    "thirty": 30,
    "forty": 40,
    "fifty": 50,
    "sixty": 60,
}
_NUMBER = rf"(?:\d{{1,6}}|(?:{'|'.join(_NUMBERS)})\b)"
_UNIT = r"(?:seconds?|secs?|s|minutes?|mins?|m|hours?|hrs?|h)"
_SECONDS = {"s": 1, "m": 60, "h": 3600}
_SPAN = (
    rf"(?:half\s+an\s+hour|an\s+hour\s+and\s+a\s+half|\d{{1,3}}\.5\s*(?:hours?|hrs?|h)\b"
    rf"|{_NUMBER}\s*{_UNIT}(?:(?:\s+and)?\s*{_NUMBER}\s*{_UNIT}\b)*)"
)
_PIECE = rf"(?P<number>{_NUMBER})(?P<half>\.5)?\s*(?P<unit>[smh])"
_FIXED_SECONDS = {"half an hour": 1800, "an hour and a half": 5400}
_WEEKDAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_WEEKDAY = (
    r"(?:mon(?:day)?|tue(?:s(?:day)?)?|wed(?:nesday)?|thu(?:r(?:s(?:day)?)?)?|fri(?:day)?|sat(?:urday)?"
    r"|sun(?:day)?)"
)
_MONTH = (
    r"(?P<month>jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?"
    r"|sept?(?:ember)?|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)"
)
_DAY = r"(?P<day>\d{1,2})(?:st|nd|rd|th)?"
_YEAR = r"(?:,?\s+(?P<year>\d{4})(?![\d:]))?"
_MERIDIEM = r"(?P<half>[ap]m\b|[ap]\.m\.)"
_HALF = r"(?P<half>morning|afternoon|evening)"


def _elapsed(match: re.Match[str]) -> When:
    words = " ".join(match["span"].lower().split())
    if words in _FIXED_SECONDS:
        return When(elapsed=timedelta(seconds=_FIXED_SECONDS[words]))
    pieces = re.finditer(_PIECE, words, re.ASCII)
    return When(elapsed=timedelta(seconds=sum(_seconds(piece) for piece in pieces)))


def _seconds(piece: re.Match[str]) -> float:
    return (_number(piece["number"]) + (0.5 if piece["half"] else 0)) * _SECONDS[piece["unit"]]


def _number(word: str) -> int:
    return int(word) if word.isdecimal() else _NUMBERS[word.lower()]


def _days(match: re.Match[str]) -> When:
    days = 7 if match["unit"].lower().startswith("week") else 1
    return When(day=DaysAhead(days=_number(match["number"]) * days, keeps_clock=True))


def _near_day(match: re.Match[str]) -> When:
    word = match["day"].lower()
    if word == "tonight":
        return When(day=DaysAhead(days=0), half=Half.NIGHT)
    return When(day=DaysAhead(days={"today": 0, "tomorrow": 1}.get(word, 2)))


def _this_half(match: re.Match[str]) -> When:
    return When(day=DaysAhead(days=0), half=Half(match["half"].lower()))


def _half(match: re.Match[str]) -> When:
    return When(half=Half(match["half"].lower()))


def _weekday(match: re.Match[str]) -> When:
    is_next = (match["which"] or "").lower() == "next"
    return When(weekday=Weekday(index=_WEEKDAYS.index(match["day"].lower()[:3]), is_next=is_next))


def _iso_day(match: re.Match[str]) -> When:
    return When(day=CalendarDay(year=int(match["year"]), month=int(match["month"]), day=int(match["day"])))


def _named_month(match: re.Match[str]) -> When:
    year = int(match["year"]) if match["year"] else None
    return When(day=CalendarDay(year=year, month=match["month"].lower(), day=int(match["day"])))


def _clock(match: re.Match[str]) -> When:
    parts = match.groupdict()
    half, minute = parts.get("half"), parts.get("minute")
    return When(
        clock=ClockTime(
            hour=int(match["hour"]),
            minute=int(minute or 0),
            second=int(parts.get("second") or 0),
            half=Half(half.lower().replace(".", "")) if half else None,
            is_bare=minute is None and half is None,
        )
    )


def _noon(_match: re.Match[str]) -> When:
    return When(clock=ClockTime(hour=12))


# Longer shapes first: the first that matches is taken.
ATOMS = (
    Rule(rf"in\s+(?P<span>{_SPAN})", _elapsed),
    Rule(rf"(?P<span>{_SPAN})\s+from\s+now", _elapsed),
    Rule(rf"in\s+(?P<number>{_NUMBER})\s+(?P<unit>days?|weeks?)", _days),
    Rule(rf"(?P<number>{_NUMBER})\s+(?P<unit>days?|weeks?)\s+from\s+now", _days),
    Rule(r"(?P<day>(?:the\s+)?day\s+after\s+tomorrow|today|tomorrow|tonight)", _near_day),
    Rule(r"(?:on\s+)?(?P<year>\d{4})-(?P<month>\d{1,2})-(?P<day>\d{1,2})(?!\d)", _iso_day),
    Rule(rf"(?:on\s+)?(?:the\s+)?{_DAY}\s+(?:of\s+)?{_MONTH}\b\.?{_YEAR}", _named_month),
    Rule(rf"(?:on\s+)?{_MONTH}\.?\s+(?:the\s+)?{_DAY}(?![\d:]){_YEAR}", _named_month),
    Rule(rf"this\s+{_HALF}", _this_half),
    Rule(rf"(?:in\s+the\s+)?{_HALF}", _half),
    Rule(rf"(?:on\s+)?(?:(?P<which>this|next)\s+)?(?P<day>{_WEEKDAY})\b", _weekday),
    Rule(
        r"(?:at\s+|@\s*)?(?P<hour>\d{1,2}):(?P<minute>\d{2})(?::(?P<second>\d{2}))?"
        rf"(?:\s*{_MERIDIEM})?(?:에)?",
        _clock,
    ),
    Rule(rf"(?:at\s+|@\s*)?(?P<hour>\d{{1,2}})\s*{_MERIDIEM}", _clock),
    Rule(r"at\s+(?P<hour>\d{1,2})(?:\s*o'clock)?(?![\d:])", _clock),
    Rule(r"(?:at\s+)?noon", _noon),
)
