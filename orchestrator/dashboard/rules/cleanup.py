"""Decide what to tidy up: finished tasks, old questions, notifications without a task or question. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from orchestrator.dashboard.rules import dedupe
from orchestrator.dashboard.rules.steps import (
    DAY_MS,
    ArchiveTask,
    ChangeStatus,
    CloseQuestion,
    Step,
    WithdrawNotification,
)
from orchestrator.domain.dashboard import (
    Actor,
    BoardSnapshot,
    BoardTask,
    BoardTaskStatus,
    Notification,
    Priority,
    Question,
)

ACTIVE_MS = 7 * DAY_MS
OLD_QUESTION_MS, OLD_LOW_QUESTION_MS = 14 * DAY_MS, 7 * DAY_MS
LONG_LIST_LENGTH = 10
_RANK = {Priority.HIGH: 0, Priority.MEDIUM: 1, Priority.LOW: 2}


def of_task(task: BoardTask, *, now_ms: int) -> list[Step]:
    """Return the step that moves a completed task to the history, or corrects an open task's status.

    An open task is to be active or, if nothing is to be done soon, someday. No step is returned if none is
    needed, or if a person has set the status.
    """
    if task.status is BoardTaskStatus.COMPLETED:
        return [ArchiveTask(task_id=task.id)]
    # Rules that change a status set by a person would undo that choice at the next pass.
    if task.status is BoardTaskStatus.CANCELLED or "status" in task.user_set:
        return []
    status = BoardTaskStatus.ACTIVE if _is_current(task, now_ms) else BoardTaskStatus.SOMEDAY
    return [] if status is task.status else [ChangeStatus(task_id=task.id, status=status)]


def _is_current(task: BoardTask, now_ms: int) -> bool:
    """Return whether a task is to be active: near its deadline, important, started, or updated lately."""
    return (
        (task.deadline is not None and task.deadline.at_ms - now_ms <= ACTIVE_MS)
        or task.priority is Priority.HIGH
        or task.pct > 0
        or now_ms - task.last_update_ms <= ACTIVE_MS
    )


def of_questions(snapshot: BoardSnapshot, *, now_ms: int) -> list[Step]:
    """Return the steps that close questions which need no answer any more.

    Those are old questions, questions of ended tasks and, where a task has several questions of the worker,
    all but the most important one. If there are many questions, unimportant ones count as old sooner.
    """
    reasons: dict[str, str] = {}  # why each question is closed, by its id
    tasks = {task.id: task for task in snapshot.tasks}
    for question in snapshot.questions:
        reason = _why_needless(question, tasks, now_ms, is_long=len(snapshot.questions) > LONG_LIST_LENGTH)
        if reason is not None:
            reasons[question.id] = reason
    remaining = [question for question in snapshot.questions if question.id not in reasons]
    reasons |= {question.id: dedupe.ANOTHER_IS_OPEN for question in _surplus_questions(remaining)}
    return [CloseQuestion(question_id=question_id, reason=reason) for question_id, reason in reasons.items()]


def _why_needless(
    question: Question, tasks: dict[str, BoardTask], now_ms: int, *, is_long: bool
) -> str | None:
    """Return the reason to close a question that needs no answer any more; None if it is to stay.

    `tasks` are those of the dashboard by id. `is_long` says that the dashboard has more than
    `LONG_LIST_LENGTH` questions: less important ones are closed sooner then.
    """
    age_ms = now_ms - question.created_ms
    if question.task_id is not None:
        task = tasks.get(question.task_id)
        if task is None or task.status.is_terminal:
            return dedupe.TASK_OVER
    if age_ms >= OLD_QUESTION_MS:
        return dedupe.NOBODY_ANSWERED
    if is_long and question.priority is Priority.LOW and age_ms >= OLD_LOW_QUESTION_MS:
        return dedupe.LONG_LIST
    return None


def _surplus_questions(questions: Iterable[Question]) -> list[Question]:
    """Return the questions to close so that each task has at most one question that the worker made.

    The worker makes questions by its rules or its model; those of people and agents are left alone. The most
    important one stays; of equally important ones, the least asked, then the newest.
    """
    of_task: dict[str, list[Question]] = defaultdict(list)
    for question in questions:
        if question.task_id is not None and question.created_by is Actor.WORKER:
            of_task[question.task_id].append(question)
    surplus: list[Question] = []
    for task_questions in of_task.values():
        task_questions.sort(key=lambda row: (_RANK[row.priority], row.asked_count, -row.created_ms))
        surplus += task_questions[1:]
    return surplus


def of_notifications(snapshot: BoardSnapshot) -> list[Step]:
    """Return the steps that cancel the notifications whose task or question has ended."""
    tasks = {task.id: task for task in snapshot.tasks}
    questions = {question.id for question in snapshot.questions}
    rows = ((row, _why_pointless(row, tasks, questions)) for row in snapshot.notifications)
    return [WithdrawNotification(notification_id=row.id, reason=reason) for row, reason in rows if reason]


def _why_pointless(row: Notification, tasks: dict[str, BoardTask], questions: set[str]) -> str | None:
    """Return the reason to cancel a notification whose task or question has ended or is gone; else None.

    `tasks` are those of the dashboard by id, `questions` the ids of its open questions.
    """
    if row.task_id is not None:
        task = tasks.get(row.task_id)
        if task is None:
            return "Task gone"
        if task.status.is_terminal:
            return f"Task {task.status.value}"
    if row.question_id is not None and row.question_id not in questions:
        return "Question closed"
    return None
