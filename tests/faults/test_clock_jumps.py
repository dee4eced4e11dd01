"""The wall clock jumps a day, either way: nothing is lost, comes in a burst or waits for a day."""

from __future__ import annotations

import pytest

from agent_runner.wire.frames import TurnEnd
from orchestrator.containers import timeouts
from orchestrator.domain.errors import ChannelDown
from orchestrator.domain.values import RunState, TurnState
from orchestrator.queue import next_turns
from orchestrator.store.conversation import outbox
from orchestrator.store.runs import turns
from tests.doubles.channel import ScriptedChannel
from tests.support.store_harness import StoreHarness
from tests.support.task_harness import DAY_MS, HOUR_MS, MINUTE_MS, TaskHarness
from tests.support.until import until

JUMPS = pytest.mark.parametrize("jump_ms", [DAY_MS, -DAY_MS])
LIMITS = timeouts.RunTimeouts(idle_ms=1_800_000, age_ms=1_800_000, turn_ms=1_800_000)


@pytest.fixture
async def family(store_harness: StoreHarness) -> StoreHarness:
    await store_harness.add_group()
    return store_harness


@pytest.fixture
async def harness(family: StoreHarness) -> TaskHarness:
    return TaskHarness(family)


async def post(family, text):
    async with family.database.transaction() as tx:
        await outbox.add(
            tx, chat_jid="local:family", text=text, dedupe_key=text, now_ms=family.clock.now_ms()
        )
    family.wakeups.outbox.set()


async def sent(family):
    return [
        row["text"] for row in await family.rows("SELECT text FROM outbox WHERE state = 'sent' ORDER BY id")
    ]


@JUMPS
async def test_a_message_that_waits_to_be_sent_again_waits_no_day(family, jump_ms):
    channel = ScriptedChannel()
    channel.will("local:family", ChannelDown(), ChannelDown())
    async with family.delivering(channel):
        await post(family, "first")
        await until(lambda: len(channel.attempts) == 1, "the first attempt has failed")
        family.clock.wall_ms += jump_ms
        await post(family, "second")
        await until(lambda: len(channel.attempts) >= 2, "it is tried again at once")
        await until_waits(family)
        family.clock.pass_ms(10_000)
        family.wakeups.outbox.set()
        await until(lambda: len(channel.shown) == 2, "both are sent")

    assert [one.text for one in channel.shown] == ["first", "second"]
    assert len(channel.attempts) == 4


async def until_waits(family):
    async def holds():
        return not await family.rows("SELECT 1 FROM outbox WHERE state = 'sending'")

    await until(holds, "nothing is being sent")


async def test_a_message_hardly_tried_is_not_given_up_for_a_jump_of_the_clock(family):
    channel = ScriptedChannel()
    channel.will("local:family", ChannelDown(), ChannelDown())
    async with family.delivering(channel):
        await post(family, "hello")
        await until(lambda: len(channel.attempts) == 1, "the first attempt has failed")
        await until_waits(family)
        family.clock.wall_ms += 2 * DAY_MS
        family.wakeups.outbox.set()
        await until(lambda: len(channel.attempts) == 2, "the second attempt has failed")
        await until_waits(family)
        family.clock.pass_ms(HOUR_MS)
        family.wakeups.outbox.set()
        await until(lambda: channel.shown, "it is sent")

    assert await sent(family) == ["hello"]


@JUMPS
async def test_a_turn_put_back_is_tried_again_soon(family, jump_ms):
    await family.hear("@Andy hi")
    turn, run, _ = await family.start_next()
    await family.take(run, TurnEnd(n=1, turn=turn.id, status="error", error="boom"))
    family.clock.wall_ms += jump_ms
    async with family.database.reading() as tx:
        waiting = await turns.unsettled(tx)

    decided = next_turns.plan(waiting, [], cap=5, now_ms=family.clock.now_ms())

    assert decided.actions == (next_turns.StartContainer(turn.id),)


