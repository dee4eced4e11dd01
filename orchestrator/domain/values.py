"""The frozen values that the host passes around; the store builds them from rows with a `RowMapper`."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, NewType
from zoneinfo import ZoneInfo

if TYPE_CHECKING:
    from agent_runner.wire.order import RestoreMode


Folder = NewType("Folder", str)
"""A group's folder name: its identity on the host."""
ChatJid = NewType("ChatJid", str)
"""A chat's address: `local:name`, `…@g.us`."""
MessageId = NewType("MessageId", str)
"""The channel's id of a message, unique in its chat."""
Seq = NewType("Seq", int)
"""A message's position in the store; cursors are positions of this kind."""
OFFLINE = "offline"
"""The value of a model's provider for an agent without a model."""
TurnId = NewType("TurnId", int)
RunId = NewType("RunId", str)


def person_of(sender: str) -> str:
    """Return a short id of a sender that does not reveal their address; empty for an empty sender.

    The same sender always has the same id.
    """
    return hashlib.sha256(sender.encode("utf-8", "replace")).hexdigest()[:16] if sender else ""


HOOK_PREFIX = "hook:"


def is_hook(sender: str) -> bool:
    """Return whether a sender is a program that posts to a hook, and neither a person nor a chat member."""
    return sender.startswith(HOOK_PREFIX)


class Role(StrEnum):
    """The roles of people in a group, from the one with most rights to the one with fewest."""

    OWNER = "owner"
    MEMBER = "member"
    GUEST = "guest"


def rank(role: Role) -> int:
    """Return the place of a role among all roles, from 0 for the one with most rights."""
    return tuple(Role).index(role)


def least(roles: Iterable[Role]) -> Role:
    """Return the role with fewest rights among `roles`; the owner's, with most rights, if there are none."""
    return max(roles, key=rank, default=Role.OWNER)


class TurnState(StrEnum):
    """The state of a turn: the last two are its possible ends."""

    QUEUED = "queued"
    """It waits for a container, or for the end of a pause after a failed attempt."""
    RUNNING = "running"
    ANSWERED = "answered"
    FAILED = "failed"


class TurnKind(StrEnum):
    """The purpose of a turn, in the order in which free slots are assigned."""

    CHAT = "chat"
    """To answer a question that people asked in a chat."""
    TASK = "task"
    """To carry out a scheduled task."""
    WORKER = "worker"
    """To update the dashboard, for its background worker."""
    AUTO = "auto"
    """To go on with the agent's own loop: it woke by itself, and nobody waits for an answer."""


class SessionCommand(StrEnum):
    """A command about the conversation itself, in place of a question in it."""

    COMPACT = "compact"
    CLEAR = "clear"


class OutboxState(StrEnum):
    """The state of a message that Andy sends: pending, then sending, then one of the ends."""

    HELD = "held"
    """Held back until the turn that wrote it has ended."""
    PENDING = "pending"
    """It waits for its first attempt, or for another one after a failure."""
    SENDING = "sending"
    """An attempt has begun: if the host is killed now, the message may have arrived."""
    SENT = "sent"
    SKIPPED = "skipped"
    """Not sent on purpose: nothing in it was meant for people, or it is not wanted any more."""
    UNKNOWN = "unknown"
    """It may have arrived: the answer to its sending was lost, and sent again it could be read twice."""
    DEAD = "dead"
    """Given up after too many attempts, or refused by the messenger."""


