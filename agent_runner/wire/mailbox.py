"""Models the requests of a container to the host: files in `messages/` and `tasks/`, answered in `replies/`.

The directory that a request lies in says which group asks, never a field.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from agent_runner.wire import wakes
from agent_runner.wire.document import Document, WireError

MAX_FILE_BYTES = 1024 * 1024
MAX_TEXT_CHARS = 100_000
MAX_CHECK_CHARS = 16_000
"""A script is one argument of a command line, which holds 128 KiB."""
MAX_PATH_CHARS = 1_000
MAX_CAPTION_CHARS = 1_000
"""Messengers cut longer captions."""
REPLY_SECONDS = 10.0
MAX_QUERY_CHARS = 400
"""Characters of a search of the web; Brave takes no more."""
MAX_ROLES = 20
"""People whose role one request changes."""
MAX_QUESTION_CHARS, MAX_OPTION_CHARS = 300, 100
"""Characters of a poll's question and of each of its options; Telegram takes no more."""
MIN_OPTIONS, MAX_OPTIONS = 2, 10

RequestId = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
Text = Annotated[str, Field(min_length=1, max_length=MAX_TEXT_CHARS)]


class _Command(Document):
    request_id: RequestId | None = Field(default=None, alias="requestId")
    turn: int | None = Field(default=None, ge=0, lt=2**53)
    """The turn in which the agent asks. The host accepts only a turn of the same group."""
    asked_ms: int | None = Field(default=None, alias="askedMs", ge=0, lt=2**53)
    """The time when it was asked, epoch ms: a request may wait until a host runs that reads it."""

    @property
    def title(self) -> str:
        """The name of the request in the records."""
        return str(getattr(self, "type", ""))


class SendMessage(_Command):
    """Say something in a chat now; without `chatJid`, in the one that the turn answers."""

    type: Literal["message"] = "message"
    text: Text
    chat_jid: str | None = Field(default=None, alias="chatJid", max_length=200)


class SendFile(_Command):
    """Send a file of the group's folder; `path` is as its agent sees it, from that folder or absolute."""

    type: Literal["send_file"] = "send_file"
    path: str = Field(min_length=1, max_length=MAX_PATH_CHARS)
    caption: str = Field(default="", max_length=MAX_CAPTION_CHARS)
    chat_jid: str | None = Field(default=None, alias="chatJid", max_length=200)


class ReactToMessage(_Command):
    """Put one emoji under a message of the chat that the turn answers; an empty one takes the last away.

    `message` is some words of that message; without any it is the question.
    """

    type: Literal["react"] = "react"
    emoji: str = Field(max_length=64)
    message: str = Field(default="", max_length=200)


class SendPoll(_Command):
    """Ask the chat that the turn answers a question with options; `until` is an ISO time or a duration."""

    type: Literal["send_poll"] = "send_poll"
    question: Text
    options: tuple[Annotated[str, Field(max_length=1_000)], ...] = Field(max_length=100)
    is_multiple: bool = Field(default=False, alias="isMultiple")
    until: str | None = Field(default=None, max_length=64)


class SetReminder(_Command):
    """Send `text` at `at` to the chat in which it is asked; `at` is an ISO time (in the group's zone when it
    names none) or a duration such as `30m` or `2h15m`."""

    type: Literal["set_reminder"] = "set_reminder"
    text: Text
    at: str = Field(min_length=1, max_length=64)
    task_id: str | None = Field(default=None, alias="taskId", min_length=1, max_length=100)
    """The dashboard task whose deadline the reminder is about; None of any other reminder."""


class CancelReminder(_Command):
    type: Literal["cancel_reminder"] = "cancel_reminder"
    reminder_id: int = Field(alias="reminderId", ge=1, lt=2**53)


class ListReminders(_Command):
    type: Literal["list_reminders"] = "list_reminders"


class RegisterGroup(_Command):
    type: Literal["register_group"] = "register_group"
    jid: str = Field(min_length=1, max_length=200)
    name: str = Field(min_length=1, max_length=200)
    folder: str = Field(min_length=1, max_length=64)
    trigger: str | None = Field(default=None, max_length=64)
    requires_trigger: bool = Field(default=True, alias="requiresTrigger")
    is_added: bool = Field(default=False, alias="isAdded")
    """Whether the folder has a group already, which gets this chat beside its others."""


