"""Convert rows of the database to rows of the compatibility files. Pure: same rows, same files.

Times are ISO, in the group's zone and without offset, which is the form that other programs expect.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import cache
from typing import Any
from zoneinfo import ZoneInfo

from orchestrator.store.board.files import InsightRow, NotificationRow, QuestionRow, TaskRow

DAY_MS = 86_400_000
LINK_KINDS = ("projects", "people", "insights", "resources")
AS_CANCELLED = {"failed": "Failed", "expired": "Expired"}
"""States that the files' format lacks: such a row is exported as cancelled, with this in its context."""
_QUARTER_SECONDS = 900
"""Seconds in a quarter of an hour: modern zones change their clocks only on its boundaries."""

ShowTime = Callable[[int | None], str | None]
"""A function that returns a time in epoch ms as local ISO text; None for None."""


class LocalTimes:
    """Format epoch milliseconds as local ISO times such as `2026-02-09T08:30:00`.

    The offset of each quarter of an hour is cached, which is faster than asking the zone for every row.
    """

    def __init__(self, zone: ZoneInfo) -> None:
        """`zone` is the time zone of the formatted times."""
        self._zone = zone
        self._quarters: dict[int, tuple[str, int] | None] = {}
        """Results of `_beginning_of_quarter`, by the number of the quarter since the epoch."""
        self._minutes_and_seconds = [f"{second // 60:02}:{second % 60:02}" for second in range(3600)]
        """`MM:SS` of each second of an hour."""
        self.show: ShowTime = cache(self._show)
        """Return a time in epoch ms as ISO text, to the second. Cached: rows share many times."""

    def _show(self, at_ms: int | None) -> str | None:
        """Return a time in epoch ms as local ISO text, such as `2026-02-09T08:30:00`; None for None."""
        if at_ms is None:
            return None
        seconds = at_ms // 1000
        quarter = seconds // _QUARTER_SECONDS
        try:
            beginning = self._quarters[quarter]
        except KeyError:
            beginning = self._quarters[quarter] = self._beginning_of_quarter(quarter * _QUARTER_SECONDS)
        if beginning is None:
            # The clocks change in this quarter, or it spans two hours. 19 characters: without the offset.
            return datetime.fromtimestamp(seconds, self._zone).isoformat()[:19]
        text_to_hour, start_in_hour = beginning
        return text_to_hour + self._minutes_and_seconds[start_in_hour + seconds % _QUARTER_SECONDS]

    def _beginning_of_quarter(self, start_seconds: int) -> tuple[str, int] | None:
        """Return the text with which all local ISO times of a quarter of an hour begin, and its first second.

        The text is such as `2026-02-09T08:`; the first second is counted in the hour. `start_seconds` is the
        quarter's start in epoch seconds. None where the clocks change within the quarter, or where it does
        not fit into one hour.
        """
        first = datetime.fromtimestamp(start_seconds, self._zone)
        last = datetime.fromtimestamp(start_seconds + _QUARTER_SECONDS - 1, self._zone)
        if (
            first.utcoffset() != last.utcoffset()
            or first.minute * 60 + first.second > 3600 - _QUARTER_SECONDS
        ):
            return None
        return first.isoformat()[:14], first.minute * 60 + first.second


def task(stored: TaskRow, show: ShowTime) -> dict[str, Any]:
    """Return a stored task as an entry of `tasks.json`; `show` writes its times (epoch ms) as texts."""
    row = {
        "id": stored.id,
        "title": stored.title,
        "raw_input": stored.raw_input,
        "deadline": _deadline(stored, show),
        "deadline_text": _deadline_text(stored),
        "estimation": _estimation(_read_json(stored.estimation_json)),
        "progress": {
            "percentage": stored.pct,
            "last_update": show(stored.last_update_ms),
            "note": stored.progress_note,
            "blocked": stored.blocked_ms is not None,
            "blocker_note": stored.blocker_note,
        },
        "status": stored.status,
        "priority": stored.priority,
        "context": stored.context,
        "tags": _read_json(stored.tags_json),
        "links": _links(_read_json(stored.links_json)),
        "created_at": show(stored.created_ms),
        "updated_at": show(stored.updated_ms),
        "completed_at": show(stored.completed_ms),
        "reflection": stored.reflection,
        "recurring": None if stored.recurring_json is None else _read_json(stored.recurring_json),
    }
    extra = _extra_fields(stored, show)
    return row | ({"x": extra} if extra else {})


def _extra_fields(stored: TaskRow, show: ShowTime) -> dict[str, Any]:
    """Return the fields of a task's entry that only Andy reads; the entry has them in its field `x`.

    `show` writes times (epoch ms) as texts.
    """
    extra: dict[str, Any] = {} if stored.blocked_ms is None else {"blocked_at": show(stored.blocked_ms)}
    user_set = _read_json(stored.user_set_json)
    if user_set:
        extra["user_set"] = {name: show(at_ms) for name, at_ms in sorted(user_set.items())}
    return extra | {name: value for name, value in _read_json(stored.extra_json).items() if name not in extra}


