"""The forms that name a day: `tomorrow`, `the 15th`, `last Friday of October`, `다음 주 금요일`."""

from __future__ import annotations

import re

from agent_runner.wire.times.calendar_words import MONTH_EN, WEEKDAY_EN, WEEKDAYS_KO, month, weekday
from agent_runner.wire.times.model import (
    LAST,
    CalendarDay,
    DaysAhead,
    Form,
    Half,
    MonthDay,
    NthDay,
    Parts,
    Reason,
    Repeat,
    Rhythm,
    Shape,
    TimeSpan,
    Weekday,
    WeekdaysAhead,
    Where,
)
from agent_runner.wire.times.numbers import (
    CARDINAL_EN,
    ORDINAL_EN,
    ORDINAL_KO,
    ORDINAL_WORD_EN,
    SINO_KO,
    YEAR_KO,
    number,
    ordinal,
)

_NEAR = {"yesterday": -1, "today": 0, "tomorrow": 1, "tmrw": 1, "tmr": 1, "어제": -1, "오늘": 0, "내일": 1}
_NEAR |= {"낼": 1, "모레": 2, "내일모레": 2, "글피": 3}
_WEEKS_KO = {"지난": -1, "저번": -1, "이번": 0, "금": 0, "다음": 1, "오는": 1, "다다음": 2}
_MONTHS_AHEAD = {"this": 0, "the current": 0, "current": 0, "next": 1, "the next": 1, "the": 0}
_DAY_EN = rf"(?:(?P<day>\d{{1,2}})(?:st|nd|rd|th)?|(?P<ordinal>{ORDINAL_WORD_EN}))"
_YEAR_EN = r"(?:,?\s+(?:of\s+)?(?P<year>\d{4})(?![\d:]))?"
_ON = r"(?:on\s+)?"
_THE = r"(?:the\s+)?"
_MONTH_EN = rf"(?P<month>{MONTH_EN})"
_MONTH_KO = r"(?P<month>\d{1,2}|유|시|십[일이]?|[일이삼사오칠팔구])월"
_YEAR_SHORT = r"(?P<year>\d{4}|\d{2})"
_WHICH_MONTH = r"(?P<which>this|(?:the\s+)?current|(?:the\s+)?next)\s+month\b"


def _near_day(match: re.Match[str]) -> Parts:
    """Return the day in `tomorrow`, `모레`, `the day after tomorrow`; for `tonight`, also the night half."""
    words = match["day"].lower()
    if words in ("tonight", "tonite"):
        return Parts(day=DaysAhead(days=0), half=Half.NIGHT)
    # `_NEAR` has all single words of the pattern; what it lacks is `(the) day after tomorrow`, 2 days ahead.
    return Parts(day=DaysAhead(days=_NEAR.get("".join(words.split()), 2)))


def _calendar_day(match: re.Match[str]) -> Parts:
    """Return the day in `12 December 2027`, `Feb 10`, `12월 25일`."""
    parts = match.groupdict()
    year, ordinal_word = parts.get("year"), parts.get("ordinal")
    return Parts(
        day=CalendarDay(
            year=_year(year) if year else None,
            month=_month(match["month"]),
            day=ordinal(ordinal_word) if ordinal_word else int(number(match["day"])),
        )
    )


def _year(text: str) -> int:
    """Return the number of a year, in digits or Korean words; one of two digits is in this century."""
    return int(number(text)) + (2000 if len(text) == 2 and text.isdecimal() else 0)


def _month(word: str) -> int:
    """Return the number of a month, English or Korean."""
    if word[0].isascii() and not word[0].isdigit():
        return month(word)
    # Before `월`, the numbers of June and October lose a consonant: `유월`, `시월`.
    return {"유": 6, "시": 10}.get(word) or int(number(word))


def _slashed(match: re.Match[str]) -> Parts:
    """Return the day in a match such as `2/15`: month and day, in either order.

    For `2/3`, return both meanings, 3 February and 2 March.
    """
    first, second = int(match["first"]), int(match["second"])
    year = _year(match["year"]) if match["year"] else None
    pairs = {(first, second), (second, first)}
    possible = [CalendarDay(month=month, day=day, year=year) for month, day in sorted(pairs) if month <= 12]
    if len(possible) == 1:
        return Parts(day=possible[0])
    if not possible:  # `15/15` is refused later: there is no such day
        return Parts(day=CalendarDay(month=first, day=second, year=year))
    return Parts(either=tuple(Parts(day=day) for day in possible), reason=Reason.WHICH_MEANING)


def _month_day(match: re.Match[str]) -> Parts:
    """Return the day of the month in `the 15th`, `the 20th of next month`."""
    parts = match.groupdict()
    which = " ".join((parts.get("which") or "").lower().split())
    ahead = _MONTHS_AHEAD[which] if which else None
    return Parts(day=MonthDay(day=ordinal(match["day"]), months_ahead=ahead))


