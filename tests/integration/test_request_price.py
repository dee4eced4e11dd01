"""What a turn costs: the real CLI's requests, counted by part as `benchmarks/turn_price.py` does."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agent_runner.wire.order import RestoreOrder, RunOrder
from agent_runner.workspace import Workspace
from orchestrator.context.tokens import EncodingCounter
from tests.doubles.messages_api import (
    Fail,
    Recorded,
    Say,
    ScriptedMessagesApi,
    Step,
    UseTool,
    system_text,
    tool_names,
    tool_results,
)
from tests.doubles.request_parts import tokens_by_part, without_marks
from tests.processes.runner import RunnerProcess, order_of
from tests.support.priced_turns import CHAT_MESSAGE, FOLLOW_UP, main_order, prepare_main, worker_order

CHAT_TOKENS, OWN_TOOL_TOKENS, FOLLOW_UP_TOKENS, WORKER_TOKENS = 9_000, 3_500, 300, 2_500
CLI_TOOL_TOKENS = 3_400
"""More, and a switch of the CLI that keeps its descriptions short does nothing any more."""
count = EncodingCounter().count


def run(workspace: Workspace, api: ScriptedMessagesApi, order: RunOrder) -> RunnerProcess:
    environment = {"ANTHROPIC_BASE_URL": api.url, "ANTHROPIC_API_KEY": "placeholder"}
    return RunnerProcess(workspace, order, environment=environment)


@pytest.mark.parametrize("model", [None, "claude-sonnet-4-5"])
def test_a_turn_in_main_and_its_follow_up_keep_to_their_price(
    workspace: Workspace, api: ScriptedMessagesApi, model: str | None
) -> None:
    prepare_main(workspace)
    with run(workspace, api, main_order(model=model)) as runner:
        runner.wait_for("turn_end")
        runner.ask(2, FOLLOW_UP)
        runner.wait_for("turn_end", turn=2)
    first, second = (turn.body for turn in api.turns)
    parts = tokens_by_part(first, count)
    assert sum(parts.values()) < CHAT_TOKENS, parts
    assert "andy:chart" in json.dumps(first), "skills are told of, too"
    assert 0 < parts["own tools"] < OWN_TOOL_TOKENS, parts
    assert parts["tools of the CLI"] < CLI_TOOL_TOKENS, parts
    assert "hi, what can you do?" in json.dumps(first["messages"]), CHAT_MESSAGE

    # A cache is of use only where the new request begins with every byte of the one before.
    for part in ("system", "tools"):
        assert without_marks_of(second, part) == without_marks_of(first, part)
    before, after = _contents(first), _contents(second)
    assert after[: len(before)] == before
    new = sum(count(json.dumps(block, ensure_ascii=False)) for block in after[len(before) :])
    assert new - count(FOLLOW_UP) < FOLLOW_UP_TOKENS


def test_a_cycle_of_the_worker_keeps_to_its_price(workspace: Workspace, api: ScriptedMessagesApi) -> None:
    with run(workspace, api, worker_order()) as runner:
        runner.wait_for("turn_end")
    parts = tokens_by_part(api.turns[0].body, count)
    assert sum(parts.values()) < WORKER_TOKENS, parts
    assert parts["own tools"] > 0


def test_a_model_finds_the_tools_that_it_is_told_by_name_alone(
    workspace: Workspace, api: ScriptedMessagesApi
) -> None:
    name = "mcp__andy__list_tasks"
    api.then(
        UseTool("ToolSearch", {"query": f"select:{name}", "max_results": 5}), UseTool(name), Say("None.")
    )
    with run(workspace, api, main_order()) as runner:
        runner.reply(runner.request(workspace.tasks), "There are no tasks.")
        runner.wait_for("turn_end")
    asked, found, answered = api.turns
    assert name in json.dumps(asked.body)
    assert name not in tool_names(asked)
    assert name in json.dumps(tool_results(found))
    assert "There are no tasks." in json.dumps(tool_results(answered))


def test_a_service_that_knows_no_deferred_tools_is_sent_all_of_them(workspace: Workspace) -> None:
    def decide(request: Recorded) -> Step:
        is_known = "defer_loading" not in json.dumps(request.body.get("tools"))
        return Say("done") if is_known else Fail(400, message="tools.1.defer_loading: Extra inputs")

    with ScriptedMessagesApi(decide) as api, run(workspace, api, main_order()) as runner:
        assert runner.wait_for("turn_end").status == "success"
    assert "mcp__andy__list_tasks" in tool_names(api.turns[-1])


def test_a_resumed_session_follows_the_rules_of_today(workspace: Workspace, api: ScriptedMessagesApi) -> None:
    with run(workspace, api, order_of("hi", assistant_name="Ada")) as runner:
        session = runner.wait_for("turn_end").new_session_id
        runner.close()
        runner.exit_code()
    again = order_of("and?", assistant_name="Bea", session_id=session, restore=RestoreOrder(mode="resume"))
    with run(workspace, api, again) as runner:
        runner.wait_for("turn_end")
    assert "Bea" in system_text(api.turns[1])
    assert "Ada" not in system_text(api.turns[1])


def without_marks_of(body: dict[str, Any], part: str) -> Any:
    return without_marks(body[part])


def _contents(body: dict[str, Any]) -> list[Any]:
    return [block for message in body["messages"] for block in without_marks(message["content"])]
