"""Schedule, change, cancel and list notifications: the rules, agents and people all use these functions."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from datetime import date, datetime
from typing import Any

import structlog

from orchestrator.dashboard.rules import alerts, dedupe
from orchestrator.dashboard.services import notification_log
from orchestrator.dashboard.services.context import ServiceContext, new_id
from orchestrator.dashboard.views import notification_log as history_view
from orchestrator.dashboard.views import serializers
from orchestrator.dashboard.views.summary import one_line
from orchestrator.dashboard.words import texts, when
from orchestrator.domain.dashboard import (
    Actor,
    BoardTask,
    Notification,
    NotificationRequest,
    NotificationStatus,
    NotificationType,
    Priority,
    ToolRefused,
    ToolResult,
)
from orchestrator.store.board import deliveries as board_deliveries
from orchestrator.store.board import notifications as board_notifications
from orchestrator.store.board import questions as board_questions
from orchestrator.store.board import tasks as board_tasks
from orchestrator.store.conversation import messages

log = structlog.get_logger(__name__)

DEADLINE_MOVED = "Deadline changed"
TASK_GONE = "Task gone"
QUESTION_CLOSED = "Question closed"
OUT_OF_DATE = "Out of date"
ZONE_CHANGED = "Time zone changed"
REMINDER_SET = "Reminder set instead"
RULE_REASONS = (
    DEADLINE_MOVED,
    dedupe.TASK_COMPLETED,
    dedupe.TASK_CANCELLED,
    TASK_GONE,
    QUESTION_CLOSED,
    OUT_OF_DATE,
    ZONE_CHANGED,
    REMINDER_SET,
)
"""Reasons with which Andy's rules cancel; unlike a person's cancel, it does not block a new notification."""
MAX_LISTED = 200
_FIELDS = {"message": "message", "due_ms": "scheduled_at", "priority": "priority"}
"""The fields that may be changed, with the tool's names for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleOutcome:
    """The notification that was created, or the refusal."""

    notification: Notification | None = None
    refused: ToolRefused | None = None

    @property
    def word(self) -> str:
        """The outcome in one word: `created`, `duplicate`, `capped` or `rejected`."""
        if self.refused is None:
            return "created"
        return {"DUPLICATE": "duplicate", "COOLDOWN": "duplicate", "CAP": "capped"}.get(
            self.refused.code, "rejected"
        )


async def try_schedule(ctx: ServiceContext, request: NotificationRequest) -> ScheduleOutcome:
    """Schedule a notification; return it, or the reason why it was refused."""
    try:
        return ScheduleOutcome(notification=await _create(ctx, request))
    except ToolRefused as refused:
        return ScheduleOutcome(refused=refused)


async def schedule(
    ctx: ServiceContext,
    *,
    message: str,
    scheduled_at: str,
    type: NotificationType = NotificationType.REMINDER,  # noqa: A002 - the tool's own name
    priority: Priority = Priority.MEDIUM,
    related_task_id: str | None = None,
    related_question_id: str | None = None,
    context: str = "",
) -> ToolResult:
    """Schedule a notification at a time that is written as text, such as `tomorrow 9am`.

    Raises:
        ToolRefused: a value does not fit, it repeats another one, its task or question is unknown or has
            ended, no channel takes it, or too many are scheduled.
    """
    point = when.parse_due_time(scheduled_at, now_ms=ctx.now_ms, zone=ctx.zone)
    scheduled = await _create(
        ctx,
        NotificationRequest(
            message=message,
            due_ms=point.at_ms,
            due_text=None if point.is_iso else texts.line("scheduled_at", scheduled_at),
            type=type,
            priority=priority,
            task_id=related_task_id,
            question_id=related_question_id,
            context=context,
        ),
    )
    return ToolResult(
        text=(
            f"Notification {scheduled.id} is scheduled for {_due_text(ctx, scheduled)} ({ctx.zone.key}):"
            f" {scheduled.message}"
        ),
        data=serializers.notification(scheduled, ctx.zone),
    )


