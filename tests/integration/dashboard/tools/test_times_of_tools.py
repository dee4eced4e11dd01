"""The tools of a model take the times that people say, as the agent without a model does."""

from __future__ import annotations

from typing import Any

import pytest

from agent_runner.wire.dashboard import TOOLS
from tests.support.dashboard_harness import DashboardHarness, at, blog

ONCE = {
    "8 tonight": "2026-02-09T20:00",
    "half past 7 tonight": "2026-02-09T19:30",
    "in a couple of hours": "2026-02-09T10:30",
    "in a few minutes": "2026-02-09T08:33",
    "Thursday the 19th at noon": "2026-02-19T12:00",
    "wednesday next week at 10am": "2026-02-18T10:00",
    "last friday of october at 9am": "2026-10-30T09:00",
    "9am CET": "2026-02-09T17:00",
    "10월 첫째 화요일 오전 9시": "2026-10-06T09:00",
    "삼월 삼일 오전 9시": "2026-03-03T09:00",
    "두어 시간 뒤": "2026-02-09T10:30",
    "런던 시간 오전 9시": "2026-02-09T18:00",
}
AGAIN = {
    "every other Tuesday at 9am": "0 9 * * 2 every 2 weeks from 2026-02-10",
    "every 2nd Friday at 18:00": "0 18 * * 5 every 2 weeks from 2026-02-13",
    "on weekdays at 7": "0 7 * * 1,2,3,4,5",
    "every Monday to Friday at 7:30": "30 7 * * 1,2,3,4,5",
    "the first Monday of each month at 9am": "0 9 * * 1#1",
    "every first Monday at 9am": "0 9 * * 1#1",
    "on the last day of every month at 9am": "0 9 L * *",
    "every quarter at 9am": "0 9 1 1,4,7,10 *",
    "Mondays and Thursdays except in August at 18:00": "0 18 * 1,2,3,4,5,6,7,9,10,11,12 1,4",
    "격주 화요일 오전 9시": "0 9 * * 2 every 2 weeks from 2026-02-10",
    "매주 월요일과 목요일 8월 빼고 오후 6시": "0 18 * 1,2,3,4,5,6,7,9,10,11,12 1,4",
    "매주 월요일부터 금요일까지 오전 7시 반": "30 7 * * 1,2,3,4,5",
    "셋째 목요일마다 오전 8시": "0 8 * * 4#3",
    "분기마다 오전 9시": "0 9 1 1,4,7,10 *",
}
ASKED = {
    "between 3 and 4 pm tomorrow": ("Tue 2026-02-10 15:00", "Tue 2026-02-10 16:00"),
    "next Friday at 9am": ("Fri 2026-02-13 09:00", "Fri 2026-02-20 09:00"),
    "the last day of the month at 9am": ("Sat 2026-02-28 09:00", "every month on the last day at 09:00"),
    "내일 3시": ("Tue 2026-02-10 03:00", "Tue 2026-02-10 15:00"),
}
"""Phrases of two meanings, each of which a refusal names."""
SINGLE = {
    ("schedule_notification", "scheduled_at"): {"message": "{phrase}"},
    ("update_notification", "scheduled_at"): {},
    ("create_task", "deadline"): {"title": "tea"},
    ("update_task", "deadline"): {"task_id": "task_001"},
}
"""The tools of a dashboard that take one moment, with what they need besides."""


async def _use(home: DashboardHarness, tool: str, field: str, phrase: str) -> Any:
    arguments = {name: value.format(phrase=phrase) for name, value in SINGLE[tool, field].items()}
    if tool == "update_notification":
        made = await home.chat(
            "schedule_notification", message=f"cake {phrase}", scheduled_at="2026-02-20T10:00"
        )
        arguments["notification_id"] = made.data["id"]
    return await home.chat(tool, **arguments, **{field: phrase})


def test_each_tool_that_takes_a_moment_is_tried() -> None:
    taking = {
        (tool.name, field)
        for tool in TOOLS
        for field in tool.arguments.model_fields
        if field in ("scheduled_at", "deadline")
    }
    assert taking == SINGLE.keys()


@pytest.mark.parametrize("tool", SINGLE, ids=lambda tool: tool[0])
async def test_a_moment_is_taken_as_people_say_it(tool: tuple[str, str], home: DashboardHarness) -> None:
    await home.put(blog())
    for phrase, moment in ONCE.items():
        reply = await _use(home, *tool, phrase)
        assert reply.ok, (phrase, reply.text)
        assert reply.data[tool[1]].startswith(moment), phrase


async def test_a_reminder_and_a_task_that_runs_once_take_the_same_moments(home: DashboardHarness) -> None:
    for phrase, moment in ONCE.items():
        reminder = await home.ask_raw({"type": "set_reminder", "text": phrase, "at": phrase})
        assert reminder.data["due_ms"] == at(moment), phrase
        once = {"prompt": phrase, "schedule_type": "once", "schedule_value": phrase}
        task = await home.ask_raw({"type": "schedule_task", **once})
        assert task.data["next_run"].startswith(moment), phrase


async def test_a_scheduled_task_repeats_as_people_say_it(home: DashboardHarness) -> None:
    for phrase, value in AGAIN.items():
        words = {"prompt": phrase, "schedule_type": "cron", "schedule_value": phrase}
        task = await home.ask_raw({"type": "schedule_task", **words})
        assert task.ok, (phrase, task.text)
        assert task.data["schedule_value"] == value, phrase


async def test_what_may_mean_two_times_is_refused_with_both(home: DashboardHarness) -> None:
    await home.put(blog())
    for phrase, both in ASKED.items():
        again = {"prompt": "tea", "schedule_type": "cron", "schedule_value": phrase}
        replies = [await _use(home, *tool, phrase) for tool in SINGLE]
        replies.append(await home.ask_raw({"type": "set_reminder", "text": "tea", "at": phrase}))
        replies.append(await home.ask_raw({"type": "schedule_task", **again}))
        for reply in replies:
            assert not reply.ok, phrase
            assert all(one in reply.text for one in both), (phrase, reply.text)
