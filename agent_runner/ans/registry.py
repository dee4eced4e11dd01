"""Hold all subscribers of one run: distribute events to them, and find what is due at an injection point."""

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
"""Maps each point of a turn to the notices due there. Immediate ones take the first point."""


class SubscriberRegistry:
    """Passes events to the subscribers that take them, and returns their notifications.

    A host's notice is delivered as the first enabled subscriber of its type sets, or plainly if there is
    none; it is never batched, and neither severity nor source holds it back.
    """

    def __init__(self) -> None:
        self._accumulators: dict[str, Accumulator] = {}
        self._disabled: frozenset[str] = frozenset()
        self._given: dict[int, NoticeBatch] = {}
        self._order = 0

    def use(self, subscribers: Sequence[Subscriber], disabled: frozenset[str] = frozenset()) -> None:
        """Replace the subscribers, in this order. Core ones cannot be disabled.

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
        """Accept a host's notice, once, however often it is passed before its delivery."""
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
        """Return what is due at a point, the most important first. It stays until it is delivered."""
        points = DUE_AT[point]
        self._given = {number: each.at(points) for number, each in self._given.items()}
        due = [each for each in self._given.values() if each.is_due]
        for accumulator in self._enabled():
            accumulator.look(now_ms)
            due += accumulator.due(points)
        wanted = (each for each in due if RANK[each.priority] <= RANK[at_least])
        return sorted(wanted, key=lambda each: each.urgency)

    def tell(self, batch: NoticeBatch) -> None:
        """Remove what was delivered."""
        if batch.notice_id is not None:
            self._given.pop(batch.notice_id, None)
        else:
            self._accumulators[batch.subscriber.id].tell(batch)

    def take_back(self, batch: NoticeBatch) -> None:
        """Make an event due again that was delivered in a failed turn; the host passes
        its own notices again.
        """
        if batch.notice_id is None and batch.subscriber.id in self._accumulators:
            self._accumulators[batch.subscriber.id].take_back(batch)

    def carry_over(self, now_ms: int) -> None:
        """Make everything undelivered due at the next opportunity."""
        for accumulator in self._enabled():
            accumulator.carry_over(now_ms)

    @property
    def pending(self) -> int:
        """Return how many events, and notices of the host, were accepted and not delivered."""
        return len(self._given) + sum(each.pending for each in self._accumulators.values())

    def _enabled(self) -> list[Accumulator]:
        return [each for name, each in self._accumulators.items() if name not in self._disabled]

    def _teller(self, event_type: str) -> Subscriber | None:
        about = [each.subscriber for each in self._accumulators.values() if each.subscriber.names(event_type)]
        enabled = [each for each in about if each.id not in self._disabled]
        return enabled[0] if enabled else None if about else unclaimed()


def unclaimed() -> Subscriber:
    """Return the subscriber for notices of the host that no other takes, so that none is lost."""
    return Subscriber(
        about=EventFilter(id="unclaimed", name="What nobody else tells"),
        events=Events(types=["host.*"]),
        batching=Batching(),
        output=Output(inject_at="turn_start", template="plain.j2"),
    )
