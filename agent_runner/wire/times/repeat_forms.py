"""The forms that name repeating times: `every other Tuesday`, `on weekdays`, `매월 첫째 월요일`."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta

from agent_runner.wire.times.amounts import SPAN_EN, SPAN_KO, span_en, span_ko
from agent_runner.wire.times.calendar_words import (
    MONTH_EN,
    PART_EN,
    WEEKDAY_EN,
    WEEKDAYS_KO,
    WEEKEND,
    WORKDAYS,
    half_en,
    month,
    weekday,
    weekdays,
)
from agent_runner.wire.times.model import (
    LAST,
    Form,
    Make,
    Parts,
    Repeat,
    Rhythm,
    Shape,
    StepUnit,
    TimeSpan,
    Where,
)
from agent_runner.wire.times.numbers import CARDINAL_EN, ORDINAL_EN, ORDINAL_KO, number, ordinal

_EVERY = r"(?:every|each)\s+"
_AND = r"(?:\s*,\s*and\s+|\s*,\s*|\s+and\s+|\s*&\s*)"
_DAY_LIST = rf"{WEEKDAY_EN}(?:{_AND}{WEEKDAY_EN})*"
# `tues`, `weds` and `thurs` are short for one day, and no plurals.
_DAYS_EN = rf"(?!(?:tue|wed|thur)s\b){WEEKDAY_EN}s"
_DAYS_LIST = rf"{_DAYS_EN}(?:{_AND}{_DAYS_EN})*"
_COUNTED_DAYS = rf"(?P<days>{_DAYS_LIST}|{_DAY_LIST})"
_EACH_MONTH = r"(?:every|each)\s+month\b"
_OTHER = rf"(?:(?P<other>other|second|2nd|alternate)|(?P<step>\d{{1,2}}|{ORDINAL_EN}))"
_TO = r"\s*(?:to|through|-|–)\s*"
_DAYS_KO = rf"[{WEEKDAYS_KO}]요일(?:\s*(?:,|과|와|이랑|랑|하고)?\s*[{WEEKDAYS_KO}]요일)*"
_QUARTERS = (1, 4, 7, 10)
"""The first month of each quarter."""
_UNITS = {"day": StepUnit.DAYS, "week": StepUnit.WEEKS, "month": StepUnit.MONTHS}


def _repeating_on(**rhythm: object) -> Parts:
    """Return a repetition on the days of a `Rhythm`; `rhythm` has the rhythm's fields by name."""
    return Parts(repeat=Repeat(rhythm=Rhythm(**rhythm)))  # type: ignore[arg-type] # the fields of a rhythm


def _every_span(parse_span: Callable[[str], TimeSpan | None]) -> Make:
    """Return a function that makes a repetition from a match of `every …` with a span of time.

    `parse_span` returns the span that words name, None for none. Whole days repeat on days of the calendar;
    spans with hours or less repeat after that much real time.
    """

    def make(match: re.Match[str]) -> Parts | None:
        """Return the repetition; None for words that are no span, for months, and for less than a minute."""
        span = parse_span(match["span"])
        if span is None or span.months:
            return None
        if span.days and not span.elapsed:
            return _repeating_on(step=span.days)
        whole = span.elapsed + timedelta(days=span.days)
        return Parts(repeat=Repeat(interval=whole)) if whole >= timedelta(minutes=1) else None

    return make


def _every_hour(_match: re.Match[str]) -> Parts:
    """Return the repetition in `hourly`, `매시간`."""
    return Parts(repeat=Repeat(interval=timedelta(hours=1)))


def _every_unit(match: re.Match[str]) -> Parts:
    """Return the repetition in `every day`, `every morning`, `on weekdays`."""
    word = match["unit"].lower().removesuffix("s")
    if re.fullmatch(PART_EN, word):
        return Parts(repeat=Repeat(), half=half_en(word))
    return _repeating_on(
        weekdays={"weekday": WORKDAYS, "workday": WORKDAYS, "weekend": WEEKEND}.get(word, ())
    )


def _every_weekday(match: re.Match[str]) -> Parts:
    """Return the repetition in `every Monday`, `mon, wed and fri`, `매주 월수금`."""
    return _repeating_on(weekdays=weekdays(match["days"]))


def _every_weekday_between(match: re.Match[str]) -> Parts:
    """Return the repetition on all days from one to another: `every Monday to Friday`.

    `Saturday to Tuesday` includes Sunday and Monday.
    """
    first, last = weekday(match["first"]), weekday(match["last"])
    days_after_first = (last - first) % 7
    named = sorted((first + days) % 7 for days in range(days_after_first + 1))
    return _repeating_on(weekdays=tuple(named))


