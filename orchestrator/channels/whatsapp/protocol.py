"""Define the messages between the host and the bridge: JSON documents, one a line, in both directions."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, is_dataclass
from functools import cache
from types import UnionType
from typing import Any, Literal, cast, get_args, get_origin, get_type_hints

from orchestrator.domain.errors import ChannelError

MAX_LINE_BYTES = 64 * 1024 * 1024
"""Bytes of the longest line that either side reads."""

MediaKind = Literal["image", "video", "voice note", "audio", "document", "sticker"]
State = Literal[
    "starting", "connected", "disconnected", "logged_out", "banned", "replaced", "outdated", "unusable"
]


class BadBridgeLine(ChannelError):
    """A line from the other side does not follow this protocol."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaReference:
    """A file of a message. `size` is in bytes; `ref` contains the data with which the bridge downloads it."""

    kind: MediaKind
    mime: str
    name: str = ""
    size: int = 0
    seconds: int = 0
    ref: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotedMessage:
    """A message that another one replies to. `author` is a name, but an address in a `SendRequest`."""

    id: str
    author: str
    is_mine: bool = False
    text: str
    media: MediaReference | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BridgeMessage:
    """A message as its chat shows it. Addresses are phone numbers where those are known."""

    kind: Literal["heard"] = "heard"
    chat: str
    is_group: bool
    id: str
    sender: str
    sender_name: str
    sent_ms: int
    is_from_me: bool
    text: str = ""
    quote: QuotedMessage | None = None
    call_text: str | None = None
    """The text with mentioned people's phone numbers instead of their names; None if nobody is mentioned."""
    mentions: tuple[str, ...] = ()
    calls_me: bool = False
    """Whether the account is the assistant's own and is mentioned."""
    media: MediaReference | None = None
    edits: str | None = None
    """The id of the message that this one edits."""
    deletes: str | None = None
    """The id of the message that this one deletes."""
    ignored: str | None = None
    """The reason why this message never triggers the agent; None if it may."""
    reaction: str | None = None
    """The emoji that it puts under the quoted message."""
    chosen: tuple[str, ...] | None = None
    """The SHA-256 of each option that it chooses in the quoted poll, in hexadecimal digits.

    None if the message is no vote, or its vote could not be decrypted.
    """
    is_unreadable: bool = False
    """Whether the message arrived but could not be decrypted."""
    sender_alias: str | None = None
    """Another address of the sender that the event contained, usually the LID; None if it contained none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMember:
    """A member of a group; `jid` is the phone number's address where that is known."""

    jid: str
    name: str = ""
    is_admin: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenGroup:
    """A group that the account is in."""

    jid: str
    name: str
    members: tuple[GroupMember, ...] = ()


# From the bridge


@dataclass(frozen=True, slots=True, kw_only=True)
class BridgeResponse:
    """The response to a request. After the code `down` the request may work later, after `refused` never."""

    kind: Literal["answer"] = "answer"
    id: int
    ok: bool = True
    code: Literal["", "down", "refused"] = ""
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivered:
    """A received message with its number in the spool.

    Each new bridge process delivers it again until the host has sent `MessageAcknowledged`.
    """

    kind: Literal["message"] = "message"
    n: int
    message: BridgeMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class SetAsideReport:
    """The numbers of stored messages that this version cannot read, and of which the owner does not know yet.

    Each new bridge process sends it again until the host has sent `SetAsideAcknowledged`.
    """

    kind: Literal["set_aside"] = "set_aside"
    numbers: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StateReport:
    """The current state of the login. `until_ms` is the end of a ban, in epoch milliseconds."""

    kind: Literal["state"] = "state"
    state: State
    reason: str = ""
    jid: str = ""
    until_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupsReport:
    """Groups that changed or, with `is_all`, every group of the account."""

    kind: Literal["groups"] = "groups"
    groups: tuple[SeenGroup, ...]
    is_all: bool = False
    left: tuple[str, ...] = ()
    """Groups from which the account was removed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """Proof that the connection works: another device confirmed a message."""

    kind: Literal["receipt"] = "receipt"
    at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Typing:
    """Somebody else started to type in a chat, or to record a voice note."""

    kind: Literal["typing"] = "typing"
    chat: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PairingCode:
    """A QR code or, with a phone number, eight letters, and the seconds for which it is valid."""

    kind: Literal["code"] = "code"
    qr: str = ""
    letters: str = ""
    seconds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PairingEnd:
    """The result of pairing: the account (`jid`), or in `text` the reason why it failed."""

    kind: Literal["paired"] = "paired"
    ok: bool
    jid: str = ""
    text: str = ""


# From the host


@dataclass(frozen=True, slots=True, kw_only=True)
class SendRequest:
    """Send a message once.

    `mark` is the host's id of the message. `earlier` are WhatsApp's ids under which an earlier try may have
    sent it.
    """

    kind: Literal["send"] = "send"
    id: int
    chat: str
    text: str
    mark: str
    earlier: tuple[str, ...] = ()
    file: str = ""
    file_name: str = ""
    mime: str = ""
    quote: QuotedMessage | None = None
    """The message that this one replies to; its `author` is an address here."""
    options: tuple[str, ...] = ()
    """The options of a poll, whose question is the text."""
    is_multiple: bool = False
    mention: str = ""
    """The address of a person whom the text mentions by number, as `@4917…`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class React:
    """Put a reaction under a message; an empty `sign` removes it."""

    kind: Literal["react"] = "react"
    id: int
    chat: str
    message: str
    author: str
    sign: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Withdraw:
    """Delete a message of Andy's own for everybody.

    `mark` is the host's id of the message. `messages` are WhatsApp's ids under which it may have been sent.
    """

    kind: Literal["withdraw"] = "withdraw"
    id: int
    chat: str
    mark: str
    messages: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TypingRequest:
    """Show or hide the typing sign in a chat."""

    kind: Literal["typing"] = "typing"
    id: int
    chat: str
    is_typing: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DownloadRequest:
    """Download a file to the path `to`.

    The response is `down` when that took longer than `seconds`, and `refused` for more than `limit` bytes.
    """

    kind: Literal["download"] = "download"
    id: int
    ref: str
    to: str
    limit: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """A message for which its sender is to get a read receipt."""

    chat: str
    message: str
    author: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageAcknowledged:
    """The host needs the message `n` of the bridge's spool no longer, so the bridge removes it.

    With `read`, the bridge also sends that read receipt.
    """

    kind: Literal["taken"] = "taken"
    n: int
    read: Read | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SetAsideAcknowledged:
    """The owner is notified of the stored messages with these numbers, which this version cannot read.

    The bridge retains them and reports them no more.
    """

    kind: Literal["set_aside"] = "set_aside"
    numbers: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncGroups:
    """Report all groups now."""

    kind: Literal["groups"] = "groups"
    id: int


