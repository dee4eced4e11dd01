"""Pass messages from the bridge to the host: read them, hand them in, acknowledge them to the bridge.

A message with a file is handed in at once, so that the chat's later messages need not wait for the download.
Meanwhile the file is fetched, and then the message is handed in again with the file's path in its text.
"""

from __future__ import annotations

import asyncio
import hashlib
import sqlite3
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
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
from orchestrator.domain.values import ChatJid, ChatMember, Inbound, MessageId, Quote
from orchestrator.store.conversation import chats, messages, polls
from orchestrator.store.groups import groups

log = structlog.get_logger(__name__)

MAX_FAILED_TRIES = 5
"""Failed tries to hand a message to the host after which it waits until the next bridge delivers it again."""
RETRY_PAUSE_SECONDS = 5.0
"""Seconds between two tries."""


@dataclass(frozen=True, slots=True)
class _Vote:
    """A vote in a poll that Andy sent."""

    poll: Poll
    chosen: tuple[int, ...]
    """Indexes into the poll's options."""


class MessageReader:
    """Converts the bridge's messages to `Inbound`.

    The login's database has a mark for each message that this host sent: the host's own id of the message.
    """

    def __init__(self, context: ChannelContext, login: NeonizeDatabase) -> None:
        """`login` is the database of the login, by which messages that this host sent are recognised."""
        self._context = context
        self._login = login
        self._downloader = MediaDownloader(context)

    async def read(self, message: BridgeMessage) -> Inbound | None:
        """Return a message as the host takes it, without its file, or None when the host does not need it.

        Not needed are Andy's own messages, which come back, and deletions in chats that are not registered.
        If there is a file to fetch, `Inbound.file_until_ms`, until when an answer waits for it, is set.

        Raises:
            ChannelDown: the login's database cannot be read now.
        """
        # Only a message that this host sent has a mark.
        if message.is_from_me and await self._mark_of(message.id) is not None:
            return None
        quote = await self._quote(message.quote) if message.quote is not None else None
        async with self._context.database.reading() as tx:
            group = await groups.by_jid(tx, ChatJid(message.chat))
            stored = await messages.find(tx, ChatJid(message.chat), MessageId(message.id))
            files = await media_download.files_to_fetch(
                tx, message, quote, limit_bytes=self._context.attachment_bytes
            )
            # The members show whether an admin deletes a message, and how many people may vote.
            needs_members = bool(message.deletes) or message.chosen is not None
            members = await chats.members_of(tx, ChatJid(message.chat)) if needs_members else []
        if group is None and message.deletes:
            return None
        file_until_ms = None
        if stored is not None:
            # A message that is delivered again keeps its first deadline; otherwise each restart of the bridge
            # would make its turn wait longer.
            file_until_ms = stored.file_until_ms
        elif group is not None and files:
            file_until_ms = self._context.clock.now_ms() + int(self._downloader.wait_seconds(files) * 1000)
        vote = await self._vote(message)
        # A vote quotes its poll as the host has stored it.
        if vote is not None:
            quote = Quote(
                message_id=vote.poll.message_id, sender=self._context.assistant, text=vote.poll.text
            )
        return Inbound(
            chat_jid=ChatJid(message.chat),
            id=MessageId(message.id),
            sender=message.sender,
            sender_name=message.sender_name,
            text=message.text,
            call_text=message.call_text,
            sent_ms=message.sent_ms,
            is_from_me=message.is_from_me,
            # A chat between two has the name of the other person.
            chat_name=None if message.is_group or message.is_from_me else message.sender_name,
            channel="whatsapp",
            is_group=message.is_group,
            # If the account is the owner's own, chats between two are the owner's and not with the assistant.
            is_direct=self._context.has_own_number and not (message.is_group or message.is_from_me),
            quote=quote,
            is_call=message.calls_me or self._answers_assistant(message.quote),
            edits=MessageId(message.edits) if message.edits else None,
            deletes=await self._deleted_message(message),
            is_moderated=any(member.jid == message.sender and member.is_admin for member in members),
            ignored=message.ignored,
            reaction=message.reaction,
            vote=vote.chosen if vote is not None else None,
            people=self._count_people(message, members) if vote is not None else None,
            is_unreadable=message.is_unreadable,
            file=self._placeholder(message.media, will_be_fetched=file_until_ms is not None),
            file_until_ms=file_until_ms,
            sender_alias=message.sender_alias,
        )

    async def read_with_files(
        self, message: BridgeMessage, inbound: Inbound, bridge: BridgeProcess
    ) -> Inbound | None:
        """Fetch the files of a message, and return the message with them.

        These are its own file and that of the message that it quotes. Return None if the `bridge`, the
        process that fetches them, has ended meanwhile. `inbound` is the result of `read` for the same
        message.
        """
        async with self._context.database.reading() as tx:
            group = await groups.by_jid(tx, inbound.chat_jid)
            files = await media_download.files_to_fetch(
                tx, message, inbound.quote, limit_bytes=self._context.attachment_bytes
            )
        fetched_by_ref: dict[str, FetchedFile] = {}
        if group is not None:
            fetched_by_ref = await self._downloader.download_all(message, files, group, bridge)
        if not bridge.is_alive:
            # The next bridge delivers the message again, so its files are fetched again then.
            return None
        file, quote, spoken = inbound.file, inbound.quote, ""
        if message.media is not None:
            own_file = fetched_by_ref.get(message.media.ref)
            file = own_file.text if own_file else self._placeholder(message.media, will_be_fetched=False)
            spoken = own_file.spoken if own_file else ""
        if quote is not None and message.quote is not None and message.quote.media is not None:
            quoted_file = fetched_by_ref.get(message.quote.media.ref)
            quote = (
                replace(quote, text=messages.with_file(message.quote.text, quoted_file.text))
                if quoted_file
                else quote
            )
        return replace(inbound, file=file, spoken=spoken, quote=quote, file_until_ms=None)

    async def read_receipt(self, message: BridgeMessage) -> Read | None:
        """Return the receipt that shows the sender that a message was read, or None if it is not to be sent.

        It is not sent for messages of the account itself, for unreadable ones, and in chats that are not
        registered. An account that the assistant shares with its owner sends no receipts at all, because the
        owner's phone would show the message as read, too.
        """
        if not self._context.has_own_number or message.is_from_me or message.is_unreadable:
            return None
        async with self._context.database.reading() as tx:
            if await groups.by_jid(tx, ChatJid(message.chat)) is None:
                return None
        return Read(chat=message.chat, message=message.id, author=message.sender)

    def _count_people(self, message: BridgeMessage, members: Sequence[ChatMember]) -> int | None:
        """Return how many people may vote in a poll, Andy included; None if that is not known.

        `message` is a vote in it. `members` are the stored members of its chat, empty if they are not known.
        """
        if not message.is_group:
            return 2
        if not members:
            return None
        # Andy's account is one of the members. If it is the owner's, that member is the owner, who may vote,
        # too, so one is added for Andy.
        return len(members) if self._context.has_own_number else len(members) + 1

    def _placeholder(self, media: MediaReference | None, *, will_be_fetched: bool) -> str | None:
        """Return the text for a file that is not fetched yet, or never will be; None if `media` is None."""
        return attachments.placeholder_of(
            media, will_be_fetched=will_be_fetched, limit_bytes=self._context.attachment_bytes
        )

    def _answers_assistant(self, quoted: QuotedMessage | None) -> bool:
        """Return whether the quoted message, if there is one, is by the assistant.

        This is known if it is by the account, and the account is the assistant's own.
        """
        # Every message of the assistant's own account is by the assistant, including those that an earlier
        # login sent and that have no mark in the present database.
        return quoted is not None and quoted.is_mine and self._context.has_own_number

    async def _vote(self, message: BridgeMessage) -> _Vote | None:
        """Return the vote in a message: the poll, and the options that it chooses.

        None if the message is no vote, if the poll is not Andy's, or if an option is not one of the poll.
        """
        if message.chosen is None or message.quote is None:
            return None
        own_id = await self._mark_of(message.quote.id)
        async with self._context.database.reading() as tx:
            poll = await polls.of_message(tx, MessageId(own_id)) if own_id is not None else None
        if poll is None:
            return None
        # A vote names options by their hashes.
        index_by_hash = {
            hashlib.sha256(option.encode()).hexdigest(): index for index, option in enumerate(poll.options)
        }
        if not all(option_hash in index_by_hash for option_hash in message.chosen):
            return None
        return _Vote(
            poll=poll,
            chosen=tuple(dict.fromkeys(index_by_hash[option_hash] for option_hash in message.chosen)),
        )

    async def _deleted_message(self, message: BridgeMessage) -> MessageId | None:
        """Return the id of the message that this one deletes, or None if it deletes none.

        For a message that this host sent it is the host's id, unless the account itself deletes it; else it
        is WhatsApp's.
        """
        if not message.deletes:
            return None
        # The bridge deletes a message of the account before it sends it again under the same mark (see
        # `sending`). Such a deletion must not delete the host's message, so its mark is not looked up: the
        # host stores no message of its own under WhatsApp's id.
        mark = None if message.is_from_me else await self._mark_of(message.deletes)
        return MessageId(mark or message.deletes)

    async def _mark_of(self, message_id: str) -> str | None:
        """Return the mark (the host's id) of a message that this host sent, or None for any other message.

        `message_id` is WhatsApp's id of the message. Raises `ChannelDown` if the login's database cannot be
        read.
        """
        return await asyncio.to_thread(self._login.mark_of, message_id)

    async def _quote(self, quoted: QuotedMessage) -> Quote:
        """Return a quoted message as the host takes it.

        If this host sent the message, the quote has the host's id (the mark) and the assistant's name. A file
        in it is represented by a text. Raises `ChannelDown` if the login's database cannot be read.
        """
        mark = await self._mark_of(quoted.id) if quoted.is_mine else None
        author = self._context.assistant if mark is not None else quoted.author
        text = messages.with_file(quoted.text, self._placeholder(quoted.media, will_be_fetched=False))
        return Quote(message_id=MessageId(mark or quoted.id), sender=author, text=text)


