"""The forms that name a time of day: `at 9am`, `half past 7`, `15h30`, `오후 세 시 반`."""

from __future__ import annotations

import re
from datetime import timedelta, timezone

from agent_runner.wire.times.amounts import UNIT_EN
from agent_runner.wire.times.calendar_words import HALF_KO, HALVES_KO, PART_EN, WEEKDAYS_KO, half_en
from agent_runner.wire.times.model import (
    ClockTime,
    DaysAhead,
    Form,
    Half,
    NamedZone,
    Parts,
    Reason,
    Shape,
    TimeSpan,
    Where,
)
from agent_runner.wire.times.numbers import CARDINAL_EN, HOUR_WORD_EN, WHOLE_KO, number
from agent_runner.wire.times.zones import TOWN_KO, ZONE_WORD, named_zone, offset_of

_OPEN_WITH_MINUTES = range(1, 6)
"""Hours that are ambiguous as one digit with minutes (`3:30`): few people mean the night."""
_AFTERNOON = range(13, 24)
_NOON, _MIDNIGHT = 12, 24
"""The hour of noon, and that of the midnight at the end of a day."""
_MINUTES_WITHOUT_UNIT = (5, 10, 15, 20, 25)
"""Minutes that need no unit before `to` and an hour: `ten to nine`."""

_ABOUT = r"(?:(?:around|about|approximately)\s+)"
_WHEN = r"(?:when\s+it(?:['’]s|\s+is)\s+)"
_AT = rf"(?:{_WHEN}|(?:at\b\s*|@\s*){_ABOUT}?)"
_LEAD = rf"(?:(?:for\s+)?{_AT}|for\s+|{_ABOUT})?"
"""Matches words before a form that is a time even without them; some may be missing."""
_MERIDIEM = r"(?:\s*(?P<half>[ap]\.?\s?m\b\.?))"
_LETTER = r"(?P<letter>[ap]\b\.?)"
_ZONE = rf"(?:\s?(?P<offset>Z|[+-]\d{{2}}:?\d{{2}})(?![\d\w])|\s*\(?(?P<zone>{ZONE_WORD})\b\)?)?"
_ISO_DAY = re.compile(rf"\d{{4}}-\d{{2}}-\d{{2}}(?:(?P<is_joined>T)|\s+(?:\([{WEEKDAYS_KO}]\)\s+)?)$")
_SHARP = r"(?:\s+(?:sharp|exactly|on\s+the\s+dot|prompt)\b)?"
"""Matches words after a time that do not change it."""
_HOUR = rf"(?P<hour>\d{{1,2}}|{HOUR_WORD_EN})"
_OCLOCK = r"(?:\s*o'?\s?clock\b)"
_ISH = r"(?:\s?-?ish\b|\s+approximately\b)?"
_DIGITS = r"(?P<hour>\d{1,2}):(?P<minute>\d{2})(?::(?P<second>\d{2})(?:\.\d{1,6})?)?"
_MINUTE_WORD = rf"(?:o'?|oh)\s{HOUR_WORD_EN}|(?!(?:sixty|seventy|eighty|ninety)\b){CARDINAL_EN}"
_NO_SPAN = rf"(?!\.\d|\s*{UNIT_EN}|\s*,?\s*(?:and\s+)?[\d.])"
_THERE = rf"(?:(?P<zone>{TOWN_KO})\s*시간(?:으로)?\s+)?"
_NO_HALF = r"(?![\d:]|\s*(?:am|pm|[ap]\.m)\b)"


def _clock_en(match: re.Match[str]) -> Parts:
    """Return the time of day in `9:30 pm`, `at 9`, `seven thirty`.

    It is marked as bare if am or pm is not named and people may mean either: an hour alone or in words, or a
    time such as `3:30`, but not `09:30`.
    """
    parts = match.groupdict()
    hour, minute = parts["hour"], parts.get("minute")
    half_of_day = half_en(parts.get("half") or parts.get("letter"))
    is_open = minute is None or not hour.isdigit()
    if minute is not None and hour.isdigit():
        is_open = len(hour) == 1 and int(hour) in _OPEN_WITH_MINUTES
    return Parts(
        clock=ClockTime(
            hour=int(number(hour)),
            # In `nine oh five`, the `oh` stands for a zero.
            minute=int(number(re.sub(r"^o[h']?\s", "", minute, flags=re.IGNORECASE))) if minute else 0,
            second=int(parts.get("second") or 0),
            half=half_of_day,
            is_bare=is_open and half_of_day is None,
            offset=_offset(match),
        )
    )


