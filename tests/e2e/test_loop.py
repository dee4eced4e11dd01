"""A loop the whole way: switched on by a command, woken by messages, files and time, kept when killed."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.doubles.messages_api import Say, ScriptedMessagesApi, UseTool, last_user_text
from tests.processes.andy import AndyProcess, until
from tests.support.skips import only_in_soak

MINUTE, HOUR = 60_000, 3_600_000
SILENT = "<internal>nothing to do</internal>"


def loop_of(andy: AndyProcess, group: str = "main") -> dict[str, Any]:
    found: dict[str, Any] = andy.listed("loop", "status", group)
    return found


def ended(andy: AndyProcess, count: int) -> list[dict[str, Any]]:
    """The newest cycles, newest first, once so many have ended."""
    sql = "SELECT * FROM cycles WHERE ended_ms IS NOT NULL ORDER BY id DESC"
    return until(
        lambda: [dict(row) for row in found] if len(found := andy.rows(sql)) >= count else None,
        what=f"{count} cycles have ended",
    )


def has_seen_files(andy: AndyProcess) -> bool:
    """Whether changed files wait for a cycle, or had one."""
    waiting = [one["kind"] for one in loop_of(andy)["pending"]]
    return "workspace" in waiting or bool(
        andy.rows("SELECT 1 FROM cycles WHERE trigger_json LIKE '%workspace%'")
    )


@only_in_soak
def test_an_offline_agent_wakes_by_itself_and_when_it_is_told(tmp_path: Path, runtime: str) -> None:
    with AndyProcess(tmp_path / "home", runtime=runtime) as andy:
        assert andy.listed("loop", "status") == [{"group": "main", "status": "off"}]
        assert andy.say("echo hello")["reply"] == "hello"
        assert andy.rows("SELECT 1 FROM wakes UNION ALL SELECT 1 FROM events") == []

        assert andy.cli("loop", "on", "main").returncode == 0
        (first,) = ended(andy, 1)
        assert (first["kind"], first["outcome"]) == ("auto", "noop")
        assert json.loads(first["trigger_json"]) == ["heartbeat: set by user: the loop was switched on"]
        status = loop_of(andy)
        assert (status["status"], status["set_by"], status["pause_ms"]) == ("on", "auto", 10 * MINUTE)

        assert "in 45 minutes" in andy.say("wake up in 45m")["reply"]
        (wished, *_) = ended(andy, 2)
        status = loop_of(andy)
        assert (status["set_by"], status["raw"]) == ("agent", "45m")
        assert 44 * MINUTE < status["next_wake_ms"] - wished["ended_ms"] < 46 * MINUTE

        assert andy.say('echo hi [SCHEDULE next="4h"]')["reply"] == "hi"
        (echoed, *_) = ended(andy, 3)
        status = loop_of(andy)
        assert (status["set_by"], status["pause_ms"] <= 10 * MINUTE) == ("auto", True)
        assert andy.rows("SELECT 1 FROM messages WHERE is_bot_message AND content LIKE '%SCHEDULE%'") == []

        until(lambda: time.time() * 1000 > echoed["ended_ms"] + 4_000, what="it cannot be the agent's own")
        (andy.home / "groups" / "main" / "plan.md").write_text("a plan")
        until(lambda: has_seen_files(andy), what="it is seen")
        told = [json.loads(line) for line in andy.cli("events", "-n", "500", "--json").stdout.splitlines()]
        kinds = [event["kind"] for event in told]
        assert {"trigger:chat", "trigger:heartbeat", "trigger:workspace", "action:loop"} <= set(kinds)
        assert "plan" not in json.dumps([event for event in told if event["kind"].startswith("trigger:")])

        assert andy.cli("loop", "pause", "main").returncode == 0
        before = loop_of(andy)["next_wake_ms"]
        andy.kill()
        assert loop_of(andy)["status"] == "paused", "told with Andy down"
        assert andy.cli("loop", "resume", "main").returncode == 0
        assert loop_of(andy)["next_wake_ms"] == before
        andy.start()
        if (
            loop_of(andy)["next_wake_ms"] != before
        ):  # on a slow machine the minute for the file is over by now
            assert json.loads(ended(andy, 4)[0]["trigger_json"]) == ["workspace: plan.md"]
        assert andy.cli("loop", "off", "main").returncode == 0
        assert andy.cli("loop", "wake", "main").returncode == 1
        assert "is off" in andy.cli("loop", "wake", "main").stderr


@pytest.fixture
def andy(tmp_path: Path, runtime: str, api: ScriptedMessagesApi) -> Iterator[AndyProcess]:
    environment = {"ANTHROPIC_API_KEY": "sk-ant-api03-a-key", "ANTHROPIC_BASE_URL": api.url}
    with AndyProcess(tmp_path / "home", runtime=runtime, agent="auto", environment=environment) as andy:
        yield andy


def test_a_model_sets_its_wake_is_woken_by_a_message_and_backs_off(
    andy: AndyProcess, api: ScriptedMessagesApi
) -> None:
    api.then(
        Say(f'{SILENT}[SCHEDULE next="45m" reason="waiting for feedback"]'),
        Say("Here I am."),
        UseTool("set_next_wake", {"next": "10h", "reason": "night"}),
        Say(SILENT),
        Say(SILENT),
    )
    assert andy.cli("loop", "on", "main").returncode == 0
    assert andy.cli("loop", "wake", "main", "--reason", "have a look").returncode == 0
    (wished,) = ended(andy, 1)
    asked = last_user_text(api.turns[0])
    assert "Triggered by: manual: have a look" in asked
    assert "2m-4h" in asked
    status = loop_of(andy)
    assert (status["set_by"], status["raw"], status["reason"]) == ("agent", "45m", "waiting for feedback")
    assert 44 * MINUTE < status["next_wake_ms"] - wished["ended_ms"] < 46 * MINUTE

    assert andy.say("are you there?")["reply"] == "Here I am."
    (chat, _) = ended(andy, 2)
    (message,) = andy.rows("SELECT received_ms FROM messages WHERE content = 'are you there?'")
    assert chat["kind"] == "chat"
    assert message["received_ms"] <= chat["started_ms"] < status["next_wake_ms"], "a sleeping loop is woken"
    assert loop_of(andy)["pause_ms"] == 5 * MINUTE

    assert andy.cli("loop", "wake", "main").returncode == 0
    (wished, *_) = ended(andy, 3)
    status = loop_of(andy)
    assert (status["raw"], status["set_by"]) == ("10h", "agent")
    assert 239 * MINUTE < status["next_wake_ms"] - wished["ended_ms"] < 241 * MINUTE
    assert "4 h after this turn" in json.dumps(api.turns[3].body)

    assert andy.cli("loop", "wake", "main").returncode == 0
    (last, *_) = ended(andy, 4)
    assert (last["outcome"], last["schedule_raw"]) == ("noop", None)
    status = loop_of(andy)
    assert (status["set_by"], status["pause_ms"]) == ("auto", 10 * MINUTE), "without a wish it backs off"
    said = [row["content"] for row in andy.rows("SELECT content FROM messages WHERE is_bot_message")]
    assert said == ["Here I am."]


@pytest.mark.parametrize("runtime", ["process"], indirect=True)
def test_bt_02_a_message_in_a_free_cycle_is_told_its_place_and_answered_after_it(
    andy: AndyProcess, api: ScriptedMessagesApi, tmp_path: Path
) -> None:
    asked = tmp_path / "asked"
    wait = f"until [ -e '{asked}' ]; do sleep 0.1; done"
    api.then(UseTool("Bash", {"command": wait, "description": "wait"}), Say(SILENT), Say("Now I can."))
    assert andy.cli("loop", "on", "main").returncode == 0
    assert andy.cli("loop", "wake", "main").returncode == 0
    until(lambda: api.turns, what="the cycle runs")
    with andy.http() as http:
        response = http.post("/chat", json={"group": "main", "text": "hello?", "wait": 60})
    asked.touch()
    assert response.status_code == 202
    assert (response.json()["outcome"], response.json()["place"]) == ("queued", 1)
    assert andy.until_settled(response.json()["id"])["reply"] == "Now I can."
    (chat, auto) = ended(andy, 2)
    assert (auto["kind"], chat["kind"]) == ("auto", "chat")
    assert chat["started_ms"] >= auto["ended_ms"], "never two cycles at once"
