"""Cron: what the clocks of a zone show. Due times are told as local times with offset."""

from __future__ import annotations

from calendar import monthrange
from datetime import UTC, date, datetime, timedelta
from itertools import islice
from zoneinfo import ZoneInfo

import pytest
from croniter import croniter
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_runner.wire import times
from agent_runner.wire.times import Instant, Recurrence
from orchestrator.domain.errors import BadSchedule
from orchestrator.domain.values import Dst
from orchestrator.scheduler import cron

BERLIN, NEW_YORK = "Europe/Berlin", "America/New_York"
SEOUL, LORD_HOWE = "Asia/Seoul", "Australia/Lord_Howe"
ZONES = [BERLIN, NEW_YORK, SEOUL, LORD_HOWE, "UTC", "Asia/Kathmandu", "America/St_Johns"]


def due(expression: str, zone: str, after: str, count: int, *, dst: Dst = Dst.ONCE) -> list[str]:
    """The next due times after a local time, each with its offset."""
    place = ZoneInfo(zone)
    at_ms = int(datetime.fromisoformat(after).replace(tzinfo=place).timestamp() * 1000)
    found = []
    for _ in range(count):
        at_ms = cron.next_ms(expression, after_ms=at_ms, zone=place, dst=dst)
        found.append(datetime.fromtimestamp(at_ms / 1000, place).isoformat(timespec="minutes"))
    return found


def test_weekdays_at_nine_in_the_zone_of_the_group() -> None:
    assert due("0 9 * * 1-5", SEOUL, "2026-05-29T08:00", 2) == [
        "2026-05-29T09:00+09:00",
        "2026-06-01T09:00+09:00",
    ]


def test_nine_in_the_morning_stays_nine_across_both_changes() -> None:
    assert due("0 9 * * *", BERLIN, "2026-03-28T00:00", 2) == [
        "2026-03-28T09:00+01:00",
        "2026-03-29T09:00+02:00",
    ]
    assert due("0 9 * * *", BERLIN, "2026-10-24T10:00", 1) == ["2026-10-25T09:00+01:00"]


@pytest.mark.parametrize(
    ("zone", "after", "expected"),
    [
        (BERLIN, "2026-10-24T12:00", ["2026-10-25T02:30+02:00", "2026-10-26T02:30+01:00"]),
        (NEW_YORK, "2026-10-31T12:00", ["2026-11-01T02:30-05:00", "2026-11-02T02:30-05:00"]),
        (SEOUL, "2026-10-24T12:00", ["2026-10-25T02:30+09:00", "2026-10-26T02:30+09:00"]),
    ],
)
def test_a_time_shown_twice_counts_the_first_time_only(zone: str, after: str, expected: list[str]) -> None:
    assert due("30 2 * * *", zone, after, 2) == expected


def test_half_an_hour_back_on_lord_howe() -> None:
    expected = ["2026-04-05T01:45+11:00", "2026-04-06T01:45+10:30"]
    assert due("45 1 * * *", LORD_HOWE, "2026-04-04T12:00", 2) == expected


def test_a_new_york_time_shown_twice_counts_once() -> None:
    assert due("30 1 * * *", NEW_YORK, "2026-10-31T12:00", 2) == [
        "2026-11-01T01:30-04:00",
        "2026-11-02T01:30-05:00",
    ]


@pytest.mark.parametrize(
    ("zone", "expression", "after", "expected"),
    [
        (BERLIN, "30 2 * * *", "2026-03-28T12:00", ["2026-03-29T03:30+02:00", "2026-03-30T02:30+02:00"]),
        (NEW_YORK, "30 2 * * *", "2026-03-07T12:00", ["2026-03-08T03:30-04:00", "2026-03-09T02:30-04:00"]),
        (LORD_HOWE, "15 2 * * *", "2026-10-03T12:00", ["2026-10-04T02:45+11:00", "2026-10-05T02:15+11:00"]),
    ],
)
def test_a_skipped_time_counts_as_much_later_as_for_a_reminder(
    zone: str, expression: str, after: str, expected: list[str]
) -> None:
    assert due(expression, zone, after, 2) == expected
    place = ZoneInfo(zone)
    reminder = times.read(
        f"tomorrow at {expected[1][11:16]}",
        now=datetime.fromisoformat(after).replace(tzinfo=place),
        zone=place,
    )
    assert isinstance(reminder, Instant)
    assert reminder.at.isoformat(timespec="minutes") == expected[0]


