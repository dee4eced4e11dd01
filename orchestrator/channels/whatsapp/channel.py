"""The channel: one login at a time, held by one loop, whatever happens to it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import structlog

from orchestrator.base.wakeups import Wakeup
from orchestrator.channels.context import ChannelContext
from orchestrator.channels.whatsapp import addresses, bridge_process, reconnect_policy, status
from orchestrator.channels.whatsapp.bridge_process import BridgeProcess
from orchestrator.channels.whatsapp.incoming import Incoming
from orchestrator.channels.whatsapp.lanes import ChatLanes
from orchestrator.channels.whatsapp.markup import MAX_GROWTH, to_whatsapp, with_mention, with_prefix
from orchestrator.channels.whatsapp.neonize_database import Account, NeonizeDatabase
from orchestrator.channels.whatsapp.pairing import Pairing, PairingProgress
from orchestrator.channels.whatsapp.protocol import (
    BridgeMessage,
    Delivered,
    FromBridge,
    GroupsReport,
    MessageAcknowledged,
    QuotedMessage,
    React,
    Receipt,
    SendRequest,
    StateReport,
    SyncGroups,
    TypingRequest,
)
from orchestrator.channels.whatsapp.send_rate import SendRate, SendRateLimiter
from orchestrator.channels.whatsapp.status import ChannelStatus
from orchestrator.domain.errors import BadRequest, ChannelDown, ChannelError, StoreError
from orchestrator.domain.protocols import Feature, Receive
from orchestrator.domain.values import Attachment, ChatJid, ChatMember, Inbound, Message, MessageId
from orchestrator.store import chat_members, chats, outbox

log = structlog.get_logger(__name__)

MAX_TEXT_CHARS = 4_000
"""With the assistant's name in front."""
MAX_QUOTE_CHARS = 1_000
"""So much of a message that is quoted is shown."""
MAX_WAIT_MS = 20_000
"""A message whose turn is further away is asked for again later."""
UNPAIRED_SECONDS = 5.0
"""How often a login is looked for where there is none: one look at one file."""
DAY_SECONDS = 24 * 3600.0
TAKE_TRIES = 5
TAKE_PAUSE_SECONDS = 5.0

