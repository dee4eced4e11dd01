from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from agent_runner.agents.offline import dates, shapes
from agent_runner.agents.offline.dates import Shift, Trouble, Unclear
from agent_runner.agents.offline.texts import ENGLISH, KOREAN

SEOUL = ZoneInfo("Asia/Seoul")
NEW_YORK = ZoneInfo("America/New_York")
BERLIN = ZoneInfo("Europe/Berlin")
SUNDAY_MORNING = datetime(2026, 11, 22, 9, 20, 15, tzinfo=SEOUL)


def moment_of(text: str, now: datetime = SUNDAY_MORNING) -> dates.Moment:
    found = shapes.trailing(text)
    assert found is not None, text
    assert found.start == 0, text
    return dates.resolve(found.when, now)


def local(text: str, now: datetime = SUNDAY_MORNING) -> str:
    return moment_of(text, now).at.strftime("%Y-%m-%d %H:%M:%S")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("in 10 minutes", "2026-11-22 09:30:15"),
        ("in ten minutes", "2026-11-22 09:30:15"),
        ("in 20 seconds", "2026-11-22 09:20:35"),
        ("in an hour", "2026-11-22 10:20:15"),
        ("in half an hour", "2026-11-22 09:50:15"),
        ("in 1.5 hours", "2026-11-22 10:50:15"),
        ("in 1h30m", "2026-11-22 10:50:15"),
        ("in 2 hours and 30 minutes", "2026-11-22 11:50:15"),
        ("90 minutes from now", "2026-11-22 10:50:15"),
        ("in 3 days", "2026-11-25 09:20:15"),
        ("in 2 weeks at 9am", "2026-12-06 09:00:00"),
        ("at 18:30", "2026-11-22 18:30:00"),
        ("at 9:00", "2026-11-23 09:00:00"),
        ("9am", "2026-11-23 09:00:00"),
        ("at 12am", "2026-11-23 00:00:00"),
        ("at 12 p.m.", "2026-11-22 12:00:00"),
        ("at noon", "2026-11-22 12:00:00"),
        ("tomorrow at 9am", "2026-11-23 09:00:00"),
        ("at 9am tomorrow", "2026-11-23 09:00:00"),
        ("the day after tomorrow at 21:00", "2026-11-24 21:00:00"),
        ("tonight at 8", "2026-11-22 20:00:00"),
        ("at 9 in the morning", "2026-11-23 09:00:00"),
        ("tomorrow evening at 7:30", "2026-11-23 19:30:00"),
        ("on Friday at 3pm", "2026-11-27 15:00:00"),
        ("sunday 9:00", "2026-11-29 09:00:00"),
        ("Sunday 10:00", "2026-11-22 10:00:00"),
        ("2026-12-12 18:00", "2026-12-12 18:00:00"),
        ("2026-12-12T18:00", "2026-12-12 18:00:00"),
        ("12 Dec 18:00", "2026-12-12 18:00:00"),
        ("on the 12th of December at 6pm", "2026-12-12 18:00:00"),
        ("December 12th, 2027 at 6pm", "2027-12-12 18:00:00"),
        ("3 May at 9am", "2027-05-03 09:00:00"),
        ("Sept. 1 at 9am", "2027-09-01 09:00:00"),
        ("29 Feb at 9am", "2028-02-29 09:00:00"),
        ("10분 뒤에", "2026-11-22 09:30:15"),
        ("30분 후", "2026-11-22 09:50:15"),
        ("이십오 분 뒤", "2026-11-22 09:45:15"),
        ("한 시간 반 뒤", "2026-11-22 10:50:15"),
        ("반 시간 후에", "2026-11-22 09:50:15"),
        ("2시간 30분 있다가", "2026-11-22 11:50:15"),
        ("사흘 뒤 오전 10시", "2026-11-25 10:00:00"),
        ("3일 후 오전 10시에", "2026-11-25 10:00:00"),
        ("일주일 뒤", "2026-11-29 09:20:15"),
        ("내일 오전 9시", "2026-11-23 09:00:00"),
        ("내일 오전 9시에", "2026-11-23 09:00:00"),
        ("내일 아침 아홉 시에", "2026-11-23 09:00:00"),
        ("모레 21시", "2026-11-24 21:00:00"),
        ("오늘 오후 3시 반에", "2026-11-22 15:30:00"),
        ("오후 12시 15분", "2026-11-22 12:15:00"),
        ("오전 12시", "2026-11-23 00:00:00"),
        ("밤 11시", "2026-11-22 23:00:00"),
        ("정오에", "2026-11-22 12:00:00"),
        ("금요일 오후 3시", "2026-11-27 15:00:00"),
        ("다음 주 금요일 15:00", "2026-11-27 15:00:00"),
        ("다음 주 월요일 오전 9시", "2026-11-23 09:00:00"),
        ("이번 주 일요일 오전 10시", "2026-11-22 10:00:00"),
        ("12월 25일 오전 9시", "2026-12-25 09:00:00"),
        ("2027년 3월 1일 오전 9:30에", "2027-03-01 09:30:00"),
    ],
)
def test_a_known_shape_names_its_moment(text: str, expected: str) -> None:
    assert local(text) == expected


