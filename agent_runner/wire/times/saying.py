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
_WORKDAYS, _WEEKEND = (0, 1, 2, 3, 4), (5, 6)


def say(reading: Reading, language: Language) -> str:
    """Return a result in words: `Mon 2026-11-23 09:00`, `every Monday at 09:00`; empty for a refusal."""
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
    said = [say(choice, language) for choice in refusal.choices]
    joint = " 또는 " if language is Language.KOREAN else " or "
    return joint.join([", ".join(said[:-1]), said[-1]]) if len(said) > 1 else "".join(said)


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
    """Return a moment as `Mon 2026-11-23 09:00`, with its offset if the clocks show that time twice.

    Seconds are included if they are not 0, unless `has_seconds` is set.
    """
    shows_seconds = at.second != 0 if has_seconds is None else has_seconds
    clock = f"{at:%H:%M:%S}" if shows_seconds else f"{at:%H:%M}"
    is_twice = at.replace(fold=0).utcoffset() != at.replace(fold=1).utcoffset()
    offset = f"{at:%z}" if is_twice else ""
    return f"{say_day(at, language)} {clock}{offset[:5]}"


def _amount(days: int, elapsed: timedelta, language: Language, *, months: int = 0) -> str:
    is_korean = language is Language.KOREAN
    left = round(elapsed.total_seconds())
    said = [f"{months}개월" if is_korean else _counted(months, "month")] if months else []
    if days:
        said.append(f"{days}일" if is_korean else _counted(days, "day"))
    for seconds, english, korean in _UNITS:
        count, left = divmod(left, seconds)
        if count:
            said.append(f"{count}{korean}" if is_korean else _counted(count, english))
    return " ".join(said) or ("0초" if is_korean else "0 seconds")


def _counted(count: int, unit: str) -> str:
    return f"{count} {unit}" if count == 1 else f"{count} {unit}s"


def _recurrence(one: Recurrence, language: Language) -> str:
    is_korean = language is Language.KOREAN
    if one.interval is not None:
        # Days are written as hours: `every 2 days` would be read as days of the calendar, at a time of day.
        amount = _amount(0, one.interval, language)
        return (
            f"{amount.replace(' ', '')}마다"
            if is_korean
            else f"every {'hour' if amount == '1 hour' else amount}"
        )
    clock = f"{one.clock:%H:%M}"
    return f"{_days_ko(one.rhythm)} {clock}" if is_korean else f"{_days_en(one.rhythm)} at {clock}"


_QUARTERS = (1, 4, 7, 10)
_PLACES_KO = ("첫째", "둘째", "셋째", "넷째", "다섯째")


def _days_en(one: Rhythm) -> str:
    if len(one.months) == 1 and one.month_day is not None:
        return f"every year on {one.month_day} {_MONTHS_EN[one.months[0] - 1]}"
    if one.months == _QUARTERS and one.month_day == 1:
        return "every quarter"
    return _month_en(one) + _except_en(one.months)


def _month_en(one: Rhythm) -> str:
    if one.month_day is not None:
        month = f"{one.step} months" if one.step > 1 else "month"
        day = "last day" if one.month_day == LAST else f"{one.month_day}{_ordinal(one.month_day)}"
        return f"every {month} on the {day}"
    if one.nth is not None:
        place = "last" if one.nth == LAST else f"{one.nth}{_ordinal(one.nth)}"
        return f"the {place} {_DAYS_EN[one.weekdays[0]]} of each month"
    if not one.weekdays:
        return f"every {one.step} days" if one.step > 1 else "every day"
    return _weekdays_en(one)


def _weekdays_en(one: Rhythm) -> str:
    if one.step > 1:
        step = "other" if one.step == 2 else f"{one.step}{_ordinal(one.step)}"
        return f"every {step} {_DAYS_EN[one.weekdays[0]]}"
    if one.weekdays == _WORKDAYS:
        return "every weekday"
    if one.weekdays == _WEEKEND:
        return "every weekend"
    return "every " + _and([_DAYS_EN[day] for day in one.weekdays])


def _except_en(months: tuple[int, ...]) -> str:
    return f" except in {_and([_MONTHS_EN[month - 1] for month in _left_out(months)])}" if months else ""


def _left_out(months: tuple[int, ...]) -> list[int]:
    return [month for month in range(1, 13) if month not in months]


def _and(names: list[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]


def _ordinal(number: int) -> str:
    return "th" if number in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")


def _days_ko(one: Rhythm) -> str:
    if len(one.months) == 1 and one.month_day is not None:
        return f"매년 {one.months[0]}월 {one.month_day}일"
    if one.months == _QUARTERS and one.month_day == 1:
        return "분기마다"
    left_out = "".join(f" {month}월" for month in _left_out(one.months)) + " 빼고" if one.months else ""
    return _month_ko(one) + left_out


def _month_ko(one: Rhythm) -> str:
    if one.month_day == LAST:
        return "매월 마지막 날"
    if one.month_day is not None:
        return (f"{one.step}개월마다" if one.step > 1 else "매월") + f" {one.month_day}일"
    if one.nth is not None:
        place = "마지막" if one.nth == LAST else _PLACES_KO[one.nth - 1]
        return f"매월 {place} {_DAYS_KO[one.weekdays[0]]}요일"
    if not one.weekdays:
        return f"{one.step}일마다" if one.step > 1 else "매일"
    return _weekdays_ko(one)


def _weekdays_ko(one: Rhythm) -> str:
    names = " ".join(f"{_DAYS_KO[day]}요일" for day in one.weekdays)
    if one.step > 1 and one.unit is StepUnit.WEEKS:
        return (f"{one.step}주마다" if one.step > 2 else "격주") + f" {names}"
    if one.weekdays == _WORKDAYS:
        return "평일"
    return "주말마다" if one.weekdays == _WEEKEND else f"매주 {names}"
