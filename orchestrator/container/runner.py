"""The pool of live containers: starts them, hears them, ends them. The one owner of their lives."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace

import stamina
import structlog

from agent_runner.wire.document import WireError
from agent_runner.wire.frames import (
    Failure,
    Frame,
    FrameDecoder,
    FrameLine,
    Heartbeat,
    Ready,
    parse_frame,
)
from agent_runner.wire.order import AgentName, RunOrder, TurnOrder
from orchestrator import group_config
from orchestrator.clock import Clock
from orchestrator.container import frames, outcome, reaper
from orchestrator.container.life import Life
from orchestrator.container.run_log import RunLogs
from orchestrator.errors import ContainerError, EngineGone, StoreCorrupt, StoreError
from orchestrator.events import Bus
from orchestrator.hints import Hints
from orchestrator.interfaces import ContainerRuntime, ContainerSpec, Exit, Mount, RunningContainer
from orchestrator.models import Folder, Group, LiveRun, Run, RunId, RunState, Turn, TurnState
from orchestrator.pace import Pace
from orchestrator.store import groups, runs, sessions, turns
from orchestrator.store.database import Database, Tx

log = structlog.get_logger(__name__)

REAP_SECONDS = 2.0
REJOIN_SECONDS = 60.0
CHANGED = "its group is gone or has changed"
NO_GROUP = "this group is no longer registered."
REFUSALS_TOLD = 10
TALKS_WITHOUT_END = reaper.Verdict(kill=True, reason="it talked without end.", is_retryable=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ties:
    """What other stages do for the pool; `app` ties them."""

    compose: Callable[[Tx, Turn, Group, RunId], Awaitable[TurnOrder]]
    order: Callable[[Run, Group, TurnOrder, str | None], RunOrder]
    token: Callable[[], tuple[str, str]]
    """A new token and its hash."""
    environment: Callable[[Group, AgentName, str], Mapping[str, str]]
    prepare: Callable[[Group], Awaitable[Sequence[Mount]]]
    """Make the group's directories and tell what a container of it sees."""
    watch: Callable[[Folder], Awaitable[None]]
    """Look at the group's mailboxes from now on."""
    unwatch: Callable[[Folder], Awaitable[None]]
    deposit_turn: Callable[[Folder, TurnOrder], None]
    """Write a turn for a live container; blocking."""
    deposit_close: Callable[[Folder, Sequence[RunId]], None]
    forget_turn: Callable[[Folder, int], None]
    """Remove a turn's file; blocking."""
    give_back: frames.GiveBack
    new_run_id: Callable[[], RunId]


