"""The Korean shapes of time."""

from __future__ import annotations

import re
from datetime import timedelta

from agent_runner.agents.offline.rules import Rule
from agent_runner.agents.offline.when import CalendarDay, ClockTime, DaysAhead, Half, Weekday, When

_NATIVE = ("한", "두", "세", "네", "다섯", "여섯", "일곱", "여덟", "아홉", "열", "열한", "열두")
_DIGITS = "일이삼사오육칠팔구"
_NUMBER = rf"(?:\d{{1,6}}|{'|'.join(reversed(_NATIVE))}|[{_DIGITS}]?십[{_DIGITS}]?|[{_DIGITS}])"
_SECONDS = {"초": 1, "분": 60, "시간": 3600}
_PIECE = rf"(?P<number>{_NUMBER})\s*(?P<unit>시간|분|초)(?P<half>\s*반)?"
_HALF_HOUR = "반시간"
_AFTER = r"(?:뒤|후|있다가|이따가)(?:에)?"
_DAYS = {"오늘": 0, "내일": 1, "모레": 2, "내일모레": 2, "글피": 3}
_DAY_SPANS = {"하루": 1, "이틀": 2, "사흘": 3, "나흘": 4, "일주일": 7, "한주": 7}
_YOIL = "월화수목금토일"
_WEEKS = {"이번": 0, "다음": 1, "다다음": 2}
_HALVES = {
    "오전": Half.AM,
    "오후": Half.PM,
    "새벽": Half.DAWN,
    "아침": Half.MORNING,
    "낮": Half.MIDDAY,
    "저녁": Half.EVENING,
    "밤": Half.NIGHT,
}
_HALF = "|".join(_HALVES)


def _elapsed(match: re.Match[str]) -> When:
    words = "".join(match["span"].split())
    if words == _HALF_HOUR:
        return When(elapsed=timedelta(minutes=30))
    pieces = re.finditer(_PIECE, words, re.ASCII)
    return When(elapsed=timedelta(seconds=sum(_seconds(piece) for piece in pieces)))


def _seconds(piece: re.Match[str]) -> float:
    return (_number(piece["number"]) + (0.5 if piece["half"] else 0)) * _SECONDS[piece["unit"]]


def _number(word: str) -> int:
    if word.isdecimal():
        return int(word)
    if word in _NATIVE:
        return _NATIVE.index(word) + 1
    tens, ten, ones = word.rpartition("십")
    return (_digit(tens) or 1 if ten else 0) * 10 + _digit(ones)


def _digit(word: str) -> int:
    return _DIGITS.index(word) + 1 if word else 0


def _days(match: re.Match[str]) -> When:
    days = 7 if match["unit"].startswith("주") else 1
    return When(day=DaysAhead(days=_number(match["number"]) * days, keeps_clock=True))


def _day_span(match: re.Match[str]) -> When:
    return When(day=DaysAhead(days=_DAY_SPANS["".join(match["word"].split())], keeps_clock=True))


def _near_day(match: re.Match[str]) -> When:
    return When(day=DaysAhead(days=_DAYS[match["day"]]))


def _calendar_day(match: re.Match[str]) -> When:
    year = int(match["year"]) if match["year"] else None
    return When(day=CalendarDay(year=year, month=int(match["month"]), day=int(match["day"])))


def _weekday(match: re.Match[str]) -> When:
    weeks_ahead = _WEEKS.get(match["which"] or "")
    return When(weekday=Weekday(index=_YOIL.index(match["day"]), weeks_ahead=weeks_ahead))


def _weekday_mark(match: re.Match[str]) -> When:
    return When(weekday=Weekday(index=_YOIL.index(match["day"])))


def _clock(match: re.Match[str]) -> When:
    half = _HALVES.get(match["half"] or "")
    minute = 30 if match["semi"] else _number(match["minute"]) if match["minute"] else 0
    return When(clock=ClockTime(hour=_number(match["hour"]), minute=minute, half=half, is_bare=half is None))


def _digits(match: re.Match[str]) -> When:
    half = _HALVES[match["half"]]
    return When(clock=ClockTime(hour=int(match["hour"]), minute=int(match["minute"]), half=half))


def _noon(_match: re.Match[str]) -> When:
    return When(clock=ClockTime(hour=12))


# Longer shapes first: the first that matches is taken.
ATOMS = (
    Rule(rf"(?P<span>(?:{_NUMBER}\s*(?:시간(?:\s*반)?|분|초)\s*)+|반\s*시간\s*){_AFTER}", _elapsed),
    Rule(rf"(?P<word>하루|이틀|사흘|나흘|일주일|한\s*주)\s*{_AFTER}", _day_span),
    Rule(rf"(?P<number>{_NUMBER})\s*(?P<unit>주일?|일)\s*{_AFTER}", _days),
    Rule(r"(?P<day>내일모레|오늘|내일|모레|글피)", _near_day),
    Rule(r"(?:(?P<year>\d{4})년\s*)?(?P<month>\d{1,2})월\s*(?P<day>\d{1,2})일(?:에)?", _calendar_day),
    Rule(rf"(?:(?P<which>이번|다음|다다음)\s*주\s*)?(?P<day>[{_YOIL}])요일(?:에)?", _weekday),
    Rule(rf"\((?P<day>[{_YOIL}])\)", _weekday_mark),
    Rule(rf"(?P<half>{_HALF})\s*(?P<hour>\d{{1,2}}):(?P<minute>\d{{2}})(?:에)?", _digits),
    Rule(
        rf"(?:(?P<half>{_HALF})\s*)?(?P<hour>{_NUMBER})\s*시(?!간)"
        rf"(?:\s*(?:(?P<minute>{_NUMBER})\s*분|(?P<semi>반)(?=에|[\s,:]|$)))?(?:에)?",
        _clock,
    ),
    Rule(r"정오(?:에)?", _noon),
)
