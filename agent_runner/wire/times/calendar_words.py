"""Days of the week, months and parts of the day in words, English and Korean."""

from __future__ import annotations

import re

from agent_runner.wire.times.model import Half

WEEKDAY_EN = (
    r"(?:mon(?:day)?|tue(?:s(?:day)?)?|wed(?:s|nesday)?|thu(?:r(?:s(?:day)?)?)?|fri(?:day)?|sat(?:urday)?"
    r"|sun(?:day)?)"
)
WEEKDAYS_KO = "월화수목금토일"
MONTH_EN = (
    r"(?:jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?"
    r"|sept?(?:ember)?|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)"
)
PART_EN = r"(?:morning|afternoon|evening|night)"
WORKDAYS, WEEKEND = (0, 1, 2, 3, 4), (5, 6)
"""Days of the week by number; Monday is 0."""
_WEEKDAYS_EN = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_MONTHS_EN = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
HALVES_KO = {  # Korean words for parts of the day
    "오전": Half.AM,
    "오후": Half.PM,
    "새벽": Half.DAWN,
    "아침": Half.MORNING,
    "낮": Half.MIDDAY,
    "점심": Half.MIDDAY,
    "저녁": Half.EVENING,
    "밤": Half.NIGHT,
}
HALF_KO = "|".join(HALVES_KO)


def weekday(word: str) -> int:
    """Return the number of an English or Korean day of the week, from Monday as 0."""
    if word[0] in WEEKDAYS_KO:
        return WEEKDAYS_KO.index(word[0])
    return _WEEKDAYS_EN.index(word.lower()[:3])


def weekdays(text: str) -> tuple[int, ...]:
    """Return the numbers of all days of the week in a text, in their order."""
    names = re.findall(rf"{WEEKDAY_EN}|[{WEEKDAYS_KO}]", text.replace("요일", ""), re.IGNORECASE)
    return tuple(sorted({weekday(word) for word in names}))


def month(word: str) -> int:
    """Return the number of an English month."""
    return _MONTHS_EN.index(word.lower()[:3]) + 1


def half_en(word: str | None) -> Half | None:
    """Return the part of the day that an English word such as `p.m.`, `a` or `evening` names.

    None for no word.
    """
    if not word:
        return None
    letters = re.sub(r"[^a-z]", "", word.lower())
    return Half({"a": "am", "p": "pm"}.get(letters, letters))
