"""Undo: what a turn changed is put back, row by row, through the real intake, dispatcher and store."""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_runner.wire.frames import Ack, Result, TurnEnd
from agent_runner.wire.mailbox import Reply
from orchestrator.base.clock import SystemClock
from orchestrator.cli.exit_codes import UsageError
from orchestrator.cli.main import app
from orchestrator.dashboard.rules.slots import Hours
from orchestrator.dashboard.worker.loop import WorkerLoop, WorkerPorts, worker_mode
from orchestrator.domain.errors import BadRequest, ChannelDown, ChannelRefused
from orchestrator.domain.protocols import Feature
from orchestrator.domain.values import ChatJid, Folder, MessageId, Quote, Role, Turn
from orchestrator.groups import people, registration, secret_addresses
from orchestrator.outbound.withdrawals import Withdrawals
from orchestrator.scheduler import due_tasks
from orchestrator.store.access.secret_addresses import AddressKind
from orchestrator.store.board import worker_cycles
from orchestrator.store.database import Database
from orchestrator.store.undo import turn_effects
from orchestrator.undo.outside import OutsideEffect, lasting_effects
from orchestrator.undo.requests import read
from orchestrator.undo.service import BuiltOn, NothingToUndo, NotYet
from tests.doubles.channel import ScriptedChannel
from tests.doubles.clock import FakeClock
from tests.support.command_dispatchers import dashboards_of
from tests.support.loop_harness import LoopHarness
from tests.support.store_harness import SEOUL, StoreHarness, a_message
from tests.support.undo_harness import UndoHarness, nth, use
from tests.support.until import until

BERLIN = ZoneInfo("Europe/Berlin")
REMIND = {"type": "set_reminder", "text": "call mum", "at": "3h"}
SCHEDULE = {"type": "schedule_task", "prompt": "water", "schedule_type": "interval", "schedule_value": "1h"}
NOTE = {"type": "notify_self", "message": "ask about the trip", "persist_cross_session": True}
TASK = use("create_task", title="Shed list", deadline="2026-07-01")
INSIGHT = use("save_insight", content="The key lies under the pot.")
QUESTION = use("create_question", question="Which day suits you?")


@pytest.fixture
async def undo(store_harness: StoreHarness) -> UndoHarness:
    harness = UndoHarness(store_harness)
    await harness.add_groups()
    return harness


async def test_undo_puts_every_row_back_and_undo_again_brings_it_back(undo: UndoHarness) -> None:
    await undo.turn(TASK, text="@Andy first")
    before = await undo.state()
    await undo.turn(
        REMIND,
        SCHEDULE,
        NOTE,
        TASK,
        INSIGHT,
        QUESTION,
        use("update_task", task_id=nth("dashboard_tasks", 0), progress=40),
    )
    after = await undo.state()
    assert after != before
    said = await undo.say("@Andy undo that")
    assert said.startswith("Undone: ")
    assert "the reminder “call mum” is gone" in said
    assert "the task “Shed list” is as it was" in said
    assert await undo.state() == before
    said = await undo.say("@Andy undo")
    assert "the reminder “call mum” is back" in said
    assert await undo.state() == after
    await undo.say("@Andy undo")
    assert await undo.state() == before


async def test_korean_is_answered_in_korean(undo: UndoHarness) -> None:
    before = await undo.state()
    await undo.turn(REMIND)
    said = await undo.say("@Andy 되돌려 줘")
    assert said.startswith("되돌렸어요: 리마인더 “call mum” 삭제, ")
    assert await undo.state() == before


async def test_what_changed_since_is_named_and_asked_about(undo: UndoHarness) -> None:
    before = await undo.state()
    first = await undo.turn(TASK)
    await undo.turn(
        use("update_task", task_id=nth("dashboard_tasks", 0), progress=40), text="@Andy it is at 40 %"
    )
    after = await undo.state()
    with pytest.raises(BuiltOn, match=r"^Changed .* “Shed list” \(by “@Andy it is at 40 %”\)\. .*--anyway"):
        await undo.undo(first.id)
    answer = (await undo.store.rows("SELECT message_id FROM outbox WHERE turn_id = ?", first.id))[0]
    reply_to = Quote(message_id=MessageId(answer["message_id"]), sender="Andy", text="Done.")
    said = await undo.say("undo", quote=reply_to)
    assert said == (
        "Changed again since: the task “Shed list” (by “@Andy it is at 40 %”). I have undone nothing. "
        "Say “undo anyway” to put it back all the same; the later change is then lost."
    )
    assert await undo.state() == after
    await undo.say("undo anyway", quote=reply_to)
    assert (await undo.state())["dashboard_tasks"] == before["dashboard_tasks"]


async def test_anyway_means_the_turn_that_was_asked_about_though_the_question_was_not_sent_yet(
    undo: UndoHarness,
) -> None:
    before = await undo.state()
    await undo.turn(TASK)
    async with undo.store.database.transaction() as tx:
        await tx.execute("UPDATE dashboard_tasks SET title = 'by the owner'")
    assert (await undo.say("@Andy undo")).startswith("Changed again since: the task “Shed list”.")
    assert "is gone" in await undo.say("@Andy undo anyway")
    assert (await undo.state())["dashboard_tasks"] == before["dashboard_tasks"]


