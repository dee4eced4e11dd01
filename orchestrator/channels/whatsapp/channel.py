"""The WhatsApp channel: one loop that keeps one login connected and reconnects after every failure.

The bridge is a separate process that speaks WhatsApp. The channel starts it, watches it, sends messages
through it, and starts a new one when it ends. `incoming` handles the messages that the bridge delivers.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import structlog

from orchestrator.base.supervision import reason_of
from orchestrator.base.tables import counted
from orchestrator.base.wakeups import Wakeup
from orchestrator.channels.context import ChannelContext
from orchestrator.channels.status import StatusFile
from orchestrator.channels.whatsapp import addresses, bridge_process, reconnect_policy
from orchestrator.channels.whatsapp.bridge_process import BridgeProcess
from orchestrator.channels.whatsapp.description import CHANNEL, LOGIN, MAX_TEXT_CHARS
from orchestrator.channels.whatsapp.incoming import MessageReader, MessageReceiver
from orchestrator.channels.whatsapp.markup import MAX_GROWTH, to_whatsapp, with_mention, with_prefix
from orchestrator.channels.whatsapp.neonize_database import Account, NeonizeDatabase
from orchestrator.channels.whatsapp.pairing import Pairing, PairingProgress
from orchestrator.channels.whatsapp.protocol import (
    Delivered,
    FromBridge,
    GroupsReport,
    QuotedMessage,
    React,
    Receipt,
    SendRequest,
    SetAsideAcknowledged,
    SetAsideReport,
    StateReport,
    SyncGroups,
    Typing,
    TypingRequest,
    Withdraw,
)
from orchestrator.channels.whatsapp.send_rate import SendRate, SendRateLimiter
from orchestrator.domain.errors import ChannelDown, ChannelError, ChannelRefused, SendRateFull
from orchestrator.domain.polls import Poll
from orchestrator.domain.protocols import Receive
from orchestrator.domain.values import Attachment, ChatJid, ChatMember, Message, MessageId
from orchestrator.groups import owner
from orchestrator.store.board import deliveries
from orchestrator.store.conversation import chats
from orchestrator.store.database import Tx
from orchestrator.store.groups import groups
from orchestrator.store.people import people

log = structlog.get_logger(__name__)

MAX_QUOTE_CHARS = 1_000
"""Characters of a quoted message that are sent with the reply to it; the rest is cut off."""
UNPAIRED_SECONDS = 5.0
"""Seconds between two checks whether somebody has paired. Short, because a check only reads one file."""
REACTION_RETRY_SECONDS = 10.0
"""Seconds after which a reaction is tried again when the send rate had no room for it."""
DAY_SECONDS = 24 * 3600.0
DAY_MS = int(DAY_SECONDS * 1000)
MAX_WITHDRAW_AGE_MS = 48 * 3_600_000
"""Age in milliseconds up to which a message of Andy's own is deleted for everybody.

