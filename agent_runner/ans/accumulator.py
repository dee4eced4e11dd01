"""Build batches of notices from one subscriber's events: equal events are counted, and none is lost."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace

from agent_runner.ans.event import EventLevel, NoticeEvent
from agent_runner.ans.notification import RANK, NoticeBatch, NoticeEntry
from agent_runner.ans.subscriber import Subscriber
from agent_runner.wire.notices import InjectAt, Priority

POINTS: tuple[InjectAt, ...] = ("immediate", "turn_start", "after_tool", "turn_end")
"""All points of a turn at which notices can be delivered to the model."""
MAX_REMEMBERED = 1_000
"""Most events of a subscriber that are remembered to count their repetitions."""
MAX_WAITING = 500
"""Most entries of a subscriber that wait; beyond it, an event adds to the count of its type's last entry."""
REPEATED = 3
"""An entry is delivered again whenever the number of its occurrences reaches a multiple of this."""


@dataclass(frozen=True, slots=True)
class _Delivery:
    """The priority and point of an event's delivery: from its payload, or else from its subscriber."""

    priority: Priority
    inject_at: InjectAt
    is_addressed: bool
    """Whether the payload sets one of the two."""


@dataclass(slots=True, kw_only=True)
class _OpenBatch:
    """A batch that still takes entries, and the time of the first in epoch milliseconds."""

    first_ms: int
    entries: list[NoticeEntry] = field(default_factory=list)


