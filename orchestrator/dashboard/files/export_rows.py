"""Convert rows of the database to rows of the compatibility files. Pure: same rows, same files.

Times are ISO, in the group's zone and without offset: so read the programs that these files are for.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import cache
from typing import Any
from zoneinfo import ZoneInfo

from orchestrator.store.dashboard_files import InsightRow, NotificationRow, QuestionRow, TaskRow
from orchestrator.store.dashboards import read_json

DAY_MS = 86_400_000
LINKS = ("projects", "people", "insights", "resources")
AS_CANCELLED = {"failed": "Failed", "expired": "Expired"}
"""States that these files do not know: a cancelled row whose context says so."""
_QUARTER = 900
"""Seconds in which no zone changes its clocks but at an end, those of long ago left out."""

Shown = Callable[[int | None], str | None]


class LocalTimes:
    """`2026-02-09T08:30:00`: what the clocks of a zone show, many a time: faster than asking it."""

    def __init__(self, zone: ZoneInfo) -> None:
        self._zone = zone
        self._quarters: dict[int, tuple[str, int] | None] = {}
        self._ends = [f"{second // 60:02}:{second % 60:02}" for second in range(3600)]
        self.show: Shown = cache(self._show)
        """The time in epoch ms as ISO text, to the second. Rows of a dashboard share many."""

    def _show(self, at_ms: int | None) -> str | None:
        if at_ms is None:
            return None
        seconds = at_ms // 1000
        quarter = seconds // _QUARTER
        try:
            known = self._quarters[quarter]
        except KeyError:
            known = self._quarters[quarter] = self._begin(quarter * _QUARTER)
        if known is None:
            return datetime.fromtimestamp(seconds, self._zone).isoformat()[:19]
        return known[0] + self._ends[known[1] + seconds % _QUARTER]

    def _begin(self, seconds: int) -> tuple[str, int] | None:
        """A quarter's hour and its first second there; None of one in which the clocks are changed."""
        first = datetime.fromtimestamp(seconds, self._zone)
        last = datetime.fromtimestamp(seconds + _QUARTER - 1, self._zone)
        if first.utcoffset() != last.utcoffset() or first.minute * 60 + first.second > 3600 - _QUARTER:
            return None
        return first.isoformat()[:14], first.minute * 60 + first.second


def task(one: TaskRow, show: Shown) -> dict[str, Any]:
    row = {
        "id": one.id,
        "title": one.title,
        "raw_input": one.raw_input,
        "deadline": _deadline(one, show),
        "deadline_text": _deadline_text(one),
        "estimation": _estimation(read_json(one.estimation_json)),
        "progress": {
            "percentage": one.pct,
            "last_update": show(one.last_update_ms),
            "note": one.progress_note,
            "blocked": one.blocked_ms is not None,
            "blocker_note": one.blocker_note,
        },
        "status": one.status,
        "priority": one.priority,
        "context": one.context,
        "tags": read_json(one.tags_json),
        "links": _links(read_json(one.links_json)),
        "created_at": show(one.created_ms),
        "updated_at": show(one.updated_ms),
        "completed_at": show(one.completed_ms),
        "reflection": one.reflection,
        "recurring": None if one.recurring_json is None else read_json(one.recurring_json),
    }
    more = _more(one, show)
    return row | ({"x": more} if more else {})


def _more(one: TaskRow, show: Shown) -> dict[str, Any]:
    """Return the fields that other readers of the files do not know."""
    more: dict[str, Any] = {} if one.blocked_ms is None else {"blocked_at": show(one.blocked_ms)}
    user_set = read_json(one.user_set_json)
    if user_set:
        more["user_set"] = {name: show(at_ms) for name, at_ms in sorted(user_set.items())}
    return more | {name: value for name, value in read_json(one.extra_json).items() if name not in more}


