"""Deliver a bot's updates to the host: in order, each with its position in the stream of updates.

Telegram forgets an update once a later one is requested. So the next page is requested only when all of this
one is stored. A file is fetched concurrently, so that a slow one delays no other chat: until it arrives its
whole update is stored, and a host that was killed meanwhile fetches it later.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import structlog
import telegram
from telegram.error import TelegramError

from orchestrator.channels import attachments
from orchestrator.channels.context import ChannelContext
from orchestrator.channels.receiving import hand_in, storable
from orchestrator.channels.telegram import updates
from orchestrator.channels.telegram.description import CHANNEL, FOLDER, PREFIX
from orchestrator.channels.telegram.login import TelegramLogin
from orchestrator.channels.telegram.message_ids import MessageIds
from orchestrator.channels.telegram.updates import ChatMove, ChatUpdate, PollAnswer, TelegramFile
from orchestrator.domain.errors import BadRequest, ChannelDown, ChannelRefused
from orchestrator.domain.polls import UNREADABLE_VOTE, VOTE, vote_text
from orchestrator.domain.protocols import Receive
from orchestrator.domain.values import ChatJid, Group, Inbound, MessageId, Quote
from orchestrator.groups import owner, registration
from orchestrator.store.conversation import chats, messages, polls
from orchestrator.store.groups import groups

log = structlog.get_logger(__name__)

REACTION = "reaction"
FETCHING = f"{CHANNEL.name}.file:"
"""Prefix of the names under which updates are stored whose files are being fetched."""
WAITING_VOTES = f"{CHANNEL.name}.vote:"
"""Prefix of the names under which votes are stored whose poll is not known yet."""
MAX_WAITING_VOTES = 1_000
MAX_WAITING_FILES = 1_000
"""Most files that wait to be fetched: beyond it no update is requested; Telegram keeps them for a day."""
MAX_FETCH_BYTES = 20 * 1000**2
"""The largest file, in bytes, that Telegram lets a bot fetch."""


class UpdateReceiver:
    """Delivers the updates of one bot. One task calls `deliver_page`; `tasks` fetches the files."""

    def __init__(
        self,
        context: ChannelContext,
        bot: telegram.Bot,
        login: TelegramLogin,
        receive: Receive,
        *,
        ids: MessageIds,
        tasks: asyncio.TaskGroup,
    ) -> None:
        """`receive` stores a message, `ids` are those of the bot's messages; files are fetched in `tasks`.

        At most `MAX_FETCHES` files are fetched at once, and at most `MAX_WAITING_FILES` wait or are fetched.
        """
        self._context = context
        self._bot = bot
        self._login = login
        self._receive = receive
        self._ids = ids
        self._tasks = tasks
        self._fetch_slots = asyncio.Semaphore(attachments.MAX_FETCHES)
        self._waiting_slots = asyncio.Semaphore(MAX_WAITING_FILES)
        self._vote_lock = asyncio.Lock()
        """Held while a vote or the waiting ones are delivered, since two tasks do so."""
        self._limit_bytes = min(context.attachment_bytes, MAX_FETCH_BYTES)

    async def first_unstored_update(self) -> int | None:
        """Return the number of the first update that is not stored yet.

        None if it is not known: no update of this bot was ever stored.
        """
        async with self._context.database.reading() as tx:
            stored = await chats.cursor(tx, CHANNEL.name) or ""
        # A text such as `123456 42`: the bot's id, and the number of the next update (`_position_after`).
        bot, _, number = stored.partition(" ")
        return int(number) if bot == str(self._login.bot_id) and number.isdecimal() else None

    async def deliver_page(self, page: Sequence[Any]) -> int | None:
        """Deliver the updates of a page to the host; return the number from which to request the next page.

        None for an empty page. An update that cannot be read is recorded and skipped; JSON without a valid
        number is left out.

        Raises:
            ChannelDown: no update has a valid number, so the page cannot be confirmed to Telegram.
        """
        numbered = [(number, update) for update in page if (number := _number_of(update)) is not None]
        if page and not numbered:
            raise ChannelDown("Telegram's updates have no numbers")
        for number, update in numbered:
            await self._deliver_update(number, update)
        return max(number for number, _ in numbered) + 1 if numbered else None

    async def _deliver_update(self, number: int, update: dict[str, Any]) -> None:
        """Deliver one update to the host, and store the position after it in the stream of updates.

        If its message has a file to fetch, the update is stored until that is done.
        """
        position = self._position_after(number)
        try:
            # Half a surrogate pair in an id could not be stored, which would end the connection each time.
            update = storable(update)
            content = self._read(update)
        except Exception as error:  # noqa: BLE001 - for unknown updates the library may raise anything
            await self._skip_unreadable(update, position, error)
            return
        if isinstance(content, ChatMove):
            await self._move_chat(content, position)
            return
        # The bot's own reactions and votes are of no interest.
        if content is None or content.sender_id == self._login.bot_id:
            await self._store_position(position)
            return
        if isinstance(content, PollAnswer):
            await self._deliver_vote(content, update, position)
            return
        inbound = await self._inbound(content)
        file = content.file if inbound.file_until_ms is not None else None
        if not await hand_in(self._receive, inbound, cursor=position if file is None else None):
            await self._store_position(position)  # so that a refused message is not requested again
        elif file is not None:
            # Together: with the position alone, a crash would lose the file, which needs the update.
            async with self._context.database.transaction() as tx:
                await chats.set_cursor(tx, self._stored_update_key(number), json.dumps(update))
                await chats.set_cursor(tx, CHANNEL.name, position)
            await self._start_fetching(number, inbound, file)

    async def _deliver_vote(self, answer: PollAnswer, update: dict[str, Any], position: str) -> None:
        """Deliver a vote to the host, and store `position`, the one after its update in the stream.

        If its poll is not known, the update is stored: the poll may have been sent a moment ago, and
        `deliver_waiting_votes` delivers the vote then. While `MAX_WAITING_VOTES` are stored, a new one is
        dropped. A vote that the host refuses is dropped, too.
        """
        # The lock is held until the vote is stored: else its poll could become known, and the waiting votes
        # be delivered, just before that, and this vote would wait for Andy's next poll.
        async with self._vote_lock:
            inbound = await self._vote(answer)
            if inbound is not None:
                # The voter's earlier vote may still wait. Delivered after this one, it would replace it.
                await self._deliver_stored_votes(answer.poll_id)
                inbound = await self._vote(answer)
            if inbound is not None and await hand_in(self._receive, inbound, cursor=position):
                return
            async with self._context.database.transaction() as tx:
                waiting = await chats.cursors_of(tx, self._waiting_votes_prefix)
                if inbound is None and len(waiting) < MAX_WAITING_VOTES:
                    key = f"{self._waiting_votes_prefix}{answer.update_id}"
                    await chats.set_cursor(tx, key, json.dumps(update))
                await chats.set_cursor(tx, CHANNEL.name, position)

    @property
    def _waiting_votes_prefix(self) -> str:
        """The prefix of the names under which this bot's waiting votes are stored."""
        return f"{WAITING_VOTES}{self._login.bot_id}:"

    async def deliver_waiting_votes(self) -> None:
        """Deliver the stored votes whose poll is known by now.

        If as many as `MAX_WAITING_VOTES` are stored, the others are deleted, since their polls are probably
        not Andy's, and new votes need the room.
        """
        async with self._vote_lock:
            await self._deliver_stored_votes("")

    async def _deliver_stored_votes(self, poll_id: str) -> None:
        """Deliver the stored votes in the poll with Telegram's id `poll_id`, or in all polls if it is empty.

        Votes in polls that are not known stay or are deleted, as `deliver_waiting_votes` says. The caller
        holds the lock.
        """
        async with self._context.database.reading() as tx:
            stored = await chats.cursors_of(tx, self._waiting_votes_prefix)
        for number, text in sorted((int(key), text) for key, text in stored.items()):
            if poll_id not in text:
                continue
            inbound = None
            with suppress(Exception):  # another version of the library may no longer parse it
                content = self._read(json.loads(text))
                inbound = await self._vote(content) if isinstance(content, PollAnswer) else None
            if inbound is not None:
                await hand_in(self._receive, inbound, cursor=None)
            if inbound is not None or len(stored) >= MAX_WAITING_VOTES:
                async with self._context.database.transaction() as tx:
                    await chats.forget_cursor(tx, f"{self._waiting_votes_prefix}{number}")

    async def _vote(self, answer: PollAnswer) -> Inbound | None:
        """Return a vote as a message in the chat of its poll; None if the poll is not known.

        Votes have no time, so the message gets the present one, but none before the voter's previous vote.
        For an invalid vote, the message has a text but no `vote`.
        """
        sender = f"{PREFIX}{answer.sender_id}"
        async with self._context.database.reading() as tx:
            poll = await polls.of_ref(tx, f"{CHANNEL.name} {answer.poll_id}")
            if poll is None:
                return None
            previous = await polls.vote_of(tx, poll, sender)
        # Votes come in their order: a later one is no older than the one before, also after the clock was set
        # back. An older one would not count.
        previous_ms = previous.voted_ms if previous is not None else 0
        # Telegram numbers groups below zero.
        is_group = poll.chat_jid.startswith(f"{PREFIX}-")
        is_valid = poll.takes(answer.chosen)
        return Inbound(
            chat_jid=poll.chat_jid,
            id=self._ids.id_of(poll.chat_jid, f"v{answer.update_id}"),
            sender=sender,
            sender_name=answer.sender_name,
            text=vote_text(poll, answer.chosen) if is_valid else UNREADABLE_VOTE,
            sent_ms=max(self._context.clock.now_ms(), previous_ms),
            is_from_me=self._login.is_owner(answer.sender_id),
            channel=CHANNEL.name,
            is_group=is_group,
            is_direct=not is_group,
            people=None if is_group else 2,
            quote=Quote(message_id=poll.message_id, sender=self._context.assistant, text=poll.text),
            ignored=VOTE,
            vote=answer.chosen if is_valid else None,
        )

    async def _move_chat(self, move: ChatMove, position: str) -> None:
        """Move a group to the new address that Telegram gave it, and store `position` with it.

        `position` is the one after the update in the stream of updates. If another group has the address,
        only `position` is stored, and the owner is notified.
        """
        old, new = (ChatJid(f"{PREFIX}{chat_id}") for chat_id in (move.old, move.new))
        try:
            await move_chat(self._context, old, new, cursor=position)
        except ChannelRefused as error:  # raised after the position was stored and the owner notified
            log.warning("telegram.chat_not_moved", chat=old, to=new, reason=str(error))

    def _read(self, update: dict[str, Any]) -> ChatUpdate | ChatMove | PollAnswer | None:
        """Parse an update with the library, and return its content; None for one without meaning here."""
        parsed = telegram.Update.de_json(_with_expected_fields(update), self._bot)
        return updates.read(
            parsed,
            bot_id=self._login.bot_id,
            username=self._login.username,
            assistant=self._context.assistant,
        )

    async def _skip_unreadable(self, update: dict[str, Any], position: str, error: Exception) -> None:
        """Log and publish that an update cannot be read, and deliver an unreadable message in its place.

        The message is delivered only if the update's chat and sender can be found out. In any case `position`
        is stored, the one after the update in the stream of updates. `error` is what the library raised.
        """
        kinds = [name[:40] for name in update if name != "update_id"][:3]
        log.warning("telegram.unreadable", kinds=kinds, reason=f"{type(error).__name__}: {error}"[:200])
        self._context.bus.publish("channel.unreadable", detail=f"{CHANNEL.name} {' '.join(kinds)}"[:100])
        inbound = _recover_message(update, self._login)
        if inbound is not None:
            inbound = replace(inbound, id=self._ids.id_of(inbound.chat_jid, inbound.id))
        if inbound is None or not await hand_in(self._receive, inbound, cursor=position):
            await self._store_position(position)

    def _position_after(self, number: int) -> str:
        """Return the position after an update in the stream of updates, as text to store.

        It is the bot's id and the number of the next update: each bot has a stream of its own.
        """
        return f"{self._login.bot_id} {number + 1}"

    async def _store_position(self, position: str) -> None:
        """Store `position`, up to which all updates of the stream are delivered."""
        async with self._context.database.transaction() as tx:
            await chats.set_cursor(tx, CHANNEL.name, position)

    async def _inbound(self, update: ChatUpdate) -> Inbound:
        """Return a message or a reaction as the host takes it, with the message that it refers to.

        Its file is represented by a text. Its `file_until_ms`, until when an answer waits for the file, is
        set if the file will be fetched: in a registered chat, and if the file is not too large.
        """
        jid = ChatJid(f"{PREFIX}{update.chat_id}")
        message_id = self._ids.id_of(jid, update.message_id)
        async with self._context.database.reading() as tx:
            group = await groups.by_jid(tx, jid)
            stored = await messages.find(tx, jid, message_id)
        file_until_ms = None
        if stored is not None:
            # The wait does not grow, however often the message is delivered again.
            file_until_ms = stored.file_until_ms
        elif group is not None and update.file is not None and update.file.size <= self._limit_bytes:
            seconds = attachments.wait_seconds(self._context, update.file)
            file_until_ms = self._context.clock.now_ms() + int(seconds * 1000)
        return Inbound(
            chat_jid=jid,
            id=message_id,
            sender=f"{PREFIX}{update.sender_id}",
            sender_name=update.sender_name,
            text=f"[reacted {update.emoji}]" if update.emoji else update.text,
            sent_ms=update.sent_ms,
            is_from_me=self._login.is_owner(update.sender_id),  # "me" is the owner, not the bot
            chat_name=update.chat_name,
            channel=CHANNEL.name,
            is_group=update.is_group,
            is_direct=not update.is_group,
            quote=await self._quote(jid, update) if update.answers else None,
            is_call=update.is_call or update.answers_bot,
            edits=self._ids.id_of(jid, update.edits) if update.edits else None,
            ignored=REACTION if update.emoji else update.ignored or None,
            reaction=update.emoji or None,
            file=attachments.placeholder_of(
                update.file, will_be_fetched=file_until_ms is not None, limit_bytes=self._limit_bytes
            ),
            file_until_ms=file_until_ms,
            thread=update.thread or None,
        )

    async def _quote(self, jid: ChatJid, update: ChatUpdate) -> Quote:
        """Return the message that an update answers, as Telegram sent it with the update.

        If it is Andy's own, it gets the host's id, which differs from Telegram's number.
        """
        answered = self._ids.id_of(jid, update.answers)
        async with self._context.database.reading() as tx:
            own_id = await messages.own_by_channel_id(tx, jid, answered)
        return Quote(message_id=own_id or answered, sender=update.answered_name, text=update.answered_text)

    # Files

    async def resume_downloads(self) -> None:
        """Start to fetch the files of updates that were stored because their file was not fetched yet.

        An update that has no such file any more, or cannot be read, is deleted.
        """
        prefix = f"{FETCHING}{self._login.bot_id}:"
        async with self._context.database.reading() as tx:
            stored = await chats.cursors_of(tx, prefix)
        for number, text in sorted((int(key), text) for key, text in stored.items()):
            update = None
            try:
                content = self._read(json.loads(text))
                update = content if isinstance(content, ChatUpdate) else None
            except Exception as error:  # noqa: BLE001 - another version of the library may read it no more
                log.warning("telegram.unreadable", kinds=["file"], reason=repr(error)[:200])
            inbound = await self._inbound(update) if update is not None else None
            if update is None or update.file is None or inbound is None or inbound.file_until_ms is None:
                await self._forget_stored_update(number)
            else:
                await self._start_fetching(number, inbound, update.file)

    async def _start_fetching(self, number: int, inbound: Inbound, file: TelegramFile) -> None:
        """Start a task that fetches the file of a message; first wait if `MAX_WAITING_FILES` are waiting.

        `number` is that of the stored update, which is deleted afterwards.
        """
        await self._waiting_slots.acquire()
        self._tasks.create_task(
            self._fetch_and_deliver(number, inbound, file), name=f"telegram:file:{number}"
        )

    async def _fetch_and_deliver(self, number: int, inbound: Inbound, file: TelegramFile) -> None:
        """Fetch the file of a message, deliver the message again with it, and delete the stored update.

        `number` is that of the update.
        """
        try:
            fetched = await self._fetch_file(inbound, file)
            complete = replace(inbound, file=fetched.text, spoken=fetched.spoken, file_until_ms=None)
            await hand_in(self._receive, complete, cursor=None)
            await self._forget_stored_update(number)
        finally:
            self._waiting_slots.release()

    async def _forget_stored_update(self, number: int) -> None:
        """Delete a stored update, whose file needs no further attempt."""
        async with self._context.database.transaction() as tx:
            await chats.forget_cursor(tx, self._stored_update_key(number))

    def _stored_update_key(self, number: int) -> str:
        """Return the name under which an update is stored until its file is fetched."""
        return f"{FETCHING}{self._login.bot_id}:{number}"

    async def _fetch_file(self, inbound: Inbound, file: TelegramFile) -> attachments.FetchedFile:
        """Fetch a message's file into its group's folder, and return the text for it; never raise an error.

        The text says where the file is stored, or that it could not be fetched.
        """
        download_path = Path(self._context.home, FOLDER, f"in-{secrets.token_hex(8)}")
        try:
            async with self._context.database.reading() as tx:
                group = await groups.by_jid(tx, inbound.chat_jid)
            if group is None:
                return attachments.fetch_failed(file)
            # The limit on concurrent downloads excludes later work: a voice note may wait long for its
            # transcription.
            async with self._fetch_slots:
                async with asyncio.timeout(attachments.fetch_seconds(file)):
                    remote_file = await self._bot.get_file(file.file_id)
                    content = await remote_file.download_as_bytearray()
                if len(content) > self._limit_bytes:
                    return attachments.fetch_failed(file)
                await asyncio.to_thread(_write_new, download_path, bytes(content))
            return await attachments.store(
                self._context, file, group, download_path, chat=inbound.chat_jid, sent_ms=inbound.sent_ms
            )
        except (TelegramError, OSError, TimeoutError) as error:
            log.warning("telegram.file_not_fetched", message=inbound.id, reason=str(error))
            return attachments.fetch_failed(file)
        except Exception:
            # An error would end the connection, and be repeated with each further one.
            log.exception("telegram.file_not_fetched", message=inbound.id)
            return attachments.fetch_failed(file)
        finally:
            await asyncio.to_thread(download_path.unlink, missing_ok=True)


