"""Take messages from the bridge to the host: read them, hand them in, confirm them.

A message with a file is handed in at once, so that its chat goes on; its file is fetched beside it, and the
message is handed in again with the file's place in its text.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import structlog

from orchestrator.channels import attachments
from orchestrator.channels.attachments import FetchedFile
from orchestrator.channels.context import ChannelContext
from orchestrator.channels.whatsapp import media_download
from orchestrator.channels.whatsapp.bridge_process import BridgeProcess
from orchestrator.channels.whatsapp.media_download import MediaDownloader
from orchestrator.channels.whatsapp.neonize_database import NeonizeDatabase
from orchestrator.channels.whatsapp.protocol import (
    BridgeMessage,
    Delivered,
    MediaReference,
    MessageAcknowledged,
    QuotedMessage,
    Read,
)
from orchestrator.domain.errors import BadRequest, ChannelDown, StoreError
from orchestrator.domain.polls import Poll
from orchestrator.domain.protocols import Receive
from orchestrator.domain.values import ChatJid, Inbound, MessageId, Quote
from orchestrator.store import chats, groups, messages, polls

log = structlog.get_logger(__name__)

TAKE_TRIES = 5
"""Tries to hand a message to the host before the message waits for the next login."""
TAKE_PAUSE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class _Vote:
    """A vote in a poll of Andy's own."""

    poll: Poll
    chosen: tuple[int, ...]


