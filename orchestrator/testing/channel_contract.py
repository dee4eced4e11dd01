"""Tests that every channel has to pass, also one in a package of somebody else.

A test module of such a package imports all of them and says what the other end of its messenger is:

    from orchestrator.testing.channel_contract import *  # noqa: F403

    @pytest.fixture
    def harness_kind():
        return SlateHarness          # called with a `ChannelContext`; it has what `ChannelHarness` says

They need pytest and pytest-asyncio, with `asyncio_mode = "auto"`.

Jane is the person who writes and reads at the other end of the messenger. The chats of this machine have no
other end, and so no Jane (`has_outside` is False).
"""

from __future__ import annotations

import asyncio
import inspect
import json
import stat
import tarfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Protocol, Self

import pytest

from orchestrator.backup.make import back_up
from orchestrator.base.clock import SystemClock
from orchestrator.base.event_bus import EventBus
from orchestrator.base.wakeups import Wakeups
from orchestrator.channels import discovery
from orchestrator.channels.context import ChannelContext
from orchestrator.domain.errors import ChannelDown, ChannelError, ChannelRefused
from orchestrator.domain.polls import Poll
from orchestrator.domain.protocols import Channel, Feature, Receive
from orchestrator.domain.values import (
    Attachment,
    ChatJid,
    ChatMember,
    Folder,
    Group,
    Inbound,
    Message,
    MessageId,
    OutboxState,
    Outgoing,
    Seq,
)
from orchestrator.groups import registration
from orchestrator.home.directory import Home
from orchestrator.inbound.intake import Intake
from orchestrator.outbound.delivery import Delivery
from orchestrator.store.conversation import messages, outbox, polls
from orchestrator.store.database import Database

__all__ = [
    "context",
    "harness",
    "harness_kind",
    "host",
    "outside",
    "test_a_file_that_is_too_large_for_the_messenger_is_refused_in_words",
    "test_a_file_that_is_too_large_for_us_leaves_its_words_and_a_note",
    "test_a_long_text_leaves_in_parts_that_are_all_of_it",
    "test_a_message_that_is_withdrawn_is_gone_and_a_second_time_is_no_error",
    "test_a_message_that_the_other_end_refuses_is_never_said_to_be_sent",
    "test_a_poll_is_asked_and_each_vote_comes_in_with_its_options_and_its_person",
    "test_before_it_runs_it_says_that_it_is_down_or_delivers",
    "test_edits_deletions_and_replies_come_in_as_such",
    "test_it_ends_when_it_is_cancelled_and_can_be_run_again",
    "test_it_is_what_its_description_says",
    "test_it_owns_its_own_addresses_and_raises_at_none",
    "test_it_takes_a_file_with_and_without_words",
    "test_it_takes_a_text_of_the_length_it_names",
    "test_it_takes_reactions_quotes_and_mentions",
    "test_its_condition_can_be_told_as_json_at_any_time",
    "test_its_methods_are_those_of_the_protocol",
    "test_its_secrets_are_in_no_log_and_in_no_backup",
    "test_no_other_channel_owns_its_addresses_and_it_owns_none_of_theirs",
    "test_nothing_of_a_chat_is_stored_before_it_is_registered",
    "test_the_same_message_id_again_shows_no_second_message",
    "test_typing_never_raises_connected_or_not",
    "test_what_is_not_stored_yet_comes_again_and_is_one_row",
    "test_what_is_written_comes_in_with_its_chat_and_sender",
    "test_what_is_written_during_an_outage_comes_in_once_in_order_and_is_answered",
    "test_what_was_sent_and_not_recorded_is_never_twice_in_the_chat",
]

ON_PURPOSE = "on purpose: "
"""The beginning of the reason why a test is skipped that makes no sense for a channel."""
DEADLINE_SECONDS = 60.0
"""Seconds that a test waits for what must come; it is long, for machines that do much else."""


