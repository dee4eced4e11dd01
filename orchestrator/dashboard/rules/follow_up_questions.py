"""Decide which question to ask about a task: the first row of the table that fits. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.dashboard.rules import alerts, dedupe, slots
from orchestrator.dashboard.rules.slots import Hours
from orchestrator.dashboard.rules.steps import DAY_MS, HOUR_MS, Ask, Notify, Skip, Step
from orchestrator.dashboard.words import rule_texts
from orchestrator.domain.dashboard import (
    BoardTask,
    BoardTaskStatus,
    Deadline,
    NotificationType,
    Priority,
    QuestionType,
)

STALE_MS, VERY_STALE_MS = 48 * HOUR_MS, 96 * HOUR_MS
"""Milliseconds without an update after which a question about a task's status, and a routine one, is due."""
BEHIND, FAR_BEHIND, MUCH_BEHIND = 10.0, 20.0, 30.0
"""Percentages by which the progress of a task lags behind the time that has passed."""
START_SHARE = 0.2
"""The share of the time until its deadline after which a task should have been begun."""
NEAR_MS, NEXT_MS, WEEK_MS = 3 * DAY_MS, DAY_MS, 7 * DAY_MS
"""Milliseconds before a deadline: it is near, it is the next day, it is in the same week."""
NEARLY_DONE, MOSTLY_DONE = 80, 90
"""Percentages of progress."""
NOTIFICATION_TYPE_OF = {
    kind: notification for notification, kinds in alerts.SAME_PURPOSE.items() for kind in kinds
}
"""A type of question → the type of notification with the same purpose."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionProposal:
    """A question to ask; its text is rendered later."""

    type: QuestionType
    priority: Priority
    phrase: str
    """The name of the question's text in `rule_texts.RuleTexts`."""


OVERDUE = QuestionProposal(type=QuestionType.DEADLINE_CHECK, priority=Priority.HIGH, phrase="overdue")
ROUTINE = QuestionProposal(type=QuestionType.ROUTINE_CHECK, priority=Priority.LOW, phrase="routine")
STATUS = QuestionProposal(type=QuestionType.STATUS_CHECK, priority=Priority.LOW, phrase="status")
HELD_UP = QuestionProposal(type=QuestionType.BLOCKER_CHECK, priority=Priority.HIGH, phrase="behind")
A_LITTLE_BEHIND = QuestionProposal(
    type=QuestionType.PROGRESS_CHECK, priority=Priority.MEDIUM, phrase="slightly_behind"
)
NEAR = QuestionProposal(type=QuestionType.DEADLINE_CHECK, priority=Priority.HIGH, phrase="near")
DONE_SOON = QuestionProposal(
    type=QuestionType.COMPLETION_CHECK, priority=Priority.MEDIUM, phrase="nearly_done"
)


def of_task(task: BoardTask, context: alerts.AlertContext, alert_steps: Sequence[Step]) -> list[Step]:
    """Return the step that asks the question which an active task needs, or a skip with the reason.

    It is skipped if it was answered for this deadline, asked or notified a short time ago, or is covered by
    `alert_steps`: the notifications that the rules send about the task now. The list is empty if the task
    needs no question.
    """
    if task.status is not BoardTaskStatus.ACTIVE:
        return []
    proposal = choose(task, context.hours, now_ms=context.now_ms)
    if proposal is None:
        return []
    why_not = _reason_if_answered(task, proposal, context) or _why_not_now(
        task, proposal, context, alert_steps
    )
    if why_not is not None:
        return [Skip(row_id=task.id, what=proposal.type.value, why=why_not)]
    text = _question_text(task, proposal.phrase, context.hours)
    return [Ask(task_id=task.id, type=proposal.type, priority=proposal.priority, question=text)]


def _question_text(task: BoardTask, phrase: str, hours: Hours) -> str:
    """Return the text of a question about a task, in the language of the task's title.

    `phrase` is the name of its template in `rule_texts.RuleTexts`.
    """
    template: str = getattr(rule_texts.texts_for(task.title), phrase)
    values = {"title": rule_texts.shorten(task.title), "pct": task.pct}
    if task.deadline is not None and "{when}" in template:
        values["when"] = alerts.deadline_text(task.deadline, hours, rule_texts.language_of(task.title))
    return template.format_map(values)


def choose(task: BoardTask, hours: Hours, *, now_ms: int) -> QuestionProposal | None:
    """Return the question that a task needs; None if it needs none.

    The first that fits counts: the task is overdue, was not updated for long, was not updated for some days,
    or has too little progress for the time left until its deadline. A blocked task that is not overdue needs
    none.
    """
    silent_ms = now_ms - task.last_update_ms
    if task.deadline is not None and now_ms >= slots.end_ms(task.deadline, hours):
        return OVERDUE
    if task.is_blocked:
        return None  # a notification of the rules asks about the block
    # The longer silence first: every very stale task is also a stale one.
    if silent_ms >= VERY_STALE_MS:
        return ROUTINE
    if silent_ms >= STALE_MS:
        return STATUS
    # Progress is compared with the share of the time until the deadline that has passed. There is no such
    # share without a deadline, or if the deadline is not after the task's creation.
    if task.deadline is None or task.deadline.at_ms <= task.created_ms:
        return None
    return _by_deadline(task, task.deadline, now_ms)


