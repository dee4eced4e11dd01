"""What a conversation was about, the whole way: kept as it is said, worked on by tools, shown by commands."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.doubles.messages_api import Recorded, Say, ScriptedMessagesApi, Step, UseTool, system_text
from tests.processes.andy import AndyProcess, until
from tests.support.live_files import contents
from tests.support.skips import only_in_soak

CANARY = "sk-ant-api03-canary-0123456789"


def context_of(home: Path, group: str = "main") -> dict[str, Any]:
    path = home / "data" / "context" / group / ".ai-brain" / "context.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found


def window_of(home: Path) -> list[str]:
    return [one["content"] for one in context_of(home).get("conversation", {}).get("recent_window", [])]


def until_kept(andy: AndyProcess, answer: str) -> None:
    """Wait for what the agent answered: what it was asked is kept long before."""
    copy = andy.home / "data" / "env" / "main" / "context.json"

    def has_stored_context() -> bool:
        kept = json.loads(copy.read_text())["conversation"]["recent_window"] if copy.exists() else []
        return any(one["role"] == "assistant" and answer in one["content"] for one in kept)

    until(has_stored_context, what=f"'{answer}' is in the container's copy")


def test_without_a_model_it_is_told_what_was_talked_about_also_after_a_power_cut(
    tmp_path: Path, runtime: str
) -> None:
    with AndyProcess(tmp_path / "home", runtime=runtime) as andy:
        assert "it begins here" in andy.say("what were we talking about?")["reply"]
        assert andy.say(f"echo we go by train, password={CANARY}")["reply"].startswith("we go by train")
        until_kept(andy, "by train")
        told = andy.say("what were we talking about?")["reply"]
        assert "• you: echo we go by train, password=[redacted]" in told
        assert "• Andy: we go by train" in told
        assert told.count("what were we talking about") == 0

        andy.kill()
        shown = andy.cli("context", "show", "main").stdout
        assert "user: you: echo we go by train" in shown
        andy.start()
        assert "여기까지 이야기했어요" in (korean := andy.say("무슨 얘기 하고 있었지?")["reply"])
        assert "we go by train" in korean
        held = [
            path
            for path, body in contents(andy.home / "data", "**/*.json").items()
            if CANARY.encode() in body
        ]
        assert held == []

        assert andy.say("/clear")["outcome"] == "answered"
        until(lambda: window_of(andy.home) == [], what="the conversation is closed")
        assert "it begins here" in andy.say("what were we talking about?")["reply"]


class Watching:
    """A model that notes what the host has kept by the time it is asked."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.steps: list[Step] = []
        self.kept: list[list[str]] = []

    def __call__(self, request: Recorded) -> Step:
        if "running summary" in system_text(request):
            return Say("They go by train on Saturday.")
        self.kept.append(window_of(self.home))
        return self.steps.pop(0)


@pytest.fixture
def model(tmp_path: Path) -> Watching:
    return Watching(tmp_path / "home")


@pytest.fixture
def andy(model: Watching, runtime: str) -> Iterator[AndyProcess]:
    with ScriptedMessagesApi(model) as api:
        environment = {"ANTHROPIC_API_KEY": CANARY, "ANTHROPIC_BASE_URL": api.url}
        with AndyProcess(model.home, runtime=runtime, agent="auto", environment=environment) as andy:
            yield andy


def test_a_model_keeps_plan_and_decisions_and_its_first_question_is_kept_before_it_is_asked(
    andy: AndyProcess, model: Watching
) -> None:
    model.steps = [
        UseTool("create_plan", {"title": "부산 여행", "tasks": ["train", "hotel"]}),
        UseTool("set_active_task", {"task_id": "task_001"}),
        UseTool("record_decision", {"decision": "We go by train."}),
        UseTool("note_open_file", {"path": "trip/plan.md"}),
        UseTool("update_plan_task", {"task_id": "task_009", "status": "completed"}),
        Say("It is planned."),
    ]
    assert andy.say("plan our trip")["reply"] == "It is planned."
    assert model.kept[0] == ["you: plan our trip"], "kept before a container has started"
    until_kept(andy, "It is planned.")
    memory = context_of(andy.home)["memory"]
    assert (memory["active_plan_id"], memory["active_task_id"]) == ("plan_001", "task_001")
    assert (memory["last_decisions"], memory["open_files"]) == (["We go by train."], ["trip/plan.md"])
    answers = andy.rows("SELECT type, code FROM commands ORDER BY at_ms")
    assert ("remember.update_plan_task", "unknown_plan_task") in [tuple(row) for row in answers]

    model.steps = [Say("On Saturday.")]
    assert andy.say("when?")["reply"] == "On Saturday."
    until_kept(andy, "On Saturday.")
    assert window_of(andy.home)[2:] == ["you: when?", "On Saturday."]

    plan = andy.cli("context", "plan", "main")
    assert "→ plan_001  부산 여행" in plan.stdout, plan.stderr
    assert "→ task_001  train (in_progress)" in plan.stdout
    copy = andy.home / "data" / "env" / "main" / "workflow.json"
    assert "부산 여행" in copy.read_text()


