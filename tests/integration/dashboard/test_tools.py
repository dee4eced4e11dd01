"""The dashboard's tools, through the real reception and the real store."""

from __future__ import annotations

from dataclasses import replace

import pytest
from pydantic.fields import FieldInfo

from agent_runner.wire import dashboard as wire
from orchestrator.dashboard.models import Actor, NotificationStatus, Status
from orchestrator.dashboard.services.work import Limits
from orchestrator.dashboard.views import told
from orchestrator.models import TurnKind
from tests.fakes.dashboard_house import (
    DAY_MS,
    FEB_9_0830,
    FEB_9_0900,
    FEB_9_1200,
    FEB_9_1800,
    FEB_10_1000,
    FOLDER,
    HOUR_MS,
    MINUTE_MS,
    DashboardHouse,
    a_question,
    alert,
    at,
    blog,
)
from tests.fakes.household import Household


@pytest.fixture
async def home(household: Household) -> DashboardHouse:
    await household.add_group("family")
    return DashboardHouse(household)


async def test_at_02_a_person_asks_for_a_reminder(home: DashboardHouse) -> None:
    await home.put(blog(id="task_009", title="exercise", deadline=None))
    home.clock.wall_ms = at("2026-02-09T10:00")
    assert (await home.chat("list_notifications")).text == "There are no notifications."
    reply = await home.chat(
        "schedule_notification", message="Exercise", scheduled_at="in 2 hours", related_task_id="task_009"
    )
    assert reply.ok, reply.text
    made = await home.notification(reply.data["id"])
    assert (made.due_ms, made.due_text, made.type.value) == (FEB_9_1200, "in 2 hours", "reminder")
    assert made.created_by is Actor.MAIN_AGENT
    assert "12:00" in reply.text


async def test_at_04_progress_is_noted_with_its_time(home: DashboardHouse) -> None:
    await home.put(blog())
    reply = await home.chat("update_task", task_id="task_001", progress=80)
    task = await home.task("task_001")
    assert reply.ok
    assert (task.pct, task.last_update_ms) == (80, FEB_9_0830)
    assert task.user_set == {"progress": FEB_9_0830}
    assert await home.house.outgoing() == []


async def test_at_05_a_wish_stands_beside_an_alert_and_a_worker_repeats_none(home: DashboardHouse) -> None:
    await home.put(blog(), alert())
    asked = {
        "message": "Blog!",
        "scheduled_at": "2026-02-09T18:00:00",
        "type": "deadline_alert",
        "related_task_id": "task_001",
    }
    by_worker = await home.worker("schedule_notification", **asked)
    assert (by_worker.code, by_worker.data["ids"]) == ("DUPLICATE", ["n_001"])
    reply = await home.chat("schedule_notification", **asked)
    assert reply.ok, reply.text
    assert [one.due_ms for one in await home.notifications()] == [FEB_9_0900, FEB_9_1800]
    again = await home.chat("schedule_notification", **asked)
    assert (again.code, again.data["ids"]) == ("DUPLICATE", [reply.data["id"]])


async def test_at_07_a_moved_notification_is_due_then(home: DashboardHouse) -> None:
    await home.put(blog(), alert(attempts=1, next_attempt_ms=FEB_9_0900))
    reply = await home.chat(
        "update_notification", notification_id="n_001", scheduled_at="2026-02-10T10:00:00"
    )
    assert reply.ok, reply.text
    one = await home.notification("n_001")
    assert (one.due_ms, one.next_attempt_ms, one.status.is_open) == (FEB_10_1000, None, True)


async def test_at_08_a_changed_text_is_what_is_to_be_sent(home: DashboardHouse) -> None:
    await home.put(blog(), alert())
    reply = await home.chat("update_notification", notification_id="n_001", message="Post it today")
    one = await home.notification("n_001")
    assert (one.message, one.due_ms) == ("Post it today", FEB_9_0900)
    assert reply.data["changed"] == ["message"]


async def test_at_09_what_is_completed_is_not_spoken_of_any_more(home: DashboardHouse) -> None:
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