async def test_a_row_that_only_the_host_moved_is_no_later_change(undo: UndoHarness) -> None:
    await undo.turn(SCHEDULE)
    paused = await undo.turn({"type": "pause_task", "taskId": nth("scheduled_tasks", 0)})
    async with undo.store.database.transaction() as tx:
        await tx.execute("UPDATE scheduled_tasks SET last_run = 5, failures = 2")
    await undo.undo(paused.id)
    row = (await undo.store.rows("SELECT status, last_run, failures FROM scheduled_tasks"))[0]
    assert row == {"status": "active", "last_run": 5, "failures": 2}


async def test_a_note_that_was_told_since_and_a_loop_that_went_on_are_no_later_change(
    undo: UndoHarness,
) -> None:
    before = await undo.state()
    made = await undo.turn(
        NOTE,
        {"type": "control_loop", "action": "on", "targetFolder": "work"},
        folder="main",
        text="go",
    )
    async with undo.store.database.transaction() as tx:
        await tx.execute("UPDATE loop_state SET next_wake_ms = 5, trace_json = '[]', auto_interval_ms = 7")
        await tx.execute(
            "UPDATE cross_session_notifications SET state = 'delivered', delivered_ms = 5, deliveries = 1"
        )
    await undo.undo(made.id)
    assert await undo.state() == before


async def test_a_fact_of_the_hosts_that_an_agent_is_done_with_is_no_effect(undo: UndoHarness) -> None:
    await undo.turn(TASK)
    await undo.say("@Andy undo")
    made = await undo.turn(
        INSIGHT, {"type": "cancel_notice", "noticeId": nth("cross_session_notifications", 0)}
    )
    await undo.undo(made.id)
    tables = await undo.store.rows("SELECT table_name FROM turn_effects WHERE turn_id = ?", made.id)
    assert [row["table_name"] for row in tables] == ["insights"]


async def test_what_has_the_place_of_what_would_come_back_is_said(undo: UndoHarness) -> None:
    await undo.turn({"type": "unregister_group", "folder": "work"}, folder="main", text="go")
    (answer,) = await undo.store.rows("SELECT message_id FROM outbox WHERE text = 'Done.'")
    quote = Quote(message_id=MessageId(answer["message_id"]), sender="Andy", text="Done.")
    await undo.turn(
        {"type": "register_group", "jid": "n@g.us", "name": "New", "folder": "work", "trigger": "@Andy"},
        folder="main",
        text="and this",
    )
    before = await undo.state()
    assert (await undo.say("undo", "main", quote=quote)).startswith("Something else is in the place")
    assert (await undo.say("되돌려 줘", "main", quote=quote)).startswith("없어진 것의 자리에")
    assert await undo.state() == before


async def test_a_task_that_ran_since_is_ended_and_keeps_its_runs(undo: UndoHarness) -> None:
    made = await undo.turn(SCHEDULE)
    task = (await undo.store.rows("SELECT id FROM scheduled_tasks"))[0]["id"]
    async with undo.store.database.transaction() as tx:
        await tx.execute(
            "INSERT INTO task_run_logs (task_id, cause, due_at, run_at, status)"
            " VALUES (?, 'schedule', 1, 1, 'skipped')",
            (task,),
        )
        await tx.execute("UPDATE scheduled_tasks SET next_run = next_run + 1")
    with pytest.raises(BuiltOn):
        await undo.undo(made.id)
    await undo.undo(made.id, is_forced=True)
    assert await undo.store.rows("SELECT status, next_run FROM scheduled_tasks") == [
        {"status": "cancelled", "next_run": None}
    ]
    assert len(await undo.store.rows("SELECT * FROM task_run_logs")) == 1


async def follow_zone(undo: UndoHarness, zone: ZoneInfo) -> None:
    """Have the host look at deadlines and schedules where the groups are in this zone."""
    store = undo.store
    ports = WorkerPorts(
        mode=worker_mode(enabled=False, use_llm=False, fallback_to_rules=False),
        beat_ms=1_800_000,
        hours_of=lambda _: Hours(zone=zone),
        service_context=dashboards_of(store, lambda _: zone).service_context,
        has_model=lambda _: False,
        queue=worker_cycles.add_turn,
    )
    worker = WorkerLoop(store.database, ports, clock=store.clock, wakeups=store.wakeups, bus=store.bus)
    await worker.beat()
    async with store.database.transaction() as tx:
        await due_tasks.follow_zones(tx, lambda _: zone, now_ms=store.clock.now_ms())


async def days(undo: UndoHarness) -> dict[str, int]:
    """The days of deadlines, with when they start."""
    rows = await undo.store.rows("SELECT deadline_date, deadline_ms FROM dashboard_tasks")
    return {row["deadline_date"]: row["deadline_ms"] for row in rows}


async def test_another_time_zone_is_no_later_change(undo: UndoHarness) -> None:
    cron = {"type": "schedule_task", "prompt": "wake", "schedule_type": "cron", "schedule_value": "0 9 * * *"}
    made = await undo.turn(TASK, cron)
    await follow_zone(undo, SEOUL)
    moved = await undo.turn(use("update_task", task_id=nth("dashboard_tasks", 0), deadline="2026-07-02"))
    await follow_zone(undo, BERLIN)
    assert "2026-07-02" in await days(undo)
    await undo.undo(moved.id)
    await follow_zone(undo, BERLIN)
    assert await days(undo) == {"2026-07-01": datetime(2026, 7, 1, tzinfo=BERLIN).timestamp() * 1000}
    assert (await undo.store.rows("SELECT timezone FROM scheduled_tasks"))[0]["timezone"] == BERLIN.key
    await undo.undo(made.id)
    assert await days(undo) == {}


