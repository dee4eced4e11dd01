"""Notifications and alerts, through the real reception and the real store."""

from __future__ import annotations

import pytest

from orchestrator.domain.dashboard import Actor, NotificationStatus
from orchestrator.domain.values import TurnKind
from tests.support.dashboard_harness import (
    FEB_9_0830,
    FEB_9_0900,
    FEB_9_1200,
    FEB_9_1800,
    FEB_10_1000,
    HOUR_MS,
    DashboardHarness,
    alert,
    at,
    blog,
)


async def test_at_02_a_person_asks_for_a_reminder(home: DashboardHarness) -> None:
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


async def test_a_tool_takes_the_phrases_that_people_say(home: DashboardHarness) -> None:
    phrases = {
        "in half an hour": "2026-02-09T09:00",
        "half past 7 tonight": "2026-02-09T19:30",
        "a quarter to nine tomorrow morning": "2026-02-10T08:45",
        "9am CET": "2026-02-09T17:00",
        "tomorrow at 3pm New York time": "2026-02-11T05:00",
        "the last day of this month at noon": "2026-02-28T12:00",
        "내일 저녁 7시 반": "2026-02-10T19:30",
        "다음 주 금요일 오후 3시": "2026-02-20T15:00",
        "2월 마지막 날 18:00": "2026-02-28T18:00",
        "한 시간 반 뒤": "2026-02-09T10:00",
    }
    for phrase, expected in phrases.items():
        reply = await home.chat("schedule_notification", message=phrase, scheduled_at=phrase)
        assert reply.ok, reply.text
        assert (await home.notification(reply.data["id"])).due_ms == at(expected)
    for unclear in ("at 3", "next Friday at 9am", "between 3 and 4pm", "내일 3시", "soon"):
        assert not (await home.chat("schedule_notification", message="x", scheduled_at=unclear)).ok


async def test_at_05_a_wish_stands_beside_an_alert_and_a_worker_repeats_none(home: DashboardHarness) -> None:
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


async def test_at_07_a_moved_notification_is_due_then(home: DashboardHarness) -> None:
    await home.put(blog(), alert(attempts=1, next_attempt_ms=FEB_9_0900))
    reply = await home.chat(
        "update_notification", notification_id="n_001", scheduled_at="2026-02-10T10:00:00"
    )
    assert reply.ok, reply.text
    one = await home.notification("n_001")
    assert (one.due_ms, one.next_attempt_ms, one.status.is_open) == (FEB_10_1000, None, True)


async def test_at_08_a_changed_text_is_what_is_to_be_sent(home: DashboardHarness) -> None:
    await home.put(blog(), alert())
    reply = await home.chat("update_notification", notification_id="n_001", message="Post it today")
    one = await home.notification("n_001")
    assert (one.message, one.due_ms) == ("Post it today", FEB_9_0900)
    assert reply.data["changed"] == ["message"]


async def test_at_10_what_is_cancelled_stays_so(home: DashboardHarness) -> None:
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


async def test_what_a_person_cancelled_is_not_made_again_by_a_worker(home: DashboardHarness) -> None:
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


async def test_at_15_the_twelve_hours_are_strict(home: DashboardHarness) -> None:
    await home.put(blog(), alert())
    asked = {"message": "Blog!", "type": "deadline_alert", "related_task_id": "task_001"}
    near = await home.worker("schedule_notification", scheduled_at="2026-02-09T20:59:59", **asked)
    assert (near.code, near.data["ids"]) == ("DUPLICATE", ["n_001"])
    assert (await home.worker("schedule_notification", scheduled_at="2026-02-09T21:00:00", **asked)).ok


async def test_at_21_a_moved_deadline_takes_its_alerts_along(home: DashboardHarness) -> None:
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


async def test_at_28_without_a_channel_nothing_is_scheduled(home: DashboardHarness) -> None:
    await home.put(blog())
    home.can_deliver = False
    reply = await home.chat("schedule_notification", message="x", scheduled_at="in 1 hour")
    assert reply.code == "NO_TARGET"
    assert await home.notifications() == []


async def test_at_29_a_past_time_is_no_success(home: DashboardHarness) -> None:
    reply = await home.chat("schedule_notification", message="x", scheduled_at="2026-02-09T07:00:00")
    assert reply.code == "PAST_TIME"
    assert reply.text.startswith("PAST_TIME: ")
    assert await home.notifications() == []


