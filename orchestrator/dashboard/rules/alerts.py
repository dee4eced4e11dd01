"""Decide which notifications the rules send: deadlines, silence, blocks, unanswered questions. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta

from agent_runner.wire import times
from orchestrator.dashboard.rules import dedupe, slots
from orchestrator.dashboard.rules.slots import Hours
from orchestrator.dashboard.rules.steps import (
    DAY_MS,
    HOUR_MS,
    AlertHistory,
    CloseQuestion,
    Notify,
    Skip,
    Step,
)
from orchestrator.dashboard.words import rule_texts
from orchestrator.domain.dashboard import (
    BoardSnapshot,
    BoardTask,
    BoardTaskStatus,
    Deadline,
    Notification,
    NotificationRequest,
    NotificationType,
    Priority,
    Question,
    QuestionType,
)

DAY_BEFORE_MS, HOURS_BEFORE_MS = 24 * HOUR_MS, 2 * HOUR_MS
"""Milliseconds before a deadline at which the first and the second alert are due."""
SILENT_MS, STAGNANT_MS, BLOCKED_MS = 72 * HOUR_MS, 120 * HOUR_MS, 48 * HOUR_MS
"""Milliseconds without an update, or of being blocked, after which the rules ask about a task."""
FOLLOW_UP_MS = 2 * HOUR_MS
"""Milliseconds from the pass that finds a long block to its notification."""
UNANSWERED_MS = {Priority.HIGH: 48 * HOUR_MS, Priority.MEDIUM: 72 * HOUR_MS}
SAME_PURPOSE = {
    NotificationType.DEADLINE_ALERT: (QuestionType.DEADLINE_CHECK,),
    NotificationType.PROGRESS_CHECK: (QuestionType.STATUS_CHECK, QuestionType.ROUTINE_CHECK),
    NotificationType.BLOCKER_FOLLOWUP: (QuestionType.BLOCKER_CHECK,),
}
"""Types of questions with the same purpose as a type of notification: only one of both is used at a time."""
MORNING = time(9)
DAY_BEFORE, HOURS_BEFORE = "deadline:24h", "deadline:2h"
TODAY, OVERDUE = "deadline:today", "deadline:over"
"""Causes of alerts: a day before a deadline, two hours before a moment, on the day itself, and after it."""
REMINDER_CAUSE_PREFIX = "deadline:asked:"
"""Prefix of the causes of reminders about a deadline that people requested."""
ABOUT_DEADLINES = (DAY_BEFORE, HOURS_BEFORE, TODAY, OVERDUE)
SILENT, STAGNANT, BLOCKED = "progress:72h", "progress:120h", "blocked:48h"
# Zones range from 12 hours behind UTC to 14 hours ahead of it.
ZONES_APART_MS = 26 * HOUR_MS
"""Milliseconds by which the start of a day may move when a group changes its time zone."""
OVERDUE_ALERT_MS = 7 * DAY_MS
"""Milliseconds after which an overdue task gets no alert: an older store may hold years of overdue tasks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertContext:
    """A dashboard, indexed so that each row finds the notifications and questions about it."""

    snapshot: BoardSnapshot
    past: AlertHistory
    hours: Hours
    now_ms: int
    pending: Mapping[str, tuple[Notification, ...]]
    """A task's or question's id → the pending notifications about it."""
    open_questions: Mapping[str, tuple[Question, ...]]
    """A task's id → its open questions."""

    @classmethod
    def of(cls, snapshot: BoardSnapshot, past: AlertHistory, hours: Hours, *, now_ms: int) -> AlertContext:
        """Return the context for a dashboard with its notifications and questions indexed.

        `past` are the earlier alerts and questions, `hours` the group's hours for notifications.
        """
        pending: dict[str, list[Notification]] = defaultdict(list)
        for row in snapshot.notifications:
            for key in {row.task_id, row.question_id} - {None}:
                pending[str(key)].append(row)
        open_questions: dict[str, list[Question]] = defaultdict(list)
        for question in snapshot.questions:
            if question.task_id is not None:
                open_questions[question.task_id].append(question)
        return cls(
            snapshot=snapshot,
            past=past,
            hours=hours,
            now_ms=now_ms,
            pending={key: tuple(rows) for key, rows in pending.items()},
            open_questions={key: tuple(rows) for key, rows in open_questions.items()},
        )

    def last_asked_ms(self, task_id: str, kind: QuestionType) -> int | None:
        """Return when a question of this type about a task was last shown or ended, in epoch ms.

        None if that never happened.
        """
        return self.past.asked.get((task_id, kind))

    def notified_lately(self, row_id: str, kind: NotificationType) -> bool:
        """Return whether a notification of this type about a row was delivered less than its cooldown ago.

        `row_id` is the id of a task or question. The cooldown must pass between two notifications of a type.
        """
        return any(
            row.type is kind
            and row.delivered_ms is not None
            and dedupe.is_lately(row.delivered_ms, dedupe.notification_ms(kind), now_ms=self.now_ms)
            for row in self.past.alerts.get(row_id, ())
        )


