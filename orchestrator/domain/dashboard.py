"""Values of a dashboard: tasks, questions, notifications, insights, and the results of its tools."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from orchestrator.domain.values import ChatJid, Folder

MAX_TITLE_CHARS = 200


class Actor(StrEnum):
    """The kind of author of a change. The host sets it; a request cannot choose it."""

    WORKER = "worker"
    """The dashboard worker, by its rules or by its model: neither may undo a person's change."""
    USER = "user"
    """A person, in a terminal or by a reply that needs no model."""
    MAIN_AGENT = "main_agent"
    """The group's agent, prompted by a person or by a schedule."""


class Priority(StrEnum):
    """The importance of a task, question or notification."""

    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"


class BoardTaskStatus(StrEnum):
    """The state of a task on the dashboard."""

    ACTIVE = "active"
    SOMEDAY = "someday"
    COMPLETED = "completed"
    CANCELLED = "cancelled"

    @property
    def is_terminal(self) -> bool:
        """Return whether the task has ended."""
        return self in (BoardTaskStatus.COMPLETED, BoardTaskStatus.CANCELLED)


class QuestionType(StrEnum):
    """The subject of a question."""

    INFO_GATHER = "info_gather"
    PROGRESS_CHECK = "progress_check"
    DEADLINE_CHECK = "deadline_check"
    START_CHECK = "start_check"
    BLOCKER_CHECK = "blocker_check"
    STATUS_CHECK = "status_check"
    COMPLETION_CHECK = "completion_check"
    ROUTINE_CHECK = "routine_check"


class NotificationType(StrEnum):
    """The subject of a notification."""

    REMINDER = "reminder"
    DEADLINE_ALERT = "deadline_alert"
    PROGRESS_CHECK = "progress_check"
    BLOCKER_FOLLOWUP = "blocker_followup"
    QUESTION_REMINDER = "question_reminder"


class NotificationStatus(StrEnum):
    """The state of a notification on its way to people."""

    PENDING = "pending"
    SENDING = "sending"
    """A dispatcher has claimed it."""
    DELIVERED = "delivered"
    CANCELLED = "cancelled"
    FAILED = "failed"
    """Every allowed attempt failed."""
    EXPIRED = "expired"
    """Its time had passed so long ago that sending it would only confuse."""

    @property
    def is_open(self) -> bool:
        """Return whether the notification is still to be sent."""
        return self in (NotificationStatus.PENDING, NotificationStatus.SENDING)


class Audience(StrEnum):
    """The addressee of a notification: people, or the agent itself."""

    USER = "user"
    AGENT = "agent"


class Category(StrEnum):
    """The category of an insight."""

    TECH = "tech"
    LIFE = "life"
    WORK = "work"
    LEARNING = "learning"


