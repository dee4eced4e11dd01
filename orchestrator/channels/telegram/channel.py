"""The Telegram channel: polls for updates, delivers them, and sends.

Telegram has no key by which a repeated message would be shown once. So a send whose answer was lost ends as
unknown, and the owner is notified instead of a resend.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import httpx
import structlog
import telegram
from telegram import MessageEntity, ReactionTypeEmoji, ReplyParameters
from telegram.constants import ChatAction, ReactionEmoji
from telegram.error import (
    BadRequest,
    ChatMigrated,
    Conflict,
    Forbidden,
    InvalidToken,
    NetworkError,
    RetryAfter,
    TelegramError,
)

from orchestrator.channels.connection import ChannelConnection, LoggedOut
from orchestrator.channels.context import ChannelContext
from orchestrator.channels.telegram import login, message_ids, updates
from orchestrator.channels.telegram.description import CHANNEL, MAX_TEXT_CHARS, PREFIX
from orchestrator.channels.telegram.incoming import UpdateReceiver, move_chat
from orchestrator.channels.telegram.login import TelegramLogin
from orchestrator.channels.telegram.markup import MAX_MARKS, Mark, parse_markdown, split_text, utf16_units
from orchestrator.channels.telegram.message_ids import MessageIds
from orchestrator.domain.errors import (
    ChannelDown,
    ChannelError,
    ChannelRefused,
    OutcomeUnknown,
    StoreError,
    lengthened_pause,
)
from orchestrator.domain.polls import Poll
from orchestrator.domain.protocols import Receive
from orchestrator.domain.values import Attachment, ChatJid, ChatMember, Message, MessageId
from orchestrator.store.conversation import messages, outbox, polls

log = structlog.get_logger(__name__)

_LETTER_WITH_BLANKS = r"[^\W\u3040-\u30ff\u3400-\u9fff]"
"""The pattern of a letter, digit or `_` of a script that puts blanks between words."""

POLL_SECONDS = 50
MAX_TOKEN_REFUSALS = 5
"""Answers in a row that the token is unknown, after growing pauses, by which the login counts as ended."""
MAX_CAPTION = 1_024
MAX_PHOTO_BYTES = 10 * 1000**2
"""The largest picture, in bytes, that Telegram displays; a larger one is sent as a document."""
MAX_REMEMBERED = 1_000
"""Most sent parts of messages that are remembered, so that this process sends none twice."""
NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
"""Errors that are raised before a request is sent, so that a retry repeats nothing."""
ALREADY_DELETED = "message to delete not found"
TOPIC_GONE = ("message thread not found", "topic_deleted", "topic_closed")
"""Parts of Telegram's errors about a topic that takes no message."""
FORM_REFUSED = (
    "photo_invalid_dimensions",
    "photo_save_file_invalid",
    "image_process_failed",
    "voice_messages_forbidden",
)
"""Parts of Telegram's errors about a file that it takes as a document: a picture that is too long, say, or a
voice note to somebody who takes none.
"""
TOO_LARGE = "Entity Too Large"
"""A part of the library's text for status 413, from Telegram or a proxy."""
MOVED_PAUSE_SECONDS = 0.2
"""Seconds until a message is sent to the new address of its group."""
VARIATION_SELECTOR = "\ufe0f"
KNOWN_SIGNS = frozenset(str(emoji.value) for emoji in ReactionEmoji)
"""The emoji that Telegram takes as reactions."""
REACTIONS = {"⏳": "👀", "✅": "👍", "❌": "👎"}
"""Andy's emoji that Telegram does not accept as reactions, each with a replacement."""


