"""How fast a container may speak and ask: each frame and letter is a transaction of everybody's database."""

from __future__ import annotations

import asyncio

from orchestrator.base.clock import Clock

FRAMES_AT_ONCE, FRAMES_A_SECOND = 200, 20.0
BYTES_AT_ONCE, BYTES_A_SECOND = 32 * 1024 * 1024, 1024.0 * 1024
PATIENCE_MS = 60_000


class TokenBucket:
    """A token bucket. Who waits leaves the rest in the container's own pipe."""

    def __init__(
        self, clock: Clock, *, at_once: int = FRAMES_AT_ONCE, a_second: float = FRAMES_A_SECOND
    ) -> None:
        self._clock = clock
        self._at_once = at_once
        self._a_second = a_second
        self._left = float(at_once)
        self._at_ms = clock.steady_ms()
        self._waited_ms = 0.0

    @property
    def is_overrun(self) -> bool:
        """Whether it was waited for longer than anybody who means well makes others wait."""
        return self._waited_ms > PATIENCE_MS

    async def wait(self, cost: int = 1) -> None:
        """Take `cost` tokens, waiting for them when there are none."""
        seconds = self.take(cost)
        if seconds > 0:
            self._waited_ms += seconds * 1000
            await asyncio.sleep(seconds)

    def take(self, cost: int) -> float:
        """Take `cost` tokens; gives in how many seconds they are there."""
        now_ms = self._clock.steady_ms()
        more = (now_ms - self._at_ms) / 1000 * self._a_second
        self._left = min(self._at_once, self._left + more) - cost
        self._at_ms = now_ms
        return max(0.0, -self._left / self._a_second)
