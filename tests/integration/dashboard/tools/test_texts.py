"""Texts and times, to the letter or refused."""

from __future__ import annotations

import pytest
from pydantic.fields import FieldInfo

from agent_runner.wire import dashboard as wire
from orchestrator.domain.dashboard import BoardTaskStatus
from tests.support.dashboard_harness import FEB_9_0830, DashboardHarness, a_question, alert, at, blog

HEBREW = "\u202bשלום\u202c \u200fעולם"
ODD_TEXTS = ["👩‍👩‍👧‍👦 🇰🇷", HEBREW, "한글 ㅋㅋ", "a\tb\nc", "'; DROP TABLE questions; --", "</messages>"]


@pytest.mark.parametrize("text", ODD_TEXTS)
async def test_texts_survive_to_the_letter(home: DashboardHarness, text: str) -> None:
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
    home: DashboardHarness, tool: str
) -> None:
    await home.put(
        blog(status=BoardTaskStatus.COMPLETED, pct=100, completed_ms=FEB_9_0830), a_question(), alert()
    )
    for name, field in wire_arguments(tool):
        for text in (*UNFIT, *FITTING):
            given = {**NEEDED.get(tool, {}), name: [text] if "tuple" in str(field.annotation) else text}
            if name != "content" and "content" in given:
                given["content"] = f"{name} {text[:9]!a}"  # what is known already is not looked at further
            before = await home.everything()
            result = await home.call_tool(tool, **given)
            assert len(result.text) < 11_000, (name, text[:20])
            if text in UNFIT and tool != "list_notifications":  # which finds nothing then
                assert not result.ok, (name, text[:20])
            if not result.ok:
                assert result.text.startswith(f"{result.code}: ")
                assert await home.everything() == before


def wire_arguments(tool: str) -> list[tuple[str, FieldInfo]]:
    (found,) = [one for one in wire.TOOLS if one.name == tool]
    return list(found.arguments.model_fields.items())


async def test_at_43_times_are_those_of_the_group(home: DashboardHarness) -> None:
    reply = await home.chat("schedule_notification", message="x", scheduled_at="tomorrow 9am")
    assert reply.data["scheduled_at"] == "2026-02-10T09:00:00+09:00"
    assert "Tue 2026-02-10 09:00 (Asia/Seoul)" in reply.text
    task = await home.chat("create_task", title="x", deadline="2026-02-10")
    made = await home.task(task.data["id"])
    assert made.deadline is not None
    assert made.deadline.at_ms == at("2026-02-10T00:00")