class RunPool:
    """Every live container of this host. Methods are called from the event loop only."""

    def __init__(
        self,
        database: Database,
        runtime: ContainerRuntime,
        ties: Ties,
        *,
        limits: reaper.Limits,
        logs: RunLogs,
        clock: Clock,
        tasks: asyncio.TaskGroup,
        hints: Hints,
        bus: Bus,
    ) -> None:
        self._database = database
        self._runtime = runtime
        self._ties = ties
        self._limits = limits
        self._logs = logs
        self._clock = clock
        self._tasks = tasks
        self._hints = hints
        self._bus = bus
        self._lives: dict[RunId, Life] = {}
        self._suspects: set[RunId] = set()
        """Runs that were given up while their container may live on."""

    # What the lanes see and ask for

    def live(self) -> list[LiveRun]:
        now_ms = self._clock.steady_ms()
        return [
            LiveRun(
                id=life.run.id,
                folder=life.run.folder,
                is_isolated=life.run.is_isolated,
                state=life.state,
                started_ms=life.started_ms,
                idle_since_ms=life.since_ms,
                is_worn=life.is_retired or reaper.is_worn(life.vitals(), self._limits, now_ms=now_ms),
            )
            for life in self._lives.values()
        ]

    async def start(self, turn: Turn) -> None:
        """Give a queued turn to a new container, recorded before it is made."""
        token, token_hash = self._ties.token()
        run = self._new_run(turn, token_hash)
        async with self._database.transaction() as tx:
            group = await groups.by_folder(tx, turn.folder)
            if not await _waits(tx, turn):
                return
            if group is None:
                await turns.settle(
                    tx, turn.id, TurnState.FAILED, reason=NO_GROUP, now_ms=self._clock.now_ms()
                )
                return
            await runs.begin(tx, run)
            await turns.start(tx, turn.id, run.id, now_ms=self._clock.now_ms())
            session = None if run.is_isolated else await sessions.current(tx, turn.folder)
            order = self._ties.order(run, group, await self._ties.compose(tx, turn, group, run.id), session)
        life = self._admit(run, RunState.STARTING)
        self._logs.begin(run, _facts(run, order))
        life.obey(group)
        environment = dict(self._ties.environment(group, order.agent, token))
        self._spawn(life, self._launch(life, group, environment, order))
        self._bus.publish("turn.started", group=turn.folder, turn=turn.id, run=run.id, attempt=turn.attempt)

    async def hand_over(self, turn: Turn, run_id: RunId) -> None:
        """Give a queued turn to a live container, unless that has ended or is busy by now."""
        async with self._database.transaction() as tx:
            life = self._lives.get(run_id)
            group = await groups.by_folder(tx, turn.folder)
            if life is None or life.state is not RunState.IDLE:
                return
            if group is None or group.container_config != life.config:
                life.is_retired = True
                self._hints.lanes.give()
                return
            if not await _waits(tx, turn):
                return
            await turns.start(tx, turn.id, run_id, now_ms=self._clock.now_ms())
            order = await self._ties.compose(tx, turn, group, run_id)
            life.enter(RunState.BUSY, self._clock.steady_ms())
        try:
            await asyncio.to_thread(self._ties.deposit_turn, turn.folder, order)
        except OSError as error:
            log.warning("turn.not_deposited", turn=turn.id, run=run_id, reason=str(error))
            await self._end_life(life, reaper.Verdict(kill=True, reason="I could not write my own files."))
            return
        self._bus.publish(
            "turn.handed_over", group=turn.folder, turn=turn.id, run=run_id, attempt=turn.attempt
        )

    async def close(self, run_id: RunId, *, reason: str = "its slot is needed") -> None:
        """Ask an idle container to end; its slot is free once it has."""
        life = self._lives.get(run_id)
        if life is None or life.state is not RunState.IDLE:
            return
        await self._ask_to_close(life, reason=reason)

    async def stop(self, run_id: RunId, reason: str) -> None:
        """End a run whatever it does; a turn in it fails with `reason`, and is not tried again."""
        life = self._lives.get(run_id)
        if life is not None and life.verdict is None:
            await self._end_life(life, reaper.Verdict(kill=True, reason=reason, is_retryable=False))

    async def retire(self, folder: Folder) -> None:
        """Have a group's containers end: idle ones now, the others after their turn."""
        for life in [one for one in self._lives.values() if one.run.folder == folder]:
            life.is_retired = True
            await self.close(life.run.id, reason=CHANGED)

    # Adoption

    async def adopt(self) -> None:
        """Take over what an earlier host left: hear its containers from the first frame, or end them.

        Called once, before the lanes run. Runs without a container give their turns back.

        Raises:
            EngineGone: the runtime cannot be asked.
        """
        found = {container.run_id: container for container in await self._runtime.adopt()}
        async with self._database.reading() as tx:
            recorded = {run.id: run for run in await runs.live(tx)}
        for run_id, container in found.items():
            if run_id in recorded:
                await self._take_over(recorded[run_id], container)
            else:
                await self._end_container(container)
        for run_id in recorded.keys() - found.keys():
            lost = outcome.Outcome(
                kind=outcome.Kind.LOST, reason="Andy was restarted while I worked.", is_retryable=True
            )
            await self._logs.resume(recorded[run_id])
            await self._settle(recorded[run_id], lost)

    async def _take_over(self, run: Run, container: RunningContainer) -> None:
        async with self._database.reading() as tx:
            turn = await turns.running_in(tx, run.id)
            group = await groups.by_folder(tx, run.folder)
            order = await self._ties.compose(tx, turn, group, run.id) if turn and group else None
        await self._ties.watch(run.folder)
        await self._logs.resume(run)
        life = self._admit(run, RunState.IDLE if turn is None else RunState.BUSY)
        life.container, life.heard_ms = container, self._clock.steady_ms()
        if group is not None:
            life.obey(group)
        if order is not None:
            # The file may never have been written; a runner takes each turn once.
            await asyncio.to_thread(self._ties.deposit_turn, run.folder, order)
        self._spawn(life, self._follow(life, container))
        self._bus.publish("run.adopted", group=run.folder, run=run.id)

    # A life

    def _new_run(self, turn: Turn, token_hash: str) -> Run:
        return Run(
            id=self._ties.new_run_id(),
            folder=turn.folder,
            is_isolated=turn.is_isolated,
            runtime=self._runtime.name,
            container_ref=None,
            token_hash=token_hash,
            last_frame=0,
            started_ms=self._clock.now_ms(),
            ended_ms=None,
            exit_kind=None,
            exit_detail=None,
        )

    def _admit(self, run: Run, state: RunState) -> Life:
        now_ms = self._clock.steady_ms()
        life = Life(
            run=run,
            state=state,
            started_ms=now_ms,
            since_ms=now_ms,
            pace=Pace(self._clock),
            last_frame=run.last_frame,
        )
        self._lives[run.id] = life
        self._hints.reaper.give()
        return life

    def _spawn(self, life: Life, living: Awaitable[outcome.Outcome]) -> None:
        life.task = self._tasks.create_task(self._live(life, living), name=f"run:{life.run.id}")

    async def _live(self, life: Life, living: Awaitable[outcome.Outcome]) -> None:
        """One job: whatever goes wrong in it ends this life alone, recorded."""
        try:
            ended = await living
        except Exception:
            log.exception("run.broke", run=life.run.id, group=life.run.folder)
            ended = outcome.Outcome(
                kind=outcome.Kind.CRASHED, reason="something went wrong inside Andy.", is_retryable=True
            )
        await self._settle_surely(life, ended)
        if life.container is not None and not life.has_exited:
            await self._end_container(life.container)
        await self._vacate(life)
        if life.container is not None and life.has_exited:
            # What is left of it holds no slot: whoever waits for one need not wait for this.
            await self._end_container(life.container)

    async def _vacate(self, life: Life) -> None:
        del self._lives[life.run.id]
        self._hints.lanes.give()
        if all(other.run.folder != life.run.folder for other in self._lives.values()):
            await self._ties.unwatch(life.run.folder)

    async def _launch(
        self, life: Life, group: Group, environment: dict[str, str], order: RunOrder
    ) -> outcome.Outcome:
        try:
            mounts = await self._ties.prepare(group)
            self._logs.note(life.run.id, "run.mounts", _seen(mounts))
            await self._ties.watch(group.folder)
            spec = _spec(life.run, group, mounts, environment)
            if spec.is_open:
                log.warning("run.reaches_the_internet", run=life.run.id, group=group.folder)
            container = await self._runtime.start(spec, order.to_json())
        except (ContainerError, OSError) as error:
            return outcome.classify(error)
        life.container = container
        life.enter(RunState.BUSY, self._clock.steady_ms())
        async with self._database.transaction() as tx:
            await runs.note_ref(tx, life.run.id, container.ref)
        self._bus.publish("run.started", group=group.folder, run=life.run.id, detail=container.ref[:12])
        return await self._follow(life, container)

    async def _follow(self, life: Life, container: RunningContainer) -> outcome.Outcome:
        """Hear a container to its end; when the engine breaks off, look for it again for a while."""
        try:
            await self._hear(life, container)
            if life.has_to_go:
                await self._kill(container)
            exited = await container.wait()
            life.has_exited = True
            return self._judge_exit(life, exited)
        except EngineGone as gone:
            life.container = None  # it cannot be judged by its silence now
            again = await self._rejoin(life)
            if again is None:
                self._suspects.add(life.run.id)
                return outcome.classify(gone)
        life.container, life.heard_ms = again, self._clock.steady_ms()
        self._bus.publish("run.rejoined", group=life.run.folder, run=life.run.id)
        return await self._follow(life, again)

    def _judge_exit(self, life: Life, ended: Exit) -> outcome.Outcome:
        if life.verdict is not None and life.has_to_go:
            return outcome.Outcome(
                kind=outcome.Kind.TIMED_OUT,
                reason=life.verdict.reason,
                is_retryable=life.verdict.is_retryable,
            )
        return outcome.classify(ended, failure=life.failure)

    async def _rejoin(self, life: Life) -> RunningContainer | None:
        try:
            async with asyncio.timeout(REJOIN_SECONDS):
                async for attempt in stamina.retry_context(
                    on=EngineGone, attempts=None, timeout=None, wait_initial=0.5, wait_max=5
                ):
                    with attempt:
                        found = await self._runtime.adopt()
        except TimeoutError:
            return None
        return next((one for one in found if one.run_id == life.run.id), None)

    async def _hear(self, life: Life, container: RunningContainer) -> None:
        """Take what it says until it ends, or has to go.

        What is in its pipe then is not heard any more, and the pipe is closed: an engine does not end a
        container whose output nobody takes.
        """
        decoder = FrameDecoder()
        life.replays = life.last_frame
        async with aclosing(container.output()) as output:
            async for chunk in output:
                for line in decoder.feed(chunk):
                    if isinstance(line, FrameLine) and not life.has_to_go:
                        await self._read(life, line)
                if life.has_to_go:
                    return

    async def _read(self, life: Life, line: FrameLine) -> None:
        try:
            frame = parse_frame(line)
        except WireError as error:
            await self._keep_pace(life)
            life.refused += 1
            if life.refused <= REFUSALS_TOLD or life.refused % 1000 == 0:
                ids = {"run": life.run.id, "group": life.run.folder}
                log.warning("frame.refused", **ids, reason=str(error), count=life.refused)
            return
        life.heard_ms = self._clock.steady_ms()
        is_new = frame.n > life.last_frame  # else it was heard before, by an earlier host or stream
        if is_new or life.replays == 0:
            await self._keep_pace(life)
        else:
            life.replays -= 1
        match frame:
            case Heartbeat() | Ready():
                return
            case Failure():
                life.failure = frames.plain_reason(frame.error)
        if is_new:
            await self._take(life, frame)
            life.last_frame = frame.n

    async def _keep_pace(self, life: Life) -> None:
        await life.pace.wait()
        if life.pace.is_overrun and life.verdict is None:
            self._condemn(life, TALKS_WITHOUT_END)

    async def _take(self, life: Life, frame: Frame) -> None:
        """Record a frame, however often the disk refuses: a frame left out would be a lost answer."""
        async for attempt in _until_stored():
            with attempt:
                async with self._database.transaction() as tx:
                    taken = await frames.take(
                        tx, life.run, frame, give_back=self._ties.give_back, now_ms=self._clock.now_ms()
                    )
        if taken is not None:
            await self._react(life, taken)

    async def _react(self, life: Life, taken: frames.Taken) -> None:
        ids = {"group": life.run.folder, "turn": taken.turn.id, "run": life.run.id}
        if taken.is_acked:
            self._bus.publish("turn.acknowledged", **ids)
            await asyncio.to_thread(self._ties.forget_turn, life.run.folder, taken.turn.id)
        if taken.is_left_out and life.muted_turn != taken.turn.id:
            life.muted_turn = taken.turn.id
            log.warning("result.left_out", **ids, reason="the turn has said enough")
        if taken.ended is None:
            return
        life.enter(RunState.IDLE, self._clock.steady_ms())
        if taken.ended is not TurnState.ANSWERED:
            await self._ask_to_close(life, reason="its turn was not answered")
        elif life.is_retired:
            await self._ask_to_close(life, reason=CHANGED)
        self._bus.publish(
            f"turn.{_word(taken.ended)}", **ids, attempt=taken.turn.attempt, reason=taken.reason
        )
        self._hints.outbox.give()
        self._hints.lanes.give()

    # The end

    async def _settle_surely(self, life: Life, ended: outcome.Outcome) -> None:
        async for attempt in _until_stored():
            with attempt:
                await self._settle(life.run, ended)

    async def _settle(self, run: Run, ended: outcome.Outcome) -> None:
        """Record the end of a run and, in the same transaction, what becomes of its turn."""
        now_ms = self._clock.now_ms()
        async with self._database.transaction() as tx:
            await runs.end(
                tx, run.id, kind=ended.kind.value, detail=ended.detail or ended.reason, now_ms=now_ms
            )
            turn = await turns.running_in(tx, run.id)
            state = None
            if turn is not None:
                state = await self._ties.give_back(
                    tx,
                    turn,
                    reason=ended.reason,
                    is_retryable=ended.is_retryable,
                    now_ms=now_ms,
                    is_at_once=ended.kind is outcome.Kind.LOST,
                )
        level = log.info if ended.kind is outcome.Kind.CLOSED else log.warning
        if ended.detail:
            self._logs.note(run.id, "run.exit", {"detail": ended.detail})
        level("run.ended", run=run.id, group=run.folder, kind=ended.kind.value, reason=ended.reason)
        if turn is not None and state is not None:
            self._bus.publish(
                f"turn.{_word(state)}",
                group=run.folder,
                turn=turn.id,
                run=run.id,
                attempt=turn.attempt,
                reason=ended.reason,
            )
            self._hints.outbox.give()
        self._bus.publish(
            "run.ended", group=run.folder, run=run.id, detail=ended.kind.value, reason=ended.reason
        )

    async def _ask_to_close(self, life: Life, *, reason: str) -> None:
        life.enter(RunState.CLOSING, self._clock.steady_ms())
        self._bus.publish("run.closing", group=life.run.folder, run=life.run.id, reason=reason)
        closing = [
            other.run.id
            for other in self._lives.values()
            if other.run.folder == life.run.folder and other.state is RunState.CLOSING
        ]
        await asyncio.to_thread(self._ties.deposit_close, life.run.folder, closing)
        self._hints.reaper.give()

    async def _end_container(self, container: RunningContainer) -> None:
        try:
            await container.stop()
            await container.remove()
        except ContainerError as error:
            self._suspects.add(container.run_id)
            log.warning("container.left", run=container.run_id, reason=str(error))

    # Watching over lives

    async def reap(self) -> None:
        """The reaper's loop: asleep while nothing lives."""
        while True:
            busy = bool(self._lives or self._suspects)
            await self._hints.reaper.wait(at_most_seconds=REAP_SECONDS if busy else None)
            await self._reap_once()

    async def _reap_once(self) -> None:
        now_ms = self._clock.steady_ms()
        for life in list(self._lives.values()):
            verdict = reaper.judge(life.vitals(), life.limits(self._limits), now_ms=now_ms)
            if verdict is None:
                continue
            if not verdict.kill:
                await self.close(life.run.id, reason=verdict.reason)
            elif life.container is not None and life.verdict is None:
                await self._end_life(life, verdict)
        if self._suspects:
            await self._end_suspects()

    async def _end_life(self, life: Life, verdict: reaper.Verdict) -> None:
        self._condemn(life, verdict)
        if life.container is not None and not await self._kill(life.container):
            life.verdict = None  # the next look at it tries again

    def _condemn(self, life: Life, verdict: reaper.Verdict) -> None:
        life.verdict = verdict
        log.warning("run.killed", run=life.run.id, group=life.run.folder, reason=verdict.reason)
        self._bus.publish("run.killed", group=life.run.folder, run=life.run.id, reason=verdict.reason)

    async def _kill(self, container: RunningContainer) -> bool:
        try:
            await container.stop()
        except ContainerError as error:
            log.warning("container.left", run=container.run_id, reason=str(error))
            return False
        return True

    async def _end_suspects(self) -> None:
        try:
            found = await self._runtime.adopt()
        except EngineGone:
            return
        suspects, self._suspects = self._suspects, set()
        for container in found:
            if container.run_id in suspects and container.run_id not in self._lives:
                await self._end_container(container)

    # Shutting down

    def tasks(self) -> list[asyncio.Task[None]]:
        """The jobs of all lives, for whoever ends the host: cancelled, they leave containers as they are."""
        return [life.task for life in self._lives.values() if life.task is not None]

    async def drain(self, *, seconds: float) -> None:
        """Wait until no turn runs, at most `seconds`."""
        busy = (RunState.STARTING, RunState.BUSY)
        with self._bus.listening() as events:
            try:
                async with asyncio.timeout(seconds):
                    while any(life.state in busy for life in self._lives.values()):
                        await events.get()
            except TimeoutError:
                log.warning("shutdown.turns_left", running=[life.run.id for life in self._lives.values()])

    async def stop_all(self) -> None:
        """End every container, where none may outlive the host."""
        async with asyncio.TaskGroup() as stopping:
            for life in list(self._lives.values()):
                if life.container is not None:
                    stopping.create_task(self._kill(life.container), name=f"stop:{life.run.id}")
        ending = [life.task for life in list(self._lives.values()) if life.task is not None]
        if ending:
            await asyncio.wait(ending, timeout=10)


