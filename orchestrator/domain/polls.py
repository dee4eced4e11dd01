"""Defines polls: a question with options, its text with numbers, and answers by number.

Pure.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from agent_runner.wire.unicode_forms import composed
from orchestrator.domain.values import ChatJid, Folder, MessageId, Role

VOTE = "poll vote"
"""The stored reason why a vote asks for nothing by itself."""
UNREADABLE_VOTE = "[voted in a poll; what for cannot be read]"
MAX_ANSWER_CHARS = 200
"""Most characters of a message that may answer a poll by numbers."""
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
    """A question with options, and how a chat is asked."""

    question: str
    options: tuple[str, ...]
    folder: Folder
    chat_jid: ChatJid
    message_id: MessageId
    """The id of the outbox's message that contains it."""
    id: int = 0
    """Its number in the store."""
    is_multiple: bool = False
    """Whether a person may choose several options."""
    is_text: bool = False
    """Whether it is sent as a text with numbers."""
    board_question: str | None = None
    """The question of the board that it asks, or None."""
    role: Role = Role.OWNER
    """The role of the turn in which it was sent."""
    created_ms: int = 0
    ends_ms: int | None = None
    """When it takes no more votes; None if that is not limited."""
    ended_ms: int | None = None
    """When it ended; None until then."""
    begun: int = 0
    """The number of turns that its votes have started; the first counts also if they only joined it."""

    @property
    def text(self) -> str:
        """The question with its numbered options, as the conversation shows it."""
        lines = (f"{number}. {option}" for number, option in enumerate(self.options, start=1))
        return "\n".join([self.question, *lines])

    @property
    def text_to_answer(self) -> str:
        """The text for a chat without polls, with a hint how to answer."""
        return f"{self.text}\n{_HINTS[_HANGUL.search(self.question) is not None, self.is_multiple]}"

    def chosen_text(self, chosen: Sequence[int]) -> str:
        """Return the texts of the options at these places, counted from 0, with commas between them."""
        return ", ".join(self.options[index] for index in chosen)

    def takes(self, chosen: Sequence[int]) -> bool:
        """Return whether a vote may choose exactly the options at these places, counted from 0.

        No place at all is allowed: it withdraws a vote.
        """
        is_known = all(0 <= index < len(self.options) for index in chosen)
        return is_known and len(set(chosen)) == len(chosen) and (self.is_multiple or len(chosen) <= 1)


def vote_text(poll: Poll, chosen: Sequence[int]) -> str:
    """Return the text that represents a vote in the conversation; `chosen` are places of options, from 0."""
    return f"[voted for {poll.chosen_text(chosen)}]" if chosen else "[took a vote back]"


def answer_in(text: str, poll: Poll) -> tuple[int, ...] | None:
    """Return the places, from 0, of the options that a whole message names, by numbers or by one's text.

    None if the message is no answer to the poll.
    """
    # Cut, so that the pattern below never reads a long text: no answer is longer than this.
    answer = " ".join(composed(text).casefold().split())[:MAX_ANSWER_CHARS]
    # Words before numbers, because an option may itself be a number.
    named = [
        index
        for index, option in enumerate(poll.options)
        if answer == " ".join(composed(option).casefold().split())
    ]
    if named:  # of several options with the same text, the first
        return (named[0],)
    if _NUMBERS.fullmatch(answer) is None:  # `2`, `#1, 3` and `1 and 2` match
        return None
    chosen = tuple(dict.fromkeys(int(number) - 1 for number in _NUMBER.findall(answer)))
    return chosen if chosen and poll.takes(chosen) else None
