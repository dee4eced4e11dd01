"""Hand what a bot is told to the host: in order, each with its place in the stream of updates.

Telegram forgets an update once a later one is asked for. So the next page is asked for only when all of this
one is stored, files too: after a crash Telegram tells of the rest again.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import structlog
import telegram
from telegram.error import TelegramError

from orchestrator.channels import attachments
from orchestrator.channels.context import ChannelContext
from orchestrator.channels.receiving import hand_in
from orchestrator.channels.telegram import updates
from orchestrator.channels.telegram.description import CHANNEL, FOLDER, PREFIX
from orchestrator.channels.telegram.login import TelegramLogin
from orchestrator.channels.telegram.updates import ChatUpdate, TelegramFile
from orchestrator.domain.errors import ChannelDown
from orchestrator.domain.protocols import Receive
from orchestrator.domain.values import ChatJid, Inbound, MessageId, Quote
from orchestrator.store import chats, groups, messages

log = structlog.get_logger(__name__)

REACTION = "reaction"
MAX_FETCH_BYTES = 20 * 1000**2
"""What Telegram lets a bot fetch."""


class UpdateReceiver:
    """Hands in what one bot is told. One task calls `take`."""

    def __init__(
        self, context: ChannelContext, bot: telegram.Bot, login: TelegramLogin, receive: Receive
    ) -> None:
        self._context = context
        self._bot = bot
        self._login = login
        self._receive = receive
        self._slots = asyncio.Semaphore(attachments.MAX_FETCHES)
        self._limit = min(context.attachment_bytes, MAX_FETCH_BYTES)

    async def next_update(self) -> int | None:
        """Return the number of the first update that is not stored yet; None when that is not known."""
        async with self._context.database.reading() as tx:
            stored = await chats.cursor(tx, CHANNEL.name) or ""
        bot, _, number = stored.partition(" ")
        return int(number) if bot == str(self._login.bot_id) and number.isdecimal() else None

    async def take(self, page: Sequence[Any]) -> int | None:
        """Store all of a page of JSON; return the number of the next update, or None for an empty page.

        An update that cannot be read is recorded as that, and stepped over.

        Raises:
            ChannelDown: nothing in the page has a number, so that it could not be confirmed.
        """
        fetching: list[Coroutine[Any, Any, None]] = []
        numbered = [(number, one) for one in page if (number := _number_of(one)) is not None]
        if page and not numbered:
            raise ChannelDown("Telegram's updates have no numbers")
        for number, update in numbered:
            # Behind a file that is being fetched the place stays: after a crash its message comes again.
            place = None if fetching else self._place_after(number)
            try:
                read = telegram.Update.de_json(update, self._bot)
                found = updates.read(read, bot_id=self._login.bot_id, username=self._login.username)
            except Exception as error:  # noqa: BLE001 - the library raises what it likes for what it does not know
                await self._step_over(update, place, error)
                continue
            if found is None or found.sender_id == self._login.bot_id:
                await self._move_place(place)
                continue
            inbound = await self._inbound(found)
            is_fetched = found.file is not None and inbound.file_until_ms is not None
            if not await hand_in(self._receive, inbound, cursor=None if is_fetched else place):
                await self._move_place(place)
            elif found.file is not None and is_fetched:
                fetching.append(self._take_file(inbound, found.file))
        await asyncio.gather(*fetching)
        if not numbered:
            return None
        last = max(number for number, _ in numbered)
        if fetching:
            await self._move_place(self._place_after(last))
        return last + 1

    async def _step_over(self, update: dict[str, Any], place: str | None, error: Exception) -> None:
        """Record an update that cannot be read, and say so in the chat of a message whose sender is known."""
        kinds = [name for name in update if name != "update_id"][:3]
        log.warning("telegram.unreadable", kinds=kinds, reason=f"{type(error).__name__}: {error}"[:200])
        self._context.bus.publish("channel.unreadable", detail=f"{CHANNEL.name} {' '.join(kinds)}"[:100])
        inbound = _unreadable(update, owner=self._login.owner)
        if inbound is None or not await hand_in(self._receive, inbound, cursor=place):
            await self._move_place(place)

    def _place_after(self, number: int) -> str:
        return f"{self._login.bot_id} {number + 1}"

    async def _move_place(self, place: str | None) -> None:
        if place is None:
            return
        async with self._context.database.transaction() as tx:
            await chats.set_cursor(tx, CHANNEL.name, place)

    async def _inbound(self, found: ChatUpdate) -> Inbound:
        jid = ChatJid(f"{PREFIX}{found.chat_id}")
        async with self._context.database.reading() as tx:
            group = await groups.by_jid(tx, jid)
            known = await messages.find(tx, jid, MessageId(found.message_id))
        file_until_ms = None
        if known is not None:
            file_until_ms = known.file_until_ms
        elif group is not None and found.file is not None and found.file.size <= self._limit:
            seconds = attachments.wait_seconds(self._context, found.file)
            file_until_ms = self._context.clock.now_ms() + int(seconds * 1000)
        return Inbound(
            chat_jid=jid,
            id=MessageId(found.message_id),
            sender=f"{PREFIX}{found.sender_id}",
            sender_name=found.sender_name,
            text=f"[reacted {found.sign}]" if found.sign else found.text,
            sent_ms=found.sent_ms,
            is_from_me=found.sender_id == self._login.owner,
            chat_name=found.chat_name,
            channel=CHANNEL.name,
            is_group=found.is_group,
            quote=await self._quote(jid, found) if found.answers else None,
            is_call=found.is_call or found.answers_bot,
            edits=MessageId(str(found.edits)) if found.edits else None,
            ignored=REACTION if found.sign else None,
            reaction=found.sign or None,
            file=attachments.placeholder_of(
                found.file, is_to_come=file_until_ms is not None, limit=self._limit
            ),
            file_until_ms=file_until_ms,
            thread=found.thread or None,
        )

    async def _quote(self, jid: ChatJid, found: ChatUpdate) -> Quote:
        """Return the message that one answers; Andy's own by the id by which the host knows it."""
        answered = MessageId(str(found.answers))
        async with self._context.database.reading() as tx:
            own = await messages.own_by_channel_id(tx, jid, answered)
        return Quote(message_id=own or answered, sender=found.answered_name, text=found.answered_text)

    async def _take_file(self, inbound: Inbound, file: TelegramFile) -> None:
        words = await self._fetched(inbound, file)
        whole = replace(inbound, file=words.words, spoken=words.spoken, file_until_ms=None)
        await hand_in(self._receive, whole, cursor=None)

    async def _fetched(self, inbound: Inbound, file: TelegramFile) -> attachments.FetchedFile:
        body = Path(self._context.home, FOLDER, f"in-{secrets.token_hex(8)}")
        try:
            async with self._context.database.reading() as tx:
                group = await groups.by_jid(tx, inbound.chat_jid)
            if group is None:
                return attachments.failed(file)
            # Without what is done after it: a voice note may wait for long until it is listened to.
            async with self._slots:
                async with asyncio.timeout(attachments.fetch_seconds(file)):
                    found = await self._bot.get_file(file.file_id)
                    data = await found.download_as_bytearray()
                if len(data) > self._limit:
                    return attachments.failed(file)
                await asyncio.to_thread(_write, body, bytes(data))
            return await attachments.keep(
                self._context, file, group, body, chat=inbound.chat_jid, sent_ms=inbound.sent_ms
            )
        except (TelegramError, OSError, TimeoutError) as error:
            log.warning("telegram.file_not_fetched", message=inbound.id, reason=str(error))
            return attachments.failed(file)
        finally:
            await asyncio.to_thread(body.unlink, missing_ok=True)