def of_task(task: BoardTask, context: AlertContext) -> list[Step]:
    """Return the steps for an open task: notifications to send, or skips that say why one is not sent."""
    steps = list(_deadline_steps(task, context))
    if task.status is BoardTaskStatus.ACTIVE:
        steps += _block_steps(task, context) if task.is_blocked else _silence_steps(task, context)
    return steps


# Deadlines


def _deadline_steps(task: BoardTask, context: AlertContext) -> Iterator[Step]:
    """Yield the alert that the deadline of a task needs at this time, or a skip with the reason.

    There are alerts a day before, two hours before a time of day, on the day itself, and once it has passed.
    """
    deadline = task.deadline
    if deadline is None:
        return
    left_ms = deadline.at_ms - context.now_ms
    if context.now_ms >= slots.end_ms(deadline, context.hours):
        yield from _overdue_alert(task, deadline, context)
    elif left_ms <= 0:  # a deadline of a whole day, which begins at midnight and is not over yet
        yield from _today_alert(task, deadline, context)
    elif deadline.is_timed and left_ms <= HOURS_BEFORE_MS:
        yield from _alert_before(task, deadline, context, HOURS_BEFORE, HOURS_BEFORE_MS)
    elif left_ms <= DAY_BEFORE_MS:
        yield from _alert_before(task, deadline, context, DAY_BEFORE, DAY_BEFORE_MS)


def _alert_before(
    task: BoardTask, deadline: Deadline, context: AlertContext, cause: str, before_ms: int
) -> Iterator[Step]:
    """Yield the alert that is due `before_ms` before a deadline; nothing if it was sent already.

    A skip is yielded instead if a reminder or a pending alert says the same. `cause` names the alert. It is
    sent at its best time or, if that is past, as `slots.send_time_ms` says.
    """
    if _was_notified(
        task.id, cause, context, since_ms=_earliest_sent_ms(deadline, deadline.at_ms - before_ms)
    ):
        return
    due_ms = slots.send_time_ms(
        _ideal_ms(deadline, before_ms, context.hours),
        context.hours,
        now_ms=context.now_ms,
        deadline_ms=deadline.at_ms,
    )
    yield from _alert_or_skip(task, deadline, context, cause, due_ms)


def _ideal_ms(deadline: Deadline, before_ms: int, hours: Hours) -> int:
    """Return the best time, in epoch ms, for the alert that is due `before_ms` before a deadline.

    A deadline of a whole day has such an alert only on the day before: in the morning, whatever `before_ms`
    is.
    """
    if deadline.date is None:
        return deadline.at_ms - before_ms
    # A deadline of a whole day begins at midnight; 24 hours before that, it is night.
    return hours.moment(date.fromisoformat(deadline.date) - timedelta(days=1), MORNING)


