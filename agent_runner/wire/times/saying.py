"""Print a time so that `read` gives the same one back."""

from __future__ import annotations

from datetime import date, datetime, time, timedelta
from enum import StrEnum

from agent_runner.wire.times.model import DateOnly, Duration, Instant, Reading, Recurrence, TimeRefusal


class Language(StrEnum):
    ENGLISH = "en"
    KOREAN = "ko"


_DAYS_EN = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_DAYS_KO = "월화수목금토일"
_MONTHS_EN = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_UNITS = ((3600, "hour", "시간"), (60, "minute", "분"), (1, "second", "초"))
_WORKDAYS, _WEEKEND = (0, 1, 2, 3, 4), (5, 6)


def say(reading: Reading, language: Language) -> str:
    """Print what was read: `Mon 2026-11-23 09:00`, `every Monday at 09:00`; a refusal is empty."""
    match reading:
        case Instant(at=at):
            return say_moment(at, language)
        case DateOnly(day=day):
            return say_day(day, language)
        case Duration(days=days, elapsed=elapsed):
            amount = _amount(days, elapsed, language)
            return f"{amount} 뒤" if language is Language.KOREAN else f"in {amount}"
        case Recurrence():
            return _recurrence(reading, language)
        case TimeRefusal():
            return ""


def say_day(day: date, language: Language) -> str:
    """Print a day: `Mon 2026-11-23`, `2026-11-23 (월)`."""
    iso = f"{day.year:04d}-{day.month:02d}-{day.day:02d}"
    if language is Language.KOREAN:
        return f"{iso} ({_DAYS_KO[day.weekday()]})"
    return f"{_DAYS_EN[day.weekday()][:3]} {iso}"


def say_long_day(day: date, language: Language) -> str:
    """Print a day in full: `Sunday, 22 November 2026`, `2026년 11월 22일 일요일`."""
    if language is Language.KOREAN:
        return f"{day.year}년 {day.month}월 {day.day}일 {_DAYS_KO[day.weekday()]}요일"
    return f"{day:%A}, {day.day} {day:%B} {day.year}"  # English: no program here sets a locale


def say_moment(at: datetime, language: Language, *, has_seconds: bool | None = None) -> str:
    """Print a moment: `Mon 2026-11-23 09:00`, with its offset where the clocks show that time twice.

    Seconds are shown where there are any, unless `has_seconds` says otherwise.
    """
    shows_seconds = at.second != 0 if has_seconds is None else has_seconds
    clock = f"{at:%H:%M:%S}" if shows_seconds else f"{at:%H:%M}"
    is_twice = at.replace(fold=0).utcoffset() != at.replace(fold=1).utcoffset()
    offset = f"{at:%z}" if is_twice else ""
    return f"{say_day(at, language)} {clock}{offset[:5]}"


def _amount(days: int, elapsed: timedelta, language: Language) -> str:
    is_korean = language is Language.KOREAN
    left = round(elapsed.total_seconds())
    said = [f"{days}일" if is_korean else _counted(days, "day")] if days else []
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
        amount = _amount(one.interval.days, timedelta(seconds=one.interval.seconds), language)
        return (
            f"{amount.replace(' ', '')}마다"
            if is_korean
            else f"every {'hour' if amount == '1 hour' else amount}"
        )
    clock = _clock(one.clock)
    return f"{_days_ko(one)} {clock}" if is_korean else f"{_days_en(one)} at {clock}"


def _clock(clock: time) -> str:
    return f"{clock:%H:%M}"


def _days_en(one: Recurrence) -> str:
    if one.month is not None:
        return f"every year on {one.month_day} {_MONTHS_EN[one.month - 1]}"
    if one.month_day is not None:
        return f"every month on the {one.month_day}{_ordinal(one.month_day)}"
    if not one.weekdays:
        return "every day"
    if one.weekdays == _WORKDAYS:
        return "every weekday"
    if one.weekdays == _WEEKEND:
        return "every weekend"
    names = [_DAYS_EN[day] for day in one.weekdays]
    return "every " + (f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0])


def _ordinal(number: int) -> str:
    return "th" if number in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")


def _days_ko(one: Recurrence) -> str:
    if one.month is not None:
        return f"매년 {one.month}월 {one.month_day}일"
    if one.month_day is not None:
        return f"매월 {one.month_day}일"
    if not one.weekdays:
        return "매일"
    if one.weekdays == _WORKDAYS:
        return "평일"
    if one.weekdays == _WEEKEND:
        return "주말마다"
    return "매주 " + " ".join(f"{_DAYS_KO[day]}요일" for day in one.weekdays)
