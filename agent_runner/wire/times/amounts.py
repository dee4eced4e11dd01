"""Spans of time in words, English and Korean: `1h30m`, `a couple of hours`, `한 시간 반`."""

from __future__ import annotations

import re
from datetime import timedelta
from itertools import pairwise

from agent_runner.wire.times.model import TimeSpan
from agent_runner.wire.times.numbers import CARDINAL_EN, NUMBER_KO, number

FLAGS = re.IGNORECASE | re.ASCII
"""`re.ASCII` excludes digits of other scripts and letters that look like ASCII ones; Hangul matches."""
FEW = 3
"""The number that `a few` and `몇` are read as. Answers show the moment, so that people can correct it."""
_DAYS_KO = {"하루": 1, "이틀": 2, "사흘": 3, "나흘": 4, "닷새": 5, "열흘": 10, "보름": 15}
_DIGITS = r"\d{1,12}(?:\.\d{1,6})?|\.\d{1,6}"
_FRACTIONS = {"1/4": 0.25, "1/2": 0.5, "3/4": 0.75}
_VAGUE = {"couple": 2, "pair": 2, "두어": 2, "few": FEW, "몇": FEW, "half": 0.5}
_COUNT_EN = (
    rf"(?:(?:[13]/4|1/2)|(?:{_DIGITS})(?:\s+and\s+an?\s+half)?|(?:a\s+)?(?:couple|pair)(?:\s+of)?\b|(?:a\s+)?few\b"
    rf"|(?:a\s+)?half(?:\s+an?)?\b|(?:{CARDINAL_EN}|an?\b)(?:\s+and\s+an?\s+half)?)(?:\s+more\b)?"
)
_UNIT_WORDS = (
    r"(?:seconds?|secs?|minutes?|mins?|hours?|hrs?|days?|weeks?|fortnights?|months?|years?|yrs?|[smhdw])"
)
UNIT_EN = rf"(?:{_UNIT_WORDS}(?![a-z])|['\"](?!\w))"
_PIECE_EN = (
    rf"(?P<number>{_COUNT_EN})\s*(?P<unit>mo|fo|sec|min|hour|hr|day|week|year|yr|[smhdw'\"])[a-z]*"
    r"(?P<half>\s+and\s+an?\s+half)?"
)
# `1h30` leaves the unit of its minutes out; `1h30 minutes` names it, so the general form has to read it.
_SHORT_EN = rf"\d{{1,3}}h[0-5]\d(?!\w|\.\d|\s*{UNIT_EN})"
SPAN_EN = (
    rf"(?:(?:a\s+)?quarter\s+of\s+an\s+hour|three[\s-]quarters\s+of\s+an\s+hour|{_SHORT_EN}"
    rf"|{_COUNT_EN}\s*{UNIT_EN}(?:(?:\s*,)?(?:\s+and)?\s*{_COUNT_EN}\s*{UNIT_EN})*(?:\s+and\s+an?\s+half\b)?)"
)
_FIXED_EN = {"quarter of an hour": 15, "three quarters of an hour": 45}
_NAMED_DAYS = "|".join(_DAYS_KO)
_UNITS_KO = "시간|분|초|일|주일|주|개월|달|년"
_PIECE_KO = (
    rf"(?P<number>몇|두어|{NUMBER_KO})\s*(?P<unit>{_UNITS_KO})(?P<half>\s*반)?|(?P<days>{_NAMED_DAYS})"
)
_ONE_KO = rf"(?:몇|두어|{NUMBER_KO})\s*(?:시간(?:\s*반)?|분|초|일|주일|주|개월|달|년)"
SPAN_KO = rf"(?:반\s*시간|(?:{_ONE_KO}\s*|(?:{_NAMED_DAYS})\s*)+)"
AFTER_KO = r"(?:뒤|후|있다가|이따가|(?:이내|안|내)(?=에|$|[\s,.!]|까지))(?:에)?"
"""Matches the Korean words after a span that begins now."""
_SECONDS = {"s": 1, "m": 60, "h": 3600, "'": 60, '"': 1, "초": 1, "분": 60, "시간": 3600}
_DAYS = {"d": 1, "w": 7, "fo": 14, "일": 1, "주": 7, "주일": 7}
_MONTHS = {"mo": 1, "y": 12, "개월": 1, "달": 1, "년": 12}
_MAX_DAYS = 10**6
"""The bound to which amounts are cut, so that none overflows; such a span is refused as too far."""


