"""How fast a container may speak: each frame is a transaction, and the database is everybody's."""

from __future__ import annotations

import asyncio

from orchestrator.clock import Clock

BURST = 200
A_SECOND = 20.0


class Pace:
    """A token bucket. Who waits leaves the rest in the container's own pipe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._left = float(BURST)
        self._at_ms = clock.steady_ms()

    async def wait(self) -> None:
        """Take one token, waiting for it when there is none."""
        now_ms = self._clock.steady_ms()
        self._left = min(BURST, self._left + (now_ms - self._at_ms) / 1000 * A_SECOND) - 1
        self._at_ms = now_ms
        if self._left < 0:
            await asyncio.sleep(-self._left / A_SECOND)
