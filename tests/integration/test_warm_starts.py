"""Containers that are started ahead of a turn: used, not used, outdated, in the way, and left behind.

A real store, a real queue; containers do what a test says, and what is written for them is kept.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent_runner.wire.frames import Ack, Ready, Result, Standby, TurnEnd
from agent_runner.wire.order import TurnOrder
from orchestrator.containers import timeouts
from orchestrator.containers.pool import RunPool
from orchestrator.containers.ports import Restoration, resume_plainly
from orchestrator.domain.failures import ModelError
from orchestrator.domain.turn_signs import Sign
from orchestrator.domain.values import (
    ChatJid,
    ContextMode,
    Folder,
    Group,
    RunId,
    RunState,
    Schedule,
    ScheduledTask,
    ScheduleKind,
    Turn,
    TurnState,
)
from orchestrator.groups import changes, registration
from orchestrator.groups.host_context import HostContext
from orchestrator.home.directory import Home
from orchestrator.home.settings import Settings
from orchestrator.queue.dispatcher import Containers, Dispatcher
from orchestrator.queue.warm_start_policy import DUE_WITHIN_MS
from orchestrator.queue.warm_starts import WarmStarts
from orchestrator.store.money import budgets
from orchestrator.store.runs import runs
from orchestrator.store.runs.model_refusals import ModelRefusal
from orchestrator.store.schedule import tasks
from tests.doubles.scripted_runtime import (
    NoFiles,
    ScriptedContainer,
    ScriptedOrders,
    ScriptedRuntime,
    scripted_pool,
    scripted_ports,
)
from tests.support.store_harness import StoreHarness
from tests.support.until import until

FAMILY, WORK = Folder("family"), Folder("work")


class WrittenTurns(NoFiles):
    def __init__(self) -> None:
        self.orders: dict[int, TurnOrder] = {}
        """The turns that were written for containers, by number."""

    def write_turn(self, folder: Folder, order: TurnOrder) -> None:  # type: ignore[override]
        self.orders[order.turn] = order


class Harness:
    """One host: its queue, its pool and its foresight, on an engine that outlives it."""

    def __init__(self, store_harness: StoreHarness, home: Path, runtime: ScriptedRuntime) -> None:
        self.store_harness, self.home, self.runtime = store_harness, home, runtime
        self.files = WrittenTurns()
        self.refusal: ModelRefusal | None = None
        self.environment: dict[str, str] = {}
        self.may_restore = asyncio.Event()
        self.may_restore.set()
        self.pool: RunPool
        self.foresight: WarmStarts
        self.host: HostContext

    @asynccontextmanager
    async def open(self, *, cap: int = 2, most: int = 1) -> AsyncIterator[Harness]:
        harness = self.store_harness
        settings = Settings(max_concurrent_containers=cap, andy_foresight=most)
        self.host = HostContext(
            home=Home(self.home),
            settings=settings,
            clock=harness.clock,
            database=harness.database,
            reader=harness.database,
            bus=harness.bus,
            wakeups=harness.wakeups,
        )
        ports = replace(
            scripted_ports(),
            files=self.files,
            orders=ScriptedOrders(environment=lambda *_: dict(self.environment)),
            restore=self._restore,
            new_run_id=lambda: RunId(secrets.token_hex(6)),
            token=lambda: ("token", secrets.token_hex(6)),
        )
        async with asyncio.TaskGroup() as jobs:
            self.pool = pool = scripted_pool(harness, self.runtime, jobs, self.home, ports=ports)
            await pool.adopt()
            queue = Dispatcher(
                harness.database,
                Containers(live=pool.live, start=pool.start, hand_over=pool.hand_over, close=pool.close),
                cap=lambda: cap,
                overlap=most,
                clock=harness.clock,
                wakeups=harness.wakeups,
            )
            self.foresight = WarmStarts(
                self.host,
                pool,
                cap=lambda: cap,
                refusal=self._refusal_of,
                is_taking_work=lambda: queue.is_taking_work,
            )
            loop = jobs.create_task(queue.run(), name="dispatcher")
            yield self
            await asyncio.sleep(0)
            for task in [loop, *pool.tasks()]:
                task.cancel()

    async def _restore(self, turn: Turn, group: Group, session_id: str | None) -> Restoration:
        if turn.folder == FAMILY:
            await self.may_restore.wait()
        return await resume_plainly(turn, group, session_id)

    async def _refusal_of(self, *_: Any) -> ModelRefusal | None:
        return self.refusal

    async def expect(self, folder: Folder = FAMILY, sign: Sign = Sign.TYPING) -> None:
        self.host.signs.note(sign, jid=ChatJid(f"local:{folder}"))
        await self.foresight.look()

    async def ready(self, folder: Folder = FAMILY) -> ScriptedContainer:
        """Have a container of a group started ahead, and booted."""
        await self.expect(folder)
        started = len(self.runtime.started)
        await until(lambda: len(self.runtime.started) > started - 1 and self.runtime.started, "it is started")
        await until(lambda: RunState.READY in self.states(folder), "it is ready")
        container = self.runtime.started[-1]
        container.say(Standby(n=1, cpu_seconds=0.75))
        await until(lambda: any(e.kind == "run.ready" for e in self.store_harness.bus.ring), "it has booted")
        return container

    async def ask(self, text: str = "@Andy hi", folder: Folder = FAMILY) -> Turn:
        await self.store_harness.hear(text, folder)
        return (await self.store_harness.queued(folder))[-1]

    async def given(self, turn: Turn) -> TurnOrder:
        await until(lambda: turn.id in self.files.orders, "the turn was written for the container")
        return self.files.orders[turn.id]

    async def answer(self, container: ScriptedContainer, turn: Turn, text: str = "Hello") -> None:
        container.say(Ack(n=2, turn=turn.id))
        container.say(Result(n=3, turn=turn.id, result=text))
        container.say(TurnEnd(n=4, turn=turn.id))
        await until(lambda: self.states(turn.folder) == [RunState.IDLE], "it is answered")

    def states(self, folder: Folder = FAMILY) -> list[RunState]:
        return [live.state for live in self.pool.live() if live.folder == folder]

    @property
    def figures(self) -> dict[str, Any]:
        return self.pool.foresight.as_data()


@pytest.fixture
async def harness(store_harness: StoreHarness, tmp_path: Path) -> Harness:
    for folder in (FAMILY, WORK):
        await store_harness.add_group(folder)
    return Harness(store_harness, tmp_path, ScriptedRuntime())


async def test_a_turn_goes_to_the_container_that_waits_for_it_with_all_that_is_decided_then(
    harness: Harness,
) -> None:
    async with harness.open():
        container = await harness.ready()
        (before,) = harness.runtime.orders
        assert before.is_standby
        assert (before.turn.turn, before.turn.prompt) == (0, "")
        turn = await harness.ask("@Andy where are the bees?")
        order = await harness.given(turn)
        assert "where are the bees" in order.prompt
        assert order.terms is not None
        assert order.run == container.run_id
        await harness.answer(container, turn)
        assert len(harness.runtime.started) == 1
        assert harness.figures == {"hits": {"typing": 1}, "misses": {}, "wasted_cpu_seconds": 0.0}
        assert [one.text for one in await harness.store_harness.outgoing()] == ["Hello"]
        second = await harness.ask("@Andy and now?")
        assert (await harness.given(second)).terms is None, "the run has begun: nothing else changes in it"


async def test_how_the_conversation_goes_on_is_recorded_when_the_turn_comes(harness: Harness) -> None:
    async with harness.open():
        container = await harness.ready()
        (row,) = await harness.store_harness.rows("SELECT restore_mode FROM runs")
        assert row["restore_mode"] is None, "nothing goes on before anybody asks"
        turn = await harness.ask()
        await harness.given(turn)
        (row,) = await harness.store_harness.rows("SELECT restore_mode FROM runs")
        assert row["restore_mode"] == "fresh"
        await harness.answer(container, turn)


async def test_nobody_asked_so_it_ends_after_two_minutes_and_no_failure_is_told(harness: Harness) -> None:
    async with harness.open():
        container = await harness.ready()
        harness.store_harness.clock.pass_ms(timeouts.UNUSED_MS - 1_000)
        container.say(Standby(n=2))
        await until(lambda: harness.states() == [RunState.READY], "it waits")
        reaper = asyncio.create_task(harness.pool.reap(), name="reaper")
        harness.store_harness.wakeups.reaper.set()
        harness.store_harness.clock.pass_ms(2_000)
        harness.store_harness.wakeups.reaper.set()
        await until(lambda: harness.states() == [], "it has ended")
        reaper.cancel()
        assert container.has_ended.is_set()
        assert harness.figures == {"hits": {}, "misses": {"typing": 1}, "wasted_cpu_seconds": 0.75}
        (row,) = await harness.store_harness.rows("SELECT exit_kind FROM runs")
        assert row["exit_kind"] == "closed", "an end like this is no error"
        assert await harness.store_harness.outgoing() == []


async def test_who_waits_for_a_slot_takes_that_of_the_container_nobody_asked(harness: Harness) -> None:
    async with harness.open(cap=1):
        ahead = await harness.ready(FAMILY)
        await harness.ask(folder=WORK)
        await until(lambda: harness.states(WORK) == [RunState.BUSY], "the other group's turn has begun")
        await until(ahead.has_ended.is_set, "what was started ahead has ended")
        assert harness.figures["misses"] == {"typing": 1}


async def test_no_slot_of_anybody_is_taken(harness: Harness) -> None:
    async with harness.open(cap=1):
        await harness.ask(folder=WORK)
        await until(lambda: harness.states(WORK) == [RunState.BUSY], "the only slot is taken")
        await harness.expect(FAMILY)
        assert harness.states(FAMILY) == []


@pytest.mark.parametrize("change", ["config", "environment"])
async def test_a_container_that_no_longer_fits_is_ended_and_another_is_started(
    harness: Harness, change: str
) -> None:
    async with harness.open():
        first = await harness.ready()
        if change == "config":
            async with harness.store_harness.database.transaction() as tx:
                await changes.configure(tx, FAMILY, {"memory_mb": 512}, by="a test", now_ms=1)
        else:
            harness.environment = {"TZ": "Asia/Seoul"}
        turn = await harness.ask()
        await until(lambda: len(harness.runtime.started) == 2, "another container is started")
        assert first.has_ended.is_set()
        assert turn.id not in harness.files.orders
        again = harness.runtime.started[-1]
        assert harness.runtime.orders[-1].turn.turn == turn.id
        again.say(Ack(n=1, turn=turn.id))
        again.say(TurnEnd(n=2, turn=turn.id))
        await until(lambda: harness.states() == [RunState.IDLE], "it is answered")
        assert (await harness.store_harness.turn(turn.id)).attempt == 1


async def test_nobody_waits_until_another_groups_conversation_is_read(harness: Harness) -> None:
    async with harness.open():
        container = await harness.ready()
        harness.may_restore.clear()
        turn = await harness.ask()
        await until(lambda: harness.states() == [RunState.BUSY], "its conversation is being read")
        await harness.ask(folder=WORK)
        await until(lambda: harness.states(WORK) == [RunState.BUSY], "the other group has its container")
        assert turn.id not in harness.files.orders
        harness.may_restore.set()
        await harness.answer(container, turn)


async def test_one_that_dies_while_its_turn_is_prepared_costs_no_attempt(harness: Harness) -> None:
    async with harness.open():
        container = await harness.ready()
        harness.may_restore.clear()
        turn = await harness.ask()
        await until(lambda: harness.states() == [RunState.BUSY], "its conversation is being read")
        container.end()
        await until(lambda: container not in harness.runtime.present, "it is gone")
        harness.may_restore.set()
        await until(lambda: len(harness.runtime.started) == 2, "another container is started")
        assert (await harness.store_harness.turn(turn.id)).attempt == 1


async def test_one_that_dies_is_missed_by_nobody(harness: Harness) -> None:
    async with harness.open():
        container = await harness.ready()
        container.end()
        await until(lambda: harness.states() == [], "it is gone")
        turn = await harness.ask()
        await until(lambda: harness.states() == [RunState.BUSY], "a container is started for the turn")
        assert (await harness.store_harness.turn(turn.id)).attempt == 1
        assert await harness.store_harness.outgoing() == []


async def test_one_that_dies_before_it_took_its_turn_costs_no_pause(harness: Harness) -> None:
    async with harness.open():
        container = await harness.ready()
        turn = await harness.ask()
        await harness.given(turn)
        container.end()
        await until(lambda: len(harness.runtime.started) == 2, "the turn is tried again, at once")
        found = await harness.store_harness.turn(turn.id)
        assert found.state is TurnState.RUNNING
        assert await harness.store_harness.outgoing() == []


async def test_a_turn_that_comes_while_the_container_is_made_is_given_to_it(harness: Harness) -> None:
    may_start = asyncio.Event()
    start = harness.runtime.start

    async def slowly(*given: Any) -> ScriptedContainer:
        await may_start.wait()
        return await start(*given)

    harness.runtime.start = slowly  # type: ignore[method-assign]
    async with harness.open():
        await harness.expect()
        await until(lambda: harness.states() == [RunState.READY], "it is being made")
        turn = await harness.ask()
        await harness.given(turn)
        may_start.set()
        await until(lambda: harness.runtime.started, "it is there")
        await harness.answer(harness.runtime.started[0], turn)
        assert len(harness.runtime.started) == 1


async def test_one_that_is_in_the_way_while_it_is_made_ends_as_soon_as_it_is_there(harness: Harness) -> None:
    may_start = asyncio.Event()
    start = harness.runtime.start

    async def slowly(spec: Any, order: str) -> ScriptedContainer:
        if spec.folder == FAMILY:
            await may_start.wait()
        return await start(spec, order)

    harness.runtime.start = slowly  # type: ignore[method-assign]
    async with harness.open(cap=1):
        await harness.expect()
        await until(lambda: harness.states() == [RunState.READY], "it is being made")
        await harness.ask(folder=WORK)
        await until(lambda: harness.states(WORK) == [RunState.BUSY], "the other group does not wait for it")
        may_start.set()
        await until(lambda: harness.states(FAMILY) == [], "it has ended")
        assert [one.folder for one in harness.runtime.working] == [WORK]


async def test_a_host_that_was_killed_leaves_none_behind(harness: Harness) -> None:
    async with harness.open():
        container = await harness.ready()
    async with harness.open():
        await until(container.has_ended.is_set, "it was ended")
        assert harness.pool.live() == []
        (row,) = await harness.store_harness.rows("SELECT exit_kind FROM runs")
        assert row["exit_kind"] == "closed"
        await harness.ask()
        await until(lambda: harness.states() == [RunState.BUSY], "a container is started for the turn")
        assert len(harness.runtime.working) == 1


async def test_a_host_that_was_killed_before_the_turn_was_written_writes_it_with_its_terms(
    harness: Harness,
) -> None:
    async with harness.open():
        container = await harness.ready()
        turn = await harness.ask()
        await harness.given(turn)
    harness.files.orders.clear()
    async with harness.open():
        order = await harness.given(turn)
        assert (order.run, order.turn) == (container.run_id, turn.id)
        assert order.terms is not None
        await harness.answer(container, turn)
        assert len(harness.runtime.started) == 1
        assert [one.text for one in await harness.store_harness.outgoing()] == ["Hello"]


async def test_a_turn_that_was_not_written_ends_at_the_start_if_its_group_is_gone(harness: Harness) -> None:
    store = harness.store_harness
    async with harness.open():
        container = await harness.ready()
        turn = await harness.ask()
        await harness.given(turn)
    async with store.database.transaction() as tx:
        await registration.unregister(tx, FAMILY, now_ms=store.clock.now_ms())
    async with harness.open():
        await until(container.has_ended.is_set, "its container was stopped")

        async def has_failed() -> bool:
            store.clock.pass_ms(10_000)
            store.wakeups.lanes.set()
            return (await store.turn(turn.id)).state is TurnState.FAILED

        await until(has_failed, "the turn has failed")
        assert (await store.turn(turn.id)).reason == "this group is no longer registered."
        assert harness.states() == []


async def test_a_group_whose_model_is_refused_or_whose_budget_is_spent_gets_none(harness: Harness) -> None:
    async with harness.open():
        harness.refusal = ModelRefusal(
            id=1,
            cause=ModelError.NO_CREDIT,
            setting=None,
            model=None,
            status=400,
            since_ms=0,
            notified_ms=None,
        )
        await harness.expect()
        assert harness.states() == []
        harness.refusal = None
        async with harness.store_harness.database.transaction() as tx:
            await budgets.put(
                tx,
                folder=FAMILY,
                is_background=False,
                period=budgets.Period.DAY,
                unit=budgets.Unit.TOKENS,
                amount=0,
                now_ms=1,
            )
        await harness.expect()
        assert harness.states() == []


async def test_talk_counts_only_where_andy_was_called_within_the_hour(harness: Harness) -> None:
    async with harness.open():
        await harness.expect(sign=Sign.TALK)
        assert harness.states() == []
        turn = await harness.ask()
        await until(lambda: harness.runtime.started, "its container is started")
        await harness.answer(harness.runtime.started[0], turn)
        await harness.pool.retire(FAMILY)
        harness.runtime.started[0].end()
        await until(lambda: harness.states() == [], "its container is gone")
        await harness.expect(sign=Sign.TALK)
        assert harness.states() != []


async def test_talk_starts_none_beside_a_container_that_boots_for_a_turn(harness: Harness) -> None:
    async with harness.open():
        asked = await harness.ask()
        await until(lambda: harness.runtime.started, "its container is started")
        await harness.answer(harness.runtime.started[0], asked)
        await harness.pool.retire(FAMILY)
        harness.runtime.started[0].end()
        await until(lambda: harness.states() == [], "its container is gone")
        await harness.ask(folder=WORK)
        await until(lambda: RunState.BUSY in harness.states(WORK), "the other group's container is started")
        await harness.expect(sign=Sign.TALK)
        assert harness.states() == []
        harness.runtime.started[1].say(Ready(n=1))
        await until(lambda: not any(one.is_awaited for one in harness.pool.live()), "it has booted")
        await harness.expect(sign=Sign.TALK)
        assert harness.states() != []


async def test_what_is_due_gets_its_container_ten_seconds_before(harness: Harness) -> None:
    store_harness = harness.store_harness
    now_ms = store_harness.clock.now_ms()
    task = tasks_of_the_family(now_ms + 60_000)
    async with store_harness.database.transaction() as tx:
        await tasks.put(tx, task)
    async with harness.open():
        assert await harness.foresight.look() == pytest.approx((60_000 - DUE_WITHIN_MS) / 1000)
        assert harness.states() == []
        store_harness.clock.pass_ms(60_000 - DUE_WITHIN_MS)
        await harness.foresight.look()
        await until(lambda: harness.states() == [RunState.READY], "it is ready before its time")
        (live,) = harness.pool.live()
        assert live.is_isolated
        assert harness.runtime.orders[0].turn.kind == "task"


def tasks_of_the_family(due_ms: int) -> Any:
    return ScheduledTask(
        id="t1",
        folder=FAMILY,
        chat_jid=ChatJid("local:family"),
        prompt="feed the bees",
        schedule=Schedule(kind=ScheduleKind.ONCE, value="", timezone="UTC"),
        context_mode=ContextMode.ISOLATED,
        next_ms=due_ms,
        created_ms=1,
    )


async def test_as_the_host_ends_what_nobody_asked_ends_too(harness: Harness) -> None:
    async with harness.open():
        container = await harness.ready()
        await harness.pool.drain(seconds=5)
        await until(lambda: harness.states() == [], "it is gone")
        assert container.has_ended.is_set()
        async with harness.store_harness.database.reading() as tx:
            assert await runs.live(tx) == []
