"""One container's life as a job: started or adopted, heard to its end, settled, its slot freed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import structlog

from orchestrator.containers import exit_classification
from orchestrator.containers.live_run import Life
from orchestrator.containers.live_runs import Lives
from orchestrator.containers.orphans import Left, Leftovers
from orchestrator.containers.ports import Surroundings
from orchestrator.containers.termination import Ending
from orchestrator.domain.values import RunState

log = structlog.get_logger(__name__)


class Living:
    """The jobs of all lives, each a task of its own."""

    def __init__(self, around: Surroundings, lives: Lives, *, ending: Ending, leftovers: Leftovers) -> None:
        self._around = around
        self._lives = lives
        self._ending = ending
        self._leftovers = leftovers

    def spawn(self, life: Life, living: Awaitable[exit_classification.Outcome]) -> None:
        """Let it live until `living` tells how it ended."""
        life.task = self._around.tasks.create_task(self._live(life, living), name=f"run:{life.run.id}")

    async def _live(self, life: Life, living: Awaitable[exit_classification.Outcome]) -> None:
        """One job: whatever goes wrong in it ends this life alone, recorded."""
        try:
            ended = await living
        except Exception:
            log.exception("run.broke", run=life.run.id, group=life.run.folder)
            ended = exit_classification.Outcome(
                kind=exit_classification.Kind.CRASHED,
                reason="something went wrong inside Andy.",
                is_retryable=True,
            )
        life.enter(RunState.CLOSING, self._around.clock.steady_ms())  # it is given no turn any more
        await self._ending.settle_surely(life, ended)
        await asyncio.to_thread(self._around.ties.forget_run, life.run.folder, life.run.id)
        if life.container is not None and not life.has_exited:
            await self._leftovers.remove(life.container, Left.of(life.run))
        await self._vacate(life)
        if life.container is not None and life.has_exited:
            # What is left of it holds no slot: whoever waits for one need not wait for this.
            await self._leftovers.remove(life.container, Left.of(life.run, may_work=False))

    async def _vacate(self, life: Life) -> None:
        self._lives.vacate(life)
        if not self._lives.of(life.run.folder):
            await self._around.ties.unwatch(life.run.folder)
