"""Rows as the compatibility files have them. Pure: the same rows are the same files.

Times are ISO, in the group's zone and without offset: so read the programs that these files are for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from orchestrator.dashboard.models import Insight, Notification, NotificationStatus, Question, Task

VERSION = "1.0"
DAY_MS = 86_400_000
LINKS = ("projects", "people", "insights", "resources")
AS_CANCELLED = {NotificationStatus.FAILED: "Failed", NotificationStatus.EXPIRED: "Expired"}
"""States that these files do not know: a cancelled row whose context says so."""


def iso(at_ms: int | None, zone: ZoneInfo) -> str | None:
    """`2026-02-09T08:30:00`: what the clocks of the zone show."""
    if at_ms is None:
        return None
    return datetime.fromtimestamp(at_ms // 1000, zone).replace(tzinfo=None).isoformat()


def task(one: Task, zone: ZoneInfo) -> dict[str, Any]:
    row = {
        "id": one.id,
        "title": one.title,
        "raw_input": one.raw_input,
        "deadline": _deadline(one, zone),
        "deadline_text": one.deadline.text if one.deadline else "",
        "estimation": _estimation(one.estimation),
        "progress": {
            "percentage": one.pct,
            "last_update": iso(one.last_update_ms, zone),
            "note": one.progress_note,
            "blocked": one.is_blocked,
            "blocker_note": one.blocker_note,
        },
        "status": one.status.value,
        "priority": one.priority.value,
        "context": one.context,
        "tags": list(one.tags),
        "links": _links(one.links),
        "created_at": iso(one.created_ms, zone),
        "updated_at": iso(one.updated_ms, zone),
        "completed_at": iso(one.completed_ms, zone),
        "reflection": one.reflection,
        "recurring": None if one.recurring is None else dict(one.recurring),
    }
    more: dict[str, Any] = {"blocked_at": iso(one.blocked_ms, zone)} if one.is_blocked else {}
    if one.user_set:
        more["user_set"] = {name: iso(at_ms, zone) for name, at_ms in sorted(one.user_set.items())}
    more |= {name: value for name, value in one.extra.items() if name not in more}
    return row | ({"x": more} if more else {})


def completed(one: Task, zone: ZoneInfo) -> dict[str, Any]:
    """A task of the history."""
    ended_ms = one.completed_ms or one.archived_ms or one.updated_ms
    more: dict[str, Any] = {
        "status": one.status.value,
        "priority": one.priority.value,
        "context": one.context,
        "reflection": one.reflection,
        "tags": list(one.tags),
        "deadline": _deadline(one, zone),
        "deadline_text": one.deadline.text if one.deadline else "",
        "percentage": one.pct,
        "created_at": iso(one.created_ms, zone),
    }
    return {
        "id": one.id,
        "title": one.title,
        "completed_at": iso(one.completed_ms, zone),
        "duration_days": max(0, (ended_ms - one.created_ms) // DAY_MS),
        "progress_note": one.progress_note,
        "links": _links(one.links),
        "moved_at": iso(one.archived_ms, zone),
        "x": more,
    }


def question(one: Question, zone: ZoneInfo) -> dict[str, Any]:
    row = {
        "id": one.id,
        "question": one.question,
        "context": one.context,
        "priority": one.priority.value,
        "type": one.type.value,
        "related_task_id": one.task_id,
        "asked_count": one.asked_count,
        "last_asked_at": iso(one.last_asked_ms, zone),
        "created_at": iso(one.created_ms, zone),
        "cooldown_hours": one.cooldown_h,
        "answered": one.answered_ms is not None,
        "answer": one.answer,
        "answered_at": iso(one.answered_ms, zone),
    }
    more = {"created_by": one.created_by.value}
    if one.processed_ms is not None:
        more["processed_at"] = str(iso(one.processed_ms, zone))
    return row | {"x": more}


def notification(one: Notification, zone: ZoneInfo) -> dict[str, Any]:
    status, context = one.status, one.context
    if status is NotificationStatus.SENDING:
        status = NotificationStatus.PENDING
    if status in AS_CANCELLED:
        context = f"{context}\n{AS_CANCELLED[status]}{f': {one.error}' if one.error else ''}".strip()
        status = NotificationStatus.CANCELLED
    is_pending = status is NotificationStatus.PENDING
    row = {
        "id": one.id,
        "message": one.message,
        "scheduled_at": iso(one.due_ms, zone),
        "scheduled_at_text": one.due_text,
        "type": one.type.value,
        "priority": one.priority.value,
        "related_task_id": one.task_id,
        "related_question_id": one.question_id,
        "status": status.value,
        "cron_job_id": one.id.removeprefix("n_")[:8] if is_pending else None,
        "created_at": iso(one.created_ms, zone),
        "delivered_at": iso(one.delivered_ms, zone),
        "cancelled_at": iso(one.cancelled_ms, zone),
        "context": context,
        "created_by": one.created_by.value,
    }
    wanted = {"cause": one.cause, "cancel_reason": one.cancel_reason}
    more = {name: value for name, value in wanted.items() if value is not None}
    return row | ({"x": more} if more else {})


def insight(one: Insight, zone: ZoneInfo) -> dict[str, Any]:
    return {
        "id": one.id,
        "category": one.category.value,
        "title": one.title,
        "content": one.content,
        "source": one.source,
        "tags": list(one.tags),
        "links": _links(one.links),
        "created_at": iso(one.created_ms, zone),
    }


def is_listed(one: Question) -> bool:
    """A question that was closed unanswered is none that these files know."""
    return one.is_open or one.answered_ms is not None


def listed(name: str, rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    return {"version": VERSION, name: list(rows)}


def _deadline(one: Task, zone: ZoneInfo) -> str:
    if one.deadline is None:
        return ""
    return one.deadline.date or iso(one.deadline.at_ms, zone) or ""


def _estimation(given: Mapping[str, Any]) -> dict[str, Any]:
    return {"hours": None, "complexity": "medium", "confidence": "medium", **given}


def _links(given: Mapping[str, Any]) -> dict[str, Any]:
    return {**{name: [] for name in LINKS}, **given}
