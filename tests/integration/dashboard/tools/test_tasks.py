"""Tasks, through the real reception and the real store."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.dashboard.views import serializers
from orchestrator.domain.dashboard import BoardTaskStatus, NotificationStatus
from tests.support.dashboard_harness import (
    DAY_MS,
    FEB_9_0830,
    FEB_9_1800,
    HOUR_MS,
    DashboardHarness,
    a_question,
    alert,
    at,
    blog,
)


async def test_at_04_progress_is_noted_with_its_time(home: DashboardHarness) -> None:
    await home.put(blog())
    reply = await home.chat("update_task", task_id="task_001", progress=80)
    task = await home.task("task_001")
    assert reply.ok
    assert (task.pct, task.last_update_ms) == (80, FEB_9_0830)
    assert task.user_set == {"progress": FEB_9_0830}
    assert await home.harness.outgoing() == []


async def test_at_09_what_is_completed_is_not_spoken_of_any_more(home: DashboardHarness) -> None:
    sent = alert(
        id="n_000", due_ms=FEB_9_0830 - HOUR_MS, status=NotificationStatus.DELIVERED, delivered_ms=FEB_9_0830
    )
    await home.put(blog(), sent, alert(), alert(id="n_002", due_ms=FEB_9_1800), a_question())
    home.clock.wall_ms = at("2026-02-09T08:45")
    reply = await home.chat("update_task", task_id="task_001", status="completed")
    assert reply.data["cancelled_notifications"] == 2
    assert "2 notifications cancelled" in reply.text
    task = await home.task("task_001")
    assert (task.pct, task.completed_ms) == (100, home.clock.now_ms())
    rows = {one.id: one for one in await home.notifications()}
    assert {name: (one.status.value, one.cancel_reason) for name, one in rows.items()} == {
        "n_000": ("delivered", None),
        "n_001": ("cancelled", "Task completed"),
        "n_002": ("cancelled", "Task completed"),
    }
    question = await home.question("q_001")
    assert (question.closed_ms, question.closed_reason) == (home.clock.now_ms(), "Task completed")


async def test_a_deadline_in_words_is_a_day(home: DashboardHarness) -> None:
    reply = await home.chat("create_task", title="Write the blog", deadline="tomorrow", tags=["blog"])
    task = await home.task(reply.data["id"])
    assert task.deadline is not None
    assert (task.deadline.date, task.deadline.text, task.raw_input) == ("2026-02-10", "tomorrow", task.title)
    assert reply.data["deadline"] == "2026-02-10"
    assert (await home.chat("create_task", title="x", deadline="someday soon")).code == "BAD_DATE"


async def test_what_is_open_again_was_never_completed(home: DashboardHarness) -> None:
    await home.put(blog())
    await home.chat("update_task", task_id="task_001", status="completed")
    await home.chat("move_to_history", task_id="task_001", reflection="plan more time")
    assert (await home.task("task_001")).reflection == "plan more time"
    await home.chat("update_task", task_id="task_001", status="active", progress=90)
    task = await home.task("task_001")
    assert (task.completed_ms, task.archived_ms, task.pct) == (None, None, 90)


async def test_what_is_open_again_is_not_at_100_percent(home: DashboardHarness) -> None:
    await home.put(blog(pct=40))
    await home.chat("update_task", task_id="task_001", status="completed")
    await home.chat("update_task", task_id="task_001", status="active")
    assert (await home.task("task_001")).pct == 99, "the rules ask about it again"
    await home.chat("update_task", task_id="task_001", status="completed")
    await home.chat("update_task", task_id="task_001", status="active", progress=100)
    assert (await home.task("task_001")).pct == 100, "it was said so"


async def test_a_block_has_its_time_and_goes_with_its_note(home: DashboardHarness) -> None:
    await home.put(blog())
    await home.chat("update_task", task_id="task_001", blocked=True, blocker_note="waits for review")
    home.clock.pass_ms(DAY_MS)
    await home.chat("update_task", task_id="task_001", blocked=True, blocker_note="still waits")
    task = await home.task("task_001")
    assert (task.blocked_ms, task.blocker_note) == (FEB_9_0830, "still waits")
    await home.chat("update_task", task_id="task_001", blocked=False)
    task = await home.task("task_001")
    assert (task.blocked_ms, task.blocker_note) == (None, None)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({}, "NOTHING_TO_CHANGE"),
        ({"progress": 101}, "VALIDATION"),
        ({"progress": "lots"}, "VALIDATION"),
        ({"status": "archived"}, "VALIDATION"),
        ({"deadline": "whenever"}, "BAD_DATE"),
        ({"blocker_note": "x"}, "VALIDATION"),
        ({"blocked": False, "blocker_note": "x"}, "VALIDATION"),
        ({"context": "a\x00b"}, "VALIDATION"),
        ({"context": "x" * 100_000}, "VALIDATION"),
        ({"tags": ["x"] * 51}, "VALIDATION"),
        ({"surprise": 1}, "VALIDATION"),
    ],
)
async def test_a_change_that_cannot_be_is_refused_and_nothing_changes(
    home: DashboardHarness, changes: dict[str, object], code: str
) -> None:
    await home.put(blog())
    before = await home.task("task_001")
    reply = await home.chat("update_task", task_id="task_001", **changes)
    assert (reply.ok, reply.code) == (False, code)
    assert await home.task("task_001") == before


async def test_only_what_is_over_goes_to_the_history(home: DashboardHarness) -> None:
    await home.put(blog())
    assert (await home.chat("move_to_history", task_id="task_001")).code == "NOT_TERMINAL"
    assert (await home.chat("archive_task", task_id="task_404")).code == "NOT_FOUND"
    await home.chat("update_task", task_id="task_001", status="cancelled")
    assert (await home.chat("archive_task", task_id="task_001")).ok
    again = await home.chat("move_to_history", task_id="task_001")
    assert again.ok
    assert "already" in again.text


async def test_at_33_a_move_that_breaks_leaves_the_task_where_it_was(home: DashboardHarness) -> None:
    await home.put(replace(blog(status=BoardTaskStatus.COMPLETED, pct=100), completed_ms=FEB_9_0830), alert())
    before = await home.task("task_001")
    async with home.harness.database.transaction() as tx:
        await tx.execute(
            """
            CREATE TEMP TRIGGER fault BEFORE UPDATE ON main.notifications
            BEGIN SELECT raise(ABORT, 'the disk is gone'); END
            """
        )
    with pytest.raises(Exception, match="the disk is gone"):
        await home.call_tool("move_to_history", task_id="task_001")
    assert await home.task("task_001") == before
    async with home.harness.database.transaction() as tx:
        await tx.execute("DROP TRIGGER fault")
    assert (await home.call_tool("move_to_history", task_id="task_001")).ok
    assert (await home.task("task_001")).archived_ms == FEB_9_0830


async def test_a_task_notes_on_which_days_it_is_done_again_and_keeps_its_streak(
    home: DashboardHarness,
) -> None:
    await home.put(blog(recurring={"streak_current": 3, "days_of_week": [0]}))
    reply = await home.chat("set_recurring", task_id="task_001", days_of_week=[4, 0, 4], check_time="18:00")
    assert reply.text == "Task task_001 is noted as done again on Mon Fri at 18:00."
    recurring = (await home.task("task_001")).recurring
    assert recurring is not None
    assert (recurring["streak_current"], recurring["days_of_week"], recurring["enabled"]) == (3, [0, 4], True)
    assert (await home.chat("set_recurring", task_id="task_001", days_of_week=[])).code == "VALIDATION"
    assert (await home.chat("set_recurring", task_id="task_001", check_time="25:00")).code == "VALIDATION"
    assert (await home.chat("set_recurring", task_id="no", days_of_week=[1])).code == "NOT_FOUND"
    once = await home.chat("set_recurring", task_id="task_001", enabled=False)
    assert once.text == "Task task_001 is noted as done once."


async def test_a_time_that_another_program_wrote_hinders_no_change_of_anything_else(
    home: DashboardHarness,
) -> None:
    await home.put(blog(recurring={"enabled": True, "days_of_week": [1], "check_time": "evening"}))
    days = await home.chat("set_recurring", task_id="task_001", days_of_week=[2])
    assert days.text == "Task task_001 is noted as done again on Wed at evening."
    once = await home.chat("set_recurring", task_id="task_001", enabled=False)
    assert once.text == "Task task_001 is noted as done once."


async def test_days_that_another_program_wrote_and_are_none_break_nothing(home: DashboardHarness) -> None:
    await home.put(
        blog(recurring={"enabled": True, "days_of_week": [1, "x", [2], 9], "check_time": "a\n## b"})
    )
    assert serializers.recurring(await home.task("task_001")) == "Tue at a ## b"
    reply = await home.chat("set_recurring", task_id="task_001", check_time="18:00")
    assert reply.text == "Task task_001 is noted as done again on Tue at 18:00."
