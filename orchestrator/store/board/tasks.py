"""`dashboard_tasks`: the tasks of a group's people."""

from __future__ import annotations

import json
import sqlite3
from typing import Any

from orchestrator.domain.dashboard import BoardTask, BoardTaskStatus, Deadline, Priority
from orchestrator.domain.values import Folder
from orchestrator.store.board import dashboards
from orchestrator.store.board.dashboards import read_json
from orchestrator.store.database import Tx, returned

_STATUSES = {one.value: one for one in BoardTaskStatus}
_PRIORITIES = {one.value: one for one in Priority}
_ORDER = "ORDER BY deadline_ms IS NULL, deadline_ms, id"
"""The SQL order: the next deadline first, then tasks without one, by id."""


async def put(tx: Tx, task: BoardTask, *, was: int | None) -> bool:
    """Write a task; `was` is the version that was read, None if new. Return False if it is stale."""
    return await dashboards.put_row(tx, "dashboard_tasks", _to_row(task), was=was)


async def get(tx: Tx, folder: Folder, task_id: str) -> BoardTask | None:
    cursor = await tx.execute(
        "SELECT * FROM dashboard_tasks WHERE group_folder = ? AND id = ?", (folder, task_id)
    )
    row = await cursor.fetchone()
    return _from_row(row) if row else None


async def on_board(
    tx: Tx, folder: Folder, status: BoardTaskStatus | None = None, *, limit: int = -1
) -> list[BoardTask]:
    """Return the tasks that are not in the history, the next deadline first; a negative limit means all."""
    rows = await tx.execute_fetchall(
        f"""
        SELECT * FROM dashboard_tasks
        WHERE group_folder = :folder AND archived_ms IS NULL AND (:status IS NULL OR status = :status)
        {_ORDER} LIMIT :limit
        """,  # noqa: S608 - a constant
        {"folder": folder, "status": status, "limit": limit},
    )
    return [_from_row(row) for row in rows]


async def on_boards_of_all(tx: Tx, *, limit: int) -> list[BoardTask]:
    """Return the tasks of all groups that are not in the history, the next deadline first."""
    rows = await tx.execute_fetchall(
        f"SELECT * FROM dashboard_tasks WHERE archived_ms IS NULL {_ORDER} LIMIT ?",  # noqa: S608 - a constant
        (limit,),
    )
    return [_from_row(row) for row in rows]


async def due_between(tx: Tx, folder: Folder | None, from_ms: int, until_ms: int) -> list[BoardTask]:
    """Return the active tasks of a group, or of all, whose deadline (or the start of its day)
    is in a span.
    """
    rows = await tx.execute_fetchall(
        """
        SELECT * FROM dashboard_tasks
        WHERE archived_ms IS NULL AND status = 'active' AND deadline_ms >= ? AND deadline_ms < ?
            AND (? IS NULL OR group_folder = ?)
        ORDER BY deadline_ms, group_folder, id
        """,
        (from_ms, until_ms, folder, folder),
    )
    return [_from_row(row) for row in rows]


async def past_deadline(tx: Tx, *, now_ms: int, limit: int) -> list[BoardTask]:
    """Return the active tasks of all groups whose deadline or its day has started, the oldest first."""
    rows = await tx.execute_fetchall(
        """
        SELECT * FROM dashboard_tasks
        WHERE archived_ms IS NULL AND status = 'active' AND deadline_ms <= ?
        ORDER BY deadline_ms, group_folder, id LIMIT ?
        """,
        (now_ms, limit),
    )
    return [_from_row(row) for row in rows]


async def history(tx: Tx, folder: Folder, *, limit: int = -1) -> list[BoardTask]:
    """Return the tasks in the history, newest first; a negative limit means all."""
    rows = await tx.execute_fetchall(
        """
        SELECT * FROM dashboard_tasks WHERE group_folder = ? AND archived_ms IS NOT NULL
        ORDER BY archived_ms DESC, id LIMIT ?
        """,
        (folder, limit),
    )
    return [_from_row(row) for row in rows]


async def count(tx: Tx, folder: Folder, status: BoardTaskStatus | None = None) -> int:
    """Count the tasks on the board, of one status or all."""
    cursor = await tx.execute(
        """
        SELECT count(*) AS n FROM dashboard_tasks
        WHERE group_folder = :folder AND archived_ms IS NULL AND (:status IS NULL OR status = :status)
        """,
        {"folder": folder, "status": status},
    )
    return int((await returned(cursor))["n"])


