"""The pool of live containers: the queue's view of them, and its operations on them.

The module `start` records a run (`RunCreator`) and creates its container (`ContainerStarter`), `output` reads
its frames, `timeouts` decides when it has to end, `termination` ends it, records that, and removes
containers that were given up (`Orphans`). `reattach` takes over an earlier host's containers. `live_runs` has
the state of all containers.
"""

from __future__ import annotations

import asyncio
from functools import partial

import structlog

from agent_runner.wire.order import TurnOrder
from orchestrator.base.clock import Clock
from orchestrator.base.event_bus import EventBus
from orchestrator.base.wakeups import Wakeups
from orchestrator.containers import timeouts
from orchestrator.containers.live_runs import ForesightFigures, LiveRuns, LiveRunState
from orchestrator.containers.logs.run_log import RunLogs
from orchestrator.containers.output import OutputReader
from orchestrator.containers.ports import PoolContext, RunPorts
from orchestrator.containers.reattach import Reattachment
from orchestrator.containers.start import ContainerStarter, RunCreator, is_queued
from orchestrator.containers.termination import GROUP_CHANGED, Orphans, Termination, stop_container
from orchestrator.domain.protocols import ContainerRuntime
from orchestrator.domain.turn_signs import Sign
from orchestrator.domain.values import Folder, Group, LiveRun, RunId, RunState, Turn, TurnId
from orchestrator.store.database import Database, Tx, after_commit
from orchestrator.store.groups import groups
from orchestrator.store.runs import turns

__all__ = ["RunPool", "RunPorts"]

log = structlog.get_logger(__name__)

REAP_SECONDS = 2.0
"""Seconds between two checks of the timeouts while there is a run or an orphan."""
STOP_ALL_SECONDS = 10
"""Seconds that the host waits at its end for the containers that it stops."""
WRITE_SECONDS = 0.2
"""Seconds that the queue waits until a turn is written for a live container; then
it continues without waiting.
"""