def _day_or_span(match: re.Match[str]) -> Parts:
    """Return both meanings of the Korean `15일`: the 15th of a month, and 15 days from now."""
    days = int(match["day"])
    meanings = (Parts(day=MonthDay(day=days)), Parts(span=TimeSpan(days=days)))
    return Parts(either=meanings, reason=Reason.WHICH_MEANING)


def _nth_day(match: re.Match[str]) -> Parts:
    """Return the day in `first Tuesday of October`, `second last day of this month`, `10월 마지막 날`."""
    parts = match.groupdict()
    nth, from_end, named = parts.get("nth"), parts.get("from_end"), match["weekday"]
    place = ordinal(nth) if nth else LAST
    which = " ".join((parts.get("which") or "").lower().split())
    return Parts(
        day=NthDay(
            nth=-place if from_end and nth else place,  # `second last` → -2
            weekday=None if named.lower() in ("day", "날") else weekday(named),
            month=_month(match["month"]) if parts.get("month") else None,
            year=_year(match["year"]) if parts.get("year") else None,
            months_ahead=_MONTHS_AHEAD[which] if which else None,
        )
    )


def _nth_or_each(match: re.Match[str]) -> Parts:
    """Return both meanings of `the last day of the month`: of this month, and of each month.

    `the second last day of the month` is only that of this month: no rhythm counts from the end of a month.
    """
    once = _nth_day(match)
    assert isinstance(once.day, NthDay)
    place, weekday_index = once.day.nth, once.day.weekday
    if place < LAST:  # places from the end of a month are negative: `LAST` is -1, the second last is -2
        return once
    rhythm = Rhythm(month_day=place)
    if weekday_index is not None:
        rhythm = Rhythm(weekdays=(weekday_index,), nth=place)
    return Parts(either=(once, Parts(repeat=Repeat(rhythm=rhythm))), reason=Reason.WHICH_MEANING)


def _weekday_en(match: re.Match[str]) -> Parts:
    """Return the day of the week in `Friday`, `next Friday`, `Wednesday next week`.

    `next Friday` alone is marked as ambiguous (`is_next`).
    """
    which = (match["which"] or "").lower()
    week = " ".join((match["week"] or "").lower().split()).removeprefix("of ")
    ahead = {"this week": 0, "next week": 1}.get(week)
    return Parts(
        weekday=Weekday(index=weekday(match["day"]), weeks_ahead=ahead, is_next=which == "next" and not week)
    )


def _weekdays_ahead(match: re.Match[str]) -> Parts:
    """Return the day in `3 Fridays from now`."""
    return Parts(day=WeekdaysAhead(index=weekday(match["day"]), count=int(number(match["count"]))))


def _weekday_ko(match: re.Match[str]) -> Parts:
    """Return the day of the week in `금요일` ("Friday"), `다음 주 금요일` ("Friday of next week").

    `다음 금요일` ("next Friday") is marked as ambiguous (`is_next`). The group `which` has a word before `주`
    ("week"), `next` a word right before the day; either may be missing, and one form has no such groups.
    """
    parts = match.groupdict()
    which, is_next = parts.get("which"), parts.get("next") == "다음"
    ahead = _WEEKS_KO[which] if which else _WEEKS_KO.get(parts.get("next") or "")
    return Parts(
        weekday=Weekday(index=weekday(match["day"]), weeks_ahead=None if is_next else ahead, is_next=is_next)
    )


_PLACE_EN = rf"(?:(?P<nth>{ORDINAL_EN})(?P<from_end>[\s-]last)?|last)\s+(?P<weekday>{WEEKDAY_EN}|day)\b"