async def test_a_task_that_is_put_back_in_another_zone_is_due_when_that_zone_says(undo: UndoHarness) -> None:
    cron = {"type": "schedule_task", "prompt": "wake", "schedule_type": "cron", "schedule_value": "0 9 * * *"}
    planned = "SELECT timezone, next_run, status FROM scheduled_tasks"
    await undo.turn(cron)
    await follow_zone(undo, SEOUL)
    paused = await undo.turn({"type": "pause_task", "taskId": nth("scheduled_tasks", 0)})
    async with undo.store.database.transaction() as tx:
        await tx.execute(
            "UPDATE scheduled_tasks SET timezone = 'Europe/Berlin', next_run = next_run + 25200000"
        )
    (row,) = await undo.store.rows(planned)
    await undo.undo(paused.id)
    assert await undo.store.rows(planned) == [{**row, "status": "active"}]


async def run_rules(undo: UndoHarness) -> None:
    """Have the rules look at all dashboards now."""
    store = undo.store
    ports = WorkerPorts(
        mode=worker_mode(enabled=True, use_llm=False, fallback_to_rules=True),
        beat_ms=1_800_000,
        hours_of=lambda _: Hours(zone=SEOUL),
        service_context=undo.dashboards.service_context,
        has_model=lambda _: False,
        queue=worker_cycles.add_turn,
    )
    async with store.database.transaction() as tx:
        await tx.execute("UPDATE dashboards SET rules_next_ms = 0")
    await WorkerLoop(store.database, ports, clock=store.clock, wakeups=store.wakeups, bus=store.bus).beat()


async def test_a_task_that_the_rules_moved_to_the_history_is_no_later_change(undo: UndoHarness) -> None:
    await undo.turn(TASK)
    done = await undo.turn(use("update_task", task_id=nth("dashboard_tasks", 0), status="completed"))
    await run_rules(undo)
    state = "SELECT status, pct, archived_ms FROM dashboard_tasks"
    (row,) = await undo.store.rows(state)
    assert row["archived_ms"] is not None
    undone = await undo.undo(done.id)
    assert await undo.store.rows(state) == [{"status": "active", "pct": 0, "archived_ms": None}]
    await undo.undo(undone)
    assert await undo.store.rows(state) == [row]


async def test_a_deadline_is_put_back_though_the_rules_made_an_alert_of_the_new_one(
    undo: UndoHarness,
) -> None:
    await undo.turn(use("create_task", title="Shed list", deadline="in 20 hours"))
    await run_rules(undo)
    moved = await undo.turn(use("update_task", task_id=nth("dashboard_tasks", 0), deadline="in 15 hours"))
    await run_rules(undo)
    alerts = "SELECT id, status, cause FROM notifications ORDER BY rowid"
    first, second = await undo.store.rows(alerts)
    assert (first["status"], second["status"]) == ("cancelled", "pending")
    assert first["cause"] == second["cause"]
    undone = await undo.undo(moved.id)
    assert [row["status"] for row in await undo.store.rows(alerts)] == ["pending", "cancelled"]
    await undo.undo(undone)
    assert [row["status"] for row in await undo.store.rows(alerts)] == ["cancelled", "pending"]


@pytest.mark.parametrize(
    "change",
    [
        {"type": "pause_task", "taskId": nth("scheduled_tasks", 0)},
        {"type": "cancel_task", "taskId": nth("scheduled_tasks", 0)},
        {"type": "update_task", "taskId": nth("scheduled_tasks", 0), "prompt": "water twice"},
        {"type": "update_task", "taskId": nth("scheduled_tasks", 0), "schedule_value": "5h"},
    ],
)
async def test_a_task_that_is_put_back_days_later_goes_on_at_its_next_time(
    undo: UndoHarness, change: dict[str, str]
) -> None:
    await undo.turn({**SCHEDULE, "catch_up": "all"})
    (before,) = await undo.store.rows("SELECT * FROM scheduled_tasks")
    changed = await undo.turn(change)
    undo.store.clock.pass_ms(3 * 24 * 3_600_000 + 60_000)
    async with undo.store.database.transaction() as tx:
        await tx.execute(
            "UPDATE scheduled_tasks SET next_run = ? WHERE status = 'active'",
            (undo.store.clock.now_ms() + 1,),
        )
    await undo.undo(changed.id, is_forced="schedule_value" in change)
    (row,) = await undo.store.rows("SELECT * FROM scheduled_tasks")
    assert row["status"] == "active"
    assert row["next_run"] > undo.store.clock.now_ms(), "no run that nobody missed begins at once"
    assert (row["prompt"], row["schedule_value"]) == (before["prompt"], before["schedule_value"])


async def test_runs_that_were_missed_come_after_an_undo_of_another_change_of_their_task(
    undo: UndoHarness,
) -> None:
    await undo.turn({**SCHEDULE, "catch_up": "all"})
    (before,) = await undo.store.rows("SELECT * FROM scheduled_tasks")
    task = nth("scheduled_tasks", 0)
    changed = await undo.turn({"type": "update_task", "taskId": task, "prompt": "water twice"})
    undo.store.clock.pass_ms(3 * 24 * 3_600_000 + 60_000)
    await undo.undo(changed.id)
    (row,) = await undo.store.rows("SELECT * FROM scheduled_tasks")
    assert (row["prompt"], row["next_run"]) == (before["prompt"], before["next_run"])