async def update(
    ctx: ServiceContext,
    *,
    notification_id: str,
    message: str | None = None,
    scheduled_at: str | None = None,
    priority: Priority | None = None,
) -> ToolResult:
    """Change a pending notification, also one that waits in the outbox; None leaves a value unchanged.

    `scheduled_at` is a time as text, such as `tomorrow 9am`.

    Raises:
        ToolRefused: it is not pending or is being sent, it changed since the caller was shown it, a value
            does not fit, or nothing would be different.
    """
    row = await ctx.notification(notification_id)
    if not row.status.is_open:
        raise ToolRefused(
            "NOT_PENDING", f"Notification {row.id} is {row.status.value}.", status=row.status.value
        )
    await ctx.check_seen(row, serializers.notification(row, ctx.zone))
    changes: dict[str, Any] = {}
    if message is not None:
        changes["message"] = texts.text("message", message, limit=texts.MAX_MESSAGE, is_needed=True)
    if priority is not None:
        changes["priority"] = priority
    if scheduled_at is not None:
        changes |= await _values_of_new_time(ctx, row, scheduled_at)
    changed = sorted(
        _FIELDS[name] for name in _FIELDS if changes.get(name, getattr(row, name)) != getattr(row, name)
    )
    if not changed:
        raise ToolRefused("NOTHING_TO_CHANGE", f"Nothing of notification {row.id} would be different.")
    # Last, after every check that may refuse: a message taken out of the outbox must get its change.
    if row.status is NotificationStatus.SENDING:
        changes = await _take_from_outbox(ctx, row) | changes
    row = await _store(ctx, replace(row, **changes), before=row)
    return ToolResult(
        text=f"Notification {row.id} is changed ({', '.join(changed)}): {_due_text(ctx, row)}, {row.message}",
        data=serializers.notification(row, ctx.zone) | {"changed": changed},
    )


async def cancel(ctx: ServiceContext, *, notification_id: str, reason: str = "") -> ToolResult:
    """Cancel a pending notification; a second cancel changes nothing.

    Raises:
        ToolRefused: there is no such notification, it was sent or has failed, or it changed since the caller
            was shown it.
    """
    row = await ctx.notification(notification_id)
    reason = texts.text("reason", reason, limit=texts.MAX_TEXT)
    if row.status is NotificationStatus.CANCELLED:
        return ToolResult(
            text=f"Notification {row.id} was cancelled before.", data=serializers.notification(row, ctx.zone)
        )
    if not row.status.is_open:
        code = "ALREADY_DELIVERED" if row.status is NotificationStatus.DELIVERED else "NOT_PENDING"
        raise ToolRefused(code, f"Notification {row.id} is {row.status.value}.", status=row.status.value)
    await ctx.check_seen(row, serializers.notification(row, ctx.zone))
    row = await _cancel(ctx, row, reason or "User requested cancellation")
    return ToolResult(
        text=f"Notification {row.id} is cancelled.", data=serializers.notification(row, ctx.zone)
    )


async def list_notifications(
    ctx: ServiceContext,
    *,
    status: NotificationStatus | None = None,
    related_task_id: str | None = None,
    type: NotificationType | None = None,  # noqa: A002 - the tool's own name
    limit: int = 50,
    from_time: str | None = None,
    to_time: str | None = None,
    notification_id: str | None = None,
) -> ToolResult:
    """List notifications by due time, at most `limit`; with an id, only that one and its history.

    More than `MAX_LISTED` are never listed. Each other argument restricts the list, unless it is None. The
    times are texts, such as `tomorrow 9am`. Raises `ToolRefused` for an unknown id, or a text that is no
    time.
    """
    if notification_id is not None:
        return await _with_history(ctx, await ctx.notification(notification_id))
    from_ms, to_ms = (
        None if text is None else when.parse_datetime(text, now_ms=ctx.now_ms, zone=ctx.zone).at_ms
        for text in (from_time, to_time)
    )
    rows = await board_notifications.listed(
        ctx.tx,
        ctx.folder,
        statuses=_statuses(status),
        kind=type,
        task_id=related_task_id,
        from_ms=from_ms,
        to_ms=to_ms,
        limit=min(limit, MAX_LISTED),
    )
    requested = {"status": status, "task": related_task_id, "type": type, "from": from_time, "to": to_time}
    filters = ", ".join(f"{name} {value}" for name, value in requested.items() if value is not None)
    if not rows:
        return ToolResult(
            text=f"There are no notifications{f' with {filters}' if filters else ''}.",
            data={"notifications": []},
        )
    lines = [_list_line(ctx, row) for row in rows]
    return ToolResult(
        text="\n".join([f"{len(rows)} notification{'s' if len(rows) > 1 else ''}:", *lines]),
        data={"notifications": [serializers.notification(row, ctx.zone) for row in rows]},
    )


async def _with_history(ctx: ServiceContext, row: Notification) -> ToolResult:
    """Return a notification with its history, as text and data."""
    recorded = await board_notifications.history_of(ctx.tx, ctx.folder, row.id)
    entries = history_view.with_creation(row, recorded)
    return ToolResult(
        text="\n".join(
            [_list_line(ctx, row), *(f"  - {history_view.line(entry, ctx.zone)}" for entry in entries)]
        ),
        data={
            "notifications": [serializers.notification(row, ctx.zone)],
            "history": [history_view.data(entry, ctx.zone) for entry in entries],
        },
    )