async def test_at_10_what_is_cancelled_stays_so(home: DashboardHouse) -> None:
    sent = alert(id="n_000", status=NotificationStatus.DELIVERED, delivered_ms=FEB_9_0830)
    await home.put(blog(), alert(), sent)
    reason = "User requested cancellation"
    reply = await home.chat("cancel_notification", notification_id="n_001", reason=reason)
    assert reply.ok
    one = await home.notification("n_001")
    assert (one.status.value, one.cancel_reason, one.context) == ("cancelled", reason, reason)
    again = await home.chat("cancel_notification", notification_id="n_001")
    assert again.ok
    assert "before" in again.text
    assert await home.notification("n_001") == one
    refused = await home.chat("cancel_notification", notification_id="n_000")
    assert refused.code == "ALREADY_DELIVERED"
    assert (await home.notification("n_000")).status.value == "delivered"


async def test_what_a_person_cancelled_is_not_made_again_by_a_worker(home: DashboardHouse) -> None:
    await home.put(blog(), alert())
    await home.chat("cancel_notification", notification_id="n_001")
    asked = {
        "message": "Blog!",
        "scheduled_at": "in 1 hour",
        "type": "deadline_alert",
        "related_task_id": "task_001",
    }
    assert (await home.worker("schedule_notification", **asked)).code == "COOLDOWN"
    home.clock.pass_ms(12 * HOUR_MS)
    assert (await home.worker("schedule_notification", **asked)).ok


async def test_at_15_the_twelve_hours_are_strict(home: DashboardHouse) -> None:
    await home.put(blog(), alert())
    asked = {"message": "Blog!", "type": "deadline_alert", "related_task_id": "task_001"}
    near = await home.worker("schedule_notification", scheduled_at="2026-02-09T20:59:59", **asked)
    assert (near.code, near.data["ids"]) == ("DUPLICATE", ["n_001"])
    assert (await home.worker("schedule_notification", scheduled_at="2026-02-09T21:00:00", **asked)).ok


async def test_at_21_a_moved_deadline_takes_its_alerts_along(home: DashboardHouse) -> None:
    delivered = alert(
        id="n_000", cause="deadline:24h", status=NotificationStatus.DELIVERED, delivered_ms=FEB_9_0830
    )
    wish = alert(id="n_002", due_ms=FEB_9_1800, created_by=Actor.MAIN_AGENT)
    await home.put(blog(), delivered, alert(cause="deadline:2h"), wish)
    reply = await home.chat("update_task", task_id="task_001", deadline="2026-02-20")
    assert reply.data["cancelled_notifications"] == 1
    rows = {one.id: one for one in await home.notifications()}
    assert rows["n_001"].cancel_reason == "Deadline changed to 2026-02-20"
    assert rows["n_002"].status.is_open
    again = await home.worker(
        "schedule_notification",
        message="Blog due tomorrow",
        scheduled_at="2026-02-19T09:00",
        type="deadline_alert",
        related_task_id="task_001",
    )
    assert again.ok, again.text


async def test_at_28_without_a_channel_nothing_is_scheduled(home: DashboardHouse) -> None:
    await home.put(blog())
    home.can_deliver = False
    reply = await home.chat("schedule_notification", message="x", scheduled_at="in 1 hour")
    assert reply.code == "NO_TARGET"
    assert await home.notifications() == []


async def test_at_29_a_past_time_is_no_success(home: DashboardHouse) -> None:
    reply = await home.chat("schedule_notification", message="x", scheduled_at="2026-02-09T07:00:00")
    assert reply.code == "PAST_TIME"
    assert reply.text.startswith("PAST_TIME: ")
    assert await home.notifications() == []


async def test_at_30_a_decision_upon_an_old_state_overwrites_nothing(home: DashboardHouse) -> None:
    await home.put(blog())
    worker = await home.begin(TurnKind.WORKER)
    await home.pause(worker)
    home.clock.pass_ms(5_000)
    assert (await home.chat("update_task", task_id="task_001", progress=90)).ok
    home.clock.pass_ms(5_000)
    await home.resume(worker)
    stale = await home.ask("update_task", task_id="task_001", progress=70)
    assert (stale.code, stale.data["row"]["progress"]) == ("STALE", 90)
    assert (await home.task("task_001")).pct == 90
    decided_again = await home.ask("update_task", task_id="task_001", priority="high")
    assert decided_again.ok, "it was shown the row as it is"
    assert (await home.task("task_001")).pct == 90
    assert (await home.ask("update_task", task_id="task_001", context="mine")).ok, (
        "its own change is no surprise"
    )


