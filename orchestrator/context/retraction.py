"""Removes deleted messages from a context: from its window and from the summary made of them. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from orchestrator.context.models import SESSION_TOLD, Context, ContextMessage, Dialogue, turn_of
from orchestrator.context.summary import Summarizer

TAKEN_BACK = "(taken back by who wrote it)"
"""Stands where all of a question was."""


def turns_in(context: Context) -> set[int]:
    """The turns whose words are in a context, or may come into its summary next."""
    conversation = context.conversation
    ids = (*(one.id for one in conversation.recent_window), *conversation.folded)
    return {turn for one in ids if (turn := turn_of(one)) is not None}


def without(
    context: Context, *, taken: Collection[str], words: Mapping[str, ContextMessage], summariser: Summarizer
) -> Context:
    """Return a context without the words of the messages of `taken`; the very same where it has none of them.

    `words` are all messages of `turns_in(context)` as they stand now, by id. A summary that one of `taken` is
    in is made anew of the messages that it was made of.
    """
    before = context.conversation
    after = before.model_copy(
        update={"recent_window": tuple(_now(one, taken, words) for one in before.recent_window)}
    )
    if _is_summed_up(before, taken):
        told = [words[one] for one in before.folded if one in words and words[one].content != TAKEN_BACK]
        after = after.model_copy(
            update={
                "running_summary": summariser.fold("", told) if told else "",
                "folded": tuple(one.id for one in told),
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
    """Whether a summary has, or may have, words of them: nobody knows what a session said of itself, nor of
    what an older summary was made.
    """
    if not conversation.running_summary:
        return False
    is_of_unknown = not conversation.folded or SESSION_TOLD in conversation.folded
    return any(one in conversation.folded or (is_of_unknown and one in conversation.seen) for one in taken)
