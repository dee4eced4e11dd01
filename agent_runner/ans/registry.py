"""Distribute the events of a run to its subscribers, and find the batches that are due at a point."""

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
    """Passes events to the subscribers that take them, and returns the batches of notices made of them.

    A notice of the host is written in the form of the first enabled subscriber whose list of event types
    contains its type, or in that of `unclaimed` if no subscriber's list does. It is never batched, and not
    filtered by severity or source.
    """

    def __init__(self) -> None:
        self._accumulators: dict[str, Accumulator] = {}
        """By the id of the subscriber, in the order of `use`."""
        self._disabled: frozenset[str] = frozenset()
        """Ids of disabled subscribers."""
        self._host_notices: dict[int, NoticeBatch] = {}
        """Notices of the host that were not delivered yet, by id."""
        self._last_order = 0
        """The number of the newest event or notice, which are counted together."""

    def use(self, subscribers: Sequence[Subscriber], disabled: frozenset[str] = frozenset()) -> None:
        """Replace the subscribers, in this order. `disabled` are ids of those that get no events.

        Subscribers with `core` set cannot be disabled. The collected events of a removed or disabled
        subscriber are dropped.
        """
        self._disabled = frozenset(
            subscriber.id
            for subscriber in subscribers
            if subscriber.id in disabled and not subscriber.output.core
        )
        before = self._accumulators
        self._accumulators = {subscriber.id: Accumulator(subscriber) for subscriber in subscribers}
        for name, accumulator in before.items():
            if name in self._accumulators and name not in self._disabled:
                # The subscriber may have changed; what was collected for it stays.
                accumulator.subscriber = self._accumulators[name].subscriber
                self._accumulators[name] = accumulator

    def accept(self, events: Iterable[NoticeEvent]) -> None:
        """Pass events to the enabled subscribers that take them."""
        for event in events:
            self._last_order += 1
            for accumulator in self._enabled():
                if accumulator.subscriber.takes(event):
                    accumulator.accept(event, order=self._last_order)

    def give(
        self, notice_id: int, event: NoticeEvent, *, priority: Priority, at: InjectAt, count: int
    ) -> None:
        """Add a notice of the host, to be delivered at the point `at` of a turn.

        It replaces one with the same id that was not delivered yet. `event` is the notice as an event, which
        happened `count` times. A notice is ignored if all subscribers that list its type are disabled.
        """
        subscriber = self._subscriber_for(event.type)
        if subscriber is None:
            return
        self._last_order += 1
        self._host_notices[notice_id] = NoticeBatch(
            subscriber=subscriber,
            priority=priority,
            inject_at=at,
            entries=(NoticeEntry(event=event, order=self._last_order, count=count),),
            notice_id=notice_id,
        )

    def withdraw(self, notice_id: int) -> None:
        """Remove a notice of the host that was not delivered yet."""
        self._host_notices.pop(notice_id, None)

    def candidates(self, point: InjectAt, now_ms: int, *, at_least: Priority = "low") -> list[NoticeBatch]:
        """Return the batches due at a point, the most important first.

        A batch is due from its own point on, and is returned again until `mark_delivered`. `at_least` is the
        lowest priority that is returned.
        """
        points = DUE_AT[point]
        self._host_notices = {
            notice_id: notice.due_at(points) for notice_id, notice in self._host_notices.items()
        }
        due = [notice for notice in self._host_notices.values() if notice.is_due]
        for accumulator in self._enabled():
            accumulator.close_windows(now_ms)
            due += accumulator.due(points)
        # The most important priority has the rank 0.
        important = (batch for batch in due if RANK[batch.priority] <= RANK[at_least])
        return sorted(important, key=lambda batch: batch.urgency)

    def mark_delivered(self, batch: NoticeBatch) -> None:
        """Record the delivery of a batch, or of its first part: then its other entries go on waiting."""
        if batch.notice_id is not None:  # a notice of the host is one entry, so it has no parts
            self._host_notices.pop(batch.notice_id, None)
        else:
            self._accumulators[batch.subscriber.id].mark_delivered(batch)

    def take_back(self, batch: NoticeBatch) -> None:
        """Make a batch due again that was delivered in a failed turn, unless it is the host's.

        The host passes its own notices again.
        """
        if batch.notice_id is None and batch.subscriber.id in self._accumulators:
            self._accumulators[batch.subscriber.id].take_back(batch)

    def carry_over(self, now_ms: int) -> None:
        """Make all undelivered events of enabled subscribers due at the next point: a turn has ended."""
        for accumulator in self._enabled():
            accumulator.carry_over(now_ms)

    @property
    def pending(self) -> int:
        """Return how many events and notices of the host are not delivered yet."""
        return len(self._host_notices) + sum(
            accumulator.pending for accumulator in self._accumulators.values()
        )

    def _enabled(self) -> list[Accumulator]:
        """Return the accumulators of the subscribers that are not disabled."""
        return [accumulator for name, accumulator in self._accumulators.items() if name not in self._disabled]

    def _subscriber_for(self, event_type: str) -> Subscriber | None:
        """Return the first enabled subscriber that lists a type of event, or `unclaimed` if none lists it.

        None if all that list it are disabled. Its filters by severity and source do not matter here.
        """
        subscribers = (accumulator.subscriber for accumulator in self._accumulators.values())
        naming = [subscriber for subscriber in subscribers if subscriber.names(event_type)]
        enabled = [subscriber for subscriber in naming if subscriber.id not in self._disabled]
        if enabled:
            return enabled[0]
        return None if naming else unclaimed()


def unclaimed() -> Subscriber:
    """Return the subscriber for notices of the host whose type no subscriber lists, so that none is lost."""
    return Subscriber(
        about=EventFilter(id="unclaimed", name="What nobody else tells"),
        events=Events(types=["host.*"]),
        batching=Batching(),
        output=Output(inject_at="turn_start", template="plain.j2"),
    )