FORMS: tuple[Form, ...] = (
    Form(
        "near day",
        "the day, seen from today",
        shapes=(
            Shape(
                r"(?P<day>(?:the\s+)?day\s+after\s+tomorrow|today|tomorrow|tmrw|tmr|tonight|tonite|yesterday)\b",
                _near_day,
                ("today", "tomorrow", "the day after tomorrow", "tonight"),
            ),
            Shape(
                r"(?P<day>내일\s?모레|어제|오늘|내일|낼(?=[\s,])|모레|글피)(?:에)?",
                _near_day,
                ("오늘", "내일", "모레"),
            ),
        ),
    ),
    Form(
        "date",
        "the day of the calendar; without a year, the next one there is; of `2/3` is asked which month",
        shapes=(
            Shape(
                rf"{_ON}(?P<year>\d{{4}})[-/](?P<month>\d{{1,2}})[-/](?P<day>\d{{1,2}})(?![\d/])",
                _calendar_day,
                ("2026-12-01", "2026-12-01T18:00"),
            ),
            Shape(
                rf"{_ON}{_THE}{_DAY_EN}[\s-]*(?:of\s+)?{_MONTH_EN}\b\.?{_YEAR_EN}",
                _calendar_day,
                ("10 February 2027", "the 12th of December", "first of March"),
            ),
            Shape(
                rf"{_ON}{_MONTH_EN}\.?\s*{_THE}{_DAY_EN}(?![\d:]|\s*[ap]\.?m){_YEAR_EN}",
                _calendar_day,
                ("Feb 10", "December 12th, 2027", "march first"),
            ),
            Shape(
                rf"(?:(?P<year>{YEAR_KO})년\s*)?{_MONTH_KO}\s*(?P<day>{SINO_KO})일(?:에)?",
                _calendar_day,
                ("12월 25일", "2027년 3월 1일", "삼월 삼일"),
            ),
            Shape(
                rf"on\s+(?P<first>\d{{1,2}})\s?/\s?(?P<second>\d{{1,2}})(?:/{_YEAR_SHORT})?(?![\d/])",
                _slashed,
                ("on 12/25",),
            ),
        ),
    ),
    Form(
        "date with a slash",
        "month and day, or day and month where only that exists",
        shapes=(
            Shape(
                rf"(?P<first>\d{{1,2}})\s?/\s?(?P<second>\d{{1,2}})(?:/{_YEAR_SHORT})?(?![\d/])(?:에)?",
                _slashed,
                ("12/25", "2/15 오후 4시"),
            ),
        ),
        where=Where.START,
    ),
    Form(
        "day of the month",
        "the next such day, or that of the month that is named",
        shapes=(
            Shape(
                rf"{_ON}{_THE}(?P<day>{ORDINAL_EN}|\d{{1,2}}(?=\s+of))(?:\s+day)?\s+of\s+{_WHICH_MONTH}",
                _month_day,
                ("the 20th of next month",),
            ),
            Shape(
                rf"(?:on\s+the\s+(?P<first>{ORDINAL_EN})|{_ON}{_THE}(?P<day>\d{{1,2}}(?:st|nd|rd|th)))\b"
                r"(?!\s+(?:of|last|mon|tue|wed|thu|fri|sat|sun|day))",
                lambda match: Parts(day=MonthDay(day=ordinal(match["first"] or match["day"]))),
                ("the 15th", "Thursday the 26th"),
            ),
            Shape(
                r"(?P<day>\d{1,2})일(?:에(?:\b|$)|(?=\s+(?:오전|오후|새벽|아침|낮|저녁|밤|정오|자정|\d{1,2}시)))",
                _month_day,
                ("15일에", "15일 오전 9시"),
            ),
        ),
    ),
    Form(
        "day of the month, or so many days",
        "asked about, where nothing else says which",
        shapes=(Shape(r"(?P<day>\d{1,2})일(?=\s|$)", _day_or_span, ("29일 일요일",)),),
        where=Where.START,
    ),
    Form(
        "nth day of a month",
        "the first, second … or last such day of the month; of `the month` is asked: this one or each",
        shapes=(
            Shape(
                rf"{_ON}{_THE}{_PLACE_EN}\s+(?:of|in)\s+{_MONTH_EN}\b{_YEAR_EN}",
                _nth_day,
                ("first Tuesday of October", "last Friday of October", "last day of February 2027"),
            ),
            Shape(
                rf"{_ON}{_THE}{_PLACE_EN}\s+(?:of|in)\s+{_WHICH_MONTH}",
                _nth_day,
                ("the first Monday of next month",),
            ),
            Shape(rf"{_ON}{_THE}{_PLACE_EN}\s+(?:of|in)\s+the\s+month\b", _nth_or_each, ()),
            Shape(
                rf"(?:(?P<year>{YEAR_KO})년\s*)?{_MONTH_KO}\s*(?P<nth>{ORDINAL_KO})\s*"
                rf"(?P<weekday>[{WEEKDAYS_KO}]요일|날)(?:에)?",
                _nth_day,
                ("10월 첫째 화요일", "3월 마지막 월요일", "10월 마지막 날"),
            ),
        ),
    ),
    Form(
        "weekday",
        "the next such day, today included; next week and 다음 주 are the calendar week after this one",
        shapes=(
            Shape(
                rf"(?P<count>\d{{1,2}}|{CARDINAL_EN})\s+(?P<day>{WEEKDAY_EN})s?\s+from\s+(?:now|today)\b",
                _weekdays_ahead,
                ("3 Fridays from now",),
            ),
            Shape(
                rf"{_ON}(?:(?P<which>this|next|coming)\s+)?(?P<day>{WEEKDAY_EN})\b\.?,?"
                r"(?:\s+(?P<week>(?:of\s+)?(?:this|next)\s+week)\b)?",
                _weekday_en,
                ("Friday", "on Friday at 3pm", "Wednesday next week"),
            ),
            Shape(
                rf"(?:(?:(?P<which>지난|저번|이번|다다음|다음|오는)\s*주|(?P<next>지난|저번|이번|다음))\s*)?"
                rf"(?P<day>[{WEEKDAYS_KO}])요일(?!마다)(?:에)?",
                _weekday_ko,
                ("금요일", "다음 주 금요일"),
            ),
            Shape(rf"\((?P<day>[{WEEKDAYS_KO}])\)", _weekday_ko, ("2026-12-01 (화)",)),
        ),
    ),
)