def _offset(match: re.Match[str]) -> timezone | NamedZone | Reason | None:
    """Return the offset from UTC or the zone in the groups of a match of a time; None if none is named.

    For an offset that does not exist, and for a range of times such as `9:00-10:00`, return the reason to
    refuse it.
    """
    parts = match.groupdict()
    if zone := parts.get("zone"):
        return named_zone(zone)
    offset = parts.get("offset")
    if not offset:
        return None
    return Reason.NO_SUCH_TIME if offset.startswith("-") and _is_range(match) else offset_of(offset)


def _is_range(match: re.Match[str]) -> bool:
    """Return whether the `-05:00` after a time of day is the end of a range, and no offset from UTC.

    It is an offset only after an ISO date: if `T` joins the date and the time (`2026-12-01T09:00-05:00`), if
    the time has seconds, or if the offset has no colon, as Andy prints it (`2026-12-01 09:00-0500`).
    """
    parts = match.groupdict()
    day = _ISO_DAY.search(match.string[: match.start("hour")]) if parts.get("hour") else None
    if day is None:
        return True
    return not (day["is_joined"] or parts.get("second")) and ":" in match["offset"]


def _clock_without_colon(match: re.Match[str]) -> Parts:
    """Return the time in `at 1830`, `330 p.m.`; four digits without am or pm are on the 24-hour clock."""
    half_of_day = half_en(match.groupdict().get("half"))
    clock = ClockTime(
        hour=int(match["hour"]),
        minute=int(match["minute"]),
        half=half_of_day,
        is_bare=len(match["hour"]) == 1 and half_of_day is None,
    )
    return Parts(clock=clock)


def _minutes_from_hour(match: re.Match[str]) -> Parts | None:
    """Return the time in `half past 7`, `a quarter to nine`, `10 minutes before noon`; None for no time."""
    minutes = _minutes(match)
    is_after = match["side"].lower() in ("past", "after")
    # `semi` is the "half" of `half past 7`; English says it only of the hour before, never `half to seven`.
    # The group `half` below is am or pm.
    is_half_to = match["semi"] and not is_after
    if minutes is None or is_half_to:
        return None
    if match["noon"] or match["midnight"]:
        return _beside_twelve(minutes, is_noon=bool(match["noon"]), is_after=is_after)
    hour, half_of_day = match["hour"], half_en(match["half"])
    clock = ClockTime(
        hour=int(number(hour)),
        minute=minutes if is_after else 0,
        minutes_before=0 if is_after else minutes,
        half=half_of_day,
        is_bare=half_of_day is None and int(number(hour)) <= _NOON,
        offset=_offset(match),
    )
    return Parts(clock=clock)


def _minutes(match: re.Match[str]) -> int | None:
    """Return the minutes before or after the hour in a match such as `ten to nine`.

    None if it is no time, as `5 to 9am` in `move 5 to 9am`.
    """
    if match["quarter"]:
        return 15
    if match["semi"]:  # `half`, as in `half past 7`
        return 30
    minutes = int(number(match["minutes"]))
    # `move 5 to 9am` contains no `5 to 9`: between two numbers in digits, `to` needs a unit before it. With a
    # number in words, usual minutes such as `ten` do without a unit; `past` and `after` never need one.
    has_words = not (match["minutes"].isdigit() and (match["hour"] or "").isdigit())
    names_time = bool(match["unit"]) or match["side"].lower() in ("past", "after")
    names_time = names_time or (has_words and minutes in _MINUTES_WITHOUT_UNIT)
    # `one after` and `two past` need a unit: "the one after" names one of several things.
    is_few = minutes < _MINUTES_WITHOUT_UNIT[0] and not match["unit"] and not match["minutes"].isdigit()
    return minutes if names_time and not is_few and 0 < minutes < 60 else None


def _beside_twelve(minutes: int, *, is_noon: bool, is_after: bool) -> Parts:
    """Return the time that is `minutes` before or after noon, or before or after the midnight to come."""
    if is_noon:
        return Parts(
            clock=ClockTime(
                hour=_NOON, minute=minutes if is_after else 0, minutes_before=0 if is_after else minutes
            )
        )
    if is_after:
        return Parts(day=DaysAhead(days=1), clock=ClockTime(hour=0, minute=minutes, is_to_come=True))
    # Hour 24 of today, less the minutes.
    return Parts(clock=ClockTime(hour=_MIDNIGHT, minutes_before=minutes))


