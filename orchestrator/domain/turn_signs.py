"""Collect signs that a group will soon ask something, so that its container can be started before it does."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from orchestrator.base.wakeups import Wakeup
from orchestrator.domain.values import ChatJid, Folder

MAX_SIGNS = 200
"""So many are kept at a time: somebody types in chats by the hundred that have no agent."""


class Sign(StrEnum):
    """A reason to expect a turn. Their order is that in which slots are given."""

    DUE = "due"
    """A task or a wake is due within seconds."""
    TYPING = "typing"
    """Somebody types in the group's chat."""
    OPENED = "opened"
    """Somebody has opened the chat on this machine."""
    TALK = "talk"
    """Somebody wrote in a group that called Andy not long ago, and called nobody."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnSign:
    """A sign, with the group it is about by its address or by its folder."""

    sign: Sign
    jid: ChatJid | None = None
    folder: Folder | None = None


class TurnSigns:
    """Keeps signs until they are looked at. It is used from the event loop only; what is lost costs time."""

    def __init__(self, news: Wakeup) -> None:
        """`news` is set by each sign."""
        self._news = news
        self._waiting: dict[TurnSign, None] = {}

    def note(self, sign: Sign, *, jid: ChatJid | None = None, folder: Folder | None = None) -> None:
        """Keep a sign, and wake whoever acts on signs."""
        if len(self._waiting) < MAX_SIGNS:
            self._waiting[TurnSign(sign=sign, jid=jid, folder=folder)] = None
            self._news.set()

    def take(self) -> list[TurnSign]:
        """Return what has come since the last call, oldest first."""
        taken = list(self._waiting)
        self._waiting.clear()
        return taken
