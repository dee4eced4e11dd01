from __future__ import annotations

from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.domain.errors import BadTime
from orchestrator.scheduler.when import duration, point_ms, recurrence

UTC, SEOUL = ZoneInfo("UTC"), ZoneInfo("Asia/Seoul")
BERLIN, NEW_YORK = ZoneInfo("Europe/Berlin"), ZoneInfo("America/New_York")


def ms(iso):
    return int(datetime.fromisoformat(iso).timestamp() * 1000)


NOW = ms("2026-05-28T12:00:00+00:00")


def point(text, *, zone=UTC, now=NOW):
    return point_ms(text, now_ms=now, zone=zone)


@pytest.mark.parametrize(
    ("text", "zone", "reason"),
    [
        ("2026-05-28T12:00", UTC, "2026-05-28T12:00+00:00 is past; it is 2026-05-28T12:00+00:00 now."),
        ("2026-05-28T20:00", SEOUL, "2026-05-28T20:00+09:00 is past; it is 2026-05-28T21:00+09:00 now."),
        ("today", SEOUL, "2026-05-28T09:00+09:00 is past; it is 2026-05-28T21:00+09:00 now."),
        ("2026-05-28", UTC, "2026-05-28T09:00+00:00 is past; it is 2026-05-28T12:00+00:00 now."),
        ("every day at 9:00", UTC, "'every day at 9:00' comes again and again; give an ISO time"),
        (
            "3/4 at 10:00",
            UTC,
            "'3/4 at 10:00' could be Thu 2027-03-04 10:00 or Sat 2027-04-03 10:00: say which, such as",
        ),
        ("2040-01-01T00:00", UTC, "2040-01-01T00:00 is more than ten years ahead."),
        ("x" * 200, UTC, f"'{'x' * 200}' is no time I can use: give an ISO time"),
        ("x" * 201, UTC, f"'{'x' * 200}…' is no time I can use: give an ISO time"),
    ],
)
def test_an_agent_reads_why_its_time_was_refused(text, zone, reason):
    with pytest.raises(BadTime) as refused:
        point(text, zone=zone)
    assert str(refused.value).startswith(reason)


@pytest.mark.parametrize("text", ["3/4 at 10:00", "next friday", "tomorrow at 5"])
def test_the_example_for_a_time_with_two_meanings_is_read(text):
    with pytest.raises(BadTime, match="say which, such as") as refused:
        point(text)
    assert point(str(refused.value).split("'")[-2]) > NOW


def test_what_repeats_without_a_sure_time_is_refused_with_its_meanings():
    with pytest.raises(BadTime, match="every Monday at 05:00 or every Monday at 17:00: say which"):
        recurrence("every monday at 5", now_ms=NOW, zone=UTC)
    for text in ("every 3/4", "tomorrow 9am", "nonsense"):
        assert recurrence(text, now_ms=NOW, zone=UTC) is None


def test_a_span_is_read_where_its_text_has_another_meaning_too():
    assert duration("1h30") == timedelta(hours=1, minutes=30)
    assert duration("2d") == timedelta(days=2)
    for text in ("1month", "90", "1:30", "nonsense"):
        assert duration(text) is None


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30m", 1_800),
        ("30min", 1_800),
        ("2h15m", 8_100),
        ("1d", 86_400),
        ("1d2h3m4s", 93_784),
        ("90m", 5_400),
        ("45s", 45),
        ("1.5h", 5_400),
        ("in 5 minutes", 300),
        ("1시간 30분 뒤", 5_400),
        ("1H30M", 5_400),
        (" 1h 30m ", 5_400),
        ("3650d", 3650 * 86_400),
    ],
)
def test_a_duration_counts_from_now(text, seconds):
    assert point(text) == NOW + seconds * 1000


@pytest.mark.parametrize(
    ("text", "zone", "iso"),
    [
        ("2026-11-22T18:30", UTC, "2026-11-22T18:30:00+00:00"),
        ("2026-11-22T18:30", SEOUL, "2026-11-22T18:30:00+09:00"),
        ("2026-11-22 18:30", SEOUL, "2026-11-22T18:30:00+09:00"),
        ("2026-11-22T18:30:05", SEOUL, "2026-11-22T18:30:05+09:00"),
        ("2026-11-22T18:30Z", SEOUL, "2026-11-22T18:30:00+00:00"),
        ("2026-11-22T18:30-05:00", SEOUL, "2026-11-22T18:30:00-05:00"),
        ("2026-07-01T09:00", BERLIN, "2026-07-01T09:00:00+02:00"),
        ("2026-12-01T09:00", BERLIN, "2026-12-01T09:00:00+01:00"),
        ("2026-06-01", SEOUL, "2026-06-01T09:00:00+09:00"),
        ("tomorrow", SEOUL, "2026-05-29T09:00:00+09:00"),
        ("내일 오전 9시", SEOUL, "2026-05-29T09:00:00+09:00"),
        ("18:30", UTC, "2026-05-28T18:30:00+00:00"),
    ],
)
def test_an_iso_time_is_read_in_the_zone_unless_it_names_an_offset(text, zone, iso):
    assert point(text, zone=zone) == ms(iso)


