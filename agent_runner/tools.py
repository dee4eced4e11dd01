"""What an agent can ask of the host: one table for every kind of agent."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from agent_runner.host import Host
from agent_runner.wire import mailbox
from agent_runner.wire.mailbox import Command, Reply

P = TypeVar("P", bound="Parameters")

REMINDER_TIME = (
    "When: a local ISO time without an offset such as 2026-11-22T18:30, or a duration from now such as "
    "30m or 2h15m. Work the time out first; words like 'tomorrow' are not understood."
)


class Parameters(BaseModel):
    """What the model fills in. Unknown names are refused, so that a slip is noticed."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class NoParameters(Parameters):
    pass


class MessageParameters(Parameters):
    text: str = Field(min_length=1, description="The message, as the chat is to see it.")
    chat_jid: str | None = Field(
        default=None, description="Another chat's address; only the main group may. Default: this chat."
    )


class ReminderParameters(Parameters):
    text: str = Field(min_length=1, description="What will be said, word for word.")
    at: str = Field(min_length=1, max_length=64, description=REMINDER_TIME)


class ReminderIdParameters(Parameters):
    reminder_id: int = Field(description="The number that set_reminder or list_reminders told.")


class RegisterParameters(Parameters):
    jid: str = Field(min_length=1, description="The chat's address, from ../env/groups.json.")
    name: str = Field(min_length=1, description="What people call the group.")
    folder: str = Field(
        min_length=1, max_length=64, description="A new folder name: ASCII letters, digits, '-' and '_'."
    )
    trigger: str | None = Field(
        default=None,
        max_length=64,
        description="What wakes the assistant there, e.g. @Andy. Default: its name.",
    )
    requires_trigger: bool = Field(
        default=True, description="False: every message is answered, with or without the trigger."
    )


class FolderParameters(Parameters):
    folder: str = Field(min_length=1, max_length=64, description="The group's folder name.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool(Generic[P]):
    """One tool: how the model sees it, and the command it becomes."""

    name: str
    description: str
    parameters: type[P]
    command: Callable[[P], Command]
    is_only_main: bool = False

    def schema(self) -> dict[str, Any]:
        """Return the JSON Schema of the parameters."""
        bare: dict[str, Any] = _without_titles(self.parameters.model_json_schema())
        return {"type": "object", "properties": {}} | bare

    async def call(self, arguments: dict[str, Any], host: Host, *, turn: int | None = None) -> Reply:
        """Ask the host. Arguments that do not fit are the reply `bad_arguments`, and it is not asked."""
        try:
            command = self.command(self.parameters.model_validate(arguments))
        except ValidationError as error:
            return Reply(request_id="none", ok=False, code="bad_arguments", text=_mistakes(error))
        if isinstance(command, mailbox.SendMessage):
            command = command.model_copy(update={"turn": turn})
        return await host.ask(command)


def _send(given: MessageParameters) -> Command:
    return mailbox.SendMessage(text=given.text, chat_jid=given.chat_jid)


def _remind(given: ReminderParameters) -> Command:
    return mailbox.SetReminder(text=given.text, at=given.at)


def _cancel(given: ReminderIdParameters) -> Command:
    return mailbox.CancelReminder(reminder_id=given.reminder_id)


def _list(_: NoParameters) -> Command:
    return mailbox.ListReminders()


def _register(given: RegisterParameters) -> Command:
    return mailbox.RegisterGroup(**given.model_dump())


def _unregister(given: FolderParameters) -> Command:
    return mailbox.UnregisterGroup(folder=given.folder)


def _refresh(_: NoParameters) -> Command:
    return mailbox.RefreshGroups()


def tools_for(*, is_main: bool) -> tuple[Tool[Any], ...]:
    """Return the tools of a group, in the order in which a model is told of them."""
    return tuple(tool for tool in TABLE if is_main or not tool.is_only_main)


def words_of(reply: Reply) -> str:
    """Return a reply as a model reads it: its text, then its data as JSON if there is any."""
    if not reply.data:
        return reply.text
    return f"{reply.text}\n{json.dumps(reply.data, ensure_ascii=False)}"


TABLE: tuple[Tool[Any], ...] = (
    Tool(
        name="send_message",
        description="Say something in the chat now, while you go on working. Your final answer is sent "
        "anyway: do not send it twice.",
        parameters=MessageParameters,
        command=_send,
    ),
    Tool(
        name="set_reminder",
        description="Have a text sent to this chat at a time, word for word, without waking you.",
        parameters=ReminderParameters,
        command=_remind,
    ),
    Tool(
        name="cancel_reminder",
        description="Cancel a reminder that has not been sent.",
        parameters=ReminderIdParameters,
        command=_cancel,
    ),
    Tool(
        name="list_reminders",
        description="List this chat's reminders that have not been sent, with numbers and times.",
        parameters=NoParameters,
        command=_list,
    ),
    Tool(
        name="register_group",
        description="Let the assistant answer in a chat. Only on the owner's wish.",
        parameters=RegisterParameters,
        command=_register,
        is_only_main=True,
    ),
    Tool(
        name="unregister_group",
        description="Stop answering in a group. Its files and history stay.",
        parameters=FolderParameters,
        command=_unregister,
        is_only_main=True,
    ),
    Tool(
        name="refresh_groups",
        description="Look for new chats and rewrite ../env/groups.json.",
        parameters=NoParameters,
        command=_refresh,
        is_only_main=True,
    ),
)


def _mistakes(error: ValidationError) -> str:
    lines = [
        f"{'.'.join(str(part) for part in mistake['loc'])}: {mistake['msg']}"
        for mistake in error.errors(include_input=False, include_url=False)
    ]
    return "The arguments do not fit. " + "; ".join(lines)


def _without_titles(schema: Any) -> Any:
    """Drop the titles that pydantic adds: they cost tokens and say nothing."""
    if isinstance(schema, dict):
        return {
            name: _without_titles(value)
            for name, value in schema.items()
            if not (name == "title" and isinstance(value, str))
        }
    return schema
