"""Numbers, units and spans of time in words, English and Korean."""

from __future__ import annotations

import re
from datetime import timedelta
from itertools import pairwise

from agent_runner.wire.times.model import TimeSpan

FLAGS = re.IGNORECASE | re.ASCII
"""ASCII beside Hangul: no foreign digits, no letters that look alike."""
_NUMBERS_EN = {
    word: number
    for number, words in {
        1: "a an one",
        2: "two",
        3: "three",
        4: "four",
        5: "five",
        6: "six",
        7: "seven",
        8: "eight",
        9: "nine",
        10: "ten",
        11: "eleven",
        12: "twelve",
        15: "fifteen",
        20: "twenty",
        30: "thirty",
        40: "forty",
        45: "forty-five",
        50: "fifty",
        60: "sixty",
        90: "ninety",
    }.items()
    for word in words.split()
}
_NATIVE = ("한", "두", "세", "네", "다섯", "여섯", "일곱", "여덟", "아홉", "열", "열한", "열두")
_SINO = "일이삼사오육칠팔구"
_DAYS_KO = {"하루": 1, "이틀": 2, "사흘": 3, "나흘": 4, "닷새": 5, "열흘": 10}
_DIGITS = r"\d{1,12}(?:\.\d{1,6})?|\.\d{1,6}"
_NUMBER_EN = rf"(?:{_DIGITS}|(?:{'|'.join(sorted(_NUMBERS_EN, key=len, reverse=True))})\b)"
NUMBER_KO = rf"(?:\d{{1,12}}(?:\.\d{{1,6}})?|{'|'.join(reversed(_NATIVE))}|[{_SINO}]?십[{_SINO}]?|[{_SINO}])"
_UNIT_EN = r"(?:seconds?|secs?|s|minutes?|mins?|m|hours?|hrs?|h|days?|d|weeks?|w)(?![a-z])"
_PIECE_EN = rf"(?P<number>{_NUMBER_EN})\s*(?P<unit>(?:sec|min|hour|hr|day|week|[smhdw]))[a-z]*"
# `1h30` leaves the unit of its minutes out; `1h30 minutes` names it, so the general form has to read it.
_SHORT_EN = rf"\d{{1,3}}h[0-5]\d(?!\w|\.\d|\s*{_UNIT_EN})"
SPAN_EN = (
    rf"(?:half\s+an\s+hour|an\s+hour\s+and\s+a\s+half|(?:a\s+)?quarter\s+of\s+an\s+hour|{_SHORT_EN}"
    rf"|{_NUMBER_EN}\s*{_UNIT_EN}(?:(?:\s*,)?(?:\s+and)?\s*{_NUMBER_EN}\s*{_UNIT_EN})*)"
)
_FIXED_EN = {"half an hour": 30, "an hour and a half": 90, "quarter of an hour": 15}
_NAMED_DAYS = "|".join(_DAYS_KO)
_PIECE_KO = (
    rf"(?P<number>{NUMBER_KO})\s*(?P<unit>시간|분|초|일|주일|주)(?P<half>\s*반)?|(?P<days>{_NAMED_DAYS})"
)
SPAN_KO = rf"(?:반\s*시간|(?:(?:{NUMBER_KO})\s*(?:시간(?:\s*반)?|분|초|일|주일|주)\s*|(?:{_NAMED_DAYS})\s*)+)"
AFTER_KO = r"(?:뒤|후|있다가|이따가)(?:에)?"
_SECONDS = {"s": 1, "m": 60, "h": 3600, "초": 1, "분": 60, "시간": 3600}
_DAYS = {"d": 1, "w": 7, "일": 1, "주": 7, "주일": 7}
_MAX_DAYS = 10**6


def number(word: str) -> float:
    """Read a number that matches one of the patterns above."""
    if word[0] == "." or (word[0].isascii() and word[0].isdigit()):
        return float(word)
    if word.lower() in _NUMBERS_EN:
        return _NUMBERS_EN[word.lower()]
    if word in _NATIVE:
        return _NATIVE.index(word) + 1
    tens, ten, ones = word.rpartition("십")
    return (_sino(tens) or 1 if ten else 0) * 10 + _sino(ones)


def _sino(word: str) -> int:
    return _SINO.index(word) + 1 if word else 0


def _added(pieces: list[tuple[float, str]]) -> TimeSpan | None:
    """Add up amounts with their units; None unless each unit is smaller than the one before."""
    sizes = [_SECONDS[unit] if unit in _SECONDS else _DAYS[unit] * 86_400 for _, unit in pieces]
    if any(size <= smaller for size, smaller in pairwise(sizes)):
        return None
    days, seconds = 0, 0.0
    for amount, unit in pieces:
        if unit in _DAYS and amount.is_integer():
            days += min(int(amount) * _DAYS[unit], _MAX_DAYS)
        else:
            seconds += amount * (_SECONDS[unit] if unit in _SECONDS else _DAYS[unit] * 86_400)
    return TimeSpan(days=days, elapsed=timedelta(seconds=min(seconds, _MAX_DAYS * 86_400)))


def span_en(words: str) -> TimeSpan | None:
    """Read `1h30m`, `1h30`, `two hours and 30 minutes`; None where it names a unit twice."""
    words = " ".join(words.lower().split())
    words = words.removeprefix("a ") if words.startswith("a quarter") else words
    if words in _FIXED_EN:
        return TimeSpan(elapsed=timedelta(minutes=_FIXED_EN[words]))
    if short := re.fullmatch(r"(\d{1,3})h(\d\d)", words):
        return TimeSpan(elapsed=timedelta(hours=int(short[1]), minutes=int(short[2])))
    found = re.finditer(_PIECE_EN, words, FLAGS)
    return _added([(float(number(piece["number"])), piece["unit"][0].lower()) for piece in found])


def span_ko(words: str) -> TimeSpan | None:
    """Read `1시간 30분`, `한 시간 반`, `사흘`; None where it names a unit twice."""
    words = "".join(words.split())
    if words == "반시간":
        return TimeSpan(elapsed=timedelta(minutes=30))
    pieces = [
        (float(_DAYS_KO[piece["days"]]), "일")
        if piece["days"]
        else (number(piece["number"]) + (0.5 if piece["half"] else 0.0), piece["unit"])
        for piece in re.finditer(_PIECE_KO, words, FLAGS)
    ]
    return _added(pieces)