async def test_a_chat_that_was_added_since_goes_with_a_group_that_an_undo_takes_off(
    undo: UndoHarness,
) -> None:
    made = await undo.turn(
        {"type": "register_group", "jid": "x@g.us", "name": "New", "folder": "new", "trigger": "@Andy"},
        folder="main",
    )
    async with undo.store.database.transaction() as tx:
        await registration.add_chat(tx, "new", "y@g.us", now_ms=undo.store.clock.now_ms())
        await tx.execute("UPDATE chats SET channel = 'whatsapp' WHERE jid IN ('x@g.us', 'y@g.us')")
    undone = await undo.undo(made.id)
    assert await undo.store.rows("SELECT * FROM group_chats WHERE group_folder = 'new'") == []
    ignored = await undo.store.rows("SELECT * FROM access_requests ORDER BY chat_jid")
    assert [row["chat_jid"] for row in ignored] == ["x@g.us", "y@g.us"], "the owner is asked about neither"
    await undo.undo(undone)
    chats = await undo.store.rows("SELECT jid FROM group_chats WHERE group_folder = 'new' ORDER BY jid")
    assert [row["jid"] for row in chats] == ["x@g.us", "y@g.us"]


async def announced_by(undo: UndoHarness, turn: Turn) -> set[tuple[str, str | None]]:
    """The kind and the group of each event by which the undo of a turn is announced."""
    earlier = len(undo.store.bus.ring)
    await undo.undo(turn.id)
    return {(event.kind, event.group) for event in [*undo.store.bus.ring][earlier:]}


async def test_an_undo_announces_the_dashboard_of_each_group_that_it_changed(undo: UndoHarness) -> None:
    await undo.turn(REMIND)
    turn = await undo.turn(
        {"type": "cancel_reminder", "reminderId": nth("reminders", 0)}, folder="main", text="cancel it"
    )
    announced = await announced_by(undo, turn)
    assert {("dashboard.changed", "family"), ("dashboard.changed", "main")} <= announced


async def test_an_undo_announces_the_tasks_and_settings_of_each_group_that_it_changed(
    undo: UndoHarness,
) -> None:
    turn = await undo.turn(
        {**SCHEDULE, "targetFolder": "work"},
        {"type": "change_group", "folder": "family", "name": "Home"},
        folder="main",
        text="change it",
    )
    announced = await announced_by(undo, turn)
    assert {("task.changed", "work"), ("group.configured", "family")} <= announced
    assert ("turn.undone", "work") not in announced


async def test_settings_and_registrations_of_main_are_put_back(undo: UndoHarness) -> None:
    before = await undo.state()
    await undo.turn(
        {"type": "change_group", "folder": "work", "name": "Office"},
        {"type": "register_group", "jid": "new@g.us", "name": "New", "folder": "new", "trigger": "@Andy"},
        folder="main",
        text="change it",
    )
    assert await undo.state() != before
    said = await undo.say("undo", "main")
    assert "the group “Work” is as it was" in said
    assert "the group “New” is gone" in said
    assert await undo.state() == before


async def test_messages_that_wait_are_not_sent_and_sent_ones_are_named(undo: UndoHarness) -> None:
    waiting = await undo.turn({"type": "message", "text": "Hello all"})
    said = await undo.say("@Andy undo")
    assert "2 messages are not sent" in said
    assert {
        row["state"]
        for row in await undo.store.rows("SELECT state FROM outbox WHERE turn_id = ?", waiting.id)
    } == {"skipped"}
    await undo.say("@Andy undo")
    assert {
        row["state"]
        for row in await undo.store.rows("SELECT state FROM outbox WHERE turn_id = ?", waiting.id)
    } == {"pending"}
    await undo.turn({"type": "message", "text": "Hello again"}, REMIND)
    async with undo.store.database.transaction() as tx:
        await tx.execute("UPDATE outbox SET state = 'sent', sent_ms = 1")
    said = await undo.say("@Andy undo")
    assert "What I cannot take back: 1 message was sent." in said


async def until_stored(undo: UndoHarness) -> None:
    async def holds() -> bool:
        return not await undo.store.rows("SELECT 1 FROM outbox WHERE state <> 'sent'")

    await until(holds, "it is recorded as sent")


def withdrawals_of(store: StoreHarness, channel: ScriptedChannel) -> Withdrawals:
    return Withdrawals(
        store.database,
        clock=store.clock,
        channel_for=lambda _: channel,
        bus=store.bus,
        wakeup=store.wakeups.outbox,
    )


@pytest.mark.parametrize("days", [-365, -1, 4])
async def test_a_deletion_survives_a_jump_of_the_clock(store_harness: StoreHarness, days: int) -> None:
    channel = ScriptedChannel(features=frozenset({Feature.WITHDRAWALS, Feature.IDEMPOTENT}))
    undo = UndoHarness(store_harness, channel=channel)
    await undo.add_groups()
    deleting = withdrawals_of(store_harness, channel)
    await undo.turn({"type": "message", "text": "Hello all"})
    async with undo.store.delivering(channel):
        undo.store.wakeups.outbox.set()
        await until(lambda: "Hello all" in channel.texts(), "it is sent")
        await until_stored(undo)
    await undo.say("@Andy undo")
    channel.will("local:family", ChannelDown("no line"), ChannelDown("no line"))
    await deleting.withdraw_due()
    undo.store.clock.wall_ms += days * 24 * 3_600_000
    await deleting.withdraw_due()
    assert not channel.scripts["local:family"], "it is tried again at once"
    undo.store.clock.wall_ms += 10_000
    await deleting.withdraw_due()
    assert "Hello all" not in channel.texts()


