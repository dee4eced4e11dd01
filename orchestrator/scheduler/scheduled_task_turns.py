"""Handle one run of a scheduled task: queue its turn, stop it before it starts, report its failure."""

from __future__ import annotations

from agent_runner.wire.order import ECHO
from orchestrator.domain.values import Cause, Group, ScheduledTask, ScheduleKind, TaskStatus, Turn, TurnId
from orchestrator.groups import roles, settings
from orchestrator.store.conversation import outbox
from orchestrator.store.database import Tx
from orchestrator.store.runs import turns
from orchestrator.store.schedule import task_runs, task_stops, tasks

MAX_FAILURES = 5
"""Failures in a row after which a task is paused."""
SHOWN_CHARS = 80
"""Most characters of a task's prompt in a line about it."""


async def queue_turn(
    tx: Tx, task: ScheduledTask, group: Group, *, cause: Cause, due_ms: int, now_ms: int
) -> TurnId:
    """Queue a turn for one run of a scheduled task, and return the turn's id.

    `cause` says why it runs, and `due_ms` when it was due. The run is recorded as running until the turn
    ends.
    """
    is_restricted = roles.is_restricted(roles.rights_of(task.role, settings.of(group)), group)
    turn_id = await turns.add_task(
        tx, task, chat_jid=group.chat_for(task.chat_jid), now_ms=now_ms, is_restricted=is_restricted
    )
    await task_runs.begin(tx, task, turn_id, cause=cause, due_ms=due_ms, now_ms=now_ms)
    return turn_id


async def why_stopped(tx: Tx, turn: Turn) -> str | None:
    """Return a reason if the scheduled task of a turn was paused or cancelled since the turn was queued.

    The turn is then not tried again. Return None for any other turn.
    """
    task = await tasks.get(tx, turn.task_id) if turn.task_id is not None else None
    # A pause from before the turn was queued does not count: a paused task can be run by hand.
    if task is None or task.status_ms <= turn.queued_ms:
        return None
    is_stopped = task.status in (TaskStatus.PAUSED, TaskStatus.CANCELLED)
    return f"its task was {task.status.value}." if is_stopped else None


async def report_failure(tx: Tx, turn: Turn, *, reason: str, now_ms: int) -> None:
    """Handle the failure of a turn that runs a scheduled task; do nothing for any other turn.

    The group is notified if the task has only one time, or if a person started this run. A task that has
    failed too often in a row is paused.
    """
    task = await tasks.get(tx, turn.task_id) if turn.task_id is not None else None
    run = await task_runs.of_turn(tx, turn.id)
    if task is None or run is None:
        return
    # A repeating task will run again anyway; one line for each failure would flood the chat.
    if task.schedule.kind is ScheduleKind.ONCE or run.cause is Cause.BY_HAND:
        text = f"⚠️ I could not do “{shorten(task)}”: {reason}"
        await _notify_group(tx, task, turn, text, key=f"task-failed:{turn.id}", now_ms=now_ms)
    if is_failing(task):
        await pause_failing(tx, task, turn, reason=reason, now_ms=now_ms)


def is_failing(task: ScheduledTask) -> bool:
    """Return whether a scheduled task failed so often in a row that it has to be paused."""
    return task.status is TaskStatus.ACTIVE and task.failures >= MAX_FAILURES


async def pause_failing(tx: Tx, task: ScheduledTask, turn: Turn, *, reason: str, now_ms: int) -> None:
    """Pause a scheduled task that keeps failing, and notify its group."""
    why = f"it failed {task.failures} times in a row, last with: {reason.rstrip('.')}."
    await task_stops.stop(tx, task, reason=why, now_ms=now_ms)
    # With the time in the key, a later pause is notified, too: the task was resumed and failed again.
    text = f"⏸️ I have paused “{shorten(task)}” ({task.id}): {why} It goes on when it is resumed."
    await _notify_group(tx, task, turn, text, key=f"task-paused:{task.id}:{now_ms}", now_ms=now_ms)


async def pause_unusable(tx: Tx, task: ScheduledTask, group: Group, *, reason: str, now_ms: int) -> None:
    """Pause a scheduled task whose schedule cannot be used any more, for a `reason`, and notify its group."""
    why = f"its schedule cannot be used any more: {reason.rstrip('.')}."
    await task_stops.stop(tx, task, reason=why, now_ms=now_ms)
    text = f"⏸️ I have paused “{shorten(task)}” ({task.id}): {why} Give it a new time, and resume it."
    await outbox.add(
        tx,
        chat_jid=group.chat_for(task.chat_jid),
        folder=task.folder,
        text=text,
        dedupe_key=f"task-paused:{task.id}:{now_ms}",
        now_ms=now_ms,
    )


def shorten(task: ScheduledTask) -> str:
    """Return what a scheduled task is to do on one short line: its prompt, or the text of a reminder."""
    # A repeating reminder is a task that asks its agent to repeat a text; people know the text alone.
    line = " ".join(task.prompt.removeprefix(ECHO).split())
    return line if len(line) <= SHOWN_CHARS else f"{line[: SHOWN_CHARS - 1]}…"


async def _notify_group(tx: Tx, task: ScheduledTask, turn: Turn, text: str, *, key: str, now_ms: int) -> None:
    """Queue a text to the chat of a task's turn; of texts with the same `key`, only the first is sent."""
    await outbox.add(tx, chat_jid=turn.chat_jid, folder=task.folder, text=text, dedupe_key=key, now_ms=now_ms)
