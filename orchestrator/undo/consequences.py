"""Adapt the rows that the host itself has added or computed since a turn that is undone."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from orchestrator.dashboard.delivery.outcomes import store_change
from orchestrator.dashboard.services.notifications import DEADLINE_MOVED
from orchestrator.domain.dashboard import Actor, Notification, NotificationStatus, NotificationType
from orchestrator.domain.errors import AndyError
from orchestrator.domain.values import Folder, ScheduleKind, TaskStatus
from orchestrator.scheduler import due_tasks, timing
from orchestrator.store.board import notifications as board_notifications
from orchestrator.store.database import Tx
from orchestrator.store.schedule import tasks
from orchestrator.store.undo.turn_effects import Row, RowEffect

TIMING = ("status", "schedule_type", "schedule_value", "next_run")
"""The columns of a scheduled task that decide when it is due."""


async def cancel_outdated_alerts(tx: Tx, effects: Sequence[RowEffect], *, now_ms: int) -> None:
    """Cancel the pending notifications that would be wrong, or in the way, once these effects are undone.

    If a task gets its earlier deadline back, the alerts that rules have made for its present deadline are
    cancelled. If a pending notification comes back, another pending one with the same task, question and
    cause is cancelled: the database allows only one. The rules make new notifications where needed.
    """
    for effect in effects:
        async for alert in _outdated_alerts(tx, effect):
            await store_change(
                tx,
                alert,
                now_ms=now_ms,
                status=NotificationStatus.CANCELLED,
                cancelled_ms=now_ms,
                cancel_reason=DEADLINE_MOVED,  # one of the rules' own reasons: no person has cancelled it
            )


async def _outdated_alerts(tx: Tx, effect: RowEffect) -> AsyncIterator[Notification]:
    """Yield the pending notifications that have to be cancelled before an effect is undone.

    For a task that gets its earlier deadline back, these are the alerts that rules made for the present one;
    for a pending notification that comes back, another one about the same subject.
    """
    before, after = effect.before, effect.after
    if before is None or effect.table not in ("dashboard_tasks", "notifications"):
        return
    folder = Folder(before["group_folder"])
    if effect.table == "dashboard_tasks":
        if after is not None and before["deadline_ms"] != after["deadline_ms"]:
            for alert in await board_notifications.open_of_task(tx, folder, before["id"]):
                if alert.type is NotificationType.DEADLINE_ALERT and alert.created_by is Actor.WORKER:
                    yield alert
    # A notification comes back as a pending one: another one about the same would violate a unique index.
    elif before["cause"] is not None and NotificationStatus(before["status"]).is_open:
        for other in await board_notifications.to_come(tx, folder):
            if other.id != before["id"] and _subject(other) == _subject_of_row(before):
                yield other


def _subject(row: Notification) -> tuple[str | None, str | None, str | None]:
    """Return the task, the question and the cause of a notification.

    The database allows only one pending notification with the same three.
    """
    return (row.task_id, row.question_id, row.cause)


def _subject_of_row(row: Row) -> tuple[str | None, str | None, str | None]:
    """Return the task, the question and the cause of a stored notification, by its columns."""
    return (row["task_id"], row["question_id"], row["cause"])


async def skip_past_times(tx: Tx, effects: Sequence[RowEffect], *, now_ms: int) -> None:
    """Let the repeating tasks that an undo has restored go on at their next time from now.

    A due time from before the turn may be past (`is_late`): nobody wanted a run at that time any more, so
    none begins now. A task whose times the turn did not change is left alone: its run was really missed.
    """
    for effect in effects:
        if effect.table != "scheduled_tasks" or _has_same_times(effect):
            continue
        task = await tasks.get(tx, effect.key[0])
        if task is None or task.status is not TaskStatus.ACTIVE or task.schedule.kind is ScheduleKind.ONCE:
            continue
        if task.next_ms is None or not due_tasks.is_late(task.next_ms, now_ms=now_ms):
            continue
        try:
            next_ms = timing.following_ms(task.schedule, task.next_ms, after_ms=now_ms)
        except (AndyError, ValueError, LookupError, ArithmeticError):
            continue  # the scheduler pauses it, with a notice, when it comes to it
        await tasks.advance(tx, task.id, next_ms)


def _has_same_times(effect: RowEffect) -> bool:
    """Return whether a turn that changed a scheduled task left its status, schedule and next time alone."""
    before, after = effect.before, effect.after
    if before is None or after is None:
        return False
    return all(before[name] == after[name] for name in TIMING)