def _today_alert(task: BoardTask, deadline: Deadline, context: AlertContext) -> Iterator[Step]:
    """Yield the alert on the morning of the day of a whole-day deadline, or at once if the morning is past.

    The present time must be on that day, which begins at `deadline.at_ms`. A skip is yielded instead if a
    reminder or a pending alert says the same; nothing if it was sent, or if the alert of the day before was
    sent on this day.
    """
    if _was_notified(task.id, TODAY, context, since_ms=_earliest_sent_ms(deadline, deadline.at_ms)):
        return
    # The alert of the day before may have come late, on the day itself: it has said the same.
    if _was_notified(task.id, DAY_BEFORE, context, since_ms=deadline.at_ms):
        return
    morning_ms = context.hours.moment(context.hours.day_of(context.now_ms), MORNING)
    yield from _alert_or_skip(task, deadline, context, TODAY, max(morning_ms, context.now_ms))


def _overdue_alert(task: BoardTask, deadline: Deadline, context: AlertContext) -> Iterator[Step]:
    """Yield the alert about a deadline that has passed, as the caller has checked.

    A skip is yielded instead if people were asked about it since, or a pending alert says the same; nothing
    if it was sent, or the deadline passed long ago.
    """
    # The end of the deadline's day, or its time.
    over_ms = slots.end_ms(deadline, context.hours)
    since_ms = _earliest_sent_ms(deadline, over_ms)
    if context.now_ms - over_ms > OVERDUE_ALERT_MS or _was_notified(
        task.id, OVERDUE, context, since_ms=since_ms
    ):
        return
    # The question about the deadline and the alert say the same to people.
    if (context.last_asked_ms(task.id, QuestionType.DEADLINE_CHECK) or 0) >= over_ms:
        yield Skip(row_id=task.id, what=OVERDUE, why="asked since")
        return
    # A whole day ends at midnight, when nobody wants the alert: it comes in the morning.
    ideal_ms = over_ms if deadline.is_timed else context.hours.moment(context.hours.day_of(over_ms), MORNING)
    yield from _alert_or_skip(
        task, deadline, context, OVERDUE, _after_quiet_ms(max(ideal_ms, context.now_ms), context)
    )


def _alert_or_skip(
    task: BoardTask, deadline: Deadline, context: AlertContext, cause: str, due_ms: int
) -> Iterator[Step]:
    """Yield the alert `cause` about a deadline, due at `due_ms`.

    Steps follow that close open questions with the same purpose which nobody was shown, but not after an
    overdue alert. Yield only a skip if a reminder on the same day, or a pending alert, says the same.
    """
    if cause in (DAY_BEFORE, TODAY) and _has_reminder(task.id, context, due_ms=due_ms):
        yield Skip(row_id=task.id, what=cause, why="a reminder says it")
        return
    yield from _notify_unless_pending(
        task,
        context,
        NotificationRequest(
            message=_deadline_text(task, deadline, cause, context.hours, at_ms=due_ms),
            due_ms=due_ms,
            type=NotificationType.DEADLINE_ALERT,
            priority=Priority.HIGH,
            task_id=task.id,
            cause=cause,
        ),
    )


def _earliest_sent_ms(deadline: Deadline, at_ms: int) -> int:
    """Return the earliest time (epoch ms) at which a sent alert counts as the one that is due at `at_ms`.

    That is `at_ms` itself for a deadline with a time of day. A deadline of a whole day moves with the group's
    time zone, so for it an alert that was sent earlier, in another zone, counts too.
    """
    return at_ms if deadline.is_timed else at_ms - ZONES_APART_MS


def _was_notified(row_id: str, cause: str, context: AlertContext, *, since_ms: int) -> bool:
    """Return whether an alert was delivered, or cancelled but not by the rules, at `since_ms` or later.

    `row_id` is the id of the task or question that it is about, `cause` the rule that makes it.
    """
    # `AlertHistory.alerts` has no alerts that the rules cancelled.
    return any(
        row.cause == cause and (row.delivered_ms or row.cancelled_ms or 0) >= since_ms
        for row in context.past.alerts.get(row_id, ())
    )