WhatsApp's own limit is some hours longer.
"""
REMOVED_FROM_GROUP = (
    "⚠️ I was removed from the WhatsApp group '{name}', so nothing that waits for it can be sent. Add me to it"
    " again, or take it off my list: andy groups remove {folder}"
)

SET_ASIDE = (
    "⚠️ WhatsApp: {messages} that arrived earlier could not be passed on, because this version of Andy cannot"
    " read how they are stored. See your chats in WhatsApp for what came before Andy's last start. They are"
    " kept: if you went back to an earlier version, the later one passes them on."
)

Command = Callable[..., Sequence[str]]


class WhatsAppChannel:
    """Sends and receives through WhatsApp, by means of the bridge's process, which starts after pairing."""

    name = CHANNEL.name
    features = CHANNEL.features
    max_file_bytes = CHANNEL.max_file_bytes

    def __init__(
        self,
        context: ChannelContext,
        *,
        rate: SendRate | None = None,
        command: Command = bridge_process.command,
        chance: Callable[[], float] = random.random,
    ) -> None:
        """Set up the channel; nothing connects before `run`.

        Args:
            context: the clock, database, event bus and settings.
            rate: how many messages may be sent in what time; None for the defaults of `SendRate`.
            command: returns the command line that starts the bridge with a login's database.
            chance: returns a random number from [0, 1), which varies the lengths of waits.
        """
        self._context = context
        self._command = command
        self._chance = chance
        self._store = context.home / LOGIN
        self._login = NeonizeDatabase(self._store)
        self._status = StatusFile(context.home / CHANNEL.status_file)
        self.pairing = Pairing(self._store, clock=context.clock, command=command, on_change=self._on_pairing)
        self._reader = MessageReader(context, self._login)
        self._send_rate = SendRateLimiter(rate or SendRate(), clock=context.clock, chance=chance)
        self._prefix = "" if context.has_own_number else f"{context.assistant}: "
        self.max_text_chars: int | None = MAX_TEXT_CHARS - len(self._prefix) - MAX_GROWTH
        self.pairing_wakeup = Wakeup()
        """Wakes the loop when pairing is requested or proceeds, so that it checks the login at once."""
        self._removed_from: set[ChatJid] = set()
        """Registered groups from which the account was removed."""
        self._bridge: BridgeProcess | None = None
        self._is_connected = False
        self._receiver: MessageReceiver | None = None
        self._writes: asyncio.Queue[Callable[[], Awaitable[None]]] = asyncio.Queue()
        """The writes to database and status file that follow from the bridge's reports, in their order."""
        self._state_changed = asyncio.Event()
        self._last_state = StateReport(state="disconnected")
        """The last reported state of this bridge other than "starting" and "connected".

        It is the reason for the end when the bridge ends.
        """
        self._failures = 0
        """Connections in a row that failed."""

    def owns(self, jid: ChatJid) -> bool:
        """Return whether `jid` is an address of a WhatsApp chat in its usual form, without a device."""
        return CHANNEL.owns(jid)

    def status(self) -> dict[str, Any]:
        """Return the connection's state and its details, for `/status`."""
        return self._status.as_data()

    # The connection

    async def run(self, receive: Receive) -> None:
        """Stay connected until cancelled, and pass each message to `receive`.

        While no phone is paired, or WhatsApp has logged out or banned the account, this waits; it raises no
        error.
        """
        await self._status.load()
        while True:
            try:
                account = await asyncio.to_thread(self._login.account)
                if account is None:
                    await self._wait_for_pairing()
                    continue
                end = await self._run_bridge(account, receive)
            except Exception as error:
                log.exception("whatsapp.broke")
                # A pause ends early when another login is stored than the account's. Here perhaps none was
                # read, so without an account it lasts to its end.
                account, end = None, StateReport(state="disconnected", reason=reason_of(error))
            await self._pause(end, account)

    async def _wait_for_pairing(self) -> None:
        """Record that no phone is paired, and wait a moment; pair a phone if somebody has requested that.

        A recorded logout by WhatsApp stays recorded. The result of pairing is recorded in the status.
        """
        state = "logged_out" if self._status.current.state == "logged_out" else "unpaired"
        if self._status.current.state != state:
            await self._status.record(state=state, connected_since_ms=None, account="")
        await self.pairing_wakeup.wait(at_most_seconds=UNPAIRED_SECONDS)
        # Pairing runs only here, where no bridge runs, so that one login never has two sessions.
        if self.pairing.is_requested:
            progress = await self.pairing.run()
            now_ms = self._context.clock.now_ms()
            updated = self._status.current.after_pairing(failure=progress.failure, now_ms=now_ms)
            await self._status.record(**updated.model_dump(include={"last_pairing", "last_pairing_ms"}))

    def _on_pairing(self, progress: PairingProgress) -> None:
        """Log and publish how far the pairing with a phone has got, and wake the loop of `run`."""
        # Texts of other states say no more than the state, or have the phone number of the account.
        reason = progress.text if progress.state == "failed" else ""
        log.info("whatsapp.pairing", state=progress.state, reason=reason)
        self._context.bus.publish("channel.pairing", detail=f"whatsapp {progress.state}")
        self.pairing_wakeup.set()

    async def _run_bridge(self, account: Account, receive: Receive) -> StateReport:
        """Run a bridge process with the login of `account` until it ends; pass its messages to `receive`.

        Return the last state that it reported, which says why it ended; if that has no reason, a state with
        the exit code of the process.
        """
        self._last_state = StateReport(state="disconnected")
        account_options = ["--own", str(account.address)]
        name_options = ["--assistant", self._context.assistant]
        if self._context.has_own_number:
            name_options.append("--has-own-number")
        bridge = BridgeProcess(self._command(self._store, *account_options, *name_options), self._on_report)
        await self._status.record(state="connecting", account=account.number, next_try_ms=None)
        async with asyncio.TaskGroup() as tasks:
            self._receiver = MessageReceiver(
                tasks, bridge, receive, reader=self._reader, on_received=self._note_received
            )
            self._bridge = bridge
            process = tasks.create_task(bridge.run(), name="whatsapp:bridge")
            watchers = [
                tasks.create_task(self._end_if_down_too_long(process), name="whatsapp:watch"),
                tasks.create_task(self._sync_groups_daily(bridge), name="whatsapp:daily"),
                tasks.create_task(self._write_reports(), name="whatsapp:reports"),
            ]
            try:
                await asyncio.wait([process])
            finally:
                self._bridge, self._is_connected = None, False
            for task in watchers:
                task.cancel()
            self._receiver.cancel()
        log.debug("whatsapp.bridge_ended", stderr=list(bridge.stderr_tail)[-3:])
        return self._last_state if self._last_state.reason else bridge.exit_state()

    async def _end_if_down_too_long(self, process: asyncio.Task[int]) -> None:
        """Cancel `process` when the login ended in a `FINAL` state, or was not connected for too long.

        "Too long" is `START_SECONDS` at first and `GRACE_SECONDS` after a connection broke.
        """
        now = asyncio.get_running_loop().time
        # Only the loss of a connection sets a new deadline. Otherwise a bridge that reports failed attempts
        # again and again would never be ended.
        deadline = now() + reconnect_policy.START_SECONDS
        while self._last_state.state not in reconnect_policy.FINAL:
            self._state_changed.clear()
            was_connected = self._is_connected
            try:
                async with asyncio.timeout_at(None if was_connected else deadline):
                    await self._state_changed.wait()
            except TimeoutError:
                break
            if was_connected:
                deadline = now() + reconnect_policy.GRACE_SECONDS
        process.cancel()

    async def _pause(self, end: StateReport, account: Account | None) -> None:
        """Record how the connection ended, then wait before the next try, or until the login changes.

        `reconnect_policy` decides how long. `end` is the last reported state; `account` is the account that
        was logged in, or None if it is not known: then no change of the login is noticed.
        """
        self._failures += 1
        now_ms = self._context.clock.now_ms()
        advice = reconnect_policy.advice(end)
        seconds = reconnect_policy.wait_seconds_after(
            end, failures=self._failures, now_ms=now_ms, chance=self._chance()
        )
        self._record_end(end, advice=advice, next_try_ms=now_ms + int(seconds * 1000))
        await self._status.record()  # writes to the file what was changed in memory
        self._publish_state(end)
        # Waiting alone may not fix these states.
        is_grave = end.state in reconnect_policy.FINAL
        (log.error if is_grave else log.warning)(
            "whatsapp.down", state=end.state, advice=advice, pause_seconds=seconds
        )
        until_ms = self._context.clock.steady_ms() + seconds * 1000
        while (remaining_ms := until_ms - self._context.clock.steady_ms()) > 0:
            await self.pairing_wakeup.wait(at_most_seconds=min(remaining_ms / 1000, UNPAIRED_SECONDS))
            if await self._has_login_changed(account):
                self._publish_state(end)  # published again: subscribers see that pairing can start now
                return

    async def _has_login_changed(self, account: Account | None) -> bool:
        """Return whether the stored login is another than `account`, or was removed.

        Return False if `account` is None or the login cannot be read.
        """
        try:
            return account is not None and await asyncio.to_thread(self._login.account) != account
        except ChannelDown:
            return False

    async def _sync_groups_daily(self, bridge: BridgeProcess) -> None:
        """Ask the bridge once a day to report all groups of the account, until cancelled."""
        # The bridge reports groups when it connects and when one changes. This daily request catches up on
        # changes whose report was missed.
        while True:
            await asyncio.sleep(DAY_SECONDS)
            try:
                await bridge.request(lambda number: SyncGroups(id=number))
            except ChannelError as error:
                log.warning("whatsapp.groups_not_synced", reason=str(error))

    # Reports of the bridge

    def _on_report(self, report: FromBridge) -> None:
        """Handle a report of the bridge: a message, a state, groups, somebody who types, or a receipt.

        One kind of report says which stored messages were set aside because they cannot be read. A report of
        an unknown kind is only logged. Work that needs the database or a file is queued for `_write_reports`.
        """
        # Called from the loop that reads the bridge's output, so it must not wait: slow work is queued.
        match report:
            case Delivered():
                assert self._receiver is not None
                self._receiver.put(report)
            case SetAsideReport():
                self._writes.put_nowait(partial(self._notify_of_set_aside, report))
            case StateReport():
                self._on_state(report)
            case GroupsReport():
                self._writes.put_nowait(partial(self._store_groups, report))
            case Typing():
                self._context.on_typing(ChatJid(report.chat))
            case Receipt():
                self._writes.put_nowait(partial(self._status.record, last_receipt_ms=report.at_ms))
            case _:
                log.warning("whatsapp.unexpected_report", kind=report.kind)

    def _on_state(self, report: StateReport) -> None:
        """Update the channel's status by a state that the bridge reports, and publish the state.

        "starting" changes nothing in the status. Any state but this and "connected" is remembered, too, as
        the reason if the bridge then ends.
        """
        self._is_connected = report.state == "connected"
        # The status changes before the event is published, because subscribers read the status at once.
        if self._is_connected:
            self._failures = 0
            now_ms = self._context.clock.now_ms()
            self._status.change(state="connected", connected_since_ms=now_ms, advice="", next_try_ms=None)
            self._writes.put_nowait(self._on_connected)
        elif report.state in reconnect_policy.FINAL:
            # States that waiting alone may not fix, for which there is advice.
            self._last_state = report
            self._record_end(report, advice=reconnect_policy.advice(report))
            self._writes.put_nowait(self._status.record)
        elif report.state != "starting":
            self._last_state = report
            self._record_end(report)
            self._writes.put_nowait(self._status.record)
        log.info("whatsapp.state", state=report.state, reason=report.reason)
        self._publish_state(report)
        self._state_changed.set()

    def _record_end(self, end: StateReport, **changes: Any) -> None:
        """Change the status in memory to a connection that ended with the state `end`.

        `changes` are further fields of the status to set.
        """
        self._status.change(
            state=end.state,
            connected_since_ms=None,
            last_disconnect=end.reason,
            last_disconnect_ms=self._context.clock.now_ms(),
            last_error=end.reason,
            **changes,
        )

    def _publish_state(self, report: StateReport) -> None:
        """Publish the state of the connection for subscribers of the event bus."""
        self._context.bus.publish("channel.state", detail=f"whatsapp {report.state}", reason=report.reason)

    async def _write_reports(self) -> None:
        """Carry out the queued writes to database and status file in order, until cancelled.

        A write that fails is logged and skipped.
        """
        while True:
            write = await self._writes.get()
            try:
                await write()
            except Exception:
                log.exception("whatsapp.report_not_written")

    async def _on_connected(self) -> None:
        """Write the status of the new connection, and make the messages that waited for it due now."""
        now_ms = self._context.clock.now_ms()
        await self._status.record()
        # Otherwise each message that failed while WhatsApp was down would wait until its retry pause ends.
        # The patterns are of SQL's LIKE, and match all addresses of the channel.
        patterns = [f"%@{server}" for server in (addresses.GROUP, addresses.PHONE, addresses.LID)]
        await self._context.database.write(lambda tx: deliveries.hurry(tx, patterns, now_ms=now_ms))
        self._context.wake_outbox()

    def _note_received(self) -> None:
        """Record in memory that a message arrived now."""
        self._status.change(last_message_ms=self._context.clock.now_ms())

    async def _notify_of_set_aside(self, report: SetAsideReport) -> None:
        """Notify the owner of stored messages that cannot be read, and acknowledge that to the bridge.

        Without a main group nobody can be notified, so they stay unacknowledged, and the next bridge reports
        them again.
        """
        log.error("whatsapp.messages_set_aside", numbers=report.numbers)
        now_ms = self._context.clock.now_ms()
        text = SET_ASIDE.format(messages=counted(len(report.numbers), "message"))
        # The same report comes again if the bridge ends before the acknowledgement, so it is sent once a day.
        # Later the same numbers may mean other messages: a new database of the bridge counts from 1.
        about = f"set-aside:{report.numbers}:{now_ms // DAY_MS}"
        async with self._context.database.transaction() as tx:
            if not any(group.is_main for group in await groups.every(tx)):
                return
            await owner.notify(tx, text, about=about, now_ms=now_ms)
        self._context.wake_outbox()
        if self._bridge is not None:
            await self._bridge.notify(SetAsideAcknowledged(numbers=report.numbers))

    async def _store_groups(self, report: GroupsReport) -> None:
        """Store the groups that the bridge reports, with their members; publish how many they are.

        So a group is known before anyone writes in it. The owner is notified of registered groups from which
        the account was removed; the outbox is woken to send that.
        """
        async with self._context.database.transaction() as tx:
            for group in report.groups:
                jid = ChatJid(group.jid)
                await chats.upsert(tx, jid, name=group.name, channel=self.name, is_group=True, at_ms=None)
                members = [
                    ChatMember(jid=member.jid, name=member.name, is_admin=member.is_admin)
                    for member in group.members
                ]
                # Most reports repeat the stored members; then nothing more has to be stored.
                if await chats.replace_members(tx, jid, members):
                    await people.note_members(tx, jid, now_ms=self._context.clock.now_ms())
            await self._note_removals(tx, report)
        log.info("whatsapp.groups", count=len(report.groups), is_all=report.is_all)
        self._context.bus.publish("chats.seen", detail=f"{len(report.groups)} groups")
        self._context.wake_outbox()

    async def _note_removals(self, tx: Tx, report: GroupsReport) -> None:
        """Note from which registered WhatsApp groups the account was removed; notify the owner once of each.

        These are the groups in `report.left` and, if the report has all groups (`is_all`), the registered
        ones that it lacks. A group in `report.groups` is no longer noted, unless it is in `report.left` too.
        """
        member_of = {ChatJid(group.jid) for group in report.groups}
        removed_from = {ChatJid(jid) for jid in report.left}
        # A complete list without any group is more likely a fault of the connection than a removal from all
        # groups.
        if report.is_all and member_of:
            registered = (jid for group in await groups.every(tx) for jid in group.chats)
            removed_from |= {jid for jid in registered if addresses.is_group(jid)} - member_of
        self._removed_from -= member_of
        for jid in removed_from:
            registered_group = await groups.by_jid(tx, jid)
            if registered_group is None:
                continue
            self._removed_from.add(jid)
            # The stored members are removed too. If there were none, the owner was already notified of this
            # removal.
            if await chats.replace_members(tx, jid, []):
                text = REMOVED_FROM_GROUP.format(name=registered_group.name, folder=registered_group.folder)
                now_ms = self._context.clock.now_ms()
                await owner.notify(tx, text, about=f"left:{jid}:{now_ms}", now_ms=now_ms)

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
    ) -> None:
        """Send a message to the chat `jid`, after waiting as long as the send rate demands.

        Args:
            jid: the address of the chat.
            text: the text, with Markdown; for a file, its caption. A poll is sent with its question instead.
            message_id: the host's id of the message, the same at each attempt. It is hidden in the message,
                so that copies which an earlier process sent are found.
            attachment: the file to send.
            quote: the message that this one answers.
            mention: the person to mention; left out in a chat between two.
            thread: not used, since WhatsApp has no threads.
            poll: the poll to send.

        Raises:
            ChannelDown: it was not sent; it may work later.
            ChannelRefused: it was not sent, and never will be.
        """
        del thread
        self._connected()  # raises at once, instead of after the wait, if there is no connection
        if jid in self._removed_from:
            raise ChannelRefused("Andy is no member of this WhatsApp group any more: add him again.")
        await self._send_rate.wait_for_turn(jid)
        # The connection may have broken during the wait, so it is checked again.
        bridge = self._connected()
        # A chat between two needs no mention: there is only one other person.
        mention = mention if addresses.is_group(jid) else None
        # WhatsApp's ids of earlier attempts. If one of these has arrived, the bridge sends no second copy.
        earlier_ids = await asyncio.to_thread(self._login.ids_of, message_id)
        formatted = self._formatted(
            text if poll is None else poll.question, is_caption=attachment is not None, mention=mention
        )
        await bridge.request(
            lambda number: SendRequest(
                id=number,
                chat=jid,
                text=formatted,
                mark=message_id,
                earlier=earlier_ids,
                file=str(attachment.path) if attachment else "",
                file_name=attachment.name if attachment else "",
                mime=attachment.mime if attachment else "",
                options=poll.options if poll is not None else (),
                is_multiple=poll is not None and poll.is_multiple,
                quote=QuotedMessage(id=quote.id, author=quote.sender, text=quote.text[:MAX_QUOTE_CHARS])
                if quote
                else None,
                mention=mention.jid if mention else "",
            )
        )

    async def react(self, message: Message, sign: str) -> None:
        """Put the emoji `sign` under a message in place of the previous one; if empty, only remove that.

        Removing a reaction does not count for the send rate.

        Raises:
            ChannelDown: the emoji was not put there; it may work later. As `SendRateFull` it says that the
                send rate has room for messages only.
            ChannelRefused: the emoji was not put there, and never will be.
        """
        bridge = self._connected()
        if sign and not self._send_rate.take_spare():
            raise SendRateFull("Messages go first.", pause_seconds=REACTION_RETRY_SECONDS)
        await bridge.request(
            lambda number: React(
                id=number, chat=message.chat_jid, message=message.id, author=message.sender, sign=sign
            )
        )

    async def end_poll(self, message: Message) -> None:
        """Raise `ChannelRefused`: a WhatsApp poll cannot be closed."""
        del message
        raise ChannelRefused("WhatsApp ends no polls.")

    async def withdraw(self, message: Message) -> None:
        """Delete a message of Andy's own for everybody.

        Raises:
            ChannelDown: it was not deleted; it may work later.
            ChannelRefused: it is older than `MAX_WITHDRAW_AGE_MS`, or WhatsApp refuses to delete it.
        """
        if self._context.clock.now_ms() - message.sent_ms > MAX_WITHDRAW_AGE_MS:
            raise ChannelRefused("WhatsApp deletes no message that is older than two days.")
        # Each attempt to send it had an id of WhatsApp's own; the host's id of the message is its mark.
        known_ids = await asyncio.to_thread(self._login.ids_of, message.id)
        await self._connected().request(
            lambda number: Withdraw(id=number, chat=message.chat_jid, mark=message.id, messages=known_ids)
        )

    def _connected(self) -> BridgeProcess:
        """Return the process that is connected to WhatsApp. Raises `ChannelDown` when none is."""
        if self._bridge is None or not self._is_connected:
            status = self._status.current
            raise ChannelDown(status.advice or f"WhatsApp is {status.state}.")
        return self._bridge

    def _formatted(self, text: str, *, is_caption: bool, mention: ChatMember | None = None) -> str:
        """Return Markdown in WhatsApp's formatting, with the assistant's name before it.

        The name is left out if the account is the assistant's own, and in an empty caption. `is_caption` says
        that the text is the caption of a file. `mention` is the person to mention in the text, if any.
        """
        mentioned_address = addresses.parse(mention.jid) if mention else None
        if mention is not None and mentioned_address is not None:
            text = with_mention(text, mention.name, mentioned_address.user)
        return with_prefix(to_whatsapp(text), self._prefix, is_caption=is_caption)

    async def set_typing(self, jid: ChatJid, *, is_typing: bool) -> None:
        """Show or hide the typing sign in a chat; do nothing while WhatsApp is not connected."""
        bridge = self._bridge
        if bridge is None or not self._is_connected:
            return
        try:
            await bridge.request(lambda number: TypingRequest(id=number, chat=jid, is_typing=is_typing))
        except ChannelError as error:
            log.debug("whatsapp.typing_failed", reason=str(error))