class ChangeGroup(_Command):
    """Change a group's name, its trigger, whether it answers every message, or roles; None leaves it."""

    type: Literal["change_group"] = "change_group"
    folder: str = Field(min_length=1, max_length=64)
    name: str | None = Field(default=None, max_length=200)
    trigger: str | None = Field(default=None, max_length=64)
    """A call besides the assistant's name; an empty text takes it away."""
    requires_trigger: bool | None = Field(default=None, alias="requiresTrigger")
    people: dict[str, Literal["owner", "member", "guest", "default"]] | None = Field(
        default=None, max_length=MAX_ROLES
    )
    """Roles of people by their messenger's address; `*` is everybody else."""


class UnregisterGroup(_Command):
    type: Literal["unregister_group"] = "unregister_group"
    folder: str = Field(min_length=1, max_length=64)
    jid: str | None = Field(default=None, max_length=200)
    """The one of its chats that is taken off; None takes the whole group off."""


class RefreshGroups(_Command):
    type: Literal["refresh_groups"] = "refresh_groups"


class ChooseModel(_Command):
    """Choose the model of a group, or of all, for a kind of work; without a model, list what there is."""

    type: Literal["choose_model"] = "choose_model"
    model: str | None = Field(default=None, max_length=200)
    """`SERVICE/MODEL`, a model, or `default`, which clears the choice."""
    target_folder: str | None = Field(default=None, alias="targetFolder", max_length=64)
    work: str = Field(default="all", max_length=20)


TaskId = Annotated[str, Field(min_length=1, max_length=64)]
Word = Annotated[str, Field(max_length=200)]
"""A word that the host checks itself, so that its refusal can name what it accepts."""
CheckScript = Annotated[str, Field(max_length=MAX_CHECK_CHARS)]


class ScheduleTask(_Command):
    """Ask the group's agent `prompt` at a time, or again and again.

    `schedule_value` goes with `schedule_type`: `cron` five fields in the group's zone, or words; `interval`
    milliseconds or a duration such as `1h30m`; `once` an ISO time, a duration or words. `check` is a bash
    script that is run first and may say, without a model, that there is nothing to do.
    """

    type: Literal["schedule_task"] = "schedule_task"
    prompt: Text
    schedule_type: Word
    schedule_value: Word
    context_mode: Word = "isolated"
    overlap: Word | None = None
    catch_up: Word | None = None
    dst: Word | None = None
    check: CheckScript | None = None
    target_folder: str | None = Field(default=None, alias="targetFolder", max_length=64)


class UpdateTask(_Command):
    """Change what is given; an empty `check` removes it."""

    type: Literal["update_task"] = "update_task"
    task_id: TaskId = Field(alias="taskId")
    prompt: Text | None = None
    schedule_type: Word | None = None
    schedule_value: Word | None = None
    context_mode: Word | None = None
    overlap: Word | None = None
    catch_up: Word | None = None
    dst: Word | None = None
    check: CheckScript | None = None


class ActOnTask(_Command):
    """Pause, resume or end a task, or run it now, besides its schedule."""

    type: Literal["pause_task", "resume_task", "cancel_task", "run_task"]
    task_id: TaskId = Field(alias="taskId")

    @property
    def action(self) -> str:
        """The action of the scheduler's service: `pause`, `resume`, `cancel` or `run`."""
        return self.type.removesuffix("_task")


class ListTasks(_Command):
    type: Literal["list_tasks"] = "list_tasks"


class UseDashboard(_Command):
    """Use one of the dashboard's tools (`agent_runner.wire.dashboard`), whose arguments the host checks."""

    type: Literal["dashboard"] = "dashboard"
    tool: str = Field(min_length=1, max_length=64)
    arguments: dict[str, Any] = Field(default_factory=dict)

    @property
    def title(self) -> str:
        return f"dashboard.{self.tool}"


class ShowDashboard(_Command):
    """Return what is on the group's dashboard, or that the group has none."""

    type: Literal["show_dashboard"] = "show_dashboard"


class SetNextWake(_Command):
    """Say when the agent wakes next by itself: `next` is a span such as 30m, or a time such as 09:00."""

    type: Literal["set_next_wake"] = "set_next_wake"
    next: str = Field(min_length=1, max_length=100)
    reason: str = Field(default="", max_length=wakes.MAX_REASON_CHARS)


