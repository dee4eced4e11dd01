"""Whatever the schema of the Model Context Protocol admits, through the gateway to a server and back.

The schema is that of the types of the Python SDK (package `mcp-types`, version 2025-11-25 of the protocol,
MIT); the version is that of the lock file.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mcp_types import _v2025_11_25 as protocol
from pydantic import TypeAdapter

from orchestrator.proxies import mcp_gateway
from orchestrator.proxies.mcp_message import TOOL_NAME
from tests.doubles.faulty_upstream import Behave, answer, reset, say
from tests.integration.test_mcp_gateway import CALL, SECRET, Servers, serving
from tests.support.json_schemas import any_of, examples, valid

ANY = settings(deadline=None, suppress_health_check=list(HealthCheck))


def of(kind: Any) -> st.SearchStrategy[Any]:
    """Return a strategy for a type; what the protocol may leave out, its Python types write as null."""
    schema = TypeAdapter(kind).json_schema()
    return valid(schema, schema.get("$defs", {})).map(without_nulls)


def without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: without_nulls(one) for name, one in value.items() if one is not None}
    return [without_nulls(one) for one in value] if isinstance(value, list) else value


ANSWERED = b'{"jsonrpc": "2.0", "id": 1, "result": {}}'
MESSAGE = of(protocol.ClientRequest) | of(protocol.ClientNotification)
RESULT = st.builds(
    lambda result, identity: {"jsonrpc": "2.0", "id": identity, "result": result},
    of(protocol.ServerResult) | st.just({"content": [{"type": "text", "text": SECRET}]}),
    st.integers(0, 9) | st.text(max_size=3),
)
EVENT = of(protocol.ServerNotification) | of(protocol.ServerRequest)


def as_json(body: Any, kind: str = "application/json") -> Behave:
    return answer(200, json.dumps(body).encode(), content_type=kind)


def in_another_charset(body: Any) -> Behave:
    return answer(200, json.dumps(body).encode("utf-16"), content_type="application/json")


def as_events(found: list[Any]) -> Behave:
    body = "".join(f"event: message\ndata: {json.dumps(one)}\n\n" for one in found)
    return answer(200, body.encode(), content_type="text/event-stream")


HTML = f"<html><h1>502</h1>{SECRET}</html>".encode()
ANSWER = st.one_of(
    any_of(RESULT).map(as_json),
    st.lists(any_of(EVENT) | any_of(RESULT), max_size=4).map(as_events),
    any_of(RESULT).map(in_another_charset),
    st.sampled_from(
        [
            answer(200, HTML, content_type="text/html"),
            answer(302, b"", location=f"http://127.0.0.1:9/?{SECRET}"),
            answer(307, b"", location="http://127.0.0.1:9/"),
            answer(404, HTML, content_type="text/html"),
            answer(500, SECRET.encode(), mcp_session_id=SECRET),
            answer(202, b""),
            answer(204, b""),
            say(b"HTTP/1.1 200 OK\r\ncontent-length: 90\r\n\r\n" + SECRET[:9].encode()),
            say(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nffff\r\n"),
            say(b""),
            reset,
        ]
    ),
)  # fmt: skip


def passes_on(message: Any) -> bool:
    """Whether a valid message is one that the gateway knows no reason to hold back."""
    params = message.get("params") or {}
    is_task = message["method"].removeprefix("notifications/").startswith("tasks/") or params.get("task")
    is_named = message["method"] != "tools/call" or TOOL_NAME.fullmatch(params["name"])
    return bool(is_named) and not is_task


async def all_of(messages: list[Any], answers: list[Behave]) -> None:
    """Send messages one after another, and a good one after each, which has to come back."""
    with tempfile.TemporaryDirectory() as folder:
        async with serving(Path(folder)) as servers:
            for message, behave in zip(messages, answers, strict=True):
                await _one(servers, message, behave)


async def _one(servers: Servers, message: Any, behave: Behave) -> None:
    servers.upstream.behave = behave
    servers.upstream.received.clear()
    servers.noted.clear()
    content = json.dumps(message).encode()
    raw = await servers.served.say(
        servers.served.head(f"content-length: {len(content)}", "connection: close", path="/mcp/notes")
        + content
    )
    assert raw.startswith(b"HTTP/1.1 ")
    assert SECRET.encode() not in raw
    assert len(servers.upstream.received) <= 1, "a redirection is not followed, a call is not repeated"
    for received in servers.upstream.received:
        assert servers.served.token not in repr(received)
        assert "task" not in (json.loads(received.body).get("params") or {})
    assert len(servers.noted) <= 1
    servers.upstream.behave = answer(200, ANSWERED, content_type="application/json")
    assert await servers.call() == 200


@settings(ANY, max_examples=examples(8))
@given(st.lists(st.tuples(any_of(MESSAGE), ANSWER), min_size=1, max_size=6))
def test_whatever_is_sent_and_answered_has_one_outcome_and_the_next_call_is_taken(found):
    asyncio.run(all_of([message for message, _ in found], [behave for _, behave in found]))


@settings(ANY, max_examples=examples(8))
@given(st.lists(MESSAGE, min_size=1, max_size=6))
def test_what_is_valid_comes_to_the_server_as_it_was_meant_or_is_refused_in_words(found):
    async def all_of() -> None:
        with tempfile.TemporaryDirectory() as folder:
            async with serving(Path(folder)) as servers:
                for message in found:
                    servers.upstream.received.clear()
                    response = await servers.served.call("/mcp/notes", content=json.dumps(message))
                    sent = [json.loads(one.body) for one in servers.upstream.received]
                    if passes_on(message):
                        assert response.status_code == 200, response.text
                        (only,) = sent
                        assert only["method"] == message["method"]
                        meant = message.get("params")
                        if message["method"] == "tools/call":
                            meant = {name: one for name, one in meant.items() if name != "task"}
                        assert only.get("params") == meant
                    else:
                        assert sent == []
                        assert response.status_code in (200, 202, 400)

    asyncio.run(all_of())


@pytest.mark.parametrize(
    "message",
    [
        {**CALL, "params": {"name": "write", "task": {"ttl": 60_000}}},
        {"jsonrpc": "2.0", "id": 1, "method": "tasks/list"},
        {"jsonrpc": "2.0", "id": 1, "method": "tasks/result", "params": {"taskId": "of-another-group"}},
    ],
)
async def test_nothing_of_tasks_is_passed_on_and_the_agent_reads_why(tmp_path, message):
    async with serving(tmp_path) as servers:
        response = await servers.served.call("/mcp/notes", content=json.dumps(message))
        assert servers.upstream.received == []
        assert mcp_gateway.NO_TASKS in response.text
        assert servers.noted[0].detail["refused"] == mcp_gateway.NO_TASKS
