"""A messenger with scripted answers."""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from dataclasses import dataclass, field
from typing import Any

from orchestrator.domain.polls import Poll
from orchestrator.domain.protocols import Feature, Receive
from orchestrator.domain.values import Attachment, ChatJid, ChatMember, Message, MessageId


@dataclass(frozen=True)
class Shown:
    """A message as a chat shows it."""

    jid: str
    text: str
    message_id: str
    file: bytes | None = None
    quotes: str | None = None
    """The id of the message that it answers."""
    mentions: str | None = None
    thread: str | None = None
    poll: Poll | None = None


@dataclass
class ScriptedChannel:
    """Shows each message id once, as a messenger does. A chat without a script takes all."""

    name: str = "scripted"
    features: frozenset[Feature] = frozenset({Feature.TYPING, Feature.IDEMPOTENT})
    reactions: list[tuple[str, str]] = field(default_factory=list)
    """Each sign that was put under a message, with its id; an empty one takes it away."""
    max_text_chars: int | None = None
    max_file_bytes: int | None = None
    channel_ids: dict[str, str] = field(default_factory=dict)
    """The messenger's own id of a message, by the id that it was sent with."""
    signs: list[tuple[str, bool]] = field(default_factory=list)
    """Each typing sign that was shown (True) or hidden, with its chat."""
    shown: list[Shown] = field(default_factory=list)
    attempts: list[Shown] = field(default_factory=list)
    scripts: dict[str, deque[Exception | asyncio.Event]] = field(default_factory=lambda: defaultdict(deque))

    ended_polls: list[str] = field(default_factory=list)
    connected_since_ms: int | None = None
    """Since when its line works; None of a messenger that has none."""

    def will(self, jid: str, *steps: Exception | asyncio.Event) -> None:
        """For the next sends to `jid`: an error is raised; an event is waited for, then the send works.

        An error after an event of the same send is not possible: each send takes one step.
        """
        self.scripts[jid].extend(steps)

    def owns(self, jid: ChatJid) -> bool:
        return not jid.startswith("foreign:")

    async def run(self, receive: Receive) -> None:
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
    ) -> MessageId | None:
        message = Shown(
            jid,
            text,
            message_id,
            attachment.path.read_bytes() if attachment else None,
            quotes=quote.id if quote else None,
            mentions=mention.name if mention else None,
            thread=thread,
            poll=poll,
        )
        self.attempts.append(message)
        if self.scripts[jid]:
            match self.scripts[jid].popleft():
                case asyncio.Event() as event:
                    await event.wait()
                case Exception() as error:
                    raise error
        if message_id not in {one.message_id for one in self.shown}:
            self.shown.append(message)
        own_id = self.channel_ids.get(message_id)
        return MessageId(own_id) if own_id else None

    async def set_typing(self, jid: ChatJid, *, is_typing: bool) -> None:
        self.signs.append((jid, is_typing))

    async def react(self, message: Message, sign: str) -> None:
        if self.scripts[message.chat_jid]:
            match self.scripts[message.chat_jid].popleft():
                case asyncio.Event() as event:
                    await event.wait()
                case Exception() as error:
                    raise error
        self.reactions.append((message.id, sign))

    async def end_poll(self, message: Message) -> None:
        self.ended_polls.append(message.id)

    async def withdraw(self, message: Message) -> None:
        if self.scripts[message.chat_jid]:
            match self.scripts[message.chat_jid].popleft():
                case asyncio.Event() as event:
                    await event.wait()
                case Exception() as error:
                    raise error
        self.shown = [one for one in self.shown if one.message_id != message.id]

    def status(self) -> dict[str, Any]:
        if self.connected_since_ms is None:
            return {}
        return {"state": "connected", "connected_since_ms": self.connected_since_ms}

    def texts(self, jid: str | None = None) -> list[str]:
        return [one.text for one in self.shown if jid in (None, one.jid)]