class ChannelHarness(Protocol):
    """A channel with the other end of its messenger, where a person called Jane writes and reads.

    It is built with a `ChannelContext` for each test, and entered while the test runs: then the other end
    exists, and the home of the context has the login. Its calls block, and run in a thread of their own
    except `new_channel`, `shown` and the properties.
    """

    jid: ChatJid
    """The address of the chat in which the tests write."""
    has_outside: bool
    """Whether there is another end at all: the chats of this machine have none, so fewer tests apply."""
    channel: Channel
    """The channel under test; there is one from the start. Tests put here what `new_channel` returns."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def new_channel(self) -> Channel:
        """Return a new channel object on the same context, as a host has after a restart.

        What a channel has to remember longer than it lives is in the messenger, in `context.database` or in
        `context.home`, and never in the object alone.
        """
        ...

    @property
    def is_connected(self) -> bool:
        """Whether `channel` is connected to the other end now."""
        ...

    def write(self, text: str) -> Inbound | None:
        """Make Jane write a message, whether a channel is connected or not: until one is, the message waits.

        Return None if there is another end, from which the channel will receive the message. Without one,
        return the message in the form in which a channel would hand it over.
        """
        ...

    def write_with_file(self, text: str, body: bytes, *, announced: int) -> None:
        """Make Jane send a document with the content `body`, and a text with it.

        The messenger announces a size of `announced` bytes, which may be less than the real one.
        """
        ...

    def change(self, text: str, new: str) -> None:
        """Make Jane replace her message `text` by `new`. Called only for a channel with `Feature.EDITS`."""
        ...

    def take_back(self, text: str) -> None:
        """Make Jane delete her message `text`. Called only for a channel with `Feature.DELETIONS`."""
        ...

    def answer(self, text: str, words: str) -> None:
        """Make Jane reply to her own message `text` with `words`, so that the reply quotes it."""
        ...

    def vote(self, question: str, *options: str) -> None:
        """Make Jane vote for these options of the channel's newest poll with this question.

        Without options, she takes her vote back. Called only for a channel with `Feature.POLLS`.
        """
        ...

    def refuse_next_send(self) -> None:
        """Make the next message of the channel fail: the other end refuses it, or cannot be reached."""
        ...

    def shown(self) -> list[str]:
        """Return the texts of the messages that Jane sees in the chat, in order; for a file, its caption."""
        ...

    def secrets(self) -> list[str]:
        """Return the tokens and passwords of the login, which must appear in no log and in no backup."""
        ...

    @property
    def takes_bytes(self) -> int | None:
        """The largest file that the messenger takes; None where `ANDY_ATTACHMENT_MB` is always less."""
        ...


class LaterClock(SystemClock):
    """The clock of a host whose machine may have slept: it runs ahead of the real time."""

    slept_ms = 0
    """Milliseconds that are added to the real time."""

    def now_ms(self) -> int:
        return super().now_ms() + self.slept_ms


@pytest.fixture
async def context(tmp_path: Path) -> AsyncIterator[ChannelContext]:
    """Provide the objects that a host gives to a channel, with an empty home and database of their own.

    The clock is one that a test can set ahead.
    """
    clock = LaterClock()
    (tmp_path / "groups").mkdir()
    (tmp_path / "store").mkdir()
    database = await Database.open(tmp_path / "store" / "messages.db")
    yield ChannelContext(
        home=tmp_path,
        database=database,
        clock=clock,
        bus=EventBus(clock),
        assistant="Andy",
        has_own_number=False,
        attachment_bytes=1_000,
        wake_outbox=lambda: None,
    )
    await database.close()


@pytest.fixture
def harness_kind() -> Callable[[ChannelContext], AbstractContextManager[ChannelHarness]]:
    """Return a callable that makes the harness of a channel from its context.

    Each test module of a channel replaces this fixture by one of the same name.
    """
    pytest.fail("Write a fixture 'harness_kind' that returns the class of your channel's harness.")


@pytest.fixture
async def harness(
    harness_kind: Callable[[ChannelContext], AbstractContextManager[ChannelHarness]], context: ChannelContext
) -> AsyncIterator[ChannelHarness]:
    """Provide the harness of the channel under test, whose chat is registered as a group."""
    with harness_kind(context) as entered_harness:
        async with context.database.transaction() as tx:
            await registration.register(tx, the_group(entered_harness))
        yield entered_harness


def the_group(harness: ChannelHarness) -> Group:
    """Return the group "family" with the chat of a harness."""
    return Group(jid=harness.jid, name="Family", folder=Folder("family"))


async def until(holds: Callable[[], object] | Callable[[], Awaitable[object]], condition: str) -> None:
    """Wait until the function `holds`, which may be async, returns something true.

    Raises `AssertionError` with `condition`, a description of what was awaited, after `DEADLINE_SECONDS`.
    """
    try:
        async with asyncio.timeout(DEADLINE_SECONDS):
            while True:
                answer = holds()
                if inspect.isawaitable(answer):
                    answer = await answer
                if answer:
                    return
                await asyncio.sleep(0.001)
    except TimeoutError as error:
        raise AssertionError(f"not in {DEADLINE_SECONDS:g} s: {condition}") from error


def write(harness: ChannelHarness, text: str, received: list[Inbound]) -> None:
    """Make Jane, the person at the other end of the messenger, write a message that will be in `received`.

    `running` adds the messages that come through the channel to that list. The chats of this machine have no
    other end, so nothing comes through a channel, and the message is added here.
    """
    message = harness.write(text)
    if message is not None:  # the messenger has no other end
        received.append(message)


@asynccontextmanager
async def running(harness: ChannelHarness, received: list[Inbound]) -> AsyncIterator[Channel]:
    """Run the channel while the block runs, and yield it once it is connected.

    Messages that come in are added to `received`.
    """

    async def receive(message: Inbound, *, cursor: str | None = None) -> None:
        received.append(message)

    async with asyncio.TaskGroup() as tasks:
        loop = tasks.create_task(harness.channel.run(receive), name="channel")
        try:
            await until(lambda: harness.is_connected, "connected")
            yield harness.channel
        finally:
            loop.cancel()
    if harness.has_outside:
        # What Jane, the person at the other end, writes from now on must wait for the channel's next run.
        await until(lambda: not harness.is_connected, "disconnected")


def test_it_is_what_its_description_says(harness: ChannelHarness) -> None:
    """Check that the channel has the features and limits in its description, and that this is complete.

    It has to own the chat's address, be in English and Korean, and have its secret files below `data/` or
    `store/`. Only the limit of a text's characters may be lower than the described one.
    """
    description = discovery.find(harness.channel.name)
    assert harness.channel.features == description.features
    assert harness.channel.max_file_bytes == description.max_file_bytes
    text_limit = harness.channel.max_text_chars
    if text_limit != description.max_text_chars:  # None is no limit, so it is no lower one
        assert text_limit is not None
        assert description.max_text_chars is not None
        assert text_limit < description.max_text_chars
    assert description.owns(harness.jid)
    assert set(description.about) == {"en", "ko"}
    assert all(set(words) == {"en", "ko"} for words in description.advice.values())
    assert all(path.startswith(("data/", "store/")) for path in description.secret_files)


def test_its_methods_are_those_of_the_protocol(harness: ChannelHarness) -> None:
    """Check that the channel's methods have the same parameters as those of `Channel`.

    If the channel limits the length of a text, the limit must be more than 100 characters.
    """
    for name in ("owns", "run", "send", "set_typing", "react", "status"):
        expected = inspect.signature(getattr(Channel, name)).parameters
        actual = inspect.signature(getattr(type(harness.channel), name)).parameters
        assert list(actual) == list(expected), name
    assert harness.channel.max_text_chars is None or harness.channel.max_text_chars > 100


@pytest.mark.parametrize("odd_address", ["", "@", "x", "local", "g.us", "a@b", "\0", "x@g.us@local:"])
def test_it_owns_its_own_addresses_and_raises_at_none(harness: ChannelHarness, odd_address: str) -> None:
    """Check that `owns` accepts the chat of the harness, and answers for an odd address without an error."""
    assert harness.channel.owns(harness.jid)
    harness.channel.owns(ChatJid(odd_address))


ADDRESSES = (
    "local:main", "local:x@g.us", "1203@g.us", "49@s.whatsapp.net", "1@lid", "matrix:!r:s", "matrix:!r",
    "foreign:x", "tg:-100123",
)  # fmt: skip
"""Addresses of chats in several messengers, and some that are nearly such."""


def test_no_other_channel_owns_its_addresses_and_it_owns_none_of_theirs(harness: ChannelHarness) -> None:
    """Check that no address belongs to two channels: neither to two installed ones nor to one and the tested.

    The addresses are those of `ADDRESSES` and of the harness.
    """
    for jid in (*ADDRESSES, harness.jid):
        owners = {description.name for description in discovery.installed() if description.owns(ChatJid(jid))}
        if harness.channel.owns(ChatJid(jid)):
            owners.add(harness.channel.name)
        assert len(owners) <= 1, jid


async def test_the_same_message_id_again_shows_no_second_message(harness: ChannelHarness) -> None:
    """Send one message twice with the same id, then another one, and check that Jane sees each once.

    Without another end there is no Jane, and only `send` is tested.
    """
    async with running(harness, []) as channel:
        await channel.send(harness.jid, "hello", MessageId("3EB0AA"))
        await channel.send(harness.jid, "hello", MessageId("3EB0AA"))
        await channel.send(harness.jid, "other", MessageId("3EB0BB"))

    if harness.has_outside:
        assert harness.shown() == ["hello", "other"]


async def test_it_takes_a_text_of_the_length_it_names(harness: ChannelHarness) -> None:
    """Send a text of `max_text_chars` characters of three bytes each, and check that Jane sees all of it.

    Without such a limit, 10,000 characters are sent. Without another end there is no Jane, and only `send` is
    tested.
    """
    text = "한" * (harness.channel.max_text_chars or 10_000)
    async with running(harness, []) as channel:
        await channel.send(harness.jid, text, MessageId("3EB0AA"))

    if harness.has_outside:
        assert harness.shown() == [text]


async def test_it_takes_a_file_with_and_without_words(harness: ChannelHarness, tmp_path: Path) -> None:
    """Send a file with a text and one without, and check that Jane sees both.

    Without another end there is no Jane, and only `send` is tested.
    """
    (tmp_path / "f").write_bytes(b"body")
    file = Attachment(path=tmp_path / "f", name="a.pdf", mime="application/pdf")
    async with running(harness, []) as channel:
        await channel.send(harness.jid, "words", MessageId("3EB0AA"), attachment=file)
        await channel.send(harness.jid, "", MessageId("3EB0BB"), attachment=file)

    if harness.has_outside:
        assert len(harness.shown()) == 2


async def test_what_is_written_comes_in_with_its_chat_and_sender(harness: ChannelHarness) -> None:
    """Make Jane write, and check that the message comes in with its chat, text, sender and id."""
    received: list[Inbound] = []
    async with running(harness, received):
        write(harness, "hello", received)
        await until(lambda: received, "the message")

    (message,) = received
    assert (message.chat_jid, message.text) == (harness.jid, "hello")
    assert message.sender
    assert message.sender_name
    assert message.id


async def test_a_poll_is_asked_and_each_vote_comes_in_with_its_options_and_its_person(
    context: ChannelContext, harness: ChannelHarness
) -> None:
    """Send a poll, and check that each vote of Jane comes in with the chosen options and her as the sender.

    A vote without options takes the earlier one back. Where the same id makes no second message, the poll is
    sent twice. At last the poll is ended, which a channel may refuse.
    """
    if Feature.POLLS not in harness.channel.features:
        pytest.skip(f"{ON_PURPOSE}{harness.channel.name} has no polls")
    received: list[Inbound] = []
    poll = Poll(
        question="Which cake?",
        options=("Plum", "Äpfel <b>"),
        folder=Folder("family"),
        chat_jid=harness.jid,
        message_id=MessageId("3EB0AA"),
    )

    async def stored_question() -> Message:
        """Store the sent poll as a message of Andy's, and return the stored message."""
        async with context.database.transaction() as tx:
            own = an_outgoing(harness.jid, poll)
            await messages.add_own(tx, own, text=poll.text, name="Andy", now_ms=1, channel_id=channel_id)
            message = await messages.find(tx, harness.jid, poll.message_id)
        assert message is not None
        return message

    async with running(harness, received) as channel:
        await context.database.write(lambda tx: polls.add(tx, poll))
        channel_id = await channel.send(harness.jid, poll.text, poll.message_id, poll=poll)
        if Feature.IDEMPOTENT in channel.features:
            await channel.send(harness.jid, poll.text, poll.message_id, poll=poll)
        question = await stored_question()
        for number, chosen in enumerate((("Äpfel <b>",), ("Plum",), ()), start=1):
            await asyncio.to_thread(harness.vote, "Which cake?", *chosen)
            await until(lambda most=number: len(received) >= most, f"vote {number}")
        with suppress(ChannelRefused):  # a messenger may have polls that never end
            await channel.end_poll(question)

    # The indexes of the options, as they are listed in the poll.
    assert [vote.vote for vote in received] == [(1,), (0,), ()]
    assert {vote.quote.message_id for vote in received if vote.quote} == {poll.message_id}
    assert len({vote.sender for vote in received}) == 1
    # Each is `ignored`, since a vote asks Andy for nothing.
    assert all(vote.sender_name and vote.chat_jid == harness.jid and vote.ignored for vote in received)
    assert len({vote.id for vote in received}) == 3


