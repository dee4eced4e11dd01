"""Numbers in words, English and Korean: `twenty-five`, `third`, `스물네`, `이천십오`."""

from __future__ import annotations

import re

_ONES = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
]
_TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
_CARDINALS = {word: number for number, word in enumerate(_ONES)}
_CARDINALS |= {word: (place + 2) * 10 for place, word in enumerate(_TENS)}
_CARDINALS |= {"a": 1, "an": 1}
_ORDINALS = {
    word: number
    for number, word in enumerate(
        [
            "zeroth",
            "first",
            "second",
            "third",
            "fourth",
            "fifth",
            "sixth",
            "seventh",
            "eighth",
            "ninth",
            "tenth",
            "eleventh",
            "twelfth",
            "thirteenth",
            "fourteenth",
            "fifteenth",
            "sixteenth",
            "seventeenth",
            "eighteenth",
            "nineteenth",
            "twentieth",
        ]
    )
}
_ORDINALS |= {"thirtieth": 30}


def _any_of(words: list[str]) -> str:
    """Return a pattern that matches one of these words; the longest come first, so that they win."""
    return "|".join(sorted(words, key=len, reverse=True))


CARDINAL_EN = rf"(?:(?:{_any_of(_TENS)})(?:[\s-](?:{_any_of(_ONES[1:10])}))?|{_any_of(_ONES[1:])})\b"
"""A number from one to ninety-nine in words."""
HOUR_WORD_EN = rf"(?:{_any_of(_ONES[1:13])})\b"
ORDINAL_WORD_EN = (
    rf"(?:(?:twenty|thirty)[\s-](?:{_any_of(list(_ORDINALS)[1:10])})|{_any_of(list(_ORDINALS)[1:])})\b"
)
ORDINAL_EN = rf"(?:\d{{1,2}}(?:st|nd|rd|th)\b|{ORDINAL_WORD_EN})"

_SINO = "일이삼사오육칠팔구"
_NATIVE = ("한", "두", "세", "네", "다섯", "여섯", "일곱", "여덟", "아홉")
_NATIVE_TENS = {"열": 10, "스물": 20, "서른": 30, "마흔": 40, "쉰": 50}
_ALONE = {"하나": 1, "둘": 2, "셋": 3, "넷": 4, "스무": 20}
_NATIVE_KO = rf"(?:{'|'.join(_NATIVE_TENS)})(?:{'|'.join(_NATIVE)})?|스무|{'|'.join(reversed(_NATIVE))}"
_SINO_KO = rf"(?:[{_SINO}]?천)?(?:[{_SINO}]?백)?[{_SINO}]?십[{_SINO}]?|[{_SINO}]"
NUMBER_KO = rf"(?:\d{{1,12}}(?:\.\d{{1,6}})?|{_NATIVE_KO}|{_SINO_KO})"
WHOLE_KO = rf"(?:\d{{1,12}}|{_NATIVE_KO}|{_SINO_KO})"
"""Matches a number without decimals."""
SINO_KO = rf"(?:\d{{1,2}}|[{_SINO}]?십[{_SINO}]?|[{_SINO}])"
"""Matches a Sino-Korean number of up to two digits, as in dates."""
YEAR_KO = rf"(?:\d{{4}}|[{_SINO}]?천(?:[{_SINO}]?백)?(?:[{_SINO}]?십)?[{_SINO}]?)"
ORDINAL_KO = r"(?:첫|두|둘|세|셋|네|넷|다섯)\s?(?:번째|째)|마지막"


def number(word: str) -> float:
    """Return the number that digits, or English or Korean words, name.

    The caller has matched them with a pattern for numbers, such as `CARDINAL_EN` or `NUMBER_KO`.
    """
    if word[0] == "." or (word[0].isascii() and word[0].isdigit()):
        return float(word)
    if word[0].isascii():
        return sum(_CARDINALS[part] for part in re.split(r"[\s-]+", word.lower()))
    return _native(word) or _sino(word)


def ordinal(word: str) -> int:
    """Return the place that `3rd`, `twenty-first`, `셋째`, `세 번째` names; -1 for `마지막`, the last."""
    if word[0].isdigit():
        return int(re.match(r"\d+", word)[0])  # type: ignore[index] # it begins with a digit
    if word[0].isascii():
        *tens, last = re.split(r"[\s-]+", word.lower())
        return sum(_CARDINALS[ten] for ten in tens) + _ORDINALS[last]
    if word == "마지막":
        return -1
    # The first syllable tells the place; `둘째`, `셋째` and `넷째` begin otherwise than `두 번째` and so on.
    first = word[0].translate(str.maketrans("둘셋넷", "두세네"))
    return "첫두세네다".find(first) + 1


def _native(word: str) -> int:
    """Return the number that a native Korean word such as `스물네` names; 0 for any other word."""
    if word in _ALONE:  # not made of the tens and ones of the tables
        return _ALONE[word]
    tens = next((ten for ten in _NATIVE_TENS if word.startswith(ten)), "")
    ones = word.removeprefix(tens)
    if (ones or not tens) and ones not in _NATIVE:
        return 0
    return _NATIVE_TENS.get(tens, 0) + (_NATIVE.index(ones) + 1 if ones else 0)


def _sino(word: str) -> int:
    """Return the number that a Sino-Korean word such as `이십오` names."""
    total = 0
    for unit, size in (("천", 1000), ("백", 100), ("십", 10)):
        if unit in word:
            digit, _, word = word.partition(unit)
            total += (_SINO.index(digit) + 1 if digit else 1) * size
    return total + (_SINO.index(word) + 1 if word else 0)
