"""Chats of this machine: the terminal and HTTP. Their outside is the store, which they read."""

from __future__ import annotations

import asyncio
import secrets
from typing import Any

from orchestrator.domain.protocols import Feature, Receive
from orchestrator.domain.values import Attachment, ChatJid, ChatMember, Inbound, Message, MessageId, Quote

PREFIX = "local:"
OWNER = "you"
"""Who writes without saying who it is."""


class LocalChannel:
    """Chats named `local:<name>`. What is sent there is delivered by being stored as sent."""

    name = "local"
    features: frozenset[Feature] = frozenset()
    max_text_chars: int | None = None

    def owns(self, jid: ChatJid) -> bool:
        return jid.startswith(PREFIX)

    async def run(self, receive: Receive) -> None:
        """Nothing to connect to: messages come in through `written`, called by the HTTP door."""
        del receive
        await asyncio.Event().wait()

    async def send(
        self,
        jid: ChatJid,
        text: str,
        message_id: MessageId,
        *,
        attachment: Attachment | None = None,
        quote: Message | None = None,
        mention: ChatMember | None = None,
    ) -> None:
        """Delivered: whoever listens reads the store, where one id is one message."""

    async def set_typing(self, jid: ChatJid, *, is_typing: bool) -> None:
        """Nobody sees it: listeners know of turns by events."""

    async def react(self, message: Message, sign: str) -> None:
        """Never called: it has no such feature."""

    def status(self) -> dict[str, Any]:
        return {}


def written(jid: ChatJid, text: str, *, sender: str, now_ms: int, quote: Quote | None = None) -> Inbound:
    """A message as someone at this machine writes it, with a new id. Who gives no name is the owner."""
    return Inbound(
        chat_jid=jid,
        id=MessageId(f"L{secrets.token_hex(10)}"),
        sender=f"local:{sender}",
        sender_name=sender,
        text=text,
        sent_ms=now_ms,
        is_from_me=sender == OWNER,
        quote=quote,
    )