FromBridge = (
    BridgeResponse
    | Delivered
    | SetAsideReport
    | StateReport
    | GroupsReport
    | Receipt
    | Typing
    | PairingCode
    | PairingEnd
)
FromHost = (
    SendRequest
    | React
    | Withdraw
    | TypingRequest
    | DownloadRequest
    | MessageAcknowledged
    | SetAsideAcknowledged
    | SyncGroups
)


def line_of(document: FromBridge | FromHost) -> bytes:
    """Return a message between host and bridge as one line of JSON, with the line break."""
    return json_of(document).encode() + b"\n"


def json_of(document: FromBridge | FromHost | BridgeMessage) -> str:
    """Return a message of this protocol as JSON without line breaks."""
    return json.dumps(asdict(document), ensure_ascii=False)


def from_bridge(line: bytes) -> FromBridge:
    """Parse a line that the bridge sent to the host. Raises `BadBridgeLine` for a line of another form."""
    try:
        return cast("FromBridge", _parse_document(FromBridge, line))
    except BadBridgeLine as error:
        raise BadBridgeLine(f"The WhatsApp process said what it should not: {error}") from error


def from_host(line: bytes) -> FromHost:
    """Parse a line that the host sent to the bridge. Raises `BadBridgeLine` for a line of another form."""
    return cast("FromHost", _parse_document(FromHost, line))


def message_of(text: str) -> BridgeMessage:
    """Parse a message that `json_of` serialized. Raises `BadBridgeLine` for a text of another form."""
    return cast("BridgeMessage", _typed_value(BridgeMessage, _parse_json(text), "message"))


def _parse_json(text: str | bytes) -> Any:
    """Return the value that a text of JSON represents. Raises `BadBridgeLine` for a text that is no JSON."""
    try:
        return json.loads(text)
    except ValueError as error:
        raise BadBridgeLine(f"no JSON: {error}") from error


def _parse_document(union: UnionType, line: bytes) -> object:
    """Parse a line of JSON to that dataclass of the `union` whose `kind` the line has.

    Raises `BadBridgeLine` if the line has no such kind, or fields that its dataclass does not have.
    """
    data = _parse_json(line)
    kind_name = data.get("kind") if isinstance(data, dict) else None
    for document_type in get_args(union):
        if document_type.__dataclass_fields__["kind"].default == kind_name:
            return _typed_value(document_type, data, str(kind_name))
    raise BadBridgeLine("kind: there is no such one")


def _typed_value(expected_type: Any, value: Any, where: str) -> Any:
    """Return a parsed JSON value as `expected_type`, which is a type that this protocol's dataclasses use.

    `where` names the value in the text of `BadBridgeLine`, which is raised for a value of another type.

    Pydantic is not used because it would add 11 MiB to the bridge's process.
    """
    # Of `X | None`, `tuple[X, ...]` and `Literal[...]`: the types or values inside.
    options = get_args(expected_type)
    if is_dataclass(expected_type):
        return _typed_document(expected_type, value, where)
    if isinstance(expected_type, UnionType):  # always of the form `X | None`
        return None if value is None else _typed_value(options[0], value, where)
    if get_origin(expected_type) is tuple and isinstance(value, list):
        return tuple(_typed_value(options[0], item, where) for item in value)
    is_of_type = value in options if get_origin(expected_type) is Literal else type(value) is expected_type
    # JSON may write a float such as 60.0 like an integer.
    if is_of_type or (expected_type is float and type(value) is int):
        return value
    raise BadBridgeLine(f"{where}: it cannot be a {type(value).__name__} or has no such value")


def _typed_document(document_type: Any, value: Any, where: str) -> object:
    """Return a JSON object as an instance of `document_type`, a dataclass of this protocol.

    `where` names the value in the text of `BadBridgeLine`, which is raised for an unknown, missing or wrong
    field.
    """
    if not isinstance(value, dict):
        raise BadBridgeLine(f"{where}: it is no object")
    field_types = _field_types(document_type)
    if unknown := value.keys() - field_types.keys():
        raise BadBridgeLine(f"{where}.{min(unknown)}: there is no such field")
    fields = {
        name: _typed_value(field_types[name], field_value, f"{where}.{name}")
        for name, field_value in value.items()
    }
    try:
        return document_type(**fields)
    except TypeError as error:
        raise BadBridgeLine(f"{where}: a field is missing: {error}") from error


@cache
def _field_types(document_type: type) -> dict[str, Any]:
    """Return the types of a dataclass's fields by their names."""
    return get_type_hints(document_type)
