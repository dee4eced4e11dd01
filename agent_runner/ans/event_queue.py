"""Queue the events of one run, in order, until notices are made of them."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime

from agent_runner.ans.event import EventLevel, NoticeEvent

logger = logging.getLogger(__name__)

MAX_PENDING = 1_000
RETAINED_AT_OVERFLOW = 500
DROPPED = "notices.dropped"


class EventQueue:
    """Stores about `limit` events until they are drained.

    When full, it makes room before it takes the next: it never drops errors or critical events, and of the
    others the least severe first, and among these the oldest. The drops are reported as an event themselves.
    Errors are stored however many there are: a run drains them with each tool, and they use only its own
    memory.
    """

    def __init__(
        self,
        *,
        limit: int = MAX_PENDING,
        retained: int = RETAINED_AT_OVERFLOW,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._limit = limit
        self._retained = retained
        self._now = now
        self._pending: list[NoticeEvent] = []
        self._dropped: Counter[tuple[EventLevel, str]] = Counter()
        self._has_errors_alone = False
        """Whether only errors are left, so that no room can be made and none needs to be searched for."""

    @property
    def pending_count(self) -> int:
        return len(self._pending)

    def emit(self, event: NoticeEvent) -> None:
        """Add an event; when the queue is full, the least severe events are dropped."""
        # Room is made for many at once: doing so for each event would sort the queue each time.
        if len(self._pending) >= self._limit and not self._has_errors_alone:
            self._make_room()
        if len(self._pending) < self._limit or event.severity >= EventLevel.ERROR:
            self._pending.append(event)
        else:
            self._dropped[event.severity, event.type] += 1

    def drain_pending(self) -> list[NoticeEvent]:
        """Remove and return the events that wait, oldest first; the last one counts what was dropped."""
        # The count is itself an event, so that no loss goes unreported.
        if self._dropped:
            event = self._dropped_event()
            self._dropped.clear()
            self._pending.append(event)
        events, self._pending = self._pending, []
        self._has_errors_alone = False
        return events

    def _make_room(self) -> None:
        """Leave at most `retained` events, or only the protected ones if these are more."""
        least = [index for index, event in enumerate(self._pending) if event.severity < EventLevel.ERROR]
        protected = len(self._pending) - len(least)
        least.sort(key=lambda index: self._pending[index].severity)
        doomed = set(least[: len(least) - max(0, self._retained - protected)])
        self._dropped.update((self._pending[i].severity, self._pending[i].type) for i in doomed)
        self._pending = [event for index, event in enumerate(self._pending) if index not in doomed]
        self._has_errors_alone = len(self._pending) >= self._limit

    def _dropped_event(self) -> NoticeEvent:
        types: Counter[str] = Counter()
        for (_, event_type), count in self._dropped.items():
            types[event_type] += count
        worst = max(level for level, _ in self._dropped)
        total = types.total()
        listed = ", ".join(f"{count} {event_type}" for event_type, count in types.most_common(10))
        logger.warning("%d events were dropped: %s", total, listed)
        return NoticeEvent(
            type=DROPPED,
            source="bus",
            severity=max(EventLevel.WARNING, worst),
            timestamp=self._now(),
            payload={"count": total, "types": listed, "message": f"{total} events were dropped: {listed}"},
        )
