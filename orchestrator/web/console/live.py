"""Live updates of pages: one stream for all open pages of a browser, with the kinds of what happened.

A stream carries no contents. A page asks anew for those of its parts that the events concern, and puts them
in the place of the old ones, so a line can neither be lost nor come twice, whatever was missed. The id of an
event is `START-NUMBER`: a browser that comes back after a cut hears of what happened meanwhile, and that all
may have changed after a restart or where the host no longer knows. The other end is `static/live.js`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from fnmatch import fnmatchcase

from orchestrator.base.event_bus import EventBus, HostEvent
from orchestrator.domain.errors import BadRequest
from orchestrator.web.event_stream import PING, PING_SECONDS, server_sent

MAX_STREAMS = 128
COLLECT_SECONDS = 0.05
"""Events that come this close together are sent as one."""

Parts = Mapping[str, tuple[str, ...]]
"""The name of a part → the kinds of events that may change it, such as `turn.*`."""
Change = tuple[str, str | None]
"""The kind of an event, and the group that it is of."""


class TooManyPages(BadRequest):
    """Too many pages are open at once: close some, then load this one again."""

    code = "too_many_pages"
    http_status = 503


class LiveStreams:
    """Hands out the streams of all browsers; an open one costs a queue and a timer, none costs nothing."""

    def __init__(self, bus: EventBus, *, start: str, kinds: Iterable[str] = ("*",)) -> None:
        """`start` tells this start of the host from others; `kinds` are those that any page asks for."""
        self._bus = bus
        self._start = start
        self._kinds = tuple(sorted(set(kinds)))
        self._open = 0

    @property
    def is_full(self) -> bool:
        return self._open >= MAX_STREAMS

    @property
    def now(self) -> str:
        """The id of the newest event."""
        return f"{self._start}-{self._bus.ring[-1].n if self._bus.ring else 0}"

    async def events(self, after: str, *, is_welcome: Callable[[], Awaitable[bool]]) -> AsyncGenerator[str]:
        """Yield server-sent events until the browser goes or `is_welcome` says that its session is over.

        `after` is the id of the last event that the browser knows.
        """
        self._open += 1
        try:
            with self._bus.listening(*self._kinds, with_passing=True) as queue:
                known, missed = self.now, self._missed(after)
                if missed is None:
                    yield server_sent("all", id=known, data="")
                elif missed:
                    yield server_sent("change", id=known, data=_listed(missed))
                yield server_sent("live", id=known, data="")
                while True:
                    changes = await self._changes(queue)
                    # The id is taken with the changes: what comes while they are sent is after it.
                    yield server_sent("change", id=self.now, data=_listed(changes)) if changes else PING
                    if not changes and not await is_welcome():
                        yield server_sent("live-over", id=self.now, data="")
                        return
        finally:
            self._open -= 1

    async def _changes(self, queue: asyncio.Queue[HostEvent]) -> set[Change]:
        """Wait for the next events; none where nothing happened for a while."""
        try:
            async with asyncio.timeout(PING_SECONDS):
                found = [await queue.get()]
        except TimeoutError:
            return set()
        await asyncio.sleep(COLLECT_SECONDS)
        while not queue.empty():
            found.append(queue.get_nowait())
        return {(event.kind, event.group) for event in found}

    def _missed(self, after: str) -> set[Change] | None:
        """Return what happened after an event, or None where that is not known any more."""
        start, _, number = after.rpartition("-")
        ring = self._bus.ring
        seen = int(number) if number.isascii() and number.isdigit() and len(number) < 16 else -1
        if start != self._start or (ring and seen < ring[0].n - 1):
            return None
        return {(event.kind, event.group) for event in ring if event.n > seen and self._is_wanted(event)}

    def _is_wanted(self, event: HostEvent) -> bool:
        return any(fnmatchcase(event.kind, kind) for kind in self._kinds)


def _listed(changes: set[Change]) -> str:
    return json.dumps(sorted(changes, key=str), separators=(",", ":"))
