"""Run one login: turn the library's events into lines for the host, and the host's requests into calls.

The library runs event handlers concurrently and drops their exceptions. So the handlers only put events into
a queue. One task takes the events from it in order; one that it fails to handle is logged and counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import sqlite3
import time
from base64 import b64decode
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.channels.whatsapp import addresses, convert, message_text
from orchestrator.channels.whatsapp.addresses import Address
from orchestrator.channels.whatsapp.contacts import Contacts, jid_of
from orchestrator.channels.whatsapp.convert import IgnoredEvent, OwnAccount, Vote
from orchestrator.channels.whatsapp.protocol import (
    BridgeResponse,
    DownloadRequest,
    FromBridge,
    FromHost,
    GroupsReport,
    MessageAcknowledged,
    React,
    Read,
    Receipt,
    SeenGroup,
    SendRequest,
    SetAsideAcknowledged,
    SetAsideReport,
    State,
    StateReport,
    SyncGroups,
    Typing,
    TypingRequest,
    Withdraw,
)
from orchestrator.channels.whatsapp.sending import Sender
from orchestrator.channels.whatsapp.spool import Spool

if TYPE_CHECKING:
    from neonize.aioze.client import NewAClient
    from neonize.proto.Neonize_pb2 import Message as MessageEvent
    from neonize.proto.Neonize_pb2 import UndecryptableMessage as UndecryptableEvent

log = logging.getLogger(__name__)

Emit = Callable[[FromBridge], None]

CALL_SECONDS = 60.0
"""Seconds that a call of the library may take."""
MAX_DOWNLOADS = 8
"""Downloads that may run at a time. A hanging call never frees its thread, and other calls need some too."""
_FILE_GONE_ERRORS = ("status code 403", "status code 404", "status code 410")
"""Texts in the library's errors for files that WhatsApp no longer has."""
MAX_OPTIONS = 50
"""Options of a vote that are passed on; a poll of WhatsApp has a dozen at most."""
VOTE_SECONDS = 10.0
"""Seconds that decrypting a vote may take; later events wait meanwhile."""
UNREADABLE_SECONDS = 60.0
"""Seconds to wait until a message that could not be decrypted is sent again; then it is reported as lost."""
MAX_UNREADABLE = 1_000
"""Messages that are waited for at a time; further ones that cannot be decrypted are dropped."""
SPOOL_PAUSE_SECONDS = 5.0
"""Seconds between two tries to store an event while the spool cannot be written."""
RECEIPT_EVERY_SECONDS = 10.0
"""Seconds between two reports of receipts to the host."""
STOP_SECONDS = 5.0
"""Seconds that the library may take to disconnect."""
NOT_CONNECTED = "WhatsApp is not connected"


