"""Hints: "look at the truth now". They carry nothing and may be lost or repeated without harm."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field


class Wakeup:
    """Wakes one waiting loop; set before the wait, it wakes at once."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def give(self) -> None:
        self._event.set()

    async def wait(self, *, at_most_seconds: float | None) -> None:
        """Return on a hint given since the last return, at the latest after `at_most_seconds`."""
        try:
            async with asyncio.timeout(at_most_seconds):
                await self._event.wait()
        except TimeoutError:
            pass
        self._event.clear()


@dataclass(frozen=True, slots=True)
class Wakeups:
    """One a loop."""

    lanes: Wakeup = field(default_factory=Wakeup)
    outbox: Wakeup = field(default_factory=Wakeup)
    scheduler: Wakeup = field(default_factory=Wakeup)
    reaper: Wakeup = field(default_factory=Wakeup)
    notifications: Wakeup = field(default_factory=Wakeup)
    outages: Wakeup = field(default_factory=Wakeup)
