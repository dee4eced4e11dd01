"""Notices to an agent, as both sides speak of them."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from agent_runner.wire.document import Document

Severity = Literal["debug", "info", "warning", "error", "critical"]
Priority = Literal["low", "normal", "high", "critical"]
InjectAt = Literal["immediate", "turn_start", "after_tool", "turn_end"]
Category = Literal["discovery", "warning", "checkpoint", "reminder", "context"]
DeliverAt = Literal["immediate", "next_turn", "after_n_turns", "after_tool", "on_condition"]

OWN_TOOLS = "mcp__ans__"
"""How a model calls the tools for its notices: this, and the name."""
MAX_NOTICE_CHARS = 2_000
MAX_UNDELIVERED = 20
"""How many notices of a group may wait at once that its agent has made."""
MAX_TOLD = 40
"""How many notices one turn is given, and how many it may say it has told."""


class Notice(Document):
    """A notice that the host keeps, given to a turn: told at its start, unless something is awaited."""

    id: int
    event_type: str
    source: str
    severity: Severity = "info"
    priority: Priority = "normal"
    payload: dict[str, Any] = Field(default_factory=dict)
    """What the event's template shows; `message` where a person or an agent wrote it."""
    created_ms: int = 0
    count: int = 1
    """How often the same was noticed before it was told."""
    tool_name: str | None = None
    """Awaits the end of a call of this tool; the empty string is any tool."""
    condition: str | None = None
    """Awaits that this is true, such as `context_above_threshold(0.7)`."""


class ToldNotice(Document):
    """A notice that entered the model's context in a turn, for people to see."""

    id: int | None = None
    """Which of the notices that the host keeps, if it is one."""
    event_type: str = Field(max_length=100)
    priority: Priority = "normal"
    text: str = Field(max_length=MAX_NOTICE_CHARS)
