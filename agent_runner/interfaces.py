"""The interface between a session and the agent that answers in it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol

from agent_runner.wire.frames import ErrorCode
from agent_runner.wire.order import RestoreMode, RunOrder, TurnOrder

Say = Callable[[str], Awaitable[None]]
"""Takes one text for the chat."""


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
    """The end of a turn. An error is a value: the host decides what to do."""

    error: str | None = None
    code: ErrorCode | None = None
    note: str | None = None
    """The reason why no message was sent, for the record."""
    usage: TokenUsage | None = field(default=None)
    checkpoint: str | None = None
    """The turn's last message of the transcript, if there is a transcript."""


class Agent(Protocol):
    """Answers turns, one at a time, all in the task that entered it."""

    session_id: str | None

    @property
    def restored(self) -> RestoreMode | None:
        """Return the mode in which its conversation really continues.

        It is known once the agent has started, and corrected if the agent has to start again later. None
        before, and for an agent that restores nothing.
        """
        ...

    async def start(self) -> None:
        """Get ready, resuming the ordered session if there is one. Called once, before `answer`."""
        ...

    async def begin(self, order: RunOrder) -> bool:
        """Follow `order` from now on, instead of the one that it was created with, before the first prompt.

        Called once, before the first `answer` of a run that was started ahead, also if `start` has failed.
        Returns whether the agent is ready to answer by that order; if not, `start` is called again.
        """
        ...

    async def answer(self, turn: TurnOrder, say: Say) -> TurnOutcome:
        """Answer one turn: pass each text for the chat to `say`, and return the outcome.

        Cancelling it stops the work and leaves the agent unusable, as an exception does. A failure after
        which the agent can go on is returned as an error in the outcome.
        """
        ...

    async def close(self) -> None:
        """Release everything within two seconds. Safe to call in any state."""
        ...
