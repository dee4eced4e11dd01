"""Loops that are off, paused, held or overdue, and how they go on."""

from __future__ import annotations

import pytest

from orchestrator.domain.errors import BadRequest
from orchestrator.domain.values import TurnKind
from orchestrator.loop import cycle_starter
from orchestrator.loop.service import LoopOff
from orchestrator.store.loop.loops import LoopStatus
from tests.support.loop_harness import MINUTE, at


async def test_bt_10_a_cycle_that_came_to_nothing_keeps_no_old_wish(due):
    await due.change(auto_interval_ms=10 * MINUTE, wake_set_by="agent")
    await due.look()
    turn = await due.start()
    await due.fail(turn)

    (cycle,) = await due.cycles()
    assert cycle.outcome == "error"
    assert await due.next_wake() == "10:10:00"


async def test_bt_11_a_wake_to_come_survives_a_restart(idle):
    await idle.change(next_wake_ms=at("10:45:00"))
    idle.set("10:20:00")
    idle.loops = idle.another_host()
    await idle.loops.prepare()

    assert await idle.next_wake() == "10:45:00"
    assert await idle.until("10:50:00") == [("auto", at("10:45:00"))]


async def test_bt_11_an_overdue_wake_is_one_cycle_after_the_warm_up_group_after_group(idle):
    await idle.change(next_wake_ms=at("10:45:00"))
    await idle.on("work", next_wake_ms=at("10:50:00"))
    idle.set("11:00:00")
    idle.loops = idle.another_host()
    await idle.loops.prepare()

    starts = await idle.until("11:05:00")
    assert starts == [("auto", at("11:00:15")), ("auto", at("11:00:20"))]
    for folder in ("family", "work"):
        cycle = (await idle.cycles(folder))[-1]
        assert cycle.triggers[0].startswith("heartbeat: overdue, set by")


async def test_bt_11_a_clock_that_is_set_back_after_a_start_prolongs_no_warm_up(idle):
    await idle.change(next_wake_ms=at("10:45:00"))
    idle.set("11:00:00")
    idle.loops = idle.another_host()
    await idle.loops.prepare()
    idle.set("10:50:00")

    assert (await idle.until("10:55:00"))[:1] == [("auto", at("10:50:15"))]


async def test_bt_20_the_end_of_the_only_loop_is_published_at_once(idle):
    await idle.look()
    await idle.act("off")
    await idle.look()
    published = [event.data["event"] for event in idle.harness.bus.ring if event.kind == "action:loop"]
    assert published[-1:] == ["loop.off"]


async def test_bt_22_a_spent_budget_holds_free_cycles_and_never_the_chat(due):
    due.spent = "the budget of the day is spent"
    await due.trigger()
    assert await due.look() == cycle_starter.SWEEP_SECONDS
    assert await due.waiting() == []
    assert (await due.loop()).held == "the budget of the day is spent"
    await due.harness.hear("hello")
    await due.cycle("Hello!")
    due.spent = None
    assert (await due.until("10:01:00"))[0][0] == "auto", "the trigger was kept"
    assert (await due.loop()).held is None


async def test_bt_24_a_paused_loop_has_no_timer_and_a_resumed_one_the_old(idle):
    await idle.act("pause")
    await idle.trigger()
    assert await idle.until("10:30:00") == []
    assert await idle.next_wake() == "10:20:00"
    await idle.act("resume")
    assert await idle.until("10:31:00") == [("auto", at("10:30:00"))]
    assert (await idle.cycles())[0].triggers == (
        "workspace",
        "heartbeat: set by auto: the loop was switched on",
    )


async def test_bt_24_a_pause_takes_back_a_cycle_that_waits_and_keeps_its_reasons(due):
    await due.trigger(reason="plan.md")
    await due.look()
    assert await due.waiting() == [TurnKind.AUTO]
    await due.act("pause")
    assert await due.waiting() == []
    await due.act("resume")
    await due.until("10:02:00")
    assert "workspace: plan.md" in due.order.prompt


async def test_bt_24_a_stopped_loop_hears_nothing_more_and_keeps_what_was_pending(idle):
    await idle.trigger(reason="before")
    await idle.act("off")
    assert not await idle.trigger(reason="after")
    await idle.harness.hear("hello")
    assert await idle.until("12:00:00") == [("chat", at("10:00:00"))], "chat is answered"
    assert await idle.cycles() == []
    assert (await idle.loop()).status is LoopStatus.STOPPED
    await idle.act("on")
    await idle.until("12:01:00")
    assert (await idle.cycles())[0].triggers == ("workspace: before",)


async def test_a_loop_that_was_never_on_costs_nothing(loop_harness):
    await loop_harness.harness.add_group(requires_trigger=False)
    await loop_harness.harness.hear("hello")
    await loop_harness.cycle('Hi [SCHEDULE next="30m"]')
    assert await loop_harness.look() == cycle_starter.SWEEP_SECONDS
    for table in ("loop_state", "wakes", "cycles", "events"):
        assert await loop_harness.harness.rows(f"SELECT * FROM {table}") == []


async def test_what_can_be_done_to_a_loop_is_said(loop_harness):
    await loop_harness.harness.add_group()
    for action in ("pause", "resume", "wake"):
        with pytest.raises(LoopOff, match="andy loop on family"):
            await loop_harness.act(action)
    with pytest.raises(BadRequest, match="use on, off, pause"):
        await loop_harness.act("stop")
    await loop_harness.act("off")
    await loop_harness.act("on")
    assert await loop_harness.next_wake() == "10:00:15"
    loop_harness.harness.clock.pass_ms(5_000)
    await loop_harness.act("on")
    assert await loop_harness.next_wake() == "10:00:15", "asked twice, it is as once"


async def test_a_clock_that_jumps_makes_no_burst(due):
    await due.on("work", next_wake_ms=at("10:00:00"))
    due.set("2026-02-16 10:00:00")
    assert len(await due.until("2026-02-16 10:04:00")) == 2, "one a group"
    due.harness.clock.wall_ms = at("2026-02-13 10:00:00")
    starts = await due.until("2026-02-13 15:00:00")
    assert starts, "they go on"
    gaps = [later[1] - one[1] for one, later in zip(starts[::2], starts[2::2], strict=False)]
    assert all(gap >= MINUTE for gap in gaps)


async def test_a_group_that_is_gone_is_left_alone(due):
    from orchestrator.groups import registration

    async with due.harness.database.transaction() as tx:
        await registration.unregister(tx, "family", now_ms=due.harness.clock.now_ms())
    assert await due.until("10:03:00") == []
    assert "no longer registered" in (await due.loop()).held
