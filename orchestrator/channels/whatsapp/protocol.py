"""What the host and the bridge say to each other: one JSON document a line, either way."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from orchestrator.domain.errors import ChannelError

MAX_LINE_BYTES = 4 * 1024 * 1024

MediaKind = Literal["image", "video", "voice note", "audio", "document", "sticker"]
State = Literal[
    "starting", "connected", "disconnected", "logged_out", "banned", "replaced", "outdated", "unusable"
]


class BadBridgeLine(ChannelError):
    """The other side said something that is no line of this protocol."""


class _Said(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class MediaReference(_Said):
    """A file that a message carries. `ref` is what the bridge needs to fetch it."""

    kind: MediaKind
    mime: str
    name: str = ""
    size: int = 0
    seconds: int = 0
    ref: str


class QuotedMessage(_Said):
    id: str
    author: str
    is_mine: bool = False
    text: str
    media: MediaReference | None = None


class BridgeMessage(_Said):
    """A message as a chat shows it: addresses are phone numbers wherever they are known."""

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
    mentions: tuple[str, ...] = ()
    calls_me: bool = False
    """The account is mentioned, and is the assistant's own."""
    media: MediaReference | None = None
    edits: str | None = None
    deletes: str | None = None
    ignored: str | None = None
    """Why it asks for nothing, whatever its text."""
    reaction: str | None = None
    """The sign that it puts under the quoted message."""
    is_unreadable: bool = False
    """It came, but its words could not be decrypted."""


class GroupMember(_Said):
    jid: str
    name: str = ""
    is_admin: bool = False


class SeenGroup(_Said):
    jid: str
    name: str
    members: tuple[GroupMember, ...] = ()


# From the bridge


class BridgeResponse(_Said):
    """What came of a request. `code` says why not: `down` may work later, `refused` never will."""

    kind: Literal["answer"] = "answer"
    id: int
    ok: bool = True
    code: Literal["", "down", "refused"] = ""
    text: str = ""


class Delivered(_Said):
    """A message that came in; it comes again until it is `MessageAcknowledged`."""

    kind: Literal["message"] = "message"
    n: int
    message: BridgeMessage


class StateReport(_Said):
    kind: Literal["state"] = "state"
    state: State
    reason: str = ""
    jid: str = ""
    until_ms: int = 0


class GroupsReport(_Said):
    kind: Literal["groups"] = "groups"
    groups: tuple[SeenGroup, ...]
    is_all: bool = False


class Receipt(_Said):
    """Proof from outside that the line works."""

    kind: Literal["receipt"] = "receipt"
    at_ms: int


class PairingCode(_Said):
    """A QR code (or, by phone number, the eight letters) and how long it holds."""

    kind: Literal["code"] = "code"
    qr: str = ""
    letters: str = ""
    seconds: int


class PairingEnd(_Said):
    kind: Literal["paired"] = "paired"
    ok: bool
    jid: str = ""
    text: str = ""


# From the host


class SendRequest(_Said):
    """Send once. `mark` is the id that the host knows the message by; `earlier` are the ids under which
    the messenger may have taken it already."""

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
    """What it answers; `author` is an address here."""
    mention: str = ""
    """The address of a person who stands in the text by number, as `@4917…`."""


class React(_Said):
    """Put a sign under a message, or take it away with an empty one."""

    kind: Literal["react"] = "react"
    id: int
    chat: str
    message: str
    author: str
    sign: str


class TypingRequest(_Said):
    kind: Literal["typing"] = "typing"
    id: int
    chat: str
    is_typing: bool


class DownloadRequest(_Said):
    """Fetch a file to `to`. The answer is `down` when it has not come within `seconds`."""

    kind: Literal["download"] = "download"
    id: int
    ref: str
    to: str
    limit: int
    seconds: float


class Read(_Said):
    """A message whose sender is to see that it was read."""

    chat: str
    message: str
    author: str


class MessageAcknowledged(_Said):
    """The host has the message `n` for good."""

    kind: Literal["taken"] = "taken"
    n: int
    read: Read | None = None


class SyncGroups(_Said):
    kind: Literal["groups"] = "groups"
    id: int


FromBridge = Annotated[
    BridgeResponse | Delivered | StateReport | GroupsReport | Receipt | PairingCode | PairingEnd,
    Field(discriminator="kind"),
]
FromHost = Annotated[
    SendRequest | React | TypingRequest | DownloadRequest | MessageAcknowledged | SyncGroups,
    Field(discriminator="kind"),
]

_from_bridge: TypeAdapter[FromBridge] = TypeAdapter(FromBridge)
_from_host: TypeAdapter[FromHost] = TypeAdapter(FromHost)


def line_of(said: BaseModel) -> bytes:
    return said.model_dump_json(exclude_defaults=False).encode() + b"\n"


def from_bridge(line: bytes) -> FromBridge:
    """Read a line of the bridge. Raises `BadBridgeLine`."""
    try:
        return _from_bridge.validate_json(line)
    except ValidationError as error:
        raise BadBridgeLine(f"The WhatsApp process said what it should not: {_first(error)}") from error


def from_host(line: bytes) -> FromHost:
    """Read a line of the host. Raises `BadBridgeLine`."""
    try:
        return _from_host.validate_json(line)
    except ValidationError as error:
        raise BadBridgeLine(_first(error)) from error


def _first(error: ValidationError) -> str:
    found = error.errors(include_input=False, include_url=False)[0]
    return f"{'.'.join(str(part) for part in found['loc'])}: {found['msg']}"