Command = Callable[..., Sequence[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _HandedIn:
    """A message that needs no further try; there is no `inbound` of one that the host need not know."""

    inbound: Inbound | None


class WhatsAppChannel:
    """WhatsApp, by a process of its own that this starts once someone has paired."""

    name = "whatsapp"
    features = frozenset(Feature)

    def __init__(
        self,
        context: ChannelContext,
        *,
        pace: SendRate | None = None,
        command: Command = bridge_process.command,
        chance: Callable[[], float] = random.random,
    ) -> None:
        """`command` tells how the bridge is started on a store."""
        self._context = context
        self._command = command
        self._chance = chance
        self._store = context.home / "store" / "whatsapp.db"
        self._condition_file = context.home / "data" / "whatsapp" / "condition.json"
        self._ledger = NeonizeDatabase(self._store)
        self.pairing = Pairing(self._store, clock=context.clock, command=command, on_change=self._on_pairing)
        self._incoming = Incoming(context, self._ledger)
        self._pacing = SendRateLimiter(pace or SendRate())
        self._prefix = "" if context.has_own_number else f"{context.assistant}: "
        self.max_text_chars: int | None = MAX_TEXT_CHARS - len(self._prefix) - MAX_GROWTH
        self.paired = Wakeup()
        """Given when someone has paired or wants to: the login is looked for at once."""
        self._condition = ChannelStatus()
        self._bridge: BridgeProcess | None = None
        self._is_connected = False
        self._lanes: ChatLanes | None = None
        self._notes: asyncio.Queue[Callable[[], Awaitable[None]]] = asyncio.Queue()
        self._told = asyncio.Event()
        self._end = StateReport(state="disconnected")
        self._failures = 0

    def owns(self, jid: ChatJid) -> bool:
        return str(addresses.parse(jid)) == jid

    def condition(self) -> dict[str, Any]:
        return self._condition.model_dump(exclude_defaults=True, exclude={"state"}) | {
            "state": self._condition.state
        }

    # The connection

    async def run(self, receive: Receive) -> None:
        """Hold the login until cancelled. Nobody paired, logged out and banned are states, no errors."""
        kept = await asyncio.to_thread(status.read, self._condition_file)
        self._condition = kept.model_copy(update={"state": _before(kept.state), "connected_since_ms": None})
        while True:
            try:
                account = await asyncio.to_thread(self._ledger.account)
                if account is None:
                    await self._until_paired()
                    continue
                end = await self._live(account, receive)
            except Exception as error:
                log.exception("whatsapp.broke")
                account, end = None, StateReport(state="disconnected", reason=f"{error}"[:300])
            await self._rest(end, account)

    async def _until_paired(self) -> None:
        state = "logged_out" if self._condition.state == "logged_out" else "unpaired"
        if self._condition.state != state:
            await self._note(state=state, connected_since_ms=None, account="")
        await self.paired.wait(at_most_seconds=UNPAIRED_SECONDS)
        # Here and nowhere else: there is never a second session on one login.
        if self.pairing.is_asked:
            told = await self.pairing.run()
            kept = self._condition.after_pairing(failure=told.failure, now_ms=self._context.clock.now_ms())
            await self._note(**kept.model_dump(include={"last_pairing", "last_pairing_ms"}))

    def _on_pairing(self, told: PairingProgress) -> None:
        log.info("whatsapp.pairing", state=told.state, reason=told.text if told.state == "failed" else "")
        self._context.bus.publish("channel.pairing", detail=f"whatsapp {told.state}")
        self.paired.give()

    async def _live(self, account: Account, receive: Receive) -> StateReport:
        """One life of the bridge; gives the last word on how it ended."""
        self._end = StateReport(state="disconnected")
        own = ["--own", str(account.address)]
        name = ["--name", self._context.assistant] if self._context.has_own_number else []
        bridge = BridgeProcess(self._command(self._store, *own, *name), self._hear)
        await self._note(state="connecting", account=account.number, next_try_ms=None)
        async with asyncio.TaskGroup() as tasks:
            self._lanes = ChatLanes(tasks, partial(self._take, bridge, receive))
            self._bridge = bridge
            life = tasks.create_task(bridge.run(), name="whatsapp:life")
            beside = [
                tasks.create_task(self._watch(life), name="whatsapp:watch"),
                tasks.create_task(self._look_daily(bridge), name="whatsapp:daily"),
                tasks.create_task(self._do_notes(), name="whatsapp:notes"),
            ]
            try:
                await asyncio.wait([life])
            finally:
                self._bridge, self._is_connected = None, False
            for task in beside:
                task.cancel()
            self._lanes.cancel()
        log.debug("whatsapp.bridge_ended", words=list(bridge.last_words)[-3:])
        return self._end if self._end.reason else bridge.obituary()

    async def _watch(self, life: asyncio.Task[int]) -> None:
        """End a life that will not mend itself."""
        grace = reconnect_policy.START_SECONDS
        while self._end.state not in reconnect_policy.FINAL:
            self._told.clear()
            try:
                async with asyncio.timeout(None if self._is_connected else grace):
                    await self._told.wait()
            except TimeoutError:
                break
            grace = reconnect_policy.GRACE_SECONDS
        life.cancel()

    async def _rest(self, end: StateReport, account: Account | None) -> None:
        """Leave WhatsApp alone for as long as this end asks for."""
        self._failures += 1
        now_ms = self._context.clock.now_ms()
        told = reconnect_policy.advice(end)
        seconds = reconnect_policy.rest_seconds(
            end, failures=self._failures, now_ms=now_ms, chance=self._chance()
        )
        await self._note(
            state=end.state,
            connected_since_ms=None,
            last_disconnect=end.reason,
            last_disconnect_ms=now_ms,
            last_error=end.reason,
            advice=told.text,
            next_try_ms=now_ms + int(seconds * 1000),
        )
        (log.error if told.is_grave else log.warning)(
            "whatsapp.down", state=end.state, advice=told.text, pause_seconds=seconds
        )
        until_ms = self._context.clock.steady_ms() + seconds * 1000
        while (left := until_ms - self._context.clock.steady_ms()) > 0:
            await self.paired.wait(at_most_seconds=min(left / 1000, UNPAIRED_SECONDS))
            if await self._is_paired_anew(account):
                return

    async def _is_paired_anew(self, account: Account | None) -> bool:
        """Whether another login is there than the one that ended, or none any more."""
        try:
            return account is not None and await asyncio.to_thread(self._ledger.account) != account
        except ChannelDown:
            return False

    async def _look_daily(self, bridge: BridgeProcess) -> None:
        """The bridge tells groups when it connects and when one changes; once a day all are looked at."""
        while True:
            await asyncio.sleep(DAY_SECONDS)
            try:
                await bridge.ask(lambda number: SyncGroups(id=number))
            except ChannelError as error:
                log.warning("whatsapp.groups_not_told", reason=str(error))

    # What the bridge tells

    def _hear(self, said: FromBridge) -> None:
        match said:
            case Delivered():
                assert self._lanes is not None
                self._lanes.put(said)
            case StateReport():
                self._on_state(said)
            case GroupsReport():
                self._notes.put_nowait(partial(self._note_groups, said))
            case Receipt():
                self._notes.put_nowait(partial(self._note, last_receipt_ms=said.at_ms))
            case _:
                log.warning("whatsapp.unasked", kind=said.kind)

    def _on_state(self, told: StateReport) -> None:
        self._is_connected = told.state == "connected"
        now_ms = self._context.clock.now_ms()
        if self._is_connected:
            self._failures = 0
            self._notes.put_nowait(self._on_connected)
        elif told.state != "starting":
            self._end = told
            self._notes.put_nowait(
                partial(
                    self._note,
                    state=told.state,
                    connected_since_ms=None,
                    last_disconnect=told.reason,
                    last_disconnect_ms=now_ms,
                    last_error=told.reason,
                )
            )
        log.info("whatsapp.state", state=told.state, reason=told.reason)
        self._context.bus.publish("channel.state", detail=f"whatsapp {told.state}", reason=told.reason)
        self._told.set()

    async def _on_connected(self) -> None:
        now_ms = self._context.clock.now_ms()
        await self._note(state="connected", connected_since_ms=now_ms, advice="", next_try_ms=None)
        endings = [f"@{server}" for server in (addresses.GROUP, addresses.PHONE, addresses.LID)]
        async with self._context.database.transaction() as tx:
            await outbox.hurry(tx, endings, now_ms=now_ms)
        self._context.wake_outbox()

    async def _do_notes(self) -> None:
        while True:
            note = await self._notes.get()
            try:
                await note()
            except Exception:
                log.exception("whatsapp.not_noted")

    async def _note(self, **changes: Any) -> None:
        self._condition = self._condition.model_copy(update=changes)
        try:
            await asyncio.to_thread(status.write, self._condition_file, self._condition)
        except OSError as error:
            log.warning("whatsapp.condition_not_kept", reason=error.strerror)

    async def _note_groups(self, told: GroupsReport) -> None:
        """Groups are known before anyone writes in them."""
        async with self._context.database.transaction() as tx:
            for group in told.groups:
                jid = ChatJid(group.jid)
                await chats.see(tx, jid, name=group.name, channel=self.name, is_group=True, at_ms=None)
                people = [
                    ChatMember(jid=one.jid, name=one.name, is_admin=one.is_admin) for one in group.members
                ]
                await chat_members.replace(tx, jid, people)
        log.info("whatsapp.groups", count=len(told.groups), is_all=told.is_all)
        self._context.bus.publish("chats.seen", detail=f"{len(told.groups)} groups")

    # Coming in

    async def _take(self, bridge: BridgeProcess, receive: Receive, delivered: Delivered) -> None:
        """Hand a message in and say so; one that cannot be comes again with the next login.

        A message whose file is to come is let go when the file is there: until then a crash brings it again.
        """
        heard = delivered.message
        handed = await self._hand_in(bridge, receive, heard, partial(self._incoming.read, heard))
        if handed is None:
            return
        if handed.inbound is not None and handed.inbound.file_until_ms is not None:
            assert self._lanes is not None
            self._lanes.start_beside(
                self._take_file(bridge, receive, delivered, handed.inbound), name=f"whatsapp:file:{heard.id}"
            )
        else:
            await self._let_go(bridge, delivered)

    async def _take_file(
        self, bridge: BridgeProcess, receive: Receive, delivered: Delivered, inbound: Inbound
    ) -> None:
        """Hand a message in again, with its file."""
        heard = delivered.message
        fetch = partial(self._incoming.completed, heard, inbound, bridge)
        handed = await self._hand_in(bridge, receive, heard, fetch)
        if handed is not None:
            await self._let_go(bridge, delivered)

    async def _hand_in(
        self,
        bridge: BridgeProcess,
        receive: Receive,
        heard: BridgeMessage,
        read: Callable[[], Awaitable[Inbound | None]],
    ) -> _HandedIn | None:
        """Read a message and hand it in, as often as it takes; None when that did not come to an end."""
        tries = 0
        while tries < TAKE_TRIES and self._bridge is bridge:
            try:
                inbound = await read()
                if inbound is not None:
                    await receive(inbound)
                return _HandedIn(inbound=inbound)
            except BadRequest as refused:
                log.warning("whatsapp.message_refused", message=heard.id, reason=str(refused))
                return _HandedIn(inbound=None)
            except (ChannelDown, StoreError) as error:
                # Not the message's fault: its chat waits with it.
                log.warning("whatsapp.message_waits", message=heard.id, reason=str(error))
                await asyncio.sleep(TAKE_PAUSE_SECONDS)
            except Exception:
                tries += 1
                log.exception("whatsapp.message_not_taken", message=heard.id, attempt=tries)
                await asyncio.sleep(TAKE_PAUSE_SECONDS)
        return None

    async def _let_go(self, bridge: BridgeProcess, delivered: Delivered) -> None:
        now_ms = self._context.clock.now_ms()
        self._condition = self._condition.model_copy(update={"last_message_ms": now_ms})
        try:
            await bridge.tell(
                MessageAcknowledged(n=delivered.n, read=await self._incoming.read_receipt(delivered.message))
            )
        except ChannelDown:
            log.info("whatsapp.not_told_taken", message=delivered.message.id)

    # Going out

    async def send(
        self,
        jid: ChatJid,
        text: str,
        message_id: MessageId,
        *,
        attachment: Attachment | None = None,
        quote: Message | None = None,
        mention: ChatMember | None = None,
    ) -> None:
        """See `Channel`. It waits its turn, so that WhatsApp takes the account for no spammer."""
        self._connected()
        await self._wait_turn(jid)
        bridge = self._connected()
        mention = mention if addresses.is_group(jid) else None
        earlier = await asyncio.to_thread(self._ledger.ids_of, message_id)
        shown = self._shown(text, is_caption=attachment is not None, mention=mention)
        await bridge.ask(
            lambda number: SendRequest(
                id=number,
                chat=jid,
                text=shown,
                mark=message_id,
                earlier=earlier,
                file=str(attachment.path) if attachment else "",
                file_name=attachment.name if attachment else "",
                mime=attachment.mime if attachment else "",
                quote=QuotedMessage(id=quote.id, author=quote.sender, text=quote.text[:MAX_QUOTE_CHARS])
                if quote
                else None,
                mention=mention.jid if mention else "",
            )
        )

    async def react(self, message: Message, sign: str) -> None:
        """See `Channel`. It takes no message its turn."""
        bridge, now_ms = self._bridge, self._context.clock.steady_ms()
        if bridge is None or not self._is_connected or not addresses.is_group(message.chat_jid):
            return
        if sign and not self._pacing.take_spare(now_ms=now_ms):
            return
        try:
            await bridge.ask(
                lambda number: React(
                    id=number, chat=message.chat_jid, message=message.id, author=message.sender, sign=sign
                )
            )
        except ChannelError as error:
            log.debug("whatsapp.reaction_failed", reason=str(error))

    def _connected(self) -> BridgeProcess:
        if self._bridge is None or not self._is_connected:
            raise ChannelDown(self._condition.advice or f"WhatsApp is {self._condition.state}.")
        return self._bridge

    async def _wait_turn(self, jid: ChatJid) -> None:
        now_ms = self._context.clock.steady_ms()
        if self._pacing.wait_ms(jid, now_ms=now_ms) > MAX_WAIT_MS:
            raise ChannelDown(
                "Too many messages at once: WhatsApp bans accounts for that, so this one waits."
            )
        wait_ms = self._pacing.book(jid, now_ms=now_ms, chance=self._chance())
        await asyncio.sleep(wait_ms / 1000)

    def _shown(self, text: str, *, is_caption: bool, mention: ChatMember | None = None) -> str:
        person = addresses.parse(mention.jid) if mention else None
        if mention is not None and person is not None:
            text = with_mention(text, mention.name, person.user)
        return with_prefix(to_whatsapp(text), self._prefix, is_caption=is_caption)

    async def set_typing(self, jid: ChatJid, *, is_typing: bool) -> None:
        bridge = self._bridge
        if bridge is None or not self._is_connected:
            return
        try:
            await bridge.ask(lambda number: TypingRequest(id=number, chat=jid, is_typing=is_typing))
        except ChannelError as error:
            log.debug("whatsapp.typing_failed", reason=str(error))


def _before(state: str) -> str:
    """What is left of the state of an earlier host: only that it was logged out."""
    return state if state == "logged_out" else "starting"
