"""The frozen values that the host passes around; the store makes them of rows in `_from_row`."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, NewType

if TYPE_CHECKING:
    from agent_runner.wire.order import RestoreMode


Folder = NewType("Folder", str)
"""A group's folder name: its identity on the host."""
ChatJid = NewType("ChatJid", str)
"""A chat's address: `local:name`, `…@g.us`."""
MessageId = NewType("MessageId", str)
"""The channel's id of a message, unique in its chat."""
Seq = NewType("Seq", int)
"""A message's place in the store: cursors are made of these."""
OFFLINE = "offline"
"""An agent without a model, in place of a model's provider."""
TurnId = NewType("TurnId", int)
RunId = NewType("RunId", str)


def person_of(sender: str) -> str:
    """Return a short name of a sender, the same in every message, that does not show their address."""
    return hashlib.sha256(sender.encode("utf-8", "replace")).hexdigest()[:16] if sender else ""


HOOK_PREFIX = "hook:"


def is_hook(sender: str) -> bool:
    """Return whether a sender is a program behind a hook, which is no person and no member of a chat."""
    return sender.startswith(HOOK_PREFIX)


class Role(StrEnum):
    """The roles of people in a group, in the order in which they may less."""

    OWNER = "owner"
    MEMBER = "member"
    GUEST = "guest"


def rank(role: Role) -> int:
    """Return the place of a role, 0 for the one that may most."""
    return tuple(Role).index(role)


def least(roles: Iterable[Role]) -> Role:
    """Return the role among these that may least, and that of an owner where there is none."""
    return max(roles, key=rank, default=Role.OWNER)


