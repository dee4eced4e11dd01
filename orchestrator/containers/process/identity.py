"""Identify processes in order to end them.

A process number alone is not enough, because another process may have got it meanwhile.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

PARENT_FIELD, START_FIELD = 1, 19
"""Positions of fields in `/proc/PID/stat`, counted from 1 after the command's name and the state."""
DEATH_SECONDS = 5.0
"""Seconds to wait until killed processes are gone."""
PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """A process, identified by its number and its start time."""

    pid: int
    started: str

    @classmethod
    def of(cls, pid: int) -> ProcessIdentity:
        """Return the identity of the process with this number.

        `started` is empty if there is none. Blocks.
        """
        return cls(pid, _start_time(pid))

    @classmethod
    def parse(cls, text: str) -> ProcessIdentity:
        """Parse `PID:START`. Raises `ValueError`."""
        pid, _, started = text.strip().partition(":")
        return cls(int(pid), started)

    def __str__(self) -> str:
        """Return `PID:START`, which `parse` reads."""
        return f"{self.pid}:{self.started}"

    def is_alive(self) -> bool:
        """Return whether exactly this process still exists. Blocks."""
        return bool(self.started) and _start_time(self.pid) == self.started


def kill_group(leader: int) -> None:
    """Kill a process group: its leader and the children that stayed in it."""
    with suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)


def kill_marked(mark: str) -> None:
    """Kill every process that has `mark` (`NAME=VALUE`) in its environment, and its children.

    A child inherits the environment, and can be found by it even if it leaves its group and session and
    outlives its parent. A child that cleared its environment is found only while its parent lives.

    Return when all are gone, or after `DEATH_SECONDS`. Without `/proc` nothing is found. Blocks.
    """
    deadline = time.monotonic() + DEATH_SECONDS
    # Repeated until none is left, because another process may be started between the search and the kill.
    while (pids := _marked_processes(mark)) and time.monotonic() < deadline:
        for pid in pids:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def _marked_processes(mark: str) -> set[int]:
    """Return the numbers of the processes with `mark` in their environment, and of all their descendants.

    This process itself is left out.
    """
    pids = [int(entry.name) for entry in PROC.iterdir() if entry.name.isdecimal()] if PROC.is_dir() else []
    marked = {pid for pid in pids if os.fsencode(mark) in _environment(pid).split(b"\0")}
    if not marked:
        return marked
    # Fields are counted from 1. A process that has ended meanwhile has none.
    parents = {pid: int(fields[PARENT_FIELD - 1]) for pid in pids if (fields := _stat(pid))}
    # Add the children of marked processes, then theirs, until there are no new ones.
    while children := {pid for pid, parent in parents.items() if parent in marked} - marked:
        marked |= children
    return marked - {os.getpid()}


def _environment(pid: int) -> bytes:
    """Return the environment with which a process was started; empty if it cannot be read."""
    try:
        return (PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return b""


def _start_time(pid: int) -> str:
    """Return the start time of a process as a text that serves for comparison only; empty if there is none.

    It is read from `/proc`, or from the program `ps` where there is no `/proc`. Blocks.
    """
    if (PROC / "self" / "stat").exists():
        return _start_time_in_proc(pid)
    listing = subprocess.run(
        ["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False, timeout=5
    )
    return "-".join(listing.stdout.split())


def _start_time_in_proc(pid: int) -> str:
    """Return the start time of a process in clock ticks since the boot; empty if it has ended."""
    fields = _stat(pid)
    return fields[START_FIELD - 1] if fields else ""  # fields are counted from 1


def _stat(pid: int) -> list[str]:
    """Return the fields of `/proc/PID/stat` after the state; an empty list for a process that has ended."""
    try:
        stat = (PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return []
    # The command's name stands in brackets before the state, and may contain blanks and brackets itself.
    state, *fields = stat.rpartition(")")[2].split()
    return [] if state == "Z" else fields  # Z: a zombie, which has ended
