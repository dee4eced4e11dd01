"""The rows that lists, HTTP and the console show: pages of them, and a week ahead."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from agent_runner.wire.mailbox import ScheduleTask
from orchestrator.domain.errors import UnknownGroup
from orchestrator.reports import audit as audit_reports
from orchestrator.reports import messages, queues, upcoming
from orchestrator.reports.groups import chat_rows
from orchestrator.scheduler import cron, scheduled_task_service
from orchestrator.scheduler.timing import schedule_reader
from orchestrator.store import audit
from orchestrator.store.loop import loops
from orchestrator.store.loop.loops import NextWake
from tests.support.command_dispatchers import dispatcher_of
from tests.support.reminders import put_reminder
from tests.support.store_harness import SEOUL, StoreHarness

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


@pytest.fixture
async def harness(store_harness: StoreHarness) -> StoreHarness:
    await store_harness.add_group("family", requires_trigger=False)
    await store_harness.add_group("work")
    return store_harness


async def page(harness: StoreHarness, **given: Any) -> list[dict[str, Any]]:
    async with harness.database.reading() as tx:
        return await messages.rows(tx, "family", **{"limit": 50, **given})


async def test_a_forgotten_message_is_shown_as_one(harness):
    await harness.hear("one")
    async with harness.database.transaction() as tx:
        await tx.execute("UPDATE messages SET content = '', sender_name = ''")
    assert messages.lines(await page(harness), zone=SEOUL)[0].endswith(
        "  somebody: (its text was deleted)  [queued]"
    )


async def test_each_message_is_told_with_what_became_of_it(harness):
    await harness.hear("one", id="M1")
    answered = await harness.answer("hello")
    await harness.deliver_all()
    await harness.hear("two", id="M2")
    turn, run, _ = await harness.start_next()
    await harness.lose(run)
    await harness.hear("@Andy elsewhere", folder="work")
    rows = await page(harness)

    assert [(row["state"], row["place"], row["attempt"]) for row in rows] == [
        ("answered", None, 1),
        ("said", None, None),
        ("queued", 1, 2),
    ]
    assert rows[1]["turn"] == answered.id, "what Andy said leads to what he was asked"
    assert rows[1]["is_andy"]
    assert rows[2]["outcome"].startswith("queued, try 2: ")
    assert rows[2]["turn"] == turn.id
    with pytest.raises(UnknownGroup):
        async with harness.database.reading() as tx:
            await messages.rows(tx, "nobody", limit=1)


async def test_pages_of_messages_go_both_ways_and_meet(harness):
    for number in range(7):
        await harness.hear(f"m{number}")
    newest = await page(harness, limit=3)
    assert [row["text"] for row in newest] == ["m4", "m5", "m6"]
    older = await page(harness, limit=3, before_seq=newest[0]["seq"])
    assert [row["text"] for row in older] == ["m1", "m2", "m3"]
    assert [row["text"] for row in await page(harness, limit=2, after_seq=older[-1]["seq"])] == ["m4", "m5"]
    assert await page(harness, after_seq=newest[-1]["seq"]) == []


async def test_turns_runs_and_audit_come_in_pages(harness):
    for number in range(3):
        await harness.hear(f"q{number}")
        await harness.answer("yes")
    async with harness.database.transaction() as tx:
        for number in range(3):
            await audit.append(tx, audit.AuditEvent(at_ms=number, kind=f"kind{number}"))
    async with harness.database.reading() as tx:
        first = await queues.turn_rows(tx, "family", limit=2)
        rest = await queues.turn_rows(tx, "family", limit=2, before_id=first[-1]["id"])
        runs = await queues.run_rows(tx, "family", limit=50)
        more = await queues.run_rows(tx, None, limit=50, before_number=runs[0]["number"])
        last = await audit_reports.rows(tx, None, since_ms=0, limit=1)
        before = await audit_reports.rows(tx, None, since_ms=0, limit=1, before_id=last[0]["id"])
    assert [row["id"] for row in (*first, *rest)] == [3, 2, 1]
    assert [row["number"] for row in more] == [row["number"] for row in runs[1:]]
    assert [last[0]["kind"], before[0]["kind"]] == ["kind2", "kind1"]


async def test_what_was_refused_and_what_containers_asked_is_listed(harness):
    dispatcher = dispatcher_of(harness)
    (group,) = [one for one in await _groups(harness) if one.folder == "family"]
    await dispatcher.handle(group, "a.json", b'{"type": "list_reminders"}')
    await dispatcher.handle(group, "b.json", b'{"type": "refresh_groups"}')
    async with harness.database.transaction() as tx:
        await audit.append(tx, audit.AuditEvent(at_ms=1, kind="egress.refused", folder=group.folder))
    async with harness.database.reading() as tx:
        refused = await audit_reports.rows(tx, None, since_ms=0, limit=50, only_refused=True)
        commands = await audit_reports.command_rows(tx, "family", limit=50)
        older = await audit_reports.command_rows(tx, None, limit=50, before_number=commands[0]["number"])
    assert [row["kind"] for row in refused] == ["command", "egress.refused"]
    assert [(row["type"], row["ok"]) for row in commands] == [
        ("refresh_groups", False),
        ("list_reminders", True),
    ]
    assert older == commands[1:]


async def _groups(harness: StoreHarness) -> list[Any]:
    from orchestrator.store.groups import groups

    async with harness.database.reading() as tx:
        return await groups.every(tx)


async def test_a_week_ahead_has_a_line_a_day_for_what_comes_again_and_says_how_often(harness, clock):
    times = schedule_reader(lambda _: SEOUL)
    now_ms = clock.now_ms()
    async with harness.database.transaction() as tx:
        family, _ = await _groups_in(tx)
        for kind, value in (("cron", "0 9 * * *"), ("interval", "60000"), ("once", "30d"), ("2h", "2h")):
            wish = ScheduleTask(
                prompt=f"do {kind}",
                schedule_type="interval" if kind == "2h" else kind,
                schedule_value=value,
                context_mode="isolated",
            )
            await scheduled_task_service.add(tx, "family", wish, times, now_ms=now_ms)
        await put_reminder(tx, family, text="pill", due_ms=now_ms - HOUR_MS, now_ms=now_ms)
        await put_reminder(tx, family, text="far", due_ms=now_ms + 9 * DAY_MS, now_ms=now_ms)
        wake = NextWake(at_ms=now_ms + 2 * DAY_MS, set_by="agent", reason="look again", trace=())
        await loops.switch_on(tx, family.folder, auto_ms=HOUR_MS, next_wake=wake, now_ms=now_ms)
    async with harness.database.reading() as tx:
        rows = await upcoming.week(tx, "family", now_ms=now_ms, zone=SEOUL)
        assert await upcoming.week(tx, "work", now_ms=now_ms, zone=SEOUL) == []

    assert rows == sorted(rows, key=lambda row: row["due_ms"])
    assert [row["what"] for row in rows if row["is_overdue"]] == ["pill"]
    assert {row["times"] for row in rows if row["kind"] != "task"} == {1}, "the console asks of each row"
    daily = [row for row in rows if row["what"] == "do cron"]
    assert {row["due"][11:16] for row in daily} == {"09:00"}
    assert len({row["date"] for row in daily}) == len(daily)
    today = datetime.fromtimestamp(now_ms / 1000, SEOUL).date()
    week = [str(today + timedelta(days=n)) for n in range(1, 8)]
    assert [row["date"] for row in daily][-7:] == week, "seven whole days follow this one"
    often = [row for row in rows if row["what"] == "do interval"]
    assert [row["date"] for row in often] == [str(today), *week]
    assert {row["times"] for row in often[1:]} == {upcoming.MAX_TIMES_A_DAY}
    assert {row["due"][11:16] for row in often[1:]} == {"00:00"}
    hourly = [row for row in rows if row["what"] == "do 2h"][1]
    assert (hourly["times"], hourly["date"]) == (12, week[0])
    assert hourly["last_due"] > hourly["due"]
    assert [(row["kind"], row["what"]) for row in rows if row["kind"] == "wake"] == [("wake", "look again")]
    assert {row["what"] for row in rows} == {"pill", "do cron", "do interval", "do 2h", "look again"}


async def test_a_listing_of_two_months_reads_a_task_of_every_minute_once_a_day(harness, monkeypatch):
    now_ms = harness.clock.now_ms()
    wish = ScheduleTask(
        prompt="look", schedule_type="cron", schedule_value="* * * * *", context_mode="isolated"
    )
    async with harness.database.transaction() as tx:
        await scheduled_task_service.add(tx, "family", wish, schedule_reader(lambda _: SEOUL), now_ms=now_ms)
    parsed, parse = [], cron._parsed
    monkeypatch.setattr(cron, "_parsed", lambda text: parsed.append(text) or parse(text))
    cron.next_ms.cache_clear()
    async with harness.database.reading() as tx:
        rows = await upcoming.week(tx, "family", now_ms=now_ms, zone=SEOUL, days=60)
    assert [row["times"] for row in rows[1:]] == [upcoming.MAX_TIMES_A_DAY] * 60
    assert len(parsed) <= 2 * 61


async def _groups_in(tx: Any) -> list[Any]:
    from orchestrator.store.groups import groups

    return await groups.every(tx)


async def test_every_chat_that_was_seen_is_told_with_its_group(harness):
    async with harness.database.reading() as tx:
        rows = await chat_rows(tx)
    assert {(row["jid"], row["group"]) for row in rows} == {
        ("local:family", "family"),
        ("local:work", "work"),
    }
