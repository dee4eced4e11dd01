"""Stop scheduled tasks: pause them and cancel their queued turns, in the caller's transaction."""

from __future__ import annotations

from orchestrator.domain.values import Folder, ScheduledTask, TaskStatus, Turn, TurnState
from orchestrator.store.database import Tx
from orchestrator.store.runs import turns
from orchestrator.store.schedule import task_runs, tasks


async def stop_queued(tx: Tx, task: ScheduledTask, *, reason: str, now_ms: int) -> None:
    """Cancel the queued turns of a scheduled task, for a `reason` that people can read."""
    for turn in await turns.queued_of_task(tx, task.id):
        await cancel(tx, turn, reason=reason, now_ms=now_ms)


async def cancel(tx: Tx, turn: Turn, *, reason: str, now_ms: int) -> None:
    """End a scheduled task's turn as failed without counting a failure of the task."""
    # Before the turn is settled, because that counts a failure of the task if the task's run has not ended.
    await task_runs.cancel(tx, turn.id, reason=reason)
    await turns.settle(tx, turn.id, TurnState.FAILED, reason=reason, now_ms=now_ms)


async def stop(tx: Tx, task: ScheduledTask, *, reason: str, now_ms: int) -> None:
    """Pause a scheduled task for a `reason` that people can read, and cancel its queued turns."""
    await tasks.change_status(tx, task.id, TaskStatus.PAUSED, reason=reason, now_ms=now_ms)
    await stop_queued(tx, task, reason="its task was paused.", now_ms=now_ms)


async def stop_of_group(tx: Tx, folder: Folder, *, reason: str, now_ms: int) -> int:
    """Pause all active scheduled tasks of a group, for a `reason`, and return how many there were."""
    active = [task for task in await tasks.every(tx, folder) if task.status is TaskStatus.ACTIVE]
    for task in active:
        await stop(tx, task, reason=reason, now_ms=now_ms)
    return len(active)