class MessageReader:
    """Makes an `Inbound` of a message of the bridge."""

    def __init__(self, context: ChannelContext, login: NeonizeDatabase) -> None:
        self._context = context
        self._login = login
        self._downloader = MediaDownloader(context)

    async def read(self, message: BridgeMessage) -> Inbound | None:
        """Return a message without its file, or None when the host need not know it.

        `file_until_ms` of it is set when there is a file to fetch.

        Raises:
            ChannelDown: the login's database cannot be read now.
        """
        if message.is_from_me and await self._mark_of(message.id) is not None:
            return None
        quote = await self._quote(message.quote) if message.quote is not None else None
        async with self._context.database.reading() as tx:
            group = await groups.by_jid(tx, ChatJid(message.chat))
            known = await messages.find(tx, ChatJid(message.chat), MessageId(message.id))
            files = await media_download.files_to_fetch(
                tx, message, quote, limit=self._context.attachment_bytes
            )
            needs_members = bool(message.deletes) or message.chosen is not None
            members = await chats.members_of(tx, ChatJid(message.chat)) if needs_members else []
        if group is None and message.deletes:
            return None
        file_until_ms = None
        if known is not None:
            # The turn waits no longer than was said before, however often the bridge starts anew.
            file_until_ms = known.file_until_ms
        elif group is not None and files:
            file_until_ms = self._context.clock.now_ms() + int(self._downloader.wait_seconds(files) * 1000)
        vote, people = await self._vote(message), None
        if vote is not None:
            quote = Quote(
                message_id=vote.poll.message_id, sender=self._context.assistant, text=vote.poll.text
            )
            # On a number of the owner's Andy is no member of his own, and the owner is asked as well.
            people = len(members) + (not self._context.has_own_number) if members else None
            people = people if message.is_group else 2
        return Inbound(
            chat_jid=ChatJid(message.chat),
            id=MessageId(message.id),
            sender=message.sender,
            sender_name=message.sender_name,
            text=message.text,
            call_text=message.call_text,
            sent_ms=message.sent_ms,
            is_from_me=message.is_from_me,
            # A chat between two is called as the other one is.
            chat_name=None if message.is_group or message.is_from_me else message.sender_name,
            channel="whatsapp",
            is_group=message.is_group,
            # On a number of the owner's the chats between two are his own.
            is_direct=self._context.has_own_number and not (message.is_group or message.is_from_me),
            quote=quote,
            is_call=message.calls_me or self._answers_assistant(message.quote),
            edits=MessageId(message.edits) if message.edits else None,
            deletes=await self._deleted(message),
            is_moderated=any(one.jid == message.sender and one.is_admin for one in members),
            ignored=message.ignored,
            reaction=message.reaction,
            vote=vote.chosen if vote is not None else None,
            people=people or None,
            is_unreadable=message.is_unreadable,
            file=self._placeholder(message.media, is_to_come=file_until_ms is not None),
            file_until_ms=file_until_ms,
            sender_alias=message.sender_alias,
        )

    async def read_with_files(
        self, message: BridgeMessage, inbound: Inbound, bridge: BridgeProcess
    ) -> Inbound | None:
        """Fetch the files of a message; return it with them, or None when the bridge ends before that.

        `inbound` is what `read` has returned of it.
        """
        async with self._context.database.reading() as tx:
            group = await groups.by_jid(tx, inbound.chat_jid)
            files = await media_download.files_to_fetch(
                tx, message, inbound.quote, limit=self._context.attachment_bytes
            )
        fetched: dict[str, FetchedFile] = {}
        if group is not None:
            fetched = await self._downloader.download_all(message, files, group, bridge)
        if not bridge.is_alive:
            # The next bridge delivers the message again, and the files are tried again then.
            return None
        file, quote, spoken = inbound.file, inbound.quote, ""
        if message.media is not None:
            own = fetched.get(message.media.ref)
            file = own.words if own else self._placeholder(message.media, is_to_come=False)
            spoken = own.spoken if own else ""
        if quote is not None and message.quote is not None and message.quote.media is not None:
            shown = fetched.get(message.quote.media.ref)
            quote = (
                replace(quote, text=messages.with_file(message.quote.text, shown.words)) if shown else quote
            )
        return replace(inbound, file=file, spoken=spoken, quote=quote, file_until_ms=None)

    async def read_receipt(self, message: BridgeMessage) -> Read | None:
        """Return the receipt that tells the sender of a message that it was read; None where none is due.

        On an account that the assistant shares with its owner none is: the owner's own phone would show the
        message as read.
        """
        if not self._context.has_own_number or message.is_from_me or message.is_unreadable:
            return None
        async with self._context.database.reading() as tx:
            if await groups.by_jid(tx, ChatJid(message.chat)) is None:
                return None
        return Read(chat=message.chat, message=message.id, author=message.sender)

    def _placeholder(self, media: MediaReference | None, *, is_to_come: bool) -> str | None:
        return attachments.placeholder_of(media, is_to_come=is_to_come, limit=self._context.attachment_bytes)

    def _answers_assistant(self, quoted: QuotedMessage | None) -> bool:
        # All that an account of the assistant's own said is the assistant's, also what an earlier login sent.
        return quoted is not None and quoted.is_mine and self._context.has_own_number

    async def _vote(self, message: BridgeMessage) -> _Vote | None:
        """Return a vote in a poll of Andy's own, with the options that it chooses; None of any other."""
        if message.chosen is None or message.quote is None:
            return None
        mark = await self._mark_of(message.quote.id)
        async with self._context.database.reading() as tx:
            poll = await polls.of_message(tx, MessageId(mark)) if mark is not None else None
        if poll is None:
            return None
        places = {hashlib.sha256(one.encode()).hexdigest(): at for at, one in enumerate(poll.options)}
        if not all(one in places for one in message.chosen):
            return None
        return _Vote(poll=poll, chosen=tuple(dict.fromkeys(places[one] for one in message.chosen)))

    async def _deleted(self, message: BridgeMessage) -> MessageId | None:
        """Return the message that one takes back, by the id by which the host knows it."""
        if not message.deletes:
            return None
        # The account itself takes back what it is about to send again under the same mark.
        mark = None if message.is_from_me else await self._mark_of(message.deletes)
        return MessageId(mark or message.deletes)

    async def _mark_of(self, message_id: str) -> str | None:
        return await asyncio.to_thread(self._login.mark_of, message_id)

    async def _quote(self, quoted: QuotedMessage) -> Quote:
        """Return a quote; one of the assistant's own words has the id by which the host knows them."""
        mark = await self._mark_of(quoted.id) if quoted.is_mine else None
        author = self._context.assistant if mark is not None else quoted.author
        text = messages.with_file(quoted.text, self._placeholder(quoted.media, is_to_come=False))
        return Quote(message_id=MessageId(mark or quoted.id), sender=author, text=text)