class Accumulator:
    """Collects the events of one subscriber. It reads no clock: times come with the events and as `now_ms`.

    Events for the same delivery are collected in an open batch. It is closed, and becomes a `NoticeBatch`,
    when it is full, when its window ends or when its injection point is drained. A repeated event inside the
    dedupe window is counted instead of added; if it was delivered already, it is delivered again with the
    whole count at every third occurrence, when the window ends, or in the next turn.
    """

    def __init__(self, subscriber: Subscriber, *, most_waiting: int = MAX_WAITING) -> None:
        """`subscriber` decides which events are taken, and how they are batched and delivered.

        `most_waiting` is the number of entries that may wait for delivery.
        """
        self.subscriber = subscriber
        self._most_waiting = most_waiting
        self._open: dict[_Delivery, _OpenBatch] = {}
        self._remembered: dict[str, tuple[int, NoticeEntry]] = {}
        """Map the keys of events to the time in milliseconds of the first and its entry, the oldest first."""
        self._closed: list[NoticeBatch] = []
        """The closed batches that wait for their point or their delivery."""
        self._waiting = 0
        """The number of entries in open and closed batches that were not delivered."""
        self._newest_waiting: dict[str, NoticeEntry] = {}
        """Map each type to its entry that was added last, while that entry waits."""

    @property
    def remembered(self) -> int:
        """Return how many events are remembered, to count their repetitions."""
        return len(self._remembered)

    @property
    def pending(self) -> int:
        """Return how many of the accepted events, repeated ones included, are not delivered yet."""
        entries = [entry for open_batch in self._open.values() for entry in open_batch.entries]
        entries += [entry for batch in self._closed for entry in batch.entries]
        entries += [entry for _, entry in self._remembered.values() if not entry.is_waiting]
        return sum(entry.count - entry.delivered_count for entry in entries)

    def accept(self, event: NoticeEvent, *, order: int) -> None:
        """Add an event that the subscriber takes, or count it if it repeats an earlier one.

        While too many entries wait, it is counted in the newest waiting entry of its type, if there is one.
        `order` is greater for each later event. Windows that have ended by the event's time are closed first.
        """
        now_ms = event.at_ms
        self.close_windows(now_ms)
        # A tool that fails in a loop may cause thousands of events: one entry for all bounds the memory.
        shared_entry = self._newest_waiting.get(event.type) if self._waiting >= self._most_waiting else None
        if shared_entry is not None:
            shared_entry.count += 1
            shared_entry.event = event
            return
        if not self.subscriber.batching.dedupe_window_ms:
            self._add(NoticeEntry(event=event, order=order), now_ms)
            return
        key = self.subscriber.dedupe_key(event)
        if key not in self._remembered:
            self._remember(key, NoticeEntry(event=event, order=order), now_ms)
        else:
            _, entry = self._remembered[key]
            self._count(entry, event, now_ms)

    def close_windows(self, now_ms: int) -> None:
        """Close the batch and dedupe windows that have ended by `now_ms`."""
        window_ms = self.subscriber.batching.window_ms
        ended = [
            delivery for delivery, batch in self._open.items() if _is_over(batch.first_ms, window_ms, now_ms)
        ]
        for delivery in ended:
            self._close(delivery)
        dedupe_ms = self.subscriber.batching.dedupe_window_ms
        # The oldest come first in a dict, so the loop ends at the first window that is still open.
        while self._remembered:
            key, (first_ms, _) = next(iter(self._remembered.items()))
            if not _is_over(first_ms, dedupe_ms, now_ms):
                break
            self._forget(key, now_ms)

    def due(self, points: Collection[InjectAt]) -> list[NoticeBatch]:
        """Close the open batches for these points of a turn, and return all batches that are due.

        A batch is due from its own point on, and is returned again, until `mark_delivered` reports its
        delivery.
        """
        for delivery in [delivery for delivery in self._open if delivery.inject_at in points]:
            self._close(delivery)
        self._closed = [batch.due_at(points) for batch in self._closed]
        return [batch for batch in self._closed if batch.is_due]

    def carry_over(self, now_ms: int) -> None:
        """Make everything undelivered due at the next opportunity, because a turn has ended.

        Later events are not counted as repetitions of those before.
        """
        for key in list(self._remembered):
            self._forget(key, now_ms)  # this adds the entry again if repetitions of it are not delivered
        self.due(POINTS)  # called for its effect: all batches are closed, and stay due

    def mark_delivered(self, batch: NoticeBatch) -> None:
        """Record that the entries of `batch` were delivered.

        If these are only the first entries of a batch that `due` returned, the others go on waiting.
        """
        # The earlier count is stored, because `take_back` undoes the delivery when the turn fails.
        for entry in batch.entries:
            entry.delivered_before = entry.delivered_count
            entry.delivered_count = entry.count
            entry.is_waiting = False
            self._waiting -= 1
            # While too many entries wait, `accept` counts further events of a type in its newest waiting
            # entry: this one waits no more.
            if self._newest_waiting.get(entry.event.type) is entry:
                del self._newest_waiting[entry.event.type]
        remainders = (
            replace(closed, entries=tuple(entry for entry in closed.entries if entry.is_waiting))
            for closed in self._closed
        )
        self._closed = [remainder for remainder in remainders if remainder.entries]

    def take_back(self, batch: NoticeBatch) -> None:
        """Make the entries of a batch due again, because their turn has failed after the delivery."""
        # An entry that waits again was repeated after the delivery, and would otherwise be delivered twice.
        taken_back = tuple(entry for entry in batch.entries if not entry.is_waiting)
        for entry in taken_back:
            entry.delivered_count, entry.is_waiting = entry.delivered_before, True
            self._newest_waiting.setdefault(entry.event.type, entry)
        self._waiting += len(taken_back)
        if taken_back:
            self._closed.append(replace(batch, entries=taken_back))

    def _remember(self, key: str, entry: NoticeEntry, now_ms: int) -> None:
        """Add an entry, and remember it under `key` to count its repetitions.

        If `MAX_REMEMBERED` are remembered already, the oldest of them is forgotten.
        """
        if len(self._remembered) >= MAX_REMEMBERED:
            self._forget(next(iter(self._remembered)), now_ms)
        self._remembered[key] = now_ms, entry
        self._add(entry, now_ms)

    def _forget(self, key: str, now_ms: int) -> None:
        """Stop counting repetitions of the entry with this key; add it again if some were not delivered."""
        _, entry = self._remembered.pop(key)
        self._add_again(entry, now_ms)

    def _count(self, entry: NoticeEntry, event: NoticeEvent, now_ms: int) -> None:
        """Count a repetition of an entry; add the entry for delivery again at each multiple of `REPEATED`."""
        entry.count += 1
        entry.event = event
        if entry.count % REPEATED == 0:
            self._add_again(entry, now_ms)

    def _add_again(self, entry: NoticeEntry, now_ms: int) -> None:
        """Add an entry for delivery again if it has undelivered occurrences and does not wait already."""
        if entry.has_undelivered and not entry.is_waiting:
            self._add(entry, now_ms)

    def _add(self, entry: NoticeEntry, now_ms: int) -> None:
        """Add an entry to the batch for its delivery; close it if it is full, urgent or without a window."""
        entry.is_waiting = True
        self._waiting += 1
        self._newest_waiting[entry.event.type] = entry
        delivery = _delivery_of(self.subscriber, entry.event)
        batch = self._open.setdefault(delivery, _OpenBatch(first_ms=now_ms))
        batch.entries.append(entry)
        # A critical event waits for no window: the model may be about to repeat the mistake.
        is_urgent = delivery.priority == "critical" or entry.event.severity == EventLevel.CRITICAL
        batching = self.subscriber.batching
        if is_urgent or not batching.window_ms or len(batch.entries) >= batching.max_size:
            self._close(delivery)

    def _close(self, delivery: _Delivery) -> None:
        """Close the open batch for a delivery: it becomes a `NoticeBatch`, which waits for its point."""
        batch = self._open.pop(delivery)
        self._closed.append(
            NoticeBatch(
                subscriber=self.subscriber,
                priority=delivery.priority,
                inject_at=delivery.inject_at,
                is_addressed=delivery.is_addressed,
                entries=tuple(batch.entries),
            )
        )


def _delivery_of(subscriber: Subscriber, event: NoticeEvent) -> _Delivery:
    """Return how an event is delivered: as its payload says, else as the subscriber says."""
    wanted_priority, wanted_point = event.payload.get("priority"), event.payload.get("inject_at")
    # A payload may contain anything; only a known value overrides the subscriber's setting.
    priority = next((known for known in RANK if known == wanted_priority), None)
    inject_at = next((known for known in POINTS if known == wanted_point), None)
    return _Delivery(
        priority=priority or subscriber.output.priority,
        inject_at=inject_at or subscriber.output.inject_at,
        is_addressed=priority is not None or inject_at is not None,
    )


def _is_over(first_ms: int, window_ms: int, now_ms: int) -> bool:
    """Return whether a window of `window_ms` that began at `first_ms` has ended at `now_ms`."""
    # It has also ended if the clock was set back before its start.
    return not 0 <= now_ms - first_ms < window_ms
