"""What the rules may want done, and what they remember."""

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
    """Park a task or take it up again."""

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
    question_id: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Notify:
    """Have something told."""

    request: NotificationRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class WithdrawNotification:
    """Cancel what is to be told."""

    notification_id: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Skip:
    """What would be done but for `why`."""

    row_id: str
    what: str
    why: str


Step = ChangeStatus | ArchiveTask | Ask | CloseQuestion | Notify | WithdrawNotification | Skip


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedRow:
    """A row that could not be looked at."""

    row_id: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RulePlan:
    """What to do, in this order."""

    steps: tuple[Step, ...]
    troubles: tuple[SkippedRow, ...] = ()
    to_judge: tuple[str, ...] = ()
    """What rules cannot judge and a model may: `stagnant:task_1`, `answered:q_2`."""

    @property
    def actions(self) -> tuple[Step, ...]:
        """The steps that change something."""
        return tuple(step for step in self.steps if not isinstance(step, Skip))

    @property
    def skipped(self) -> tuple[Skip, ...]:
        return tuple(step for step in self.steps if isinstance(step, Skip))


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveredAlert:
    """What counts of a notification that was delivered, or cancelled by a person."""

    type: NotificationType
    cause: str | None = None
    delivered_ms: int | None = None
    cancelled_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertHistory:
    """What was asked and told before, as long as it counts."""

    asked: Mapping[tuple[str, QuestionType], int] = field(default_factory=dict)
    """When a question of a kind on a task was last shown, answered or closed, epoch ms."""
    told: Mapping[str, tuple[DeliveredAlert, ...]] = field(default_factory=dict)
    """A task's or question's id → what was told of it."""