async def test_at_30_a_version_that_is_named_is_held_to(home: DashboardHouse) -> None:
    await home.put(blog())
    seen = (await home.task("task_001")).version
    assert (await home.chat("update_task", task_id="task_001", progress=90)).ok
    stale = await home.desk.use(
        FOLDER, "update_task", {"task_id": "task_001", "progress": 10}, expect_version=seen
    )
    assert stale.code == "STALE"
    assert (await home.task("task_001")).pct == 90


async def test_at_31_nothing_is_scheduled_for_what_is_done(home: DashboardHouse) -> None:
    await home.put(blog())
    worker = await home.begin(TurnKind.WORKER)
    await home.pause(worker)
    assert (await home.chat("update_task", task_id="task_001", status="completed")).ok
    await home.resume(worker)
    asked = {"message": "x", "scheduled_at": "in 1 hour", "related_task_id": "task_001"}
    assert (await home.ask("schedule_notification", **asked)).code == "TASK_TERMINAL"
    assert (
        await home.ask("create_question", question="y?", related_task_id="task_001")
    ).code == "TASK_TERMINAL"
    assert await home.notifications() == []


async def test_at_37_a_worker_may_only_use_its_own_tools(home: DashboardHouse) -> None:
    await home.put(blog(), a_question())
    for tool, arguments in (
        ("create_task", {"title": "more"}),
        ("answer_question", {"question_id": "q_001", "answer": "yes"}),
        ("set_recurring", {"task_id": "task_001", "days_of_week": [0]}),
    ):
        assert (await home.worker(tool, **arguments)).code == "NOT_ALLOWED"
    assert (await home.worker("drop_everything")).code == "UNKNOWN_TOOL"
    async with home.turn(TurnKind.WORKER):
        said = await home.ask_raw({"type": "message", "text": "psst"})
        reminded = await home.ask_raw({"type": "set_reminder", "text": "psst", "at": "1m"})
    assert {said.code, reminded.code} == {"not_allowed"}
    assert await home.house.outgoing() == []
    assert (await home.question("q_001")).answer is None
    assert (await home.worker("save_insight", content="Blogs take a week", category="work")).ok


async def test_nobody_acts_without_a_turn(home: DashboardHouse) -> None:
    assert (await home.ask("create_task", title="x")).code == "NO_TURN"


async def test_who_it_was_is_told_by_the_host_alone(home: DashboardHouse) -> None:
    forged = {"message": "x", "scheduled_at": "in 1 hour", "created_by": "user"}
    assert (await home.chat("schedule_notification", **forged)).code == "VALIDATION"
    by_worker = await home.worker("schedule_notification", message="w", scheduled_at="in 1 hour")
    by_person = await home.use("schedule_notification", message="p", scheduled_at="in 1 hour")
    async with home.turn(TurnKind.TASK):
        by_task = await home.ask("schedule_notification", message="t", scheduled_at="in 1 hour")
    makers = [
        (await home.notification(made.data["id"])).created_by.value
        for made in (by_worker, by_person, by_task)
    ]
    assert makers == ["worker", "user", "main_agent"]


async def test_a_request_that_comes_again_makes_one_task_and_is_on_record(home: DashboardHouse) -> None:
    async with home.turn(TurnKind.CHAT):
        first = await home.ask("create_task", request_id="same", title="Write the blog")
        again = await home.ask("create_task", request_id="same", title="Write the blog")
    assert first == again
    assert len(await home.house.rows("SELECT id FROM dashboard_tasks")) == 1
    kept = await home.house.rows("SELECT type, code FROM commands")
    assert kept == [{"type": "dashboard.create_task", "code": "ok"}]
    recorded = await home.house.rows("SELECT detail FROM audit WHERE kind = 'command'")
    assert "dashboard.create_task" in recorded[0]["detail"]


# Tasks


async def test_a_deadline_in_words_is_a_day(home: DashboardHouse) -> None:
    reply = await home.chat("create_task", title="Write the blog", deadline="tomorrow", tags=["blog"])
    task = await home.task(reply.data["id"])
    assert task.deadline is not None
    assert (task.deadline.date, task.deadline.text, task.raw_input) == ("2026-02-10", "tomorrow", task.title)
    assert reply.data["deadline"] == "2026-02-10"
    assert (await home.chat("create_task", title="x", deadline="someday soon")).code == "BAD_DATE"