class TurnState(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    ANSWERED = "answered"
    FAILED = "failed"


class TurnKind(StrEnum):
    """The purpose of a turn. Their order is that in which free slots are given."""

    CHAT = "chat"
    TASK = "task"
    WORKER = "worker"
    AUTO = "auto"


class SessionCommand(StrEnum):
    """A command about the conversation itself, in place of a question in it."""

    COMPACT = "compact"
    CLEAR = "clear"


class OutboxState(StrEnum):
    HELD = "held"
    """The turn that says it has not ended yet."""
    PENDING = "pending"
    SENDING = "sending"
    SENT = "sent"
    SKIPPED = "skipped"
    """Nothing in it was meant for a person."""
    UNKNOWN = "unknown"
    """It may have arrived: the answer to its sending was lost, and sent again it could be read twice."""
    DEAD = "dead"


class Retry(StrEnum):
    """The part that sends a message again which could not be sent."""

    AS_MESSAGES_ARE = "as_messages_are"
    """The outbox: later and later, for a day."""
    BY_THE_LEDGER = "by_the_ledger"
    """The ledger of notifications, from which it comes."""
    BY_ANOTHER = "by_another"
    """Another message, which says the same and is tried for a day: its failure is no news."""
    NEVER = "never"


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The chats that share an agent, a folder and settings: one, or several in different messengers."""

    jid: ChatJid
    """The chat that is told what nobody asked for in another: the first, or the one that the owner chose."""
    name: str
    folder: Folder
    trigger: str | None = None
    requires_trigger: bool = True
    is_main: bool = False
    container_config: dict[str, Any] = field(default_factory=dict)
    added_ms: int = 0
    other_chats: tuple[ChatJid, ...] = ()
    """The group's chats besides `jid`, in the order in which they were added."""

    @property
    def chats(self) -> tuple[ChatJid, ...]:
        """All its chats, `jid` first."""
        return (self.jid, *self.other_chats)

    def chat_for(self, asked_in: ChatJid | None) -> ChatJid:
        """Return where to write: the chat in which it was asked, or `jid` where that is none of its own."""
        return asked_in if asked_in is not None and asked_in in self.chats else self.jid


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat:
    """A chat that was seen, registered or not."""

    jid: ChatJid
    name: str
    channel: str | None
    is_group: bool
    last_message_ms: int | None

    @property
    def label(self) -> str:
        """The name that distinguishes it from other chats of its group: `Family (telegram)`."""
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
    """A message as a channel hands it in."""

    chat_jid: ChatJid
    id: MessageId
    sender: str
    sender_name: str
    text: str
    sent_ms: int
    is_from_me: bool = False
    chat_name: str | None = None
    channel: str | None = None
    is_group: bool = False
    people: int | None = None
    """The number of people in the chat, Andy among them; None where the messenger does not say with it."""
    quote: Quote | None = None
    is_call: bool = False
    """Whether the message is for Andy, whatever its text: it mentions his account or replies to him."""
    is_direct: bool = False
    """Whether one person writes it to an account that is Andy's alone: before the chat is registered, too,
    all that is written there is for Andy."""
    edits: MessageId | None = None
    """The message whose text this one is to replace."""
    deletes: MessageId | None = None
    """The message that its sender took back; there is no text then."""
    is_moderated: bool = False
    """Whether its sender may take back what others wrote in this chat, as the messenger has judged."""
    ignored: str | None = None
    """The reason why it asks for nothing whatever its text, such as a reaction; None of any other message."""
    vote: tuple[int, ...] | None = None
    """The places, from 0, of the options that somebody has chosen in the poll that it quotes; none are a vote
    that is taken back. Such a message is `ignored`."""
    reaction: str | None = None
    """The sign that somebody put under the quoted message; such a message is `ignored`."""
    is_unreadable: bool = False
    """Whether the message arrived but its text could not be decrypted."""
    file: str | None = None
    """The words that stand for its file: the file's path, or why there is none."""
    spoken: str = ""
    """The transcription of its voice note, which is part of `file`, too."""
    file_until_ms: int | None = None
    """The time until which the turn waits for the file, which comes with the same message again."""
    thread: str | None = None
    """The thread or topic of the chat that it stands in, as the messenger calls it."""
    sender_alias: str | None = None
    """Another address of the same sender, as the messenger itself says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attachment:
    """A file that goes with an outgoing message: a copy, out of its container's reach."""

    path: Path
    name: str
    mime: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A stored message. Either a turn has it, or `ignored_reason` says why none does."""

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
    quote: Quote | None
    turn_id: TurnId | None
    ignored_reason: str | None
    file: str | None = None
    """The words in its text that stand for its file."""
    file_until_ms: int | None = None
    """The time until which the file may be fetched; None without a file, and once that is over."""
    folder: Folder | None = None
    """The group that its chat belonged to when it was stored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One question to an agent with its answer: it ends answered, failed or cancelled."""

    id: TurnId
    folder: Folder
    chat_jid: ChatJid
    kind: TurnKind
    is_isolated: bool
    first_seq: Seq | None
    last_seq: Seq | None
    task_id: str | None
    prompt: str | None
    attempt: int
    restarts: int = 0
    """Runs of it that were lost by restarts of the host, which are no attempts."""
    run_id: RunId | None
    state: TurnState
    reason: str | None
    queued_ms: int
    not_before_ms: int
    started_ms: int | None
    ended_ms: int | None
    is_place_notified: bool
    command: SessionCommand | None = None
    after_command: int = 0
    """The last command turn of its group before it: turns on two sides of one never merge."""
    role: Role = Role.OWNER
    """The least of the roles of those who asked in it; what nobody in a chat asked is the owner's."""
    is_restricted: bool = False
    """Whether that role may not do everything, so that its container and session are its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of a container, from its start to its end, as recorded."""

    id: RunId
    folder: Folder
    is_isolated: bool
    runtime: str
    container_ref: str | None
    token_hash: str
    last_frame: int
    started_ms: int
    ended_ms: int | None
    exit_kind: str | None
    exit_detail: str | None
    model: str | None = None
    """The model that was ordered; None leaves the choice to the agent."""
    provider: str | None = None
    """The place that its session is bound to: the service that has the model, with its address."""
    service: str | None = None
    """The name of that service; None is the one of `.env`."""
    role: Role | None = None
    """The role of the restricted turn that it is for; None of a run for whoever asks."""
    restore_mode: RestoreMode | None = None
    """The way in which it continued the group's conversation; None of a run apart from that."""
    restore_reason: str | None = None


class RunState(StrEnum):
    STARTING = "starting"
    READY = "ready"
    """Started ahead of its first turn, which may come or not. It gives its slot up to whoever waits."""
    BUSY = "busy"
    IDLE = "idle"
    CLOSING = "closing"
    LEFT = "left"
    """Given up: it may live on unheard, or is dead and cannot be removed. It holds no slot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveRun:
    """A container that holds a slot, or one that was given up."""

    id: RunId
    folder: Folder
    is_isolated: bool
    state: RunState
    started_ms: int
    """Milliseconds of the steady clock, as in `idle_since_ms`."""
    idle_since_ms: int = 0
    begun_ms: int = 0
    """The time when the run began, by the wall clock; 0 for one that was given up."""
    is_worn: bool = False
    """Older than a container may get: takes no further turn."""
    turn_id: TurnId | None = None
    """The turn that it is made for, while the store has that as queued still."""
    is_awaited: bool = False
    """Whether a turn waits for it to boot."""
    is_restricted: bool = False
    """Whether it was made for the turn of a role that may not do everything."""

    def takes(self, turn: Turn) -> bool:
        """Return whether a turn may be handed to it now."""
        if self.folder != turn.folder or self.is_worn or turn.command is SessionCommand.CLEAR:
            return False
        if self.is_restricted or turn.is_restricted:
            return False
        if self.state is RunState.READY:
            return self.is_isolated == turn.is_isolated and turn.kind is not TurnKind.WORKER
        return self.state is RunState.IDLE and not (self.is_isolated or turn.is_isolated)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """A message on its way to a chat."""

    id: int
    folder: Folder | None
    chat_jid: ChatJid
    text: str
    message_id: MessageId
    state: OutboxState
    attempts: int
    next_attempt_ms: int
    created_ms: int
    sent_ms: int | None
    turn_id: TurnId | None
    error: str | None
    part: int | None = None
    """The number of its part of a long text, from 0; None of a text in one message."""
    attachment: Attachment | None = None
    mention: str | None = None
    """The address of the person whom it is for, where not all of its chat are meant."""
    reacts_to: MessageId | None = None
    """The message of its chat under which its text, an emoji, is put; empty, it takes the last one away."""


class TaskStatus(StrEnum):
    ACTIVE = "active"
    PAUSED = "paused"
    COMPLETED = "completed"
    """It was to run once, and has."""
    CANCELLED = "cancelled"


class ScheduleKind(StrEnum):
    CRON = "cron"
    INTERVAL = "interval"
    ONCE = "once"


class Dst(StrEnum):
    """The meaning of a cron time on a day when the clocks change."""

    ONCE = "once"
    """Shown twice, it counts the first time; skipped, it counts as much later."""
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
    """The rule for due times at which Andy was down."""

    SKIP = "skip"
    LATEST = "latest"
    ALL = "all"
    """The newest ten of them."""


class Cause(StrEnum):
    SCHEDULE = "schedule"
    CATCH_UP = "catch_up"
    BY_HAND = "by_hand"


class TaskRunStatus(StrEnum):
    RUNNING = "running"
    """Its turn is queued or runs."""
    SUCCESS = "success"
    ERROR = "error"
    SKIPPED = "skipped"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """The times when a task is due. `value` is five cron fields, milliseconds, or an ISO time with offset."""

    kind: ScheduleKind
    value: str
    timezone: str
    dst: Dst = Dst.ONCE


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTask:
    """A schedule that was checked, with its first due time."""

    schedule: Schedule
    next_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledTask:
    """A request to an agent that is made at set times."""

    id: str
    folder: Folder
    chat_jid: ChatJid
    prompt: str
    schedule: Schedule
    context_mode: ContextMode = ContextMode.ISOLATED
    overlap: Overlap = Overlap.SKIP
    catch_up: CatchUp = CatchUp.LATEST
    check: str | None = None
    """A bash script that is run in the container first and may say that there is nothing to do."""
    status: TaskStatus = TaskStatus.ACTIVE
    status_reason: str | None = None
    status_ms: int = 0
    next_ms: int | None = None
    last_ms: int | None = None
    last_result: str | None = None
    failures: int = 0
    created_ms: int = 0
    role: Role = Role.OWNER
    """The role of whoever had it made: it runs with no more than that."""

    @property
    def is_over(self) -> bool:
        return self.status in (TaskStatus.COMPLETED, TaskStatus.CANCELLED)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRun:
    """One run of a task, or one that was left out."""

    id: int
    task_id: str
    cause: Cause
    due_ms: int
    run_ms: int
    turn_id: TurnId | None
    status: TaskRunStatus
    duration_ms: int | None
    result: str | None
    error: str | None
