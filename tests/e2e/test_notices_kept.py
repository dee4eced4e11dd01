"""Notices that a real host keeps: over its death and its container's, told once, seen by people."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.doubles.messages_api import Fail, Say, ScriptedMessagesApi, all_text
from tests.processes.andy import AndyProcess


@pytest.fixture
def andy(tmp_path: Path, runtime: str) -> Iterator[AndyProcess]:
    with AndyProcess(tmp_path / "home", runtime=runtime) as andy:
        yield andy


def notices(andy: AndyProcess, group: str = "main") -> list[tuple[str, int]]:
    return [(row["state"], row["deliveries"]) for row in andy.listed("notices", "list", group, "--all")]


def happened(andy: AndyProcess) -> str:
    """The newest events."""
    with andy.http() as http:
        return http.get("/events", params={"recent": 200, "follow": "false"}).text


def test_a_note_waits_over_the_hosts_death_and_its_containers_and_is_told_once(andy: AndyProcess) -> None:
    """N-64, N-70, N-75."""
    assert andy.say("note to self: the oven is hot")["outcome"] == "answered"
    assert notices(andy) == [("pending", 0)]
    andy.kill()
    andy._remove_containers()
    assert notices(andy) == [("pending", 0)], "also with nobody up"
    andy.start()
    assert "the oven is hot" in andy.say("hello")["reply"]
    assert notices(andy) == [("delivered", 1)]
    assert "the oven is hot" not in andy.say("hello again")["reply"]
    assert "notice.told" in happened(andy)
    (told,) = andy.rows("SELECT formatted_content FROM cross_session_notifications")
    assert "the oven is hot" in told["formatted_content"]


def test_a_note_is_cancelled_by_hand_and_told_no_more(andy: AndyProcess) -> None:
    """N-60, N-63."""
    andy.say("note to self: the oven is hot")
    done = andy.cli("notices", "cancel", "main", "1")
    assert (done.returncode, done.stdout) == (0, "Notice 1 of 'main' is cancelled.\n")
    assert "oven" not in andy.say("hello")["reply"]
    assert notices(andy) == [("cancelled", 0)]


def test_two_groups_with_notes_of_their_own_hear_only_those(andy: AndyProcess) -> None:
    for folder in ("family", "work"):
        assert andy.cli("groups", "register", folder, "--no-trigger").returncode == 0
        andy.say(f"note to self: the secret of {folder}", group=folder)
    assert "the secret of work" in andy.say("hello", group="work")["reply"]
    assert "the secret of family" in andy.say("hello", group="family")["reply"]
    assert notices(andy, "family") == notices(andy, "work") == [("delivered", 1)]


def keep(andy: AndyProcess, message: str, *, priority: str) -> None:
    """As another party would who writes into the store."""
    with sqlite3.connect(andy.home / "store" / "messages.db", timeout=10) as connection:
        connection.execute(
            """
            INSERT INTO cross_session_notifications
                (group_folder, agent, scope, event_type, source, severity, priority, payload_json, created_ms)
            VALUES ('main', 'host', 'cross_session', 'host.reply.undelivered', 'host', 'error', ?, ?, 1)
            """,
            (priority, json.dumps({"message": message})),
        )
    connection.close()


def test_a_model_is_told_what_is_kept_after_a_failed_turn_too_and_the_status_names_it(
    tmp_path: Path, runtime: str, api: ScriptedMessagesApi
) -> None:
    """N-60, N-64."""
    environment = {"ANTHROPIC_API_KEY": "sk-ant-api03-owner", "ANTHROPIC_BASE_URL": api.url}
    with AndyProcess(tmp_path / "home", runtime=runtime, agent="auto", environment=environment) as andy:
        keep(andy, "Not delivered: “42”", priority="high")
        api.then(Fail(418, "invalid_request_error", "no"), Say("It did not arrive."))
        assert andy.say("hello")["reply"] == "It did not arrive."
        attempts = [all_text(asked) for asked in api.turns]
        assert ["Not delivered: “42”" in text for text in attempts] == [True, True]
        assert notices(andy) == [("delivered", 1)]
        (told,) = json.loads(andy.cli("status", "--json").stdout)["notices"]
        assert (told["priority"], told["event_type"], told["id"]) == ("high", "host.reply.undelivered", 1)
        assert "Not delivered" in told["text"]
        api.then(Say("Fine."))
        andy.say("and now?")
        assert notices(andy) == [("delivered", 1)]
        assert happened(andy).count("event: notice.told") == 1
