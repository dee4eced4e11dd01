"""Queue free cycles when they are due. Events and a timer wake this loop; the store decides what is due.

A free cycle is one that is no answer to a message or a scheduled task: the agent woke by its timer, or
because something happened.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace

import structlog

from orchestrator.base.clock import Clock
from orchestrator.base.event_bus import EventBus, HostEvent
from orchestrator.base.wakeups import Wakeups
from orchestrator.domain.values import Folder, Group, RunId, Turn, TurnKind, TurnState
from orchestrator.loop import wake_policy
from orchestrator.loop.cycle_recorder import HEARTBEAT, LEASE_MS, CycleRecorder
from orchestrator.loop.wake_policy import WakeSignal
from orchestrator.store.database import Database, Tx
from orchestrator.store.groups import groups
from orchestrator.store.loop import cycles, events, loops, wake_requests
from orchestrator.store.loop.loops import Loop, LoopStatus
from orchestrator.store.runs import turns

log = structlog.get_logger(__name__)

SWEEP_SECONDS = 30.0
"""Seconds between two passes at most, also without an event."""
WARM_UP_MS = 15_000
"""Milliseconds after a start of the host before missed cycles are run."""
PRUNE_EVERY = 1_000
"""Events after which the oldest ones, and old wake requests, are deleted."""
STAGGER_MS = 5_000
"""Milliseconds between the starts of groups that missed a wake."""
CLOCK_SLACK_MS = 60_000
"""Milliseconds by which time servers may correct the clock without a change of any wake."""
TRIGGER = "trigger:"
FILES = "workspace"
"""The trigger for changed files, which an agent's own programs may cause unnoticed."""
ALERTS = {"task.paused": "a task was paused"}
"""Events that wake a group's agent, with the reason that it reads."""
CHANGED = ("loop.changed", "command.control_loop")
"""Events after a loop was switched, paused or changed."""
TRIGGERS = ("message.queued", "turn.*", "group.*", *CHANGED, f"{TRIGGER}*", *ALERTS)
"""The kinds of events after which a cycle may be due."""

MAX_MESSAGE_WAIT_MS = 120_000
"""Milliseconds that a message waits for a free cycle to end; then the cycle is stopped."""
STOP_REASON = "a message waited too long for it."

StopRun = Callable[[RunId, str], Awaitable[None]]
"""Ends a run, even at work; its turn fails with the reason."""
WhySpent = Callable[[Tx, Group], Awaitable[str | None]]
"""Returns the reason why a group may not use the model in the background now; None when it may."""


async def never_spent(tx: Tx, group: Group) -> str | None:
    """Return None: on a host without budgets, every group may use the model."""
    del tx, group
    return None


async def stop_nothing(run_id: RunId, reason: str) -> None:
    """Do nothing: for a host without containers."""
    del run_id, reason


@dataclass(slots=True)
class _LookResult:
    """The decisions of one pass, to be carried out after its commit."""

    started: list[Folder] = field(default_factory=list)
    blocking_runs: list[RunId] = field(default_factory=list)


