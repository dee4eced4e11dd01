"""Serialize tasks, questions, notifications and insights for replies, the CLI and web. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict
from zoneinfo import ZoneInfo

from orchestrator.base.clock import local_iso
from orchestrator.domain.dashboard import BoardTask, Deadline, Insight, Notification, Question

DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")


class TaskData(TypedDict):
    """A task of a dashboard as agents, the API, the console and the command line get it."""

    id: str
    title: str
    status: str
    priority: str
    progress: int
    progress_note: str
    deadline: str | None
    deadline_text: str
    last_update: str
    blocked: bool
    blocker_note: str | None
    blocked_at: str | None
    context: str
    tags: list[str]
    recurring: dict[str, Any] | None
    reflection: str
    created_at: str
    completed_at: str | None
    archived_at: str | None
    version: int


def task(row: BoardTask, zone: ZoneInfo) -> TaskData:
    """Return a task of the dashboard as data for programs, its times as ISO texts in `zone`."""
    return {
        "id": row.id,
        "title": row.title,
        "status": row.status.value,
        "priority": row.priority.value,
        "progress": row.pct,
        "progress_note": row.progress_note,
        "deadline": deadline(row.deadline, zone),
        "deadline_text": row.deadline.text if row.deadline else "",
        "last_update": local_iso(row.last_update_ms, zone),
        "blocked": row.is_blocked,
        "blocker_note": row.blocker_note,
        "blocked_at": _time(row.blocked_ms, zone),
        "context": row.context,
        "tags": list(row.tags),
        "recurring": None if row.recurring is None else dict(row.recurring),
        "reflection": row.reflection,
        "created_at": local_iso(row.created_ms, zone),
        "completed_at": _time(row.completed_ms, zone),
        "archived_at": _time(row.archived_ms, zone),
        "version": row.version,
    }


def deadline(row: Deadline | None, zone: ZoneInfo) -> str | None:
    """Return a deadline as text: a day such as `2026-02-10`, or an ISO time with its offset.

    None without a deadline.
    """
    if row is None:
        return None
    return row.date or local_iso(row.at_ms, zone)


class QuestionData(TypedDict):
    """A question of a dashboard as agents, the API, the console and the command line get it."""

    id: str
    question: str
    context: str
    priority: str
    type: str
    related_task_id: str | None
    asked_count: int
    last_asked_at: str | None
    cooldown_hours: int
    created_by: str
    created_at: str
    answer: str | None
    answered_at: str | None
    closed_at: str | None
    closed_reason: str | None
    version: int


def question(row: Question, zone: ZoneInfo) -> QuestionData:
    """Return a question as data for programs, its times as ISO texts in `zone`."""
    return {
        "id": row.id,
        "question": row.question,
        "context": row.context,
        "priority": row.priority.value,
        "type": row.type.value,
        "related_task_id": row.task_id,
        "asked_count": row.asked_count,
        "last_asked_at": _time(row.last_asked_ms, zone),
        "cooldown_hours": row.cooldown_h,
        "created_by": row.created_by.value,
        "created_at": local_iso(row.created_ms, zone),
        "answer": row.answer,
        "answered_at": _time(row.answered_ms, zone),
        "closed_at": _time(row.closed_ms, zone),
        "closed_reason": row.closed_reason,
        "version": row.version,
    }


class NotificationData(TypedDict):
    """A notification as agents, the API, the console and the command line get it."""

    id: str
    message: str
    scheduled_at: str
    scheduled_at_text: str | None
    status: str
    type: str
    priority: str
    related_task_id: str | None
    related_question_id: str | None
    cause: str | None
    context: str | None
    created_by: str
    created_at: str
    delivered_at: str | None
    cancelled_at: str | None
    cancel_reason: str | None
    attempts: int
    late_ms: int | None
    error: str | None
    version: int


def notification(row: Notification, zone: ZoneInfo) -> NotificationData:
    """Return a notification as data for programs, its times as ISO texts in `zone`."""
    return {
        "id": row.id,
        "message": row.message,
        "scheduled_at": local_iso(row.due_ms, zone),
        "scheduled_at_text": row.due_text,
        "status": row.status.value,
        "type": row.type.value,
        "priority": row.priority.value,
        "related_task_id": row.task_id,
        "related_question_id": row.question_id,
        "cause": row.cause,
        "context": row.context,
        "created_by": row.created_by.value,
        "created_at": local_iso(row.created_ms, zone),
        "delivered_at": _time(row.delivered_ms, zone),
        "cancelled_at": _time(row.cancelled_ms, zone),
        "cancel_reason": row.cancel_reason,
        "attempts": row.attempts,
        "late_ms": row.late_ms,
        "error": row.error,
        "version": row.version,
    }


class InsightData(TypedDict):
    """An insight of a dashboard as agents, the API, the console and the command line get it."""

    id: str
    category: str
    title: str
    content: str
    source: str
    tags: list[str]
    created_at: str


def insight(row: Insight, zone: ZoneInfo) -> InsightData:
    """Return an insight as data for programs, its time as ISO text in `zone`."""
    return {
        "id": row.id,
        "category": row.category.value,
        "title": row.title,
        "content": row.content,
        "source": row.source,
        "tags": list(row.tags),
        "created_at": local_iso(row.created_ms, zone),
    }


def recurring(row: BoardTask) -> str:
    """Return when a task is repeated, such as `Mon Fri at 18:00`; empty for a task that is done once."""
    recurrence = row.recurring or {}
    days = " ".join(DAYS[day] for day in days_of(recurrence)) if recurrence.get("enabled") else ""
    # An imported time may be any text, so it is shown on one line and shortened.
    time_of_day = " ".join(str(recurrence.get("check_time") or "").split())[:20]
    return f"{days} at {time_of_day}" if days and time_of_day else days


def days_of(recurring: Mapping[str, Any]) -> list[int]:
    """Return the days of the week in a task's recurrence, 0 is Monday; invalid values are left out."""
    days = recurring.get("days_of_week")
    valid = range(len(DAYS))
    # The type matters: a `1.0` of an import is equal to 1, but no index.
    return [day for day in days if type(day) is int and day in valid] if isinstance(days, list) else []


def _time(at_ms: int | None, zone: ZoneInfo) -> str | None:
    """Return a time (epoch ms) as ISO text in a time zone; None for None."""
    return None if at_ms is None else local_iso(at_ms, zone)
