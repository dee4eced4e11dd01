"""Count a vote in one of Andy's polls, and decide whether it starts a turn.

A vote is stored as a message that quotes the poll, so that it is part of the conversation; each person's
newest vote counts. A vote starts a turn as a reply would, but only the first vote, a changed one, and the one
that completes the chat do, and at most `MAX_STARTED_TURNS` per poll. Such a turn waits `COLLECT_MS`, so
that it includes votes that follow at once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from orchestrator.domain import polls as poll_rules
from orchestrator.domain.polls import Poll
from orchestrator.domain.values import Group, Inbound, Quote
from orchestrator.groups import people
from orchestrator.inbound import amendments
from orchestrator.store.conversation import messages, polls
from orchestrator.store.conversation.polls import PollVote
from orchestrator.store.database import Tx
from orchestrator.store.runs import turns

MAX_STARTED_TURNS = 5
"""Turns that the votes in one poll may start; later votes are read with the next message."""
COLLECT_MS = 15_000
"""Milliseconds that a turn started by a vote waits for further votes."""
ANSWERED_BY_TEXT_MS = 7 * 24 * 3_600_000
"""Milliseconds after which a poll sent as a text can be answered only by a reply to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedVote:
    """A vote that was counted."""

    poll: Poll
    message: Inbound
    """The message stored for the vote: an edit of the person's previous vote if no agent has read that."""
    chosen: tuple[int, ...]
    starts_turn: bool
    """Whether it starts a turn, provided that its sender may ask."""
    is_new: bool
    """Whether it differs from the person's previous vote."""


async def count(tx: Tx, message: Inbound, group: Group, *, is_text: bool, now_ms: int) -> CountedVote | None:
    """Store the vote that a message contains, and decide whether it starts a turn, a question to the agent.

    The message itself is not stored here: the result has the one to store. Return None for a message that is
    no valid vote in an open poll of this group, such as an edit. Also None if a newer vote of the person is
    stored, or too many others have voted.

    Args:
        tx: the transaction.
        message: the vote, or a text.
        group: the group of its chat.
        is_text: whether the message is a text for Andy, which may answer a poll by the number or text of
            options.
        now_ms: the present time, in epoch milliseconds.
    """
    poll = await _poll_of(tx, message, group, is_text=is_text, now_ms=now_ms)
    if poll is None or poll.ended_ms is not None or message.edits is not None:
        return None
    chosen = message.vote if message.vote is not None else poll_rules.answer_in(message.text, poll)
    if chosen is None or not poll.takes(chosen):
        return None
    previous = await _previous_vote(tx, poll, message.sender)
    if previous is None and not chosen:
        return None  # it takes back a vote that was never counted
    is_new = previous is None or previous.chosen != chosen
    starts_turn = is_new and await _starts_turn(tx, poll, message, chosen, previous)
    stored_as = message
    if message.vote is not None:
        stored_as = await _message_for(tx, message, group, poll, chosen, previous, starts_turn=starts_turn)
    vote = PollVote(
        voter=previous.voter if previous is not None else message.sender,
        name=message.sender_name,
        chosen=chosen,
        voted_ms=message.sent_ms,
        vote_id=message.id,
        # The stored message that shows the vote: the previous vote's, if `_message_for` made an edit of it.
        message_id=stored_as.edits or message.id,
    )
    if not await polls.put_vote(tx, poll, vote):
        return None
    return CountedVote(poll=poll, message=stored_as, chosen=chosen, is_new=is_new, starts_turn=starts_turn)


async def follow_edit(tx: Tx, message: Inbound) -> None:
    """Let a text that was counted as a vote, and that `message` edits, vote for what its new text names.

    If the new text is empty, the vote is taken back; if it names no option, as in `2, thanks!`, the vote
    stays. Nothing happens if the edited text was no vote of its sender, if the poll has ended, or if it asks
    a question of the dashboard, which the first text has answered. The text of `message` has no call of Andy.
    """
    assert message.edits is not None
    for voter in await people.addresses_of(tx, message.sender):
        poll = await polls.of_vote(tx, message.chat_jid, message.edits, voter=voter)
        if poll is None or poll.ended_ms is not None or poll.board_question is not None:
            continue
        vote = await polls.vote_of(tx, poll, voter)
        assert vote is not None
        chosen = poll_rules.answer_in(message.text, poll) if message.text else ()
        if chosen is not None:
            await polls.put_vote(tx, poll, replace(vote, chosen=chosen))