class CycleStarter:
    """Queues the free cycles of all groups whose loop is on."""

    def __init__(
        self,
        database: Database,
        recorder: CycleRecorder,
        *,
        clock: Clock,
        wakeups: Wakeups,
        bus: EventBus,
        why_spent: WhySpent = never_spent,
        stop_run: StopRun = stop_nothing,
    ) -> None:
        """Set up the starter; `run` starts cycles.

        `why_spent` returns why a group's budget allows no cycle, or None if it does. `stop_run` ends a
        container, with the reason. `recorder` records the cycles.
        """
        self._database = database
        self._recorder = recorder
        self._clock = clock
        self._wakeups = wakeups
        self._bus = bus
        self._why_spent = why_spent
        self._stop_run = stop_run
        self._alive: frozenset[Folder] = frozenset()
        """The groups whose loop was on at the last look."""
        self._missed: dict[Folder, int] = {}
        """The groups that missed a wake while no host ran, until their cycle is queued.

        Each has the time of the steady clock, in milliseconds, before which its cycle does not start.
        """
        self._published_seq: int | None = None
        """The number of the newest event that is published; None before the first call of `prepare`."""

    async def run(self) -> None:
        """Queue the free cycles that are due, whenever an event or the time demands it, until cancelled."""
        with self._bus.listening(*TRIGGERS) as bus_events:
            await self.prepare()
            while True:
                seconds_to_next = await self.look()  # queues the cycles that are due
                await self._wait_for_event(bus_events, seconds_to_next)

    async def prepare(self) -> None:
        """Delete old wake requests and events, and note the groups that missed a wake while no host ran.

        No cycle starts here. The cycles of the noted groups start one after another, the first after
        `WARM_UP_MS`. The first call also sets after which event publishing begins.
        """
        async with self._database.transaction() as tx:
            now_ms = self._clock.now_ms()
            # Events from before this host are not published. If `run` is started again after an error, this
            # is set already and stays, so that the events recorded meanwhile are still published.
            if self._published_seq is None:
                self._published_seq = await events.last_seq(tx)
            await self._prune(tx)
            for loop in await loops.alive(tx):
                at_ms = await self._start_ms(tx, loop, now_ms)
                if at_ms is not None and at_ms <= now_ms:
                    # Staggered: after a night without power all groups would start their containers at once.
                    wait_ms = WARM_UP_MS + STAGGER_MS * len(self._missed)
                    self._missed[loop.folder] = self._clock.steady_ms() + wait_ms

    async def look(self) -> float:
        """End the cycles whose turns have ended, and queue the free cycles that are due.

        The container of a free cycle is ended if a message has waited for it too long. Return in how many
        seconds to look again.
        """
        async with self._database.reading() as tx:
            self._alive = frozenset(loop.folder for loop in await loops.alive(tx))
            has_work = bool(self._alive or await cycles.unfinished(tx))
        if not has_work:
            await self._publish_committed()  # for example, that the last loop was switched off
            return SWEEP_SECONDS
        result = _LookResult()
        times: list[int] = []
        async with self._database.transaction() as tx:
            # Read after the transaction has begun: rows that were committed while this waited for it have
            # later times than a clock read before, which would look like a clock that was set back.
            now_ms = self._clock.now_ms()
            await self._recorder.settle(tx)
            for loop in await loops.alive(tx):
                at_ms = await self._advance(tx, loop, now_ms, result)
                times += [] if at_ms is None else [at_ms]
        if result.started:
            log.info("loop.cycle_queued", groups=result.started)
            self._wakeups.lanes.set()
        # After the commit, because ending a run needs transactions of its own.
        for run_id in result.blocking_runs:
            await self._stop_run(run_id, STOP_REASON)
        await self._publish_committed()
        if times:
            self._wakeups.foresight.set()
        next_ms = min(times, default=now_ms + round(SWEEP_SECONDS * 1000))
        return min(SWEEP_SECONDS, max(0.0, (next_ms - self._clock.now_ms()) / 1000))

    async def _advance(self, tx: Tx, loop: Loop, now_ms: int, result: _LookResult) -> int | None:
        """Queue a free cycle of a loop's group if it is due and the group's agent has no other turn.

        The lease, by which a turn reserves the loop as its cycle, is extended while the agent has a turn;
        after that it is released, unless the loop is paused. Why a due cycle may not start is stored. What is
        to be done after the commit is added to `result`. Return when to look again, in epoch milliseconds;
        None if nothing is due before the group's next event.
        """
        # A turn of the dashboard's worker runs beside the chat, so the loop does not wait for it.
        at_work = [
            turn for turn in await turns.unsettled_of(tx, loop.folder) if turn.kind is not TurnKind.WORKER
        ]
        if at_work:
            await loops.renew(tx, loop.folder, until_ms=now_ms + LEASE_MS)
            # Returns when a message will have waited too long for a free cycle, which is then stopped.
            return _stop_blocking_cycles(at_work, now_ms, result)
        if loop.status is LoopStatus.PAUSED:
            return None
        loop = await self._follow_clock(tx, loop, now_ms)
        if loop.lease_owner is not None:
            await loops.release(tx, loop.folder)  # the turn with it was removed, or ended before it started
        at_ms = await self._start_ms(tx, loop, now_ms)
        # After a time without a host, the groups that missed a wake start one after another.
        earliest_steady_ms = self._missed.get(loop.folder)
        if at_ms is not None and earliest_steady_ms is not None:
            at_ms = max(at_ms, now_ms + earliest_steady_ms - self._clock.steady_ms())
        if at_ms is None or at_ms > now_ms:
            return at_ms
        group = await groups.by_folder(tx, loop.folder)
        why_not = "its group is no longer registered" if group is None else await self._why_spent(tx, group)
        # Stored, so that the console can show why no cycle starts although one is due; None deletes it.
        await loops.hold(tx, loop.folder, why_not)
        if group is not None and why_not is None:
            await self._queue(tx, loop, group, now_ms)
            result.started.append(loop.folder)
        return None

    async def _follow_clock(self, tx: Tx, loop: Loop, now_ms: int) -> Loop:
        """Correct a loop's next wake or last start if it is too far ahead, since the clock was set back.

        Return the loop, with corrected times if needed.
        """
        next_ms, last_ms = loop.next_wake_ms, loop.last_start_ms
        # No decision sets a wake beyond `max_ms`, so a later one was set by a clock that was ahead.
        furthest_ms = now_ms + self._recorder.rules.max_ms + CLOCK_SLACK_MS
        is_far = next_ms is not None and next_ms > furthest_ms
        if not is_far and (last_ms is None or last_ms <= now_ms):
            return loop
        next_ms = now_ms + loop.auto_ms if is_far else next_ms
        last_ms = None if last_ms is None else min(last_ms, now_ms)
        await loops.set_times(tx, loop.folder, next_wake_ms=next_ms, last_start_ms=last_ms)
        return replace(loop, next_wake_ms=next_ms, last_start_ms=last_ms)

    async def _start_ms(self, tx: Tx, loop: Loop, now_ms: int) -> int | None:
        """Return when a loop's next cycle without a message or task may start, in epoch milliseconds.

        None if the loop is paused, or if there is neither a wake request nor a time to wake. If changed files
        have started too many cycles within an hour, wake requests of changed files count only from a later
        time on.
        """
        if loop.status is LoopStatus.PAUSED:
            return None
        pending = await wake_requests.pending(tx, loop.folder)
        held_ms = None
        if any(wake.kind == FILES for wake in pending):
            held_ms = await self._files_held_ms(tx, loop.folder, now_ms)
        signals = [
            WakeSignal(at_ms=wake.created_ms, is_direct=wake.is_direct)
            for wake in pending
            if held_ms is None or wake.kind != FILES
        ]
        at_ms = wake_policy.start_ms(
            signals,
            next_wake_ms=loop.next_wake_ms,
            last_start_ms=loop.last_start_ms,
            now_ms=now_ms,
            rules=self._recorder.rules,
        )
        return min((moment for moment in (at_ms, held_ms) if moment is not None), default=None)

    async def _files_held_ms(self, tx: Tx, folder: Folder, now_ms: int) -> int | None:
        """Return until when changed files start no cycle of a group, in epoch milliseconds.

        None if they may start one now. They may not after too many such cycles in an hour.
        """
        max_starts = self._recorder.rules.file_cycles_an_hour
        starts = await cycles.file_starts(tx, folder, since_ms=now_ms - wake_policy.HOUR_MS)
        # Starts in the future are from before the clock was set back, and would block files until then.
        recent = [start for start in starts if start <= now_ms]
        return recent[-max_starts] + wake_policy.HOUR_MS if len(recent) >= max_starts else None

    async def _queue(self, tx: Tx, loop: Loop, group: Group, now_ms: int) -> None:
        """Queue the turn of a free cycle, and take the loop's lease, so that no other cycle starts.

        If the time to wake is the reason, a wake request says so. The next wake is set to after the usual
        pause, in case the turn fails to start; the end of the cycle sets it anew.
        """
        turn_id = await loops.add_turn(tx, group, now_ms=now_ms)
        is_timer = loop.next_wake_ms is not None and loop.next_wake_ms <= now_ms
        was_missed = self._missed.pop(loop.folder, None) is not None  # while no host ran
        if is_timer:
            overdue = "overdue, " if was_missed else ""
            await wake_requests.add(
                tx,
                loop.folder,
                kind=HEARTBEAT,
                # With the time in it, so that a pass that is repeated after a crash adds no second request.
                key=f"{HEARTBEAT}:{loop.next_wake_ms}",
                source="loop",
                reason=f"{overdue}set by {loop.set_by}: {loop.reason}",
                now_ms=now_ms,
            )
        has_lease = await loops.lease(
            tx,
            loop.folder,
            turn_id,
            next_wake_ms=now_ms + loop.auto_ms,
            now_ms=now_ms,
            until_ms=now_ms + LEASE_MS,
        )
        if not has_lease:
            # The error rolls the transaction back.
            raise RuntimeError(f"the loop of {loop.folder} has the lease of another turn")

    async def _publish_committed(self) -> None:
        """Publish the events of loops that were recorded since the last call, or since the host started.

        After each `PRUNE_EVERY` events, old events and wake requests are deleted.
        """
        # Read from the store: an event of a transaction that was rolled back is never published.
        committed = await self._database.read(lambda tx: events.after(tx, self._published_seq or 0))
        # The events' numbers have passed a multiple of `PRUNE_EVERY`.
        if committed and committed[-1].seq // PRUNE_EVERY != (self._published_seq or 0) // PRUNE_EVERY:
            await self._database.write(self._prune)
        for event in committed:
            self._published_seq = event.seq
            self._bus.publish(f"{event.kind}", group=event.group, data={"seq": event.seq, **event.data})

    async def _prune(self, tx: Tx) -> None:
        """Delete old wake requests that a cycle has taken, and old events."""
        await wake_requests.prune(tx, now_ms=self._clock.now_ms())
        await events.prune(tx)

    async def _wait_for_event(self, bus_events: asyncio.Queue[HostEvent], seconds: float) -> None:
        """Wait for an event after which a cycle may be due, at most `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                while not await self._handle(await bus_events.get()):
                    continue
        except TimeoutError:
            return

    async def _handle(self, event: HostEvent) -> bool:
        """Store a wake request if an event is a reason to wake an agent.

        Return whether a cycle may be due after the event. It may not if the event repeats a stored request,
        or if the loop of its group is off (not in `_alive`) and the event does not say that this has changed.
        """
        if event.kind in CHANGED:
            return True
        if not self._alive or event.group not in (None, *self._alive):
            return False
        is_trigger = event.kind.startswith(TRIGGER)
        if is_trigger and event.data is not None:
            # Only `_publish_committed` adds data: this request is stored already, and to store and publish it
            # again would never end.
            return False
        if is_trigger:
            await self._request_wake(
                event, event.kind.removeprefix(TRIGGER), event.reason or event.detail or ""
            )
        elif event.kind in ALERTS:
            await self._request_wake(event, "alert", f"{ALERTS[event.kind]}: {event.detail or ''}")
        return True

    async def _request_wake(self, event: HostEvent, kind: str, reason: str) -> None:
        """Store a request to wake the agent of the event's group; an event without a group requests none.

        `kind` and `reason` are what the agent reads. The request's key prevents that an event counts twice.
        """
        if event.group is None:
            return
        async with self._database.transaction() as tx:
            await wake_requests.add(
                tx,
                Folder(event.group),
                kind=kind,
                key=f"{kind}:{event.at_ms}:{event.n}",
                source="events",
                reason=reason,
                now_ms=self._clock.now_ms(),
            )


def _stop_blocking_cycles(at_work: Sequence[Turn], now_ms: int, result: _LookResult) -> int | None:
    """Decide whether a message has waited too long for a free cycle of its group to end.

    If so, add the containers of the free cycles to `result.blocking_runs`, to be ended. `at_work` are the
    turns of the group that are queued or run. Return when a waiting message will have waited too long, in
    epoch milliseconds; None if none waits, if no free cycle runs, or if the containers are ended now.
    """
    # Only free cycles are stopped: somebody requested a running question or task.
    queued = [
        turn.queued_ms for turn in at_work if turn.kind is TurnKind.CHAT and turn.state is TurnState.QUEUED
    ]
    runs = [
        turn.run_id
        for turn in at_work
        if turn.kind is TurnKind.AUTO and turn.state is TurnState.RUNNING and turn.run_id
    ]
    if not queued or not runs:
        return None
    at_ms = min(queued) + MAX_MESSAGE_WAIT_MS
    if at_ms <= now_ms:
        result.blocking_runs += runs
        return None
    return at_ms