async def test_what_is_open_again_was_never_completed(home: DashboardHouse) -> None:
    await home.put(blog())
    await home.chat("update_task", task_id="task_001", status="completed")
    await home.chat("move_to_history", task_id="task_001", reflection="plan more time")
    assert (await home.task("task_001")).reflection == "plan more time"
    await home.chat("update_task", task_id="task_001", status="active", progress=90)
    task = await home.task("task_001")
    assert (task.completed_ms, task.archived_ms, task.pct) == (None, None, 90)


async def test_a_block_has_its_time_and_goes_with_its_note(home: DashboardHouse) -> None:
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
    home: DashboardHouse, changes: dict[str, object], code: str
) -> None:
    await home.put(blog())
    before = await home.task("task_001")
    reply = await home.chat("update_task", task_id="task_001", **changes)
    assert (reply.ok, reply.code) == (False, code)
    assert await home.task("task_001") == before


async def test_only_what_is_over_goes_to_the_history(home: DashboardHouse) -> None:
    await home.put(blog())
    assert (await home.chat("move_to_history", task_id="task_001")).code == "NOT_TERMINAL"
    assert (await home.chat("archive_task", task_id="task_404")).code == "NOT_FOUND"
    await home.chat("update_task", task_id="task_001", status="cancelled")
    assert (await home.chat("archive_task", task_id="task_001")).ok
    again = await home.chat("move_to_history", task_id="task_001")
    assert again.ok
    assert "already" in again.text


async def test_at_33_a_move_that_breaks_leaves_the_task_where_it_was(home: DashboardHouse) -> None:
    await home.put(replace(blog(status=Status.COMPLETED, pct=100), completed_ms=FEB_9_0830), alert())
    before = await home.task("task_001")
    async with home.house.database.transaction() as tx:
        await tx.execute(
            """
            CREATE TEMP TRIGGER fault BEFORE UPDATE ON main.notifications
            BEGIN SELECT raise(ABORT, 'the disk is gone'); END
            """
        )
    with pytest.raises(Exception, match="the disk is gone"):
        await home.use("move_to_history", task_id="task_001")
    assert await home.task("task_001") == before
    async with home.house.database.transaction() as tx:
        await tx.execute("DROP TRIGGER fault")
    assert (await home.use("move_to_history", task_id="task_001")).ok
    assert (await home.task("task_001")).archived_ms == FEB_9_0830


async def test_a_task_notes_on_which_days_it_is_done_again_and_keeps_its_streak(home: DashboardHouse) -> None:
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


async def test_days_that_another_program_wrote_and_are_none_break_nothing(home: DashboardHouse) -> None:
    await home.put(
        blog(recurring={"enabled": True, "days_of_week": [1, "x", [2], 9], "check_time": "a\n## b"})
    )
    assert told.recurring(await home.task("task_001")) == "Tue at a ## b"
    reply = await home.chat("set_recurring", task_id="task_001", check_time="18:00")
    assert reply.text == "Task task_001 is noted as done again on Tue at 18:00."


# Notifications


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"scheduled_at": "soon"}, "UNPARSEABLE_TIME"),
        ({"scheduled_at": "2026-02-09T07:00"}, "PAST_TIME"),
        ({"scheduled_at": "2099-01-01"}, "TOO_FAR"),
        ({"related_task_id": "task_404"}, "UNKNOWN_TASK"),
        ({"related_question_id": "q_404"}, "UNKNOWN_QUESTION"),
        ({"message": ""}, "VALIDATION"),
        ({"message": " \u200f\u200b "}, "VALIDATION"),
        ({"message": "x" * 100_000}, "VALIDATION"),
        ({"message": "bell\x07"}, "VALIDATION"),
        ({"type": "alarm"}, "VALIDATION"),
        ({"priority": "urgent"}, "VALIDATION"),
    ],
)
async def test_a_notification_that_cannot_be_is_refused_by_its_code(
    home: DashboardHouse, changes: dict[str, object], code: str
) -> None:
    await home.put(blog())
    reply = await home.chat(
        "schedule_notification", **{"message": "x", "scheduled_at": "in 1 hour", **changes}
    )
    assert (reply.ok, reply.code) == (False, code)
    assert len(reply.text) < 1_000
    assert await home.notifications() == []


