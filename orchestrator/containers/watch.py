"""Watches over lives: ends those whose time is over, and what is left of those given up."""

from __future__ import annotations

from contextlib import suppress

from orchestrator.containers import timeouts
from orchestrator.containers.live_runs import LiveRuns
from orchestrator.containers.orphans import Orphans
from orchestrator.containers.ports import PoolContext
from orchestrator.containers.termination import Termination
from orchestrator.domain.errors import EngineGone
from orchestrator.domain.values import RunState

REAP_SECONDS = 2.0


class TimeoutLoop:
    """The reaper's loop; what it thinks of a life is in `timeouts`."""

    def __init__(
        self, around: PoolContext, lives: LiveRuns, *, ending: Termination, leftovers: Orphans
    ) -> None:
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
            verdict = timeouts.judge(life.vitals(), life.limits(self._around.limits), now_ms=now_ms)
            if verdict is None:
                continue
            if not verdict.kill and life.state is RunState.IDLE:
                await self._ending.close(life, reason=verdict.reason)
            elif verdict.kill and life.container is not None and life.verdict is None:
                await self._ending.end(life, verdict)
        with suppress(EngineGone):  # it is asked again at the next look
            await self._leftovers.end_all()