class NeonizeSession:
    """Passes a client's events to the host and the host's requests to the client."""

    def __init__(
        self,
        client: NewAClient,
        spool: Spool,
        emit: Emit,
        *,
        own: Address,
        assistant: str = "",
        has_own_number: bool = False,
    ) -> None:
        """Set up the session and subscribe to the client's events; `run` connects.

        Args:
            client: the library's client with the login.
            spool: stores messages until the host has acknowledged them.
            emit: queues a line for the host.
            own: the account's address.
            assistant: the assistant's name.
            has_own_number: whether the account is the assistant's own, and not a person's.
        """
        self._client = client
        self._spool = spool
        self._emit = emit
        self._has_own_number = has_own_number
        self._me = OwnAccount(
            phone=own.user, own_name=assistant if has_own_number else "", assistant=assistant
        )
        self._people = Contacts(client)
        self._sender = Sender(client, spool, self._people, own=own)
        self._events: asyncio.Queue[tuple[str, Any]] = asyncio.Queue()
        self._slow_calls: asyncio.Queue[Callable[[], Awaitable[None]]] = asyncio.Queue()
        """Calls of the library that no event should wait for."""
        self._downloads: set[asyncio.Task[bytes]] = set()
        self._unreadable: dict[str, asyncio.TimerHandle] = {}
        """The timers of messages that could not be decrypted and have not come again yet, by message id."""
        self._is_connected = False
        self._is_silent = False
        """Whether the connection was reported as broken because it does not answer."""
        self._last_receipt_seconds = 0.0
        """The time of the last report of receipts, by the monotonic clock."""
        self.dropped: Counter[str] = Counter()
        """The number of ignored events, by reason."""
        self.failed = 0
        """The number of events that could not be handled."""
        self._subscribe()

    def _subscribe(self) -> None:
        """Make the library put each event that this session handles into its queue, with a name.

        The event called `message` is handled by the method `_on_message`, and so on.
        """
        from neonize.aioze import events
        from neonize.proto.Neonize_pb2 import UndecryptableMessage

        for kind, name in {
            events.MessageEv: "message",
            events.ConnectedEv: "connected",
            events.DisconnectedEv: "disconnected",
            events.LoggedOutEv: "logged_out",
            events.TemporaryBanEv: "banned",
            events.StreamReplacedEv: "replaced",
            events.ClientOutdatedEv: "outdated",
            events.ConnectFailureEv: "connect_failure",
            events.StreamErrorEv: "stream_error",
            events.KeepAliveTimeoutEv: "silence",
            events.KeepAliveRestoredEv: "silence_over",
            UndecryptableMessage: "unreadable",
            events.ReceiptEv: "receipt",
            events.JoinedGroupEv: "joined_group",
            events.GroupInfoEv: "group_changed",
            events.ChatPresenceEv: "typing",
        }.items():
            self._client.event(kind)(self._queue_handler(name))

    def _queue_handler(self, name: str) -> Callable[[Any, Any], Awaitable[None]]:
        """Return a handler of the library's events that only puts the event into the queue under `name`."""

        async def put(_: Any, event: Any) -> None:
            """Queue an event of the library. The first argument is the client."""
            self._events.put_nowait((name, event))

        return put

    async def run(self) -> None:
        """Deliver the messages that the host has not acknowledged, connect, and return when the client ends.

        Stored messages that cannot be read are reported, and do not prevent the connection.
        Errors of the library are raised unchanged, inside an `ExceptionGroup`.
        """
        stored = self._spool.unacknowledged()
        for delivered in stored.readable:
            self._emit(delivered)
        if stored.set_aside:
            self._emit(SetAsideReport(numbers=stored.set_aside))
        async with asyncio.TaskGroup() as tasks:
            own_tasks = [
                tasks.create_task(self._handle_events(), name="whatsapp:events"),
                tasks.create_task(self._run_slow_calls(), name="whatsapp:slow-calls"),
            ]
            self._emit(StateReport(state="starting"))
            # The library returns a task that ends with the connection.
            await (await self._client.connect())
            for task in own_tasks:
                task.cancel()

    async def _handle_events(self) -> None:
        """Handle the queued events in order until cancelled.

        While the spool cannot be written, such as on a full disk, the next event waits: WhatsApp counts a
        message as delivered, and does not send it again. An event that fails otherwise is logged and counted.
        """
        while True:
            name, event = await self._events.get()
            # No event reports that the disk has room again.
            while not await self._handle_event(name, event):  # noqa: ASYNC110
                await asyncio.sleep(SPOOL_PAUSE_SECONDS)

    async def _handle_event(self, name: str, event: Any) -> bool:
        """Handle an event; return False if the spool cannot be written, so that it is to be handled again."""
        try:
            await getattr(self, f"_on_{name}")(event)
        except sqlite3.OperationalError as error:
            log.warning("an event waits, since it cannot be stored: %s (%s)", name, error)
            return False
        except Exception:
            self.failed += 1
            log.exception("an event could not be handled: %s (%d so far)", name, self.failed)
        return True

    async def _run_slow_calls(self) -> None:
        """Run the queued calls of the library, one after another, until cancelled.

        They may take long, so they are not run with the events: no message waits for them. A call that
        fails or takes too long is logged.
        """
        while True:
            call = await self._slow_calls.get()
            try:
                async with asyncio.timeout(CALL_SECONDS):
                    await call()
            except Exception as error:  # noqa: BLE001 - none of these calls is needed; most are made again later
                log.warning("what could wait was not done: %s", _error_text(error))

    # Events of the library

    async def _on_message(self, event: MessageEvent) -> None:
        """Store a message until the host has acknowledged it, and pass it to the host.

        Before that, store what the message shows about people and its chat. A message that the host does not
        need is only counted and logged.
        """
        # The message may be one that could not be decrypted before, and that its sender has sent again.
        timer = self._unreadable.pop(event.Info.ID, None)
        if timer is not None:
            timer.cancel()
        self._people.learn(convert.pairs_of(event))
        await self._people.look_up(convert.people_in(event))
        if not event.Info.MessageSource.IsFromMe:
            self._people.learn_name(convert.sender_of(event), event.Info.Pushname)
        self._learn_chat(event)
        vote = await self._read_vote(event)
        message = convert.convert(event, people=self._people.directory, me=self._me, vote=vote)
        if isinstance(message, IgnoredEvent):
            self.dropped[message.reason] += 1
            log.info("a message was dropped: %s", message.reason)
            return
        self._emit(self._spool.add(message))

    def _learn_chat(self, event: MessageEvent) -> None:
        """Store whether the chat of an event addresses its members by LID (WhatsApp's opaque numbers).

        Also store after what time messages of the chat disappear.
        """
        chat = convert.chat_of(event)
        if chat is None:
            return
        chat_address = str(self._people.directory.resolved(chat))
        self._people.learn_addressing(chat_address, addresses.of(event.Info.MessageSource.Sender))
        seconds = convert.timer_of(event)
        if seconds is not None:
            self._spool.note_timer(chat_address, seconds)

    async def _on_unreadable(self, event: UndecryptableEvent) -> None:
        """Start a timer for a message that could not be decrypted; `_on_lost` follows when it ends.

        Until then the message may come again, since the library asks the sender's device for it. Messages
        that people are not shown, and those beyond `MAX_UNREADABLE`, get no timer: they are not reported as
        lost.
        """
        if event.DecryptFailMode == event.DECRYPT_FAIL_HIDE or len(self._unreadable) >= MAX_UNREADABLE:
            return
        if event.Info.ID not in self._unreadable:
            self._unreadable[event.Info.ID] = asyncio.get_running_loop().call_later(
                UNREADABLE_SECONDS, self._events.put_nowait, ("lost", event)
            )

    async def _on_lost(self, event: UndecryptableEvent) -> None:
        """Deliver a message without its text, because its sender's device has not sent it again in time."""
        # Without an entry, the message came at the last moment, and `_on_message` has removed the timer.
        timer = self._unreadable.pop(event.Info.ID, None)
        if timer is None:
            return
        message = convert.unreadable(event, people=self._people.directory)
        if isinstance(message, IgnoredEvent):
            self.dropped[message.reason] += 1
            return
        try:
            self._emit(self._spool.add(message))
        except sqlite3.OperationalError:
            # `_handle_events` calls this again until the spool can be written; without the entry, that would
            # deliver nothing.
            self._unreadable[event.Info.ID] = timer
            raise

    async def _read_vote(self, event: MessageEvent) -> Vote | None:
        """Return the decrypted vote in a message, or None if it is no vote.

        If the vote cannot be decrypted, or its poll is not known, the returned vote lacks the options. If the
        message creates a poll, its question and options are stored for later votes.
        """
        message = message_text.unwrapped(event.Message)
        poll = message_text.poll_of(message)
        if poll is not None:
            self._spool.note_poll(event.Info.ID, poll.name, [option.optionName for option in poll.options])
        if not message.HasField("pollUpdateMessage"):
            return None
        poll_id = message.pollUpdateMessage.pollCreationMessageKey.ID
        question_and_options = self._spool.question_and_options(poll_id)
        try:
            async with asyncio.timeout(VOTE_SECONDS):
                vote = await self._client.decrypt_poll_vote(event)
        except Exception as error:  # noqa: BLE001 - the library raises anything; the vote is reported without options
            log.warning("a vote could not be read: %s", error)
            return Vote(question=question_and_options[0] if question_and_options else "")
        hashes = tuple(option_hash.hex() for option_hash in vote.selectedOptions[:MAX_OPTIONS])
        if not question_and_options:
            # The poll may be one of the account itself that `Sender` has not recorded yet. The host knows its
            # options.
            return Vote(hashes=hashes)
        chosen = message_text.chosen_options(question_and_options[1:], vote.selectedOptions)
        return Vote(question=question_and_options[0], chosen=chosen, hashes=hashes)

    async def _on_connected(self, _: Any) -> None:
        """Report the connection to the host, and queue calls that show the presence and report all groups.

        Also store the account's LID, WhatsApp's opaque number of it.
        """
        self._is_connected, self._is_silent = True, False
        me = self._client.me
        lid = addresses.of(me.LID) if me is not None else None
        self._me = replace(self._me, lid=lid.user if lid else "")
        if lid is not None:
            # The chat with oneself may appear under either address.
            self._people.learn({lid.user: self._me.phone})
        self._emit(StateReport(state="connected", jid=f"{self._me.phone}@{addresses.PHONE}"))
        self._slow_calls.put_nowait(self._show_presence)
        self._slow_calls.put_nowait(self._report_all_groups)

    async def _on_disconnected(self, _: Any) -> None:
        """Report that the connection broke."""
        self._report_down("disconnected", "the connection broke")

    async def _on_logged_out(self, event: Any) -> None:
        """Report that WhatsApp ended the login, with its reason."""
        self._report_down("logged_out", _reason(event, "Reason"))

    async def _on_banned(self, event: Any) -> None:
        """Report that the account is banned, and until when."""
        # Bounded to 30 years, as the number comes from the network and could overflow.
        ban_seconds = min(max(event.Expire, 0), 10**9)
        until_ms = int((time.time() + ban_seconds) * 1000)
        self._report_down("banned", _reason(event, "Code"), until_ms=until_ms)

    async def _on_replaced(self, _: Any) -> None:
        """Report that another program uses the same login."""
        self._report_down("replaced", "the same login is in use elsewhere")

    async def _on_outdated(self, _: Any) -> None:
        """Report that WhatsApp refuses this version of the library."""
        self._report_down("outdated", "WhatsApp refuses this version of the library")

    async def _on_connect_failure(self, event: Any) -> None:
        """Report that WhatsApp refused the connection, with its reason."""
        self._report_down(
            "disconnected", f"refused: {_reason(event, 'Reason')} {event.Message[:100]}".strip()
        )

    async def _on_stream_error(self, event: Any) -> None:
        """Log an error of the stream, after which the library reconnects by itself."""
        log.warning("WhatsApp ended the stream: %s", event.Code[:40])

    async def _on_silence(self, _: Any) -> None:
        """Report a connection that does not answer as broken.

        If it does not answer for long, the host ends this process and starts another.
        """
        if self._is_connected:
            self._report_down("disconnected", "WhatsApp does not answer any more")
            self._is_silent = True

    async def _on_silence_over(self, _: Any) -> None:
        """Report that the connection answers again, if it was reported as broken because it did not."""
        if self._is_silent:
            self._is_silent, self._is_connected = False, True
            self._emit(StateReport(state="connected", jid=f"{self._me.phone}@{addresses.PHONE}"))

    def _report_down(self, state: State, reason: str, *, until_ms: int = 0) -> None:
        """Note that there is no connection, and report it to the host.

        The report has this `state` and this `reason`. `until_ms` is the end of a ban in epoch milliseconds; 0
        for other states.
        """
        self._is_connected = self._is_silent = False
        self._emit(StateReport(state=state, reason=reason, until_ms=until_ms))

    async def _on_receipt(self, event: Any) -> None:
        """Note which sent messages a device has received, and report the time to the host.

        The host is sent at most one report in `RECEIPT_EVERY_SECONDS`. Receipts that do not prove that a
        message arrived are ignored.
        """
        if event.Type not in _arrival_types():
            return
        self._sender.note_receipts(list(event.MessageIDs))
        if time.monotonic() - self._last_receipt_seconds > RECEIPT_EVERY_SECONDS:
            self._last_receipt_seconds = time.monotonic()
            self._emit(Receipt(at_ms=int(time.time() * 1000)))

    async def _on_typing(self, event: Any) -> None:
        """Report to the host the chat in which somebody else started to type."""
        chat = convert.chat_typed_in(event)
        if chat is not None:
            self._emit(Typing(chat=str(self._people.directory.resolved(chat))))

    async def _on_joined_group(self, event: Any) -> None:
        """Report to the host a group that the account was added to."""
        self._report_groups([event.GroupInfo])

    async def _on_group_changed(self, event: Any) -> None:
        """Report to the host a group that changed, or that the account is no longer in.

        The latter is so if the account is among those who left, or if the group was deleted. For a changed
        group, its present members are fetched first, by a queued call.
        """
        leavers = [address for jid in event.Leave if (address := addresses.of(jid)) is not None]
        if any(self._me.is_me(address) for address in leavers) or event.HasField("Delete"):
            group = addresses.of(event.JID)
            self._emit(GroupsReport(groups=(), left=(str(group),) if group is not None else ()))
            return

        async def report_group() -> None:
            """Fetch the group's present members, and report it."""
            self._report_groups([await self._client.get_group_info(event.JID)])

        self._slow_calls.put_nowait(report_group)

    async def _show_presence(self) -> None:
        """Show the account to others as available, if it is the assistant's own; else as unavailable."""
        from neonize.utils.enum import Presence

        # An "available" device silences notifications on the account's phone. If that is the owner's phone,
        # it must go on ringing, so only an account of the assistant's own is shown as available.
        await self._client.send_presence(Presence.AVAILABLE if self._has_own_number else Presence.UNAVAILABLE)

    async def _report_all_groups(self) -> None:
        """Fetch all groups of the account, and report them to the host."""
        self._report_groups(list(await self._client.get_joined_groups()), is_all=True)

    def _report_groups(self, infos: list[Any], *, is_all: bool = False) -> None:
        """Report groups with their names and members to the host.

        Store what `infos`, the library's descriptions of the groups, show besides: phone numbers of members,
        the seconds after which messages disappear (0: never), and whether a group addresses its members by
        LID (WhatsApp's opaque numbers). `is_all` says that the account is in no other group, so that the host
        notices from which it was removed.
        """
        for info in infos:
            self._people.learn(convert.pairs_of_group(info))
            timer = info.GroupEphemeral
            seconds = timer.DisappearingTimer if timer.IsEphemeral else 0
            self._spool.note_timer(f"{info.JID.User}@{info.JID.Server}", seconds)
            for member in info.Participants:
                self._people.learn_addressing(f"{info.JID.User}@{info.JID.Server}", addresses.of(member.JID))
        seen: list[SeenGroup] = [
            group for info in infos if (group := convert.seen_group(info, self._people.directory))
        ]
        self._emit(GroupsReport(groups=tuple(seen), is_all=is_all))

    # Requests of the host

    async def handle(self, request: FromHost) -> None:
        """Carry out a request of the host, and send the host the response, also when the library fails.

        An acknowledged message is deleted here. An acknowledgement gets no response.
        """
        if isinstance(request, SetAsideAcknowledged | MessageAcknowledged):
            try:
                self._note_acknowledged(request)
            except sqlite3.OperationalError as error:
                # On a full disk, for example. The next process delivers it again, which does no harm.
                log.warning("an acknowledgement could not be stored: %s", error)
            return
        try:
            response = await self._respond(request)
        except Exception as error:  # noqa: BLE001 - the library raises anything; the error becomes the response
            response = BridgeResponse(id=request.id, ok=False, code="down", text=_error_text(error))
        self._emit(response)

    def _note_acknowledged(self, acknowledgement: SetAsideAcknowledged | MessageAcknowledged) -> None:
        """Remove a message that the host needs no longer, or note that the owner knows of unreadable ones.

        The read receipt of a removed message, if it gets one, is queued; without a connection it is dropped.

        Raises `sqlite3.OperationalError` when the spool cannot be written.
        """
        if isinstance(acknowledgement, SetAsideAcknowledged):
            self._spool.note_reported(acknowledgement.numbers)
            return
        if acknowledgement.read is not None and self._is_connected:
            self._slow_calls.put_nowait(functools.partial(self._mark_read, acknowledgement.read))
        self._spool.remove(acknowledgement.n)

    async def _mark_read(self, read: Read) -> None:
        """Tell a message's sender by a receipt that it was read; do nothing if an address is invalid."""
        from neonize.utils.enum import ReceiptType

        chat, author = addresses.parse(read.chat), addresses.parse(read.author)
        if chat is None or author is None:
            return
        # A chat between two may itself be known by the LID of the other person.
        if chat.is_person:
            chat = await self._people.address_in_chat(read.chat, chat)
        author = await self._people.address_in_chat(read.chat, author)
        await self._client.mark_read(
            read.message, chat=jid_of(chat), sender=jid_of(author), receipt=ReceiptType.READ
        )

    async def _respond(
        self, request: SendRequest | React | Withdraw | TypingRequest | DownloadRequest | SyncGroups
    ) -> BridgeResponse:
        """Carry out a request of the host and return its response.

        Raises whatever the library raises, and `TimeoutError` if anything but a send takes too long.
        """
        # The library's Go code crashes when it is called before it is connected.
        if not self._is_connected:
            return BridgeResponse(id=request.id, ok=False, code="down", text=NOT_CONNECTED)
        # A send is not cut off: the library may be sending the message, whose id has to be stored afterwards.
        if isinstance(request, SendRequest):
            return await self._sender.send(request)
        async with asyncio.timeout(request.seconds if isinstance(request, DownloadRequest) else CALL_SECONDS):
            match request:
                case React():
                    return await self._sender.react(request)
                case Withdraw():
                    return await self._sender.withdraw(request)
                case TypingRequest():
                    await self._type(request)
                case DownloadRequest():
                    return await self._download(request)
                case SyncGroups():
                    await self._report_all_groups()
        return BridgeResponse(id=request.id)

    async def _type(self, request: TypingRequest) -> None:
        """Show or hide the typing sign in a chat; ignore an invalid address."""
        from neonize.utils.enum import ChatPresence, ChatPresenceMedia

        chat = addresses.parse(request.chat)
        if chat is not None:
            state = (
                ChatPresence.CHAT_PRESENCE_COMPOSING
                if request.is_typing
                else ChatPresence.CHAT_PRESENCE_PAUSED
            )
            await self._client.send_chat_presence(
                jid_of(chat), state, ChatPresenceMedia.CHAT_PRESENCE_MEDIA_TEXT
            )

    async def _download(self, request: DownloadRequest) -> BridgeResponse:
        """Fetch the file of a message into the path `request.to`, and return the response for the host.

        The response is "refused" if the file is gone or too large, and "down" (try again later) if too many
        files are being fetched: the library cannot stop fetching a file, so their number is limited. Other
        errors of the library are raised.
        """
        from neonize.proto.waE2E.WAWebProtobufsE2E_pb2 import Message

        if len(self._downloads) >= MAX_DOWNLOADS:
            return BridgeResponse(
                id=request.id, ok=False, code="down", text="too many files are being fetched"
            )
        fetching = asyncio.create_task(
            self._client.download_any(Message.FromString(b64decode(request.ref))), name="whatsapp:download"
        )
        self._downloads.add(fetching)
        fetching.add_done_callback(self._note_download_ended)
        try:
            body = await asyncio.shield(fetching)
        except Exception as error:
            if any(phrase in str(error) for phrase in _FILE_GONE_ERRORS):
                return BridgeResponse(id=request.id, ok=False, code="refused", text=str(error)[:300])
            raise
        if len(body) > request.limit:
            return BridgeResponse(id=request.id, ok=False, code="refused", text="it is larger than it said")
        await asyncio.to_thread(_write_new, Path(request.to), body)
        return BridgeResponse(id=request.id)

    def _note_download_ended(self, fetching: asyncio.Task[bytes]) -> None:
        """Remove an ended download from the running ones, so that another one can start."""
        self._downloads.discard(fetching)
        if not fetching.cancelled():
            fetching.exception()  # retrieved here, since nobody awaits the task after its request timed out

    async def stop(self) -> None:
        """Disconnect from WhatsApp; give up after `STOP_SECONDS`, because the library may hang."""
        if not self._is_connected:
            return
        self._is_connected = False
        with contextlib.suppress(Exception):
            async with asyncio.timeout(STOP_SECONDS):
                await self._client.stop()


