"""Commands write to the store beside a running host, which notices each change by the file they leave."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.processes.andy import AndyProcess, until

pytestmark = pytest.mark.host


@pytest.fixture(scope="module")
def andy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AndyProcess]:
    with AndyProcess(tmp_path_factory.mktemp("announced") / "home") as process:
        assert process.cli("groups", "register", "family").returncode == 0
        yield process


def published(andy: AndyProcess, kind: str) -> list[dict[str, Any]]:
    """The events of a kind that the running host has published, oldest first."""
    with andy.http() as http:
        answer = http.get("/events", params={"recent": 1000, "follow": "false"})
    answer.raise_for_status()
    lines = (line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: "))
    return [event for event in map(json.loads, lines) if event["kind"] == kind]


def files(andy: AndyProcess) -> list[Path]:
    return sorted((andy.home / "data" / "announcements").iterdir())


def test_a_reminder_of_a_command_is_known_to_the_running_host(andy: AndyProcess) -> None:
    done = andy.cli("reminders", "add", "family", "Bring the cake", "--at", "in 5 hours")

    assert done.returncode == 0, done.stderr
    (one,) = [row for row in andy.listed("reminders", "list") if row["text"] == "Bring the cake"]
    (event,) = until(lambda: published(andy, "reminder.changed"), what="the host publishes it")
    assert (event["group"], event["detail"]) == ("family", str(one["id"]))
    until(lambda: not files(andy), what="the file is gone")


def test_commands_at_the_same_time_are_all_noticed(andy: AndyProcess) -> None:
    before = len(published(andy, "task.changed"))
    with ThreadPoolExecutor() as threads:
        made = list(
            threads.map(
                lambda number: andy.cli("tasks", "add", "family", f"ask {number}", "--at", "in 5 hours"),
                range(3),
            )
        )

    assert [done.returncode for done in made] == [0, 0, 0], made
    until(lambda: len(published(andy, "task.changed")) == before + 3, what="all three are published")
    known = {row["id"] for row in andy.listed("tasks", "list", "family")}
    assert {event["detail"] for event in published(andy, "task.changed")[before:]} <= known
    until(lambda: not files(andy), what="the files are gone")


def test_a_hostile_file_ends_nothing_and_says_nothing(andy: AndyProcess) -> None:
    hostile = andy.home / "data" / "announcements" / "1700000000000-0a1b2c3d.json"
    hostile.write_text(json.dumps([{"kind": "host.stopping"}]))

    until(lambda: "announcements.refused" in andy.events(), what="it is refused")
    until(lambda: not files(andy), what="the file is gone")
    assert published(andy, "host.stopping") == []
    done = andy.cli("loop", "on", "family")
    assert done.returncode == 0, done.stderr
    until(lambda: published(andy, "loop.changed"), what="the next command is noticed")


def test_an_undo_says_by_whom_it_was_made(andy: AndyProcess) -> None:
    assert andy.say("add milk to the shopping list")["outcome"] == "answered"
    done = andy.cli("undo", "main", "--json")
    assert done.returncode == 0, done.stderr
    undone = json.loads(done.stdout)
    until(lambda: published(andy, "turn.undone"), what="the host publishes it")
    with andy.http() as http:
        again = http.post(f"/turns/{undone['turn']}/undo", json={})
    assert again.status_code == 200, again.text

    by = [row["by_whom"] for row in andy.rows("SELECT by_whom FROM undos ORDER BY turn_id")]
    assert by == ["command line", "HTTP API"]
    audited = [row["detail"]["by"] for row in andy.listed("audit") if row["kind"] == "turn.undone"]
    assert sorted(audited) == ["HTTP API", "command line"]


def test_what_a_command_changes_while_a_killed_host_is_gone_is_found_at_its_start(tmp_path: Path) -> None:
    with AndyProcess(tmp_path / "home") as andy:
        andy.kill()
        done = andy.cli("reminders", "add", "main", "stretch", "--at", "1s")
        assert done.returncode == 0, done.stderr
        assert len(files(andy)) == 1
        andy.start()
        until(
            lambda: [row for row in andy.listed("messages", "main") if row["text"] == "stretch"],
            what="the reminder is sent",
        )
        assert files(andy) == []
        andy.terminate()
        assert not (andy.home / "data" / "announcements").exists()
        assert andy.cli("reminders", "add", "main", "rest", "--at", "in 5 hours").returncode == 0
        assert not (andy.home / "data" / "announcements").exists()
