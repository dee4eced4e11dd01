"""What every channel keeps to. A new messenger is run through it by one more entry in `HARNESSES`."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

import pytest

from orchestrator.base.clock import SystemClock
from orchestrator.base.event_bus import EventBus
from orchestrator.channels import discovery, registry
from orchestrator.channels.context import ChannelContext
from orchestrator.channels.local.channel import LocalChannel, written
from orchestrator.channels.whatsapp.channel import WhatsAppChannel
from orchestrator.channels.whatsapp.send_rate import SendRate
from orchestrator.domain.errors import ChannelDown
from orchestrator.domain.protocols import Channel, Feature
from orchestrator.domain.values import Attachment, ChatJid, ChatMember, Inbound, Message, MessageId, Seq
from orchestrator.groups import registration
from orchestrator.store.database import Database
from tests.processes.synapse import Synapse
from tests.support.household import a_group
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
        self.phone.write(self._wa.heard(text, message_id=f"3A{next(self._numbers)}"))

    def shown(self) -> list[str]:
        return [one.removeprefix("Andy: ") for one in self.phone.texts()]


class MatrixHarness:
    """Matrix with a real homeserver, in a room where somebody else has a client of their own."""

    has_outside = True

    def __init__(self, context: ChannelContext, monkeypatch: pytest.MonkeyPatch, homeserver: Synapse) -> None:
        del monkeypatch
        pytest.importorskip("nio")
        from tests.support.matrix_home import MatrixHome, address_of

        self._house = MatrixHome(context.home, context.database, homeserver)
        self._room = self._house.owner.make_room(self._house.andy, name="Family")
        homeserver.post(f"join/{self._room}", token=self._house.token)
        self.jid = address_of(self._room)
        self.channel = self._house.new_channel()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    @property
    def is_connected(self) -> bool:
        return self.channel._session is not None

    def write(self, text: str, heard: list[Inbound]) -> None:
        del heard
        self._house.owner.write(self._room, text)

    def shown(self) -> list[str]:
        return self._house.owner.texts(self._room, self._house.andy)


HARNESSES: dict[str, Any] = {"local": LocalHarness, "whatsapp": WhatsAppHarness, "matrix": MatrixHarness}


@pytest.fixture
async def context(tmp_path: Path, database: Database) -> ChannelContext:
    clock = SystemClock()
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
    others = {"local": "120@g.us", "whatsapp": "local:family", "matrix": "!room:server"}
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
