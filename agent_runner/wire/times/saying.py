"""Write a time in words, so that `read` reads them as the same time."""

from __future__ import annotations

from datetime import date, datetime, timedelta
from enum import StrEnum

from agent_runner.wire.times.model import (
    LAST,
    DateOnly,
    Duration,
    Instant,
    Reading,
    Recurrence,
    Rhythm,
    StepUnit,
    TimeRefusal,
)


class Language(StrEnum):
    ENGLISH = "en"
    KOREAN = "ko"


_DAYS_EN = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_DAYS_KO = "월화수목금토일"
_MONTHS_EN = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_UNITS = ((3600, "hour", "시간"), (60, "minute", "분"), (1, "second", "초"))
"""Seconds, English name and Korean name of each unit."""
_WORKDAYS, _WEEKEND = (0, 1, 2, 3, 4), (5, 6)
"""Days of the week by number; Monday is 0."""


def say(reading: Reading, language: Language) -> str:
    """Return the words for the time in a reading: `Mon 2026-11-23 09:00`, `every Monday at 09:00`.

    Empty for a refusal.
    """
    match reading:
        case Instant(at=at):
            return say_moment(at, language)
        case DateOnly(day=day):
            return say_day(day, language)
        case Duration(months=months, days=days, elapsed=elapsed):
            amount = _amount(days, elapsed, language, months=months)
            return f"{amount} 뒤" if language is Language.KOREAN else f"in {amount}"
        case Recurrence():
            return _recurrence(reading, language)
        case TimeRefusal():
            return ""


def say_choices(refusal: TimeRefusal, language: Language) -> str:
    """Return the times that a refused text can mean: `Thu 2026-11-26 09:00 or Thu 2026-11-26 21:00`."""
    phrases = [say(choice, language) for choice in refusal.choices]
    joint = " 또는 " if language is Language.KOREAN else " or "
    return joint.join([", ".join(phrases[:-1]), phrases[-1]]) if len(phrases) > 1 else "".join(phrases)


def say_day(day: date, language: Language) -> str:
    """Return a day as `Mon 2026-11-23`, `2026-11-23 (월)`."""
    iso = f"{day.year:04d}-{day.month:02d}-{day.day:02d}"
    if language is Language.KOREAN:
        return f"{iso} ({_DAYS_KO[day.weekday()]})"
    return f"{_DAYS_EN[day.weekday()][:3]} {iso}"


def say_long_day(day: date, language: Language) -> str:
    """Return a day in full: `Sunday, 22 November 2026`, `2026년 11월 22일 일요일`."""
    if language is Language.KOREAN:
        return f"{day.year}년 {day.month}월 {day.day}일 {_DAYS_KO[day.weekday()]}요일"
    return f"{day:%A}, {day.day} {day:%B} {day.year}"  # in English, because no program here sets a locale


def say_moment(at: datetime, language: Language, *, has_seconds: bool | None = None) -> str:
    """Return a moment as `Mon 2026-11-23 09:00`, with its offset from UTC if the clocks show it twice.

    `has_seconds`: whether to include seconds; None includes them if they are not 0.
    """
    shows_seconds = at.second != 0 if has_seconds is None else has_seconds
    clock = f"{at:%H:%M:%S}" if shows_seconds else f"{at:%H:%M}"
    is_twice = at.replace(fold=0).utcoffset() != at.replace(fold=1).utcoffset()
    offset = f"{at:%z}" if is_twice else ""  # cut below to `+0900`: it may have seconds
    return f"{say_day(at, language)} {clock}{offset[:5]}"


def _amount(days: int, elapsed: timedelta, language: Language, *, months: int = 0) -> str:
    """Return a span of time in words: `2 days 3 hours`.

    `elapsed` is written in hours, minutes and seconds, however long it is; seconds may have decimals.
    """
    is_korean = language is Language.KOREAN
    remaining = elapsed // timedelta(seconds=1)
    phrases = [f"{months}개월" if is_korean else _counted(months, "month")] if months else []
    if days:
        phrases.append(f"{days}일" if is_korean else _counted(days, "day"))
    for seconds, english, korean in _UNITS:
        count, remaining = divmod(remaining, seconds)
        # `.500000` → `.5`, `.000000` → empty
        decimals = f".{elapsed.microseconds:06d}".rstrip("0.") if seconds == 1 else ""
        if count or decimals:
            number = f"{count}{decimals}"
            phrases.append(f"{number}{korean}" if is_korean else _counted(number, english))
    return " ".join(phrases) or ("0초" if is_korean else "0 seconds")


def _counted(count: int | str, unit: str) -> str:
    """Return a count with an English unit in the singular or plural: `1 day`, `2 days`."""
    return f"{count} {unit}" if str(count) == "1" else f"{count} {unit}s"


def _recurrence(recurrence: Recurrence, language: Language) -> str:
    """Return a repeating time in words: `every 2 hours`, `every Monday at 09:00`."""
    is_korean = language is Language.KOREAN
    if recurrence.interval is not None:
        # Days are written as hours: `every 2 days` would be read as days of the calendar, at a time of day.
        amount = _amount(0, recurrence.interval, language)
        if is_korean:
            return f"{amount.replace(' ', '')}마다"
        return f"every {amount.removeprefix('1 ') if amount == '1 hour' else amount}"
    clock = f"{recurrence.clock:%H:%M}"
    if is_korean:
        return f"{_days_ko(recurrence.rhythm)} {clock}"
    return f"{_days_en(recurrence.rhythm)} at {clock}"


_QUARTERS = (1, 4, 7, 10)
"""The first month of each quarter."""
_PLACES_KO = ("첫째", "둘째", "셋째", "넷째", "다섯째")


