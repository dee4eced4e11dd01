"""What agents and owners do to loops: through the dispatcher, and against real budgets."""

from __future__ import annotations

import json

import pytest

from orchestrator.domain.values import Folder
from orchestrator.groups import registration
from orchestrator.home.settings import Settings
from orchestrator.ipc.command_dispatcher import CommandDispatcher
from orchestrator.loop.cycle_starter import stop_nothing
from orchestrator.loop.feature import LoopFeature, visible_text
from orchestrator.scheduler.timing import schedule_reader
from orchestrator.scheduler.when import point_ms
from orchestrator.store.groups import groups
from orchestrator.store.money import budgets
from tests.support.host_contexts import host_context
from tests.support.loop_harness import TAIPEI, LoopHarness, at

SILENT = "<internal>nothing to do</internal>"


@pytest.fixture
async def due(store_harness) -> LoopHarness:
    harness = LoopHarness(store_harness)
    harness.set("10:00:00")
    async with store_harness.database.transaction() as tx:
        await registration.ensure_main(tx, now_ms=0)
    await harness.on(next_wake_ms=at("10:00:00"))
    return harness


@pytest.fixture
def waking(due, tmp_path) -> LoopFeature:
    harness = due.harness

    async def nothing(tx, turn, group):
        return None

    host = host_context(harness, tmp_path, Settings(tz=TAIPEI.key))
    return LoopFeature(host, summary=nothing, stop_run=stop_nothing)


@pytest.fixture
def ask(due, waking):
    harness = due.harness
    dispatcher = CommandDispatcher(
        harness.database,
        clock=harness.clock,
        read_time=point_ms,
        times=schedule_reader(lambda _: TAIPEI),
        zone_of=lambda _: TAIPEI,
        wakeups=harness.wakeups,
        bus=harness.bus,
        loops=waking,
    )

    async def asked(by: str, type_: str, **fields):
        async with harness.database.reading() as tx:
            group = await groups.known(tx, by)
        body = json.dumps({"type": type_, "requestId": f"r{next(due.numbers)}", **fields})
        return await dispatcher.handle(group, "request", body.encode())

    return asked


async def test_an_agent_sets_its_next_wake_and_is_told_what_it_comes_to(due, ask):
    await due.look()
    turn = await due.start()
    reply = await ask("family", "set_next_wake", next="10h", reason="night")
    assert (reply.ok, reply.data) == (True, {"applied_minutes": 240, "bounded": True})
    assert (await ask("family", "set_next_wake", next="soon")).code == "bad_wake"
    await due.end(turn, SILENT)
    assert await due.next_wake() == "14:00:00"


async def test_a_group_without_a_loop_is_told_so(due, ask):
    reply = await ask("main", "set_next_wake", next="30m")
    assert (reply.ok, reply.code) == (False, "loop_off")
    assert "andy loop on main" in reply.text


async def test_main_switches_loops_and_others_do_not(due, ask):
    assert (await ask("family", "control_loop", action="off")).code == "not_allowed"
    assert (await due.loop()).status == "on"
    assert (await ask("main", "control_loop", action="pause", targetFolder="family")).ok
    assert (await due.loop()).status == "paused"
    assert (await ask("main", "control_loop", action="on")).ok
    assert (await due.loop("main")).status == "on"
    assert (await ask("main", "control_loop", action="dance")).code == "bad_request"
    assert (await ask("main", "control_loop", action="on", targetFolder="nobody")).code == "unknown_group"
    assert await due.loops._handle(due.harness.bus.ring[-1]), "a switch by an agent is seen at once"


@pytest.mark.parametrize(
    ("budget", "is_held"),
    [
        ({"folder": Folder("family"), "is_background": True}, True),
        ({"folder": None, "is_background": True}, True),
        ({"folder": Folder("family"), "is_background": False}, True),
        ({"folder": Folder("work"), "is_background": True}, False),
    ],
)
async def test_bt_22_a_spent_budget_of_the_background_holds_free_cycles(due, waking, budget, is_held):
    async with due.harness.database.transaction() as tx:
        period, unit = budgets.Period.DAY, budgets.Unit.TOKENS
        await budgets.put(tx, **budget, period=period, unit=unit, amount=0, now_ms=0)
        why = await waking._why_spent(tx, await groups.known(tx, "family"))
    expected = "the budget of the day is spent until Sun 2026-02-15 00:00"
    assert why == (expected if is_held else None)


def test_people_see_neither_tags_nor_the_word_for_silence():
    assert visible_text('Hello [SCHEDULE next="30m"]') == "Hello"
    assert visible_text('SILENT\n[SCHEDULE next="30m"]') == ""
    assert visible_text(SILENT) == ""
