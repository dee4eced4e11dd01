"""The lanes' decisions carried out, on a real store and with containers that only take notes."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest

from orchestrator.domain.values import LiveRun, RunState, TurnState
from orchestrator.queue.dispatcher import Containers, Dispatcher
from orchestrator.store.runs import turns
from tests.support.queue_harness import a_run
from tests.support.until import until


class Yard:
    """Stands for the pool: starts turns in the store, remembers the rest."""

    def __init__(self, harness):
        self.harness = harness
        self.runs: dict[str, LiveRun] = {}
        self.done: list[tuple[str, ...]] = []
        self.broken: set[str] = set()

    async def start(self, turn):
        self._may_break(turn)
        run = await self.harness.begin_run(turn.folder)
        await self.harness.give(turn, run)
        self.runs[run.id] = a_run(run.id, turn.folder, state=RunState.BUSY)
        self.done.append(("start", turn.folder))

    async def hand_over(self, turn, run_id):
        self._may_break(turn)
        async with self.harness.database.transaction() as tx:
            await turns.start(tx, turn.id, run_id, now_ms=self.harness.clock.now_ms())
        self.runs[run_id] = a_run(run_id, turn.folder, state=RunState.BUSY)
        self.done.append(("hand over", turn.folder))

    async def close(self, run_id):
        self.done.append(("close", self.runs.pop(run_id).folder))
        self.harness.wakeups.lanes.set()

    def idle(self):
        """All that ran is answered; the containers wait for more."""
        self.runs = {name: a_run(name, run.folder) for name, run in self.runs.items()}
        self.harness.wakeups.lanes.set()

    def _may_break(self, turn):
        if turn.folder in self.broken:
            raise LookupError(turn.folder)

    @asynccontextmanager
    async def open(self, *, cap=5):
        dispatcher = Dispatcher(
            self.harness.database,
            Containers(
                live=lambda: list(self.runs.values()),
                start=self.start,
                hand_over=self.hand_over,
                close=self.close,
            ),
            cap=lambda: cap,
            clock=self.harness.clock,
            wakeups=self.harness.wakeups,
        )
        async with asyncio.TaskGroup() as tasks:
            loop = tasks.create_task(dispatcher.run(), name="dispatcher")
            try:
                yield dispatcher
            finally:
                loop.cancel()


@pytest.fixture
async def yard(store_harness):
    for folder in ("family", "work", "club"):
        await store_harness.add_group(folder)
    return Yard(store_harness)


async def answer_all(yard):
    async with yard.harness.database.transaction() as tx:
        for turn in await turns.unsettled(tx):
            if turn.state is TurnState.RUNNING:
                await turns.settle(tx, turn.id, TurnState.ANSWERED, reason=None, now_ms=1)
    yard.idle()


async def test_a_message_wakes_the_lanes_and_its_turn_starts(yard):
    async with yard.open():
        await asyncio.sleep(0)
        await yard.harness.hear("@Andy hi")
        await until(lambda: yard.done == [("start", "family")], "a start")


async def test_what_was_queued_before_the_host_started_is_started(yard):
    await yard.harness.hear("@Andy hi")
    await yard.harness.hear("@Andy hi", "work")

    async with yard.open():
        await until(lambda: yard.done == [("start", "family"), ("start", "work")], "both starts")


async def test_a_live_container_gets_the_next_turn(yard):
    async with yard.open():
        await yard.harness.hear("@Andy hi")
        await until(lambda: yard.done, "a start")
        await answer_all(yard)
        await yard.harness.hear("@Andy and?")
        await until(lambda: yard.done[1:] == [("hand over", "family")], "a hand-over")


async def test_an_idle_container_gives_its_slot_to_another_group(yard):
    async with yard.open(cap=1):
        await yard.harness.hear("@Andy hi")
        await until(lambda: yard.done, "a start")
        await answer_all(yard)
        await yard.harness.hear("@Andy hi", "work")
        await until(lambda: yard.done[1:] == [("close", "family"), ("start", "work")], "the change")


async def test_who_waits_ten_seconds_is_told_its_place_once(yard):
    async with yard.open(cap=1):
        for folder in ("family", "work", "club"):
            await yard.harness.hear("@Andy hi", folder)
        await until(lambda: yard.done, "a start")
        assert await yard.harness.outgoing() == []
        yard.harness.clock.pass_ms(10_000)
        yard.harness.wakeups.lanes.set()

        async def told():
            return len(await yard.harness.outgoing()) == 2

        await until(told, "two places")
        yard.harness.clock.pass_ms(60_000)
        yard.harness.wakeups.lanes.set()
        await answer_all(yard)
        await until(lambda: len(yard.done) == 3, "the next start")

    first, second = await yard.harness.outgoing()
    assert (first.folder, second.folder) == ("work", "club")
    assert "you are next" in first.text
    assert "1 ahead of you" in second.text


async def test_who_stops_their_question_while_a_container_starts_is_told_no_place(yard):
    work = await yard.harness.hear("@Andy hi", "work")
    yard.harness.clock.pass_ms(1)
    club = await yard.harness.hear("@Andy hi", "club")
    start = yard.start

    async def stop_the_other_and_start(turn):
        async with yard.harness.database.transaction() as tx:
            await turns.settle(tx, club.turn_id, TurnState.FAILED, reason="stopped", now_ms=1)
        await start(turn)

    yard.start = stop_the_other_and_start
    yard.harness.clock.pass_ms(10_000)
    async with yard.open(cap=1):
        await until(lambda: yard.done == [("start", "work")], "the start")
        yard.harness.wakeups.lanes.set()
        await until(lambda: not yard.harness.wakeups.lanes._event.is_set(), "the next pass")

    assert (await yard.harness.turn(work.turn_id)).state is TurnState.RUNNING
    assert await yard.harness.outgoing() == []


async def test_a_turn_that_cannot_be_started_keeps_no_other_from_it(yard):
    yard.broken.add("family")
    async with yard.open():
        await yard.harness.hear("@Andy hi")
        await yard.harness.hear("@Andy hi", "work")
        await until(lambda: ("start", "work") in yard.done, "the other start")

    (turn,) = await yard.harness.queued("family")
    assert turn.attempt == 2
    assert turn.not_before_ms > yard.harness.clock.now_ms()


async def test_a_turn_that_can_never_be_started_fails_and_its_chat_is_told(yard):
    yard.broken.add("family")
    accepted = await yard.harness.hear("@Andy hi")

    async def failed():
        yard.harness.clock.pass_ms(100_000)
        yard.harness.wakeups.lanes.set()
        return (await yard.harness.turn(accepted.turn_id)).state is TurnState.FAILED

    async with yard.open():
        await until(failed, "the failure")

    assert (await yard.harness.turn(accepted.turn_id)).attempt == 6
    (told,) = await yard.harness.outgoing()
    assert "inside Andy" in told.text


async def test_a_turn_is_tried_again_at_its_time(yard):
    await yard.harness.hear("@Andy hi")
    _, run, _ = await yard.harness.start_next()
    await yard.harness.lose(run)

    async with yard.open():
        await until(lambda: yard.harness.database, "the loop")
        assert yard.done == []
        yard.harness.clock.pass_ms(5_000)
        yard.harness.wakeups.lanes.set()
        await until(lambda: yard.done == [("start", "family")], "the second attempt")


async def test_a_host_that_shuts_down_takes_no_new_work(yard):
    async with yard.open() as dispatcher:
        dispatcher.is_taking_work = False
        await yard.harness.hear("@Andy hi")
        for _ in range(2):  # it takes the second hint when it has done all that it would upon the first
            yard.harness.wakeups.lanes.set()
            await until(lambda: not yard.harness.wakeups.lanes._event.is_set(), "the hint is taken")

    assert yard.done == []
    assert len(await yard.harness.queued()) == 1
