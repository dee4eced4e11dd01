"""`task_run_logs`: every run of a scheduled task, and every due time that was skipped."""

from __future__ import annotations

from orchestrator.domain.values import Cause, ScheduledTask, TaskRun, TaskRunStatus, TurnId, TurnState
from orchestrator.store.database import Tx
from orchestrator.store.row_mapper import RowMapper
from orchestrator.store.schedule import tasks

MAX_RUNS = 200
"""Runs of one task that are stored; older ones are deleted."""
MAX_RESULT_CHARS = 200


_MAPPER = RowMapper(TaskRun, "task_run_logs", {"due_ms": "due_at", "run_ms": "run_at"})


async def begin(
    tx: Tx, task: ScheduledTask, turn_id: TurnId, *, cause: Cause, due_ms: int, now_ms: int
) -> None:
    """Record that a scheduled task runs in this turn; the end of the turn completes the record.

    `cause` says why it runs, for example because it was due, and `due_ms` is the time for which it was
    planned (epoch ms).
    """
    await _add(tx, task, TaskRunStatus.RUNNING, turn_id, cause=cause, due_ms=due_ms, now_ms=now_ms)


async def skip(tx: Tx, task: ScheduledTask, *, reason: str, cause: Cause, due_ms: int, now_ms: int) -> None:
    """Record that a scheduled task did not run at the time `due_ms` (epoch ms), and the `reason` for people.

    `cause` says why it would have run, for example because it was due.
    """
    await _add(tx, task, TaskRunStatus.SKIPPED, None, cause=cause, due_ms=due_ms, now_ms=now_ms, error=reason)


async def _add(
    tx: Tx,
    task: ScheduledTask,
    status: TaskRunStatus,
    turn_id: TurnId | None,
    *,
    cause: Cause,
    due_ms: int,
    now_ms: int,
    error: str | None = None,
) -> None:
    """Store a run of a scheduled task, and delete the task's oldest runs beyond `MAX_RUNS` that have ended.

    `turn_id` is None for a time that was skipped; `error` is the reason then.
    """
    # Limited at each insert: a task that runs every minute writes half a million rows a year.
    await tx.execute(
        """
        INSERT INTO task_run_logs (task_id, cause, due_at, run_at, turn_id, status, error)
        VALUES (?, ?, ?, ?, ?, ?, ?)
        """,
        (task.id, cause, due_ms, now_ms, turn_id, status, error),
    )
    await tx.execute(
        """
        DELETE FROM task_run_logs WHERE task_id = :task AND status <> 'running' AND id <= (
            SELECT id FROM task_run_logs WHERE task_id = :task ORDER BY id DESC LIMIT 1 OFFSET :limit)
        """,
        {"task": task.id, "limit": MAX_RUNS},
    )


async def close(
    tx: Tx, turn_id: TurnId, state: TurnState, *, reason: str | None, now_ms: int, is_own_fault: bool
) -> None:
    """Record the end of the task run that a turn does; other turns, and ended runs, change nothing.

    `state` is how the turn ended, and `reason` why it was not answered (None if it was). The result of a run
    is the beginning of the last message that the turn sent. The task itself gets the time and the result of
    its last run; one that runs once is completed, unless it is due again. A failure counts against the task
    if it `is_own_fault`.
    """
    is_success = state is TurnState.ANSWERED
    # Only an open run: a turn's end may be recorded twice, but counts as one failure.
    cursor = await tx.execute(
        """
        UPDATE task_run_logs SET
            status = :status,
            duration_ms = :now - coalesce((SELECT started_ms FROM turns WHERE id = :turn), :now),
            result = (SELECT substr(text, 1, :chars) FROM outbox WHERE turn_id = :turn
                      ORDER BY id DESC LIMIT 1),
            error = :reason
        WHERE turn_id = :turn AND status = 'running' RETURNING task_id, result
        """,
        {
            "turn": turn_id,
            "status": TaskRunStatus.SUCCESS if is_success else TaskRunStatus.ERROR,
            "reason": reason,
            "now": now_ms,
            "chars": MAX_RESULT_CHARS,
        },
    )
    row = await cursor.fetchone()
    if row is not None:
        result = (row["result"] or reason or "") if is_success else f"Error: {reason}"
        failures = 1 if is_own_fault and not is_success else 0
        await tasks.note_end(
            tx, row["task_id"], is_success=is_success, failures=failures, result=result, now_ms=now_ms
        )


async def cancel(tx: Tx, turn_id: TurnId, *, reason: str) -> None:
    """Record that the task run of this queued turn was cancelled, and the reason."""
    # A run is `running` from the time at which its turn is queued.
    await tx.execute(
        """
        UPDATE task_run_logs SET status = 'cancelled', duration_ms = 0, error = ?
        WHERE turn_id = ? AND status = 'running'
        """,
        (reason, turn_id),
    )


async def open_turns(tx: Tx, task_id: str) -> list[TurnState]:
    """Return the state of each queued or running turn of a scheduled task."""
    # By the turn's state and not by the log's, because the turn is what really runs or waits.
    rows = await tx.execute_fetchall(
        """
        SELECT turns.state FROM task_run_logs JOIN turns ON turns.id = task_run_logs.turn_id
        WHERE task_run_logs.task_id = ? AND turns.state IN ('queued', 'running')
        """,
        (task_id,),
    )
    return [TurnState(row["state"]) for row in rows]


async def of_turn(tx: Tx, turn_id: TurnId) -> TaskRun | None:
    """Return the task run that this turn does; None if the turn is not of a scheduled task."""
    return await _MAPPER.fetch_one(tx, "SELECT * FROM task_run_logs WHERE turn_id = ?", (turn_id,))


async def of_task(tx: Tx, task_id: str, *, limit: int) -> list[TaskRun]:
    """Return the newest `limit` runs of a scheduled task, newest first."""
    return await _MAPPER.fetch_all(
        tx, "SELECT * FROM task_run_logs WHERE task_id = ? ORDER BY id DESC LIMIT ?", (task_id, limit)
    )
