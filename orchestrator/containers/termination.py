"""End runs: ask a container to close or stop it, classify and record its exit, and remove the container.

`Termination` ends the runs that occupy a slot. `Orphans` lists the containers that were given up, because the
engine did not answer or an earlier host left them, and tries to remove them until the runtime has done so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum

import structlog

from orchestrator.containers import timeouts
from orchestrator.containers.live_runs import LiveRuns, LiveRunState
from orchestrator.containers.ports import PoolContext, event_word, until_stored
from orchestrator.domain.errors import ContainerError, EngineGone, ImageMissing
from orchestrator.domain.failures import STOPPED_BY_HAND, FailureOwner
from orchestrator.domain.protocols import Exit, RunningContainer
from orchestrator.domain.values import Folder, LiveRun, Run, RunId, RunState, Turn, TurnId, TurnState
from orchestrator.store.database import Tx
from orchestrator.store.runs import runs, turns

log = structlog.get_logger(__name__)

SIGTERM_CODE, SIGKILL_CODE = 143, 137
MAX_DETAIL_CHARS = 500
GROUP_CHANGED = "its group is gone or has changed"
IMAGE_REPLACED = "its image was replaced"
TURN_NOT_WRITTEN = timeouts.TimeoutVerdict(kill=True, reason="I could not write my own files.")


# How a run ended


class RunEndKind(StrEnum):
    """The way in which a run ended, stored as `exit_kind`."""

    CLOSED = "closed"
    """The run ended normally."""
    STOPPED = "stopped"
    """The run was stopped by a person or a signal."""
    TIMED_OUT = "timed_out"
    OOM_KILLED = "oom_killed"
    CRASHED = "crashed"
    LOST = "lost"
    """The end of the run was not observed."""
    REFUSED = "refused"
    """The runtime did not start it."""
    IMAGE_MISSING = "image_missing"
    ENGINE_GONE = "engine_gone"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnd:
    """The end of a run. `reason` finishes a sentence for a person; `detail` is for the log.

    A turn still open in the run is tried again if `is_retryable`.
    """

    kind: RunEndKind
    reason: str
    is_retryable: bool
    detail: str = ""

    @property
    def fault(self) -> FailureOwner:
        """The cause of the failure: the engine, the image, the host, a restart, or else the turn itself."""
        match self.kind:
            case RunEndKind.ENGINE_GONE:
                return FailureOwner.ENGINE
            case RunEndKind.IMAGE_MISSING:
                return FailureOwner.IMAGE
            case RunEndKind.REFUSED:
                return FailureOwner.HOST
            case RunEndKind.LOST:
                return FailureOwner.RESTART
            case _:
                return FailureOwner.TURN


def classify(end: Exit | ContainerError | OSError, *, failure: str | None = None) -> RunEnd:
    """Return the end of a run from its exit, or from the error that prevented its start or its reading.

    `failure` is the error that the runner reported before it ended, if it did.
    """
    match end:
        case Exit():
            kind, reason = _exit_cause(end)
            detail = _last_line(end.stderr_tail)
            return RunEnd(kind=kind, reason=failure or reason, is_retryable=True, detail=detail)
        case ImageMissing():
            return _failed_start(RunEndKind.IMAGE_MISSING, "my container image is missing.", end)
        case EngineGone():
            return _failed_start(RunEndKind.ENGINE_GONE, "Docker does not answer.", end)
        case ContainerError():
            return _failed_start(RunEndKind.REFUSED, "my container could not be started.", end)
        case OSError():
            return _failed_start(RunEndKind.REFUSED, "my folders could not be prepared.", end)


def classify_exit(live: LiveRunState, exited: Exit) -> RunEnd:
    """Return the end of a live run from the exit of its container.

    If it was decided before to kill the run, the kind and the reason of the end are by that decision. If the
    container closed without a turn in it, the reason is why it was asked to close.
    """
    result = forced_outcome(live) or classify(exited, failure=live.failure)
    if result.kind is RunEndKind.CLOSED and live.state is not RunState.BUSY:
        # No turn was running. The reason for closing is unknown if an earlier host asked the container to
        # close.
        return replace(result, reason=f"closed: {live.close_reason or 'it had nothing to do'}")
    return result


def forced_outcome(live: LiveRunState) -> RunEnd | None:
    """Return the end of a run by the decision to kill it; None if it was not decided to kill it."""
    # If its container could not be stopped, `verdict` is None until the next try. `stop` still has the
    # decision, which also applies if the container ends by itself before that try.
    verdict = live.verdict or live.stop_verdict
    if verdict is None or not verdict.kill:
        return None
    if live.is_unused:
        kind = RunEndKind.CLOSED  # it had no turn, so nothing failed
    elif verdict.reason == STOPPED_BY_HAND:
        kind = RunEndKind.STOPPED
    else:
        kind = RunEndKind.TIMED_OUT
    return RunEnd(kind=kind, reason=verdict.reason, is_retryable=verdict.is_retryable)


def _exit_cause(end: Exit) -> tuple[RunEndKind, str]:
    """Return, for the exit of a container, the kind of its run's end and a sentence for a person."""
    if end.was_oom_killed:
        return RunEndKind.OOM_KILLED, "I ran out of memory."
    match end.code:
        case None:
            return RunEndKind.LOST, "my container vanished."
        case 0:
            return RunEndKind.CLOSED, "my container ended before I had answered."
        case code if code == SIGTERM_CODE:
            return RunEndKind.STOPPED, "my container was stopped."
        case code if code == SIGKILL_CODE:
            return RunEndKind.CRASHED, "my container was killed."
        case code:
            return RunEndKind.CRASHED, f"my container crashed (exit code {code})."


