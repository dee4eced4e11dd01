"""What is to happen when: tasks, notifications and reminders in one list."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from orchestrator.base.clock import local_iso
from orchestrator.base.tables import table
from orchestrator.domain.dashboard import NotificationStatus
from orchestrator.reports import tasks
from orchestrator.store import dashboard_notifications, groups, reminders
from orchestrator.store.database import Tx

TO_COME = (NotificationStatus.PENDING, NotificationStatus.SENDING)


async def rows(tx: Tx, folder: str | None, *, with_over: bool, zone: ZoneInfo) -> list[dict[str, Any]]:
    """By due time, what has none last. Raises `UnknownGroup`."""
    known = None if folder is None else (await groups.known(tx, folder)).folder
    found = [
        _row(zone, task.next_ms, "task", task.id, task.folder, task.status.value, task.prompt)
        for task in await tasks.every(tx, folder, with_over=with_over)
    ]
    statuses = () if with_over else TO_COME
    found += [
        _row(zone, one.due_ms, "notification", one.id, one.folder, one.status.value, one.message)
        for one in await dashboard_notifications.listed(tx, known, statuses=statuses)
    ]
    found += [
        _row(zone, one.due_ms, "reminder", str(one.id), one.folder, one.state.value, one.text)
        for one in await reminders.pending(tx, known)
    ]
    return sorted(found, key=lambda row: (row["due_ms"] is None, row["due_ms"] or 0, row["id"]))


def lines(found: list[dict[str, Any]]) -> list[str]:
    if not found:
        return ["Nothing is scheduled."]
    names = ("kind", "id", "group", "status", "what")
    rows = [(_minute(row["due"]), *(str(row[name] or "") for name in names)) for row in found]
    return table(("due", *names), rows)


def _minute(due: str | None) -> str:
    return f"{datetime.fromisoformat(due):%a %Y-%m-%d %H:%M}" if due else ""


def _row(
    zone: ZoneInfo, due_ms: int | None, kind: str, row_id: str, folder: str, status: str, text: str
) -> dict[str, Any]:
    return {
        "due": None if due_ms is None else local_iso(due_ms, zone),
        "due_ms": due_ms,
        "kind": kind,
        "id": row_id,
        "group": folder,
        "status": status,
        "what": " ".join(text.split())[:80],
    }
