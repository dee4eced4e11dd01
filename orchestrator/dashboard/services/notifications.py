"""Schedule, change, cancel and list notifications: the rules, agents and people all use these functions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import date, datetime
from typing import Any

import structlog

from orchestrator.dashboard.rules import alerts, dedupe
from orchestrator.dashboard.services import notification_log
from orchestrator.dashboard.services.context import ServiceContext, new_id
from orchestrator.dashboard.views import notification_log as history_view
from orchestrator.dashboard.views import serializers
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
from orchestrator.store import (
    dashboard_deliveries,
    dashboard_notifications,
    dashboard_questions,
    dashboard_tasks,
    messages,
)

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
"""Reasons with which Andy's rules cancel: such a row does not mean that a person wants no notification."""
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
        """Return `created`, `duplicate`, `capped` or `rejected`."""
        if self.refused is None:
            return "created"
        return {"DUPLICATE": "duplicate", "COOLDOWN": "duplicate", "CAP": "capped"}.get(
            self.refused.code, "rejected"
        )


async def intend(ctx: ServiceContext, request: NotificationRequest) -> ScheduleOutcome:
    """Schedule a notification for any caller, and return a refusal as a value."""
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
    """Schedule a notification at a time in words, as the tool does. Raises `ToolRefused`."""
    point = when.due_ms(scheduled_at, now_ms=ctx.now_ms, zone=ctx.zone)
    made = await _create(
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
        text=f"Notification {made.id} is scheduled for {_due(ctx, made)} ({ctx.zone.key}): {made.message}",
        data=serializers.notification(made, ctx.zone),
    )


async def update(
    ctx: ServiceContext,
    *,
    notification_id: str,
    message: str | None = None,
    scheduled_at: str | None = None,
    priority: Priority | None = None,
) -> ToolResult:
    """Change a pending notification; what is changed is what is delivered. Raises `ToolRefused`."""
    one = await ctx.notification(notification_id)
    if not one.status.is_open:
        raise ToolRefused(
            "NOT_PENDING", f"Notification {one.id} is {one.status.value}.", status=one.status.value
        )
    await ctx.check_seen(one, serializers.notification(one, ctx.zone))
    changes: dict[str, Any] = {}
    if message is not None:
        changes["message"] = texts.text("message", message, limit=texts.MAX_MESSAGE, is_needed=True)
    if priority is not None:
        changes["priority"] = priority
    if scheduled_at is not None:
        changes |= await _moved(ctx, one, scheduled_at)
    changed = sorted(
        _FIELDS[name] for name in _FIELDS if changes.get(name, getattr(one, name)) != getattr(one, name)
    )
    if not changed:
        raise ToolRefused("NOTHING_TO_CHANGE", f"Nothing of notification {one.id} would be different.")
    # Last, after all that may be refused: a message that was called back has to be changed.
    if one.status is NotificationStatus.SENDING:
        changes = await _called_back(ctx, one) | changes
    one = await _put(ctx, replace(one, **changes), was=one)
    return ToolResult(
        text=f"Notification {one.id} is changed ({', '.join(changed)}): {_due(ctx, one)}, {one.message}",
        data=serializers.notification(one, ctx.zone) | {"changed": changed},
    )


async def cancel(ctx: ServiceContext, *, notification_id: str, reason: str = "") -> ToolResult:
    """Cancel a pending notification; a second cancel changes nothing. Raises `ToolRefused`."""
    one = await ctx.notification(notification_id)
    reason = texts.text("reason", reason, limit=texts.MAX_TEXT)
    if one.status is NotificationStatus.CANCELLED:
        return ToolResult(
            text=f"Notification {one.id} was cancelled before.", data=serializers.notification(one, ctx.zone)
        )
    if not one.status.is_open:
        code = "ALREADY_DELIVERED" if one.status is NotificationStatus.DELIVERED else "NOT_PENDING"
        raise ToolRefused(code, f"Notification {one.id} is {one.status.value}.", status=one.status.value)
    await ctx.check_seen(one, serializers.notification(one, ctx.zone))
    one = await _end(ctx, one, reason or "User requested cancellation")
    return ToolResult(
        text=f"Notification {one.id} is cancelled.", data=serializers.notification(one, ctx.zone)
    )