class TelegramChannel:
    """Owns the chats whose address is `tg:NUMBER`."""

    name = CHANNEL.name
    features = CHANNEL.features
    max_text_chars: int | None = MAX_TEXT_CHARS
    max_file_bytes = CHANNEL.max_file_bytes

    def __init__(
        self,
        context: ChannelContext,
        *,
        chance: Callable[[], float] = random.random,
        poll_seconds: int = POLL_SECONDS,
    ) -> None:
        """`chance` returns a number from [0, 1), by which waits vary.

        `poll_seconds` is how long Telegram waits for an update in each request.
        """
        self._context = context
        self._poll_seconds = poll_seconds
        self._connection = ChannelConnection(
            context, CHANNEL, read_login=login.read, address_prefix=PREFIX, chance=chance
        )
        self._bot: telegram.Bot | None = None
        self._receiver: UpdateReceiver | None = None
        self._ids = MessageIds()
        """The ids of the messages that the connected bot sees."""
        self._sent: OrderedDict[str, MessageId] = OrderedDict()
        """Telegram's number of each part of a message that this process has sent, by the key of `_remember`.
        """
        self._unstored_polls: dict[MessageId, str] = {}
        """Telegram's id of each sent poll whose id is not stored yet, by the host's id of its message."""
        self._silent_until: dict[int, float] = {}
        """For each chat with a pause that Telegram has asked for, its end by the event loop's clock."""
        self._token_refusals = 0
        """Answers in a row that the token is unknown."""

    def owns(self, jid: ChatJid) -> bool:
        """Return whether `jid` is a chat of Telegram."""
        return CHANNEL.owns(jid)

    def status(self) -> dict[str, Any]:
        """Return the state of the connection and facts about it, for `/status`."""
        return self._connection.status.as_data()

    # The connection

    async def run(self, receive: Receive) -> None:
        """Stay connected until cancelled, and pass each message to `receive`.

        While no bot is logged in, or its token was revoked, this waits for another login.
        """
        await self._connection.stay_connected(partial(self._run_connection, receive=receive))

    async def _run_connection(self, stored_login: TelegramLogin, *, receive: Receive) -> None:
        """Connect with a stored login, and pass the updates to `receive` until the connection ends.

        Raises (always, since only an error ends the connection):
            LoggedOut: Telegram has answered `MAX_TOKEN_REFUSALS` times in a row that the token is unknown.
            ChannelDown: it has answered that fewer times, or the connection broke for another reason.

        Either may come inside an `ExceptionGroup`, which `ChannelConnection` unwraps.
        """
        await self._connection.status.record(
            state="connecting", account=f"@{stored_login.username}", next_try_ms=None
        )
        self._ids = await self._context.database.write(lambda tx: message_ids.of_bot(tx, stored_login.bot_id))
        bot = login.make_bot(stored_login.token, stored_login.server)
        try:
            try:
                await _request(bot.initialize())
            except PauseRequested as pause:
                raise ChannelDown(
                    f"Telegram asks for a pause {pause}", pause_seconds=pause.seconds
                ) from pause
            async with asyncio.TaskGroup() as tasks:
                self._receiver = UpdateReceiver(
                    self._context, bot, stored_login, receive, ids=self._ids, tasks=tasks
                )
                await self._receive_updates(bot, self._receiver)
        except* LoggedOut:
            # A proxy in between, or Telegram itself for a moment, may also answer 404 and 401. So the login
            # counts as ended only after several such answers in a row.
            self._token_refusals += 1
            if self._token_refusals < MAX_TOKEN_REFUSALS:
                tries = f"{self._token_refusals} of {MAX_TOKEN_REFUSALS} times"
                raise ChannelDown(f"Telegram did not know the token ({tries})") from None
            self._token_refusals = 0
            raise
        finally:
            self._bot = self._receiver = None  # `_receive_updates` has set `_bot`
            await asyncio.shield(bot.shutdown())

    async def _receive_updates(self, bot: login.PollingBot, receiver: UpdateReceiver) -> None:
        """Fetch updates and deliver them until the connection ends.

        After the first answer, continue what an earlier connection left: files to fetch, votes to deliver.

        Raises:
            ChannelDown: Telegram cannot be reached.
            LoggedOut: Telegram does not know the token.
        """
        next_update = await receiver.first_unstored_update()
        is_first = True
        while True:
            # The first request does not wait for updates: it shows whether the token is accepted.
            page = await self._next_page(bot, next_update, seconds=0 if is_first else self._poll_seconds)
            if is_first:
                is_first = False
                self._bot = bot
                self._token_refusals = 0
                await self._connection.note_connected()
                await receiver.resume_downloads()
                await receiver.deliver_waiting_votes()
            # An empty page has no next update: the number stays.
            next_update = await receiver.deliver_page(page) or next_update
            await self._store_polls()
            if page:
                self._connection.status.change(last_message_ms=self._context.clock.now_ms())

    async def _next_page(self, bot: login.PollingBot, next_update: int | None, *, seconds: int) -> list[Any]:
        """Return the next updates as JSON.

        `next_update` is the number of the first one to return, or None for all that are not confirmed yet.
        Telegram waits up to `seconds` for a first one. A pause that Telegram asks for is waited for; the
        waits grow if it asks again and again.

        Raises:
            ChannelDown: Telegram cannot be reached, or its answer is no list.
            LoggedOut: it does not know the token.
        """
        pauses = 0
        while True:
            try:
                page = await _request(
                    bot.raw_updates(offset=next_update, seconds=seconds, kinds=updates.KINDS)
                )
            except PauseRequested as pause:
                pauses += 1
                pause_seconds = lengthened_pause(pause.seconds, pauses=pauses)
                log.info("telegram.pause", seconds=pause_seconds)
                await asyncio.sleep(pause_seconds)
                continue
            if not isinstance(page, list):
                raise ChannelDown("Telegram's answer was no list of updates")
            return page

    # Sending

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
        """Send a message to the chat `jid`; return its id there, never None.

        If its topic was deleted, it is sent outside of topics. If the chat has moved to another address, its
        group is moved there, too.

        Args:
            jid: the address of the chat.
            text: the text; for a file, its caption.
            message_id: the host's id of the message, the same at each attempt.
            attachment: the file to send.
            quote: the message that this one answers.
            mention: the person to mention; not mentioned with a poll.
            thread: the id of the topic that it goes into.
            poll: the poll to send instead of the text.

        Raises:
            ChannelDown: it was not sent; it may work later, at the address `moved_to` if the chat has moved.
            ChannelRefused: it was not sent, and never will be.
            OutcomeUnknown: it may have been sent.
        """
        answered = await self._number_of(jid, quote.id) if quote is not None else None
        # `outside_topic` and `target` are arguments of the library's methods for sending.
        outside_topic: dict[str, Any] = {"chat_id": int(jid.removeprefix(PREFIX)), "message_thread_id": None}
        target = outside_topic | {"message_thread_id": int(thread) if thread else None}
        if answered is not None:
            # A deleted message must not prevent the answer to it.
            target["reply_parameters"] = ReplyParameters(answered, allow_sending_without_reply=True)
        send = partial(self._send_parts, message_id, text, attachment, mention)
        if poll is not None:
            send = partial(self._send_poll, message_id, poll)
        try:
            try:
                number = await send(target)
            except _TopicGone:
                log.info("telegram.topic_gone", chat=jid, thread=thread)
                number = await send(outside_topic)
        except ChatMigrated as error:
            new_jid = ChatJid(f"{PREFIX}{error.new_chat_id}")
            await move_chat(self._context, jid, new_jid)
            text = f"This group's address is {new_jid} now."
            raise ChannelDown(text, pause_seconds=MOVED_PAUSE_SECONDS, moved_to=new_jid) from error
        return self._ids.id_of(jid, number)

    async def _send_parts(
        self,
        message_id: MessageId,
        text: str,
        attachment: Attachment | None,
        mention: ChatMember | None,
        target: dict[str, Any],
    ) -> MessageId:
        """Send a message in as many parts as it needs, and return Telegram's number of the first part.

        A part that was sent at an earlier attempt is not sent again. A short text is the caption of the file
        instead of a part.

        Args:
            message_id: the host's id of the message.
            text: the text, with Markdown.
            attachment: the file to send, if any.
            mention: the person to notify, if any.
            target: the chat, the topic and the quoted message, as arguments of the library's methods.

        Raises:
            ChannelDown, ChannelRefused: the part was not sent.
            OutcomeUnknown: the part may have been sent.
            ChatMigrated: the chat has another address now.
        """
        bot = self._connected()
        plain, plain_marks = parse_markdown(text) if text else ("", ())
        plain, plain_marks = _with_mention(plain, plain_marks, mention)
        requests: list[Callable[[], Awaitable[Any]]] = []
        if attachment is not None:
            caption = {}
            if plain and utf16_units(plain) <= MAX_CAPTION and len(plain_marks) <= MAX_MARKS:
                caption = {"caption": plain, "caption_entities": [_entity(mark) for mark in plain_marks]}
                plain = ""
            requests.append(partial(_send_file, bot, attachment, {**target, **caption}))
        for part_text, part_marks in split_text(plain, plain_marks, max_units=MAX_TEXT_CHARS):
            entities = [_entity(mark) for mark in part_marks]
            requests.append(partial(bot.send_message, text=part_text, entities=entities, **target))
        # A text of only formatting leaves no part to send, but Telegram takes no empty message.
        requests = requests or [partial(bot.send_message, text="…", **target)]
        # Only a message of several parts can have been sent in part.
        if len(requests) > 1:
            await self._recall_parts(message_id)
        message_numbers: list[MessageId] = []
        for index, request in enumerate(requests):
            number = await self._send_part_once(target["chat_id"], f"{message_id}.{index}", request)
            message_numbers.append(number)
            # After the last part, the caller stores that the whole message was sent.
            if len(message_numbers) < len(requests):
                await self._store_parts(message_id, message_numbers)
        return message_numbers[0]

    async def _recall_parts(self, message_id: MessageId) -> None:
        """Remember the parts of a message that were sent at earlier attempts, also by an earlier process.

        If there was no attempt, record in the outbox that one begins, with no part sent yet.

        Raises `ChannelDown` when the store cannot be used: without it, a part could be sent twice.
        """
        now_ms = self._context.clock.now_ms()
        # The note has Telegram's numbers of the sent parts, with blanks between them; at first it is empty.
        try:
            first_try = await self._context.database.write(
                lambda tx: outbox.note_try(tx, message_id, note="", now_ms=now_ms)
            )
        except StoreError as error:
            raise ChannelDown(f"What was sent before cannot be looked up: {error}") from error
        if first_try is not None:
            for index, number in enumerate(first_try.note.split()):
                self._remember(f"{message_id}.{index}", MessageId(number))

    async def _store_parts(self, message_id: MessageId, message_numbers: Sequence[MessageId]) -> None:
        """Store Telegram's numbers of the parts of a message that were sent so far, for a later attempt.

        They become the outbox's note about the attempt, in which `_recall_parts` finds them. An error of the
        store is only logged: this process remembers the parts, and sends the others.
        """
        sent_parts, now_ms = " ".join(message_numbers), self._context.clock.now_ms()
        try:
            await self._context.database.write(
                lambda tx: outbox.renew_try(tx, message_id, note=sent_parts, now_ms=now_ms)
            )
        except StoreError as error:
            log.warning("telegram.parts_not_stored", message=message_id, reason=str(error))

    async def _send_poll(self, message_id: MessageId, poll: Poll, target: dict[str, Any]) -> MessageId:
        """Send a poll that shows who voted, unless this process has sent it; return Telegram's number of it.

        `message_id` is the host's id of the message. Telegram's id of the poll is stored, too, because votes
        contain only that. `target` has the chat, the topic and the quoted message as the library's arguments.

        Raises:
            ChannelDown, ChannelRefused: the poll was not sent.
            OutcomeUnknown: the poll may have been sent.
            ChatMigrated: the chat has another address now.
        """
        request = partial(
            self._connected().send_poll,
            question=poll.question,
            options=list(poll.options),
            is_anonymous=False,
            allows_multiple_answers=poll.is_multiple,
            **target,
        )
        if message_id not in self._sent:
            sent = await self._send_request(target["chat_id"], request)
            self._remember(message_id, MessageId(str(sent.message_id)))
            self._unstored_polls[message_id] = f"{CHANNEL.name} {sent.poll.id}"
            await self._store_polls()
        return self._sent[message_id]

    async def _store_polls(self) -> None:
        """Store Telegram's ids of the polls that were sent, and deliver the votes that came before.

        An error of the store is only logged: the polls are sent, and the next page of updates tries again.
        """
        if not self._unstored_polls:
            return
        try:
            for message_id, ref in list(self._unstored_polls.items()):
                await self._context.database.write(
                    partial(polls.note_ref, message_id=message_id, channel_ref=ref)
                )
                self._unstored_polls.pop(message_id, None)
            if self._receiver is not None:
                await self._receiver.deliver_waiting_votes()
        except StoreError as error:
            log.warning("telegram.polls_not_stored", reason=str(error))

    async def end_poll(self, message: Message) -> None:
        """Stop a poll of the bot's own, so that it takes no more votes.

        Raises:
            ChannelDown: perhaps it still takes votes; it may work later.
            ChannelRefused: Telegram will not stop it.
        """
        bot, number = self._connected(), await self._number_of(message.chat_jid, message.id)
        if number is None:
            raise ChannelRefused("Telegram does not know this message.")
        try:
            chat = int(message.chat_jid.removeprefix(PREFIX))
            await self._send_request(chat, partial(bot.stop_poll, chat, number))
        except ChatMigrated as error:
            raise ChannelRefused("This group has another address now.") from error
        except OutcomeUnknown as error:
            # Stopping it twice does no harm, so it may be tried again.
            raise ChannelDown(str(error)) from error

    def _remember(self, key: str, number: MessageId) -> None:
        """Remember Telegram's `number` of a sent part of a message, so that it is not sent again.

        `key` is the host's id of the message, with the index of the part behind a dot if it is no poll. The
        oldest of more than `MAX_REMEMBERED` parts is forgotten.
        """
        self._sent[key] = number
        if len(self._sent) > MAX_REMEMBERED:
            self._sent.popitem(last=False)

    async def _send_part_once(self, chat: int, key: str, request: Callable[[], Awaitable[Any]]) -> MessageId:
        """Send one part of a message, unless this process has sent it; return Telegram's number of the part.

        `key` is the host's id of the message and the index of the part. `request` sends the part to `chat`.
        Raises what `_send_request` raises.
        """
        if key not in self._sent:
            self._remember(key, MessageId(str((await self._send_request(chat, request)).message_id)))
        return self._sent[key]

    async def _send_request(self, chat: int, request: Callable[[], Awaitable[Any]]) -> Any:
        """Send a request with an effect that people see in a chat, and return Telegram's answer.

        During a pause that Telegram has asked for in this chat, nothing is sent. Pauses are stored for each
        chat: if a limit of the whole bot is reached, each chat is asked for its own pause.

        Raises:
            ChannelDown: it has no effect yet, and may work later, after `pause_seconds` if that is set.
            ChannelRefused: Telegram will never accept it. `_TopicGone` if that is due to the topic alone.
            OutcomeUnknown: the answer was lost, and Telegram may have accepted it.
            ChatMigrated: the chat has another address now.
        """
        loop = asyncio.get_running_loop()
        if (remaining_seconds := self._silent_until.get(chat, 0.0) - loop.time()) > 0:
            raise ChannelDown("Telegram asked for a pause.", pause_seconds=remaining_seconds)
        try:
            return await request()
        except RetryAfter as error:
            seconds = _pause_of(error)
            # Simultaneous requests may get different pauses: the longest counts. Past ones are dropped.
            unfinished = {other: end for other, end in self._silent_until.items() if end > loop.time()}
            self._silent_until = unfinished | {chat: max(loop.time() + seconds, unfinished.get(chat, 0.0))}
            text = f"Telegram asks to wait {seconds:.0f} s."
            raise ChannelDown(text, pause_seconds=seconds) from error
        except ChatMigrated:
            raise
        except (BadRequest, Forbidden) as error:
            is_topic_gone = any(phrase in str(error).casefold() for phrase in TOPIC_GONE)
            error_class = _TopicGone if is_topic_gone else ChannelRefused
            raise error_class(f"Telegram refuses: {error}.") from error
        except InvalidToken as error:
            # `_run_connection`, which fetches updates, decides whether the login has ended.
            raise ChannelDown("Telegram does not take the bot's token any more.") from error
        except NetworkError as error:
            raise _error_for_lost_answer(error) from error
        except TelegramError as error:
            raise ChannelDown(f"Telegram has trouble: {error}.") from error

    async def _number_of(self, jid: ChatJid, message_id: MessageId) -> int | None:
        """Return Telegram's number of a message; None if the connected bot does not know it.

        It is in the host's id of the message. For messages of Andy's own, it is stored beside that id.
        """
        async with self._context.database.reading() as tx:
            known_as = await messages.channel_id_of(tx, jid, message_id) or message_id
        return self._ids.number_of(jid, known_as)

    def _connected(self) -> telegram.Bot:
        """Return the client of the connected bot. Raises `ChannelDown` when there is no connection."""
        if self._bot is None:
            raise self._connection.why_down()
        return self._bot

    async def set_typing(self, jid: ChatJid, *, is_typing: bool) -> None:
        """Show the typing sign in a chat; Telegram hides it after five seconds, or with the next message.

        Nothing is sent if `is_typing` is False, if Telegram is down, or if `jid` belongs to another channel.
        An error is only logged.
        """
        if self._bot is None or not is_typing or not self.owns(jid):
            return
        try:
            await self._bot.send_chat_action(int(jid.removeprefix(PREFIX)), ChatAction.TYPING)
        except TelegramError as error:
            log.debug("telegram.typing_failed", reason=str(error))

    async def react(self, message: Message, sign: str) -> None:
        """Put the emoji `sign` under a message in place of the previous one; if empty, only remove that.

        An emoji that Telegram does not accept as a reaction is replaced by a similar one where that is known.

        Raises:
            ChannelDown: perhaps the emoji was not put there; it may work later.
            ChannelRefused: the emoji was not put there, and never will be.
        """
        bot, number = self._connected(), await self._number_of(message.chat_jid, message.id)
        if number is None:
            raise ChannelRefused("Telegram does not know this message.")
        if sign in REACTIONS:
            sign = REACTIONS[sign]
        elif sign not in KNOWN_SIGNS:
            # Telegram's own emoji lack the selector for colours that keyboards add.
            sign = sign.replace(VARIATION_SELECTOR, "")
        signs = [ReactionTypeEmoji(sign)] if sign else []
        chat = int(message.chat_jid.removeprefix(PREFIX))
        try:
            await self._send_request(chat, partial(bot.set_message_reaction, chat, number, reaction=signs))
        except ChatMigrated as error:
            raise ChannelRefused("This group has another address now.") from error
        except OutcomeUnknown as error:
            # Setting the same emoji twice does no harm, so it may be tried again.
            raise ChannelDown(str(error)) from error

    async def withdraw(self, message: Message) -> None:
        """Delete a message of Andy's own for everybody, with all parts in which this process sent it.

        Of a message that an earlier process sent, or that is too old to be remembered, only the first part is
        deleted.

        Raises:
            ChannelDown: perhaps it was not deleted whole; it may work later.
            ChannelRefused: it was not deleted, and never will be.
        """
        bot, chat = self._connected(), int(message.chat_jid.removeprefix(PREFIX))
        number = await self._number_of(message.chat_jid, message.id)
        if number is None:
            raise ChannelRefused("Telegram's number of the message is not known.")
        # Only the number of the first part is stored; the others are known to the process that sent them.
        other_parts = [int(sent) for key, sent in self._sent.items() if key.startswith(f"{message.id}.")]
        for part in dict.fromkeys((number, *other_parts)):
            try:
                await self._send_request(chat, partial(bot.delete_message, chat, part))
            except ChannelRefused as error:
                # A part that somebody else has deleted is what is wanted.
                if ALREADY_DELETED not in str(error).casefold():
                    raise
            except ChatMigrated as error:
                raise ChannelRefused("This group has another address now.") from error
            except OutcomeUnknown as error:
                # Deleting it twice does no harm, so it may be tried again.
                raise ChannelDown(str(error)) from error


