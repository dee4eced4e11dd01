"""Change the dialogue of a context: add messages to its window, and remove deleted ones.

Messages that leave the window are folded into the summary; a summary that contains deleted texts is made
again without them. Pure but for the summariser that is passed in.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from orchestrator.base.redaction import redact
from orchestrator.context import window
from orchestrator.context.extractive_summary import Summarizer
from orchestrator.context.models import (
    FROM_SESSION,
    MAX_FOLDED,
    Context,
    ContextMessage,
    Dialogue,
    Role,
    Stats,
    iso,
    ms_of,
    turn_of,
)
from orchestrator.context.tokens import TokenCounter

TAKEN_BACK = "(taken back by who wrote it)"
"""The text in place of a question whose messages were all deleted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewMessage:
    """A message to add to a context."""

    id: str
    """`t17.u` or `t17.a`; a second message with the same id is not added."""
    role: Role
    content: str
    at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredMessages:
    """The result of registering messages."""

    context: Context
    new_ids: tuple[str, ...] = ()
    evicted: tuple[ContextMessage, ...] = ()
    """The whole messages that left the window; they are in the summary now."""
    old_summary: str = ""
    """The summary before these messages were folded into it."""


def registered(
    context: Context, new_messages: Iterable[NewMessage], *, counter: TokenCounter, summariser: Summarizer
) -> RegisteredMessages:
    """Return the context with `new_messages` added.

    The newest messages, as many as fit a limit of tokens, are stored in full: the window. Those that leave it
    are folded into the summary by `summariser`. An id that was registered before changes nothing, unless it
    is in the window with another text: a turn that is retried may contain more messages. A question becomes
    the pending one until it is answered.
    """
    before = context.conversation
    in_window = {message.id: message for message in before.recent_window}
    new_ids: list[str] = []
    stats, pending = context.stats, context.pending_user
    for new_message in new_messages:
        is_new = new_message.id not in before.seen
        stored = in_window.get(new_message.id)
        if not is_new and stored is None:
            continue  # it was added before, and is in the summary by now
        message = _stored_form(new_message, in_window.values())
        if not is_new and stored is not None and message.content == stored.content:
            continue  # it was added before, with the same text
        # `before` lacks the ids of this call, so a message that comes twice in it is counted once.
        if is_new and new_message.id not in new_ids:
            new_ids.append(new_message.id)
            stats = _stats_with(stats, message, counter)
        in_window[new_message.id] = message if stored is None else _with_earlier_time(stored, message)
        pending = _pending_after(pending, message, context, is_new=is_new)
    trimmed = window.trimmed(window.in_order(in_window.values()), counter)
    old = before.running_summary
    conversation = before.model_copy(
        update={
            "recent_window": trimmed.remaining,
            "running_summary": summariser.fold(old, trimmed.evicted) if trimmed.evicted else old,
            "folded": (*before.folded, *(message.id for message in trimmed.evicted)),
            "seen": before.seen.with_ids(new_ids),
        }
    )
    changed = context.model_copy(
        update={"conversation": conversation, "stats": stats, "pending_user": pending}
    )
    return RegisteredMessages(
        context=context if changed == context else changed,
        new_ids=tuple(new_ids),
        evicted=trimmed.evicted,
        old_summary=old,
    )


def closed(context: Context, *, through_turn: int | None = None) -> Context:
    """Return the context without its messages and their summary, as `/clear` leaves it.

    No message of a turn up to `through_turn` can be added again; with None, the earlier limit stays.
    """
    conversation = context.conversation.model_copy(
        update={
            "running_summary": "",
            "folded": (),
            "recent_window": (),
            "seen": context.conversation.seen.up_to(through_turn),
        }
    )
    return context.model_copy(update={"conversation": conversation, "pending_user": None})


def _stored_form(new_message: NewMessage, in_window: Iterable[ContextMessage]) -> ContextMessage:
    """Return a new message in its stored form: redacted, and timed no earlier than earlier turns' messages.

    Null characters are removed, and characters that UTF-8 cannot encode are replaced. `in_window` are the
    newest stored messages, with which its time is compared.
    """
    # Redacted before anything is cut: the redactor recognises a secret only if it is whole.
    text = redact(new_message.content.replace("\0", "")).encode("utf-8", "replace").decode("utf-8")
    message = ContextMessage(
        id=new_message.id, role=new_message.role, content=text, ts=iso(new_message.at_ms)
    )
    return message.model_copy(update={"ts": iso(_ordered_time(message, new_message.at_ms, in_window))})


def _ordered_time(message: ContextMessage, at_ms: int, in_window: Iterable[ContextMessage]) -> int:
    """Return the time of a new message, in epoch ms: `at_ms`, or that of the latest earlier message if later.

    So a clock that was set back does not change the order. `in_window` are the stored messages: those of
    earlier turns count as earlier, and all of them if the new message has no turn.
    """
    turn = message.turn
    earlier_times = (
        ms_of(other.ts)
        for other in in_window
        if turn is None or (other.turn is not None and other.turn < turn)
    )
    return max(at_ms, *earlier_times, 0)  # with the 0, `max` has two arguments at least


