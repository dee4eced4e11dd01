"""The Matrix channel: holds one login, delivers the events of its rooms, and sends.

The outbox's id of a message is the transaction id of its event, and is part of its content. The homeserver
shows a repeated transaction once, so a send whose answer was lost is simply repeated: for a while and by the
same device. Later, or with another login, the message is first searched for in its room.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from collections import Counter, OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Any

import structlog

from orchestrator.channels.connection import ChannelConnection, LoggedOut
from orchestrator.channels.context import ChannelContext
from orchestrator.channels.matrix import content, events, login
from orchestrator.channels.matrix.description import CHANNEL, MAX_TEXT_CHARS, PREFIX
from orchestrator.channels.matrix.incoming import RoomReceiver
from orchestrator.channels.matrix.login import MatrixLogin
from orchestrator.channels.matrix.session import (
    CALL_SECONDS,
    MatrixSession,
    UploadTooSlow,
    retry_after_pauses,
)
from orchestrator.domain.errors import ChannelDown, ChannelError, ChannelRefused
from orchestrator.domain.polls import Poll
from orchestrator.domain.protocols import Receive
from orchestrator.domain.values import Attachment, ChatJid, ChatMember, Message, MessageId
from orchestrator.store.conversation import messages, outbox

log = structlog.get_logger(__name__)

TRUSTED_MS = 10 * 60_000
"""Milliseconds that a homeserver is trusted to know a transaction again.

Synapse forgets it after a day, Dendrite after half an hour.
"""
SLOW_UPLOADS = 3
"""Attempts to upload a file that does not arrive in time."""
UNKNOWN_EVENT, SAME_SIGN = "unknown event", "same reaction twice"
"""Parts of Synapse's errors for a reaction to an unknown event, and for one that exists already."""
MAX_UPLOADED = 100
"""Most uploads that are remembered.

Bounded because the channel never learns which messages the outbox has given up, whose uploads are useless.
"""


