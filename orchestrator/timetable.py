"""What is to happen when: tasks, notifications and reminders in one list."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from orchestrator import task_reports
from orchestrator.dashboard.models import NotificationStatus
from orchestrator.reports import table
from orchestrator.store import dashboard_notifications, groups, reminders
from orchestrator.store.database import Tx

TO_COME = (NotificationStatus.PENDING, NotificationStatus.SENDING)


async def rows(tx: Tx, folder: str | None, *, with_over: bool) -> list[dict[str, Any]]:
    """By due time, what has none last. Raises `UnknownGroup`."""
    known = None if folder is None else (await groups.known(tx, folder)).folder
    found = [
        _row(task.next_ms, "task", task.id, task.folder, task.status.value, task.prompt)
        for task in await task_reports.every(tx, folder, with_over=with_over)
    ]
    statuses = () if with_over else TO_COME
    found += [
        _row(one.due_ms, "notification", one.id, one.folder, one.status.value, one.message)
        for one in await dashboard_notifications.listed(tx, known, statuses=statuses)
    ]
    found += [
        _row(one.due_ms, "reminder", str(one.id), one.folder, one.state.value, one.text)
        for one in await reminders.pending(tx, known)
    ]
    return sorted(found, key=lambda row: (row["due_ms"] is None, row["due_ms"] or 0, row["id"]))


def lines(found: list[dict[str, Any]]) -> list[str]:
    if not found:
        return ["Nothing is scheduled."]
    names = ("due", "kind", "id", "group", "status", "what")
    return table(names, [tuple(str(row[name] or "") for name in names) for row in found])


def _row(due_ms: int | None, kind: str, row_id: str, folder: str, status: str, text: str) -> dict[str, Any]:
    due = None if due_ms is None else datetime.fromtimestamp(due_ms / 1000, UTC).astimezone()
    return {
        "due": due.isoformat(timespec="seconds") if due else None,
        "due_ms": due_ms,
        "kind": kind,
        "id": row_id,
        "group": folder,
        "status": status,
        "what": " ".join(text.split())[:80],
    }