async def test_sent_messages_are_deleted_where_the_messenger_can(store_harness: StoreHarness) -> None:
    channel = ScriptedChannel(features=frozenset({Feature.WITHDRAWALS, Feature.IDEMPOTENT}))
    undo = UndoHarness(store_harness, channel=channel)
    await undo.add_groups()
    deleting = withdrawals_of(store_harness, channel)
    await undo.turn({"type": "message", "text": "Hello all"}, {"type": "message", "text": "and this"})
    async with undo.store.delivering(channel):
        undo.store.wakeups.outbox.set()
        await until(lambda: len(channel.texts()) == 3, "all is sent")
        await until_stored(undo)
    assert channel.texts() == ["Hello all", "and this", "Done."]
    said = await undo.say("@Andy undo")
    assert "2 sent messages are deleted" in said
    channel.will("local:family", ChannelDown("too fast", pause_seconds=600.0), ChannelRefused("too old"))
    await deleting.withdraw_due()
    assert "Done." in channel.texts(), "an answer stays: it is what the undo speaks of"
    texts = [one.text for one in await undo.store.outgoing()]
    assert "⚠️ I could not delete a message that I had sent here: too old." in texts
    undo.store.clock.wall_ms += 599_999
    await deleting.withdraw_due()
    assert "Hello all" in channel.texts(), "the messenger has asked for a longer pause"
    undo.store.clock.wall_ms += 1
    await deleting.withdraw_due()
    assert "Hello all" not in channel.texts()
    assert {one.group for one in undo.store.bus.ring if one.kind == "message.amended"} == {"family"}
    assert await undo.store.rows("SELECT text FROM outbox WHERE text = 'Hello all'") == []
    undone = (await undo.store.rows("SELECT turn_id FROM undos"))[0]["turn_id"]
    its_turn = await undo.store.turn(undone)
    plan = await undo.store.database.write(lambda tx: undo.undos.plan(tx, its_turn))
    assert [one.text() for one in plan.outside] == ["1 message was deleted and is not sent again"]


async def test_a_run_that_was_asked_for_and_waits_does_not_begin(undo: UndoHarness) -> None:
    await undo.turn(SCHEDULE)
    task = (await undo.store.rows("SELECT id FROM scheduled_tasks"))[0]["id"]
    await undo.turn({"type": "run_task", "taskId": task})
    said = await undo.say("@Andy undo")
    assert "1 run of a task will not begin" in said
    assert (await undo.store.rows("SELECT state FROM turns WHERE task_id = ?", task))[0]["state"] == "failed"


async def test_only_who_asked_and_the_owner_undo(undo: UndoHarness) -> None:
    await undo.turn(REMIND)
    after = await undo.state()
    said = await undo.say("@Andy undo", sender="local:tom", sender_name="Tom")
    assert said == "Only the one who asked (Jane) or the owner can undo this."
    assert await undo.state() == after
    assert (await undo.say("@Andy undo", sender="local:tom", is_from_me=True)).startswith("Undone")


async def test_a_person_is_one_under_both_addresses_of_their_messenger(undo: UndoHarness) -> None:
    opaque, phone = "777@lid", "491701234567@s.whatsapp.net"
    await undo.turn(TASK, sender=opaque)
    assert (await undo.say("@Andy undo", sender="778@lid")).startswith("Only the one who asked")
    assert "is gone" in await undo.say("@Andy undo", sender=phone, sender_alias=opaque)


async def test_who_was_given_a_lesser_role_undoes_no_more_what_they_had_done_before(
    undo: UndoHarness,
) -> None:
    await undo.turn(TASK, sender="tom@x")
    async with undo.store.database.transaction() as tx:
        await people.set_role(tx, "family", "tom@x", Role.GUEST, by="test", now_ms=1)
    before = await undo.state()
    for text in ("@Andy undo", "@Andy undo anyway"):
        assert (await undo.say(text, sender="tom@x")).startswith("Only the one who asked")
    assert await undo.state() == before
    async with undo.store.database.transaction() as tx:
        await people.set_role(tx, "family", "tom@x", None, by="test", now_ms=2)
    assert "is gone" in await undo.say("@Andy undo", sender="tom@x")
    assert "is back" in await undo.say("@Andy undo", sender="tom@x")


async def test_what_nobody_asked_in_a_chat_only_the_owner_undoes(undo: UndoHarness) -> None:
    turn = await undo.turn(TASK)
    async with undo.store.database.transaction() as tx:
        await tx.execute(
            "UPDATE messages SET turn_id = NULL, ignored_reason = 'x' WHERE turn_id = ?", (turn.id,)
        )
    sent = (await undo.store.rows("SELECT message_id FROM outbox WHERE turn_id = ?", turn.id))[0]
    quote = Quote(message_id=MessageId(sent["message_id"]), sender="Andy", text="Done.")
    assert await undo.say("undo", quote=quote) == "Only the owner can undo this."
    assert "is gone" in await undo.say("undo", quote=quote, is_from_me=True)


