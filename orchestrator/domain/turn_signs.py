"""Collect signs that a group will soon ask something, so that its container can be started before it does."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from orchestrator.base.wakeups import Wakeup
from orchestrator.domain.values import ChatJid, Folder

MAX_SIGNS = 200
"""Most signs that wait at a time: people may type in hundreds of chats that have no agent."""


class Sign(StrEnum):
    """A reason to expect a turn, in the order in which slots are assigned."""

    DUE = "due"
    """A scheduled task or a wake-up is due within seconds."""
    TYPING = "typing"
    """Somebody types in the group's chat."""
    OPENED = "opened"
    """Somebody has opened the chat on this machine."""
    TALK = "talk"
    """Somebody wrote without calling Andy in a group that called him not long ago."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnSign:
    """A sign, with the address or the folder of its group."""

    sign: Sign
    jid: ChatJid | None = None
    folder: Folder | None = None


class TurnSigns:
    """Collects signs until they are read. Used from the event loop only; a lost sign only costs time."""

    def __init__(self, wakeup: Wakeup) -> None:
        """`wakeup` is set by each sign."""
        self._wakeup = wakeup
        # A dict and not a set: the order of a set depends on hashes.
        self._waiting: dict[TurnSign, None] = {}

    def note(self, sign: Sign, *, jid: ChatJid | None = None, folder: Folder | None = None) -> None:
        """Store a sign about the group with the chat `jid` or the folder, and wake the loop that acts on it.

        The sign is dropped if `MAX_SIGNS` wait already.
        """
        if len(self._waiting) < MAX_SIGNS:
            self._waiting[TurnSign(sign=sign, jid=jid, folder=folder)] = None
            self._wakeup.set()

    def take(self) -> list[TurnSign]:
        """Return the signs since the last call, oldest first."""
        signs = list(self._waiting)
        self._waiting.clear()
        return signs