class MatrixChannel:
    """Owns the chats whose address is `matrix:!room:server`."""

    name = CHANNEL.name
    features = CHANNEL.features
    max_text_chars: int | None = MAX_TEXT_CHARS
    max_file_bytes: int | None = CHANNEL.max_file_bytes
    """The largest file, in bytes, that the homeserver accepts; a default until it reports its own limit."""

    def __init__(self, context: ChannelContext, *, chance: Callable[[], float] = random.random) -> None:
        """`chance` returns a number from [0, 1), by which waits vary."""
        self._context = context
        self._connection = ChannelConnection(
            context, CHANNEL, read_login=login.read_login, address_prefix=PREFIX, chance=chance
        )
        self._session: MatrixSession | None = None
        self._login: MatrixLogin | None = None
        self._slow_uploads: Counter[MessageId] = Counter()
        """For each message, uploads that took too long although the connection works."""
        self._uploaded: OrderedDict[tuple[str, MessageId], dict[str, Any]] = OrderedDict()
        """For each homeserver and unsent message, where its file was uploaded.

        So a message that is tried again after a pause is not uploaded again.
        """

    def owns(self, jid: ChatJid) -> bool:
        """Return whether `jid` is a room of Matrix."""
        return CHANNEL.owns(jid)

    def status(self) -> dict[str, Any]:
        """Return the state of the connection and facts about it, for `/status`."""
        return self._connection.status.as_data()

    # The connection

    async def run(self, receive: Receive) -> None:
        """Stay connected until cancelled, and pass each message to `receive`.

        While nobody is logged in, or the login has ended, this waits for another login.
        """
        await self._connection.stay_connected(partial(self._run_session, receive=receive))

    async def _run_session(self, matrix_login: MatrixLogin, *, receive: Receive) -> None:
        """Connect with a login, and pass each message of its rooms to `receive` until the connection ends.

        Messages are fetched from the stored position in the homeserver's stream of events on.

        Raises (always, since only an error ends the connection; maybe within an exception group, which
        `ChannelConnection` unwraps):
            LoggedOut: the homeserver has ended the login.
            ChannelDown: the connection broke for another reason.
        """
        await self._connection.status.record(
            state="connecting", account=matrix_login.user_id, next_try_ms=None
        )
        try:
            async with (
                MatrixSession.open(self._context.home, matrix_login) as session,
                asyncio.TaskGroup() as tasks,
            ):
                receiver = RoomReceiver(self._context, session, matrix_login, receive, tasks=tasks)
                position = await receiver.resume()
                tasks.create_task(receiver.answer_invitations(), name="matrix:invitations")
                while True:
                    changes = await session.sync(position)
                    position = changes.position
                    self._login = matrix_login
                    # The first answer shows that the login is valid.
                    if self._session is None:
                        self.max_file_bytes = await session.max_file_bytes()
                        self._session = session
                        await self._connection.note_connected()
                    if await receiver.deliver(changes):
                        self._connection.status.change(last_message_ms=self._context.clock.now_ms())
        finally:
            self._session = None

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
        """Send a message to the room `jid`; return the id of its event, never None.

        If an earlier attempt has already sent it, it is not sent again.

        Args:
            jid: the address of the room.
            text: the text; for a file, its caption; for a poll, the text for clients that show no polls.
            message_id: the host's id of the message, the same at each attempt.
            attachment: the file to send.
            quote: the message that this one answers.
            mention: the person to mention at its start; not mentioned with a file or a poll.
            thread: the id of the first event of the thread that it goes into.
            poll: the poll to send.

        Raises:
            ChannelDown: it was not sent; it may work later.
            ChannelRefused: it was not sent, and never will be.
            OutcomeUnknown: an earlier attempt may have sent it, which cannot be found out.
        """
        session, room = self._connected(), jid.removeprefix(PREFIX)
        # An upload is useless on another homeserver, which a later login may use.
        upload_key = (session.homeserver, message_id)
        answered_event = await self._event_id_of(jid, quote.id) if quote is not None else ""
        try:
            if (earlier_event := await self._earlier_event(session, room, message_id)) is not None:
                return MessageId(earlier_event)
            kind = events.MESSAGE if poll is None else events.POLL_START
            if poll is not None:
                body = content.poll_content(poll, text)
            elif attachment is None:
                body = content.text_content(text, mention=mention)
            else:
                file_arguments = await self._upload_once(session, room, upload_key, attachment)
                body = content.file_content(**{**file_arguments, "caption": text})
            body = content.with_relations(body, answered_event=answered_event, thread_root=thread or "")
            body[content.MESSAGE_ID_KEY] = message_id
            event = await session.send(room, kind, body, transaction=message_id)
        except LoggedOut as error:
            raise ChannelDown(f"Matrix has logged Andy out: {error}") from error
        except ChannelRefused:
            # This message is not tried again, so its upload is forgotten. After other errors it is retained.
            self._uploaded.pop(upload_key, None)
            raise
        self._uploaded.pop(upload_key, None)
        return MessageId(event)

    async def _earlier_event(self, session: MatrixSession, room: str, message_id: MessageId) -> str | None:
        """Return the id of the event that an earlier attempt has sent; None if the message is to be sent now.

        The account and time of the first attempt are stored. If the message turns out not to have arrived in
        the room, the present attempt is stored as the first instead.

        Raises:
            ChannelDown, LoggedOut: the homeserver cannot be asked.
            ChannelRefused: the homeserver refuses to show the room's messages.
            OutcomeUnknown: the room has too many messages to search, or one of them was redacted.
        """
        now_ms, account = self._context.clock.now_ms(), session.account
        first_try = await self._context.database.write(
            lambda tx: outbox.note_try(tx, message_id, note=account, now_ms=now_ms)
        )
        if first_try is None:
            return None  # the present attempt is the first, and is stored as that now
        # A first attempt in the future was recorded before the clock was set back: its age is not known.
        if first_try.note == account and 0 <= now_ms - first_try.at_ms <= TRUSTED_MS:
            # The homeserver still knows the transaction, and shows a repeated one only once.
            return None
        event = await session.find_own(room, message_id, since_ms=min(first_try.at_ms, now_ms))
        if event is None:
            await self._context.database.write(
                lambda tx: outbox.renew_try(tx, message_id, note=account, now_ms=now_ms)
            )
        return event

    async def _upload_once(
        self, session: MatrixSession, room: str, upload_key: tuple[str, MessageId], file: Attachment
    ) -> dict[str, Any]:
        """Upload the file of a message, unless that was done; return the arguments of `content.file_content`.

        The caption among them is empty. `upload_key` is the homeserver and the id of the message.

        Raises:
            UploadTooSlow: the upload took too long; it may be tried again.
            ChannelDown, LoggedOut: the upload failed; it may work later.
            ChannelRefused: the homeserver refuses the file, or `SLOW_UPLOADS` uploads of it took too long.
        """
        _, message_id = upload_key
        if upload_key not in self._uploaded:
            try:
                self._uploaded[upload_key] = await session.upload(room, file)
            except UploadTooSlow as error:
                self._slow_uploads[message_id] += 1
                if self._slow_uploads[message_id] < SLOW_UPLOADS:
                    raise
                del self._slow_uploads[message_id]
                # Only this file is refused: the room takes other messages.
                raise ChannelRefused(error.advice, is_chat_fine=True) from error
            self._slow_uploads.pop(message_id, None)
            if len(self._uploaded) > MAX_UPLOADED:
                self._uploaded.popitem(last=False)  # the oldest
        return self._uploaded[upload_key]

    async def _event_id_of(self, jid: ChatJid, message_id: MessageId) -> str:
        """Return the id of a message's event in the room `jid`.

        It is the host's id of the message, except for messages of Andy's own, whose event ids are stored.
        """
        async with self._context.database.reading() as tx:
            return await messages.channel_id_of(tx, jid, message_id) or message_id

    def _connected(self) -> MatrixSession:
        """Return the session with the homeserver. Raises `ChannelDown` when there is none."""
        if self._session is None:
            raise self._connection.why_down()
        return self._session

    async def set_typing(self, jid: ChatJid, *, is_typing: bool) -> None:
        """Show or hide the typing sign in a room; nothing happens while Matrix is down or the call fails."""
        if self._session is None:
            return
        try:
            async with asyncio.timeout(CALL_SECONDS):
                await self._session.set_typing(jid.removeprefix(PREFIX), is_typing=is_typing)
        except (ChannelError, TimeoutError) as error:
            log.debug("matrix.typing_failed", reason=str(error))

    async def react(self, message: Message, sign: str) -> None:
        """Put the emoji `sign` under a message in place of Andy's previous one; if empty, only remove that.

        Raises:
            ChannelDown: perhaps the emoji was not put there; it may work later.
            ChannelRefused: the emoji was not put there, and never will be.
        """
        session, own_login = self._connected(), self._login
        assert own_login is not None
        room, jid = message.chat_jid.removeprefix(PREFIX), message.chat_jid
        try:
            async with asyncio.timeout(CALL_SECONDS):
                event = await self._event_id_of(jid, message.id)
                previous_reaction = await retry_after_pauses(
                    lambda: session.own_reaction(room, event, own_login.user_id), longest_seconds=CALL_SECONDS
                )
                if previous_reaction is not None:
                    await retry_after_pauses(
                        lambda: session.redact(room, previous_reaction), longest_seconds=CALL_SECONDS
                    )
                if sign:
                    body = content.reaction_content(event, sign)
                    transaction = secrets.token_hex(10)
                    await retry_after_pauses(
                        lambda: session.send(room, events.REACTION, body, transaction=transaction),
                        longest_seconds=CALL_SECONDS,
                    )
        except TimeoutError as error:
            raise ChannelDown("The homeserver did not answer in time.") from error
        except LoggedOut as error:
            raise ChannelDown(f"Matrix has logged Andy out: {error}") from error
        except ChannelDown as error:
            # Synapse has no error code of its own for either of these two cases, but a text.
            if UNKNOWN_EVENT in str(error):
                raise ChannelRefused(str(error)) from error
            # The message has this sign already, for example by a try whose answer was lost: a success.
            if SAME_SIGN not in str(error):
                raise

    async def end_poll(self, message: Message) -> None:
        """Close a poll of Andy's own, so that it takes no more votes.

        Raises:
            ChannelDown: perhaps it still takes votes; it may work later.
            ChannelRefused: the homeserver refuses to close it.
        """
        session, room = self._connected(), message.chat_jid.removeprefix(PREFIX)
        try:
            async with asyncio.timeout(CALL_SECONDS):
                body = content.poll_end_content(await self._event_id_of(message.chat_jid, message.id))
                # The same transaction at each attempt, so that the homeserver closes the poll only once.
                await session.send(room, events.POLL_END, body, transaction=f"{message.id}.end")
        except TimeoutError as error:
            raise ChannelDown("The homeserver did not answer in time.") from error
        except LoggedOut as error:
            raise ChannelDown(f"Matrix has logged Andy out: {error}") from error

    async def withdraw(self, message: Message) -> None:
        """Redact a message of Andy's own, which deletes it for everybody.

        Raises:
            ChannelDown: perhaps it was not deleted; it may work later.
            ChannelRefused: it was not deleted, and never will be.
        """
        session, room = self._connected(), message.chat_jid.removeprefix(PREFIX)
        try:
            async with asyncio.timeout(CALL_SECONDS):
                await session.redact(room, await self._event_id_of(message.chat_jid, message.id))
        except TimeoutError as error:
            raise ChannelDown("The homeserver did not answer in time.") from error
        except LoggedOut as error:
            raise ChannelDown(f"Matrix has logged Andy out: {error}") from error
