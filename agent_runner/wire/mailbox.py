"""What a container asks of the host: files in `messages/` and `tasks/`, answered in `replies/`.

Whose request it is, is told by the directory it lies in, never by a field.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from agent_runner.wire.document import Document, WireError

MAX_FILE_BYTES = 1024 * 1024
MAX_TEXT_CHARS = 100_000
REPLY_SECONDS = 10.0

RequestId = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
Text = Annotated[str, Field(min_length=1, max_length=MAX_TEXT_CHARS)]


class _Command(Document):
    request_id: RequestId | None = Field(default=None, alias="requestId")


class SendMessage(_Command):
    """Say something in a chat now; without `chatJid`, in the group's own."""

    type: Literal["message"] = "message"
    text: Text
    chat_jid: str | None = Field(default=None, alias="chatJid")
    turn: int | None = None


class SetReminder(_Command):
    """Send `text` to the group's chat at `at`: an ISO time (in the group's zone when it names none) or a
    duration such as `30m` or `2h15m`."""

    type: Literal["set_reminder"] = "set_reminder"
    text: Text
    at: str = Field(min_length=1, max_length=64)


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


class UnregisterGroup(_Command):
    type: Literal["unregister_group"] = "unregister_group"
    folder: str = Field(min_length=1, max_length=64)


class RefreshGroups(_Command):
    type: Literal["refresh_groups"] = "refresh_groups"


Command = Annotated[
    SendMessage
    | SetReminder
    | CancelReminder
    | ListReminders
    | RegisterGroup
    | UnregisterGroup
    | RefreshGroups,
    Field(discriminator="type"),
]

_adapter: TypeAdapter[Command] = TypeAdapter(Command)


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
    first = error.errors(include_input=False, include_url=False)[0]
    return f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}".removeprefix(": ")


class Reply(Document):
    """The host's answer to one request. `text` can be shown to the agent as it is."""

    request_id: RequestId = Field(alias="requestId")
    ok: bool
    code: str
    text: str
    data: dict[str, Any] = Field(default_factory=dict)
