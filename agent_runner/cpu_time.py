"""Measure the processor time of this container's processes."""

from __future__ import annotations

import os
import resource
from pathlib import Path

_UTIME, _STIME, _SESSION = 11, 12, 3
"""Fields of `/proc/PID/stat` after the name of the program, from 0."""


def used_cpu_seconds() -> float:
    """Return the processor seconds that all processes of this process's session have used so far.

    Without `/proc`, only those of this process.
    """
    ticks = 0
    session = os.getsid(0)
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            # The program's name is in brackets, and may contain blanks and brackets itself. The kernel may
            # have cut it inside a character, so these are bytes.
            fields = path.read_bytes().rpartition(b")")[2].split()
        except OSError:
            continue  # it has ended meanwhile
        if int(fields[_SESSION]) == session:
            ticks += int(fields[_UTIME]) + int(fields[_STIME])
    if ticks:
        return ticks / os.sysconf("SC_CLK_TCK")
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