@dataclass(frozen=True, slots=True, kw_only=True)
class _HandedIn:
    """A message that was handed in or skipped, so that no further try is needed."""

    inbound: Inbound | None
    """The message as it was handed in; None if the host does not need it or refused it."""


class MessageReceiver:
    """Hands the messages of one bridge to the host, in order within each chat, all chats side by side."""

    def __init__(
        self,
        tasks: asyncio.TaskGroup,
        bridge: BridgeProcess,
        receive: Receive,
        *,
        reader: MessageReader,
        on_received: Callable[[], None],
    ) -> None:
        """Set up the receiver for one process of the bridge.

        Args:
            tasks: runs the tasks of this object.
            bridge: the process that fetches files, and to which messages are acknowledged.
            receive: stores a message.
            reader: converts messages.
            on_received: called for each message that the host has stored or does not need.
        """
        self._tasks = tasks
        self._bridge = bridge
        self._receive = receive
        self._reader = reader
        self._on_received = on_received
        self._waiting: dict[str, deque[Delivered]] = defaultdict(deque)
        """By chat, the messages that are not handed in yet, oldest first; no entry for a chat without any."""
        self._running: set[asyncio.Task[None]] = set()
        """The tasks that hand in the messages of a chat."""

    @property
    def is_idle(self) -> bool:
        """Whether no chat has a message that waits to be handed in."""
        return not self._waiting

    def put(self, delivered: Delivered) -> None:
        """Queue a message of the bridge after the earlier ones of its chat. Does not block.

        A task hands the messages of a chat to the host; it is started if there is none for this chat.
        """
        chat = delivered.message.chat
        has_worker = chat in self._waiting
        self._waiting[chat].append(delivered)
        if not has_worker:
            self._start(self._hand_in_chat(chat), name=f"whatsapp:{chat}")

    def cancel(self) -> None:
        """Cancel all tasks. The next bridge process delivers unacknowledged messages again."""
        for task in self._running:
            task.cancel()

    def _start(self, work: Coroutine[Any, Any, None], *, name: str) -> None:
        """Start a task with this `name`, which `cancel` cancels if it still runs then."""
        task = self._tasks.create_task(work, name=name)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _hand_in_chat(self, chat: str) -> None:
        """Hand in the queued messages of a chat, one after another, until none is left."""
        # The task ends after the chat's last message, so that idle chats have no task. A message stays in the
        # queue while it is handed in: as long as the chat has a queue, `put` starts no second task.
        waiting = self._waiting[chat]
        while waiting:
            await self._hand_in_and_acknowledge(waiting[0])
            waiting.popleft()
        del self._waiting[chat]

    async def _hand_in_and_acknowledge(self, delivered: Delivered) -> None:
        """Hand a message to the host and acknowledge it to the bridge.

        A message that could not be handed in is not acknowledged, so the next bridge process delivers it
        again. One with a file to fetch is acknowledged only after that, for the case of a crash before.
        """
        message = delivered.message
        handed_in = await self._hand_in(message, partial(self._reader.read, message))
        if handed_in is None:
            return
        if handed_in.inbound is not None and handed_in.inbound.file_until_ms is not None:
            work = self._hand_in_with_files(delivered, handed_in.inbound)
            self._start(work, name=f"whatsapp:file:{message.id}")
        else:
            await self._acknowledge(delivered)

    async def _hand_in_with_files(self, delivered: Delivered, inbound: Inbound) -> None:
        """Fetch the files of a message, hand it to the host again with them, and acknowledge it.

        `inbound` is the message without its files, as it was handed in first.
        """
        message = delivered.message
        fetch = partial(self._reader.read_with_files, message, inbound, self._bridge)
        if await self._hand_in(message, fetch) is not None:
            await self._acknowledge(delivered)

    async def _hand_in(
        self, message: BridgeMessage, read: Callable[[], Awaitable[Inbound | None]]
    ) -> _HandedIn | None:
        """Convert a message by `read` and hand it to the host, with several tries.

        Return a `_HandedIn` with the message. Its `inbound` is None if `read` returned None, or if the host
        refused the message.

        Return no `_HandedIn` but None if `MAX_FAILED_TRIES` tries failed, or if the bridge process ended. The
        caller then does not acknowledge the message, so the next bridge process delivers it again.
        """
        tries = 0
        while tries < MAX_FAILED_TRIES and self._bridge.is_alive:
            try:
                inbound = await read()
                if inbound is not None:
                    await self._receive(inbound)
                return _HandedIn(inbound=inbound)
            except BadRequest as error:
                log.warning("whatsapp.message_refused", message=message.id, reason=str(error))
                return _HandedIn(inbound=None)
            except (ChannelDown, StoreError) as error:
                # WhatsApp's database or the store is unavailable, which is not the message's fault, so this
                # does not count as a try. The chat's later messages wait too.
                log.warning("whatsapp.message_waits", message=message.id, reason=str(error))
                await asyncio.sleep(RETRY_PAUSE_SECONDS)
            except Exception:
                tries += 1
                log.exception("whatsapp.message_not_taken", message=message.id, attempt=tries)
                await asyncio.sleep(RETRY_PAUSE_SECONDS)
        return None

    async def _acknowledge(self, delivered: Delivered) -> None:
        """Acknowledge a message to the bridge, so that the bridge deletes its copy.

        With this, the sender is shown that the message was read, if `read_receipt` allows that.
        """
        self._on_received()
        try:
            receipt = await self._reader.read_receipt(delivered.message)
            await self._bridge.notify(MessageAcknowledged(n=delivered.n, read=receipt))
        except (ChannelDown, StoreError, sqlite3.Error) as error:
            # The next bridge delivers the message again, and the host's intake recognises its id.
            log.info("whatsapp.not_acknowledged", message=delivered.message.id, reason=str(error))