async def collect(tx: Tx, poll: Poll, message: Inbound, *, now_ms: int) -> None:
    """Let the turn that a vote started wait `COLLECT_MS` for further votes, and count this turn for the poll.

    `message` is the stored message of the vote; without a turn, nothing happens. A turn that existed before,
    and which the vote has joined, does not wait, and is counted only if it is the poll's first.
    """
    stored = await messages.find(tx, message.chat_jid, message.id)
    if stored is None or stored.turn_id is None:
        return
    has_started = await turns.collect(tx, stored.turn_id, first_seq=stored.seq, until_ms=now_ms + COLLECT_MS)
    if has_started or poll.begun == 0:
        await polls.note_turn_started(tx, poll)


async def _previous_vote(tx: Tx, poll: Poll, sender: str) -> PollVote | None:
    """Return the newest vote of a person in a poll, under any of their addresses; None if there is none."""
    votes = [await polls.vote_of(tx, poll, address) for address in await people.addresses_of(tx, sender)]
    return max((vote for vote in votes if vote is not None), key=lambda vote: vote.voted_ms, default=None)


async def _poll_of(tx: Tx, message: Inbound, group: Group, *, is_text: bool, now_ms: int) -> Poll | None:
    """Return the poll that a message votes in; None if there is none in its chat.

    It is the poll that the message quotes. A text for Andy (`is_text`) that quotes nothing belongs to the
    open poll of its chat that was sent as a text, if that is recent.
    """
    poll = None
    if message.quote is not None:
        poll = await polls.of_message(tx, message.quote.message_id)
    elif is_text and message.vote is None:
        since_ms = now_ms - ANSWERED_BY_TEXT_MS
        poll = await polls.newest_sent_as_text(tx, message.chat_jid, since_ms=since_ms)
    # A sender chooses message ids freely, so an id may match a poll of another chat: that one is ignored.
    is_own = poll is not None and poll.folder == group.folder and poll.chat_jid == message.chat_jid
    return poll if is_own else None


async def _message_for(
    tx: Tx,
    message: Inbound,
    group: Group,
    poll: Poll,
    chosen: tuple[int, ...],
    previous: PollVote | None,
    *,
    starts_turn: bool,
) -> Inbound:
    """Return the message to store for a vote, with the chosen options as its text and the poll as its quote.

    It is an edit of the person's previous vote if that is stored and no agent has read it, else a message of
    its own. A vote that starts a turn (`starts_turn`) edits only a previous vote that is part of a turn: any
    other stays in the history, and the new vote is a message of its own, which starts the turn. The message
    is marked as ignored, for no agent to answer; `_store_vote` of the intake removes the mark if the vote
    starts a turn.

    Args:
        tx: the transaction.
        message: the vote.
        group: the group of its chat.
        poll: the poll.
        chosen: the indexes of the chosen options.
        previous: the person's previous vote; None if there was none.
        starts_turn: whether the vote starts a turn, a question to the agent.
    """
    quote = message.quote or Quote(message_id=poll.message_id, sender="", text="")
    quote = quote if quote.text else replace(quote, text=poll.text)
    text = poll_rules.vote_text(poll, chosen)
    as_message = replace(message, text=text, quote=quote, ignored=poll_rules.VOTE)
    if previous is None:
        return as_message
    earlier = await messages.find(tx, message.chat_jid, previous.message_id)
    if earlier is None or not earlier.text:
        return as_message
    if earlier.sender not in await people.addresses_of(tx, message.sender):
        return as_message
    if (starts_turn and earlier.turn_id is None) or await amendments.is_read(tx, earlier, group):
        return as_message
    return replace(as_message, edits=earlier.id)


async def _starts_turn(
    tx: Tx, poll: Poll, message: Inbound, chosen: tuple[int, ...], previous: PollVote | None
) -> bool:
    """Return whether a new vote starts a turn, a question to the agent.

    A vote does as long as no vote of its poll has started one; later a changed vote does, and that of the
    last person who had not voted. A vote that is taken back starts none, nor does any vote in a poll of a
    dashboard question. No poll starts more than `MAX_STARTED_TURNS`.

    `chosen` are the indexes of the chosen options. `previous` is the earlier vote of the same person; None if
    they had none.
    """
    if poll.board_question is not None or poll.begun >= MAX_STARTED_TURNS or not chosen:
        return False
    if poll.begun == 0 or (previous is not None and previous.chosen):
        return True
    voters = await polls.count_voters(tx, poll) + 1  # the new voter is not stored yet
    # Andy is one of the people, and does not vote.
    return message.people is not None and voters >= message.people - 1
