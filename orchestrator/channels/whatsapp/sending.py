"""Send each message once, though the library chooses its id itself and returns it only afterwards.

Each message contains the host's id of it, its mark, in a field that WhatsApp calls its secret. Before the
library sends a message, it writes the secret and the id that it chose to its own database. There the host
finds the ids under which earlier tries may have sent the message. If one of them has a receipt, the message
arrived. If none has, the message is deleted under these ids and then sent again, so that nobody reads it
twice.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from orchestrator.channels.whatsapp import addresses, message_text, neonize_database
from orchestrator.channels.whatsapp.addresses import Address
from orchestrator.channels.whatsapp.contacts import Contacts, jid_of
from orchestrator.channels.whatsapp.protocol import BridgeResponse, React, SendRequest, Withdraw
from orchestrator.channels.whatsapp.spool import Spool

if TYPE_CHECKING:
    from neonize.aioze.client import NewAClient
    from neonize.proto.waE2E.WAWebProtobufsE2E_pb2 import ContextInfo, Message

log = logging.getLogger(__name__)

VOICE_NOTE = "audio/ogg; codecs=opus"
PICTURES = frozenset({"image/jpeg", "image/png", "image/webp", "image/gif"})
"""MIME types of the pictures that phones show; a drawing such as SVG is no picture for them."""
OPUS_RATE = 48_000
"""Samples a second by which Opus counts time, whatever the sound's own rate."""
MAX_VOICE_SECONDS = 2**32 - 1
"""Most seconds that a voice note can be said to last."""
UPLOAD_SECONDS = 60.0
"""Seconds that the upload of a file may take, besides those for its bytes."""
UPLOAD_BYTES_PER_SECOND = 100_000
"""Bytes of a file for which an upload gets one second more."""
MAX_UPLOADS = 4
"""Uploads that may run at a time. A hanging call never frees its thread, and other calls need some too."""
PROOF_SECONDS = 6.0
"""Seconds to wait for the receipt of a message that an earlier bridge process sent."""
_PERMANENT_ERRORS = (
    "not participating in that group",
    "group does not exist",
    "no lid found",
    "unknown server",
    "message recipient must be a user jid",
    "item-not-found",
)


@dataclass(frozen=True, slots=True)
class WhatsappFile:
    """A file that WhatsApp has, and that no message shows yet."""

    content: bytes
    answer: Any
    """The library's answer to the upload: the address and the keys."""