async def test_a_task_has_three_to_come_and_no_more(home: DashboardHouse) -> None:
    await home.put(blog())
    asked = {"message": "x", "related_task_id": "task_001"}
    made = [
        (await home.chat("schedule_notification", scheduled_at=f"in {hours} hours", **asked)).data["id"]
        for hours in (1, 2, 3)
    ]
    capped = await home.chat("schedule_notification", scheduled_at="in 4 hours", **asked)
    assert (capped.code, capped.data["ids"]) == ("CAP", made)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"notification_id": "n_404", "message": "x"}, "NOT_FOUND"),
        ({"notification_id": "n_000", "message": "x"}, "NOT_PENDING"),
        ({"notification_id": "n_001"}, "NOTHING_TO_CHANGE"),
        ({"notification_id": "n_001", "priority": "high"}, "NOTHING_TO_CHANGE"),
        ({"notification_id": "n_001", "scheduled_at": "soon"}, "UNPARSEABLE_TIME"),
        ({"notification_id": "n_001", "scheduled_at": "2026-02-09T07:00"}, "PAST_TIME"),
        ({"notification_id": "n_001", "scheduled_at": "2026-02-09T18:00"}, "DUPLICATE"),
    ],
)
async def test_a_change_of_a_notification_is_refused_by_its_code(
    home: DashboardHouse, changes: dict[str, str], code: str
) -> None:
    sent = alert(id="n_000", status=NotificationStatus.DELIVERED, delivered_ms=FEB_9_0830)
    await home.put(blog(), sent, alert(), alert(id="n_002", due_ms=FEB_9_1800))
    reply = await home.chat("update_notification", **changes)
    assert (reply.ok, reply.code) == (False, code)
    assert (await home.notification("n_001")).message == "Blog due tomorrow"


async def test_a_list_is_by_due_time_and_names_its_filters(home: DashboardHouse) -> None:
    await home.put(blog(), alert(id="n_002", due_ms=FEB_9_1800), alert())
    reply = await home.chat("list_notifications", status="pending", related_task_id="task_001")
    assert [one["id"] for one in reply.data["notifications"]] == ["n_001", "n_002"]
    assert "Mon 2026-02-09 09:00" in reply.text
    empty = await home.chat("list_notifications", status="cancelled", type="reminder")
    assert empty.text == "There are no notifications with status cancelled, type reminder."
    some = await home.chat("list_notifications", from_time="2026-02-09T12:00", limit=1)
    assert [one["id"] for one in some.data["notifications"]] == ["n_002"]


# Questions and insights


async def test_what_is_asked_already_or_was_lately_is_not_asked(home: DashboardHouse) -> None:
    await home.put(blog())
    asked = {"question": "Is the blog stuck?", "type": "blocker_check", "related_task_id": "task_001"}
    made = await home.worker("create_question", **asked)
    assert (await home.question(made.data["id"])).cooldown_h == 48
    same_type = await home.worker("create_question", **(asked | {"question": "Other words?"}))
    assert (same_type.code, same_type.data["ids"]) == ("DUPLICATE", [made.data["id"]])
    same_words = await home.worker("create_question", question="is the BLOG stuck")
    assert same_words.code == "DUPLICATE"
    assert (await home.chat("answer_question", question_id=made.data["id"], answer="no")).ok
    home.clock.pass_ms(48 * HOUR_MS - MINUTE_MS)
    cooling = await home.worker("create_question", **asked)
    assert (cooling.code, cooling.data["until"]) == ("COOLDOWN", "2026-02-11 08:30")
    home.clock.pass_ms(MINUTE_MS)
    assert (await home.worker("create_question", **asked)).ok


@pytest.mark.parametrize(
    ("tool", "arguments", "code"),
    [
        ("create_question", {"question": ""}, "VALIDATION"),
        ("create_question", {"question": "x", "type": "daily_check"}, "VALIDATION"),
        ("create_question", {"question": "x", "related_task_id": "task_404"}, "UNKNOWN_TASK"),
        ("update_question", {"question_id": "q_404", "priority": "low"}, "NOT_FOUND"),
        ("update_question", {"question_id": "q_001"}, "NOTHING_TO_CHANGE"),
        ("update_question", {"question_id": "q_002", "priority": "low"}, "ALREADY_ANSWERED"),
        ("update_question", {"question_id": "q_001", "cooldown_hours": -1}, "VALIDATION"),
        ("remove_question", {"question_id": "q_404"}, "NOT_FOUND"),
        ("answer_question", {"question_id": "q_404", "answer": "x"}, "NOT_FOUND"),
        ("answer_question", {"question_id": "q_001", "answer": "  "}, "EMPTY"),
        ("answer_question", {"question_id": "q_001", "answer": "x" * 10_001}, "VALIDATION"),
        ("answer_question", {"question_id": "q_003", "answer": "x"}, "CLOSED"),
        ("save_insight", {"content": "", "category": "work"}, "VALIDATION"),
        ("save_insight", {"content": "x", "category": "general"}, "VALIDATION"),
    ],
)
async def test_each_refusal_has_its_code(
    home: DashboardHouse, tool: str, arguments: dict[str, object], code: str
) -> None:
    await home.put(
        blog(),
        a_question(),
        a_question(id="q_002", answer="yes", answered_ms=FEB_9_0830),
        a_question(id="q_003", closed_ms=FEB_9_0830, closed_reason="gone"),
    )
    reply = await home.chat(tool, **arguments)
    assert (reply.ok, reply.code) == (False, code)