class _TopicGone(ChannelRefused):
    """The topic of a group was deleted or closed, and the rest of the group takes the message."""


class PauseRequested(Exception):
    """Telegram asks for a pause of some seconds."""

    def __init__(self, seconds: float) -> None:
        """`seconds` is the length of the pause."""
        self.seconds = seconds
        super().__init__(f"for {seconds:.0f} s")


def _error_for_lost_answer(error: NetworkError) -> ChannelError:
    """Return the error for a request to which no answer of Telegram's came.

    `ChannelDown` if the request was not sent, `ChannelRefused` if it was too large for the network, and
    `OutcomeUnknown` if Telegram may have accepted it.
    """
    if isinstance(error.__cause__, NOT_SENT):
        return ChannelDown("Telegram cannot be reached.")
    if TOO_LARGE in str(error):
        return ChannelRefused("The way to Telegram takes nothing so large.", is_chat_fine=True)
    # A proxy's page, such as one with 502, does not reveal what happened behind it.
    return OutcomeUnknown()


def _pause_of(error: RetryAfter) -> float:
    """Return the seconds that Telegram asks to wait."""
    retry_after = error.retry_after
    return retry_after.total_seconds() if isinstance(retry_after, timedelta) else float(retry_after)


async def _request(request: Any) -> Any:
    """Return the answer to a `request` of the library that has no effect that people see.

    Raises:
        LoggedOut: Telegram does not know the token.
        PauseRequested: Telegram asks for a pause.
        ChannelDown: the request failed otherwise, its answer is none of Telegram's, or another program
            receives this bot's messages.
    """
    try:
        return await request
    except InvalidToken as error:
        raise LoggedOut("the token is not known there") from error
    except RetryAfter as error:
        raise PauseRequested(_pause_of(error)) from error
    except Conflict as error:
        if "webhook" in str(error).casefold():
            raise ChannelDown(
                "a webhook takes this bot's messages: remove it with deleteWebhook, or use another bot"
            ) from error
        raise ChannelDown(
            "another program asks for this bot's messages: stop it, or use another bot"
        ) from error
    except TelegramError as error:
        raise ChannelDown(" ".join(str(error).split())[:200] or type(error).__name__) from error
    except login.UNREADABLE as error:
        raise ChannelDown(f"the answer was none of Telegram's ({type(error).__name__})") from error