class ControlLoop(_Command):
    """Switch a group's loop, let it rest or wake it: `on`, `off`, `pause`, `resume`, `wake`."""

    type: Literal["control_loop"] = "control_loop"
    action: Word
    target_folder: str | None = Field(default=None, alias="targetFolder", max_length=64)
    reason: str = Field(default="", max_length=wakes.MAX_REASON_CHARS)


class Remember(_Command):
    """Use one of the tools (`agent_runner.wire.context_tools`) for what a conversation is about."""

    type: Literal["remember"] = "remember"
    tool: str = Field(min_length=1, max_length=64)
    arguments: dict[str, Any] = Field(default_factory=dict)

    @property
    def title(self) -> str:
        return f"remember.{self.tool}"


class NotifySelf(_Command):
    """Keep a notice for the agent's future self. The host checks each field, so that it can say what fits."""

    type: Literal["notify_self"] = "notify_self"
    message: str = Field(default="", max_length=MAX_TEXT_CHARS)
    priority: Word = "normal"
    category: Word = "context"
    deliver_at: Word = "next_turn"
    persist_cross_session: bool = False
    turns: int | None = None
    tool_name: Word | None = None
    condition: str | None = Field(default=None, max_length=1_000)
    expires_in_hours: int | None = None
    dedupe_key: str | None = Field(default=None, max_length=1_000)


class AcknowledgeNotice(_Command):
    type: Literal["acknowledge_notification"] = "acknowledge_notification"
    notice_id: int = Field(alias="noticeId", ge=1, lt=2**53)


class ListNotices(_Command):
    type: Literal["list_notices"] = "list_notices"


class CancelNotice(_Command):
    """Drop a notice, by its number or by the key it was given: one of them."""

    type: Literal["cancel_notice"] = "cancel_notice"
    notice_id: int | None = Field(default=None, alias="noticeId", ge=1, lt=2**53)
    dedupe_key: str | None = Field(default=None, alias="dedupeKey", max_length=1_000)


class SearchHistory(_Command):
    """Find messages of the group's own chat by their words; `before` is the number to go on from."""

    type: Literal["search_history"] = "search_history"
    query: str = Field(min_length=1, max_length=200)
    before: int | None = Field(default=None, ge=1, lt=2**53)
    limit: int = Field(default=20, ge=1, le=50)


class SearchWeb(_Command):
    """Search the web at the service that the owner chose for the group."""

    type: Literal["web_search"] = "web_search"
    query: str = Field(min_length=1, max_length=MAX_QUERY_CHARS)


class ModelMissing(_Command):
    """Report a request that takes a language model where none is configured; the host informs main."""

    type: Literal["model_missing"] = "model_missing"


Command = Annotated[
    SendMessage
    | SendFile
    | ReactToMessage
    | SendPoll
    | SetReminder
    | CancelReminder
    | ListReminders
    | RegisterGroup
    | ChangeGroup
    | UnregisterGroup
    | RefreshGroups
    | ChooseModel
    | ScheduleTask
    | UpdateTask
    | ActOnTask
    | ListTasks
    | UseDashboard
    | ShowDashboard
    | SetNextWake
    | ControlLoop
    | Remember
    | NotifySelf
    | AcknowledgeNotice
    | ListNotices
    | CancelNotice
    | SearchHistory
    | SearchWeb
    | ModelMissing,
    Field(discriminator="type"),
]

_adapter: TypeAdapter[Command] = TypeAdapter(Command, config=ConfigDict(defer_build=True))


def parse_command(text: str | bytes) -> Command:
    """Read one request file.

    Raises:
        WireError: it is no known command of this version; the text names the field.
    """
    try:
        command = _adapter.validate_json(text)
    except (ValidationError, RecursionError) as error:
        raise WireError(_reason(error)) from error
    return command.checked()


def _reason(error: Exception) -> str:
    if not isinstance(error, ValidationError):
        return "nested too deep"
    # Without the input: the reason goes to logs, and the request may hold words of a chat.
    first = error.errors(include_input=False, include_url=False)[0]
    return f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}".removeprefix(": ")


class Reply(Document):
    """The host's answer to one request. `text` can be shown to the agent as it is."""

    request_id: RequestId = Field(alias="requestId")
    ok: bool
    code: str
    text: str
    data: dict[str, Any] = Field(default_factory=dict)
