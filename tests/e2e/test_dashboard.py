"""The dashboard from the agent's container to the chat: scripted model, real SDK and CLI, real outbox."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.doubles.messages_api import Fail, Hang, Say, ScriptedMessagesApi, UseTool, all_text, system_text
from tests.processes.andy import AndyProcess, until
from tests.support.skips import only_in_soak

SOON_SECONDS = 12
"""From when the host is asked; long enough for a container to go on before it."""


def board(name: str, **given: Any) -> UseTool:
    return UseTool(f"mcp__dashboard__{name}", given)


@pytest.fixture
def andy(tmp_path: Path, runtime: str, api: ScriptedMessagesApi) -> Iterator[AndyProcess]:
    environment = {
        "ANTHROPIC_API_KEY": "sk-ant-api03-a-key",
        "ANTHROPIC_BASE_URL": api.url,
        "TZ": "Asia/Seoul",
        "AGENTS_WORKER_MODEL": "claude-haiku-4-5",
    }
    home = tmp_path / "home"
    with AndyProcess(home, runtime=runtime, agent="auto", environment=environment) as andy:
        yield andy


def sent(andy: AndyProcess, text: str) -> list[Any]:
    return andy.rows("SELECT * FROM messages WHERE is_bot_message = 1 AND content = ?", text)


def notification(andy: AndyProcess, **wanted: object) -> Any:
    where = " AND ".join(f"{name} = ?" for name in wanted)
    found = andy.rows(f"SELECT * FROM notifications WHERE {where}", *wanted.values())
    return found[0] if found else None


def test_at_01_an_alert_is_made_by_the_rules_and_told_at_its_time(
    andy: AndyProcess, api: ScriptedMessagesApi
) -> None:
    """The deadline is so set that a day before it is in a moment, counted by the host."""
    api.then(board("create_task", title="exam", deadline="in 24 hours 5 seconds"), Say("SILENT"))
    assert andy.say("the exam is tomorrow")["outcome"] == "answered"
    row = until(lambda: notification(andy, cause="deadline:24h", status="delivered"), what="it is told")
    assert (row["type"], row["priority"], row["created_by"]) == ("deadline_alert", "high", "worker")
    (task,) = andy.rows("SELECT deadline_ms FROM dashboard_tasks")
    assert row["due_ms"] == task["deadline_ms"] - 24 * 3_600_000
    assert row["delivered_ms"] >= row["due_ms"]
    assert len(sent(andy, row["message"])) == 1
    log = andy.log.read_text()
    for words in ("Worker Agent", "Notification scheduled", "Cron: executing job"):
        assert words in log
    assert len(api.turns) == 2, "neither the rules nor the delivery ask a model"


def test_at_02_a_reminder_that_somebody_asks_for(andy: AndyProcess, api: ScriptedMessagesApi) -> None:
    api.then(
        board("list_notifications", status="pending"),
        board("schedule_notification", message="Exercise!", scheduled_at="in 2 hours"),
        Say("I will remind you at noon."),
    )
    before = time.time()
    assert andy.say("remind me in two hours to exercise")["reply"] == "I will remind you at noon."
    row = notification(andy, message="Exercise!")
    assert before + 7_199 < row["due_ms"] / 1000 < time.time() + 7_201
    assert (row["type"], row["due_text"], row["created_by"]) == ("reminder", "in 2 hours", "main_agent")
    api.then(
        board("update_notification", notification_id=row["id"], scheduled_at="in 2 seconds"), Say("Now then.")
    )
    andy.say("no, now")
    told = until(lambda: notification(andy, id=row["id"], status="delivered"), what="it is told")
    assert len(sent(andy, "Exercise!")) == 1
    api.then(Say("Well done."))
    andy.say("did it")
    assert "Exercise!" in all_text(api.turns[-1]), "the agent knows what was said"
    assert told["attempts"] == 1


@only_in_soak
def test_at_09_what_is_completed_is_not_told_of(andy: AndyProcess, api: ScriptedMessagesApi) -> None:
    api.then(board("create_task", title="blog"), Say("SILENT"))
    andy.say("I want to write a blog")
    (task,) = andy.rows("SELECT id FROM dashboard_tasks")
    soon = f"in {SOON_SECONDS} seconds"
    api.then(
        board("schedule_notification", message="Go!", scheduled_at=soon, related_task_id=task["id"]),
        board("update_task", task_id=task["id"], status="completed"),
        Say("SILENT"),
    )
    assert andy.say("remind me of the blog. No: it is done")["outcome"] == "answered"
    row = notification(andy, message="Go!")
    assert (row["status"], row["cancel_reason"]) == ("cancelled", "Task completed")
    until(lambda: time.time() * 1000 > row["due_ms"] + 1_000, what="its time is past")
    assert sent(andy, "Go!") == []


def test_at_22_what_was_due_while_andy_was_down_is_told_at_the_start(
    andy: AndyProcess, api: ScriptedMessagesApi
) -> None:
    api.then(board("schedule_notification", message="Water!", scheduled_at="in 2 hours"), Say("I will."))
    andy.say("remind me to water the plants")
    andy.kill()
    with closing(sqlite3.connect(andy.home / "store" / "messages.db")) as store, store:
        store.execute("UPDATE notifications SET due_ms = ?", (round(time.time() * 1000) - 1_000,))
    andy.start()
    row = until(lambda: notification(andy, message="Water!", status="delivered"), what="it is told")
    assert row["late_ms"] >= 1_000
    assert len(sent(andy, "Water!")) == 1
    told = [json.loads(line) for line in andy.cli("events", "--json", "-n", "1000").stdout.splitlines()]
    made = [one for one in told if one["kind"] == "notification.created"]
    assert [(one["n"], one["data"]["by"]) for one in made] == [(0, "main_agent")], "of before the restart"


@only_in_soak
def test_at_25_a_power_cut_around_the_time_doubles_nothing(
    andy: AndyProcess, api: ScriptedMessagesApi
) -> None:
    soon = f"in {SOON_SECONDS} seconds"
    api.then(board("schedule_notification", message="Stretch!", scheduled_at=soon), Say("I will."))
    andy.say("remind me to stretch")
    until(lambda: notification(andy, message="Stretch!")["status"] != "pending", what="it is on its way")
    andy.kill()
    andy.start()
    row = until(lambda: notification(andy, message="Stretch!", status="delivered"), what="it is told")
    (outgoing,) = andy.rows("SELECT * FROM outbox WHERE text = 'Stretch!'")
    assert outgoing["message_id"] == row["channel_msg_id"], "one id, however often it is tried"
    assert len(sent(andy, "Stretch!")) == 1


def test_at_32_who_writes_does_not_wait_for_the_worker(andy: AndyProcess, api: ScriptedMessagesApi) -> None:
    api.then(board("create_task", title="blog"), Say("SILENT"))
    andy.say("I want to write a blog")
    api.then(Hang())
    assert andy.cli("dashboard", "worker", "--llm").returncode == 0
    worker = "SELECT * FROM turns WHERE kind = 'worker' AND state = 'running'"
    until(lambda: andy.rows(worker) and len(api.turns) == 3, what="the worker's model thinks")
    api.then(Say("Here I am."))
    assert andy.say("are you there?")["reply"] == "Here I am."
    assert andy.rows(worker), "it thinks on"


def test_at_35_the_worker_is_the_real_cli_with_its_own_part_and_tools(
    andy: AndyProcess, api: ScriptedMessagesApi
) -> None:
    api.then(board("create_task", title="blog", deadline="2030-01-01"), Say("SILENT"))
    andy.say("I want to write a blog")
    (task,) = andy.rows("SELECT id FROM dashboard_tasks")
    chat_turns = len(api.turns)
    api.then(
        UseTool("create_task", {"title": "not yours"}),
        UseTool("update_task", {"task_id": task["id"], "context": "begun"}),
        UseTool("no_such_tool", {}),
        Say("I did a lot for you!"),
    )
    done = andy.cli("dashboard", "worker", "--llm", "--group", "main")
    assert done.returncode == 0, done.stderr
    cycle = until(
        lambda: andy.rows("SELECT * FROM worker_cycles WHERE kind = 'llm' AND ended_ms IS NOT NULL"),
        what="the worker has ended",
    )[0]
    assert cycle["outcome"] == "action", dict(cycle)
    first = api.turns[chat_turns]
    assert "You keep the dashboard of a chat group in order" in system_text(first)
    assert "# Current Dashboard State" in all_text(first)
    assert first.body["model"] == "claude-haiku-4-5"
    tools = {tool["name"] for tool in first.body["tools"]}
    assert "mcp__andy__schedule_notification" in tools
    assert not {"Bash", "Write", "mcp__andy__create_task", "mcp__andy__send_message"} & tools
    (kept,) = andy.rows("SELECT context FROM dashboard_tasks")
    assert kept["context"] == "begun"
    assert sent(andy, "I did a lot for you!") == []


def test_at_37_the_worker_asks_the_model_ten_times_and_no_more(
    andy: AndyProcess, api: ScriptedMessagesApi
) -> None:
    api.then(board("create_task", title="blog"), Say("SILENT"))
    andy.say("I want to write a blog")
    before = len(api.turns)
    api.then(*[UseTool("list_notifications", {"limit": number}) for number in range(1, 20)])
    assert andy.cli("dashboard", "worker", "--llm").returncode == 0
    cycle = until(
        lambda: andy.rows("SELECT * FROM worker_cycles WHERE kind = 'llm' AND ended_ms IS NOT NULL"),
        what="the worker has ended",
    )[0]
    assert (cycle["outcome"], cycle["error"]) == ("noop", None)
    assert len(api.turns) - before == 10


def test_at_36_a_worker_whose_model_fails_is_stood_in_for(
    andy: AndyProcess, api: ScriptedMessagesApi
) -> None:
    api.then(board("create_task", title="blog"), Say("SILENT"))
    andy.say("I want to write a blog")
    api.then(Fail(418, "invalid_request_error", "the script refuses"))
    assert andy.cli("dashboard", "worker", "--llm", "--group", "main").returncode == 0
    cycle = until(
        lambda: andy.rows("SELECT * FROM worker_cycles WHERE kind = 'llm' AND ended_ms IS NOT NULL"),
        what="the worker has ended",
    )[0]
    assert cycle["outcome"] == "error"
    assert json.loads(cycle["detail_json"])["fell_back"] is True
