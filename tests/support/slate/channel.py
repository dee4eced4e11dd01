"""The channel of the slate, written from CONTRIBUTING.md and the docstrings that it names.

`BUG` switches one of three faults on, which the tests of the channel contract have to find.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
from pathlib import Path
from typing import Any

from orchestrator.channels import attachments
from orchestrator.channels.context import ChannelContext
from orchestrator.channels.description import ChannelDescription
from orchestrator.channels.receiving import hand_in
from orchestrator.domain.errors import ChannelDown
from orchestrator.domain.polls import Poll
from orchestrator.domain.protocols import Channel, Feature, Receive
from orchestrator.domain.values import Attachment, ChatJid, ChatMember, Inbound, Message, MessageId, Quote
from orchestrator.groups.attachments import keep_body
from orchestrator.store.conversation import chats
from orchestrator.store.groups import groups
from slate.board import Board, Refused

LOGIN = "data/channels/slate/login.json"
JID = ChatJid("slate:kitchen")
BUG = os.environ.get("SLATE_BUG", "")


class SlateFile:
    """A file that somebody put on the slate."""

    kind, mime, name, seconds = "document", "application/pdf", "paper.pdf", 0

    def __init__(self, size: int) -> None:
        self.size = size


class SlateChannel:
    """Owns the one slate in the kitchen."""

    name = "slate"
    features = frozenset({Feature.IDEMPOTENT, Feature.QUOTES, Feature.EDITS, Feature.DELETIONS})
    max_text_chars: int | None = None if BUG == "no_limit" else 500
    max_file_bytes: int | None = 50_000

    def __init__(self, context: ChannelContext) -> None:
        self._context = context
        self._board: Board | None = None
        self._sent: set[MessageId] = set()

    def owns(self, jid: ChatJid) -> bool:
        return jid == JID

    def status(self) -> dict[str, Any]:
        return {"state": "connected" if self._board else "disconnected"}

    async def run(self, receive: Receive) -> None:
        path = self._context.home / LOGIN
        login = json.loads(await asyncio.to_thread(path.read_text))
        async with self._context.database.reading() as tx:
            place = int(await chats.cursor(tx, self.name) or 0)
        self._board = Board(Path(login["folder"]))
        try:
            while True:
                for line in await asyncio.to_thread(self._board.written, place):
                    message = await self._inbound(line)
                    if not await hand_in(receive, message, cursor=str(line["number"])):
                        async with self._context.database.transaction() as tx:
                            await chats.set_cursor(tx, self.name, str(line["number"]))
                    place = line["number"]
                await asyncio.sleep(0.01)
        finally:
            self._board = None

    async def _inbound(self, line: dict[str, Any]) -> Inbound:
        quote = line.get("quotes")
        return Inbound(
            chat_jid=JID,
            id=MessageId(str(line["number"])),
            sender="slate:jane",
            sender_name="Jane",
            text=line.get("text", ""),
            sent_ms=line["at_ms"],
            chat_name="Kitchen",
            channel=self.name,
            is_group=True,
            quote=Quote(message_id=MessageId(str(quote)), sender="Jane", text="") if quote else None,
            edits=MessageId(str(line["edits"])) if "edits" in line else None,
            deletes=MessageId(str(line["deletes"])) if "deletes" in line else None,
            file=await self._file(line) if "body" in line else None,
        )

    async def _file(self, line: dict[str, Any]) -> str | None:
        file, body = SlateFile(line["announced"]), line["body"].encode()
        limit = self._context.attachment_bytes
        if file.size > limit:
            return attachments.placeholder_of(file, will_be_fetched=False, limit_bytes=limit)
        async with self._context.database.reading() as tx:
            group = await groups.by_jid(tx, JID)
        if group is None or len(body) > limit:
            return attachments.fetch_failed(file).text
        name = attachments.file_name(file, sent_ms=line["at_ms"])
        path = await asyncio.to_thread(keep_body, self._context.home, group.folder, name, io.BytesIO(body))
        return attachments.file_text(file, path)

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
        if self._board is None:
            raise ChannelDown("The slate is not there.")
        if BUG == "key_memory" and message_id in self._sent:
            return None
        try:
            await asyncio.to_thread(self._board.show, message_id, text, knows_keys=BUG != "key_memory")
        except Refused as error:
            if BUG != "swallow":
                raise ChannelDown("The slate takes nothing now.") from error
        self._sent.add(message_id)
        return None

    async def set_typing(self, jid: ChatJid, *, is_typing: bool) -> None:
        pass

    async def react(self, message: Message, sign: str) -> None:
        pass


def build(context: ChannelContext) -> Channel:
    return SlateChannel(context)


CHANNEL = ChannelDescription(
    name="slate",
    title="Slate",
    about={"en": "A slate in the kitchen.", "ko": "부엌의 석판입니다."},
    owns=lambda jid: jid == JID,
    build=build,
    features=SlateChannel.features,
    max_text_chars=500,
    max_file_bytes=50_000,
    secret_files=(LOGIN,),
)