def test_several_skipped_times_are_made_up_once() -> None:
    assert due("0,20,40 2,3 * * *", BERLIN, "2026-03-29T01:00", 3) == [
        "2026-03-29T03:00+02:00",
        "2026-03-29T03:20+02:00",
        "2026-03-29T03:40+02:00",
    ]


def test_a_rhythm_goes_on_through_the_repeated_hour() -> None:
    assert due("*/30 * * * *", BERLIN, "2026-10-25T01:30", 6, dst=Dst.BOTH) == [
        "2026-10-25T02:00+02:00",
        "2026-10-25T02:30+02:00",
        "2026-10-25T02:00+01:00",
        "2026-10-25T02:30+01:00",
        "2026-10-25T03:00+01:00",
        "2026-10-25T03:30+01:00",
    ]


def test_a_rhythm_leaves_out_what_the_clocks_skip() -> None:
    assert due("*/30 * * * *", BERLIN, "2026-03-29T01:00", 3, dst=Dst.BOTH) == [
        "2026-03-29T01:30+01:00",
        "2026-03-29T03:00+02:00",
        "2026-03-29T03:30+02:00",
    ]


def test_a_rhythm_is_even_where_the_clocks_go_back_by_half_an_hour() -> None:
    assert due("*/15 * * * *", LORD_HOWE, "2026-04-05T01:30", 4, dst=Dst.BOTH) == [
        "2026-04-05T01:45+11:00",
        "2026-04-05T01:30+10:30",
        "2026-04-05T01:45+10:30",
        "2026-04-05T02:00+10:30",
    ]


def test_the_usual_is_once_for_a_time_of_day_and_both_for_a_rhythm() -> None:
    assert cron.usual_dst("30 2 * * *") is Dst.ONCE
    assert cron.usual_dst("0 9-17 * * 1-5") is Dst.ONCE
    assert cron.usual_dst("*/5 * * * *") is Dst.BOTH
    assert cron.usual_dst("0 */2 * * *") is Dst.BOTH


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("* * * * * *", "6 fields"),
        ("0 9 * *", "4 fields"),
        ("@daily", "1 fields"),
        ("", "0 fields"),
        ("60 * * * *", "'60' is no minute"),
        ("0 24 * * *", "'24' is no hour"),
        ("0 9 0 * *", "'0' is no day of the month"),
        ("0 9 * 13 *", "'13' is no month"),
        ("0 9 * * 8", "'8' is no day of the week"),
        ("0 9 * * mon#6", "'mon#6'"),
        ("0 9 L * 1", "'l'"),
        ("0 9 1 * 1#1", "'1#1'"),
        ("0 9 L-2 * *", "'l-2'"),
        ("0 9 * * 2 every 2 weeks", "8 fields"),
        ("0 9 * * 2 every 2 weeks from 2026-02-30", "no such date"),
        ("0 9 * * 2 every 600 weeks from 2026-02-03", "further than 10 years"),
        ("0 9 * * * every 2 days from 9999-12-31", "begins too late"),
        ("0 9 30 * * every 12 months from 2026-02-01", "never comes"),
        ("0 9 ? * *", "'?'"),
        ("H 9 * * *", "'h'"),
        ("R 9 * * *", "'r'"),
        ("*/0 * * * *", "'*/0'"),
        ("*/60 * * * *", "'*/60'"),
        ("5/10 * * * *", "'5/10'"),
        ("30-10 * * * *", "'30-10'"),
        ("1,,2 * * * *", "''"),
        ("-1 * * * *", "'-1'"),
        ("٣ * * * *", "is no minute"),
        ("0 9 30 2 *", "never comes"),
        ("0 9 31 4,6,9,11 *", "never comes"),
    ],
)
def test_what_is_no_cron_expression_is_refused_and_named(text: str, told: str) -> None:
    with pytest.raises(BadSchedule) as caught:
        cron.checked(text)
    assert told in str(caught.value)


