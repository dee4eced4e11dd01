"""What the owner sets from the command line with Andy down: reminders and tasks."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli import dashboard_service
from orchestrator.cli.main import app
from orchestrator.domain.errors import AndyError, NotRunning, StoreError
from orchestrator.groups import registration
from orchestrator.home import lock as home_lock
from orchestrator.home.directory import Home
from orchestrator.store import audit, database
from orchestrator.store.database import Database
from tests.support.announced import left, listen
from tests.support.store_harness import a_group

NOW_MS = 1_795_372_200_000
"""2026-11-23 03:30 in Seoul."""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A group in the home's zone, and one in a zone of its own."""
    (tmp_path / ".env").write_text("TZ=Asia/Seoul\n")
    monkeypatch.delenv("TZ", raising=False)
    monkeypatch.setattr("orchestrator.base.clock.SystemClock.now_ms", lambda _: NOW_MS)

    async def fill() -> None:
        database = await Database.open(tmp_path / "store" / "messages.db")
        async with database.transaction() as tx:
            await registration.register(tx, a_group("family"))
            await registration.register(tx, a_group("away", container_config={"timezone": "Europe/Berlin"}))
        await database.close()

    (tmp_path / "store").mkdir()
    asyncio.run(fill())
    return tmp_path


@pytest.fixture
def andy(home, capsys):
    def give(*words: str) -> str:
        app([*words, "--home", str(home)], result_action="return_value")
        return capsys.readouterr().out.strip()

    return give


def rows(said: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(said)
    return found


def test_a_command_of_a_newer_version_does_not_migrate_the_database_of_a_running_andy(
    andy, home, monkeypatch
):
    path = Home(home).database
    with closing(sqlite3.connect(path)) as connection:
        # As an earlier version left it, which did not know the last migration.
        connection.execute("CREATE TABLE before_the_last_migration (id)")
        connection.execute(f"PRAGMA user_version = {len(database.migrations()) - 1}")
    known = (*database.migrations()[:-1], "DROP TABLE before_the_last_migration;")
    monkeypatch.setattr(database, "migrations", lambda: known)
    lock = home_lock.acquire(Home(home))
    with pytest.raises(StoreError, match="older than this command"):
        andy("reminders", "add", "family", "Bring the cake", "--at", "tomorrow 9am")
    assert database.migration_ahead(path) is not None
    lock.release()
    andy("reminders", "add", "family", "Bring the cake", "--at", "tomorrow 9am")
    assert database.migration_ahead(path) is None
    home_lock.acquire(Home(home)).release()


def test_a_reminder_is_set_listed_moved_and_cancelled(andy, home):
    assert andy("reminders", "add", "family", "Bring the cake", "--at", "tomorrow 9am") == (
        "Reminder 1 of 'family' is set for Tue 2026-11-24 09:00."
    )
    andy("reminders", "add", "away", "Call home", "--at", "2026-11-23T09:00")
    assert [(one["id"], one["due"]) for one in rows(andy("reminders", "list", "--json"))] == [
        (2, "2026-11-23T09:00:00+01:00"),
        (1, "2026-11-24T09:00:00+09:00"),
    ]
    assert "Tue 2026-11-24 09:00  Bring the cake" in andy("reminders", "list", "family")

    assert andy("reminders", "move", "1", "--at", "in 30 minutes").endswith(
        "is moved to Mon 2026-11-23 04:00."
    )
    assert rows(andy("reminders", "list", "family", "--json"))[0]["due_ms"] == NOW_MS + 30 * 60_000
    assert andy("reminders", "cancel", "1").startswith("Reminder 1 of 'family' is cancelled")
    assert andy("reminders", "list", "family") == "There are no reminders."
    assert [kind for kind in recorded(home) if kind.startswith("reminder.")] == [
        "reminder.add",
        "reminder.add",
        "reminder.move",
        "reminder.cancel",
    ]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("add", "family", "x", "--at", "yesterday"), "is past"),
        (("add", "family", "x", "--at", "2026-11-22T09:00"), "is past"),
        (("add", "family", " ", "--at", "1h"), "text is empty"),
        (("add", "nowhere", "x", "--at", "1h"), "no group 'nowhere'"),
        (("move", "7", "--at", "1h"), "no reminder 7: see 'andy reminders list'"),
        (("cancel", "7"), "no reminder 7"),
        (("list", "nowhere"), "no group 'nowhere'"),
    ],
)
def test_a_reminder_that_cannot_be_is_refused_with_what_to_do(andy, words, told):
    with pytest.raises(AndyError, match=told):
        andy("reminders", *words)

    assert rows(andy("reminders", "list", "--json")) == []


def test_a_reminder_that_claude_set_is_listed_moved_and_cancelled_beside_the_others(andy, home, capsys):
    andy("reminders", "add", "family", "Bring the cake", "--at", "in 2 hours")

    async def as_claude_does() -> None:
        async with dashboard_service.opened(home) as (_, boards):
            asked = {"message": "Stretch!", "scheduled_at": "in 1 hour"}
            assert (await boards.service.call_tool("family", "schedule_notification", asked)).ok

    asyncio.run(as_claude_does())
    of_claude, other = rows(andy("reminders", "list", "family", "--json"))
    assert (of_claude["text"], other["text"]) == ("Stretch!", "Bring the cake")
    moved = andy("reminders", "move", str(of_claude["id"]), "--at", "in 3 hours")
    assert moved.startswith(f"Reminder {of_claude['id']} of 'family' is moved to")
    assert [row["text"] for row in rows(andy("reminders", "list", "--json"))] == [
        "Bring the cake",
        "Stretch!",
    ]
    assert "is cancelled" in andy("reminders", "cancel", str(of_claude["id"]))
    assert "Stretch!" not in andy("reminders", "list")
    with pytest.raises(AndyError, match="no reminder n_404"):
        andy("reminders", "cancel", "n_404")


