"""One container's life as a job: started or adopted, heard to its end, settled, its slot freed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import structlog

from orchestrator.containers import exit_classification
from orchestrator.containers.live_run import LiveRunState
from orchestrator.containers.live_runs import LiveRuns
from orchestrator.containers.orphans import Orphan, Orphans
from orchestrator.containers.ports import PoolContext
from orchestrator.containers.termination import Termination
from orchestrator.domain.values import RunState

log = structlog.get_logger(__name__)


class RunTasks:
    """The jobs of all lives, each a task of its own."""

    def __init__(
        self, around: PoolContext, lives: LiveRuns, *, ending: Termination, leftovers: Orphans
    ) -> None:
        self._around = around
        self._lives = lives
        self._ending = ending
        self._leftovers = leftovers

    def spawn(self, life: LiveRunState, living: Awaitable[exit_classification.RunEnd]) -> None:
        """Let it live until `living` tells how it ended."""
        life.task = self._around.tasks.create_task(self._live(life, living), name=f"run:{life.run.id}")

    async def _live(self, life: LiveRunState, living: Awaitable[exit_classification.RunEnd]) -> None:
        """One job: whatever goes wrong in it ends this life alone, recorded."""
        try:
            ended = await living
        except Exception:
            log.exception("run.broke", run=life.run.id, group=life.run.folder)
            ended = exit_classification.RunEnd(
                kind=exit_classification.RunEndKind.CRASHED,
                reason="something went wrong inside Andy.",
                is_retryable=True,
            )
        life.enter(RunState.CLOSING, self._around.clock.steady_ms())  # it is given no turn any more
        await self._ending.settle_surely(life, ended)
        await asyncio.to_thread(self._around.ties.forget_run, life.run.folder, life.run.id)
        if life.container is not None and not life.has_exited:
            await self._leftovers.remove(life.container, Orphan.of(life.run))
        await self._vacate(life)
        if life.container is not None and life.has_exited:
            # What is left of it holds no slot: whoever waits for one need not wait for this.
            await self._leftovers.remove(life.container, Orphan.of(life.run, may_work=False))

    async def _vacate(self, life: LiveRunState) -> None:
        self._lives.vacate(life)
        if not self._lives.of(life.run.folder):
            await self._around.ties.unwatch(life.run.folder)