def test_a_rhythm_that_begins_after_ten_years_is_not_searched_for() -> None:
    with pytest.raises(BadSchedule, match="does not come in 10 years"):
        due("0 9 * * * every 2 days from 2060-01-01", SEOUL, "2026-02-01T08:00", 1)


def test_a_rhythm_that_begins_later_comes_on_its_first_day() -> None:
    assert due("0 0 * * * every 10 days from 2031-02-01", SEOUL, "2026-02-01T08:00", 2) == [
        "2031-02-01T00:00+09:00",
        "2031-02-11T00:00+09:00",
    ]


@pytest.mark.parametrize(
    ("text", "expression"),
    [
        ("  0   9 * *  MON-FRI ", "0 9 * * mon-fri"),
        ("*/15 8-18/2 1,15 jan,jul *", "*/15 8-18/2 1,15 jan,jul *"),
        ("0 0 29 2 *", "0 0 29 2 *"),
        ("0 0 * * 7", "0 0 * * 7"),
        ("0 9 * * MON#1", "0 9 * * mon#1"),
        ("0 18 l * *", "0 18 L * *"),
        ("0 17 * * 5l", "0 17 * * 5L"),
        ("0 8 * * 2  Every 2 weeks from 2026-11-24", "0 8 * * 2 every 2 weeks from 2026-11-24"),
        ("0 8 * * 2 every 2 weeks from 0001-01-01", "0 8 * * 2 every 2 weeks from 0001-01-01"),
    ],
)
def test_a_good_expression_has_one_form(text: str, expression: str) -> None:
    assert cron.checked(text) == expression


def test_seven_is_sunday_and_a_leap_day_is_waited_for() -> None:
    assert due("0 0 * * 7", SEOUL, "2026-05-28T00:00", 1) == ["2026-05-31T00:00+09:00"]
    assert due("0 0 29 2 *", SEOUL, "2026-05-28T00:00", 1) == ["2028-02-29T00:00+09:00"]
    assert due("0 0 29 2 *", SEOUL, "2096-05-28T00:00", 1) == ["2104-02-29T00:00+09:00"]


# What holds for every expression, zone and moment

FIELDS = st.tuples(
    st.sampled_from(["0", "30", "*/7", "*", "0,15,30,45", "59"]),
    st.sampled_from(["*", "2", "1-3", "*/3", "0", "23", "1,2,3"]),
    st.sampled_from(["*", "1", "28-31", "*/5"]),
    st.sampled_from(["*", "3,4,10,11", "2"]),
    st.sampled_from(["*", "0", "1-5", "7"]),
)
EXPRESSIONS = FIELDS.map(" ".join)
DAY_MS = 86_400_000
HOURS_OF_A_CHANGE_MS = 3 * 3_600_000
# The days around the changes of the clocks in those zones, and any other.
MOMENTS = st.one_of(
    st.integers(0, 3 * DAY_MS).map(lambda ms: ms + 1_774_656_000_000),
    st.integers(0, 9 * DAY_MS).map(lambda ms: ms + 1_792_800_000_000),
    st.integers(1_500_000_000_000, 2_200_000_000_000),
)


