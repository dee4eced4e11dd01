"""Convert the content of a WhatsApp message to text: texts, captions, polls, contacts, places and more.

Pure.
"""

from __future__ import annotations

import hashlib
import re
from base64 import b64encode
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Any

from orchestrator.channels.whatsapp.protocol import MediaKind, MediaReference

if TYPE_CHECKING:
    from neonize.proto.waE2E.WAWebProtobufsE2E_pb2 import Message

MAX_WRAPPERS = 8
"""Nested wrappers that are opened; a hostile sender could nest any number."""
MAX_REF_BYTES = 64 * 1024
"""Bytes of a serialized reference to a file; a file with a longer one is left out."""
MAX_SECONDS = 24 * 3600
"""Seconds of the longest duration of a sound or video that is believed; senders state it themselves."""

WRAPPERS = (
    "ephemeralMessage", "viewOnceMessage", "viewOnceMessageV2", "viewOnceMessageV2Extension",
    "documentWithCaptionMessage", "editedMessage", "groupMentionedMessage", "botInvokeMessage",
    "lottieStickerMessage", "associatedChildMessage", "pollCreationMessageV4", "questionMessage",
    "spoilerMessage", "deviceSentMessage", "commentMessage",
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

MAX_DEPTH, MAX_UNKNOWN_TEXTS, MAX_UNKNOWN_CHARS = 3, 20, 1_000
"""Limits on the texts read from a message of an unknown kind: their nesting, number and characters."""
_TEXT_FIELD = re.compile(r"(?:text|title|caption|description|body|note|name|message)$", re.IGNORECASE)
_DEVICE_FIELDS = frozenset({
    "conversation", "senderKeyDistributionMessage", "fastRatchetKeySenderKeyDistributionMessage",
    "messageContextInfo", "protocolMessage", "stickerSyncRmrMessage", "messageHistoryBundle",
    "messageHistoryNotice", "groupRootKeyShare", "rootSecretDistributeMessage", "deviceSentMessage",
    "keepInChatMessage", "pinInChatMessage", "encReactionMessage", "encEventResponseMessage",
    "placeholderMessage", "albumMessage", "call", "chat",
})  # fmt: skip
"""Fields that show people nothing, or that only announce messages which arrive separately."""
_CONTENT_ENDINGS = ("Message", "MessageV2", "MessageV3", "MessageV5", "MessageV6")
"""Endings of the names of fields that have a message's content."""
_FIELDS_WITHOUT_CONTENT = ("senderKeyDistributionMessage", "protocolMessage")
"""Fields whose names have such an ending but which have no content."""


def unwrapped(message: Message) -> Message:
    """Return the innermost message, without wrappers such as those of disappearing and edited messages.

    At most `MAX_WRAPPERS` are opened. Wrappers of kinds that are newer than `WRAPPERS` are recognised by
    their protobuf type.
    """
    for _ in range(MAX_WRAPPERS):
        wrapper = next((field.name for field, _ in message.ListFields() if _is_wrapper(field)), None)
        if wrapper is None:
            return message
        message = getattr(message, wrapper).message
    return message


def _is_wrapper(field: Any) -> bool:
    """Return whether a field of a message contains another message, such as that of a disappearing one."""
    # All wrappers that WhatsApp adds have the type `FutureProofMessage`. So those that are newer than the
    # list `WRAPPERS` are recognised, too.
    return field.name in WRAPPERS or (
        field.message_type is not None and field.message_type.name == "FutureProofMessage"
    )


def unknown_kind(message: Message) -> str:
    """Return the name of a message's content that this module cannot read; empty if it has none.

    The name is that of WhatsApp's field in words, so that kinds which WhatsApp adds later are reported, too:
    `scheduledCallMessageV2` becomes "scheduled call". Fields that show people nothing, those of a status, and
    wrappers of other messages are passed over.
    """
    for field, _ in message.ListFields():
        if field.name in _DEVICE_FIELDS or field.name.startswith("status") or _is_wrapper(field):
            continue
        # One of WhatsApp's own names ends in "Messsage".
        name = re.sub(r"(Messs?age)?(V\d+)?$", "", field.name)
        return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower()
    from google.protobuf.unknown_fields import UnknownFieldSet  # type: ignore[import-untyped]

    # A field that is newer than the library has a number and no name.
    field_numbers = [unknown_field.field_number for unknown_field in UnknownFieldSet(message)]
    return f"kind {field_numbers[0]}" if field_numbers else ""


def text_of_unknown(message: Message) -> str:
    """Return the texts in a message of an unknown kind: those in fields such as `title` or `caption`.

    Each is there once; those beyond `MAX_DEPTH`, `MAX_UNKNOWN_TEXTS` and `MAX_UNKNOWN_CHARS` are left out.
    """
    texts = dict.fromkeys(islice(_texts_in(message, depth=MAX_DEPTH), MAX_UNKNOWN_TEXTS))
    return ", ".join(texts)[:MAX_UNKNOWN_CHARS]


def _texts_in(part: Any, *, depth: int) -> Iterator[str]:
    """Yield the texts in fields such as `title` or `caption` of a part of a message, each on one line.

    Fields inside fields are searched down to `depth` further levels.
    """
    for field, value in part.ListFields():
        is_repeated = not isinstance(value, (str, bytes)) and hasattr(value, "__len__")
        for item in islice(value, MAX_UNKNOWN_TEXTS) if is_repeated else (value,):
            if isinstance(item, str) and _TEXT_FIELD.search(field.name) and item.strip():
                yield " ".join(item.split())
            # `contextInfo` has the quoted message, which somebody else wrote.
            elif depth and hasattr(item, "ListFields") and field.name != "contextInfo":
                yield from _texts_in(item, depth=depth - 1)


def content_part(message: Message) -> Any | None:
    """Return the field of a message that has its content, such as a picture with its caption.

    None for a message that is only plain text, or empty.
    """
    for descriptor, value in message.ListFields():
        if descriptor.name.endswith(_CONTENT_ENDINGS) and descriptor.name not in _FIELDS_WITHOUT_CONTENT:
            return value
    return None


def text_of(message: Message) -> str:
    """Return the content of a message as text: text, caption, poll, contact, place and so on.

    Empty when there is nothing to read.
    """
    if message.conversation:
        return str(message.conversation)
    for name, describe in _TEXT_OF_PART:
        if message.HasField(name):
            return str(describe(getattr(message, name))).strip()
    return ""


def media_of(message: Message) -> MediaReference | None:
    """Return a reference to the file in a message; None if there is none or it cannot be downloaded."""
    for name, kind in FILES.items():
        if message.HasField(name):
            return _media(message, getattr(message, name), kind)
    return None


def _media(message: Message, part: Any, kind: MediaKind) -> MediaReference | None:
    """Return a reference to the file of a message, with the properties that its sender states.

    None if the file cannot be downloaded or the reference would be too long. `part` is the field of the
    message with the file, and `kind` the kind of file that this field has.
    """
    reference_message = type(message)()
    # The library needs only these fields to download; thumbnails and context would only make the reference
    # longer. It does not download a round video (`ptvMessage`), but the same file as a video.
    field = next(name for name in FILES if message.HasField(name))
    target = getattr(reference_message, "videoMessage" if field == "ptvMessage" else field)
    for name in ("URL", "directPath", "mediaKey", "fileSHA256", "fileEncSHA256", "fileLength", "mimetype"):
        setattr(target, name, getattr(part, name))
    ref = reference_message.SerializeToString()
    if not part.mediaKey or not (part.directPath or part.URL) or len(ref) > MAX_REF_BYTES:
        return None
    return MediaReference(
        kind="voice note" if kind == "audio" and part.PTT else kind,  # PTT: push to talk
        mime=str(part.mimetype)[:100],
        name=str(part.fileName or part.title)[:300] if kind == "document" else "",
        size=int(part.fileLength),
        seconds=min(int(part.seconds), MAX_SECONDS) if kind in ("audio", "video") else 0,
        ref=b64encode(ref).decode(),
    )


def _poll(part: Any) -> str:
    """Return a poll as text: its question, then a line for each option."""
    options = [f"- {option.optionName}" for option in part.options]
    return "\n".join([f"[poll] {part.name}", *options])


def _contact(part: Any) -> str:
    """Return a contact as text: its name and the phone numbers in its vCard."""
    # `TEL;type=CELL:+49 170 1234567`, sometimes with `item1.` before it: the number follows the colon.
    numbers = re.findall(
        r"^(?:item\d+\.)?TEL[^:\n]*:([^\r\n]+)", part.vcard, flags=re.MULTILINE | re.IGNORECASE
    )
    return f"[contact] {part.displayName}: {', '.join(number.strip() for number in numbers) or 'no number'}"


def _contacts(part: Any) -> str:
    """Return several contacts as text, a line each."""
    return "\n".join(_contact(contact) for contact in part.contacts) or f"[contacts] {part.displayName}"


def _place(part: Any) -> str:
    """Return a position as text, with its name, address and link if it has them."""
    details = ", ".join(detail for detail in (part.name, part.address, part.URL) if detail)
    return f"[place] {part.degreesLatitude:.6f}, {part.degreesLongitude:.6f} {details}"


def _live_place(part: Any) -> str:
    """Return, as text, the position that a sender shares live, with its caption."""
    return f"[live place] {part.degreesLatitude:.6f}, {part.degreesLongitude:.6f} {part.caption}"


def _event(part: Any) -> str:
    """Return an event of WhatsApp's calendar as text: its name, times, place, link and description."""
    location = ", ".join(line for line in (part.location.name, part.location.address) if line)
    lines = (
        f"[event{' called off' if part.isCanceled else ''}] {part.name}",
        " to ".join(_minute(seconds) for seconds in (part.startTime, part.endTime) if seconds),
        f"at {location}" if location else "",
        part.joinLink,
        part.description,
    )
    return "\n".join(line for line in lines if line)


def _minute(seconds: int) -> str:
    """Return a time in epoch seconds as `2026-11-28T18:00Z`, or the number if no calendar has such a time."""
    try:
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%MZ}"
    except (ValueError, OverflowError, OSError):
        return str(seconds)


def _sticker(part: Any) -> str:
    """Return a sticker as text, by its label or emoji; empty if its file has a text of its own."""
    label = part.accessibilityLabel or part.emojis
    if label:
        return f"[sticker: {label}]"
    # A sticker with a key can be fetched, and is represented by the text for its file.
    return "" if part.mediaKey else "[sticker]"


def poll_of(message: Message) -> Any | None:
    """Return the poll that a message creates, or None."""
    return next((getattr(message, name) for name in POLLS if message.HasField(name)), None)


def chosen_options(options: Iterable[str], votes: Iterable[bytes]) -> tuple[str, ...]:
    """Return those of a poll's `options` that were voted for; `votes` are the SHA-256 hashes of these."""
    chosen_hashes = set(votes)
    return tuple(option for option in options if hashlib.sha256(option.encode()).digest() in chosen_hashes)


def _invite(part: Any) -> str:
    """Return an invitation to a group as text."""
    return f"[invitation to the group {part.groupName}] {part.caption}"


_TEXT_OF_PART: tuple[tuple[str, Any], ...] = (
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
"""The functions that convert each part of a message to text. A message has at most one of these parts."""