class Sender:
    """Sends one message at a time, as the library does, so a repeated request waits for the first."""

    def __init__(self, client: NewAClient, spool: Spool, people: Contacts, *, own: Address) -> None:
        """`spool` stores what was sent, `people` knows addresses, and `own` is the account's address."""
        self._client = client
        self._spool = spool
        self._people = people
        self._own = own
        self._send_lock = asyncio.Lock()
        self._uploads: dict[str, asyncio.Task[WhatsappFile]] = {}
        """The uploads that run, each by the mark of its message."""
        self._receipt_came = asyncio.Event()

    async def send(self, request: SendRequest) -> BridgeResponse:
        """Send a message unless it was sent already, and store its id; return the response for the host.

        The text of the response is WhatsApp's id of the message, or the reason why it was not sent.
        """
        try:
            # Before the lock is taken: no other message waits for a file.
            file = None if self._spool.sent_as(request.mark) else await self._upload(request)
            async with self._send_lock:
                sent_id = self._spool.sent_as(request.mark) or await self._earlier_id(request)
                if sent_id is None:
                    sent_id = await self._send_new(request, file)
                self._spool.note_sent(request.mark, sent_id)
        except Exception as error:  # noqa: BLE001 - the library raises anything; the host decides on a retry
            log.warning("a message was not sent: %s", error)
            return _refusal(request.id, error)
        return BridgeResponse(id=request.id, text=sent_id)

    async def react(self, request: React) -> BridgeResponse:
        """Put the emoji `request.sign` under a message, or remove Andy's emoji if the sign is empty.

        Return the response for the host: "refused" for an invalid address. Raises what the library raises.
        """
        chat, author = addresses.parse(request.chat), addresses.parse(request.author)
        if chat is None or author is None:
            return BridgeResponse(id=request.id, ok=False, code="refused", text="unknown server")
        author = await self._people.address_in_chat(request.chat, author)
        message = await self._client.build_reaction(
            jid_of(chat), jid_of(author), request.message, request.sign
        )
        await self._client.send_message(jid_of(chat), message)
        return BridgeResponse(id=request.id)

    async def withdraw(self, request: Withdraw) -> BridgeResponse:
        """Delete a message of Andy's own for everybody, under all ids under which it may have been sent.

        Return the response for the host: "refused" if no such id is known. Raises what the library raises.
        """
        chat = addresses.parse(request.chat)
        sent_id = self._spool.sent_as(request.mark)
        # As the keys of a dictionary: each id once, in their order.
        known_ids = dict.fromkeys(request.messages)
        if sent_id is not None:
            known_ids[sent_id] = None
        if chat is None or not known_ids:
            return BridgeResponse(id=request.id, ok=False, code="refused", text="the message is not known")
        for message_id in known_ids:
            await self._client.revoke_message(jid_of(chat), jid_of(self._own), message_id)
        return BridgeResponse(id=request.id)

    def note_receipts(self, message_ids: list[str]) -> None:
        """Store that messages arrived, and wake a `send` that waits for a receipt.

        `message_ids` are WhatsApp's ids.
        """
        self._spool.note_receipts(message_ids)
        self._receipt_came.set()

    async def _earlier_id(self, request: SendRequest) -> str | None:
        """Return WhatsApp's id under which an earlier attempt has sent the message.

        `request.earlier` has the ids under which an earlier attempt may have sent it. Wait up to
        `PROOF_SECONDS` for a receipt that proves that a message with one of these ids arrived. None if no
        receipt comes, or if there was no earlier attempt.
        """
        if not request.earlier:
            return None
        try:
            async with asyncio.timeout(PROOF_SECONDS):
                while True:
                    self._receipt_came.clear()
                    for message_id in request.earlier:
                        if self._spool.has_receipt(message_id):
                            return message_id
                    await self._receipt_came.wait()
        except TimeoutError:
            return None

    async def _upload(self, request: SendRequest) -> WhatsappFile | None:
        """Upload the file of a message, if it has one; None without one.

        Raises what the library raises, `OSError` if the file cannot be read, and `TimeoutError` if too many
        files are being uploaded, or this one takes too long.
        """
        if not request.file:
            return None
        # An upload that an earlier attempt left is waited for again: a hanging file takes no second place.
        upload = self._uploads.get(request.mark)
        if upload is None:
            if len(self._uploads) >= MAX_UPLOADS:
                raise TimeoutError("too many files are being sent")
            upload = asyncio.create_task(self._read_and_upload(request), name="whatsapp:upload")
            self._uploads[request.mark] = upload
            upload.add_done_callback(partial(self._note_upload_ended, request.mark))
        size = (await asyncio.to_thread(Path(request.file).stat)).st_size
        try:
            async with asyncio.timeout(UPLOAD_SECONDS + size / UPLOAD_BYTES_PER_SECOND):
                # Shielded, since it goes on in its thread anyway, and counts until it has ended.
                return await asyncio.shield(upload)
        except TimeoutError:
            raise TimeoutError("the file could not be uploaded in time") from None

    async def _read_and_upload(self, request: SendRequest) -> WhatsappFile:
        """Read the file of a message, and upload it.

        Raises what the library raises, and `OSError` if the file cannot be read.
        """
        from neonize.utils.enum import MediaType

        media_types = {
            "image": MediaType.MediaImage,
            "video": MediaType.MediaVideo,
            "audio": MediaType.MediaAudio,
            "document": MediaType.MediaDocument,
        }
        content = await asyncio.to_thread(Path(request.file).read_bytes)
        # The keys depend on the media type: a phone can open the file only as what it was uploaded as.
        return WhatsappFile(content, await self._client.upload(content, media_types[shown_as(request)]))

    def _note_upload_ended(self, mark: str, upload: asyncio.Task[WhatsappFile]) -> None:
        """Remove the ended upload of the message `mark` (the host's id), so that another one can start."""
        del self._uploads[mark]
        if not upload.cancelled():
            upload.exception()  # retrieved here, since nobody awaits the task after its time was over

    async def _send_new(self, request: SendRequest, file: WhatsappFile | None) -> str:
        """Delete what earlier attempts may have sent, then send the message; return WhatsApp's id of it.

        `file` is the message's file, which is uploaded already; None for a message without one. The options
        of a poll are stored, for its votes. Raises `ValueError` if the chat's address is not valid, and what
        the library raises.
        """
        chat = addresses.parse(request.chat)
        if chat is None:
            raise ValueError("unknown server")
        # An earlier try may have arrived although no receipt came. It is deleted, so that nobody reads it
        # twice.
        for message_id in request.earlier:
            await self._client.revoke_message(jid_of(chat), jid_of(self._own), message_id)
        message = await self._compose(request, file)
        # The secret contains the host's id, by which later attempts find the id that the library chooses.
        message.messageContextInfo.messageSecret = neonize_database.secret_of(request.mark)
        response = await self._client.send_message(jid_of(chat), message)
        if request.options:
            self._spool.note_poll(str(response.ID), request.text, request.options)
        return str(response.ID)

    async def _compose(self, request: SendRequest, file: WhatsappFile | None) -> Message:
        """Return the library's form of a message to send; `file` is its file, None without one.

        The message gets its quote, its mention and the time after which messages of its chat disappear.
        """
        from neonize.proto.waE2E.WAWebProtobufsE2E_pb2 import ContextInfo

        context = ContextInfo(expiration=self._spool.timer(request.chat) or None)
        author = addresses.parse(request.quote.author) if request.quote else None
        if request.quote is not None and author is not None:
            context.stanzaID = request.quote.id
            context.participant = str(await self._people.address_in_chat(request.chat, author))
            context.quotedMessage.conversation = request.quote.text
        mentioned = addresses.parse(request.mention)
        if mentioned is not None:
            address_there = await self._people.address_in_chat(request.chat, mentioned)
            context.mentionedJID.append(str(address_there))
            text = request.text.replace(f"@{mentioned.user}", f"@{address_there.user}", 1)
            request = replace(request, text=text)
        return compose(request, context if context.ListFields() else None, file)