def test_a_reset_beside_a_running_host_begins_a_new_session(andy: AndyProcess, model: Watching) -> None:
    model.steps = [Say("Hello."), Say("Hello again.")]
    andy.say("my name is Jane")
    until_kept(andy, "Hello.")
    (first,) = andy.rows("SELECT session_id FROM sessions")
    done = andy.cli("context", "reset", "main", "--yes")
    assert done.returncode == 0, done.stderr
    assert andy.rows("SELECT 1 FROM sessions") == []
    until(lambda: andy.rows("SELECT 1 FROM runs WHERE ended_ms IS NULL") == [], what="its container ends")
    assert andy.say("who am I?")["reply"] == "Hello again."
    (second,) = andy.rows("SELECT session_id FROM sessions")
    assert first["session_id"] != second["session_id"]
    assert "my name is Jane" not in json.dumps(window_of(andy.home))
    why = andy.listed("context", "why", "main")
    (newest,) = andy.rows("SELECT id FROM runs ORDER BY started_ms DESC LIMIT 1")
    assert (why["run"], why["mode"]) == (newest["id"], "fresh")


def summary_of(home: Path) -> str:
    return str(context_of(home).get("conversation", {}).get("running_summary", ""))


def test_what_a_compacted_session_says_of_itself_joins_the_summary(
    andy: AndyProcess, model: Watching
) -> None:
    model.steps = [Say("Hello.")]
    andy.say("my name is Jane")
    until_kept(andy, "Hello.")
    assert "summary" in andy.say("/compact")["reply"]
    until(lambda: "Scripted summary." in summary_of(andy.home), what="the summary is kept")
    snapshots = andy.listed("context", "snapshots", "main")
    assert snapshots, "what was there before is kept"


@only_in_soak
@pytest.mark.parametrize("runtime", ["process"], indirect=True)
def test_a_model_sums_up_what_left_the_window_where_the_owner_wants_it(
    tmp_path: Path, runtime: str, model: Watching
) -> None:
    with ScriptedMessagesApi(model) as api:
        environment = {
            "ANTHROPIC_API_KEY": CANARY,
            "ANTHROPIC_BASE_URL": api.url,
            "ANDY_CONTEXT_SUMMARY": "model",
        }
        with AndyProcess(model.home, runtime=runtime, agent="auto", environment=environment) as andy:
            for number in range(3):
                model.steps = [Say(f"answer {number}")]
                assert andy.say(f"{number} {'trains and buses ' * 200}")["reply"] == f"answer {number}"
            until(
                lambda: summary_of(andy.home) == "They go by train on Saturday.", what="the model's is there"
            )
            apart = "SELECT model FROM usage WHERE run_id LIKE 'host-%'"
            assert {row["model"] for row in until(lambda: andy.rows(apart))} == {"claude-haiku-4-5"}


@pytest.mark.parametrize("runtime", ["process"], indirect=True)
def test_what_the_host_knows_to_be_secret_is_kept_by_nobody_whatever_it_looks_like(
    tmp_path: Path, runtime: str, model: Watching
) -> None:
    secret = "velvet tiger 49"
    (model.home).mkdir()
    (model.home / ".env").write_text(f"MAIL_PASSWORD='{secret}'\n")
    model.steps = [
        UseTool("create_plan", {"title": f"Mail with {secret}", "tasks": [secret]}),
        UseTool("record_decision", {"decision": f"{'So ' * 60}it is {secret}."}),
        Say(f"I keep {secret}, and {quote(secret)}."),
        *(Say(f"answer {number}") for number in range(2)),
    ]

    def sum_up(request: Recorded) -> Step:
        return Say(f"It is {secret}.") if "running summary" in system_text(request) else model(request)

    with ScriptedMessagesApi(sum_up) as api:
        environment = {
            "ANTHROPIC_API_KEY": CANARY,
            "ANTHROPIC_BASE_URL": api.url,
            "ANDY_CONTEXT_SUMMARY": "model",
        }
        with AndyProcess(model.home, runtime=runtime, agent="auto", environment=environment) as andy:
            andy.say(f"the mail's word is {secret}")
            for number in range(2):
                assert andy.say(f"{number} {'trains and buses ' * 200}")["reply"] == f"answer {number}"
            until(lambda: summary_of(andy.home) == "It is [redacted].", what="the model's summary is there")
            assert andy.cli("context", "reset", "main", "--yes").returncode == 0
    held = {
        **contents(model.home / "data" / "context", "**/*.json"),
        **contents(model.home / "data" / "env", "**/*.json"),
    }
    assert any(b"Mail with [redacted]" in body for body in held.values())
    assert any(path.parent.name == "snapshots" for path in held)
    assert [path.name for path, body in held.items() if b"velvet" in body or b"tiger" in body] == []
