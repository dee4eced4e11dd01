"""Create, change, pause, resume, end, run and list scheduled tasks: prompts that run at a time."""

from __future__ import annotations

from agent_runner.wire.mailbox import ActOnTask, ListTasks, ScheduleTask, UpdateTask
from orchestrator.domain.errors import BadRequest
from orchestrator.domain.values import ScheduledTask, ScheduleKind
from orchestrator.ipc.command_context import CommandCaller, CommandResult, refused
from orchestrator.scheduler import scheduled_task_service, scheduled_task_turns
from orchestrator.scheduler.scheduled_task_service import describe, to_row
from orchestrator.store.database import Tx
from orchestrator.store.groups import groups
from orchestrator.store.schedule import tasks

DONE = {
    "pause": "rests until it is resumed",
    "resume": "goes on",
    "cancel": "has ended for good",
}
"""Maps an action to the end of the sentence that reports it."""


async def schedule_task(tx: Tx, caller: CommandCaller, command: ScheduleTask) -> CommandResult:
    """Create a scheduled task, a prompt that runs at its time, for the caller's group; from main, for any."""
    try:
        group = await groups.known(tx, command.target_folder or caller.group.folder)
        is_once = command.schedule_type == ScheduleKind.ONCE
        # A single time counts from the request, which may have waited while the host was down. A recurring
        # schedule has no time that could have passed.
        now_ms = caller.asked_ms if is_once else caller.now_ms
        task = await scheduled_task_service.create(
            tx,
            group,
            command,
            caller.times,
            now_ms=now_ms,
            asked_in=caller.chat,
            role=caller.role,
        )
    except BadRequest as error:
        return refused(error.code, str(error))
    return CommandResult(text=f"Task {task.id} is made: {describe(task)}.", data=to_row(task))


async def update_task(tx: Tx, caller: CommandCaller, command: UpdateTask) -> CommandResult:
    """Change those fields of a scheduled task that are set in the command, and return the task."""
    try:
        task = await scheduled_task_service.update(
            tx,
            await _find(tx, caller, command.task_id),
            command,
            caller.times,
            now_ms=caller.now_ms,
            role=caller.role,
        )
    except BadRequest as error:
        return refused(error.code, str(error))
    return _changed(task, "is changed")


async def act_on_task(tx: Tx, caller: CommandCaller, command: ActOnTask) -> CommandResult:
    """Pause, resume or cancel a scheduled task, or queue a run of it now, whatever its schedule."""
    try:
        task = await _find(tx, caller, command.task_id)
        if command.action == "run":
            turn_id = await scheduled_task_service.run_now(tx, task, now_ms=caller.now_ms)
            text = f"Task {task.id} is queued; it runs when the group's agent is free."
            return CommandResult(text=text, data={"id": task.id, "turn": turn_id})
        task = await scheduled_task_service.act(tx, task, command.action, caller.times, now_ms=caller.now_ms)
    except BadRequest as error:
        return refused(error.code, str(error))
    return _changed(task, DONE[command.action])


def _changed(task: ScheduledTask, ending: str) -> CommandResult:
    """Return the result of a change; `ending` is the end of `Task 7 …`, such as `is paused`."""
    return CommandResult(text=f"Task {task.id} {ending}: {describe(task)}.", data=to_row(task))


async def list_tasks(tx: Tx, caller: CommandCaller, command: ListTasks) -> CommandResult:
    """List the unfinished scheduled tasks of the caller's group; for main, those of all groups."""
    del command
    visible_tasks = await tasks.every(tx, None if caller.group.is_main else caller.group.folder)
    lines = [
        f"{task.id} ({task.folder}): {describe(task)}: {scheduled_task_turns.shorten(task)}"
        for task in visible_tasks
    ]
    return CommandResult(
        text="\n".join(lines) or "There are no tasks.",
        data={"tasks": [to_row(task) for task in visible_tasks]},
    )


async def _find(tx: Tx, caller: CommandCaller, task_id: str) -> ScheduledTask:
    """Return the scheduled task with this id, of the caller's group or, for main, of any.

    Raises:
        UnknownTask: there is none that the caller may see.
    """
    return await scheduled_task_service.find(
        tx, task_id, folder=None if caller.group.is_main else caller.group.folder
    )
