"""How the dashboard reads times: the whole table, the edges of the clocks, and what it refuses."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.dashboard.words import when
from orchestrator.domain.dashboard import ToolRefused

SEOUL = ZoneInfo("Asia/Seoul")
NOW_MS = 1_770_593_400_000  # Monday 2026-02-09 08:30 in Seoul


def read(text: str, *, now_ms: int = NOW_MS, zone: ZoneInfo = SEOUL) -> str:
    point = when.parse_datetime(text, now_ms=now_ms, zone=zone)
    return datetime.fromtimestamp(point.at_ms / 1000, zone).strftime("%m-%d %H:%M")


def ms(text: str, zone: ZoneInfo) -> int:
    return round(datetime.fromisoformat(text).replace(tzinfo=zone).timestamp() * 1000)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("2026-02-09T15:00:00", "02-09 15:00"),
        ("2026-02-09 15:00", "02-09 15:00"),
        ("2026-02-10", "02-10 09:00"),
        ("2026-02-09T06:00:00Z", "02-09 15:00"),
        ("2026-02-09T15:00:00+09:00", "02-09 15:00"),
        ("2026-02-09T07:00+01:00", "02-09 15:00"),
        ("in 2 hours", "02-09 10:30"),
        ("in 1 hour", "02-09 09:30"),
        ("in an hour", "02-09 09:30"),
        ("IN 30 MINUTES", "02-09 09:00"),
        ("in 2 hours 30 minutes", "02-09 11:00"),
        ("in 2 hours and 30 minutes", "02-09 11:00"),
        ("1h30m", "02-09 10:00"),
        ("in 1.5 hours", "02-09 10:00"),
        ("in 2 hrs", "02-09 10:30"),
        ("in 2 days", "02-11 08:30"),
        ("in 1 week", "02-16 08:30"),
        ("in 0 minutes", "02-09 08:30"),
        ("tomorrow", "02-10 09:00"),
        ("tomorrow morning", "02-10 09:00"),
        ("tomorrow evening", "02-10 18:00"),
        ("tomorrow 9am", "02-10 09:00"),
        ("9am tomorrow", "02-10 09:00"),
        ("Tomorrow 6PM", "02-10 18:00"),
        ("tomorrow 12pm", "02-10 12:00"),
        ("tomorrow at 12am", "02-10 00:00"),
        ("tomorrow 9 am", "02-10 09:00"),
        ("tomorrow 6 pm", "02-10 18:00"),
        ("tomorrow 18:00", "02-10 18:00"),
        ("tomorrow 9:30am", "02-10 09:30"),
        ("day after tomorrow 9am", "02-11 09:00"),
        ("the day after tomorrow", "02-11 09:00"),
        ("today 6pm", "02-09 18:00"),
        ("6pm", "02-09 18:00"),
        ("8am", "02-10 08:00"),
        ("tonight", "02-09 21:00"),
        ("tonight 8pm", "02-09 20:00"),
        ("next monday", "02-16 09:00"),
        ("wednesday next week 18:00", "02-18 18:00"),
        ("wednesday", "02-11 09:00"),
        ("this friday", "02-13 09:00"),
        ("Feb 10", "02-10 09:00"),
        ("10 February 2027 at 6pm", "02-10 18:00"),
        ("Feb 8", "02-08 09:00"),
        ("내일 9시", "02-10 09:00"),
        ("내일 오전 9시", "02-10 09:00"),
        ("내일 오후 3시 30분", "02-10 15:30"),
        ("내일 저녁 7시 반에", "02-10 19:30"),
        ("내일 18:00", "02-10 18:00"),
        ("오늘 밤", "02-09 21:00"),
        ("모레 아침", "02-11 09:00"),
        ("다음 주 월요일", "02-16 09:00"),
        ("금요일 오후 2시", "02-13 14:00"),
        ("2월 10일", "02-10 09:00"),
        ("2시간 후", "02-09 10:30"),
        ("1시간 30분 뒤에", "02-09 10:00"),
        ("2시간 반 후", "02-09 11:00"),
        ("30분 후", "02-09 09:00"),
        ("한 시간 후", "02-09 09:30"),
        ("두시간 반 뒤에", "02-09 11:00"),
        ("내일 아홉 시", "02-10 09:00"),
        ("내일 오후 열한시", "02-10 23:00"),
        ("3일 뒤", "02-12 08:30"),
        ("이틀 뒤", "02-11 08:30"),
    ],
)
def test_at_41_a_time_is_read_as_the_table_says(text, wanted):
    assert read(text) == wanted


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("next wednesday 18:00", "Wed 2026-02-11 18:00 or Wed 2026-02-18 18:00"),
        ("내일 3시", "Tue 2026-02-10 03:00 or Tue 2026-02-10 15:00"),
        ("3/4", "Wed 2026-03-04 or Fri 2026-04-03"),
    ],
)
def test_what_can_mean_two_times_is_refused_with_both(text: str, meant: str) -> None:
    with pytest.raises(ToolRefused) as caught:
        read(text)
    assert caught.value.code == "UNPARSEABLE_TIME"
    assert meant in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "   ",
        "tomorrow 13pm",
        "tomorrow 0am",
        "tomorrow 24:00",
        "tomorrow 9:60am",
        "tomorrow 9",
        "tomorrow morning or so",
        "in 2",
        "in hours",
        "in 2 hours tomorrow",
        "in 2 hours 3 hours",
        "in -2 hours",
        "soon",
        "not tomorrow",
        "tomorrow tomorrow",
        "2026-02-30",
        "2026-02-09T25:00",
        "2026-02-09T15:00 tomorrow",
        "내일 오후 13시",
        "Feb 30",
        "x" * 100_000,
        "٢٠٢٦-٠٢-١٠",
    ],
)
def test_at_41_what_is_no_time_is_refused_and_the_forms_are_named(text):
    with pytest.raises(ToolRefused) as refused:
        read(text)
    assert refused.value.code == "UNPARSEABLE_TIME"
    assert "2026-02-10T18:00" in str(refused.value)
    assert len(str(refused.value)) < 600


@pytest.mark.parametrize("text", ["in 99999999999 hours", "in 6 years 1 day", "2036-01-01", "in 2000 days"])
def test_at_41_what_is_more_than_five_years_away_is_too_far(text):
    with pytest.raises(ToolRefused) as refused:
        read(text)
    assert refused.value.code in ("TOO_FAR", "UNPARSEABLE_TIME")
    assert refused.value.code == "TOO_FAR" or "years" in text


def test_at_29_a_past_time_is_refused_and_a_minute_ago_is_now():
    with pytest.raises(ToolRefused) as refused:
        when.parse_due_time("2026-02-09T07:00:00", now_ms=NOW_MS, zone=SEOUL)
    assert refused.value.code == "PAST_TIME"
    assert when.parse_due_time("2026-02-09T08:29:00", now_ms=NOW_MS, zone=SEOUL).at_ms == NOW_MS - 60_000
    assert when.parse_due_time("in 0 minutes", now_ms=NOW_MS, zone=SEOUL).at_ms == NOW_MS


def test_at_42_times_across_the_change_of_clocks():
    berlin, new_york = ZoneInfo("Europe/Berlin"), ZoneInfo("America/New_York")
    now = ms("2026-03-28T20:00", berlin)
    tomorrow = when.parse_datetime("tomorrow 9am", now_ms=now, zone=berlin)
    assert tomorrow.at_ms == ms("2026-03-29T07:00", ZoneInfo("UTC"))
    assert read("in 24 hours", now_ms=now, zone=berlin) == "03-29 21:00"
    assert read("in 1 day", now_ms=now, zone=berlin) == "03-29 20:00"
    spring = ms("2026-03-07T12:00", new_york)
    assert read("2026-03-08T02:30", now_ms=spring, zone=new_york) == "03-08 03:30"
    first = when.parse_datetime("2026-11-01T01:30", now_ms=spring, zone=new_york)
    assert first.at_ms == ms("2026-11-01T05:30", ZoneInfo("UTC"))


def test_a_deadline_is_a_day_or_a_moment():
    day = when.parse_deadline("2026-02-10", now_ms=NOW_MS, zone=SEOUL)
    assert day is not None
    assert (day.date, day.at_ms, day.is_timed) == ("2026-02-10", ms("2026-02-10T00:00", SEOUL), False)
    said = when.parse_deadline("tomorrow", now_ms=NOW_MS, zone=SEOUL)
    assert said is not None
    assert (said.date, said.text) == ("2026-02-10", "tomorrow")
    timed = when.parse_deadline("tomorrow 18:00", now_ms=NOW_MS, zone=SEOUL)
    assert timed is not None
    assert (timed.date, timed.at_ms, timed.is_timed) == (None, ms("2026-02-10T18:00", SEOUL), True)
    assert when.parse_deadline(" ", now_ms=NOW_MS, zone=SEOUL) is None
    with pytest.raises(ToolRefused) as refused:
        when.parse_deadline("whenever", now_ms=NOW_MS, zone=SEOUL)
    assert refused.value.code == "BAD_DATE"


def test_only_iso_times_are_told_as_such():
    assert when.parse_datetime("2026-02-10", now_ms=NOW_MS, zone=SEOUL).is_iso
    assert not when.parse_datetime("tomorrow", now_ms=NOW_MS, zone=SEOUL).is_iso


def outcome(text: str) -> str:
    try:
        when.parse_datetime(text, now_ms=NOW_MS, zone=SEOUL)
    except ToolRefused as refused:
        return refused.code
    return "read"


_PIECES = (
    "in",
    "2",
    "9",
    "tomorrow",
    "am",
    "9am",
    "18:00",
    "hours",
    "next",
    "monday",
    "내일",
    "오후",
    "3시",
    "뒤",
)


@given(st.text(max_size=40) | st.lists(st.sampled_from(_PIECES), max_size=6).map(" ".join))
def test_whatever_is_said_it_is_read_or_refused(text):
    assert outcome(text) in ("read", "UNPARSEABLE_TIME", "TOO_FAR")


@pytest.mark.parametrize("hour", ["9", "12", " 07 "])
def test_an_hour_alone_is_asked_back_as_morning_or_evening(hour):
    with pytest.raises(ToolRefused) as refused:
        when.parse_datetime(hour, now_ms=1_795_372_200_000, zone=ZoneInfo("Asia/Seoul"))
    number = int(hour)
    assert str(refused.value) == (
        f"'{hour.strip()}' could be morning or evening: write {number}am or {number}pm."
    )


@pytest.mark.parametrize(
    ("text", "point"), [("next Friday", "02-20 09:00"), ("tonight at 12", "02-10 00:00")]
)
def test_the_example_for_a_time_with_two_meanings_is_read(text, point):
    with pytest.raises(ToolRefused, match="say which, such as") as refused:
        read(text)
    assert read(str(refused.value).split("'")[-2]) == point


@pytest.mark.parametrize("day", range(7))
def test_the_example_for_an_unreadable_time_is_read_on_each_day(day):
    assert "'monday 9am'" in when.FORMS
    assert read("monday 9am", now_ms=NOW_MS + day * 86_400_000)