def _number_of(update: Any) -> int | None:
    number = update.get("update_id") if isinstance(update, dict) else None
    return number if isinstance(number, int) and not isinstance(number, bool) and number >= 0 else None


def _unreadable(update: dict[str, Any], *, owner: int) -> Inbound | None:
    """Return the message of an update that the library cannot read, or None where none is to be made out."""
    message = update.get("message")
    if not isinstance(message, dict):
        return None
    chat, sender, number, date = (message.get(name) for name in ("chat", "from", "message_id", "date"))
    if not isinstance(chat, dict) or not isinstance(sender, dict):
        return None
    ids = (chat.get("id"), sender.get("id"), number)
    if not all(isinstance(one, int) and not isinstance(one, bool) for one in ids):
        return None
    name, title = sender.get("first_name"), chat.get("title")
    return Inbound(
        chat_jid=ChatJid(f"{PREFIX}{ids[0]}"),
        id=MessageId(str(number)),
        sender=f"{PREFIX}{ids[1]}",
        sender_name=name[:100] if isinstance(name, str) and name else "Somebody",
        text="",
        sent_ms=date * 1000 if isinstance(date, int) and 0 <= date < 2**40 else 0,
        is_from_me=ids[1] == owner,
        chat_name=title[:100] if isinstance(title, str) else None,
        channel=CHANNEL.name,
        is_group=chat.get("type") != "private",
        is_unreadable=True,
    )


def _write(target: Path, body: bytes) -> None:
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with target.open("xb") as file:
        file.write(body)
