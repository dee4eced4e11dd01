"""What every channel keeps to. A new messenger is run through it by one more entry in `HARNESSES`."""

from __future__ import annotations

import asyncio
import inspect
import os
import stat
import tarfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Self

import pytest

from orchestrator.backup.make import back_up
from orchestrator.base.clock import SystemClock
from orchestrator.base.event_bus import EventBus
from orchestrator.base.wakeups import Wakeups
from orchestrator.channels import discovery, registry
from orchestrator.channels.context import ChannelContext
from orchestrator.channels.local.channel import LocalChannel, written
from orchestrator.channels.telegram.description import MAX_FILE_BYTES
from orchestrator.channels.whatsapp.channel import WhatsAppChannel
from orchestrator.channels.whatsapp.send_rate import SendRate
from orchestrator.containers import mounts
from orchestrator.containers.run_orders import RunOrders
from orchestrator.domain.errors import ChannelDown
from orchestrator.domain.home import Home
from orchestrator.domain.protocols import Channel, Feature, Receive
from orchestrator.domain.settings import Settings
from orchestrator.domain.values import (
    Attachment,
    ChatJid,
    ChatMember,
    Folder,
    Group,
    Inbound,
    Message,
    MessageId,
    Seq,
)
from orchestrator.groups import registration
from orchestrator.groups.host_context import HostContext
from orchestrator.inbound.intake import Intake
from orchestrator.outbound.delivery import Delivery
from orchestrator.proxies.feature import ContainerProxies
from orchestrator.proxies.model.credentials import CredentialSource
from orchestrator.store import outbox
from orchestrator.store.database import Database
from tests.processes.synapse import UPLOAD_BYTES, Synapse
from tests.support.runtimes import ProcessBench, a_spec, all_of
from tests.support.runtimes import running as running_container
from tests.support.skips import ON_PURPOSE
from tests.support.store_harness import a_group
from tests.support.until import until


class LocalHarness:
    """Chats of this machine: what is sent is shown by being stored; who writes does so through the door."""

    jid = ChatJid("local:family")
    has_outside = False

    def __init__(self, context: ChannelContext, monkeypatch: pytest.MonkeyPatch) -> None:
        del context, monkeypatch
        self.channel = LocalChannel()
        self._heard: list[Inbound] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    @property
    def is_connected(self) -> bool:
        return True

    def write(self, text: str, heard: list[Inbound]) -> None:
        heard.append(written(self.jid, text, sender="jane", now_ms=1))

    def shown(self) -> list[str]:
        return []