@pytest.mark.parametrize(
    "text",
    ["0m", "0s", "2026-05-28T12:00", "2026-05-28T11:59:59", "2020-01-01T00:00", "2026-05-28T14:00+09:00"],
)
def test_what_is_past_is_refused_and_told_what_time_it_is(text):
    with pytest.raises(BadTime, match="2026-05-28T12:00"):
        point(text)


@pytest.mark.parametrize(
    "text",
    ["3661d", "9999d", "2036-06-07T12:00", "2090-01-01T00:00", "9999-12-31T23:59", "9999-12-31T23:59-05:00"],
)
@pytest.mark.parametrize("zone", [UTC, SEOUL, NEW_YORK])
def test_what_lies_more_than_ten_years_ahead_is_refused(text, zone):
    with pytest.raises(BadTime, match="ten years"):
        point(text, zone=zone)


@pytest.mark.parametrize(
    "text",
    ["", " ", "soon", "나중에", "at 5", "every day at 9:00", "5", "5x", "1m30", "30m1h", "-5m",
     "*/5 * * * *",
     "2026-13-01T00:00", "2026-02-30T10:00", "2026-11-22T25:00", "99999999h", "0001-01-01T00:00"],
)  # fmt: skip
def test_words_and_junk_are_refused_not_guessed(text):
    with pytest.raises(BadTime):
        point(text, zone=SEOUL)


@pytest.mark.parametrize(
    ("zone", "text"),
    [(BERLIN, "2027-03-28T02:30"), (NEW_YORK, "2027-03-14T02:00"), (NEW_YORK, "2027-03-14T02:59")],
)
def test_a_time_that_the_clocks_skip_is_refused(zone, text):
    with pytest.raises(BadTime, match="does not exist"):
        point(text, zone=zone)


@pytest.mark.parametrize(
    ("zone", "text", "first"),
    [
        (BERLIN, "2026-10-25T02:30", "2026-10-25T02:30:00+02:00"),
        (NEW_YORK, "2026-11-01T01:30", "2026-11-01T01:30:00-04:00"),
    ],
)
def test_of_a_time_that_comes_twice_the_first_is_meant(zone, text, first):
    assert point(text, zone=zone) == ms(first)


@pytest.mark.parametrize(
    ("zone", "now", "text", "second"),
    [
        (BERLIN, "2026-10-25T02:30:00+01:00", "2026-10-25T02:40", "2026-10-25T02:40:00+01:00"),
        (BERLIN, "2026-10-25T02:45:00+02:00", "2026-10-25T02:15", "2026-10-25T02:15:00+01:00"),
        (NEW_YORK, "2026-11-01T01:50:00-04:00", "2026-11-01T01:10", "2026-11-01T01:10:00-05:00"),
    ],
)
def test_once_the_first_is_past_the_second_is_meant(zone, now, text, second):
    assert point(text, zone=zone, now=ms(now)) == ms(second)


def test_when_both_are_past_it_is_refused():
    with pytest.raises(BadTime, match="is past"):
        point("2026-10-25T02:15", zone=BERLIN, now=ms("2026-10-25T02:30:00+01:00"))


@given(
    minutes=st.integers(1, 99_999),
    now=st.integers(ms("2026-01-01T00:00+00:00"), ms("2030-01-01T00:00+00:00")),
    zone=st.sampled_from([BERLIN, NEW_YORK, SEOUL]),
)
def test_a_duration_is_elapsed_time_whatever_the_clocks_do(minutes, now, zone):
    assert point(f"{minutes}m", zone=zone, now=now) == now + minutes * 60_000


def point_or_none(text, zone):
    try:
        return point(text, zone=zone)
    except BadTime:
        return None


@given(st.text(max_size=25))
def test_no_text_raises_anything_but_a_bad_time(text):
    assert (point_or_none(text, NEW_YORK) or NOW + 1) > NOW


@given(st.datetimes(), st.sampled_from([SEOUL, NEW_YORK]))
def test_no_date_raises_anything_but_a_bad_time(at, zone):
    assert (point_or_none(at.isoformat(), zone) or NOW + 1) > NOW