async def _waits(tx: Tx, turn: Turn) -> bool:
    """Whether a turn is still to begin: its task may have been cancelled since the lanes looked."""
    now = await turns.get(tx, turn.id)
    return now is not None and now.state is TurnState.QUEUED


def _until_stored() -> AsyncIterator[stamina.Attempt]:
    return stamina.retry_context(on=_passes, attempts=None, timeout=None, wait_initial=0.5, wait_max=10)


def _passes(error: Exception) -> bool:
    """A disk has room again some day; a damaged database does not mend itself."""
    return isinstance(error, StoreError) and not isinstance(error, StoreCorrupt)


def _word(state: TurnState) -> str:
    return "put_back" if state is TurnState.QUEUED else state.value


def _spec(run: Run, group: Group, mounts: Sequence[Mount], environment: dict[str, str]) -> ContainerSpec:
    spec = ContainerSpec(run_id=run.id, folder=run.folder, mounts=mounts, environment=environment)
    config = group_config.of(group)
    return replace(
        spec,
        memory_bytes=config.memory_mb * 1024**2 if config.memory_mb else spec.memory_bytes,
        cpus=config.cpus or spec.cpus,
        is_open=config.egress == "open",
    )


def _facts(run: Run, order: RunOrder) -> dict[str, object]:
    """What a run is, for its log. Not what it is asked."""
    return {
        "runtime": run.runtime,
        "agent": order.agent,
        "model": order.model,
        "session": order.session_id or "new",
        "egress": order.egress,
        "isolated": "yes" if run.is_isolated else None,
        "turn_seconds": order.limits.turn_seconds,
    }


def _seen(mounts: Sequence[Mount]) -> dict[str, object]:
    """The mounts as a container sees them."""
    targets = (f"{mount.target}:{'rw' if mount.is_writable else 'ro'}" for mount in mounts)
    return {"targets": ",".join(targets)}
