"""Store notices that wait for the end of a tool, or for a condition to become true."""

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
    parse_condition,
)
from agent_runner.wire.notices import Notice


def awaits(notice: Notice) -> bool:
    """Return whether a notice waits for a tool or a condition."""
    return notice.tool_name is not None or notice.condition is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Awaiting:
    notice: Notice
    condition: Condition | None


class DeferredNotices:
    """The notices that wait for a tool or a condition; each becomes due once.

    The end of a tool counts only for the next `due`. After a condition has made a notice due, it has to
    become false before it makes another one due. The same notice may become due again, after a failed turn.
    """

    def __init__(self) -> None:
        self._awaiting: dict[int, _Awaiting] = {}
        self._edges: dict[Condition, set[int]] = {}
        """Map each condition that made notices due, and has not been false since, to the ids of these."""

    def __len__(self) -> int:
        return len(self._awaiting)

    def add(self, notice: Notice) -> None:
        """Add a waiting notice. It replaces a notice with the same id.

        Raises:
            BadCondition: its condition is invalid.
        """
        condition = parse_condition(notice.condition) if notice.condition is not None else None
        self._awaiting[notice.id] = _Awaiting(notice=notice, condition=condition)

    def look(self, facts: TurnFacts) -> None:
        """Let the conditions that are false now make notices due again."""
        # While a condition stays true, as for a window that stays full, it counts once.
        for condition in [each for each in self._edges if not holds(each, facts)]:
            del self._edges[condition]

    def due(self, facts: TurnFacts) -> list[Notice]:
        """Remove and return the notices that are due, in the order in which they were added."""
        self.look(facts)
        due = [each for each in self._awaiting.values() if self._is_due(each, facts)]
        for each in due:
            del self._awaiting[each.notice.id]
            if each.condition is not None:
                self._edges.setdefault(each.condition, set()).add(each.notice.id)
        return [each.notice for each in due]

    def drop(self, notice_id: int) -> None:
        """Remove a waiting notice."""
        self._awaiting.pop(notice_id, None)

    def _is_due(self, each: _Awaiting, facts: TurnFacts) -> bool:
        if each.condition is not None:
            spent_by = self._edges.get(each.condition)
            return holds(each.condition, facts) and (spent_by is None or each.notice.id in spent_by)
        tool = each.notice.tool_name
        return bool(facts.completed_tools) if not tool else is_among(tool, facts.completed_tools)


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnFacts:
    """The facts that conditions test. A maximum of 0 means unknown: conditions on a share of it are false."""

    context_tokens: int = 0
    max_context_tokens: int = 0
    total_tokens: int = 0
    max_tokens: int = 0
    message_count: int = 0
    completed_tools: frozenset[str] = frozenset()
    """The names of the tools that have ended since the last `drain` of the run's notices."""


def holds(condition: Condition, facts: TurnFacts) -> bool:
    """Return whether a condition is true."""
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
    # The agent names a tool without the prefix of its server, the CLI with it.
    return any(awaited == name or name.endswith(f"__{awaited}") for name in completed)


def _share(current: int, maximum: int) -> float:
    return current / maximum if maximum > 0 else 0.0