async def _send_file(bot: telegram.Bot, file: Attachment, target: dict[str, Any]) -> Any:
    """Send a file as a picture, voice note, music, film or document, as its MIME type says.

    A file that Telegram does not take in its own form is sent as a document. Return the sent message.
    `target` has the chat, the caption and more, as arguments of the library.
    """
    content = await asyncio.to_thread(file.path.read_bytes)
    mime = file.mime.partition(";")[0].strip()  # of a spoken reply it is `audio/ogg; codecs=opus`
    kind = mime.partition("/")[0]
    try:
        if mime in {"image/jpeg", "image/png"} and len(content) <= MAX_PHOTO_BYTES:
            return await bot.send_photo(photo=content, filename=file.name, **target)
        if mime == "audio/ogg":
            return await bot.send_voice(voice=content, filename=file.name, **target)
        if kind == "audio":
            return await bot.send_audio(audio=content, filename=file.name, **target)
        if kind == "video":
            return await bot.send_video(video=content, filename=file.name, **target)
    except BadRequest as error:
        if not any(phrase in str(error).casefold() for phrase in FORM_REFUSED):
            raise
        log.info("telegram.sent_as_document", mime=mime, reason=str(error))
    return await bot.send_document(document=content, filename=file.name, **target)


def _with_mention(
    text: str, marks: tuple[Mark, ...], mention: ChatMember | None
) -> tuple[str, tuple[Mark, ...]]:
    """Return a text and its marks so that Telegram notifies the person `mention`.

    A link to the person is marked on their name in the text. A text without the name, or with it only in
    code, where Telegram drops links, gets it at its start. Without a person, or without a text, both are
    returned unchanged.
    """
    if mention is None or not text:
        return text, marks
    name = mention.name or mention.jid
    url = f"tg://user?id={mention.jid.removeprefix(PREFIX)}"
    # Not as a part of a longer word. Letters of other scripts may follow, as Korean puts particles behind a
    # name, and those of scripts without blanks, such as Chinese, may stand before it.
    for found in re.finditer(rf"(?<!{_LETTER_WITH_BLANKS}){re.escape(name)}(?![A-Za-z0-9_])", text):
        link = Mark("text_link", utf16_units(text[: found.start()]), utf16_units(name), url)
        if not any(mark.kind in {"code", "pre"} and _overlap(mark, link) for mark in marks):
            # In order, as a long text is cut by its marks.
            return text, tuple(sorted((*marks, link), key=lambda mark: (mark.offset, -mark.length)))
    shift_units = utf16_units(f"{name}: ")
    moved_marks = [
        Mark(mark.kind, mark.offset + shift_units, mark.length, mark.url, mark.language) for mark in marks
    ]
    return f"{name}: {text}", (Mark("text_link", 0, utf16_units(name), url), *moved_marks)


def _overlap(one: Mark, other: Mark) -> bool:
    """Return whether two marks have a part of the text in common."""
    return one.offset < other.offset + other.length and other.offset < one.offset + one.length


def _entity(mark: Mark) -> MessageEntity:
    """Return a mark as the library's own type."""
    return MessageEntity(mark.kind, mark.offset, mark.length, url=mark.url, language=mark.language)
