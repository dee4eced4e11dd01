"""Decide whether the condition that a notice waits for is true now."""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

from agent_runner.wire.conditions import (
    Condition,
    ContextAbove,
    MessagesAbove,
    Several,
    TokensAbove,
    ToolCompleted,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnFacts:
    """The facts that conditions ask about. A maximum of 0 is unknown, and no share of it is ever reached."""

    context_tokens: int = 0
    max_context_tokens: int = 0
    total_tokens: int = 0
    max_tokens: int = 0
    message_count: int = 0
    completed_tools: frozenset[str] = frozenset()
    """The tools that ended since the last look."""


def holds(condition: Condition, facts: TurnFacts) -> bool:
    match condition:
        case ContextAbove(share=share):
            return _share(facts.context_tokens, facts.max_context_tokens) >= share
        case TokensAbove(share=share):
            return _share(facts.total_tokens, facts.max_tokens) >= share
        case MessagesAbove(count=count):
            return facts.message_count >= count
        case ToolCompleted(tool=tool):
            return is_among(tool, facts.completed_tools)
        case Several(needs=needs, parts=parts):
            came = (holds(part, facts) for part in parts)
            return all(came) if needs == "all" else any(came)
        case _:
            assert_never(condition)


def is_among(awaited: str, completed: frozenset[str]) -> bool:
    """Return whether the awaited tool has ended. `schedule_task` is also `mcp__andy__schedule_task`."""
    return any(awaited == name or name.endswith(f"__{awaited}") for name in completed)


def _share(current: int, maximum: int) -> float:
    return current / maximum if maximum > 0 else 0.0