@JUMPS
async def test_what_is_said_before_and_after_a_jump_is_answered_in_order(family, jump_ms):
    await family.hear("@Andy one")
    family.clock.wall_ms += jump_ms
    await family.hear("@Andy two")
    _, run, order = await family.start_next()
    assert [one.text for one in order.requests] == ["one", "two"]

    await family.hear("@Andy three")
    await family.lose(run)
    await family.answer("all three")
    assert {one.turn_id for one in await family.messages() if not one.is_bot_message} == {order.turn}
    assert await family.queued() == []


@JUMPS
async def test_no_container_is_killed_for_a_jump_of_the_clock(clock, jump_ms):
    clock.pass_ms(10 * DAY_MS)
    vitals = timeouts.Vitals(
        state=RunState.BUSY,
        is_isolated=False,
        started_ms=clock.steady_ms() - 1_000,
        last_frame_ms=clock.steady_ms() - 1_000,
        state_since_ms=clock.steady_ms() - 1_000,
    )
    clock.wall_ms += jump_ms

    assert timeouts.judge(vitals, LIMITS, now_ms=clock.steady_ms()) is None


async def test_reminders_that_a_jump_makes_due_are_sent_once_each(harness):
    for number in range(3):
        await harness.ask("set_reminder", text=f"pill {number}", at=f"{number + 1}h")
    harness.harness.clock.wall_ms += DAY_MS
    for _ in range(3):
        await harness.after(MINUTE_MS)

    told = [one.text for one in await harness.harness.outgoing()]
    assert told == ["pill 0 (late)", "pill 1 (late)", "pill 2 (late)"]


async def test_a_reminder_is_not_lost_when_the_clock_goes_back(harness):
    await harness.ask("set_reminder", text="pill", at="1h")
    harness.harness.clock.wall_ms -= DAY_MS
    await harness.after(HOUR_MS)
    assert await harness.harness.outgoing() == []

    await harness.after(DAY_MS)
    assert [one.text for one in await harness.harness.outgoing()] == ["pill"]


@pytest.mark.parametrize(("kind", "value"), [("interval", "1h"), ("cron", "0 * * * *")])
async def test_a_task_runs_once_for_all_that_a_jump_forward_left_out(harness, kind, value):
    task = await harness.schedule(kind, value)
    await harness.after(0)
    harness.harness.clock.wall_ms += DAY_MS
    queued = [turn for _ in range(3) for turn in await harness.after(MINUTE_MS)]

    assert len({turn.id for turn in queued}) <= 1
    coming = (await harness.task(task)).next_ms
    assert 0 < coming - harness.harness.clock.now_ms() <= HOUR_MS


@pytest.mark.parametrize(("kind", "value"), [("interval", "1h"), ("cron", "0 * * * *")])
async def test_a_task_does_not_sleep_for_a_day_when_the_clock_goes_back(harness, kind, value):
    task = await harness.schedule(kind, value)
    await harness.after(0)
    harness.harness.clock.wall_ms -= DAY_MS
    await harness.after(MINUTE_MS)
    assert await harness.harness.queued() == [], "nothing is due at once"

    assert 0 < (await harness.task(task)).next_ms - harness.harness.clock.now_ms() <= HOUR_MS
    (turn,) = await harness.after(HOUR_MS)
    assert turn.state is TurnState.QUEUED


async def test_a_small_step_back_moves_no_task(harness):
    task = await harness.schedule("interval", "1h")
    await harness.after(0)
    before = (await harness.task(task)).next_ms
    harness.harness.clock.wall_ms -= 30_000
    await harness.after(1_000)

    assert (await harness.task(task)).next_ms == before


async def test_a_task_that_runs_once_keeps_its_moment(harness):
    task = await harness.schedule("once", "2h")
    await harness.after(0)
    before = (await harness.task(task)).next_ms
    harness.harness.clock.wall_ms -= DAY_MS
    await harness.after(MINUTE_MS)

    assert (await harness.task(task)).next_ms == before
