"""What a model is told unasked, the whole way: the store, a container, the real SDK and CLI, and back."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.doubles.messages_api import (
    Fail,
    Hang,
    Recorded,
    Say,
    ScriptedMessagesApi,
    Step,
    UseTool,
    UseTools,
    all_text,
    last_user_text,
)
from tests.processes.andy import AndyProcess, until
from tests.processes.noticing_runner import whole_text
from tests.support.skips import only_in_soak

KEY = "sk-ant-api03-the-key-of-the-owner"
CALLS_A_GROUP = 48
"""Each begins and fails, and with the ends of their six batches these are more than 100 events."""


def andy_with(tmp_path: Path, runtime: str, api: ScriptedMessagesApi) -> AndyProcess:
    environment = {"ANTHROPIC_API_KEY": KEY, "ANTHROPIC_BASE_URL": api.url}
    return AndyProcess(tmp_path / "home", runtime=runtime, agent="auto", environment=environment)


@pytest.fixture
def andy(tmp_path: Path, runtime: str, api: ScriptedMessagesApi) -> Iterator[AndyProcess]:
    with andy_with(tmp_path, runtime, api) as andy:
        yield andy


def note(message: str, **more: Any) -> UseTool:
    return UseTool("mcp__ans__notify_self", {"message": message, **more})


def states(andy: AndyProcess) -> list[str]:
    rows = andy.rows("SELECT state FROM cross_session_notifications ORDER BY id")
    return [str(row["state"]) for row in rows]


def new_container(andy: AndyProcess) -> None:
    """Have the next turn start one: the one that is there ends."""
    andy.terminate()
    andy._remove_containers()
    andy.start()


def test_a_note_is_in_the_request_of_the_next_prompt_and_what_awaits_a_tool_comes_once_after_its_batch(
    andy: AndyProcess, api: ScriptedMessagesApi
) -> None:
    batch = UseTools(tuple(UseTool("Bash", {"command": f"echo {number}"}) for number in range(3)))
    api.then(note("the gate code is 42"), note("read the meter", deliver_at="after_tool", tool_name="Bash"))
    api.then(batch, Say("Noted."), Say("It is 42."))
    assert andy.say("remember the code")["reply"] == "Noted."
    assert states(andy) == ["pending", "delivered"]
    counts = [whole_text(turn).count("[NOTE] read the meter") for turn in api.turns]
    assert counts == [0, 0, 0, 1], "once, after all results of the batch"
    assert andy.say("what is the code?")["reply"] == "It is 42."
    assert whole_text(api.turns[4]).count("[NOTE] the gate code is 42") == 1
    assert "what is the code?" in last_user_text(api.turns[4])
    assert "gate code" not in last_user_text(api.turns[4])
    assert states(andy) == ["delivered", "delivered"]


def test_a_note_for_a_later_session_survives_its_container_and_is_told_once(
    andy: AndyProcess, api: ScriptedMessagesApi
) -> None:
    api.then(note("ask how the exam went", persist_cross_session=True), Say("Good luck!"))
    andy.say("I have an exam tomorrow")
    new_container(andy)
    api.then(Say("How did it go?"), Say("Good."))
    andy.say("hi")
    andy.say("fine")
    told = [whole_text(turn).count("[NOTE] ask how the exam went") for turn in api.turns]
    assert told == [0, 0, 1, 1], "in the transcript from then on, but not told again"
    assert states(andy) == ["delivered"]


@only_in_soak
def test_a_note_of_a_conversation_whose_transcript_is_lost_is_told_in_the_session_that_follows(
    andy: AndyProcess, api: ScriptedMessagesApi
) -> None:
    """N-62, N-64: for who talks it is one conversation."""
    api.then(note("the gate code is 42"), Say("Noted."))
    andy.say("remember the code")
    (old,) = andy.rows("SELECT session_id FROM sessions")
    andy.terminate()
    andy._remove_containers()
    (transcript,) = andy.home.glob(f"data/sessions/main/.claude/projects/*/{old['session_id']}.jsonl")
    transcript.unlink()
    andy.start()
    api.then(Say("It is 42."), Say("You are welcome."))
    andy.say("what is the code?")
    andy.say("thanks")
    asked, after = (whole_text(turn) for turn in api.turns[-2:])
    assert "session_resumed: 1 exchange loaded" in asked
    assert asked.count("[NOTE] the gate code is 42") == after.count("[NOTE] the gate code is 42") == 1
    assert andy.rows("SELECT session_id FROM sessions") != [old]
    assert states(andy) == ["delivered"]


@only_in_soak
def test_a_turn_that_fails_leaves_its_note_pending(andy: AndyProcess, api: ScriptedMessagesApi) -> None:
    api.then(note("the report is due"), Say("Noted."))
    andy.say("the report is due on Friday")
    api.then(Fail(418, "invalid_request_error", "the script refuses"), Say("Due on Friday."))
    found = andy.say("what is due?", wait=0)
    until(lambda: len(api.turns) >= 3, what="the model is asked")
    until(
        lambda: andy.rows("SELECT 1 FROM turns WHERE attempt = 2 OR state = 'queued'"), what="it is put back"
    )
    assert "the report is due" in whole_text(api.turns[2])
    assert andy.until_settled(found["id"])["reply"] == "Due on Friday."
    assert "[NOTE] the report is due" in whole_text(api.turns[3])
    assert states(andy) == ["delivered"]
    (row,) = andy.rows("SELECT deliveries FROM cross_session_notifications")
    assert row["deliveries"] == 1, "the failed turn does not count"


def test_a_failed_tool_is_told_and_seen_by_people(andy: AndyProcess, api: ScriptedMessagesApi) -> None:
    api.then(UseTool("Bash", {"command": "echo the printer is on fire >&2; exit 3"}), Say("It failed."))
    andy.say("print it")
    assert "tool_fail: Bash" in whole_text(api.turns[1])
    with andy.http() as http:
        status = json.dumps(http.get("/status").json())
    assert "the printer is on fire" in status


@only_in_soak
def test_two_groups_with_a_hundred_events_each_never_see_each_others_text(
    tmp_path: Path, runtime: str
) -> None:
    left = {"alpha": CALLS_A_GROUP, "beta": CALLS_A_GROUP}

    def decide(request: Recorded) -> Step:
        name = "alpha" if "in-alpha" in all_text(request) else "beta"
        if left[name] <= 0:
            return Say("done")
        calls = [
            UseTool("Read", {"file_path": f"/workspace/group/{name}-secret-{left[name] - number}"})
            for number in range(8)
        ]
        left[name] -= len(calls)
        return UseTools(tuple(calls))

    with ScriptedMessagesApi(decide) as api, andy_with(tmp_path, runtime, api) as andy:
        for name in ("alpha", "beta"):
            assert andy.cli("groups", "register", name, "--no-trigger").returncode == 0
        asked = [andy.say(f"in-{name}", group=name, wait=0)["id"] for name in ("alpha", "beta")]
        assert [andy.until_settled(one)["reply"] for one in asked] == ["done", "done"]
        of = {name: [t for t in api.turns if f"in-{name}" in all_text(t)] for name in ("alpha", "beta")}
    for name, other in (("alpha", "beta"), ("beta", "alpha")):
        assert len(of[name]) == CALLS_A_GROUP // 8 + 1
        texts = [whole_text(turn) for turn in of[name]]
        assert "tool_fail" in texts[-1]
        assert not any(f"{other}-secret" in text for text in texts)


@pytest.mark.docker
@pytest.mark.parametrize("runtime", ["docker"], indirect=True)
def test_a_container_that_is_killed_in_its_turn_leaves_the_note_pending(
    andy: AndyProcess, api: ScriptedMessagesApi
) -> None:
    api.then(note("feed the cat"), Say("Noted."), Hang(), Say("I will."))
    andy.say("the cat")
    asked = andy.say("and?", wait=0)
    until(lambda: len(api.turns) >= 3, what="the model is asked")
    assert "feed the cat" in whole_text(api.turns[2])
    (run,) = andy.rows("SELECT container_ref FROM runs")
    subprocess.run(["docker", "kill", run["container_ref"]], capture_output=True, check=True)
    assert andy.until_settled(asked["id"])["reply"] == "I will."
    assert "feed the cat" in whole_text(api.turns[3])
    assert states(andy) == ["delivered"]
