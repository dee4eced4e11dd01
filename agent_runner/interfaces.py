"""The seam between a session and whatever answers in it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol

from agent_runner.wire.frames import ErrorCode
from agent_runner.wire.order import RestoreMode, RunOrder, TurnOrder

Say = Callable[[str], Awaitable[None]]
"""Take one piece of text for the chat."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenUsage:
    """The tokens that a turn used."""

    model: str | None = None
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    context_tokens: int = 0
    """Tokens of the model's window that the conversation filled at the end."""
    context_window: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnOutcome:
    """The end of a turn. An error is a value: the host decides what follows."""

    error: str | None = None
    code: ErrorCode | None = None
    note: str | None = None
    """The reason why nothing was said, for the record."""
    usage: TokenUsage | None = field(default=None)
    checkpoint: str | None = None
    """The last message of the transcript that belongs to the turn, where there is a transcript."""


class Agent(Protocol):
    """Answers turns, one at a time, all in the task that entered it."""

    session_id: str | None

    @property
    def restored(self) -> RestoreMode | None:
        """Return the mode in which its conversation really goes on: known once it has started, corrected if
        it has to begin anew after that. None where nothing is restored.
        """
        ...

    async def start(self) -> None:
        """Get ready, resuming the ordered session if there is one. Called once, before `answer`."""
        ...

    async def begin(self, order: RunOrder) -> bool:
        """Follow `order` from now on, in place of the one that it was made with before anything was asked.

        Called once, before the first `answer` of a run that was started ahead, whether or not it has started.
        Returns whether it is ready to answer by that order; `start` is called again where it is not.
        """
        ...

    async def answer(self, turn: TurnOrder, say: Say) -> TurnOutcome:
        """Answer one turn. Cancelling it stops the work and leaves the agent unusable, as an exception does:
        what an agent survives, it returns as an error.
        """
        ...

    async def close(self) -> None:
        """Let go of everything within two seconds. Safe to call in any state."""
        ...
