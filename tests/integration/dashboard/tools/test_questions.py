"""Questions and insights, through the real reception and the real store."""

from __future__ import annotations

import pytest

from orchestrator.dashboard.services.context import BoardLimits
from orchestrator.domain.dashboard import BoardTaskStatus, NotificationStatus
from tests.support.dashboard_harness import (
    FEB_9_0830,
    HOUR_MS,
    MINUTE_MS,
    DashboardHarness,
    a_question,
    alert,
    blog,
)


async def test_what_is_asked_already_or_was_lately_is_not_asked(home: DashboardHarness) -> None:
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
    home: DashboardHarness, tool: str, arguments: dict[str, object], code: str
) -> None:
    await home.put(
        blog(),
        a_question(),
        a_question(id="q_002", answer="yes", answered_ms=FEB_9_0830),
        a_question(id="q_003", closed_ms=FEB_9_0830, closed_reason="gone"),
    )
    reply = await home.chat(tool, **arguments)
    assert (reply.ok, reply.code) == (False, code)


async def test_a_question_is_changed_answered_and_closed(home: DashboardHarness) -> None:
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


async def test_an_insight_is_kept_once(home: DashboardHarness) -> None:
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
    home: DashboardHarness, tool: str, arguments: dict[str, object], code: str
) -> None:
    await home.put(
        blog(),
        blog(id="task_002", status=BoardTaskStatus.COMPLETED, pct=100, completed_ms=FEB_9_0830),
        a_question(),
        a_question(id="q_002", question="gone?", closed_ms=FEB_9_0830, closed_reason="gone"),
        alert(),
        alert(id="n_000", status=NotificationStatus.DELIVERED, delivered_ms=FEB_9_0830),
        alert(id="n_009", status=NotificationStatus.FAILED),
    )
    if code == "CAP":
        home.service = home.service_with(BoardLimits(pending=1, tasks=1, questions=1, insights=0))
    before = await home.everything()
    result = await home.call_tool(tool, **arguments)
    assert (result.ok, result.code) == (False, code), result.text
    assert result.text.startswith(f"{code}: ")
    assert len(result.text) < 1_000
    assert await home.everything() == before
