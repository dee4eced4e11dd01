"""Tasks the whole way: asked for through the mailbox, due in seconds, answered in the chat."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from agent_runner.wire.files import unique_name
from tests.processes.andy import AndyProcess, until
from tests.support.skips import only_in_soak


def ask(andy: AndyProcess, command: str, *, group: str = "main", **fields: Any) -> dict[str, Any]:
    """Ask the host as a tool does, and return its reply."""
    ipc = andy.home / "data" / "ipc" / group
    request_id = unique_name().removesuffix(".json")
    body = {"v": 1, "type": command, "requestId": request_id, **fields}
    letter = andy.home / request_id
    letter.write_text(json.dumps(body))
    owner = (ipc / "tasks").stat()
    os.chown(letter, owner.st_uid, owner.st_gid)  # the container's own user, as its tools would write it
    letter.rename(ipc / "tasks" / unique_name())
    reply = ipc / "replies" / f"{request_id}.json"
    until(reply.exists, what=f"{command} is answered")
    answer: dict[str, Any] = json.loads(reply.read_text())
    return answer


def once(andy: AndyProcess, prompt: str, value: str, **fields: Any) -> str:
    made = ask(andy, "schedule_task", prompt=prompt, schedule_type="once", schedule_value=value, **fields)
    assert made["ok"], made
    return str(made["data"]["id"])


def runs(andy: AndyProcess, status: str = "success") -> list[dict[str, Any]]:
    return [dict(row) for row in andy.rows("SELECT * FROM task_run_logs WHERE status = ?", status)]


def said(andy: AndyProcess, text: str) -> int:
    rows = andy.rows("SELECT 1 FROM messages WHERE is_bot_message AND content = ?", text)
    return len(rows)


def snapshot(andy: AndyProcess, group: str, name: str) -> Any:
    return json.loads((andy.home / "data" / "env" / group / name).read_text())


def task_ids(andy: AndyProcess) -> list[str]:
    return [one["id"] for one in snapshot(andy, "main", "tasks.json")]


@pytest.mark.parametrize("context_mode", ["group", "isolated"])
def test_a_task_is_answered_in_its_group_at_its_time(tmp_path: Path, runtime: str, context_mode: str) -> None:
    with AndyProcess(tmp_path / "home", runtime=runtime) as andy:
        andy.say("echo hello")
        later = once(andy, "echo later", "1h")
        until(lambda: task_ids(andy) == [later], what="the snapshot follows")
        once(andy, "echo it is time", "2s", context_mode=context_mode)
        until(lambda: said(andy, "it is time"), what="the answer is sent")
        (run,) = runs(andy)
        assert run["run_at"] >= run["due_at"]
        assert run["result"] == "it is time"
        (task,) = andy.rows("SELECT * FROM scheduled_tasks WHERE id <> ?", later)
        assert (task["status"], task["next_run"], task["failures"]) == ("completed", None, 0)
        chat, asked = andy.rows("SELECT run_id, is_isolated, kind FROM turns ORDER BY id")
        assert asked["kind"] == "task"
        assert (asked["run_id"] == chat["run_id"]) == (context_mode == "group")
        until(lambda: task_ids(andy) == [later], what="the snapshot follows again")


def test_a_check_decides_without_the_agent(tmp_path: Path, runtime: str) -> None:
    with AndyProcess(tmp_path / "home", runtime=runtime) as andy:
        andy.say("echo hello")
        once(andy, "echo never", "1s", check="echo looking; echo '{\"wakeAgent\": false}'")
        once(andy, "echo woken", "1s", check='echo \'{"wakeAgent": true, "data": [1]}\'')
        failing = once(andy, "echo never", "1s", check="exit 3")
        until(lambda: len(runs(andy)) == 2 and runs(andy, "error"), what="all three have ended")
        assert {run["error"] for run in runs(andy)} == {None, "the check found nothing to do."}
        (failed,) = runs(andy, "error")
        assert failed["task_id"] == failing
        assert "code 3" in failed["error"]
        until(lambda: said(andy, "woken"))
        assert said(andy, "never") == 0


@only_in_soak  # simulated hosts are killed with such tasks, too
def test_a_task_survives_a_kill_and_runs_once(tmp_path: Path) -> None:
    with AndyProcess(tmp_path / "home") as andy:
        andy.say("echo hello")
        once(andy, "echo after all", "3s")
        andy.kill()
        andy.start()
        until(lambda: said(andy, "after all"), what="the answer is sent")
        andy.kill()
        andy.start()
        andy.say("echo back")  # a command is written by a container, and only its mailbox is watched
        once(andy, "echo later", "1s")
        until(lambda: said(andy, "later"))
        assert said(andy, "after all") == 1
        assert len(runs(andy)) == 2


def test_what_was_missed_is_caught_up_as_the_task_says(tmp_path: Path) -> None:
    with AndyProcess(tmp_path / "home") as andy:
        andy.say("echo hello")
        for catch_up in ("skip", "latest", "all"):
            made = ask(
                andy,
                "schedule_task",
                prompt=f"echo {catch_up}",
                schedule_type="interval",
                schedule_value="1h",
                catch_up=catch_up,
            )
            assert made["ok"]
        assert andy.terminate() == 0
        change(andy, "UPDATE scheduled_tasks SET next_run = next_run - 4 * 3600000 - 1800000")
        andy.start()
        until(lambda: said(andy, "latest") + said(andy, "all") == 5, what="one and four are answered")
        assert said(andy, "skip") == 0
        assert said(andy, "all") == 4
        left_out = {row["error"] for row in runs(andy, "skipped")}
        assert left_out == {"Andy was not running (4 due times)", "Andy was not running (3 due times)"}
        due = andy.rows("SELECT next_run FROM scheduled_tasks")
        now_ms = andy.rows("SELECT max(run_at) AS now FROM task_run_logs")[0]["now"]
        assert all(now_ms < row["next_run"] < now_ms + 3_600_000 for row in due)


def change(andy: AndyProcess, sql: str) -> None:
    """Change the store from outside, while Andy is down."""
    import sqlite3
    from contextlib import closing

    with closing(sqlite3.connect(andy.home / "store" / "messages.db")) as connection, connection:
        connection.execute(sql)


def test_the_command_line_rules_tasks_with_andy_up_and_down(tmp_path: Path) -> None:
    with AndyProcess(tmp_path / "home") as andy:
        andy.say("echo hello")
        made = ask(
            andy, "schedule_task", prompt="echo news", schedule_type="cron", schedule_value="0 9 29 2 *"
        )
        task_id = made["data"]["id"]
        assert [row["id"] for row in andy.listed("tasks", "list")] == [task_id]
        assert andy.cli("tasks", "pause", task_id).returncode == 0
        until(lambda: [one["status"] for one in snapshot(andy, "main", "tasks.json")] == ["paused"])
        assert andy.cli("tasks", "run", task_id).returncode == 0
        until(lambda: said(andy, "news"), what="a running Andy hears of it at once")

        assert andy.terminate() == 0
        assert andy.cli("tasks", "resume", task_id).returncode == 0
        shown = andy.listed("tasks", "show", task_id)
        assert shown["status"] == "active"
        assert [run["cause"] for run in shown["runs"]] == ["by_hand"]
        assert andy.cli("tasks", "run", task_id).returncode == 0
        assert andy.cli("tasks", "run", task_id).returncode == 1, "it waits already"
        assert andy.cli("tasks", "cancel", task_id).returncode == 0
        andy.start()
        assert andy.listed("tasks", "list") == []
        assert [row["status"] for row in andy.listed("tasks", "list", "--all")] == ["cancelled"]
        assert andy.listed("tasks", "list", "--group", "main") == []
        missing = andy.cli("tasks", "show", "task-nothing")
        assert missing.returncode == 1
        assert "no task" in missing.stderr
        assert said(andy, "news") == 1


def test_a_kill_in_the_middle_of_a_run_leaves_one_run_and_one_answer(tmp_path: Path) -> None:
    with AndyProcess(tmp_path / "home") as andy:
        andy.say("echo hello")
        script = "date >> began; until [ -e dead ]; do sleep 0.1; done; echo '{\"wakeAgent\": true}'"
        once(andy, "echo in the end", "1s", check=script)
        began = andy.home / "groups" / "main" / "began"
        until(lambda: began.exists() and began.read_text().endswith("\n"), what="the check runs")
        andy.kill()
        began.with_name("dead").touch()
        andy.start()
        until(lambda: said(andy, "in the end"), what="the answer is sent")
        assert len(began.read_text().splitlines()) == 2, "it was begun again"
        (run,) = andy.rows("SELECT status FROM task_run_logs")
        assert run["status"] == "success"
        assert said(andy, "in the end") == 1