def _every_other(match: re.Match[str]) -> Parts | None:
    """Return the repetition in `every other Tuesday` or `every 3rd day`; None for `every 0th day`.

    `every first Monday` is the first one of each month. With several days, it is no time: the first of each,
    or the days of the first week, could be meant.
    """
    step = 2 if match["other"] else _count(match["step"])
    if step < 1:
        return None
    if unit := match["unit"]:  # without a day of the week, weeks are counted in days
        return _repeating_on(step=step * 7 if unit.lower() == "week" else step)
    days = weekdays(match["days"])
    if step == 1:
        return _repeating_on(nth=1, weekdays=days) if len(days) == 1 else None
    return _every_weeks(step, days)


def _every_weeks_on(match: re.Match[str]) -> Parts | None:
    """Return the repetition in `every other week on Tuesday`, `격주 화요일`, `3주마다 금요일`.

    None for `every 0 weeks`.
    """
    return _every_weeks(_count(match["step"] or "2"), weekdays(match["days"]))


def _every_weeks(step: int, days: tuple[int, ...]) -> Parts | None:
    """Return the repetition on days of the week in every `step`th week; None if `step` is 0."""
    if step < 1:
        return None
    return _repeating_on(weekdays=days, **_counted(step, StepUnit.WEEKS))


def _counted(step: int, unit: StepUnit) -> dict[str, object]:
    """Return the fields of a `Rhythm` that occurs in every `step`th unit; no fields if `step` is 1."""
    return {"step": step, "unit": unit} if step > 1 else {}


def _count(words: str) -> int:
    """Return the number in `2`, `2nd`, `second` or `two`."""
    return int(number(words)) if re.fullmatch(rf"\d+|{CARDINAL_EN}", words, re.IGNORECASE) else ordinal(words)


def _month_day(match: re.Match[str]) -> Parts | None:
    """Return the repetition in `every month on the 3rd`, `every 2 months on the 3rd`, `매월 마지막 날`.

    None for `every 0 months`.
    """
    parts = match.groupdict()
    day = parts.get("day")
    step = _count(parts.get("step") or "1")
    if step < 1:
        return None
    return _repeating_on(month_day=ordinal(day) if day else LAST, **_counted(step, StepUnit.MONTHS))


def _year_day(match: re.Match[str]) -> Parts:
    """Return the repetition in `every year on 24 Dec`, `매년 12월 24일`."""
    named = match["month"]
    number = int(named) if named.isdecimal() else month(named)
    return _repeating_on(month_day=ordinal(match["day"]), months=(number,))


def _month_weekday(match: re.Match[str]) -> Parts:
    """Return the repetition in `the first Monday of each month`, `매월 첫째 월요일`."""
    nth = match["nth"]
    return _repeating_on(nth=ordinal(nth) if nth else LAST, weekdays=(weekday(match["weekday"]),))


def _every_quarter(_match: re.Match[str]) -> Parts:
    """Return the repetition in `every quarter`: on the first day of each."""
    return _repeating_on(month_day=1, months=_QUARTERS)


def _except_months(match: re.Match[str]) -> Parts:
    """Return the months other than those named in `except in August`."""
    named = {month(word) for word in re.findall(MONTH_EN, match["months"], re.IGNORECASE)}
    return Parts(months=tuple(number for number in range(1, 13) if number not in named))


def _except_months_ko(match: re.Match[str]) -> Parts | None:
    """Return the months other than those named in the Korean `8월 빼고`; None if one does not exist."""
    named = {int(word) for word in re.findall(r"\d+", match["months"])}
    if not named <= set(range(1, 13)):
        return None
    return Parts(months=tuple(number for number in range(1, 13) if number not in named))


def _every_ko(match: re.Match[str]) -> Parts:
    """Return the repetition in `매일`, `평일`, `주말마다`."""
    days = {"평일": WORKDAYS, "주말": WEEKEND, "매주말": WEEKEND}.get(match["unit"].removesuffix("마다"), ())
    return _repeating_on(weekdays=days)


_PLACED = rf"(?:(?P<nth>{ORDINAL_EN})|last)\s+(?P<weekday>{WEEKDAY_EN})\b"
_DAY_OF_MONTH = rf"(?:the\s+)?(?:(?P<day>{ORDINAL_EN}|\d{{1,2}}\b)|last\s+day\b)"

