"""The commands that tell where a message is and what runs, on a real Andy, up and down."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.e2e.test_logs import following, read_until
from tests.processes.andy import AndyProcess


def test_a_message_is_followed_with_andy_down(tmp_path: Path) -> None:
    with AndyProcess(tmp_path / "home") as andy:
        first = andy.say("echo hello")
        second = andy.say("echo again")
        assert andy.terminate() == 0
        found = json.loads(andy.cli("messages", "main", "--id", second["id"], "--json").stdout)
        (attempt,) = found["attempts"]
        assert (attempt["attempt"], attempt["outcome"], found["turn"]["state"]) == (1, "answered", "answered")
        assert found["message"]["received_ms"] <= attempt["started_ms"] <= attempt["acked_ms"]
        assert attempt["acked_ms"] <= attempt["ended_ms"] <= found["replies"][0]["sent_ms"]
        told = andy.cli("messages", "main", "--id", first["id"]).stdout
        assert "its agent has it" in told
        assert "sent as" in told
        number = andy.cli("messages", "main").stdout.split()[0]
        assert andy.cli("messages", "main", "--id", number).stdout == told
        refused = andy.cli("messages", "main", "--id", "nothing")
        assert refused.returncode == 1
        assert "There is no message 'nothing'" in refused.stderr


def test_events_are_told_lately_and_as_they_come(tmp_path: Path) -> None:
    with AndyProcess(tmp_path / "home") as andy:
        assert andy.cli("groups", "register", "family", "--no-trigger").returncode == 0
        andy.say("echo hello")
        lately = andy.cli("events", "-n", "500").stdout
        assert "turn.answered" in lately
        assert "hello" not in lately
        assert len(andy.cli("events", "-n", "2").stdout.splitlines()) == 2
        each = [json.loads(line) for line in andy.cli("events", "--json").stdout.splitlines()]
        assert [one["n"] for one in each] == sorted(one["n"] for one in each)
        andy.say("echo before", group="family")
        with following(andy, "events", "-f", "--group", "family") as lines:
            before = read_until(lines, "message.sent")
            andy.say("echo in main")
            andy.say("echo in family", group="family")
            told = before + read_until(lines, "message.sent")
        assert told.count("group=family") >= 6
        assert "group=main" not in told
        with andy.http() as http:
            assert http.get("/events", params={"recent": "many"}).status_code == 400
            assert http.get("/events", params={"colour": "red"}).json()["error"]["code"] == "bad_query"
    assert AndyProcess(tmp_path / "home").cli("events").returncode == 3


def test_status_tells_what_runs(tmp_path: Path) -> None:
    key = "sk-ant-api03-not-to-be-shown"
    with AndyProcess(tmp_path / "home", environment={"ANTHROPIC_API_KEY": key}) as andy:
        andy.say("echo hello")
        andy.say("remind me in 2 hours to stretch")
        found = andy.listed("status")
        known = {"present": True, "setting": "ANTHROPIC_API_KEY", "problem": None}
        assert found["credential"] == known | {"accepted": None, "accepted_ms": None, "refusals": []}
        (container,) = found["containers"]
        assert (container["group"], container["state"], container["turn"]) == ("main", "idle", None)
        assert container["age_seconds"] >= container["state_seconds"]
        assert found["reminders"]["pending"] == 1
        assert found["disk_free_bytes"] > 0
        told = andy.cli("status").stdout
        assert "NOT isolated" in told
        assert key not in told + json.dumps(found)


def test_what_a_pipe_closes_is_no_error(tmp_path: Path) -> None:
    with AndyProcess(tmp_path / "home") as andy:
        andy.say("echo hello")
        done = subprocess.run(
            ["sh", "-c", f"{_andy()} logs main | head -n 1; {_andy()} events | head -n 1"],
            env=andy.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert "Traceback" not in done.stderr


def _andy() -> str:
    return f"{sys.executable} -m orchestrator"
