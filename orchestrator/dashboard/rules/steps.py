"""The steps that the rules can plan, and the history that they need for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from orchestrator.domain.dashboard import (
    BoardTaskStatus,
    NotificationRequest,
    NotificationType,
    Priority,
    QuestionType,
)

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeStatus:
    """Set a task to someday, or back to active."""

    task_id: str
    status: BoardTaskStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveTask:
    """Move a completed task to the history."""

    task_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """Put a question on the list."""

    task_id: str
    type: QuestionType
    priority: Priority
    question: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseQuestion:
    """Close a question that needs no answer."""

    question_id: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Notify:
    """Schedule a notification."""

    request: NotificationRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class WithdrawNotification:
    """Cancel a pending notification."""

    notification_id: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Skip:
    """Do nothing, and record `why`."""

    row_id: str
    what: str
    why: str


Step = ChangeStatus | ArchiveTask | Ask | CloseQuestion | Notify | WithdrawNotification | Skip


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedRow:
    """A row at which the rules failed, with the error."""

    row_id: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RulePlan:
    """The steps of one pass, in this order."""

    steps: tuple[Step, ...]
    troubles: tuple[SkippedRow, ...] = ()
    to_judge: tuple[str, ...] = ()
    """Cases that rules cannot judge and a model may: `stagnant:task_1`, `answered:q_2`."""

    @property
    def actions(self) -> tuple[Step, ...]:
        """The steps that change something."""
        return tuple(step for step in self.steps if not isinstance(step, Skip))

    @property
    def skipped(self) -> tuple[Skip, ...]:
        """The steps that are not taken, each with its reason."""
        return tuple(step for step in self.steps if isinstance(step, Skip))


@dataclass(frozen=True, slots=True, kw_only=True)
class PastAlert:
    """A notification that was delivered, or cancelled but not by the rules, with the fields that they use."""

    type: NotificationType
    cause: str | None = None
    delivered_ms: int | None = None
    cancelled_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertHistory:
    """The earlier questions and alerts by which the rules decide whether new ones come too soon."""

    asked: Mapping[tuple[str, QuestionType], int] = field(default_factory=dict)
    """A task's id and a question type → the time (epoch ms) when such a question was last shown or ended."""
    settled: Mapping[tuple[str, QuestionType], int] = field(default_factory=dict)
    """The same keys → the time (epoch ms) when it was last answered, or closed by a person or agent."""
    alerts: Mapping[str, tuple[PastAlert, ...]] = field(default_factory=dict)
    """The alerts that were delivered, or cancelled but not by the rules, by the id of their task or question.

    An alert about both is listed under both ids.
    """
