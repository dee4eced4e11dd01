"""The notices to an agent that the host and the container exchange."""

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
"""The prefix of the tools for notices in the names that a model calls."""
MAX_NOTICE_CHARS = 2_000
"""Most characters of a notice's text."""
MAX_TURNS = 100
"""Turns that a notice may wait."""
MAX_HOURS = 720
"""Most hours after which a notice that was not shown is dropped."""
DEFAULT_HOURS = 24
"""Hours after which a notice that was not shown is dropped, where its agent names none."""
MAX_UNDELIVERED = 20
"""Notices of a group's agent that may wait at once."""
MAX_DELIVERED = 40
"""Notices that the host passes to one turn, and that the turn may report as shown."""


class Notice(Document):
    """A notice that the host passes to a turn. It is shown at the start, unless it waits for something."""

    id: int
    event_type: str
    source: str
    severity: Severity = "info"
    priority: Priority = "normal"
    payload: dict[str, Any] = Field(default_factory=dict)
    """The values for the event's template; `message` is the text of a person or an agent."""
    created_ms: int = 0
    count: int = 1
    """The number of times that the event happened before the notice was shown."""
    tool_name: str | None = None
    """Show it after a call of this tool; the empty string is any tool."""
    condition: str | None = None
    """Show it when this is true, such as `context_above_threshold(0.7)`."""


class DeliveredNotice(Document):
    """A notice that entered the model's context in a turn, for people to see."""

    id: int | None = None
    """The id of the host's notice, None of a notice that was made in the container."""
    event_type: str = Field(max_length=100)
    priority: Priority = "normal"
    text: str = Field(max_length=MAX_NOTICE_CHARS)