def _with_earlier_time(in_window: ContextMessage, message: ContextMessage) -> ContextMessage:
    """Return `message` with the time of the stored message `in_window` that it replaces.

    So it stays at its place in the order.
    """
    return message.model_copy(update={"ts": in_window.ts})


def _stats_with(stats: Stats, message: ContextMessage, counter: TokenCounter) -> Stats:
    """Return the statistics with one more message; its tokens are counted by `counter`."""
    return stats.model_copy(
        update={
            "dialog_turns": stats.dialog_turns + (1 if message.role == "user" else 0),
            "total_tokens": stats.total_tokens + counter.count(message.content),
        }
    )


def _pending_after(
    pending: str | None, message: ContextMessage, context: Context, *, is_new: bool
) -> str | None:
    """Return the id of the question that waits for an answer after `message` was added; None if none does.

    `pending`, the id of the question that waited, and `context` are those before the addition. `is_new` says
    whether the message was never added before: a question that only got another text does not start to wait
    again.
    """
    if message.role == "user":
        return message.id if is_new else pending
    question = next((each for each in context.conversation.recent_window if each.id == pending), None)
    question_turn = question.turn if question else None
    # A late answer to an earlier question leaves the newer one open.
    if message.turn is not None and question_turn is not None and message.turn < question_turn:
        return pending
    # Any other message of the agent answers the pending question.
    return None


def turns_in(context: Context) -> set[int]:
    """Return the ids of the turns whose messages a context stores, in full or in its summary."""
    conversation = context.conversation
    ids = (*(message.id for message in conversation.recent_window), *conversation.folded)
    return {turn for message_id in ids if (turn := turn_of(message_id)) is not None}


def without(
    context: Context,
    *,
    message_ids: Collection[str],
    messages: Mapping[str, ContextMessage],
    summariser: Summarizer,
) -> Context:
    """Return the context without the texts of the messages of `message_ids`; the same object if it has none.

    `messages` maps the ids of all messages of `turns_in(context)` to their present form. A message of
    `message_ids` gets its present text, or a note that it was taken back if it has none any more. A summary
    that contains one of them is made again by `summariser` from the messages that remain.
    """
    before = context.conversation
    after = before.model_copy(
        update={
            "recent_window": tuple(
                _present_form(message, message_ids, messages) for message in before.recent_window
            )
        }
    )
    if _is_summed_up(before, message_ids):
        remaining = [
            messages[message_id]
            for message_id in before.folded
            if message_id in messages and messages[message_id].content != TAKEN_BACK
        ]
        after = after.model_copy(
            update={
                "running_summary": summariser.fold("", remaining) if remaining else "",
                "folded": tuple(message.id for message in remaining),
            }
        )
    return context if after == before else context.model_copy(update={"conversation": after})


def _present_form(
    message: ContextMessage, message_ids: Collection[str], messages: Mapping[str, ContextMessage]
) -> ContextMessage:
    """Return a message unchanged, unless its id is in `message_ids`.

    Then it gets its present text, which `messages` has by id, or the note `TAKEN_BACK` if `messages` lacks
    it.
    """
    if message.id not in message_ids:
        return message
    content = messages[message.id].content if message.id in messages else TAKEN_BACK
    return message.model_copy(update={"content": content})


def _is_summed_up(conversation: Dialogue, message_ids: Collection[str]) -> bool:
    """Return whether the conversation's summary contains, or may contain, texts of `message_ids`.

    The ids of the messages in the summary are recorded in `folded`. If the agent's session (`FROM_SESSION`)
    or an older version of Andy wrote the summary, they are not: any message that was ever added (`seen`) may
    be in it. For a long conversation, only the newest messages of the summary are recorded: any message
    before them may be in it, too.
    """
    folded = conversation.folded
    if not conversation.running_summary:
        return False
    has_unknown_sources = not folded or FROM_SESSION in folded
    # Other entries, such as `FROM_SESSION`, have no place in the order; no message is before (0, False).
    oldest = min((_order(each) for each in folded if turn_of(each) is not None), default=(0, False))

    def may_be_in_it(message_id: str) -> bool:
        """Return whether the summary may contain the message, though it is not recorded."""
        is_before_recorded = len(folded) >= MAX_FOLDED and _order(message_id) < oldest
        return (has_unknown_sources or is_before_recorded) and message_id in conversation.seen

    return any(message_id in folded or may_be_in_it(message_id) for message_id in message_ids)


def _order(message_id: str) -> tuple[int, bool]:
    """Return the key that orders the messages of turns: a question comes before the answer of its turn."""
    return turn_of(message_id) or 0, message_id.endswith(".a")
