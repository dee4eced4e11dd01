"""Queue turns for due scheduled tasks, and recompute due times when a group's zone or the clock changes.

`decide` is pure: it returns which due times run, which were missed, and when the task is due next.
A reminder that does not repeat is no task but a notification, which `dashboard.delivery.due_notifications`
sends.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from zoneinfo import ZoneInfo

import structlog

from orchestrator.domain.errors import AndyError
from orchestrator.domain.values import (
    CatchUp,
    Cause,
    Folder,
    Group,
    Overlap,
    ScheduledTask,
    ScheduleKind,
    TurnId,
    TurnState,
)
from orchestrator.scheduler import scheduled_task_turns, timing
from orchestrator.store.database import Tx
from orchestrator.store.groups import groups
from orchestrator.store.schedule import task_runs, task_stops, tasks

log = structlog.get_logger(__name__)

NO_GROUP = "its group is no longer registered"


LATE_MS = 120_000
"""Milliseconds after which a due time counts as missed; the loop looks at least every minute."""
OVERLAPS = "its last run had not ended"
MISSED = "Andy was not running"
OLDER = f"{MISSED} (the due times before the newest {timing.MAX_CAUGHT_UP})"
"""The reason for due times that are left out because there are too many to catch up on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FiredTask:
    """The result for a due scheduled task: the queued turns, or only an `outcome`."""

    task: ScheduledTask
    outcome: str
    """The outcome in the name of the event: `due`, `skipped` or `paused`."""
    turns: tuple[TurnId, ...] = ()


async def fire_due(tx: Tx, *, now_ms: int) -> list[FiredTask]:
    """Queue a turn for each run of a scheduled task that is due, and set the tasks' next due times.

    Return what was done with each task that was due.
    """
    return [await _fire(tx, task, now_ms=now_ms) for task in await tasks.due(tx, now_ms)]


async def _fire(tx: Tx, task: ScheduledTask, *, now_ms: int) -> FiredTask:
    """Queue the due runs of a task, or pause a task that cannot run any more; return what was done."""
    group = await groups.by_folder(tx, task.folder)
    if group is None:
        await task_stops.stop(tx, task, reason=NO_GROUP, now_ms=now_ms)
        return FiredTask(task=task, outcome="paused")
    try:
        decision = decide(task, await task_runs.open_turns(tx, task.id), now_ms=now_ms)
    except (AndyError, ValueError, LookupError, ArithmeticError) as error:
        # A removed zone or an expression that is no longer accepted stops its own task, not the others.
        log.warning("task.unusable", task=task.id, group=task.folder, reason=str(error))
        await scheduled_task_turns.pause_unusable(tx, task, group, reason=str(error), now_ms=now_ms)
        return FiredTask(task=task, outcome="paused")
    return await _carry_out(tx, task, group, decision, now_ms=now_ms)


async def _carry_out(
    tx: Tx, task: ScheduledTask, group: Group, decision: DueDecision, *, now_ms: int
) -> FiredTask:
    """Queue the runs that were decided for a task, and set its next due time.

    If due times are left out, one record is stored for all of them, at `decision.left_out_ms`. A one-time
    task whose run is left out is completed. Return what was done.
    """
    # The next time is set with the turn in one transaction: a crash neither loses a run nor repeats it.
    await tasks.advance(tx, task.id, decision.next_ms)
    if decision.left_out_ms is not None:
        await task_runs.skip(
            tx,
            task,
            reason=decision.reason or "",
            cause=_cause(decision.left_out_ms, now_ms),
            due_ms=decision.left_out_ms,
            now_ms=now_ms,
        )
    turns = [
        await scheduled_task_turns.queue_turn(
            tx, task, group, cause=_cause(at, now_ms), due_ms=at, now_ms=now_ms
        )
        for at in decision.run
    ]
    # A one-time task that was missed and not caught up gets no turn whose end would complete it.
    if not turns and decision.next_ms is None:
        await tasks.complete(tx, task.id, result=f"Left out: {decision.reason}", now_ms=now_ms)
    return FiredTask(task=task, outcome="due" if turns else "skipped", turns=tuple(turns))


def _cause(due_ms: int, now_ms: int) -> Cause:
    """Return the cause of a run: its schedule, or catching up if its due time was missed."""
    return Cause.CATCH_UP if is_late(due_ms, now_ms=now_ms) else Cause.SCHEDULE


async def follow_clock(tx: Tx, *, now_ms: int) -> None:
    """Move the tasks' due times that are too far ahead, because the clock was set back.

    It is also called at each start of the host, since the clock may have been set back while none ran. Other
    due times stay. A task of every hour that was due in ten minutes would otherwise be due in a day and ten
    minutes, if the clock was set back by a day.
    """
    for task in await tasks.every(tx):
        # A one-time task has a fixed moment: a change of the clock does not move it.
        if task.next_ms is None or task.schedule.kind is ScheduleKind.ONCE:
            continue
        schedule = task.schedule
        try:
            zone = ZoneInfo(schedule.timezone)
            planned = timing.plan(schedule.kind, schedule.value, dst=schedule.dst, now_ms=now_ms, zone=zone)
        except (AndyError, ValueError, LookupError):
            continue  # it is stopped with a notice when it is due
        if planned.next_ms < task.next_ms:
            await tasks.replan(tx, task.id, timezone=schedule.timezone, next_ms=planned.next_ms)


