"""Live updates of pages: one stream for each page, which names the parts of it that have changed.

A stream carries no contents. The page asks for the parts that are named and puts them in the place of the
old ones, so a line can neither be lost nor come twice, whatever was missed. The id of an event is
`START-NUMBER`: a page that comes back after a cut hears of what changed meanwhile, and of everything after a
restart or where the host no longer knows.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from orchestrator.base.event_bus import EventBus, HostEvent
from orchestrator.domain.errors import BadRequest
from orchestrator.web.event_stream import PING, PING_SECONDS, server_sent

MAX_STREAMS = 128
COLLECT_SECONDS = 0.05
"""Events that come this close together are told as one change."""

Parts = Mapping[str, tuple[str, ...]]
"""The name of a part → the kinds of events that may change it, such as `turn.*`."""


class TooManyPages(BadRequest):
    """Too many pages are open at once: close some, then load this one again."""

    code = "too_many_pages"
    http_status = 503


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """The events that one page subscribes to, and the parts of it that they change."""

    parts: Parts
    everywhere: Parts = field(default_factory=dict)
    """Parts that events of every group may change."""
    group: str | None
    """Only events of this group and those of no group change `parts`."""
    after: str
    """The id of the last event that the page knows."""

    def touched(self, event: HostEvent) -> set[str]:
        is_own = self.group is None or event.group in (self.group, None)
        found = {**self.everywhere, **self.parts} if is_own else self.everywhere
        return {name for name, kinds in found.items() if any(fnmatchcase(event.kind, kind) for kind in kinds)}


class LiveStreams:
    """Hands out the streams of all pages; an open page costs a queue and a timer, none costs nothing."""

    def __init__(self, bus: EventBus, *, start: str) -> None:
        """`start` tells this start of the host from others."""
        self._bus = bus
        self._start = start
        self._open = 0

    @property
    def is_full(self) -> bool:
        return self._open >= MAX_STREAMS

    @property
    def now(self) -> str:
        """The id of the newest event."""
        return self._id_of(self._bus.ring[-1].n if self._bus.ring else 0)

    async def events(self, watch: Watch, *, is_welcome: Callable[[], Awaitable[bool]]) -> AsyncGenerator[str]:
        """Yield server-sent events until the page goes or `is_welcome` says that its session is over."""
        self._open += 1
        try:
            with self._bus.listening(with_passing=True) as queue:
                for name in sorted(self._missed(watch)):
                    yield self._event(f"live-{name}")
                yield self._event("live")
                while True:
                    named = await self._changes(watch, queue)
                    if not named:
                        if not await is_welcome():
                            yield self._event("live-over")
                            return
                        yield PING
                    for name in sorted(named):
                        yield self._event(f"live-{name}")
        finally:
            self._open -= 1

    async def _changes(self, watch: Watch, queue: asyncio.Queue[HostEvent]) -> set[str]:
        """Wait for the next parts that change; none where nothing did for a while."""
        named: set[str] = set()
        try:
            async with asyncio.timeout(PING_SECONDS):
                while not named:
                    named = watch.touched(await queue.get())
        except TimeoutError:
            return named
        await asyncio.sleep(COLLECT_SECONDS)
        while not queue.empty():
            named |= watch.touched(queue.get_nowait())
        return named

    def _missed(self, watch: Watch) -> set[str]:
        """The parts that changed since the page was made, or all where that cannot be told."""
        start, _, number = watch.after.rpartition("-")
        ring = self._bus.ring
        after = int(number) if number.isascii() and number.isdigit() and len(number) < 16 else -1
        is_known = start == self._start and (not ring or after >= ring[0].n - 1)
        if not is_known:
            return {*watch.parts, *watch.everywhere}
        return {name for event in ring if event.n > after for name in watch.touched(event)}

    def _event(self, kind: str) -> str:
        return server_sent(kind, id=self.now, data="")

    def _id_of(self, number: int) -> str:
        return f"{self._start}-{number}"
