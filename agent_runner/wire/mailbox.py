"""Models the requests of a container to the host: files in `messages/` and `tasks/`, answered in `replies/`.

The host knows the requesting group from the directory of the file, never from a field, which a container
could forge.

Most requests are also tools of agents (`agent_runner/tools/table.py`). A field with a description is an
argument of the tool, and a model reads that description.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, get_args

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, field_validator
from pydantic.json_schema import SkipJsonSchema

from agent_runner.wire import wakes
from agent_runner.wire.conditions import FORMS, TOGETHER
from agent_runner.wire.document import Document, WireError, first_reason
from agent_runner.wire.notices import (
    DEFAULT_HOURS,
    MAX_HOURS,
    MAX_NOTICE_CHARS,
    MAX_TURNS,
    Category,
    DeliverAt,
    Priority,
)

MAX_FILE_BYTES = 1024 * 1024
"""Most bytes of a request file."""
MAX_PARTS = 10_000
"""Most texts, commas and brackets in the JSON of a request file: other groups wait while it is parsed."""
MAX_TEXT_CHARS = 100_000
MAX_CHECK_CHARS = 16_000
"""Most characters of a check script, which is run as one argument of a command line: that has 128 KiB."""
MAX_PATH_CHARS = 1_000
MAX_CAPTION_CHARS = 1_000
"""Most characters of a file's caption; messengers cut longer ones."""
REPLY_SECONDS = 10.0
"""Seconds that a container waits for the host's reply to a request."""
MAX_QUERY_CHARS = 400
"""Most characters of a web search; Brave accepts no more."""
MAX_ROLES = 20
"""Most people whose roles one request changes."""
MAX_QUESTION_CHARS, MAX_OPTION_CHARS = 300, 100
"""Most characters of a poll's question and of each of its options; Telegram accepts no more."""
MIN_OPTIONS, MAX_OPTIONS = 2, 10
"""Fewest and most options of a poll."""

RequestId = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
Text = Annotated[str, Field(min_length=1, max_length=MAX_TEXT_CHARS)]
OTHER_CHAT = "Another chat of this group; from main, any chat."
FOLDER = "The group's folder name."
"""Descriptions, as others below, of a field that several requests have: a model reads them."""


class _Command(Document):
    request_id: RequestId | None = Field(default=None, alias="requestId")
    turn: int | None = Field(default=None, ge=0, lt=2**53)
    """The turn in which the agent makes the request. The host accepts only a turn of the same group."""
    asked_ms: int | None = Field(default=None, alias="askedMs", ge=0, lt=2**53)
    """The time of the request in epoch ms: its file may wait until a host runs and reads it."""

    @property
    def title(self) -> str:
        """The name of the request in the host's audit and other records."""
        return str(getattr(self, "type", ""))


TRANSPORT = frozenset((*_Command.model_fields, "type"))
"""Names of the fields that a tool or the container fills in; no model sees them."""


def _one_of(words: Any) -> dict[str, Any]:
    """Return the part of a JSON Schema that shows a model the values of a `Literal`."""
    return {"enum": list(get_args(words))}


class SendMessage(_Command):
    """Send a message to a chat now; without `chatJid`, to the chat that the turn answers."""

    type: Literal["message"] = "message"
    text: Text = Field(description="The message, as the chat is to see it.")
    chat_jid: str | None = Field(default=None, alias="chatJid", max_length=200, description=OTHER_CHAT)


class SendFile(_Command):
    """Send a file of the group's folder; `path` is the agent's path, relative to that folder or absolute."""

    type: Literal["send_file"] = "send_file"
    path: str = Field(
        min_length=1,
        max_length=MAX_PATH_CHARS,
        description="The file, in your working directory, e.g. plan.pdf.",
    )
    caption: str = Field(
        default="", max_length=MAX_CAPTION_CHARS, description="A few words under it; may be empty."
    )
    chat_jid: str | None = Field(default=None, alias="chatJid", max_length=200, description=OTHER_CHAT)


