"""How many subagents the real CLI starts for an agent, and how the host tells their requests apart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from agent_runner.agents.claude import sdk_client
from orchestrator.proxies.model.headers import SUBAGENT_NAME
from tests.doubles.messages_api import (
    Recorded,
    Say,
    ScriptedMessagesApi,
    Step,
    UseTool,
    UseTools,
    all_text,
    tool_results,
)
from tests.processes.runner import RunnerProcess, make_workspace, order_of

AT_ONCE = 3
TASK = UseTool("Task", {"description": "d", "prompt": "LOOK-FOR-IT", "subagent_type": "general-purpose"})
WAIT_FOR_ALL = UseTool("Bash", {"command": "until [ -e all-are-there ]; do sleep 0.05; done"})


def test_few_subagents_run_at_once_and_a_turn_starts_a_bounded_number(tmp_path: Path) -> None:
    workspace = make_workspace(tmp_path)
    of_agent: list[Step] = [
        UseTools((TASK,) * (AT_ONCE + 1)),
        *(UseTools((TASK,) * AT_ONCE) for _ in range(3)),
        Say("done"),
        TASK,
        Say("done again"),
    ]
    waiting: list[Recorded] = []

    def decide(request: Recorded) -> Step:
        if is_of_the_agent(request):
            return of_agent.pop(0)
        if len(waiting) < AT_ONCE:
            waiting.append(request)
            if len(waiting) == AT_ONCE:
                (workspace.group / "all-are-there").touch()
            return WAIT_FOR_ALL
        return Say("found")

    order = order_of("ASK-SOMEBODY")
    with ScriptedMessagesApi(decide) as api:
        environment = {"ANTHROPIC_BASE_URL": api.url, "ANTHROPIC_API_KEY": "placeholder"}
        with RunnerProcess(workspace, order, environment=environment) as runner:
            assert runner.wait_for("turn_end", turn=1).status == "success"
            in_first = api.turns
            runner.ask(2, "ASK-SOMEBODY again")
            runner.wait_for("turn_end", turn=2)
        refused = [refusals(one) for one in in_first if is_of_the_agent(one)]
        assert [len(one) for one in refused] == [0, 1, 0, 0, 1]
        assert "Concurrent subagent limit reached" in refused[1][0]
        assert sdk_client.NO_MORE_SUBAGENTS in refused[4][0]
        assert len(names_of_subagents(in_first)) == sdk_client.SUBAGENTS_A_TURN - 1, (
            "one was too many at once"
        )
        assert len(names_of_subagents(api.turns)) == sdk_client.SUBAGENTS_A_TURN, (
            "each turn may start as many"
        )
        unnamed = [one for one in api.turns if SUBAGENT_NAME.decode() not in one.headers]
        assert unnamed == [one for one in api.turns if is_of_the_agent(one)]


def is_of_the_agent(request: Recorded) -> bool:
    return "ASK-SOMEBODY" in all_text(request)


def refusals(request: Recorded) -> list[str]:
    results: list[dict[str, Any]] = [one for one in tool_results(request) if one.get("is_error")]
    return [
        one["content"] if isinstance(one["content"], str) else json.dumps(one["content"]) for one in results
    ]


def names_of_subagents(requests: list[Recorded]) -> set[str]:
    named = (one.headers.get(SUBAGENT_NAME.decode()) for one in requests)
    return {name for name in named if name}