def shown(at_ms: int, zone: ZoneInfo) -> datetime:
    return datetime.fromtimestamp(at_ms // 1000, zone).replace(tzinfo=None)


def by_hand(fields: list[list[int | str]], wall: datetime) -> bool:
    """Whether it fits, by the rule of cron: with both days named, either will do."""
    minutes, hours, days, months, weekdays = fields
    is_day, is_weekday = wall.day in days, (wall.weekday() + 1) % 7 in weekdays
    either = [named for named, field in ((is_day, days), (is_weekday, weekdays)) if field != ["*"]]
    return (
        (any(either) or not either)
        and ("*" in minutes or wall.minute in minutes)
        and ("*" in hours or wall.hour in hours)
        and ("*" in months or wall.month in months)
    )


@settings(deadline=None, max_examples=60)
@given(expression=EXPRESSIONS, zone=st.sampled_from(ZONES).map(ZoneInfo), after_ms=MOMENTS)
@pytest.mark.parametrize("dst", Dst)
def test_the_next_time_is_later_and_due(dst: Dst, expression: str, zone: ZoneInfo, after_ms: int) -> None:
    at_ms = cron.next_ms(expression, after_ms=after_ms, zone=zone, dst=dst)
    assert at_ms > after_ms
    fields = croniter.expand(expression)[0]
    skipped = shown(at_ms - HOURS_OF_A_CHANGE_MS, zone) + timedelta(milliseconds=HOURS_OF_A_CHANGE_MS)
    assert by_hand(fields, shown(at_ms, zone)) or (dst is Dst.ONCE and by_hand(fields, skipped))


@settings(deadline=None)
@given(expression=EXPRESSIONS, zone=st.sampled_from(ZONES).map(ZoneInfo), after_ms=MOMENTS)
@pytest.mark.parametrize("dst", Dst)
def test_due_times_in_a_row_are_the_same_as_one_by_one(
    dst: Dst, expression: str, zone: ZoneInfo, after_ms: int
) -> None:
    at_ms, one_by_one = after_ms, []
    for _ in range(20):
        at_ms = cron.next_ms(expression, after_ms=at_ms, zone=zone, dst=dst)
        one_by_one.append(at_ms)
    in_a_row = cron.following(expression, after_ms=after_ms, zone=zone, dst=dst)
    assert list(islice(in_a_row, 20)) == one_by_one


def test_a_time_after_a_skipped_half_hour_is_due_before_the_skipped_ones() -> None:
    """The clocks skip from 2:00 to 2:30, so 2:15 is due at what they show as 2:45."""
    assert due("15,20,30 2 * * *", LORD_HOWE, "2026-10-03T12:00", 4) == [
        "2026-10-04T02:30+11:00",
        "2026-10-04T02:45+11:00",
        "2026-10-04T02:50+11:00",
        "2026-10-05T02:15+11:00",
    ]


def test_a_yearly_time_goes_on_beyond_ten_years_in_a_row() -> None:
    years = cron.following("0 0 1 1 *", after_ms=0, zone=ZoneInfo("UTC"), dst=Dst.ONCE)
    assert [datetime.fromtimestamp(at_ms / 1000, UTC).year for at_ms in islice(years, 30)] == [
        *range(1971, 2001)
    ]


@settings(deadline=None, max_examples=30)
@given(expression=EXPRESSIONS, zone=st.sampled_from(ZONES).map(ZoneInfo), after_ms=MOMENTS)
def test_nothing_between_is_left_out(expression: str, zone: ZoneInfo, after_ms: int) -> None:
    """Minute by minute, for six hours: whatever the clocks show that fits is due, each showing of it."""
    at_ms = cron.next_ms(expression, after_ms=after_ms, zone=zone, dst=Dst.BOTH)
    fields = croniter.expand(expression)[0]
    first = (after_ms // 60_000 + 1) * 60_000
    for minute_ms in range(first, min(at_ms, after_ms + DAY_MS // 4), 60_000):
        assert not by_hand(fields, shown(minute_ms, zone))


@settings(deadline=None, max_examples=20)
@given(expression=EXPRESSIONS, zone=st.sampled_from(ZONES).map(ZoneInfo), after_ms=MOMENTS)
def test_no_local_time_counts_twice(expression: str, zone: ZoneInfo, after_ms: int) -> None:
    seen = []
    at_ms = after_ms
    for _ in range(30):
        at_ms = cron.next_ms(expression, after_ms=at_ms, zone=zone, dst=Dst.ONCE)
        seen.append(shown(at_ms, zone))
    assert len(set(seen)) == len(seen)
    assert seen == sorted(seen)


# What five fields cannot say

REPEATED = st.sampled_from(
    [
        "every other Tuesday at 8am",
        "every 2nd Friday at 18:00",
        "every 3rd Sunday at 02:30",
        "every other day at 02:30",
        "every 3 days at 9:00",
        "every 10 days at 23:45",
        "every other week at 00:15",
        "the first Monday of each month at 9:00",
        "the fifth Friday of each month at 9:00",
        "every last Sunday of the month at 02:30",
        "on the last day of every month at 18:00",
        "every month on the 31st at 7:00",
        "every 2 months on the 30th at 7:00",
        "every quarter at 9:00",
        "every year on 29 Feb at 12:00",
        "every year on 14 May at 9:00",
        "on weekdays at 7",
        "Mondays and Thursdays except in August at 9:00",
        "격주 화요일 오전 8시",
        "3주마다 금요일 18:00",
        "매월 마지막 날 18:00",
        "매월 셋째 수요일 오전 9시",
        "매주 월요일 7월 8월 빼고 오전 9시",
    ]
)


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(text=REPEATED, zone=st.sampled_from(ZONES).map(ZoneInfo), now_ms=MOMENTS)
def test_a_time_in_words_is_due_on_each_day_that_it_names_and_on_no_other(
    text: str, zone: ZoneInfo, now_ms: int
) -> None:
    """The host's due times beside the days counted out one by one from the words, over a year."""
    now = datetime.fromtimestamp(now_ms // 1000, zone)
    found = times.read(text, now=now, zone=zone)
    assert isinstance(found, Recurrence)
    assert found.cron is not None
    expression = cron.checked(found.cron)
    assert Recurrence.of_cron(expression, first=found.first) == found
    days = (now.date() + timedelta(days=ahead) for ahead in range(1600))
    moments = [
        int(datetime.combine(day, found.clock, zone).timestamp()) * 1000
        for day in days
        if counted(text, day, found)
    ]
    expected = [moment for moment in moments if moment > now_ms]
    at_ms, computed = now_ms, []
    for _ in expected[:40]:
        at_ms = cron.next_ms(expression, after_ms=at_ms, zone=zone, dst=Dst.ONCE)
        computed.append(at_ms)
    assert computed == expected[:40], (text, now)
    assert round(found.first.timestamp() * 1000) == expected[0]


def counted(text: str, day: date, found: Recurrence) -> bool:  # noqa: C901 - one line a phrase
    """Whether the words name a day, counted by hand; what is every so many is counted from the first time."""
    first = found.first.date()
    since, weekday, month = (day - first).days, day.weekday(), day.month
    last_day = monthrange(day.year, month)[1]
    match text.partition(" at ")[0]:
        case "every other Tuesday" | "격주 화요일 오전 8시":
            return weekday == 1 and since >= 0 and since % 14 == 0
        case "every 2nd Friday":
            return weekday == 4 and since >= 0 and since % 14 == 0
        case "every 3rd Sunday":
            return weekday == 6 and since >= 0 and since % 21 == 0
        case "3주마다 금요일 18:00":
            return weekday == 4 and since >= 0 and since % 21 == 0
        case "every other day":
            return since >= 0 and since % 2 == 0
        case "every 3 days":
            return since >= 0 and since % 3 == 0
        case "every 10 days":
            return since >= 0 and since % 10 == 0
        case "every other week":
            return since >= 0 and since % 14 == 0
        case "the first Monday of each month":
            return weekday == 0 and day.day <= 7
        case "the fifth Friday of each month":
            return weekday == 4 and day.day > 28
        case "every last Sunday of the month":
            return weekday == 6 and day.day + 7 > last_day
        case "매월 셋째 수요일 오전 9시":
            return weekday == 2 and 15 <= day.day <= 21
        case "on the last day of every month" | "매월 마지막 날 18:00":
            return day.day == last_day
        case "every month on the 31st":
            return day.day == 31
        case "every 2 months on the 30th":
            return since >= 0 and day.day == 30 and (month - first.month) % 2 == 0
        case "every quarter":
            return day.day == 1 and month in (1, 4, 7, 10)
        case "every year on 29 Feb":
            return (month, day.day) == (2, 29)
        case "every year on 14 May":
            return (month, day.day) == (5, 14)
        case "on weekdays":
            return weekday < 5
        case "Mondays and Thursdays except in August":
            return weekday in (0, 3) and month != 8
        case "매주 월요일 7월 8월 빼고 오전 9시":
            return weekday == 0 and month not in (7, 8)
        case _:
            raise AssertionError(text)
