"""Define the unit of delivery: one event, or several of a kind."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from agent_runner.ans.event import NoticeEvent
from agent_runner.ans.subscriber import Subscriber
from agent_runner.wire.notices import InjectAt, Priority

RANK: Mapping[Priority, int] = {"critical": 0, "high": 1, "normal": 2, "low": 3}

OF_ONE_TURN = ("tool.", "budget.", "agent.loop.", "agent.turn.", "query.", "subagent.")
"""Prefixes of events that end with their turn: in the next attempt they would be wrong."""


@dataclass(slots=True, kw_only=True, eq=False)
class NoticeEntry:
    """An event that happened `count` times; the model has read about `delivered_count` of them."""

    event: NoticeEvent
    order: int
    count: int = 1
    delivered_count: int = 0
    delivered_before: int = 0
    """`delivered_count` before the last delivery, for taking that back."""
    is_waiting: bool = False
    """Whether the entry is already in a batch or in a notification."""

    @property
    def is_owing(self) -> bool:
        return self.count > self.delivered_count


@dataclass(frozen=True, slots=True, kw_only=True)
class NoticeBatch:
    """Entries of one subscriber that are delivered together."""

    subscriber: Subscriber
    priority: Priority
    inject_at: InjectAt
    entries: tuple[NoticeEntry, ...]
    is_due: bool = False
    """Whether its point has come, so that this point or any later one will do."""
    is_addressed: bool = False
    """Whether somebody requested this one by name, so it is never summed up."""
    notice_id: int | None = None
    """The number of the notice in the host's store."""

    @property
    def urgency(self) -> tuple[int, int]:
        """Return the key that sorts the more important first, and equal ones by age."""
        return RANK[self.priority], self.entries[0].order

    @property
    def event_type(self) -> str:
        return self.entries[0].event.type

    @property
    def may_be_summed_up(self) -> bool:
        return self.priority == "low" and not self.is_addressed and self.notice_id is None

    def at(self, points: Collection[InjectAt]) -> NoticeBatch:
        """Return the notification in its state when one of `points` has come."""
        return replace(self, is_due=True) if self.inject_at in points and not self.is_due else self

    def beyond_turn(self) -> NoticeBatch:
        """Return the part that is still true after a failed turn."""
        lasting = (each for each in self.entries if not each.event.type.startswith(OF_ONE_TURN))
        return replace(self, entries=tuple(lasting))

    def first_half(self) -> NoticeBatch:
        return replace(self, entries=self.entries[: (len(self.entries) + 1) // 2])
