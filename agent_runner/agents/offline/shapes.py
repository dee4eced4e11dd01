"""The shapes of time that are read, English and Korean; anything else is no time here.

A time is a run of atoms ("tomorrow", "at 9am"). Each atom is a pattern and a function that reads its
match. What is not in this table is refused elsewhere, never guessed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

from agent_runner.agents.offline.rules import Rule
from agent_runner.agents.offline.when import (
    CalendarDay,
    ClockTime,
    DaysAhead,
    Half,
    Weekday,
    When,
)

MAX_TIME_CHARS = 80

_ENGLISH_NUMBERS = {
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
_NATIVE_KO = ("한", "두", "세", "네", "다섯", "여섯", "일곱", "여덟", "아홉", "열", "열한", "열두")
_DIGITS_KO = "일이삼사오육칠팔구"
_NUM = rf"(?:\d{{1,6}}|(?:{'|'.join(_ENGLISH_NUMBERS)})\b)"
_SU = (
    rf"(?:\d{{1,6}}|{'|'.join(reversed(_NATIVE_KO))}"
    rf"|[{_DIGITS_KO}]?십[{_DIGITS_KO}]?|[{_DIGITS_KO}])"
)

_SECONDS = {"s": 1, "m": 60, "h": 3600, "초": 1, "분": 60, "시": 3600}
_UNIT = r"(?:seconds?|secs?|s|minutes?|mins?|m|hours?|hrs?|h)\b"
_SPAN = (
    rf"(?:half\s+an\s+hour|an\s+hour\s+and\s+a\s+half|\d{{1,3}}\.5\s*(?:hours?|hrs?|h)\b"
    rf"|{_NUM}\s*(?:seconds?|secs?|s|minutes?|mins?|m|hours?|hrs?|h)(?:(?:\s+and)?\s*{_NUM}\s*{_UNIT})*)"
)
_PIECE = re.compile(
    rf"(?P<n>{_NUM}|{_SU})(?P<decimal>\.5)?\s*(?P<unit>[smh초분]|시간)(?P<half>\s*반)?", re.IGNORECASE
)
_HALF_HOURS = {"half an hour": 1800, "an hour and a half": 5400, "반시간": 1800}

WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_WEEKDAY = (
    r"(?:mon(?:day)?|tue(?:s(?:day)?)?|wed(?:nesday)?|thu(?:r(?:s(?:day)?)?)?|fri(?:day)?|sat(?:urday)?"
    r"|sun(?:day)?)"
)
_MONTH = (
    r"(?:jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?"
    r"|sept?(?:ember)?|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)"
)
_YOIL = "월화수목금토일"
_DAYS_KO = {"오늘": 0, "내일": 1, "모레": 2, "내일모레": 2, "글피": 3}
_SPANS_KO = {"하루": 1, "이틀": 2, "사흘": 3, "나흘": 4, "일주일": 7, "한주": 7}
_HALVES_KO = {
    "오전": Half.AM,
    "오후": Half.PM,
    "새벽": Half.DAWN,
    "아침": Half.MORNING,
    "낮": Half.MIDDAY,
    "저녁": Half.EVENING,
    "밤": Half.NIGHT,
}


def _number(word: str) -> int:
    if word.isdecimal():
        return int(word)
    if word in _NATIVE_KO:
        return _NATIVE_KO.index(word) + 1
    return _ENGLISH_NUMBERS.get(word.lower()) or _sino_korean(word)


def _sino_korean(word: str) -> int:
    tens, ten, ones = word.rpartition("십")
    return ((_DIGITS_KO.find(tens) + 1 if tens else 1) * 10 if ten else 0) + (
        _DIGITS_KO.index(ones) + 1 if ones else 0
    )


def _elapsed(match: re.Match[str]) -> When:
    words = " ".join(match["span"].lower().split())
    fixed = _HALF_HOURS.get(words.replace("반 시간", "반시간"))
    seconds = fixed if fixed is not None else sum(_piece_seconds(piece) for piece in _PIECE.finditer(words))
    return When(elapsed=timedelta(seconds=seconds))


def _piece_seconds(piece: re.Match[str]) -> float:
    unit = _SECONDS[piece["unit"][0]]
    return (_number(piece["n"]) + (0.5 if piece["decimal"] or piece["half"] else 0)) * unit


def _days(match: re.Match[str]) -> When:
    weeks = match["unit"].lower().startswith(("week", "주"))
    return When(day=DaysAhead(days=_number(match["n"]) * (7 if weeks else 1), keeps_clock=True))


def _days_korean(match: re.Match[str]) -> When:
    return When(day=DaysAhead(days=_SPANS_KO["".join(match["word"].split())], keeps_clock=True))


def _near_day(match: re.Match[str]) -> When:
    word = match["day"].lower()
    if word == "tonight":
        return When(day=DaysAhead(days=0), half=Half.NIGHT)
    return When(day=DaysAhead(days={"today": 0, "tomorrow": 1}.get(word, 2)))


def _near_day_korean(match: re.Match[str]) -> When:
    return When(day=DaysAhead(days=_DAYS_KO[match["day"]]))


def _this_half(match: re.Match[str]) -> When:
    return When(day=DaysAhead(days=0), half=Half(match["half"].lower()))


def _half(match: re.Match[str]) -> When:
    return When(half=Half(match["half"].lower()))


def _weekday(match: re.Match[str]) -> When:
    which = (match["which"] or "").lower()
    short = match["day"].lower()[:3]
    index = next(number for number, name in enumerate(WEEKDAYS) if name.startswith(short))
    return When(weekday=Weekday(index=index, weeks_ahead=None, is_next=which == "next"))


def _weekday_korean(match: re.Match[str]) -> When:
    ahead = {"이번": 0, "다음": 1, "다다음": 2}.get(match["which"] or "")
    return When(weekday=Weekday(index=_YOIL.index(match["day"]), weeks_ahead=ahead))


def _weekday_mark(match: re.Match[str]) -> When:
    return When(weekday=Weekday(index=_YOIL.index(match["day"])))


def _calendar_day(match: re.Match[str]) -> When:
    year = int(match["year"]) if match["year"] else None
    return When(day=CalendarDay(year=year, month=int(match["month"]), day=int(match["day"])))


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


def _clock_korean(match: re.Match[str]) -> When:
    half = _HALVES_KO.get(match["half"] or "")
    minute = 30 if match["semi"] else _number(match["minute"]) if match["minute"] else 0
    return When(clock=ClockTime(hour=_number(match["hour"]), minute=minute, half=half, is_bare=half is None))


def _clock_korean_digits(match: re.Match[str]) -> When:
    half = _HALVES_KO[match["half"]]
    return When(clock=ClockTime(hour=int(match["hour"]), minute=int(match["minute"]), half=half))


def _noon(_match: re.Match[str]) -> When:
    return When(clock=ClockTime(hour=12))


_MERIDIEM = r"(?P<half>[ap]m\b|[ap]\.m\.)"
_AFTER_KO = r"(?:뒤|후|있다가|이따가)(?:에)?"
_HALF_KO = "|".join(_HALVES_KO)

# Longer shapes first: the first that matches is taken.
_ATOMS = (
    Rule(rf"in\s+(?P<span>{_SPAN})", _elapsed),
    Rule(rf"(?P<span>{_SPAN})\s+from\s+now", _elapsed),
    Rule(rf"(?P<span>(?:{_SU}\s*(?:시간(?:\s*반)?|분|초)\s*)+|반\s*시간\s*){_AFTER_KO}", _elapsed),
    Rule(rf"in\s+(?P<n>{_NUM})\s+(?P<unit>days?|weeks?)", _days),
    Rule(rf"(?P<n>{_NUM})\s+(?P<unit>days?|weeks?)\s+from\s+now", _days),
    Rule(rf"(?P<word>하루|이틀|사흘|나흘|일주일|한\s*주)\s*{_AFTER_KO}", _days_korean),
    Rule(rf"(?P<n>{_SU})\s*(?P<unit>주일?|일)\s*{_AFTER_KO}", _days),
    Rule(r"(?P<day>(?:the\s+)?day\s+after\s+tomorrow|today|tomorrow|tonight)", _near_day),
    Rule(r"(?P<day>내일모레|오늘|내일|모레|글피)", _near_day_korean),
    Rule(r"(?:on\s+)?(?P<year>\d{4})-(?P<month>\d{1,2})-(?P<day>\d{1,2})(?!\d)", _calendar_day),
    Rule(r"(?:(?P<year>\d{4})년\s*)?(?P<month>\d{1,2})월\s*(?P<day>\d{1,2})일(?:에)?", _calendar_day),
    Rule(
        rf"(?:on\s+)?(?:the\s+)?(?P<day>\d{{1,2}})(?:st|nd|rd|th)?\s+(?:of\s+)?(?P<month>{_MONTH})\b\.?"
        r"(?:,?\s+(?P<year>\d{4})(?![\d:]))?",
        _named_month,
    ),
    Rule(
        rf"(?:on\s+)?(?P<month>{_MONTH})\.?\s+(?:the\s+)?(?P<day>\d{{1,2}})(?:st|nd|rd|th)?(?![\d:])"
        r"(?:,?\s+(?P<year>\d{4})(?![\d:]))?",
        _named_month,
    ),
    Rule(r"this\s+(?P<half>morning|afternoon|evening)", _this_half),
    Rule(r"(?:in\s+the\s+)?(?P<half>morning|afternoon|evening)", _half),
    Rule(rf"(?:on\s+)?(?:(?P<which>this|next)\s+)?(?P<day>{_WEEKDAY})\b", _weekday),
    Rule(rf"(?:(?P<which>이번|다음|다다음)\s*주\s*)?(?P<day>[{_YOIL}])요일(?:에)?", _weekday_korean),
    Rule(rf"\((?P<day>[{_YOIL}])\)", _weekday_mark),
    Rule(rf"(?P<half>{_HALF_KO})\s*(?P<hour>\d{{1,2}}):(?P<minute>\d{{2}})(?:에)?", _clock_korean_digits),
    Rule(
        rf"(?:(?P<half>{_HALF_KO})\s*)?(?P<hour>{_SU})\s*시(?!간)"
        rf"(?:\s*(?:(?P<minute>{_SU})\s*분|(?P<semi>반)(?=에|[\s,:]|$)))?(?:에)?",
        _clock_korean,
    ),
    Rule(
        rf"(?:at\s+|@\s*)?(?P<hour>\d{{1,2}}):(?P<minute>\d{{2}})(?::(?P<second>\d{{2}}))?(?:\s*{_MERIDIEM})?(?:에)?",
        _clock,
    ),
    Rule(rf"(?:at\s+|@\s*)?(?P<hour>\d{{1,2}})\s*{_MERIDIEM}", _clock),
    Rule(r"at\s+(?P<hour>\d{1,2})(?:\s*o'clock)?(?![\d:])", _clock),
    Rule(r"(?:at\s+)?noon|정오(?:에)?", _noon),
)
_GAP = re.compile(r"(?:[\s,]+|T(?=\d))?")
_EDGE = re.compile(r"\s|[,:;](?:\s|$)|[.!]?$")
_WORD_START = re.compile(r"(?:(?<=\s)|^)\S")


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A time in a text, from `start` up to `end`."""

    when: When
    start: int
    end: int


def leading(text: str) -> Found | None:
    """Read the longest time at the start of `text`, or None."""
    return max(_runs(text, 0), key=lambda found: found.end, default=None)


def trailing(text: str) -> Found | None:
    """Read the longest time that ends `text`, or None."""
    text = text.rstrip()
    for start in _WORD_START.finditer(text, max(0, len(text) - MAX_TIME_CHARS)):
        for found in _runs(text, start.start()):
            if found.end == len(text):
                return found
    return None


def _runs(text: str, start: int) -> Iterator[Found]:
    """Every run of atoms from `start` that ends where a word ends, shortest first."""
    when, place = When(), start
    while step := _next_atom(text, place, when):
        when, place = step.when, step.end
        if _EDGE.match(text, place):
            yield Found(when=when, start=start, end=place)
        gap = _GAP.match(text, place)
        place = gap.end() if gap else place


def _next_atom(text: str, place: int, so_far: When) -> Found | None:
    for atom in _ATOMS:
        match = atom.at(text, place)
        if match and (joined := so_far.joined(atom.make(match))):
            return Found(when=joined, start=place, end=match.end())
    return None