class ReactToMessage(_Command):
    """Put one emoji under a message of the chat that the turn answers; an empty one removes the reaction.

    `message` is some words of that message; without them, the turn's question gets the emoji.
    """

    type: Literal["react"] = "react"
    emoji: str = Field(max_length=64, description="One emoji; empty: remove yours.")
    message: str = Field(
        default="",
        max_length=200,
        description="Some words of the message; left out: the one that you answer.",
    )


class SendPoll(_Command):
    """Send a poll to the chat that the turn answers; `until` is its end, an ISO time or a duration."""

    type: Literal["send_poll"] = "send_poll"
    question: Text = Field(description="As people will read it.")
    options: tuple[Annotated[str, Field(max_length=1_000)], ...] = Field(
        max_length=100,
        fail_fast=True,  # else each of a million faults would be described before the refusal
        description=f"{MIN_OPTIONS} to {MAX_OPTIONS} answers, short.",
    )
    is_multiple: bool = Field(
        default=False, alias="isMultiple", description="Whether people may choose several options."
    )
    until: str | None = Field(
        default=None,
        max_length=64,
        description="The end: an ISO time or 2h30m; left out: no end.",
    )


class SetReminder(_Command):
    """Send `text` at the time `at` to the chat of the request.

    `at` is an ISO time, in the group's zone if it names none, or a duration such as `30m` or `2h15m`.
    """

    type: Literal["set_reminder"] = "set_reminder"
    text: Text
    at: str = Field(min_length=1, max_length=64)
    task_id: str | None = Field(default=None, alias="taskId", min_length=1, max_length=100)
    """The dashboard task whose deadline the reminder is about; None for any other reminder."""


class CancelReminder(_Command):
    type: Literal["cancel_reminder"] = "cancel_reminder"
    reminder_id: int = Field(alias="reminderId", ge=1, lt=2**53)


class ListReminders(_Command):
    type: Literal["list_reminders"] = "list_reminders"


class RegisterGroup(_Command):
    type: Literal["register_group"] = "register_group"
    jid: str = Field(min_length=1, max_length=200, description="The chat's address, from ../env/groups.json.")
    name: str = Field(min_length=1, max_length=200, description="What people call the group.")
    folder: str = Field(
        min_length=1, max_length=64, description="A new folder name: ASCII letters, digits, '-' and '_'."
    )
    trigger: str | None = Field(
        default=None,
        max_length=64,
        description="What wakes the assistant there, e.g. @Andy. Default: its name.",
    )
    requires_trigger: bool = Field(
        default=True,
        alias="requiresTrigger",
        description="False: every message is answered, with or without the trigger.",
    )
    is_added: bool = Field(
        default=False,
        alias="isAdded",
        description="True: the folder has a group already, and this becomes one more chat of it.",
    )


class ChangeGroup(_Command):
    """Change a group's name, trigger, need of a trigger, or people's roles; None leaves a value unchanged."""

    type: Literal["change_group"] = "change_group"
    folder: str = Field(min_length=1, max_length=64, description=FOLDER)
    name: str | None = Field(default=None, max_length=200, description="Its new name.")
    trigger: str | None = Field(
        default=None,
        max_length=64,
        description="A further word that calls the assistant, besides its name; empty: none.",
    )
    requires_trigger: bool | None = Field(
        default=None,
        alias="requiresTrigger",
        description="False: every message is answered, called or not.",
    )
    people: dict[str, Literal["owner", "member", "guest", "default"]] | None = Field(
        default=None,
        max_length=MAX_ROLES,
        description='Roles by the address that the messenger has, such as {"4917@s.whatsapp.net": "guest"};'
        " * is everybody else. For an unknown address the reply lists the known ones.",
    )

    @field_validator("people", mode="before")
    @classmethod
    def _are_few(cls, value: object) -> object:
        """Raise `ValueError` for too many people, before pydantic checks each one and lists its errors."""
        if isinstance(value, dict) and len(value) > MAX_ROLES:
            raise ValueError(f"at most {MAX_ROLES} people")
        return value