class Retry(StrEnum):
    """The part that decides whether and when a message that could not be sent is sent again."""

    BY_OUTBOX = "by_outbox"
    """The outbox: with growing pauses, for a day."""
    BY_NOTIFICATION = "by_notification"
    """The row of the notification that the message belongs to, by its own time of the next attempt."""
    BY_ANOTHER = "by_another"
    """Another message with the same content, tried for a day: nobody needs a text about this failure."""
    NEVER = "never"


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The chats that share an agent, a folder and settings: one, or several in different messengers."""

    jid: ChatJid
    """The chat that receives the group's notifications: the first one, or the one that the owner chose."""
    name: str
    folder: Folder
    trigger: str | None = None
    """A text that calls the assistant, besides `@` and his name; None for none."""
    requires_trigger: bool = True
    is_main: bool = False
    container_config: dict[str, Any] = field(default_factory=dict)
    added_ms: int = 0
    other_chats: tuple[ChatJid, ...] = ()
    """The group's chats besides `jid`, in the order in which they were added."""

    @property
    def chats(self) -> tuple[ChatJid, ...]:
        """All chats of the group, first the one that receives notifications."""
        return (self.jid, *self.other_chats)

    def chat_for(self, asked_in: ChatJid | None) -> ChatJid:
        """Return the chat for an answer: `asked_in` if it is a chat of the group, else the group's first."""
        return asked_in if asked_in is not None and asked_in in self.chats else self.jid


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat:
    """A chat that was seen, registered or not."""

    jid: ChatJid
    name: str
    channel: str | None
    """The name of the messenger; None if it is not known."""
    is_group: bool
    last_message_ms: int | None
    """When the newest message came; None before the first."""

    @property
    def label(self) -> str:
        """The chat's name with its messenger, to distinguish chats of a group: `Family (telegram)`."""
        return f"{self.name} ({self.channel})" if self.channel else self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatMember:
    """Someone in a chat."""

    jid: str
    name: str = ""
    is_admin: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Quote:
    """The message that a message answers."""

    message_id: MessageId
    sender: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Inbound:
    """A message as a channel delivers it."""

    chat_jid: ChatJid
    id: MessageId
    sender: str
    sender_name: str
    text: str
    sent_ms: int
    call_text: str | None = None
    """The text in which a call of Andy is looked for, without the names of others who are mentioned; None
    where it is the text itself."""
    is_from_me: bool = False
    chat_name: str | None = None
    """The chat's name; None if the messenger does not report it."""
    channel: str | None = None
    """The name of the messenger that delivers it."""
    is_group: bool = False
    people: int | None = None
    """The number of people in the chat, including Andy; None if the messenger does not report it."""
    quote: Quote | None = None
    is_call: bool = False
    """Whether the message is for Andy, whatever its text: it mentions his account or replies to him."""
    is_direct: bool = False
    """Whether one person wrote it directly to an account that is Andy's alone: it is for Andy, even before
    the chat is registered.
    """
    edits: MessageId | None = None
    """The id of the message whose text this one replaces."""
    deletes: MessageId | None = None
    """The id of the message that its sender deleted; there is no text then."""
    is_moderated: bool = False
    """Whether its sender may delete other people's messages in this chat, as the messenger reports."""
    ignored: str | None = None
    """The reason why it asks for nothing whatever its text, such as a reaction; None for other messages."""
    vote: tuple[int, ...] | None = None
    """The places, from 0, of the options chosen in the quoted poll; empty withdraws
    the vote. It is `ignored`.
    """
    reaction: str | None = None
    """The emoji that somebody put under the quoted message; such a message is `ignored`."""
    is_unreadable: bool = False
    """Whether the message arrived but its text could not be decrypted."""
    file: str | None = None
    """The text that represents its file: the file's path, or why there is none."""
    spoken: str = ""
    """The transcription of its voice note, which is part of `file`, too."""
    file_until_ms: int | None = None
    """The time until which its turn waits for the file, which comes with the same message again."""
    thread: str | None = None
    """The messenger's id of the thread or topic of the chat that it belongs to."""
    sender_alias: str | None = None
    """Another address of the same sender, as the messenger reports it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attachment:
    """A file that goes with an outgoing message: a copy, out of its container's reach."""

    path: Path
    name: str
    mime: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A stored message. It belongs to a turn, or `ignored_reason` says why it does not."""

    seq: Seq
    chat_jid: ChatJid
    id: MessageId
    sender: str
    sender_name: str
    text: str
    sent_ms: int
    received_ms: int
    is_from_me: bool
    is_bot_message: bool
    """Whether Andy wrote it."""
    quote: Quote | None
    turn_id: TurnId | None
    """The turn that it belongs to; None if it belongs to none."""
    ignored_reason: str | None
    file: str | None = None
    """The part of its text that represents its file."""
    file_until_ms: int | None = None
    """The time until which the file may be fetched; None without a file, and after that time."""
    folder: Folder | None = None
    """The group that its chat belonged to when it was stored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One question to an agent with its answer: it ends answered or failed."""

    id: TurnId
    folder: Folder
    chat_jid: ChatJid
    kind: TurnKind
    is_isolated: bool
    first_seq: Seq | None
    last_seq: Seq | None
    """The first and the last message that belong to it; None for a turn that no message asked."""
    task_id: str | None
    """The scheduled task whose run it is; None for other turns."""
    prompt: str | None
    """The prompt of a turn that no message asked, such as a task's; None for others."""
    attempt: int
    restarts: int = 0
    """Runs of it that were lost by restarts of the host, which do not count as attempts."""
    run_id: RunId | None
    """The run that works on it, or did last; None before the first."""
    state: TurnState
    reason: str | None
    """The reason why it failed, waits or was answered without an agent; None if there is nothing to say."""
    queued_ms: int
    not_before_ms: int
    """Epoch milliseconds before which it does not start: the end of its pause after a failed attempt."""
    started_ms: int | None
    """When its present or last attempt began; None before the first."""
    ended_ms: int | None
    """When it was answered or failed; None until then."""
    is_place_notified: bool
    """Whether its chat has got the text that it waits for a container."""
    command: SessionCommand | None = None
    """The command that it carries out, such as `/clear`; None for a question."""
    after_command: int = 0
    """The last command turn of its group before it: turns before and after a command are never merged."""
    role: Role = Role.OWNER
    """The lowest role among those who asked in it; the owner's for a turn that nobody in a chat asked."""
    is_restricted: bool = False
    """Whether that role may not do everything, so that the turn gets a container and a session of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of a container, from its start to its end, as recorded."""

    id: RunId
    folder: Folder
    is_isolated: bool
    runtime: str
    container_ref: str | None
    """The engine's id of the container; None before it exists."""
    token_hash: str
    last_frame: int
    """The number of the last frame of its output whose effects are stored."""
    started_ms: int
    ended_ms: int | None
    """When it ended; None until then."""
    exit_kind: str | None
    """The kind of its end, a value of `RunEndKind`; None until then."""
    exit_detail: str | None
    """Details of its end for people; None if there are none."""
    model: str | None = None
    """The model that was requested; None leaves the choice to the agent."""
    provider: str | None = None
    """The provider that its session is bound to: the service that has the model, with its address."""
    service: str | None = None
    """The name of that service; None is the one in `.env`."""
    role: Role | None = None
    """The role of the restricted turn that it was started for; None for a run that serves everybody."""
    restore_mode: RestoreMode | None = None
    """The way in which it continued the group's conversation; None for a run apart from the conversation."""
    restore_reason: str | None = None
    """The reason why it continued the conversation in that way; None if there is nothing to say."""