async def follow_zones(tx: Tx, zone_of: Callable[[Group], ZoneInfo], *, now_ms: int) -> None:
    """Recompute the due times of cron schedules whose group has another time zone now.

    `zone_of` returns the zone of a group.
    """
    schedules = await outlook(tx)
    for task in schedules.in_other_zones(zone_of):
        zone = zone_of(schedules.groups[task.folder])
        try:
            planned = timing.plan(
                task.schedule.kind, task.schedule.value, dst=task.schedule.dst, now_ms=now_ms, zone=zone
            )
        except (AndyError, ValueError, LookupError):
            continue  # it is stopped with a notice when it is due
        await tasks.replan(tx, task.id, timezone=zone.key, next_ms=planned.next_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleOutlook:
    """The facts that tell whether a look at the schedules has anything to do."""

    next_ms: int | None
    """The time when the next task is due (epoch ms)."""
    by_wall_clock: Sequence[ScheduledTask]
    """The tasks with a cron schedule."""
    groups: Mapping[Folder, Group]
    """The groups of these tasks, by folder."""

    def in_other_zones(self, zone_of: Callable[[Group], ZoneInfo]) -> list[ScheduledTask]:
        """Return the tasks that were planned in another zone than the present one of their group.

        Only cron follows the wall clock: intervals and single times are moments, the same in every zone.
        `zone_of` returns the zone of a group.
        """
        return [
            task
            for task in self.by_wall_clock
            if (group := self.groups.get(task.folder)) is not None
            and zone_of(group).key != task.schedule.timezone
        ]


async def outlook(tx: Tx) -> ScheduleOutlook:
    """Return the facts that show whether a look at the schedules has anything to do."""
    crons = [task for task in await tasks.every(tx) if task.schedule.kind is ScheduleKind.CRON]
    # Only groups with such a task are read: this runs with each look at what is due.
    cron_groups = [await groups.by_folder(tx, folder) for folder in {task.folder for task in crons}]
    return ScheduleOutlook(
        next_ms=await tasks.next_due_ms(tx),
        by_wall_clock=crons,
        groups={group.folder: group for group in cron_groups if group is not None},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DueDecision:
    """The decision about the due times up to now."""

    run: tuple[int, ...]
    """The due times that are queued as turns, oldest first."""
    next_ms: int | None
    """When it is due next; None if it never is again."""
    left_out_ms: int | None = None
    """The newest due time that does not run; the oldest if all that do not run are older than those that do.
    """
    reason: str | None = None
    """The reason why it does not run, with the number of due times that do not."""


def decide(task: ScheduledTask, open_turns: Collection[TurnState], *, now_ms: int) -> DueDecision:
    """Decide which due times of a task up to now get a run, and when the task is due next. Pure.

    `open_turns` are the states of its unfinished turns. The task's `catch_up` selects among missed due times:
    none, the latest, or the newest ten. While an earlier run has not ended, the task's `overlap` decides
    whether no other is queued or one waits.
    """
    assert task.next_ms is not None
    times = timing.due_times(task.schedule, task.next_ms, now_ms=now_ms)
    # First missed times, then overlaps: a missed time that is dropped cannot block a run.
    wanted = _to_catch_up(times, task.catch_up, now_ms)
    run = _without_overlap(wanted, open_turns, task.overlap)
    left_out = [at for at in times if at not in run]
    # `due_times` gives only the newest ones. The first of all was planned as `next_ms`.
    has_older = times[0] != task.next_ms
    reason = None
    if left_out:
        reason = _reason(len(left_out), has_older=has_older, is_overlap=run != wanted)
    elif has_older:
        left_out, reason = [task.next_ms], OLDER
    return DueDecision(
        run=run,
        next_ms=timing.following_ms(task.schedule, task.next_ms, after_ms=now_ms),
        left_out_ms=left_out[-1] if left_out else None,
        reason=reason,
    )


def is_late(due_ms: int, *, now_ms: int) -> bool:
    """Return whether a due time was missed: it is more than `LATE_MS` ago."""
    return now_ms - due_ms > LATE_MS


def _to_catch_up(times: tuple[int, ...], catch_up: CatchUp, now_ms: int) -> tuple[int, ...]:
    """Return those of the due times, oldest first, that get a run by the task's rule for missed times."""
    match catch_up:
        case CatchUp.SKIP:
            # Even with `skip` the newest time runs if it is only a little late, since the loop sleeps up to a
            # minute.
            return tuple(at for at in times[-1:] if not is_late(at, now_ms=now_ms))
        case CatchUp.LATEST:
            return times[-1:]
        case CatchUp.ALL:
            return times


def _without_overlap(
    wanted: tuple[int, ...], open_turns: Collection[TurnState], overlap: Overlap
) -> tuple[int, ...]:
    """Return those of the wanted due times that get a run, if earlier runs of the task may not have ended.

    `open_turns` are the states of these earlier runs' turns; without any, all wanted times get a run.
    """
    if not open_turns:
        return wanted
    if overlap is Overlap.SKIP or TurnState.QUEUED in open_turns:
        return ()
    # One run may wait for the running one; more would accumulate for a task that is always slow.
    return wanted[-1:]


def _reason(count: int, *, has_older: bool, is_overlap: bool) -> str:
    """Return why `count` due times of a task had no run, with their number if there are several.

    `has_older` is whether there were also older due times, which are not counted. With `is_overlap` the run
    before had not ended; otherwise Andy was not running.
    """
    why = OVERLAPS if is_overlap else MISSED
    if count == 1:
        return why
    more = " or more" if has_older else ""
    return f"{why} ({count}{more} due times)"
