"""The lanes' decisions carried out, on a real store and with containers that only take notes."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest

from orchestrator.domain.values import LiveRun, RunState, TurnState
from orchestrator.queue.dispatcher import Containers, Dispatcher
from orchestrator.store import turns
from tests.support.queue_harness import a_run
from tests.support.until import until


class Yard:
    """Stands for the pool: starts turns in the store, remembers the rest."""

    def __init__(self, house):
        self.house = house
        self.runs: dict[str, LiveRun] = {}
        self.done: list[tuple[str, ...]] = []
        self.broken: set[str] = set()

    async def start(self, turn):
        self._may_break(turn)
        run = await self.house.begin_run(turn.folder)
        await self.house.give(turn, run)
        self.runs[run.id] = a_run(run.id, turn.folder, state=RunState.BUSY)
        self.done.append(("start", turn.folder))

    async def hand_over(self, turn, run_id):
        self._may_break(turn)
        async with self.house.database.transaction() as tx:
            await turns.start(tx, turn.id, run_id, now_ms=self.house.clock.now_ms())
        self.runs[run_id] = a_run(run_id, turn.folder, state=RunState.BUSY)
        self.done.append(("hand over", turn.folder))

    async def close(self, run_id):
        self.done.append(("close", self.runs.pop(run_id).folder))
        self.house.wakeups.lanes.set()

    def idle(self):
        """All that ran is answered; the containers wait for more."""
        self.runs = {name: a_run(name, run.folder) for name, run in self.runs.items()}
        self.house.wakeups.lanes.set()

    def _may_break(self, turn):
        if turn.folder in self.broken:
            raise LookupError(turn.folder)

    @asynccontextmanager
    async def open(self, *, cap=5):
        dispatcher = Dispatcher(
            self.house.database,
            Containers(
                live=lambda: list(self.runs.values()),
                start=self.start,
                hand_over=self.hand_over,
                close=self.close,
            ),
            cap=cap,
            clock=self.house.clock,
            wakeups=self.house.wakeups,
        )
        async with asyncio.TaskGroup() as tasks:
            loop = tasks.create_task(dispatcher.run(), name="dispatcher")
            try:
                yield dispatcher
            finally:
                loop.cancel()


@pytest.fixture
async def yard(household):
    for folder in ("family", "work", "club"):
        await household.add_group(folder)
    return Yard(household)


async def answer_all(yard):
    async with yard.house.database.transaction() as tx:
        for turn in await turns.unsettled(tx):
            if turn.state is TurnState.RUNNING:
                await turns.settle(tx, turn.id, TurnState.ANSWERED, reason=None, now_ms=1)
    yard.idle()


async def test_a_message_wakes_the_lanes_and_its_turn_starts(yard):
    async with yard.open():
        await asyncio.sleep(0)
        await yard.house.hear("@Andy hi")
        await until(lambda: yard.done == [("start", "family")], "a start")


async def test_what_was_queued_before_the_host_started_is_started(yard):
    await yard.house.hear("@Andy hi")
    await yard.house.hear("@Andy hi", "work")

    async with yard.open():
        await until(lambda: yard.done == [("start", "family"), ("start", "work")], "both starts")


async def test_a_live_container_gets_the_next_turn(yard):
    async with yard.open():
        await yard.house.hear("@Andy hi")
        await until(lambda: yard.done, "a start")
        await answer_all(yard)
        await yard.house.hear("@Andy and?")
        await until(lambda: yard.done[1:] == [("hand over", "family")], "a hand-over")


async def test_an_idle_container_gives_its_slot_to_another_group(yard):
    async with yard.open(cap=1):
        await yard.house.hear("@Andy hi")
        await until(lambda: yard.done, "a start")
        await answer_all(yard)
        await yard.house.hear("@Andy hi", "work")
        await until(lambda: yard.done[1:] == [("close", "family"), ("start", "work")], "the change")


async def test_who_waits_ten_seconds_is_told_its_place_once(yard):
    async with yard.open(cap=1):
        for folder in ("family", "work", "club"):
            await yard.house.hear("@Andy hi", folder)
        await until(lambda: yard.done, "a start")
        assert await yard.house.outgoing() == []
        yard.house.clock.pass_ms(10_000)
        yard.house.wakeups.lanes.set()

        async def told():
            return len(await yard.house.outgoing()) == 2

        await until(told, "two places")
        yard.house.clock.pass_ms(60_000)
        yard.house.wakeups.lanes.set()
        await answer_all(yard)
        await until(lambda: len(yard.done) == 3, "the next start")

    first, second = await yard.house.outgoing()
    assert (first.folder, second.folder) == ("work", "club")
    assert "you are next" in first.text
    assert "1 ahead of you" in second.text


async def test_a_turn_that_cannot_be_started_keeps_no_other_from_it(yard):
    yard.broken.add("family")
    async with yard.open():
        await yard.house.hear("@Andy hi")
        await yard.house.hear("@Andy hi", "work")
        await until(lambda: ("start", "work") in yard.done, "the other start")

    (turn,) = await yard.house.queued("family")
    assert turn.attempt == 2
    assert turn.not_before_ms > yard.house.clock.now_ms()


async def test_a_turn_that_can_never_be_started_fails_and_its_chat_is_told(yard):
    yard.broken.add("family")
    accepted = await yard.house.hear("@Andy hi")

    async def failed():
        yard.house.clock.pass_ms(100_000)
        yard.house.wakeups.lanes.set()
        return (await yard.house.turn(accepted.turn_id)).state is TurnState.FAILED

    async with yard.open():
        await until(failed, "the failure")

    assert (await yard.house.turn(accepted.turn_id)).attempt == 6
    (told,) = await yard.house.outgoing()
    assert "inside Andy" in told.text


async def test_a_turn_is_tried_again_at_its_time(yard):
    await yard.house.hear("@Andy hi")
    _, run, _ = await yard.house.start_next()
    await yard.house.lose(run)

    async with yard.open():
        await until(lambda: yard.house.database, "the loop")
        assert yard.done == []
        yard.house.clock.pass_ms(5_000)
        yard.house.wakeups.lanes.set()
        await until(lambda: yard.done == [("start", "family")], "the second attempt")


async def test_a_host_that_shuts_down_takes_no_new_work(yard):
    async with yard.open() as dispatcher:
        dispatcher.is_taking_work = False
        await yard.house.hear("@Andy hi")
        for _ in range(2):  # it takes the second hint when it has done all that it would upon the first
            yard.house.wakeups.lanes.set()
            await until(lambda: not yard.house.wakeups.lanes._event.is_set(), "the hint is taken")

    assert yard.done == []
    assert len(await yard.house.queued()) == 1