def _between(match: re.Match[str]) -> Parts:
    """Return both times in `between 3 and 4 pm` as meanings, of which the person has to choose one."""
    halves_of_day = [half_en(match[name]) for name in ("half", "half_until")]
    hours = [int(number(match[name])) for name in ("hour", "until")]
    # `pm` holds for both hours, unless the first is the later.
    if not halves_of_day[0] and hours[0] < hours[1]:
        halves_of_day[0] = halves_of_day[1]
    clocks = (
        ClockTime(hour=hour, half=half_of_day, is_bare=half_of_day is None)
        for hour, half_of_day in zip(hours, halves_of_day, strict=True)
    )
    return Parts(either=tuple(Parts(clock=clock) for clock in clocks), reason=Reason.WHICH_MEANING)


def _between_ko(match: re.Match[str]) -> Parts:
    """Return both times in `오후 3시에서 4시 사이` as meanings, of which the person has to choose one."""
    half_of_day = HALVES_KO.get(match["half"] or "")
    clocks = (
        ClockTime(hour=int(number(match[name])), half=half_of_day, is_bare=half_of_day is None)
        for name in ("hour", "until")
    )
    return Parts(either=tuple(Parts(clock=clock) for clock in clocks), reason=Reason.WHICH_MEANING)


def _clock_with_h(match: re.Match[str]) -> Parts | None:
    """Return the time of day in a match such as `15h30`; None for `2h`, which is a span of time.

    For `1h30` and `15h`, which may be either, return both meanings. After `at`, with a zone, or with minutes
    and an hour of the afternoon, it is always a time of day.
    """
    hour, minute = int(match["hour"]), int(match["minute"] or 0)
    clock = Parts(clock=ClockTime(hour=hour, minute=minute, offset=_offset(match)))
    if match.groupdict().get("at") or match["zone"] or (match["minute"] and hour in _AFTERNOON):
        return clock
    if not match["minute"] and hour not in _AFTERNOON:
        return None
    span = Parts(span=TimeSpan(elapsed=timedelta(hours=hour, minutes=minute)))
    return Parts(either=(clock, span), reason=Reason.WHICH_MEANING)


def _clock_ko(match: re.Match[str]) -> Parts:
    """Return the time of day in `오전 9시`, `저녁 7시 반`, `네 시 십오 분 전`.

    In the match, `half` is the half of the day (`오전`, `저녁`), and `semi` the word for half past (`반`).
    """
    parts = match.groupdict()
    half_of_day = HALVES_KO.get(parts.get("half") or "")
    hour = parts["hour"]
    minute = int(number(parts["minute"])) if parts.get("minute") else 0
    if parts.get("semi"):
        minute = 30
    is_before = bool(parts.get("before"))
    clock = ClockTime(
        hour=int(number(hour)),
        minute=0 if is_before else minute,
        minutes_before=minute if is_before else 0,
        second=int(number(parts["second"])) if parts.get("second") else 0,
        half=half_of_day,
        # An hour without a half of the day may mean either, but `09시` is the morning.
        is_bare=half_of_day is None and not (hour.startswith("0") and len(hour) == 2),
        offset=_offset(match),
    )
    return Parts(clock=clock)


def _noon(match: re.Match[str]) -> Parts:
    """Return noon, in the zone that is named with it."""
    return Parts(clock=ClockTime(hour=_NOON, half=Half.PM, offset=_offset(match)))


def _midnight(match: re.Match[str]) -> Parts:
    """Return the midnight that is to come: the beginning of tomorrow."""
    # With a word for today, it is no midnight of another day.
    return Parts(day=DaysAhead(days=1), clock=ClockTime(hour=0, is_to_come="오늘" not in match[0]))


def _part_en(match: re.Match[str]) -> Parts:
    """Return the part of the day in `this evening`, `in the morning`; with `this`, the day is today."""
    is_today = (match.groupdict().get("this") or "") != ""
    return Parts(day=DaysAhead(days=0) if is_today else None, half=half_en(match["half"]))