async def test_typing_never_raises_connected_or_not(harness: ChannelHarness) -> None:
    """Check that `set_typing` raises no error: not connected, connected, and for an unknown chat."""
    await harness.channel.set_typing(harness.jid, is_typing=True)
    async with running(harness, []) as channel:
        await channel.set_typing(harness.jid, is_typing=True)
        await channel.set_typing(ChatJid("nobody@g.us"), is_typing=False)


async def test_it_takes_reactions_quotes_and_mentions(harness: ChannelHarness) -> None:
    """Check that the channel takes reactions, quotes and mentions, and sends a text with them as one message.

    Before it is connected, a reaction must raise `ChannelDown` where the channel has reactions. What Jane
    sees is checked if there is another end.
    """
    question = a_stored_message(harness.jid)
    person = ChatMember(jid=question.sender, name="Jane")
    if harness.has_outside and Feature.REACTIONS in harness.channel.features:
        with pytest.raises(ChannelDown):
            await harness.channel.react(question, "👀")
    async with running(harness, []) as channel:
        assert channel.features <= frozenset(Feature)
        for sign in ("👀", ""):  # the empty one takes the reaction back
            with suppress(ChannelRefused):  # the other end may know that there is no such message
                await channel.react(question, sign)
        await channel.send(harness.jid, "to Jane", MessageId("3EB0AA"), quote=question, mention=person)
        await channel.send(harness.jid, "plain", MessageId("3EB0BB"))

    if harness.has_outside:
        assert len(harness.shown()) == 2
        assert harness.shown()[1] == "plain"


