"""Run scheduled tasks at their time: a timer from the database, and a sweep in case a wake-up was missed."""

from __future__ import annotations

from collections.abc import Callable
from zoneinfo import ZoneInfo

from orchestrator.base.clock import Clock
from orchestrator.base.event_bus import EventBus
from orchestrator.base.wakeups import Wakeups
from orchestrator.domain.values import Group
from orchestrator.groups.host_context import HostContext
from orchestrator.scheduler import due_tasks
from orchestrator.store.access import approvals
from orchestrator.store.access import requests as access_requests
from orchestrator.store.database import Database
from orchestrator.store.schedule import tasks

SWEEP_SECONDS = 60.0
"""Most seconds between two looks."""
SET_BACK_MS = 60_000
"""Milliseconds that the wall clock has to go back to count as set back; less is a small correction."""


class Scheduler:
    """Wakes at the next due time, or when something changed.

    Scheduled tasks become turns; their next due time is set in the same transaction.
    """

    def __init__(
        self,
        database: Database,
        *,
        clock: Clock,
        wakeups: Wakeups,
        bus: EventBus,
        zone_of: Callable[[Group], ZoneInfo],
    ) -> None:
        """`zone_of` returns the time zone of a group."""
        self._database = database
        self._clock = clock
        self._wakeups = wakeups
        self._bus = bus
        self._zone_of = zone_of
        self._ahead_ms: int | None = None
        """Milliseconds that the wall clock was ahead of the steady clock at the last look at due tasks.

        A smaller difference now shows that the wall clock was set back. A look that failed does not count;
        None before the first.
        """

    @classmethod
    def of(cls, host: HostContext) -> Scheduler:
        """Return the scheduler of a host."""
        return cls(host.database, clock=host.clock, wakeups=host.wakeups, bus=host.bus, zone_of=host.zone_of)

    async def run(self) -> None:
        """Queue the runs of scheduled tasks whenever they are due, until cancelled."""
        wait_seconds = await self.fire_due()
        while True:
            await self._wakeups.scheduler.wait(at_most_seconds=wait_seconds)
            wait_seconds = await self.fire_due()

    async def fire_due(self) -> float:
        """Queue the runs of scheduled tasks that are due now, and return the seconds until the next look.

        Due times are computed again if the clock was set back, or the time zone of a group has changed. After
        the clock was set back, the times of requests to the owner are corrected, too.
        """
        now_ms = self._clock.now_ms()
        # The difference of the two clocks only changes when somebody sets the wall clock.
        ahead_ms = now_ms - self._clock.steady_ms()
        is_set_back = self._is_set_back(ahead_ms)
        # A read first: most looks find nothing due, and a write transaction would make others wait.
        schedules = await self._database.read(due_tasks.outlook)
        next_ms = schedules.next_ms
        fired: list[due_tasks.FiredTask] = []
        is_due = next_ms is not None and next_ms <= now_ms
        if is_set_back or is_due or schedules.in_other_zones(self._zone_of):
            async with self._database.transaction() as tx:
                if is_set_back:
                    await due_tasks.follow_clock(tx, now_ms=now_ms)
                    # Read again: while this waited for the transaction, the owner may have decided something.
                    corrected_ms = self._clock.now_ms()
                    await approvals.follow_clock(tx, now_ms=corrected_ms)
                    await access_requests.follow_clock(tx, now_ms=corrected_ms)
                fired = await due_tasks.fire_due(tx, now_ms=now_ms)
                # After the due tasks were queued: those were due by the old zone.
                await due_tasks.follow_zones(tx, self._zone_of, now_ms=now_ms)
                next_ms = await tasks.next_due_ms(tx)
        # Stored last: if this look had failed, the next one would still have to recompute due times.
        self._ahead_ms = ahead_ms
        # Published after the commit, since a listener has to find the turn's row.
        if fired:
            self._publish(fired)
        if next_ms is None:
            return SWEEP_SECONDS
        self._wakeups.foresight.set()  # a container may be started ahead of the next run
        # Never longer than the sweep, since the wall clock may be set during this sleep.
        return min(SWEEP_SECONDS, max(0.0, (next_ms - self._clock.now_ms()) / 1000))

    def _is_set_back(self, ahead_ms: int) -> bool:
        """Return whether the wall clock went back since the last look; the first look assumes that it did.

        `ahead_ms` are the milliseconds that it is ahead of the steady clock now.
        """
        # The steady clock never jumps, so a change of the difference is a jump of the wall clock.
        return self._ahead_ms is None or ahead_ms < self._ahead_ms - SET_BACK_MS

    def _publish(self, fired: list[due_tasks.FiredTask]) -> None:
        """Publish an event for each queued turn, and for each task without one; then wake the queue.

        The outbox is woken, too: the group of a paused task is notified.
        """
        for fired_task in fired:
            for turn in fired_task.turns or (None,):  # one event also for a task without a turn
                self._bus.publish(
                    f"task.{fired_task.outcome}",
                    group=fired_task.task.folder,
                    turn=turn,
                    detail=fired_task.task.id,
                )
        self._wakeups.lanes.set()
        self._wakeups.outbox.set()