class WhatsAppHarness:
    """WhatsApp with its real process and a phone at its other end."""

    has_outside = True

    def __init__(self, context: ChannelContext, monkeypatch: pytest.MonkeyPatch) -> None:
        pytest.importorskip("tests.support.whatsapp_library", exc_type=ImportError)
        from tests.doubles import whatsapp_events as wa
        from tests.doubles.whatsapp_phone import Phone

        self._wa, self._numbers = wa, iter(range(1_000))
        self._ids: dict[str, str] = {}
        self.jid = ChatJid(f"{wa.FAMILY}@g.us")
        self.phone = Phone(context.home)
        for name, value in self.phone.environment.items():
            monkeypatch.setenv(name, value)
        self.channel = WhatsAppChannel(context, rate=SendRate(chat_gap_ms=0, burst=1_000, every_ms=0))

    def __enter__(self) -> Self:
        self.phone.__enter__()
        self.phone.pair()
        return self

    def __exit__(self, *_: object) -> None:
        self.phone.__exit__()

    @property
    def is_connected(self) -> bool:
        return self.channel.status()["state"] == "connected" and self.phone.is_connected

    def write(self, text: str, heard: list[Inbound]) -> None:
        del heard
        self._ids[text] = f"3A{next(self._numbers)}"
        self.phone.write(self._wa.heard(text, message_id=self._ids[text], at_ms=now_ms()))

    def write_with_file(self, text: str, body: bytes, *, announced: int) -> None:
        from neonize.proto.waE2E.WAWebProtobufsE2E_pb2 import DocumentMessage
        from neonize.proto.waE2E.WAWebProtobufsE2E_pb2 import Message as Sent

        file = DocumentMessage(
            mediaKey=b"k", directPath="/v", mimetype="application/pdf", fileLength=announced, caption=text
        )
        self.phone.files[b"k"] = body
        sent = self._wa.heard(Sent(documentMessage=file), message_id=f"3A{next(self._numbers)}")
        self.phone.write(sent)

    def change(self, text: str, new: str) -> None:
        edit = self._wa.edit(self._ids[text], self._wa.text(new))
        self.phone.write(self._wa.heard(edit, message_id=f"3A{next(self._numbers)}"))

    def take_back(self, text: str) -> None:
        deletion = self._wa.deletion(self._ids[text])
        self.phone.write(self._wa.heard(deletion, message_id=f"3A{next(self._numbers)}"))

    def answer(self, text: str, words: str) -> None:
        quoted = {"stanzaID": self._ids[text], "participant": f"{self._wa.JANE}@s.whatsapp.net"}
        answer = self._wa.text(words, **quoted)
        self.phone.write(self._wa.heard(answer, message_id=f"3A{next(self._numbers)}"))

    def secrets(self) -> list[str]:
        # The login is a database of the library, with keys in it: this is one that any of its files may hold.
        return [self._wa.ANDY_LID]

    def shown(self) -> list[str]:
        return [one.removeprefix("Andy: ") for one in self.phone.texts()]


class MatrixHarness:
    """Matrix with a real homeserver, in a room where somebody else has a client of their own."""

    has_outside = True

    def __init__(self, context: ChannelContext, monkeypatch: pytest.MonkeyPatch, homeserver: Synapse) -> None:
        del monkeypatch
        pytest.importorskip("nio")
        from tests.support.matrix_home import MatrixHome, address_of

        self._harness = MatrixHome(
            context.home, context.database, homeserver, attachment_bytes=context.attachment_bytes
        )
        self._room = self._harness.owner.make_room(self._harness.andy, name="Family")
        homeserver.post(f"join/{self._room}", token=self._harness.token)
        self.jid = address_of(self._room)
        self.channel = self._harness.new_channel()
        self._ids: dict[str, str] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    @property
    def is_connected(self) -> bool:
        return self.channel._session is not None

    def write(self, text: str, heard: list[Inbound]) -> None:
        del heard
        self._ids[text] = self._harness.owner.write(self._room, text)

    def write_with_file(self, text: str, body: bytes, *, announced: int) -> None:
        uri = self._harness.owner.upload(body, "application/pdf")
        file = {"msgtype": "m.file", "filename": "big.pdf", "url": uri, "info": {"size": announced}}
        self._harness.owner.write(self._room, text, **file)

    @property
    def takes_bytes(self) -> int:
        return UPLOAD_BYTES

    def change(self, text: str, new: str) -> None:
        relation = {"rel_type": "m.replace", "event_id": self._ids[text]}
        more = {"m.new_content": {"msgtype": "m.text", "body": new}, "m.relates_to": relation}
        self._harness.owner.write(self._room, f"* {new}", **more)

    def take_back(self, text: str) -> None:
        self._harness.owner.redact(self._room, self._ids[text])

    def answer(self, text: str, words: str) -> None:
        relation = {"m.relates_to": {"m.in_reply_to": {"event_id": self._ids[text]}}}
        self._harness.owner.write(self._room, words, **relation)

    def secrets(self) -> list[str]:
        return [self._harness.token]

    def shown(self) -> list[str]:
        return self._harness.owner.texts(self._room, self._harness.andy)


