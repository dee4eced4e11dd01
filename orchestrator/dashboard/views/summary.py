"""Render a dashboard as text for an agent. Pure: the same state at the same time is the same text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import date, datetime
from zoneinfo import ZoneInfo

from orchestrator.base.tables import counted
from orchestrator.dashboard.views import serializers
from orchestrator.dashboard.words import when
from orchestrator.domain.dashboard import (
    BoardSnapshot,
    BoardTask,
    BoardTaskStatus,
    Deadline,
    Notification,
    Priority,
    Question,
)

MAX_CHARS = 100_000
"""The largest length of a summary: the least important contexts are left out first, then the last rows."""
NONE_SCHEDULED = "No notifications are scheduled."
_ROW_START = re.compile(r"^(?:- )?\*\*", re.MULTILINE)
"""Matches the start of each row, before its id; texts of people are never at the start of a line."""
_IMPORTANCE = {Priority.LOW: 0, Priority.MEDIUM: 1, Priority.HIGH: 2}


def render(snapshot: BoardSnapshot, *, now_ms: int, zone: ZoneInfo, limit: int = MAX_CHARS) -> str:
    """Return a dashboard as text in three sections: active tasks, open questions, notifications to come.

    A text of more than `limit` characters is shortened: contexts are left out first, then the last rows, and
    a line says what was left out. A line also says how many rows the snapshot lacks, `unread`, if any.
    """
    tasks = [task for task in snapshot.tasks if task.status is BoardTaskStatus.ACTIVE]
    today = datetime.fromtimestamp(now_ms / 1000, zone).date()
    whole = _sections(tasks, snapshot, today, zone, without=frozenset())
    unread_note = f"\n\n{_left_out_line(snapshot.unread)}" if snapshot.unread else ""
    excess = len(whole) + len(unread_note) - limit
    if excess <= 0:
        return whole + unread_note
    without = _ids_without_context(tasks, snapshot.questions, excess)
    note = f"\n\n(Left out, for length: the context of {len(without)} tasks and questions.)"
    shorter = _sections(tasks, snapshot, today, zone, without=without) + note
    if len(shorter) + len(unread_note) <= limit:
        return shorter + unread_note
    return _shortened(shorter, limit, unread=snapshot.unread)


def one_line(text: str) -> str:
    """Return a text on one line, so that a line break in it cannot imitate a row of the summary."""
    return " ".join(text.split())


def _sections(
    tasks: Sequence[BoardTask],
    snapshot: BoardSnapshot,
    today: date,
    zone: ZoneInfo,
    *,
    without: frozenset[str],
) -> str:
    """Return the sections on tasks, questions and notifications of a dashboard.

    `today` is the day in `zone`. For tasks and questions with ids in `without`, the field `context` is left
    out, which shortens the text.
    """
    sections = []
    if tasks:
        blocks = (_task(row, today, zone, has_context=row.id not in without) for row in tasks)
        sections.append("\n\n".join(["## Active Tasks", *blocks]))
    if snapshot.questions:
        questions = (_question(row, zone, has_context=row.id not in without) for row in snapshot.questions)
        sections.append("\n\n".join(["## Unanswered Questions", *questions]))
    rows = [_notification(row, zone) for row in snapshot.notifications] or [NONE_SCHEDULED]
    sections.append("\n".join(["## Scheduled Notifications", "", *rows]))
    return "\n\n".join(sections)


def _task(task: BoardTask, today: date, zone: ZoneInfo, *, has_context: bool) -> str:
    """Return a task as a block of lines of a summary; its context only if `has_context`.

    `today` is the day in `zone`, from which days are counted.
    """
    lines = [
        f"**{task.id}**: {one_line(task.title)}",
        f"- Progress: {task.pct}%",
        f"- Deadline: {_deadline(task.deadline, today, zone)}",
        f"- Priority: {task.priority.value}",
        f"- Last Update: {_days_ago(task.last_update_ms, today, zone)}",
    ]
    if task.is_blocked:
        lines.append(f"- ⚠️ Blocked: {one_line(task.blocker_note or 'no reason given')}")
    if task.context and has_context:
        lines.append(f"- Context: {one_line(task.context)}")
    if task.tags:
        lines.append(f"- Tags: {', '.join(task.tags)}")
    if days := serializers.recurring(task):
        lines.append(f"- Done Again: {days}")
    return "\n".join(lines)


def _question(question: Question, zone: ZoneInfo, *, has_context: bool) -> str:
    """Return a question as a block of lines of a summary; its context only if `has_context`."""
    lines = [
        f"**{question.id}**: {one_line(question.question)}",
        f"- Priority: {question.priority.value}",
        f"- Type: {question.type.value}",
    ]
    if question.task_id is not None:
        lines.append(f"- Related Task: {question.task_id}")
    lines.append(f"- Created: {_day(question.created_ms, zone).isoformat()}")
    if question.asked_count and question.last_asked_ms is not None:
        lines.append(
            f"- Asked: {counted(question.asked_count, 'time')},"
            f" last {when.format_time(question.last_asked_ms, zone)}"
        )
    if question.context and has_context:
        lines.append(f"- Context: {one_line(question.context)}")
    return "\n".join(lines)


def _notification(row: Notification, zone: ZoneInfo) -> str:
    """Return a notification as lines of a summary's list, with its time in `zone`."""
    due = when.format_time(row.due_ms, zone)
    lines = [
        f"- **{row.id}** ({row.type.value}, {row.priority.value}): {one_line(row.message)} [Scheduled: {due}]"
    ]
    if row.task_id is not None:
        lines.append(f"  Related Task: {row.task_id}")
    if row.question_id is not None:
        lines.append(f"  Related Question: {row.question_id}")
    return "\n".join(lines)


