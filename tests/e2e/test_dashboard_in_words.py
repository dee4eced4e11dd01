"""A dashboard kept in words, the whole way: no model, a real container, files for other programs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.processes.andy import AndyProcess, until


@pytest.fixture
def andy(tmp_path: Path, runtime: str) -> Iterator[AndyProcess]:
    with AndyProcess(tmp_path / "home", runtime=runtime) as andy:
        yield andy


def reply(andy: AndyProcess, text: str) -> str:
    said = andy.say(text)
    assert said["outcome"] == "answered", said
    return str(said["reply"])


def test_a_task_goes_from_words_to_the_history_and_into_the_files(andy: AndyProcess) -> None:
    assert "due Sun 2030-02-10" in reply(andy, "add a task write the blog by 2030-02-10")
    assert reply(andy, "blog 80%") == "write the blog: 80%."
    assert "1. write the blog (80%, due Sun 2030-02-10)" in reply(andy, "what's open?")
    path = andy.home / "data/env/main/dashboard/tasks.json"

    def tasks() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(path.read_text())["tasks"] if path.exists() else []
        return found

    until(lambda: [one["progress"]["percentage"] for one in tasks()] == [80], what="the file follows")
    assert "write the blog" in andy.cli("dashboard", "show").stdout
    assert reply(andy, "1번 완료") == "완료했어요: write the blog."
    until(lambda: [one["status"] for one in tasks()] in (["completed"], []), what="the file follows again")