FORMS: tuple[Form, ...] = (
    Form(
        "every other",
        "on each second, third … such day, counted from the first that lies ahead",
        shapes=(
            Shape(
                rf"(?:every\s+(?:other|second|2nd)\s+week|biweekly|fortnightly|every\s+(?P<step>\d{{1,2}}|{CARDINAL_EN})\s+weeks)"
                rf"\s+on\s+(?:a\s+)?{_COUNTED_DAYS}\b",
                _every_weeks_on,
                (
                    "every other week on Tuesday at 8am",
                    "every two weeks on Friday at 18:00",
                    "every 3 weeks on Monday and Wednesday at 8:00",
                ),
            ),
            Shape(
                rf"{_EVERY}{_OTHER}\s+(?:(?P<unit>day|week)|(?P<days>{_DAY_LIST}))\b(?!\s+(?:of|in)\b)",
                _every_other,
                (
                    "every other Tuesday at 8am",
                    "every other Monday and Wednesday at 8:00",
                    "every 2nd Friday at 18:00",
                    "every other day at 9:00",
                ),
            ),
            Shape(
                rf"(?:격주|(?P<step>\d{{1,2}})주(?:마다|에\s*한\s*번))\s*(?P<days>{_DAYS_KO})(?:마다)?(?:에)?",
                _every_weeks_on,
                ("격주 화요일 오전 8시", "격주 월요일 수요일 오전 8시", "3주마다 금요일 18:00"),
            ),
        ),
    ),
    Form(
        "every so long",
        "again and again, that long after each other, at least a minute; of days, at a time of day",
        shapes=(
            Shape(
                rf"{_EVERY}(?P<span>{SPAN_EN})",
                _every_span(span_en),
                ("every 2 hours", "every 90 minutes", "every 3 days at 9:00"),
            ),
            Shape(rf"{_EVERY}hour\b|hourly\b", _every_hour, ("every hour",)),
            Shape(rf"(?P<span>{SPAN_KO})마다", _every_span(span_ko), ("2시간마다", "30분마다")),
            Shape(r"매\s*시간", _every_hour, ("매시간",)),
        ),
    ),
    Form(
        "every month, quarter or year",
        "on that day of each month, of each first month of a quarter, or of each year",
        shapes=(
            Shape(
                rf"(?:every\s+(?:(?P<step>\d{{1,2}}|{CARDINAL_EN})\s+months|month)|monthly)\s+on\s+{_DAY_OF_MONTH}(?!\s+(?:mon|tue|wed|thu|fri|sat|sun))",
                _month_day,
                ("every month on the 3rd at 9:00", "every month on the last day at 18:00"),
            ),
            Shape(
                rf"(?:on\s+)?{_DAY_OF_MONTH}\s+of\s+{_EACH_MONTH}",
                _month_day,
                ("on the last day of every month at 18:00",),
            ),
            Shape(
                rf"(?:on\s+)?(?:the\s+)?{_PLACED}\s+(?:of|in)\s+{_EACH_MONTH}",
                _month_weekday,
                ("the first Monday of each month at 9:00",),
            ),
            Shape(rf"(?:every\s+month|monthly)\s+on\s+(?:the\s+)?{_PLACED}", _month_weekday, ()),
            Shape(
                rf"{_EVERY}{_PLACED}\s+(?:of|in)\s+the\s+month\b",
                _month_weekday,
                ("every last Friday of the month at 17:00",),
            ),
            Shape(rf"{_EVERY}quarter\b|quarterly\b", _every_quarter, ("every quarter at 9:00",)),
            Shape(
                rf"(?:every\s+year|yearly)\s+on\s+(?:the\s+)?(?P<day>{ORDINAL_EN}|\d{{1,2}}\b)\s+(?:of\s+)?(?P<month>{MONTH_EN})\b",
                _year_day,
                ("every year on 24 Dec at 18:00",),
            ),
            Shape(
                rf"(?:every\s+year|yearly)\s+on\s+(?P<month>{MONTH_EN})\s+(?:the\s+)?(?P<day>{ORDINAL_EN}|\d{{1,2}}\b)(?!:)",
                _year_day,
                (),
            ),
            Shape(r"매[월달]\s*(?P<day>\d{1,2})일(?:마다)?(?:에)?", _month_day, ("매월 3일 오전 9시",)),
            Shape(
                r"(?P<step>\d{1,2})개월마다\s*(?:(?P<day>\d{1,2})일|마지막\s*날|말일)(?:에)?",
                _month_day,
                ("3개월마다 1일 오전 9시", "2개월마다 마지막 날 18:00"),
            ),
            Shape(
                r"매[월달]\s*(?:마지막\s*날|말일)(?:마다)?(?:에)?",
                lambda _: _repeating_on(month_day=LAST),
                ("매월 마지막 날 18:00",),
            ),
            Shape(
                rf"매[월달]\s*(?P<nth>{ORDINAL_KO})\s*(?P<weekday>[{WEEKDAYS_KO}]요일)(?:마다)?(?:에)?",
                _month_weekday,
                ("매월 첫째 월요일 오전 9시",),
            ),
            Shape(
                rf"(?P<nth>{ORDINAL_KO})\s*(?P<weekday>[{WEEKDAYS_KO}]요일)마다",
                _month_weekday,
                ("셋째 목요일마다 오전 8시",),
            ),
            Shape(r"(?:매\s*)?분기(?:마다)(?:에)?|매\s*분기", _every_quarter, ("분기마다 오전 9시",)),
            Shape(
                r"매년\s*(?P<month>\d{1,2})월\s*(?P<day>\d{1,2})일(?:마다)?(?:에)?",
                _year_day,
                ("매년 12월 24일 18:00",),
            ),
        ),
    ),
    Form(
        "every weekday",
        "on each of the days of the week that are named",
        shapes=(
            Shape(
                rf"{_EVERY}(?P<first>{WEEKDAY_EN}){_TO}(?P<last>{WEEKDAY_EN})\b",
                _every_weekday_between,
                ("every Monday to Friday at 9:00",),
            ),
            Shape(
                rf"(?:{_EVERY}|on\s+|(?:weekly|every\s+week)\s+on\s+(?=\S))?(?P<days>{_DAYS_LIST})\b",
                _every_weekday,
                ("on Mondays at 9:00", "Mondays and Thursdays at 18:00"),
            ),
            Shape(
                rf"(?:{_EVERY}|(?:weekly|(?:once\s+a|once\s+every|every)\s+week)\s+on\s+)(?P<days>{_DAY_LIST})\b",
                _every_weekday,
                ("every Monday at 9:00", "every mon, wed and fri 18:00"),
            ),
            Shape(
                rf"매주\s*(?P<first>[{WEEKDAYS_KO}])(?:요일)?\s*(?:부터|에서|[~-])\s*(?P<last>[{WEEKDAYS_KO}])(?:요일)?(?:까지)?(?:에)?(?=[\s,:]|$)",
                _every_weekday_between,
                ("매주 월~금 오전 9시", "매주 월요일부터 금요일까지 오전 9시"),
            ),
            Shape(
                rf"매주\s*(?P<days>{_DAYS_KO}|[{WEEKDAYS_KO}](?:\s*,?\s*[{WEEKDAYS_KO}]){{1,6}})(?:마다)?(?:에)?(?=[\s,:]|$)",
                _every_weekday,
                ("매주 월요일 오전 9시", "매주 월수금 18:00"),
            ),
            Shape(rf"(?P<days>{_DAYS_KO})마다", _every_weekday, ("월요일마다 오전 9시",)),
        ),
    ),
    Form(
        "every day",
        "every day, every working day, both days of each weekend",
        shapes=(
            Shape(
                rf"{_EVERY}(?P<unit>day|weekday|workday|weekend|{PART_EN})\b|(?P<daily>daily)\b",
                lambda match: Parts(repeat=Repeat()) if match["daily"] else _every_unit(match),
                ("every day at 9:00", "every weekday at 7:30", "every morning", "daily at 18:00"),
            ),
            Shape(r"(?:on\s+)(?P<unit>weekdays|workdays|weekends)\b", _every_unit, ("on weekdays at 7",)),
            Shape(
                r"(?P<unit>매일|날마다|평일(?:마다)?|주말마다|매주말)(?:에)?",
                _every_ko,
                ("매일 오전 9시", "평일 오전 7시 30분", "매일 아침"),
            ),
        ),
    ),
    Form(
        "except in a month",
        "not in the months that are named",
        shapes=(
            Shape(
                rf",?\s*except\s+(?:in\s+)?(?P<months>{MONTH_EN}\b(?:(?:{_AND}|\s+or\s+){MONTH_EN}\b)*)",
                _except_months,
                ("Mondays and Thursdays except in August at 9:00",),
            ),
            Shape(
                r"(?P<months>\d{1,2}월(?:\s*,?\s*\d{1,2}월)*)\s*(?:빼고|제외하고|제외)",
                _except_months_ko,
                ("매주 월요일 8월 빼고 오전 9시",),
            ),
        ),
    ),
)

START: tuple[Form, ...] = (
    Form(
        "weekdays",
        "as after `on`",
        shapes=(Shape(r"(?P<unit>weekdays|workdays|weekends)\b", _every_unit, ("weekdays at 7:30",)),),
        where=Where.START,
    ),
)
"""Forms that name a repetition only at the start of a text."""
