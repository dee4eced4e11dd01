"""Tasks: what an agent asks to be asked at a time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any
from zoneinfo import ZoneInfo

from agent_runner.wire.mailbox import (
    CancelTask,
    ListTasks,
    PauseTask,
    ResumeTask,
    RunTask,
    ScheduleTask,
    UpdateTask,
)
from orchestrator import agenda, errands
from orchestrator.clock import local_iso, local_minute
from orchestrator.errors import BadRequest
from orchestrator.ipc.handlers import Answer, Caller, refused
from orchestrator.models import Schedule, ScheduleKind, Task
from orchestrator.store import groups, tasks
from orchestrator.store.database import Tx


async def schedule_task(tx: Tx, caller: Caller, command: ScheduleTask) -> Answer:
    """Make a task of the caller's group or, from main, of any."""
    try:
        group = await groups.known(tx, command.target_folder or caller.group.folder)
        task = await agenda.schedule(tx, group, _wish(command), caller.times, now_ms=caller.now_ms)
    except BadRequest as error:
        return refused(error.code, str(error))
    return Answer(text=f"Task {task.id} is made: {_when(task)}.", data=told(task))


async def update_task(tx: Tx, caller: Caller, command: UpdateTask) -> Answer:
    async def change(task: Task) -> Task:
        return await agenda.update(tx, task, _wish(command), caller.times, now_ms=caller.now_ms)

    return await _change(tx, caller, command.task_id, change, "is changed")


async def pause_task(tx: Tx, caller: Caller, command: PauseTask) -> Answer:
    async def change(task: Task) -> Task:
        return await agenda.pause(tx, task, now_ms=caller.now_ms)

    return await _change(tx, caller, command.task_id, change, "rests until it is resumed")


async def resume_task(tx: Tx, caller: Caller, command: ResumeTask) -> Answer:
    async def change(task: Task) -> Task:
        return await agenda.resume(tx, task, caller.times, now_ms=caller.now_ms)

    return await _change(tx, caller, command.task_id, change, "goes on")


async def cancel_task(tx: Tx, caller: Caller, command: CancelTask) -> Answer:
    async def change(task: Task) -> Task:
        return await agenda.cancel(tx, task, now_ms=caller.now_ms)

    return await _change(tx, caller, command.task_id, change, "has ended for good")


async def _change(
    tx: Tx, caller: Caller, task_id: str, change: Callable[[Task], Awaitable[Task]], word: str
) -> Answer:
    try:
        task = await change(await _find(tx, caller, task_id))
    except BadRequest as error:
        return refused(error.code, str(error))
    return Answer(text=f"Task {task.id} {word}: {_when(task)}.", data=told(task))


async def run_task(tx: Tx, caller: Caller, command: RunTask) -> Answer:
    try:
        task = await _find(tx, caller, command.task_id)
        turn_id = await agenda.run_now(tx, task, now_ms=caller.now_ms)
    except BadRequest as error:
        return refused(error.code, str(error))
    return Answer(
        text=f"Task {task.id} is queued; it runs when the group's agent is free.",
        data={"id": task.id, "turn": turn_id},
    )


async def list_tasks(tx: Tx, caller: Caller, command: ListTasks) -> Answer:
    """Tell the caller's tasks that are not over; main those of all groups."""
    del command
    found = await tasks.every(tx, None if caller.group.is_main else caller.group.folder)
    lines = [f"{task.id} ({task.folder}): {_when(task)}: {errands.shown(task)}" for task in found]
    return Answer(
        text="\n".join(lines) or "There are no tasks.", data={"tasks": [told(task) for task in found]}
    )


async def _find(tx: Tx, caller: Caller, task_id: str) -> Task:
    return await agenda.find(tx, task_id, folder=None if caller.group.is_main else caller.group.folder)


def _wish(command: ScheduleTask | UpdateTask) -> agenda.Wish:
    return agenda.Wish(
        prompt=command.prompt,
        kind=command.schedule_type,
        value=command.schedule_value,
        dst=command.dst,
        context_mode=command.context_mode,
        overlap=command.overlap,
        catch_up=command.catch_up,
        check=command.check,
    )


def _when(task: Task) -> str:
    """`active, cron 0 9 * * *, next Sun 2026-11-22 09:00 (Asia/Seoul)`."""
    return f"{task.status.value}, {_rhythm(task.schedule)}, {_next(task)}"


def _rhythm(schedule: Schedule) -> str:
    match schedule.kind:
        case ScheduleKind.CRON:
            return f"cron {schedule.value}"
        case ScheduleKind.INTERVAL:
            return f"every {timedelta(milliseconds=int(schedule.value))}"
        case ScheduleKind.ONCE:
            return "once"


def _next(task: Task) -> str:
    if task.next_ms is None:
        return "not due any more"
    zone = ZoneInfo(task.schedule.timezone)
    return f"next {local_minute(task.next_ms, zone)} ({zone.key})"


def told(task: Task) -> dict[str, Any]:
    """A task as agents see it: in replies and in `tasks.json`."""
    zone = ZoneInfo(task.schedule.timezone)
    found = {
        "id": task.id,
        "groupFolder": task.folder,
        "prompt": task.prompt,
        "schedule_type": task.schedule.kind.value,
        "schedule_value": task.schedule.value,
        "timezone": task.schedule.timezone,
        "dst": task.schedule.dst.value,
        "context_mode": task.context_mode.value,
        "overlap": task.overlap.value,
        "catch_up": task.catch_up.value,
        "check": task.check,
        "status": task.status.value,
        "status_reason": task.status_reason,
        "next_run": None if task.next_ms is None else local_iso(task.next_ms, zone),
        "last_run": None if task.last_ms is None else local_iso(task.last_ms, zone),
        "last_result": task.last_result,
        "failures": task.failures,
    }
    return {name: value for name, value in found.items() if value is not None}
