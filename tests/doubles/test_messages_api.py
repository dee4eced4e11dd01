"""Test that the scripted Messages API answers by its script, in the form of the real API."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.doubles.messages_api import (
    Fail,
    Hang,
    Recorded,
    Say,
    SayThenCut,
    ScriptedMessagesApi,
    Step,
    Tokens,
    UseTool,
    UseTools,
    last_user_text,
    tool_results,
)

TOOLS = [{"name": "Bash", "input_schema": {"type": "object"}}]


def ask(api: ScriptedMessagesApi, text: str = "hi", **more: Any) -> httpx.Response:
    body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": text}], **more}
    return httpx.post(f"{api.url}/v1/messages", json=body, timeout=60)


def events(response: httpx.Response) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: ")]


def test_a_plain_request_gets_one_message_with_the_scripted_usage() -> None:
    with ScriptedMessagesApi([Say("안녕", tokens=Tokens(input_tokens=3, output_tokens=5))]) as api:
        message = ask(api).json()
    assert message["content"] == [{"type": "text", "text": "안녕"}]
    assert (message["usage"]["input_tokens"], message["usage"]["output_tokens"]) == (3, 5)


def test_a_streamed_answer_has_the_events_of_the_real_one() -> None:
    with ScriptedMessagesApi([Say("one two")]) as api:
        got = events(ask(api, stream=True))
    assert [event["type"] for event in got] == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert got[2]["delta"]["text"] == "one two"


def test_several_tools_are_called_at_once_each_under_an_id_of_its_own() -> None:
    calls = (UseTool("Read", {"file_path": "/a"}), UseTool("send_message", {"text": "x"}))
    with ScriptedMessagesApi([UseTools(calls)]) as api:
        message = ask(api).json()
    assert [block["name"] for block in message["content"]] == ["Read", "mcp__andy__send_message"]
    assert len({block["id"] for block in message["content"]}) == 2
    assert message["stop_reason"] == "tool_use"


def test_a_tool_call_is_streamed_as_partial_json_under_the_name_the_agent_knows() -> None:
    with ScriptedMessagesApi([UseTool("send_message", {"text": "x"})]) as api:
        got = events(ask(api, stream=True))
    assert got[1]["content_block"]["name"] == "mcp__andy__send_message"
    assert json.loads(got[2]["delta"]["partial_json"]) == {"text": "x"}
    assert got[-2]["delta"]["stop_reason"] == "tool_use"


def test_steps_are_taken_in_order_and_then_the_default_answers() -> None:
    with ScriptedMessagesApi([Say("a")], default=Say("z")) as api:
        api.then(Say("b"))
        texts = [ask(api).json()["content"][0]["text"] for _ in range(3)]
    assert texts == ["a", "b", "z"]


def test_a_function_decides_by_the_request() -> None:
    def decide(request: Recorded) -> Step:
        return Say(last_user_text(request).upper())

    with ScriptedMessagesApi(decide) as api:
        assert ask(api, "loud").json()["content"][0]["text"] == "LOUD"


def test_a_refusal_has_its_status_and_type() -> None:
    with ScriptedMessagesApi([Fail(529, "overloaded_error")]) as api:
        response = ask(api)
    assert (response.status_code, response.json()["error"]["type"]) == (529, "overloaded_error")


def test_a_cut_answer_breaks_in_the_middle() -> None:
    with ScriptedMessagesApi([SayThenCut("half")]) as api, pytest.raises(httpx.RemoteProtocolError):
        ask(api, stream=True)


def test_a_hanging_request_is_let_go_at_the_end() -> None:
    with ScriptedMessagesApi([Hang()]) as api:
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{api.url}/v1/messages", json={"model": "m", "messages": []}, timeout=0.2)
        assert len(api.wait_for_turns(1)) == 1


def test_probes_and_counts_are_answered_and_take_no_step() -> None:
    with ScriptedMessagesApi([Say("first")]) as api:
        assert httpx.head(f"{api.url}/").status_code == 200
        counted = httpx.post(f"{api.url}/v1/messages/count_tokens", json={"messages": []}).json()
        assert ask(api).json()["content"][0]["text"] == "first"
        assert [request.kind for request in api.requests] == ["probe", "count", "turn"]
    assert counted["input_tokens"] >= 1


@pytest.mark.parametrize(
    "more",
    [
        {"max_tokens": 1, "tools": TOOLS},
        {"system": "Write a title"},
        {"tools": TOOLS, "messages": [{"role": "user", "content": "a detailed summary of the conversation"}]},
    ],
)
def test_what_the_cli_asks_on_its_own_account_takes_no_step(more: dict[str, Any]) -> None:
    body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "x"}], **more}
    with ScriptedMessagesApi([Say("kept")]) as api:
        httpx.post(f"{api.url}/v1/messages", json=body, headers={"user-agent": "claude-cli/2"})
        assert api.turns == []
        assert ask(api, tools=TOOLS).json()["content"][0]["text"] == "kept"


def test_waiting_for_a_turn_that_does_not_come_says_how_many_came() -> None:
    with ScriptedMessagesApi() as api, pytest.raises(TimeoutError, match="0 of 1"):
        api.wait_for_turns(1, seconds=0.05)


def run_cli(api: ScriptedMessagesApi, home: Path, prompt: str) -> subprocess.CompletedProcess[str]:
    import claude_agent_sdk

    cli = Path(claude_agent_sdk.__file__).parent / "_bundled" / "claude"
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "CLAUDE_CONFIG_DIR": str(home / ".claude"),
        "ANTHROPIC_BASE_URL": api.url,
        "ANTHROPIC_API_KEY": "no-key",
        "IS_SANDBOX": "1",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
    }
    command = [str(cli), "-p", prompt, "--permission-mode", "bypassPermissions"]
    return subprocess.run(
        command,
        env=environment,
        cwd=home,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_the_real_cli_takes_the_script_step_by_step(tmp_path: Path) -> None:
    script = [UseTool("Bash", {"command": "echo tool-$((40+2))", "description": "add"}), Say("done")]
    with ScriptedMessagesApi(script) as api:
        finished = run_cli(api, tmp_path, "please add")
    assert finished.stdout.strip() == "done"
    assert len(api.turns) == 2
    assert last_user_text(api.turns[0]) == "please add"
    assert "tool-42" in str(tool_results(api.turns[1]))


def test_the_real_cli_reports_a_refusal(tmp_path: Path) -> None:
    with ScriptedMessagesApi(default=Fail(400)) as api:
        finished = run_cli(api, tmp_path, "hello")
    assert "refused by the script" in finished.stdout
    assert finished.returncode != 0
