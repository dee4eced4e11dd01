"""Change the dialogue of a context: let messages enter its window, and remove those that were deleted.

What the window has no room for is folded into the summary, and a summary that holds deleted words is made
anew. Pure but for the summariser that is passed in.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from orchestrator.base.redaction import redact
from orchestrator.context import window
from orchestrator.context.extractive_summary import Summarizer
from orchestrator.context.models import (
    SESSION_TOLD,
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
"""Stands where all of a question was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewMessage:
    """A message that is to enter a context."""

    id: str
    """`t17.u` or `t17.a`: what makes it count once."""
    role: Role
    content: str
    at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredMessages:
    """The result of registering messages."""

    context: Context
    new_ids: tuple[str, ...] = ()
    evicted: tuple[ContextMessage, ...] = ()
    """Messages that left the window, whole; they are in the summary now."""
    old_summary: str = ""
    """The summary before that."""


def registered(
    context: Context, spoken: Iterable[NewMessage], *, counter: TokenCounter, summariser: Summarizer
) -> RegisteredMessages:
    """Return the context with these messages added (C-12): the window is trimmed, and what left it is folded
    once.

    An id that was registered before changes nothing, unless it is in the window with another text: a turn
    that is tried again may ask more. A question makes itself the pending one, an answer ends that.
    """
    before = context.conversation
    held = {message.id: message for message in before.recent_window}
    new: list[str] = []
    stats, pending = context.stats, context.pending_user
    for one in spoken:
        if one.id in before.seen and one.id not in held:
            continue
        message = _message(one, held.values())
        if one.id not in before.seen and one.id not in new:
            new.append(one.id)
            stats = _counted(stats, message, counter)
        elif one.id not in new and message.content == held[one.id].content:
            continue
        held[one.id] = message if one.id not in held else _again(held[one.id], message)
        pending = _pending(pending, message, context, is_new=one.id in new)
    cut = window.trimmed(window.in_order(held.values()), counter)
    old = before.running_summary
    conversation = before.model_copy(
        update={
            "recent_window": cut.remaining,
            "running_summary": summariser.fold(old, cut.evicted) if cut.evicted else old,
            "folded": (*before.folded, *(one.id for one in cut.evicted)),
            "seen": before.seen.with_ids(new),
        }
    )
    changed = context.model_copy(
        update={"conversation": conversation, "stats": stats, "pending_user": pending}
    )
    return RegisteredMessages(
        context=context if changed == context else changed,
        new_ids=tuple(new),
        evicted=cut.evicted,
        old_summary=old,
    )


def closed(context: Context, *, through_turn: int | None = None) -> Context:
    """Return the context without its dialogue; no message of a turn up to `through_turn` can enter it
    again.
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


def _message(spoken: NewMessage, held: Iterable[ContextMessage]) -> ContextMessage:
    # Redacted before anything is cut: half a secret has no shape to be known by.
    text = redact(spoken.content.replace("\0", "")).encode("utf-8", "replace").decode("utf-8")
    made = ContextMessage(id=spoken.id, role=spoken.role, content=text, ts=iso(spoken.at_ms))
    return made.model_copy(update={"ts": iso(_not_before(made, spoken.at_ms, held))})


def _not_before(message: ContextMessage, at_ms: int, held: Iterable[ContextMessage]) -> int:
    """Return the time of a message, never before that of an earlier turn: a clock that was set back orders
    nothing.
    """
    turn = message.turn
    before = (ms_of(one.ts) for one in held if turn is None or (one.turn is not None and one.turn < turn))
    return max(at_ms, *before, 0)


def _again(held: ContextMessage, message: ContextMessage) -> ContextMessage:
    """Return the newer text in the place of the older one."""
    return message.model_copy(update={"ts": held.ts})


def _counted(stats: Stats, message: ContextMessage, counter: TokenCounter) -> Stats:
    return stats.model_copy(
        update={
            "dialog_turns": stats.dialog_turns + (message.role == "user"),
            "total_tokens": stats.total_tokens + counter.count(message.content),
        }
    )


def _pending(pending: str | None, message: ContextMessage, context: Context, *, is_new: bool) -> str | None:
    if message.role == "user":
        return message.id if is_new else pending
    asked = next((one for one in context.conversation.recent_window if one.id == pending), None)
    asked_turn = asked.turn if asked else None
    if message.turn is not None and asked_turn is not None and message.turn < asked_turn:
        return pending
    return None


def turns_in(context: Context) -> set[int]:
    """Return the turns whose words are in a context, or may come into its summary next."""
    conversation = context.conversation
    ids = (*(one.id for one in conversation.recent_window), *conversation.folded)
    return {turn for one in ids if (turn := turn_of(one)) is not None}


def without(
    context: Context, *, taken: Collection[str], words: Mapping[str, ContextMessage], summariser: Summarizer
) -> Context:
    """Return the context without the words of the messages of `taken`; the same object where it has none of
    them.

    `words` are all messages of `turns_in(context)` as they stand now, by id. A summary that one of `taken` is
    in is made anew of the messages that it was made of.
    """
    before = context.conversation
    after = before.model_copy(
        update={"recent_window": tuple(_now(one, taken, words) for one in before.recent_window)}
    )
    if _is_summed_up(before, taken):
        remaining = [words[one] for one in before.folded if one in words and words[one].content != TAKEN_BACK]
        after = after.model_copy(
            update={
                "running_summary": summariser.fold("", remaining) if remaining else "",
                "folded": tuple(one.id for one in remaining),
            }
        )
    return context if after == before else context.model_copy(update={"conversation": after})


def _now(
    message: ContextMessage, taken: Collection[str], words: Mapping[str, ContextMessage]
) -> ContextMessage:
    if message.id not in taken:
        return message
    left = words[message.id].content if message.id in words else TAKEN_BACK
    return message.model_copy(update={"content": left})


def _is_summed_up(conversation: Dialogue, taken: Collection[str]) -> bool:
    """Return whether the summary holds, or may hold, words of `taken`.

    Nobody knows what a session wrote of itself, nor what an older summary was made of.
    """
    if not conversation.running_summary:
        return False
    is_of_unknown = not conversation.folded or SESSION_TOLD in conversation.folded
    return any(one in conversation.folded or (is_of_unknown and one in conversation.seen) for one in taken)
