"""The bus of one run: what is emitted waits here, in order, until notices are made of it."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from agent_runner.ans.event import EventLevel, NoticeEvent, is_pattern, matches
from agent_runner.error_log import log_fault

logger = logging.getLogger(__name__)

Handler = Callable[[NoticeEvent], None]
MAX_PENDING = 1_000
KEPT_AT_OVERFLOW = 500
DROPPED = "notices.dropped"


@dataclass(slots=True)
class _Subscription:
    pattern: str | None
    handler: Handler


class NoticeBus:
    """Takes events, calls handlers at once in the caller, and keeps about `limit` events for later.

    When full, it makes room before it takes the next: never an error or a critical event, of the others the
    least severe first and of these the oldest. What was dropped is an event itself. Errors are kept however
    many there are: a run drains them with each tool, and they take of its own memory.
    """

    def __init__(
        self,
        *,
        limit: int = MAX_PENDING,
        kept: int = KEPT_AT_OVERFLOW,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._limit = limit
        self._kept = kept
        self._now = now
        self._pending: list[NoticeEvent] = []
        self._dropped: Counter[tuple[EventLevel, str]] = Counter()
        self._subscriptions: list[_Subscription] = []
        self._is_enabled = True
        self._has_errors_alone = False
        """The queue is full of them: there is no room to be made, and no need to look for it each time."""

    @property
    def pending_count(self) -> int:
        return len(self._pending)

    @property
    def handler_count(self) -> int:
        return len(self._subscriptions)

    def subscribe(self, pattern: str, handler: Handler) -> None:
        """Have `handler` called with events of a type, or of all types below `prefix.*`.

        Raises:
            ValueError: `pattern` names no event types.
        """
        if not is_pattern(pattern):
            raise ValueError(f"'{pattern[:100]}' is neither an event type nor 'prefix.*'")
        self._subscriptions.append(_Subscription(pattern, handler))

    def subscribe_all(self, handler: Handler) -> None:
        """Have `handler` called with every event, before those that asked for some."""
        self._subscriptions.append(_Subscription(None, handler))

    def unsubscribe(self, handler: Handler, pattern: str | None = None) -> bool:
        """Forget one subscription of `handler`; tell whether there was one."""
        for index, subscription in enumerate(self._subscriptions):
            if subscription.pattern == pattern and subscription.handler == handler:
                del self._subscriptions[index]
                return True
        return False

    def enable(self) -> None:
        self._is_enabled = True

    def disable(self) -> None:
        """Drop what is emitted from now on, unseen."""
        self._is_enabled = False

    def emit(self, event: NoticeEvent) -> None:
        """Keep an event and call whom it concerns."""
        if not self._is_enabled:
            return
        if len(self._pending) >= self._limit and not self._has_errors_alone:
            self._make_room()
        if len(self._pending) < self._limit or event.severity >= EventLevel.ERROR:
            self._pending.append(event)
        else:
            self._dropped[event.severity, event.type] += 1
        self._call(event)

    def drain_pending(self) -> list[NoticeEvent]:
        """Return what waits, in the order it was emitted, and last what had to be dropped."""
        if self._dropped:
            event = self._dropped_event()
            self._dropped.clear()
            self._pending.append(event)
            self._call(event)
        events, self._pending = self._pending, []
        self._has_errors_alone = False
        return events

    def clear(self) -> None:
        """Forget what waits, and what was dropped."""
        self._pending.clear()
        self._dropped.clear()
        self._has_errors_alone = False

    def _call(self, event: NoticeEvent) -> None:
        everything = [each for each in self._subscriptions if each.pattern is None]
        some = [each for each in self._subscriptions if each.pattern and matches(each.pattern, event.type)]
        for subscription in everything + some:
            try:
                subscription.handler(event)
            except Exception as error:  # noqa: BLE001  # one handler's fault is not another's
                log_fault(f"a handler of {event.type} broke", error)

    def _make_room(self) -> None:
        """Leave at most `kept` events, or the protected ones alone where these are more."""
        least = [index for index, event in enumerate(self._pending) if event.severity < EventLevel.ERROR]
        protected = len(self._pending) - len(least)
        least.sort(key=lambda index: self._pending[index].severity)
        doomed = set(least[: len(least) - max(0, self._kept - protected)])
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
