"""Keep the window of newest messages within a budget of tokens. Pure.

What leaves it leaves it once, and is to be folded into the summary by whoever trims.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from orchestrator.context import script
from orchestrator.context.models import MAX_CONTENT_CHARS, ContextMessage, ms_of
from orchestrator.context.tokens import TokenCounter

KEEP_TOKENS = 800
OVERHEAD = 4
"""Tokens of a message beside its text: its role, and its separator."""
HEAD_SHARE = 0.6


@dataclass(frozen=True, slots=True, kw_only=True)
class TrimmedWindow:
    """The messages that stay in the window, and those that leave it."""

    remaining: tuple[ContextMessage, ...]
    """Oldest first, at most the budget; it starts with a user's, unless it is one message only."""
    evicted: tuple[ContextMessage, ...]
    """Oldest first, whole."""


def cost(message: ContextMessage, counter: TokenCounter) -> int:
    """Return what a message takes of the window, in tokens of the counter."""
    return counter.count(message.content) + OVERHEAD


def trimmed(
    window: Sequence[ContextMessage], counter: TokenCounter, *, keep: int = KEEP_TOKENS
) -> TrimmedWindow:
    """Remove messages from the front until the rest fits (C-15).

    The newest message is never dropped: where it alone is too long, its middle is.
    """
    costs = [cost(message, counter) for message in window]
    total, first = sum(costs), 0
    while total > keep and first < len(window) - 1:
        total -= costs[first]
        first += 1
    while first < len(window) - 1 and window[first].role == "assistant":
        first += 1
    remaining = tuple(
        _shorter(message, counter, keep) if _is_outsized(message, tokens, keep) else message
        for message, tokens in zip(window[first:], costs[first:], strict=True)
    )
    return TrimmedWindow(remaining=remaining, evicted=tuple(window[:first]))


def cut_middle(text: str, most: int, counter: TokenCounter, *, unit: str = "tokens") -> str:
    """Return `text` in at most `most` tokens: 60 % of them for its head, 40 % for its tail, a marker between
    that says how many are missing. No grapheme is cut. Where the marker alone is too much, it is empty.
    """
    whole = counter.count(text)
    if whole <= most and len(text) <= MAX_CONTENT_CHARS:
        return text
    room = most - counter.count(_marker(whole, unit))
    while room >= 0:
        head = _longest(text, int(room * HEAD_SHARE), counter, from_start=True)
        tail = _longest(text, int(room * (1 - HEAD_SHARE)), counter, from_start=False)
        missing = max(whole - counter.count(head) - counter.count(tail), 1)
        made = f"{head}{_marker(missing, unit)}{tail}"
        if counter.count(made) <= most:
            return made
        room -= 4
    return ""


def in_order(messages: Iterable[ContextMessage]) -> tuple[ContextMessage, ...]:
    """Return each message once, by time; a question stands before the answer of its turn, whatever clocks
    said.
    """
    unique = {message.id: message for message in messages}
    asked = {one.turn: ms_of(one.ts) for one in unique.values() if one.role == "user"}

    def place(message: ContextMessage) -> tuple[int, int, int]:
        at, turn = ms_of(message.ts), message.turn or 0
        if message.role == "assistant" and message.turn in asked:
            at = max(at, asked[message.turn])
        return at, turn, message.role == "assistant"

    return tuple(sorted(unique.values(), key=place))


def _is_outsized(message: ContextMessage, tokens: int, keep: int) -> bool:
    """Return whether a message is too long to stay whole.

    Only a message that is alone can have too many tokens; blanks can have too many characters without that.
    """
    return tokens > keep or len(message.content) > MAX_CONTENT_CHARS


def _shorter(message: ContextMessage, counter: TokenCounter, keep: int) -> ContextMessage:
    return message.model_copy(update={"content": cut_middle(message.content, keep - OVERHEAD, counter)})


def _marker(missing: int, unit: str) -> str:
    return f" [...{missing} {unit} cut...] "


def _longest(text: str, most: int, counter: TokenCounter, *, from_start: bool) -> str:
    """Return the longest piece of one end that counts at most `most` tokens."""
    share = HEAD_SHARE if from_start else 1 - HEAD_SHARE
    low, high = 0, min(len(text), int(MAX_CONTENT_CHARS * 0.9 * share))
    while low < high:
        middle = (low + high + 1) // 2
        piece = text[:middle] if from_start else text[-middle:]
        low, high = (middle, high) if counter.count(piece) <= most else (low, middle - 1)
    if not low:
        return ""
    return script.prefix(text, low) if from_start else script.suffix(text, low)
