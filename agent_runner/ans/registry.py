"""Distribute the events of a run to its subscribers, and find the notifications that are due at a point."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from agent_runner.ans.accumulator import Accumulator
from agent_runner.ans.event import NoticeEvent
from agent_runner.ans.notification import RANK, NoticeBatch, NoticeEntry
from agent_runner.ans.subscriber import Batching, EventFilter, Events, Output, Subscriber
from agent_runner.wire.notices import InjectAt, Priority

DUE_AT: Mapping[InjectAt, frozenset[InjectAt]] = {
    "immediate": frozenset({"immediate"}),
    "turn_start": frozenset({"immediate", "turn_start"}),
    "after_tool": frozenset({"immediate", "after_tool"}),
    "turn_end": frozenset({"immediate", "turn_end"}),
}
"""Map each point of a turn to the `inject_at` values that are due there; `immediate` is due at each point."""


class SubscriberRegistry:
    """Passes events to the subscribers that take them, and returns their notifications.

    A notice of the host is written as the first enabled subscriber for its type sets, or as `unclaimed` sets
    if no subscriber names the type. It is never batched, and not filtered by severity or source.
    """

    def __init__(self) -> None:
        self._accumulators: dict[str, Accumulator] = {}
        self._disabled: frozenset[str] = frozenset()
        self._given: dict[int, NoticeBatch] = {}
        self._order = 0

    def use(self, subscribers: Sequence[Subscriber], disabled: frozenset[str] = frozenset()) -> None:
        """Replace the subscribers, in this order. Those with `core` set cannot be disabled.

        The collected events of a removed or disabled subscriber are dropped.
        """
        self._disabled = frozenset(
            each.id for each in subscribers if each.id in disabled and not each.output.core
        )
        before = self._accumulators
        self._accumulators = {each.id: Accumulator(each) for each in subscribers}
        for name, accumulator in before.items():
            if name in self._accumulators and name not in self._disabled:
                accumulator.subscriber = self._accumulators[name].subscriber
                self._accumulators[name] = accumulator

    def accept(self, events: Iterable[NoticeEvent]) -> None:
        for event in events:
            self._order += 1
            for accumulator in self._enabled():
                if accumulator.subscriber.takes(event):
                    accumulator.accept(event, order=self._order)

    def give(
        self, notice_id: int, event: NoticeEvent, *, priority: Priority, at: InjectAt, count: int
    ) -> None:
        """Add a notice of the host; until its delivery, a repeated call replaces it.

        It is ignored if all subscribers that name its type are disabled.
        """
        subscriber = self._teller(event.type)
        if subscriber is None:
            return
        self._order += 1
        self._given[notice_id] = NoticeBatch(
            subscriber=subscriber,
            priority=priority,
            inject_at=at,
            entries=(NoticeEntry(event=event, order=self._order, count=count),),
            notice_id=notice_id,
        )

    def withdraw(self, notice_id: int) -> None:
        """Remove a host's notice."""
        self._given.pop(notice_id, None)

    def candidates(self, point: InjectAt, now_ms: int, *, at_least: Priority = "low") -> list[NoticeBatch]:
        """Return the notifications due at a point, the most important first; they stay until `tell`."""
        points = DUE_AT[point]
        self._given = {number: each.at(points) for number, each in self._given.items()}
        due = [each for each in self._given.values() if each.is_due]
        for accumulator in self._enabled():
            accumulator.look(now_ms)
            due += accumulator.due(points)
        wanted = (each for each in due if RANK[each.priority] <= RANK[at_least])
        return sorted(wanted, key=lambda each: each.urgency)

    def tell(self, batch: NoticeBatch) -> None:
        """Record the delivery of a notification."""
        if batch.notice_id is not None:
            self._given.pop(batch.notice_id, None)
        else:
            self._accumulators[batch.subscriber.id].tell(batch)

    def take_back(self, batch: NoticeBatch) -> None:
        """Make a notification due again that was delivered in a failed turn, unless it is the host's.

        The host passes its own notices again.
        """
        if batch.notice_id is None and batch.subscriber.id in self._accumulators:
            self._accumulators[batch.subscriber.id].take_back(batch)

    def carry_over(self, now_ms: int) -> None:
        """Make everything undelivered due at the next opportunity."""
        for accumulator in self._enabled():
            accumulator.carry_over(now_ms)

    @property
    def pending(self) -> int:
        """Return how many events and notices of the host are not delivered yet."""
        return len(self._given) + sum(each.pending for each in self._accumulators.values())

    def _enabled(self) -> list[Accumulator]:
        return [each for name, each in self._accumulators.items() if name not in self._disabled]

    def _teller(self, event_type: str) -> Subscriber | None:
        about = [each.subscriber for each in self._accumulators.values() if each.subscriber.names(event_type)]
        enabled = [each for each in about if each.id not in self._disabled]
        return enabled[0] if enabled else None if about else unclaimed()


def unclaimed() -> Subscriber:
    """Return the subscriber for notices of the host whose type no subscriber names, so that none is lost."""
    return Subscriber(
        about=EventFilter(id="unclaimed", name="What nobody else tells"),
        events=Events(types=["host.*"]),
        batching=Batching(),
        output=Output(inject_at="turn_start", template="plain.j2"),
    )
