"""The sign under a question in a group, on a real database with a scripted messenger."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest

from agent_runner.wire.frames import TurnEnd
from orchestrator.domain.protocols import Feature
from orchestrator.domain.values import MessageId
from orchestrator.outbound.presence import Reactions
from tests.doubles.channel import ScriptedChannel
from tests.support.until import until


class Watched:
    """A host without containers whose messenger knows reactions, if it is said so."""

    def __init__(self, store_harness, *features):
        self.store_harness = store_harness
        self.channel = ScriptedChannel(features=frozenset(features))

    @property
    def signs(self):
        return self.channel.reactions

    @asynccontextmanager
    async def open(self):
        harness = self.store_harness
        reactions = Reactions(harness.database, channel_for=lambda _: self.channel, bus=harness.bus)
        task = asyncio.create_task(reactions.run(), name="reactions")
        try:
            await until(lambda: harness.bus._listeners, "listening")
            yield reactions
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def start(self, *texts, is_group=True):
        for number, text in enumerate(texts, start=1):
            await self.store_harness.hear(text, id=MessageId(f"Q{number}"))
        async with self.store_harness.database.transaction() as tx:
            await tx.execute("UPDATE chats SET is_group = ?", (is_group,))
        turn, run, _ = await self.store_harness.start_next()
        self.store_harness.bus.publish("turn.started", group="family")
        return turn, run


@pytest.fixture
async def watched(store_harness):
    await store_harness.add_group()
    return Watched(store_harness, Feature.REACTIONS)


async def test_the_last_question_bears_a_sign_from_the_start_of_its_turn_and_keeps_it_when_answered(watched):
    async with watched.open() as reactions:
        turn, run = await watched.start("@Andy one", "@Andy two", "by the way")
        await until(lambda: watched.signs, "the sign")
        await watched.store_harness.take(run, TurnEnd(n=1, turn=turn.id))
        watched.store_harness.bus.publish("turn.answered", group="family")
        await until(lambda: reactions._shown == {}, "the end was seen")
    assert watched.signs == [("Q2", "👀")]


async def test_a_turn_that_fails_loses_its_sign_and_one_that_is_tried_again_keeps_it(watched):
    async with watched.open():
        _, run = await watched.start("@Andy one")
        await until(lambda: watched.signs, "the sign")
        await watched.store_harness.lose(run)
        watched.store_harness.bus.publish("turn.queued", group="family")
        _, run, _ = await watched.store_harness.start_next()
        watched.store_harness.bus.publish("turn.started", group="family")
        await watched.store_harness.lose(run, is_retryable=False)
        watched.store_harness.bus.publish("turn.failed", group="family")
        await until(lambda: len(watched.signs) == 2, "the sign is gone")
    assert watched.signs == [("Q1", "👀"), ("Q1", "")]


async def test_a_turn_that_fails_under_a_later_host_loses_its_sign_too(watched):
    async with watched.open():
        _, run = await watched.start("@Andy one")
        await until(lambda: watched.signs, "the sign")
    async with watched.open() as later:
        await until(lambda: later._shown, "the turn is known")
        await watched.store_harness.lose(run, is_retryable=False)
        watched.store_harness.bus.publish("turn.failed", group="family")
        await until(lambda: len(watched.signs) == 2, "the sign is gone")
    assert watched.signs == [("Q1", "👀"), ("Q1", "")]


@pytest.mark.parametrize(("features", "is_group"), [((), True), ((Feature.REACTIONS,), False)])
async def test_there_is_no_sign_where_a_messenger_has_none_nor_between_two(store_harness, features, is_group):
    await store_harness.add_group()
    watched = Watched(store_harness, *features)
    async with watched.open() as reactions:
        turn, run = await watched.start("@Andy one", is_group=is_group)
        await store_harness.take(run, TurnEnd(n=1, turn=turn.id))
        store_harness.bus.publish("turn.answered", group="family")
        await until(lambda: store_harness.bus._listeners and reactions._shown == {}, "the end was seen")
    assert watched.signs == []


async def test_a_messenger_that_breaks_at_a_sign_stops_no_other_sign(watched):
    async def breaks(message, sign):
        watched.channel.reactions.append((message.id, sign))
        raise RuntimeError("gone")

    watched.channel.react = breaks
    async with watched.open():
        _, run = await watched.start("@Andy one")
        await until(lambda: watched.signs, "the sign")
        await watched.store_harness.lose(run, is_retryable=False)
        watched.store_harness.bus.publish("turn.failed", group="family")
        await until(lambda: len(watched.signs) == 2, "tried again")