async def test_a_warning_to_the_owner_is_no_act_of_the_turn_that_gave_reason_for_it(
    store_harness: StoreHarness,
) -> None:
    undo = UndoHarness(store_harness, channel=ScriptedChannel(features=frozenset({Feature.WITHDRAWALS})))
    await undo.add_groups()
    await undo.turn(REMIND)
    await undo.turn({"type": "model_missing"})
    async with store_harness.database.transaction() as tx:
        await tx.execute("UPDATE outbox SET state = 'sent', sent_ms = 1")
    assert "the reminder “call mum” is gone" in await undo.say("@Andy undo that")
    assert await store_harness.rows("SELECT * FROM withdrawals") == []


async def test_redo_means_an_undo_and_nothing_else(undo: UndoHarness) -> None:
    await undo.turn(TASK)
    after = await undo.state()
    accepted = await undo.store.hear("@Andy redo it")
    assert not accepted.is_replied_to
    assert await undo.state() == after
    await undo.store.answer("It is done once more.")
    await undo.say("@Andy undo")
    said = await undo.say("@Andy redo")
    assert said.startswith("Done again: the task “Shed list” is back")
    assert await undo.state() == after
    assert (await undo.say("@Andy 되돌려 줘")).startswith("되돌렸어요: ")
    assert (await undo.say("@Andy 되돌려 줘")).startswith("다시 했어요: ")
    assert await undo.state() == after


async def test_an_undo_of_an_undo_says_that_the_message_is_sent_after_all(undo: UndoHarness) -> None:
    await undo.turn({"type": "message", "text": "hello all"})
    assert "not sent" in await undo.say("@Andy undo")
    assert "the message “hello all” is as it was" in await undo.say("@Andy undo")


async def test_a_group_that_an_undo_takes_off_leaves_nothing_that_waits(undo: UndoHarness) -> None:
    await undo.turn(
        {"type": "register_group", "jid": "x@g.us", "name": "New", "folder": "new", "trigger": "@Andy"},
        folder="main",
    )
    async with undo.store.database.transaction() as tx:
        await secret_addresses.add(tx, AddressKind.HOOK, "new", name="door", now_ms=1)
    await undo.store.intake.accept(replace(a_message("@Andy hi", "new"), chat_jid=ChatJid("x@g.us")))
    assert "the group “New” is gone" in await undo.say("@Andy undo", "main")
    assert await undo.store.rows("SELECT * FROM secret_addresses") == []
    states = await undo.store.rows("SELECT state FROM turns WHERE group_folder = 'new'")
    assert [row["state"] for row in states] == ["failed"]
    assert "the group “New” is back" in await undo.say("@Andy undo", "main")


async def test_nothing_is_undone_while_a_turn_runs(undo: UndoHarness) -> None:
    done = await undo.turn(REMIND)
    await undo.store.hear("@Andy something long")
    await undo.store.start_next()
    with pytest.raises(NotYet):
        await undo.undo(done.id)
    assert (await undo.say("@Andy undo")).startswith("I am still working on something here")


async def test_a_turn_is_undone_once_and_one_that_changed_nothing_is_left_to_the_agent(
    undo: UndoHarness,
) -> None:
    quiet = await undo.turn({"type": "list_reminders"})
    async with undo.store.database.transaction() as tx:
        await tx.execute("UPDATE outbox SET state = 'sent', sent_ms = 1")
    with pytest.raises(NothingToUndo):
        await undo.undo(quiet.id)
    assert await undo.say("@Andy undo that") == ""
    made = await undo.turn(REMIND)
    await undo.undo(made.id)
    with pytest.raises(NothingToUndo):
        await undo.undo(made.id)


async def test_something_else_in_the_place_leaves_all_as_it_is(undo: UndoHarness) -> None:
    made = await undo.turn(INSIGHT, REMIND)
    undone = await undo.undo(made.id)
    await undo.turn(INSIGHT)
    before = await undo.state()
    with pytest.raises((NothingToUndo, BuiltOn)):
        await undo.undo(undone, is_forced=True)
    assert await undo.state() == before


