"""Takes over what an earlier host left: live containers are heard on, the others ended."""

from __future__ import annotations

import asyncio

from orchestrator.containers import exit_classification
from orchestrator.containers.live_runs import LiveRuns
from orchestrator.containers.orphans import Orphan, Orphans
from orchestrator.containers.output import OutputReader
from orchestrator.containers.ports import PoolContext
from orchestrator.containers.run_task import RunTasks
from orchestrator.containers.termination import Termination
from orchestrator.domain.protocols import RunningContainer
from orchestrator.domain.values import Run, RunState
from orchestrator.store import groups, runs, sessions, turns


class Reattachment:
    """Done once, as a host begins."""

    def __init__(
        self,
        around: PoolContext,
        lives: LiveRuns,
        *,
        living: RunTasks,
        hearing: OutputReader,
        ending: Termination,
        leftovers: Orphans,
    ) -> None:
        self._around = around
        self._lives = lives
        self._living = living
        self._hearing = hearing
        self._ending = ending
        self._leftovers = leftovers

    async def adopt(self) -> None:
        """Hear found containers from their first frame, or end them; settle runs without a container.

        Raises:
            EngineGone: the runtime cannot be asked.
        """
        found = {container.run_id: container for container in await self._around.runtime.adopt()}
        async with self._around.database.reading() as tx:
            recorded = {run.id: run for run in await runs.live(tx)}
        # What is left in a mailbox for any other run, nobody will read.
        await asyncio.to_thread(self._around.ties.forget_all_but, found.keys() & recorded.keys())
        for run_id, container in found.items():
            if run_id in recorded:
                await self._take_over(recorded[run_id], container)
            else:
                left = Orphan(run_id=run_id, folder=container.folder, is_isolated=False, may_work=True)
                await self._leftovers.remove(container, left)
        for run_id in recorded.keys() - found.keys():
            lost = exit_classification.RunEnd(
                kind=exit_classification.RunEndKind.LOST,
                reason="Andy was restarted while I worked.",
                is_retryable=True,
            )
            await self._around.logs.resume(recorded[run_id])
            await self._ending.settle(recorded[run_id], lost)

    async def _take_over(self, run: Run, container: RunningContainer) -> None:
        ties = self._around.ties
        async with self._around.database.reading() as tx:
            turn = await turns.running_in(tx, run.id)
            group = await groups.by_folder(tx, run.folder)
            order = await ties.compose(tx, turn, group, run.id) if turn and group else None
            has_turn = turn is not None and await turns.acked_ms(tx, turn.id) is not None
            session_id = await sessions.current(tx, run.folder)
        await ties.watch(run.folder)
        await self._around.logs.resume(run)
        life = self._lives.admit(run, RunState.IDLE if turn is None else RunState.BUSY)
        life.container, life.heard_ms = container, self._around.clock.steady_ms()
        life.session_id = session_id
        if group is not None:
            life.obey(group)
        if order is not None and not has_turn:
            # The file may never have been written; a runner takes each turn once.
            await asyncio.to_thread(ties.deposit_turn, run.folder, order)
        self._living.spawn(life, self._hearing.follow(life, container))
        self._around.bus.publish("run.adopted", group=run.folder, run=run.id)
