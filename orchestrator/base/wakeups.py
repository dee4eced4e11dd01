"""Wakes waiting loops: "look at the database now". A wake-up has no content and may be repeated or lost.

Each loop also looks from time to time, so a lost wake-up only costs time.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field


class Wakeup:
    """Wakes the one loop that waits for it; if set before the wait, the wait ends at once."""

    def __init__(self) -> None:
        """Create a wake-up that is not set."""
        self._event = asyncio.Event()

    def set(self) -> None:
        """End the present wait, or the next one."""
        self._event.set()

    async def wait(self, *, at_most_seconds: float | None) -> None:
        """Wait until `set` is called, at most `at_most_seconds`; None means without a limit.

        If `set` was called since the last wait, return at once.
        """
        try:
            async with asyncio.timeout(at_most_seconds):
                await self._event.wait()
        except TimeoutError:
            pass
        self._event.clear()


@dataclass(frozen=True, slots=True)
class Wakeups:
    """The wake-ups of the host, one for each loop."""

    lanes: Wakeup = field(default_factory=Wakeup)
    """Wakes the dispatcher, which decides which turns start."""
    outbox: Wakeup = field(default_factory=Wakeup)
    scheduler: Wakeup = field(default_factory=Wakeup)
    reaper: Wakeup = field(default_factory=Wakeup)
    notifications: Wakeup = field(default_factory=Wakeup)
    outages: Wakeup = field(default_factory=Wakeup)
    calendars: Wakeup = field(default_factory=Wakeup)
    image: Wakeup = field(default_factory=Wakeup)
    """Set when a container could not be started because the image is missing."""
    foresight: Wakeup = field(default_factory=Wakeup)
    """Set by signs of a coming turn, and when the time of the next due task or wake may have changed."""
