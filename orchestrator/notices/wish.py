"""What an agent asks to be told later, once it is known to fit. Pure."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import cast

from agent_runner.wire import notify_self
from agent_runner.wire.mailbox import NotifySelf
from agent_runner.wire.notices import Category, DeliverAt, InjectAt, Priority, Severity

HOUR_MS = 3_600_000
INJECT_AT: dict[DeliverAt, InjectAt] = {
    "immediate": "immediate",
    "next_turn": "turn_start",
    "after_n_turns": "turn_start",
    "after_tool": "after_tool",
    "on_condition": "immediate",
}
"""Where in a turn it is told. What awaits a condition is told as soon as that is seen to be true."""
IN_THIS_TURN: tuple[DeliverAt, ...] = ("immediate", "after_tool", "on_condition")
"""What can still be told in the turn in which it is asked for."""
OF_ITS_AGENT = "self:"
"""What a key that the agent gave begins with: others are the host's own."""


class NoticeRefused(Exception):
    """What is asked cannot be done; the text says why, and what can."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


@dataclass(frozen=True, slots=True, kw_only=True)
class NoticeRequest:
    """A notice as it is asked for, and how long it may wait: for ever when `ttl_ms` is None."""

    message: str
    priority: Priority
    severity: Severity
    category: Category
    event_type: str
    deliver_at: DeliverAt
    inject_at: InjectAt
    outlives_session: bool
    turns: int | None
    tool_name: str | None
    condition: str | None
    ttl_ms: int | None
    dedupe_key: str | None

    @property
    def can_be_told_now(self) -> bool:
        """Whether the turn in which it is asked for can still tell it."""
        return self.deliver_at in IN_THIS_TURN

    def key(self, turn_id: int | None) -> str | None:
        """What is the same notice while it waits: by its own key, else by all of it in a turn tried again."""
        if self.dedupe_key is not None:
            return f"{OF_ITS_AGENT}{self.dedupe_key}"
        if turn_id is None:
            return None
        return f"turn:{turn_id}:{hashlib.sha256(repr(self).encode()).hexdigest()[:20]}"


def judge(asked: NotifySelf) -> NoticeRequest:
    """Read what is asked.

    Raises:
        Refused: a field is missing, none of its values, or out of its range.
    """
    wrong = notify_self.refusal_of(asked)
    if wrong is not None:
        raise NoticeRefused(wrong.code, wrong.text)
    priority = cast("Priority", asked.priority)
    category = cast("Category", asked.category)
    deliver_at = cast("DeliverAt", asked.deliver_at)
    return NoticeRequest(
        message=asked.message.strip(),
        priority=priority,
        severity=notify_self.severity_of(priority),
        category=category,
        event_type=notify_self.event_type_of(category),
        deliver_at=deliver_at,
        inject_at=INJECT_AT[deliver_at],
        outlives_session=asked.persist_cross_session,
        turns=asked.turns,
        tool_name=(asked.tool_name or "") if deliver_at == "after_tool" else None,
        condition=asked.condition,
        ttl_ms=_ttl_ms(asked.expires_in_hours),
        dedupe_key=asked.dedupe_key,
    )


def _ttl_ms(hours: int | None) -> int | None:
    return (notify_self.DEFAULT_HOURS if hours is None else hours) * HOUR_MS or None
