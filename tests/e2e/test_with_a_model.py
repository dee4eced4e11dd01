"""The real SDK and CLI in a real container, through the proxy, to a scripted model."""

from __future__ import annotations

import json
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.doubles.messages_api import (
    Fail,
    Hang,
    Say,
    ScriptedMessagesApi,
    UseTool,
    all_text,
    last_user_text,
    tool_results,
)
from tests.processes.andy import AndyProcess, until

REAL_KEY = "sk-ant-api03-the-real-key-of-the-owner"


@pytest.fixture
def andy(tmp_path: Path, runtime: str, api: ScriptedMessagesApi) -> Iterator[AndyProcess]:
    environment = {"ANTHROPIC_API_KEY": REAL_KEY, "ANTHROPIC_BASE_URL": api.url}
    home = tmp_path / "home"
    with AndyProcess(home, runtime=runtime, agent="auto", environment=environment) as andy:
        yield andy


def test_a_question_a_tool_and_a_follow_up(andy: AndyProcess, api: ScriptedMessagesApi) -> None:
    api.then(
        UseTool("send_message", {"text": "One moment …"}),
        Say("<internal>checked the calendar</internal>It is sunny, 안녕하세요."),
        Say("As I said: sunny."),
    )
    first = andy.say("How is the weather?")
    assert first["reply"] == "One moment …\n\nIt is sunny, 안녕하세요."
    assert "on its way" in json.dumps(tool_results(api.turns[1]))
    (call,) = andy.rows("SELECT tool, summary, is_ok FROM tool_calls")
    assert tuple(call) == ("mcp__andy__send_message", "One moment …", 1)

    second = andy.say("Are you sure?")
    assert second["reply"] == "As I said: sunny."
    assert "How is the weather?" in all_text(api.turns[2]), "the session goes on"
    assert "Are you sure?" in last_user_text(api.turns[2])
    runs = andy.rows("SELECT DISTINCT run_id FROM turns")
    assert len(runs) == 1
    assert "<internal>" not in "".join(row["content"] for row in andy.rows("SELECT content FROM messages"))


def test_a_reminder_that_the_model_sets(andy: AndyProcess, api: ScriptedMessagesApi) -> None:
    stretch = {"message": "Stretch!", "scheduled_at": "in 2 seconds"}
    api.then(UseTool("mcp__dashboard__schedule_notification", stretch), Say("I will."))
    assert andy.say("remind me to stretch")["reply"] == "I will."
    until(lambda: andy.rows("SELECT 1 FROM messages WHERE content = 'Stretch!'"), what="the reminder is sent")


def test_the_key_is_with_the_host_alone(andy: AndyProcess, api: ScriptedMessagesApi, runtime: str) -> None:
    api.then(Say("Hello."))
    andy.say("hi")
    assert api.turns[0].headers["x-api-key"] == REAL_KEY
    if runtime == "docker":
        container = _containers(andy)[0]
        processes = _in(
            container, "sh", "-c", "cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline | tr '\\0' '\\n'"
        )
        files = _in(
            container, "-u", "0", "grep", "-rls", REAL_KEY, "/workspace", "/home", "/tmp", "/app", "/etc"
        )
        seen = processes.stdout + files.stdout
        assert REAL_KEY not in seen
        assert "ANTHROPIC_API_KEY" in seen, "the look into the environment has worked"
    assert REAL_KEY not in andy.log.read_text()
    assert not any(REAL_KEY in str(tuple(row)) for row in andy.rows("SELECT * FROM runs"))


@pytest.mark.docker
@pytest.mark.parametrize("runtime", ["docker"], indirect=True)
def test_who_looks_for_the_key_from_inside_as_root_finds_none(
    andy: AndyProcess, api: ScriptedMessagesApi
) -> None:
    (andy.home / ".env").write_text(f"ANTHROPIC_API_KEY={REAL_KEY}\n")
    api.then(UseTool("Bash", {"command": "env; cat /proc/*/environ | base64"}), Say("None."))
    andy.say("what is your key?")
    assert api.turns[0].headers["x-api-key"] == REAL_KEY
    container = _containers(andy)[0]
    looked = _seen_by_all(container, "cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline | tr '\\0' '\\n'")
    assert "ANTHROPIC_API_KEY=andy-" in looked, "the look into the processes has worked"
    search = "grep -rlsF --exclude-dir=proc --exclude-dir=sys"
    assert "/etc/passwd" in _seen_by_all(container, f"{search} root:x:0:0 / ; true")
    assert _seen_by_all(container, f"{search} {REAL_KEY} / ; true") == ""
    image = _docker("inspect", "-f", "{{.Image}}", container).strip()
    everywhere = {
        "processes": looked,
        "container": _docker("inspect", container),
        "image": _docker("image", "inspect", image) + _docker("history", "--no-trunc", image),
        "output": _docker("logs", container),
        "what the agent was told": str([tool_results(turn) for turn in api.turns]),
        "logs": andy.log.read_text()
        + "".join(path.read_text() for path in andy.home.glob("data/logs/**/*.*")),
        "store": "\n".join(_dump(andy.home / "store" / "messages.db")),
    }
    assert [place for place, text in everywhere.items() if REAL_KEY in text] == []