class UnregisterGroup(_Command):
    type: Literal["unregister_group"] = "unregister_group"
    folder: str = Field(min_length=1, max_length=64, description=FOLDER)
    jid: str | None = Field(
        default=None, max_length=200, description="Remove only this one of the group's several chats."
    )


class RefreshGroups(_Command):
    type: Literal["refresh_groups"] = "refresh_groups"


class ChooseModel(_Command):
    """Choose the model of one group or all groups for a kind of work; without `model`, list the models."""

    type: Literal["choose_model"] = "choose_model"
    model: str | None = Field(
        default=None,
        max_length=200,
        description="SERVICE/MODEL, such as local/qwen3, or default; left out: list the services.",
    )
    target_folder: str | None = Field(
        default=None,
        alias="targetFolder",
        max_length=64,
        description="The group's folder name; left out: all groups.",
    )
    work: str = Field(
        default="all",
        max_length=20,
        description="The kind of work that it is for.",
        json_schema_extra=_one_of(Literal["all", "tasks", "worker", "summaries"]),
    )


TaskId = Annotated[str, Field(min_length=1, max_length=64)]
Word = Annotated[str, Field(max_length=200)]
"""A short text that the host checks instead of this model, so that its refusal can list the valid values."""
ScheduleWord = Annotated[Word, Field(json_schema_extra=_one_of(Literal["cron", "interval", "once"]))]
ContextWord = Annotated[Word, Field(json_schema_extra=_one_of(Literal["group", "isolated"]))]
OverlapWord = Annotated[Word, Field(json_schema_extra=_one_of(Literal["skip", "queue"]))]
CatchUpWord = Annotated[Word, Field(json_schema_extra=_one_of(Literal["skip", "latest", "all"]))]
DstWord = Annotated[Word, Field(json_schema_extra=_one_of(Literal["once", "both"]))]
CheckScript = Annotated[str, Field(max_length=MAX_CHECK_CHARS)]
SCHEDULE_VALUE = (
    "cron: five fields in local time, e.g. '0 9 * * 1-5', or words: 'every other Tuesday at 8:00'. interval: "
    "30m, 1h30m, 1d; at least 60 s. once: a local ISO time such as 2026-11-22T18:30, or 'tomorrow 9am', '2h'."
)
PROMPT = "What you will be asked then, with everything it needs. Your final answer goes to the chat."
CONTEXT_MODE = "group: in this conversation. isolated: in a session that knows the files and the prompt only."
OVERLAP = "If it is due while its last run goes on: skip it, or queue one."
CATCH_UP = "If it was due while the assistant was down: skip, run the latest, or all (at most 10)."
DST = (
    "For cron, when clocks change: once: a doubled or skipped time runs once; both: as often as it is shown."
)
CHECK = (
    "A bash script that is run first, 30 s at most. Its last line is JSON: "
    '{"wakeAgent": false} ends the run without asking you, {"wakeAgent": true, "data": …} asks you with the '
    "data. Try it first."
)
TASK_ID = "The id from schedule_task or list_tasks."


class ScheduleTask(_Command):
    """Give the group's agent the prompt `prompt` at a time, once or repeatedly.

    The form of `schedule_value` depends on `schedule_type`: for `cron`, five fields in the group's zone, or
    words; for `interval`, milliseconds or a duration such as `1h30m`; for `once`, an ISO time, a duration or
    words. `check` is a bash script that is run first: it can end the run before a model is called.
    """

    type: Literal["schedule_task"] = "schedule_task"
    prompt: Text = Field(description=PROMPT)
    schedule_type: ScheduleWord = Field(description="How it repeats.")
    schedule_value: Word = Field(description=SCHEDULE_VALUE)
    context_mode: ContextWord = Field(default="isolated", description=CONTEXT_MODE)
    overlap: OverlapWord | None = Field(default="skip", description=OVERLAP)
    catch_up: CatchUpWord | None = Field(default="latest", description=CATCH_UP)
    dst: DstWord | None = Field(default=None, description=DST)
    check: CheckScript | None = Field(default=None, description=CHECK)
    target_folder: str | None = Field(
        default=None,
        alias="targetFolder",
        max_length=64,
        description="Another group, by its folder; only from main.",
    )