@dataclass(frozen=True, slots=True, kw_only=True)
class Dashboard:
    """One group's dashboard, without the rows on it."""

    folder: Folder
    revision: int
    """Counter of the dashboard's changes; a row's version is the counter's value at the row's last change."""
    created_ms: int
    rules_last_ms: int | None = None
    """When the rules looked at it last; None before the first time."""
    rules_next_ms: int = 0
    """When the rules look at it next."""
    zone: str | None = None
    """The time zone in which the deadlines were last computed."""
    worker_last_ms: int | None = None
    """When a model looked at it last; None before the first time."""
    worker_revision: int | None = None
    """The revision that this model saw."""
    worker_digest: str | None = None
    """A digest of what this model saw (`BoardDigest` as text), to find what has changed since."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadline:
    """A day or a moment. A day has a `date`, and starts at midnight in the group's zone."""

    at_ms: int
    date: str | None = None
    """`2026-02-10` for a day; None for a moment."""
    text: str = ""
    """The deadline as it was written in the request."""

    @property
    def is_timed(self) -> bool:
        """Return whether the deadline is a moment and not a day."""
        return self.date is None


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardTask:
    """A task on the dashboard, for people to do. A prompt that runs at set times is a `ScheduledTask`."""

    folder: Folder
    id: str
    title: str
    raw_input: str = ""
    deadline: Deadline | None = None
    """When it has to be done; None if there is no deadline."""
    estimation: Mapping[str, Any] = field(default_factory=dict)
    pct: int = 0
    """The part of it that is done, in percent."""
    progress_note: str = ""
    last_update_ms: int
    """The time when its progress was last reported."""
    blocked_ms: int | None = None
    """When it became blocked; None if it is not."""
    blocker_note: str | None = None
    """The reason why it is blocked; None if it is not, or if nobody said it."""
    status: BoardTaskStatus = BoardTaskStatus.ACTIVE
    priority: Priority = Priority.MEDIUM
    context: str = ""
    tags: tuple[str, ...] = ()
    links: Mapping[str, Any] = field(default_factory=dict)
    recurring: Mapping[str, Any] | None = None
    """On which days it is repeated, and its streaks; None if it is not."""
    reflection: str = ""
    created_ms: int
    updated_ms: int
    completed_ms: int | None = None
    """When it was completed; None until then."""
    archived_ms: int | None = None
    """When it moved to the history; None while it is on the board."""
    user_set: Mapping[str, int] = field(default_factory=dict)
    """Maps a field to the time at which a person last set it."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    version: int = 0
    """The dashboard's revision at its last change."""
    changed_turn: int | None = None
    """The turn that changed it last; None if it was changed outside of a turn."""

    @property
    def is_blocked(self) -> bool:
        """Return whether the task is blocked."""
        return self.blocked_ms is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question for a person."""

    folder: Folder
    id: str
    question: str
    context: str = ""
    priority: Priority = Priority.MEDIUM
    type: QuestionType = QuestionType.INFO_GATHER
    task_id: str | None = None
    """The task that it is about; None for a question about no task."""
    asked_count: int = 0
    last_asked_ms: int | None = None
    """When it was last shown to people; None before the first time."""
    cooldown_h: int = 24
    """Hours after which something like it may be asked again."""
    created_by: Actor = Actor.WORKER
    created_ms: int
    answer: str | None = None
    answered_ms: int | None = None
    """When it was answered; None, as `answer`, until then."""
    closed_ms: int | None = None
    """When it was closed without an answer; None, as `closed_reason`, until then."""
    closed_reason: str | None = None
    processed_ms: int | None = None
    """When the worker has read the answer; None until then."""
    version: int = 0
    changed_turn: int | None = None
    """The turn that changed it last; None if it was changed outside of a turn."""
    options: tuple[str, ...] = ()
    """The answers to choose from; empty for a question that is answered in words."""

    @property
    def is_open(self) -> bool:
        """Return whether the question is neither answered nor closed."""
        return self.answered_ms is None and self.closed_ms is None


@dataclass(frozen=True, slots=True, kw_only=True)
class NotificationRequest:
    """The request for a notification, by rules, the worker, the agent or a person alike."""

    message: str
    due_ms: int
    due_text: str | None = None
    """The time in the words of the request; None for an ISO time, or one that was computed."""
    type: NotificationType = NotificationType.REMINDER
    priority: Priority = Priority.MEDIUM
    task_id: str | None = None
    """The task that it is about; None for none."""
    question_id: str | None = None
    """The question that it asks; None for none."""
    cause: str | None = None
    """The rule that requested it (`deadline:24h`); None if no rule did."""
    context: str = ""
    audience: Audience = Audience.USER


@dataclass(frozen=True, slots=True, kw_only=True)
class Notification(NotificationRequest):
    """A text that is sent word for word at a time. Its row is the only schedule of it."""

    folder: Folder
    id: str
    status: NotificationStatus = NotificationStatus.PENDING
    created_by: Actor = Actor.WORKER
    created_ms: int
    delivered_ms: int | None = None
    """When it was sent; None until then."""
    cancelled_ms: int | None = None
    """When it was cancelled; None, as `cancel_reason`, if it was not."""
    cancel_reason: str | None = None
    attempts: int = 0
    next_attempt_ms: int | None = None
    """When to try again after a failed attempt; None if none failed."""
    claim_token: str | None = None
    """The mark of the dispatcher that sends it now; None if none does."""
    claim_until_ms: int | None = None
    """When that claim ends, so that another dispatcher may send it."""
    outbox_id: int | None = None
    """The message in the outbox that contains it; None before it is sent."""
    channel_msg_id: str | None = None
    """The id under which the chat shows that message."""
    late_ms: int | None = None
    """The delay with which it was sent; None until then."""
    error: str | None = None
    """The reason why the last attempt failed; None if none did."""
    version: int = 0
    changed_turn: int | None = None
    """The turn that changed it last; None if it was changed outside of a turn."""
    number: int | None = None
    """The number that people call a reminder by; None for other notifications."""
    chat_jid: ChatJid | None = None
    """The chat in which a reminder was requested, and to which it goes; None for the group's notify chat."""
    asked_by: str | None = None
    """The address of the person who asked for it; None if nobody did or it is unknown."""

    @property
    def is_of_person(self) -> bool:
        """Return whether a person set this reminder with their own words, without a model."""
        return self.created_by is Actor.USER and self.type is NotificationType.REMINDER


