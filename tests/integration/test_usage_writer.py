"""What is stored of usage against what the scripted service counted, to the token."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from orchestrator.domain.errors import StoreError
from orchestrator.domain.values import TurnId, TurnKind
from orchestrator.proxies.model.token_usage import Prices, UsageParser
from orchestrator.proxies.model.usage_writer import UsageWriter
from orchestrator.proxies.run_tokens import token_hash
from orchestrator.store import audit
from orchestrator.store.database import Database
from tests.doubles.clock import FakeClock
from tests.doubles.faulty_upstream import answer
from tests.doubles.messages_api import (
    Fail,
    Hang,
    Say,
    SayThenCut,
    ScriptedMessagesApi,
    Search,
    Step,
    Tokens,
)
from tests.support.running_proxy import Proxied, proxied
from tests.support.store_harness import StoreHarness
from tests.support.until import until

MODEL = "claude-sonnet-4-5-20250929"
TOKENS = Tokens(
    input_tokens=1234, output_tokens=567, cache_read_input_tokens=89, cache_creation_input_tokens=10
)


@pytest.fixture
def usage_writer(database: Database, clock: FakeClock) -> UsageWriter:
    return UsageWriter(database, clock=clock)


@asynccontextmanager
async def scripted(home: Path, usage_writer: UsageWriter, *steps: Step) -> AsyncIterator[Proxied]:
    """A proxy before a scripted service; its first run works on turn 7, a task's."""
    with ScriptedMessagesApi(steps, tokens=TOKENS) as api:
        async with proxied(home, usage_writer=usage_writer) as served:
            served.environment["ANTHROPIC_BASE_URL"] = api.url
            known = served.runs[token_hash(served.token)]
            served.runs[token_hash(served.token)] = replace(
                known, turn_id=TurnId(7), kind=TurnKind.TASK, task_id="t-1"
            )
            yield served


def body(*, streams: bool, model: str = MODEL) -> bytes:
    return json.dumps({"model": model, "stream": streams, "messages": []}).encode()


async def ask(served: Proxied, **changes: object) -> httpx.Response:
    return await served.call(content=body(**{"streams": True, **changes}))  # type: ignore[arg-type]


@pytest.mark.parametrize("streams", [True, False])
async def test_stored_usage_has_the_numbers_of_the_service(
    tmp_path: Path, usage_writer: UsageWriter, store_harness: StoreHarness, streams: bool
) -> None:
    async with scripted(tmp_path, usage_writer, Say("hello")) as served:
        await ask(served, streams=streams)
        await served.recorded()
    await usage_writer.flush()
    (row,) = await store_harness.rows("SELECT * FROM usage")
    assert row == {
        "id": 1,
        "at_ms": store_harness.clock.now_ms(),
        "group_folder": "group-0",
        "run_id": "run-0",
        "turn_id": 7,
        "kind": "task",
        "task_id": "t-1",
        "model": MODEL,
        "input_tokens": 1234,
        "output_tokens": 567,
        "cache_read_tokens": 89,
        "cache_write_tokens": 10,
        "cost_nano_usd": 1234 * 3000 + 567 * 15000 + 89 * 300 + 10 * 3750,
        "is_whole": 1,
        "searches": 0,
        "is_subagent": 0,
        "service": None,
        "is_assumed": 0,
    }


async def test_answers_to_a_subagent_are_told_apart_by_what_its_cli_sends(
    tmp_path: Path, usage_writer: UsageWriter, store_harness: StoreHarness
) -> None:
    async with scripted(tmp_path, usage_writer, Say("hello"), Say("found")) as served:
        await ask(served)
        of_subagent = {"x-claude-code-agent-id": "ae5f6ba0dda91169d"}
        await served.call(content=body(streams=True), headers=of_subagent)
        await served.recorded(2)
    await usage_writer.flush()
    rows = await store_harness.rows("SELECT is_subagent, turn_id, input_tokens FROM usage ORDER BY id")
    assert [tuple(row.values()) for row in rows] == [(0, 7, 1234), (1, 7, 1234)]


@pytest.mark.parametrize("streams", [True, False])
async def test_each_search_is_written_down_and_charged_besides_its_tokens(
    tmp_path: Path, usage_writer: UsageWriter, store_harness: StoreHarness, streams: bool
) -> None:
    usage_writer = UsageWriter(
        store_harness.database, clock=store_harness.clock, prices=Prices(search_usd=0.02)
    )
    async with scripted(tmp_path, usage_writer, Search("sunny", found=(), searches=2), Say("hi")) as served:
        await ask(served, streams=streams)
        await ask(served, streams=streams)
        await served.recorded(2)
    await usage_writer.flush()
    searched, plain = await store_harness.rows(
        "SELECT searches, cost_nano_usd AS cost FROM usage ORDER BY id"
    )
    assert (searched["searches"], plain["searches"]) == (2, 0)
    assert searched["cost"] - plain["cost"] == 2 * 20_000_000
    rows = await store_harness.rows("SELECT kind, group_folder, detail FROM audit WHERE kind = 'web.search'")
    assert [json.loads(row["detail"]) for row in rows] == [
        {"model": MODEL, "number": 1},
        {"model": MODEL, "number": 2},
    ]


async def test_an_answer_that_no_database_could_store_stops_no_recording(
    tmp_path: Path, usage_writer: UsageWriter, store_harness: StoreHarness
) -> None:
    iterations = [{"output_tokens": 10**12}] * 1_000
    usage = {"input_tokens": 7, "output_tokens": 9, "iterations": iterations}
    message = {"type": "message", "content": [], "model": "claude-opus-4-1\ud800", "usage": usage}
    async with proxied(tmp_path, usage_writer=usage_writer) as served:
        served.upstream.behave = answer(200, json.dumps(message).encode(), content_type="application/json")
        await served.call()
        await served.recorded()
    await usage_writer.flush()
    (row,) = await store_harness.rows("SELECT model, output_tokens, cost_nano_usd FROM usage")
    assert tuple(row.values()) == ("claude-opus-4-1?", 10**12, 10**15)


