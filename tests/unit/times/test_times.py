"""The one reader of times: its table, its edges, and that what it prints it reads."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from agent_runner.wire import times
from agent_runner.wire.times import (
    AskHalf,
    DateOnly,
    Duration,
    Instant,
    Language,
    Reason,
    Recurrence,
    Shift,
    TimePolicy,
    TimeRefusal,
)
from agent_runner.wire.times.forms import FORMS
from agent_runner.wire.times.model import Half
from agent_runner.wire.times.reader import MAX_CHARS

SEOUL, BERLIN = ZoneInfo("Asia/Seoul"), ZoneInfo("Europe/Berlin")
NEW_YORK = ZoneInfo("America/New_York")
SUNDAY_MORNING = datetime(2026, 11, 22, 9, 20, 15, tzinfo=SEOUL)


def read(text: str, now: datetime = SUNDAY_MORNING, policy: TimePolicy | None = None) -> times.Reading:
    assert now.tzinfo is not None
    return times.read(text, now=now, zone=now.tzinfo, policy=policy)


def moment(text: str, now: datetime = SUNDAY_MORNING) -> Instant | Duration:
    found = read(text, now)
    assert isinstance(found, Instant | Duration), (text, found)
    return found


def refused(text: str, now: datetime = SUNDAY_MORNING, policy: TimePolicy | None = None) -> Reason:
    found = read(text, now, policy)
    assert isinstance(found, TimeRefusal), (text, found)
    return found.reason


EXAMPLES = [example for form in FORMS for shape in form.shapes for example in shape.examples]


@pytest.mark.parametrize("text", EXAMPLES)
def test_every_example_of_the_table_is_read(text: str) -> None:
    assert not isinstance(read(text), TimeRefusal)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("5 past 9 tomorrow morning", "2026-11-23 09:05:00"),
        ("half past 7 evening", "2026-11-22 19:30:00"),
        ("half past 7 pm", "2026-11-22 19:30:00"),
        ("a quarter to nine in the evening", "2026-11-22 20:45:00"),
        ("quarter to midnight", "2026-11-22 23:45:00"),
        ("friday at a quarter to 12 at night", "2026-11-27 23:45:00"),
        ("friday at a quarter to 12 in the morning", "2026-11-27 11:45:00"),
        ("friday at a quarter to 12 pm", "2026-11-27 11:45:00"),
        ("tonight at 12", "2026-11-23 00:00:00"),
        ("오늘 밤 12시 반", "2026-11-23 00:30:00"),
        ("10 past midnight", "2026-11-23 00:10:00"),
        ("8 tonight", "2026-11-22 20:00:00"),
        ("9 tomorrow", "2026-11-23 09:00:00"),
        ("in a couple of hours", "2026-11-22 11:20:15"),
        ("in a few minutes", "2026-11-22 09:23:15"),
        ("in 1/2 hour", "2026-11-22 09:50:15"),
        ("in a month", "2026-12-22 09:20:15"),
        ("a week from now", "2026-11-29 09:20:15"),
        ("at 1830", "2026-11-22 18:30:00"),
        ("18h30", "2026-11-22 18:30:00"),
        ("Friday 9h GMT", "2026-11-27 18:00:00"),
        ("6pm CET", "2026-11-23 02:00:00"),
        ("3pm New York time", "2026-11-23 05:00:00"),
        ("Friday at 9am uk time", "2026-11-27 18:00:00"),
        ("내일 런던 시간으로 오전 9시", "2026-11-23 18:00:00"),
        ("낼 오전 10시", "2026-11-23 10:00:00"),
        ("the 15th at 9am", "2026-12-15 09:00:00"),
        ("Thursday the 26th at noon", "2026-11-26 12:00:00"),
        ("wednesday next week at 9am", "2026-11-25 09:00:00"),
        ("last friday of october at 5pm", "2027-10-29 17:00:00"),
        ("12/25 at 9am", "2026-12-25 09:00:00"),
        ("24시간 안에", "2026-11-23 09:20:15"),
        ("오후 네시 십오분 전", "2026-11-22 15:45:00"),
        ("2/15 오후 4시", "2027-02-15 16:00:00"),
        ("삼월 삼일 정오", "2027-03-03 12:00:00"),
        ("10월 첫째 화요일 오전 9시", "2027-10-05 09:00:00"),
        ("in ten minutes", "2026-11-22 09:30:15"),
        ("in 20 seconds", "2026-11-22 09:20:35"),
        ("in half an hour", "2026-11-22 09:50:15"),
        ("in 1.5 hours", "2026-11-22 10:50:15"),
        ("in 1h30m", "2026-11-22 10:50:15"),
        ("in 1h30", "2026-11-22 10:50:15"),
        ("1h30 minutes", "2026-11-22 10:50:15"),
        ("90h30 minute", "2026-11-26 03:50:15"),
        ("1h1mins 2 secs", "2026-11-22 10:21:17"),
        ("1h1m 2 secs", "2026-11-22 10:21:17"),
        ("in 1h30.5m", "2026-11-22 10:50:45"),
        ("in two hours", "2026-11-22 11:20:15"),
        ("45 min", "2026-11-22 10:05:15"),
        ("in 3 days", "2026-11-25 09:20:15"),
        ("in 2 weeks at 9am", "2026-12-06 09:00:00"),
        ("at 9:00", "2026-11-23 09:00:00"),
        ("at 12am", "2026-11-23 00:00:00"),
        ("at 12 p.m.", "2026-11-22 12:00:00"),
        ("at midnight", "2026-11-23 00:00:00"),
        ("밤 12시", "2026-11-23 00:00:00"),
        ("tonight at 8", "2026-11-22 20:00:00"),
        ("tonight", "2026-11-22 21:00:00"),
        ("at 9 in the morning", "2026-11-23 09:00:00"),
        ("tomorrow morning", "2026-11-23 09:00:00"),
        ("tomorrow evening at 7:30", "2026-11-23 19:30:00"),
        ("tomorrow at 9", "2026-11-23 09:00:00"),
        ("sunday 9:00", "2026-11-29 09:00:00"),
        ("Sunday 10:00", "2026-11-22 10:00:00"),
        ("2026-12-12T18:00", "2026-12-12 18:00:00"),
        ("2026-12-12T18:00+01:00", "2026-12-13 02:00:00"),
        ("on the 12th of December at 6pm", "2026-12-12 18:00:00"),
        ("December 12th, 2027 at 6pm", "2027-12-12 18:00:00"),
        ("29 Feb at 9am", "2028-02-29 09:00:00"),
        ("이십오 분 뒤", "2026-11-22 09:45:15"),
        ("한 시간 반 뒤", "2026-11-22 10:50:15"),
        ("반 시간 후에", "2026-11-22 09:50:15"),
        ("2시간 30분 있다가", "2026-11-22 11:50:15"),
        ("사흘 뒤 오전 10시", "2026-11-25 10:00:00"),
        ("일주일 뒤", "2026-11-29 09:20:15"),
        ("내일 9시", "2026-11-23 09:00:00"),
        ("내일 아침 아홉 시에", "2026-11-23 09:00:00"),
        ("오늘 오후 3시 반에", "2026-11-22 15:30:00"),
        ("밤 11시", "2026-11-22 23:00:00"),
        ("다음 주 금요일 15:00", "2026-11-27 15:00:00"),
        ("이번 주 일요일 오전 10시", "2026-11-22 10:00:00"),
        ("2027년 3월 1일 오전 9:30에", "2027-03-01 09:30:00"),
        ("nine oh five pm", "2026-11-22 21:05:00"),
        ("Nine O' Five pm", "2026-11-22 21:05:00"),
        ("9 o clock pm", "2026-11-22 21:00:00"),
        ("2026-12-01T18:00+14:00", "2026-12-01 13:00:00"),
        ("2026-12-01T18:00-1200", "2026-12-02 15:00:00"),
        ("the second last day of the month at 9:00", "2026-11-29 09:00:00"),
        ("the second last Monday of the month at 9:00", "2026-11-23 09:00:00"),
        ("thurs 9am", "2026-11-26 09:00:00"),
        ("on tues at 9", "2026-11-24 09:00:00"),
        ("in a fortnight's time at 9am", "2026-12-06 09:00:00"),
        ("in a week’s time at 9am", "2026-11-29 09:00:00"),
    ],
)
def test_a_known_form_names_its_moment(text: str, expected: str) -> None:
    assert moment(text).at.strftime("%Y-%m-%d %H:%M:%S") == expected


@pytest.mark.parametrize(
    ("text", "day"),
    [
        ("tomorrow", "2026-11-23"),
        ("friday", "2026-11-27"),
        ("2026-12-01", "2026-12-01"),
        ("Feb 10", "2027-02-10"),
        ("today", "2026-11-22"),
        ("모레", "2026-11-24"),
        ("12월 25일", "2026-12-25"),
    ],
)
def test_a_day_alone_is_a_day_and_the_policy_says_its_time(text: str, day: str) -> None:
    found = read(text)
    assert isinstance(found, DateOnly)
    assert found.day.isoformat() == day
    assert found.at.strftime("%H:%M") == "09:00"


@pytest.mark.parametrize(
    ("text", "cron", "first"),
    [
        ("every monday at 9am", "0 9 * * 1", "2026-11-23 09:00"),
        ("every mon, wed and fri 18:00", "0 18 * * 1,3,5", "2026-11-23 18:00"),
        ("every weekday at 7:30", "30 7 * * 1,2,3,4,5", "2026-11-23 07:30"),
        ("weekly on Monday at 9am", "0 9 * * 1", "2026-11-23 09:00"),
        ("every other week on Tuesday at 8am", "0 8 * * 2 every 2 weeks from 2026-11-24", "2026-11-24 08:00"),
        (
            "every two weeks on Friday at 18:00",
            "0 18 * * 5 every 2 weeks from 2026-11-27",
            "2026-11-27 18:00",
        ),
        ("2주에 한 번 금요일 18:00", "0 18 * * 5 every 2 weeks from 2026-11-27", "2026-11-27 18:00"),
        (
            "every three months on the 1st at 9am",
            "0 9 1 * * every 3 months from 2026-12-01",
            "2026-12-01 09:00",
        ),
        (
            "every other Monday and Wednesday at 08:00",
            "0 8 * * 1,3 every 2 weeks from 2026-11-23",
            "2026-11-23 08:00",
        ),
        (
            "every 3 weeks on Monday and Wednesday at 08:00",
            "0 8 * * 1,3 every 3 weeks from 2026-11-23",
            "2026-11-23 08:00",
        ),
        ("격주 월요일 수요일 오전 8시", "0 8 * * 1,3 every 2 weeks from 2026-11-23", "2026-11-23 08:00"),
        ("every 1 weeks on Monday at 9:00", "0 9 * * 1", "2026-11-23 09:00"),
        ("1주마다 월요일 오전 9시", "0 9 * * 1", "2026-11-23 09:00"),
        ("2개월마다 마지막 날 9:00", "0 9 L * * every 2 months from 2026-11-30", "2026-11-30 09:00"),
        ("every quarter except in January at 9:00", "0 9 1 4,7,10 *", "2027-04-01 09:00"),
        ("every year on 24 Dec except in August at 9:00", "0 9 24 12 *", "2026-12-24 09:00"),
        ("every day at 9:00", "0 9 * * *", "2026-11-23 09:00"),
        ("every morning", "0 9 * * *", "2026-11-23 09:00"),
        ("every sunday at 10:00", "0 10 * * 0", "2026-11-22 10:00"),
        ("every month on the 31st at 9:00", "0 9 31 * *", "2026-12-31 09:00"),
        ("every year on 24 Dec at 18:00", "0 18 24 12 *", "2026-12-24 18:00"),
        ("every 2 hours", None, "2026-11-22 11:20"),
        ("매주 월요일 오전 9시", "0 9 * * 1", "2026-11-23 09:00"),
        ("월요일마다 오전 9시", "0 9 * * 1", "2026-11-23 09:00"),
        ("매일 저녁 8시", "0 20 * * *", "2026-11-22 20:00"),
        ("평일 오전 7시 30분", "30 7 * * 1,2,3,4,5", "2026-11-23 07:30"),
        ("매월 3일 오전 9시", "0 9 3 * *", "2026-12-03 09:00"),
        ("30분마다", None, "2026-11-22 09:50"),
    ],
)
def test_what_comes_again_and_again_has_a_rhythm_and_a_first_time(
    text: str, cron: str | None, first: str
) -> None:
    found = read(text)
    assert isinstance(found, Recurrence)
    assert (found.cron, found.first.strftime("%Y-%m-%d %H:%M")) == (cron, first)
    assert cron is None or Recurrence.of_cron(cron, first=found.first) == found


@pytest.mark.parametrize(
    "cron",
    [
        "",
        "* * * *",
        "*/5 * * * *",
        "0 25 * * *",
        "0 9 W * *",
        "0 9 * * MONDAY",
        "0 9 1 * 1",
        "0 9 * * 1 every 3 days from 2026-11-24",
        "0 9 3 * * every 2 days from 2026-11-24",
        "0 9 * * * every 2 weeks from 2026-11-24",
        "0 9 * * 1#1 every 2 weeks from 2026-11-24",
        "0 9 * * 1 every 1 weeks from 2027-01-04",
        "0 9 * * 1 every 100 weeks from 2026-11-24",
        "0 9 * * 1 every 2 months from 2026-11-24",
        "0 8 3 1,,2 *",
        "0 8 3 , *",
        "0 8 3 13 *",
        "0 8 3 0 *",
        "0 8 0 * *",
        "0 8 32 * *",
    ],
)
def test_a_schedule_that_a_rhythm_does_not_write_is_none(cron: str) -> None:
    assert Recurrence.of_cron(cron, first=SUNDAY_MORNING) is None


def test_months_of_a_schedule_are_those_of_the_year_in_any_order() -> None:
    found = Recurrence.of_cron("0 9 1 10,7,4,1,1 *", first=SUNDAY_MORNING)
    assert found is not None
    assert times.say(found, Language.ENGLISH) == "every quarter at 09:00"
    every = Recurrence.of_cron("0 9 * 1,2,3,4,5,6,7,8,9,10,11,12 1", first=SUNDAY_MORNING)
    assert every is not None
    assert times.say(every, Language.ENGLISH) == "every Monday at 09:00"


def test_a_day_that_a_schedule_names_twice_is_said_once() -> None:
    found = Recurrence.of_cron("0 8 * * 1,1", first=SUNDAY_MORNING)
    assert found is not None
    assert times.say(found, Language.ENGLISH) == "every Monday at 08:00"


def test_days_of_a_schedule_may_have_names() -> None:
    by_name = Recurrence.of_cron("0 9 * * MON,fri", first=SUNDAY_MORNING)
    assert by_name == Recurrence.of_cron("0 9 * * 1,5", first=SUNDAY_MORNING) is not None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("at 9", Reason.WHICH_HALF),
        ("half past 7", Reason.WHICH_HALF),
        ("5 past 4 tomorrow", Reason.WHICH_HALF),
        ("3:30", Reason.WHICH_HALF),
        ("3ish", Reason.WHICH_HALF),
        ("1h30", Reason.WHICH_MEANING),
        ("12/5 at 9am", Reason.WHICH_MEANING),
        ("between 3 and 4pm", Reason.WHICH_MEANING),
        ("오후 3시에서 4시 사이", Reason.WHICH_MEANING),
        ("the last day of the month", Reason.NEEDS_CLOCK),
        ("9am US time", Reason.NO_TIME),
        ("15일", Reason.WHICH_MEANING),
        ("the last day of the month at 9am", Reason.WHICH_MEANING),
        ("다음 금요일", Reason.WHICH_WEEK),
        ("9am IST", Reason.NO_TIME),
        ("5 to 9am", Reason.NO_TIME),
        ("Thursday the 25th", Reason.WRONG_WEEKDAY),
        ("today at 9", Reason.WHICH_HALF),
        ("tomorrow at 12", Reason.WHICH_HALF),
        ("tomorrow at 3", Reason.WHICH_HALF),
        ("내일 3시", Reason.WHICH_HALF),
        ("every monday at 3", Reason.WHICH_HALF),
        ("every monday", Reason.NEEDS_CLOCK),
        ("매일", Reason.NEEDS_CLOCK),
        ("next Friday at 9am", Reason.WHICH_WEEK),
        ("today at 8:00", Reason.PAST),
        ("yesterday", Reason.PAST),
        ("어제", Reason.PAST),
        ("2026-11-22 09:20", Reason.PAST),
        ("1999-01-01 09:00", Reason.PAST),
        ("1999-01-01", Reason.PAST),
        ("in 0 minutes", Reason.PAST),
        ("at 25:00", Reason.NO_SUCH_TIME),
        ("2026-12-01T18:00+25:00", Reason.NO_SUCH_TIME),
        ("2026-12-01T18:00+0975", Reason.NO_SUCH_TIME),
        ("2026-12-01T18:00+14:01", Reason.NO_SUCH_TIME),
        ("tomorrow at 18:00-20:00", Reason.NO_SUCH_TIME),
        ("tomorrow 9:00-10:00", Reason.NO_SUCH_TIME),
        ("tomorrow at 9:00-11:30", Reason.NO_SUCH_TIME),
        ("tomorrow at 9:00 -1000", Reason.NO_SUCH_TIME),
        ("9am-10:00", Reason.NO_SUCH_TIME),
        ("tomorrow at noon-12:00", Reason.NO_SUCH_TIME),
        ("내일 9:00-10:00", Reason.NO_SUCH_TIME),
        ("2026-12-01 09:00-10:00", Reason.NO_SUCH_TIME),
        ("every day at 9:00+25:00", Reason.NO_SUCH_TIME),
        ("9am tonight", Reason.NO_SUCH_TIME),
        ("tomorrow at 9 am in the evening", Reason.NO_SUCH_TIME),
        ("every evening at 9am", Reason.NO_SUCH_TIME),
        ("오늘 밤 오전 9시", Reason.NO_SUCH_TIME),
        ("tonight at 12pm", Reason.WHICH_HALF),
        ("오후 9.5시", Reason.NO_TIME),
        ("오후 9시 30.5분", Reason.NO_TIME),
        ("오후 3.5시에서 4시 사이", Reason.NO_TIME),
        ("nine oh dear pm", Reason.NO_TIME),
        ("at 9:75", Reason.NO_SUCH_TIME),
        ("오후 25시", Reason.NO_SUCH_TIME),
        ("30 Feb at 9am", Reason.NO_SUCH_DAY),
        ("Feb 30", Reason.NO_SUCH_DAY),
        ("2월 30일", Reason.NO_SUCH_DAY),
        ("2026-13-01 09:00", Reason.NO_SUCH_DAY),
        ("every year on 31 Feb at 9:00", Reason.NO_SUCH_DAY),
        ("every year on 24 Dec except in December at 9:00", Reason.NO_SUCH_DAY),
        (
            "every Monday except in jan,feb,mar,apr,may,jun,jul,aug,sep,oct,nov,dec at 9:00",
            Reason.NO_SUCH_DAY,
        ),
        ("every 0 months on the 3rd at 9:00", Reason.NO_TIME),
        ("0개월마다 3일 오전 9시", Reason.NO_TIME),
        ("0주마다 월요일 오전 9시", Reason.NO_TIME),
        ("매주 월요일 13월 빼고 오전 9시", Reason.NO_TIME),
        ("every first Monday and Wednesday at 9:00", Reason.NO_TIME),
        ("Mon 2026-11-24 09:00", Reason.WRONG_WEEKDAY),
        ("in 999999 hours", Reason.TOO_FAR),
        ("in 999999 days", Reason.TOO_FAR),
        ("9999-12-31 09:00", Reason.TOO_FAR),
        ("", Reason.NO_TIME),
        ("soon", Reason.NO_TIME),
        ("next week", Reason.NO_TIME),
        ("9", Reason.NO_TIME),
        ("tomorrow tomorrow", Reason.NO_TIME),
        ("in 2 hours tomorrow", Reason.NO_TIME),
        ("in 2 hours 3 hours", Reason.NO_TIME),
        ("tomorrow at midnight", Reason.WHICH_MEANING),
        ("in 3 days at midnight", Reason.WHICH_MEANING),
        ("in 3 days at 12 at night", Reason.WHICH_MEANING),
        ("in 3 days at 2 at night", Reason.WHICH_MEANING),
        ("일주일 뒤 밤 12시", Reason.WHICH_MEANING),
        ("Friday at a quarter to 12 am", Reason.WHICH_MEANING),
        ("in 3 hours at midnight", Reason.NO_TIME),
        ("February 30 at midnight", Reason.NO_SUCH_DAY),
        ("Monday December 1 at midnight", Reason.WRONG_WEEKDAY),
        ("yesterday at midnight", Reason.PAST),
        ("midnight midnight", Reason.NO_TIME),
        ("the second last Friday of the month at 9:00", Reason.PAST),
        ("one after 9", Reason.NO_TIME),
        ("30분 후배", Reason.NO_TIME),
        ("다음 달 3일", Reason.NO_TIME),
        ("in ٢ hours", Reason.NO_TIME),
        ("x" * (MAX_CHARS + 1), Reason.NO_TIME),
    ],
)
def test_what_cannot_be_one_time_is_refused_with_the_reason(text: str, reason: Reason) -> None:
    assert refused(text) is reason


def test_a_refusal_says_the_moment_it_would_have_been() -> None:
    found = read("today at 8:00")
    assert isinstance(found, TimeRefusal)
    assert found.at == datetime(2026, 11, 22, 8, 0, tzinfo=SEOUL)


def test_what_a_caller_decides_is_data() -> None:
    assert refused("tomorrow at 9", policy=TimePolicy(ask_half=AskHalf.ALWAYS)) is Reason.WHICH_HALF
    assert refused("tomorrow morning", policy=TimePolicy(parts_of_day={})) is Reason.NEEDS_CLOCK
    assert isinstance(read("yesterday", policy=TimePolicy(takes_past=True)), DateOnly)
    assert refused("in 40 days", policy=TimePolicy(days_ahead=30)) is Reason.TOO_FAR
    evening = read("tomorrow evening", policy=TimePolicy(parts_of_day={Half.EVENING: datetime.min.time()}))
    assert isinstance(evening, Instant)
    assert evening.at.hour == 0


def test_a_time_is_found_at_the_edges_of_a_text() -> None:
    lead, trail = times.leading("tomorrow at 9am to call mum"), times.trailing("call mum in 10 minutes")
    assert lead is not None
    assert trail is not None
    assert (lead.start, lead.end) == (0, len("tomorrow at 9am"))
    assert trail.start == len("call mum ")
    assert times.leading("friday's numbers") is None
    assert times.trailing("45 min") is None, "within a text a bare span may be anything"


def test_a_time_that_the_clocks_skip_lies_as_much_later_and_says_so() -> None:
    found = moment("tomorrow at 02:30", datetime(2027, 3, 13, 12, 0, tzinfo=NEW_YORK))
    assert isinstance(found, Instant)
    assert (found.at.isoformat(), found.shift) == ("2027-03-14T03:30:00-04:00", Shift.SKIPPED)


def test_a_time_that_comes_twice_is_the_first_that_lies_ahead_and_is_printed_with_its_offset() -> None:
    evening_before = datetime(2026, 10, 24, 20, 0, tzinfo=BERLIN)
    between = datetime(2026, 10, 25, 0, 45, tzinfo=UTC).astimezone(BERLIN)
    for now, iso in ((evening_before, "2026-10-25T02:30:00+02:00"), (between, "2026-10-25T02:30:00+01:00")):
        found = moment("at 02:30", now)
        assert isinstance(found, Instant)
        assert (found.at.isoformat(), found.shift) == (iso, Shift.TWICE)
        assert times.say(found, Language.ENGLISH).endswith(iso[-6:].replace(":", ""))


@pytest.mark.parametrize(
    "text",
    [
        "2026-12-01T09:00-05:00",
        "2026-12-01T09:00:00.123456-05:00",
        "2026-12-01T09:00-0500",
        "2026-12-01 09:00:00-05:00",
        "Tue 2026-12-01 09:00-0500",
        "2026-12-01 (화) 09:00-0500",
        "2026-12-01 23:00+09:00",
    ],
)
def test_a_date_of_iso_may_have_a_time_with_an_offset(text: str) -> None:
    assert moment(text).at.replace(microsecond=0).isoformat() == "2026-12-01T23:00:00+09:00"


def test_hours_go_by_and_days_keep_the_clock_when_the_clocks_change() -> None:
    night, noon = datetime(2027, 3, 14, 1, 30, tzinfo=NEW_YORK), datetime(2027, 3, 13, 9, 0, tzinfo=NEW_YORK)
    assert moment("in 1 hour", night).at.isoformat() == "2027-03-14T03:30:00-04:00"
    assert moment("in 2 days", noon).at.isoformat() == "2027-03-15T09:00:00-04:00"


ZONES = st.sampled_from(
    ["Asia/Seoul", "UTC", "America/New_York", "Europe/Berlin", "Australia/Lord_Howe", "Pacific/Apia"]
)
NOWS = st.builds(
    lambda naive, zone: naive.replace(tzinfo=UTC).astimezone(ZoneInfo(zone)),
    st.datetimes(datetime(2020, 1, 1), datetime(2060, 1, 1)),  # noqa: DTZ001
    ZONES,
)
DAYS = st.sampled_from(
    """today|tomorrow|monday|on friday|2 Jan|29 Feb|in 3 days|다음 주 화요일|내일|모레|금요일|3월 1일
    |이틀 뒤|every day|every mon and thu|매일|매주 월수|every month on the 30th|매년 2월 29일|""".replace(
        "\n    ", ""
    ).split("|")
)
CLOCKS = st.one_of(
    st.builds("at {:02d}:{:02d}".format, st.integers(0, 23), st.integers(0, 59)),
    st.builds("{}pm".format, st.integers(1, 12)),
    st.builds("오후 {}시 {}분".format, st.integers(1, 12), st.integers(0, 59)),
    st.just(""),
)
DURATIONS = st.one_of(
    st.builds("in {} minutes".format, st.integers(1, 9999)),
    st.builds("in {} days {} hours".format, st.integers(1, 99), st.integers(1, 30)),
    st.builds("{}시간 {}분 뒤".format, st.integers(0, 99), st.integers(1, 99)),
    st.builds("every {} minutes".format, st.integers(1, 9999)),
    st.builds("{}s".format, st.integers(1, 99999)),
)
TIMES = st.one_of(st.builds("{} {}".format, DAYS, CLOCKS).map(str.strip), DURATIONS)


UNITS = (
    ("d", "days", " day"),
    ("h", "hrs", "hours", " hour"),
    ("m", "mins", " min", "minutes", " minute"),
    ("s", "secs", " seconds"),
)


@given(
    amounts=st.lists(st.integers(0, 90), min_size=4, max_size=4),
    units=st.tuples(*(st.sampled_from(words) for words in UNITS)),
    gap=st.sampled_from(["", " ", ", ", " and "]),
    left_out=st.sets(st.integers(0, 3), max_size=3),
)
def test_a_span_is_the_sum_of_its_parts_however_they_are_spaced(
    amounts: list[int], units: tuple[str, ...], gap: str, left_out: set[int]
) -> None:
    kept = [place for place in range(4) if place not in left_out]
    text = gap.join(f"{amounts[place]}{units[place]}" for place in kept)
    sizes = (timedelta(days=1), timedelta(hours=1), timedelta(minutes=1), timedelta(seconds=1))
    expected = sum((amounts[place] * sizes[place] for place in kept), timedelta())
    found = read(text, policy=TimePolicy(takes_past=True))
    assert isinstance(found, Duration), (text, found)
    assert timedelta(days=found.days) + found.elapsed == expected


@example(text="every 1440 minutes", now=SUNDAY_MORNING)
@example(text="in 1.5 seconds", now=SUNDAY_MORNING)
@example(text="every 72 hours", now=SUNDAY_MORNING)
@given(text=TIMES, now=NOWS)
def test_what_is_printed_is_read_as_the_same(text: str, now: datetime) -> None:
    found = read(text, now)
    assume(not isinstance(found, TimeRefusal))
    for language in Language:
        again = read(times.say(found, language), now)
        if isinstance(found, Instant) and isinstance(again, Instant):
            # What the clocks did to it was said once; the moment is the same.
            assert again.at.timestamp() == found.at.timestamp(), (text, found, again)
        else:
            assert again == found, (text, times.say(found, language))


def _except_en(months: Sequence[str]) -> str:
    return f" except in {', '.join(months)}" if months else ""


def _except_ko(months: Sequence[int]) -> str:
    return "".join(f" {month}월" for month in months) + " 빼고" if months else ""


DAYS_OF_WEEK_EN = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTHS_EN = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
STEPS, MONTH_DAYS = st.integers(0, 99), st.integers(0, 32)
RHYTHMS_EN = st.one_of(
    st.sampled_from(
        [
            "every day",
            "every weekday",
            "every weekend",
            "every quarter",
            "every Friday to Tuesday",
            "the last Friday of each month",
            "every month on the last day",
        ]
    ),
    st.builds("every {} days".format, st.integers(1, 1200)),
    st.builds("every {}th {}".format, STEPS, st.sampled_from(["day", "week", *DAYS_OF_WEEK_EN])),
    st.builds(
        lambda every, days: f"{every} {' and '.join(days)}",
        st.one_of(st.sampled_from(["every", "every other"]), st.builds("every {} weeks on".format, STEPS)),
        st.lists(st.sampled_from(DAYS_OF_WEEK_EN), min_size=1, unique=True),
    ),
    st.builds("the {}th {} of each month".format, st.integers(1, 5), st.sampled_from(DAYS_OF_WEEK_EN)),
    st.builds("every {} months on the {}th".format, STEPS, MONTH_DAYS),
    st.builds("every {} months on the last day".format, STEPS),
    st.builds("every year on {} {}".format, MONTH_DAYS, st.sampled_from(MONTHS_EN)),
)
RHYTHMS_KO = st.one_of(
    st.sampled_from(["매일", "평일", "주말마다", "분기마다", "매월 마지막 날", "매월 마지막 금요일"]),
    st.builds("{}일마다".format, st.integers(1, 1200)),
    st.builds(
        lambda every, days: " ".join([every, *(f"{day}요일" for day in days)]),
        st.one_of(st.sampled_from(["매주", "격주"]), st.builds("{}주마다".format, STEPS)),
        st.lists(st.sampled_from("월화수목금토일"), min_size=1, unique=True),
    ),
    st.builds(
        "매월 {} {}요일".format, st.sampled_from(["첫째", "두 번째", "다섯째"]), st.sampled_from("월금일")
    ),
    st.builds("{}개월마다 {}일".format, STEPS, MONTH_DAYS),
    st.builds("{}개월마다 마지막 날".format, STEPS),
    st.builds("매년 {}월 {}일".format, st.integers(0, 13), MONTH_DAYS),
)
REPEATING = st.one_of(
    st.builds(
        lambda days, months, clock: f"{days}{_except_en(months)} {clock}",
        RHYTHMS_EN,
        st.one_of(st.just(()), st.lists(st.sampled_from(MONTHS_EN), max_size=12, unique=True)),
        st.builds("at {:02d}:{:02d}".format, st.integers(0, 23), st.integers(0, 59)),
    ),
    st.builds(
        lambda days, months, clock: f"{days}{_except_ko(months)} {clock}",
        RHYTHMS_KO,
        st.one_of(st.just(()), st.lists(st.integers(0, 13), max_size=12, unique=True)),
        st.builds("{:02d}:{:02d}".format, st.integers(0, 23), st.integers(0, 59)),
    ),
    st.builds(
        "every {} {}".format,
        st.decimals(0, 999, allow_nan=False, places=3),
        st.sampled_from(["seconds", "minutes", "hours", "days"]),
    ),
    st.builds("{}시간 {}분마다".format, st.integers(0, 99), st.decimals(0, 999, allow_nan=False, places=2)),
)


@example(text="격주 월요일 수요일 오전 8시")
@example(text="3주마다 월요일 수요일 일요일 오전 8시")
@example(text="1주마다 월요일 오전 8시")
@example(text="every 2 months on the last day at 9:00")
@example(
    text="every 3 months on the 1st except in jan, feb, mar, apr, may, jun, jul, aug, sep, oct, nov at 9:00"
)
@example(
    text="every month on the last day except in jan, feb, mar, apr, may, jun, jul, aug, sep, oct, nov at 9:00"
)
@example(text="every 90.5 seconds")
@given(text=REPEATING)
def test_every_repetition_is_printed_in_both_languages_as_it_is_read(text: str) -> None:
    found = read(text)
    assume(isinstance(found, Recurrence))
    for language in Language:
        assert read(times.say(found, language)) == found, (text, times.say(found, language))


WORDS = st.sampled_from(
    """
    in at on the of tomorrow today 9 12 24 99 0 :30 9am pm may 31 feb 2027 2026-02-29 next mon fri 9:99 noon
    oh five o clock dear am
    tonight morning evening minutes days weeks every 2 h 내일 모레 오전 오후 밤 9시 13시 반 30분 뒤 후
    월요일 다음 주 이번 2월 30일 한 시간 십 일 이틀 정오 자정 (월)
    매일 마다 매주 , ſunday auguſt ９시 : +09:00 Z -99:99 1h99
    """.split()  # noqa: SIM905  # a heap of words reads as one
)


@given(
    text=st.one_of(
        st.text(alphabet=st.characters(codec="utf-8"), max_size=60),
        st.lists(WORDS, max_size=8).map(" ".join),
        st.lists(WORDS, max_size=8).map("".join),
    ),
    now=NOWS,
)
def test_no_text_raises_and_what_is_read_lies_ahead(text: str, now: datetime) -> None:
    found = read(text, now)
    if isinstance(found, Instant | Duration):
        assert timedelta(0) < found.at - now < timedelta(days=3700) or found.at.timestamp() > now.timestamp()
    for edge in (times.leading(text), times.trailing(text)):
        assert edge is None or 0 <= edge.start < edge.end <= len(text)


@pytest.mark.parametrize(
    ("text", "choices"),
    [
        ("4월 29일 밤 12시", [("2027-04-29 00:00", Shift.NONE), ("2027-04-30 01:00", Shift.SKIPPED)]),
        ("4월 30일 밤 12시", [("2027-04-30 01:00", Shift.SKIPPED), ("2027-05-01 00:00", Shift.NONE)]),
        ("4월 29일 밤 12시 반", [("2027-04-29 00:30", Shift.NONE), ("2027-04-30 01:30", Shift.SKIPPED)]),
    ],
)
def test_a_midnight_that_the_clocks_skip_is_offered_as_it_is_read(
    text: str, choices: list[tuple[str, Shift]]
) -> None:
    """In Cairo, summer time begins at midnight."""
    found = read(text, datetime(2027, 4, 20, 9, tzinfo=ZoneInfo("Africa/Cairo")))
    assert isinstance(found, TimeRefusal)
    instants = [choice for choice in found.choices if isinstance(choice, Instant)]
    assert [(f"{instant.at:%Y-%m-%d %H:%M}", instant.shift) for instant in instants] == choices


@pytest.mark.parametrize(
    ("day", "expected"), [(29, ("2027-04-30 01:00", Shift.SKIPPED)), (30, ("2027-05-01 00:00", Shift.NONE))]
)
def test_the_next_midnight_that_the_clocks_skip_is_moved_on(day: int, expected: tuple[str, Shift]) -> None:
    found = moment(f"2027년 4월 {day}일 밤 12시", datetime(2027, 4, day, 9, tzinfo=ZoneInfo("Africa/Cairo")))
    assert isinstance(found, Instant)
    assert (f"{found.at:%Y-%m-%d %H:%M}", found.shift) == expected