async def test_a_refused_command_and_one_that_is_rolled_back_leave_no_effect(
    undo: UndoHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    await undo.turn({"type": "cancel_reminder", "reminderId": 99}, is_checked=False)
    await undo.store.hear("@Andy once more")
    turn, _, _ = await undo.store.start_next()

    async def broken(*_: object, **__: object) -> None:
        raise RuntimeError("the host has a bug")

    with monkeypatch.context() as patch:
        patch.setattr("orchestrator.ipc.command_dispatcher.audit.append", broken)
        with pytest.raises(RuntimeError):
            await undo.command(turn, REMIND)
    assert await undo.store.rows("SELECT * FROM turn_effects WHERE turn_id = ?", turn.id) == []
    async with undo.store.database.transaction() as tx:
        await tx.execute("UPDATE chats SET name = 'x'")
    assert await undo.store.rows("SELECT * FROM temp.sqlite_master WHERE name = 'recorded_turn'") != []
    assert await undo.store.rows("SELECT * FROM temp.recorded_turn") == []


async def test_every_kind_of_reading_is_whole(undo: UndoHarness) -> None:
    english = ("undo", "Undo that!", "please undo it", "take that back", "redo", "undo the undo", "ok, undo")
    korean = ("되돌려 줘", "방금 한 거 되돌려 주세요", "원래대로 해 줘", "실행 취소", "방금 거 취소해 줘")
    for text in english + korean:
        assert read(text) is not None, text
    for text in ("undo anyway", "undo it all the same", "그래도 되돌려 줘"):
        assert read(text) is not None, text
        assert read(text).is_forced, text
    for text in ("how do I undo a commit?", "undo my haircut", "우리 되돌아갈까?", "취소해 줘", "", "back"):
        assert read(text) is None, text


def test_what_cannot_be_undone_is_named_in_words() -> None:
    assert lasting_effects([], sent=0, runs=0) == ()
    assert OutsideEffect(kind="mail/send", count=2).text() == "2 calls of mail/send"
    assert OutsideEffect(kind="WebFetch", count=1).text(is_korean=True) == "열어 본 웹페이지 1개"


# Random turns

_NUMBERS = st.integers(1, 4)
_COMMANDS = st.one_of(
    st.just(REMIND),
    st.just(SCHEDULE),
    st.just(NOTE),
    st.just(QUESTION),
    st.text("abc 가나", min_size=1, max_size=8).map(lambda text: use("create_task", title=text)),
    st.text("abc", min_size=1, max_size=3).map(lambda text: use("save_insight", content=text)),
    st.tuples(_NUMBERS, st.integers(0, 100)).map(
        lambda one: use("update_task", task_id=nth("dashboard_tasks", one[0]), progress=one[1])
    ),
    _NUMBERS.map(lambda n: use("update_task", task_id=nth("dashboard_tasks", n), status="completed")),
    _NUMBERS.map(lambda n: use("move_to_history", task_id=nth("dashboard_tasks", n))),
    _NUMBERS.map(lambda n: use("answer_question", question_id=nth("questions", n), answer="Friday")),
    _NUMBERS.map(lambda n: use("remove_question", question_id=nth("questions", n))),
    _NUMBERS.map(lambda n: {"type": "cancel_reminder", "reminderId": nth("reminders", n)}),
    _NUMBERS.map(lambda n: {"type": "cancel_notice", "noticeId": nth("cross_session_notifications", n)}),
    st.sampled_from(["pause_task", "resume_task", "cancel_task"]).map(
        lambda kind: {"type": kind, "taskId": nth("scheduled_tasks", 0)}
    ),
    st.just({"type": "message", "text": "hello"}),
    st.sampled_from(["Office", "Home", "Shop"]).map(
        lambda name: {"type": "change_group", "folder": "work", "name": name}
    ),
    st.sampled_from(["on", "off", "pause"]).map(
        lambda action: {"type": "control_loop", "action": action, "targetFolder": "work"}
    ),
)


@pytest.mark.slow
@settings(max_examples=25)
@given(first=st.lists(_COMMANDS, max_size=8), second=st.lists(_COMMANDS, min_size=1, max_size=10))
def test_random_turns_are_undone_exactly(
    migrated_database: Path, first: list[dict[str, object]], second: list[dict[str, object]]
) -> None:
    async def world(path: Path) -> None:
        database = await Database.open(path)
        try:
            undo = UndoHarness(StoreHarness(database, FakeClock()))
            await undo.add_groups()
            main = {"folder": "main", "text": "go", "is_checked": False}
            await undo.turn(*first, **main)
            before = await undo.state()
            turn = await undo.turn(*second, **main)
            after = await undo.state()
            try:
                number = await undo.undo(turn.id)
            except NothingToUndo:
                assert after == before
                return
            assert await undo.state() == before
            await undo.undo(number)
            assert await undo.state() == after
        finally:
            await database.close()

    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "messages.db"
        shutil.copyfile(migrated_database, path)
        asyncio.run(world(path))


async def test_what_is_forgotten_cannot_be_put_back(undo: UndoHarness) -> None:
    made = await undo.turn(INSIGHT)
    async with undo.store.database.transaction() as tx:
        await turn_effects.forget(tx, Folder("family"))
    assert await undo.store.rows("SELECT * FROM turn_effects WHERE turn_id = ?", made.id) == []


async def test_the_command_line_undoes_the_last_turn_and_says_what_to_add(
    undo: UndoHarness, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def andy(*words: str) -> str:
        words = ("undo", *words, "--home", str(tmp_path))
        await asyncio.to_thread(app, words, result_action="return_value")
        return capsys.readouterr().out

    undo.store.clock.wall_ms = SystemClock().now_ms()
    first = await undo.turn(TASK)
    second = await undo.turn(use("update_task", task_id=nth("dashboard_tasks", 0), progress=40))
    with pytest.raises(BadRequest, match="'--anyway'"):
        await andy("--turn", str(first.id))
    for _ in range(2):  # the second one undoes the first
        said = await andy("family")
        assert "the task “Shed list” is as it was" in said
        assert said.endswith(" 'andy undo family' again makes it as it was.\n")
    row = json.loads(await andy("--turn", str(first.id), "--anyway", "--json"))
    assert row["put_back"] == [{"kind": "dashboard_tasks", "title": "Shed list", "change": "removed"}]
    with pytest.raises(NothingToUndo, match=f"Turn {first.id} is undone already"):
        await andy("--turn", str(first.id))
    with pytest.raises(BadRequest, match="No turn of 'work' changed anything"):
        await andy("work")
    with pytest.raises(UsageError):
        await andy("work", "--turn", str(second.id))


async def test_no_agent_reads_the_words_of_an_undo_but_each_is_noticed(undo: UndoHarness) -> None:
    await undo.turn(REMIND)
    await undo.say("@Andy undo that")
    await undo.store.hear("@Andy what now?")
    _, _, order = await undo.store.start_next()
    assert "undo that" not in order.prompt
    assert "what now?" in order.prompt
    (fact,) = await undo.store.rows(
        "SELECT payload_json FROM cross_session_notifications WHERE event_type = 'host.turn.undone'"
    )
    assert "the reminder “call mum” is gone" in json.loads(fact["payload_json"])["message"]


async def test_a_quote_of_another_groups_answer_undoes_nothing(undo: UndoHarness) -> None:
    await undo.turn(REMIND, folder="work")
    after = await undo.state()
    (answer,) = await undo.store.rows("SELECT message_id FROM outbox")
    forged = Quote(message_id=MessageId(answer["message_id"]), sender="Andy", text="Done.")
    assert await undo.say("@Andy undo", quote=forged) == ""
    assert await undo.state() == after


async def test_notes_of_the_conversation_and_forgetting_are_listed(undo: UndoHarness) -> None:
    async def remember(*_: object, **__: object) -> Reply:
        return Reply(request_id="r", ok=True, code="ok", text="Kept.")

    contexts = type("Contexts", (), {"use": staticmethod(remember)})()
    undo.dispatcher._contexts = contexts
    await undo.turn(
        REMIND,
        {"type": "remember", "tool": "record_decision", "arguments": {"decision": "by train"}},
        {"type": "remember", "tool": "memory", "arguments": {"action": "forget", "about": "bus"}},
        {"type": "remember", "tool": "memory", "arguments": {"action": "show"}},
    )
    said = await undo.say("@Andy undo")
    assert "1 note of the conversation stays, 1 thing was forgotten for good." in said


HOST_TABLES = frozenset(
    [
        "audit",
        "chats",
        "commands",
        "cycles",
        "dashboard_seen",
        "dashboard_views",
        "dashboards",
        "events",
        "messages",
        "message_search_data",
        "message_search_docsize",
        "message_search_idx",
        "router_state",
        "runs",
        "sqlite_sequence",
        "task_run_logs",
        "turn_effects",
        "wakes",
    ]
)
"""Tables that commands write, and that have what happened or what only the host needs."""


async def test_whatever_commands_change_is_tracked_or_known_to_be_the_hosts(undo: UndoHarness) -> None:
    async def everything() -> dict[str, object]:
        tables = await undo.store.rows("SELECT name FROM sqlite_master WHERE type = 'table'")
        return {row["name"]: await undo.store.rows(f"SELECT * FROM {row['name']}") for row in tables}

    commands = [
        *(REMIND, SCHEDULE, NOTE, TASK, INSIGHT, QUESTION, {"type": "message", "text": "hello"}),
        use("update_task", task_id=nth("dashboard_tasks", 0), status="completed"),
        use("move_to_history", task_id=nth("dashboard_tasks", 0)),
        use("answer_question", question_id=nth("questions", 0), answer="Friday"),
        {"type": "run_task", "taskId": nth("scheduled_tasks", 0)},
        {"type": "pause_task", "taskId": nth("scheduled_tasks", 0)},
        {"type": "change_group", "folder": "work", "name": "Office"},
        {"type": "register_group", "jid": "n@g.us", "name": "New", "folder": "new", "trigger": "@Andy"},
        {"type": "register_group", "jid": "m@g.us", "name": "N", "folder": "work", "added": True},
        {"type": "control_loop", "action": "on", "targetFolder": "work"},
        {"type": "choose_model", "model": "default"},
        {"type": "unregister_group", "folder": "work"},
    ]
    await undo.store.hear("go", "main")
    turn, _, _ = await undo.store.start_next("main")
    before = await everything()
    for command in commands:
        await undo.command(turn, command, folder="main")
    after = await everything()
    changed = {name for name in after if after[name] != before.get(name)}
    assert {"scheduled_tasks", "registered_groups", "loop_state"} <= changed
    assert changed - HOST_TABLES - {table.name for table in turn_effects.TRACKED} == set()


async def test_a_cycle_of_a_loop_whose_start_was_undone_ends_and_stops_no_other_loop(
    undo: UndoHarness,
) -> None:
    loop_harness = LoopHarness(undo.store)
    on = {"type": "control_loop", "action": "on", "targetFolder": "work"}
    switched_on = await undo.turn(on, folder="main", text="go")
    await undo.store.hear("@Andy hi", "work")
    turn, run, _ = await undo.store.start_next("work")
    async with undo.store.database.transaction() as tx:
        assert await loop_harness.recorder.begin(tx, turn) is not None

    await undo.undo(switched_on.id)
    assert await undo.store.rows("SELECT * FROM loop_state") == []
    await undo.store.take(run, Ack(n=1, turn=turn.id))
    await undo.store.take(run, Result(n=2, turn=turn.id, result="hi"))
    await undo.store.take(run, TurnEnd(n=3, turn=turn.id))
    await loop_harness.look()

    (cycle,) = await undo.store.rows("SELECT outcome, ended_ms IS NOT NULL AS has_ended FROM cycles")
    assert dict(cycle) == {"outcome": "skipped", "has_ended": 1}
