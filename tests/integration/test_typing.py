"""The typing sign stands in a chat as long as a question is being answered there, and no longer."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest

from agent_runner.wire.frames import TurnEnd
from orchestrator.outbound import presence
from orchestrator.outbound.presence import TypingSigns
from tests.doubles.channel import ScriptedChannel
from tests.support.until import until

FAMILY = "local:family"


class Watched:
    """A host without containers whose signs are seen."""

    def __init__(self, store_harness):
        self.store_harness = store_harness
        self.channel = ScriptedChannel()

    @property
    def signs(self):
        return self.channel.signs

    @asynccontextmanager
    async def open(self):
        signs = TypingSigns(
            self.store_harness.database, channel_for=lambda _: self.channel, bus=self.store_harness.bus
        )
        task = asyncio.create_task(signs.run(), name="typing")
        try:
            await until(lambda: self.store_harness.bus._listeners, "listening")
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])

    def tell(self, kind):
        self.store_harness.bus.publish(kind, group="family")

    async def start(self, text="@Andy hi"):
        await self.store_harness.hear(text)
        turn, run, _ = await self.store_harness.start_next()
        self.tell("turn.started")
        await until(lambda: self.signs and self.signs[-1] == (FAMILY, True), "the sign is shown")
        return turn, run


@pytest.fixture
async def watched(store_harness):
    await store_harness.add_group("family")
    return Watched(store_harness)


async def test_the_sign_stands_from_the_start_of_a_turn_to_its_end(watched):
    async with watched.open():
        turn, run = await watched.start()
        await watched.store_harness.take(run, TurnEnd(n=1, turn=turn.id))
        watched.tell("turn.answered")
        await until(lambda: watched.signs[-1] == (FAMILY, False), "the sign is hidden")
    assert watched.signs == [(FAMILY, True), (FAMILY, False)]


async def test_a_container_that_crashes_takes_its_sign_with_it(watched):
    async with watched.open():
        _, run = await watched.start()
        await watched.store_harness.lose(run)
        watched.tell("turn.put_back")
        await until(lambda: watched.signs[-1] == (FAMILY, False), "the sign is hidden")


async def test_the_sign_is_shown_again_before_a_messenger_hides_it(watched, monkeypatch):
    monkeypatch.setattr(presence, "REFRESH_SECONDS", 0.001)
    async with watched.open():
        await watched.start()
        await until(lambda: watched.signs.count((FAMILY, True)) > 3, "shown again and again")


async def test_an_event_that_was_missed_costs_a_sweep_and_no_sign_for_ever(watched, monkeypatch):
    monkeypatch.setattr(presence, "REFRESH_SECONDS", 0.001)
    async with watched.open():
        _, run = await watched.start()
        await watched.store_harness.lose(run)
        await until(lambda: watched.signs[-1] == (FAMILY, False), "the sign is hidden")


async def test_a_host_that_stops_hides_its_signs_and_the_next_shows_what_goes_on(watched):
    async with watched.open():
        await watched.start()
    assert watched.signs[-1] == (FAMILY, False)
    async with watched.open():
        await until(lambda: watched.signs[-1] == (FAMILY, True), "shown without an event")


async def test_a_messenger_that_breaks_over_a_sign_stops_nothing(watched, monkeypatch):
    calls = []

    async def broken(jid, *, is_typing):
        calls.append((jid, is_typing))
        raise OSError("no line")

    watched.channel.set_typing = broken
    async with watched.open():
        await watched.store_harness.hear("@Andy hi")
        _, run, _ = await watched.store_harness.start_next()
        watched.tell("turn.started")
        await until(lambda: calls == [(FAMILY, True)], "tried")
        await watched.store_harness.lose(run)
        watched.tell("turn.put_back")
        await until(lambda: calls[-1] == (FAMILY, False), "tried again")


async def test_what_nobody_asked_for_shows_no_sign(watched):
    async with watched.open():
        async with watched.store_harness.database.transaction() as tx:
            await tx.execute(
                """
                INSERT INTO turns (group_folder, chat_jid, kind, state, queued_ms, not_before_ms)
                VALUES ('family', 'local:family', 'worker', 'queued', 0, 0)
                """
            )
        await watched.store_harness.start_next()
        watched.tell("turn.started")
        await watched.store_harness.add_group("work")
        await watched.store_harness.hear("@Andy hi", "work")
        await watched.store_harness.start_next("work")
        watched.tell("turn.started")
        await until(lambda: ("local:work", True) in watched.signs, "the question's sign")
    assert FAMILY not in {jid for jid, _ in watched.signs}