def span_en(words: str) -> TimeSpan | None:
    """Return the span of time in English words such as `1h30m`, `1h30`, `two hours and 30 minutes`.

    The words have matched `SPAN_EN`. None if a unit is not smaller than the one before it, or if the months
    are no whole number.
    """
    words = " ".join(words.lower().replace("-", " ").split())
    if (fixed := _FIXED_EN.get(words.removeprefix("a "))) is not None:
        return TimeSpan(elapsed=timedelta(minutes=fixed))
    if short := re.fullmatch(r"(\d{1,3})h(\d\d)", words):
        return TimeSpan(elapsed=timedelta(hours=int(short[1]), minutes=int(short[2])))
    pieces = []
    for piece in re.finditer(_PIECE_EN, words, FLAGS):
        # The first letter names the unit, but for months and fortnights: `m` is minutes.
        unit = piece["unit"] if piece["unit"] in ("mo", "fo") else piece["unit"][0]
        pieces.append((_count_en(piece["number"]) + (0.5 if piece["half"] else 0.0), unit))
    return _total_span(pieces)


def span_ko(words: str) -> TimeSpan | None:
    """Return the span of time in Korean words such as `1시간 30분`, `한 시간 반`, `사흘`.

    The words have matched `SPAN_KO`. None if a unit is not smaller than the one before it, or if the months
    are no whole number.
    """
    if re.fullmatch(r"반\s*시간", words.strip()):
        return TimeSpan(elapsed=timedelta(minutes=30))
    pieces = [
        (float(_DAYS_KO[piece["days"]]), "일")
        if piece["days"]
        else (_count_ko(piece["number"]) + (0.5 if piece["half"] else 0.0), piece["unit"])
        for piece in re.finditer(_PIECE_KO, words, FLAGS)
    ]
    return _total_span(pieces)


def _count_en(words: str) -> float:
    """Return the number that an English count names: `two`, `a couple of`, `half an`, `one and a half`."""
    words = words.removesuffix("more").strip()
    if words in _FRACTIONS:
        return _FRACTIONS[words]
    vague = next((word for word in _VAGUE if word in words.split()), None)
    if vague is None:
        return number(words)
    whole, joint, _ = words.partition(" and ")
    if vague == "half" and joint:  # `one and a half`
        return number(whole) + 0.5
    return _VAGUE[vague]


def _count_ko(word: str) -> float:
    """Return the number that a Korean word for a count names: 2 for `두어`, 3 for `세`."""
    return _VAGUE[word] if word in _VAGUE else number(word)


def _total_span(pieces: list[tuple[float, str]]) -> TimeSpan | None:
    """Return the sum of several amounts, each with its unit, as one span.

    None if a unit is not smaller than the one before, or if the months are no whole number.
    """
    sizes = [_seconds(unit) for _, unit in pieces]
    if not pieces or any(size <= next_size for size, next_size in pairwise(sizes)):
        return None
    months, days, seconds = 0, 0, 0.0
    for amount, unit in pieces:
        if unit in _MONTHS:
            if not (amount * _MONTHS[unit]).is_integer():
                return None  # half a month is no definite time
            months += int(min(amount * _MONTHS[unit], _MAX_DAYS))
        elif unit in _DAYS and amount.is_integer():
            days += min(int(amount) * _DAYS[unit], _MAX_DAYS)
        else:
            # Smaller units, and parts of days: half a day is 12 hours.
            seconds += amount * _seconds(unit)
    elapsed = timedelta(seconds=min(seconds, _MAX_DAYS * 86_400))
    return TimeSpan(months=months, days=days, elapsed=elapsed)


def _seconds(unit: str) -> int:
    """Return the length of a unit in seconds; a month counts as 30 days, to compare it with other units."""
    return _SECONDS.get(unit) or (_DAYS.get(unit) or _MONTHS[unit] * 30) * 86_400
