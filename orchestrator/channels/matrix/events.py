"""Read the events of a room as messages. Pure.

An event is the homeserver's JSON, decrypted if it was encrypted. Its sender controls everything except
`sender`, `event_id` and `origin_server_ts`.
"""

from __future__ import annotations

import html
import re
from collections.abc import Collection
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal
from urllib.parse import unquote

from orchestrator.channels.matrix.content import MESSAGE_ID_KEY, POLL
from orchestrator.domain.polls import VOTE

POLL_START = f"{POLL}.start"
POLL_END = f"{POLL}.end"
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
MAX_EMOJI_CHARS = 20
MAX_KIND_CHARS = 80
MAX_OPTIONS, MAX_MENTIONS = 50, 200
STICKER = "sticker"
NOTICE = "notice of a program"
UNKNOWN_KIND = "of a kind that cannot be read"
VERIFICATION = "device verification"
_INVISIBLE_KINDS = (
    "m.call.",
    "org.matrix.msc3401.call.",
    "m.key.verification.",
    "m.beacon",
    "org.matrix.msc3672.beacon",
)
"""Events between clients, which people are not shown."""
_QUOTE_FALLBACK = re.compile(r"\A> (?:\* )?<@[^\n]*\n(?:> [^\n]*\n)*+\n")
"""The quoted text that older clients put before a reply: it begins with the quoted account."""
_GEO = re.compile(r"geo:(-?\d{1,3}(?:\.\d{1,20})?),(-?\d{1,3}(?:\.\d{1,20})?)")
_ACCOUNT_LINK = re.compile(
    r'<a [^>]{0,200}?href="https://matrix\.to/#/(@|%40)([^"?]{1,255})[^"]{0,200}"[^>]{0,200}>([^<]{0,200})</a>'
)
_URI = re.compile(
    r"mxc://(?:[A-Za-z0-9][A-Za-z0-9.-]{0,229}|\[[0-9A-Fa-f:.]{2,45}\])(?::\d{1,5})?"
    r"/[A-Za-z0-9_=-][A-Za-z0-9_.=-]{0,254}"
)
"""A server's name and an id, as specified: other characters could change the path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixFile:
    """A file that an event names: its properties, as `channels.attachments.FileFacts`, and its address."""

    kind: str
    mime: str
    name: str
    size: int
    seconds: int
    uri: str
    """`mxc://server/id`."""
    key: dict[str, Any] | None = None
    """The key that decrypts the file, in an encrypted room."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoomMessage:
    """A message, edit, redaction or reaction in a room."""

    event_id: str
    sender: str
    sent_ms: int
    text: str = ""
    file: MatrixFile | None = None
    answers: str = ""
    """The event that it answers, or reacts to."""
    thread: str = ""
    """The first event of its thread."""
    edits: str = ""
    redacts: str = ""
    emoji: str = ""
    """The emoji that it puts under the event that it answers."""
    mentions: frozenset[str] = frozenset()
    linked_accounts: tuple[tuple[str, str], ...] = ()
    """The accounts that its links lead to, each with the name that the link shows."""
    ignored: str = ""
    """The reason why this message never triggers the agent; empty if it may."""
    chosen: tuple[str, ...] | None = None
    """The ids of the answers that a vote chooses in the poll that it answers; None if it is no vote."""
    compares_keys_with: str = ""
    """The account that it asks for a comparison of keys."""
    is_unreadable: bool = False


def read_event(event: dict[str, Any]) -> RoomMessage | None:
    """Return the message in an event of a room; None if the event has nothing that people are shown.

    An event without a valid time gets the time -1.
    """
    event_id, sender = _valid_id(event.get("event_id")), _valid_id(event.get("sender"))
    content = event.get("content")
    # An event with a `state_key` sets a property of the room, such as its name, and is no message.
    if not event_id or not sender or not isinstance(content, dict) or "state_key" in event:
        return None
    sent_ms = event.get("origin_server_ts")
    common_fields: dict[str, Any] = {
        "event_id": event_id,
        "sender": sender,
        "sent_ms": sent_ms if isinstance(sent_ms, int) and not isinstance(sent_ms, bool) else -1,
    }
    kind_fields = _fields_of_kind(event, str(event.get("type")), content)
    return RoomMessage(**common_fields, **kind_fields) if kind_fields else None