class RunState(StrEnum):
    """The state of a container that runs an agent."""

    STARTING = "starting"
    READY = "ready"
    """Started ahead of its first turn, which may never come. It gives its slot up to any waiting turn."""
    BUSY = "busy"
    """A turn runs in it."""
    IDLE = "idle"
    """Its last turn has ended, and it waits for the next one of the same session."""
    CLOSING = "closing"
    """It was asked to end, or is being ended, and gets no further turn."""
    LEFT = "left"
    """Abandoned: the host no longer reads it, or it is dead and cannot be removed. It holds no slot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveRun:
    """A container that holds a slot, or one that was abandoned."""

    id: RunId
    folder: Folder
    is_isolated: bool
    state: RunState
    started_ms: int
    """Milliseconds of the steady clock, as in `idle_since_ms`."""
    idle_since_ms: int = 0
    started_wall_ms: int = 0
    """When the run started, by the wall clock in epoch milliseconds; 0 for an abandoned one."""
    is_worn: bool = False
    """Whether it takes no further turn: too old, its group is gone or changed, or its image was replaced."""
    turn_id: TurnId | None = None
    """The turn that it is started for, while the store still lists that turn as queued."""
    is_awaited: bool = False
    """Whether a turn waits for it to boot."""
    is_restricted: bool = False
    """Whether it was made for the turn of a role that may not do everything."""

    def takes(self, turn: Turn) -> bool:
        """Return whether this container may get a turn now."""
        # A worn container is too old, or its group or image has changed. `/clear` is carried out by the host
        # itself, without a container.
        if self.folder != turn.folder or self.is_worn or turn.command is SessionCommand.CLEAR:
            return False
        # A turn is restricted if the role of who asked may not do everything: it gets a container of its own,
        # which serves that turn alone.
        if self.is_restricted or turn.is_restricted:
            return False
        # A container started in advance has the limits of a conversation; a worker's turn needs others.
        if self.state is RunState.READY:
            return self.is_isolated == turn.is_isolated and turn.kind is not TurnKind.WORKER
        # A used container has a session, so it takes only turns in the group's own session.
        return self.state is RunState.IDLE and not (self.is_isolated or turn.is_isolated)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """A message on its way to a chat."""

    id: int
    folder: Folder | None
    """The group whose chat it is; None for a chat without a group."""
    chat_jid: ChatJid
    text: str
    message_id: MessageId
    state: OutboxState
    attempts: int
    next_attempt_ms: int
    created_ms: int
    sent_ms: int | None
    """When it was sent; None until then."""
    turn_id: TurnId | None
    """The turn that sends it; None if the host does."""
    error: str | None
    """The reason why the last attempt failed; None if none did."""
    part: int | None = None
    """The number of this part of a long text, from 0; None for a text in one message."""
    attachment: Attachment | None = None
    mention: str | None = None
    """The address of the person whom it is for, if it is not for the whole chat."""
    reacts_to: MessageId | None = None
    """The message of its chat that its text, an emoji, is put under; an empty text removes the emoji."""


class TaskStatus(StrEnum):
    """The state of a scheduled task."""

    ACTIVE = "active"
    PAUSED = "paused"
    COMPLETED = "completed"
    """It had only one time, and has run."""
    CANCELLED = "cancelled"


class ScheduleKind(StrEnum):
    """The form in which the times of a scheduled task are written."""

    CRON = "cron"
    INTERVAL = "interval"
    ONCE = "once"


class Dst(StrEnum):
    """The treatment of a cron time on a day when the clocks change."""

    ONCE = "once"
    """A time that is shown twice counts the first time; a skipped one counts as much later."""
    BOTH = "both"
    """It counts whenever the clocks show it: twice, or not at all."""


class ContextMode(StrEnum):
    GROUP = "group"
    """The task runs in the group's own session."""
    ISOLATED = "isolated"
    """The task runs in a container and a session of its own."""


