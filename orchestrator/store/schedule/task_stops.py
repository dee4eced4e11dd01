"""Stop scheduled tasks: pause them and cancel their queued turns, in the caller's transaction."""

from __future__ import annotations

from orchestrator.domain.values import Folder, ScheduledTask, TaskStatus, Turn, TurnState
from orchestrator.store.database import Tx
from orchestrator.store.runs import turns
from orchestrator.store.schedule import task_runs, tasks


async def stop_queued(tx: Tx, task: ScheduledTask, *, reason: str, now_ms: int) -> None:
    """Cancel the waiting runs of a task."""
    for turn in await turns.queued_of_task(tx, task.id):
        await cancel(tx, turn, reason=reason, now_ms=now_ms)


async def cancel(tx: Tx, turn: Turn, *, reason: str, now_ms: int) -> None:
    """End a task's turn unanswered, without counting a failure of the task."""
    await task_runs.cancel(tx, turn.id, reason=reason)
    await turns.settle(tx, turn.id, TurnState.FAILED, reason=reason, now_ms=now_ms)


async def stop(tx: Tx, task: ScheduledTask, *, reason: str, now_ms: int) -> None:
    """Pause a task and cancel its waiting runs."""
    await tasks.change_status(tx, task.id, TaskStatus.PAUSED, reason=reason, now_ms=now_ms)
    await stop_queued(tx, task, reason="its task was paused.", now_ms=now_ms)


async def stop_of_group(tx: Tx, folder: Folder, *, reason: str, now_ms: int) -> int:
    """Pause all tasks of a group; return how many were active."""
    active = [task for task in await tasks.every(tx, folder) if task.status is TaskStatus.ACTIVE]
    for task in active:
        await stop(tx, task, reason=reason, now_ms=now_ms)
    return len(active)
