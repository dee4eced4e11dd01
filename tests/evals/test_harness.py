"""The table of dialogues and the way they are judged, without a real model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from agent_runner.ans.lazy_notices import LazyNotices
from agent_runner.tools.notices import notice_tools
from agent_runner.tools.table import TABLE
from agent_runner.tools.wire import DASHBOARD_TOOLS
from agent_runner.workspace import Workspace
from tests.doubles.messages_api import Say, ScriptedMessagesApi, UseTool, UseTools
from tests.evals.dialogues import (
    Dialogue,
    DialogueOutcome,
    ExpectedCall,
    ToolCall,
    hold,
    mistakes,
    read_dialogues,
)
from tests.processes.runner import order_of
from tests.support.dashboard_harness import FEB_9_0830, DashboardHarness

CLI_TOOLS = {"(Write|Edit|Bash)"}
REMINDER = Dialogue(
    name="a reminder",
    said="remind me tomorrow at 9",
    calls=(ExpectedCall(tool="schedule_notification", arguments={"message": "mum"}, at="tomorrow 9am"),),
    never=("create_task",),
    answer="tomorrow",
)


def did(answer: str = "I will, tomorrow.", *calls: tuple[str, dict[str, Any]]) -> DialogueOutcome:
    made = tuple(ToolCall(tool=tool, arguments=arguments) for tool, arguments in calls)
    return DialogueOutcome(calls=made, answer=answer, asked_ms=FEB_9_0830)


def test_the_table_names_twenty_dialogues_and_only_tools_and_arguments_that_there_are(
    workspace: Workspace,
) -> None:
    dialogues = read_dialogues()
    assert len({one.name for one in dialogues}) == len(dialogues) == 20
    of_notices = notice_tools(LazyNotices(order_of("hi"), workspace))
    known = {tool.name: tool.schema()["properties"] for tool in (*TABLE, *DASHBOARD_TOOLS, *of_notices)}
    for dialogue in dialogues:
        assert dialogue.calls or dialogue.never
        assert set(dialogue.never) <= set(known)
        for call in dialogue.calls:
            assert call.tool in known or call.tool in CLI_TOOLS
            assert set(call.arguments) <= {*known.get(call.tool, ()), "*"}
            assert call.at is None or "scheduled_at" in known[call.tool]


AT_NINE, AT_TEN = "2026-02-10T09:00", "2026-02-10T10:00"


def reminded(message: str, at: str) -> tuple[str, dict[str, Any]]:
    return "schedule_notification", {"message": message, "scheduled_at": at}


@pytest.mark.parametrize(
    ("done", "wrong"),
    [
        (did("ok, tomorrow", reminded("Call Mum", AT_NINE)), ""),
        (did("ok, tomorrow", reminded("Call Dad", AT_NINE)), "mum"),
        (did("ok, tomorrow", reminded("Call Mum", AT_TEN)), "due tomorrow 9am"),
        (did("ok, tomorrow", reminded("Call Mum", "some day")), "due tomorrow 9am"),
        (did("ok, tomorrow"), "was not called"),
        (did("done", reminded("Call Mum", AT_NINE)), "answer"),
        (
            did("tomorrow", reminded("Call Mum", AT_NINE), ("create_task", {"title": "Mum"})),
            "create_task was called",
        ),
    ],
)
def test_what_is_not_as_expected_is_named(done: DialogueOutcome, wrong: str) -> None:
    found = mistakes(REMINDER, done)
    assert bool(found) is bool(wrong)
    assert wrong in "\n".join(found)


def test_silence_is_silence() -> None:
    silent = replace(REMINDER, calls=(), answer="SILENT")
    assert mistakes(silent, did("SILENT")) == []
    assert mistakes(silent, did("Noted!")) != []


async def test_a_dialogue_goes_through_the_real_host_and_its_calls_are_read_back(
    home: DashboardHarness, workspace: Workspace
) -> None:
    dialogue = next(one for one in read_dialogues() if one.name == "several things in one message")
    calls = (
        UseTool("mcp__dashboard__update_task", {"task_id": "task_blog", "progress": 90}),
        UseTool("mcp__dashboard__answer_question", {"question_id": "q_train", "answer": "Jun"}),
        UseTool("mcp__dashboard__create_task", {"title": "Birthday cake", "deadline": "2031-03-01"}),
    )
    await home.harness.add_group("family")
    with ScriptedMessagesApi([UseTools(calls), Say("SILENT")]) as api:
        environment = {"ANTHROPIC_BASE_URL": api.url, "ANTHROPIC_API_KEY": "placeholder"}
        done = await hold(dialogue, home, workspace, environment=environment)
    assert mistakes(dialogue, done) == []
    assert [call.tool for call in done.calls] == ["update_task", "answer_question", "create_task"]
    assert (await home.task("task_blog")).pct == 90
    assert (await home.question("q_train")).answer == "Jun"
