"""Put into words what a WhatsApp message says: text, captions, polls, contacts, places. Pure."""

from __future__ import annotations

import hashlib
import re
from base64 import b64encode
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from orchestrator.channels.whatsapp.protocol import MediaKind, MediaReference

if TYPE_CHECKING:
    from neonize.proto.waE2E.WAWebProtobufsE2E_pb2 import Message

MAX_WRAPPERS = 8
MAX_REF_BYTES = 64 * 1024
MAX_SECONDS = 24 * 3600

WRAPPERS = (
    "ephemeralMessage", "viewOnceMessage", "viewOnceMessageV2", "viewOnceMessageV2Extension",
    "documentWithCaptionMessage", "editedMessage", "groupMentionedMessage", "botInvokeMessage",
    "lottieStickerMessage", "associatedChildMessage", "pollCreationMessageV4", "questionMessage",
    "spoilerMessage", "deviceSentMessage",
)  # fmt: skip
POLLS = (
    "pollCreationMessage", "pollCreationMessageV2", "pollCreationMessageV3",
    "pollCreationMessageV5", "pollCreationMessageV6",
)  # fmt: skip
FILES: dict[str, MediaKind] = {
    "imageMessage": "image",
    "videoMessage": "video",
    "ptvMessage": "video",
    "audioMessage": "audio",
    "documentMessage": "document",
    "stickerMessage": "sticker",
}

_PARTS = ("Message", "MessageV2", "MessageV3", "MessageV5", "MessageV6")
_SIDE_PARTS = ("senderKeyDistributionMessage", "protocolMessage")


def unwrapped(message: Message) -> Message:
    """Return the message inside of disappearing, view-once, captioned and edited wrappers."""
    for _ in range(MAX_WRAPPERS):
        inner = next((name for name in WRAPPERS if message.HasField(name)), None)
        if inner is None:
            return message
        message = getattr(message, inner).message
    return message


def body(message: Message) -> Any | None:
    """Return the one part of a message that has its content; None for plain text and for nothing."""
    for descriptor, value in message.ListFields():
        if descriptor.name.endswith(_PARTS) and descriptor.name not in _SIDE_PARTS:
            return value
    return None


def text_of(message: Message) -> str:
    """Return what a reader sees, in words; empty when there is nothing to read."""
    if message.conversation:
        return str(message.conversation)
    for name, words in _WORDS:
        if message.HasField(name):
            return str(words(getattr(message, name))).strip()
    return ""


def media_of(message: Message) -> MediaReference | None:
    """Return the file in a message; None when there is none, or none that could be fetched."""
    for name, kind in FILES.items():
        if message.HasField(name):
            return _media(message, getattr(message, name), kind)
    return None


def _media(message: Message, part: Any, kind: MediaKind) -> MediaReference | None:
    bare = type(message)()
    # The library looks at these alone; thumbnails and context would only make the reference long.
    field = next(name for name in FILES if message.HasField(name))
    target = getattr(bare, "videoMessage" if field == "ptvMessage" else field)
    for name in ("URL", "directPath", "mediaKey", "fileSHA256", "fileEncSHA256", "fileLength", "mimetype"):
        setattr(target, name, getattr(part, name))
    ref = bare.SerializeToString()
    if not part.mediaKey or not (part.directPath or part.URL) or len(ref) > MAX_REF_BYTES:
        return None
    return MediaReference(
        kind="voice note" if kind == "audio" and part.PTT else kind,
        mime=str(part.mimetype)[:100],
        name=str(part.fileName or part.title)[:300] if kind == "document" else "",
        size=int(part.fileLength),
        seconds=min(int(part.seconds), MAX_SECONDS) if kind in ("audio", "video") else 0,
        ref=b64encode(ref).decode(),
    )


def _poll(part: Any) -> str:
    options = [f"- {option.optionName}" for option in part.options]
    return "\n".join([f"[poll] {part.name}", *options])


def _contact(part: Any) -> str:
    numbers = re.findall(
        r"^(?:item\d+\.)?TEL[^:\n]*:([^\r\n]+)", part.vcard, flags=re.MULTILINE | re.IGNORECASE
    )
    return f"[contact] {part.displayName}: {', '.join(one.strip() for one in numbers) or 'no number'}"


def _contacts(part: Any) -> str:
    return "\n".join(_contact(one) for one in part.contacts) or f"[contacts] {part.displayName}"


def _place(part: Any) -> str:
    named = ", ".join(one for one in (part.name, part.address, part.URL) if one)
    return f"[place] {part.degreesLatitude:.6f}, {part.degreesLongitude:.6f} {named}"


def _live_place(part: Any) -> str:
    return f"[live place] {part.degreesLatitude:.6f}, {part.degreesLongitude:.6f} {part.caption}"


def _event(part: Any) -> str:
    place = ", ".join(one for one in (part.location.name, part.location.address) if one)
    lines = (
        f"[event{' called off' if part.isCanceled else ''}] {part.name}",
        " to ".join(_minute(at) for at in (part.startTime, part.endTime) if at),
        f"at {place}" if place else "",
        part.joinLink,
        part.description,
    )
    return "\n".join(line for line in lines if line)


def _minute(seconds: int) -> str:
    """Return `2026-11-28T18:00Z`, or the number itself for a time that no calendar has."""
    try:
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%MZ}"
    except (ValueError, OverflowError, OSError):
        return str(seconds)


def _sticker(part: Any) -> str:
    label = part.accessibilityLabel or part.emojis
    if label:
        return f"[sticker: {label}]"
    return "" if part.mediaKey else "[sticker]"


def poll_of(message: Message) -> Any | None:
    """Return the poll that a message opens, or None."""
    return next((getattr(message, name) for name in POLLS if message.HasField(name)), None)


def chosen(options: Iterable[str], votes: Iterable[bytes]) -> tuple[str, ...]:
    """Return the options of a poll that were voted for; a vote names them by their SHA-256."""
    wanted = set(votes)
    return tuple(one for one in options if hashlib.sha256(one.encode()).digest() in wanted)


def _invite(part: Any) -> str:
    return f"[invitation to the group {part.groupName}] {part.caption}"


_WORDS: tuple[tuple[str, Any], ...] = (
    ("extendedTextMessage", lambda part: str(part.text)),
    *(
        (name, lambda part: str(part.caption))
        for name in ("imageMessage", "videoMessage", "ptvMessage", "documentMessage")
    ),
    *((name, _poll) for name in POLLS),
    ("contactMessage", _contact),
    ("contactsArrayMessage", _contacts),
    ("locationMessage", _place),
    ("liveLocationMessage", _live_place),
    ("eventMessage", _event),
    ("groupInviteMessage", _invite),
    ("stickerMessage", _sticker),
    ("buttonsResponseMessage", lambda part: str(part.selectedDisplayText)),
    ("templateButtonReplyMessage", lambda part: str(part.selectedDisplayText)),
    ("listResponseMessage", lambda part: str(part.title)),
    ("interactiveMessage", lambda part: str(part.body.text)),
    ("interactiveResponseMessage", lambda part: str(part.body.text)),
)
"""How the words of each kind of message are read. A message has one of these parts."""