@pytest.mark.parametrize(
    ("text", "trouble"),
    [
        ("at 9", Trouble.WHICH_HALF),
        ("tomorrow at 12", Trouble.WHICH_HALF),
        ("내일 9시", Trouble.WHICH_HALF),
        ("밤 12시", Trouble.WHICH_HALF),
        ("tomorrow", Trouble.NEEDS_CLOCK),
        ("tomorrow morning", Trouble.NEEDS_CLOCK),
        ("금요일", Trouble.NEEDS_CLOCK),
        ("next Friday at 9am", Trouble.WHICH_WEEK),
        ("today at 8:00", Trouble.PAST),
        ("오늘 오전 8시", Trouble.PAST),
        ("이번 주 월요일 오전 9시", Trouble.PAST),
        ("2026-11-22 09:20", Trouble.PAST),
        ("2025-01-01 09:00", Trouble.PAST),
        ("1999-01-01 09:00", Trouble.PAST),
        ("in 0 minutes", Trouble.PAST),
        ("at 25:00", Trouble.NO_SUCH_TIME),
        ("at 9:75", Trouble.NO_SUCH_TIME),
        ("오후 25시", Trouble.NO_SUCH_TIME),
        ("30 Feb at 9am", Trouble.NO_SUCH_DAY),
        ("2월 30일 오전 9시", Trouble.NO_SUCH_DAY),
        ("2026-13-01 09:00", Trouble.NO_SUCH_DAY),
        ("Mon 2026-11-24 09:00", Trouble.WRONG_WEEKDAY),
        ("in 999999 hours", Trouble.TOO_FAR),
        ("in 999999 days", Trouble.TOO_FAR),
        ("9999-12-31 09:00", Trouble.TOO_FAR),
    ],
)
def test_what_cannot_be_one_moment_is_refused_with_the_reason(text: str, trouble: Trouble) -> None:
    with pytest.raises(Unclear) as refusal:
        moment_of(text)
    assert refusal.value.trouble is trouble


@pytest.mark.parametrize(
    "text",
    [
        "12/5 at 9am",
        "9",
        "18",
        "soon",
        "next week",
        "every day at 9am",
        "30분 후배",
        "friday's",
        "in 10 meetings",
        "매일 오전 9시",
        "at 1830",
        "2026-12-12T18:00+09:00",
        "내일의",
        "다음 달 3일",
        "midnight",
    ],
)
def test_what_has_no_known_shape_is_no_time(text: str) -> None:
    found = shapes.leading(text)
    assert found is None or found.end < len(text)


def test_a_past_time_is_refused_with_the_time_it_would_have_been() -> None:
    with pytest.raises(Unclear) as refusal:
        moment_of("today at 8:00")
    assert refusal.value.at == datetime(2026, 11, 22, 8, 0, tzinfo=SEOUL)
    with pytest.raises(Unclear) as refusal:
        moment_of("12 May 2020 at 9am")
    assert refusal.value.at == datetime(2020, 5, 12, 9, 0, tzinfo=SEOUL)


def test_the_weekday_of_today_means_today_until_its_time_has_passed() -> None:
    assert local("Sunday at 9:21") == "2026-11-22 09:21:00"
    assert local("Sunday at 9:20") == "2026-11-29 09:20:00"


def test_a_time_that_the_clock_skips_lies_as_much_later_and_says_so() -> None:
    now = datetime(2027, 3, 13, 12, 0, tzinfo=NEW_YORK)
    moment = moment_of("tomorrow at 2:30", now)
    assert moment.at.isoformat() == "2027-03-14T03:30:00-04:00"
    assert moment.shift is Shift.SKIPPED