def an_outgoing(jid: ChatJid, poll: Poll) -> Outgoing:
    """Return the outbox's record of a poll that was sent to the chat `jid`."""
    return Outgoing(
        id=1,
        folder=poll.folder,
        chat_jid=jid,
        text=poll.text,
        message_id=poll.message_id,
        state=OutboxState.SENT,
        attempts=1,
        next_attempt_ms=0,
        created_ms=0,
        sent_ms=1,
        turn_id=None,
        error=None,
    )


def a_stored_message(jid: ChatJid) -> Message:
    """Return a message of Jane's in the chat `jid`, as the store would return it."""
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


async def test_before_it_runs_it_says_that_it_is_down_or_delivers(harness: ChannelHarness) -> None:
    """Check that sending raises `ChannelDown` before the channel runs, unless it has no other end."""
    if harness.has_outside:
        with pytest.raises(ChannelDown):
            await harness.channel.send(harness.jid, "x", MessageId("3EB0AA"))
    else:
        await harness.channel.send(harness.jid, "x", MessageId("3EB0AA"))


async def test_it_ends_when_it_is_cancelled_and_can_be_run_again(harness: ChannelHarness) -> None:
    """Run the same channel object twice, and check that it receives a message each time.

    `running` cancels it after each run, and waits until it has ended.
    """
    for number in range(2):
        received: list[Inbound] = []
        async with running(harness, received):
            write(harness, f"m{number}", received)
            await until(lambda received=received: received, "the message")


