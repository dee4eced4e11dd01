"""Read the events of a room as messages. Pure.

An event is the JSON of the homeserver, decrypted where it was encrypted. All in it but `sender`, `event_id`
and `origin_server_ts` was written by its sender, in any shape.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

from orchestrator.channels.matrix.content import MESSAGE_ID

MESSAGE, REACTION, REDACTION, ENCRYPTED = (
    "m.room.message",
    "m.reaction",
    "m.room.redaction",
    "m.room.encrypted",
)
KINDS = {"m.image": "image", "m.video": "video", "m.audio": "audio", "m.file": "document"}
VOICE = "org.matrix.msc3245.voice"
MAX_TEXT_CHARS = 60_000
MAX_ID_CHARS = 255
MAX_SIGN_CHARS = 20
_FALLBACK = re.compile(r"\A(?:> [^\n]*\n)+\n")
"""The quoted words that older clients put before a reply."""
_URI = re.compile(r"mxc://[^/\s?#]{1,255}/[A-Za-z0-9_.=-]{1,255}")


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixFile:
    """A file that an event names: what `channels.attachments.FileFacts` says, and where it is."""

    kind: str
    mime: str
    name: str
    size: int
    seconds: int
    uri: str
    """`mxc://server/id`."""
    key: dict[str, Any] | None = None
    """What decrypts it, in an encrypted room."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoomMessage:
    """A message, edit, redaction or reaction of a room."""

    event_id: str
    sender: str
    sent_ms: int
    text: str = ""
    file: MatrixFile | None = None
    answers: str = ""
    """The event that it answers, or reacts to."""
    thread: str = ""
    """The event that its thread begins with."""
    edits: str = ""
    redacts: str = ""
    sign: str = ""
    """The sign that it puts under the event that it answers."""
    mentions: frozenset[str] = frozenset()
    is_unreadable: bool = False


def read(event: dict[str, Any]) -> RoomMessage | None:
    """Return what an event says, or None where it says nothing to anybody."""
    event_id, sender = _id(event.get("event_id")), _id(event.get("sender"))
    content = event.get("content")
    if not event_id or not sender or not isinstance(content, dict) or "state_key" in event:
        return None
    sent_ms = event.get("origin_server_ts")
    head: dict[str, Any] = {
        "event_id": event_id,
        "sender": sender,
        "sent_ms": sent_ms if isinstance(sent_ms, int) and not isinstance(sent_ms, bool) else -1,
    }
    match event.get("type"):
        case "m.room.message":
            body = _message(content)
        case "m.reaction":
            body = _reaction(content)
        case "m.room.redaction":
            target = _id(event.get("redacts")) or _id(content.get("redacts"))
            body = {"redacts": target} if target else None
        case "m.room.encrypted":
            body = {"is_unreadable": True}
        case _:
            body = None
    return RoomMessage(**head, **body) if body else None


def own_message(
    event: dict[str, Any], message_id: str, *, since_ms: int
) -> Literal["it", "perhaps", "other", "earlier"]:
    """Return whether an event of Andy's own is the message of this id, or from a time before `since_ms`.

    A redacted one has lost its id, and is perhaps it.
    """
    if _table(event.get("content")).get(MESSAGE_ID) == message_id and _id(event.get("event_id")):
        return "it"
    sent_ms = event.get("origin_server_ts")
    if isinstance(sent_ms, int) and sent_ms < since_ms:
        return "earlier"
    return "perhaps" if "redacted_because" in _table(event.get("unsigned")) else "other"


def is_join_of(event: dict[str, Any], user_id: str) -> bool:
    """Return whether an event is that somebody came into a room who was not in it."""
    before = _table(_table(event.get("unsigned")).get("prev_content"))
    return (
        event.get("type") == "m.room.member"
        and event.get("state_key") == user_id
        and _table(event.get("content")).get("membership") == "join"
        and before.get("membership") != "join"
    )


def _message(content: dict[str, Any]) -> dict[str, Any] | None:
    relation = _table(content.get("m.relates_to"))
    if relation.get("rel_type") == "m.replace":
        target, new = _id(relation.get("event_id")), _table(content.get("m.new_content"))
        text = _text(new)
        return {"edits": target, "text": text, "mentions": _mentions(new)} if target and text else None
    file = file_of(content)
    text = _caption(content) if file else _text(content)
    if not text and file is None:
        return None
    answered = _id(_table(relation.get("m.in_reply_to")).get("event_id"))
    is_thread = relation.get("rel_type") == "m.thread"
    if is_thread and relation.get("is_falling_back"):
        # Clients without threads show what is in one as an answer to the last message of it.
        answered = ""
    if answered:
        text = _FALLBACK.sub("", text, count=1)
    return {
        "text": text,
        "file": file,
        "answers": answered,
        "thread": _id(relation.get("event_id")) if is_thread else "",
        "mentions": _mentions(content),
    }


def _reaction(content: dict[str, Any]) -> dict[str, Any] | None:
    relation = _table(content.get("m.relates_to"))
    target, sign = _id(relation.get("event_id")), relation.get("key")
    if relation.get("rel_type") != "m.annotation" or not target or not isinstance(sign, str) or not sign:
        return None
    return {"answers": target, "sign": sign[:MAX_SIGN_CHARS]}


def file_of(content: dict[str, Any]) -> MatrixFile | None:
    """Return the file that a message's content names, or None."""
    kind = KINDS.get(str(content.get("msgtype")))
    if kind is None:
        return None
    encrypted = content.get("file")
    key = encrypted if isinstance(encrypted, dict) else None
    uri = key.get("url") if key else content.get("url")
    if not isinstance(uri, str) or not _URI.fullmatch(uri):
        return None
    info = _table(content.get("info"))
    name = content.get("filename") or content.get("body")
    return MatrixFile(
        kind="voice note" if VOICE in content else kind,
        mime=str(info.get("mimetype") or "application/octet-stream")[:100],
        name=name[:200] if isinstance(name, str) and VOICE not in content else "",
        size=_count(info.get("size")),
        seconds=_count(info.get("duration")) // 1000,
        uri=uri,
        key=key,
    )


def _caption(content: dict[str, Any]) -> str:
    # Without `filename` the body is the file's name; with it, and other than it, a caption.
    name = content.get("filename")
    text = _text(content)
    return text if isinstance(name, str) and name != text else ""


def _text(content: dict[str, Any]) -> str:
    body = content.get("body")
    if not isinstance(body, str):
        return ""
    text = body if len(body) <= MAX_TEXT_CHARS else f"{body[:MAX_TEXT_CHARS]}… [cut]"
    return f"* {text}" if content.get("msgtype") == "m.emote" else text


def _mentions(content: dict[str, Any]) -> frozenset[str]:
    users = _table(content.get("m.mentions")).get("user_ids")
    return (
        frozenset(one for one in users[:200] if isinstance(one, str))
        if isinstance(users, list)
        else frozenset()
    )


def _id(value: object) -> str:
    # Without half a surrogate pair, which no database takes; `screening` has replaced those in events.
    is_id = isinstance(value, str) and 0 < len(value) <= MAX_ID_CHARS
    return str(value) if is_id and value == str(value).encode("utf-8", "replace").decode() else ""


def _table(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _count(value: object) -> int:
    is_number = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53
    return int(value) if is_number else 0  # type: ignore[call-overload]