def is_reminder(cause: str | None) -> bool:
    """Return whether a notification of this cause is a reminder about a deadline, requested by a person."""
    return cause is not None and cause.startswith(REMINDER_CAUSE_PREFIX)


def _has_reminder(task_id: str, context: AlertContext, *, due_ms: int) -> bool:
    """Return whether a task has a reminder about its deadline on the day of `due_ms`.

    It is one that a person requested; it may be pending or delivered.
    """
    moments = [row.due_ms for row in context.pending.get(task_id, ()) if is_reminder(row.cause)]
    moments += [
        row.delivered_ms or 0 for row in context.past.alerts.get(task_id, ()) if is_reminder(row.cause)
    ]
    return any(context.hours.day_of(at_ms) == context.hours.day_of(due_ms) for at_ms in moments)


def deadline_text(deadline: Deadline, hours: Hours, language: times.Language) -> str:
    """Return a deadline as text: `Tue 2026-02-10`, with the time of day if it has one."""
    if deadline.date is not None:
        return times.say_day(date.fromisoformat(deadline.date), language)
    moment = datetime.fromtimestamp(deadline.at_ms / 1000, hours.zone)
    return times.say_moment(moment, language, has_seconds=False)


# Silence and blocks


def _silence_steps(task: BoardTask, context: AlertContext) -> Iterator[Step]:
    """Yield the notification that asks about a task which nobody has updated for days, or a skip.

    Nothing is yielded for a task that was updated lately.
    """
    silent_ms = context.now_ms - task.last_update_ms
    if silent_ms < SILENT_MS:
        return
    is_stagnant = silent_ms >= STAGNANT_MS
    cause = STAGNANT if is_stagnant else SILENT
    yield from _notify_unless_lately(
        task,
        context,
        NotificationRequest(
            message=_silence_text(task, cause, at_ms=context.now_ms),
            due_ms=_after_quiet_ms(context.hours.next_slot(context.now_ms), context, is_urgent=is_stagnant),
            type=NotificationType.PROGRESS_CHECK,
            priority=Priority.HIGH if is_stagnant else Priority.MEDIUM,
            task_id=task.id,
            cause=cause,
        ),
    )


def _block_steps(task: BoardTask, context: AlertContext) -> Iterator[Step]:
    """Yield the notification that asks whether a task is still blocked, or a skip with the reason.

    Nothing is yielded for a task that was blocked only a short time ago.
    """
    assert task.blocked_ms is not None, "only blocked tasks are passed"
    if context.now_ms - task.blocked_ms < BLOCKED_MS:
        return
    yield from _notify_unless_lately(
        task,
        context,
        NotificationRequest(
            message=_block_text(task),
            due_ms=_after_quiet_ms(context.now_ms + FOLLOW_UP_MS, context),
            type=NotificationType.BLOCKER_FOLLOWUP,
            priority=Priority.MEDIUM,
            task_id=task.id,
            cause=BLOCKED,
        ),
    )


def _after_quiet_ms(at_ms: int, context: AlertContext, *, is_urgent: bool = False) -> int:
    """Return `at_ms`, or the end of the group's quiet hours if it is in them; both in epoch ms.

    With `is_urgent` quiet hours do not count.
    """
    return at_ms if is_urgent else context.hours.after_quiet(at_ms)


def _notify_unless_lately(
    task: BoardTask, context: AlertContext, request: NotificationRequest
) -> Iterator[Step]:
    """Yield the step that sends the notification `request` about a task, or a skip if it would come too soon.

    That is so if a notification of its type, or a question with the same purpose, was sent a short time ago.
    A skip is yielded also if a pending notification makes it needless.
    """
    if context.notified_lately(task.id, request.type):
        yield Skip(row_id=task.id, what=str(request.cause), why="told lately")
        return
    was_asked = any(
        (last_ms := context.last_asked_ms(task.id, kind)) is not None
        and dedupe.is_lately(last_ms, dedupe.question_ms(kind), now_ms=context.now_ms)
        for kind in SAME_PURPOSE[request.type]
    )
    if was_asked:
        yield Skip(row_id=task.id, what=str(request.cause), why="asked lately")
        return
    yield from _notify_unless_pending(task, context, request)