async def move_chat(
    context: ChannelContext, old: ChatJid, new: ChatJid, *, cursor: str | None = None
) -> None:
    """Move a chat, with its polls and all that waits to be sent there, to its new address.

    The outbox is woken. If the chat is registered, the owner is notified once, and the move is published. Of
    any other chat, its record and its request to be registered are moved, and nobody is notified. `cursor` is
    the position in the stream of updates that is stored in the same transaction; None stores none.

    Raises:
        ChannelRefused: another group has the new address. The owner is notified and `cursor` stored all the
            same.
    """
    now_ms = context.clock.now_ms()
    group: Group | None = None
    refused: BadRequest | None = None
    text = ""
    async with context.database.transaction() as tx:
        try:
            group = await registration.move_chat(tx, old, new, now_ms=now_ms)
        except BadRequest as error:
            refused = error
            text = f"⚠️ The group {old} has the address {new} now, and did not move there: {error}"
        if group is not None:
            text = (
                f"Telegram made '{group.name}' a supergroup, which has another address: {new}."
                f" '{group.folder}' goes on there, with all that waited. A rule for {old} in your"
                " sender-allowlist.json still counts for it. There is nothing to do."
            )
        if text:
            await owner.notify(tx, text, about=f"moved:{old}:{new}", now_ms=now_ms)
        if cursor is not None:
            await chats.set_cursor(tx, CHANNEL.name, cursor)
    context.wake_outbox()
    if refused is not None:
        raise ChannelRefused(str(refused)) from refused
    if group is not None:
        context.bus.publish("group.chat_moved", group=group.folder, detail=f"{old} {new}")