async def cancel_of_task(ctx: ServiceContext, task_id: str, reason: str) -> int:
    """Cancel all pending notifications about a task for this reason, and return how many there were."""
    open_notifications = await board_notifications.open_of_task(ctx.tx, ctx.folder, task_id)
    for row in open_notifications:
        await _cancel(ctx, row, reason)
    return len(open_notifications)


async def cancel_of_question(ctx: ServiceContext, question_id: str) -> int:
    """Cancel all pending notifications about a question, and return how many there were."""
    open_notifications = await board_notifications.open_of_question(ctx.tx, ctx.folder, question_id)
    for row in open_notifications:
        await _cancel(ctx, row, QUESTION_CLOSED)
    return len(open_notifications)


async def cancel_of_rules(ctx: ServiceContext, reason: str) -> None:
    """Cancel all pending notifications that rules made; the rules' next pass makes those that are needed.

    `reason` is recorded with each. Notifications of the worker's model stay.
    """
    for row in await board_notifications.to_come(ctx.tx, ctx.folder):
        # The rules act as the worker, as its model does; only their notifications have a cause.
        if row.cause is not None and row.created_by is Actor.WORKER:
            await _cancel(ctx, row, reason)


async def cancel_orphans(ctx: ServiceContext) -> int:
    """Cancel all pending notifications whose task ended or was removed, and return how many there were."""
    orphans = await board_notifications.orphans(ctx.tx, ctx.folder)
    for row in orphans:
        task = await board_tasks.get(ctx.tx, ctx.folder, row.task_id or "")
        await _cancel(ctx, row, TASK_GONE if task is None else end_reason(task))
    return len(orphans)


async def withdraw_alerts(ctx: ServiceContext, reminder: Notification) -> int:
    """Cancel the worker's pending alerts about a task's deadline that are due on the day of a reminder.

    The `reminder` is about the same task, so an alert on that day would repeat it. Return how many alerts
    there were.
    """
    assert reminder.task_id is not None
    cancelled = 0
    for row in await board_notifications.open_of_task(ctx.tx, ctx.folder, reminder.task_id):
        # The worker's rules and its model both act as `Actor.WORKER`.
        is_of_worker = row.type is NotificationType.DEADLINE_ALERT and row.created_by is Actor.WORKER
        if is_of_worker and _due_day(ctx, row) == _due_day(ctx, reminder):
            await _cancel(ctx, row, REMINDER_SET)
            cancelled += 1
    return cancelled


async def forget_deadline(ctx: ServiceContext, task: BoardTask, *, new_deadline: str) -> int:
    """Cancel the pending alerts and reminders about a task's deadline, which was moved; return how many.

    Pending alerts that a person or an agent scheduled without a cause stay. Alerts and reminders that were
    delivered or cancelled earlier are marked, so that they no longer count for the rules; those cancelled now
    do not count because of their reason, which names `new_deadline`, the new one as text.
    """
    rows = [
        row
        for kind in (NotificationType.DEADLINE_ALERT, NotificationType.REMINDER)
        for row in await board_notifications.alike(
            ctx.tx, ctx.folder, kind, task_id=task.id, question_id=None
        )
        if kind is NotificationType.DEADLINE_ALERT or alerts.is_reminder(row.cause)
    ]
    cancelled = 0
    for row in rows:
        if row.status.is_open and (row.cause is not None or row.created_by is Actor.WORKER):
            await _cancel(ctx, row, f"{DEADLINE_MOVED} to {new_deadline}")
            cancelled += 1
        # Marked as superseded, or the rules would find the old alert and not send one for the new deadline.
        elif not row.status.is_open and row.cause != dedupe.SUPERSEDED:
            await _store(ctx, replace(row, cause=dedupe.SUPERSEDED), before=row)
    return cancelled


def end_reason(task: BoardTask) -> str:
    """Return the reason for cancelling the notifications of an ended task: it was completed, or cancelled."""
    return dedupe.TASK_COMPLETED if task.status.value == "completed" else dedupe.TASK_CANCELLED