def completed(one: TaskRow, show: Shown) -> dict[str, Any]:
    """Return a task of the history as the files have it."""
    ended_ms = one.completed_ms or one.archived_ms or one.updated_ms
    more: dict[str, Any] = {
        "status": one.status,
        "priority": one.priority,
        "context": one.context,
        "reflection": one.reflection,
        "tags": read_json(one.tags_json),
        "deadline": _deadline(one, show),
        "deadline_text": _deadline_text(one),
        "percentage": one.pct,
        "created_at": show(one.created_ms),
    }
    return {
        "id": one.id,
        "title": one.title,
        "completed_at": show(one.completed_ms),
        "duration_days": max(0, (ended_ms - one.created_ms) // DAY_MS),
        "progress_note": one.progress_note,
        "links": _links(read_json(one.links_json)),
        "moved_at": show(one.archived_ms),
        "x": more,
    }


def question(one: QuestionRow, show: Shown) -> dict[str, Any]:
    row = {
        "id": one.id,
        "question": one.question,
        "context": one.context,
        "priority": one.priority,
        "type": one.type,
        "related_task_id": one.task_id,
        "asked_count": one.asked_count,
        "last_asked_at": show(one.last_asked_ms),
        "created_at": show(one.created_ms),
        "cooldown_hours": one.cooldown_h,
        "answered": one.answered_ms is not None,
        "answer": one.answer,
        "answered_at": show(one.answered_ms),
    }
    more: dict[str, Any] = {"created_by": one.created_by}
    if options := json.loads(one.options_json):
        more["options"] = options
    if one.processed_ms is not None:
        more["processed_at"] = str(show(one.processed_ms))
    return row | {"x": more}


def notification(one: NotificationRow, show: Shown) -> dict[str, Any]:
    # There are ten times as many of these as of all others: unpacked at once, not looked up by name.
    (row_id, message, due_ms, due_text, kind, priority, task_id, question_id, cause, status, context,
     created_by, created_ms, delivered_ms, cancelled_ms, cancel_reason, error) = one  # fmt: skip
    if status == "sending":
        status = "pending"
    if status in AS_CANCELLED:
        context = f"{context}\n{AS_CANCELLED[status]}{f': {error}' if error else ''}".strip()
        status = "cancelled"
    row: dict[str, Any] = {
        "id": row_id,
        "message": message,
        "scheduled_at": show(due_ms),
        "scheduled_at_text": due_text,
        "type": kind,
        "priority": priority,
        "related_task_id": task_id,
        "related_question_id": question_id,
        "status": status,
        "cron_job_id": cron_job_id(row_id) if status == "pending" else None,
        "created_at": show(created_ms),
        "delivered_at": show(delivered_ms),
        "cancelled_at": show(cancelled_ms),
        "context": context,
        "created_by": created_by,
    }
    if cause is not None:
        row["x"] = {"cause": cause}
    if cancel_reason is not None:
        row.setdefault("x", {})["cancel_reason"] = cancel_reason
    return row


def cron_job_id(notification_id: str) -> str:
    """Return the id that stands for the job of a pending notification, which has none: its row is due."""
    return notification_id.removeprefix("n_")[:8]


def insight(one: InsightRow, show: Shown) -> dict[str, Any]:
    return {
        "id": one.id,
        "category": one.category,
        "title": one.title,
        "content": one.content,
        "source": one.source,
        "tags": read_json(one.tags_json),
        "links": _links(read_json(one.links_json)),
        "created_at": show(one.created_ms),
    }


def _deadline(one: TaskRow, show: Shown) -> str:
    if one.deadline_ms is None:
        return ""
    return one.deadline_date or show(one.deadline_ms) or ""


def _deadline_text(one: TaskRow) -> str:
    return "" if one.deadline_ms is None else one.deadline_text


def _estimation(given: Mapping[str, Any]) -> dict[str, Any]:
    return {"hours": None, "complexity": "medium", "confidence": "medium", **given}


def _links(given: Mapping[str, Any]) -> dict[str, Any]:
    return {**{name: [] for name in LINKS}, **given}
