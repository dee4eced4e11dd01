"""Decide whether a notification or question repeats another one, or comes too soon after it. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from orchestrator.domain.dashboard import (
    Notification,
    NotificationRequest,
    NotificationStatus,
    NotificationType,
    QuestionType,
)

MINUTE_MS = 60_000
HOUR_MS = 3_600_000
WINDOW_MS = 12 * HOUR_MS
"""Milliseconds: two pending automatic notifications of one type that are closer than this are duplicates."""
SUPERSEDED = "superseded"
"""The cause of a row that no longer counts for its task, for example since the deadline was moved."""

ANOTHER_IS_OPEN = "another question about the task is open"
NOTIFIED_INSTEAD = "a notification says it"
LONG_LIST = "the list is long"
NOBODY_ANSWERED = "nobody answered in 14 days"
TASK_OVER = "its task is over"
TASK_CHANGED = "its task was changed"
TASK_COMPLETED, TASK_CANCELLED = "Task completed", "Task cancelled"
UNSETTLED = (
    ANOTHER_IS_OPEN,
    NOTIFIED_INSTEAD,
    LONG_LIST,
    NOBODY_ANSWERED,
    TASK_OVER,
    TASK_CHANGED,
    TASK_COMPLETED,
    TASK_CANCELLED,
)
"""Reasons with which rules close a question that stays unanswered; any other close counts as an answer."""

# Hours that must pass between two questions, or notifications, of one type about the same task.
QUESTION_HOURS = {
    QuestionType.INFO_GATHER: 24,
    QuestionType.PROGRESS_CHECK: 24,
    QuestionType.DEADLINE_CHECK: 12,
    QuestionType.START_CHECK: 24,
    QuestionType.BLOCKER_CHECK: 48,
    QuestionType.STATUS_CHECK: 72,
    QuestionType.COMPLETION_CHECK: 6,
    QuestionType.ROUTINE_CHECK: 168,
}
NOTIFICATION_HOURS = {
    NotificationType.REMINDER: 0,
    NotificationType.DEADLINE_ALERT: 12,
    NotificationType.PROGRESS_CHECK: 24,
    NotificationType.BLOCKER_FOLLOWUP: 48,
    NotificationType.QUESTION_REMINDER: 24,
}


def question_ms(kind: QuestionType) -> int:
    """Return how many ms must pass between two questions of this type."""
    return QUESTION_HOURS[kind] * HOUR_MS


def notification_ms(kind: NotificationType) -> int:
    """Return how many ms must pass between two notifications of this type."""
    return NOTIFICATION_HOURS[kind] * HOUR_MS


def is_lately(at_ms: int, cooldown_ms: int, *, now_ms: int) -> bool:
    """Return whether a time is less than `cooldown_ms` ago.

    One that is as little ahead counts too, as after the clock was set back. One that is further ahead does
    not: a clock that was wrong by a year would keep everything back for that long.
    """
    return abs(now_ms - at_ms) < cooldown_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Duplicate:
    """The row that makes a new one needless; `until_ms` is set where it does so only for a while."""

    row: Notification
    until_ms: int | None = None


def duplicate_of(
    request: NotificationRequest, alike: Iterable[Notification], *, is_automatic: bool, now_ms: int
) -> Duplicate | None:
    """Return the row that a new notification would repeat, or None.

    `alike` are the stored notifications of its type. A notification that a person requested is a duplicate
    only of a pending one for the same minute. One that `is_automatic` is also a duplicate of a pending one
    near it in time, and of one that was delivered or cancelled within the cooldown of its type.
    Rows that were superseded, and those for another audience, do not count.
    """
    rows = [row for row in alike if row.cause != SUPERSEDED and row.audience is request.audience]
    for row in rows:
        is_duplicate = _is_near(request, row) if is_automatic else _is_for_same_minute(request, row)
        if row.status.is_open and is_duplicate:
            return Duplicate(row=row)
    if not is_automatic:
        return None
    return _recent_duplicate(request, rows, now_ms=now_ms)


def _is_for_same_minute(request: NotificationRequest, row: Notification) -> bool:
    """Return whether a requested and a stored notification are due in the same minute and about the same."""
    return request.due_ms // MINUTE_MS == row.due_ms // MINUTE_MS and _are_about_same(request, row)


def _is_near(request: NotificationRequest, row: Notification) -> bool:
    """Return whether a requested and a stored notification are about the same, at about the same time.

    It suffices, too, that they have the same cause: the rule that made them. Two alerts about a deadline with
    different causes are not near, whatever their times.
    """
    if not _are_about_same(request, row) or _are_different_alerts(request, row):
        return False
    has_same_cause = request.cause is not None and request.cause == row.cause
    return has_same_cause or abs(request.due_ms - row.due_ms) < WINDOW_MS


def _recent_duplicate(
    request: NotificationRequest, rows: Iterable[Notification], *, now_ms: int
) -> Duplicate | None:
    """Return one of `rows` that says the same as a requested notification, and ended a short time ago.

    It was delivered or cancelled less than the cooldown of its type ago. An alert for another time before the
    same deadline is not the same. None if there is no such row.
    """
    cooldown_ms = notification_ms(request.type)
    for row in rows:
        ended_ms = row.delivered_ms or row.cancelled_ms
        if row.status not in (NotificationStatus.DELIVERED, NotificationStatus.CANCELLED) or ended_ms is None:
            continue
        if (
            is_lately(ended_ms, cooldown_ms, now_ms=now_ms)
            and _are_about_same(request, row)
            and not _are_different_alerts(request, row)
        ):
            return Duplicate(row=row, until_ms=ended_ms + cooldown_ms)
    return None


def _are_different_alerts(request: NotificationRequest, row: Notification) -> bool:
    """Return whether two notifications of one type are alerts about a deadline, with different causes.

    For example, one is for a day before it and the other for two hours before it.
    """
    return (
        request.type is NotificationType.DEADLINE_ALERT
        and None not in (request.cause, row.cause)
        and request.cause != row.cause
    )


def _are_about_same(request: NotificationRequest, row: Notification) -> bool:
    """Return whether both notifications are about the same task and question.

    If the requested one is about neither a task nor a question, they must have the same text.
    """
    if request.task_id is None and request.question_id is None:
        return request.message == row.message
    return (request.task_id, request.question_id) == (row.task_id, row.question_id)
