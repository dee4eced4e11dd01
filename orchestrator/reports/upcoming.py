"""Reports what is to happen when: tasks, notifications, reminders and wakes in one list."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from orchestrator.base.clock import local_iso
from orchestrator.base.tables import Rows, table
from orchestrator.domain.dashboard import NotificationStatus
from orchestrator.domain.values import ScheduledTask, TaskStatus
from orchestrator.reports import tasks
from orchestrator.scheduler import timing
from orchestrator.store import dashboard_notifications, groups, loops
from orchestrator.store.database import Tx

MAX_TIMES = 50
"""Of one task in one week, the next first: one that comes every minute would bury the others."""
TO_COME = (NotificationStatus.PENDING, NotificationStatus.SENDING)


async def rows(tx: Tx, folder: str | None, *, with_over: bool, zone: ZoneInfo) -> list[dict[str, Any]]:
    """By due time, what has none last. Raises `UnknownGroup`."""
    known = None if folder is None else (await groups.known(tx, folder)).folder
    found = [
        _row(zone, task.next_ms, "task", task.id, task.folder, task.status.value, task.prompt)
        for task in await tasks.every(tx, folder, with_over=with_over)
    ]
    statuses = () if with_over else TO_COME
    for one in await dashboard_notifications.listed(tx, known, statuses=statuses):
        kind, name = ("notification", one.id) if one.number is None else ("reminder", str(one.number))
        found.append(_row(zone, one.due_ms, kind, name, one.folder, one.status.value, one.message))
    return sorted(found, key=lambda row: (row["due_ms"] is None, row["due_ms"] or 0, row["id"]))


async def week(tx: Tx, folder: str | None, *, now_ms: int, zone: ZoneInfo, days: int = 7) -> Rows:
    """What is to happen from now until midnight `days` days on, by due time; what is overdue comes first.

    Each time of a task that comes again is a row of its own, at most `MAX_TIMES` of one task, and `date` is
    the day in `zone`. Raises `UnknownGroup`.
    """
    known = None if folder is None else (await groups.known(tx, folder)).folder
    midnight = datetime.fromtimestamp(now_ms / 1000, zone).replace(hour=0, minute=0, second=0, microsecond=0)
    until_ms = round((midnight + timedelta(days=days)).timestamp() * 1000)
    found = [
        _row(zone, due_ms, "task", task.id, task.folder, task.status.value, task.prompt)
        for task in await tasks.every(tx, folder, with_over=False)
        if task.status is TaskStatus.ACTIVE
        for due_ms in _times(task, until_ms)
    ]
    found += [
        one
        for one in await rows(tx, folder, with_over=False, zone=zone)
        if one["kind"] != "task" and one["due_ms"] < until_ms
    ]
    found += [
        _row(zone, loop.next_wake_ms, "wake", loop.folder, loop.folder, loop.status.value, loop.reason)
        for loop in await loops.alive(tx)
        if known in (None, loop.folder) and loop.next_wake_ms is not None and loop.next_wake_ms < until_ms
    ]
    found.sort(key=lambda row: (row["due_ms"], row["kind"], row["id"]))
    return [{**row, "date": row["due"][:10], "is_overdue": row["due_ms"] < now_ms} for row in found]


def _times(task: ScheduledTask, until_ms: int) -> Iterator[int]:
    due_ms, count = task.next_ms, 0
    while due_ms is not None and due_ms < until_ms and count < MAX_TIMES:
        yield due_ms
        count += 1
        due_ms = timing.following_ms(task.schedule, due_ms, after_ms=due_ms)


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
