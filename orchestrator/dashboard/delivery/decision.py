"""Decide what happens to a notification whose time has come. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from orchestrator.dashboard.rules import alerts, slots
from orchestrator.dashboard.rules.slots import Hours
from orchestrator.dashboard.services.notifications import OUT_OF_DATE
from orchestrator.domain.dashboard import Actor, BoardTask, Notification, NotificationType, Priority, Question

PROMPT_MS = 5 * 60_000
"""So little late is not late."""
LATE_MS = 120_000
"""A reminder that is later says so."""
REMINDER_GRACE_MS, GRACE_MS = 12 * 3_600_000, 24 * 3_600_000
PAUSES_MS = (30_000, 60_000, 120_000, 300_000, 600_000)
MAX_ATTEMPTS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class SendNow:
    """Send the notification now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Postpone:
    """Send the notification at `at_ms` instead."""

    at_ms: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Expire:
    """Do not send the notification: it comes so late that it would only confuse."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel:
    """Do not send the notification: its task or question is over, or it says what is true no more."""

    reason: str


DeliveryDecision = SendNow | Postpone | Expire | Cancel


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryContext:
    """What a delivery decision depends on.

    `task` and `question` are None where the notification is about none, or where the row is gone.
    """

    hours: Hours
    task: BoardTask | None = None
    question: Question | None = None
    sent_today: int = 0
    """How many the group was told today that nobody had asked for and that were not urgent."""
    daily_limit: int = 0
    """0: none."""


def decide(row: Notification, context: DeliveryContext, *, now_ms: int) -> DeliveryDecision:
    """Return what happens to a notification that is due.

    What a person asked for comes at its minute, and what is urgent too; quiet hours and the daily limit bind
    what comes by itself. What a person has set with their own words comes however late it is.
    """
    cancel_reason = _cancel_reason(row, context)
    if cancel_reason is not None:
        return Cancel(reason=cancel_reason)
    # Only before the first attempt: what was tried and failed is retried, and ends with an apology.
    is_too_late = now_ms - row.due_ms > PROMPT_MS and now_ms > _latest_ms(row, context)
    if is_too_late and row.attempts == 0 and not row.is_of_person:
        return Expire()
    if row.created_by is not Actor.WORKER or row.priority is Priority.HIGH:
        return SendNow()
    if context.hours.is_quiet(now_ms):
        return Postpone(at_ms=context.hours.after_quiet(now_ms), reason="quiet hours")
    if context.daily_limit and context.sent_today >= context.daily_limit:
        tomorrow = context.hours.day_of(now_ms) + timedelta(days=1)
        # The next morning's slot, or all that was put off would come at midnight.
        slot = context.hours.next_slot(context.hours.start_of(tomorrow))
        return Postpone(at_ms=slot, reason="enough for one day")
    return SendNow()


def words_of(row: Notification, *, now_ms: int) -> str:
    """Return what the chat is told: the text, which says of a person's reminder that it comes late."""
    # A time that was past when it was set is late as well, however soon it is sent.
    is_late = now_ms - row.due_ms > LATE_MS or row.due_ms < row.created_ms
    return f"{row.message} (late)" if is_late and row.is_of_person else row.message


def _cancel_reason(row: Notification, context: DeliveryContext) -> str | None:
    if row.task_id is not None and context.task is None:
        return "Task gone"
    if context.task is not None and context.task.status.is_terminal:
        return f"Task {context.task.status.value}"
    if context.task is not None and alerts.is_outdated(row.cause, context.task, since_ms=row.created_ms):
        return OUT_OF_DATE
    if row.question_id is not None and (context.question is None or not context.question.is_open):
        return "Question closed"
    return None


def _latest_ms(row: Notification, context: DeliveryContext) -> int:
    """Return until when the notification is still worth sending, in epoch ms."""
    # An alert before a deadline is worth something until the deadline, however long ago it was due.
    is_before = row.type is NotificationType.DEADLINE_ALERT and row.cause != alerts.OVERDUE
    if is_before and context.task is not None and context.task.deadline:
        return slots.end_ms(context.task.deadline, context.hours)
    return row.due_ms + (REMINDER_GRACE_MS if row.type is NotificationType.REMINDER else GRACE_MS)


def pause_ms(attempts: int) -> int | None:
    """Return the pause in ms after that many failed attempts: 30 s, 1, 2, 5, 10 min; None means give up."""
    return PAUSES_MS[attempts - 1] if attempts < MAX_ATTEMPTS else None
