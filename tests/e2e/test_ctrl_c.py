"""Ctrl-C while a command waits for what a person types: it ends at once, with the code for that."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.processes.andy import PROGRAM, AndyProcess, until

INTERRUPTED = 130
ENDS_SECONDS = 60


def interrupted(andy: AndyProcess, *command: str, once_it_shows: str) -> int:
    """Call a command at a terminal, press Ctrl-C as soon as it shows a text, and return its exit code."""
    terminal, other_end = pty.openpty()
    # Not ignored, as by what runs in the background: programs inherit that.
    previous_handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    with subprocess.Popen(
        [*PROGRAM, *command], env=andy.environment, stdin=other_end, stdout=other_end, stderr=other_end
    ) as process:
        signal.signal(signal.SIGINT, previous_handler)
        os.close(other_end)
        shown = b""
        try:
            while once_it_shows.encode() not in shown:
                shown += os.read(terminal, 4096)
            until(waiting(process.pid), what="it waits for what is typed")
            process.send_signal(signal.SIGINT)
            return process.wait(ENDS_SECONDS)
        finally:
            process.kill()
            os.close(terminal)


def waiting(pid: int) -> Callable[[], bool]:
    """Return a function that says whether a process waits, and has done nothing since the call before.

    Python notices a signal only once it waits: one that comes just before that does not end the wait.
    """
    earlier = [""]

    def is_waiting() -> bool:
        earlier.append(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2])
        return earlier[-1].split()[0] == "S" and earlier[-1] == earlier[-2]

    return is_waiting


@pytest.mark.parametrize(
    ("command", "prompt"),
    [
        (("setup",), "Whose model"),
        (("setup", "--model", "openrouter/qwen/qwen3-coder"), "Its key"),
        (("channels", "add", "matrix"), "homeserver"),
        (("channels", "add", "telegram"), "user id"),
    ],
)
def test_a_prompt_is_left(command: tuple[str, ...], prompt: str, tmp_path: Path) -> None:
    andy = AndyProcess(tmp_path / "home")

    assert interrupted(andy, *command, once_it_shows=prompt) == INTERRUPTED


def test_a_conversation_is_left(tmp_path: Path) -> None:
    with AndyProcess(tmp_path / "home") as andy:
        assert interrupted(andy, "chat", once_it_shows="Ctrl-D ends.") == INTERRUPTED


def test_a_conversation_at_a_terminal_ends_with_ctrl_d_and_sends_what_was_typed(tmp_path: Path) -> None:
    terminal, other_end = pty.openpty()
    with (
        AndyProcess(tmp_path / "home") as andy,
        subprocess.Popen(
            [*PROGRAM, "chat"], env=andy.environment, stdin=other_end, stdout=other_end, stderr=other_end
        ) as process,
    ):
        os.close(other_end)
        shown = b""
        for text, typed in (
            ("Ctrl-D ends.", "echo 안녕\necho half".encode()),
            ("Andy: 안녕", b"\x04 a line\n"),  # within a line, Ctrl-D only hands over what is typed
            ("Andy: half a line", b"\x04"),
        ):
            while text.encode() not in shown:
                shown += os.read(terminal, 4096)
            os.write(terminal, typed)
        assert process.wait(ENDS_SECONDS) == 0
        os.close(terminal)