class Overlap(StrEnum):
    """The rule for a task that is due while its last run has not ended."""

    SKIP = "skip"
    QUEUE = "queue"
    """One run waits for it."""


class CatchUp(StrEnum):
    """The rule for due times that passed while Andy was down."""

    SKIP = "skip"
    LATEST = "latest"
    ALL = "all"
    """The newest ten of them."""


class Cause(StrEnum):
    """The reason why a scheduled task runs."""

    SCHEDULE = "schedule"
    """It was due."""
    CATCH_UP = "catch_up"
    """It was due while Andy was down."""
    BY_HAND = "by_hand"
    """Somebody requested the run."""


class TaskRunStatus(StrEnum):
    """The state of one run of a scheduled task."""

    RUNNING = "running"
    """Its turn is queued or runs."""
    SUCCESS = "success"
    ERROR = "error"
    SKIPPED = "skipped"
    """The task did not run although it was due, such as while its last run had not ended."""
    CANCELLED = "cancelled"
    """It was cancelled before its turn started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """The times when a task is due. `value` is five cron fields, milliseconds, or an ISO time with offset."""

    kind: ScheduleKind
    value: str
    timezone: str
    dst: Dst = Dst.ONCE

    @property
    def zone(self) -> ZoneInfo:
        """The time zone in which its times are shown; UTC if this machine does not know its own any more."""
        try:
            return ZoneInfo(self.timezone)
        except (LookupError, ValueError):
            return ZoneInfo("UTC")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTask:
    """A schedule that was checked, with its first due time."""

    schedule: Schedule
    next_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledTask:
    """A prompt that is given to an agent at set times."""

    id: str
    folder: Folder
    chat_jid: ChatJid
    prompt: str
    schedule: Schedule
    context_mode: ContextMode = ContextMode.ISOLATED
    overlap: Overlap = Overlap.SKIP
    catch_up: CatchUp = CatchUp.LATEST
    check: str | None = None
    """A bash script that runs in the container first and can report that there is nothing to do."""
    status: TaskStatus = TaskStatus.ACTIVE
    status_reason: str | None = None
    """The reason why it has this status; None if there is nothing to say."""
    status_ms: int = 0
    next_ms: int | None = None
    """When it is due next; None if it never is again."""
    last_ms: int | None = None
    """When it last ran; None before the first run."""
    last_result: str | None = None
    """The answer of its last run, shortened, or why there is none; None before the first."""
    failures: int = 0
    created_ms: int = 0
    role: Role = Role.OWNER
    """The role of the person who created it: it runs with no more rights."""

    @property
    def is_over(self) -> bool:
        """Whether the task never runs again."""
        return self.status in (TaskStatus.COMPLETED, TaskStatus.CANCELLED)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRun:
    """One run of a task, or a due time at which it did not run."""

    id: int
    task_id: str
    cause: Cause
    due_ms: int
    run_ms: int
    turn_id: TurnId | None
    """Its turn; None for a due time at which it did not run."""
    status: TaskRunStatus
    duration_ms: int | None
    """The time that its turn took; None until it ended, or if it did not run."""
    result: str | None
    """The answer, shortened; None if there was none."""
    error: str | None
    """The reason why it failed or did not run; None if it succeeded or has not ended."""