async def days(tx: Tx, folder: Folder) -> list[str]:
    """Return all days that are deadlines of a group's tasks."""
    rows = await tx.execute_fetchall(
        "SELECT DISTINCT deadline_date AS day FROM dashboard_tasks"
        " WHERE group_folder = ? AND deadline_date IS NOT NULL",
        (folder,),
    )
    return [row["day"] for row in rows]


async def move_day(tx: Tx, folder: Folder, day: str, *, at_ms: int, version: int) -> int:
    """Set the moment at which a deadline's day starts, and return how many tasks that changes."""
    cursor = await tx.execute(
        """
        UPDATE dashboard_tasks SET deadline_ms = :at, version = :version
        WHERE group_folder = :folder AND deadline_date = :day AND deadline_ms <> :at
        """,
        {"at": at_ms, "version": version, "folder": folder, "day": day},
    )
    return cursor.rowcount


async def ids_like(tx: Tx, folder: Folder, prefix: str) -> list[str]:
    """Return the ids that begin with `prefix`."""
    rows = await tx.execute_fetchall(
        """
        SELECT id FROM dashboard_tasks
        WHERE group_folder = ? AND substr(id, 1, length(?)) = ? ORDER BY id LIMIT 10
        """,
        (folder, prefix, prefix),
    )
    return [row["id"] for row in rows]


def _to_row(task: BoardTask) -> dict[str, Any]:
    deadline = task.deadline
    return {
        "group_folder": task.folder,
        "id": task.id,
        "title": task.title,
        "raw_input": task.raw_input,
        "deadline_date": deadline.date if deadline else None,
        "deadline_ms": deadline.at_ms if deadline else None,
        "deadline_text": deadline.text if deadline else "",
        "estimation_json": _json(task.estimation),
        "pct": task.pct,
        "progress_note": task.progress_note,
        "last_update_ms": task.last_update_ms,
        "blocked_ms": task.blocked_ms,
        "blocker_note": task.blocker_note,
        "status": task.status,
        "priority": task.priority,
        "context": task.context,
        "tags_json": _json(task.tags),
        "links_json": _json(task.links),
        "recurring_json": None if task.recurring is None else _json(task.recurring),
        "reflection": task.reflection,
        "created_ms": task.created_ms,
        "updated_ms": task.updated_ms,
        "completed_ms": task.completed_ms,
        "archived_ms": task.archived_ms,
        "user_set_json": _json(task.user_set),
        "extra_json": _json(task.extra),
        "version": task.version,
        "changed_turn": task.changed_turn,
    }


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _from_row(row: sqlite3.Row) -> BoardTask:
    # A dashboard has thousands of rows: unpacked in the table's order, which is faster than by name.
    (folder, task_id, title, raw_input, deadline_date, deadline_ms, deadline_text, estimation, pct,
     progress_note, last_update_ms, blocked_ms, blocker_note, status, priority, context, tags, links,
     recurring, reflection, created_ms, updated_ms, completed_ms, archived_ms, user_set, extra, version,
     changed_turn) = row  # fmt: skip
    return BoardTask(
        folder=folder,
        id=task_id,
        title=title,
        raw_input=raw_input,
        deadline=_deadline(deadline_ms, deadline_date, deadline_text),
        estimation=read_json(estimation),
        pct=pct,
        progress_note=progress_note,
        last_update_ms=last_update_ms,
        blocked_ms=blocked_ms,
        blocker_note=blocker_note,
        status=_STATUSES[status],
        priority=_PRIORITIES[priority],
        context=context,
        tags=tuple(read_json(tags)),
        links=read_json(links),
        recurring=None if recurring is None else read_json(recurring),
        reflection=reflection,
        created_ms=created_ms,
        updated_ms=updated_ms,
        completed_ms=completed_ms,
        archived_ms=archived_ms,
        user_set=read_json(user_set),
        extra=read_json(extra),
        version=version,
        changed_turn=changed_turn,
    )


def _deadline(at_ms: int | None, date: str | None, text: str) -> Deadline | None:
    return None if at_ms is None else Deadline(at_ms=at_ms, date=date, text=text)