async def test_a_question_is_changed_answered_and_closed(home: DashboardHouse) -> None:
    await home.put(blog(), a_question(), alert(id="n_003", task_id=None, question_id="q_001"))
    changed = await home.chat("update_question", question_id="q_001", priority="high", cooldown_hours=6)
    assert "medium → high" in changed.text
    answered = await home.chat("answer_question", question_id="q_001", answer="80 percent 🎉")
    assert answered.ok
    assert (await home.question("q_001")).answer == "80 percent 🎉"
    assert (await home.notification("n_003")).cancel_reason == "Question closed"
    again = await home.chat("answer_question", question_id="q_001", answer="80 percent 🎉")
    assert "already" in again.text
    closed = await home.chat("remove_question", question_id="q_001", reason="done")
    assert closed.ok
    assert (await home.question("q_001")).closed_reason == "done"


async def test_an_insight_is_kept_once(home: DashboardHouse) -> None:
    first = await home.chat("save_insight", content="Blogs take\na week", category="work")
    again = await home.chat("save_insight", content="blogs take a  week")
    assert first.data["id"] == again.data["id"]
    assert first.data["title"] == "Blogs take a week"


@pytest.mark.parametrize(
    ("tool", "arguments", "code"),
    [
        ("schedule_notification", {"message": "x", "scheduled_at": "in 1 hour"}, "CAP"),
        (
            "schedule_notification",
            {"message": "x", "scheduled_at": "in 1 hour", "related_question_id": "q_002"},
            "CLOSED",
        ),
        (
            "schedule_notification",
            {"message": "x", "scheduled_at": "in 1 hour", "related_task_id": "task_002"},
            "TASK_TERMINAL",
        ),
        ("cancel_notification", {"notification_id": "n_404"}, "NOT_FOUND"),
        ("cancel_notification", {"notification_id": "n_000"}, "ALREADY_DELIVERED"),
        ("cancel_notification", {"notification_id": "n_009"}, "NOT_PENDING"),
        ("cancel_notification", {"notification_id": "n_001", "reason": "x" * 10_001}, "VALIDATION"),
        ("list_notifications", {"from_time": "whenever"}, "UNPARSEABLE_TIME"),
        ("list_notifications", {"limit": 0}, "VALIDATION"),
        ("create_question", {"question": "one more?"}, "CAP"),
        ("create_question", {"question": "x?", "related_task_id": "task_002"}, "TASK_TERMINAL"),
        ("update_question", {"question_id": "q_002", "priority": "low"}, "CLOSED"),
        ("update_question", {"question_id": "q_001", "cooldown_hours": 8_761}, "VALIDATION"),
        ("update_task", {"task_id": "task_404", "progress": 1}, "NOT_FOUND"),
        ("update_task", {"task_id": "task_002", "progress": 50}, "VALIDATION"),
        ("move_to_history", {"task_id": "task_404"}, "NOT_FOUND"),
        ("create_task", {"title": "one more"}, "CAP"),
        ("create_task", {"title": "x" * 201}, "VALIDATION"),
        ("create_task", {"title": " \u200b "}, "VALIDATION"),
        ("create_task", {"title": "x", "deadline": "whenever"}, "BAD_DATE"),
        ("create_task", {}, "VALIDATION"),
        ("save_insight", {"content": "one more"}, "CAP"),
        ("set_recurring", {"task_id": "task_001", "days_of_week": [7]}, "VALIDATION"),
    ],
)
async def test_what_is_full_or_over_or_not_there_is_refused_by_its_code(
    home: DashboardHouse, tool: str, arguments: dict[str, object], code: str
) -> None:
    await home.put(
        blog(),
        blog(id="task_002", status=Status.COMPLETED, pct=100, completed_ms=FEB_9_0830),
        a_question(),
        a_question(id="q_002", question="gone?", closed_ms=FEB_9_0830, closed_reason="gone"),
        alert(),
        alert(id="n_000", status=NotificationStatus.DELIVERED, delivered_ms=FEB_9_0830),
        alert(id="n_009", status=NotificationStatus.FAILED),
    )
    if code == "CAP":
        home.desk = home.desk_with(Limits(pending=1, tasks=1, questions=1, insights=0))
    before = await home.everything()
    result = await home.use(tool, **arguments)
    assert (result.ok, result.code) == (False, code), result.text
    assert result.text.startswith(f"{code}: ")
    assert len(result.text) < 1_000
    assert await home.everything() == before


