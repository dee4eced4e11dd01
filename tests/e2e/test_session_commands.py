"""`/compact` and `/clear`, with the real CLI and without any model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.doubles.messages_api import Say, ScriptedMessagesApi, all_text, last_user_text
from tests.processes.andy import AndyProcess, until


@pytest.fixture
def claude(tmp_path: Path, runtime: str, api: ScriptedMessagesApi) -> Iterator[AndyProcess]:
    environment = {"ANTHROPIC_API_KEY": "sk-ant-api03-owner", "ANTHROPIC_BASE_URL": api.url}
    with AndyProcess(tmp_path / "home", runtime=runtime, agent="auto", environment=environment) as andy:
        yield andy


@pytest.fixture
def offline(tmp_path: Path) -> Iterator[AndyProcess]:
    with AndyProcess(tmp_path / "home") as andy:
        yield andy


def test_a_conversation_is_compacted_archived_and_goes_on(
    claude: AndyProcess, api: ScriptedMessagesApi
) -> None:
    assert "no conversation to compact" in claude.say("/compact")["reply"]
    api.then(Say("It is blue."), Say("Blue, as I said."))
    claude.say("What colour is the sky?")
    found = claude.say(" @Andy /compact\n")
    assert "into a summary" in found["reply"]
    archived = list((claude.home / "groups/main/conversations").glob("*.md"))
    assert ["It is blue." in one.read_text() for one in archived] == [True]

    assert claude.say("And again?")["reply"] == "Blue, as I said."
    assert "/compact" not in last_user_text(api.turns[-1])
    assert len(claude.rows("SELECT DISTINCT run_id FROM turns")) == 1, "in the same container"


def test_a_cleared_conversation_is_forgotten_by_the_agent_and_the_host(
    claude: AndyProcess, api: ScriptedMessagesApi
) -> None:
    api.then(Say("Noted."), Say("I do not know."))
    claude.say("My colour is blue.")
    (before,) = claude.rows("SELECT session_id FROM sessions")
    assert "forgotten" in claude.say("/clear")["reply"]
    assert not claude.rows("SELECT 1 FROM runs WHERE ended_ms IS NULL")
    assert not claude.rows("SELECT 1 FROM sessions")
    assert claude.say("What is my colour?")["reply"] == "I do not know."
    assert "My colour is blue" not in all_text(api.turns[-1])
    (after,) = claude.rows("SELECT session_id FROM sessions")
    assert after["session_id"] != before["session_id"]


def test_without_a_model_there_is_nothing_to_compact(offline: AndyProcess) -> None:
    assert "nothing to compact" in offline.say("/compact")["reply"]
    assert "forgotten" in offline.say("/clear")["reply"]
    assert offline.say("/Clear")["outcome"] == "answered", "another case is a question like any other"


def test_only_the_owner_commands_in_a_group(offline: AndyProcess) -> None:
    offline.cli("groups", "register", "family")
    assert "forgotten" in offline.say("/clear", group="family")["reply"]
    with offline.http() as http:
        body = {"group": "family", "sender": "Mia", "wait": 5}
        silent = http.post("/chat", json={**body, "text": "/clear"}).json()
        told = http.post("/chat", json={**body, "text": "@Andy /clear"}).json()
    assert silent["outcome"] == told["outcome"] == "ignored"
    assert "only the owner" in told["reason"]
    said = until(
        lambda: offline.rows("SELECT 1 FROM messages WHERE content LIKE 'I did not do that:%'"),
        what="the refusal is told",
    )
    assert len(said) == 1
