"""What wakes a loop and what does not: messages, triggers, timers, its own events."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import settings

from orchestrator.domain.values import TurnKind
from orchestrator.loop import cycle_starter
from tests.support.loop_harness import HOUR, MINUTE, SILENT, at

IS_SOAK = settings.default.max_examples >= 500


async def test_bt_01_a_message_wakes_a_sleeping_loop_at_once(idle):
    idle.set("10:05:00")
    await idle.harness.hear("hello?")
    await idle.look()
    turn = await idle.start()
    assert (turn.kind, idle.harness.clock.now_ms()) == (TurnKind.CHAT, at("10:05:00"))
    await idle.end(turn, "Hello!")

    (cycle,) = await idle.cycles()
    assert cycle.triggers == ("chat: a message of 6 characters",)
    assert await idle.next_wake() == "10:10:00", "the old timer is gone"
    assert await idle.until("10:09:59") == []


async def test_bt_01_a_message_takes_the_place_of_a_cycle_that_has_not_begun(due):
    await due.look()
    assert await due.waiting() == [TurnKind.AUTO]
    await due.harness.hear("hello?")
    turn = await due.start()
    assert (turn.kind, await due.waiting()) == (TurnKind.CHAT, [])
    await due.end(turn, "Hello!")

    assert await due.next_wake() == "10:05:00"
    assert await due.until("10:04:59") == []


async def test_bt_01_an_untriggered_word_wakes_nobody(loop_harness):
    await loop_harness.on(next_wake_ms=at("10:20:00"))
    await loop_harness.change()
    async with loop_harness.harness.database.transaction() as tx:
        await tx.execute("UPDATE registered_groups SET requires_trigger = 1")

    await loop_harness.harness.hear("lunch at one?")

    assert await loop_harness.pending() == []


async def test_bt_02_messages_during_a_cycle_are_one_cycle_after_it(due):
    await due.look()
    cycle = await due.start()
    assert cycle.kind is TurnKind.AUTO
    for clock in ("10:01:00", "10:02:00"):
        due.set(clock)
        await due.harness.hear(f"it is {clock}")
        await due.look()
        assert await due.start() is None, "never two cycles"
        assert len(await due.running()) == 1
    due.set("10:03:00")
    await due.end(cycle, SILENT)
    chat = await due.start()

    assert due.starts == [("auto", at("10:00:00")), ("chat", at("10:03:00"))]
    assert "it is 10:01:00" in due.order.prompt
    assert "it is 10:02:00" in due.order.prompt
    await due.end(chat, "Yes?")
    assert await due.pending() == []
    assert await due.until("10:07:59") == []


async def test_bt_02_a_cycle_that_keeps_a_message_waiting_for_long_is_stopped(due):
    await due.look()
    cycle = await due.start()
    due.set("10:30:00")
    assert await due.look() == cycle_starter.SWEEP_SECONDS, "nobody waits for it"
    await due.harness.hear("hello?")
    due.set("10:31:50")
    assert await due.look() == 10
    assert due.stopped == []
    due.set("10:32:00")
    await due.look()
    assert due.stopped == [(due.runs[cycle.id].id, "a message waited too long for it.")]
    await due.fail(cycle)
    assert (await due.start()).kind is TurnKind.CHAT


async def test_bt_03_triggers_within_the_throttle_are_one_cycle_at_its_end(due):
    await due.look()
    await due.cycle(SILENT, ends="10:00:10")
    await due.change(next_wake_ms=at("10:20:00"))
    for clock in ("10:00:30", "10:00:40"):
        due.set(clock)
        await due.trigger(reason="plan.md")

    assert await due.until("10:05:00") == [("auto", at("10:01:00"))]
    (first, second) = await due.cycles()
    assert second.triggers == ("workspace: plan.md", "workspace: plan.md")
    del first


async def test_bt_04_a_long_sleep_keeps_no_message_waiting(due):
    await due.look()
    await due.cycle('[SCHEDULE next="4h" reason="night"]', ends="10:00:10")
    assert await due.next_wake() == "14:00:10"
    due.set("10:00:20")
    await due.harness.hear("are you there?")

    assert (await due.until("10:01:00"))[0] == ("chat", at("10:00:20"))


@pytest.mark.parametrize(
    "state",
    [
        {"auto_interval_ms": 20 * MINUTE, "noop_streak": 9},
        {"next_wake_ms": at("14:00:00"), "wake_set_by": "agent"},
        {"status": "paused"},
        {"held_reason": "the budget is spent"},
    ],
)
async def test_bt_12_a_message_waits_for_none_of_what_makes_a_loop_sleep(idle, state):
    await idle.change(**state)
    idle.set("2026-02-15 03:00:00")
    await idle.harness.hear("wake up")
    turn = await idle.start()

    assert turn.kind is TurnKind.CHAT
    await idle.end(turn, "I am up")
    assert (await idle.loop()).status == state.get("status", "on"), "paused again"
    starts = await idle.until("2026-02-15 04:00:00")
    assert (starts == []) == ("status" in state)


async def test_bt_13_what_a_loop_tells_starts_none(due):
    await due.harness.database._connection.execute("PRAGMA synchronous = OFF")
    count, end = (1_000, "2026-02-28 06:50:00") if IS_SOAK else (100, "2026-02-15 18:50:00")
    starts = await due.until(end, answer=SILENT)

    assert len(starts) == count
    gaps = {later[1] - one[1] for one, later in itertools.pairwise(starts)}
    assert gaps == {10 * MINUTE, 20 * MINUTE}
    assert len(due.harness.bus.ring) >= count, "each has told something"


async def test_bt_13_its_own_events_are_no_news_and_others_are(idle):
    await idle.look()
    with idle.harness.bus.listening("trigger:*") as heard:
        idle.harness.bus.publish("trigger:mobile", group="family", reason="a shortcut")
        assert await idle.loops._handle(heard.get_nowait())
        await idle.look()
        relayed = heard.get_nowait()
    assert relayed.kind == "trigger:mobile"
    assert relayed.data is not None
    assert not await idle.loops._handle(relayed)
    assert await idle.pending() == [] or await idle.waiting() == [TurnKind.AUTO]
    assert await idle.until("10:04:00") == [("auto", at("10:00:00"))]


async def test_a_failing_task_alerts_its_group(idle):
    await idle.look()
    idle.harness.bus.publish("task.paused", group="family", detail="task-1")
    assert await idle.loops._handle(idle.harness.bus.ring[-1])
    assert await idle.until("10:01:00") == [("auto", at("10:00:00"))]
    assert (await idle.cycles())[0].triggers == ("alert: a task was paused: task-1",)


async def test_files_that_change_without_end_begin_twelve_cycles_an_hour(due):
    await due.change(next_wake_ms=at("14:00:00"))
    starts = []
    for _ in range(75):
        await due.trigger(key="workspace", reason="log.txt")
        await due.change(next_wake_ms=at("14:00:00"))
        clock = due.harness.clock.now_ms() + MINUTE
        await due.look()
        turn = await due.start()
        if turn is not None:
            starts.append(due.harness.clock.now_ms())
            await due.end(turn, SILENT)
        due.harness.clock.wall_ms = clock

    within = [start for start in starts if start < starts[0] + HOUR]
    assert len(within) == 12
    assert starts[12] == starts[0] + HOUR, "what was pending then is not lost"


async def test_bt_16_a_wake_by_hand_heeds_the_guard_and_arms_the_timer_anew(due):
    await due.look()
    running = await due.start()
    await due.act("wake", reason="the owner said so")
    await due.act("wake", reason="twice")
    await due.look()
    assert await due.start() is None
    due.set("10:00:02")
    await due.end(running, SILENT)
    assert await due.waiting() == []
    due.set("10:00:05")
    await due.look()
    await due.cycle(f'{SILENT}[SCHEDULE next="1h"]')

    assert "manual: the owner said so" in due.order.prompt
    assert await due.next_wake() == "11:00:05"
    assert await due.until("10:59:00") == []
