"""Plan what the rules do to a dashboard in its present state. Pure: no clock, no store.

Durations include their bound: at exactly 72 h a task counts as quiet for three days.
"""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.dashboard.rules import alerts, cleanup, follow_up_questions
from orchestrator.dashboard.rules.slots import Hours
from orchestrator.dashboard.rules.steps import AlertHistory, Ask, RulePlan, Skip, SkippedRow, Step
from orchestrator.domain.dashboard import BoardSnapshot, BoardTask, Priority

MAX_QUESTIONS = 5
RANK = {Priority.HIGH: 0, Priority.MEDIUM: 1, Priority.LOW: 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardState:
    """The input of the rules: a dashboard, its history, the group's hours and the time."""

    snapshot: BoardSnapshot
    past: AlertHistory
    hours: Hours
    now_ms: int


def plan(board: BoardState) -> RulePlan:
    """Return the steps that the rules take on a whole dashboard; nothing is changed yet.

    The plan also has the cases on the dashboard that only a model can judge. Each task is handled alone: an
    error in one is recorded as a trouble and does not stop the others. A field that a person has set is not
    changed.
    """
    steps: list[Step] = []
    troubles: list[SkippedRow] = []
    context = alerts.AlertContext.of(board.snapshot, board.past, board.hours, now_ms=board.now_ms)
    for task in board.snapshot.tasks:
        try:
            steps += _steps_of(task, context)
        except (ValueError, LookupError, ArithmeticError, TypeError) as error:
            troubles.append(SkippedRow(row_id=task.id, reason=f"{type(error).__name__}: {error}"))
    steps = _limit_questions(steps)
    steps += cleanup.of_questions(board.snapshot, now_ms=board.now_ms)
    steps += alerts.of_questions(context)
    steps += cleanup.of_notifications(board.snapshot)
    return RulePlan(
        steps=tuple(steps),
        troubles=tuple(troubles),
        to_judge=alerts.cases_to_judge(context),
    )


def _limit_questions(steps: list[Step]) -> list[Step]:
    """Return the steps with only the `MAX_QUESTIONS` most important questions.

    Each other question is replaced by a skip with the reason; a later pass asks it.
    """
    asks = sorted((step for step in steps if isinstance(step, Ask)), key=lambda ask: RANK[ask.priority])
    # By identity: two tasks may get questions that are equal.
    later = {id(ask) for ask in asks[MAX_QUESTIONS:]}
    return [
        Skip(row_id=step.task_id, what=step.type.value, why="enough questions for one look")
        if isinstance(step, Ask) and id(step) in later
        else step
        for step in steps
    ]


def _steps_of(task: BoardTask, context: alerts.AlertContext) -> list[Step]:
    """Return the steps of the rules for one task: its status, notifications about it, and a question.

    For a task that has ended there is only its status.
    """
    status_steps = cleanup.of_task(task, now_ms=context.now_ms)
    if task.status.is_terminal:
        return status_steps
    alert_steps = alerts.of_task(task, context)
    return [*status_steps, *alert_steps, *follow_up_questions.of_task(task, context, alert_steps)]