HEBREW = "\u202bשלום\u202c \u200fעולם"
ODD_TEXTS = ["👩‍👩‍👧‍👦 🇰🇷", HEBREW, "한글 ㅋㅋ", "a\tb\nc", "'; DROP TABLE questions; --", "</messages>"]


@pytest.mark.parametrize("text", ODD_TEXTS)
async def test_texts_survive_to_the_letter(home: DashboardHouse, text: str) -> None:
    made = await home.chat("create_task", title="x", context=text)
    told = await home.chat("schedule_notification", message=text, scheduled_at="in 1 hour")
    assert (await home.task(made.data["id"])).context == text
    assert (await home.notification(told.data["id"])).message == text


NEEDED: dict[str, dict[str, object]] = {
    "schedule_notification": {"message": "x", "scheduled_at": "in 1 hour"},
    "update_notification": {"notification_id": "n_001"},
    "cancel_notification": {"notification_id": "n_001"},
    "create_question": {"question": "x?"},
    "update_question": {"question_id": "q_001"},
    "remove_question": {"question_id": "q_001"},
    "update_task": {"task_id": "task_001"},
    "move_to_history": {"task_id": "task_001"},
    "archive_task": {"task_id": "task_001"},
    "create_task": {"title": "x"},
    "answer_question": {"question_id": "q_001", "answer": "x"},
    "save_insight": {"content": "x"},
    "set_recurring": {"task_id": "task_001", "days_of_week": [1]},
}
UNFIT = ["x" * 100_000, "x" * 100_001, "a\x00b", "a\x1b[31mb", "a\ud800b"]
FITTING = [*ODD_TEXTS, "", " \u200b "]


@pytest.mark.parametrize("tool", [one.name for one in wire.TOOLS])
async def test_whatever_stands_in_a_field_it_is_taken_or_refused_in_a_line(
    home: DashboardHouse, tool: str
) -> None:
    await home.put(blog(status=Status.COMPLETED, pct=100, completed_ms=FEB_9_0830), a_question(), alert())
    for name, field in wire_arguments(tool):
        for text in (*UNFIT, *FITTING):
            given = {**NEEDED.get(tool, {}), name: [text] if "tuple" in str(field.annotation) else text}
            if name != "content" and "content" in given:
                given["content"] = f"{name} {text[:9]!a}"  # what is known already is not looked at further
            before = await home.everything()
            result = await home.use(tool, **given)
            assert len(result.text) < 11_000, (name, text[:20])
            if text in UNFIT and tool != "list_notifications":  # which finds nothing then
                assert not result.ok, (name, text[:20])
            if not result.ok:
                assert result.text.startswith(f"{result.code}: ")
                assert await home.everything() == before


def wire_arguments(tool: str) -> list[tuple[str, FieldInfo]]:
    (found,) = [one for one in wire.TOOLS if one.name == tool]
    return list(found.arguments.model_fields.items())


async def test_at_43_times_are_those_of_the_group(home: DashboardHouse) -> None:
    reply = await home.chat("schedule_notification", message="x", scheduled_at="tomorrow 9am")
    assert reply.data["scheduled_at"] == "2026-02-10T09:00:00+09:00"
    assert "Tue 2026-02-10 09:00 (Asia/Seoul)" in reply.text
    task = await home.chat("create_task", title="x", deadline="2026-02-10")
    made = await home.task(task.data["id"])
    assert made.deadline is not None
    assert made.deadline.at_ms == at("2026-02-10T00:00")
