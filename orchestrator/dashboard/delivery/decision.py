"""Decide what happens to a notification whose time has come, and with which text it is sent. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta

from orchestrator.dashboard.rules import alerts, slots
from orchestrator.dashboard.rules.slots import Hours
from orchestrator.dashboard.services.notifications import OUT_OF_DATE
from orchestrator.domain.dashboard import Actor, Notification, NotificationType, Priority
from orchestrator.domain.values import ChatJid
from orchestrator.store.board.deliveries import DueNotification

NO_GROUP = "Group gone"
ON_TIME_MS = 5 * 60_000
"""Milliseconds of delay up to which a notification never expires."""
LATE_MS = 120_000
"""Milliseconds of delay after which the text of a reminder says that it is late."""
REMINDER_GRACE_MS, GRACE_MS = 12 * 3_600_000, 24 * 3_600_000
"""Milliseconds after its due time at which a reminder, and any other notification, expires."""
PAUSES_MS = (30_000, 60_000, 120_000, 300_000, 600_000)
MAX_ATTEMPTS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class SendNow:
    """Send the notification to a chat now."""

    chat_jid: ChatJid
    has_daily_limit: bool = False
    """Whether the daily limit applies: the worker made the notification, and it is not urgent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Postpone:
    """Send the notification at `at_ms` instead."""

    at_ms: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Expire:
    """Do not send the notification: it comes so late that it would only confuse."""

    is_reported: bool
    """Whether the chat and the agent get a line about it; false where an overdue alert follows anyway."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel:
    """Do not send the notification: its task or question has ended, or its text is no longer true."""

    reason: str


Verdict = SendNow | Postpone | Expire | Cancel


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryDecision:
    """Decision about a notification that is due."""

    row: Notification
    """The notification, its message updated to the present state of its task."""
    text: str
    """The text that its chat gets, if it is sent."""
    verdict: Verdict


def decide(due: DueNotification, hours: Hours | None, *, now_ms: int) -> DeliveryDecision:
    """Return what happens to a due notification, and with which text it is sent.

    `hours` are the group's hours for notifications, None where the group was removed. Quiet hours and the
    daily limit apply only to notifications of the worker that are not urgent. A reminder that a person worded
    is sent however late it is.
    """
    row = _with_present_text(due, hours, now_ms=now_ms)
    # A time that was past when it was set is late as well, however soon it is sent.
    is_late = now_ms - row.due_ms > LATE_MS or row.due_ms < row.created_ms
    text = f"{row.message} (late)" if is_late and row.is_of_person else row.message
    return DeliveryDecision(row=row, text=text, verdict=_verdict(due, hours, now_ms=now_ms))


def next_day(hours: Hours, *, now_ms: int) -> Postpone:
    """Return the decision to postpone a notification to the first slot of the next day.

    Slots are the times of day for notifications. It is for a group whose daily limit is used up.
    """
    # Not at midnight: all postponed notifications would arrive together then, at night.
    tomorrow = hours.day_of(now_ms) + timedelta(days=1)
    return Postpone(at_ms=hours.next_slot(hours.start_of(tomorrow)), reason="enough for one day")


def _with_present_text(due: DueNotification, hours: Hours | None, *, now_ms: int) -> Notification:
    """Return the due notification with a message that is still true.

    The rules wrote the message when they scheduled it; figures in it, such as days, are updated. A message
    that somebody wrote or edited stays. `hours` are the group's zone and hours for notifications; None if the
    group is gone: then the message stays, too.
    """
    row = due.row
    if row.cause is None or due.is_reworded or hours is None:
        return row
    text = alerts.text_of(row.cause, task=due.task, question=due.question, hours=hours, at_ms=now_ms)
    return row if text is None else replace(row, message=text)


def _verdict(due: DueNotification, hours: Hours | None, *, now_ms: int) -> Verdict:
    """Return whether a due notification is sent now, postponed, dropped as too late, or cancelled.

    `hours` are the group's hours for notifications, None if the group is gone.
    """
    row = due.row
    if due.group is None or hours is None:
        # Only reminders store their chat: a person requested them, so they are sent without a group too.
        return Cancel(reason=NO_GROUP) if row.chat_jid is None else SendNow(chat_jid=row.chat_jid)
    cancel_reason = _cancel_reason(due)
    if cancel_reason is not None:
        return Cancel(reason=cancel_reason)
    is_too_late = now_ms - row.due_ms > ON_TIME_MS and now_ms > _latest_ms(due, hours)
    # After a failed attempt it never expires: it is tried again, and in the end comes with an apology.
    was_tried = row.attempts > 0 or row.error is not None
    if is_too_late and not was_tried and not row.is_of_person:
        # It is not reported if the rules send an overdue alert now, which says the same.
        return Expire(is_reported=not alerts.says_overdue(row.cause, due.task, hours, now_ms=now_ms))
    # Quiet hours and the daily limit apply only to what the worker made, unless it is urgent.
    can_wait = row.created_by is Actor.WORKER and row.priority is not Priority.HIGH
    if can_wait and hours.is_quiet(now_ms):
        return Postpone(at_ms=hours.after_quiet(now_ms), reason="quiet hours")
    return SendNow(chat_jid=due.group.chat_for(row.chat_jid), has_daily_limit=can_wait)


def _cancel_reason(due: DueNotification) -> str | None:
    """Return why a due notification must not be sent any more; None if it may be."""
    row, task, question = due.row, due.task, due.question
    if row.task_id is not None and task is None:
        return "Task gone"
    if task is not None and task.status.is_terminal:
        return f"Task {task.status.value}"
    if task is not None and alerts.is_outdated(row.cause, task, since_ms=row.created_ms):
        return OUT_OF_DATE
    if row.question_id is not None and (question is None or not question.is_open):
        return "Question closed"
    return None


def _latest_ms(due: DueNotification, hours: Hours) -> int:
    """Return the last moment at which the notification is still worth sending, in epoch ms."""
    row = due.row
    # An alert before a deadline is useful until the deadline, however long ago it was due.
    is_before = row.type is NotificationType.DEADLINE_ALERT and row.cause != alerts.OVERDUE
    if is_before and due.task is not None and due.task.deadline:
        return slots.end_ms(due.task.deadline, hours)
    return row.due_ms + (REMINDER_GRACE_MS if row.type is NotificationType.REMINDER else GRACE_MS)


def pause_ms(attempts: int) -> int | None:
    """Return the milliseconds to wait after so many failed attempts (1 or more) to send a notification.

    None after `MAX_ATTEMPTS`: it is given up.
    """
    return PAUSES_MS[attempts - 1] if attempts < MAX_ATTEMPTS else None
