"""Hold notices until what they wait for in a turn has come: the end of a tool, or a true condition."""

from __future__ import annotations

from dataclasses import dataclass

from agent_runner.ans.conditions import TurnFacts, holds, is_among
from agent_runner.wire.conditions import Condition, parse_condition
from agent_runner.wire.notices import Notice


def awaits(notice: Notice) -> bool:
    return notice.tool_name is not None or notice.condition is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Awaiting:
    notice: Notice
    condition: Condition | None


class DeferredNotices:
    """The notices that wait for something; each is delivered once.

    The end of a tool counts for the next look alone. A condition that was true when a notice of it became due
    has to be false in between before another notice with the same condition becomes due; the same one does
    when it is given again, because its turn failed.
    """

    def __init__(self) -> None:
        self._awaiting: dict[int, _Awaiting] = {}
        self._edges: dict[Condition, set[int]] = {}
        """The conditions that are true, and the notices that became due by that."""

    def __len__(self) -> int:
        return len(self._awaiting)

    def add(self, notice: Notice) -> None:
        """Let a notice wait. It replaces one with the same id.

        Raises:
            BadCondition: its condition is none.
        """
        condition = parse_condition(notice.condition) if notice.condition is not None else None
        self._awaiting[notice.id] = _Awaiting(notice=notice, condition=condition)

    def look(self, facts: TurnFacts) -> None:
        """Arm again the conditions that are false now."""
        for condition in [each for each in self._edges if not holds(each, facts)]:
            del self._edges[condition]

    def due(self, facts: TurnFacts) -> list[Notice]:
        """Take out the notices whose time has come, in the order they were added."""
        self.look(facts)
        due = [each for each in self._awaiting.values() if self._is_due(each, facts)]
        for each in due:
            del self._awaiting[each.notice.id]
            if each.condition is not None:
                self._edges.setdefault(each.condition, set()).add(each.notice.id)
        return [each.notice for each in due]

    def drop(self, notice_id: int) -> None:
        """Remove a notice that waits."""
        self._awaiting.pop(notice_id, None)

    def _is_due(self, each: _Awaiting, facts: TurnFacts) -> bool:
        if each.condition is not None:
            spent_by = self._edges.get(each.condition)
            return holds(each.condition, facts) and (spent_by is None or each.notice.id in spent_by)
        tool = each.notice.tool_name
        return bool(facts.completed_tools) if not tool else is_among(tool, facts.completed_tools)