class RunPool:
    """All live containers of this host. Its methods are called from the event loop only."""

    def __init__(
        self,
        database: Database,
        runtime: ContainerRuntime,
        ports: RunPorts,
        *,
        limits: timeouts.RunTimeouts,
        logs: RunLogs,
        clock: Clock,
        tasks: asyncio.TaskGroup,
        wakeups: Wakeups,
        bus: EventBus,
        image: str = "",
    ) -> None:
        """Build the parts of the pool; no run is started yet.

        `ports` are the functions of other packages that the pool calls, and `limits` the time limits of runs.
        `tasks` is the task group in which each run has a task. `wakeups` wakes other loops of the host, such
        as the dispatcher. `bus` publishes events of runs and turns. `image` is the name of the agent image,
        empty for ordinary processes.
        """
        self._context = context = PoolContext(
            database=database,
            runtime=runtime,
            ports=ports,
            limits=limits,
            logs=logs,
            clock=clock,
            tasks=tasks,
            wakeups=wakeups,
            bus=bus,
            image=image,
        )
        self._live_runs = live_runs = LiveRuns(limits=limits, clock=clock, wakeups=wakeups)
        self._orphans = orphans = Orphans(context)
        self._termination = termination = Termination(context, live_runs, orphans)
        reader = OutputReader(context, termination=termination, orphans=orphans)
        self._creator = creator = RunCreator(context)
        self._starter = ContainerStarter(context, creator=creator, reader=reader, orphans=orphans)
        self._reattachment = Reattachment(
            context, live_runs, creator=creator, reader=reader, termination=termination, orphans=orphans
        )

    # For the queue

    def live(self) -> list[LiveRun]:
        """Return every container that occupies a slot, and those that were given up but may still exist."""
        return self._live_runs.as_runs() + self._orphans.as_runs()

    async def draft(self, run_id: RunId | None, turn_id: TurnId) -> str:
        """Return the text that the model is writing for a turn now, with secrets removed; empty if none.

        `run_id` is the run in which the turn runs; None if it runs in none.
        """
        live = self._live_runs.get(run_id) if run_id else None
        text = live.draft.of(turn_id) if live else ""
        return await asyncio.to_thread(self._context.ports.redact, text) if text else ""

    async def start(self, turn: Turn) -> None:
        """Give a queued turn to a new container.

        A slot is taken at once. The container is created, and its output read, in a task of its own, so this
        does not wait.
        """
        live = self._live_runs.admit(self._creator.new_run(turn), RunState.STARTING, turn_id=turn.id)
        self._termination.serve_in_task(live, self._starter.run(live, turn))

    def start_ahead(self, group: Group, sign: Sign, *, is_isolated: bool) -> None:
        """Start a container for a group ahead of its first turn, in a task of its own.

        It takes a slot at once. `sign` is the event that makes a turn likely, such as that somebody types.
        For each sign, the pool counts the containers that got a turn and those that did not. `is_isolated`
        says whether the turn continues no conversation.
        """
        live = self._live_runs.admit(
            self._creator.new_standby(group, is_isolated=is_isolated), RunState.STARTING
        )
        live.sign = sign
        live.is_unused = True
        self._context.bus.publish("run.ahead", group=group.folder, run=live.run.id, detail=sign.value)
        self._termination.serve_in_task(live, self._starter.run_ahead(live, group))

    @property
    def foresight(self) -> ForesightFigures:
        """The counts of containers that were started ahead of their first turn."""
        return self._live_runs.foresight

    async def hand_over(self, turn: Turn, run_id: RunId) -> None:
        """Give a queued turn to a live container that waits for one; do nothing if it has ended or is busy.

        A container that was started ahead (READY) gets its first turn in a task of its own. For an idle one
        this waits until the file with the turn is written, for at most `WRITE_SECONDS`.
        """
        live = self._live_runs.get(run_id)
        if live is not None and live.state is RunState.READY:
            # The state of its conversation is read from files: other groups do not wait for that.
            live.enter(RunState.BUSY, self._context.clock.steady_ms())
            live.turn_id = turn.id
            self._context.tasks.create_task(self._begin(live, turn), name=f"begin:{run_id}")
        elif live is not None and live.state is RunState.IDLE:
            order = await self._record_hand_over(turn, live)
            if order is not None:
                # Its files are read first. If that takes long, no other group waits for it.
                writing = self._context.tasks.create_task(
                    self._write(live, turn, order), name=f"write:{run_id}"
                )
                await asyncio.wait({writing}, timeout=WRITE_SECONDS)

    async def _begin(self, live: LiveRunState, turn: Turn) -> None:
        """Give its first turn to a container that was started ahead, and wake the queue.

        The caller has made the run BUSY and set its `turn_id`, which reserves it for the turn: the queue
        gives it no other one. Once the store has begun the turn, or there is none, the reservation ends. If
        the turn is gone, or the container does not fit the group any more, the container is ended. The queue
        then starts another one for the turn.
        """
        try:
            order = await self._creator.begin_standby(live, turn)
        except Exception:
            # An unexpected error must not leave a container busy for ever: it is ended like one without a
            # turn.
            log.exception("turn.not_begun", turn=turn.id, run=live.run.id)
            order = None
        live.turn_id = None  # only the reservation: the store knows from here on which turn runs in it
        if order is not None:
            self._live_runs.foresight.count_hit(live)
            await self._write(live, turn, order)
        elif live.state is RunState.BUSY:
            self._termination.dismiss(live, reason="its turn is gone, or it did not fit any more")
        self._context.wakeups.lanes.set()

    async def _write(self, live: LiveRunState, turn: Turn, order: TurnOrder) -> None:
        """Snapshot the group's files, write the file by which a container gets a turn, and publish that.

        The turn is recorded as running in the run already. If the file cannot be written, the run is killed,
        which queues the turn again.
        """
        run_id = live.run.id
        # This takes the snapshot, and before the file is written, because from then on the agent may change
        # the group's files.
        await self._context.ports.before_turn(turn)
        try:
            await asyncio.to_thread(self._context.ports.files.write_turn, turn.folder, order)
        except Exception as error:
            log.exception("turn.not_written", turn=turn.id, run=run_id, reason=str(error))
            # The store has the turn as running in this run, so only the end of the run queues it again.
            await self._termination.kill_unwritten(live)
            return
        self._context.bus.publish(
            "turn.handed_over", group=turn.folder, turn=turn.id, run=run_id, attempt=turn.attempt
        )

    async def _record_hand_over(self, turn: Turn, live: LiveRunState) -> TurnOrder | None:
        """Record a turn as running in an idle run, and return the turn's order for the container.

        Return None if the run cannot have the turn; the run is idle then as before.
        """
        # The run is busy from here on: it must not be closed, or given another turn, during the write.
        idle_since_ms = live.state_since_ms
        live.enter(RunState.BUSY, self._context.clock.steady_ms())
        order = None
        is_recorded = False
        try:
            order = await self._context.database.write(lambda tx: self._start_turn(tx, turn, live))
            is_recorded = order is not None
        finally:
            if not is_recorded and live.state is RunState.BUSY:
                live.enter(RunState.IDLE, idle_since_ms)
        return order

    async def _start_turn(self, tx: Tx, turn: Turn, live: LiveRunState) -> TurnOrder | None:
        """Record in the transaction that a turn runs in a live container; return the turn's order.

        The caller has set the container's state to BUSY. Return None if that state has changed meanwhile, or
        the turn is not queued any more. Return None, too, and mark the container to end, if the group is gone
        or the container is outdated (`is_retired`, or other settings).
        """
        group = await groups.by_folder(tx, turn.folder)
        if group is None or live.is_retired or not self._still_fits(live, group, turn):
            # It needs another container, with the group's present settings.
            after_commit(tx, partial(self._mark_retired, live))
            return None
        if live.state is not RunState.BUSY or not await is_queued(tx, turn):
            return None
        await turns.start(tx, turn.id, live.run.id, now_ms=self._context.clock.now_ms())
        return await self._context.ports.compose(tx, turn, group, live.run.id)

    def _still_fits(self, live: LiveRunState, group: Group, turn: Turn) -> bool:
        """Return whether a container was made with its group's present settings and the turn's service."""
        chosen = self._context.ports.orders.chosen_agent(group, turn)
        return group.container_config == live.config and chosen.is_recorded_in(live.run)

    def _mark_retired(self, live: LiveRunState) -> None:
        """Let a container end after its present turn, and wake the queue, which then starts another one."""
        live.is_retired = True
        self._context.wakeups.lanes.set()

    async def close(self, run_id: RunId, *, reason: str = "its slot is needed") -> None:
        """End a container that has no turn; do nothing if it has one, or is gone.

        A ready one, which has had no turn yet, is killed; an idle one is asked to close. Its slot becomes
        free once it has ended. `reason` is published.
        """
        live = self._live_runs.get(run_id)
        if live is not None and live.state is RunState.READY:
            self._termination.dismiss(live, reason=reason)
        elif live is not None and live.state is RunState.IDLE:
            await self._termination.close(live, reason=reason)

    async def stop(self, run_id: RunId, reason: str) -> None:
        """Kill a run, whatever its state. A turn in it fails with `reason` and is not tried again.

        Nothing is done for a run that is gone or is being killed already. If the container cannot be stopped
        now, the loop that checks the timeouts tries again.
        """
        live = self._live_runs.get(run_id)
        if live is not None and live.verdict is None:
            # `kill` sets `verdict` as well, but only until it has failed to stop the container.
            live.stop_verdict = timeouts.TimeoutVerdict(kill=True, reason=reason, is_retryable=False)
            await self._termination.kill(live, live.stop_verdict, grace_seconds=0)

    def stop_soon(self, run_id: RunId, reason: str) -> None:
        """Kill a run as `stop` does, in a task of its own."""
        self._context.tasks.create_task(self.stop(run_id, reason), name=f"stop:{run_id}")

    async def retire(self, folder: Folder) -> None:
        """End a group's containers, because the group is gone or has changed. Busy ones finish their turn."""
        for live in self._live_runs.of(folder):
            live.is_retired = True
            await self.close(live.run.id, reason=GROUP_CHANGED)

    # From the host's start to its end

    async def adopt(self) -> None:
        """Read the output of the containers that an earlier process of the host left running, or end them.

        It is called once, before the queue runs. Turns of runs whose container is gone are queued again.

        Raises:
            EngineGone: the engine does not answer.
        """
        await self._reattachment.run()

    async def reap(self) -> None:
        """End overdue containers every `REAP_SECONDS`, until cancelled.

        It sleeps while there is no run, and no container that was given up and is to be removed (an orphan).
        """
        while True:
            is_needed = self._live_runs or self._orphans
            await self._context.wakeups.reaper.wait(at_most_seconds=REAP_SECONDS if is_needed else None)
            await self._termination.end_overdue()

    def tasks(self) -> list[asyncio.Task[None]]:
        """Return the tasks that start the containers and read their output.

        Cancelling them does not end their containers.
        """
        return [live.task for live in self._live_runs if live.task is not None]

    async def drain(self, *, seconds: float) -> None:
        """Wait, at most `seconds`, until no turn runs.

        Containers that still wait for their first turn end at once.
        """
        for live in self._live_runs:
            if live.state is RunState.READY:
                self._termination.dismiss(live, reason="Andy ends")
        busy = (RunState.STARTING, RunState.BUSY)
        with self._context.bus.listening() as events:
            try:
                async with asyncio.timeout(seconds):
                    while any(live.state in busy for live in self._live_runs):
                        await events.get()  # the end of a turn is an event, too
            except TimeoutError:
                log.warning("shutdown.turns_left", running=[live.run.id for live in self._live_runs])

    async def stop_all(self) -> None:
        """Stop every container, also those that are still being made, and wait until their ends are recorded.

        The ends are waited for `STOP_ALL_SECONDS` at most; a container that is still being made then is left.
        Used where no container may outlive the host.
        """
        async with asyncio.TaskGroup() as stopping:
            stops = {
                stopping.create_task(self._stop_when_made(live), name=f"stop:{live.run.id}"): live
                for live in self._live_runs
            }
            if tasks := self.tasks():
                await asyncio.wait(tasks, timeout=STOP_ALL_SECONDS)
            for stop, live in stops.items():
                if live.container is None:  # still being made: it is not waited for any longer
                    stop.cancel()

    async def _stop_when_made(self, live: LiveRunState) -> None:
        """Wait until a run has a container or has ended, and stop the container if there is one."""
        with self._context.bus.listening("run.started") as events:
            # The event alone is not enough: a run that is ended while its container is made does not publish
            # it.
            while live.container is None and not (live.task is not None and live.task.done()):
                started = asyncio.create_task(events.get(), name=f"started:{live.run.id}")
                try:
                    awaited = {started} if live.task is None else {started, live.task}
                    await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    started.cancel()
        if live.container is not None:
            await stop_container(live.container)