def test_its_condition_can_be_told_as_json_at_any_time(harness: ChannelHarness) -> None:
    """Check that the status of a channel that never ran can be written as JSON."""
    json.dumps(harness.channel.status())


# In a host: with the intake, the database and the outbox


@pytest.fixture
def outside(harness: ChannelHarness) -> ChannelHarness:
    """Provide the harness of a channel with another end; skip the test for one without."""
    if not harness.has_outside:
        pytest.skip(f"{ON_PURPOSE}chats of this machine have no other end: clients read and write the store")
    return harness


class ContractHost:
    """The parts of a host around a channel: incoming messages are stored, those in the outbox are sent."""

    def __init__(self, context: ChannelContext, harness: ChannelHarness) -> None:
        """Build the intake, which stores messages; `living` builds the rest."""
        self.context, self.harness = context, harness
        self.wakeups = Wakeups()
        self.intake = Intake(
            context.database, clock=context.clock, name="Andy", wakeups=self.wakeups, bus=context.bus
        )

    async def rows(self, sql: str) -> list[dict[str, Any]]:
        """Return the rows that a query of the store selects, each as a dict."""
        async with self.context.database.reading() as tx:
            return [dict(row) for row in await tx.execute_fetchall(sql)]

    async def texts(self) -> list[str]:
        """Return the stored texts of people's messages, in the order in which they came in."""
        rows = await self.rows("SELECT content FROM messages WHERE is_bot_message = 0 ORDER BY seq")
        return [row["content"] for row in rows]

    async def until_received(self, *texts: str) -> None:
        """Wait until exactly these texts of people are stored, in this order."""

        async def holds() -> bool:
            await asyncio.sleep(0.02)  # spares the database
            return await self.texts() == list(texts)

        await until(holds, f"received {texts}")

    async def post(self, *texts: str, **more: Any) -> None:
        """Put texts into the outbox for the chat; `more` are further arguments of `outbox.add`."""
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
        """Wait until no text in the outbox waits to be sent."""

        async def holds() -> bool:
            await asyncio.sleep(0.02)  # spares the database
            return not await self.rows("SELECT 1 FROM outbox WHERE state IN ('pending', 'sending')")

        await until(holds, "nothing waits")

    @asynccontextmanager
    async def living(
        self, *, receive: Receive | None = None, kind: type[Delivery] = Delivery
    ) -> AsyncIterator[None]:
        """Run a new channel object and the delivery of the outbox while the block runs, as after a restart.

        `receive` takes incoming messages, instead of the intake; `kind` is the class of the delivery.
        """
        # A new object, so that nothing which only the last one remembered is left.
        channel = self.harness.channel = self.harness.new_channel()
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
        await until(lambda: not self.harness.is_connected, "disconnected")