class UpdateTask(_Command):
    """Change the fields of a scheduled task that are neither None nor empty; an empty `check` removes it."""

    type: Literal["update_task"] = "update_task"
    task_id: TaskId = Field(alias="taskId", description=TASK_ID)
    prompt: Text | None = Field(default=None, description=PROMPT)
    schedule_type: ScheduleWord | None = Field(default=None, description="Needs schedule_value too.")
    schedule_value: Word | None = Field(default=None, description=SCHEDULE_VALUE)
    context_mode: ContextWord | None = Field(default=None, description=CONTEXT_MODE)
    overlap: OverlapWord | None = Field(default=None, description=OVERLAP)
    catch_up: CatchUpWord | None = Field(default=None, description=CATCH_UP)
    dst: DstWord | None = Field(default=None, description=DST)
    check: CheckScript | None = Field(default=None, description=f"{CHECK} An empty one removes it.")

    @field_validator(
        "prompt",
        "schedule_type",
        "schedule_value",
        "context_mode",
        "overlap",
        "catch_up",
        "dst",
        mode="before",
    )
    @classmethod
    def _empty_is_unchanged(cls, value: object) -> object:
        """Return None for a blank text, which leaves the field unchanged."""
        # Models fill in every argument that they are offered, and mean "unchanged" by an empty text.
        return None if isinstance(value, str) and not value.strip() else value


class ActOnTask(_Command):
    """Pause, resume or cancel a scheduled task, or run it once now, in addition to its schedule."""

    type: Literal["pause_task", "resume_task", "cancel_task", "run_task"]
    task_id: TaskId = Field(alias="taskId", description=TASK_ID)

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
    """Request the content of the group's dashboard; the reply says if the group has none."""

    type: Literal["show_dashboard"] = "show_dashboard"


class SetNextWake(_Command):
    """Set when the agent wakes next by itself: `next` is a span such as 30m, or a time such as 09:00."""

    type: Literal["set_next_wake"] = "set_next_wake"
    next: str = Field(min_length=1, max_length=100, description=wakes.NEXT)
    reason: str = Field(
        default="", max_length=wakes.MAX_REASON_CHARS, description="What you wait for, in a few words."
    )


class ControlLoop(_Command):
    """Switch a group's loop on or off, pause or resume it, or wake its agent now."""

    type: Literal["control_loop"] = "control_loop"
    action: Word = Field(
        description="on, off: whether the agent wakes by itself. pause, resume. wake: now.",
        json_schema_extra=_one_of(Literal["on", "off", "pause", "resume", "wake"]),
    )
    target_folder: str | None = Field(
        default=None,
        alias="targetFolder",
        max_length=64,
        description="The group, by its folder. Default: this group.",
    )
    reason: str = Field(
        default="",
        max_length=wakes.MAX_REASON_CHARS,
        description="For wake: the reason that the agent reads.",
    )


class Remember(_Command):
    """Use one of the tools for the memory of a conversation (`agent_runner.wire.context_tools`)."""

    type: Literal["remember"] = "remember"
    tool: str = Field(min_length=1, max_length=64)
    arguments: dict[str, Any] = Field(default_factory=dict)

    @property
    def title(self) -> str:
        return f"remember.{self.tool}"


NOTICE_ID = "The number from notify_self or list_notices."