@functools.cache
def _arrival_types() -> frozenset[int]:
    """Return the numbers of those types of receipts that prove that a message reached a device.

    Of the other types, a retry means that a device could not decrypt the message, and a server error that its
    file is gone. Further types are exchanged between devices and prove nothing.
    """
    from neonize.proto.Neonize_pb2 import Receipt as ReceiptEvent

    names = ("DELIVERED", "SENDER", "INACTIVE", "READ", "READ_SELF", "PLAYED", "PLAYED_SELF")
    return frozenset(ReceiptEvent.ReceiptType.Value(name) for name in names)


def _error_text(error: Exception) -> str:
    """Return an error's text as one line of at most 300 characters; a description if it has no text."""
    text = " ".join(str(error).split())[:300]
    if not text and isinstance(error, TimeoutError):
        return "it did not answer in time"
    return text or type(error).__name__


def _reason(event: Any, field: str) -> str:
    """Return the value of an event's enum `field` in words: `LOGGED_OUT` becomes "logged out".

    A value that the library does not know is returned as its number.
    """
    value = getattr(event, field)
    descriptor = event.DESCRIPTOR.fields_by_name[field].enum_type
    enum_value = descriptor.values_by_number.get(value) if descriptor is not None else None
    return (enum_value.name if enum_value else str(value)).lower().replace("_", " ")


def _write_new(path: Path, body: bytes) -> None:
    """Write `body` to a file that only its owner can read, and that must not exist yet. Blocks.

    Raises `OSError`, for an existing file as well.
    """
    with path.open("xb") as file:
        path.chmod(0o600)
        file.write(body)
