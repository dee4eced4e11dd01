"""Watches over lives: ends those whose time is over, and what is left of those given up."""

from __future__ import annotations

from contextlib import suppress

from orchestrator.container import reaper
from orchestrator.container.ending import Ending
from orchestrator.container.leftovers import Leftovers
from orchestrator.container.lives import Lives
from orchestrator.container.ties import Surroundings
from orchestrator.errors import EngineGone
from orchestrator.models import RunState

REAP_SECONDS = 2.0


class Watching:
    """The reaper's loop; what it thinks of a life is in `reaper`."""

    def __init__(self, around: Surroundings, lives: Lives, *, ending: Ending, leftovers: Leftovers) -> None:
        self._around = around
        self._lives = lives
        self._ending = ending
        self._leftovers = leftovers

    async def run(self) -> None:
        """Look every `REAP_SECONDS`; asleep while nothing lives."""
        while True:
            busy = self._lives or self._leftovers
            await self._around.hints.reaper.wait(at_most_seconds=REAP_SECONDS if busy else None)
            await self._look()

    async def _look(self) -> None:
        now_ms = self._around.clock.steady_ms()
        for life in self._lives:
            verdict = reaper.judge(life.vitals(), life.limits(self._around.limits), now_ms=now_ms)
            if verdict is None:
                continue
            if not verdict.kill and life.state is RunState.IDLE:
                await self._ending.close(life, reason=verdict.reason)
            elif verdict.kill and life.container is not None and life.verdict is None:
                await self._ending.end(life, verdict)
        with suppress(EngineGone):  # it is asked again at the next look
            await self._leftovers.end_all()