def _by_deadline(task: BoardTask, deadline: Deadline, now_ms: int) -> QuestionProposal | None:
    """Return the question that a task needs before its deadline, by progress and time left; None for none.

    The deadline has to be after the task's creation.
    """
    left_ms = deadline.at_ms - now_ms
    # The share of the time from the task's creation to its deadline that has passed.
    passed_share = (now_ms - task.created_ms) / (deadline.at_ms - task.created_ms)
    # The percentage of the time that has passed, less the percentage that is done. `at_ms` of a whole-day
    # deadline is the start of that day: during the day, the share is more than 1.
    gap_percent = min(passed_share, 1.0) * 100 - task.pct
    is_near = left_ms <= NEAR_MS
    if task.pct == 0 and passed_share > START_SHARE:
        return QuestionProposal(
            type=QuestionType.START_CHECK, priority=_start_priority(left_ms, gap_percent), phrase="start"
        )
    if gap_percent > FAR_BEHIND:
        return HELD_UP if is_near else A_LITTLE_BEHIND
    if gap_percent > BEHIND:
        return A_LITTLE_BEHIND if is_near else None
    if is_near and task.pct < MOSTLY_DONE:
        return NEAR
    if left_ms <= NEXT_MS and NEARLY_DONE <= task.pct < 100:
        return DONE_SOON
    return None


def _start_priority(left_ms: int, gap_percent: float) -> Priority:
    """Return how important it is to ask whether a task was begun.

    `left_ms` is the time up to the deadline; `gap_percent` is the percentage of the time that has passed,
    less the percentage that is done.
    """
    if left_ms <= NEXT_MS or (left_ms <= NEAR_MS and gap_percent > FAR_BEHIND):
        return Priority.HIGH
    return Priority.MEDIUM if left_ms <= WEEK_MS and gap_percent > MUCH_BEHIND else Priority.LOW


def _reason_if_answered(
    task: BoardTask, proposal: QuestionProposal, context: alerts.AlertContext
) -> str | None:
    """Return why a question about the deadline is not asked again: it was answered for this deadline.

    A question that a person or an agent has closed counts as answered. None for any other question, and if
    there was no answer since the question could first be asked about this deadline.
    """
    if task.deadline is None or proposal.type not in (
        QuestionType.DEADLINE_CHECK,
        QuestionType.COMPLETION_CHECK,
    ):
        return None
    # The question could first be asked when the deadline had passed, or a set time before it.
    is_over = proposal is OVERDUE
    since_ms = slots.end_ms(task.deadline, context.hours) if is_over else task.deadline.at_ms - NEAR_MS
    settled_ms = context.past.settled.get((task.id, proposal.type))
    return "answered for this deadline" if settled_ms is not None and settled_ms >= since_ms else None


def _why_not_now(
    task: BoardTask, proposal: QuestionProposal, context: alerts.AlertContext, alert_steps: Sequence[Step]
) -> str | None:
    """Return why a question about a task is not asked now; None if it may be.

    Reasons are a question with the same purpose that is open or was asked lately, and a notification that
    says the same. `alert_steps` are the notifications that the rules send about the task now.
    """
    notification_type = NOTIFICATION_TYPE_OF.get(proposal.type)
    # All types of questions with the same purpose.
    kinds = alerts.SAME_PURPOSE[notification_type] if notification_type else (proposal.type,)
    for question in context.open_questions.get(task.id, ()):
        if question.type in kinds:
            return f"{question.id} is open"
    for kind in kinds:
        last_ms = context.last_asked_ms(task.id, kind)
        if last_ms is not None and dedupe.is_lately(last_ms, dedupe.question_ms(kind), now_ms=context.now_ms):
            return "asked lately"
    if proposal is OVERDUE:
        return None  # the question stays on the list for whoever does not answer the overdue alert
    return _reason_if_notified(task, notification_type, context, alert_steps) if notification_type else None


def _reason_if_notified(
    task: BoardTask, kind: NotificationType, context: alerts.AlertContext, alert_steps: Sequence[Step]
) -> str | None:
    """Return why a notification of the type `kind` makes a question about a task needless, or None.

    The notification may be among `alert_steps`, which the rules send now; or it is pending, or was delivered
    lately.
    """
    if any(isinstance(step, Notify) and step.request.type is kind for step in alert_steps):
        return "a notification says it"
    if any(row.type is kind for row in context.pending.get(task.id, ())):
        return "a waiting notification says it"
    return "a recent notification said it" if context.notified_lately(task.id, kind) else None
