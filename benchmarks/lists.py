"""Pages of long lists over HTTP, and searches in a million messages."""

from __future__ import annotations

import asyncio
import random
import sqlite3
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import httpx

from benchmarks.figures import Check, Figure, Series
from benchmarks.places import Effort, progress
from orchestrator.base.clock import SystemClock
from orchestrator.dashboard.services.reminders import ReminderService
from orchestrator.home.directory import Home
from orchestrator.inbound.search_index import fill_search_index
from orchestrator.reports import search
from orchestrator.store.conversation.message_search import INDEXED_CHARS
from orchestrator.store.database import Database, migrations
from orchestrator.store.reader import read_once
from orchestrator.web.api.lists import ApiSource, list_routes
from orchestrator.web.app import web_app

IN_CHAT, IN_ALL = 10_000, 300_000
PAGE_MS, SEARCH_MS, SCAN_MS, START_MS = 100.0, 500.0, 2_000.0, 5_000.0
FILLED_MS = 120_000.0
TIMES, SEARCHES = 100, 10
BEFORE_THE_INDEX = 14
"""The version of a database without one."""
UTC = ZoneInfo("UTC")
KOREAN = "오늘 날씨 회의 내일 저녁 약속 우유 병원 예약 확인 학교 준비물 주말 여행 계획 생일 선물 커피"
ENGLISH = (
    "hello remind me tomorrow about the meeting please check weather dinner milk dentist school deadline"
)
WORDS = (*KOREAN.split(), *ENGLISH.split())
TERMS = ("날씨", "dentist", "커피를 dentist", "zzzz", "zz")
"""Of two syllables; a common word; two of them; none there; none there and too short for the index."""


async def measure(effort: Effort) -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="andy-bench-") as folder:
        home = Home(Path(folder))
        home.make()
        page = await _pages(home, effort)
    with tempfile.TemporaryDirectory(prefix="andy-bench-") as folder:
        home = Home(Path(folder))
        home.make()
        return [page, *await _searches(home, effort)]


async def _pages(home: Home, effort: Effort) -> Figure:
    await asyncio.to_thread(_fill, home.database, IN_CHAT)
    source = ApiSource(
        home=home,
        clock=SystemClock(),
        zone=UTC,
        reminders=ReminderService(zone_of=lambda _: UTC),
        context_of=_no_context,
        draft=_no_draft,
        nodes=_no_nodes,
    )
    app = web_app(list_routes(source), token="bench", on_refusal=lambda _: None)
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app=app),
        base_url="http://127.0.0.1",
        headers={"Authorization": "Bearer bench"},
    ) as client:

        async def ask() -> None:
            answer = await client.get("/api/messages?group=family&limit=50")
            assert len(answer.json()["rows"]) == 50, answer.text[:300]

        values = await _timed(ask, effort.times(TIMES))
    series = Series(name="50 messages", unit="ms", values=values)
    return Figure(
        name=f"A page of messages over HTTP, {IN_CHAT:,} in the chat",
        measured=series,
        checks=(Check(what="p99", value=series.p99, limit=PAGE_MS, unit="ms"),),
    )


async def _searches(home: Home, effort: Effort) -> list[Figure]:
    count = effort.times(IN_ALL)
    await asyncio.to_thread(_fill, home.database, count, is_indexed=False)
    progress(f"{count:,} messages are stored")
    began = time.perf_counter()
    database = await Database.open(home.database)
    started = 1000 * (time.perf_counter() - began)
    await fill_search_index(database)
    filled = time.perf_counter() - began
    await database.close()
    progress(f"they were indexed in {filled:.1f} s")
    figures = [
        _bounded(
            f"Upgrading a database of {count:,} messages that has no index, until it is open",
            (started,),
            START_MS,
        ),
        _bounded("Indexing them in the background, with pauses", (1000 * filled,), FILLED_MS),
    ]
    for term in TERMS:

        async def ask(term: str = term) -> None:
            await asyncio.to_thread(read_once, home.database, lambda tx: _search(tx, term))

        values = await _timed(ask, effort.times(SEARCHES))
        limit = SEARCH_MS if len(term) >= INDEXED_CHARS or term in KOREAN else SCAN_MS
        figures.append(_bounded(f"A search for “{term}” in {count:,} messages", values, limit))
    return figures


async def _search(tx: Any, term: str) -> None:
    await search.rows(tx, term, folder=None, limit=50)


def _bounded(name: str, values: tuple[float, ...], limit_ms: float) -> Figure:
    series = Series(name="it", unit="ms", values=values)
    check = Check(what="median", value=series.median, limit=limit_ms, unit="ms")
    return Figure(name=name, measured=series, checks=(check,))


async def _timed(ask: Callable[[], Awaitable[None]], times: int) -> tuple[float, ...]:
    await ask()
    values = []
    for _ in range(times):
        began = time.perf_counter()
        await ask()
        values.append(1000 * (time.perf_counter() - began))
    return tuple(values)


def _no_context(_: Any) -> Any:
    """Fail: no page that is measured here looks into a context."""
    raise NotImplementedError


async def _no_draft(*_: Any) -> str:
    """Fail: nothing is running whose text could be asked for."""
    raise NotImplementedError


async def _no_nodes() -> list[dict[str, Any]]:
    return []


def _fill(path: Path, count: int, *, is_indexed: bool = True) -> None:
    """Make a database with so many messages of one chat; not indexed, as one of an older version is."""
    scripts = migrations() if is_indexed else migrations()[:BEFORE_THE_INDEX]
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        for script in scripts:
            connection.executescript(script)
        connection.execute(f"PRAGMA user_version = {len(scripts)}")
    chance = random.Random(1)
    rows = (
        (f"M{number}", " ".join(chance.choices(WORDS, k=chance.randint(3, 18))), number * 60_000)
        for number in range(count)
    )
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("INSERT INTO chats (jid, name) VALUES ('local:family', 'Family')")
        connection.execute(
            "INSERT INTO registered_groups (jid, name, folder, added_ms)"
            " VALUES ('local:family', 'Family', 'family', 0)"
        )
        if is_indexed:  # an older version has no such table: the upgrade makes it
            connection.execute("INSERT INTO group_chats VALUES ('local:family', 'family', 0)")
        connection.executemany(
            "INSERT INTO messages (chat_jid, id, sender, sender_name, content, sent_ms, received_ms,"
            " ignored_reason) VALUES ('local:family', ?1, 'local:jane', 'Jane', ?2, ?3, ?3, 'no trigger')",
            rows,
        )
        if is_indexed:
            connection.execute("UPDATE messages SET group_folder = 'family'")
