"""Apply an edit or a deletion to a message that came in before.

While no agent has read the message, its text is replaced or removed, and a turn that no message asks for any
more is withdrawn. Once an agent has read it, nothing is asked again: an edit is stored as a note that the
agent reads with the next question; deleted text is removed from the store and from the stored conversation,
but the agent's replies to it stay.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from orchestrator.domain.values import (
    Group,
    Inbound,
    Message,
    Quote,
    Role,
    Turn,
    TurnId,
    TurnKind,
    TurnState,
)
from orchestrator.groups import people
from orchestrator.store.conversation import messages, outbox, polls
from orchestrator.store.database import Tx
from orchestrator.store.runs import sessions, turns

NOT_ITS_SENDER = "not by its sender"
UNKNOWN = "of a message that is not known"
DELETED = "deleted by its sender"
DELETED_BY_OTHERS = "deleted by a moderator"
WITHDRAWN = "withdrawn: every message that asked was deleted or asks for nothing any more"
EDIT_OF_READ = "edit of a message that was read"
ASKED_IN_ANOTHER_TURN = "its new words are asked in another turn"
FILE_CAME = "its file came, or never will"


@dataclass(frozen=True, slots=True, kw_only=True)
class Amendment:
    """The effect of an edit or a deletion.

    `message` is the target as it was before, None if nothing was changed; `turn_id` is the turn that changed.
    """

    reason: str
    message: Message | None = None
    turn_id: TurnId | None = None


async def delete(tx: Tx, message: Inbound, *, now_ms: int) -> Amendment:
    """Remove the text of the stored message that `message` deletes, and that of its edits; return the effect.

    Only the sender of a message or a moderator of the chat may delete it. The returned effect is that on the
    message itself or, if only edits of it are stored, on the last edit.
    """
    assert message.deletes is not None
    target = await messages.find(tx, message.chat_jid, message.deletes)
    amendment = Amendment(reason=UNKNOWN)
    if target is not None:
        amendment = await _delete(tx, message, target, now_ms=now_ms)
    for edited in await messages.edits_of(tx, message.chat_jid, message.deletes):
        of_edit = await _delete(tx, message, edited, now_ms=now_ms)
        if target is None:
            amendment = of_edit
    return amendment


async def _delete(tx: Tx, message: Inbound, target: Message, *, now_ms: int) -> Amendment:
    """Remove the text of the message `target`, if the sender of `message` may delete it; return the effect.

    They may if they wrote it, or if the messenger reports them as a moderator (`is_moderated`).

    If the target belongs to a turn (a question to the agent), it is noted that the text is to be removed from
    the stored conversation. If that turn is still queued, the target leaves it, and the turn is withdrawn if
    no other message in it asks for anything.
    """
    is_own = target.sender in await people.addresses_of(tx, message.sender)
    if not is_own and not message.is_moderated:
        return Amendment(reason=NOT_ITS_SENDER)
    reason = DELETED if is_own else DELETED_BY_OTHERS
    await messages.blank(tx, target)
    turn_id = target.turn_id
    if target.is_bot_message:
        # The row of a message of Andy's own names no turn: its entry in the outbox names it.
        turn_id = await outbox.blank(tx, target.id)
    turn = await turns.get(tx, turn_id) if turn_id is not None else None
    if turn is not None:
        await sessions.note_deletion(tx, turn.folder, turn.id, target.seq)
    # Only a queued turn of a chat can lose a message: an agent has read the messages of one that has begun.
    if turn is None or turn.state is not TurnState.QUEUED or turn.kind is not TurnKind.CHAT:
        return Amendment(reason=reason, message=target)
    # A message of Andy's own is something that the turn sent, and not one of the messages that it answers.
    if target.is_bot_message:
        return Amendment(reason=reason, message=target)
    await messages.release(tx, target.seq, reason=reason)
    await _withdraw_if_unrequested(tx, turn, now_ms=now_ms)
    return Amendment(reason=reason, message=target, turn_id=turn.id)


async def edit(
    tx: Tx,
    message: Inbound,
    group: Group,
    *,
    is_request: bool,
    now_ms: int,
    restricted_to: Role | None = None,
) -> Amendment | Inbound:
    """Apply an edit to the stored message that `message` edits.

    As long as no agent has read that message, its text is replaced. Once an agent has read it, or if it is
    not stored, the edit becomes a message of its own. Only the sender of the message may edit it.

    Args:
        tx: the transaction.
        message: the edit, with the new text.
        group: the group of the chat.
        is_request: whether the new text asks the agent for something.
        now_ms: the present time, in epoch milliseconds.
        restricted_to: the sender's role if its rights are restricted, so that the new text joins no turn of
            other people; None if they are not.

    Returns:
        An `Amendment` when all is done, or when the edit is refused; otherwise a message that the caller has
        to store, beside the edited one or in its place.
    """
    assert message.edits is not None
    target = await messages.find(tx, message.chat_jid, message.edits)
    if target is None:
        return message
    if target.sender not in await people.addresses_of(tx, message.sender):
        return Amendment(reason=NOT_ITS_SENDER)
    turn = await turns.get(tx, target.turn_id) if target.turn_id is not None else None
    if turn is not None and turn.state is TurnState.QUEUED:
        # No agent has read the message, and it waits in a turn. With other rights than the turn has, the new
        # text asks in a turn of its own: it neither gains rights nor takes any from others.
        if is_request and restricted_to != (turn.role if turn.is_restricted else None):
            in_its_place = await _in_place_of(tx, message, target)
            await messages.release(tx, target.seq, reason=ASKED_IN_ANOTHER_TURN)
            await _withdraw_if_unrequested(tx, turn, now_ms=now_ms)
            return in_its_place
        await messages.rewrite(tx, target.seq, message.text, is_request=is_request)
        if turn.kind is TurnKind.CHAT:
            await _withdraw_if_unrequested(tx, turn, now_ms=now_ms)
        return Amendment(reason="edited", message=target, turn_id=turn.id)
    if turn is None and not await is_read(tx, target, group):
        # A message that now asks for something takes the place of the old one at the end of the conversation.
        if is_request:
            return await _in_place_of(tx, message, target)
        await messages.rewrite(tx, target.seq, message.text, is_request=False)
        return Amendment(reason="edited", message=target)
    return _with_earlier_text(message, target, was_asked_in_turn=turn is not None)


async def _in_place_of(tx: Tx, message: Inbound, target: Message) -> Inbound:
    """Return an edit as a new message for the end of the conversation, which replaces the one it edits.

    It has the id of that message, `target`, by which later edits, deletions and replies name it, and the
    file, which may still be fetched. Some messengers send an edit without the quoted message and the thread:
    it has the quote of `target`, or else its own, and its own thread, or else that of `target`. The stored
    `target` gets the id of the edit instead, and loses its text.
    """
    stored_thread = await messages.free_id_for_edit(tx, target, message.id)
    return replace(
        message,
        id=target.id,
        edits=None,
        file=target.file,
        file_until_ms=target.file_until_ms,
        # The quote of `target` first: the file of a quoted message is not fetched again for an edit.
        quote=target.quote or message.quote,
        thread=message.thread or stored_thread,
    )


async def _withdraw_if_unrequested(tx: Tx, turn: Turn, *, now_ms: int) -> None:
    """End a queued turn in which no message asks for anything any more, and which reports no ended poll.

    A turn is a question to the agent. Its messages stay stored, as context for later ones.
    """
    if not (await messages.requests_of(tx, turn.id, limit=1) or await polls.ended_in(tx, turn.id)):
        await messages.release_all(tx, turn.id, reason=WITHDRAWN)
        await turns.settle(tx, turn.id, TurnState.ANSWERED, reason=WITHDRAWN, now_ms=now_ms)


async def is_read(tx: Tx, target: Message, group: Group) -> bool:
    """Return whether an agent was shown a message, in an earlier turn of its group or in the present one.

    The message has to be one that asked nothing itself and belongs to no turn.
    """
    if target.seq <= await sessions.cursor_of(tx, group.folder):
        return True
    running = await turns.running_of(tx, group.folder)
    return running is not None and running.last_seq is not None and target.seq <= running.last_seq


def _with_earlier_text(message: Inbound, target: Message, *, was_asked_in_turn: bool) -> Inbound:
    """Return an edit as a message of its own, which quotes the earlier text of the message `target`. Pure.

    If the target was part of a question that an agent has read (`was_asked_in_turn`), the edit is only a note
    that asks for nothing again. If an agent has only seen it beside a question, the edit may ask something.
    """
    before = Quote(message_id=target.id, sender=target.sender_name, text=target.text)
    if was_asked_in_turn:
        return replace(message, text=f"[edited] {message.text}", quote=before, ignored=EDIT_OF_READ)
    return replace(message, quote=before)