def _notify_unless_pending(
    task: BoardTask, context: AlertContext, request: NotificationRequest
) -> Iterator[Step]:
    """Yield the step that sends the notification `request` about a task.

    If a pending notification makes it needless, a skip is yielded instead, and nothing else. Otherwise, steps
    follow that close the task's open questions with the same purpose which nobody was shown; but not after an
    overdue alert.
    """
    pending = [
        row
        for row in context.pending.get(task.id, ())
        if row.type is request.type and _makes_needless(row, request)
    ]
    if pending:
        yield Skip(row_id=task.id, what=str(request.cause), why=f"duplicate of {pending[0].id}")
        return
    yield Notify(request=request)
    if request.cause == OVERDUE:
        return  # the question stays on the list, in case nobody answers the alert
    for question in context.open_questions.get(task.id, ()):
        if question.type in SAME_PURPOSE[request.type] and question.asked_count == 0:
            yield CloseQuestion(question_id=question.id, reason=dedupe.NOTIFIED_INSTEAD)


def _makes_needless(row: Notification, request: NotificationRequest) -> bool:
    """Return whether a pending notification of the same type and task makes the requested one needless.

    It always does, unless their type is that of alerts about a deadline. A pending alert about a deadline
    makes a new one needless only if it has the same cause, if it is the alert of the day before and the new
    one that of the day itself, or if it has no cause and is due at about the same time.
    """
    if request.type is NotificationType.DEADLINE_ALERT:
        # The new alert is made on the day itself, so the pending one will be sent on that day, too.
        is_covered_by_day_before = request.cause == TODAY and row.cause == DAY_BEFORE
        return (
            is_covered_by_day_before
            or row.cause == request.cause
            or (row.cause is None and abs(row.due_ms - request.due_ms) < dedupe.WINDOW_MS)
        )
    return True


# Questions that wait


def of_questions(context: AlertContext) -> list[Step]:
    """Return the steps that remind people of important questions that nobody has answered."""
    steps: list[Step] = []
    for question in context.snapshot.questions:
        limit_ms = UNANSWERED_MS.get(question.priority)
        if limit_ms is not None and context.now_ms - question.created_ms >= limit_ms:
            steps.append(_question_reminder(question, context))
    return steps


def _question_reminder(question: Question, context: AlertContext) -> Step:
    """Return the step that reminds people of an open question, or a skip with the reason."""
    kind = NotificationType.QUESTION_REMINDER
    pending = [row for row in context.pending.get(question.id, ()) if row.type is kind]
    if pending:
        return Skip(row_id=question.id, what="question", why=f"duplicate of {pending[0].id}")
    if context.notified_lately(question.id, kind):
        return Skip(row_id=question.id, what="question", why="told lately")
    is_high = question.priority is Priority.HIGH
    return Notify(
        request=NotificationRequest(
            message=_question_text(question),
            due_ms=_after_quiet_ms(context.hours.next_slot(context.now_ms), context, is_urgent=is_high),
            type=kind,
            priority=question.priority,
            question_id=question.id,
            cause="question:48h" if is_high else "question:72h",
        )
    )


# Texts


def text_of(
    cause: str, *, task: BoardTask | None, question: Question | None, hours: Hours, at_ms: int
) -> str | None:
    """Return the text of a notification of the rules, with the days and figures of `at_ms` (epoch ms).

    `cause` names the rule; `task` and `question` are its subject, each None if there is none. None if no rule
    has this cause.
    """
    if task is not None and task.deadline is not None and cause in ABOUT_DEADLINES:
        return _deadline_text(task, task.deadline, cause, hours, at_ms=at_ms)
    if task is not None and cause in (SILENT, STAGNANT):
        return _silence_text(task, cause, at_ms=at_ms)
    if task is not None and cause == BLOCKED:
        return _block_text(task)
    return _question_text(question) if question is not None and cause.startswith("question:") else None


