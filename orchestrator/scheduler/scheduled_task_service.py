"""Create and change scheduled tasks: used by agents and the command line alike.

A scheduled task is a prompt that runs at its time. A task on the dashboard is another thing: `BoardTask`.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import NotRequired, Protocol, TypedDict, TypeVar, cast
from zoneinfo import ZoneInfo

from agent_runner.wire.mailbox import MAX_TEXT_CHARS, ScheduleTask, UpdateTask
from orchestrator.base.clock import format_span, local_iso, local_minute
from orchestrator.domain.errors import (
    BadRequest,
    BadSchedule,
    TaskRefused,
    TextEmpty,
    TextTooLong,
    UnknownTask,
)
from orchestrator.domain.values import (
    CatchUp,
    Cause,
    ChatJid,
    ContextMode,
    Folder,
    Group,
    Overlap,
    PlannedTask,
    Role,
    Schedule,
    ScheduledTask,
    ScheduleKind,
    TaskStatus,
    TurnId,
    least,
)
from orchestrator.scheduler import scheduled_task_turns
from orchestrator.store import audit
from orchestrator.store.database import Tx, announce
from orchestrator.store.groups import groups
from orchestrator.store.schedule import task_runs, task_stops, tasks

MAX_OPEN = 200
"""Tasks of one group that are neither completed nor cancelled."""
Choice = TypeVar("Choice", bound=StrEnum)


class ReadTime(Protocol):
    """Reads a time as people write it, in a group's zone, as epoch milliseconds. Raises `BadTime`."""

    def __call__(self, text: str, *, now_ms: int, zone: ZoneInfo) -> int:
        """Return the time that a text names, in epoch milliseconds. Raises `BadTime`."""
        ...