def test_a_time_that_comes_twice_is_the_first_that_lies_ahead() -> None:
    evening_before = datetime(2026, 10, 24, 20, 0, tzinfo=BERLIN)
    between = datetime(2026, 10, 25, 0, 45, tzinfo=UTC).astimezone(BERLIN)
    first, second = moment_of("at 2:30", evening_before), moment_of("at 2:30", between)
    assert first.at.isoformat() == "2026-10-25T02:30:00+02:00"
    assert second.at.isoformat() == "2026-10-25T02:30:00+01:00"
    assert first.shift is second.shift is Shift.TWICE


def test_a_duration_is_elapsed_time_when_the_clocks_change() -> None:
    now = datetime(2027, 3, 14, 1, 30, tzinfo=NEW_YORK)
    assert moment_of("in 1 hour", now).at.isoformat() == "2027-03-14T03:30:00-04:00"


def test_in_so_many_days_keeps_the_clock_when_the_clocks_change() -> None:
    now = datetime(2027, 3, 13, 9, 0, tzinfo=NEW_YORK)
    assert moment_of("in 2 days", now).at.isoformat() == "2027-03-15T09:00:00-04:00"


ZONES = st.sampled_from(
    ["Asia/Seoul", "UTC", "America/New_York", "Europe/Berlin", "Australia/Lord_Howe", "Pacific/Apia"]
)
NOWS = st.builds(
    lambda naive, zone: naive.replace(tzinfo=UTC).astimezone(ZoneInfo(zone)),
    st.datetimes(datetime(2020, 1, 1), datetime(2060, 1, 1)),  # noqa: DTZ001
    ZONES,
)
DAYS = st.sampled_from(
    [
        "",
        "today",
        "tomorrow",
        "monday",
        "on friday",
        "2 Jan",
        "29 Feb",
        "in 3 days",
        "다음 주 화요일",
        "내일",
        "모레",
        "금요일",
        "3월 1일",
        "이틀 뒤",
    ]
)
CLOCKS = st.one_of(
    st.builds("at {:02d}:{:02d}".format, st.integers(0, 23), st.integers(0, 59)),
    st.builds("{}pm".format, st.integers(1, 12)),
    st.builds("오후 {}시 {}분".format, st.integers(1, 12), st.integers(0, 59)),
)
DURATIONS = st.one_of(
    st.builds("in {} minutes".format, st.integers(1, 9999)),
    st.builds("{}시간 {}분 뒤".format, st.integers(0, 99), st.integers(1, 99)),
    st.builds("in {} days".format, st.integers(1, 999)),
)
TIMES = st.one_of(st.builds("{} {}".format, DAYS, CLOCKS).map(str.strip), DURATIONS)


@given(text=TIMES, now=NOWS)
def test_whatever_resolves_lies_ahead_and_reads_the_same_when_said_back(text: str, now: datetime) -> None:
    try:
        moment = moment_of(text, now)
    except Unclear:
        assume(False)
    assert moment.at.timestamp() > now.timestamp()
    for words in (ENGLISH, KOREAN):
        said = moment_of(words.moment(moment.at, has_seconds=True), now)
        same_clock = said.at.replace(tzinfo=None) == moment.at.replace(tzinfo=None)
        assert same_clock, (said, moment)
        assert said.at.timestamp() == moment.at.timestamp() or said.shift is Shift.TWICE


@given(text=st.text(alphabet=st.characters(codec="utf-8"), max_size=60), now=NOWS)
def test_no_text_makes_the_dates_fail(text: str, now: datetime) -> None:
    for found in (shapes.leading(text), shapes.trailing(text)):
        if found is None:
            continue
        try:
            moment = dates.resolve(found.when, now)
        except Unclear:
            continue
        assert moment.at - now < timedelta(days=366 * 11)


WORDS = st.sampled_from(
    """
    in at on the of tomorrow today 9 12 24 99 0 :30 9am pm may 31 feb 2027 2026-02-29 next mon fri 9:99 noon
    tonight morning evening minutes days weeks 내일 모레 오전 오후 밤 9시 13시 반 30분 뒤 후 월요일 다음 주
    이번 2월 30일 한 시간 십 일 이틀 정오 (월) , ſunday auguſt ９시 :
    """.split()  # noqa: SIM905  # a heap of words reads as one
)


@given(text=st.lists(WORDS, max_size=8).map(" ".join), now=NOWS)
def test_no_heap_of_time_words_makes_the_dates_fail(text: str, now: datetime) -> None:
    for found in (shapes.leading(text), shapes.trailing(text)):
        if found is None:
            continue
        try:
            moment = dates.resolve(found.when, now)
        except Unclear:
            continue
        assert moment.at.timestamp() > now.timestamp()