def _failed_start(kind: RunEndKind, reason: str, error: Exception) -> RunEnd:
    """Return the end of a run whose container was not started because of `error`. Its turn is tried again."""
    return RunEnd(kind=kind, reason=reason, is_retryable=True, detail=str(error))


def _last_line(text: str) -> str:
    """Return the last line of a text, of a long one only the last `MAX_DETAIL_CHARS` characters."""
    lines = text.strip().splitlines()
    return lines[-1][-MAX_DETAIL_CHARS:] if lines else ""


# Containers that were given up


@dataclass(frozen=True, slots=True, kw_only=True)
class Orphan:
    """A container whose output the host no longer reads."""

    run_id: RunId
    folder: Folder
    is_isolated: bool
    """Whether another container of its group may run at the same time."""
    may_work: bool
    """Whether it may still be running and continue its group's session."""

    @classmethod
    def of(cls, run: Run, *, may_work: bool = True) -> Orphan:
        """Return the description of the container of `run` as one that was given up.

        `may_work` says whether it may still be running and work on a turn.
        """
        return cls(
            run_id=run.id,
            folder=run.folder,
            is_isolated=_shares_nothing(run),
            may_work=may_work,
        )


class Orphans:
    """The containers that were given up.

    While one may work on a session, no other is started on that session.
    """

    def __init__(self, context: PoolContext) -> None:
        """Begin without any container."""
        self._context = context
        self._by_run: dict[RunId, Orphan] = {}
        self._since_ms: dict[RunId, int] = {}
        """The time at which each was given up, by the steady clock."""
        self._removing = asyncio.Lock()

    def __len__(self) -> int:
        """Return the number of containers that are to be removed."""
        return len(self._by_run)

    def add(self, orphan: Orphan) -> None:
        """Add a container, which may exist or not, to those that are to be removed."""
        self._by_run[orphan.run_id] = orphan
        self._since_ms.setdefault(orphan.run_id, self._context.clock.steady_ms())
        self._context.wakeups.reaper.set()

    def blocks_session_of(self, run: Run) -> bool:
        """Return whether `run` must not start: one of these containers may still work on its session."""
        return not _shares_nothing(run) and any(
            orphan.folder == run.folder and orphan.may_work and not orphan.is_isolated
            for orphan in self._by_run.values()
        )

    def as_runs(self) -> list[LiveRun]:
        """Return these containers as runs in the state `LEFT`, for the queue. They occupy no slot."""
        return [
            LiveRun(
                id=orphan.run_id,
                folder=orphan.folder,
                is_isolated=orphan.is_isolated,
                state=RunState.LEFT,
                started_ms=self._since_ms[orphan.run_id],
                idle_since_ms=self._since_ms[orphan.run_id],
            )
            for orphan in self._by_run.values()
        ]

    async def remove(self, container: RunningContainer, orphan: Orphan) -> None:
        """Stop and remove a container, whatever its state.

        If that fails, `orphan` describes it in the list of containers that are to be removed later.
        """
        try:
            if await _try_stop(container):
                orphan = replace(orphan, may_work=False)
            await container.remove()
        except ContainerError as error:
            if orphan.run_id not in self._by_run:
                log.warning("container.left", run=orphan.run_id, group=orphan.folder, reason=str(error))
            self.add(orphan)
        else:
            self._forget(orphan.run_id)

    async def remove_all(self) -> None:
        """Try to remove all listed containers, and forget those that no longer exist.

        Raises:
            EngineGone: the runtime does not answer.
            ContainerError: it refuses to list its containers.
        """
        async with self._removing:
            # A copy, because a container that is given up while the runtime is asked may be missing in its
            # answer although it exists. It must not be forgotten.
            listed = dict(self._by_run)
            if not listed:
                return
            containers = {container.run_id: container for container in await self._context.runtime.adopt()}
            for run_id in listed.keys() - containers.keys():
                self._forget(run_id)
            async with asyncio.TaskGroup() as removals:
                for run_id in listed.keys() & containers.keys():
                    removals.create_task(
                        self.remove(containers[run_id], listed[run_id]), name=f"end:{run_id}"
                    )

    def _forget(self, run_id: RunId) -> None:
        """Forget an orphan, which the runtime has removed or never had."""
        self._by_run.pop(run_id, None)
        self._since_ms.pop(run_id, None)


