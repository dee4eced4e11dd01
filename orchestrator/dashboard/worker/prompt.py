"""Write the prompt of a worker's turn: its instructions, and the present state of the dashboard."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from zoneinfo import ZoneInfo

from orchestrator.dashboard.rules import alerts, dedupe, follow_up_questions
from orchestrator.dashboard.rules.slots import Hours
from orchestrator.dashboard.rules.steps import DAY_MS, HOUR_MS
from orchestrator.dashboard.views import board, summary
from orchestrator.dashboard.words import when
from orchestrator.domain.dashboard import BoardSnapshot, BoardTaskStatus, Notification, Priority, Question
from orchestrator.domain.values import Folder
from orchestrator.store.board import dashboards
from orchestrator.store.board import notifications as board_notifications
from orchestrator.store.database import Tx

TEMPLATE = "WORKER.md"
DELIVERIES_MS = 48 * HOUR_MS
"""Milliseconds of delivered notifications that the prompt lists."""
AFTER_TOOL_CHARS = 16_000
"""The largest dashboard, in characters, that is sent whole after each tool call: a turn may make dozens."""
MAX_CHARS = 32_000
"""The largest length of a group's own instructions: they are one command line argument, at most 128 KiB."""
DUTIES = """\
# Your Task

1. Notify of deadlines, stalls and blocks that nobody is told of yet.
2. Manage the questions.
3. Move what is completed to the history.
4. Look at what is scheduled before you schedule.
5. Clean up what is obsolete.

Use the tools. Be proactive, and do not spam. Then answer SILENT."""


def instructions(own_text: str | None, hours: Hours, *, cap: int) -> str:
    """Return the instructions for a turn in which a model updates a dashboard.

    They are the group's own text or, if that is None or blank, the built-in one. The built-in text names the
    rules' durations, the group's `hours` for notifications, and `cap`, the largest number of pending
    notifications about one task.
    """
    if own_text is not None and own_text.strip():
        return own_text.strip()[:MAX_CHARS]
    template = resources.files("orchestrator.groups") / "templates" / TEMPLATE
    return template.read_text(encoding="utf-8").format_map(_figures(hours, cap))


async def first_prompt(tx: Tx, turn_id: int, folder: Folder, *, zone: ZoneInfo, now_ms: int) -> str:
    """Return the prompt of a turn in which a model updates a group's dashboard.

    The state of the dashboard that it shows is recorded as seen by the turn. If the dashboard is gone by now,
    the prompt is only the duties.
    """
    snapshot = await board.snapshot(tx, folder)
    if snapshot is None:
        return DUTIES
    delivered = await board_notifications.delivered_since(tx, folder, now_ms - DELIVERIES_MS)
    await dashboards.note_view(tx, turn_id, folder, snapshot.dashboard.revision)
    for question in snapshot.answered:
        await dashboards.note_seen(tx, turn_id, question.id, question.version)
    return render(snapshot, delivered, zone=zone, now_ms=now_ms)


async def after_tool(tx: Tx, turn_id: int, folder: Folder, *, zone: ZoneInfo, now_ms: int) -> str:
    """Return the dashboard as text after a tool call, for the model that called the tool in a worker's turn.

    This state is recorded as seen by the turn, unless it is too long to be shown whole. Empty if the group
    has no dashboard.
    """
    snapshot = await board.snapshot(tx, folder)
    if snapshot is None:
        return ""
    whole = _state_sections(snapshot, zone=zone, now_ms=now_ms)
    if len(whole) <= AFTER_TOOL_CHARS:
        await dashboards.advance_view(tx, turn_id, snapshot.dashboard.revision)
        return whole
    # The turn may not change a row without having seen it as it is now, so a shortened text does not count.
    return summary.render(snapshot, now_ms=now_ms, zone=zone, limit=AFTER_TOOL_CHARS)


def render(snapshot: BoardSnapshot, delivered: Sequence[Notification], *, zone: ZoneInfo, now_ms: int) -> str:
    """Return the prompt with the dashboard, the notifications `delivered` lately, and `DUTIES`. Pure."""
    parts = [_state_sections(snapshot, zone=zone, now_ms=now_ms), _delivered_section(delivered, zone), DUTIES]
    return "\n\n".join(part for part in parts if part)


