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
    """A notice that waits, and its parsed condition; None if it waits for a tool."""

    notice: Notice
    condition: Condition | None


class DeferredNotices:
    """The notices that wait for a tool or a condition; each becomes due once.

    The end of a tool counts only for the next `due`. A condition that has made notices due, and has been true
    since, makes no other notice due. It makes the same ones due again if they are added again, as they are
    after a failed turn.
    """

    def __init__(self) -> None:
        self._awaiting: dict[int, _Awaiting] = {}
        self._notices_made_due: dict[Condition, set[int]] = {}
        """Map each condition that made notices due, and has not been false since, to the notices' ids."""

    def __len__(self) -> int:
        return len(self._awaiting)

    def add(self, notice: Notice) -> None:
        """Add a waiting notice. It replaces a notice with the same id.

        Raises:
            BadCondition: its condition is invalid.
        """
        condition = parse_condition(notice.condition) if notice.condition is not None else None
        self._awaiting[notice.id] = _Awaiting(notice=notice, condition=condition)

    def rearm(self, facts: TurnFacts) -> None:
        """Let the conditions that are false by these facts make notices due again."""
        # While a condition stays true, as for a window that stays full, it counts once.
        for condition in [used for used in self._notices_made_due if not holds(used, facts)]:
            del self._notices_made_due[condition]

    def due(self, facts: TurnFacts) -> list[Notice]:
        """Remove and return the notices that are due by these facts, in the order of their adding.

        The conditions that are false by these facts can make notices due again later, see `rearm`.
        """
        self.rearm(facts)
        due = [awaiting for awaiting in self._awaiting.values() if self._is_due(awaiting, facts)]
        for awaiting in due:
            del self._awaiting[awaiting.notice.id]
            if awaiting.condition is not None:
                self._notices_made_due.setdefault(awaiting.condition, set()).add(awaiting.notice.id)
        return [awaiting.notice for awaiting in due]

    def drop(self, notice_id: int) -> None:
        """Remove the waiting notice with this id, if there is one."""
        self._awaiting.pop(notice_id, None)

    def _is_due(self, awaiting: _Awaiting, facts: TurnFacts) -> bool:
        """Return whether a waiting notice is due: its tool has ended, or its condition is true.

        A condition that has stayed true since it made notices due makes only the same ones due again: the
        host passes these again after a failed turn.
        """
        if awaiting.condition is not None:
            made_due = self._notices_made_due.get(awaiting.condition)
            return holds(awaiting.condition, facts) and (made_due is None or awaiting.notice.id in made_due)
        tool = awaiting.notice.tool_name  # empty for a notice that waits for any tool
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
    """Return whether a condition is true by these facts about the turn."""
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
            results = (holds(part, facts) for part in parts)
            return all(results) if needs == "all" else any(results)
        case _:
            assert_never(condition)


def is_among(awaited: str, completed: frozenset[str]) -> bool:
    """Return whether a tool is among the completed ones; its name may lack the prefix of its server."""
    # The agent writes `schedule_task`, the CLI `mcp__andy__schedule_task`.
    return any(awaited == name or name.endswith(f"__{awaited}") for name in completed)


def _share(current: int, maximum: int) -> float:
    """Return a share from 0 to 1; 0 for an unknown maximum."""
    return current / maximum if maximum > 0 else 0.0