def _shares_nothing(run: Run) -> bool:
    """Return whether a run has no session or folder in common with other runs of its group.

    True for an isolated run, unless it is restricted to a role: restricted runs of a group share a folder.
    """
    return run.is_isolated and run.role is None


async def _try_stop(container: RunningContainer) -> bool:
    """Stop a container; return False if the engine refused.

    A refusal is only logged, because the caller removes the container next, which ends it, too.

    Raises:
        EngineGone: no engine answers.
    """
    try:
        await container.stop()
    except EngineGone:
        raise
    except ContainerError as error:
        log.warning("container.not_stopped", run=container.run_id, reason=str(error))
        return False
    return True


# Runs that occupy a slot


@dataclass(frozen=True, slots=True)
class _SettledTurn:
    """The turn of an ended run, with the turn's new state."""

    turn: Turn
    state: TurnState


class Termination:
    """Ends runs that occupy a slot, records their ends, and frees their slots."""

    def __init__(self, context: PoolContext, live_runs: LiveRuns, orphans: Orphans) -> None:
        """`live_runs` are the runs that occupy a slot; `orphans` has containers that were given up."""
        self._context = context
        self._live_runs = live_runs
        self._orphans = orphans

    def serve_in_task(self, live: LiveRunState, work: Awaitable[RunEnd]) -> None:
        """Serve a run in a new task: await `work`, then end the run.

        `work` starts or re-attaches the run's container and reads its output to the end. After that, the same
        task records the run's end, removes its container and frees its slot.
        """
        live.task = self._context.tasks.create_task(self._run_to_end(live, work), name=f"run:{live.run.id}")

    async def _run_to_end(self, live: LiveRunState, work: Awaitable[RunEnd]) -> None:
        """Await `work`, which reads a container's output to its end; then record how the run ended.

        Also free the run's slot.

        The turn in the run is queued again or fails, if it was not answered. The container and its files are
        removed.
        """
        try:
            run_end = await work
        except Exception:
            # An unexpected error must end this run alone and not the host. It is recorded like any other end.
            log.exception("run.broke", run=live.run.id, group=live.run.folder)
            run_end = RunEnd(
                kind=RunEndKind.CRASHED, reason="something went wrong inside Andy.", is_retryable=True
            )
        live.enter(RunState.CLOSING, self._context.clock.steady_ms())  # so that it gets no further turn
        if live.is_unused:
            self._live_runs.foresight.count_miss(live, now_ms=self._context.clock.steady_ms())
        # A container that was started ahead and ended without a recorded frame has not begun its turn, which
        # is therefore tried again without a pause.
        is_untouched = live.sign is not None and live.last_frame == 0
        # An unused run has no recorded turn: a turn that it was to get stays in the queue as it is.
        intended_turn = None if live.is_unused else live.turn_id
        async for attempt in until_stored():
            with attempt:
                await self.settle(live.run, run_end, intended_turn=intended_turn, is_at_once=is_untouched)
        await asyncio.to_thread(self._context.ports.files.remove_run_files, live.run.folder, live.run.id)
        if live.container is not None and not live.has_exited:
            await self._orphans.remove(live.container, Orphan.of(live.run))
        self._live_runs.release_slot(live)
        if not self._live_runs.of(live.run.folder):
            await self._context.ports.mailboxes.unwatch(live.run.folder)
        if live.container is not None and live.has_exited:
            # Removing a container that has exited comes after the slot was freed, so that the next run need
            # not wait.
            await self._orphans.remove(live.container, Orphan.of(live.run, may_work=False))

    async def close(self, live: LiveRunState, *, reason: str) -> None:
        """Ask a container, by a file that it reads, to close; it is killed if it takes too long.

        `reason` is published, and later reported as the reason of its end. A failure to write the file is
        only logged.
        """
        live.enter(RunState.CLOSING, self._context.clock.steady_ms())
        live.close_reason = reason
        self._context.bus.publish("run.closing", group=live.run.folder, run=live.run.id, reason=reason)
        # One file contains the close order for all runs of the group, so it must list each run that is
        # closing.
        closing = [
            other.run.id for other in self._live_runs.of(live.run.folder) if other.state is RunState.CLOSING
        ]
        try:
            await asyncio.to_thread(self._context.ports.files.write_close, live.run.folder, closing)
        except OSError as error:
            # It must not end the loop that ends containers, nor the work on the frame that led here:
            # `end_overdue` kills this one when it has not closed.
            log.warning("close.not_written", run=live.run.id, group=live.run.folder, reason=str(error))
        self._context.wakeups.reaper.set()

    def dismiss(self, live: LiveRunState, *, reason: str) -> None:
        """Kill a container that was started ahead and has had no turn, so it has no work to finish.

        Its slot becomes free when the container has ended. If it is still being made, it ends right after
        that.
        """
        live.enter(RunState.CLOSING, self._context.clock.steady_ms())
        live.close_reason = reason
        live.verdict = timeouts.TimeoutVerdict(kill=True, reason=reason)
        self._context.bus.publish("run.closing", group=live.run.folder, run=live.run.id, reason=reason)
        self._context.wakeups.reaper.set()
        if live.container is not None:
            self._context.tasks.create_task(
                self._stop_dismissed(live, live.container), name=f"dismiss:{live.run.id}"
            )

    async def _stop_dismissed(self, live: LiveRunState, container: RunningContainer) -> None:
        """Kill a container that was started ahead and is not needed.

        After a failure `end_overdue` retries.
        """
        if not await stop_container(container, grace_seconds=0):
            live.verdict = None  # `end_overdue` skips runs that have one

    def schedule_kill(self, live: LiveRunState, verdict: timeouts.TimeoutVerdict) -> None:
        """Mark a run to be killed for the reason in `verdict`, and publish it.

        The coroutine that reads the container's output then stops the container.
        """
        live.verdict = verdict
        log.warning("run.killed", run=live.run.id, group=live.run.folder, reason=verdict.reason)
        self._context.bus.publish("run.killed", group=live.run.folder, run=live.run.id, reason=verdict.reason)

    async def kill(
        self, live: LiveRunState, verdict: timeouts.TimeoutVerdict, *, grace_seconds: float = 2.0
    ) -> None:
        """Mark a run to be killed for the reason in `verdict`, and stop its container now, if it has one.

        `grace_seconds` is the time between SIGTERM and SIGKILL.
        """
        self.schedule_kill(live, verdict)
        if live.container is not None and not await stop_container(
            live.container, grace_seconds=grace_seconds
        ):
            live.verdict = None  # `end_overdue` tries again; it skips runs that have a verdict

    async def kill_unwritten(self, live: LiveRunState) -> None:
        """Kill a run because the file with its turn's order could not be written for the container.

        By the end of the run, the turn is queued again. If the container cannot be stopped now, `end_overdue`
        tries again.
        """
        live.stop_verdict = TURN_NOT_WRITTEN
        await self.kill(live, live.stop_verdict)

    async def end_overdue(self) -> None:
        """Close or kill each run that exceeds a timeout or is to stop, and try to remove orphans.

        Orphans are containers that were given up but may still exist.
        """
        now_ms = self._context.clock.steady_ms()
        for live in self._live_runs:
            due_verdict = live.stop_verdict or timeouts.judge(
                live.vitals(), live.limits(self._context.limits), now_ms=now_ms
            )
            if due_verdict is None:
                continue
            if not due_verdict.kill and live.state is RunState.IDLE:
                await self.close(live, reason=due_verdict.reason)
            elif not due_verdict.kill and live.state is RunState.READY:
                self.dismiss(live, reason=due_verdict.reason)
            # A run without a container is still being started, or its engine does not answer. One with a
            # `verdict` is being killed already.
            elif due_verdict.kill and live.container is not None and live.verdict is None:
                await self.kill(live, due_verdict)
        with suppress(ContainerError):  # the next call tries again
            await self._orphans.remove_all()

    async def settle(
        self, run: Run, run_end: RunEnd, *, intended_turn: TurnId | None = None, is_at_once: bool = False
    ) -> None:
        """Record the end of a run and, in the same transaction, the new state of its turn; publish both.

        The turn is queued again or fails. It is the turn that runs in the run; if none does, it is
        `intended_turn`, for which the run was started, as long as that is still queued. With `is_at_once` the
        turn is tried again without a pause.
        """
        settled = await self._end_and_requeue(run, run_end, intended_turn, is_at_once=is_at_once)
        if run_end.detail:
            self._context.logs.note(run.id, "run.exit", {"detail": run_end.detail})
        level = log.info if run_end.kind is RunEndKind.CLOSED else log.warning
        level("run.ended", run=run.id, group=run.folder, kind=run_end.kind.value, reason=run_end.reason)
        if run_end.kind is RunEndKind.IMAGE_MISSING:
            self._context.wakeups.image.set()  # the image is checked, and its absence reported
        if settled is not None:
            self._context.bus.publish(
                f"turn.{event_word(settled.state)}",
                group=run.folder,
                turn=settled.turn.id,
                run=run.id,
                attempt=settled.turn.attempt,
                reason=run_end.reason,
            )
            self._context.wakeups.outbox.set()
            self._context.wakeups.outages.set()
        self._context.bus.publish(
            "run.ended", group=run.folder, run=run.id, detail=run_end.kind.value, reason=run_end.reason
        )

    async def _end_and_requeue(
        self, run: Run, run_end: RunEnd, intended_turn: TurnId | None, *, is_at_once: bool
    ) -> _SettledTurn | None:
        """Record the end of a run, and queue its turn again or fail it, in one transaction.

        The turn is the one that runs in the run, else `intended_turn` if that is still queued. `is_at_once`
        says that it is tried again without a pause. Return the turn with its new state; None if the run had
        no turn.
        """
        detail = run_end.detail or run_end.reason
        now_ms = self._context.clock.now_ms()
        async with self._context.database.transaction() as tx:
            await runs.end(tx, run.id, kind=run_end.kind.value, detail=detail, now_ms=now_ms)
            turn = await turns.running_in(tx, run.id) or await _queued_turn(tx, intended_turn)
            if turn is None:
                return None
            state = await self._context.ports.requeue(
                tx,
                turn,
                reason=run_end.reason,
                is_retryable=run_end.is_retryable,
                now_ms=now_ms,
                is_at_once=is_at_once,
                fault=run_end.fault,
            )
            return _SettledTurn(turn, state)


async def stop_container(container: RunningContainer, *, grace_seconds: float = 2.0) -> bool:
    """Stop a container; return False if that failed, so that the caller has to try again. Logs the failure.

    `grace_seconds` is the time between SIGTERM and SIGKILL.
    """
    try:
        await container.stop(grace_seconds=grace_seconds)
    except ContainerError as error:
        log.warning("container.left", run=container.run_id, reason=str(error))
        return False
    return True


async def _queued_turn(tx: Tx, turn_id: TurnId | None) -> Turn | None:
    """Return the turn with this id if it is still queued, else None."""
    turn = await turns.get(tx, turn_id) if turn_id is not None else None
    return turn if turn is not None and turn.state is TurnState.QUEUED else None
