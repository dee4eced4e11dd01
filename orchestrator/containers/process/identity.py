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

PARENT_FIELD, FLAGS_FIELD, START_FIELD, ENVIRONMENT_END_FIELD = 1, 6, 19, 48
"""Positions of fields in `/proc/PID/stat`, counted from 1 after the command's name and the state."""
KERNEL_THREAD = 0x0020_0000
"""The flag of a thread of the kernel, which has no environment."""
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
    while time.monotonic() < deadline:
        marked, is_complete = _marked_processes(mark)
        if not marked and is_complete:
            return
        for pid in marked:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        # Then once more: another process may have been started between the search and the kill.
        time.sleep(0.01)


def _marked_processes(mark: str) -> tuple[set[int], bool]:
    """Return the numbers of the processes with `mark` in their environment, and of all their descendants.

    This process itself is left out. The second value says whether all processes could be checked: one that is
    starting another program has no environment at that moment, and may have `mark` in its next one.
    """
    pids = [int(entry.name) for entry in PROC.iterdir() if entry.name.isdecimal()] if PROC.is_dir() else []
    environments = {pid: _environment(pid) for pid in pids}
    is_complete = None not in environments.values()
    marked = {
        pid
        for pid, environment in environments.items()
        if os.fsencode(mark) in (environment or b"").split(b"\0")
    }
    if not marked:
        return marked, is_complete
    # Fields are counted from 1. A process that has ended meanwhile has none.
    parents = {pid: int(fields[PARENT_FIELD - 1]) for pid in pids if (fields := _stat(pid))}
    # Add the children of marked processes, then theirs, until there are no new ones.
    while children := {pid for pid, parent in parents.items() if parent in marked} - marked:
        marked |= children
    return marked - {os.getpid()}, is_complete


def _environment(pid: int) -> bytes | None:
    """Return the environment with which a process was started; empty if it has none or it cannot be read.

    It is also empty if the process has ended. None in the moment in which the process is starting another
    program, or is ending: then it has no environment yet, or no longer.
    """
    path = PROC / str(pid) / "environ"
    try:
        if environment := path.read_bytes():
            return environment
        fields = _stat(pid)  # counted from 1; none if the process has ended
        if len(fields) < ENVIRONMENT_END_FIELD or int(fields[FLAGS_FIELD - 1]) & KERNEL_THREAD:
            return b""
        if fields[ENVIRONMENT_END_FIELD - 1] == "0":  # the environment has no address in its memory yet
            return None
        return path.read_bytes()  # it has one now, or was started with an empty one
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
    """Return the fields of `/proc/PID/stat` after the state.

    The list is empty for a process that has ended, or of another user's that the system hides (`hidepid`).
    """
    try:
        stat = (PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    # The command's name stands in brackets before the state, and may contain blanks and brackets itself.
    state, *fields = stat.rpartition(")")[2].split()
    return [] if state == "Z" else fields  # Z: a zombie, which has ended