def test_searches_of_an_answer_that_broke_off_count_as_far_as_they_had_begun() -> None:
    parser = UsageParser()
    parser.begin(200, [(b"content-type", b"text/event-stream")])
    begun = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}}
    for event in (
        {
            "type": "message_start",
            "message": {"model": MODEL, "usage": {"input_tokens": 1, "output_tokens": 1}},
        },
        {"type": "content_block_start", "index": 0, "content_block": begun},
        {"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": "web_search"}},
    ):
        parser.feed(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())
    seen = parser.usage_so_far()
    assert seen is not None
    assert (seen.searches, seen.is_whole) == (1, False)


async def test_a_stream_cut_in_the_middle_leaves_what_was_seen(
    tmp_path: Path, usage_writer: UsageWriter, store_harness: StoreHarness
) -> None:
    async with scripted(tmp_path, usage_writer, SayThenCut("half a")) as served:
        with pytest.raises(httpx.RemoteProtocolError):
            await ask(served)
        await served.recorded()
    await usage_writer.flush()
    (row,) = await store_harness.rows("SELECT * FROM usage")
    assert (row["input_tokens"], row["output_tokens"], row["is_whole"]) == (11, 1, 0)


async def test_an_answer_without_usage_leaves_an_audit_row_alone(
    tmp_path: Path, usage_writer: UsageWriter, store_harness: StoreHarness
) -> None:
    async with scripted(tmp_path, usage_writer, Fail(400)) as served:
        await ask(served)
        await served.call("/v1/messages/count_tokens")
        await served.recorded(2)
        await served.call(token="wrong")
    await usage_writer.flush()
    assert await store_harness.rows("SELECT * FROM usage") == []
    rows = await store_harness.rows("SELECT kind, group_folder, detail FROM audit ORDER BY id")
    assert [(row["kind"], row["group_folder"]) for row in rows] == [
        ("api.request", "group-0"),
        ("api.request", "group-0"),
        ("api.refused", None),
    ]
    assert [json.loads(row["detail"])["status"] for row in rows] == [400, 200, 401]


async def test_a_client_that_leaves_is_noted(
    tmp_path: Path, usage_writer: UsageWriter, store_harness: StoreHarness
) -> None:
    with ScriptedMessagesApi([Hang()]) as api:
        async with proxied(tmp_path, usage_writer=usage_writer) as served:
            served.environment["ANTHROPIC_BASE_URL"] = api.url
            asking = asyncio.create_task(ask(served), name="ask")
            await until(lambda: api.turns, "the service is asked")
            asking.cancel()
            await asyncio.wait([asking])
            await served.recorded()
    await usage_writer.flush()
    (row,) = await store_harness.rows("SELECT detail FROM audit")
    assert json.loads(row["detail"])["ending"] == "gone"


async def test_fifty_streams_at_once_lose_no_token(
    tmp_path: Path, usage_writer: UsageWriter, store_harness: StoreHarness
) -> None:
    counts = range(1, 51)
    steps = [Say("x" * number, tokens=Tokens(input_tokens=number, output_tokens=2)) for number in counts]
    async with scripted(tmp_path, usage_writer, *steps) as served:
        writing = asyncio.create_task(usage_writer.run(), name="usage_writer")
        for group in _in_fives(range(50)):
            await asyncio.gather(*(ask(served) for _ in group))
        await served.recorded(50)
        writing.cancel()
    await usage_writer.flush()
    (row,) = await store_harness.rows("SELECT count(*) AS n, sum(input_tokens) AS input FROM usage")
    assert (row["n"], row["input"]) == (50, sum(counts))


def _in_fives(numbers: Iterable[int]) -> list[list[int]]:
    listed = list(numbers)
    return [listed[at : at + 5] for at in range(0, len(listed), 5)]


async def test_what_could_not_be_stored_is_stored_later(
    tmp_path: Path, usage_writer: UsageWriter, store_harness: StoreHarness
) -> None:
    async with scripted(tmp_path, usage_writer, Say("hello")) as served:
        await ask(served)
        await served.recorded()
    async with store_harness.database.transaction() as tx:
        await tx.execute("ALTER TABLE usage RENAME TO away")
    with pytest.raises(StoreError):
        await usage_writer.flush()
    assert [one.input_tokens for one in usage_writer.waiting] == [1234]
    async with store_harness.database.transaction() as tx:
        await tx.execute("ALTER TABLE away RENAME TO usage")
    await usage_writer.flush()
    assert usage_writer.waiting == []
    assert len(await store_harness.rows("SELECT 1 FROM usage")) == 1
    assert len(await store_harness.rows("SELECT 1 FROM audit")) == 1


async def test_a_shutdown_while_rows_are_stored_stores_them_once(
    usage_writer: UsageWriter, store_harness: StoreHarness
) -> None:
    for steps in range(40):
        usage_writer.note(audit.AuditEvent(at_ms=steps, kind="noted"))
        storing = asyncio.create_task(usage_writer.flush(), name="flush")
        for _ in range(steps):
            await asyncio.sleep(0)
        storing.cancel()
        await asyncio.wait({storing})
        await usage_writer.flush()
    rows = await store_harness.rows("SELECT at_ms FROM audit ORDER BY id")
    assert [row["at_ms"] for row in rows] == list(range(40))