async def _create(ctx: ServiceContext, request: NotificationRequest) -> Notification:
    """Check a request, store its notification and return it.

    Raises:
        ToolRefused: a text does not fit, its task or question is unknown or has ended, no channel takes it,
            it repeats another one, or too many are scheduled.
    """
    request = replace(
        request,
        message=texts.text("message", request.message, limit=texts.MAX_MESSAGE, is_needed=True),
        context=texts.text("context", request.context),
    )
    await _check_subject(ctx, request)
    if not ctx.can_deliver:
        raise ToolRefused(
            "NO_TARGET", "No channel takes a message for this group's chat: nothing was scheduled."
        )
    await _check_not_repeated(ctx, request)
    await _check_limits(ctx, request.task_id)
    created = Notification(
        **asdict(request),
        folder=ctx.folder,
        id=new_id("n"),
        created_by=ctx.caller.actor,
        created_ms=ctx.now_ms,
        # Only a reminder goes back to the chat in which a person asked for it.
        chat_jid=await ctx.requesting_chat() if request.type is NotificationType.REMINDER else None,
        asked_by=await messages.asker_of(ctx.tx, ctx.caller.turn_id) if ctx.caller.turn_id else None,
    )
    created = await _store(ctx, created, before=None)
    log.info(
        "Notification scheduled",
        id=created.id,
        group=ctx.folder,
        due_ms=created.due_ms,
        type=created.type.value,
    )
    return await ctx.notification(created.id)  # read again, for the number that the store has given it


async def _check_subject(ctx: ServiceContext, request: NotificationRequest) -> None:
    """Check that the task and the question of a request, if it has them, exist and are still open.

    Raises:
        ToolRefused: UNKNOWN_TASK, TASK_TERMINAL, UNKNOWN_QUESTION or CLOSED.
    """
    if request.task_id is not None:
        await ctx.check_open_task(request.task_id, why_not="nothing was scheduled")
    if request.question_id is not None:
        question = await board_questions.get(ctx.tx, ctx.folder, request.question_id)
        if question is None:
            raise ToolRefused("UNKNOWN_QUESTION", f"There is no question '{request.question_id[:80]}' here.")
        if not question.is_open:
            raise ToolRefused(
                "CLOSED", f"Question {question.id} is answered or closed: nothing was scheduled."
            )


async def _check_not_repeated(
    ctx: ServiceContext, request: NotificationRequest, *, ignored_id: str | None = None
) -> None:
    """Check that a requested notification repeats no stored one.

    The stored one with the id `ignored_id` does not count: it is the one to be changed.

    Raises:
        ToolRefused: DUPLICATE, or COOLDOWN if it may be sent later.
    """
    rows = await board_notifications.alike(
        ctx.tx, ctx.folder, request.type, task_id=request.task_id, question_id=request.question_id
    )
    # A cancel by the rules says nothing about the wishes of people, so it blocks no new notification.
    counted_rows = [row for row in rows if row.id != ignored_id and not _is_cancelled_by_rules(row)]
    duplicate = dedupe.duplicate_of(
        request, counted_rows, is_automatic=ctx.caller.is_automatic, now_ms=ctx.now_ms
    )
    if duplicate is None:
        return
    row = duplicate.row
    if duplicate.until_ms is not None:
        until = when.format_time(duplicate.until_ms, ctx.zone)
        raise ToolRefused(
            "COOLDOWN",
            f"{row.id} said so lately ({row.status.value}); not again before {until}.",
            ids=[row.id],
            until=until,
        )
    # People know a reminder by the number that their list shows, agents by its id.
    name = f"Reminder {row.number}" if ctx.caller.is_person and row.number is not None else row.id
    raise ToolRefused(
        "DUPLICATE",
        f"{name} says so already, at {_due_text(ctx, row)}: change or cancel it instead.",
        ids=[row.id],
    )


def _is_cancelled_by_rules(row: Notification) -> bool:
    """Return whether the rules, and no person, cancelled a notification."""
    # The stored reason may say more after the constant, such as "Deadline changed to 2026-02-10".
    return row.status is NotificationStatus.CANCELLED and (row.cancel_reason or "").startswith(RULE_REASONS)


async def _check_limits(ctx: ServiceContext, task_id: str | None) -> None:
    """Check that the group, and the task if there is one, may have another pending notification.

    Raises:
        ToolRefused: CAP, if there are too many.
    """
    if await board_notifications.count_open(ctx.tx, ctx.folder) >= ctx.limits.pending:
        raise ToolRefused(
            "CAP", f"{ctx.limits.pending} notifications are pending already: cancel some first."
        )
    if task_id is None:
        return
    of_task = await board_notifications.open_of_task(ctx.tx, ctx.folder, task_id)
    if len(of_task) >= ctx.limits.pending_a_task:
        ids = [row.id for row in of_task]
        raise ToolRefused(
            "CAP",
            f"Task {task_id} has {len(ids)} pending notifications already ({', '.join(ids)}): change one.",
            ids=ids,
        )