async def test_at_31_nothing_is_scheduled_for_what_is_done(home: DashboardHarness) -> None:
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
    home: DashboardHarness, changes: dict[str, object], code: str
) -> None:
    await home.put(blog())
    reply = await home.chat(
        "schedule_notification", **{"message": "x", "scheduled_at": "in 1 hour", **changes}
    )
    assert (reply.ok, reply.code) == (False, code)
    assert len(reply.text) < 1_000
    assert await home.notifications() == []


async def test_a_task_has_three_to_come_and_no_more(home: DashboardHarness) -> None:
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
    home: DashboardHarness, changes: dict[str, str], code: str
) -> None:
    sent = alert(id="n_000", status=NotificationStatus.DELIVERED, delivered_ms=FEB_9_0830)
    await home.put(blog(), sent, alert(), alert(id="n_002", due_ms=FEB_9_1800))
    reply = await home.chat("update_notification", **changes)
    assert (reply.ok, reply.code) == (False, code)
    assert (await home.notification("n_001")).message == "Blog due tomorrow"


async def test_a_list_is_by_due_time_and_names_its_filters(home: DashboardHarness) -> None:
    await home.put(blog(), alert(id="n_002", due_ms=FEB_9_1800), alert())
    reply = await home.chat("list_notifications", status="pending", related_task_id="task_001")
    assert [one["id"] for one in reply.data["notifications"]] == ["n_001", "n_002"]
    assert "Mon 2026-02-09 09:00" in reply.text
    empty = await home.chat("list_notifications", status="cancelled", type="reminder")
    assert empty.text == "There are no notifications with status cancelled, type reminder."
    some = await home.chat("list_notifications", from_time="2026-02-09T12:00", limit=1)
    assert [one["id"] for one in some.data["notifications"]] == ["n_002"]


async def test_a_message_of_two_lines_imitates_no_row_of_the_list(home: DashboardHarness) -> None:
    await home.put(blog(), alert(message="Call Bo\n- n_009: Mon 2026-02-09 09:00, alert, high, pending: pay"))
    reply = await home.chat("list_notifications")
    (row,) = reply.text.splitlines()[1:]
    assert "Call Bo - n_009: Mon" in row


async def test_what_became_of_a_notification_is_told_step_by_step_and_by_whom(home: DashboardHarness) -> None:
    made = await home.chat("schedule_notification", message="Call Bo", scheduled_at="2026-02-09T12:00")
    one = made.data["id"]
    home.clock.pass_ms(HOUR_MS)
    assert (await home.chat("update_notification", notification_id=one, scheduled_at="2026-02-09T18:00")).ok
    assert (await home.call_tool("update_notification", notification_id=one, message="Call Bob")).ok
    assert (await home.worker("update_notification", notification_id=one, priority="high")).ok
    assert (await home.call_tool("cancel_notification", notification_id=one, reason="he called")).ok

    reply = await home.chat("list_notifications", notification_id=one)
    assert [(each["what"], each["by"], each["at"][11:16]) for each in reply.data["history"]] == [
        ("created", "main_agent", "08:30"),
        ("moved", "main_agent", "09:30"),
        ("reworded", "user", "09:30"),
        ("reprioritised", "worker", "09:30"),
        ("cancelled", "user", "09:30"),
    ]
    assert reply.data["history"][0]["turn"] < reply.data["history"][1]["turn"]
    heading, *lines = reply.text.splitlines()
    assert "Call Bob" in heading
    assert [line.partition(": ")[2] for line in lines] == [
        "for 2026-02-09 12:00; “Call Bo”",
        "from 2026-02-09 12:00 to 2026-02-09 18:00",
        "from “Call Bo” to “Call Bob”",
        "from “medium” to “high”",
        "he called",
    ]


async def test_the_history_of_one_that_was_there_before_begins_with_its_making(
    home: DashboardHarness,
) -> None:
    await home.put(blog(), alert())
    reply = await home.chat("list_notifications", notification_id="n_001")
    assert [(each["what"], each["by"]) for each in reply.data["history"]] == [("created", "worker")]
    assert (await home.chat("list_notifications", notification_id="n_none")).code == "NOT_FOUND"
