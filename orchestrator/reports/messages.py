"""Reports the messages of a group with the outcome of each, as rows for machines and lines for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, TypedDict
from zoneinfo import ZoneInfo

from orchestrator.base.clock import local_second
from orchestrator.base.tables import short
from orchestrator.domain.values import Message, Turn, TurnId, TurnState
from orchestrator.store.conversation import chats, messages, outbox
from orchestrator.store.database import Tx
from orchestrator.store.groups import groups
from orchestrator.store.runs import turns

DELETED = "(its text was deleted)"


class QuoteView(TypedDict):
    """The message that another one quotes."""

    id: str
    sender: str
    text: str


class MessageView(TypedDict):
    """A message of a group, with its state."""

    seq: int
    id: str
    at_ms: int
    received_ms: int
    sender: str
    is_andy: bool
    text: str
    quote: QuoteView | None
    turn: Annotated[int | None, "The turn that answers the message or, for one of Andy's, that wrote it."]
    state: Annotated[str, "queued, running, answered, failed, ignored, or said (by Andy)."]
    attempt: int | None
    reason: str | None
    place: Annotated[int | None, "The place of the turn in the queue, counted from 1."]
    outcome: Annotated[str, "The state and its reason, for people."]
    file: Annotated[
        str | None, "The name of the file that Andy sent with it: GET /api/messages/{group}/{id}/file."
    ]
    chat: Annotated[str, "The address of the chat that has the message."]
    chat_label: Annotated[str | None, "The name of that chat, if the group has several; else null."]


async def rows(
    tx: Tx, folder: str, *, limit: int, before_seq: int | None = None, after_seq: int | None = None
) -> list[MessageView]:
    """Return at most `limit` messages of a group, oldest first, each with what became of it.

    They are the newest messages, or those right before the number `before_seq`, or those right after the
    number `after_seq`. `chat_label` of a row is None unless the group has several chats.

    Raises:
        UnknownGroup: there is no such group.
    """
    group = await groups.known(tx, folder)
    page = await messages.page(tx, group.folder, limit=limit, before_seq=before_seq, after_seq=after_seq)
    group_chats = await chats.of_group(tx, group) if len(group.chats) > 1 else []
    labels = {chat.jid: chat.label for chat in group_chats}
    turns_of_own = await messages.turns_of_own(tx, page)
    ids = {message.turn_id for message in page if message.turn_id is not None}
    turns_by_id = {turn.id: turn for turn in await turns.by_ids(tx, ids)}
    is_queued = any(turn.state is TurnState.QUEUED for turn in turns_by_id.values())
    # Places are counted over all queued turns, so only if a message of this page waits.
    places = await turns.queue_positions(tx) if is_queued else {}
    files = await outbox.file_names(tx, [message.id for message in page if message.is_bot_message])
    return [
        _row(
            message,
            turns_by_id,
            turns_of_own,
            places,
            file=files.get(message.id),
            chat_label=labels.get(message.chat_jid),
        )
        for message in page
    ]


def _row(
    message: Message,
    turns_by_id: Mapping[TurnId, Turn],
    turns_of_own: Mapping[int, int],
    places: Mapping[TurnId, int],
    *,
    file: str | None,
    chat_label: str | None,
) -> MessageView:
    """Return a message as the API and `--json` show it.

    `turns_of_own` maps the `seq` of each of Andy's own messages to the turn that sent it; `places` maps
    queued turns to their places in the queue, from 1. `file` is the name of the file that Andy sent with the
    message. `chat_label` is the name of its chat in a group with several.
    """
    turn = turns_by_id.get(message.turn_id) if message.turn_id is not None else None
    quote = message.quote
    return {
        "seq": message.seq,
        "id": message.id,
        "chat": message.chat_jid,
        "at_ms": message.sent_ms,
        "received_ms": message.received_ms,
        "sender": message.sender_name,
        "is_andy": message.is_bot_message,
        "text": message.text,
        "quote": {"id": quote.message_id, "sender": quote.sender, "text": quote.text} if quote else None,
        "turn": turn.id if turn else turns_of_own.get(message.seq),
        "state": _state(turn, message),
        "attempt": turn.attempt if turn else None,
        "reason": _reason(turn, message),
        "place": places.get(turn.id) if turn else None,
        "outcome": _outcome(turn, message),
        "file": file,
        "chat_label": chat_label,
    }


def _state(turn: Turn | None, message: Message) -> str:
    """Return the state of a message's turn; without a turn, `said` if Andy sent it, else `ignored`."""
    if turn is not None:
        return turn.state.value
    return "said" if _is_own(message) else "ignored"


def _reason(turn: Turn | None, message: Message) -> str | None:
    """Return why a message's turn is in its state, or why it got no turn; None where there is no reason."""
    if turn is not None:
        return turn.reason
    return None if _is_own(message) else message.ignored_reason


def _is_own(message: Message) -> bool:
    """Return whether Andy sent the message."""
    return message.ignored_reason == messages.OWN_MESSAGE


def _outcome(turn: Turn | None, message: Message) -> str:
    """Return in words what became of a message: its turn's state and reason, or why it got no turn.

    `said` for a message that Andy sent.
    """
    if turn is None:
        return "said" if _is_own(message) else f"ignored: {message.ignored_reason}"
    # The reason of a turn that is not over is why it is tried again.
    attempt_text = f", try {turn.attempt}" if turn.ended_ms is None and turn.attempt > 1 else ""
    return f"{turn.state.value}{attempt_text}: {turn.reason}" if turn.reason else turn.state.value


def _sender_and_chat(row: MessageView) -> str:
    """Return who sent a message, and in which chat where the group has several."""
    sender = row["sender"] or "somebody"
    return f"{sender} in {short(row['chat_label'], 40)}" if row["chat_label"] else sender


def lines(rows: list[MessageView], *, zone: ZoneInfo) -> list[str]:
    """Return the messages as lines for people: number, time, sender, text and outcome."""
    if not rows:
        return ["No messages yet."]
    # A deleted message keeps its row and its outcome, without text; a forgotten one also without its sender.
    return [
        f"{row['seq']:>5}  {local_second(row['at_ms'], zone)}  "
        f"{_sender_and_chat(row)}: {short(row['text'] or row['file'] or DELETED, 70)}  [{row['outcome']}]"
        for row in rows
    ]