async def _values_of_new_time(ctx: ServiceContext, row: Notification, scheduled_at: str) -> dict[str, Any]:
    """Return the new values, by field name, of a notification that is moved to another time.

    `scheduled_at` is the time as text. Earlier failed attempts no longer count.

    Raises:
        ToolRefused: the text is no time in the future, or the notification would repeat another one.
    """
    point = when.parse_due_time(scheduled_at, now_ms=ctx.now_ms, zone=ctx.zone)
    if point.at_ms != row.due_ms:
        await _check_not_repeated(ctx, replace(row, due_ms=point.at_ms), ignored_id=row.id)
    return {
        "due_ms": point.at_ms,
        "due_text": None if point.is_iso else texts.line("scheduled_at", scheduled_at),
        "next_attempt_ms": None,
        "attempts": 0,
        "error": None,
    }


async def _take_from_outbox(ctx: ServiceContext, row: Notification) -> dict[str, Any]:
    """Take a notification's message out of the outbox, where it waits to be sent.

    Return the new values, by field name, that make the notification pending again.

    Raises:
        ToolRefused: NOT_PENDING, where the messenger is sending it already.
    """
    if not await board_deliveries.hold_claimed(ctx.tx, row):
        raise ToolRefused("NOT_PENDING", f"Notification {row.id} is being sent.", status=row.status.value)
    return {
        "status": NotificationStatus.PENDING,
        "claim_token": None,
        "claim_until_ms": None,
        # The claim has counted an attempt that was not made.
        "attempts": row.attempts - 1,
    }


async def _cancel(ctx: ServiceContext, row: Notification, reason: str) -> Notification:
    """Cancel a notification and return the changed row; the reason is also added to its context."""
    context = f"{row.context}\n{reason}".strip()
    ended = replace(
        row,
        status=NotificationStatus.CANCELLED,
        cancelled_ms=ctx.now_ms,
        cancel_reason=reason,
        context=context,
        claim_token=None,
        claim_until_ms=None,
    )
    return await _store(ctx, ended, before=row)


async def _store(ctx: ServiceContext, row: Notification, *, before: Notification | None) -> Notification:
    """Store a notification, record its change in its history, and return it with its new version.

    `before` is the row that was read, None for a new notification.

    Raises:
        ToolRefused: STALE, if the stored notification has another version by now.
    """
    row = replace(row, version=await ctx.version(), changed_turn=ctx.caller.turn_id)
    if not await board_notifications.put(
        ctx.tx, row, read_version=None if before is None else before.version
    ):
        raise ToolRefused("STALE", f"{row.id} was changed meanwhile.")
    by, turn_id = ctx.caller.actor.value, ctx.caller.turn_id
    await notification_log.record(ctx.tx, before, row, by=by, turn_id=turn_id, now_ms=ctx.now_ms)
    return row


def _statuses(status: NotificationStatus | None) -> tuple[NotificationStatus, ...]:
    """Return the stored statuses of notifications that a caller means by `status`.

    Empty for None, which means all.
    """
    if status is NotificationStatus.PENDING:
        # To people, a notification that waits in the outbox is still to come.
        return (NotificationStatus.PENDING, NotificationStatus.SENDING)
    return () if status is None else (status,)


def _list_line(ctx: ServiceContext, row: Notification) -> str:
    """Return a notification as one line of a list for an agent."""
    about = "".join(
        f", {name} {value}" for name, value in (("task", row.task_id), ("question", row.question_id)) if value
    )
    ended_ms = row.delivered_ms or row.cancelled_ms
    ended_at = f" {when.format_time(ended_ms, ctx.zone)}" if ended_ms else ""
    due_text = f" (said: {row.due_text})" if row.due_text else ""
    context = f" [{one_line(row.context)}]" if row.context else ""
    return (
        f"- {row.id}: {_due_text(ctx, row)}{due_text}, {row.type.value}, {row.priority.value},"
        f" {row.status.value}{ended_at}{about}: {one_line(row.message)}{context}"
    )


def _due_day(ctx: ServiceContext, row: Notification) -> date:
    """Return the day on which a notification is due, in the group's time zone."""
    return datetime.fromtimestamp(row.due_ms / 1000, ctx.zone).date()


def _due_text(ctx: ServiceContext, row: Notification) -> str:
    """Return when a notification is due, by the group's clocks: `Tue 2026-02-10 09:00`."""
    return datetime.fromtimestamp(row.due_ms / 1000, ctx.zone).strftime("%a %Y-%m-%d %H:%M")
