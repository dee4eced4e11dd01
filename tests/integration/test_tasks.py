"""Tasks from their due time to the end of their run, in a real store."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from collections.abc import Awaitable, Callable
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from agent_runner.wire.frames import TurnEnd
from agent_runner.wire.order import ECHO
from orchestrator.domain import failures
from orchestrator.domain.values import Cause, Folder, TaskStatus
from orchestrator.groups import changes, registration
from orchestrator.queue.retries import refuse
from orchestrator.reports.tasks import list_lines
from orchestrator.scheduler import due_tasks, scheduled_task_service
from orchestrator.store.groups import groups
from orchestrator.store.runs import turn_outages
from orchestrator.store.schedule import tasks
from tests.doubles.scripted_runtime import ScriptedRuntime, scripted_pool
from tests.support.store_harness import StoreHarness
from tests.support.task_harness import DAY_MS, HOUR_MS, MINUTE_MS, TaskHarness
from tests.support.until import until


@pytest.fixture
async def home(store_harness: StoreHarness) -> TaskHarness:
    await store_harness.add_group()
    return TaskHarness(store_harness)


async def test_a_due_task_becomes_one_queued_turn_and_is_due_again(home: TaskHarness) -> None:
    made_ms = home.harness.clock.now_ms()
    task_id = await home.schedule("interval", "1h")
    assert await home.after(HOUR_MS - 1) == []
    (turn,) = await home.after(1)
    assert (turn.kind, turn.task_id, turn.prompt, turn.is_isolated) == ("task", task_id, "echo news", True)
    assert (await home.task(task_id)).next_ms == made_ms + 2 * HOUR_MS
    (run,) = await home.runs(task_id)
    assert (run.status, run.turn_id, run.due_ms) == ("running", turn.id, made_ms + HOUR_MS)
    assert await home.after(0) == [turn], "looking again starts nothing twice"


async def test_a_restarted_host_does_not_start_it_twice(home: TaskHarness) -> None:
    await home.schedule()
    (turn,) = await home.after(HOUR_MS)
    assert await TaskHarness(home.harness).after(1) == [turn]


async def test_what_a_broken_disk_stops_happens_whole_later(home: TaskHarness) -> None:
    task_id = await home.schedule()
    due_ms = (await home.task(task_id)).next_ms
    async with home.harness.database.transaction() as tx:
        await tx.execute(
            "CREATE TRIGGER broken BEFORE INSERT ON task_run_logs BEGIN SELECT raise(ABORT, 'broken'); END"
        )
    with pytest.raises(sqlite3.IntegrityError):
        await home.after(HOUR_MS)
    assert (await home.task(task_id)).next_ms == due_ms
    assert await home.harness.queued() == []
    async with home.harness.database.transaction() as tx:
        await tx.execute("DROP TRIGGER broken")
    assert len(await home.after(0)) == 1


async def test_a_clock_that_is_set_back_while_the_disk_is_broken_is_followed_later(home: TaskHarness) -> None:
    task_id = await home.schedule("interval", "1h")
    await home.after(0)
    home.harness.clock.wall_ms -= DAY_MS
    async with home.harness.database.transaction() as tx:
        await tx.execute(
            "CREATE TRIGGER broken BEFORE UPDATE ON scheduled_tasks BEGIN SELECT raise(ABORT, 'broken'); END"
        )
    with pytest.raises(sqlite3.IntegrityError):
        await home.after(0)
    async with home.harness.database.transaction() as tx:
        await tx.execute("DROP TRIGGER broken")
    await home.after(0)
    assert (await home.task(task_id)).next_ms == home.harness.clock.now_ms() + HOUR_MS


async def test_the_scheduler_sleeps_until_the_next_due_time(home: TaskHarness) -> None:
    assert await home.scheduler.fire_due() == 60
    await home.schedule("once", "45s")
    assert await home.scheduler.fire_due() == 45
    await home.schedule("cron", "0 9 * * *")
    assert await home.scheduler.fire_due() == 45


async def test_an_interval_task_keeps_its_rhythm_when_its_cancellation_is_undone(home: TaskHarness) -> None:
    made_ms = home.harness.clock.now_ms()
    task_id = await home.schedule("interval", "1h")
    await home.after(HOUR_MS)
    home.harness.clock.pass_ms(10 * MINUTE_MS)
    await home.run_through()
    await home.ask("cancel_task", taskId=task_id)
    assert (await home.task(task_id)).next_ms is None
    home.harness.clock.pass_ms(3 * HOUR_MS)
    async with home.harness.database.transaction() as tx:
        task = await scheduled_task_service.apply_action(
            tx, task_id, "restore", home.dispatcher._times, now_ms=home.harness.clock.now_ms()
        )
    assert task.next_ms == made_ms + 5 * HOUR_MS


async def test_a_task_that_an_earlier_version_cancelled_can_be_restored(home: TaskHarness) -> None:
    task_id = await home.schedule("interval", "1h")
    await home.ask("cancel_task", taskId=task_id)
    now_ms = home.harness.clock.now_ms()
    async with home.harness.database.transaction() as tx:
        await tasks.note_cancelled_due(tx, task_id, None)
        task = await scheduled_task_service.apply_action(
            tx, task_id, "restore", home.dispatcher._times, now_ms=now_ms
        )
    assert task.next_ms == now_ms + HOUR_MS


async def test_a_look_that_finds_nothing_due_waits_for_no_other_writer(home: TaskHarness) -> None:
    await home.schedule("cron", "0 9 * * *")
    await home.scheduler.fire_due()
    async with home.harness.database.reading() as tx:
        ((_, _, path),) = await tx.execute_fetchall("PRAGMA database_list")
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    try:
        assert await home.scheduler.fire_due() == 60
    finally:
        other.close()


async def test_an_answer_ends_the_run_and_goes_to_the_group(home: TaskHarness) -> None:
    task_id = await home.schedule()
    await home.after(HOUR_MS)
    turn, run = await home.begin()
    home.harness.clock.pass_ms(2_500)
    await home.answer(turn, run, "x" * 300)
    (ended,) = await home.runs(task_id)
    assert (ended.status, ended.duration_ms, ended.error) == ("success", 2_500, None)
    assert ended.result == "x" * 200
    assert (await home.task(task_id)).last_ms == home.harness.clock.now_ms()
    assert await home.harness.deliver_all() == ["x" * 300]


async def test_a_silent_run_is_recorded_too(home: TaskHarness) -> None:
    task_id = await home.schedule()
    await home.after(HOUR_MS)
    await home.run_through("")
    (run,) = await home.runs(task_id)
    assert (run.status, run.result, run.error) == ("success", None, "nothing to say")


async def test_a_task_that_runs_once_is_completed_by_its_run(home: TaskHarness) -> None:
    task_id = await home.schedule("once", "10m")
    await home.after(10 * MINUTE_MS)
    task = await home.task(task_id)
    assert (task.status, task.next_ms) == ("active", None)
    await home.run_through()
    assert (await home.task(task_id)).status is TaskStatus.COMPLETED
    assert await home.after(DAY_MS) == []


# Overlap


async def test_while_it_runs_it_is_not_started_again(home: TaskHarness) -> None:
    task_id = await home.schedule("interval", "1h")
    await home.after(HOUR_MS)
    await home.begin()
    assert await home.after(HOUR_MS) == []
    running, skipped = await home.runs(task_id)
    assert (running.status, skipped.status) == ("running", "skipped")
    assert skipped.error == "its last run had not ended"


async def test_one_run_waits_where_overlaps_are_queued(home: TaskHarness) -> None:
    task_id = await home.schedule("interval", "1h", overlap="queue")
    await home.after(HOUR_MS)
    turn, run = await home.begin()
    assert len(await home.after(HOUR_MS)) == 1
    assert len(await home.after(HOUR_MS)) == 1
    assert await home.statuses(task_id) == ["running", "running", "skipped"]
    await home.answer(turn, run)
    await home.run_through()
    assert await home.statuses(task_id) == ["success", "success", "skipped"]


# Catching up


@pytest.mark.parametrize(
    ("catch_up", "away_hours", "expected"),
    [
        ("skip", 5, ["skipped"]),
        ("latest", 5, ["skipped", "running"]),
        ("all", 5, ["running"] * 5),
        ("all", 10, ["running"] * 10),
        ("all", 50, ["skipped", *["running"] * 10]),
        ("skip", 1, ["skipped"]),
        ("latest", 1, ["running"]),
    ],
)
async def test_missed_due_times_count_as_the_task_says(
    home: TaskHarness, catch_up: str, away_hours: int, expected: list[str]
) -> None:
    task_id = await home.schedule("interval", "1h", catch_up=catch_up)
    made_ms = home.harness.clock.now_ms()
    await home.after(away_hours * HOUR_MS + 10 * MINUTE_MS)
    assert await home.statuses(task_id) == expected
    assert set(await home.causes(task_id)) == {Cause.CATCH_UP}
    assert (await home.task(task_id)).next_ms == made_ms + (away_hours + 1) * HOUR_MS


@pytest.mark.parametrize(
    ("catch_up", "away_hours", "number"),
    [
        ("latest", 9, "8"),
        ("latest", 10, "9"),
        ("latest", 11, "9 or more"),
        ("skip", 10, "10"),
        ("skip", 11, "10 or more"),
    ],
)
async def test_due_times_that_are_left_out_are_counted_up_to_ten(
    home: TaskHarness, catch_up: str, away_hours: int, number: str
) -> None:
    task_id = await home.schedule("interval", "1h", catch_up=catch_up)
    await home.after(away_hours * HOUR_MS + 10 * MINUTE_MS)
    skipped = [run.error for run in await home.runs(task_id) if run.status == "skipped"]
    assert skipped == [f"Andy was not running ({number} due times)"]


async def test_due_times_that_are_too_many_to_catch_up_on_are_recorded(home: TaskHarness) -> None:
    task_id = await home.schedule("interval", "1h", catch_up="all")
    made_ms = home.harness.clock.now_ms()
    await home.after(11 * HOUR_MS + 10 * MINUTE_MS)
    (skipped,) = [run for run in await home.runs(task_id) if run.status == "skipped"]
    assert skipped.error == "Andy was not running (the due times before the newest 10)"
    assert skipped.due_ms == made_ms + HOUR_MS


async def test_what_is_a_moment_late_is_not_missed(home: TaskHarness) -> None:
    task_id = await home.schedule("interval", "1h", catch_up="skip")
    await home.after(HOUR_MS + MINUTE_MS)
    assert await home.statuses(task_id) == ["running"]
    assert await home.causes(task_id) == [Cause.SCHEDULE]


async def test_an_only_time_that_was_missed_and_is_not_caught_up_completes_the_task(
    home: TaskHarness,
) -> None:
    task_id = await home.schedule("once", "10m", catch_up="skip")
    assert await home.after(HOUR_MS) == []
    task = await home.task(task_id)
    assert (task.status, task.last_result) == ("completed", "Left out: Andy was not running")


# Failures


async def test_five_failures_in_a_row_pause_it_and_tell_the_group_once(home: TaskHarness) -> None:
    task_id = await home.schedule()
    for number in range(1, 6):
        assert (await home.task(task_id)).status is TaskStatus.ACTIVE, number
        await home.after(HOUR_MS)
        await home.fail_for_good()
    task = await home.task(task_id)
    assert (task.status, task.failures) == ("paused", 5)
    assert await home.statuses(task_id) == ["error"] * 5
    (told,) = await home.told()
    assert task_id in told
    assert "5 times" in told
    assert await home.after(DAY_MS) == []
    assert len(await home.told()) == 1


async def test_people_read_the_words_of_a_repeating_reminder_and_not_those_for_its_agent(
    home: TaskHarness,
) -> None:
    task_id = await home.schedule(prompt=f"{ECHO}⏰ Reminder: take out the bins")
    *_, line = list_lines([await home.task(task_id)])
    assert line.endswith("  ⏰ Reminder: take out the bins")
    for _ in range(5):
        await home.after(HOUR_MS)
        await home.fail_for_good()
    (told,) = await home.told()
    assert told.startswith("⏸️ I have paused “⏰ Reminder: take out the bins”")


async def test_a_success_between_starts_the_count_anew(home: TaskHarness) -> None:
    task_id = await home.schedule()
    for is_good in (False, False, False, False, True, False, False, False, False):
        await home.after(HOUR_MS)
        await (home.run_through() if is_good else home.fail_for_good())
    task = await home.task(task_id)
    assert (task.status, task.failures) == ("active", 4)
    assert await home.told() == []


async def overloaded(home: TaskHarness) -> None:
    """The model is down for as long as a turn waits for it."""
    turn, run = await home.begin()
    async with home.harness.database.transaction() as tx:
        began_ms = home.harness.clock.now_ms() - failures.MAX_OUTAGE_MS
        await turn_outages.begin(tx, turn.id, failures.Outage.MODEL, since_ms=began_ms)
    await home.harness.take(run, TurnEnd(n=2, turn=turn.id, status="error", error="529", code="agent"))


async def without_an_engine(home: TaskHarness) -> None:
    """The engine is away for as long as a turn waits for it."""
    _, run = await home.begin()
    await home.harness.lose(run, fault=failures.FailureOwner.ENGINE)
    home.harness.clock.pass_ms(failures.MAX_OUTAGE_MS)
    _, run = await home.begin()
    await home.harness.lose(run, fault=failures.FailureOwner.ENGINE)


async def without_an_image(home: TaskHarness) -> None:
    """The container cannot be made."""
    _, run = await home.begin()
    await home.harness.lose(run, is_retryable=False, fault=failures.FailureOwner.HOST)


async def refused_by_the_model(home: TaskHarness) -> None:
    """The model service takes no question of anybody."""
    (turn,) = await home.harness.queued()
    async with home.harness.database.transaction() as tx:
        await refuse(tx, turn, now_ms=home.harness.clock.now_ms())


@pytest.mark.parametrize("suffer", [overloaded, without_an_engine, without_an_image, refused_by_the_model])
async def test_an_outage_is_not_counted_against_a_task_and_its_schedule_goes_on(
    home: TaskHarness, suffer: Callable[[TaskHarness], Awaitable[None]]
) -> None:
    task_id = await home.schedule("interval", "1d")
    for _ in range(6):
        await home.after(DAY_MS)
        await suffer(home)
    task = await home.task(task_id)
    assert (task.status, task.failures) == ("active", 0)
    assert await home.statuses(task_id) == ["error"] * 6
    await home.after(DAY_MS)
    await home.run_through()
    assert (await home.statuses(task_id))[-1] == "success"


async def test_a_resumed_task_has_five_tries_again(home: TaskHarness) -> None:
    task_id = await home.schedule()
    for _ in range(5):
        await home.after(HOUR_MS)
        await home.fail_for_good()
    assert (await home.ask("resume_task", taskId=task_id)).ok
    await home.after(HOUR_MS)
    await home.fail_for_good()
    task = await home.task(task_id)
    assert (task.status, task.failures) == ("active", 1)


async def test_a_run_that_is_tried_again_is_one_run(home: TaskHarness) -> None:
    task_id = await home.schedule()
    await home.after(HOUR_MS)
    for _ in range(3):
        _, run = await home.begin()
        await home.harness.lose(run)
        assert await home.statuses(task_id) == ["running"]
    await home.run_through()
    assert await home.statuses(task_id) == ["success"]
    assert (await home.task(task_id)).failures == 0


async def test_a_failure_of_what_runs_once_is_told(home: TaskHarness) -> None:
    task_id = await home.schedule("once", "10m", prompt="call the\nplumber")
    await home.after(10 * MINUTE_MS)
    await home.fail_for_good()
    (told,) = await home.told()
    assert "call the plumber" in told
    task = await home.task(task_id)
    assert task.status is TaskStatus.COMPLETED
    assert (task.last_result or "").startswith("Error: ")


async def test_a_check_that_fails_is_not_tried_at_once_and_counts(home: TaskHarness) -> None:
    task_id = await home.schedule(check="exit 3")
    await home.after(HOUR_MS)
    turn, run = await home.begin()
    failed = TurnEnd(
        n=2, turn=turn.id, status="error", error="The check failed: it ended with code 3.", code="check"
    )
    await home.harness.take(run, failed)
    assert await home.harness.queued() == []
    (ended,) = await home.runs(task_id)
    assert (ended.status, ended.error) == ("error", "The check failed: it ended with code 3.")
    assert (await home.task(task_id)).failures == 1
    assert await home.harness.outgoing() == []


async def test_a_check_that_finds_nothing_is_recorded_as_that(home: TaskHarness) -> None:
    task_id = await home.schedule(check="exit 0")
    await home.after(HOUR_MS)
    turn, run = await home.begin()
    await home.harness.take(run, TurnEnd(n=2, turn=turn.id, note="the check found nothing to do"))
    (ended,) = await home.runs(task_id)
    assert (ended.status, ended.error) == ("success", "the check found nothing to do.")
    assert (await home.task(task_id)).last_result == "the check found nothing to do."


# Paused, cancelled, gone


@pytest.mark.parametrize("command", ["cancel_task", "pause_task"])
async def test_what_is_stopped_while_it_waits_does_not_run(home: TaskHarness, command: str) -> None:
    task_id = await home.schedule()
    (turn,) = await home.after(HOUR_MS)
    assert (await home.ask(command, taskId=task_id)).ok
    assert await home.harness.queued() == []
    settled = await home.harness.turn(turn.id)
    assert settled.state == "failed"
    assert "its task was" in (settled.reason or "")
    assert await home.statuses(task_id) == ["cancelled"]
    task = await home.task(task_id)
    assert task.failures == 0
    assert await home.told() == []
    assert await home.after(DAY_MS) == []


@pytest.mark.parametrize("command", ["cancel_task", "pause_task"])
async def test_what_is_stopped_while_it_runs_is_not_tried_again(home: TaskHarness, command: str) -> None:
    task_id = await home.schedule()
    await home.after(HOUR_MS)
    _, run = await home.begin()
    home.harness.clock.pass_ms(1_000)
    await home.ask(command, taskId=task_id)
    await home.harness.lose(run)
    assert await home.harness.queued() == []
    assert await home.statuses(task_id) == ["cancelled"]


async def test_what_has_begun_before_it_was_cancelled_still_answers(home: TaskHarness) -> None:
    task_id = await home.schedule()
    await home.after(HOUR_MS)
    turn, run = await home.begin()
    await home.ask("cancel_task", taskId=task_id)
    await home.answer(turn, run, "already written")
    assert await home.harness.deliver_all() == ["already written"]
    assert await home.statuses(task_id) == ["success"]
    assert (await home.task(task_id)).status is TaskStatus.CANCELLED


async def test_what_is_cancelled_after_the_lanes_looked_gets_no_container(
    home: TaskHarness, tmp_path: Path
) -> None:
    task_id = await home.schedule()
    (seen,) = await home.after(HOUR_MS)
    await home.ask("cancel_task", taskId=task_id)
    async with asyncio.TaskGroup() as tasks:
        runtime = ScriptedRuntime()
        pool = scripted_pool(home.harness, runtime, tasks, tmp_path)
        await pool.start(seen)
        await until(lambda: pool.live() == [], "its slot is free")
    assert runtime.started == []
    assert await home.harness.rows("SELECT * FROM runs") == []


async def test_the_tasks_of_a_group_that_is_taken_away_are_paused(home: TaskHarness) -> None:
    task_id = await home.schedule()
    await home.after(HOUR_MS)
    async with home.harness.database.transaction() as tx:
        departure = await registration.unregister(tx, "family", now_ms=home.harness.clock.now_ms())
    assert departure.paused_tasks == 1
    assert "Its tasks are paused (1)." in departure.explain()
    assert (await home.task(task_id)).status is TaskStatus.PAUSED
    assert await home.statuses(task_id) == ["cancelled"]


async def test_a_task_whose_group_is_gone_is_paused_and_not_looked_at_again(home: TaskHarness) -> None:
    task_id = await home.schedule()
    async with home.harness.database.transaction() as tx:
        await groups.remove(tx, Folder("family"))
    assert await home.after(HOUR_MS) == []
    task = await home.task(task_id)
    assert (task.status, task.status_reason) == ("paused", "its group is no longer registered")
    for _ in range(3):
        await home.after(HOUR_MS)
    assert await home.runs(task_id) == []


@pytest.mark.parametrize(
    "damage", ["timezone = 'Mars/Olympus'", "schedule_value = 'every day'", "schedule_value = '61 * * * *'"]
)
async def test_a_schedule_that_is_read_no_more_stops_its_own_task_only(
    home: TaskHarness, damage: str
) -> None:
    broken = await home.schedule("cron", "* * * * *")
    async with home.harness.database.transaction() as tx:
        await tx.execute(f"UPDATE scheduled_tasks SET {damage}")
    good = await home.schedule("cron", "* * * * *")
    (turn,) = await home.after(MINUTE_MS)
    assert turn.task_id == good
    task = await home.task(broken)
    assert task.status is TaskStatus.PAUSED
    assert "cannot be used any more" in (task.status_reason or "")
    (told,) = await home.told()
    assert told.startswith(f"⏸️ I have paused “echo news” ({broken}): its schedule cannot be used any more")
    assert re.search(r"[^.]\. Give it a new time, and resume it\.$", told)


async def test_a_task_whose_schedule_is_read_no_more_is_not_resumed_without_a_new_one(
    home: TaskHarness,
) -> None:
    task_id = await home.schedule("cron", "* * * * *")
    async with home.harness.database.transaction() as tx:
        await tx.execute("UPDATE scheduled_tasks SET schedule_value = '61 * * * *'")
    await home.after(MINUTE_MS)
    reply = await home.ask("resume_task", taskId=task_id)
    assert (reply.ok, reply.code) == (False, "bad_schedule")
    assert reply.text.startswith("The schedule cannot be used any more: ")
    assert (
        await home.ask("update_task", taskId=task_id, schedule_type="cron", schedule_value="5 * * * *")
    ).ok
    assert (await home.ask("resume_task", taskId=task_id)).ok


async def test_a_task_in_a_zone_that_is_known_no_more_is_listed_and_can_be_cancelled(
    home: TaskHarness,
) -> None:
    task_id = await home.schedule("interval", "1h")
    async with home.harness.database.transaction() as tx:
        await tx.execute("UPDATE scheduled_tasks SET timezone = 'Mars/Olympus'")
    listed = await home.ask("list_tasks")
    assert listed.ok
    (row,) = listed.data["tasks"]
    assert row["timezone"] == "Mars/Olympus"
    assert row["next_run"].endswith("+00:00")
    assert (await home.ask("cancel_task", taskId=task_id)).ok


# Zones, prompts, logs


async def test_a_changed_zone_moves_what_comes_by_the_clocks(home: TaskHarness) -> None:
    daily = await home.schedule("cron", "0 9 * * *")
    hourly = await home.schedule("interval", "1h")
    before = (await home.task(hourly)).next_ms
    moved = TaskHarness(home.harness, ZoneInfo("Europe/Berlin"))
    async with home.harness.database.transaction() as tx:
        await due_tasks.follow_zones(tx, moved._zone_of, now_ms=home.harness.clock.now_ms())
    task = await home.task(daily)
    assert task.next_ms is not None
    at = datetime.fromtimestamp(task.next_ms / 1000, ZoneInfo("Europe/Berlin"))
    assert (at.hour, at.minute, task.schedule.timezone) == (9, 0, "Europe/Berlin")
    assert (await home.task(hourly)).next_ms == before


async def test_a_schedule_that_is_read_no_more_leaves_the_others_to_their_changed_zone(
    home: TaskHarness,
) -> None:
    await home.schedule("cron", "* * * * *")
    async with home.harness.database.transaction() as tx:
        await tx.execute("UPDATE scheduled_tasks SET schedule_value = 'every day'")
    good = await home.schedule("cron", "0 9 * * *")
    moved = TaskHarness(home.harness, ZoneInfo("Europe/Berlin"))
    async with home.harness.database.transaction() as tx:
        await due_tasks.follow_zones(tx, moved._zone_of, now_ms=home.harness.clock.now_ms())
    assert (await home.task(good)).schedule.timezone == "Europe/Berlin"


async def test_a_group_that_moves_takes_its_tasks_along_and_no_other_groups(home: TaskHarness) -> None:
    await home.harness.add_group("work")
    here, there = (
        await home.schedule("cron", "0 9 * * *"),
        await home.schedule("cron", "0 9 * * *", by="work"),
    )
    async with home.harness.database.transaction() as tx:
        await changes.configure(tx, "family", {"timezone": "America/New_York"}, by="a test", now_ms=1)
    await home.after(1)
    moved, stayed = await home.task(here), await home.task(there)
    assert (moved.schedule.timezone, stayed.schedule.timezone) == ("America/New_York", "Asia/Seoul")
    assert moved.next_ms is not None
    assert datetime.fromtimestamp(moved.next_ms / 1000, ZoneInfo("America/New_York")).hour == 9


async def test_the_agent_is_told_that_nobody_asks_just_now(home: TaskHarness) -> None:
    task_id = await home.schedule("cron", "0 9 * * *", prompt="read the news", check="exit 0")
    await home.after(DAY_MS)
    _, _, order = await home.harness.start_next()
    assert order.kind == "task"
    assert order.check == "exit 0"
    assert f"scheduled task {task_id}, run by its schedule, due " in order.prompt
    assert " 09:00." in order.prompt
    assert "sent automatically" in order.prompt
    assert order.prompt.endswith("\n\nread the news")
    assert [request.text for request in order.requests] == ["read the news"]


async def test_the_log_of_a_task_is_bounded(home: TaskHarness) -> None:
    task_id = await home.schedule("interval", "60s", catch_up="skip")
    await home.after(MINUTE_MS)
    for _ in range(220):
        await home.after(MINUTE_MS)
    statuses = await home.statuses(task_id)
    assert len(statuses) <= 202
    assert statuses[0] == "running", "an open run is never dropped"
