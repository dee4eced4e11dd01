"""`scheduled_tasks`: prompts for agents at set times."""

from __future__ import annotations

from orchestrator.domain.values import (
    ChatJid,
    Folder,
    Schedule,
    ScheduledTask,
    TaskStatus,
)
from orchestrator.store.database import Tx, returned
from orchestrator.store.row_mapper import Part, RowMapper

_OPEN = "status IN ('active', 'paused')"
_FIXED = ("group_folder", "chat_jid", "last_run", "last_result", "created_at")
"""Columns that a change of a task leaves as they are."""


_MAPPER = RowMapper(
    ScheduledTask,
    "scheduled_tasks",
    {
        "folder": "group_folder",
        "schedule": Part(Schedule, {"kind": "schedule_type", "value": "schedule_value"}),
        "check": "check_script",
        "status_ms": "status_at",
        "next_ms": "next_run",
        "last_ms": "last_run",
        "created_ms": "created_at",
    },
    unread=("cancelled_due",),
)


async def put(tx: Tx, task: ScheduledTask) -> None:
    """Insert a scheduled task, or update the one with its id.

    An update leaves the group, the chat, the time of creation and the record of the last run unchanged.
    """
    # A change of a task must never move it to another group, and only the end of a run records a run.
    row = _MAPPER.values(task)
    await tx.execute(_MAPPER.upsert_sql(row, key="id", unchanged=_FIXED), row)


async def move(tx: Tx, folder: Folder, old: ChatJid, new: ChatJid) -> None:
    """Move a group's scheduled tasks from one of its chats to another.

    The group's queued turns that no message of the chat has started, such as those of tasks, are moved, too.
    """
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
    """Return the scheduled task with this id, or None."""
    return await _MAPPER.fetch_one(tx, "SELECT * FROM scheduled_tasks WHERE id = ?", (task_id,))


async def every(tx: Tx, folder: Folder | None = None, *, with_ended: bool = False) -> list[ScheduledTask]:
    """Return the scheduled tasks of the group `folder`, or of all groups if it is None.

    They are ordered by status, active ones first, and those of one status by when they are due. Completed and
    cancelled tasks are included only with `with_ended`.
    """
    return await _MAPPER.fetch_all(
        tx,
        f"""
        SELECT * FROM scheduled_tasks
        WHERE (:folder IS NULL OR group_folder = :folder) AND (:with_ended OR {_OPEN})
        ORDER BY status, next_run IS NULL, next_run, created_at, id
        """,  # noqa: S608 - a constant
        {"folder": folder, "with_ended": with_ended},
    )


async def count_open(tx: Tx, folder: Folder) -> int:
    """Count a group's scheduled tasks that are neither completed nor cancelled."""
    cursor = await tx.execute(
        f"SELECT count(*) AS n FROM scheduled_tasks WHERE group_folder = ? AND {_OPEN}",  # noqa: S608
        (folder,),
    )
    return int((await returned(cursor))["n"])


async def due(tx: Tx, now_ms: int) -> list[ScheduledTask]:
    """Return the active scheduled tasks of all groups that are due at `now_ms`, the longest due first."""
    return await _MAPPER.fetch_all(
        tx,
        "SELECT * FROM scheduled_tasks WHERE status = 'active' AND next_run <= ? ORDER BY next_run, id",
        (now_ms,),
    )


async def next_due_ms(tx: Tx, *, after_ms: int = -1) -> int | None:
    """Return when the next active scheduled task is due later than `after_ms` (epoch ms); None if none is."""
    # The smallest is enough: the scheduler sleeps until then and looks at all that is due.
    cursor = await tx.execute(
        "SELECT min(next_run) AS due FROM scheduled_tasks WHERE status = 'active' AND next_run > ?",
        (after_ms,),
    )
    return (await returned(cursor))["due"]  # type: ignore[no-any-return]


async def advance(tx: Tx, task_id: str, next_ms: int | None) -> None:
    """Set when a scheduled task runs next (epoch ms); None means never again."""
    await tx.execute("UPDATE scheduled_tasks SET next_run = ? WHERE id = ?", (next_ms, task_id))


async def replan(tx: Tx, task_id: str, *, timezone: str, next_ms: int) -> None:
    """Store the time zone of a scheduled task and its next due time (epoch ms), computed in that zone."""
    await tx.execute(
        "UPDATE scheduled_tasks SET timezone = ?, next_run = ? WHERE id = ?", (timezone, next_ms, task_id)
    )


async def change_status(tx: Tx, task_id: str, status: TaskStatus, *, reason: str | None, now_ms: int) -> None:
    """Set the status of a scheduled task from now on, and the reason for people, if there is one."""
    await tx.execute(
        "UPDATE scheduled_tasks SET status = ?, status_reason = ?, status_at = ? WHERE id = ?",
        (status, reason, now_ms, task_id),
    )


async def note_cancelled_due(tx: Tx, task_id: str, due_ms: int | None) -> None:
    """Store when a cancelled task would have been due (epoch ms), for restoring it; None for never."""
    await tx.execute("UPDATE scheduled_tasks SET cancelled_due = ? WHERE id = ?", (due_ms, task_id))


async def cancelled_due_ms(tx: Tx, task_id: str) -> int | None:
    """Return when a cancelled task would have been due (epoch ms); None if that is not stored."""
    cursor = await tx.execute("SELECT cancelled_due FROM scheduled_tasks WHERE id = ?", (task_id,))
    return (await returned(cursor))["cancelled_due"]  # type: ignore[no-any-return]


async def note_end(
    tx: Tx, task_id: str, *, is_success: bool, failures: int, result: str, now_ms: int
) -> None:
    """Record the end of a run of a scheduled task, with its `result` as text for people.

    A task that runs once and is not due again is completed by it. `failures` is added to the number of
    failures in a row, which a success sets to 0.
    """
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
    """Record that a scheduled task that has not run will never be due again, with the `result` for people."""
    # For a one-time task whose time was skipped: no turn was queued, so `note_end` is never called.
    await tx.execute(
        "UPDATE scheduled_tasks SET status = 'completed', status_at = ?, last_result = ? WHERE id = ?",
        (now_ms, result, task_id),
    )
