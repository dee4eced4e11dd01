"""SIGTERM: no new work, what runs comes to its end, containers are left to the next start; twice: at once."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.doubles.messages_api import Hang, Say, ScriptedMessagesApi
from tests.processes.andy import AndyProcess, until


@pytest.fixture
def andy(tmp_path: Path, runtime: str, api: ScriptedMessagesApi) -> Iterator[AndyProcess]:
    environment = {"ANTHROPIC_API_KEY": "sk-ant-api03-any", "ANTHROPIC_BASE_URL": api.url}
    home = tmp_path / "home"
    with AndyProcess(home, runtime=runtime, agent="auto", environment=environment) as andy:
        yield andy


def test_what_runs_comes_to_its_end_and_nothing_new_begins(
    andy: AndyProcess, api: ScriptedMessagesApi, runtime: str
) -> None:
    assert andy.cli("groups", "register", "family", "--no-trigger").returncode == 0
    api.then(Hang(), Say("Done, 다 했어요."))
    waiting = Asking(andy, "a long question")
    until(lambda: api.turns, what="the model is asked")

    os.kill(andy.pid, signal.SIGTERM)
    until(lambda: "host.stopping" in andy.events(), what="it is stopping")
    with andy.http() as http:
        late = http.post("/chat", json={"group": "family", "text": "and me?", "wait": 60})
        busy = http.post("/chat", json={"group": "main", "text": "one more", "wait": 60})
    assert (late.status_code, busy.status_code) == (202, 202)
    assert late.json()["outcome"] == busy.json()["outcome"] == "queued"

    api.release()
    assert andy.wait() == 0
    assert waiting.answer()["reply"] == "Done, 다 했어요.", "who waited is answered still"
    states = [row["state"] for row in andy.rows("SELECT state FROM turns ORDER BY id")]
    assert states == ["answered", "queued", "queued"]
    assert andy.rows("SELECT 1 FROM outbox WHERE state <> 'sent'") == []
    assert bool(_containers(andy, runtime)) is (runtime == "docker")
    if runtime == "process":
        assert not list((andy.home / "data" / "process").iterdir())

    api.then(Say("You too."), Say("Here."))
    andy.start()
    assert andy.until_settled(late.json()["id"])["outcome"] == "answered"
    assert andy.until_settled(busy.json()["id"])["outcome"] == "answered"


def test_a_second_signal_ends_it_at_once(andy: AndyProcess, api: ScriptedMessagesApi, runtime: str) -> None:
    api.then(Hang(), Say("Here I am again."))
    asked = andy.say("a long question", wait=0)
    until(lambda: api.turns, what="the model is asked")
    os.kill(andy.pid, signal.SIGTERM)
    until(lambda: "host.stopping" in andy.events(), what="it is stopping")
    os.kill(andy.pid, signal.SIGTERM)
    assert andy.wait() == 130
    (turn,) = andy.rows("SELECT state FROM turns")
    assert turn["state"] == "running", "nothing was waited for"
    api.release()
    andy.start()
    settled = andy.until_settled(asked["id"])
    assert settled["outcome"] == "answered"
    assert len(andy.rows("SELECT 1 FROM messages WHERE sender = 'andy'")) == 1


class Asking:
    """Somebody who asks and waits, beside the test."""

    def __init__(self, andy: AndyProcess, text: str) -> None:
        self._found: dict[str, Any] = {}
        self._thread = threading.Thread(target=lambda: self._found.update(andy.say(text)))
        self._thread.start()

    def answer(self) -> dict[str, Any]:
        self._thread.join(timeout=240)
        return self._found


def _containers(andy: AndyProcess, runtime: str) -> list[str]:
    """What lives on: containers of this install, or processes in its home."""
    if runtime == "docker":
        command = ["docker", "ps", "-q", "--filter", f"label=andy.install={andy.install}"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    home = str(andy.home)
    return [
        str(each.pid)
        for each in psutil.process_iter(["environ"])
        if (each.info["environ"] or {}).get("ANDY_WORKSPACE", "").startswith(home)
    ]