@dataclass(frozen=True, slots=True, kw_only=True)
class Insight:
    """A fact that the group has learned."""

    folder: Folder
    id: str
    category: Category
    title: str
    content: str
    source: str = ""
    tags: tuple[str, ...] = ()
    links: Mapping[str, Any] = field(default_factory=dict)
    created_ms: int
    content_hash: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Person:
    """A person from imported files, stored unchanged; only the id is read here."""

    folder: Folder
    id: str
    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """A project from imported files, stored unchanged; only the id is read here."""

    folder: Folder
    id: str
    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardSnapshot:
    """A whole dashboard at one moment: its open items, without the history."""

    dashboard: Dashboard
    tasks: tuple[BoardTask, ...]
    """The tasks on the board: active, someday, and ended ones that are not in the history yet."""
    questions: tuple[Question, ...]
    """The open questions."""
    answered: tuple[Question, ...]
    """Answered questions that the worker has not read yet."""
    notifications: tuple[Notification, ...]
    """The notifications that are still to be sent."""
    unread: int = 0
    """The number of further tasks and notifications that were not read because there are too many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """The caller of a service of the dashboard, filled in by the host."""

    actor: Actor
    now_ms: int
    turn_id: int | None = None
    """The turn in which the call is made; None outside of one."""
    is_person: bool = False
    """Whether a person wants the change, directly or through the agent: rules do not undo it."""
    expect_version: int | None = None
    """The version of the row that the caller has read; None if it does not say."""

    @property
    def is_automatic(self) -> bool:
        """Return whether nobody asked for the change: the worker made it."""
        return self.actor is Actor.WORKER


OK = "ok"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """The result of a dashboard tool: `text` is for reading, `code` and `data` are for programs."""

    text: str
    ok: bool = True
    code: str = OK
    data: Mapping[str, Any] = field(default_factory=dict)


class ToolRefused(Exception):
    """A refused call of a dashboard tool. Raised before a row of the dashboard is changed.

    Codes: VALIDATION, NOTHING_TO_CHANGE, NOT_FOUND, UNKNOWN_TASK, UNKNOWN_QUESTION, TASK_TERMINAL,
    NOT_TERMINAL, NOT_PENDING, ALREADY_DELIVERED, ALREADY_ANSWERED, CLOSED, EMPTY, DUPLICATE, COOLDOWN, CAP,
    NO_TARGET, UNPARSEABLE_TIME, PAST_TIME, TOO_FAR, BAD_DATE, STALE, NOT_ALLOWED, NO_TURN, UNKNOWN_TOOL.
    """

    def __init__(self, code: str, text: str, **data: Any) -> None:
        """`code` is one of those in the class's docstring, `text` is for people, `data` for programs."""
        super().__init__(text)
        self.code = code
        self.data = data

    def result(self) -> ToolResult:
        """Return the refusal as the result of the tool that was called; its text begins with the code."""
        return ToolResult(ok=False, code=self.code, text=f"{self.code}: {self}", data=self.data)