@pytest.fixture
def host(context: ChannelContext, outside: ChannelHarness) -> ContractHost:
    return ContractHost(context, outside)


async def in_thread(call: Callable[..., object], *arguments: object) -> None:
    """Run a blocking call of the harness in a thread, while the host goes on."""
    await asyncio.to_thread(call, *arguments)


async def test_what_is_written_during_an_outage_comes_in_once_in_order_and_is_answered(
    host: ContractHost, outside: ChannelHarness
) -> None:
    """Make Jane write thirty messages while the host is off, and check that all of them are stored.

    After a restart more than a minute later, they have to come once and in order, and to be one turn, whose
    answer is sent.
    """
    async with host.living():
        await in_thread(outside.write, "before")
        await host.until_received("before")
    missed = [f"@Andy missed {number}" for number in range(30)]
    for text in missed:
        await in_thread(outside.write, text)
    assert isinstance(host.context.clock, LaterClock)
    host.context.clock.slept_ms = 61_000
    async with host.living():
        await in_thread(outside.write, "after")
        await host.until_received("before", *missed, "after")
        rows = await host.rows("SELECT * FROM messages WHERE content LIKE '%missed%' ORDER BY seq")
        (turn,) = {row["turn_id"] for row in rows}
        assert all(row["received_ms"] - row["sent_ms"] >= 60_000 for row in rows)
        await host.post("all thirty", turn_id=turn)
        await host.until_settled()
    assert outside.shown()[-1:] == ["all thirty"]


async def test_what_is_not_stored_yet_comes_again_and_is_one_row(
    host: ContractHost, outside: ChannelHarness
) -> None:
    """End the host before an incoming message is stored, and check that the next host stores it once.

    Messages that were stored must not come again after later restarts.
    """
    unstored = []

    async def never_store(message: Inbound, *, cursor: str | None = None) -> None:
        """Take a message and never return, so that it is not stored."""
        unstored.append(message.text)
        await asyncio.Event().wait()

    async with host.living(receive=never_store):
        await in_thread(outside.write, "first")
        await until(lambda: unstored, "the message is handed over; the host ends before it is stored")
    assert await host.texts() == []
    async with host.living():
        await host.until_received("first")
        await in_thread(outside.write, "second")
        await host.until_received("first", "second")
    async with host.living():
        await in_thread(outside.write, "third")
        await host.until_received("first", "second", "third")


