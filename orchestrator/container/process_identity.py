"""Recognise a process again: a number alone may by then be another's."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

START_FIELD = 19
"""Of `/proc/PID/stat`, counted after the closing bracket of the command's name."""


@dataclass(frozen=True, slots=True)
class Identity:
    """A process by its number and the moment it started."""

    pid: int
    started: str

    @classmethod
    def of(cls, pid: int) -> Identity:
        """Look a process up. Its start is empty when there is none. Blocks."""
        return cls(pid, _started(pid))

    @classmethod
    def parse(cls, text: str) -> Identity:
        """Read `PID:START`. Raises `ValueError`."""
        pid, _, started = text.strip().partition(":")
        return cls(int(pid), started)

    def __str__(self) -> str:
        return f"{self.pid}:{self.started}"

    def is_alive(self) -> bool:
        """Tell whether that very process is still there. Blocks."""
        return bool(self.started) and _started(self.pid) == self.started


def kill_group(leader: int) -> None:
    """End a process and all it started that stayed in its group."""
    with suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)


def _started(pid: int) -> str:
    if Path("/proc/self/stat").exists():
        return _started_in_proc(pid)
    shown = subprocess.run(
        ["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False, timeout=5
    )
    return "-".join(shown.stdout.split())


def _started_in_proc(pid: int) -> str:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""
    state, *fields = stat.rpartition(")")[2].split()
    return "" if state == "Z" else fields[START_FIELD - 1]