def _fields_of_kind(event: dict[str, Any], kind: str, content: dict[str, Any]) -> dict[str, Any] | None:
    """Return the fields of `RoomMessage` that depend on the event's kind; None if the event is to be ignored.

    Ignored are deleted events, events between clients (`_INVISIBLE_KINDS`), and deletions, edits and
    reactions that name no target or have no content.
    """
    if "redacted_because" in _json_object(event.get("unsigned")):
        return None  # it was deleted, and its content is gone
    match kind:
        case "m.room.message":
            return _message_fields(content)
        case "m.reaction":
            return _reaction_fields(content)
        case "m.room.redaction":
            # The field moved into the content with room version 11.
            target = _valid_id(event.get("redacts")) or _valid_id(content.get("redacts"))
            return {"redacts": target} if target else None
        case "m.room.encrypted":
            return {"is_unreadable": True}  # still encrypted: it could not be decrypted
        case "m.sticker":
            label = _text(content)
            return {
                "text": f"[sticker: {label}]" if label else "[sticker]",
                "file": file_of(content, STICKER),
            }
    if kind.startswith(_INVISIBLE_KINDS):
        return None
    return _poll_fields(kind, content) or _unknown_fields(kind, content)


def _unknown_fields(kind: str, content: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of `RoomMessage` for an event of an unknown kind, which never triggers the agent.

    Its text is the event's own or, if that has none, a text that names the kind.
    """
    own_text = _text(content) or _extensible_text(content)
    text = own_text or f"[something that cannot be read here: {kind[:MAX_KIND_CHARS]}]"
    return {"text": text, "ignored": UNKNOWN_KIND}


def _poll_fields(kind: str, content: dict[str, Any]) -> dict[str, Any] | None:
    """Return the fields of `RoomMessage` for a poll, a vote or the end of a poll; None for any other event.

    A vote or the end of a poll never triggers the agent; its field `answers` is the event of the poll, not
    the options of a vote. Events of the proposal (MSC3381) are read as well as those of the accepted
    specification.
    """
    if kind == "m.poll.response" or f"{POLL}.response" in content or "m.poll.response" in content:
        fields = {"text": "[voted in a poll]", "ignored": VOTE, "answers": _referenced_event(content)}
        return {**fields, "chosen": _chosen(content)}
    # The proposal calls a poll's start `….start`; the accepted specification has no such ending.
    for start_key, end_key in (("m.poll", "m.poll.end"), (f"{POLL}.start", f"{POLL}.end")):
        if isinstance(content.get(start_key), dict):
            return {"text": _poll_text(content[start_key])}
        if end_key in content:
            return {"text": "[closed a poll]", "ignored": VOTE, "answers": _referenced_event(content)}
    return None


def _chosen(content: dict[str, Any]) -> tuple[str, ...] | None:
    """Return the ids of the answers that a vote chooses, each once; None if the vote has no list of answers.

    An id that is no text or too long is left out, and so are those beyond `MAX_OPTIONS`.
    """
    # The place of the proposal (MSC3381), else that of the accepted specification.
    proposal_ids = _json_object(content.get(f"{POLL}.response")).get("answers")
    answer_ids = proposal_ids if isinstance(proposal_ids, list) else content.get("m.selections")
    if not isinstance(answer_ids, list):
        return None
    valid_ids = (
        answer_id
        for answer_id in answer_ids[:MAX_OPTIONS]
        if isinstance(answer_id, str) and len(answer_id) <= MAX_ID_CHARS
    )
    return tuple(dict.fromkeys(valid_ids))


def _poll_text(poll: dict[str, Any]) -> str:
    """Return a poll as text: its question, then a line for each option."""
    answers = poll.get("answers")
    options = (
        [_extensible_text(answer) for answer in answers[:MAX_OPTIONS]] if isinstance(answers, list) else []
    )
    return "\n".join(
        [f"[poll] {_extensible_text(poll.get('question'))}", *(f"- {option}" for option in options if option)]
    )


def _referenced_event(content: dict[str, Any]) -> str:
    """Return the id of the event that a vote or the end of a poll refers to; empty if there is none."""
    return _valid_id(_json_object(content.get("m.relates_to")).get("event_id"))


def _extensible_text(value: object) -> str:
    """Return the text of an extensible event (MSC1767) or of a part of one; empty if it has no text."""
    table = _json_object(value)
    # A text is a string, an object with a `body`, or a list of such objects, each in another format.
    for field in ("m.text", "org.matrix.msc1767.text", "body"):
        text = table.get(field)
        if isinstance(text, list):
            plain = (each for each in map(_json_object, text) if each and _is_plain(each))
            text = next(plain, text[0] if text else None)
        if isinstance(text, dict):
            text = text.get("body")
        if isinstance(text, str) and text.strip():
            return text[:MAX_TEXT_CHARS]
    return ""


def _is_plain(part: dict[str, Any]) -> bool:
    """Return whether a part of an extensible text is plain text, as is one without a type."""
    return bool(part.get("mimetype", "text/plain") == "text/plain")


def replacement_of(event: dict[str, Any]) -> str:
    """Return the id of the new room if an event reports that its room was replaced; else an empty text."""
    # By the specification, only an event with an empty `state_key` replaces the room.
    if event.get("type") != "m.room.tombstone" or event.get("state_key") != "":
        return ""
    return _valid_id(_json_object(event.get("content")).get("replacement_room"))


def with_call(text: str, names: Collection[str], *, call_text: str) -> str:
    """Return a text that begins with `call_text` in place of one of Andy's `names`.

    Clients write a mention as the name: with the name `Andy Bot` and the call `@Andy`, `Andy Bot: hello`
    becomes `@Andy hello`. A text that starts with none of the names is returned unchanged.
    """
    # Longer names first: one name may be the beginning of another.
    for name in sorted(filter(None, names), key=len, reverse=True):
        text_after_name = text[len(name) :]
        # "Andyman" does not mention Andy.
        is_whole_word = not text_after_name[:1].isalnum()
        if text[: len(name)].casefold() == name.casefold() and is_whole_word:
            return f"{call_text} {text_after_name.lstrip(' ,:')}".rstrip()
    return text


def host_id_of(event: dict[str, Any]) -> str:
    """Return the host's id of a message that Andy sent as this event; empty if the event has none.

    Anyone can write such an id into an event: it counts only in one that Andy's account has sent.
    """
    return _valid_id(_json_object(event.get("content")).get(MESSAGE_ID_KEY))


def match_own_message(
    event: dict[str, Any], message_id: str, *, since_ms: int
) -> Literal["yes", "perhaps", "no", "too_old"]:
    """Return whether an event of Andy's own is the message with the host's id `message_id`.

    "perhaps": the event was redacted, and has lost the id of its message. "too_old": the event was sent
    before `since_ms`, in epoch milliseconds, and is not the message.
    """
    is_message = _json_object(event.get("content")).get(MESSAGE_ID_KEY) == message_id
    if is_message and _valid_id(event.get("event_id")):
        return "yes"
    sent_ms = event.get("origin_server_ts")
    if isinstance(sent_ms, int) and sent_ms < since_ms:
        return "too_old"
    return "perhaps" if "redacted_because" in _json_object(event.get("unsigned")) else "no"


def is_join_of(event: dict[str, Any], user_id: str) -> bool:
    """Return whether an event reports that the account `user_id` joined the room and was not in it before.

    Such an event is also sent when a member changes their name or picture: then the account was in the room
    before.
    """
    before = _json_object(_json_object(event.get("unsigned")).get("prev_content"))
    return (
        event.get("type") == "m.room.member"
        and event.get("state_key") == user_id
        and _json_object(event.get("content")).get("membership") == "join"
        and before.get("membership") != "join"
    )


def _message_fields(content: dict[str, Any]) -> dict[str, Any] | None:
    """Return the fields of `RoomMessage` for a message or an edit.

    None for an edit without a text, or without the id of the edited message. A message of an unknown kind
    gets a text that says so. A message that never triggers the agent has the reason in `ignored`.
    """
    relation = _json_object(content.get("m.relates_to"))
    if relation.get("rel_type") == "m.replace":
        target, new = _valid_id(relation.get("event_id")), _json_object(content.get("m.new_content"))
        text = _text(new)
        if not target or not text:
            return None
        # Either kind counts: the new text of a notice may lack its own, or have another.
        kinds = content.get("msgtype"), new.get("msgtype")
        ignored = _ignored_fields("m.notice" if "m.notice" in kinds else str(kinds[1]), new)
        return {"edits": target, "text": text, "mentions": _mentions(new), **ignored}
    kind = str(content.get("msgtype"))
    file = file_of(content, KINDS.get(kind))
    text = _caption(content) if file else _text(content)
    if kind == "m.location":
        text = _location_text(content, text)
    if not text and file is None:
        return _unknown_fields(kind, content)
    answered = _valid_id(_json_object(relation.get("m.in_reply_to")).get("event_id"))
    is_thread = relation.get("rel_type") == "m.thread"
    if is_thread and relation.get("is_falling_back"):
        # Clients without threads show a message in a thread as an answer to the thread's last message.
        answered = ""
    if answered:
        # Older clients put the quoted text before the answer, as lines that begin with `> `.
        text = _QUOTE_FALLBACK.sub("", text, count=1)
    return {
        "text": text,
        "file": file,
        "answers": answered,
        "thread": _valid_id(relation.get("event_id")) if is_thread else "",
        "mentions": _mentions(content),
        "linked_accounts": tuple(_linked_accounts(content).items()),
        **_ignored_fields(kind, content),
    }


def _ignored_fields(kind: str, content: dict[str, Any]) -> dict[str, str]:
    """Return the fields of `RoomMessage` by which a message never triggers the agent; empty if it may.

    Notices, which programs write, and requests to compare keys never trigger it. For a request, the fields
    also name the account with which the sender wants to compare keys. `kind` is the `msgtype`.
    """
    if kind == "m.notice":
        # The specification forbids answers to notices: two programs would answer each other without end.
        return {"ignored": NOTICE}
    if kind == "m.key.verification.request":
        return {"ignored": VERIFICATION, "compares_keys_with": _valid_id(content.get("to"))}
    return {}


def _location_text(content: dict[str, Any], text: str) -> str:
    """Return the text of a location: its coordinates and `text`, or `text` alone if they are not valid."""
    uri = content.get("geo_uri") or _json_object(content.get("org.matrix.msc3488.location")).get("uri")
    coordinates = _GEO.match(uri) if isinstance(uri, str) else None  # `geo:48.1,11.5` → 48.1, 11.5
    return f"[place] {coordinates[1]}, {coordinates[2]} {text}".rstrip() if coordinates else text


def _reaction_fields(content: dict[str, Any]) -> dict[str, Any] | None:
    """Return the fields of `RoomMessage` for a reaction.

    None if the relation is not a reaction, or lacks the emoji or the id of the event that it reacts to.
    """
    relation = _json_object(content.get("m.relates_to"))
    target, emoji = _valid_id(relation.get("event_id")), relation.get("key")
    if relation.get("rel_type") != "m.annotation" or not target or not isinstance(emoji, str) or not emoji:
        return None
    return {"answers": target, "emoji": emoji[:MAX_EMOJI_CHARS]}


def file_of(content: dict[str, Any], kind: str | None) -> MatrixFile | None:
    """Return the file that a message's content names; None if it names no valid one, or if `kind` is None.

    `kind` is the kind in words, such as `image`; None for a message that is not about a file.
    """
    if kind is None:
        return None
    # In an encrypted room, `file` has the address and the key; in other rooms, `url` is the address.
    encrypted = content.get("file")
    key = encrypted if isinstance(encrypted, dict) else None
    uri = key.get("url") if key else content.get("url")
    if not isinstance(uri, str) or not _URI.fullmatch(uri):
        return None
    info = _json_object(content.get("info"))
    name = content.get("filename") or content.get("body")
    return MatrixFile(
        kind="voice note" if VOICE in content else kind,
        mime=str(info.get("mimetype") or "application/octet-stream")[:100],
        name=name[:200] if isinstance(name, str) and VOICE not in content else "",
        size=_whole_number(info.get("size")),
        seconds=_whole_number(info.get("duration")) // 1000,
        uri=uri,
        key=key,
    )


def _caption(content: dict[str, Any]) -> str:
    """Return the text beside a file; empty if the message has only the file's name."""
    # Without `filename` the body is the file's name; with a different `filename`, a caption.
    name = content.get("filename")
    text = _text(content)
    return text if isinstance(name, str) and name != text else ""


def _text(content: dict[str, Any]) -> str:
    """Return the text of a message's content, cut to `MAX_TEXT_CHARS`; empty if there is none.

    `* ` is put before the text of an emote, which says what its sender does.
    """
    body = content.get("body")
    if not isinstance(body, str):
        return ""
    text = body if len(body) <= MAX_TEXT_CHARS else f"{body[:MAX_TEXT_CHARS]}… [cut]"
    return f"* {text}" if content.get("msgtype") == "m.emote" else text


def _mentions(content: dict[str, Any]) -> frozenset[str]:
    """Return the accounts that a message mentions, at most `MAX_MENTIONS`."""
    if "m.mentions" not in content:
        # Older clients mention only by a link in the text.
        return frozenset(_linked_accounts(content))
    users = _json_object(content["m.mentions"]).get("user_ids")
    return (
        frozenset(user for user in users[:MAX_MENTIONS] if isinstance(user, str))
        if isinstance(users, list)
        else frozenset()
    )


def _linked_accounts(content: dict[str, Any]) -> dict[str, str]:
    """Return the accounts to which links in a message's HTML lead, each with the name that the link shows.

    At most `MAX_MENTIONS` links are read, and none in HTML of more than `MAX_TEXT_CHARS`.
    """
    formatted = content.get("formatted_body")
    if not isinstance(formatted, str) or len(formatted) > MAX_TEXT_CHARS:
        return {}
    # The quote of older clients links to the quoted person, and mentions nobody.
    without_quote = formatted.rpartition("</mx-reply>")[2]
    links = islice(_ACCOUNT_LINK.finditer(without_quote), MAX_MENTIONS)
    # Of each link, group 2 is the account without its `@`, and group 3 the shown name.
    return {f"@{unquote(link[2])}": html.unescape(link[3]).strip() for link in links}


def _valid_id(value: object) -> str:
    """Return a value if it can be the id of an event, a room or an account; else an empty text."""
    # A text with half a surrogate pair is refused, because no database accepts it. Texts that `screening` has
    # checked have none.
    is_id = isinstance(value, str) and 0 < len(value) <= MAX_ID_CHARS
    return str(value) if is_id and value == str(value).encode("utf-8", "replace").decode() else ""


def _json_object(value: object) -> dict[str, Any]:
    """Return a value if it is a JSON object, else an empty one: its sender may write anything."""
    return value if isinstance(value, dict) else {}


def _whole_number(value: object) -> int:
    """Return a value if it is a whole number from 0 on and below 2**53, else 0."""
    is_number = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53
    return int(value) if is_number else 0  # type: ignore[call-overload]