async def test_nothing_of_a_chat_is_stored_before_it_is_registered(
    host: ContractHost, outside: ChannelHarness
) -> None:
    """Check that of a chat without a group only its existence is stored, and no message of it.

    Once it is registered, only messages that Jane writes later are stored.
    """
    async with host.context.database.transaction() as tx:
        await registration.unregister(tx, Folder("family"), now_ms=1)
    async with host.living():
        await in_thread(outside.write, "early")

        async def is_known() -> bool:
            await asyncio.sleep(0.02)  # spares the database
            chats = await host.rows("SELECT channel, last_message_ms FROM chats")
            return any(chat["channel"] == outside.channel.name and chat["last_message_ms"] for chat in chats)

        await until(is_known, "the chat is known, with its channel")
        async with host.context.database.transaction() as tx:
            await registration.register(tx, the_group(outside))
        await in_thread(outside.write, "late")
        await host.until_received("late")  # this text alone: "early" is not stored


async def test_edits_deletions_and_replies_come_in_as_such(
    host: ContractHost, outside: ChannelHarness
) -> None:
    """Check that a reply quotes its message, an edit replaces the stored text, and a deletion removes it.

    Edits and deletions are tested where the channel has them.
    """
    async with host.living():
        for text in ("one", "two"):
            await in_thread(outside.write, text)
        await host.until_received("one", "two")
        await in_thread(outside.answer, "one", "an answer")
        await host.until_received("one", "two", "an answer")
        (row,) = await host.rows("SELECT * FROM messages WHERE content = 'an answer'")
        assert row["quoted_content"] == "one"
        if Feature.EDITS in outside.channel.features:
            await in_thread(outside.change, "one", "changed")
            await host.until_received("changed", "two", "an answer")
        if Feature.DELETIONS in outside.channel.features:
            await in_thread(outside.take_back, "two")

            async def is_taken_back() -> bool:
                await asyncio.sleep(0.02)
                return "two" not in await host.texts()

            await until(is_taken_back, "taken back")


