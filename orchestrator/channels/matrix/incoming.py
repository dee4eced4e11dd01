"""Deliver the events of rooms to the host: messages in order, their files, then the stream position.

The position is stored with the last message of a page, but not while files of earlier messages are being
fetched: after a crash the homeserver sends these messages again, and their files are fetched then.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import sqlite3
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import structlog

from orchestrator.channels import attachments
from orchestrator.channels.context import ChannelContext
from orchestrator.channels.matrix import events
from orchestrator.channels.matrix.description import CHANNEL, FOLDER, PREFIX, owns
from orchestrator.channels.matrix.events import MatrixFile, RoomMessage
from orchestrator.channels.matrix.login import MatrixLogin
from orchestrator.channels.matrix.session import MatrixSession, SyncChanges
from orchestrator.channels.receiving import hand_in
from orchestrator.domain.errors import ChannelError, ChannelRefused, StoreError
from orchestrator.domain.protocols import Receive
from orchestrator.domain.values import ChatJid, Inbound, MessageId, Quote
from orchestrator.groups import owner
from orchestrator.store.conversation import chats, messages, polls
from orchestrator.store.groups import groups

log = structlog.get_logger(__name__)

REACTION = "reaction"
INVITATIONS = f"{CHANNEL.name}.invitations"
"""The name under which unanswered invitations are stored, beside the position."""
MAX_INVITATIONS = 200
UPGRADED = (
    "⚠️ The Matrix room of {folder} was replaced by a new one, in which I hear nothing yet. Invite me there as"
    " {owner}, then: andy groups add-chat {folder} {new} --notify"
)
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 2.0, 3_600.0
UNREADABLE = (
    "🔒 This room is encrypted, and the library that could read it is not installed where I run. Please"
    " invite me to a room without encryption, or have my owner install it: pip install 'matrix-nio[e2e]'."
)


def address_of(room_id: str) -> ChatJid:
    """Return the host's address of a room: `matrix:` and the room's id."""
    return ChatJid(f"{PREFIX}{room_id}")


class RoomReceiver:
    """Delivers the events of one session. One task calls `deliver`, another one `answer_invitations`."""

    def __init__(
        self,
        context: ChannelContext,
        session: MatrixSession,
        login: MatrixLogin,
        receive: Receive,
        *,
        tasks: asyncio.TaskGroup,
    ) -> None:
        """`receive` stores a message; files are fetched in `tasks`."""
        self._context = context
        self._session = session
        self._login = login
        self._receive = receive
        self._tasks = tasks
        self._fetching: set[asyncio.Task[None]] = set()
        """The tasks that fetch files; until they end, the position in the stream is not stored."""
        self._download_slots = asyncio.Semaphore(attachments.MAX_FETCHES)
        self._position = ""
        """The position in the stream of events up to which everything is delivered; empty before the first.
        """
        self._invitations: dict[str, str] = {}
        """The rooms that wait for an answer, with the inviting account: the homeserver reports each once."""
        self._has_invitations = asyncio.Event()

    @property
    def position_prefix(self) -> str:
        """The prefix that marks a stored sync position as this login's; another login's cannot be used."""
        return f"{self._login.user_id} {self._login.device_id} "

    async def resume(self) -> str | None:
        """Load the unanswered invitations, and return the position from which to read the stream of events.

        All messages before this position are stored already. None if no position of this login is stored.
        """
        async with self._context.database.reading() as tx:
            position = await chats.cursor(tx, CHANNEL.name) or ""
            invitations = json.loads(await chats.cursor(tx, INVITATIONS) or "{}")
        self._invitations = invitations.get(self._login.user_id, {})
        self._has_invitations.set()
        if not position.startswith(self.position_prefix):
            return None
        return position.removeprefix(self.position_prefix)

    async def deliver(self, changes: SyncChanges) -> int:
        """Deliver all changes since the last sync to the host; return how many messages of others they have.

        A message that fails for a reason of its own is skipped, with a log entry, but counted. The position
        after the changes in the stream of events is stored too; while files are being fetched, it is stored
        after the last of them. The owner is notified of replaced rooms, and the newest message of each
        registered room is marked as read.

        Raises:
            ChannelError, StoreError, sqlite3.OperationalError: the changes could not be delivered, and have
                to be fetched again.
        """
        for room_id in changes.typed_in:
            self._context.on_typing(address_of(room_id))
        await self._update_invitations(changes.invited_by, removed=changes.left)
        for room in changes.rooms:
            for event in room.events:
                if replacement := events.replacement_of(event):
                    await self._notify_upgrade(room.room_id, replacement)
        room_messages = [
            (room.room_id, message)
            for room in changes.rooms
            for event in room.events
            if (message := events.read_event(event))
        ]
        # Andy's own messages come back from the homeserver, too.
        room_messages = [
            (room_id, message) for room_id, message in room_messages if message.sender != self._login.user_id
        ]
        cursor = self.position_prefix + changes.position
        is_position_stored = False
        for number, (room_id, message) in enumerate(room_messages, start=1):
            try:
                is_position_stored = await self._deliver_message(
                    room_id, message, cursor=cursor if number == len(room_messages) else None
                )
            except (ChannelError, StoreError, sqlite3.OperationalError):
                raise  # no fault of the message, which comes again with the next session
            except Exception:
                # Skip it: otherwise it would come again with each sync, and hold up all other messages.
                log.exception("matrix.message_not_read", room=room_id, message=message.event_id)
                is_position_stored = False
        # Set only after all messages are delivered: a task that has fetched a file stores this position, and
        # one ahead of messages that are not delivered yet would lose these if the host died then.
        self._position = changes.position
        if not is_position_stored and not self._fetching:
            await self._store_position()
        # Of several messages of a room, the dictionary contains the newest.
        await self._mark_read(dict(room_messages))
        return len(room_messages)

    async def _store_position(self) -> None:
        """Store the position in the stream of events up to which everything is delivered, if there is one."""
        if not self._position:
            return
        async with self._context.database.transaction() as tx:
            await chats.set_cursor(tx, CHANNEL.name, self.position_prefix + self._position)

    async def _update_invitations(self, added: Mapping[str, str], *, removed: Collection[str]) -> None:
        """Add and remove unanswered invitations, store them, and wake the task that answers them.

        `added` maps each room to the inviting account; `removed` has rooms. Of more than `MAX_INVITATIONS`,
        the oldest are dropped and never answered. This must be called before the position in the stream of
        events is stored, because the homeserver reports each invitation once.
        """
        unanswered = {
            room: inviter for room, inviter in {**self._invitations, **added}.items() if room not in removed
        }
        unanswered = dict(list(unanswered.items())[-MAX_INVITATIONS:])  # the newest
        if unanswered == self._invitations:
            return
        self._invitations = unanswered
        async with self._context.database.transaction() as tx:
            await chats.set_cursor(tx, INVITATIONS, json.dumps({self._login.user_id: unanswered}))
        self._has_invitations.set()

    async def answer_invitations(self) -> None:
        """Answer invitations until cancelled; retry later those that the homeserver cannot handle now."""
        pause_seconds = FIRST_PAUSE_SECONDS
        while True:
            self._has_invitations.clear()
            answered = [
                room_id
                for room_id, inviter in list(self._invitations.items())
                if await self._answer_invitation(room_id, inviter)
            ]
            await self._update_invitations({}, removed=answered)
            # The pause grows only while no invitation can be answered.
            if answered or not self._invitations:
                pause_seconds = FIRST_PAUSE_SECONDS
            # Wait for a new invitation; if some are left to be retried, no longer than the pause.
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_seconds if self._invitations else None):
                    await self._has_invitations.wait()
            pause_seconds = min(2 * pause_seconds, LONGEST_PAUSE_SECONDS)

    async def _answer_invitation(self, room_id: str, inviter: str) -> bool:
        """Accept an invitation of the owner, or reject one of anybody else.

        The room of an accepted invitation is stored as a known chat, which is published as an event. Return
        True if the invitation is answered, or can never be; False if the homeserver could not handle it now,
        so that it is to be retried.
        """
        is_owner = inviter == self._login.owner
        try:
            await (self._session.join(room_id) if is_owner else self._session.leave(room_id))
        except ChannelError as error:
            log.warning("matrix.invitation", room=room_id, by=inviter, reason=str(error))
            # A refusal is final: the room is gone, for example.
            return isinstance(error, ChannelRefused)
        log.info("matrix.invitation", room=room_id, by=inviter, accepted=is_owner)
        if is_owner:
            async with self._context.database.transaction() as tx:
                await chats.upsert(
                    tx, address_of(room_id), name=None, channel=CHANNEL.name, is_group=False, at_ms=None
                )
            self._context.bus.publish("chats.seen", detail="1 room")
        return True

    async def _notify_upgrade(self, room_id: str, replacement: str) -> None:
        """Notify the owner, once, that a registered room was replaced by the room `replacement`.

        The group is not moved there by itself, because the new room may have other members. Nothing happens
        if the replaced room is not registered, or if `replacement` is no valid id of a room.
        """
        async with self._context.database.transaction() as tx:
            group = await groups.by_jid(tx, address_of(room_id))
            if group is None or not owns(address_of(replacement)):
                return
            text = UPGRADED.format(folder=group.folder, owner=self._login.owner, new=address_of(replacement))
            now_ms = self._context.clock.now_ms()
            is_new = await owner.notify(tx, text, about=f"{room_id} {replacement}", now_ms=now_ms)
        if is_new:
            self._context.wake_outbox()

    async def _mark_read(self, newest_by_room: dict[str, RoomMessage]) -> None:
        """Mark the newest message of each registered room as read; errors are only logged.

        `newest_by_room` maps a room's id to its newest message.
        """
        for room_id, message in newest_by_room.items():
            async with self._context.database.reading() as tx:
                group = await groups.by_jid(tx, address_of(room_id))
            if group is not None:
                try:
                    await self._session.mark_read(room_id, message.event_id)
                except ChannelError as error:
                    log.debug("matrix.not_marked_read", reason=str(error))

    # One message

    async def _deliver_message(self, room_id: str, message: RoomMessage, *, cursor: str | None) -> bool:
        """Deliver a message to the host and start to fetch its file.

        Andy leaves a room that he cannot read, and declines a request to compare keys.

        `cursor` is the position after a sync in the stream of events, for the sync's last message; None for
        any other. Return whether it was stored with the message: that is not done while files are fetched.
        """
        inbound = await self._inbound(room_id, message)
        if inbound.is_unreadable and not self._session.is_readable(room_id):
            await self._leave_unreadable_room(room_id)
        # `file_until_ms` is set only if the file is to be fetched.
        file = message.file if inbound.file_until_ms is not None else None
        if file is not None or self._fetching:
            cursor = None
        if message.compares_keys_with == self._login.user_id:
            await self._session.decline_verification(room_id, message.event_id)
        if not await hand_in(self._receive, inbound, cursor=cursor):
            return False
        if file is not None:
            task = self._tasks.create_task(
                self._fetch_and_deliver(inbound, file), name=f"matrix:file:{message.event_id}"
            )
            self._fetching.add(task)
        return cursor is not None

    async def _leave_unreadable_room(self, room_id: str) -> None:
        """Explain in an encrypted room that nobody here can read it, and leave it.

        An error is only logged.
        """
        try:
            body = {"msgtype": "m.notice", "body": UNREADABLE}
            await self._session.send(room_id, events.MESSAGE, body, transaction=f"unreadable{room_id}")
            await self._session.leave(room_id)
        except ChannelError as error:
            log.warning("matrix.encrypted_room", room=room_id, reason=str(error))

    async def _inbound(self, room_id: str, message: RoomMessage) -> Inbound:
        """Return a room's message as the host takes it, with the quoted message and the vote.

        Its file is represented by a text. Its `file_until_ms`, until when an answer waits for the file, is
        set if the file will be fetched: in a registered room, and if the file is not too large.
        """
        jid = address_of(room_id)
        quote = await self._quote(room_id, message) if message.answers else None
        async with self._context.database.reading() as tx:
            group = await groups.by_jid(tx, jid)
            stored = await messages.find(tx, jid, MessageId(message.event_id))
        limit_bytes, file_until_ms = self._context.attachment_bytes, None
        if stored is not None:
            # The turn's wait does not grow, however often the message is delivered again.
            file_until_ms = stored.file_until_ms
        elif group is not None and message.file is not None and message.file.size <= limit_bytes:
            seconds = attachments.wait_seconds(self._context, message.file)
            file_until_ms = self._context.clock.now_ms() + int(seconds * 1000)
        is_group = self._session.is_group(room_id)
        name = self._session.member_name(room_id, message.sender)
        vote = None
        if message.chosen is not None and quote is not None:
            vote = await self._vote(quote.message_id, message.chosen)
        return Inbound(
            chat_jid=jid,
            id=MessageId(message.event_id),
            sender=message.sender,
            sender_name=name,
            text=f"[reacted {message.emoji}]" if message.emoji else self._text_with_name(room_id, message),
            sent_ms=message.sent_ms,
            is_from_me=message.sender == self._login.owner,  # "me" is the owner, not Andy's account
            chat_name=self._session.room_name(room_id),
            channel=CHANNEL.name,
            is_group=is_group,
            is_direct=not is_group,
            people=self._session.count_members(room_id),
            quote=quote,
            is_call=self._login.user_id in message.mentions,
            edits=MessageId(message.edits) if message.edits else None,
            deletes=await self._redacted_message(jid, message.redacts) if message.redacts else None,
            # Whoever the sender of the redaction is, the homeserver has checked their right to it, as it does
            # for a moderator's.
            is_moderated=bool(message.redacts),
            ignored=REACTION if message.emoji else message.ignored or None,
            reaction=message.emoji or None,
            vote=vote,
            is_unreadable=message.is_unreadable,
            file=attachments.placeholder_of(
                message.file, will_be_fetched=file_until_ms is not None, limit_bytes=limit_bytes
            ),
            file_until_ms=file_until_ms,
            thread=message.thread or None,
        )

    async def _vote(self, poll_id: MessageId, answer_ids: tuple[str, ...]) -> tuple[int, ...] | None:
        """Return the indexes of the options that a vote chooses; None if it does not count.

        A vote does not count in a poll that is not Andy's own. One with an unknown option is invalid, by the
        specification; of several options in a poll with one choice, the first counts.
        """
        async with self._context.database.reading() as tx:
            poll = await polls.of_message(tx, poll_id)
        if poll is None:
            return None
        # Andy's own polls are sent with the index of each option as its id.
        index_by_id = {str(index): index for index in range(len(poll.options))}
        if not all(answer_id in index_by_id for answer_id in answer_ids):
            return None
        chosen_indexes = tuple(index_by_id[answer_id] for answer_id in answer_ids)
        return chosen_indexes if poll.is_multiple else chosen_indexes[:1]

    def _text_with_name(self, room_id: str, message: RoomMessage) -> str:
        """Return the text of a message, in which a leading mention of Andy becomes `@` and his name.

        People type this name to address Andy, so the rest of the host looks for it.
        """
        own_account = self._login.user_id
        if own_account not in message.mentions:
            return message.text
        # `@andy:server`, `andy`, the name in the room, and the names that links to the account show.
        names = {
            own_account,
            own_account[1:].partition(":")[0],
            self._session.member_name(room_id, own_account),
        }
        names |= {name for account, name in message.linked_accounts if account == own_account}
        return events.with_call(message.text, names, call_text=f"@{self._context.assistant}")

    async def _redacted_message(self, jid: ChatJid, event_id: str) -> MessageId:
        """Return the host's id of the redacted message whose event has the id `event_id`.

        Messages of Andy's own have another id in the host; for others it is the event's id.
        """
        async with self._context.database.reading() as tx:
            own_id = await messages.own_by_channel_id(tx, jid, MessageId(event_id))
        return own_id or MessageId(event_id)

    async def _quote(self, room_id: str, message: RoomMessage) -> Quote:
        """Return the message that a message answers: from the database, else from the homeserver.

        Its sender and text are empty if it is in neither. A message of Andy's own has the host's id. Its text
        is empty if the database has its Matrix id, since the host then knows the text.
        """
        jid, answered = address_of(room_id), MessageId(message.answers)
        async with self._context.database.reading() as tx:
            own_id = await messages.own_by_channel_id(tx, jid, answered)
            if own_id is not None:
                return Quote(message_id=own_id, sender=self._context.assistant, text="")
            stored = await messages.find(tx, jid, answered)
        if stored is not None:
            return Quote(message_id=answered, sender=stored.sender_name, text=stored.text)
        event = await self._session.event(room_id, message.answers)
        quoted = events.read_event(event) if event else None
        if event is None or quoted is None:
            return Quote(message_id=answered, sender="", text="")
        if quoted.sender == self._login.user_id and (own_id := MessageId(events.host_id_of(event))):
            # Its event's id is not stored yet, as when the homeserver's answer to the send was lost.
            return Quote(message_id=own_id, sender=self._context.assistant, text=quoted.text)
        return Quote(
            message_id=answered, sender=self._session.member_name(room_id, quoted.sender), text=quoted.text
        )

    # Its file

    async def _fetch_and_deliver(self, inbound: Inbound, file: MatrixFile) -> None:
        """Fetch the file of a message, and deliver the message again with it.

        After the last file that is being fetched, the position in the stream of events is stored.
        """
        try:
            fetched = await self._fetch_file(inbound, file)
            complete = replace(inbound, file=fetched.text, spoken=fetched.spoken, file_until_ms=None)
            await hand_in(self._receive, complete, cursor=None)
        finally:
            task = asyncio.current_task()
            assert task is not None
            self._fetching.discard(task)
        if not self._fetching:
            await self._store_position()

    async def _fetch_file(self, inbound: Inbound, file: MatrixFile) -> attachments.FetchedFile:
        """Fetch a message's file into its group's folder, and transcribe a voice note; never raise an error.

        The text of the result says where the file is stored, or that it could not be fetched.
        """
        download_path = Path(self._context.home, FOLDER, f"in-{secrets.token_hex(8)}")
        try:
            async with self._context.database.reading() as tx:
                group = await groups.by_jid(tx, inbound.chat_jid)
            if group is None:
                return attachments.fetch_failed(file)
            limit_bytes, seconds = self._context.attachment_bytes, attachments.fetch_seconds(file)
            # The limit on concurrent downloads excludes later work: a voice note may wait long for its
            # transcription.
            async with self._download_slots:
                await self._session.download(file, download_path, limit_bytes=limit_bytes, seconds=seconds)
            return await attachments.store(
                self._context, file, group, download_path, chat=inbound.chat_jid, sent_ms=inbound.sent_ms
            )
        except Exception as error:  # noqa: BLE001 - one file costs no connection, whatever is wrong with it
            log.warning("matrix.file_not_fetched", message=inbound.id, reason=repr(error)[:200])
            return attachments.fetch_failed(file)
        finally:
            await asyncio.to_thread(download_path.unlink, missing_ok=True)