@pytest.mark.docker
@pytest.mark.parametrize("runtime", ["docker"], indirect=True)
def test_a_container_reaches_the_proxy_and_nothing_outside(
    andy: AndyProcess, api: ScriptedMessagesApi
) -> None:
    api.then(Say("Hello."))
    andy.say("hi")
    container = _containers(andy)[0]
    connect = "import socket,sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 3); print('open')"
    networks = json.loads(_docker("inspect", "-f", "{{json .NetworkSettings.Networks}}", container))
    (network,) = networks
    assert _docker("network", "inspect", "-f", "{{.Internal}}", network).strip() == "true"
    base_url = _in(container, "sh", "-c", "echo $ANTHROPIC_BASE_URL").stdout.strip().removeprefix("http://")
    host, port = base_url.split(":")
    assert "open" in _in(container, "python3", "-c", connect, host, port).stdout
    wrong = _in(
        container, "curl", "-s", "-X", "POST", f"http://{base_url}/v1/messages", "-H", "x-api-key: wrong"
    )
    assert json.loads(wrong.stdout)["error"]["type"] == "authentication_error"
    assert _in(container, "touch", "/etc/x").returncode != 0, "the root is read-only"
    assert _in(container, "id", "-u").stdout.strip() != "0"


def test_an_error_result_is_tried_again_and_then_told(andy: AndyProcess, api: ScriptedMessagesApi) -> None:
    api.then(Fail(418, "api_error", "the script refuses"), Say("Now it works."))  # the CLI gives up at once
    found = andy.say("hi")
    assert found["reply"] == "Now it works."
    (turn,) = andy.rows("SELECT attempt, state FROM turns")
    assert (turn["attempt"], turn["state"]) == (2, "answered")


def test_a_container_killed_in_a_turn_costs_no_answer(andy: AndyProcess, api: ScriptedMessagesApi) -> None:
    api.then(Hang(), Say("Here I am again."))
    asked = andy.say("hi", wait=0)
    until(lambda: api.turns, what="the model is asked")
    (run,) = andy.rows("SELECT container_ref FROM runs")
    _kill(run["container_ref"])
    settled = andy.until_settled(asked["id"])
    assert settled["reply"] == "Here I am again."
    assert len(andy.rows("SELECT 1 FROM messages WHERE sender = 'andy'")) == 1


def test_a_host_killed_in_a_turn_costs_no_answer(
    andy: AndyProcess, api: ScriptedMessagesApi, runtime: str
) -> None:
    hang = Hang()
    api.then(hang, Say("Here I am again."))
    asked = andy.say("hi", wait=0)
    until(lambda: api.turns, what="the model is asked")
    andy.kill()
    andy.start()
    api.release()
    settled = andy.until_settled(asked["id"])
    assert settled["outcome"] == "answered"
    assert len(andy.rows("SELECT 1 FROM messages WHERE sender = 'andy'")) == 1
    if runtime == "docker":
        assert len(andy.rows("SELECT 1 FROM runs")) == 1, "the container that lived on has answered"


@pytest.mark.docker
@pytest.mark.parametrize("runtime", ["docker"], indirect=True)
def test_a_restarted_host_goes_on_with_the_container_it_left(
    andy: AndyProcess, api: ScriptedMessagesApi
) -> None:
    api.then(Say("one"), Say("two"))
    andy.say("first")
    assert andy.terminate() == 0
    before = _containers(andy)
    andy.start()
    assert andy.say("second")["reply"] == "two"
    assert _containers(andy) == before
    assert "first" in all_text(api.turns[1])


def _containers(andy: AndyProcess) -> list[str]:
    done = subprocess.run(
        ["docker", "ps", "-q", "--filter", f"label=andy.install={andy.install}"],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split()


def _docker(*arguments: str) -> str:
    return subprocess.run(["docker", *arguments], capture_output=True, text=True, check=True).stdout


def _in(container: str, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["docker", "exec", container, *command], capture_output=True, text=True, check=False
    )


def _seen_by_all(container: str, script: str) -> str:
    """What root sees inside, and the agent's user: without capabilities, each reads what the other cannot."""
    looks = [_in(container, "sh", "-c", script), _in_as_root(container, "sh", "-c", script)]
    return "".join(look.stdout for look in looks)


def _in_as_root(container: str, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["docker", "exec", "-u", "0", container, *command], capture_output=True, text=True, check=False
    )


def _dump(path: Path) -> Iterator[str]:
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    yield from connection.iterdump()
    connection.close()


def _kill(ref: str) -> None:
    if ":" in ref:
        import os
        import signal

        os.killpg(int(ref.split(":", maxsplit=1)[0]), signal.SIGKILL)
    else:
        subprocess.run(["docker", "kill", ref], capture_output=True, check=True)


def test_a_question_that_is_stopped_in_the_chat(andy: AndyProcess, api: ScriptedMessagesApi) -> None:
    api.then(Hang(), Say("Four."))
    andy.say("count to a million", wait=0)
    until(lambda: api.turns, what="the model is asked")
    assert andy.say("stop")["reply"] == "Stopped. As far as I know I had changed nothing."
    assert andy.rows("SELECT state, reason FROM turns")[0]["reason"] == "it was stopped in the chat."
    assert andy.say("what is two and two?")["reply"] == "Four."
    assert "count to a million" not in last_user_text(api.turns[-1]), "it is not asked again"
    kinds = [row["exit_kind"] for row in andy.rows("SELECT exit_kind FROM runs ORDER BY started_ms")]
    assert kinds == ["stopped", None], "another container answers what comes next"