def _refusal(request_id: int, error: Exception) -> BridgeResponse:
    """Return the response to the request `request_id` that failed with an error.

    Its code is "refused" if another attempt cannot help, else "down".
    """
    text = " ".join(str(error).split())[:300] or type(error).__name__
    is_permanent = isinstance(error, FileNotFoundError) or any(
        known_error in text.lower() for known_error in _PERMANENT_ERRORS
    )
    return BridgeResponse(id=request_id, ok=False, code="refused" if is_permanent else "down", text=text)


def compose(request: SendRequest, context: ContextInfo | None, file: WhatsappFile | None) -> Message:
    """Return the library's form of a message: a poll, a text, or a file. Pure.

    `context` has the quote, the mention and the time after which the message disappears; None for none of
    these. `file` is the uploaded file; None without one.
    """
    from neonize.proto.waE2E.WAWebProtobufsE2E_pb2 import (
        ExtendedTextMessage,
        Message,
        PollCreationMessage,
    )

    if request.options:
        poll = PollCreationMessage(
            name=request.text,
            options=[PollCreationMessage.Option(optionName=option) for option in request.options],
            selectableOptionsCount=0 if request.is_multiple else 1,  # 0: any number
        )
        if context is not None:
            poll.contextInfo.CopyFrom(context)
        return Message(pollCreationMessage=poll)
    if file is None and context is not None:
        return Message(extendedTextMessage=ExtendedTextMessage(text=request.text, contextInfo=context))
    if file is None:
        return Message(conversation=request.text)
    message = file_message(request, file.answer, size=len(file.content))
    if request.mime == VOICE_NOTE:
        message.audioMessage.PTT = True  # shown as a voice note, not as a file
        message.audioMessage.seconds = opus_seconds(file.content)
    file_part = message_text.content_part(message)
    if context is not None and file_part is not None:
        file_part.contextInfo.CopyFrom(context)
    return message


def opus_seconds(content: bytes) -> int:
    """Return an Ogg Opus file's duration in seconds, at least 1, by the sample position of its last page.

    Pages without a position, or with one beyond `MAX_VOICE_SECONDS`, are passed over.
    """
    # The header of a page begins with "OggS"; from byte 6 on it has the position in 8 bytes. A page without a
    # position, in which no packet ends, has all bits of these bytes set: a very large number here.
    page = len(content)
    while (page := content.rfind(b"OggS", 0, page)) >= 0:
        seconds = round(int.from_bytes(content[page + 6 : page + 14], "little") / OPUS_RATE)
        if seconds <= MAX_VOICE_SECONDS:
            return max(1, seconds)
    return 1


def shown_as(request: SendRequest) -> Literal["image", "video", "audio", "document"]:
    """Return the kind of message by which WhatsApp shows a file of this MIME type. Pure.

    A picture of a form that phones do not show is a document, and so is a sound with a caption, since
    WhatsApp's sounds have none.
    """
    mime = request.mime.partition(";")[0].strip().lower()
    match mime.partition("/")[0]:
        case "image" if mime in PICTURES:
            return "image"
        case "video":
            return "video"
        case "audio" if not request.text:
            return "audio"
        case _:
            return "document"


def file_message(request: SendRequest, uploaded: Any, *, size: int) -> Message:
    """Return the library's form of a message with an uploaded file, shown as `shown_as` says. Pure.

    `uploaded` is the library's answer to the upload: the address and the keys. `size` is in bytes.
    """
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
        "mimetype": request.mime,
    }
    match shown_as(request):
        case "image":
            return Message(imageMessage=ImageMessage(**common, caption=request.text))
        case "video":
            return Message(videoMessage=VideoMessage(**common, caption=request.text))
        case "audio":  # only without a text: `shown_as` makes a sound with one a document
            return Message(audioMessage=AudioMessage(**common))
    document = DocumentMessage(
        **common, caption=request.text, fileName=request.file_name, title=request.file_name
    )
    return Message(documentMessage=document)
