"""Read a whole dashboard at one moment, and show it."""

from __future__ import annotations

from typing import TypedDict
from zoneinfo import ZoneInfo

from orchestrator.base.tables import counted
from orchestrator.dashboard.views import serializers, summary
from orchestrator.dashboard.views.serializers import NotificationData, QuestionData, TaskData
from orchestrator.domain.dashboard import (
    BoardSnapshot,
    BoardTask,
    BoardTaskStatus,
    Notification,
    Question,
    ToolResult,
)
from orchestrator.domain.values import Folder, Turn
from orchestrator.store.board import dashboards
from orchestrator.store.board import notifications as board_notifications
from orchestrator.store.board import questions as board_questions
from orchestrator.store.board import tasks as board_tasks
from orchestrator.store.database import Tx

MAX_ANSWERED = 20
"""The largest number of answers in one worker's turn; the others wait for a later turn."""
MAX_READ = 1_200
"""The largest number of rows of each kind that are read: a summary has no room for more."""


async def snapshot(tx: Tx, folder: Folder) -> BoardSnapshot | None:
    """Return the whole dashboard of a group as of now; None for a group without one.

    Of the answers that the worker has not read, it has at most `MAX_ANSWERED`.
    """
    dashboard = await dashboards.get(tx, folder)
    if dashboard is None:
        return None
    return BoardSnapshot(
        dashboard=dashboard,
        tasks=tuple(await board_tasks.on_board(tx, folder)),
        questions=tuple(await board_questions.unanswered(tx, folder)),
        answered=tuple(await board_questions.unprocessed(tx, folder, limit=MAX_ANSWERED)),
        notifications=tuple(await board_notifications.to_come(tx, folder)),
    )


async def row(tx: Tx, folder: Folder, row_id: str) -> BoardTask | Question | Notification | None:
    """Return the task, question or notification with this id, also if it has ended; None if there is none."""
    return (
        await board_tasks.get(tx, folder, row_id)
        or await board_questions.get(tx, folder, row_id)
        or await board_notifications.get(tx, folder, row_id)
    )


async def active(tx: Tx, folder: Folder) -> BoardSnapshot | None:
    """Return the active tasks, open questions and pending notifications of a dashboard.

    At most `MAX_READ` tasks and notifications are read; `unread` of the result counts the others. None for a
    group without a dashboard.
    """
    dashboard = await dashboards.get(tx, folder)
    if dashboard is None:
        return None
    tasks = await board_tasks.on_board(tx, folder, BoardTaskStatus.ACTIVE, limit=MAX_READ)
    coming = await board_notifications.to_come(tx, folder, limit=MAX_READ)
    unread = 0
    # Counted only where rows may be left: nearly every dashboard is read whole.
    if len(tasks) == MAX_READ:
        unread += await board_tasks.count(tx, folder, BoardTaskStatus.ACTIVE) - MAX_READ
    if len(coming) == MAX_READ:
        unread += await board_notifications.count_open(tx, folder) - MAX_READ
    return BoardSnapshot(
        dashboard=dashboard,
        tasks=tuple(tasks),
        questions=tuple(await board_questions.unanswered(tx, folder)),
        answered=(),
        notifications=tuple(coming),
        unread=unread,
    )


class BoardData(TypedDict):
    """Contents of a dashboard: active tasks, open questions and notifications to come."""

    has_dashboard: bool
    tasks: list[TaskData]
    questions: list[QuestionData]
    notifications: list[NotificationData]


async def content(tx: Tx, folder: Folder, zone: ZoneInfo) -> BoardData:
    """Return a dashboard's active tasks, open questions and notifications to come as data, times in `zone`.

    The lists are empty for a group without a dashboard.
    """
    board = await snapshot(tx, folder)
    if board is None:
        return {"has_dashboard": False, "tasks": [], "questions": [], "notifications": []}
    return {
        "has_dashboard": True,
        "tasks": [serializers.task(row, zone) for row in board.tasks if row.status is BoardTaskStatus.ACTIVE],
        "questions": [serializers.question(row, zone) for row in board.questions],
        "notifications": [serializers.notification(row, zone) for row in board.notifications],
    }


async def show(tx: Tx, folder: Folder, zone: ZoneInfo) -> ToolResult:
    """Return a dashboard's active tasks, open questions and notifications to come as a tool's result.

    Times are those of `zone`.
    """
    data = await content(tx, folder, zone)
    counts = (
        f"{counted(len(data['tasks']), 'task')}, {counted(len(data['questions']), 'question')}, "
        f"{counted(len(data['notifications']), 'notification')}"
    )
    text = f"On the dashboard: {counts}." if data["has_dashboard"] else "There is no dashboard yet."
    return ToolResult(text=text, data=data)


async def brief(tx: Tx, turn: Turn, *, zone: ZoneInfo, now_ms: int) -> str | None:
    """Return the dashboard of a turn's group as text for the turn's prompt; None without a dashboard.

    This state is recorded as the one that the turn was shown.
    """
    board = await active(tx, turn.folder)
    if board is None:
        return None
    await dashboards.note_view(tx, turn.id, turn.folder, board.dashboard.revision)
    return summary.render(board, now_ms=now_ms, zone=zone)