def _state_sections(snapshot: BoardSnapshot, *, zone: ZoneInfo, now_ms: int) -> str:
    """Return the present time and the dashboard as text, with its inactive tasks and unread answers."""
    parts = [
        f"# Current Dashboard State\n\nIt is {when.format_time(now_ms, zone)} ({zone.key}).",
        summary.render(snapshot, now_ms=now_ms, zone=zone),
        _inactive_tasks_section(snapshot),
        _answered_section(snapshot.answered, zone),
    ]
    return "\n\n".join(part for part in parts if part)


def _inactive_tasks_section(snapshot: BoardSnapshot) -> str:
    """Return the section of the prompt that lists the tasks which are not active; empty if all are."""
    lines = [
        f"- **{task.id}** ({task.status.value}): {summary.one_line(task.title)}"
        for task in snapshot.tasks
        if task.status is not BoardTaskStatus.ACTIVE
    ]
    return _section("Other Tasks", lines)


def _answered_section(questions: Sequence[Question], zone: ZoneInfo) -> str:
    """Return the section of the prompt that lists questions with their answers; empty if there are none."""
    lines = [
        f"- **{row.id}** ({row.type.value}, task {row.task_id or 'none'}): {summary.one_line(row.question)}\n"
        f"  Answer ({when.format_time(row.answered_ms or 0, zone)}): {summary.one_line(row.answer or '')}"
        for row in questions
    ]
    return _section("Answered Questions", lines)


def _delivered_section(sent: Sequence[Notification], zone: ZoneInfo) -> str:
    """Return the section of the prompt that lists notifications `sent` lately; empty if there are none."""
    lines = []
    for row in sent:
        about = f"{row.type.value}, task {row.task_id or 'none'}"
        delivered_at = when.format_time(row.delivered_ms or 0, zone)
        lines.append(f"- {delivered_at} ({about}): {summary.one_line(row.message)}")
    return _section("Delivered in the Last 48 Hours", lines)


def _section(heading: str, lines: Sequence[str]) -> str:
    """Return a section of the prompt with a heading; empty where it has no lines."""
    return "\n".join([f"## {heading}", "", *lines]) if lines else ""


def _figures(hours: Hours, cap: int) -> dict[str, object]:
    """Return the numbers in the built-in instructions, by their names in the template.

    They are taken from the rules, so that the text cannot contradict them. `cap` is the largest number of
    pending notifications about one task.
    """

    def listed(hours_by_type: dict[str, int]) -> str:
        """Return hours as a text, such as `progress_check 24 h, deadline_check 12 h`; 0 is left out."""
        return ", ".join(f"{name} {count} h" for name, count in hours_by_type.items() if count)

    return {
        "deadline_hours": alerts.DAY_BEFORE_MS // HOUR_MS,
        "near_days": follow_up_questions.NEAR_MS // DAY_MS,
        "deadline_last_hours": alerts.HOURS_BEFORE_MS // HOUR_MS,
        "quiet_hours": alerts.SILENT_MS // HOUR_MS,
        "stagnant_hours": alerts.STAGNANT_MS // HOUR_MS,
        "blocked_hours": alerts.BLOCKED_MS // HOUR_MS,
        "unanswered_high_hours": alerts.UNANSWERED_MS[Priority.HIGH] // HOUR_MS,
        "unanswered_medium_hours": alerts.UNANSWERED_MS[Priority.MEDIUM] // HOUR_MS,
        "slots": ", ".join(f"{slot:%H:%M}" for slot in hours.slots),
        "quiet": f"{hours.quiet_start:02}:00 to {hours.quiet_end:02}:00",
        "question_cooldowns": listed({kind.value: count for kind, count in dedupe.QUESTION_HOURS.items()}),
        "notification_cooldowns": listed(
            {kind.value: count for kind, count in dedupe.NOTIFICATION_HOURS.items()}
        ),
        "cap": cap,
    }