def says_overdue(cause: str | None, task: BoardTask | None, hours: Hours, *, now_ms: int) -> bool:
    """Return whether an expired alert needs no report, as the rules send an overdue alert about its task now.

    `cause` is the rule that made the expired alert, None if a person or an agent set it; `task` is the task
    that it is about, None for none. Only an alert about a deadline is replaced in this way.
    """
    if cause not in ABOUT_DEADLINES or task is None or task.deadline is None:
        return False
    return 0 <= now_ms - slots.end_ms(task.deadline, hours) <= OVERDUE_ALERT_MS


def is_outdated(cause: str | None, task: BoardTask, *, since_ms: int) -> bool:
    """Return whether a task has changed so that a notification about it, made at `since_ms`, is pointless.

    `cause` is the rule that made the notification, None if none did. One about a silent or blocked task is
    pointless if the task is not active any more. So is one about a silent task if the task was updated since
    or is blocked, and one about a blocked task if the block ended or another began since. All others keep
    their point.
    """
    if cause not in (SILENT, STAGNANT, BLOCKED):  # STAGNANT: silent for longer
        return False
    if task.status is not BoardTaskStatus.ACTIVE:
        return True
    if cause == BLOCKED:
        return task.blocked_ms is None or task.blocked_ms > since_ms
    return task.is_blocked or task.last_update_ms > since_ms


def _deadline_text(task: BoardTask, deadline: Deadline, cause: str, hours: Hours, *, at_ms: int) -> str:
    """Return the text about a task's deadline, in the language of its title, that is true at `at_ms`.

    `cause` is one of `ABOUT_DEADLINES`.
    """
    texts = rule_texts.texts_for(task.title)
    title = rule_texts.shorten(task.title)
    if cause == OVERDUE:
        text = texts.overdue
    elif deadline.date == hours.day_of(at_ms).isoformat():
        text = texts.deadline_today
    else:
        text = texts.deadline
    shown = deadline_text(deadline, hours, rule_texts.language_of(task.title))
    return text.format(title=title, when=shown, pct=task.pct)


def _silence_text(task: BoardTask, cause: str, *, at_ms: int) -> str:
    """Return the text about a task that nobody has updated, in the language of its title.

    `cause` is `SILENT` or, after a longer time, `STAGNANT`; days are counted up to `at_ms`.
    """
    texts = rule_texts.texts_for(task.title)
    text = texts.stagnant if cause == STAGNANT else texts.progress
    days = max(1, (at_ms - task.last_update_ms) // DAY_MS)
    return text.format(title=rule_texts.shorten(task.title), days=days, pct=task.pct)


def _block_text(task: BoardTask) -> str:
    """Return the text that reports a blocked task, in the language of its title."""
    note = f" ({rule_texts.shorten(task.blocker_note)})" if task.blocker_note else ""
    return rule_texts.texts_for(task.title).blocker.format(title=rule_texts.shorten(task.title), note=note)


def _question_text(question: Question) -> str:
    """Return the text that puts a question to the person, in the question's language."""
    texts = rule_texts.texts_for(question.question)
    return texts.question.format(question=" ".join(question.question.split())[:1000])


# Cases for the model


def cases_to_judge(context: AlertContext) -> tuple[str, ...]:
    """Return the cases on a dashboard that only a model can judge, each as `kind:id of the row`.

    Those are answered questions, and tasks that are blocked or without an update for long.
    """
    cases = [f"answered:{question.id}" for question in context.snapshot.answered]
    for task in context.snapshot.tasks:
        if task.status is not BoardTaskStatus.ACTIVE:
            continue
        if task.blocked_ms is not None and context.now_ms - task.blocked_ms >= BLOCKED_MS:
            cases.append(f"blocked:{task.id}")
        elif context.now_ms - task.last_update_ms >= STAGNANT_MS:
            cases.append(f"stagnant:{task.id}")
    # Sorted, so that the same cases have the same digest.
    return tuple(sorted(cases))
