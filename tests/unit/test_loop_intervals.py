"""How long an agent may say it wants to sleep."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.base.clock import format_span
from orchestrator.loop.wake_policy import RequestedInterval, read_clock, read_interval

MINUTE, HOUR = 60_000, 3_600_000
TAIPEI = ZoneInfo("Asia/Taipei")


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("30m", 30 * MINUTE),
        ("2h", 2 * HOUR),
        ("90s", 90_000),
        ("30M", 30 * MINUTE),
        ("30 m", 30 * MINUTE),
        ("30min", 30 * MINUTE),
        ("2hr", 2 * HOUR),
        ("1.5h", 90 * MINUTE),
        ("30mins", 30 * MINUTE),
        ("30 minutes", 30 * MINUTE),
        ("2hours", 2 * HOUR),
        ("1h30m", 90 * MINUTE),
        ("1h 30m", 90 * MINUTE),
        ("1d", 24 * HOUR),
        (".5h", 30 * MINUTE),
        ("  30m ", 30 * MINUTE),
        ("45 sec", 45_000),
        ("999h", 999 * HOUR),
        ("0.5m", 30_000),
        ("1 hour", HOUR),
        ("in 30m", 30 * MINUTE),
        ("1h30", 90 * MINUTE),
        ("half an hour", 30 * MINUTE),
        ("3660d", 3660 * 24 * HOUR),
        ("두 시간", 2 * HOUR),
        ("30분 뒤", 30 * MINUTE),
    ],
)
def test_bt_07_an_interval_is_read(text, ms):
    found = read_interval(text)
    assert found is not None
    assert (found.ms, found.is_soonest) == (ms, False)


@pytest.mark.parametrize("text", ["now", " NOW "])
def test_bt_07_now_is_as_soon_as_may_be(text):
    found = read_interval(text)
    assert found == RequestedInterval(ms=0, is_soonest=True)


@pytest.mark.parametrize(
    "text",
    [
        "90",
        "0m",
        "0.0h",
        "-5m",
        "09:00",
        "tomorrow",
        "",
        "m",
        "30x",
        "30 m ago",
        "1m1h",
        "30m30m",
        "٣٠m",
        "३०m",
        "30ｍ",
        "1e3s",
        "1,5h",
        "next week",
        "9999999999s",
        "nowish",
    ],
)
def test_bt_07_what_is_not_clear_is_refused(text):
    assert read_interval(text) is None


@given(st.text(max_size=30))
def test_any_text_is_read_or_refused(text):
    found = read_interval(text)
    assert found is None or found.is_soonest or found.ms >= 0


@pytest.mark.parametrize(
    ("text", "now", "expected"),
    [
        ("09:00", "2026-02-14T08:00", 1 * HOUR),
        ("9:00", "2026-02-14T08:59:30", 30_000),
        ("09:00", "2026-02-14T09:00", 24 * HOUR),
        ("00:30", "2026-02-14T23:30", 1 * HOUR),
        ("9am", "2026-02-14T08:00", 1 * HOUR),
        ("tomorrow 9am", "2026-02-14T08:00", 25 * HOUR),
        ("오전 9시", "2026-02-14T08:00", 1 * HOUR),
        ("at 3", "2026-02-14T08:00", None),
        ("30m", "2026-02-14T08:00", None),
        ("24:00", "2026-02-14T08:00", None),
        ("09:60", "2026-02-14T08:00", None),
        ("٠٩:٠٠", "2026-02-14T08:00", None),
        ("tomorrow", "2026-02-14T08:00", None),
    ],
)
def test_a_clock_time_is_the_next_of_the_groups_zone(text, now, expected):
    now_ms = round(datetime.fromisoformat(now).replace(tzinfo=TAIPEI).timestamp() * 1000)
    found = read_clock(text, now_ms=now_ms, zone=TAIPEI)
    assert (found.ms if found else None) == expected


@pytest.mark.parametrize(
    ("ms", "words"),
    [(2 * MINUTE, "2 min"), (90 * MINUTE, "1 h 30 min"), (20_000, "20 s"), (0, "0 s"), (100 * HOUR, "100 h")],
)
def test_a_span_is_told_in_words(ms, words):
    assert format_span(ms) == words