def test_a_reminder_is_cancelled_once(andy):
    andy("reminders", "add", "family", "x", "--at", "1h")
    andy("reminders", "cancel", "1")

    with pytest.raises(AndyError, match="Reminder 1 is cancelled already"):
        andy("reminders", "move", "1", "--at", "2h")


@pytest.mark.parametrize(
    ("words", "next_run"),
    [
        (("--cron", "0 9 * * *"), "2026-11-23T09:00:00+09:00"),
        (("--every", "2h"), "2026-11-23T05:30:00+09:00"),
        (("--at", "tomorrow 9am"), "2026-11-24T09:00:00+09:00"),
    ],
)
def test_a_task_is_added_in_the_words_of_people(andy, home, words, next_run):
    said = andy("tasks", "add", "family", "What is new?", *words)

    (task,) = rows(andy("tasks", "list", "family", "--json"))
    assert (task["prompt"], task["next_run"], task["context_mode"]) == ("What is new?", next_run, "isolated")
    assert said.startswith(f"Task {task['id']} of 'family' is made: active, ")
    assert "task.add" in recorded(home)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), "one of --cron, --every and --at"),
        (("--every", "2h", "--at", "1h"), "one of --cron, --every and --at"),
        (("--every", "2s"), "at least 60 s"),
        (("--cron", "0 99 * * *"), "99"),
        (("--at", "soon"), "no time I can read"),
    ],
)
def test_a_task_that_can_never_be_due_is_refused(andy, words, told):
    with pytest.raises(AndyError, match=told):
        andy("tasks", "add", "family", "What is new?", *words)

    assert rows(andy("tasks", "list", "--json")) == []


def test_nobody_speaks_as_andy_while_he_is_down(andy):
    with pytest.raises(NotRunning):
        andy("say", "family", "hello")


@pytest.mark.parametrize("words", [("say", "family", "hello"), ("status",)])
def test_a_token_that_was_removed_or_is_not_ours_to_read_is_named(andy, home, words):
    found = Home(home)
    found.data.mkdir(exist_ok=True)
    found.address_file.write_text("http://127.0.0.1:9")
    with pytest.raises(NotRunning, match=r"data/token is missing: end Andy, then start it"):
        andy(*words)

    found.token_file.mkdir()  # root could read what is another's
    with pytest.raises(NotRunning, match=r"data/token cannot be read .*: call andy as the user"):
        andy(*words)


def recorded(home: Path) -> list[str]:
    async def look() -> list[str]:
        database = await Database.open_readonly(home / "store" / "messages.db")
        async with database.reading() as tx:
            found = [row["kind"] for row in await audit.newest(tx, limit=100)]
        await database.close()
        return found

    return asyncio.run(look())


def test_each_command_leaves_what_it_changed_for_a_running_host(andy, home):
    listen(Home(home))

    def announced(*words: str) -> list[str]:
        andy(*words)
        return [one["kind"] for one in left(Home(home))]

    assert announced("reminders", "add", "family", "Bring the cake", "--at", "tomorrow 9am") == [
        "reminder.changed"
    ]
    assert announced("reminders", "move", "1", "--at", "in 30 minutes") == ["reminder.changed"]
    assert announced("reminders", "cancel", "1") == ["reminder.changed"]
    assert announced("tasks", "add", "family", "What is on?", "--every", "1d") == ["task.changed"]
    (task,) = rows(andy("tasks", "list", "--json"))
    for action in ("pause", "resume", "run", "cancel"):
        assert announced("tasks", action, task["id"]) == ["task.changed"]
    assert announced("loop", "on", "family") == ["loop.changed"]
    assert announced("groups", "register", "work") == ["group.registered"]
    assert announced("groups", "add-chat", "work", "local:desk") == ["group.chats_changed"]
    assert announced("groups", "remove-chat", "work", "local:desk") == ["group.chats_changed"]
    assert announced("groups", "change", "work", "--name", "The work") == ["group.configured"]
    assert announced("groups", "config", "work", "--set", '{"memory_mb": 1024}') == ["group.configured"]
    assert announced("groups", "undo", "work", "--yes") == ["group.configured"]
    assert announced("groups", "rules", "work", "guest", "network", "yes") == ["group.configured"]
    assert announced("groups", "remove", "work") == ["group.unregistered"]
    assert announced("reminders", "list") == []


def test_a_refused_command_leaves_nothing(andy, home):
    listen(Home(home))
    with pytest.raises(AndyError):
        andy("reminders", "cancel", "7")
    assert left(Home(home)) == []


@pytest.mark.parametrize(("channels", "is_taken"), [("", False), ("telegram", True)])
def test_a_reminder_is_only_set_for_a_chat_whose_messenger_is_on(
    andy, monkeypatch, channels: str, is_taken: bool
):
    andy("groups", "register", "choir", "--jid", "tg:-100123")
    monkeypatch.setenv("ANDY_CHANNELS", channels)
    words = ("reminders", "add", "choir", "Sing", "--at", "in 1 hour")
    if is_taken:
        assert "is set for" in andy(*words)
    else:
        with pytest.raises(AndyError, match="No channel takes a message for this group's chat"):
            andy(*words)


@pytest.mark.parametrize("text", ["", "x" * 100_001])
def test_a_task_needs_a_text_of_a_bounded_length(andy, text):
    with pytest.raises(AndyError, match=r"text is empty|at most 100,000"):
        andy("tasks", "add", "family", text, "--every", "1d")
