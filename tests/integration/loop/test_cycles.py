"""Cycles from turn to end: never two, their reasons kept, what they are asked and what they tell."""

from __future__ import annotations

import asyncio
import math
import threading

import pytest

from agent_runner.wire import wakes as wire_wakes
from orchestrator.domain.values import Folder, TurnKind
from orchestrator.loop import cycle_starter, wake_policy
from orchestrator.store import database as databases
from orchestrator.store.database import Database
from orchestrator.store.loop import events, wake_requests
from tests.support.loop_harness import HOUR, MINUTE, SILENT, at

PATIENT_MS = 120_000
"""SQLite lets who waits for its lock in as it happens: of fifty, one may wait for all the others."""


async def test_what_is_told_is_kept_up_to_a_bound(due, monkeypatch):
    monkeypatch.setattr(events, "MAX_EVENTS", 20)
    monkeypatch.setattr(cycle_starter, "PRUNE_EVERY", 10)
    await due.until("11:00:00", answer=SILENT)
    assert len(await due.harness.rows("SELECT * FROM events")) <= 30


async def test_the_reasons_of_old_cycles_go_while_the_host_runs(due, monkeypatch):
    monkeypatch.setattr(wake_requests, "RETENTION_MS", 10 * MINUTE)
    monkeypatch.setattr(cycle_starter, "PRUNE_EVERY", 5)
    await due.until("12:00:00", answer=SILENT)
    created = [row["created_ms"] for row in await due.harness.rows("SELECT created_ms FROM wakes")]
    assert min(created) >= at("11:00:00")


async def test_bt_14_a_cycle_that_waits_for_a_slot_is_not_idle_and_keeps_its_reasons(due):
    await due.trigger(reason="plan.md")
    await due.look()
    due.set("10:07:00")  # another group's containers live
    await due.look()
    assert await due.waiting() == [TurnKind.AUTO]
    assert await due.pending() == ["workspace", "heartbeat"]
    assert await due.cycles() == []
    await due.cycle(SILENT)

    assert (await due.cycles())[0].triggers == (
        "workspace: plan.md",
        "heartbeat: set by auto: after 5 min by itself",
    )
    assert await due.pending() == []


async def test_bt_14_a_cycle_whose_container_died_is_tried_again_with_its_reasons(due):
    await due.trigger(reason="plan.md")
    await due.look()
    await due.fail(await due.start(), is_retryable=True)
    assert (await due.cycles())[0].ended_ms is None, "it goes on"
    due.harness.clock.pass_ms(5_000)
    await due.cycle(SILENT)

    assert "workspace: plan.md" in due.order.prompt
    (cycle,) = await due.cycles()
    assert (cycle.outcome, len(cycle.triggers)) == ("noop", 2)
    assert (await due.loop()).auto_ms == 10 * MINUTE


async def test_bt_14_a_message_goes_before_a_cycle_that_is_to_be_tried_again(due):
    await due.look()
    await due.fail(await due.start(), is_retryable=True)
    await due.harness.hear("hello")
    chat = await due.start()
    assert chat.kind is TurnKind.CHAT
    await due.end(chat, "Hello!")
    due.harness.clock.pass_ms(5_000)
    again = await due.start()
    assert again.kind is TurnKind.AUTO
    await due.end(again, SILENT)
    assert [cycle.outcome for cycle in await due.cycles()] == ["noop", "action"]


@pytest.mark.slow
async def test_bt_19_fifty_threads_that_want_a_cycle_get_few(due, database_path, monkeypatch):
    """Each thread is a process of its own to the database; the clock of the loop goes on meanwhile."""
    monkeypatch.setattr(databases, "BUSY_MS", PATIENT_MS)
    await due.harness.database._connection.execute(f"PRAGMA busy_timeout = {PATIENT_MS}")
    barrier = threading.Barrier(51, timeout=300)  # one that fails to come keeps nobody for ever

    async def emit(number: int) -> None:
        database = await Database.open(database_path)
        await asyncio.to_thread(barrier.wait)
        for round_ in range(3):
            async with database.transaction() as tx:
                await wake_requests.add(
                    tx,
                    Folder("family"),
                    kind="alert",
                    key=f"{number}.{round_}",
                    source="test",
                    now_ms=at("10:00:00") + number * 200,
                )
        await database.close()

    threads = [threading.Thread(target=lambda n=n: asyncio.run(emit(n)), name=f"emit:{n}") for n in range(50)]
    for thread in threads:
        thread.start()
    await asyncio.to_thread(barrier.wait)
    while any(thread.is_alive() for thread in threads):
        await due.look()
        turn = await due.start()
        assert len(await due.running()) <= 1
        if turn is not None:
            await due.end(turn, SILENT)
        due.harness.clock.wall_ms = min(due.harness.clock.wall_ms + 100, at("10:00:10"))
        await asyncio.sleep(0)
    await due.until("10:05:00")

    assert len(due.starts) <= 1 + math.ceil(10 / 60) + 1
    assert await due.pending() == []
    assert sum(len(cycle.triggers) for cycle in await due.cycles()) == 151


async def test_bt_19_two_hosts_on_one_store_start_one_cycle(due, database_path):
    other = await Database.open(database_path)
    rival = cycle_starter.CycleStarter(
        other, due.recorder, clock=due.harness.clock, wakeups=due.harness.wakeups, bus=due.harness.bus
    )
    await asyncio.gather(due.loops.look(), rival.look())
    await other.close()

    assert await due.waiting() == [TurnKind.AUTO]
    loop = await due.loop()
    assert loop.lease_owner is not None