class TelegramHarness:
    """Telegram with the real library and a Bot API of this machine, in a group where somebody writes."""

    has_outside = True
    jid = ChatJid("tg:-100200")
    _chat = -100200

    def __init__(self, context: ChannelContext, monkeypatch: pytest.MonkeyPatch) -> None:
        del monkeypatch
        pytest.importorskip("telegram")
        from orchestrator.channels.telegram import login
        from orchestrator.channels.telegram.channel import TelegramChannel
        from tests.doubles.telegram_api import BOT, TOKEN, ScriptedBotApi

        self.api = ScriptedBotApi()
        username = str(BOT["username"])
        made = login.TelegramLogin(
            token=TOKEN, bot_id=123456, username=username, owner=1, server=self.api.url
        )
        login.write(context.home, made)
        self.channel = TelegramChannel(context, chance=lambda: 0.0, poll_seconds=1)
        self._ids: dict[str, int] = {}

    def __enter__(self) -> Self:
        self.api.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.api.__exit__(None, None, None)

    @property
    def is_connected(self) -> bool:
        return self.channel._bot is not None

    def write(self, text: str, heard: list[Inbound]) -> None:
        del heard
        self._ids[text] = self.api.write(self._chat, text, date=now_ms() // 1000)

    def write_with_file(self, text: str, body: bytes, *, announced: int) -> None:
        self.api.send_file(self._chat, "document", body, caption=text, file_size=announced)

    @property
    def takes_bytes(self) -> int:
        return MAX_FILE_BYTES

    def change(self, text: str, new: str) -> None:
        self.api.edit(self._chat, self._ids[text], new)

    def answer(self, text: str, words: str) -> None:
        answered = {
            "message_id": self._ids[text],
            "date": 1_780_000_000,
            "chat": {"id": self._chat, "type": "supergroup"},
            "text": text,
        }
        self.api.write(self._chat, words, reply_to_message=answered)

    def secrets(self) -> list[str]:
        from tests.doubles.telegram_api import TOKEN

        return [TOKEN, TOKEN.partition(":")[2]]

    def shown(self) -> list[str]:
        return self.api.shown(self._chat)


HARNESSES: dict[str, Any] = {
    "local": LocalHarness,
    "whatsapp": WhatsAppHarness,
    "matrix": MatrixHarness,
    "telegram": TelegramHarness,
}


def now_ms() -> int:
    return int(time.time() * 1000)


class LaterClock(SystemClock):
    """The clock of a host that may have slept: `slept_ms` ahead of whoever wrote meanwhile."""

    slept_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.slept_ms


@pytest.fixture
async def context(tmp_path: Path, database: Database) -> ChannelContext:
    clock = LaterClock()
    (tmp_path / "groups").mkdir()
    return ChannelContext(
        home=tmp_path,
        database=database,
        clock=clock,
        bus=EventBus(clock),
        assistant="Andy",
        has_own_number=False,
        attachment_bytes=1_000,
        wake_outbox=lambda: None,
    )


NEEDS = {"matrix": ("homeserver",)}
"""What a harness is given beside the context."""
WHOLE = {"matrix"}
"""What takes long enough to be left to `make check`."""


@pytest.fixture(
    params=[pytest.param(name, marks=[pytest.mark.host] * (name in WHOLE)) for name in sorted(HARNESSES)]
)
async def harness(
    request: pytest.FixtureRequest,
    context: ChannelContext,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[Any]:
    needed = [request.getfixturevalue(name) for name in NEEDS.get(request.param, ())]
    with HARNESSES[request.param](context, monkeypatch, *needed) as made:
        async with context.database.transaction() as tx:
            await registration.register(tx, a_group(jid=made.jid))
        yield made


@asynccontextmanager
async def running(harness: Any, heard: list[Inbound]) -> AsyncIterator[Channel]:
    async def receive(message: Inbound, *, cursor: str | None = None) -> None:
        heard.append(message)

    async with asyncio.TaskGroup() as tasks:
        loop = tasks.create_task(harness.channel.run(receive))
        try:
            await until(lambda: harness.is_connected, "connected")
            yield harness.channel
        finally:
            loop.cancel()
    if harness.has_outside:
        await until(lambda: not harness.is_connected, "gone: what is written now is for its next life")


def test_every_channel_that_comes_with_andy_is_tried_here():
    assert sorted(discovery.names()) == sorted(HARNESSES)


def test_it_is_what_its_description_says(harness):
    description = discovery.find(harness.channel.name)
    assert harness.channel.features == description.features
    assert harness.channel.max_file_bytes == description.max_file_bytes
    assert (harness.channel.max_text_chars or 0) <= (description.max_text_chars or 0)
    assert description.owns(harness.jid)
    assert set(description.about) == {"en", "ko"}
    assert all(set(words) == {"en", "ko"} for words in description.advice.values())
    assert all(path.startswith(("data/", "store/")) for path in description.secret_files)


def test_its_methods_are_those_of_the_protocol(harness):
    for name in ("owns", "run", "send", "set_typing", "react", "status"):
        wanted = inspect.signature(getattr(Channel, name)).parameters
        assert list(inspect.signature(getattr(type(harness.channel), name)).parameters) == list(wanted), name
    assert harness.channel.max_text_chars is None or harness.channel.max_text_chars > 100


@pytest.mark.parametrize("odd", ["", "@", "x", "local", "g.us", "a@b", "\0", "x@g.us@local:"])
def test_it_owns_its_own_addresses_and_raises_at_none(harness, odd):
    assert harness.channel.owns(harness.jid)
    harness.channel.owns(ChatJid(odd))
    others = {
        "local": "120@g.us",
        "whatsapp": "local:family",
        "matrix": "!room:server",
        "telegram": "tg:family",
    }
    assert not harness.channel.owns(ChatJid(others[harness.channel.name]))


def test_no_two_channels_own_one_address(context):
    channels = registry.build(context, discovery.names())
    for jid in (
        "local:main",
        "local:x@g.us",
        "1203@g.us",
        "49@s.whatsapp.net",
        "1@lid",
        "matrix:!r:s",
        "matrix:!r",
        "foreign:x",
        "tg:-100123",
    ):
        assert sum(one.owns(ChatJid(jid)) for one in channels) <= 1, jid


async def test_the_same_message_id_again_shows_no_second_message(harness):
    async with running(harness, []) as channel:
        await channel.send(harness.jid, "hello", MessageId("3EB0AA"))
        await channel.send(harness.jid, "hello", MessageId("3EB0AA"))
        await channel.send(harness.jid, "other", MessageId("3EB0BB"))

    if harness.has_outside:
        assert harness.shown() == ["hello", "other"]


async def test_it_takes_a_text_of_the_length_it_names(harness):
    text = "한" * (harness.channel.max_text_chars or 10_000)
    async with running(harness, []) as channel:
        await channel.send(harness.jid, text, MessageId("3EB0AA"))

    if harness.has_outside:
        assert harness.shown() == [text]


async def test_it_takes_a_file_with_and_without_words(harness, tmp_path):
    (tmp_path / "f").write_bytes(b"body")
    file = Attachment(path=tmp_path / "f", name="a.pdf", mime="application/pdf")
    async with running(harness, []) as channel:
        await channel.send(harness.jid, "words", MessageId("3EB0AA"), attachment=file)
        await channel.send(harness.jid, "", MessageId("3EB0BB"), attachment=file)

    if harness.has_outside:
        assert len(harness.shown()) == 2


async def test_what_is_written_comes_in_with_its_chat_and_sender(harness):
    heard: list[Inbound] = []
    async with running(harness, heard):
        harness.write("hello", heard)
        await until(lambda: heard, "the message")

    (message,) = heard
    assert (message.chat_jid, message.text) == (harness.jid, "hello")
    assert message.sender
    assert message.sender_name
    assert message.id


async def test_typing_never_raises_connected_or_not(harness):
    await harness.channel.set_typing(harness.jid, is_typing=True)
    async with running(harness, []) as channel:
        await channel.set_typing(harness.jid, is_typing=True)
        await channel.set_typing(ChatJid("nobody@g.us"), is_typing=False)


async def test_what_it_says_it_can_show_it_takes_connected_or_not(harness):
    question = a_stored_message(harness.jid)
    person = ChatMember(jid=question.sender, name="Jane")
    await harness.channel.react(question, "👀")
    async with running(harness, []) as channel:
        assert channel.features <= frozenset(Feature)
        await channel.react(question, "👀")
        await channel.react(question, "")
        await channel.send(harness.jid, "to Jane", MessageId("3EB0AA"), quote=question, mention=person)
        await channel.send(harness.jid, "plain", MessageId("3EB0BB"))

    if harness.has_outside:
        assert len(harness.shown()) == 2
        assert harness.shown()[1] == "plain"


def a_stored_message(jid: ChatJid) -> Message:
    return Message(
        seq=Seq(1),
        chat_jid=jid,
        id=MessageId("3AAA"),
        sender="4915100000001@s.whatsapp.net",
        sender_name="Jane",
        text="hello",
        sent_ms=1,
        received_ms=1,
        is_from_me=False,
        is_bot_message=False,
        quote=None,
        turn_id=None,
        ignored_reason=None,
    )


async def test_before_it_runs_it_says_that_it_is_down_or_delivers(harness):
    if harness.has_outside:
        with pytest.raises(ChannelDown):
            await harness.channel.send(harness.jid, "x", MessageId("3EB0AA"))
    else:
        await harness.channel.send(harness.jid, "x", MessageId("3EB0AA"))


async def test_it_ends_when_it_is_cancelled_and_can_be_run_again(harness):
    for number in range(2):
        heard: list[Inbound] = []
        async with running(harness, heard):
            harness.write(f"m{number}", heard)
            await until(lambda heard=heard: heard, "the message")


def test_its_condition_can_be_told_as_json_at_any_time(harness):
    import json

    json.dumps(harness.channel.status())


# In a host: with the intake, the database and the outbox


@pytest.fixture
def outside(harness: Any) -> Any:
    """A channel with somebody at its other end."""
    if not harness.has_outside:
        pytest.skip(f"{ON_PURPOSE}chats of this machine have no other end: clients read and write the store")
    return harness


class ContractHost:
    """What of a host stands around a channel: what comes in is stored, what is in the outbox is sent."""

    def __init__(self, context: ChannelContext, harness: Any) -> None:
        self.context, self.harness = context, harness
        self.wakeups = Wakeups()
        self.intake = Intake(
            context.database, clock=context.clock, name="Andy", wakeups=self.wakeups, bus=context.bus
        )

    async def rows(self, sql: str) -> list[dict[str, Any]]:
        async with self.context.database.reading() as tx:
            return [dict(row) for row in await tx.execute_fetchall(sql)]

    async def texts(self) -> list[str]:
        rows = await self.rows("SELECT content FROM messages WHERE is_bot_message = 0 ORDER BY seq")
        return [row["content"] for row in rows]

    async def until_heard(self, *texts: str) -> None:
        async def holds() -> bool:
            await asyncio.sleep(0.02)
            return await self.texts() == list(texts)

        await until(holds, f"heard {texts}")

    async def post(self, *texts: str, **more: Any) -> None:
        async with self.context.database.transaction() as tx:
            for text in texts:
                await outbox.add(
                    tx,
                    chat_jid=self.harness.jid,
                    text=text,
                    dedupe_key=text[:40],
                    now_ms=self.context.clock.now_ms(),
                    **more,
                )
        self.wakeups.outbox.set()

    async def until_settled(self) -> None:
        async def holds() -> bool:
            await asyncio.sleep(0.02)
            return not await self.rows("SELECT 1 FROM outbox WHERE state IN ('pending', 'sending')")

        await until(holds, "nothing waits")

    @asynccontextmanager
    async def living(
        self, *, receive: Receive | None = None, kind: type[Delivery] = Delivery
    ) -> AsyncIterator[None]:
        channel = self.harness.channel
        async with asyncio.TaskGroup() as tasks:
            delivery = kind(
                self.context.database,
                clock=self.context.clock,
                name="Andy",
                channel_for=lambda jid: channel if channel.owns(jid) else None,
                tasks=tasks,
                wakeup=self.wakeups.outbox,
                bus=self.context.bus,
            )
            connection = tasks.create_task(channel.run(receive or self.intake.receive), name="channel")
            try:
                await until(lambda: self.harness.is_connected, "connected")
                sending = tasks.create_task(delivery.run(), name="delivery")
                yield
                sending.cancel()
            finally:
                connection.cancel()
        await until(lambda: not self.harness.is_connected, "gone")


@pytest.fixture
def host(context: ChannelContext, outside: Any) -> ContractHost:
    return ContractHost(context, outside)


async def in_thread(call: Any, *given: Any) -> None:
    """Have somebody at the other end do something, while the host goes on."""
    await asyncio.to_thread(call, *given)


async def test_all_of_a_cut_of_a_minute_comes_in_once_in_its_order_and_is_answered(host, outside):
    async with host.living():
        await in_thread(outside.write, "before", [])
        await host.until_heard("before")
    missed = [f"@Andy missed {number}" for number in range(30)]
    for text in missed:
        await in_thread(outside.write, text, [])
    host.context.clock.slept_ms = 61_000
    async with host.living():
        await in_thread(outside.write, "after", [])
        await host.until_heard("before", *missed, "after")
        found = await host.rows("SELECT * FROM messages WHERE content LIKE '%missed%' ORDER BY seq")
        (turn,) = {row["turn_id"] for row in found}
        assert all(row["received_ms"] - row["sent_ms"] >= 60_000 for row in found)
        await host.post("all thirty", turn_id=turn)
        await host.until_settled()
    assert outside.shown()[-1:] == ["all thirty"]


async def test_what_is_not_stored_yet_comes_again_and_is_one_row(host, outside):
    refused = []

    async def refuse_first(message: Inbound, *, cursor: str | None = None) -> None:
        refused.append(message.text)
        await asyncio.Event().wait()

    async with host.living(receive=refuse_first):
        await in_thread(outside.write, "first", [])
        await until(lambda: refused, "it is handed in, and the host dies before it is stored")
    assert await host.texts() == []
    async with host.living():
        await host.until_heard("first")
        await in_thread(outside.write, "second", [])
        await host.until_heard("first", "second")
    async with host.living():
        await in_thread(outside.write, "third", [])
        await host.until_heard("first", "second", "third")


async def test_nothing_of_a_chat_is_stored_before_it_is_registered(host, outside):
    async with host.context.database.transaction() as tx:
        await registration.unregister(tx, Folder("family"), now_ms=1)
    async with host.living():
        await in_thread(outside.write, "early", [])

        async def is_known() -> bool:
            await asyncio.sleep(0.02)
            found = await host.rows("SELECT channel, last_message_ms FROM chats")
            return any(one["channel"] == outside.channel.name and one["last_message_ms"] for one in found)

        await until(is_known, "the chat is known, with its channel")
        async with host.context.database.transaction() as tx:
            await registration.register(tx, a_group(jid=outside.jid))
        await in_thread(outside.write, "late", [])
        await host.until_heard("late")


async def test_edits_deletions_and_replies_come_in_as_such(host, outside):
    async with host.living():
        for text in ("one", "two"):
            await in_thread(outside.write, text, [])
        await host.until_heard("one", "two")
        await in_thread(outside.answer, "one", "an answer")
        await host.until_heard("one", "two", "an answer")
        (row,) = await host.rows("SELECT * FROM messages WHERE content = 'an answer'")
        assert row["quoted_content"] == "one"
        if Feature.EDITS in outside.channel.features:
            await in_thread(outside.change, "one", "changed")
            await host.until_heard("changed", "two", "an answer")
        if Feature.DELETIONS in outside.channel.features:
            await in_thread(outside.take_back, "two")

            async def is_taken_back() -> bool:
                await asyncio.sleep(0.02)
                return "two" not in await host.texts()

            await until(is_taken_back, "taken back")


async def test_a_long_text_leaves_in_parts_that_are_all_of_it(host, outside):
    word = "word "
    text = (word * (3 * (outside.channel.max_text_chars or 1_000) // len(word))).strip()
    async with host.living():
        await host.post(text)
        await host.until_settled()
    parts = outside.shown()
    assert len(parts) >= 3
    assert " ".join(parts).split() == text.split()


class Crash(BaseException):
    """Stands for `kill -9`: nothing that handles errors sees it."""


class DyingDelivery(Delivery):
    """Dies after a message was sent and before that is recorded, as by `kill -9`: once for each message."""

    async def _mark_sent(self, head: Any, *more: Any) -> None:
        if head.attempts == 0:
            raise Crash
        await super()._mark_sent(head, *more)


async def test_what_was_sent_and_not_recorded_is_never_twice_in_the_chat(host, outside):
    texts = [f"message {number}" for number in range(5)]
    await host.post(*texts)
    for _ in texts:
        with pytest.raises(BaseExceptionGroup):
            async with host.living(kind=DyingDelivery):
                await asyncio.Event().wait()
    async with host.living():
        await host.until_settled()
    assert outside.shown() == texts
    states = {row["state"] for row in await host.rows("SELECT state FROM outbox")}
    # Where a repeated message would be a second one, nobody knows whether it has arrived.
    assert states == {"sent" if Feature.IDEMPOTENT in outside.channel.features else "unknown"}


@pytest.mark.parametrize("with_env", [False, True], ids=["plain", "with the owner's .env"])
async def test_its_secrets_are_in_no_log_and_in_no_backup(host, outside, capfd, tmp_path_factory, with_env):
    async with host.living():
        await host.post("hello")
        await host.until_settled()
    target = tmp_path_factory.mktemp("backup") / "b.tar.gz"
    home = Home(host.context.home)
    await asyncio.to_thread(
        partial(back_up, home, target, with_env=with_env, replaces=False, clock=host.context.clock, say=print)
    )
    with tarfile.open(target) as archive:
        names = archive.getnames()
        bodies = [file.read() for one in archive if (file := archive.extractfile(one)) is not None]
    assert bodies
    said = capfd.readouterr()
    for secret in outside.secrets():
        assert secret not in said.out + said.err
        assert not any(secret.encode() in body for body in bodies)
    for path in discovery.find(outside.channel.name).secret_files:
        assert path not in names
        assert stat.S_IMODE((home.root / path).stat().st_mode) == 0o600


TOO_LARGE = 5_000
"""More bytes than a host of these tests takes."""


@pytest.mark.parametrize("announced", [TOO_LARGE, 1], ids=["as it says", "though it says less"])
async def test_a_file_that_is_too_large_for_us_leaves_its_words_and_a_note(host, outside, announced):
    async with host.living():
        await in_thread(partial(outside.write_with_file, "@Andy look", b"x" * TOO_LARGE, announced=announced))
        await in_thread(outside.write, "and then", [])

        async def is_settled() -> bool:
            await asyncio.sleep(0.02)
            found = await host.rows("SELECT file_until_ms FROM messages")
            return len(found) == 2 and all(row["file_until_ms"] is None for row in found)

        await until(is_settled, "the file is given up")
    texts = await host.texts()
    note = "too large to fetch, at most 0.0 MB]" if announced == TOO_LARGE else ": it could not be fetched]"
    assert texts[0].startswith("@Andy look\n[document")
    assert texts[0].endswith(note)
    assert texts[1] == "and then"
    (asked,) = await host.rows("SELECT turn_id FROM messages WHERE content LIKE '%look%'")
    assert asked["turn_id"] is not None
    assert left_of_files(host.context.home) == []


def left_of_files(home: Path) -> list[Path]:
    """Return what there is of files that were being fetched, whole or half."""
    found = [one for one in home.glob("groups/*/attachments/*") if one.is_file()]
    return found + list(home.glob("data/**/in-*"))


async def test_a_file_that_is_too_large_for_the_messenger_is_refused_in_words(host, outside, tmp_path):
    limit = getattr(outside, "takes_bytes", None)
    if limit is None:
        pytest.skip(f"{ON_PURPOSE}it takes more than ANDY_ATTACHMENT_MB can let through")
    with (tmp_path / "film").open("wb") as film:
        film.truncate(limit + 4 * 1024**2)
    file = Attachment(path=tmp_path / "film", name="film.bin", mime="application/octet-stream")
    async with host.living():
        await host.post("the film", attachment=file)
        await host.post("after it")
        await host.until_settled()
    (told,) = [text for text in outside.shown() if text != "after it"]
    assert told.startswith("⚠️ I could not send the file film.bin: film.bin has")
    assert "MB at most" in told
    refused, sent, _ = await host.rows("SELECT text, state, error FROM outbox ORDER BY id")
    assert (refused["text"], refused["state"], sent["state"]) == ("the film", "dead", "sent")
    assert "film.bin has" in refused["error"]
    assert "MB at most" in refused["error"]


SHOW_ENVIRONMENT = "import json, os; print(json.dumps(dict(os.environ)))"


async def environments(context: ChannelContext, groups: Sequence[Group], *, token: str) -> list[str]:
    """Return the environment of a container of each group, as a program in it reads it."""

    async def never(run_id: str, reason: str) -> None:
        raise AssertionError(f"{run_id}: {reason}")

    found = []
    async with AsyncExitStack() as stack:
        known = HostContext(
            home=Home(context.home),
            settings=Settings(tz="Asia/Seoul"),
            clock=context.clock,
            database=context.database,
            reader=context.database,
            bus=context.bus,
        )
        credentials = CredentialSource(context.home, {"ANTHROPIC_API_KEY": "sk-ant-api03-the-key"})
        proxies = ContainerProxies(known, credentials=credentials, address="127.0.0.1", on_runaway=never)
        await proxies.open(stack)
        orders = RunOrders(known, credentials=credentials, proxies=proxies, uid=os.getuid())
        for group in groups:
            spec = a_spec(
                folder=group.folder,
                mounts=await orders.prepare(group),
                environment=orders.environment(group, orders.agent(group), token),
            )
            # The runtime that stands nearest to the host: an engine's containers are given the spec's alone.
            runtime = ProcessBench(context.home).runtime(SHOW_ENVIRONMENT)
            async with running_container(runtime, spec=spec) as container:
                found.append((await all_of(container)).decode())
    return found


async def test_no_container_is_given_a_place_that_its_secrets_are_in(host, outside, monkeypatch):
    for number, secret in enumerate(outside.secrets()):
        # As a shell has them from which Andy is started.
        monkeypatch.setenv(f"MESSENGER_TOKEN_{number}", secret)
    async with host.living():
        await host.post("hello")
        await host.until_settled()
    home = host.context.home
    groups = (a_group(jid=outside.jid), a_group("main", is_main=True))
    shown = {
        mount.source: mount for group in groups for mount in mounts.prepare(group, home=home, uid=os.getuid())
    }
    held = [file for source in shown for file in source.rglob("*") if file.is_file()]
    logins = [home / path for path in discovery.find(outside.channel.name).secret_files]
    assert all(login.is_file() for login in logins)
    read = await environments(host.context, groups, token="the-runs-own")
    assert ["the-runs-own" in one for one in read] == [True, True]
    for login in logins:
        assert not any(login.is_relative_to(source) for source in shown)
    for secret in outside.secrets():
        assert any(secret.encode() in login.read_bytes() for login in logins)
        assert not any(secret.encode() in file.read_bytes() for file in held)
        assert not any(secret in one for one in read)