async def test_a_long_text_leaves_in_parts_that_are_all_of_it(
    host: ContractHost, outside: ChannelHarness
) -> None:
    """Send a text of three times the longest that the messenger takes, and check that no word is lost."""
    word = "word "
    text = (word * (3 * (outside.channel.max_text_chars or 1_000) // len(word))).strip()
    async with host.living():
        await host.post(text)
        await host.until_settled()
    parts = outside.shown()
    assert len(parts) >= 3
    assert " ".join(parts).split() == text.split()


async def test_a_message_that_is_withdrawn_is_gone_and_a_second_time_is_no_error(
    host: ContractHost, outside: ChannelHarness
) -> None:
    """Withdraw a sent message twice, and check that Jane no longer sees it and that no error is raised."""
    if Feature.WITHDRAWALS not in outside.channel.features:
        return
    async with host.living():
        await host.post("stays", "goes")
        await host.until_settled()
        async with host.context.database.reading() as tx:
            (row,) = await tx.execute_fetchall("SELECT chat_jid, id FROM messages WHERE content = 'goes'")
            message = await messages.find(tx, row["chat_jid"], row["id"])
        assert message is not None
        await outside.channel.withdraw(message)
        await outside.channel.withdraw(message)

        async def is_gone() -> bool:
            await asyncio.sleep(0.02)
            # A messenger may leave an empty message in place of the withdrawn one.
            return [text for text in outside.shown() if text] == ["stays"]

        await until(is_gone, "it is deleted")


class Crash(BaseException):
    """Represents `kill -9`: no error handler catches it."""


class DyingDelivery(Delivery):
    """Dies after a message was sent and before that is recorded, as by `kill -9`: once for each message."""

    async def _mark_sent(self, head: Outgoing, text: str, channel_id: MessageId | None) -> None:
        """Raise `Crash` at the first attempt to send a message, instead of recording that it was sent."""
        if head.attempts == 0:
            raise Crash
        await super()._mark_sent(head, text, channel_id)


async def test_what_was_sent_and_not_recorded_is_never_twice_in_the_chat(
    host: ContractHost, outside: ChannelHarness
) -> None:
    """End the host each time after a message was sent and before that is recorded.

    Check that Jane sees each of five messages once, whatever the host does after its restarts.
    """
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
    # Where sending again would make a second message, the host does not, and cannot know if the first came.
    assert states == {"sent" if Feature.IDEMPOTENT in outside.channel.features else "unknown"}


async def test_a_message_that_the_other_end_refuses_is_never_said_to_be_sent(
    host: ContractHost, outside: ChannelHarness
) -> None:
    """Make the other end refuse a message, and check that `send` raises and that Jane does not see it."""
    async with host.living():
        await in_thread(outside.refuse_next_send)
        with pytest.raises(ChannelError):
            await outside.channel.send(outside.jid, "refused", MessageId("3EB0CC"))
    assert "refused" not in outside.shown()


@pytest.mark.parametrize("with_env", [False, True], ids=["plain", "with the owner's .env"])
async def test_its_secrets_are_in_no_log_and_in_no_backup(
    host: ContractHost,
    outside: ChannelHarness,
    capfd: pytest.CaptureFixture[str],
    tmp_path_factory: pytest.TempPathFactory,
    with_env: bool,  # noqa: FBT001 - a parameter of a test
) -> None:
    """Run the channel, make a backup, and check that neither log nor backup contains a secret of its login.

    `with_env` says whether the backup has the owner's `.env`. Files with secrets must be readable by the
    owner alone.
    """
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
        bodies = [file.read() for entry in archive if (file := archive.extractfile(entry)) is not None]
    assert bodies
    output = capfd.readouterr()
    for secret in outside.secrets():
        assert secret not in output.out + output.err
        assert not any(secret.encode() in body for body in bodies)
    for path in discovery.find(outside.channel.name).secret_files:
        assert path not in names
        assert stat.S_IMODE((home.root / path).stat().st_mode) == 0o600


TOO_LARGE = 5_000
"""More bytes than a host of these tests takes."""


@pytest.mark.parametrize("announced", [TOO_LARGE, 1], ids=["as it says", "though it says less"])
async def test_a_file_that_is_too_large_for_us_leaves_its_words_and_a_note(
    host: ContractHost, outside: ChannelHarness, announced: int
) -> None:
    """Make Jane send a file that the host does not take, and check that its text is stored with a note.

    `announced` is the size that the messenger announces, which may be wrong. Nothing of the file may be left
    on the disk, and the message still starts a turn.
    """
    async with host.living():
        await in_thread(partial(outside.write_with_file, "@Andy look", b"x" * TOO_LARGE, announced=announced))
        await in_thread(outside.write, "and then")

        async def is_file_given_up() -> bool:
            """Return whether both messages are stored, and neither waits for its file."""
            await asyncio.sleep(0.02)  # spares the database
            rows = await host.rows("SELECT file_until_ms FROM messages")
            return len(rows) == 2 and all(row["file_until_ms"] is None for row in rows)

        await until(is_file_given_up, "the file is given up")
    texts = await host.texts()
    note = "too large to fetch, at most 0.0 MB]" if announced == TOO_LARGE else ": it could not be fetched]"
    assert texts[0].startswith("@Andy look\n[document")
    assert texts[0].endswith(note)
    assert texts[1] == "and then"
    (request,) = await host.rows("SELECT turn_id FROM messages WHERE content LIKE '%look%'")
    assert request["turn_id"] is not None
    assert fetched_files(host.context.home) == []


def fetched_files(home: Path) -> list[Path]:
    """Return the paths in a home of files that were fetched from a messenger, whole or in part."""
    whole_files = [path for path in home.glob("groups/*/attachments/*") if path.is_file()]
    return whole_files + list(home.glob("data/**/in-*"))


async def test_a_file_that_is_too_large_for_the_messenger_is_refused_in_words(
    host: ContractHost, outside: ChannelHarness, tmp_path: Path
) -> None:
    """Send a file that the messenger does not take, and check that Jane reads why and that the rest is sent.

    Skipped for a messenger that takes every file which the host lets through.
    """
    limit = outside.takes_bytes
    if limit is None:
        pytest.skip(f"{ON_PURPOSE}it takes more than ANDY_ATTACHMENT_MB can let through")
    with (tmp_path / "film").open("wb") as film:
        film.truncate(limit + 4 * 1024**2)  # larger by 4 MiB; the file has no content on the disk
    file = Attachment(path=tmp_path / "film", name="film.bin", mime="application/octet-stream")
    async with host.living():
        await host.post("the film", attachment=file)
        await host.post("after it")
        await host.until_settled()
    (refusal,) = [text for text in outside.shown() if text != "after it"]
    assert refusal.startswith("⚠️ I could not send the file film.bin: film.bin has")
    assert "MB at most" in refusal
    refused, sent, _ = await host.rows("SELECT text, state, error FROM outbox ORDER BY id")
    assert (refused["text"], refused["state"], sent["state"]) == ("the film", "dead", "sent")
    assert "film.bin has" in refused["error"]
    assert "MB at most" in refused["error"]
