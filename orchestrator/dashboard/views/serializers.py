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


def task(one: BoardTask, zone: ZoneInfo) -> TaskData:
    """Return a task of the dashboard as data."""
    return {
        "id": one.id,
        "title": one.title,
        "status": one.status.value,
        "priority": one.priority.value,
        "progress": one.pct,
        "progress_note": one.progress_note,
        "deadline": deadline(one.deadline, zone),
        "deadline_text": one.deadline.text if one.deadline else "",
        "last_update": local_iso(one.last_update_ms, zone),
        "blocked": one.is_blocked,
        "blocker_note": one.blocker_note,
        "blocked_at": _time(one.blocked_ms, zone),
        "context": one.context,
        "tags": list(one.tags),
        "recurring": None if one.recurring is None else dict(one.recurring),
        "reflection": one.reflection,
        "created_at": local_iso(one.created_ms, zone),
        "completed_at": _time(one.completed_ms, zone),
        "archived_at": _time(one.archived_ms, zone),
        "version": one.version,
    }


def deadline(one: Deadline | None, zone: ZoneInfo) -> str | None:
    """Return `2026-02-10`, or a time with offset; None without a deadline."""
    if one is None:
        return None
    return one.date or local_iso(one.at_ms, zone)


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


def question(one: Question, zone: ZoneInfo) -> QuestionData:
    """Return a question as data."""
    return {
        "id": one.id,
        "question": one.question,
        "context": one.context,
        "priority": one.priority.value,
        "type": one.type.value,
        "related_task_id": one.task_id,
        "asked_count": one.asked_count,
        "last_asked_at": _time(one.last_asked_ms, zone),
        "cooldown_hours": one.cooldown_h,
        "created_by": one.created_by.value,
        "created_at": local_iso(one.created_ms, zone),
        "answer": one.answer,
        "answered_at": _time(one.answered_ms, zone),
        "closed_at": _time(one.closed_ms, zone),
        "closed_reason": one.closed_reason,
        "version": one.version,
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


def notification(one: Notification, zone: ZoneInfo) -> NotificationData:
    """Return a notification as data."""
    return {
        "id": one.id,
        "message": one.message,
        "scheduled_at": local_iso(one.due_ms, zone),
        "scheduled_at_text": one.due_text,
        "status": one.status.value,
        "type": one.type.value,
        "priority": one.priority.value,
        "related_task_id": one.task_id,
        "related_question_id": one.question_id,
        "cause": one.cause,
        "context": one.context,
        "created_by": one.created_by.value,
        "created_at": local_iso(one.created_ms, zone),
        "delivered_at": _time(one.delivered_ms, zone),
        "cancelled_at": _time(one.cancelled_ms, zone),
        "cancel_reason": one.cancel_reason,
        "attempts": one.attempts,
        "late_ms": one.late_ms,
        "error": one.error,
        "version": one.version,
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


def insight(one: Insight, zone: ZoneInfo) -> InsightData:
    """Return an insight as data."""
    return {
        "id": one.id,
        "category": one.category.value,
        "title": one.title,
        "content": one.content,
        "source": one.source,
        "tags": list(one.tags),
        "created_at": local_iso(one.created_ms, zone),
    }


def recurring(one: BoardTask) -> str:
    """Return when a task is done again: `Mon Fri at 18:00`; empty of a task that is done once."""
    noted = one.recurring or {}
    days = " ".join(DAYS[day] for day in days_of(noted)) if noted.get("enabled") else ""
    at = " ".join(str(noted.get("check_time") or "").split())[:20]
    return f"{days} at {at}" if days and at else days


def days_of(recurring: Mapping[str, Any]) -> list[int]:
    """Return the days of the week, 0 is Monday; values that are no day are left out."""
    days = recurring.get("days_of_week")
    return [day for day in days if day in range(len(DAYS))] if isinstance(days, list) else []


def _time(at_ms: int | None, zone: ZoneInfo) -> str | None:
    return None if at_ms is None else local_iso(at_ms, zone)