class NotifySelf(_Command):
    """Store a notice that the agent will read later. The host checks it (`notify_self.refusal_of`)."""

    model_config = ConfigDict(json_schema_extra={"required": ["message"]})

    type: Literal["notify_self"] = "notify_self"
    message: str = Field(
        default="",
        max_length=MAX_TEXT_CHARS,
        description=f"The text of the note, at most {MAX_NOTICE_CHARS:,} characters.",
    )
    priority: Word = Field(default="normal", description="The urgency.", json_schema_extra=_one_of(Priority))
    category: Word = Field(
        default="context", description="The sort of note.", json_schema_extra=_one_of(Category)
    )
    deliver_at: Word = Field(
        default="next_turn",
        description="immediate: with the next tool result of this turn. next_turn. after_n_turns: needs "
        "turns. after_tool: when tool_name has ended, or any tool. on_condition: needs condition.",
        json_schema_extra=_one_of(DeliverAt),
    )
    persist_cross_session: bool = Field(
        default=False, description="Whether a new session gets it, if this one ends first."
    )
    turns: int | None = Field(
        default=None, description=f"For after_n_turns: the number of turns, 1 to {MAX_TURNS}."
    )
    tool_name: Word | None = Field(default=None, description="For after_tool: the tool, such as Bash.")
    condition: str | None = Field(
        default=None,
        max_length=1_000,
        description=f"For on_condition: {', '.join(FORMS)}, or {TOGETHER}.",
    )
    expires_in_hours: int | None = Field(
        default=None,
        description=f"Hours until it is dropped, at most {MAX_HOURS}; 0: never; default: {DEFAULT_HOURS}.",
    )
    dedupe_key: str | None = Field(
        default=None,
        max_length=1_000,
        description="A waiting note with the same key is replaced by this one.",
    )


class AcknowledgeNotice(_Command):
    type: Literal["acknowledge_notification"] = "acknowledge_notification"
    notice_id: int = Field(alias="noticeId", ge=1, lt=2**53, description=NOTICE_ID)


class ListNotices(_Command):
    type: Literal["list_notices"] = "list_notices"


class CancelNotice(_Command):
    """Delete a notice of the agent, named either by its number or by its `dedupe_key`."""

    type: Literal["cancel_notice"] = "cancel_notice"
    notice_id: int | None = Field(default=None, alias="noticeId", ge=1, lt=2**53, description=NOTICE_ID)
    dedupe_key: str | None = Field(
        default=None, alias="dedupeKey", max_length=1_000, description="Or the note's dedupe_key."
    )


class SearchHistory(_Command):
    """Find messages of the group by their words; with `before`, only those older than that message."""

    type: Literal["search_history"] = "search_history"
    query: str = Field(
        min_length=1, max_length=200, description='Words, or parts of them; "in quotes" one phrase.'
    )
    before: int | None = Field(
        default=None, ge=1, lt=2**53, description="Only messages older than the one with this number."
    )
    limit: SkipJsonSchema[int] = Field(default=20, ge=1, le=50)


class SearchWeb(_Command):
    """Search the web with the service that the owner chose for the group."""

    type: Literal["web_search"] = "web_search"
    query: str = Field(
        min_length=1, max_length=MAX_QUERY_CHARS, description="What to look for, in a few words."
    )


class ModelMissing(_Command):
    """Report a request that needs a language model while none is configured; the host informs main."""

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


_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
"""A text in JSON. Its quantifiers are possessive, so no file can make the search go back and try again."""


def has_too_many_parts(body: bytes) -> bool:
    """Return whether the JSON of a request file has more than `MAX_PARTS` parts, without parsing it."""
    # Texts are removed first, because a long one has many commas.
    without_texts, text_count = _STRING.subn(b"", body, count=MAX_PARTS + 1)
    return text_count + sum(map(without_texts.count, (b",", b"{", b"["))) > MAX_PARTS


def parse_command(text: str | bytes) -> Command:
    """Return the request in the text of a file.

    Raises:
        WireError: it is no valid request of this version; the error's message names the field.
    """
    if has_too_many_parts(text.encode("utf-8", "replace") if isinstance(text, str) else text):
        raise WireError(f"it has more than {MAX_PARTS:,} parts")
    try:
        command = _adapter.validate_json(text)
    except (ValidationError, RecursionError) as error:
        raise WireError(first_reason(error)) from error
    return command.checked()


class Reply(Document):
    """The host's answer to one request. `text` can be shown to the agent as it is."""

    request_id: RequestId = Field(alias="requestId")
    ok: bool
    code: str
    text: str
    data: dict[str, Any] = Field(default_factory=dict)
