"""Dashboards kept up: rules on real rows, notifications to a messenger, a model where one is called for."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import replace
from zoneinfo import ZoneInfo

import pytest
from structlog.testing import capture_logs

from orchestrator.dashboard.rules.slots import Hours
from orchestrator.dashboard.services import tasks
from orchestrator.dashboard.worker import prompt, rules_pass
from orchestrator.domain.dashboard import Actor, BoardTaskStatus, NotificationType, Priority, QuestionType
from orchestrator.domain.errors import StoreError
from orchestrator.domain.values import Folder
from orchestrator.store.board import dashboards, worker_cycles
from tests.support.dashboards import (
    FOLDER,
    HOUR,
    MINUTE,
    SEOUL,
    a_notification,
    a_question,
    a_task,
    at,
    delivered,
)
from tests.support.worker_harness import BEAT_SECONDS, WorkerHarness


@pytest.fixture
async def group(store_harness):
    return await store_harness.add_group()


@pytest.fixture
def harness(store_harness, group):
    return WorkerHarness(store_harness, use_llm=False)


@pytest.fixture
def judged(store_harness, group):
    """One with a model."""
    return WorkerHarness(store_harness)


# The rules


async def test_at_01_the_alert_is_made_at_half_past_eight_and_told_at_nine(harness):
    await harness.put(a_task(deadline="2026-02-10", pct=70))
    await harness.cycle("2026-02-09 08:30")
    (row,) = await harness.notifications()
    assert (row["type"], row["priority"], row["task_id"]) == ("deadline_alert", "high", "task_001")
    assert (row["created_by"], row["status"], row["cause"]) == ("worker", "pending", "deadline:24h")
    assert row["due_ms"] == 1_770_595_200_000
    async with harness.delivering():
        await harness.look("2026-02-09 08:59:59")
        await harness.look("2026-02-09 09:00:00")
        told = await harness.until_status(row["id"], "delivered")
    assert harness.channel.texts() == [row["message"]]
    assert told.delivered_ms == at("2026-02-09 09:00")
    assert await harness.look() == 5, "nothing is left in the schedule"


async def test_at_03_two_cycles_make_one_alert_and_say_why(harness):
    await harness.put(a_task(deadline="2026-02-10", pct=70), a_notification(cause="deadline:24h"))
    for _ in range(2):
        cycle = await harness.cycle("2026-02-09 08:30")
        assert "duplicate of n_001" in cycle["detail_json"]
    assert len(await harness.notifications()) == 1


async def test_at_06_a_block_is_followed_up_once(harness):
    task = a_task(
        "task_002", pct=50, blocked_ms=at("2026-02-07 09:00"), last_update_ms=at("2026-02-04 09:00")
    )
    await harness.put(task)
    await harness.cycle("2026-02-09 08:59:59")
    assert await harness.notifications() == []
    for now in ("2026-02-09 09:00:00", "2026-02-09 09:30:00"):
        await harness.cycle(now)
    (row,) = await harness.notifications()
    assert (row["type"], row["priority"], row["due_ms"]) == (
        "blocker_followup",
        "medium",
        at("2026-02-09 11:00"),
    )


async def test_at_12_an_open_question_is_reminded_of_until_it_is_answered(harness):
    await harness.put(a_question(priority=Priority.HIGH, created_ms=at("2026-02-07 08:30")))
    await harness.cycle("2026-02-09 08:30")
    (row,) = await harness.notifications()
    assert (row["type"], row["priority"], row["question_id"]) == ("question_reminder", "high", "q_001")
    assert (await harness.call_tool("answer_question", question_id="q_001", answer="the big one")).ok
    (row,) = await harness.notifications()
    assert row["status"] == "cancelled"


async def test_at_13_the_second_alert_comes_although_the_first_was_told(harness):
    await harness.put(
        a_task(deadline="2026-02-09 20:00", pct=70), delivered("2026-02-09 09:00", cause="deadline:24h")
    )
    await harness.cycle("2026-02-09 17:50")
    assert len(await harness.notifications()) == 1
    await harness.cycle("2026-02-09 18:00")
    row = (await harness.notifications())[-1]
    assert (row["cause"], row["due_ms"]) == ("deadline:2h", at("2026-02-09 18:00"))


async def test_at_14_a_nudge_comes_again_after_a_day(harness):
    await harness.put(
        a_task(last_update_ms=at("2026-02-05 09:00")),
        delivered("2026-02-09 09:00", type=NotificationType.PROGRESS_CHECK, cause="progress:72h"),
    )
    await harness.cycle("2026-02-10 08:59")
    assert len(await harness.notifications()) == 1
    await harness.cycle("2026-02-10 09:00")
    assert len(await harness.notifications()) == 2


async def test_at_16_an_overdue_task_is_asked_after_once(harness):
    await harness.put(a_task(deadline="2026-02-07", pct=60))
    for now in ("2026-02-09 09:00", "2026-02-09 09:30", "2026-02-09 23:00"):
        await harness.cycle(now)
    (question,) = await harness.questions()
    assert "-" not in question["question"].replace("2026-02-07", "")


@pytest.mark.parametrize(
    ("deadline", "asked", "again"),
    [
        ("2026-02-07", "2026-02-09 09:00", ("2026-02-09 21:30", "2026-02-10 12:00", "2026-02-12 09:00")),
        ("2026-02-12", "2026-02-10 09:00", ("2026-02-10 21:30", "2026-02-11 12:00", "2026-02-12 09:00")),
    ],
    ids=["overdue", "near"],
)
@pytest.mark.parametrize("way", ["answered", "removed"])
async def test_a_settled_question_about_a_deadline_does_not_come_back(harness, deadline, asked, again, way):
    await harness.put(a_task(deadline=deadline, pct=85, last_update_ms=at("2026-02-08 12:00")))
    await harness.cycle(asked)
    (question,) = await harness.questions()
    assert question["type"] == "deadline_check"
    if way == "answered":
        assert (
            await harness.call_tool("answer_question", question_id=question["id"], answer="I am on it")
        ).ok
    else:
        assert (await harness.call_tool("remove_question", question_id=question["id"])).ok

    for now in again:
        await harness.call_tool("update_task", task_id="task_001", progress_note="going on")
        await harness.cycle(now)

    kinds = [row["type"] for row in await harness.questions()]
    assert kinds.count("deadline_check") == 1


async def test_another_deadline_is_asked_about_anew(harness):
    await harness.put(a_task(deadline="2026-02-07", pct=60))
    await harness.cycle("2026-02-09 09:00")
    (question,) = await harness.questions()
    await harness.call_tool("answer_question", question_id=question["id"], answer="tomorrow")
    await harness.call_tool("update_task", task_id="task_001", deadline="2026-02-10", progress=95)
    await harness.cycle("2026-02-11 09:00")
    assert len(await harness.questions()) == 2


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("deadline_check", {"deadline": "2026-02-20"}),
        ("deadline_check", {"deadline": ""}),
        ("start_check", {"deadline": "2026-02-20"}),
        ("blocker_check", {"blocked": True, "blocker_note": "rain"}),
        ("status_check", {"title": "Write the book"}),
    ],
)
async def test_a_question_ends_with_its_reason(harness, kind, changes):
    await harness.put(a_task(deadline="2026-02-07"))
    await harness.put(
        a_question("q_001", type=QuestionType(kind), task_id="task_001", created_by=Actor.WORKER),
        a_question("q_002", question="Which colour?", task_id="task_001", created_by=Actor.MAIN_AGENT),
    )
    assert (await harness.call_tool("update_task", task_id="task_001", progress=10)).ok
    assert {row["id"] for row in await harness.questions() if row["closed_ms"] is None} == {"q_001", "q_002"}
    assert (await harness.call_tool("update_task", task_id="task_001", **changes)).ok
    rows = {row["id"]: row["closed_reason"] for row in await harness.questions()}
    assert rows == {"q_001": "its task was changed", "q_002": None}


@pytest.mark.parametrize("way", ["answered", "removed"])
async def test_what_was_told_once_no_worker_asks_again(harness, way):
    await harness.put(a_question("q_001", question="Which hall?"))
    if way == "answered":
        await harness.call_tool("answer_question", question_id="q_001", answer="the big one")
    else:
        await harness.call_tool("remove_question", question_id="q_001", reason="no hall needed")
    for now in ("2026-02-09 09:00", "2026-03-09 09:00"):
        harness.is_now(now)
        again = await harness.call_tool("create_question", actor=Actor.WORKER, question="Which hall?")
        assert again.code == "DUPLICATE"
        assert ("the big one" if way == "answered" else "no hall needed") in again.text


async def test_at_19_an_answered_question_rests_for_its_cooldown(harness):
    await harness.put(a_task(last_update_ms=at("2026-02-06 20:00")))
    await harness.put(
        a_question(
            task_id="task_001",
            type=QuestionType.STATUS_CHECK,
            priority=Priority.LOW,
            created_ms=at("2026-02-09 08:30"),
        )
    )
    harness.is_now("2026-02-09 08:40")
    assert (await harness.call_tool("answer_question", question_id="q_001", answer="later")).ok
    for now in ("2026-02-09 09:00", "2026-02-09 09:30", "2026-02-12 08:39"):
        await harness.cycle(now)
        assert len(await harness.questions()) == 1, now
    await harness.cycle("2026-02-12 08:40")
    assert len(await harness.questions()) + len(await harness.notifications()) == 2


async def test_at_19_a_question_of_a_clock_that_was_ahead_keeps_none_back(harness):
    await harness.put(a_task(last_update_ms=at("2026-02-06 20:00")))
    asked_ms = at("2027-02-09 08:30")
    await harness.put(
        a_question(
            task_id="task_001",
            type=QuestionType.STATUS_CHECK,
            priority=Priority.LOW,
            created_ms=asked_ms,
            last_asked_ms=asked_ms,
            closed_ms=asked_ms,
            closed_reason="answered elsewhere",
        )
    )
    await harness.cycle("2026-02-09 09:00")
    assert len(await harness.questions()) + len(await harness.notifications()) == 2


async def test_at_20_a_task_that_somebody_parked_stays_parked(harness):
    await harness.put(a_task(pct=40))
    harness.is_now("2026-02-09 10:00")
    assert (await harness.call_tool("update_task", task_id="task_001", status="someday")).ok
    await harness.cycle("2026-02-09 10:30")
    (row,) = await harness.harness.rows("SELECT status FROM dashboard_tasks")
    assert row["status"] == "someday"


async def test_at_21_a_moved_deadline_takes_its_alerts_along(harness):
    await harness.put(
        a_task(deadline="2026-02-10", pct=70),
        delivered("2026-02-09 08:00", "n_told", cause="deadline:24h"),
        a_notification("n_next", cause="deadline:2h"),
    )
    harness.is_now("2026-02-09 08:30")
    assert (await harness.call_tool("update_task", task_id="task_001", deadline="2026-02-20")).ok
    moved = await harness.row("n_next")
    assert (moved.status.value, "Deadline changed" in (moved.cancel_reason or "")) == ("cancelled", True)
    assert (await harness.call_tool("update_task", task_id="task_001", progress=75)).ok
    await harness.cycle("2026-02-18 23:30")
    nudged = [row for row in await harness.notifications() if row["status"] == "pending"]
    assert [row["type"] for row in nudged] != ["deadline_alert"]
    await harness.cycle("2026-02-19 00:00")
    (row,) = [row for row in await harness.notifications() if row["cause"] == "deadline:24h"]
    assert row["due_ms"] == at("2026-02-19 09:00")
    async with harness.delivering():
        await harness.look("2026-02-19 09:00")
        await harness.until_status(row["id"], "delivered")


async def test_completed_tasks_go_to_the_history(harness):
    await harness.put(a_task(status=BoardTaskStatus.COMPLETED, pct=100, completed_ms=at("2026-02-08 12:00")))
    await harness.cycle("2026-02-09 08:30")
    (row,) = await harness.harness.rows("SELECT archived_ms FROM dashboard_tasks")
    assert row["archived_ms"] == at("2026-02-09 08:30")


async def test_one_row_that_cannot_be_written_spoils_no_other(harness):
    await harness.put(a_task("task_1", deadline="2026-02-10"), a_task("task_2", deadline="2026-02-10"))
    async with harness.harness.database.transaction() as tx:
        await tx.execute(
            "CREATE TRIGGER broken BEFORE INSERT ON notifications WHEN new.task_id = 'task_1'"
            " BEGIN SELECT raise(ABORT, 'no room'); END"
        )
    cycle = await harness.cycle("2026-02-09 08:30")
    assert [row["task_id"] for row in await harness.notifications()] == ["task_2"]
    assert "no room" in cycle["detail_json"]


async def test_the_next_beat_is_kept_in_the_store_and_comes_early_for_a_deadline(harness):
    await harness.put(a_task(deadline="2026-02-10 09:10"))
    harness.is_now("2026-02-09 09:00")
    assert await harness.worker.beat() == 30
    (row,) = await harness.harness.rows("SELECT rules_last_ms, rules_next_ms FROM dashboards")
    assert row["rules_next_ms"] == at("2026-02-09 09:10")
    await harness.worker.beat()
    assert len(await harness.cycles()) == 1, "it is not time yet"
    harness.is_now("2026-02-09 09:10")
    await harness.worker.beat()
    (row,) = await harness.harness.rows("SELECT rules_next_ms FROM dashboards")
    assert row["rules_next_ms"] == at("2026-02-09 09:10") + BEAT_SECONDS * 1000


async def test_a_deadline_that_is_set_between_two_beats_is_not_missed(harness):
    await harness.put(a_task("task_0"))
    harness.is_now("2026-02-09 09:00")
    await harness.worker.beat()
    harness.is_now("2026-02-09 09:01")
    await harness.call_tool("create_task", title="exam", deadline="2026-02-10T09:05")
    await harness.call_tool("create_task", title="trip", deadline="2026-02-11")
    assert await harness.worker.beat() == 30
    assert len(await harness.cycles()) == 1
    harness.is_now("2026-02-09 09:05")
    await harness.worker.beat()
    (row,) = await harness.notifications()
    assert (row["cause"], row["due_ms"]) == ("deadline:24h", at("2026-02-09 09:05"))


async def test_a_dashboard_that_cannot_be_looked_at_keeps_no_other_from_its_alerts(harness):
    await harness.harness.add_group("bees")
    async with harness.harness.database.transaction() as tx:
        await dashboards.ensure(tx, Folder("bees"), now_ms=0)
    bad = a_task(deadline="2026-02-10", created_ms=-(10**15), status=BoardTaskStatus.SOMEDAY)
    await harness.put(replace(bad, folder=Folder("bees")), a_task(deadline="2026-02-10"))
    harness.is_now("2026-02-09 08:30")
    assert await harness.worker.beat() == 30
    assert {row["group_folder"] for row in await harness.notifications()} == {"family"}
    (failed,) = [row for row in await harness.cycles() if row["group_folder"] == "bees"]
    assert (failed["outcome"], failed["error"]) == ("error", "ValueError: year -29719 is out of range")


async def test_passes_of_long_ago_that_failed_are_forgotten(harness):
    await harness.put(a_task(deadline="2026-02-10", created_ms=-(10**15), status=BoardTaskStatus.SOMEDAY))
    for day in ("2026-02-09", "2026-03-20"):
        harness.is_now(f"{day} 08:30")
        await harness.worker.beat()
    (cycle,) = await harness.cycles()
    assert (cycle["outcome"], cycle["started_ms"]) == ("error", at("2026-03-20 08:30"))


async def test_a_full_disk_during_a_step_of_the_rules_is_the_error_that_is_raised(harness, monkeypatch):
    async def full(ctx, _):
        await ctx.tx.execute("ROLLBACK")  # as SQLite does by itself
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(rules_pass, "_carry_out", full)
    await harness.put(a_task(deadline="2026-02-10", pct=70))
    with pytest.raises(StoreError, match="disk is full"):
        await harness.cycle("2026-02-09 08:30")


async def test_a_zone_that_cannot_be_followed_keeps_no_dashboard_from_its_rules(harness, monkeypatch):
    await harness.harness.add_group("bees")
    async with harness.harness.database.transaction() as tx:
        await dashboards.ensure(tx, Folder("bees"), now_ms=0)
    await harness.put(a_task(deadline="2026-02-10"))
    follow_zone = tasks.follow_zone
    is_broken = True

    async def broken(ctx, **more):
        if is_broken and ctx.folder == "bees":
            raise ValueError("an odd deadline")
        await follow_zone(ctx, **more)

    monkeypatch.setattr(tasks, "follow_zone", broken)
    harness.is_now("2026-02-09 08:30")
    with capture_logs() as logs:
        await harness.worker.beat()
    assert "bees" in [line.get("group") for line in logs if line["log_level"] == "error"]
    assert {row["group_folder"] for row in await harness.notifications()} == {"family"}
    is_broken = False
    await harness.worker.beat()
    rows = await harness.harness.rows("SELECT zone FROM dashboards WHERE group_folder = 'bees'")
    assert rows[0]["zone"] == "Asia/Seoul", "it is tried again"


async def test_a_clock_that_was_a_month_ahead_holds_up_no_alert(harness):
    await harness.put(a_task(deadline="2026-02-10 10:00"))
    harness.is_now("2026-03-09 09:00")
    await harness.worker.beat()
    harness.is_now("2026-02-09 10:00")
    await harness.worker.beat()
    (row,) = [row for row in await harness.notifications() if row["type"] == "deadline_alert"]
    assert (row["cause"], row["due_ms"]) == ("deadline:24h", at("2026-02-09 10:00"))
    await harness.worker.beat()
    assert len(await harness.cycles()) == 2, "the next pass is due half an hour later again"


async def test_a_clock_that_was_a_month_ahead_keeps_no_dashboard_from_the_model(judged):
    await judged.put(a_task())
    await judged.cycle("2026-03-09 08:30")
    turn, run, _ = await judged.start_worker()
    await judged.end_worker(turn, run)
    judged.is_now("2026-02-09 08:30")
    await judged.worker.beat()
    await judged.call_tool("create_task", title="exam")
    await judged.cycle("2026-02-09 08:31")
    assert len(await judged.worker_turns()) == 2


@pytest.mark.parametrize(
    ("deadline", "cause"), [("2026-02-09T10:25", "deadline:2h"), ("2026-02-09", "deadline:today")]
)
@pytest.mark.parametrize("way", ["made", "moved", "taken up again"])
async def test_a_deadline_before_the_next_beat_is_told_at_once(harness, deadline, cause, way):
    harness.is_now("2026-02-09 10:00")
    await harness.put(
        a_task("task_0"),
        a_task("task_1", deadline="2026-02-20"),
        a_task("task_2", deadline=deadline.replace("T", " "), status=BoardTaskStatus.CANCELLED),
    )
    await harness.worker.beat()
    harness.is_now("2026-02-09 10:05")
    tool, given = {
        "made": ("create_task", {"title": "exam", "deadline": deadline}),
        "moved": ("update_task", {"task_id": "task_1", "deadline": deadline}),
        "taken up again": ("update_task", {"task_id": "task_2", "status": "active"}),
    }[way]
    assert (await harness.call_tool(tool, **given)).ok
    await harness.worker.beat()
    (row,) = await harness.notifications()
    assert (row["cause"], row["due_ms"]) == (cause, at("2026-02-09 10:05"))
    async with harness.delivering():
        await harness.look()
        await harness.until_status(row["id"], "delivered")


@pytest.mark.parametrize(
    ("deadline", "over", "told"),
    [
        ("2026-02-09T10:25", "2026-02-09 10:25", "2026-02-09 10:25"),
        ("2026-02-09", "2026-02-10 01:00", "2026-02-10 09:00"),
    ],
)
async def test_what_is_overdue_is_told_in_the_chat_at_its_time_and_once(harness, deadline, over, told):
    harness.is_now("2026-02-09 10:05")
    await harness.call_tool("create_task", title="exam", deadline=deadline)
    await harness.worker.beat()
    async with harness.harness.database.transaction() as tx:  # beats that come seldom
        await dashboards.note_rules(tx, FOLDER, now_ms=at("2026-02-09 10:05"), next_ms=at("2026-02-11 00:00"))
    async with harness.delivering():
        await harness.look()
        await harness.until_quiet()
        harness.is_now("2026-02-09 10:06")
        await harness.worker.beat()
        harness.is_now(over)
        await harness.worker.beat()
        await harness.look(told)
        (row,) = [row for row in await harness.notifications() if row["cause"] == "deadline:over"]
        await harness.until_status(row["id"], "delivered")
        harness.harness.clock.pass_ms(HOUR)
        await harness.worker.update_dashboard(FOLDER)
        await harness.look()
        await harness.until_quiet()
    assert [text for text in harness.channel.texts() if "was due" in text] == [
        f"“exam” was due Mon {deadline.replace('T', ' ')} and is at 0%. Is it done, or when will it be?"
    ]
    assert [row["type"] for row in await harness.questions()] == ["deadline_check"]


# What they say is true when it is sent


async def test_an_alert_says_how_far_a_task_is_when_it_is_sent(harness):
    await harness.put(a_task(deadline="2026-02-10", pct=0))
    await harness.cycle("2026-02-09 08:30")
    (row,) = await harness.notifications()
    assert (await harness.call_tool("update_task", task_id="task_001", progress=80)).ok
    async with harness.delivering():
        await harness.look("2026-02-09 09:00")
        told = await harness.until_status(row["id"], "delivered")
    assert harness.channel.texts() == ["⏰ “blog” is due Tue 2026-02-10 (80% done)."]
    assert told.message == harness.channel.texts()[0], "what was told is what is kept"


async def test_an_alert_that_waits_for_the_messenger_says_how_things_are_by_then(harness):
    await harness.put(a_task(deadline="2026-02-10", pct=0))
    await harness.cycle("2026-02-09 08:30")
    await harness.look("2026-02-09 09:00")  # nothing sends yet
    harness.is_now("2026-02-09 09:00:30")
    assert (await harness.call_tool("update_task", task_id="task_001", progress=80)).ok
    await harness.look("2026-02-09 09:01:00")
    async with harness.delivering():
        await harness.until_quiet()
    assert harness.channel.texts() == ["⏰ “blog” is due Tue 2026-02-10 (80% done)."]


async def test_words_that_somebody_chose_are_sent_as_they_are(harness):
    await harness.put(a_task(deadline="2026-02-10", pct=0))
    await harness.cycle("2026-02-09 08:30")
    (row,) = await harness.notifications()
    assert (await harness.call_tool("update_notification", notification_id=row["id"], message="Post it!")).ok
    assert (await harness.call_tool("update_task", task_id="task_001", progress=80)).ok
    async with harness.delivering():
        await harness.look("2026-02-09 09:00")
        await harness.until_status(row["id"], "delivered")
    assert harness.channel.texts() == ["Post it!"]


@pytest.mark.parametrize(
    ("task", "news"),
    [
        ({"last_update_ms": at("2026-02-04 06:00")}, {"progress": 50}),
        ({"last_update_ms": at("2026-02-06 06:00")}, {"progress_note": "on it"}),
        ({"last_update_ms": at("2026-02-06 06:00")}, {"status": "someday"}),
        ({"last_update_ms": at("2026-02-04 06:00")}, {"blocked": True, "blocker_note": "rain"}),
        ({"blocked_ms": at("2026-02-07 06:00")}, {"blocked": False}),
        ({"blocked_ms": at("2026-02-07 06:00")}, {"status": "someday"}),
    ],
)
async def test_a_nudge_that_was_answered_before_it_is_sent_is_not_sent(harness, task, news):
    await harness.put(a_task(pct=10, **task))
    await harness.cycle("2026-02-09 06:30")
    (row,) = await harness.notifications()
    harness.is_now("2026-02-09 07:00")
    assert (await harness.call_tool("update_task", task_id="task_001", **news)).ok
    await harness.look("2026-02-09 09:00")
    ended = await harness.row(row["id"])
    assert (ended.status.value, ended.cancel_reason) == ("cancelled", "Out of date")


async def test_late_news_of_a_deadline_is_told_once(harness):
    """The alert of the day before was missed, and by now the day itself is over."""
    await harness.put(a_task(deadline="2026-02-09", pct=60))
    await harness.cycle("2026-02-08 08:30")
    async with harness.delivering():
        await harness.look("2026-02-10 09:30")
        await harness.cycle("2026-02-10 09:30")
        await harness.look()
        await harness.until_quiet()
    assert harness.channel.texts() == [
        "“blog” was due Mon 2026-02-09 and is at 60%. Is it done, or when will it be?"
    ]
    alerts = [row for row in await harness.notifications() if row["type"] == "deadline_alert"]
    assert [row["status"] for row in alerts] == ["expired", "delivered"]
    assert (
        await harness.harness.rows(
            "SELECT 1 FROM cross_session_notifications WHERE event_type LIKE '%expired'"
        )
        == []
    )


# The clocks of another zone

BERLIN = ZoneInfo("Europe/Berlin")


async def test_days_and_what_is_told_of_them_follow_the_group_to_another_zone(harness):
    """At 09:00 of Seoul it is one in the night in Berlin."""
    mine = a_notification("n_mine", due="2026-02-10 12:00", created_by=Actor.USER, task_id=None)
    quiet = a_task("task_2", last_update_ms=at("2026-02-03 09:00"))
    await harness.put(a_task(deadline="2026-02-10", pct=70), quiet, mine)
    harness.is_now("2026-02-09 08:30")
    await harness.worker.beat()
    before = {row["cause"]: row for row in await harness.notifications()}
    assert {before["deadline:24h"]["due_ms"], before["progress:120h"]["due_ms"]} == {at("2026-02-09 09:00")}

    await harness.move_to(BERLIN)
    await harness.worker.beat()
    (task,) = await harness.harness.rows(
        "SELECT deadline_ms FROM dashboard_tasks WHERE deadline_date IS NOT NULL"
    )
    assert task["deadline_ms"] == at("2026-02-10 00:00", BERLIN)
    after = {row["cause"]: row for row in await harness.notifications() if row["status"] == "pending"}
    assert after["deadline:24h"]["due_ms"] == at("2026-02-09 09:00", BERLIN)
    assert after["progress:120h"]["due_ms"] == at("2026-02-09 09:00", BERLIN)
    assert after[None]["due_ms"] == at("2026-02-10 12:00"), "a moment that somebody asked for"
    gone = await harness.row(before["deadline:24h"]["id"])
    assert (gone.status.value, gone.cancel_reason) == ("cancelled", "Time zone changed")


@pytest.mark.parametrize(
    ("zone", "now"),
    [
        ("America/Los_Angeles", "2026-02-10 01:10"),  # 08:10 of the 9th there
        ("Pacific/Kiritimati", "2026-02-09 09:10"),
    ],
)
async def test_what_was_told_is_not_told_again_in_another_zone(harness, zone, now):
    await harness.put(a_task(deadline="2026-02-10", pct=70))
    harness.is_now("2026-02-09 08:30")
    await harness.worker.beat()
    async with harness.delivering():
        await harness.look("2026-02-09 09:00")
        await harness.until_quiet()
        await harness.move_to(ZoneInfo(zone))
        harness.is_now(now)
        await harness.worker.beat()
    assert [row["status"] for row in await harness.notifications() if row["cause"] == "deadline:24h"] == [
        "delivered"
    ]


async def test_a_store_of_before_zones_were_noted_is_put_right_and_else_left_alone(harness):
    await harness.put(
        a_task(deadline="2026-02-12"),
        a_task("task_2", deadline="2026-02-10"),
        a_notification("n_2", task_id="task_2", cause="deadline:24h", created_by=Actor.WORKER),
    )
    harness.is_now("2026-02-09 08:30")
    await harness.worker.beat()
    assert (await harness.row("n_2")).status.value == "pending"
    async with harness.harness.database.transaction() as tx:
        await tx.execute("UPDATE dashboards SET zone = NULL")
        await tx.execute("UPDATE dashboard_tasks SET deadline_ms = deadline_ms + 1 WHERE id = 'task_001'")
    await harness.worker.beat()
    assert (await harness.row("n_2")).status.value == "cancelled"
    rows = await harness.harness.rows("SELECT deadline_ms FROM dashboard_tasks WHERE id = 'task_001'")
    assert rows[0]["deadline_ms"] == at("2026-02-12 00:00")


# Who keeps it up


@pytest.mark.parametrize(
    ("enabled", "use_llm", "fallback", "rules", "model"),
    [
        (True, True, True, True, True),
        (True, True, False, False, True),
        (True, False, True, True, False),
        (True, False, False, False, False),
        (False, True, True, False, False),
        (False, False, True, False, False),
        (False, True, False, False, False),
        (False, False, False, False, False),
    ],
)
async def test_who_keeps_a_dashboard_up_is_as_the_settings_say(
    store_harness, group, enabled, use_llm, fallback, rules, model
):
    harness = WorkerHarness(store_harness, enabled=enabled, use_llm=use_llm, fallback_to_rules=fallback)
    await harness.put(a_task(blocked_ms=at("2026-02-07 08:30")))
    await harness.cycle("2026-02-09 08:30")
    assert bool(await harness.notifications()) is rules
    assert bool(await harness.worker_turns()) is model


async def test_at_39_a_worker_that_is_off_beats_and_leaves_no_cycle(store_harness, group):
    harness = WorkerHarness(store_harness, enabled=False)
    await harness.put(a_task(deadline="2026-02-10"))
    harness.is_now("2026-02-09 08:30")
    await harness.worker.beat()
    assert (await harness.cycles(), await harness.notifications()) == ([], [])
    (row,) = await harness.harness.rows("SELECT rules_next_ms FROM dashboards")
    assert row["rules_next_ms"] == at("2026-02-09 09:00")


# The model


async def test_an_unchanged_dashboard_costs_nothing_in_a_day(judged):
    await judged.put(
        a_task(blocked_ms=at("2026-02-07 08:30")), a_task("task_002", deadline="2026-03-10", pct=10)
    )
    await judged.cycle("2026-02-09 08:30")
    turn, run, _ = await judged.start_worker()
    await judged.end_worker(turn, run)
    for _ in range(48):
        judged.harness.clock.pass_ms(30 * MINUTE)
        await judged.worker.beat()
    assert len(await judged.worker_turns()) == 1
    assert len([one for one in await judged.cycles() if one["kind"] == "rules"]) >= 48


async def test_a_reminder_alone_asks_no_model(judged):
    await judged.put(
        a_notification("n_1", due="2026-02-20 09:00", type=NotificationType.REMINDER, task_id=None)
    )
    for _ in range(10):
        judged.harness.clock.pass_ms(60 * MINUTE)
        await judged.worker.beat()
    assert await judged.worker_turns() == []


async def test_a_change_is_looked_at_once_a_period(judged):
    await judged.put(a_task(blocked_ms=at("2026-02-07 08:30")))
    await judged.cycle("2026-02-09 08:30")
    turn, run, _ = await judged.start_worker()
    await judged.end_worker(turn, run)
    assert (await judged.call_tool("update_task", task_id="task_001", context="for the club")).ok
    await judged.cycle("2026-02-09 10:29")
    assert len(await judged.worker_turns()) == 1
    await judged.cycle("2026-02-09 10:30")
    assert len(await judged.worker_turns()) == 2


async def test_what_the_worker_changed_itself_is_no_change(judged):
    await judged.put(a_task(blocked_ms=at("2026-02-07 08:30")))
    await judged.cycle("2026-02-09 08:30")
    turn, run, _ = await judged.start_worker()
    used = await judged.call_tool(
        "update_task", actor=Actor.WORKER, turn=turn, task_id="task_001", context="waits for the key"
    )
    assert used.ok, used.text
    await judged.end_worker(turn, run)
    await judged.cycle("2026-02-09 12:30")
    assert len(await judged.worker_turns()) == 1
    (cycle,) = [one for one in await judged.cycles() if one["kind"] == "llm"]
    assert cycle["outcome"] == "action"


async def test_what_somebody_changed_beside_the_worker_is_looked_at(judged):
    await judged.put(a_task(blocked_ms=at("2026-02-07 08:30")))
    await judged.cycle("2026-02-09 08:30")
    turn, run, _ = await judged.start_worker()
    assert (await judged.call_tool("update_task", task_id="task_001", progress=80)).ok
    await judged.end_worker(turn, run)
    await judged.cycle("2026-02-09 10:30")
    assert len(await judged.worker_turns()) == 2


async def test_at_36_a_model_that_fails_is_stood_in_for_by_the_rules(judged):
    await judged.put(a_task(blocked_ms=at("2026-02-07 08:30")))
    await judged.cycle("2026-02-09 08:30")
    turn, run, _ = await judged.start_worker()
    await judged.put(a_task("task_002", deadline="2026-02-10"))
    await judged.end_worker(turn, run, error="overloaded")
    (cycle,) = [one for one in await judged.cycles() if one["kind"] == "llm"]
    assert (cycle["outcome"], cycle["error"]) == ("error", "overloaded.")
    assert json.loads(cycle["detail_json"])["fell_back"] is True
    assert {row["task_id"] for row in await judged.notifications()} == {"task_001", "task_002"}
    assert (await judged.worker_turns())[0]["attempt"] == 1, "it is not tried again and again"
    assert await judged.harness.outgoing() == [], "nobody is told"


async def test_a_models_turn_whose_end_cannot_be_recorded_keeps_no_dashboard_from_its_rules(
    judged, monkeypatch
):
    await judged.put(a_task(blocked_ms=at("2026-02-07 08:30")))
    await judged.cycle("2026-02-09 08:30")
    turn, run, _ = await judged.start_worker()
    await judged.put(a_task("task_002", deadline="2026-02-10"))

    async def broken(*_):
        raise ValueError("an odd answer")

    monkeypatch.setattr(worker_cycles, "shown_answers", broken)
    await judged.end_worker(turn, run)
    await judged.cycle("2026-02-09 08:50")
    (cycle,) = [one for one in await judged.cycles() if one["kind"] == "llm" and one["turn_id"] == turn.id]
    assert (cycle["outcome"], cycle["error"]) == ("error", "ValueError: an odd answer")
    assert "task_002" in {row["task_id"] for row in await judged.notifications()}


async def test_at_36_without_the_fallback_nothing_is_done(store_harness, group, caplog):
    harness = WorkerHarness(store_harness, fallback_to_rules=False)
    await harness.put(a_task(blocked_ms=at("2026-02-07 08:30")))
    await harness.cycle("2026-02-09 08:30")
    turn, run, _ = await harness.start_worker()
    await harness.end_worker(turn, run, error="overloaded")
    (cycle,) = await harness.cycles()
    assert (cycle["kind"], cycle["outcome"]) == ("llm", "error")
    assert await harness.notifications() == []


async def test_a_model_that_failed_is_asked_again_a_period_later(judged):
    await judged.put(a_task(blocked_ms=at("2026-02-07 08:30")))
    await judged.cycle("2026-02-09 08:30")
    turn, run, _ = await judged.start_worker()
    await judged.end_worker(turn, run, error="overloaded")
    await judged.cycle("2026-02-09 10:29")
    assert len(await judged.worker_turns()) == 1
    await judged.cycle("2026-02-09 10:30")
    assert len(await judged.worker_turns()) == 2


@pytest.mark.parametrize("fallback", [True, False])
async def test_at_36_where_no_model_is_the_rules_do_it_or_an_error_says_so(store_harness, group, fallback):
    harness = WorkerHarness(store_harness, fallback_to_rules=fallback, has_model=False)
    await harness.put(a_task(blocked_ms=at("2026-02-07 08:30")))
    await harness.cycle("2026-02-09 08:30")
    assert await harness.worker_turns() == []
    outcomes = [(one["kind"], one["outcome"]) for one in await harness.cycles()]
    assert outcomes == ([("rules", "action")] if fallback else [("llm", "error")])


async def test_at_40_answers_are_shown_to_the_worker_until_it_has_seen_them(judged):
    await judged.put(a_task(), a_question(task_id="task_001"))
    judged.is_now("2026-02-09 08:20")
    assert (await judged.call_tool("answer_question", question_id="q_001", answer="the big hall")).ok
    await judged.cycle("2026-02-09 08:30")
    turn, run, asked = await judged.start_worker()
    assert "the big hall" in asked
    await judged.end_worker(turn, run, error="overloaded")
    assert (await judged.questions())[0]["processed_ms"] is None, "kept for the next time"
    await judged.cycle("2026-02-09 10:30")
    turn, run, asked = await judged.start_worker()
    assert "the big hall" in asked
    await judged.end_worker(turn, run)
    assert (await judged.questions())[0]["processed_ms"] is not None


async def test_an_answer_that_is_replaced_during_a_turn_is_shown_in_the_next_one(judged):
    await judged.put(a_task(), a_question(task_id="task_001"))
    judged.is_now("2026-02-09 08:20")
    assert (await judged.call_tool("answer_question", question_id="q_001", answer="the big hall")).ok
    await judged.cycle("2026-02-09 08:30")
    turn, run, _ = await judged.start_worker()
    judged.is_now("2026-02-09 08:31")
    assert (await judged.call_tool("answer_question", question_id="q_001", answer="the small hall")).ok
    await judged.end_worker(turn, run)
    assert (await judged.questions())[0]["processed_ms"] is None, "the model has not seen the new answer"
    await judged.cycle("2026-02-09 09:00")
    turn, run, asked = await judged.start_worker()
    assert "the small hall" in asked
    await judged.end_worker(turn, run)
    assert (await judged.questions())[0]["processed_ms"] is not None


async def test_one_worker_at_a_time_looks_at_a_dashboard(judged):
    await judged.put(a_task(blocked_ms=at("2026-02-07 08:30")))
    await judged.cycle("2026-02-09 08:30")
    await judged.put(a_task("task_002", blocked_ms=at("2026-02-07 08:30")))
    await judged.cycle("2026-02-09 09:00")
    assert len(await judged.worker_turns()) == 1


async def test_what_a_worker_says_reaches_nobody(judged):
    await judged.put(a_task(blocked_ms=at("2026-02-07 08:30")))
    await judged.cycle("2026-02-09 08:30")
    turn, run, _ = await judged.start_worker()
    from agent_runner.wire.frames import Result

    await judged.harness.take(run, Result(n=2, turn=turn.id, result="I did a lot!"))
    await judged.end_worker(turn, run)
    assert await judged.harness.outgoing() == []


async def test_the_worker_is_told_what_was_delivered_lately(judged):
    await judged.put(a_task(), delivered("2026-02-08 09:00", message="Said yesterday"))
    await judged.put(a_task("task_002", blocked_ms=at("2026-02-07 08:30")))
    await judged.cycle("2026-02-09 08:30")
    _, _, asked = await judged.start_worker()
    assert "Said yesterday" in asked
    assert "# Current Dashboard State" in asked
    assert "# Your Task" in asked
    assert "**task_002**" in asked


@pytest.mark.parametrize(
    ("tool", "given"),
    [
        ("create_task", {"title": "mine"}),
        ("answer_question", {"question_id": "q_001", "answer": "yes"}),
        ("set_recurring", {"task_id": "task_001", "days_of_week": [0]}),
    ],
)
async def test_at_37_what_is_not_the_workers_is_refused_by_the_host(judged, tool, given):
    await judged.put(a_task(), a_question())
    told = await judged.call_tool(tool, actor=Actor.WORKER, **given)
    assert (told.ok, told.code) == (False, "NOT_ALLOWED")


async def test_cycles_of_long_ago_are_forgotten(judged):
    await judged.put(a_task())
    await judged.cycle("2026-02-09 08:30")
    await judged.cycle("2026-03-20 08:30")
    cycles = [one for one in await judged.cycles() if one["ended_ms"] is not None]
    assert {one["started_ms"] for one in cycles} == {at("2026-03-20 08:30")}


# Its part


def test_at_38_without_a_file_of_the_group_the_worker_has_the_built_in_part():
    text = prompt.instructions(None, Hours(zone=SEOUL), cap=3)
    assert "SILENT" in text
    assert "no progress told for 72 h; for 120 h" in text
    assert "high for 48 h, medium for 72 h" in text
    assert "Clean up aggressively" in text
    assert "Medium: a deadline in 2 to 3 days" in text
    assert "blocker_check 48 h" in text
    assert "{" not in text
    assert prompt.instructions("  \n", Hours(zone=SEOUL), cap=3) == text


def test_at_38_a_group_may_say_itself_what_the_worker_does():
    assert prompt.instructions("Only tidy up. {}", Hours(zone=SEOUL), cap=3) == "Only tidy up. {}"
