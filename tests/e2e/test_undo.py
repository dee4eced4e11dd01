"""Undo on a real host with the agent without a model: rows and bytes are exactly what they were."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.store.undo.turn_effects import TRACKED
from tests.processes.andy import AndyProcess, until


@pytest.fixture
def andy(tmp_path: Path, runtime: str) -> Iterator[AndyProcess]:
    with AndyProcess(tmp_path / "home", runtime=runtime) as andy:
        yield andy


def reply(andy: AndyProcess, text: str) -> str:
    said = andy.say(text)
    assert said["outcome"] == "answered", said
    return str(said["reply"])


def rows(andy: AndyProcess) -> dict[str, list[dict[str, Any]]]:
    tables = [table for table in TRACKED if not table.is_sending]
    return {
        table.name: [
            dict(row)
            for row in andy.rows(f"SELECT * FROM {table.name} ORDER BY {', '.join(table.key)}")
            if "agent" not in row.keys() or row["agent"] != "host"  # noqa: SIM118 - a row, no dict
        ]
        for table in tables
    }


def bodies(andy: AndyProcess) -> dict[str, bytes]:
    folder = andy.home / "groups" / "main"
    found = (path for path in folder.rglob("*") if path.is_file() and path.name != ".andy-talk.json")
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def files_are_put_back(andy: AndyProcess) -> None:
    until(lambda: not andy.rows("SELECT 1 FROM undos WHERE has_files_due"), what="the files are put back")


def test_what_a_turn_added_is_gone_and_comes_back(andy: AndyProcess) -> None:
    reply(andy, "add bread to the shopping list")
    reply(andy, "add a task write the blog by 2030-02-10")
    before, files = rows(andy), bodies(andy)
    reply(andy, "add milk to the shopping list\nremind me on 2030-02-11 at 9:00 to call mum\nblog 80%")
    after, later = rows(andy), bodies(andy)
    assert after != before
    assert later != files
    said = reply(andy, "undo that")
    assert said.startswith("Undone: "), said
    assert "call mum” is gone" in said
    assert "the task “write the blog” is as it was" in said
    files_are_put_back(andy)
    assert rows(andy) == before
    assert bodies(andy) == files
    assert "milk" not in reply(andy, "show the shopping list")
    number = andy.rows("SELECT max(turn_id) AS id FROM undos")[0]["id"]
    done = andy.cli("undo", "--turn", str(number))
    assert "call mum” is back" in done.stdout
    assert rows(andy) == after
    assert bodies(andy) == later
    assert "milk" in reply(andy, "show the shopping list")
    assert reply(andy, "되돌려 줘").startswith("되돌렸어요: ")
    files_are_put_back(andy)
    assert rows(andy) == before
    assert bodies(andy) == files