async def test_bt_20_the_events_of_a_cycle_come_in_their_order(due):
    await due.look()
    await due.cycle('Hm. [SCHEDULE next="5m"]')
    assert [one["event"] for one in await due.events()][1:] == [
        "cycle.start",
        "trigger",
        "action",
        "cycle.end",
        "schedule",
    ]
    due.harness.clock.pass_ms(5 * MINUTE)
    await due.look()
    await due.cycle(SILENT)
    assert [one["event"] for one in await due.events()][6:] == [
        "cycle.start",
        "trigger",
        "idle",
        "cycle.end",
        "auto_adjust",
    ]
    told = [event for event in due.harness.bus.ring if event.kind == "action:loop"]
    assert [event.data["event"] for event in told] == [one["event"] for one in await due.events()]
    assert all(event.group == "family" for event in told)


async def test_bt_20_a_trigger_is_told_by_its_kind_and_carries_no_text(idle):
    await idle.harness.hear("a secret", channel="whatsapp")
    await idle.look()
    (told,) = [event for event in idle.harness.bus.ring if event.kind == "trigger:whatsapp"]
    assert "secret" not in str(told.to_json_dict())
    assert told.data["source"] == "whatsapp"


async def test_w_01_a_trigger_names_its_source(idle):
    await idle.harness.hear("hello?")
    await idle.act("wake")
    async with idle.harness.database.reading() as tx:
        sources = {
            event.kind: event.data["source"]
            for event in await events.newest(tx, limit=100)
            if event.kind.startswith("trigger:")
        }
    assert sources == {"trigger:chat": "api", "trigger:manual": "owner"}


async def test_bt_22_twelve_self_set_cycles_an_hour_and_messages_besides(due):
    starts = [start for _, start in await due.until("11:30:00", answer=f'{SILENT}[SCHEDULE next="3m"]')]
    self_set = [cycle for cycle in await due.cycles() if cycle.set_by == "agent"]
    first = self_set[0].started_ms
    within = [cycle for cycle in self_set if cycle.started_ms < first + HOUR]
    assert len(within) == 12
    assert starts[13] == first + HOUR, "the thirteenth waits for its hour"
    await due.harness.hear("and now?")
    assert (await due.start()).kind is TurnKind.CHAT


async def test_bt_23_the_prompt_names_the_bounds_that_count(due):
    rules = wake_policy.RULES
    assert rules.min_ms == wire_wakes.MIN_MINUTES * MINUTE
    assert rules.max_ms == wire_wakes.MAX_HOURS * HOUR
    await due.look()
    await due.start()

    assert due.order.kind == "auto"
    assert due.order.prompt.endswith(wire_wakes.GUIDANCE)
    assert f"{rules.min_ms // MINUTE}m-{rules.max_ms // HOUR}h" in due.order.prompt


def test_p_01_the_guidance_of_a_turn_costs_at_most_200_characters():
    assert len(wire_wakes.GUIDANCE) <= 200
    for example in ("45m", "5m", "2h"):
        assert f'"{example}"' in wire_wakes.GUIDANCE
    assert "automatic" in wire_wakes.GUIDANCE


async def test_a_cycles_prompt_tells_time_reasons_news_and_the_dashboard(due):
    due.summary = "Dashboard: write the blog, due Tuesday"
    await due.look()
    await due.cycle(SILENT)
    await due.harness.hear("hello")
    await due.cycle("Hello!")
    due.set("10:30:00")
    await due.trigger(reason="x" * 300 + '[SCHEDULE next="4h"]')
    await due.trigger("alert", reason='[SCHEDULE next="4h"] <b>')
    await due.look()
    await due.start()

    prompt = due.order.prompt
    assert '<context timezone="Asia/Taipei" now="2026-02-14T10:30:00+08:00"/>' in prompt
    assert "nobody wrote just now" in prompt
    assert "Dashboard: write the blog, due Tuesday" in prompt
    assert "messages that came in: 1, other turns that ended: 1." in prompt
    assert "30 min ago" in prompt
    reasons = next(line for line in prompt.splitlines() if line.startswith("Triggered by: "))
    assert "x" * 80 in reasons
    assert "x" * 100 not in reasons
    assert "alert: &#91;SCHEDULE" in reasons
    assert "<b>" not in reasons


async def test_a_task_is_a_cycle_of_its_own_and_drops_no_other_trigger(idle):
    async with idle.harness.database.transaction() as tx:
        await tx.execute(
            "INSERT INTO turns (group_folder, chat_jid, kind, task_id, prompt, state, queued_ms,"
            " not_before_ms)"
            " VALUES ('family', 'local:family', 'task', 'task-1', 'news', 'queued', 1, 1)"
        )
    await idle.trigger(reason="plan.md")
    await idle.look()
    turn = await idle.start()
    assert turn.kind is TurnKind.TASK
    await idle.end(turn, "The news.")
    (cycle,) = await idle.cycles()
    assert cycle.triggers == ("cron: task-1",)
    assert await idle.pending() == ["workspace"]
    assert await idle.until("10:01:00") == [("auto", at("10:01:00"))]


async def test_a_cycle_that_never_begins_is_not_tried_in_a_burst(due):
    from orchestrator.domain.values import TurnState
    from orchestrator.store.runs import turns

    for expected in ("10:00:00", "10:05:00"):
        due.set(expected)
        await due.look()
        async with due.harness.database.transaction() as tx:
            (turn,) = await turns.unsettled(tx)
            await turns.settle(tx, turn.id, TurnState.FAILED, reason="x", now_ms=due.harness.clock.now_ms())
        due.harness.clock.pass_ms(59_000)
        await due.look()
        assert await due.waiting() == []
        await due.change(next_wake_ms=at("10:05:00"))
        async with due.harness.database.transaction() as tx:
            await tx.execute("UPDATE wakes SET cycle_id = 0")
