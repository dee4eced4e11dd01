"""A new container: what it is made of, and its start."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import structlog

from agent_runner.wire.order import RunOrder
from orchestrator.containers import exit_classification
from orchestrator.containers.live_run import LiveRunState
from orchestrator.containers.orphans import Orphan, Orphans
from orchestrator.containers.output import OutputReader
from orchestrator.containers.ports import PoolContext
from orchestrator.containers.run_creation import NewRun, RunCreator
from orchestrator.domain.errors import ContainerError, EngineGone
from orchestrator.domain.failures import Outage
from orchestrator.domain.protocols import ContainerSpec, Mount, RunningContainer
from orchestrator.domain.values import Run, RunState, Turn
from orchestrator.groups import settings
from orchestrator.store import runs, turn_outages

log = structlog.get_logger(__name__)

PREPARE_SECONDS = 120.0
"""How long it takes at the most to prepare a container: a folder on a disk that hangs gives its slot back."""
SLOW_SECONDS = 20.0
"""A start that takes longer is told as one that has to wait."""
NOTHING_TO_DO = exit_classification.RunEnd(
    kind=exit_classification.RunEndKind.CLOSED,
    reason="there was nothing to answer any more.",
    is_retryable=False,
)


class ContainerStarter:
    """Starts containers, and hands them to who hears them."""

    def __init__(
        self, around: PoolContext, *, beginning: RunCreator, hearing: OutputReader, leftovers: Orphans
    ) -> None:
        self._around = around
        self._beginning = beginning
        self._hearing = hearing
        self._leftovers = leftovers

    async def launch(self, life: LiveRunState, turn: Turn) -> exit_classification.RunEnd:
        """Begin a run for a turn, start its container and hear that to its end."""
        launch = await self._beginning.begin(life, turn)
        if launch is None:
            return NOTHING_TO_DO
        try:
            async with asyncio.timeout(PREPARE_SECONDS):
                spec = await self._prepare(launch)
            if (stopped := life.sentence()) is not None:
                return stopped
            container = await self._start(life, spec, launch.order)
        except (ContainerError, OSError) as error:
            return exit_classification.classify(error)
        life.container = container
        life.enter(RunState.BUSY, self._around.clock.steady_ms())
        async with self._around.database.transaction() as tx:
            await runs.note_ref(tx, life.run.id, container.ref)
            await turn_outages.end(tx, turn.id, Outage.ENGINE)
        self._around.bus.publish(
            "run.started", group=life.run.folder, run=life.run.id, detail=container.ref[:12]
        )
        return await self._hearing.follow(life, container)

    async def _prepare(self, launch: NewRun) -> ContainerSpec:
        """Make what its container will find.

        Raises:
            ContainerError, OSError: it is not to be started.
        """
        run = launch.run
        await self._free_session(run)
        mounts = await self._around.ties.prepare(launch.group)
        self._around.logs.note(run.id, "run.mounts", _seen(mounts))
        await self._around.ties.watch(run.folder)
        spec = _spec(launch, mounts)
        if spec.is_open:
            log.warning("run.reaches_the_internet", run=run.id, group=run.folder)
        return spec

    async def _start(self, life: LiveRunState, spec: ContainerSpec, order: RunOrder) -> RunningContainer:
        waiting = self._around.tasks.create_task(self._note_slow(life), name=f"slow-start:{life.run.id}")
        try:
            return await self._around.runtime.start(spec, order.to_json())
        except EngineGone:
            # It may have been made all the same. It was not told what to do.
            self._leftovers.add(Orphan.of(life.run, may_work=False))
            raise
        finally:
            waiting.cancel()

    async def _note_slow(self, life: LiveRunState) -> None:
        """Have whoever asked told: the engine's own timeout, a minute, would be too late for that."""
        await asyncio.sleep(SLOW_SECONDS)
        await self._hearing.note_outage(life)

    async def _free_session(self, run: Run) -> None:
        """See what was given up before ended first: two containers on one session would lose a branch of it.

        Raises:
            ContainerError: what may still work on the session of this run cannot be ended.
        """
        await self._leftovers.end_all()
        if self._leftovers.hold_session_of(run):
            raise ContainerError("An earlier container of this group cannot be ended: see 'andy status'.")


def _spec(launch: NewRun, mounts: Sequence[Mount]) -> ContainerSpec:
    run, config = launch.run, settings.of(launch.group)
    spec = ContainerSpec(run_id=run.id, folder=run.folder, mounts=mounts, environment=launch.environment)
    return replace(
        spec,
        memory_bytes=config.memory_mb * 1024**2 if config.memory_mb else spec.memory_bytes,
        cpus=config.cpus or spec.cpus,
        is_open=config.egress == "open",
    )


def _seen(mounts: Sequence[Mount]) -> dict[str, object]:
    """The mounts as a container sees them."""
    targets = (f"{mount.target}:{'rw' if mount.is_writable else 'ro'}" for mount in mounts)
    return {"targets": ",".join(targets)}