class PlanFor(Protocol):
    """Checks a schedule for a group and returns its first due time. Raises `BadSchedule`, `BadTime`."""

    def __call__(self, group: Group, kind: str, value: str, *, dst: str | None, now_ms: int) -> PlannedTask:
        """Return the checked schedule and its first due time. Raises `BadSchedule` and `BadTime`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleReader:
    """The functions that read schedules; `timing.schedule_reader` builds one."""

    plan: PlanFor
    following: Callable[[Schedule, int, int], int | None]
    """`(schedule, due_ms, after_ms)`: the next due time after a moment. Raises `BadSchedule`."""


async def find(tx: Tx, task_id: str, *, folder: Folder | None = None) -> ScheduledTask:
    """Return the scheduled task with this id. With `folder`, it has to be a task of that group.

    Raises:
        UnknownTask: there is no such task, or it is another group's.
    """
    task = await tasks.get(tx, task_id)
    # Both cases get the same answer, so that no group can find out which ids others have.
    if task is None or folder not in (None, task.folder):
        raise UnknownTask(task_id)
    return task


async def create(
    tx: Tx,
    group: Group,
    request: ScheduleTask,
    times: ScheduleReader,
    *,
    now_ms: int,
    asked_in: ChatJid | None = None,
    task_id: str | None = None,
    role: Role = Role.OWNER,
) -> ScheduledTask:
    """Create a scheduled task of a group as `request` describes it, and return it.

    Its answers go to the chat `asked_in`, in which it was requested; None means the group's own. `role` is
    the requester's: the task's turns get no more rights than that. `task_id` is the id of an imported task;
    others get a new one.

    Raises:
        BadSchedule, BadTime: the schedule or an option is invalid, or the task can never be due.
        TaskRefused: the group has too many tasks.
    """
    await _check_room(tx, group.folder)
    planned = times.plan(group, request.schedule_type, request.schedule_value, dst=request.dst, now_ms=now_ms)
    task = ScheduledTask(
        id=task_id or f"task-{secrets.token_hex(4)}",
        folder=group.folder,
        chat_jid=group.chat_for(asked_in),
        prompt=request.prompt,
        schedule=planned.schedule,
        next_ms=planned.next_ms,
        status_ms=now_ms,
        created_ms=now_ms,
        role=role,
    )
    return await _put(tx, _with_choices(task, request))


async def update(
    tx: Tx,
    task: ScheduledTask,
    request: UpdateTask,
    times: ScheduleReader,
    *,
    now_ms: int,
    role: Role = Role.OWNER,
) -> ScheduledTask:
    """Change the fields of a scheduled task that the request sets, and return the task.

    A new schedule counts from now; it makes a completed task active again. A run that is queued already has
    the old prompt. After a change by somebody of a lesser `role`, the task has no more rights than they.

    Raises:
        BadSchedule, BadTime: the new schedule or an option is invalid; nothing is changed.
        TaskRefused: the task is cancelled; or it is completed, and the request sets no schedule or the group
            has too many tasks.
        UnknownGroup: the request sets a schedule, but the task's group is no longer registered.
    """
    schedule_fields = (request.schedule_type, request.schedule_value, request.dst)
    is_rescheduled = any(field is not None for field in schedule_fields)
    if task.status is TaskStatus.CANCELLED or (task.is_over and not is_rescheduled):
        raise TaskRefused(f"Task {task.id} is {task.status.value}.")
    # Whoever changes a task has seen its failures, so the count of failures starts again at 0.
    changed = replace(
        _with_choices(task, request),
        prompt=request.prompt or task.prompt,
        failures=0,
        role=least((task.role, role)),
    )
    if is_rescheduled:
        group = await groups.known(tx, task.folder)
        changed = _rescheduled(changed, request, times, group=group, now_ms=now_ms)
    if task.is_over:
        await _check_room(tx, task.folder)
    return await _put(tx, changed)


def _rescheduled(
    task: ScheduledTask, request: UpdateTask, times: ScheduleReader, *, group: Group, now_ms: int
) -> ScheduledTask:
    """Return a copy of the task with the schedule of the request; parts that the request does not set stay.

    But a new value without a choice for daylight saving gets the default again. A completed task becomes
    active. Raises `BadSchedule` and `BadTime`.
    """
    kind = task.schedule.kind.value if request.schedule_type is None else request.schedule_type
    if request.schedule_value is None and kind != task.schedule.kind:
        raise BadSchedule(f"A change to {kind} needs a value too.")
    value = task.schedule.value if request.schedule_value is None else request.schedule_value
    # The default for daylight saving depends on the expression, so a new one chooses it again.
    dst = request.dst or (task.schedule.dst.value if request.schedule_value is None else None)
    planned = times.plan(group, kind, value, dst=dst, now_ms=now_ms)
    is_revived = task.status is TaskStatus.COMPLETED
    return replace(
        task,
        schedule=planned.schedule,
        next_ms=planned.next_ms,
        status=TaskStatus.ACTIVE if is_revived else task.status,
        status_ms=now_ms if is_revived else task.status_ms,
    )


async def pause(tx: Tx, task: ScheduledTask, *, now_ms: int) -> ScheduledTask:
    """Pause a scheduled task until it is resumed, and return it. A queued run of it does not start.

    Raises:
        TaskRefused: the task is completed or cancelled.
    """
    _refuse_over(task)
    if task.status is TaskStatus.ACTIVE:
        await task_stops.stop(tx, task, reason="by request", now_ms=now_ms)
    return await find(tx, task.id)


async def resume(tx: Tx, task: ScheduledTask, times: ScheduleReader, *, now_ms: int) -> ScheduledTask:
    """Resume a paused scheduled task at its next time from now, and return it. An active one stays as it is.

    Raises:
        TaskRefused: the task is completed or cancelled, or its only time has passed.
        BadSchedule: its schedule cannot be used any more.
    """
    _refuse_over(task)
    if task.status is TaskStatus.ACTIVE:
        return task
    # Missed times are not caught up: whoever paused the task did not want them.
    next_ms = None if task.next_ms is None else times.following(task.schedule, task.next_ms, now_ms)
    if next_ms is None:
        raise TaskRefused(f"The time of task {task.id} has passed: give it a new one.")
    return await _put(
        tx,
        replace(
            task,
            status=TaskStatus.ACTIVE,
            status_reason=None,
            status_ms=now_ms,
            next_ms=next_ms,
            failures=0,
        ),
    )


async def cancel(tx: Tx, task: ScheduledTask, *, now_ms: int) -> ScheduledTask:
    """Cancel a scheduled task, and return it; `restore` undoes this.

    A queued run of it does not start; a running one continues.
    """
    if task.status is not TaskStatus.CANCELLED:
        await _put(
            tx,
            replace(
                task,
                status=TaskStatus.CANCELLED,
                status_reason="by request",
                status_ms=now_ms,
                next_ms=None,
            ),
        )
        await tasks.note_cancelled_due(tx, task.id, task.next_ms)  # for `restore`
        # Only queued runs: a running one may be in the middle of something that its tools cannot undo.
        await task_stops.stop_queued(tx, task, reason="its task was cancelled.", now_ms=now_ms)
    return await find(tx, task.id)


async def restore(tx: Tx, task: ScheduledTask, times: ScheduleReader, *, now_ms: int) -> ScheduledTask:
    """Undo the cancellation of a scheduled task, and return it. It runs again from its next due time on.

    A task that is not cancelled stays as it is.

    Raises:
        TaskRefused: its only time has passed, or the group has too many tasks.
        BadSchedule: its schedule cannot be used any more.
    """
    if task.status is not TaskStatus.CANCELLED:
        return task
    await _check_room(tx, task.folder)
    due_ms = await tasks.cancelled_due_ms(tx, task.id)
    if due_ms is None:  # it was not stored when the task was cancelled
        due_ms = _earlier_due_ms(task)
    next_ms = times.following(task.schedule, due_ms, now_ms)
    if next_ms is None:
        raise TaskRefused(f"The time of task {task.id} has passed: make a new one.")
    active = replace(
        task, status=TaskStatus.ACTIVE, status_reason=None, status_ms=now_ms, next_ms=next_ms, failures=0
    )
    return await _put(tx, active)


def _earlier_due_ms(task: ScheduledTask) -> int:
    """Return the time, in epoch milliseconds, from which a cancelled task's later due times are computed.

    That is the due time of a one-time task, else the last run or the creation. It is for a task that was
    cancelled without storing its due time, such as by an earlier version of Andy.
    """
    if task.schedule.kind is ScheduleKind.ONCE:
        return round(datetime.fromisoformat(task.schedule.value).timestamp() * 1000)
    return task.last_ms or task.created_ms


async def run_now(tx: Tx, task: ScheduledTask, *, now_ms: int) -> TurnId:
    """Queue an extra run of a scheduled task, also of a paused or completed one, and return the turn's id.

    Raises:
        TaskRefused: it is cancelled, or runs or waits already.
        UnknownGroup: its group is no longer registered.
    """
    if task.status is TaskStatus.CANCELLED:
        raise TaskRefused(f"Task {task.id} is cancelled.")
    if await task_runs.open_turns(tx, task.id):
        raise TaskRefused(f"Task {task.id} runs already, or waits to.")
    # An extra run changes neither the schedule nor the next due time.
    group = await groups.known(tx, task.folder)
    return await scheduled_task_turns.queue_turn(
        tx, task, group, cause=Cause.BY_HAND, due_ms=now_ms, now_ms=now_ms
    )


def _with_choices(task: ScheduledTask, request: ScheduleTask | UpdateTask) -> ScheduledTask:
    """Return a copy of the task with the options that the request sets; the others stay.

    An empty `check`, the script that decides whether a run is needed, removes the script. Raises
    `BadSchedule`.
    """
    return replace(
        task,
        context_mode=_choice(ContextMode, request.context_mode, "context_mode", task.context_mode),
        overlap=_choice(Overlap, request.overlap, "overlap", task.overlap),
        catch_up=_choice(CatchUp, request.catch_up, "catch_up", task.catch_up),
        check=task.check if request.check is None else request.check.strip() or None,
    )


def _choice(kind: type[Choice], text: str | None, name: str, default: Choice) -> Choice:
    """Return the member of the enumeration `kind` that a text names, or `default` if there is no text.

    Raises:
        BadSchedule: the text is none of its values; `name` is the name of the field, for the error's text.
    """
    if text is None:
        return default
    try:
        return kind(text)
    except ValueError:
        # `from None`: the requester reads the allowed values, not Python's own message.
        raise BadSchedule(f"{name}: '{text}' is unknown: use {', '.join(kind)}.") from None


async def _check_room(tx: Tx, folder: Folder) -> None:
    """Raise `TaskRefused` if a group has as many open tasks as it may have."""
    if await tasks.count_open(tx, folder) >= MAX_OPEN:
        raise TaskRefused(f"There are {MAX_OPEN} tasks already: cancel some first.")


def _refuse_over(task: ScheduledTask) -> None:
    """Raise `TaskRefused` if a task is completed or cancelled."""
    if task.is_over:
        raise TaskRefused(f"Task {task.id} is {task.status.value}.")


async def _put(tx: Tx, task: ScheduledTask) -> ScheduledTask:
    """Store a task, and return it."""
    await tasks.put(tx, task)
    return task


async def add(
    tx: Tx,
    folder: str,
    request: ScheduleTask,
    times: ScheduleReader,
    *,
    now_ms: int,
    asked_in: ChatJid | None = None,
) -> ScheduledTask:
    """Create a scheduled task of a group for the owner, with an audit entry, and return it.

    Its answers go to the chat `asked_in`; None means the one that receives the group's notifications.

    Raises:
        UnknownGroup: there is no group with this folder.
        TextEmpty, TextTooLong: the prompt is not acceptable.
        BadSchedule, BadTime: the schedule or an option is invalid, or the task can never be due.
        TaskRefused: the group has too many tasks.
    """
    group = await groups.known(tx, folder)
    if not request.prompt.strip():
        raise TextEmpty
    if len(request.prompt) > MAX_TEXT_CHARS:
        raise TextTooLong(len(request.prompt), MAX_TEXT_CHARS)
    task = await create(tx, group, request, times, now_ms=now_ms, asked_in=asked_in)
    await _record(tx, task, "add", now_ms=now_ms)
    return task


async def apply_action(
    tx: Tx, task_id: str, action: str, times: ScheduleReader, *, now_ms: int
) -> ScheduledTask:
    """Pause, resume, cancel, restore or run a scheduled task for the owner, with an audit entry.

    `action` is one of these words. Return the task.

    Raises:
        UnknownTask, TaskRefused, BadSchedule, UnknownGroup: nothing was done.
        BadRequest: there is no such action.
    """
    task = await act(tx, await find(tx, task_id), action, times, now_ms=now_ms)
    await _record(tx, task, action, now_ms=now_ms)
    return task


async def change(tx: Tx, request: UpdateTask, times: ScheduleReader, *, now_ms: int) -> ScheduledTask:
    """Change the fields of a scheduled task that the request sets, for the owner, with an audit entry.

    Return the task.

    Raises:
        UnknownTask: there is no such task.
        BadSchedule, BadTime: the new schedule or an option is invalid; nothing is changed.
        TaskRefused: the task is cancelled, or it is completed and the request sets no schedule.
        UnknownGroup: the request sets a schedule, but the task's group is no longer registered.
    """
    task = await update(tx, await find(tx, request.task_id), request, times, now_ms=now_ms)
    await _record(tx, task, "change", now_ms=now_ms)
    return task


async def act(
    tx: Tx, task: ScheduledTask, action: str, times: ScheduleReader, *, now_ms: int
) -> ScheduledTask:
    """Pause, resume, cancel, restore or run a scheduled task, and return it. `action` is one of these words.

    Raises:
        TaskRefused: the task's state does not allow it.
        BadSchedule: the task is to be resumed or restored, but its schedule cannot be used any more.
        UnknownGroup: the task is to run, but its group is no longer registered.
        BadRequest: there is no such action.
    """
    match action:
        case "pause":
            return await pause(tx, task, now_ms=now_ms)
        case "resume":
            return await resume(tx, task, times, now_ms=now_ms)
        case "cancel":
            return await cancel(tx, task, now_ms=now_ms)
        case "restore":
            return await restore(tx, task, times, now_ms=now_ms)
        case "run":
            await run_now(tx, task, now_ms=now_ms)
            return task
        case _:
            raise BadRequest(
                f"'{action}' is no action for a task: use pause, resume, cancel, restore or run."
            )


async def _record(tx: Tx, task: ScheduledTask, action: str, *, now_ms: int) -> None:
    """Write an entry about a task to the audit log, and announce the change."""
    event = audit.AuditEvent(
        at_ms=now_ms, kind=f"task.{action}", folder=task.folder, detail={"task": task.id}
    )
    await audit.append(tx, event)
    announce(tx, "task.changed", group=task.folder, detail=task.id)


class TaskView(TypedDict):
    """A scheduled task; fields without a value are left out. Times are local, with their UTC offset."""

    id: str
    groupFolder: str
    prompt: str
    schedule_type: str
    schedule_value: str
    timezone: str
    dst: str
    context_mode: str
    overlap: str
    catch_up: str
    status: str
    failures: int
    check: NotRequired[str | None]
    status_reason: NotRequired[str | None]
    next_run: NotRequired[str | None]
    last_run: NotRequired[str | None]
    last_result: NotRequired[str | None]


def to_row(task: ScheduledTask) -> TaskView:
    """Return a scheduled task as agents see it, in replies and `tasks.json`.

    Times are local, with offset. Fields that are None are left out.
    """
    zone = task.schedule.zone
    row: TaskView = {
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
    return cast("TaskView", {name: value for name, value in row.items() if value is not None})


def describe(task: ScheduledTask) -> str:
    """Return a line such as `active, cron 0 9 * * *, next Sun 2026-11-22 09:00 (Asia/Seoul)`."""
    return f"{task.status.value}, {describe_schedule(task.schedule)}, {describe_next_run(task)}"


def describe_schedule(schedule: Schedule) -> str:
    """Return the schedule in words: `cron 0 9 * * *`, `every 30 min` or `once`."""
    match schedule.kind:
        case ScheduleKind.CRON:
            return f"cron {schedule.value}"
        case ScheduleKind.INTERVAL:
            return f"every {format_span(int(schedule.value))}"
        case ScheduleKind.ONCE:
            return "once"


def describe_next_run(task: ScheduledTask) -> str:
    """Return when the scheduled task is due next: `next Sun 2026-11-22 09:00 (Asia/Seoul)`.

    A paused one has no next time that people can rely on.
    """
    if task.next_ms is None:
        return "not due any more"
    if task.status is TaskStatus.PAUSED:
        return "not due until it is resumed"
    zone = task.schedule.zone
    return f"next {local_minute(task.next_ms, zone)} ({zone.key})"
