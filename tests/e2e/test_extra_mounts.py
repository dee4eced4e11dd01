"""A folder of the owner's is seen by the group that was given it, as it was given."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes.andy import AndyProcess, until


@pytest.fixture
def me(tmp_path: Path) -> Path:
    """The user's own home, which is not Andy's."""
    folder = tmp_path / "me"
    for name in ("photos", "notes", ".config/andy"):
        (folder / name).mkdir(parents=True)
        (folder / name).chmod(0o777)
    (folder / "photos/cat.txt").write_text("a cat")
    rules = {
        "allowedRoots": [{"path": "~/photos"}, {"path": "~/notes", "allowReadWrite": True}],
        "nonMainReadOnly": False,
    }
    (folder / ".config/andy/mount-allowlist.json").write_text(json.dumps(rules))
    return folder


@pytest.fixture
def andy(tmp_path: Path, me: Path, runtime: str) -> Iterator[AndyProcess]:
    with AndyProcess(tmp_path / "home", runtime=runtime, environment={"HOME": str(me)}) as running:
        yield running


def wish(andy: AndyProcess, *mounts: dict[str, object]) -> None:
    done = andy.cli("groups", "config", "main", "--set", json.dumps({"mounts": list(mounts)}))
    assert done.returncode == 0, done.stderr


@pytest.mark.docker
@pytest.mark.parametrize("runtime", ["docker"], indirect=True)
def test_a_folder_is_seen_and_cannot_be_written_unless_it_may(andy: AndyProcess, me: Path) -> None:
    wish(
        andy,
        {"path": "~/photos", "writable": True},
        {"path": "~/notes", "name": "My notes", "writable": True},
    )
    andy.say("hello")
    assert inside(andy, "cat", "/workspace/extra/photos/cat.txt").stdout == "a cat"
    assert "Read-only" in inside(andy, "touch", "/workspace/extra/photos/dog.txt").stderr
    assert inside(andy, "touch", "/workspace/extra/My notes/x.txt").returncode == 0
    assert (me / "notes/x.txt").exists()
    assert sorted(inside(andy, "ls", "/workspace/extra").stdout.split("\n")) == ["", "My notes", "photos"]


def test_a_refusal_is_told_once_in_main_and_the_run_goes_on(andy: AndyProcess) -> None:
    wish(andy, {"path": "~/photos"}, {"path": "/etc"})
    assert andy.say("hello")["outcome"] == "answered"
    told = until(lambda: spoken(andy, "/etc is not shown"), what="the refusal in main")
    assert len(told) == 1
    wish(andy, {"path": "/etc"}, {"path": "~/photos"})
    assert andy.say("hello")["outcome"] == "answered"
    assert len(andy.rows("SELECT 1 FROM runs")) == 2
    assert len(spoken(andy, "/etc is not shown")) == 1


def spoken(andy: AndyProcess, text: str) -> list[object]:
    return list(andy.rows("SELECT 1 FROM messages WHERE is_bot_message = 1 AND instr(content, ?) > 0", text))


def inside(andy: AndyProcess, *command: str) -> subprocess.CompletedProcess[str]:
    (row,) = andy.rows("SELECT container_ref FROM runs WHERE ended_ms IS NULL")
    return subprocess.run(
        ["docker", "exec", row["container_ref"], *command], capture_output=True, text=True, check=False
    )
