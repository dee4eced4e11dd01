"""How a loop is told, and switched over HTTP: by the store alone, so also with Andy down."""

from __future__ import annotations

import json
from zoneinfo import ZoneInfo

import pytest

from orchestrator.domain.errors import UnknownGroup
from orchestrator.loop import service
from orchestrator.reports import loop
from orchestrator.store.runs import turns
from orchestrator.web.api.loops import LoopApi, loop_routes
from tests.support.loop_harness import MINUTE, LoopHarness, at

ZONE = ZoneInfo("Asia/Taipei")
SILENT = "<internal>nothing to do</internal>"


@pytest.fixture
async def due(store_harness) -> LoopHarness:
    harness = LoopHarness(store_harness)
    harness.set("10:00:00")
    await harness.on(next_wake_ms=at("10:00:00"))
    return harness


async def told(harness: LoopHarness, folder: str = "family") -> dict:
    async with harness.harness.database.reading() as tx:
        found = await loop.get(tx, folder, now_ms=harness.harness.clock.now_ms())
    return json.loads(json.dumps(found))


async def lines(harness: LoopHarness) -> str:
    return "\n".join(loop.show_lines(await told(harness), ZONE))


async def test_the_next_wake_is_told_with_who_set_it_and_every_step(due):
    await due.look()
    await due.cycle('Asked. [SCHEDULE next="10h" reason="waiting for feedback"]', ends="10:02:00")
    found = await told(due)

    assert (found["status"], found["set_by"], found["raw"]) == ("on", "agent", "10h")
    assert found["in_ms"] == 240 * MINUTE
    text = await lines(due)
    assert "family: on, sleeps until Sat 2026-02-14 14:02 (4 h): waiting for feedback" in text
    assert "set by agent; without a wish it would be 5 min" in text
    assert "· the agent asked for '10h': in 4 h" in text
    assert "· bounded to 2 min … 4 h" in text
    assert "auto action, asked for 10h, then 4 h (heartbeat" in text


async def test_a_cap_is_told_with_what_remains_of_it(due):
    await due.harness.hear("m1")
    await due.cycle(f'{SILENT}[SCHEDULE next="4h"]')
    assert "· capped to 2 min: a message was not answered (1 of 2)" in await lines(due)


async def test_what_is_pending_or_holds_is_told(due):
    due.spent = "the budget of the day is spent until Sun 2026-02-15 00:00"
    await due.trigger(reason="plan.md")
    await due.look()
    text = await lines(due)
    assert "held: the budget of the day is spent" in text
    assert "pending: workspace plan.md" in text


async def test_a_cycle_that_waits_or_runs_is_told(due):
    await due.look()
    assert "family: on, a cycle waits for its container" in await lines(due)
    await due.start()
    assert "family: on, its auto turn runs" in await lines(due)


async def test_a_cycle_that_waits_for_another_attempt_is_listed(due):
    await due.look()
    turn = await due.start()
    assert (await told(due))["waiting"] == []
    async with due.harness.database.transaction() as tx:
        await turns.put_back(tx, turn, reason="the machine was restarted", not_before_ms=at("10:05:00"))
    assert (await told(due))["waiting"] == ["auto"]


async def test_paused_off_and_never_on_are_told(due):
    await due.act("pause")
    assert (await lines(due)).startswith("family: paused\n")
    await due.act("off")
    assert await lines(due) == "family: off"
    await due.harness.add_group("work")
    async with due.harness.database.reading() as tx:
        rows = await loop.every(tx, now_ms=0)
    assert loop.list_lines(rows, ZONE) == ["family: off", "work: off"]
    with pytest.raises(UnknownGroup):
        await told(due, "nobody")


async def test_a_loop_is_switched_over_http_and_its_host_told(due):
    async def act(tx, folder, action, reason):
        return await service.apply_action(
            tx, folder, action, reason=reason, now_ms=due.harness.clock.now_ms()
        )

    loops = LoopApi(due.harness.database, act=act)
    assert await loops.act("family", "pause", "") == {"group": "family", "action": "pause"}
    assert due.harness.bus.ring[-1].kind == "loop.changed"
    assert (await told(due))["status"] == "paused"
    (route,) = loop_routes(loops)
    assert route.path == "/loops/{folder}/{action}"
