"""The pool of live containers, as the lanes see it: who lives, start, hand over, close."""

from __future__ import annotations

import asyncio

import structlog

from agent_runner.wire.order import TurnOrder
from orchestrator.base.clock import Clock
from orchestrator.base.event_bus import EventBus
from orchestrator.base.wakeups import Wakeups
from orchestrator.containers import timeouts
from orchestrator.containers.live_run import LiveRunState
from orchestrator.containers.live_runs import LiveRuns
from orchestrator.containers.logs.run_log import RunLogs
from orchestrator.containers.orphans import Orphans
from orchestrator.containers.output import OutputReader
from orchestrator.containers.ports import PoolContext, RunPorts
from orchestrator.containers.reattach import Reattachment
from orchestrator.containers.run_creation import RunCreator, waits
from orchestrator.containers.run_task import RunTasks
from orchestrator.containers.start import ContainerStarter
from orchestrator.containers.termination import CHANGED, Termination
from orchestrator.containers.watch import TimeoutLoop
from orchestrator.domain.protocols import ContainerRuntime
from orchestrator.domain.values import Folder, LiveRun, RunId, RunState, Turn
from orchestrator.store import groups, turns
from orchestrator.store.database import Database, Tx

__all__ = ["RunPool", "RunPorts"]

log = structlog.get_logger(__name__)

NOT_WRITTEN = timeouts.TimeoutVerdict(kill=True, reason="I could not write my own files.")


class RunPool:
    """Every live container of this host. Methods are called from the event loop only."""

    def __init__(
        self,
        database: Database,
        runtime: ContainerRuntime,
        ties: RunPorts,
        *,
        limits: timeouts.RunTimeouts,
        logs: RunLogs,
        clock: Clock,
        tasks: asyncio.TaskGroup,
        hints: Wakeups,
        bus: EventBus,
    ) -> None:
        self._around = around = PoolContext(
            database=database,
            runtime=runtime,
            ties=ties,
            limits=limits,
            logs=logs,
            clock=clock,
            tasks=tasks,
            hints=hints,
            bus=bus,
        )
        self._lives = lives = LiveRuns(limits=limits, clock=clock, hints=hints)
        self._leftovers = leftovers = Orphans(around)
        self._ending = ending = Termination(around, lives)
        self._living = living = RunTasks(around, lives, ending=ending, leftovers=leftovers)
        hearing = OutputReader(around, ending, leftovers)
        self._beginning = beginning = RunCreator(around)
        self._launching = ContainerStarter(around, beginning=beginning, hearing=hearing, leftovers=leftovers)
        self._adoption = Reattachment(
            around, lives, living=living, hearing=hearing, ending=ending, leftovers=leftovers
        )
        self._watching = TimeoutLoop(around, lives, ending=ending, leftovers=leftovers)

    # What the lanes see and ask for

    def live(self) -> list[LiveRun]:
        """Every container that holds a slot, and those that were given up and may still be there."""
        return self._lives.as_runs() + self._leftovers.as_runs()

    async def start(self, turn: Turn) -> None:
        """Give a queued turn to a new container. Its slot is taken at once; all else is its own job."""
        life = self._lives.admit(self._beginning.run_for(turn), RunState.STARTING, turn_id=turn.id)
        self._living.spawn(life, self._launching.launch(life, turn))

    async def hand_over(self, turn: Turn, run_id: RunId) -> None:
        """Give a queued turn to a live container, unless that has ended or is busy by now."""
        life = self._lives.get(run_id)
        if life is None or life.state is not RunState.IDLE:
            return
        order = await self._record_hand_over(turn, life)
        if order is None:
            return
        try:
            await asyncio.to_thread(self._around.ties.deposit_turn, turn.folder, order)
        except Exception as error:
            log.exception("turn.not_deposited", turn=turn.id, run=run_id, reason=str(error))
            await self._ending.end(life, NOT_WRITTEN)
            return
        self._around.bus.publish(
            "turn.handed_over", group=turn.folder, turn=turn.id, run=run_id, attempt=turn.attempt
        )

    async def _record_hand_over(self, turn: Turn, life: LiveRunState) -> TurnOrder | None:
        """Give the turn to the run, which is busy from here on; it is idle as before if that fails."""
        idle_since_ms = life.since_ms
        life.enter(RunState.BUSY, self._around.clock.steady_ms())
        order = None
        is_given = False
        try:
            async with self._around.database.transaction() as tx:
                order = await self._order_for(tx, turn, life)
            is_given = order is not None
        finally:
            if not is_given and life.state is RunState.BUSY:
                life.enter(RunState.IDLE, idle_since_ms)
        return order

    async def _order_for(self, tx: Tx, turn: Turn, life: LiveRunState) -> TurnOrder | None:
        group = await groups.by_folder(tx, turn.folder)
        if group is None or life.is_retired or group.container_config != life.config:
            life.is_retired = True
            self._around.hints.lanes.give()
            return None
        if life.state is not RunState.BUSY or not await waits(tx, turn):
            return None
        await turns.start(tx, turn.id, life.run.id, now_ms=self._around.clock.now_ms())
        return await self._around.ties.compose(tx, turn, group, life.run.id)

    async def close(self, run_id: RunId, *, reason: str = "its slot is needed") -> None:
        """Ask an idle container to end; its slot is free once it has."""
        life = self._lives.get(run_id)
        if life is not None and life.state is RunState.IDLE:
            await self._ending.close(life, reason=reason)

    async def stop(self, run_id: RunId, reason: str) -> None:
        """End a run whatever it does; a turn in it fails with `reason`, and is not tried again."""
        life = self._lives.get(run_id)
        if life is not None and life.verdict is None:
            await self._ending.end(
                life, timeouts.TimeoutVerdict(kill=True, reason=reason, is_retryable=False)
            )

    async def retire(self, folder: Folder) -> None:
        """Have a group's containers end: idle ones now, the others after their turn."""
        for life in self._lives.of(folder):
            life.is_retired = True
            await self.close(life.run.id, reason=CHANGED)

    # From the host's start to its end

    async def adopt(self) -> None:
        """Take over what an earlier host left: hear its containers from the first frame, or end them.

        Called once, before the lanes run. Runs without a container give their turns back.

        Raises:
            EngineGone: the runtime cannot be asked.
        """
        await self._adoption.adopt()

    async def reap(self) -> None:
        """The reaper's loop: asleep while nothing lives."""
        await self._watching.run()

    def tasks(self) -> list[asyncio.Task[None]]:
        """The jobs of all lives, for whoever ends the host: cancelled, they leave containers as they are."""
        return [life.task for life in self._lives if life.task is not None]

    async def drain(self, *, seconds: float) -> None:
        """Wait until no turn runs, at most `seconds`."""
        busy = (RunState.STARTING, RunState.BUSY)
        with self._around.bus.listening() as events:
            try:
                async with asyncio.timeout(seconds):
                    while any(life.state in busy for life in self._lives):
                        await events.get()
            except TimeoutError:
                log.warning("shutdown.turns_left", running=[life.run.id for life in self._lives])

    async def stop_all(self) -> None:
        """End every container, where none may outlive the host."""
        async with asyncio.TaskGroup() as stopping:
            for life in self._lives:
                if life.container is not None:
                    stopping.create_task(self._ending.kill(life.container), name=f"stop:{life.run.id}")
        ending = self.tasks()
        if ending:
            await asyncio.wait(ending, timeout=10)
