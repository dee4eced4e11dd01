"""Trim the window of newest messages to a budget of tokens. Pure.

The caller folds the messages that leave the window into the summary.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from orchestrator.context import script
from orchestrator.context.models import MAX_CONTENT_CHARS, ContextMessage, ms_of
from orchestrator.context.tokens import TokenCounter

WINDOW_TOKENS = 800
"""The budget of the window, in tokens."""
OVERHEAD_TOKENS = 4
"""Tokens of a message beside its text, for its role and a separator."""
HEAD_SHARE = 0.6
"""The share of a shortened text that its start gets; its end gets the rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrimmedWindow:
    """The messages that stay in the window, and those that leave it."""

    remaining: tuple[ContextMessage, ...]
    """Oldest first, within the budget; the first is a user's message, unless it is the only one."""
    evicted: tuple[ContextMessage, ...]
    """Oldest first, with their whole text."""


def cost(message: ContextMessage, counter: TokenCounter) -> int:
    """Return the size of a message in the window, in tokens of the counter."""
    return counter.count(message.content) + OVERHEAD_TOKENS


def trimmed(
    window: Sequence[ContextMessage], counter: TokenCounter, *, budget: int = WINDOW_TOKENS
) -> TrimmedWindow:
    """Return the newest messages that have at most `budget` tokens together, and the older ones.

    `window` is oldest first. The newest message always stays: if it alone is too long, its middle is cut out.
    What stays starts with a question: answers before it leave, too, unless the newest message is one.
    """
    costs = [cost(message, counter) for message in window]
    total, first = sum(costs), 0
    while total > budget and first < len(window) - 1:
        total -= costs[first]
        first += 1
    # An answer without its question would be misread, so the window starts with a question.
    while first < len(window) - 1 and window[first].role == "assistant":
        first += 1
    remaining = tuple(
        _with_cut_middle(message, counter, budget) if _is_outsized(message, tokens, budget) else message
        for message, tokens in zip(window[first:], costs[first:], strict=True)
    )
    return TrimmedWindow(remaining=remaining, evicted=tuple(window[:first]))


def cut_middle(text: str, max_tokens: int, counter: TokenCounter, *, unit: str = "tokens") -> str:
    """Return `text` in at most `max_tokens` tokens, with a marker for the missing middle.

    A text of more than `MAX_CONTENT_CHARS` characters is cut to these, too.

    The head gets 60 % of the tokens, the tail 40 %. No grapheme is cut. The result is empty if the marker
    alone is too long. `unit` is what `counter` counts, as the marker names it.
    """
    total = counter.count(text)
    if total <= max_tokens and len(text) <= MAX_CONTENT_CHARS:
        return text
    room = max_tokens - counter.count(_marker(total, unit))
    while room >= 0:
        head = _longest(text, int(room * HEAD_SHARE), counter, from_start=True)
        tail = _longest(text, int(room * (1 - HEAD_SHARE)), counter, from_start=False)
        missing = max(total - counter.count(head) - counter.count(tail), 1)
        joined = f"{head}{_marker(missing, unit)}{tail}"
        if counter.count(joined) <= max_tokens:
            return joined
        # Tokens of a text are not the sum of those of its parts, so the joined text may still be too long:
        # try again with a few tokens less.
        room -= 4
    return ""


def in_order(messages: Iterable[ContextMessage]) -> tuple[ContextMessage, ...]:
    """Return each message once, by time; a question is always before the answer of its turn."""
    unique = {message.id: message for message in messages}
    question_ms = {
        each.turn: ms_of(each.ts) for each in unique.values() if each.role == "user" and each.turn is not None
    }

    def sort_key(message: ContextMessage) -> tuple[int, int, int]:
        """Return the sort key of a message: its time, its turn, and the question before its answer.

        An answer counts as no earlier than its question.
        """
        at, turn = ms_of(message.ts), message.turn or 0
        if message.role == "assistant" and message.turn in question_ms:
            at = max(at, question_ms[message.turn])
        return at, turn, message.role == "assistant"

    return tuple(sorted(unique.values(), key=sort_key))


def _is_outsized(message: ContextMessage, tokens: int, budget: int) -> bool:
    """Return whether a message in the window must be shortened: it has too many tokens or characters.

    A long row of spaces has few tokens, so the characters are limited, too.
    """
    return tokens > budget or len(message.content) > MAX_CONTENT_CHARS


def _with_cut_middle(message: ContextMessage, counter: TokenCounter, budget: int) -> ContextMessage:
    """Return a message with the middle of its text cut out, so that it has at most `budget` tokens."""
    return message.model_copy(
        update={"content": cut_middle(message.content, budget - OVERHEAD_TOKENS, counter)}
    )


def _marker(missing: int, unit: str) -> str:
    """Return the text in place of a missing middle; `missing` is its length in `unit`."""
    return f" [...{missing} {unit} cut...] "


def _longest(text: str, max_tokens: int, counter: TokenCounter, *, from_start: bool) -> str:
    """Return the longest piece of a text that has at most `max_tokens` tokens.

    The piece is the text's start with `from_start`, else its end. It also has at most its share of
    `MAX_CONTENT_CHARS`.
    """
    share = HEAD_SHARE if from_start else 1 - HEAD_SHARE
    # Start and end together get 90 % of the characters, so that the marker between them fits, too.
    # The longest piece is found by a binary search.
    low, high = 0, min(len(text), int(MAX_CONTENT_CHARS * 0.9 * share))
    while low < high:
        middle = (low + high + 1) // 2
        piece = text[:middle] if from_start else text[-middle:]
        if counter.count(piece) <= max_tokens:
            low = middle
        else:
            high = middle - 1
    if not low:
        return ""
    # These cut no visible character, such as a letter with its accents, in two.
    return script.prefix(text, low) if from_start else script.suffix(text, low)