def _first_thing(_match: re.Match[str]) -> Parts:
    """Return the morning, which `first thing` means when no part of the day follows."""
    return Parts(half=Half.MORNING)


def _nothing(_match: re.Match[str]) -> Parts:
    """Return no parts: after `first thing`, the part of the day is read by a form of its own."""
    return Parts()


def _part_ko(match: re.Match[str]) -> Parts:
    """Return the part of the day in `아침`, `밤에`."""
    return Parts(half=HALVES_KO[match["half"]])


_RELATIVE = (
    r"(?<!from )(?<!between )"
    rf"{_LEAD}(?:(?P<quarter>(?:a\s+)?quarter)|(?P<semi>half)|(?P<minutes>\d{{1,2}}|{CARDINAL_EN})(?P<unit>\s+min(?:ute)?s?)?)"
    r"\s+(?P<side>past|after|to|before|till?)\s+"
)

FORMS: tuple[Form, ...] = (
    Form(
        "twelve at night",
        "the midnight to come",
        shapes=(
            Shape(
                r"(?<!요일)(?<!요일\s)(?:오늘\s*)?밤\s*(?:12|열두)\s*시(?!\s*(?:반|\d))(?:에)?",
                _midnight,
                ("오늘 밤 12시", "밤 열두 시에"),
            ),
        ),
    ),
    Form(
        "between two hours",
        "`between 3 and 4 pm`, `오후 3시에서 4시 사이` are asked about: at the beginning or at the end",
        shapes=(
            Shape(
                rf"between\s+{_HOUR}{_MERIDIEM}?\s+and\s+(?P<until>\d{{1,2}}|{HOUR_WORD_EN})"
                rf"(?:\s*(?P<half_until>[ap]\.?\s?m\b\.?))?{_OCLOCK}?{_NO_HALF}(?!\s*{UNIT_EN})\b",
                _between,
                (),
            ),
            Shape(
                rf"(?:(?P<half>{HALF_KO})\s*)?(?P<hour>{WHOLE_KO})\s*시\s*(?:에서|부터|와|하고)\s*(?P<until>{WHOLE_KO})\s*시\s*사이(?:에)?",
                _between_ko,
                (),
            ),
        ),
    ),
    Form(
        "clock",
        "the time of day, of 24 hours unless a half is named; alone, the next time it comes; `1:00` to `5:59`"
        " are asked about, `01:00` is not",
        shapes=(
            Shape(
                rf"{_LEAD}{_DIGITS}(?:{_MERIDIEM}|{_LETTER})?{_ISH}{_SHARP}{_ZONE}(?:에)?",
                _clock_en,
                (
                    "18:30",
                    "at 9:30 pm",
                    "2026-12-01T09:00Z",
                    "2026-12-01T18:00+09:00",
                    "18:00 CET",
                    "18:00 London time",
                    "at 17:00 sharp",
                ),
            ),
            Shape(
                rf"{_LEAD}{_HOUR}(?:[\s-](?P<minute>{_MINUTE_WORD}))?{_OCLOCK}?{_ISH}{_MERIDIEM}{_ISH}{_SHARP}{_ZONE}",
                _clock_en,
                ("9am", "at 6 p.m.", "seven thirty pm", "5pm sharp"),
            ),
            Shape(rf"{_AT}(?P<hour>\d{{1,2}}){_LETTER}", _clock_en, ("at 3p",)),
            Shape(
                rf"(?P<at>{_AT})(?P<hour>\d{{1,2}})h(?P<minute>\d{{2}})?\b{_ZONE}",
                _clock_with_h,
                ("at 15h30",),
            ),
            Shape(
                rf"{_LEAD}(?P<hour>\d{{1,2}})(?P<minute>[0-5]\d){_MERIDIEM}",
                _clock_without_colon,
                ("330 p.m.",),
            ),
            Shape(
                rf"(?:{_AT}|{_ABOUT})(?P<hour>[01]?\d|2[0-3])(?P<minute>[0-5]\d){_ISH}(?![\d:.-])\b",
                _clock_without_colon,
                ("at 1830",),
            ),
            Shape(
                rf"(?P<half>{HALF_KO})\s*(?P<hour>\d{{1,2}}):(?P<minute>\d{{2}})(?:에)?",
                _clock_ko,
                ("오후 6:30",),
            ),
            Shape(
                rf"{_THERE}(?:(?P<half>{HALF_KO})\s*)?(?P<hour>{WHOLE_KO})\s*시(?!간)"
                rf"(?:\s*(?:(?P<minute>{WHOLE_KO})\s*분(?:\s*(?P<second>{WHOLE_KO})\s*초|\s*(?P<before>전))?"
                r"(?!\s*(?:뒤|후))|(?P<semi>반)(?=에|까|[\s,:]|$)|정각))?(?:에)?",
                _clock_ko,
                ("오전 9시", "저녁 7시 반", "18시", "오후 네 시 십오 분 전", "뉴욕 시간 오후 3시"),
            ),
        ),
    ),
    Form(
        "minutes from the hour",
        "so long after or before it",
        shapes=(
            Shape(
                rf"{_RELATIVE}(?:(?P<noon>noon|midday)\b|(?P<midnight>midnight)\b|{_HOUR}(?:h\b)?(?!:){_OCLOCK}?{_MERIDIEM}?{_ZONE})",
                _minutes_from_hour,
                (
                    "half past 7 pm",
                    "a quarter to nine in the evening",
                    "5 past 9 tomorrow",
                    "20 minutes to noon",
                ),
            ),
        ),
    ),
    Form(
        "hour in other ways",
        "the same",
        shapes=(
            Shape(r"(?P<hour>\d{1,2})\s?-?ish\b", _clock_en, ()),
            Shape(rf"{_AT}(?P<hour>\d{{1,2}})\s(?P<minute>[0-5]\d)\b{_NO_HALF}", _clock_en, ("at 18 30",)),
            Shape(rf"(?P<hour>\d{{1,2}})h(?P<minute>[0-5]\d)?\b{_NO_SPAN}{_ZONE}", _clock_with_h, ("18h30",)),
        ),
        where=Where.WHOLE,
    ),
    Form(
        "hour alone",
        "on another day 7 to 11 are the morning; any other is asked about: morning or evening",
        shapes=(
            Shape(
                rf"{_AT}(?P<hour>\d{{1,2}}){_OCLOCK}?{_ISH}{_ZONE}{_NO_HALF}(?!\w)",
                _clock_en,
                ("tomorrow at 9", "내일 9시"),
            ),
            Shape(rf"{_LEAD}{_HOUR}{_OCLOCK}{_NO_HALF}", _clock_en, ("8 o'clock tonight",)),
            Shape(
                rf"{_AT}(?!one\b){_HOUR}(?:[\s-](?P<minute>{_MINUTE_WORD}))?{_ISH}{_NO_HALF}",
                _clock_en,
                ("in the evening at eight",),
            ),
        ),
    ),
    Form(
        "hour before its day",
        "as one after `at`",
        shapes=(
            Shape(
                rf"{_HOUR}(?=\s+(?:ton(?:ight|ite)|tomorrow|today|this\s+{PART_EN}|in\s+(?:the\s+)?(?:{PART_EN}|[ap]m))\b)",
                _clock_en,
                ("8 tonight", "9 tomorrow"),
            ),
        ),
        where=Where.START,
    ),
    Form(
        "noon and midnight",
        "12:00; midnight is the one to come, asked about beside a day, and the start of days that repeat",
        shapes=(
            Shape(
                rf"(?:at\s+)?(?:noon|(?:the\s+)?mid\s?day)\b{_ZONE}",
                _noon,
                ("tomorrow at noon", "midday", "noon CET"),
            ),
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
            Shape(
                rf"first\s+thing(?=\s+(?:\S+\s+){{0,2}}(?:in\s+the\s+)?{PART_EN}\b)",
                _nothing,
                ("first thing tomorrow morning",),
            ),
            Shape(r"first\s+thing\b", _first_thing, ("first thing tomorrow", "first thing on Friday")),
            Shape(rf"(?P<this>this\s+)(?P<half>{PART_EN})\b", _part_en, ("this evening",)),
            Shape(
                rf"(?:in\s+(?:the\s+)?|at\s+)?(?P<half>{PART_EN})\b",
                _part_en,
                ("tomorrow morning", "at 9 in the evening"),
            ),
            Shape(r"(?:in\s+the\s+)?(?P<half>[ap]m)\b", _part_en, ("tomorrow at 3 pm",)),
            Shape(rf"(?P<half>{HALF_KO})(?:에)?(?=[\s,:]|$)", _part_ko, ("내일 아침", "오늘 밤")),
        ),
    ),
)
