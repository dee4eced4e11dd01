"""Count a vote in a poll of Andy's own, and decide whether it begins a turn.

A vote is stored as a message that quotes the poll, so that the conversation has it like any other word; the
newest of each person counts. It begins a turn as a reply would, but within bounds: the first, a changed one
and the one that completes the chat, and at most `MAX_BEGUN` turns a poll. Such a turn waits for `COLLECT_MS`,
so that it has the answers of those who follow at once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from orchestrator.domain import polls as poll_rules
from orchestrator.domain.polls import Poll
from orchestrator.domain.values import Group, Inbound, Quote
from orchestrator.inbound import amendments
from orchestrator.store import messages, polls, turns
from orchestrator.store.database import Tx
from orchestrator.store.polls import PollVote

MAX_BEGUN = 5
"""Turns that the answers to one poll begin; what is voted after that is read with the next message."""
COLLECT_MS = 15_000
"""Milliseconds that a turn which a vote begins waits for the votes of others."""
ANSWERED_BY_TEXT_MS = 7 * 24 * 3_600_000
"""Milliseconds after which a poll that stands as a text is answered by a reply to it alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedVote:
    """A vote that was counted."""

    poll: Poll
    message: Inbound
    """The message that stands for it: an edit of the person's last vote where no agent has read that."""
    chosen: tuple[int, ...]
    is_begin: bool
    """Whether it begins a turn, if its sender may ask."""
    is_new: bool
    """Whether it says something else than the person's vote before it."""


async def count(tx: Tx, message: Inbound, group: Group, *, is_text: bool, now_ms: int) -> CountedVote | None:
    """Count a vote; None of a message that is no vote in a poll of this group.

    `is_text`: it is a text for Andy, which may answer a poll by numbers.
    """
    poll = await _poll_of(tx, message, group, is_text=is_text, now_ms=now_ms)
    if poll is None or poll.ended_ms is not None or message.edits is not None:
        return None
    chosen = message.vote if message.vote is not None else poll_rules.answer_in(message.text, poll)
    if chosen is None or not poll.takes(chosen):
        return None
    before = await polls.vote_of(tx, poll, message.sender)
    if before is None and not chosen:
        return None
    is_new = before is None or before.chosen != chosen
    is_begin = is_new and await _begins(tx, poll, message, chosen, before)
    stands_for = message
    if message.vote is not None:
        stands_for = await _standing_for(tx, message, group, poll, chosen, before, is_begin=is_begin)
    vote = PollVote(
        voter=message.sender,
        name=message.sender_name,
        chosen=chosen,
        voted_ms=message.sent_ms,
        vote_id=message.id,
        message_id=stands_for.edits or message.id,
    )
    if not await polls.put_vote(tx, poll, vote):
        return None
    return CountedVote(poll=poll, message=stands_for, chosen=chosen, is_new=is_new, is_begin=is_begin)


async def collect(tx: Tx, poll: Poll, message: Inbound, *, now_ms: int) -> None:
    """Have the turn that a vote has begun wait for the votes of others, unless it had begun before."""
    stored = await messages.find(tx, message.chat_jid, message.id)
    if stored is not None and stored.turn_id is not None:
        await polls.note_begun(tx, poll)
        await turns.collect(tx, stored.turn_id, first=stored.seq, until_ms=now_ms + COLLECT_MS)


async def _poll_of(tx: Tx, message: Inbound, group: Group, *, is_text: bool, now_ms: int) -> Poll | None:
    poll = None
    if message.quote is not None:
        poll = await polls.of_message(tx, message.quote.message_id)
    elif is_text and message.vote is None:
        since_ms = now_ms - ANSWERED_BY_TEXT_MS
        poll = await polls.open_text_of(tx, message.chat_jid, since_ms=since_ms)
    # The ids of a chat are chosen in it: a poll of another chat is none here.
    is_own = poll is not None and poll.folder == group.folder and poll.chat_jid == message.chat_jid
    return poll if is_own else None


async def _standing_for(
    tx: Tx,
    message: Inbound,
    group: Group,
    poll: Poll,
    chosen: tuple[int, ...],
    before: PollVote | None,
    *,
    is_begin: bool,
) -> Inbound:
    """Return the message for a vote, with what it answers; it replaces the last vote that nobody has read."""
    quote = message.quote or Quote(message_id=poll.message_id, sender="", text="")
    quote = quote if quote.text else replace(quote, text=poll.text)
    text = poll_rules.vote_text(poll, chosen)
    made = replace(message, text=text, quote=quote, ignored=poll_rules.VOTE)
    if before is None:
        return made
    earlier = await messages.find(tx, message.chat_jid, before.message_id)
    if earlier is None or earlier.sender != message.sender or not earlier.text:
        return made
    if (is_begin and earlier.turn_id is None) or await amendments.is_read(tx, earlier, group):
        return made
    return replace(made, edits=earlier.id)


async def _begins(
    tx: Tx, poll: Poll, message: Inbound, chosen: tuple[int, ...], before: PollVote | None
) -> bool:
    if poll.board_question is not None or poll.begun >= MAX_BEGUN or not chosen:
        return False
    if poll.begun == 0 or (before is not None and before.chosen):
        return True
    voters = await polls.count_voters(tx, poll) + 1  # this one is not stored yet
    return message.people is not None and voters >= message.people - 1
