"""The table of accepted forms. A time is a run of them ("tomorrow" "at 9am"), each read by one row.

`docs/times.md` is generated from this table. Longer shapes stand first: the first that matches is taken.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, timedelta, timezone

from agent_runner.wire.times.amounts import (
    AFTER_KO,
    FLAGS,
    NUMBER_KO,
    SPAN_EN,
    SPAN_KO,
    number,
    span_en,
    span_ko,
)
from agent_runner.wire.times.model import (
    CalendarDay,
    ClockTime,
    DaysAhead,
    Form,
    Half,
    Make,
    Parts,
    Repeat,
    Shape,
    TimeSpan,
    Weekday,
)


def _spanned(read: Callable[[str], TimeSpan | None]) -> Make:
    def make(match: re.Match[str]) -> Parts | None:
        span = read(match["span"])
        return None if span is None else Parts(span=span)

    return make


def _every_span(read: Callable[[str], TimeSpan | None]) -> Make:
    def make(match: re.Match[str]) -> Parts | None:
        span = read(match["span"])
        if span is None or (span.days and not span.elapsed):
            return Parts(repeat=Repeat()) if span is not None and span.days == 1 else None
        whole = span.elapsed + timedelta(days=span.days)
        return Parts(repeat=Repeat(interval=whole)) if whole >= timedelta(minutes=1) else None

    return make


# Days

_WEEKDAY_EN = (
    r"(?:mon(?:day)?|tue(?:s(?:day)?)?|wed(?:nesday)?|thu(?:r(?:s(?:day)?)?)?|fri(?:day)?|sat(?:urday)?"
    r"|sun(?:day)?)"
)
_WEEKDAYS_EN = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_WEEKDAYS_KO = "월화수목금토일"
_MONTHS_EN = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTH_EN = (
    r"(?P<month>jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?"
    r"|sept?(?:ember)?|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)"
)
_DAY_EN = r"(?P<day>\d{1,2})(?:st|nd|rd|th)?"
_YEAR_EN = r"(?:,?\s+(?P<year>\d{4})(?![\d:]))?"
_NEAR = {"yesterday": -1, "today": 0, "tomorrow": 1, "tmrw": 1, "어제": -1, "오늘": 0, "내일": 1}
_NEAR |= {"모레": 2, "내일모레": 2, "글피": 3}
_WEEKS_KO = {"지난": -1, "이번": 0, "다음": 1, "다다음": 2}
_WEEKEND, _WORKDAYS = (5, 6), (0, 1, 2, 3, 4)


def _near_day(match: re.Match[str]) -> Parts:
    word = match["day"].lower()
    if word == "tonight":
        return Parts(day=DaysAhead(days=0), half=Half.NIGHT)
    return Parts(day=DaysAhead(days=_NEAR.get(word, 2)))


def _calendar_day(match: re.Match[str]) -> Parts:
    year, month = match.groupdict().get("year"), match["month"]
    return Parts(
        day=CalendarDay(
            year=int(year) if year else None,
            month=int(month) if month.isdecimal() else _MONTHS_EN.index(month.lower()[:3]) + 1,
            day=int(match["day"]),
        )
    )


def _weekday_en(match: re.Match[str]) -> Parts:
    is_next = (match["which"] or "").lower() == "next"
    return Parts(weekday=Weekday(index=_WEEKDAYS_EN.index(match["day"].lower()[:3]), is_next=is_next))


def _weekday_ko(match: re.Match[str]) -> Parts:
    which = match.groupdict().get("which")
    return Parts(
        weekday=Weekday(
            index=_WEEKDAYS_KO.index(match["day"]), weeks_ahead=_WEEKS_KO[which] if which else None
        )
    )


# Times of day

_MERIDIEM = r"(?P<half>[ap]m\b|[ap]\.m\.)"
_HALVES_KO = {
    "오전": Half.AM,
    "오후": Half.PM,
    "새벽": Half.DAWN,
    "아침": Half.MORNING,
    "낮": Half.MIDDAY,
    "점심": Half.MIDDAY,
    "저녁": Half.EVENING,
    "밤": Half.NIGHT,
}
_HALF_KO = "|".join(_HALVES_KO)
_PART_EN = r"(?P<half>morning|afternoon|evening|night)"


def _half_en(word: str | None) -> Half | None:
    return Half(word.lower().replace(".", "")) if word else None


def _clock_en(match: re.Match[str]) -> Parts:
    parts = match.groupdict()
    return Parts(
        clock=ClockTime(
            hour=int(match["hour"]),
            minute=int(parts.get("minute") or 0),
            second=int(parts.get("second") or 0),
            half=_half_en(parts.get("half")),
            is_bare=not (parts.get("minute") or parts.get("half")),
            offset=_offset(parts.get("offset")),
        )
    )


def _offset(text: str | None) -> timezone | None:
    if not text:
        return None
    if text.upper() == "Z":
        return UTC
    minutes = int(text[1:3]) * 60 + int(text[-2:])
    return timezone(timedelta(minutes=-minutes if text[0] == "-" else minutes)) if minutes < 1440 else None


def _clock_ko(match: re.Match[str]) -> Parts:
    parts = match.groupdict()
    half = _HALVES_KO.get(parts.get("half") or "")
    minute = 30 if parts.get("semi") else int(number(parts["minute"])) if parts.get("minute") else 0
    hour = int(number(match["hour"]))
    return Parts(clock=ClockTime(hour=hour, minute=minute, half=half, is_bare=half is None))


def _noon(_match: re.Match[str]) -> Parts:
    return Parts(clock=ClockTime(hour=12, half=Half.PM))


def _midnight(_match: re.Match[str]) -> Parts:
    return Parts(day=DaysAhead(days=1), clock=ClockTime(hour=0))


def _part_en(match: re.Match[str]) -> Parts:
    is_today = (match.groupdict().get("this") or "") != ""
    return Parts(day=DaysAhead(days=0) if is_today else None, half=_half_en(match["half"]))


def _part_ko(match: re.Match[str]) -> Parts:
    return Parts(half=_HALVES_KO[match["half"]])


# Again and again

_EVERY = r"(?:every|each)\s+"


def _every_en(match: re.Match[str]) -> Parts:
    word = match["unit"].lower()
    if word in ("morning", "afternoon", "evening", "night"):
        return Parts(repeat=Repeat(), half=Half(word))
    days = {"weekday": _WORKDAYS, "workday": _WORKDAYS, "weekend": _WEEKEND}.get(word, ())
    return Parts(repeat=Repeat(weekdays=days))


def _every_weekday_en(match: re.Match[str]) -> Parts:
    named = re.findall(_WEEKDAY_EN, match["days"], FLAGS)
    return Parts(
        repeat=Repeat(weekdays=tuple(sorted({_WEEKDAYS_EN.index(day.lower()[:3]) for day in named})))
    )


def _every_hour(_match: re.Match[str]) -> Parts:
    return Parts(repeat=Repeat(interval=timedelta(hours=1)))


def _every_month(match: re.Match[str]) -> Parts:
    month = match.groupdict().get("month")
    number = None
    if month:
        number = int(month) if month.isdecimal() else _MONTHS_EN.index(month.lower()[:3]) + 1
    return Parts(repeat=Repeat(month_day=int(match["day"]), month=number))


def _every_ko(match: re.Match[str]) -> Parts:
    days = {"평일": _WORKDAYS, "주말": _WEEKEND}.get(match["unit"].removesuffix("마다"), ())
    return Parts(repeat=Repeat(weekdays=days))


def _every_weekday_ko(match: re.Match[str]) -> Parts:
    named = re.findall(rf"([{_WEEKDAYS_KO}])(?:요일)?", match["days"])
    return Parts(repeat=Repeat(weekdays=tuple(sorted({_WEEKDAYS_KO.index(day) for day in named}))))


_CLOCK_DIGITS = r"(?P<hour>\d{1,2}):(?P<minute>\d{2})(?::(?P<second>\d{2})(?:\.\d{1,6})?)?"

FORMS: tuple[Form, ...] = (
    Form(
        "every so long",
        "again and again, that long after each other; at least a minute",
        shapes=(
            Shape(
                rf"{_EVERY}(?P<span>{SPAN_EN})", _every_span(span_en), ("every 2 hours", "every 90 minutes")
            ),
            Shape(rf"{_EVERY}hour\b|hourly\b", _every_hour, ("every hour",)),
            Shape(rf"(?P<span>{SPAN_KO})마다", _every_span(span_ko), ("2시간마다", "30분마다")),
            Shape(r"매\s*시간", _every_hour, ("매시간",)),
        ),
    ),
    Form(
        "every weekday",
        "on each of the days of the week that are named",
        shapes=(
            Shape(
                rf"(?:{_EVERY}|on\s+)(?P<days>{_WEEKDAY_EN}s(?:(?:\s*,\s*|\s+and\s+|\s*,\s*and\s+){_WEEKDAY_EN}s)*"
                rf"|(?<=every )(?:{_WEEKDAY_EN})(?:(?:\s*,\s*and\s+|\s*,\s*|\s+and\s+){_WEEKDAY_EN})*"
                rf"|(?<=each )(?:{_WEEKDAY_EN}))\b",
                _every_weekday_en,
                ("every Monday at 9:00", "every mon, wed and fri 18:00", "on Mondays at 9:00"),
            ),
            Shape(
                rf"매주\s*(?P<days>[{_WEEKDAYS_KO}]요일(?:\s*,?\s*[{_WEEKDAYS_KO}]요일)*|[{_WEEKDAYS_KO}]{{2,7}})(?:마다)?(?:에)?"
                r"(?=[\s,:]|$)",
                _every_weekday_ko,
                ("매주 월요일 오전 9시", "매주 월수금 18:00"),
            ),
            Shape(
                rf"(?P<days>[{_WEEKDAYS_KO}]요일(?:\s*,?\s*[{_WEEKDAYS_KO}]요일)*)마다",
                _every_weekday_ko,
                ("월요일마다 오전 9시",),
            ),
        ),
    ),
    Form(
        "every month or year",
        "on that day of each month, or of each year",
        shapes=(
            Shape(
                rf"(?:every\s+month|monthly)\s+on\s+(?:the\s+)?{_DAY_EN}|on\s+the\s+(?P<day2>\d{{1,2}})(?:st|nd|rd|th)"
                r"\s+of\s+(?:every|each)\s+month",
                lambda match: Parts(repeat=Repeat(month_day=int(match["day"] or match["day2"]))),
                ("every month on the 3rd at 9:00",),
            ),
            Shape(
                rf"(?:every\s+year|yearly)\s+on\s+(?:the\s+)?{_DAY_EN}\s+(?:of\s+)?{_MONTH_EN}\b",
                _every_month,
                ("every year on 24 Dec at 18:00",),
            ),
            Shape(r"매[월달]\s*(?P<day>\d{1,2})일(?:마다)?(?:에)?", _every_month, ("매월 3일 오전 9시",)),
            Shape(
                r"매년\s*(?P<month>\d{1,2})월\s*(?P<day>\d{1,2})일(?:마다)?(?:에)?",
                _every_month,
                ("매년 12월 24일 18:00",),
            ),
        ),
    ),
    Form(
        "every day",
        "every day, every working day, both days of each weekend",
        shapes=(
            Shape(
                rf"{_EVERY}(?P<unit>day|weekday|workday|weekend|morning|afternoon|evening|night)\b|(?P<daily>daily)\b",
                lambda match: Parts(repeat=Repeat()) if match["daily"] else _every_en(match),
                ("every day at 9:00", "every weekday at 7:30", "every morning", "daily at 18:00"),
            ),
            Shape(
                r"(?P<unit>매일|날마다|평일(?:마다)?|주말마다)(?:에)?",
                _every_ko,
                ("매일 오전 9시", "평일 오전 7시 30분", "매일 아침"),
            ),
        ),
    ),
    Form(
        "after so long",
        "that long from now; days and weeks keep the time of day",
        shapes=(
            Shape(
                rf"in\s+(?P<span>{SPAN_EN})(?:\s+from\s+now)?(?:'?\s+time\b)?",
                _spanned(span_en),
                ("in 10 minutes", "in two hours", "in half an hour", "in 1h30", "in 3 days"),
            ),
            Shape(rf"(?P<span>{SPAN_EN})\s+from\s+now", _spanned(span_en), ("90 minutes from now",)),
            Shape(
                rf"(?P<span>{SPAN_KO})\s*{AFTER_KO}",
                _spanned(span_ko),
                ("10분 뒤", "2시간 후", "한 시간 반 뒤", "사흘 뒤"),
            ),
        ),
    ),
    Form(
        "so long",
        "the same, where nothing else is said",
        shapes=(
            Shape(rf"(?P<span>{SPAN_EN})", _spanned(span_en), ("45 min", "1h30m", "1h30", "2d")),
            Shape(rf"(?P<span>{SPAN_KO})", _spanned(span_ko), ("30분", "1시간 30분")),
        ),
        is_whole=True,
    ),
    Form(
        "near day",
        "the day, seen from today",
        shapes=(
            Shape(
                r"(?P<day>(?:the\s+)?day\s+after\s+tomorrow|today|tomorrow|tmrw|tonight|yesterday)\b",
                _near_day,
                ("today", "tomorrow", "the day after tomorrow", "tonight"),
            ),
            Shape(
                r"(?P<day>내일\s?모레|어제|오늘|내일|모레|글피)(?:에)?",
                lambda match: Parts(day=DaysAhead(days=_NEAR["".join(match["day"].split())])),
                ("오늘", "내일", "모레"),
            ),
        ),
    ),
    Form(
        "date",
        "the day of the calendar; without a year, the next one there is",
        shapes=(
            Shape(
                r"(?:on\s+)?(?P<year>\d{4})-(?P<month>\d{1,2})-(?P<day>\d{1,2})(?!\d)",
                _calendar_day,
                ("2026-12-01", "2026-12-01T18:00"),
            ),
            Shape(
                rf"(?:on\s+)?(?:the\s+)?{_DAY_EN}\s+(?:of\s+)?{_MONTH_EN}\b\.?{_YEAR_EN}",
                _calendar_day,
                ("10 February 2027", "the 12th of December"),
            ),
            Shape(
                rf"(?:on\s+)?{_MONTH_EN}\.?\s+(?:the\s+)?{_DAY_EN}(?![\d:]){_YEAR_EN}",
                _calendar_day,
                ("Feb 10", "December 12th, 2027"),
            ),
            Shape(
                r"(?:(?P<year>\d{4})년\s*)?(?P<month>\d{1,2})월\s*(?P<day>\d{1,2})일(?:에)?",
                _calendar_day,
                ("12월 25일", "2027년 3월 1일"),
            ),
        ),
    ),
    Form(
        "weekday",
        "the next such day, today included; 다음 주 is the calendar week after this one",
        shapes=(
            Shape(
                rf"(?:on\s+)?(?:(?P<which>this|next)\s+)?(?P<day>{_WEEKDAY_EN})\b,?",
                _weekday_en,
                ("Friday", "on Friday at 3pm"),
            ),
            Shape(
                rf"(?:(?P<which>지난|이번|다음|다다음)\s*주\s*)?(?P<day>[{_WEEKDAYS_KO}])요일(?!마다)(?:에)?",
                _weekday_ko,
                ("금요일", "다음 주 금요일"),
            ),
            Shape(rf"\((?P<day>[{_WEEKDAYS_KO}])\)", _weekday_ko, ("2026-12-01 (화)",)),
        ),
    ),
    Form(
        "clock",
        "the time of day, of 24 hours unless a half is named; alone, the next time it comes",
        shapes=(
            Shape(
                rf"(?:at\s+|@\s*)?{_CLOCK_DIGITS}(?:\s*{_MERIDIEM}|\s?(?P<offset>Z|[+-]\d{{2}}:?\d{{2}})(?!\d))?(?:에)?",
                _clock_en,
                ("18:30", "at 9:30 pm", "2026-12-01T09:00Z", "2026-12-01T18:00+09:00"),
            ),
            Shape(rf"(?:at\s+|@\s*)?(?P<hour>\d{{1,2}})\s*{_MERIDIEM}", _clock_en, ("9am", "at 6 p.m.")),
            Shape(
                rf"(?P<half>{_HALF_KO})\s*(?P<hour>\d{{1,2}}):(?P<minute>\d{{2}})(?:에)?",
                _clock_ko,
                ("오후 6:30",),
            ),
            Shape(
                rf"(?:(?P<half>{_HALF_KO})\s*)?(?P<hour>{NUMBER_KO})\s*시(?!간)"
                rf"(?:\s*(?:(?P<minute>{NUMBER_KO})\s*분(?!\s*(?:뒤|후))|(?P<semi>반)(?=에|까|[\s,:]|$)))?(?:에)?",
                _clock_ko,
                ("오전 9시", "저녁 7시 반", "18시"),
            ),
        ),
    ),
    Form(
        "hour alone",
        "on another day 7 to 11 are the morning; any other is asked about: morning or evening",
        shapes=(
            Shape(
                r"at\s+(?P<hour>\d{1,2})(?:\s*o'clock)?(?![\d:]|\s*(?:am|pm|[ap]\.m)\b)",
                _clock_en,
                ("tomorrow at 9", "내일 9시"),
            ),
        ),
    ),
    Form(
        "noon and midnight",
        "12:00; midnight is the one to come, and no day stands beside it",
        shapes=(
            Shape(r"(?:at\s+)?noon\b", _noon, ("tomorrow at noon",)),
            Shape(r"정오(?:에)?", _noon, ("내일 정오",)),
            Shape(r"(?:at\s+)?midnight\b", _midnight, ("at midnight",)),
            Shape(r"자정(?:에)?", _midnight, ("자정",)),
        ),
    ),
    Form(
        name="part of the day",
        meaning="beside an hour, its half; else 06:00 dawn, 09:00 morning, 12:00 midday, 14:00 afternoon, "
        "18:00 evening, 21:00 night",
        shapes=(
            Shape(rf"(?P<this>this\s+){_PART_EN}\b", _part_en, ("this evening",)),
            Shape(
                rf"(?:in\s+the\s+|at\s+)?{_PART_EN}\b", _part_en, ("tomorrow morning", "at 9 in the evening")
            ),
            Shape(r"(?P<half>[ap]m)\b", _part_en, ("tomorrow at 3 pm",)),
            Shape(rf"(?P<half>{_HALF_KO})(?:에)?(?=[\s,:]|$)", _part_ko, ("내일 아침", "오늘 밤")),
        ),
    ),
)
