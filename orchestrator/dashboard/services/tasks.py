"""Create and change a dashboard's tasks, together with their questions and notifications."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import date
from typing import Any

from orchestrator.dashboard.rules import alerts
from orchestrator.dashboard.services import notifications, questions
from orchestrator.dashboard.services.context import ServiceContext, new_id
from orchestrator.dashboard.views import serializers
from orchestrator.dashboard.words import texts, when
from orchestrator.domain.dashboard import (
    MAX_TITLE_CHARS,
    BoardTask,
    BoardTaskStatus,
    Deadline,
    Priority,
    ToolRefused,
    ToolResult,
)
from orchestrator.store.board import dashboards
from orchestrator.store.board import tasks as board_tasks

REOPENED_PCT = 99
"""Percent of a completed task that is open again: its progress before is not stored, and one at 100 % would
look as if it were done, to people and to the rules.
"""
_TIME_OF_DAY = re.compile(r"([01]\d|2[0-3]):[0-5]\d", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskChanges:
    """The requested changes to a task; None leaves a field unchanged. An empty deadline removes it."""

    title: str | None = None
    progress: int | None = None
    progress_note: str | None = None
    status: BoardTaskStatus | None = None
    blocked: bool | None = None
    blocker_note: str | None = None
    context: str | None = None
    deadline: str | None = None
    priority: Priority | None = None
    tags: tuple[str, ...] | None = None

    def fields(self) -> tuple[str, ...]:
        """Return the names of the fields to change."""
        return tuple(name for name in self.__slots__ if getattr(self, name) is not None)


async def create(
    ctx: ServiceContext,
    *,
    title: str,
    deadline: str = "",
    priority: Priority = Priority.MEDIUM,
    context: str = "",
    tags: tuple[str, ...] = (),
    raw_input: str = "",
) -> ToolResult:
    """Create a task, something that a person has to do.

    `deadline` is a day or time as text, empty for none; `raw_input` is the text in which a person asked for
    the task.

    Raises:
        ToolRefused: a text or the deadline does not fit, or there are too many tasks.
    """
    if await board_tasks.count(ctx.tx, ctx.folder) >= ctx.limits.tasks:
        raise ToolRefused("CAP", f"There are {ctx.limits.tasks:,} tasks already: move some to the history.")
    title = texts.line("title", title, limit=MAX_TITLE_CHARS, is_needed=True)
    task = BoardTask(
        folder=ctx.folder,
        id=new_id("task"),
        title=title,
        raw_input=texts.text("raw_input", raw_input) or title,
        deadline=_deadline(ctx, deadline),
        priority=priority,
        context=texts.text("context", context),
        tags=texts.tags(tags),
        last_update_ms=ctx.now_ms,
        created_ms=ctx.now_ms,
        updated_ms=ctx.now_ms,
    )
    fields = [name for name, value in (("deadline", deadline), ("context", context), ("tags", tags)) if value]
    task = await _store(
        ctx, _with_fields_set_by_person(ctx, task, ["title", "priority", *fields]), read_version=None
    )
    await _wake_rules_if_near(ctx, task)
    return ToolResult(
        text=f"Task {task.id} is made: {task.title}{_due_text(ctx, task)}.",
        data=serializers.task(task, ctx.zone),
    )


async def update(ctx: ServiceContext, task_id: str, changes: TaskChanges) -> ToolResult:
    """Change a task, and close or cancel the questions and notifications that the change makes outdated.

    If the task ends, all of them are closed or cancelled.

    Raises:
        ToolRefused: nothing is to be changed, there is no such task, the caller was never shown it as it is
            now, or a value does not fit.
    """
    fields = changes.fields()
    if not fields:
        raise ToolRefused("NOTHING_TO_CHANGE", "Name at least one change.")
    task = await ctx.task(task_id)
    # Before anything is changed: an agent must not overwrite what it was never shown.
    await ctx.check_seen(task, serializers.task(task, ctx.zone))
    changed = _with_changes(ctx, task, changes)
    stored = await _store(ctx, _with_fields_set_by_person(ctx, changed, fields), read_version=task.version)
    consequences = await _apply_consequences(ctx, task, stored)
    return ToolResult(
        text=(
            f"Task {stored.id} ({stored.title}) is updated:"
            f" {_summary(ctx, stored, fields)}.{consequences.text}"
        ),
        data=serializers.task(stored, ctx.zone) | consequences.data,
    )


async def move_to_history(ctx: ServiceContext, *, task_id: str, reflection: str = "") -> ToolResult:
    """Move a completed or cancelled task to the history, and close the questions and notifications about it.

    `reflection` is what was learned from it; an empty one leaves it unchanged. A second move changes nothing.

    Raises:
        ToolRefused: there is no such task, it changed since the caller was shown it, or it has not ended.
    """
    task = await ctx.task(task_id)
    if task.archived_ms is not None:
        return ToolResult(
            text=f"Task {task.id} is in the history already.", data=serializers.task(task, ctx.zone)
        )
    await ctx.check_seen(task, serializers.task(task, ctx.zone))
    if not task.status.is_terminal:
        raise ToolRefused(
            "NOT_TERMINAL",
            f"Task {task.id} is {task.status.value}: only a completed or cancelled task can be moved.",
        )
    moved = replace(
        task,
        archived_ms=ctx.now_ms,
        updated_ms=ctx.now_ms,
        reflection=texts.text("reflection", reflection) or task.reflection,
    )
    moved = await _store(ctx, moved, read_version=task.version)
    consequences = await _close_related(ctx, moved)
    return ToolResult(
        text=f"Task {moved.id} ({moved.title}) is in the history.{consequences.text}",
        data=serializers.task(moved, ctx.zone) | consequences.data,
    )


async def set_recurring(
    ctx: ServiceContext,
    *,
    task_id: str,
    enabled: bool = True,
    days_of_week: tuple[int, ...] | None = None,
    check_time: str | None = None,
) -> ToolResult:
    """Set whether a task is to be done repeatedly (`enabled`), on which days of the week, and at what time.

    The days (0 is Monday) and the time (`check_time`, such as `18:00`) are for people: no rule acts on them.
    None leaves them unchanged. The counts of how often the task was done in a row stay.

    Raises:
        ToolRefused: there is no such task, it changed since the caller was shown it, or a value does not fit.
    """
    task = await ctx.task(task_id)
    await ctx.check_seen(task, serializers.task(task, ctx.zone))
    before = dict(task.recurring or {})
    days = sorted(set(days_of_week if days_of_week is not None else serializers.days_of(before)))
    # An imported time may be anything; it stays as it is until another one is given.
    time_of_day = str(before.get("check_time") or "") if check_time is None else check_time.strip()
    if enabled and not days:
        raise ToolRefused("VALIDATION", "days_of_week: name at least one day, 0 is Monday.")
    if any(not 0 <= day <= 6 for day in days):
        raise ToolRefused("VALIDATION", "days_of_week: days are 0 (Monday) to 6 (Sunday).")
    if check_time is not None and time_of_day and not _TIME_OF_DAY.fullmatch(time_of_day):
        raise ToolRefused("VALIDATION", f"check_time: '{time_of_day[:20]}' is no time of day such as 18:00.")
    # In this order the stored streaks win over the zeros of a task that has none yet.
    streaks = {"streak_current": 0, "streak_best": 0, "total_completed": 0, "total_missed": 0}
    merged = {"frequency": "daily", **streaks, **before}
    merged |= {"enabled": enabled, "days_of_week": days, "check_time": time_of_day}
    changed = replace(task, recurring=merged, updated_ms=ctx.now_ms)
    task = await _store(
        ctx, _with_fields_set_by_person(ctx, changed, ["recurring"]), read_version=task.version
    )
    days_shown = serializers.recurring(task)
    text = f"noted as done again on {days_shown}" if days_shown else "noted as done once"
    return ToolResult(text=f"Task {task.id} is {text}.", data=serializers.task(task, ctx.zone))


async def follow_zone(ctx: ServiceContext, *, is_changed: bool) -> None:
    """Recompute deadlines of whole days, and the alerts of the rules, after the group's time zone changed.

    Reminders that people requested keep their time. `is_changed` is false where it is not known whether the
    zone changed: it then counts as changed only if a deadline has to be moved.
    """
    days = await board_tasks.days(ctx.tx, ctx.folder)
    # Each day is computed once: many tasks share one.
    start_ms_by_day = {
        day: when.day_deadline(date.fromisoformat(day), ctx.zone, text="").at_ms for day in days
    }
    version = await ctx.version()
    moved = 0
    for day, at_ms in start_ms_by_day.items():
        moved += await board_tasks.move_day(ctx.tx, ctx.folder, day, at_ms=at_ms, version=version)
    # Notifications that the rules timed by the old zone are cancelled; the pass woken here makes them again.
    if is_changed or moved:
        await notifications.cancel_of_rules(ctx, notifications.ZONE_CHANGED)
        await dashboards.wake_rules(ctx.tx, ctx.folder, now_ms=ctx.now_ms)
    await dashboards.note_zone(ctx.tx, ctx.folder, ctx.zone.key)


def _with_changes(ctx: ServiceContext, task: BoardTask, changes: TaskChanges) -> BoardTask:
    """Return the task with its changes, after checking them; nothing is stored. Raises `ToolRefused`."""
    new: dict[str, Any] = {"updated_ms": ctx.now_ms}
    if changes.title is not None:
        new["title"] = texts.line("title", changes.title, limit=MAX_TITLE_CHARS, is_needed=True)
    if changes.context is not None:
        new["context"] = texts.text("context", changes.context)
    if changes.priority is not None:
        new["priority"] = changes.priority
    if changes.tags is not None:
        new["tags"] = texts.tags(changes.tags)
    if changes.deadline is not None:
        new["deadline"] = _deadline(ctx, changes.deadline)
    new |= _progress_values(ctx, changes) | _block_values(ctx, task, changes)
    return _with_status(ctx, replace(task, **new), changes)


def _progress_values(ctx: ServiceContext, changes: TaskChanges) -> dict[str, Any]:
    """Return the values of a task's fields about progress that `changes` sets, by field name.

    Empty if it sets none.

    Raises:
        ToolRefused: VALIDATION, if the progress is no percentage or the note is too long.
    """
    new: dict[str, Any] = {}
    if changes.progress is not None:
        if not 0 <= changes.progress <= 100:
            raise ToolRefused("VALIDATION", "progress is a percentage: 0 to 100.")
        new |= {"pct": changes.progress, "last_update_ms": ctx.now_ms}
    if changes.progress_note is not None:
        new |= {
            "progress_note": texts.text("progress_note", changes.progress_note),
            "last_update_ms": ctx.now_ms,
        }
    return new


def _block_values(ctx: ServiceContext, task: BoardTask, changes: TaskChanges) -> dict[str, Any]:
    """Return the values of a task's fields about being blocked that `changes` sets, by field name.

    Empty if it sets none.

    Raises:
        ToolRefused: VALIDATION, if there is a note why it is blocked, but it is not blocked.
    """
    if changes.blocked is False:
        if changes.blocker_note:
            raise ToolRefused("VALIDATION", "blocker_note: what is not blocked has none.")
        return {"blocked_ms": None, "blocker_note": None}
    if changes.blocked is None and changes.blocker_note is not None and not task.is_blocked:
        raise ToolRefused("VALIDATION", "blocker_note: the task is not blocked; give blocked too.")
    new: dict[str, Any] = {}
    # A second "blocked" leaves the first time, or each repeat would hide how long the task has been blocked.
    if changes.blocked and not task.is_blocked:
        new["blocked_ms"] = ctx.now_ms
    if changes.blocker_note is not None:
        new["blocker_note"] = texts.text("blocker_note", changes.blocker_note) or None
    return new


def _with_status(ctx: ServiceContext, task: BoardTask, changes: TaskChanges) -> BoardTask:
    """Return the task with its new status, and with the fields that follow from it.

    A completed task is at 100 % and not blocked, even if the change that completes it says otherwise. One
    that was completed and is open again is below 100 %, unless the change gives its progress. An open task
    is not in the history.

    Raises:
        ToolRefused: VALIDATION, if a task that is completed already is to be blocked or to have less
            progress, by a change that does not set the status.
    """
    status = changes.status or task.status
    if status is BoardTaskStatus.COMPLETED:
        if changes.status is None and changes.progress not in (None, 100):
            raise ToolRefused(
                "VALIDATION", "The task is completed; set status to active to work on it again."
            )
        if changes.blocked and changes.status is None:
            raise ToolRefused("VALIDATION", "The task is completed; it cannot be blocked.")
        return replace(
            task,
            status=status,
            pct=100,
            completed_ms=task.completed_ms or ctx.now_ms,
            blocked_ms=None,
            blocker_note=None,
        )
    # A reopened task leaves the history, which contains only ended tasks.
    archived_ms = task.archived_ms if status.is_terminal else None
    is_reopened = task.status is BoardTaskStatus.COMPLETED and not status.is_terminal
    pct = min(task.pct, REOPENED_PCT) if is_reopened and changes.progress is None else task.pct
    return replace(task, status=status, pct=pct, completed_ms=None, archived_ms=archived_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Consequences:
    """The effects of a task's change on its questions and notifications, to be added to the tool's result."""

    text: str = ""
    data: dict[str, Any]


async def _apply_consequences(ctx: ServiceContext, before: BoardTask, after: BoardTask) -> _Consequences:
    """Close the questions, and cancel the notifications, that a change of their task has made outdated.

    `before` and `after` are the task's states. The rules run at once if an alert may be due. Return how many
    notifications were cancelled and, for an ended task, questions closed, as text and data for the reply.
    """
    if after.status.is_terminal:
        return await _close_related(ctx, after)
    # A task that is opened again has no alerts: they were cancelled when it ended. One may be due at once.
    if before.status.is_terminal:
        await _wake_rules_if_near(ctx, after)
    await questions.close_outdated(ctx, before, after)
    if _deadline_key(before.deadline) != _deadline_key(after.deadline):
        await _wake_rules_if_near(ctx, after)
        new_deadline = serializers.deadline(after.deadline, ctx.zone) or "none"
        cancelled = await notifications.forget_deadline(ctx, after, new_deadline=new_deadline)
        text = f" {_notification_count(cancelled)} of the old deadline cancelled." if cancelled else ""
        return _Consequences(text=text, data={"cancelled_notifications": cancelled})
    return _Consequences(data={"cancelled_notifications": 0})


async def _wake_rules_if_near(ctx: ServiceContext, task: BoardTask) -> None:
    """Make the rules' next pass due now if an alert about the task's deadline may be due before it."""
    if task.deadline is not None and task.deadline.at_ms - ctx.now_ms <= alerts.DAY_BEFORE_MS:
        await dashboards.wake_rules(ctx.tx, ctx.folder, now_ms=ctx.now_ms)


async def _close_related(ctx: ServiceContext, task: BoardTask) -> _Consequences:
    """Close the open questions, and cancel the pending notifications, of a task that has ended.

    Return how many there were, as data and as a text that is appended to the reply; empty for none.
    """
    reason = notifications.end_reason(task)
    cancelled = await notifications.cancel_of_task(ctx, task.id, reason)
    closed = await questions.close_of_task(ctx, task.id, reason)
    text = f" {_notification_count(cancelled)} cancelled." if cancelled else ""
    text += f" {closed} question{'s' if closed > 1 else ''} closed." if closed else ""
    return _Consequences(text=text, data={"cancelled_notifications": cancelled, "closed_questions": closed})


def _notification_count(cancelled: int) -> str:
    """Return a number of notifications, at least one, as text: `1 notification`, `2 notifications`."""
    return f"{cancelled} notification{'s' if cancelled > 1 else ''}"


def _deadline_key(deadline: Deadline | None) -> tuple[int, str | None] | None:
    """Return the time (epoch ms) and the day of a deadline, to compare two deadlines without their texts.

    The day is None if the deadline has a time of day. None for no deadline.
    """
    return None if deadline is None else (deadline.at_ms, deadline.date)


def _deadline(ctx: ServiceContext, text: str) -> Deadline | None:
    """Return the deadline that a text names; None for an empty text. Raises `ToolRefused` if it is none."""
    return when.parse_deadline(texts.line("deadline", text), now_ms=ctx.now_ms, zone=ctx.zone)


def _with_fields_set_by_person(
    ctx: ServiceContext, task: BoardTask, fields: list[str] | tuple[str, ...]
) -> BoardTask:
    """Return the task with a record that a person sets these fields now: rules do not change them later.

    It is unchanged if the caller is no person.
    """
    if not ctx.caller.is_person:
        return task
    return replace(task, user_set={**task.user_set, **dict.fromkeys(fields, ctx.now_ms)})


async def _store(ctx: ServiceContext, task: BoardTask, *, read_version: int | None) -> BoardTask:
    """Store a task and return it with its new version.

    `read_version` is the version that was read, None for a new task.

    Raises:
        ToolRefused: STALE, if the stored task has another version by now.
    """
    task = replace(task, version=await ctx.version(), changed_turn=ctx.caller.turn_id)
    if not await board_tasks.put(ctx.tx, task, read_version=read_version):
        raise ToolRefused("STALE", f"{task.id} was changed meanwhile.")
    return task


def _due_text(ctx: ServiceContext, task: BoardTask) -> str:
    """Return a task's deadline in the form `, due 2026-02-10 18:00`; empty without one."""
    shown = serializers.deadline(task.deadline, ctx.zone)
    # The first 16 characters of an ISO time end with its minutes.
    return f", due {shown[:16].replace('T', ' ')}" if shown else ""


def _summary(ctx: ServiceContext, task: BoardTask, fields: tuple[str, ...]) -> str:
    """Return the values of a task's changed fields in a few words: `50%, high priority`.

    Of fields with a long text only the name is returned.
    """
    blocker_note = f" ({task.blocker_note})" if task.blocker_note else ""
    shown = {
        "progress": f"{task.pct}%",
        "status": task.status.value,
        "blocked": f"blocked{blocker_note}" if task.is_blocked else "not blocked",
        "deadline": (_due_text(ctx, task) or ", no deadline").removeprefix(", "),
        "priority": f"{task.priority.value} priority",
        "tags": f"tags {', '.join(task.tags) or 'none'}",
    }
    return ", ".join(shown.get(name, name.replace("_", " ")) for name in fields)
