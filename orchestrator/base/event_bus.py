"""Passes events to listeners: `GET /events`, the terminal, the console. The store stays authoritative."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from typing import Any

from orchestrator.base.clock import Clock

RING = 1_000
"""Events that are stored for listeners that come later."""
QUEUE = 1_000
"""Events that a listener may be behind."""
PAUSE_SECONDS = 0.25
"""Seconds between two looks of a loop that nobody waits for. A group with a hundred requests a second is not
worth a hundred looks: each would delay a group that waits for its answer.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostEvent:
    """A committed event: ids, never the text of a message."""

    n: int
    """Its number, which counts up from 1 since the host started."""
    at_ms: int
    kind: str
    group: str | None = None
    """The folder of the group; each of these ids is None if the event is about none."""
    message: str | None = None
    turn: int | None = None
    run: str | None = None
    attempt: int | None = None
    detail: str | None = None
    """The event in a word or two; None if the kind says it."""
    reason: str | None = None
    """The reason as a sentence for people, if there is one."""
    data: dict[str, Any] | None = None
    """Further ids and numbers of an event that is recorded in the store."""

    def to_json_dict(self) -> dict[str, Any]:
        """Return the fields by name, without those that are None."""
        return {name: value for name in _FIELDS if (value := getattr(self, name)) is not None}


_FIELDS = tuple(field.name for field in fields(HostEvent))


Listeners = dict[asyncio.Queue[HostEvent], tuple[str, ...]]
"""Map each listener's queue to the kinds of events that it wants; an empty tuple means all."""


class EventBus:
    """Passes each event to all present listeners, and stores the last `RING` events for later ones.

    A listener that is more than `QUEUE` events behind loses the oldest; it can read the store.
    """

    def __init__(self, clock: Clock) -> None:
        """`clock` gives each event its time."""
        self._clock = clock
        self._numbers = itertools.count(1)
        self._listeners: Listeners = {}
        self._transient_listeners: Listeners = {}
        """The listeners that also take transient events."""
        self.ring: deque[HostEvent] = deque(maxlen=RING)
        self.taps: list[Callable[[HostEvent], None]] = []
        """Functions called with every event at once, in order; they must neither block nor raise."""

    def publish(self, kind: str, **ids: Any) -> None:
        """Store an event, and pass it to all `taps` and to the listeners for its kind.

        `ids` are fields of `HostEvent`.
        """
        event = HostEvent(n=next(self._numbers), at_ms=self._clock.now_ms(), kind=kind, **ids)
        self.ring.append(event)
        for tap in self.taps:
            tap(event)
        self._pass_on(event, self._listeners)

    def publish_transient(self, kind: str, **ids: Any) -> None:
        """Pass an event to the listeners that take transient ones, without storing it.

        It is for events that may come many times a second. `ids` are fields of `HostEvent`.
        """
        if self._transient_listeners:
            event = HostEvent(n=next(self._numbers), at_ms=self._clock.now_ms(), kind=kind, **ids)
            self._pass_on(event, self._transient_listeners)

    def _pass_on(self, event: HostEvent, listeners: Listeners) -> None:
        """Add an event to the queues of the listeners that want it; a full queue loses its oldest event."""
        for queue, kinds in listeners.items():
            if kinds and not any(fnmatchcase(event.kind, wanted) for wanted in kinds):
                continue  # without any pattern in `kinds`, the listener wants all events
            if queue.full():
                queue.get_nowait()
            queue.put_nowait(event)

    def recall(self, events: Iterable[HostEvent]) -> None:
        """Put events of earlier starts of the host before the stored ones, without passing them to listeners.

        The oldest are dropped if there are more than `RING` in all.
        """
        recalled = [*events, *self.ring]
        self.ring.clear()
        self.ring.extend(recalled)

    @contextmanager
    def listening(self, *kinds: str, with_transient: bool = False) -> Iterator[asyncio.Queue[HostEvent]]:
        """Yield a queue that collects the events from now on, until the block ends.

        Enter the block before a look at the database, so that no event is missed in between. `kinds` are
        patterns, such as `trigger:*`, of the wanted kinds of events; none means all. `with_transient` adds
        the events of `publish_transient`.
        """
        queue: asyncio.Queue[HostEvent] = asyncio.Queue(QUEUE)
        self._listeners[queue] = kinds
        if with_transient:
            self._transient_listeners[queue] = kinds
        try:
            yield queue
        finally:
            del self._listeners[queue]
            self._transient_listeners.pop(queue, None)


async def until_next(events: asyncio.Queue[HostEvent], *, at_most_seconds: float) -> None:
    """Wait for an event in the queue `events`, at most `at_most_seconds`, and empty the queue.

    The caller then looks at the database once for all these events. The wait takes at least `PAUSE_SECONDS`,
    or `at_most_seconds` if that is less, so that many events do not cause many looks.
    """
    await asyncio.sleep(min(PAUSE_SECONDS, at_most_seconds))
    try:
        async with asyncio.timeout(max(0.0, at_most_seconds - PAUSE_SECONDS)):
            await events.get()
    except TimeoutError:
        return
    while not events.empty():
        events.get_nowait()
