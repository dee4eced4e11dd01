"""`scheduled_tasks`: prompts for agents at set times."""

from __future__ import annotations

import sqlite3

from orchestrator.domain.values import (
    CatchUp,
    ChatJid,
    ContextMode,
    Dst,
    Folder,
    Overlap,
    Role,
    Schedule,
    ScheduledTask,
    ScheduleKind,
    TaskStatus,
)
from orchestrator.store.database import Tx, returned

_OPEN = "status IN ('active', 'paused')"


async def put(tx: Tx, task: ScheduledTask) -> None:
    """Insert or update a task."""
    # On conflict, group, chat and last run stay: a change of a task never moves it to another group.
    await tx.execute(
        """
        INSERT INTO scheduled_tasks
            (id, group_folder, chat_jid, prompt, schedule_type, schedule_value, timezone, dst, context_mode,
             overlap, catch_up, check_script, status, status_reason, status_at, next_run, last_run,
             last_result, failures, created_at, role)
        VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
        ON CONFLICT (id) DO UPDATE SET
            prompt = excluded.prompt, schedule_type = excluded.schedule_type,
            schedule_value = excluded.schedule_value, timezone = excluded.timezone, dst = excluded.dst,
            context_mode = excluded.context_mode, overlap = excluded.overlap, catch_up = excluded.catch_up,
            check_script = excluded.check_script, status = excluded.status,
            status_reason = excluded.status_reason, status_at = excluded.status_at,
            next_run = excluded.next_run, failures = excluded.failures, role = excluded.role
        """,
        _to_row(task),
    )


async def move(tx: Tx, folder: Folder, old: ChatJid, new: ChatJid) -> None:
    """Move tasks, and their waiting turns, from one chat of a group to another."""
    await tx.execute(
        "UPDATE scheduled_tasks SET chat_jid = ? WHERE group_folder = ? AND chat_jid = ?", (new, folder, old)
    )
    await tx.execute(
        """
        UPDATE turns SET chat_jid = ?
        WHERE group_folder = ? AND chat_jid = ? AND state = 'queued' AND kind <> 'chat'
        """,
        (new, folder, old),
    )


async def get(tx: Tx, task_id: str) -> ScheduledTask | None:
    cursor = await tx.execute("SELECT * FROM scheduled_tasks WHERE id = ?", (task_id,))
    row = await cursor.fetchone()
    return _from_row(row) if row else None


async def every(tx: Tx, folder: Folder | None = None, *, with_over: bool = False) -> list[ScheduledTask]:
    """Return the tasks of a group, or of all, the next due first; ended ones only on request."""
    rows = await tx.execute_fetchall(
        f"""
        SELECT * FROM scheduled_tasks
        WHERE (:folder IS NULL OR group_folder = :folder) AND (:with_over OR {_OPEN})
        ORDER BY status, next_run IS NULL, next_run, created_at, id
        """,  # noqa: S608 - a constant
        {"folder": folder, "with_over": with_over},
    )
    return [_from_row(row) for row in rows]


async def count_open(tx: Tx, folder: Folder) -> int:
    """Count a group's tasks that are neither completed nor cancelled."""
    cursor = await tx.execute(
        f"SELECT count(*) AS n FROM scheduled_tasks WHERE group_folder = ? AND {_OPEN}",  # noqa: S608
        (folder,),
    )
    return int((await returned(cursor))["n"])


async def due(tx: Tx, now_ms: int) -> list[ScheduledTask]:
    """Return the active tasks that are due, the longest due first."""
    rows = await tx.execute_fetchall(
        "SELECT * FROM scheduled_tasks WHERE status = 'active' AND next_run <= ? ORDER BY next_run, id",
        (now_ms,),
    )
    return [_from_row(row) for row in rows]


async def next_due_ms(tx: Tx, *, after_ms: int = -1) -> int | None:
    """Return when the next active task after `after_ms` is due; None when there is none."""
    # The smallest is enough: the scheduler sleeps until then and looks at all that is due.
    cursor = await tx.execute(
        "SELECT min(next_run) AS due FROM scheduled_tasks WHERE status = 'active' AND next_run > ?",
        (after_ms,),
    )
    return (await returned(cursor))["due"]  # type: ignore[no-any-return]