def _days_en(rhythm: Rhythm) -> str:
    """Return the days of a rhythm in English: `every quarter`, `every Monday except in Aug`."""
    if _is_yearly(rhythm):
        return f"every year on {rhythm.month_day} {_MONTHS_EN[rhythm.months[0] - 1]}"
    if _is_quarterly(rhythm):
        return "every quarter"
    return _days_of_any_month_en(rhythm) + _except_en(rhythm.months)


def _is_yearly(rhythm: Rhythm) -> bool:
    """Return whether a rhythm is `every year on …`: without a step, on a day of one month by its number."""
    return rhythm.step == 1 and len(rhythm.months) == 1 and rhythm.month_day not in (None, LAST)


def _is_quarterly(rhythm: Rhythm) -> bool:
    """Return whether a rhythm is `every quarter`: without a step, on the first day of each quarter."""
    return rhythm.step == 1 and rhythm.months == _QUARTERS and rhythm.month_day == 1


def _days_of_any_month_en(rhythm: Rhythm) -> str:
    """Return the days of a rhythm in English, as if it had no `months`: `every month on the 3rd`."""
    if rhythm.month_day is not None:
        month = f"{rhythm.step} months" if rhythm.step > 1 else "month"
        day = (
            "last day"
            if rhythm.month_day == LAST
            else f"{rhythm.month_day}{_ordinal_ending(rhythm.month_day)}"
        )
        return f"every {month} on the {day}"
    if rhythm.nth is not None:  # never with a step: the parser refuses one
        place = "last" if rhythm.nth == LAST else f"{rhythm.nth}{_ordinal_ending(rhythm.nth)}"
        return f"the {place} {_DAYS_EN[rhythm.weekdays[0]]} of each month"
    if not rhythm.weekdays:
        return f"every {rhythm.step} days" if rhythm.step > 1 else "every day"
    return _weekdays_en(rhythm)


def _weekdays_en(rhythm: Rhythm) -> str:
    """Return the weekdays of a rhythm in words: `every other Monday and Friday`, `every weekday`.

    A step of the rhythm counts weeks: `every 3rd Monday` is the Monday of every third week.
    """
    names = _and([_DAYS_EN[day] for day in rhythm.weekdays])
    if rhythm.step == 2:
        return f"every other {names}"
    if rhythm.step > 1 and len(rhythm.weekdays) > 1:
        return f"every {rhythm.step} weeks on {names}"
    if rhythm.step > 1:
        return f"every {rhythm.step}{_ordinal_ending(rhythm.step)} {names}"
    if rhythm.weekdays == _WORKDAYS:
        return "every weekday"
    return "every weekend" if rhythm.weekdays == _WEEKEND else f"every {names}"


def _except_en(months: tuple[int, ...]) -> str:
    """Return the English words for the months that a rhythm leaves out: ` except in Aug`.

    `months` are those in which it occurs; empty for all, and then there are no words.
    """
    return f" except in {_and([_MONTHS_EN[month - 1] for month in _left_out(months)])}" if months else ""


def _left_out(months: tuple[int, ...]) -> list[int]:
    """Return the numbers of the months, from 1 to 12, that are not in `months`."""
    return [month for month in range(1, 13) if month not in months]


def _and(names: list[str]) -> str:
    """Return names joined as in English text: `a, b and c`."""
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]


def _ordinal_ending(number: int) -> str:
    """Return the English ending of a number up to 99 as an ordinal: `st`, `nd`, `rd` or `th`."""
    return "th" if number in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")


def _days_ko(rhythm: Rhythm) -> str:
    """Return the days of a rhythm in Korean: `매년 12월 24일`, `분기마다`, `매주 월요일 8월 빼고`."""
    if _is_yearly(rhythm):
        return f"매년 {rhythm.months[0]}월 {rhythm.month_day}일"
    if _is_quarterly(rhythm):
        return "분기마다"
    if not rhythm.months:
        return _days_of_any_month_ko(rhythm)
    left_out = "".join(f" {month}월" for month in _left_out(rhythm.months))
    return f"{_days_of_any_month_ko(rhythm)}{left_out} 빼고"


def _days_of_any_month_ko(rhythm: Rhythm) -> str:
    """Return the days of a rhythm in Korean, without the months: `매월 3일`, `매일`, `매주 월요일`."""
    if rhythm.month_day is not None:
        day = "마지막 날" if rhythm.month_day == LAST else f"{rhythm.month_day}일"
        return (f"{rhythm.step}개월마다" if rhythm.step > 1 else "매월") + f" {day}"
    if rhythm.nth is not None:
        place = "마지막" if rhythm.nth == LAST else _PLACES_KO[rhythm.nth - 1]
        return f"매월 {place} {_DAYS_KO[rhythm.weekdays[0]]}요일"
    if not rhythm.weekdays:
        return f"{rhythm.step}일마다" if rhythm.step > 1 else "매일"
    return _weekdays_ko(rhythm)


def _weekdays_ko(rhythm: Rhythm) -> str:
    """Return the weekdays of a rhythm in Korean words: `격주 월요일`, `평일`."""
    names = " ".join(f"{_DAYS_KO[day]}요일" for day in rhythm.weekdays)
    if rhythm.step > 1 and rhythm.unit is StepUnit.WEEKS:
        return (f"{rhythm.step}주마다" if rhythm.step > 2 else "격주") + f" {names}"
    if rhythm.weekdays == _WORKDAYS:
        return "평일"
    return "주말마다" if rhythm.weekdays == _WEEKEND else f"매주 {names}"
