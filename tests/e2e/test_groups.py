"""Groups are registered, set up and taken away while Andy runs and while it does not."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.doubles.telegram_api import BOT, JANE, TOKEN, ScriptedBotApi
from tests.processes.andy import AndyProcess, until


@pytest.fixture
def andy(tmp_path: Path, runtime: str) -> Iterator[AndyProcess]:
    with AndyProcess(tmp_path / "home", runtime=runtime) as running:
        yield running


def live_runs(andy: AndyProcess, folder: str) -> list[str]:
    return [
        row["id"]
        for row in andy.rows("SELECT id FROM runs WHERE group_folder = ? AND ended_ms IS NULL", folder)
    ]


def test_a_group_lives_goes_and_comes_back(andy: AndyProcess) -> None:
    assert andy.cli("groups", "register", "family", "--name", "The family").returncode == 0
    memory = andy.home / "groups/family/CLAUDE.md"
    until(
        lambda: memory.exists() and '"The family"' in memory.read_text(), what="the folder of the new group"
    )
    shared = {"CLAUDE.md", "AGENTS.md", "SOUL.md", "USER.md", "DASHBOARD.md", "TOOLS.md"}
    assert {path.name for path in (andy.home / "groups/global").iterdir()} == shared
    assert "register_group" in (andy.home / "groups/main/CLAUDE.md").read_text()
    memory.write_text("what the agent wrote")
    assert andy.say("@Andy add milk to the shopping list", group="family")["outcome"] == "answered"

    done = andy.cli("groups", "remove", "family")
    assert "no longer registered" in done.stdout
    until(lambda: not live_runs(andy, "family"), what="its container is closed")
    assert andy.rows("SELECT exit_kind FROM runs")[0]["exit_kind"] == "closed"
    assert andy.cli("groups", "remove", "family").returncode == 1

    assert andy.cli("groups", "register", "family").returncode == 0
    assert "milk" in andy.say("@Andy show the list", group="family")["reply"]
    assert memory.read_text() == "what the agent wrote"


def test_what_is_set_for_a_group_counts_from_its_next_turn_on(andy: AndyProcess, runtime: str) -> None:
    andy.cli("groups", "register", "family", "--no-trigger", "--config", '{"memory_mb": 512}')
    andy.say("hello", group="family")
    (first,) = live_runs(andy, "family")
    assert andy.listed("groups", "config", "family") == {"memory_mb": 512}
    assert memory_of(andy, first, runtime) == 512

    changed = andy.cli("groups", "config", "family", "--set", '{"memory_mb": 600, "timeout_ms": 60000}')
    assert changed.returncode == 0, changed.stderr
    assert andy.say("hello again", group="family")["outcome"] == "answered"
    (second,) = live_runs(andy, "family")
    assert second != first
    assert memory_of(andy, second, runtime) == 600
    assert len(andy.rows("SELECT 1 FROM turns WHERE attempt > 1")) == 0

    refused = andy.cli("groups", "config", "family", "--set", '{"memory": 1}')
    assert (refused.returncode, refused.stderr.count("\n")) == (1, 1)
    assert "'memory' is no key" in refused.stderr


def test_a_group_lives_by_the_clocks_of_its_own_zone(andy: AndyProcess) -> None:
    andy.cli("groups", "register", "family", "--no-trigger", "--config", '{"timezone": "Asia/Kathmandu"}')
    andy.say("remind me tomorrow at 18:00 to stretch", group="family")
    (reminder,) = andy.rows("SELECT due_ms FROM notifications")
    due = datetime.fromtimestamp(reminder["due_ms"] / 1000, UTC)
    assert (due.hour, due.minute) == (12, 15), "18:00 in Kathmandu, five hours and three quarters ahead"
    refused = andy.cli("groups", "config", "family", "--set", '{"timezone": "Mars/Olympus"}')
    assert refused.returncode == 1
    assert "not a time zone" in refused.stderr


def memory_of(andy: AndyProcess, run: str, runtime: str) -> int:
    """Megabytes; what the group is promised where nothing is isolated."""
    if runtime != "docker":
        return int(andy.listed("groups", "config", "family")["memory_mb"])
    (row,) = andy.rows("SELECT container_ref FROM runs WHERE id = ?", run)
    told = subprocess.run(
        ["docker", "inspect", "-f", "{{.HostConfig.Memory}}", row["container_ref"]],
        capture_output=True,
        text=True,
        check=True,
    )
    return int(told.stdout) // 1024**2


def test_groups_over_http(andy: AndyProcess) -> None:
    with andy.http() as http:
        made = http.post("/groups", json={"folder": "work", "config": {"cpus": 1}})
        assert (made.status_code, made.json()["jid"]) == (201, "local:work")
        assert http.post("/groups", json={"folder": "Work"}).status_code == 409
        assert http.post("/groups", json={"folder": "x", "is_main": True}).status_code == 400
        refused = http.post("/groups", json={"folder": "x", "config": {"root": True}})
        assert refused.json()["error"]["code"] == "bad_config"
        assert [one["folder"] for one in http.get("/groups").json()["groups"]] == ["main", "work"]
        assert http.delete("/groups/work").json()["folder"] == "work"
        assert http.delete("/groups/work").status_code == 404
        assert http.delete("/groups/main").status_code == 422


def test_a_group_registered_while_andy_is_down_is_there_at_the_start(andy: AndyProcess) -> None:
    andy.terminate()
    assert andy.cli("groups", "register", "family", "--no-trigger").returncode == 0
    assert (andy.home / "groups/family/CLAUDE.md").exists()
    andy.start()
    assert andy.say("hello", group="family")["outcome"] == "answered"
    andy.terminate()
    assert "no longer registered" in andy.cli("groups", "remove", "family").stdout
    andy.start()
    until(lambda: not live_runs(andy, "family"), what="the container that lived on is closed")


PHONE = -100200


def test_one_group_in_two_messengers_has_one_memory_and_answers_where_it_was_asked(tmp_path: Path) -> None:
    pytest.importorskip("telegram")
    from orchestrator.channels.telegram import login
    from orchestrator.channels.telegram.login import TelegramLogin

    home = tmp_path / "home"
    with ScriptedBotApi() as api:
        bot = {"token": TOKEN, "bot_id": BOT["id"], "username": BOT["username"]}
        login.write(home, TelegramLogin(**bot, owner=JANE["id"], server=api.url))
        with AndyProcess(home, environment={"ANDY_CHANNELS": "telegram"}) as andy:
            andy.cli("groups", "register", "family", "--no-trigger")
            api.write(PHONE, "hello?")
            until(lambda: f"tg:{PHONE}" in andy.cli("groups", "chats").stdout, what="the chat was seen")
            added = andy.cli("groups", "add-chat", "family", f"tg:{PHONE}")
            assert added.returncode == 0, added.stderr
            assert andy.listed("groups", "list")[-1]["chats"] == ["local:family", f"tg:{PHONE}"]

            api.write(PHONE, "add milk to the shopping list")
            until(lambda: api.shown(PHONE), what="the answer on the telephone")
            assert "milk" in andy.say("show the list", group="family")["reply"]
            assert len(api.shown(PHONE)) == 1, "what is asked here is answered here"

            # The host dies with a question of each chat in the queue: each is answered once, in its chat.
            with andy.http() as http:
                asked = http.post("/chat", json={"group": "family", "text": "add tea to the list", "wait": 0})
            api.write(PHONE, "add jam to the list")
            until(lambda: andy.rows("SELECT 1 FROM messages WHERE content LIKE '%jam%'"), what="it is stored")
            andy.kill()
            andy.start()
            assert "tea" in andy.until_settled(asked.json()["id"])["reply"]
            until(lambda: any("jam" in text for text in api.shown(PHONE)), what="the other answer")
            said = "SELECT text FROM outbox WHERE chat_jid = ? AND state = 'sent' AND text LIKE ?"
            assert len(andy.rows(said, "local:family", "%tea%")) == 1
            until(lambda: andy.rows(said, f"tg:{PHONE}", "%jam%"), what="it is recorded as sent")
            assert [text for text in api.shown(PHONE) if "jam" in text] == [
                andy.rows(said, f"tg:{PHONE}", "%jam%")[0]["text"]
            ]
            assert not any("tea" in text for text in api.shown(PHONE))

            assert andy.cli("groups", "add-chat", "family", f"tg:{PHONE}", "--notify").returncode == 0
            assert andy.cli("reminders", "add", "family", "water the plants", "--at", "1s").returncode == 0
            until(lambda: any("water the plants" in text for text in api.shown(PHONE)), what="the reminder")

            gone = andy.cli("groups", "remove-chat", "family", f"tg:{PHONE}")
            assert "stays in its history" in gone.stdout
            assert andy.cli("groups", "remove-chat", "family", "local:family").returncode == 1
            assert "jam" in andy.cli("search", "jam").stdout


def test_a_stranger_becomes_one_request_and_is_answered_once_main_has_registered_it(tmp_path: Path) -> None:
    pytest.importorskip("telegram")
    from orchestrator.channels.telegram import login
    from orchestrator.channels.telegram.login import TelegramLogin

    home = tmp_path / "home"
    with ScriptedBotApi() as api:
        bot = {"token": TOKEN, "bot_id": BOT["id"], "username": BOT["username"]}
        login.write(home, TelegramLogin(**bot, owner=1, server=api.url))
        with AndyProcess(home, environment={"ANDY_CHANNELS": "telegram"}) as andy:
            for text in ("hello?", "add milk to the list"):
                api.write(JANE["id"], text)
            asked = "SELECT text FROM outbox WHERE chat_jid = 'local:main' AND text LIKE '🚪%'"
            until(lambda: andy.rows(asked), what="main is asked")
            until(lambda: andy.rows("SELECT 1 FROM chats WHERE jid LIKE 'tg:%'"), what="the chat was seen")
            assert andy.say("register 1")["reply"].startswith("Registered: `Jane`")
            (row,) = andy.rows(asked)
            assert "`hello?`" in row["text"], "one request, with its first words"
            assert api.shown(JANE["id"]) == [], "the stranger was not answered"
            until(lambda: (andy.home / "groups/jane/CLAUDE.md").exists(), what="the group's folder")
            api.write(JANE["id"], "add tea to the list")
            until(lambda: api.shown(JANE["id"]), what="the answer to who was let in")
            assert "tea" in api.shown(JANE["id"])[0]
