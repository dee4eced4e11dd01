"""Live updates of pages: one stream for all open pages of a browser, with the kinds of events.

A stream has no contents. A page loads those of its parts again that an event concerns, and replaces the old
ones, so no line is lost or shown twice, whatever events it missed. The id of an event is `START-NUMBER`: a
browser that reconnects gets the events that it missed; after a restart, or if they are no longer known, it
gets one event which says that everything may have changed. The other end is `static/live.js`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from fnmatch import fnmatchcase

from orchestrator.base.event_bus import EventBus, HostEvent
from orchestrator.domain.errors import BadRequest
from orchestrator.web.bodies import whole_number
from orchestrator.web.event_stream import PING, PING_SECONDS, server_sent

MAX_STREAMS = 128
COLLECT_SECONDS = 0.05
"""Seconds within which events are collected and sent as one."""

Parts = Mapping[str, tuple[str, ...]]
"""The name of a part → the kinds of events that may change it, such as `turn.*`."""
Change = tuple[str, str | None]
"""The kind of an event, and its group."""


class TooManyPages(BadRequest):
    """Too many pages are open at once: close some, then load this one again."""

    code = "too_many_pages"
    http_status = 503


# One stream serves all tabs of a browser, because a browser opens at most six connections to a host: with a
# stream for each tab, the seventh would never load.
class LiveStreams:
    """Serves the streams of all browsers; each open one has a queue and a timer."""

    def __init__(self, bus: EventBus, *, start: str, kinds: Iterable[str] = ("*",)) -> None:
        """`bus` publishes the host's events.

        `start` identifies this start of the host in the ids of events; `kinds` are the patterns of the kinds
        of events that any page needs.
        """
        self._bus = bus
        self._start = start
        self._kinds = tuple(sorted(set(kinds)))
        self._open = 0
        """The number of open streams."""

    @property
    def is_full(self) -> bool:
        """Whether `MAX_STREAMS` streams are open, so that no further one may be opened."""
        return self._open >= MAX_STREAMS

    @property
    def now(self) -> str:
        """The id of the newest event of the host, such as `START-17`."""
        return f"{self._start}-{self._bus.ring[-1].n if self._bus.ring else 0}"

    async def events(self, after: str, *, is_signed_in: Callable[[], Awaitable[bool]]) -> AsyncGenerator[str]:
        """Yield a browser's server-sent events until it disconnects or `is_signed_in` returns False.

        They are `change` with the kinds and groups of events, `all` when everything may have changed, `live`
        once the missed events were sent, and `live-over` at the end. `after` is the id of the last event that
        the browser knows. `is_signed_in` is called at every pause, and at least every `PING_SECONDS`.
        """
        self._open += 1
        try:
            # Listening begins before the missed events are read: none can fall between the two.
            with self._bus.listening(*self._kinds, with_transient=True) as queue:
                newest_id, missed = self.now, self._missed_changes(after)
                if missed is None:
                    yield server_sent("all", id=newest_id, data="")
                elif missed:
                    yield server_sent("change", id=newest_id, data=_as_json(missed))
                yield server_sent("live", id=newest_id, data="")
                loop = asyncio.get_running_loop()
                checked_at = loop.time()
                while True:
                    changes = await self._next_changes(queue)
                    # The id is read with the changes: an event that arrives while they are sent is after it.
                    yield server_sent("change", id=self.now, data=_as_json(changes)) if changes else PING
                    # Checked by the clock too: on a busy host there is always a change, and a browser that
                    # was signed out elsewhere would continue to get them.
                    if not changes or loop.time() - checked_at >= PING_SECONDS:
                        checked_at = loop.time()
                        if not await is_signed_in():
                            yield server_sent("live-over", id=self.now, data="")
                            return
        finally:
            self._open -= 1

    async def _next_changes(self, queue: asyncio.Queue[HostEvent]) -> set[Change]:
        """Wait for the next events, and return the kind and the group of each.

        Events that come within `COLLECT_SECONDS` are returned together. Empty if none came for
        `PING_SECONDS`.
        """
        try:
            async with asyncio.timeout(PING_SECONDS):
                events = [await queue.get()]
        except TimeoutError:
            return set()
        await asyncio.sleep(COLLECT_SECONDS)
        while not queue.empty():
            events.append(queue.get_nowait())
        return {(event.kind, event.group) for event in events}

    def _missed_changes(self, after: str) -> set[Change] | None:
        """Return the kind and the group of each event after the one with the id `after`.

        Return None if the host no longer stores them all, or if the id is not from this start of the host.
        """
        # An id is `START-NUMBER`: after a restart of the host, the numbers start again and START is another.
        # A browser may send anything: a text that is no number, or too long for one, counts as -1, before all
        # events.
        start, _, number = after.rpartition("-")
        ring = self._bus.ring
        known_number = whole_number(number)
        last_number = -1 if known_number is None else known_number
        # The ring drops its oldest events. If its first one is 8, a browser that knows all up to 7 has missed
        # no dropped event, but one that knows all up to 6 has missed event 7.
        if start != self._start or (ring and last_number < ring[0].n - 1):
            return None
        return {
            (event.kind, event.group) for event in ring if event.n > last_number and self._is_wanted(event)
        }

    def _is_wanted(self, event: HostEvent) -> bool:
        """Return whether a page may need this event, by the kind of the event."""
        return any(fnmatchcase(event.kind, kind) for kind in self._kinds)


def _as_json(changes: set[Change]) -> str:
    """Return changes as a JSON list of `[kind, group]` pairs, in a fixed order."""
    return json.dumps(sorted(changes, key=str), separators=(",", ":"))
