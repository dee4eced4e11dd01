"""Make dashboards of the first days of February 2026, in Seoul."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime
from typing import Any
from zoneinfo import ZoneInfo

from orchestrator.dashboard.rules.plan import BoardState, plan
from orchestrator.dashboard.rules.slots import Hours
from orchestrator.dashboard.rules.steps import AlertHistory, RulePlan
from orchestrator.domain.dashboard import (
    Actor,
    BoardSnapshot,
    BoardTask,
    Dashboard,
    Deadline,
    Notification,
    NotificationStatus,
    NotificationType,
    Priority,
    Question,
    QuestionType,
)
from orchestrator.domain.values import Folder

SEOUL = ZoneInfo("Asia/Seoul")
FOLDER = Folder("family")
MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000


def at(text: str, zone: ZoneInfo = SEOUL) -> int:
    """`2026-02-09 08:30` or with seconds, by Seoul's clocks, as epoch ms."""
    return round(datetime.fromisoformat(text).replace(tzinfo=zone).timestamp() * 1000)


def a_deadline(text: str) -> Deadline:
    """A day, or a moment where there is a time in it."""
    if len(text) > len("2026-02-10"):
        return Deadline(at_ms=at(text), text=text)
    return Deadline(at_ms=at(f"{text} 00:00"), date=str(date.fromisoformat(text)), text=text)


def a_task(id_: str = "task_001", *, deadline: str | None = None, **changes: Any) -> BoardTask:
    """Made on 1 February, its progress told on the 8th at noon."""
    fields = {
        "folder": FOLDER,
        "id": id_,
        "title": "blog",
        "deadline": a_deadline(deadline) if deadline else None,
        "created_ms": at("2026-02-01 09:00"),
        "updated_ms": at("2026-02-08 12:00"),
        "last_update_ms": at("2026-02-08 12:00"),
    }
    return BoardTask(**{**fields, **changes})


def a_question(id_: str = "q_001", **changes: Any) -> Question:
    fields = {
        "folder": FOLDER,
        "id": id_,
        "question": "Which hall?",
        "type": QuestionType.INFO_GATHER,
        "created_ms": at("2026-02-08 12:00"),
    }
    return Question(**{**fields, **changes})


def a_notification(id_: str = "n_001", *, due: str = "2026-02-09 09:00", **changes: Any) -> Notification:
    fields = {
        "folder": FOLDER,
        "id": id_,
        "message": "The blog is due.",
        "due_ms": at(due),
        "type": NotificationType.DEADLINE_ALERT,
        "priority": Priority.HIGH,
        "task_id": "task_001",
        "created_by": Actor.WORKER,
        "created_ms": at("2026-02-08 12:00"),
    }
    return Notification(**{**fields, **changes})


def delivered(text: str, id_: str = "n_000", **changes: Any) -> Notification:
    return a_notification(
        id_, due=text, status=NotificationStatus.DELIVERED, delivered_ms=at(text), **changes
    )


def planned(
    now: str,
    *,
    tasks: Sequence[BoardTask] = (),
    questions: Sequence[Question] = (),
    answered: Sequence[Question] = (),
    notifications: Sequence[Notification] = (),
    past: AlertHistory | None = None,
    hours: Hours | None = None,
) -> RulePlan:
    """What the rules want at a moment."""
    snapshot = BoardSnapshot(
        dashboard=Dashboard(folder=FOLDER, revision=1, created_ms=0),
        tasks=tuple(tasks),
        questions=tuple(questions),
        answered=tuple(answered),
        notifications=tuple(notifications),
    )
    hours = hours or Hours(zone=SEOUL)
    return plan(BoardState(snapshot=snapshot, past=past or AlertHistory(), hours=hours, now_ms=at(now)))
