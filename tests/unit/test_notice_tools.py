"""The tools for notices to oneself, with a host that answers by hand (N-40 to N-43)."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from agent_runner.ans.event import NoticeEvent
from agent_runner.ans.lazy_notices import LazyNotices
from agent_runner.ipc_client import HostClient
from agent_runner.tools import notices as notice_tools
from agent_runner.tools.tool import Tool
from agent_runner.wire.mailbox import (
    AcknowledgeNotice,
    CancelNotice,
    Command,
    ListNotices,
    NotifySelf,
    Reply,
    parse_command,
)
from agent_runner.wire.notices import Notice
from agent_runner.workspace import Workspace
from tests.processes.runner import order_of
from tests.support.recorded_events import record_events


class Keeping(HostClient):
    """Keeps every notice as number 7, or says what it is told to say."""

    def __init__(self, reply: Reply | None = None) -> None:
        self.asked: list[Command] = []
        self.reply = reply

    async def ask(self, command: Command) -> Reply:
        self.asked.append(command)
        if self.reply is not None:
            return self.reply
        return Reply(request_id="r", ok=True, code="ok", text="Kept.", data={"id": 7})


class Mute(HostClient):
    """Never answers."""

    def __init__(self) -> None:
        pass

    async def ask(self, command: Command) -> Reply:
        await asyncio.Event().wait()
        raise AssertionError


@pytest.fixture
def noticing(tmp_path: Path) -> LazyNotices:
    return LazyNotices(order_of("hi"), Workspace(tmp_path))


def tool(noticing: LazyNotices, name: str = "notify_self") -> Tool:
    return next(tool for tool in notice_tools.notice_tools(noticing) if tool.name == name)


async def heard(noticing: LazyNotices) -> list[NoticeEvent]:
    events: list[NoticeEvent] = []
    record_events((await noticing.load()).notices, events.append)
    return events


@pytest.mark.parametrize(
    ("category", "event_type"),
    [("context", "agent.self.notify"), ("warning", "agent.self.notify"), ("reminder", "agent.self.remind")],
)
async def test_what_is_for_now_is_an_event_and_asks_nobody(
    noticing: LazyNotices, category: str, event_type: str
) -> None:
    host, events = Keeping(), await heard(noticing)
    given = {"message": " look ", "deliver_at": "immediate", "category": category, "priority": "critical"}
    reply = await tool(noticing).call(given, host)
    assert reply.ok
    assert host.asked == []
    (event,) = events
    assert (event.type, event.severity.word) == (event_type, "error")
    assert reply.data == {
        "status": "ok",
        "message": "look",
        "priority": "critical",
        "category": category,
        "deliver_at": "immediate",
        "inject_at": "immediate",
        "persist_cross_session": False,
        "event_id": event.id,
        "persistence_id": None,
    }
    assert "look" in await (await noticing.load()).notices.drain("after_tool")


async def test_what_is_for_later_is_kept_by_the_host_word_for_word(noticing: LazyNotices) -> None:
    host, events = Keeping(), await heard(noticing)
    given = {
        "message": "water the plants",
        "deliver_at": "after_n_turns",
        "turns": 3,
        "expires_in_hours": 0,
        "dedupe_key": "plants",
        "persist_cross_session": True,
    }
    reply = await tool(noticing).call(given, host, turn=4, request_id="t4-x-1")
    assert reply.ok
    assert (reply.data["persistence_id"], reply.data["inject_at"]) == (7, "turn_start")
    assert (reply.data["status"], reply.data["event_id"]) == ("ok", "notice-7")
    assert host.asked == [NotifySelf(turn=4, request_id="t4-x-1", **given)]
    assert parse_command(host.asked[0].to_json()) == host.asked[0]
    assert events == []
    assert not (await noticing.load()).notices.pending, "the next turns are given it by the host"


@pytest.mark.parametrize(("turns", "text"), [(1, "You are told in 1 turn."), (2, "You are told in 2 turns.")])
async def test_when_a_note_is_shown_is_said(noticing: LazyNotices, turns: int, text: str) -> None:
    given = {"message": "m", "deliver_at": "after_n_turns", "turns": turns}
    assert text in (await tool(noticing).call(given, Keeping())).text


async def test_what_is_for_this_turn_and_to_outlive_it_is_both(noticing: LazyNotices) -> None:
    given = {"message": "now and later", "deliver_at": "immediate", "persist_cross_session": True}
    reply = await tool(noticing).call(given, Keeping())
    assert reply.data["persistence_id"] == 7
    notices = (await noticing.load()).notices
    assert (await notices.drain("after_tool")).count("now and later") == 1
    assert [one.id for one in notices.delivered] == [7]


@pytest.mark.parametrize(
    ("category", "event_type"), [("discovery", "discovery.notable"), ("checkpoint", "task.checkpoint")]
)
async def test_a_discovery_and_a_checkpoint_are_events_besides(
    noticing: LazyNotices, category: str, event_type: str
) -> None:
    events = await heard(noticing)
    await tool(noticing).call({"message": "found", "category": category}, Keeping())
    (event,) = events
    assert (event.type, event.source) == (event_type, "notify_self")
    assert event.payload["event_id"] == "notice-7"
    assert "found" not in await (await noticing.load()).notices.drain("turn_start"), "the note itself tells"


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({}, "missing_message"),
        ({"message": "x" * 2001}, "message_too_long"),
        ({"message": "m", "category": "gossip"}, "bad_enum"),
        ({"message": "m", "deliver_at": "on_condition", "condition": "true"}, "bad_condition"),
        ({"message": "m", "deliver_at": "after_n_turns", "turns": "many"}, "bad_value"),
        ({"message": "m", "to": "somebody"}, "bad_value"),
    ],
)
async def test_what_does_not_fit_is_refused_and_asks_nobody(
    noticing: LazyNotices, arguments: dict[str, Any], code: str
) -> None:
    host = Keeping()
    reply = await tool(noticing).call(arguments, host)
    assert (reply.ok, reply.code, reply.data) == (False, code, {"code": code})
    assert host.asked == []


@pytest.mark.parametrize(
    ("said", "code"),
    [("limit_reached", "limit_reached"), ("not_written", "persist_failed"), ("no_answer", "persist_failed")],
)
async def test_that_a_note_was_not_kept_is_said(noticing: LazyNotices, said: str, code: str) -> None:
    refusal = Reply(request_id="r", ok=False, code=said, text="Not kept, because.")
    reply = await tool(noticing).call({"message": "m"}, Keeping(refusal))
    assert (reply.ok, reply.code, reply.text) == (False, code, "Not kept, because.")


async def test_a_host_that_does_not_answer_is_not_waited_for(
    noticing: LazyNotices, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert notice_tools.ANSWER_SECONDS == 5.0
    monkeypatch.setattr(notice_tools, "ANSWER_SECONDS", 0.01)
    reply = await tool(noticing).call({"message": "m"}, Mute())
    assert (reply.ok, reply.code) == (False, "persist_failed")
    assert "list_notices" in reply.text


async def test_the_other_tools_ask_the_host(noticing: LazyNotices) -> None:
    host = Keeping()
    for name in ("acknowledge_notification", "cancel_notice"):
        assert (await tool(noticing, name).call({"notice_id": 3}, host)).ok
    assert (await tool(noticing, "list_notices").call({}, host)).ok
    assert host.asked == [AcknowledgeNotice(notice_id=3), CancelNotice(notice_id=3), ListNotices()]


@pytest.mark.parametrize(
    "given", [{"notice_id": 0}, {}, {"dedupe_key": ""}, {"notice_id": 3, "dedupe_key": "rent"}]
)
async def test_what_names_no_notice_is_refused(noticing: LazyNotices, given: dict[str, Any]) -> None:
    host = Keeping()
    assert not (await tool(noticing, "cancel_notice").call(given, host)).ok
    assert host.asked == []


async def test_what_is_acknowledged_before_it_is_told_is_told_no_more(noticing: LazyNotices) -> None:
    """N-63: it waits for a tool, and the agent has read it in its list."""
    waiting = Notice(id=7, event_type="agent.self.notify", source="agent", tool_name="Bash")
    notices = (await noticing.load()).notices
    notices.begin_turn([waiting])
    host = Keeping()
    assert (await tool(noticing, "acknowledge_notification").call({"notice_id": 7}, host)).ok
    notices.tool_ended("Bash")
    assert await notices.drain("after_tool") == ""


async def test_a_notice_is_dropped_by_its_key(noticing: LazyNotices) -> None:
    """N-63."""
    waiting = Notice(id=7, event_type="agent.self.notify", source="agent", payload={"message": "the rent"})
    notices = (await noticing.load()).notices
    notices.begin_turn([waiting])
    host = Keeping()
    assert (await tool(noticing, "cancel_notice").call({"dedupe_key": "rent"}, host)).ok
    assert host.asked == [CancelNotice(dedupe_key="rent")]
    assert await notices.drain("turn_start") == "", "the host has said which one that is"


def test_the_model_is_shown_all_values_and_bounds(noticing: LazyNotices) -> None:
    schemas = {tool.name: tool.schema() for tool in notice_tools.notice_tools(noticing)}
    properties = schemas["notify_self"]["properties"]
    assert schemas["notify_self"]["required"] == ["message"]
    assert properties["deliver_at"]["enum"] == [
        "immediate",
        "next_turn",
        "after_n_turns",
        "after_tool",
        "on_condition",
    ]
    assert properties["category"]["enum"] == ["discovery", "warning", "checkpoint", "reminder", "context"]
    assert properties["priority"]["enum"] == ["low", "normal", "high", "critical"]
    assert all(
        "description" in field for schema in schemas.values() for field in schema["properties"].values()
    )
    assert '"title": "' not in json.dumps(schemas)
