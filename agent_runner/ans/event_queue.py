"""Queue the events of one run, in their order, until notices are made from them."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime

from agent_runner.ans.event import EventLevel, NoticeEvent

logger = logging.getLogger(__name__)

MAX_PENDING = 1_000
"""Events that a queue stores."""
RETAINED_AT_OVERFLOW = 500
"""Events that remain after a full queue has made room."""
DROPPED = "notices.dropped"
"""The type of the event that reports dropped events."""


class EventQueue:
    """Stores about `limit` events until they are drained.

    A full queue drops events before it adds the next: the least severe first, and among these the oldest, but
    never errors or critical events. The number of dropped events is reported as an event. Errors may exceed
    the limit: a run drains the queue with each tool, and they use only that run's memory.
    """

    def __init__(
        self,
        *,
        limit: int = MAX_PENDING,
        retained: int = RETAINED_AT_OVERFLOW,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """`limit` is the number of events at which the queue is full.

        `retained` is the number of events that remain after a full queue has made room; `now` returns the UTC
        time.
        """
        self._limit = limit
        self._retained = retained
        self._now = now
        self._pending: list[NoticeEvent] = []
        self._dropped: Counter[tuple[EventLevel, str]] = Counter()
        self._has_errors_alone = False
        """Whether making room would not help, because the queue is full of errors alone."""

    @property
    def pending_count(self) -> int:
        """Return how many events wait; the report of dropped events does not count."""
        return len(self._pending)

    def emit(self, event: NoticeEvent) -> None:
        """Add an event; a full queue drops the least severe ones first.

        If it is full of errors alone, this event is dropped, unless it is an error itself.
        """
        # Room is made for many events at once, because it takes a sort of the queue.
        if len(self._pending) >= self._limit and not self._has_errors_alone:
            self._make_room()
        if len(self._pending) < self._limit or event.severity >= EventLevel.ERROR:
            self._pending.append(event)
        else:
            self._dropped[event.severity, event.type] += 1

    def drain_pending(self) -> list[NoticeEvent]:
        """Remove and return the waiting events, oldest first; the last one counts dropped events, if any."""
        # The count is an event itself, so that the loss is reported like everything else.
        if self._dropped:
            event = self._dropped_event()
            self._dropped.clear()
            self._pending.append(event)
        events, self._pending = self._pending, []
        self._has_errors_alone = False  # the queue is empty now
        return events

    def _make_room(self) -> None:
        """Drop events so that at most `retained` remain, which is less than `limit`.

        Errors are not dropped: if there are more of them than `retained`, only they remain.
        """
        droppable = [index for index, event in enumerate(self._pending) if event.severity < EventLevel.ERROR]
        protected = len(self._pending) - len(droppable)
        droppable.sort(key=lambda index: self._pending[index].severity)
        # `retained` places remain, and errors take theirs first. The other places are for the last of those
        # that may be dropped, so the least severe are dropped, and of one severity the oldest.
        dropped = set(droppable[: len(droppable) - max(0, self._retained - protected)])
        self._dropped.update((self._pending[i].severity, self._pending[i].type) for i in dropped)
        self._pending = [event for index, event in enumerate(self._pending) if index not in dropped]
        # `limit` events remain only if all are errors: otherwise at most `retained` would, which is less.
        self._has_errors_alone = len(self._pending) >= self._limit

    def _dropped_event(self) -> NoticeEvent:
        """Return the event that reports how many events were dropped, and log the same text.

        It names the ten most frequent types, each with its count, and is as severe as the worst dropped
        event, at least a warning.
        """
        types: Counter[str] = Counter()
        for (_, event_type), count in self._dropped.items():
            types[event_type] += count
        worst = max(level for level, _ in self._dropped)
        total = types.total()
        listed = ", ".join(f"{count} {event_type}" for event_type, count in types.most_common(10))
        logger.warning("%d events were dropped: %s", total, listed)
        return NoticeEvent(
            type=DROPPED,
            source="bus",  # the name of this queue in the settings of subscribers
            severity=max(EventLevel.WARNING, worst),
            timestamp=self._now(),
            payload={"count": total, "types": listed, "message": f"{total} events were dropped: {listed}"},
        )
