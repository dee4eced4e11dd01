"""What each reader of times took, phrase by phrase, and what the one reader makes of it."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from agent_runner.wire import times
from agent_runner.wire.times import Language, TimeRefusal
from orchestrator.dashboard.words import when
from orchestrator.domain.dashboard import ToolRefused
from orchestrator.domain.errors import BadTime
from orchestrator.loop.wake_policy import read_clock, read_interval
from orchestrator.scheduler.when import point_ms

SEOUL = ZoneInfo("Asia/Seoul")
NOW = datetime(2026, 11, 22, 9, 20, tzinfo=SEOUL)
NOW_MS = int(NOW.timestamp() * 1000)
ROWS = json.loads(Path(__file__).with_name("callers_before.json").read_text())


def shown(at_ms: int) -> str:
    at = datetime.fromtimestamp(at_ms / 1000, UTC).astimezone(SEOUL)
    return at.strftime("%Y-%m-%d %H:%M:%S").removesuffix(":00")


def reminder(text: str) -> str | None:
    try:
        return shown(point_ms(text, now_ms=NOW_MS, zone=SEOUL))
    except BadTime:
        return None


def dashboard(text: str) -> str | None:
    try:
        point = when.parse_due_time(text, now_ms=NOW_MS, zone=SEOUL)
    except ToolRefused:
        return None
    return f"{point.day.isoformat()} (09:00)" if point.day else shown(point.at_ms)


def loop(text: str) -> str | None:
    asked = read_interval(text) or read_clock(text, now_ms=NOW_MS, zone=SEOUL)
    return None if asked is None else f"{asked.ms // 1000} s"


CHANGED: dict[str, dict[str, str | None]] = {
    "2026-12-01": {"reminder": "2026-12-01 09:00"},
    "next friday": {"dashboard": None},
    "next friday at 9am": {"dashboard": None},
}
"""A day alone is 09:00 everywhere: reminders took midnight. What means two days is asked about everywhere."""


@pytest.mark.parametrize("row", ROWS, ids=[row["phrase"] for row in ROWS])
def test_each_caller_takes_what_it_took_before_it_had_the_one_reader(row: dict[str, str | None]) -> None:
    text = str(row["phrase"])
    callers = {"reminder": reminder(text), "dashboard": dashboard(text), "loop": loop(text)}
    before = {name: row[name] for name in callers if row[name]} | CHANGED.get(text, {})
    assert {name: callers[name] for name in before} == before


def test_what_one_caller_takes_all_take() -> None:
    refused = [
        row["phrase"] for row in ROWS if reminder(row["phrase"]) is None or dashboard(row["phrase"]) is None
    ]
    asked_about = [row["phrase"] for row in ROWS if str(row["reader"]).startswith(("refused", "every"))]
    assert refused == asked_about
    for row in ROWS:
        at = reminder(row["phrase"])
        assert at is None or at == str(dashboard(row["phrase"])).replace("(", "").replace(")", "")


@pytest.mark.parametrize("row", ROWS, ids=[row["phrase"] for row in ROWS])
def test_the_one_reader_takes_what_the_table_says(row: dict[str, str | None]) -> None:
    read = times.read(str(row["phrase"]), now=NOW, zone=SEOUL)
    said = f"refused: {read.reason}" if isinstance(read, TimeRefusal) else times.say(read, Language.ENGLISH)
    assert said == row["reader"]


def test_the_one_reader_takes_all_that_any_caller_took_but_for_next_friday() -> None:
    lost = [
        row["phrase"]
        for row in ROWS
        if any(row[name] for name in ("reminder", "dashboard", "offline", "loop"))
        and str(row["reader"]).startswith("refused")
    ]
    assert lost == ["next friday", "next friday at 9am"]
    read = times.read("next friday at 9am", now=NOW, zone=SEOUL)
    assert isinstance(read, TimeRefusal)
    assert times.say_choices(read, Language.ENGLISH) == "Fri 2026-11-27 09:00 or Fri 2026-12-04 09:00"


def test_the_loop_takes_every_span_and_moment_of_the_one_reader() -> None:
    """It asks for a moment or a span: a day alone and what repeats are neither."""
    for row in ROWS:
        read = times.read(str(row["phrase"]), now=NOW, zone=SEOUL)
        meanings = read.choices if isinstance(read, TimeRefusal) else (read,)
        is_span = any(isinstance(one, times.Duration) for one in meanings)
        is_usable = is_span or isinstance(read, times.Instant)
        assert (loop(str(row["phrase"])) is not None) == is_usable, row


def test_whoever_reads_a_phrase_reads_the_same_moment() -> None:
    """Where a caller and the one reader both take a phrase that names a moment, they name the same."""
    for row in ROWS:
        read = times.read(str(row["phrase"]), now=NOW, zone=SEOUL)
        if isinstance(read, times.Instant | times.Duration):
            at = read.at.strftime("%Y-%m-%d %H:%M:%S").removesuffix(":00")
            assert {row["dashboard"], row["offline"]} <= {at, None}, row
