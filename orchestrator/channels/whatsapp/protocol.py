"""Define the lines between the host and the bridge: one JSON document a line, either way."""

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
    """A line of the other side does not follow this protocol."""


class _Line(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class MediaReference(_Line):
    """A file that a message carries. `ref` is what the bridge needs to fetch it."""

    kind: MediaKind
    mime: str
    name: str = ""
    size: int = 0
    seconds: int = 0
    ref: str


class QuotedMessage(_Line):
    """The message that another one answers. `author` is a name, or an address in a `SendRequest`."""

    id: str
    author: str
    is_mine: bool = False
    text: str
    media: MediaReference | None = None


class BridgeMessage(_Line):
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
    """Why it asks for nothing whatever its text is, if it does."""
    reaction: str | None = None
    """The sign that it puts under the quoted message."""
    is_unreadable: bool = False
    """It came, but its words could not be decrypted."""


class GroupMember(_Line):
    """A member of a group, by phone number where that is known."""

    jid: str
    name: str = ""
    is_admin: bool = False


class SeenGroup(_Line):
    """A group that the account is in."""

    jid: str
    name: str
    members: tuple[GroupMember, ...] = ()


# From the bridge


class BridgeResponse(_Line):
    """The result of a request. `code` says why it failed: `down` may work later, `refused` never will."""

    kind: Literal["answer"] = "answer"
    id: int
    ok: bool = True
    code: Literal["", "down", "refused"] = ""
    text: str = ""


class Delivered(_Line):
    """A message that came in; the bridge delivers it again until the host sends `MessageAcknowledged`."""

    kind: Literal["message"] = "message"
    n: int
    message: BridgeMessage


class StateReport(_Line):
    """How the login is now. `until_ms` is the end of a ban, in epoch ms."""

    kind: Literal["state"] = "state"
    state: State
    reason: str = ""
    jid: str = ""
    until_ms: int = 0


class GroupsReport(_Line):
    """Groups that changed, or with `is_all` every group of the account."""

    kind: Literal["groups"] = "groups"
    groups: tuple[SeenGroup, ...]
    is_all: bool = False


class Receipt(_Line):
    """Proof from outside that the line works."""

    kind: Literal["receipt"] = "receipt"
    at_ms: int


class Typing(_Line):
    """Somebody else types in a chat, or records a voice note for it."""

    kind: Literal["typing"] = "typing"
    chat: str


class PairingCode(_Line):
    """A QR code (or, by phone number, the eight letters) and how long it holds."""

    kind: Literal["code"] = "code"
    qr: str = ""
    letters: str = ""
    seconds: int


class PairingEnd(_Line):
    """How pairing ended: as which account, or why not."""

    kind: Literal["paired"] = "paired"
    ok: bool
    jid: str = ""
    text: str = ""


# From the host


class SendRequest(_Line):
    """Send a message once.

    `mark` is the id that the host knows the message by; `earlier` are the ids under which the messenger may
    have taken it already.
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
    """What it answers; `author` is an address here."""
    mention: str = ""
    """The address of a person who stands in the text by number, as `@4917…`."""


class React(_Line):
    """Put a sign under a message, or take it away with an empty one."""

    kind: Literal["react"] = "react"
    id: int
    chat: str
    message: str
    author: str
    sign: str


class TypingRequest(_Line):
    """Show or hide the typing sign in a chat."""

    kind: Literal["typing"] = "typing"
    id: int
    chat: str
    is_typing: bool


class DownloadRequest(_Line):
    """Fetch a file to `to`. The answer is `down` when it has not come within `seconds`."""

    kind: Literal["download"] = "download"
    id: int
    ref: str
    to: str
    limit: int
    seconds: float


class Read(_Line):
    """A message whose sender is to see that it was read."""

    chat: str
    message: str
    author: str


class MessageAcknowledged(_Line):
    """The host has stored the message `n` of the bridge's spool for good."""

    kind: Literal["taken"] = "taken"
    n: int
    read: Read | None = None


class SyncGroups(_Line):
    """Report all groups now."""

    kind: Literal["groups"] = "groups"
    id: int


FromBridge = Annotated[
    BridgeResponse | Delivered | StateReport | GroupsReport | Receipt | Typing | PairingCode | PairingEnd,
    Field(discriminator="kind"),
]
FromHost = Annotated[
    SendRequest | React | TypingRequest | DownloadRequest | MessageAcknowledged | SyncGroups,
    Field(discriminator="kind"),
]

_from_bridge: TypeAdapter[FromBridge] = TypeAdapter(FromBridge, config=ConfigDict(defer_build=True))
_from_host: TypeAdapter[FromHost] = TypeAdapter(FromHost, config=ConfigDict(defer_build=True))


def line_of(document: BaseModel) -> bytes:
    """Return a document as one line."""
    return document.model_dump_json(exclude_defaults=False).encode() + b"\n"


def from_bridge(line: bytes) -> FromBridge:
    """Parse a line of the bridge. Raises `BadBridgeLine`."""
    try:
        return _from_bridge.validate_json(line)
    except ValidationError as error:
        raise BadBridgeLine(f"The WhatsApp process said what it should not: {_first(error)}") from error


def from_host(line: bytes) -> FromHost:
    """Parse a line of the host. Raises `BadBridgeLine`."""
    try:
        return _from_host.validate_json(line)
    except ValidationError as error:
        raise BadBridgeLine(_first(error)) from error


def _first(error: ValidationError) -> str:
    found = error.errors(include_input=False, include_url=False)[0]
    return f"{'.'.join(str(part) for part in found['loc'])}: {found['msg']}"