def _with_expected_fields(update: dict[str, Any]) -> dict[str, Any]:
    """Return an update whose vote, if it has one, has the field that the library needs.

    Older servers do not send this field.
    """
    answer = update.get("poll_answer")
    if not isinstance(answer, dict):
        return update
    return {**update, "poll_answer": {"option_persistent_ids": [], **answer}}


def _number_of(update: Any) -> int | None:
    """Return the number of an update; None if `update` is no JSON object with a valid one."""
    number = update.get("update_id") if isinstance(update, dict) else None
    return number if isinstance(number, int) and not isinstance(number, bool) and number >= 0 else None


def _recover_message(update: dict[str, Any], login: TelegramLogin) -> Inbound | None:
    """Return an unreadable message with the chat and the sender of an update that the library cannot parse.

    None if the update has no message, or no valid chat, sender and number. `login` knows who the owner is.
    """
    message = update.get("message")
    if not isinstance(message, dict):
        return None
    chat, sender, date = message.get("chat"), message.get("from"), message.get("date")
    if not isinstance(chat, dict) or not isinstance(sender, dict):
        return None
    chat_id, sender_id, message_id = chat.get("id"), sender.get("id"), message.get("message_id")
    ids = (chat_id, sender_id, message_id)
    if not all(isinstance(number, int) and not isinstance(number, bool) for number in ids):
        return None
    name, title = sender.get("first_name"), chat.get("title")
    return Inbound(
        chat_jid=ChatJid(f"{PREFIX}{chat_id}"),
        id=MessageId(str(message_id)),
        sender=f"{PREFIX}{sender_id}",
        sender_name=name[:100] if isinstance(name, str) and name else "Somebody",
        text="",
        sent_ms=date * 1000 if isinstance(date, int) and 0 <= date < 2**40 else 0,
        is_from_me=login.is_owner(sender_id),
        chat_name=title[:100] if isinstance(title, str) else None,
        channel=CHANNEL.name,
        is_group=chat.get("type") != "private",
        is_unreadable=True,
    )


def _write_new(target: Path, body: bytes) -> None:
    """Write `body` to the file `target`, which must not exist yet; its folder is made if needed. Blocks.

    Raises `OSError`, for an existing file as well.
    """
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with target.open("xb") as file:
        file.write(body)
