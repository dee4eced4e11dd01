"""The channel of this machine: chats in the terminal and over HTTP.

Its clients read the store themselves, so a message is delivered once it is stored as sent.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import Any

from orchestrator.channels.context import ChannelContext
from orchestrator.channels.local.description import CHANNEL
from orchestrator.domain.polls import Poll
from orchestrator.domain.protocols import Receive
from orchestrator.domain.values import Attachment, ChatJid, ChatMember, Inbound, Message, MessageId, Quote

OWNER = "you"
"""The sender's name if none is passed: the owner."""


class LocalChannel:
    """Owns the chats whose address is `local:<name>`."""

    name = CHANNEL.name
    features = CHANNEL.features
    max_text_chars = CHANNEL.max_text_chars
    max_file_bytes = CHANNEL.max_file_bytes

    def __init__(self, context: ChannelContext | None = None) -> None:
        """Accept the context that each channel is passed; this channel needs nothing of it."""
        del context

    def owns(self, jid: ChatJid) -> bool:
        """Return whether `jid` is a chat of this machine."""
        return CHANNEL.owns(jid)

    async def run(self, receive: Receive) -> None:
        """Wait until cancelled: there is no connection. `receive` gets nothing: messages come over HTTP."""
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
        thread: str | None = None,
        poll: Poll | None = None,
    ) -> None:
        """Do nothing: the message is in the database already, where the clients of this machine read it."""

    async def set_typing(self, jid: ChatJid, *, is_typing: bool) -> None:
        """Do nothing: clients of this machine learn from the host's events that the agent is at work."""

    async def react(self, message: Message, sign: str) -> None:
        """Do nothing: chats of this machine show no reactions."""

    async def end_poll(self, message: Message) -> None:
        """Do nothing: chats of this machine have no polls."""

    async def withdraw(self, message: Message) -> None:
        """Do nothing: messages of this machine cannot be deleted for everybody."""

    def status(self) -> dict[str, Any]:
        """Return an empty dictionary: there is no connection to report on."""
        return {}


def new_message(jid: ChatJid, text: str, *, sender: str, now_ms: int, quote: Quote | None = None) -> Inbound:
    """Return a message that somebody at this machine wrote in the chat `jid`, with a new id.

    `sender` is the writer's name; the owner is `OWNER`. `now_ms` is when it was sent, in epoch milliseconds.
    `quote` is the message that it answers.
    """
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
