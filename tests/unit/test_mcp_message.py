"""Messages to MCP servers as they are judged and sent on: what a call is, and what the owner sees of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from orchestrator.proxies import mcp_message
from orchestrator.proxies.mcp_message import MAX_SHOWN_CHARS, McpMessage
from orchestrator.proxies.strict_json import NotStrictJson


def read(method: str | None = None, **members: Any) -> McpMessage:
    document = {"jsonrpc": "2.0", **({} if method is None else {"method": method}), **members}
    return mcp_message.read_message(json.dumps(document).encode())


def call(arguments: Any = None, **params: Any) -> McpMessage:
    given = {} if arguments is None else {"arguments": arguments}
    return read("tools/call", id=1, params={"name": "send", **given, **params})


def test_a_message_is_sent_on_with_the_members_that_the_protocol_knows() -> None:
    made = read("resources/read", id="a", params={"uri": "x:y"}, other=1)

    assert (made.id, made.method, made.tool, made.call_hash) == ("a", "resources/read", None, "")
    assert json.loads(made.body) == {
        "jsonrpc": "2.0",
        "id": "a",
        "method": "resources/read",
        "params": {"uri": "x:y"},
    }


@pytest.mark.parametrize("members", [{"result": {}}, {"error": {"code": 1, "message": "no"}}])
def test_an_answer_to_a_request_of_the_servers_is_a_message(members: dict[str, Any]) -> None:
    made = read(id=7, **members)

    assert (made.id, made.method) == (7, None)
    assert json.loads(made.body) == {"jsonrpc": "2.0", "id": 7, **members}


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        ([{"jsonrpc": "2.0", "method": "ping"}], "one message at a time"),
        ({"id": True, "method": "ping"}, "the id of a message"),
        ({"id": 1.5, "method": "ping"}, "the id of a message"),
        ({"id": [1], "method": "ping"}, "the id of a message"),
        ({"id": 1}, "a method, a result or an error"),
        ({"method": 5}, "no name of one"),
        ({"method": "a b"}, "no name of one"),
        ({"method": "ping", "params": []}, "params are no object"),
        ({"method": "tools/call", "params": {}}, "the name of a tool"),
        ({"method": "tools/call", "params": {"name": "a b"}}, "the name of a tool"),
        ({"method": "tools/call", "params": {"name": "t", "arguments": None}}, "called with is an object"),
        ({"method": "tools/call", "params": {"name": "t", "_meta": []}}, "_meta of a call"),
    ],
)
def test_what_is_no_message_is_refused_in_words(document: object, reason: str) -> None:
    with pytest.raises(NotStrictJson, match=reason):
        mcp_message.read_message(json.dumps(document).encode())


@pytest.mark.parametrize(
    "body",
    [
        b'{"method": "ping", "method": "tools/call"}',
        b'{"method": "ping", "Method": "tools/call", "params": {"name": "send"}}',
        b'{"method": "tools/call", "params": {"name": "read", "NAME": "send"}}',
    ],
)
def test_a_message_that_can_be_read_in_two_ways_is_refused(body: bytes) -> None:
    with pytest.raises(NotStrictJson):
        mcp_message.read_message(body)


def test_a_call_is_sent_on_with_the_params_that_were_judged_and_no_others() -> None:
    made = call({"to": "a"}, _meta={"more": 1}, target="everybody")

    assert json.loads(made.body)["params"] == {
        "name": "send",
        "arguments": {"to": "a"},
        "_meta": {"more": 1},
    }


def test_a_call_is_the_same_in_whatever_order_it_is_written() -> None:
    first, second = call({"to": "a", "text": "b"}), call({"text": "b", "to": "a"})

    assert first.call_hash == second.call_hash
    assert first.arguments == second.arguments == '{"text": "b", "to": "a"}'
    assert (first.tool, first.method, first.id) == ("send", "tools/call", 1)


def test_a_call_without_arguments_is_one_with_none_and_another_has_another_hash() -> None:
    hashes = {
        call().call_hash,
        call({"to": "a"}).call_hash,
        call({"to": "b"}).call_hash,
        call({"to": "a"}, _meta={"more": 1}).call_hash,
        call({"to": "a"}, _meta={"more": 2}).call_hash,
    }

    assert call().call_hash == call({}).call_hash
    assert len(hashes) == 5


@pytest.mark.parametrize(
    "meta",
    [
        {},
        {"progressToken": 5},
        {"progressToken": "a-1", "claudecode/toolUseId": "toolu_01:x.y"},
    ],
)
def test_the_name_of_a_try_is_no_part_of_the_call(meta: dict[str, Any]) -> None:
    made = call({"to": "a"}, _meta=meta)

    assert made.call_hash == call({"to": "a"}).call_hash
    assert made.arguments == '{"to": "a"}'
    assert json.loads(made.body)["params"]["_meta"] == meta


@pytest.mark.parametrize(
    "meta",
    [
        {"progressToken": True},
        {"progressToken": "two words"},
        {"progressToken": "x" * 101},
        {"progressToken": {"text": "to everybody"}},
        {"progressToken": 1.5},
        {"other": 5},
        {"other": "a-1"},
    ],
)
def test_all_else_that_a_call_says_beside_its_arguments_is_judged_and_shown(meta: dict[str, Any]) -> None:
    made = call({"to": "a"}, _meta=meta)

    assert made.call_hash != call({"to": "a"}).call_hash
    assert made.arguments == f'{{"to": "a"}} with _meta {json.dumps(meta)}'


def test_the_owner_reads_arguments_as_they_are_written_and_so_much_of_them() -> None:
    assert call({"b": "grüße 안녕", "a": 1}).arguments == '{"a": 1, "b": "grüße 안녕"}'
    assert call({"text": "x" * MAX_SHOWN_CHARS}).arguments == '{"text": "' + "x" * (MAX_SHOWN_CHARS - 10)
    assert call(_meta={"b": 1, "a": 2}).arguments == '{} with _meta {"a": 2, "b": 1}'


@pytest.mark.parametrize(
    ("made", "is_of_task"),
    [
        (lambda: read("tasks/get", id=1, params={"taskId": "t"}), True),
        (lambda: read("notifications/tasks/status", params={}), True),
        (lambda: read("notifications/progress", params={}), False),
        (lambda: read("resources/read", id=1, params={"task": {"ttl": 1}}), True),
        (lambda: call({}, task={"ttl": 1}), True),
        (lambda: call({}, task=None), False),
        (lambda: call({"task": 1}), False),
        (lambda: read(id=1, result={}), False),
        (lambda: read("mytasks/get", id=1), False),
    ],
)
def test_what_begins_a_task_or_asks_about_one_is_known(made: Any, is_of_task: bool) -> None:
    assert made().is_of_task is is_of_task


def test_a_message_comes_through_a_pipe_as_it_was() -> None:
    made = call({"to": "a"}, _meta={"more": 1})

    assert McpMessage.from_wire(*made.to_wire()) == made
