"""Send a message once, though the library chooses its id itself and tells it only afterwards.

Each message carries the host's mark in its secret. The library writes that secret with the id it chose into
its own store before anything leaves, so the host can find there what may have left and under which id. What
has a receipt arrived; what has none is taken back before it is sent again, so that nobody reads it twice.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.channels.whatsapp import addresses, message_text, neonize_database
from orchestrator.channels.whatsapp.addresses import Address
from orchestrator.channels.whatsapp.contacts import Contacts, jid_of
from orchestrator.channels.whatsapp.protocol import BridgeResponse, React, SendRequest
from orchestrator.channels.whatsapp.spool import Spool

if TYPE_CHECKING:
    from neonize.aioze.client import NewAClient
    from neonize.proto.waE2E.WAWebProtobufsE2E_pb2 import ContextInfo, Message

log = logging.getLogger(__name__)

PROOF_SECONDS = 6.0
"""How long a receipt may take for what was sent in an earlier life."""
_NEVER = (
    "not participating in that group",
    "group does not exist",
    "no lid found",
    "unknown server",
    "message recipient must be a user jid",
    "item-not-found",
)


class Sender:
    """One message at a time, as the library has it too: who asks again waits for what came of the first."""

    def __init__(self, client: NewAClient, spool: Spool, people: Contacts, *, own: Address) -> None:
        self._client = client
        self._spool = spool
        self._people = people
        self._own = own
        self._turn = asyncio.Lock()
        self._receipted = asyncio.Event()

    async def send(self, ask: SendRequest) -> BridgeResponse:
        """Send what has not been sent. The answer's text is the messenger's id, or why not."""
        async with self._turn:
            try:
                known = self._spool.sent_as(ask.mark) or await self._arrived(ask)
                if known is None:
                    known = await self._send_now(ask)
            except Exception as error:  # noqa: BLE001 - of the library; the host decides what follows
                log.warning("a message was not sent: %s", error)
                return _refusal(ask.id, error)
            self._spool.note_sent(ask.mark, known)
        return BridgeResponse(id=ask.id, text=known)

    async def react(self, ask: React) -> BridgeResponse:
        """Put a sign under a message; the library sends it as it sends messages."""
        chat, author = addresses.parse(ask.chat), addresses.parse(ask.author)
        if chat is None or author is None:
            return BridgeResponse(id=ask.id, ok=False, code="refused", text="unknown server")
        author = await self._people.as_in(ask.chat, author)
        message = await self._client.build_reaction(jid_of(chat), jid_of(author), ask.message, ask.sign)
        await self._client.send_message(jid_of(chat), message)
        return BridgeResponse(id=ask.id)

    def note_receipts(self, message_ids: list[str]) -> None:
        self._spool.note_receipts(message_ids)
        self._receipted.set()

    async def _arrived(self, ask: SendRequest) -> str | None:
        """The id under which it arrived in an earlier life, if a receipt says so within a while."""
        if not ask.earlier:
            return None
        try:
            async with asyncio.timeout(PROOF_SECONDS):
                while True:
                    self._receipted.clear()
                    for one in ask.earlier:
                        if self._spool.has_receipt(one):
                            return one
                    await self._receipted.wait()
        except TimeoutError:
            return None

    async def _send_now(self, ask: SendRequest) -> str:
        chat = addresses.parse(ask.chat)
        if chat is None:
            raise ValueError("unknown server")
        for one in ask.earlier:
            await self._client.revoke_message(jid_of(chat), jid_of(self._own), one)
        message = await self._compose(ask)
        message.messageContextInfo.messageSecret = neonize_database.secret_of(ask.mark)
        response = await self._client.send_message(jid_of(chat), message)
        return str(response.ID)

    async def _compose(self, ask: SendRequest) -> Message:
        """The message to send: what it answers, whom it is for, and when it disappears go with it."""
        from neonize.proto.waE2E.WAWebProtobufsE2E_pb2 import ContextInfo

        context = ContextInfo(expiration=self._spool.timer(ask.chat) or None)
        author = addresses.parse(ask.quote.author) if ask.quote else None
        if ask.quote is not None and author is not None:
            context.stanzaID = ask.quote.id
            context.participant = str(await self._people.as_in(ask.chat, author))
            context.quotedMessage.conversation = ask.quote.text
        person = addresses.parse(ask.mention)
        if person is not None:
            known = await self._people.as_in(ask.chat, person)
            context.mentionedJID.append(str(known))
            shown = ask.text.replace(f"@{person.user}", f"@{known.user}", 1)
            ask = ask.model_copy(update={"text": shown})
        return await compose(self._client, ask, context if context.ListFields() else None)


def _refusal(ask_id: int, error: Exception) -> BridgeResponse:
    text = " ".join(str(error).split())[:300] or type(error).__name__
    never = isinstance(error, FileNotFoundError) or any(sign in text.lower() for sign in _NEVER)
    return BridgeResponse(id=ask_id, ok=False, code="refused" if never else "down", text=text)


async def compose(client: NewAClient, ask: SendRequest, context: ContextInfo | None) -> Message:
    """The message to send; a file is uploaded first."""
    from neonize.proto.waE2E.WAWebProtobufsE2E_pb2 import ExtendedTextMessage, Message
    from neonize.utils.enum import MediaType

    if not ask.file and context is not None:
        return Message(extendedTextMessage=ExtendedTextMessage(text=ask.text, contextInfo=context))
    if not ask.file:
        return Message(conversation=ask.text)
    body = await asyncio.to_thread(Path(ask.file).read_bytes)
    kind = ask.mime.partition("/")[0]
    types = {"image": MediaType.MediaImage, "video": MediaType.MediaVideo, "audio": MediaType.MediaAudio}
    uploaded = await client.upload(body, types.get(kind, MediaType.MediaDocument))
    message = file_message(ask, uploaded, size=len(body))
    part = message_text.body(message)
    if context is not None and part is not None:
        part.contextInfo.CopyFrom(context)
    return message


def file_message(ask: SendRequest, uploaded: Any, *, size: int) -> Message:
    """The message that shows an uploaded file. Pure."""
    from neonize.proto.waE2E.WAWebProtobufsE2E_pb2 import (
        AudioMessage,
        DocumentMessage,
        ImageMessage,
        Message,
        VideoMessage,
    )

    common = {
        "URL": uploaded.url,
        "directPath": uploaded.DirectPath,
        "mediaKey": uploaded.MediaKey,
        "fileEncSHA256": uploaded.FileEncSHA256,
        "fileSHA256": uploaded.FileSHA256,
        "fileLength": size,
        "mimetype": ask.mime,
    }
    match ask.mime.partition("/")[0]:
        case "image":
            return Message(imageMessage=ImageMessage(**common, caption=ask.text))
        case "video":
            return Message(videoMessage=VideoMessage(**common, caption=ask.text))
        case "audio" if not ask.text:
            return Message(audioMessage=AudioMessage(**common))
    document = DocumentMessage(**common, caption=ask.text, fileName=ask.file_name, title=ask.file_name)
    return Message(documentMessage=document)
