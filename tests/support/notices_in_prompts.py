"""Emit events that become notices, and read the notices in the text for a model."""

from __future__ import annotations

from typing import Any

from agent_runner.ans.notices import RunNotices
from agent_runner.ans.renderer import CLOSE, OPEN
from agent_runner.wire.notices import Notice


def kept(number: int, message: str = "call Bo", **more: Any) -> Notice:
    fields = {"event_type": "agent.self.notify", "source": "agent", "payload": {"message": message}}
    return Notice(id=number, **{**fields, **more})


def fail(notices: RunNotices, tool: str = "Read", message: str = "no such file") -> None:
    payload = {"tool_name": tool, "error_type": "execution_error", "error_message": message}
    notices.emit("tool.call.failure", "error", payload)


def note(notices: RunNotices, message: str, **payload: Any) -> None:
    notices.emit("agent.self.notify", "info", {"message": message, "category": "context", **payload})


def lines(text: str) -> list[str]:
    if not text:
        return []
    first, *told, last = text.splitlines()
    assert (first, last) == (OPEN, CLOSE)
    return told