def _deadline(deadline: Deadline | None, today: date, zone: ZoneInfo) -> str:
    """Return a deadline as text, such as `2026-02-10 18:00 (in 3 days)`; the word `None` without one."""
    if deadline is None:
        return "None"
    days = (_day(deadline.at_ms, zone) - today).days
    shown = deadline.date or when.format_time(deadline.at_ms, zone)
    return f"{shown} ({_days_ahead(days)})"


def _days_ahead(days: int) -> str:
    """Return in words how far a deadline is ahead, in days: `tomorrow`, `in 3 days`, `overdue by 1 day`."""
    if days < 0:
        return f"overdue by {_days(-days)}"
    return {0: "today", 1: "tomorrow"}.get(days, f"in {days} days")


def _days_ago(at_ms: int, today: date, zone: ZoneInfo) -> str:
    """Return the day of a past time (epoch ms) as text: `2026-02-10 (3 days ago)`; only the day if today."""
    day = _day(at_ms, zone)
    days = (today - day).days
    return f"{day.isoformat()} ({_days(days)} ago)" if days >= 1 else day.isoformat()


def _days(days: int) -> str:
    """Return a number of days as text: `1 day`, `3 days`."""
    return f"{days} day{'s' if days > 1 else ''}"


def _day(at_ms: int, zone: ZoneInfo) -> date:
    """Return the day of a time (epoch ms) in a time zone."""
    return datetime.fromtimestamp(at_ms / 1000, zone).date()


def _ids_without_context(
    tasks: Iterable[BoardTask], questions: Iterable[Question], chars: int
) -> frozenset[str]:
    """Return the ids of the least important rows whose contexts, left out of a summary, save `chars`.

    They may save less if all contexts together have fewer characters.
    """
    all_rows: list[BoardTask | Question] = [*tasks, *questions]
    rows = [row for row in all_rows if row.context]
    # Among rows of one priority, the last in the summary go first: sorting leaves equal rows in their order.
    rows.reverse()
    rows.sort(key=lambda row: _IMPORTANCE[row.priority])
    chosen_ids: set[str] = set()
    for row in rows:
        if chars <= 0:
            break
        chosen_ids.add(row.id)
        chars -= len(row.context)
    return frozenset(chosen_ids)


def _shortened(text: str, limit: int, *, unread: int) -> str:
    """Return the whole blocks of a summary that fit `limit`, and a line about how many rows are left out.

    `unread` is the number of rows that are not in the summary at all; they are counted, too.
    """
    # 200 characters are room for the line about what is left out. The text is cut at the end of a block:
    # blocks are separated by a blank line.
    shortened = text[: limit - 200].rsplit("\n\n", 1)[0]
    left_out = len(_ROW_START.findall(text, len(shortened))) + unread
    return f"{shortened}\n\n{_left_out_line(left_out)}"


def _left_out_line(rows: int) -> str:
    """Return the line that says how many rows the summary leaves out."""
    return f"(Left out, for length: {rows} more rows, the least urgent ones.)"