async def advance(tx: Tx, task_id: str, next_ms: int | None) -> None:
    await tx.execute("UPDATE scheduled_tasks SET next_run = ? WHERE id = ?", (next_ms, task_id))


async def replan(tx: Tx, task_id: str, *, timezone: str, next_ms: int) -> None:
    """Store the due time that was computed in another zone."""
    await tx.execute(
        "UPDATE scheduled_tasks SET timezone = ?, next_run = ? WHERE id = ?", (timezone, next_ms, task_id)
    )


async def change_status(tx: Tx, task_id: str, status: TaskStatus, *, reason: str | None, now_ms: int) -> None:
    await tx.execute(
        "UPDATE scheduled_tasks SET status = ?, status_reason = ?, status_at = ? WHERE id = ?",
        (status, reason, now_ms, task_id),
    )


async def note_cancelled_due(tx: Tx, task_id: str, due_ms: int | None) -> None:
    """Store the due time that a cancelled task had."""
    await tx.execute("UPDATE scheduled_tasks SET cancelled_due = ? WHERE id = ?", (due_ms, task_id))


async def cancelled_due_ms(tx: Tx, task_id: str) -> int | None:
    """Return the due time that a cancelled task had; None if none is stored."""
    cursor = await tx.execute("SELECT cancelled_due FROM scheduled_tasks WHERE id = ?", (task_id,))
    return (await returned(cursor))["cancelled_due"]  # type: ignore[no-any-return]


async def note_end(
    tx: Tx, task_id: str, *, is_success: bool, failures: int, result: str, now_ms: int
) -> None:
    """Record the end of a run, and how much a failure counts; a one-time task is completed by it."""
    # Failures count in a row: one success resets them.
    await tx.execute(
        """
        UPDATE scheduled_tasks SET last_run = :now, last_result = :result,
            failures = CASE WHEN :is_success THEN 0 ELSE failures + :failures END
        WHERE id = :id
        """,
        {"id": task_id, "now": now_ms, "result": result, "is_success": is_success, "failures": failures},
    )
    await tx.execute(
        """
        UPDATE scheduled_tasks SET status = 'completed', status_at = ?
        WHERE id = ? AND status = 'active' AND schedule_type = 'once' AND next_run IS NULL
        """,
        (now_ms, task_id),
    )


async def complete(tx: Tx, task_id: str, *, result: str, now_ms: int) -> None:
    """End a task that has not run and never will be due again."""
    # For a one-time task whose time was skipped: no turn was queued, so `note_end` is never called.
    await tx.execute(
        "UPDATE scheduled_tasks SET status = 'completed', status_at = ?, last_result = ? WHERE id = ?",
        (now_ms, result, task_id),
    )


def _to_row(task: ScheduledTask) -> tuple[object, ...]:
    return (
        task.id,
        task.folder,
        task.chat_jid,
        task.prompt,
        task.schedule.kind,
        task.schedule.value,
        task.schedule.timezone,
        task.schedule.dst,
        task.context_mode,
        task.overlap,
        task.catch_up,
        task.check,
        task.status,
        task.status_reason,
        task.status_ms,
        task.next_ms,
        task.last_ms,
        task.last_result,
        task.failures,
        task.created_ms,
        task.role,
    )


def _from_row(row: sqlite3.Row) -> ScheduledTask:
    return ScheduledTask(
        id=row["id"],
        folder=Folder(row["group_folder"]),
        chat_jid=ChatJid(row["chat_jid"]),
        prompt=row["prompt"],
        schedule=Schedule(
            kind=ScheduleKind(row["schedule_type"]),
            value=row["schedule_value"],
            timezone=row["timezone"],
            dst=Dst(row["dst"]),
        ),
        context_mode=ContextMode(row["context_mode"]),
        overlap=Overlap(row["overlap"]),
        catch_up=CatchUp(row["catch_up"]),
        check=row["check_script"],
        status=TaskStatus(row["status"]),
        status_reason=row["status_reason"],
        status_ms=row["status_at"],
        next_ms=row["next_run"],
        last_ms=row["last_run"],
        last_result=row["last_result"],
        failures=row["failures"],
        created_ms=row["created_at"],
        role=Role(row["role"]),
    )
