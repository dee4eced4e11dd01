"""Replace a channel that cannot be built, so that the host starts and reports what to install or to fix."""

from __future__ import annotations

import asyncio
from typing import Any, NoReturn

from orchestrator.channels.description import ChannelDescription
from orchestrator.domain.errors import ChannelDown
from orchestrator.domain.protocols import Receive
from orchestrator.domain.values import ChatJid, Message, MessageId


class UnusableChannel:
    """Owns the addresses of the channel that it replaces; messages to them wait in the outbox."""

    def __init__(self, description: ChannelDescription, *, advice: str) -> None:
        """`description` is that of the replaced channel, and `advice` says what is wrong and what to do."""
        self._description = description
        self._advice = advice
        self.name = description.name
        self.features = description.features
        self.max_text_chars = description.max_text_chars
        self.max_file_bytes = description.max_file_bytes

    def owns(self, jid: ChatJid) -> bool:
        """Return whether `jid` is an address of the channel that cannot be used."""
        return self._description.owns(jid)

    async def run(self, receive: Receive) -> None:
        """Wait until cancelled: no message comes before the next start, which may find the library."""
        del receive
        await asyncio.Event().wait()

    async def send(self, jid: ChatJid, text: str, message_id: MessageId, **_: Any) -> NoReturn:
        """Raise `ChannelDown`, which says what to install or to fix."""
        del jid, text, message_id
        raise ChannelDown(self._advice)

    async def set_typing(self, jid: ChatJid, *, is_typing: bool) -> None:
        """Do nothing: a chat of a channel that cannot be used shows no typing sign."""

    async def react(self, message: Message, sign: str) -> None:
        """Raise `ChannelDown`, which says what to install or to fix."""
        del message, sign
        raise ChannelDown(self._advice)

    async def end_poll(self, message: Message) -> None:
        """Raise `ChannelDown`, which says what to install or to fix."""
        del message
        raise ChannelDown(self._advice)

    async def withdraw(self, message: Message) -> None:
        """Raise `ChannelDown`, which says what to install or to fix."""
        del message
        raise ChannelDown(self._advice)

    def status(self) -> dict[str, Any]:
        """Return, for `/status`, that the channel cannot be used, and what to do."""
        return {"state": "unusable", "advice": self._advice}
