"""How long after one question or notification another of its kind is one too many. Pure."""

from __future__ import annotations

from orchestrator.domain.dashboard import NotificationType, QuestionType

HOUR_MS = 3_600_000
WINDOW_MS = 12 * HOUR_MS
"""Two automatic ones of one kind that are to come are closer than this only by mistake."""

QUESTION_HOURS = {
    QuestionType.INFO_GATHER: 24,
    QuestionType.PROGRESS_CHECK: 24,
    QuestionType.DEADLINE_CHECK: 12,
    QuestionType.START_CHECK: 24,
    QuestionType.BLOCKER_CHECK: 48,
    QuestionType.STATUS_CHECK: 72,
    QuestionType.COMPLETION_CHECK: 6,
    QuestionType.ROUTINE_CHECK: 168,
}
NOTIFICATION_HOURS = {
    NotificationType.REMINDER: 0,
    NotificationType.DEADLINE_ALERT: 12,
    NotificationType.PROGRESS_CHECK: 24,
    NotificationType.BLOCKER_FOLLOWUP: 48,
    NotificationType.QUESTION_REMINDER: 24,
}


def question_ms(kind: QuestionType) -> int:
    return QUESTION_HOURS[kind] * HOUR_MS


def notification_ms(kind: NotificationType) -> int:
    return NOTIFICATION_HOURS[kind] * HOUR_MS
