"""Define the unit of delivery: one event, or several events of one subscriber."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from agent_runner.ans.event import NoticeEvent
from agent_runner.ans.subscriber import Subscriber
from agent_runner.wire.notices import InjectAt, Priority

RANK: Mapping[Priority, int] = {"critical": 0, "high": 1, "normal": 2, "low": 3}
"""Map each priority to its place in the order of delivery; 0 is the most important."""

OF_ONE_TURN = ("tool.", "budget.", "agent.loop.", "agent.turn.", "query.", "subagent.")
"""Prefixes of the types of events about one turn, which would be wrong in the next attempt."""


@dataclass(slots=True, kw_only=True, eq=False)
class NoticeEntry:
    """An event that happened `count` times; the model was informed of the first `delivered_count` of them."""

    event: NoticeEvent
    order: int
    """Greater for each later event; entries are shown in this order."""
    count: int = 1
    delivered_count: int = 0
    delivered_before: int = 0
    """The `delivered_count` before the last delivery, to restore it if the turn fails."""
    is_waiting: bool = False
    """Whether the entry is in an open or a closed batch that was not delivered yet."""

    @property
    def has_undelivered(self) -> bool:
        """Whether some occurrences of the event were not reported to the model yet."""
        return self.count > self.delivered_count


@dataclass(frozen=True, slots=True, kw_only=True)
class NoticeBatch:
    """Entries of one subscriber that are delivered together."""

    subscriber: Subscriber
    priority: Priority
    inject_at: InjectAt
    entries: tuple[NoticeEntry, ...]
    is_due: bool = False
    """Whether its point has come: it is delivered then, or at any later point."""
    is_addressed: bool = False
    """Whether its event's payload sets priority or point, so that it is never summed up."""
    notice_id: int | None = None
    """The number of the notice in the host's store."""

    @property
    def urgency(self) -> tuple[int, int]:
        """Return a sort key: more important batches first, then older ones."""
        return RANK[self.priority], self.entries[0].order

    @property
    def event_type(self) -> str:
        """The type of its first event."""
        return self.entries[0].event.type

    @property
    def may_be_summed_up(self) -> bool:
        """Whether the batch may be counted with others instead of being shown."""
        return self.priority == "low" and not self.is_addressed and self.notice_id is None

    def due_at(self, points: Collection[InjectAt]) -> NoticeBatch:
        """Return the batch, marked as due if its point is one of `points`; a due one stays due."""
        return replace(self, is_due=True) if self.inject_at in points and not self.is_due else self

    def without_turn_entries(self) -> NoticeBatch:
        """Return the batch without the entries about one turn, for after that turn has failed."""
        lasting = (entry for entry in self.entries if not entry.event.type.startswith(OF_ONE_TURN))
        return replace(self, entries=tuple(lasting))

    def first_half(self) -> NoticeBatch:
        """Return the batch with the first half of its entries, at least one."""
        return replace(self, entries=self.entries[: (len(self.entries) + 1) // 2])