def completed(stored: TaskRow, show: ShowTime) -> dict[str, Any]:
    """Return an ended task as an entry of `knowledge/history.json`; `show` writes times (epoch ms) as texts.

    Fields that this format lacks are in its field `x`.
    """
    ended_ms = stored.completed_ms or stored.archived_ms or stored.updated_ms
    extra: dict[str, Any] = {
        "status": stored.status,
        "priority": stored.priority,
        "context": stored.context,
        "reflection": stored.reflection,
        "tags": _read_json(stored.tags_json),
        "deadline": _deadline(stored, show),
        "deadline_text": _deadline_text(stored),
        "percentage": stored.pct,
        "created_at": show(stored.created_ms),
    }
    return {
        "id": stored.id,
        "title": stored.title,
        "completed_at": show(stored.completed_ms),
        "duration_days": max(0, (ended_ms - stored.created_ms) // DAY_MS),
        "progress_note": stored.progress_note,
        "links": _links(_read_json(stored.links_json)),
        "moved_at": show(stored.archived_ms),
        "x": extra,
    }


def question(stored: QuestionRow, show: ShowTime) -> dict[str, Any]:
    """Return a stored question as an entry of `questions.json`; `show` writes times (epoch ms) as texts."""
    row = {
        "id": stored.id,
        "question": stored.question,
        "context": stored.context,
        "priority": stored.priority,
        "type": stored.type,
        "related_task_id": stored.task_id,
        "asked_count": stored.asked_count,
        "last_asked_at": show(stored.last_asked_ms),
        "created_at": show(stored.created_ms),
        "cooldown_hours": stored.cooldown_h,
        "answered": stored.answered_ms is not None,
        "answer": stored.answer,
        "answered_at": show(stored.answered_ms),
    }
    extra: dict[str, Any] = {"created_by": stored.created_by}
    if options := json.loads(stored.options_json):
        extra["options"] = options
    if stored.processed_ms is not None:
        extra["processed_at"] = str(show(stored.processed_ms))
    return row | {"x": extra}


def notification(stored: NotificationRow, show: ShowTime) -> dict[str, Any]:
    """Return a stored notification as an entry of `notifications.json`.

    `show` writes times (epoch ms) as texts. States that the format lacks become the nearest one that it has.
    """
    # There are ten times as many of these as of all others: unpacked at once, not looked up by name.
    (row_id, message, due_ms, due_text, kind, priority, task_id, question_id, cause, status, context,
     created_by, created_ms, delivered_ms, cancelled_ms, cancel_reason, error) = stored  # fmt: skip
    # The format lacks this state; to its readers, the notification is still to come.
    if status == "sending":
        status = "pending"
    # The format lacks `failed` and `expired`, too: such a row becomes cancelled, and its context says why.
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
    """Return the id of a job for a notification, which the files' format requires.

    There is no such job: Andy sends notifications from its database when they are due.
    """
    return notification_id.removeprefix("n_")[:8]


def insight(stored: InsightRow, show: ShowTime) -> dict[str, Any]:
    """Return a stored insight as an entry of `knowledge/insights.json`; `show` writes times as texts."""
    return {
        "id": stored.id,
        "category": stored.category,
        "title": stored.title,
        "content": stored.content,
        "source": stored.source,
        "tags": _read_json(stored.tags_json),
        "links": _links(_read_json(stored.links_json)),
        "created_at": show(stored.created_ms),
    }


def _deadline(stored: TaskRow, show: ShowTime) -> str:
    """Return a task's deadline as a day or, if it has a time of day, as a local time; empty without one."""
    if stored.deadline_ms is None:
        return ""
    return stored.deadline_date or show(stored.deadline_ms) or ""


def _deadline_text(stored: TaskRow) -> str:
    """Return a task's deadline in the words of the person who set it; empty where there is none."""
    return "" if stored.deadline_ms is None else stored.deadline_text


def _estimation(estimation: Mapping[str, Any]) -> dict[str, Any]:
    """Return a task's estimation, with the values of the files' format for missing fields."""
    return {"hours": None, "complexity": "medium", "confidence": "medium", **estimation}


def _links(links: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row's links by their kind, with an empty list for each missing kind of `LINK_KINDS`."""
    return {**{name: [] for name in LINK_KINDS}, **links}


def _read_json(text: str) -> Any:
    """Return a stored JSON text as a value."""
    # Most values are empty, and those need no parser.
    if text == "{}":
        return {}
    if text == "[]":
        return []
    return json.loads(text)