@dataclass(frozen=True, slots=True, kw_only=True)
class _HandedIn:
    """A message that needs no further try; `inbound` is None for one that the host need not know."""

    inbound: Inbound | None


class MessageReceiver:
    """Hands the messages of one bridge to the host: in order within a chat, no chat waiting for another."""

    def __init__(
        self,
        tasks: asyncio.TaskGroup,
        bridge: BridgeProcess,
        receive: Receive,
        *,
        reader: MessageReader,
        on_received: Callable[[], None],
    ) -> None:
        """`on_received` is called for each message that the host has for good."""
        self._tasks = tasks
        self._bridge = bridge
        self._receive = receive
        self._reader = reader
        self._on_received = on_received
        self._waiting: dict[str, deque[Delivered]] = defaultdict(deque)
        self._running: set[asyncio.Task[None]] = set()

    @property
    def is_idle(self) -> bool:
        """Whether no chat has a message that waits to be handed in."""
        return not self._waiting

    def put(self, delivered: Delivered) -> None:
        """Queue a message behind those of its chat. Does not block."""
        chat = delivered.message.chat
        has_worker = chat in self._waiting
        self._waiting[chat].append(delivered)
        if not has_worker:
            self._start(self._work(chat), name=f"whatsapp:{chat}")

    def cancel(self) -> None:
        """Stop all work. What was not acknowledged comes again from the next bridge."""
        for task in self._running:
            task.cancel()

    def _start(self, work: Coroutine[Any, Any, None], *, name: str) -> None:
        task = self._tasks.create_task(work, name=name)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _work(self, chat: str) -> None:
        # It ends with its chat's last message, so that a chat with nothing waiting costs nothing.
        waiting = self._waiting[chat]
        while waiting:
            await self._take(waiting[0])
            waiting.popleft()
        del self._waiting[chat]

    async def _take(self, delivered: Delivered) -> None:
        """Hand a message in and acknowledge it; without an acknowledgement it comes again.

        A message whose file is to come is acknowledged when the file is there: until then a crash of the
        host brings it again.
        """
        message = delivered.message
        handed = await self._hand_in(message, partial(self._reader.read, message))
        if handed is None:
            return
        if handed.inbound is not None and handed.inbound.file_until_ms is not None:
            work = self._take_with_files(delivered, handed.inbound)
            self._start(work, name=f"whatsapp:file:{message.id}")
        else:
            await self._acknowledge(delivered)

    async def _take_with_files(self, delivered: Delivered, inbound: Inbound) -> None:
        message = delivered.message
        fetch = partial(self._reader.read_with_files, message, inbound, self._bridge)
        if await self._hand_in(message, fetch) is not None:
            await self._acknowledge(delivered)

    async def _hand_in(
        self, message: BridgeMessage, read: Callable[[], Awaitable[Inbound | None]]
    ) -> _HandedIn | None:
        """Read a message and hand it in, with several tries; return None when all of them failed."""
        tries = 0
        while tries < TAKE_TRIES and self._bridge.is_alive:
            try:
                inbound = await read()
                if inbound is not None:
                    await self._receive(inbound)
                return _HandedIn(inbound=inbound)
            except BadRequest as refused:
                log.warning("whatsapp.message_refused", message=message.id, reason=str(refused))
                return _HandedIn(inbound=None)
            except (ChannelDown, StoreError) as error:
                # Not the message's fault, so it counts as no try: its chat waits with it.
                log.warning("whatsapp.message_waits", message=message.id, reason=str(error))
                await asyncio.sleep(TAKE_PAUSE_SECONDS)
            except Exception:
                tries += 1
                log.exception("whatsapp.message_not_taken", message=message.id, attempt=tries)
                await asyncio.sleep(TAKE_PAUSE_SECONDS)
        return None

    async def _acknowledge(self, delivered: Delivered) -> None:
        self._on_received()
        try:
            receipt = await self._reader.read_receipt(delivered.message)
            await self._bridge.notify(MessageAcknowledged(n=delivered.n, read=receipt))
        except ChannelDown:
            # It comes again then, and the intake knows its id.
            log.info("whatsapp.not_acknowledged", message=delivered.message.id)
