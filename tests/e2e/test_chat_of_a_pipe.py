"""`andy chat` without a person at the keyboard: each line is said, and its reply waited for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.processes.andy import PATIENCE_SECONDS, AndyProcess


def chat(andy: AndyProcess, lines: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "orchestrator", "chat"],
        env=andy.environment,
        input=lines,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )


def test_each_line_of_a_pipe_gets_its_reply_in_order(tmp_path: Path) -> None:
    with AndyProcess(tmp_path / "home") as andy:
        said = chat(andy, "echo one\n\necho two\n")
        assert (said.returncode, said.stdout) == (0, "one\ntwo\n"), said.stderr


def test_a_pipe_to_no_orchestrator_is_an_error(tmp_path: Path) -> None:
    said = chat(AndyProcess(tmp_path / "home"), "echo one\n")
    assert said.returncode == 3
    assert "is not running" in said.stderr


def test_who_calls_nobody_is_told_how_to_call_him_by_the_name_and_the_trigger_he_has(tmp_path: Path) -> None:
    with AndyProcess(tmp_path / "home", environment={"ASSISTANT_NAME": "Max"}) as andy:
        assert andy.cli("groups", "register", "work", "--trigger", "hey you").returncode == 0
        waited = andy.cli("chat", "work", "-m", "good morning")
        stored = andy.cli("chat", "work", "-m", "good morning", "--wait", "0")
        assert (waited.returncode, stored.returncode) == (5, 0)
        assert waited.stdout == stored.stdout
        assert (
            waited.stdout == "(Not for Max: no trigger. To call him, write @Max or hey you in the message.)\n"
        )


def test_a_reply_without_an_agent_is_shown_in_a_terminal_too(tmp_path: Path) -> None:
    with AndyProcess(tmp_path / "home") as andy:
        andy.say("add a task call mum")  # makes the dashboard
        (reply,) = {
            andy.cli("chat", "main", "-m", "/questions").stdout.strip(),
            chat(andy, "/questions\n").stdout.strip(),
            andy.listed("chat", "main", "-m", "/questions")["reply"],
            andy.say("/questions")["reply"],
        }
    assert reply == "There are no open questions."
