"""Defines a poll: a question with options that a chat is asked, its text with numbers, and answers by number.

Pure.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from agent_runner.wire.unicode_forms import composed
from orchestrator.domain.values import ChatJid, Folder, MessageId, Role

VOTE = "poll vote"
"""The reason why a vote is stored and asks for nothing by itself."""
UNREADABLE_VOTE = "[voted in a poll; what for cannot be read]"
MAX_ANSWER_CHARS = 200
"""Characters of a message that may answer a poll by numbers."""
_HANGUL = re.compile("[ㄱ-ㅎㅏ-ㅣ가-힣]")
_NUMBERS = re.compile(
    r"#?(\d{1,2})\s*(?:[.)]|번)?(?:\s*(?:,|and|\s|와|하고|랑)\s*#?(\d{1,2})\s*(?:[.)]|번)?){0,9}"
)
_NUMBER = re.compile(r"\d{1,2}")
_HINTS = {
    (False, False): "Reply with the number of one.",
    (False, True): "Reply with the numbers of all that you choose.",
    (True, False): "하나를 골라 번호로 답해 주세요.",
    (True, True): "고른 것의 번호를 모두 보내 주세요.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Poll:
    """A question with options, and how it is asked."""

    question: str
    options: tuple[str, ...]
    folder: Folder
    chat_jid: ChatJid
    message_id: MessageId
    """The id of the outbox's message that asks it."""
    id: int = 0
    """Its number in the store."""
    is_multiple: bool = False
    """Whether somebody may choose several of the options."""
    is_text: bool = False
    """Whether it is asked as a text with numbers."""
    board_question: str | None = None
    """The question of the board that it asks, or None."""
    role: Role = Role.OWNER
    """The role in whose turn it was asked."""
    created_ms: int = 0
    ends_ms: int | None = None
    ended_ms: int | None = None
    begun: int = 0
    """The number of turns that its answers have begun."""

    @property
    def text(self) -> str:
        """The question with its options and their numbers, as the conversation has it."""
        lines = (f"{number}. {option}" for number, option in enumerate(self.options, start=1))
        return "\n".join([self.question, *lines])

    @property
    def text_to_answer(self) -> str:
        """The text for a chat that shows no polls, which says how to answer."""
        return f"{self.text}\n{_HINTS[_HANGUL.search(self.question) is not None, self.is_multiple]}"

    def chosen_text(self, chosen: Sequence[int]) -> str:
        """Return the options at these places in words."""
        return ", ".join(self.options[place] for place in chosen)

    def takes(self, chosen: Sequence[int]) -> bool:
        """Return whether somebody can choose the options at these places; none is a vote taken back."""
        is_known = all(0 <= place < len(self.options) for place in chosen)
        return is_known and len(set(chosen)) == len(chosen) and (self.is_multiple or len(chosen) <= 1)


def vote_text(poll: Poll, chosen: Sequence[int]) -> str:
    """Return the message that stands for a vote in the conversation."""
    return f"[voted for {poll.chosen_text(chosen)}]" if chosen else "[took a vote back]"


def answer_in(text: str, poll: Poll) -> tuple[int, ...] | None:
    """Return the places of the options that a whole message names, by number or by their words; else None."""
    said = " ".join(composed(text).casefold().split())[:MAX_ANSWER_CHARS]
    named = [
        place for place, one in enumerate(poll.options) if said == " ".join(composed(one).casefold().split())
    ]
    if named:
        return (named[0],)
    if _NUMBERS.fullmatch(said) is None:
        return None
    chosen = tuple(dict.fromkeys(int(number) - 1 for number in _NUMBER.findall(said)))
    return chosen if chosen and poll.takes(chosen) else None
