"""At the start of a host, take over the containers that an earlier host left: read on, or end them."""

from __future__ import annotations

import asyncio

import structlog

from agent_runner.wire.order import TurnOrder
from orchestrator.containers.live_runs import LiveRuns
from orchestrator.containers.output import OutputReader
from orchestrator.containers.ports import PoolContext
from orchestrator.containers.start import RunCreator
from orchestrator.containers.termination import (
    IMAGE_REPLACED,
    Orphan,
    Orphans,
    RunEnd,
    RunEndKind,
    Termination,
)
from orchestrator.domain.protocols import RunningContainer
from orchestrator.domain.values import Group, Run, RunState, Turn
from orchestrator.store.groups import groups
from orchestrator.store.runs import runs, sessions, turns

log = structlog.get_logger(__name__)

LOST = RunEnd(kind=RunEndKind.LOST, reason="Andy was restarted while I worked.", is_retryable=True)
UNUSED = RunEnd(kind=RunEndKind.CLOSED, reason="closed: nobody had asked anything", is_retryable=True)
STOPPED_IDLE = RunEnd(kind=RunEndKind.STOPPED, reason="Andy was restarted.", is_retryable=True)


class Reattachment:
    """Takes over the containers of an earlier host, once, before the queue runs."""

    def __init__(
        self,
        context: PoolContext,
        live_runs: LiveRuns,
        *,
        creator: RunCreator,
        reader: OutputReader,
        termination: Termination,
        orphans: Orphans,
    ) -> None:
        """`creator` composes orders, `reader` reads output, `termination` and `orphans` end containers."""
        self._context = context
        self._live_runs = live_runs
        self._creator = creator
        self._reader = reader
        self._termination = termination
        self._orphans = orphans

    async def run(self) -> None:
        """Take over the containers that an earlier process of the host left.

        Called once, at the host's start. Containers whose run is recorded as live are read again, from the
        start of their output. Other containers are removed. A recorded run without a container has ended: its
        turn is queued again.

        Raises:
            EngineGone: the engine does not answer.
        """
        containers = {container.run_id: container for container in await self._context.runtime.adopt()}
        async with self._context.database.reading() as tx:
            recorded = {run.id: run for run in await runs.live(tx)}
            runs_with_turn = {run_id for run_id in recorded if await turns.running_in(tx, run_id) is not None}
        # Files in an input folder for any other run will be read by nobody.
        files = self._context.ports.files
        await asyncio.to_thread(files.remove_files_of_others, containers.keys() & recorded.keys())
        for run_id, container in containers.items():
            if run_id in recorded:
                await self._take_over(recorded[run_id], container)
            else:
                orphan = Orphan(run_id=run_id, folder=container.folder, is_isolated=False, may_work=True)
                await self._orphans.remove(container, orphan)
        for run_id, run in recorded.items():  # in the order in which they began
            if run_id in containers:
                continue
            await self._context.logs.resume(run)
            # A host that stops under Compose ends idle containers, too: nobody lost anything by that.
            await self._termination.settle(run, LOST if run_id in runs_with_turn else STOPPED_IDLE)

    async def _take_over(self, run: Run, container: RunningContainer) -> None:
        """Read the output of an earlier host's container again, from its start, in a task of its own.

        If its turn may not have reached it, the turn is written again. If that fails, or the group is gone,
        the container is stopped, which queues the turn. A container that was started ahead and has had no
        turn is removed instead. One of an earlier image is closed, after its turn if it has one.
        """
        ports = self._context.ports
        async with self._context.database.reading() as tx:
            turn = await turns.running_in(tx, run.id)
            group = await groups.by_folder(tx, run.folder)
            is_acknowledged = turn is not None and await turns.acked_ms(tx, turn.id) is not None
            session_id = await sessions.current(tx, run.folder)
        is_first = run.last_frame == 0  # the container has reported nothing that was recorded
        if is_first and turn is None:
            # It was started ahead and has no turn: nobody waits for it, and its environment may be outdated.
            await self._orphans.remove(container, Orphan.of(run))
            await self._termination.settle(run, UNUSED)
            return
        await ports.mailboxes.watch(run.folder)
        await self._context.logs.resume(run)
        live = self._live_runs.admit(run, RunState.IDLE if turn is None else RunState.BUSY)
        # Its silence counts from now: while the host was away, nobody could read its frames.
        live.container = container
        live.is_adopted = True
        live.last_frame_ms = self._context.clock.steady_ms()
        live.session_id = session_id
        live.is_retired = container.is_outdated
        if group is not None:
            live.apply_config(group)
        # Without its group, the turn cannot be written, and fails once it is queued again.
        is_written = turn is None or is_acknowledged or group is not None
        if turn is not None and group is not None and not is_acknowledged:
            # The file may never have been written; a runner takes each turn once.
            try:
                order = await self._compose_again(run, turn, group, is_first=is_first)
                await ports.before_turn(turn)
                await asyncio.to_thread(ports.files.write_turn, run.folder, order)
            except Exception as error:  # one group's order, which prevents no start of the host
                log.exception("turn.not_written", turn=turn.id, run=run.id, reason=str(error))
                is_written = False
        self._termination.serve_in_task(live, self._reader.follow(live, container))
        self._context.bus.publish("run.adopted", group=run.folder, run=run.id)
        if not is_written:
            await self._termination.kill_unwritten(live)
        elif live.is_retired and live.state is RunState.IDLE:
            # Its remaining output is read; the next question goes to a container of the present image.
            await self._termination.close(live, reason=IMAGE_REPLACED)

    async def _compose_again(self, run: Run, turn: Turn, group: Group, *, is_first: bool) -> TurnOrder:
        """Compose the order of a turn once more, and return it: it may not have reached its container.

        `is_first` says that it is the first turn of the run.
        """
        # With its first turn, a run that was started ahead gets its model, session and limits. Any other run
        # has them already and ignores them.
        if is_first:
            return await self._creator.recreate_first_turn(run, turn, group)
        async with self._context.database.reading() as tx:
            return await self._context.ports.compose(tx, turn, group, run.id)