async def list_them(
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
    """List notifications by due time, at most `limit`; of one, show its history too."""
    if notification_id is not None:
        return await _with_history(ctx, await ctx.notification(notification_id))
    bounds = [
        None if text is None else when.parse_datetime(text, now_ms=ctx.now_ms, zone=ctx.zone).at_ms
        for text in (from_time, to_time)
    ]
    found = await dashboard_notifications.listed(
        ctx.tx,
        ctx.folder,
        statuses=_statuses(status),
        kind=type,
        task_id=related_task_id,
        from_ms=bounds[0],
        to_ms=bounds[1],
        limit=min(limit, MAX_LISTED),
    )
    asked = {"status": status, "task": related_task_id, "type": type, "from": from_time, "to": to_time}
    filters = ", ".join(f"{name} {value}" for name, value in asked.items() if value is not None)
    if not found:
        return ToolResult(
            text=f"There are no notifications{f' with {filters}' if filters else ''}.",
            data={"notifications": []},
        )
    lines = [_line(ctx, one) for one in found]
    return ToolResult(
        text="\n".join([f"{len(found)} notification{'s' if len(found) > 1 else ''}:", *lines]),
        data={"notifications": [serializers.notification(one, ctx.zone) for one in found]},
    )


async def _with_history(ctx: ServiceContext, one: Notification) -> ToolResult:
    recorded = await dashboard_notifications.history_of(ctx.tx, ctx.folder, one.id)
    entries = history_view.whole(one, recorded)
    return ToolResult(
        text="\n".join([_line(ctx, one), *(f"  - {history_view.line(each, ctx.zone)}" for each in entries)]),
        data={
            "notifications": [serializers.notification(one, ctx.zone)],
            "history": [history_view.data(each, ctx.zone) for each in entries],
        },
    )


async def cancel_of_task(ctx: ServiceContext, task_id: str, reason: str) -> int:
    """Cancel all pending notifications about a task, and return how many there were."""
    open_ones = await dashboard_notifications.open_of_task(ctx.tx, ctx.folder, task_id)
    for one in open_ones:
        await _end(ctx, one, reason)
    return len(open_ones)


async def cancel_of_question(ctx: ServiceContext, question_id: str) -> int:
    """Cancel all pending notifications about a question, and return how many there were."""
    open_ones = await dashboard_notifications.open_of_question(ctx.tx, ctx.folder, question_id)
    for one in open_ones:
        await _end(ctx, one, QUESTION_CLOSED)
    return len(open_ones)


async def cancel_of_rules(ctx: ServiceContext, reason: str) -> None:
    """Cancel all pending notifications that rules have made; rules make them again where needed."""
    for one in await dashboard_notifications.to_come(ctx.tx, ctx.folder):
        if one.cause is not None and one.created_by is Actor.WORKER:
            await _end(ctx, one, reason)


async def sweep(ctx: ServiceContext) -> int:
    """Cancel all pending notifications whose task is over or gone, and return how many there were."""
    orphans = await dashboard_notifications.orphans(ctx.tx, ctx.folder)
    for one in orphans:
        task = await dashboard_tasks.get(ctx.tx, ctx.folder, one.task_id or "")
        await _end(ctx, one, TASK_GONE if task is None else ended_because(task))
    return len(orphans)


async def withdraw_alerts(ctx: ServiceContext, reminder: Notification) -> int:
    """Cancel the pending alerts of the rules on the day of a reminder about the same deadline.

    Returns how many there were.
    """
    assert reminder.task_id is not None
    cancelled = 0
    for one in await dashboard_notifications.open_of_task(ctx.tx, ctx.folder, reminder.task_id):
        is_of_rules = one.type is NotificationType.DEADLINE_ALERT and one.created_by is Actor.WORKER
        if is_of_rules and _day(ctx, one) == _day(ctx, reminder):
            await _end(ctx, one, REMINDER_SET)
            cancelled += 1
    return cancelled


async def forget_deadline(ctx: ServiceContext, task: BoardTask, *, shown: str) -> int:
    """Cancel the alerts of a deadline that was moved, and the reminders about it.

    Delivered ones no longer count for the rules.
    """
    rows = [
        one
        for kind in (NotificationType.DEADLINE_ALERT, NotificationType.REMINDER)
        for one in await dashboard_notifications.alike(
            ctx.tx, ctx.folder, kind, task_id=task.id, question_id=None
        )
        if kind is NotificationType.DEADLINE_ALERT or alerts.is_reminder(one.cause)
    ]
    cancelled = 0
    for one in rows:
        if one.status.is_open and (one.cause is not None or one.created_by is Actor.WORKER):
            await _end(ctx, one, f"{DEADLINE_MOVED} to {shown}")
            cancelled += 1
        # Marked, or the rules would find the old alert and stay silent about the new deadline.
        elif not one.status.is_open and one.cause != dedupe.SUPERSEDED:
            await _put(ctx, replace(one, cause=dedupe.SUPERSEDED), was=one)
    return cancelled


def ended_because(task: BoardTask) -> str:
    """Return the reason with which notifications of an ended task are cancelled."""
    return dedupe.TASK_COMPLETED if task.status.value == "completed" else dedupe.TASK_CANCELLED


async def _create(ctx: ServiceContext, request: NotificationRequest) -> Notification:
    request = replace(
        request,
        message=texts.text("message", request.message, limit=texts.MAX_MESSAGE, is_needed=True),
        context=texts.text("context", request.context),
    )
    await _check_about(ctx, request)
    if not ctx.can_deliver:
        raise ToolRefused(
            "NO_TARGET", "No channel takes a message for this group's chat: nothing was scheduled."
        )
    await _check_alike(ctx, request)
    await _check_room(ctx, request.task_id)
    made = Notification(
        folder=ctx.folder,
        id=new_id("n"),
        message=request.message,
        audience=request.audience,
        due_ms=request.due_ms,
        due_text=request.due_text,
        type=request.type,
        priority=request.priority,
        task_id=request.task_id,
        question_id=request.question_id,
        cause=request.cause,
        context=request.context,
        created_by=ctx.caller.actor,
        created_ms=ctx.now_ms,
        chat_jid=await ctx.asked_in() if request.type is NotificationType.REMINDER else None,
        asked_by=await messages.asker_of(ctx.tx, ctx.caller.turn_id) if ctx.caller.turn_id else None,
    )
    made = await _put(ctx, made, was=None)
    log.info("Notification scheduled", id=made.id, group=ctx.folder, due_ms=made.due_ms, type=made.type.value)
    return await ctx.notification(made.id)  # which has its number now


async def _check_about(ctx: ServiceContext, request: NotificationRequest) -> None:
    """The task and the question there are, and what is to be done is not done yet."""
    if request.task_id is not None:
        await ctx.check_open_task(request.task_id, why_not="nothing was scheduled")
    if request.question_id is not None:
        question = await dashboard_questions.get(ctx.tx, ctx.folder, request.question_id)
        if question is None:
            raise ToolRefused("UNKNOWN_QUESTION", f"There is no question '{request.question_id[:80]}' here.")
        if not question.is_open:
            raise ToolRefused(
                "CLOSED", f"Question {question.id} is answered or closed: nothing was scheduled."
            )


async def _check_alike(ctx: ServiceContext, request: NotificationRequest, *, but: str | None = None) -> None:
    rows = await dashboard_notifications.alike(
        ctx.tx, ctx.folder, request.type, task_id=request.task_id, question_id=request.question_id
    )
    # What the host itself cancelled says nothing of what people want, so it blocks no new one.
    others = [row for row in rows if row.id != but and not _is_cancelled_by_rules(row)]
    found = dedupe.clash(request, others, is_automatic=ctx.caller.is_automatic, now_ms=ctx.now_ms)
    if found is None:
        return
    row = found.row
    if found.until_ms is not None:
        until = when.format_time(found.until_ms, ctx.zone)
        raise ToolRefused(
            "COOLDOWN",
            f"{row.id} said so lately ({row.status.value}); not again before {until}.",
            ids=[row.id],
            until=until,
        )
    raise ToolRefused(
        "DUPLICATE",
        f"{row.id} says so already, at {_due(ctx, row)}: change or cancel it instead.",
        ids=[row.id],
    )


def _is_cancelled_by_rules(row: Notification) -> bool:
    return row.status is NotificationStatus.CANCELLED and (row.cancel_reason or "").startswith(RULE_REASONS)


async def _check_room(ctx: ServiceContext, task_id: str | None) -> None:
    if await dashboard_notifications.count_open(ctx.tx, ctx.folder) >= ctx.limits.pending:
        raise ToolRefused(
            "CAP", f"{ctx.limits.pending} notifications are to come already: cancel some first."
        )
    if task_id is None:
        return
    of_task = await dashboard_notifications.open_of_task(ctx.tx, ctx.folder, task_id)
    if len(of_task) >= ctx.limits.pending_a_task:
        ids = [one.id for one in of_task]
        raise ToolRefused(
            "CAP", f"Task {task_id} has {len(ids)} to come already ({', '.join(ids)}): change one.", ids=ids
        )


async def _moved(ctx: ServiceContext, one: Notification, scheduled_at: str) -> dict[str, Any]:
    point = when.due_ms(scheduled_at, now_ms=ctx.now_ms, zone=ctx.zone)
    if point.at_ms != one.due_ms:
        request = NotificationRequest(
            message=one.message,
            due_ms=point.at_ms,
            type=one.type,
            task_id=one.task_id,
            question_id=one.question_id,
            cause=one.cause,
            audience=one.audience,
        )
        await _check_alike(ctx, request, but=one.id)
    return {
        "due_ms": point.at_ms,
        "due_text": None if point.is_iso else texts.line("scheduled_at", scheduled_at),
        "next_attempt_ms": None,
        "attempts": 0,
        "error": None,
    }


async def _called_back(ctx: ServiceContext, one: Notification) -> dict[str, Any]:
    """Take one that is claimed out of the outbox; what the messenger has got is past changing."""
    if not await dashboard_deliveries.call_back(ctx.tx, one):
        raise ToolRefused("NOT_PENDING", f"Notification {one.id} is being sent.", status=one.status.value)
    return {
        "status": NotificationStatus.PENDING,
        "claim_token": None,
        "claim_until_ms": None,
        "attempts": one.attempts - 1,
    }


async def _end(ctx: ServiceContext, one: Notification, reason: str) -> Notification:
    context = f"{one.context}\n{reason}".strip()
    ended = replace(
        one,
        status=NotificationStatus.CANCELLED,
        cancelled_ms=ctx.now_ms,
        cancel_reason=reason,
        context=context,
        claim_token=None,
        claim_until_ms=None,
    )
    return await _put(ctx, ended, was=one)


async def _put(ctx: ServiceContext, one: Notification, *, was: Notification | None) -> Notification:
    one = replace(one, version=await ctx.version(), changed_turn=ctx.caller.turn_id)
    if not await dashboard_notifications.put(ctx.tx, one, was=None if was is None else was.version):
        raise ToolRefused("STALE", f"{one.id} was changed meanwhile.")
    by, turn_id = ctx.caller.actor.value, ctx.caller.turn_id
    await notification_log.record(ctx.tx, was, one, by=by, turn_id=turn_id, now_ms=ctx.now_ms)
    return one


def _statuses(status: NotificationStatus | None) -> tuple[NotificationStatus, ...]:
    if status is NotificationStatus.PENDING:
        return (NotificationStatus.PENDING, NotificationStatus.SENDING)
    return () if status is None else (status,)


def _line(ctx: ServiceContext, one: Notification) -> str:
    about = "".join(
        f", {name} {value}" for name, value in (("task", one.task_id), ("question", one.question_id)) if value
    )
    ended_ms = one.delivered_ms or one.cancelled_ms
    ended = (
        f", {one.status.value} {when.format_time(ended_ms, ctx.zone)}"
        if ended_ms
        else f", {one.status.value}"
    )
    said = f" (said: {one.due_text})" if one.due_text else ""
    context = f" [{' '.join(one.context.split())}]" if one.context else ""
    return (
        f"- {one.id}: {_due(ctx, one)}{said}, {one.type.value}, {one.priority.value}{ended}{about}: "
        f"{one.message}{context}"
    )


def _day(ctx: ServiceContext, one: Notification) -> date:
    return datetime.fromtimestamp(one.due_ms / 1000, ctx.zone).date()


def _due(ctx: ServiceContext, one: Notification) -> str:
    return datetime.fromtimestamp(one.due_ms / 1000, ctx.zone).strftime("%a %Y-%m-%d %H:%M")
