"""What a command of `andy` costs: processor time of its process, beside an interpreter that does nothing."""

from __future__ import annotations

import asyncio
import os
import subprocess
from pathlib import Path

from benchmarks.figures import Figure, Series, median_of, ratio_of
from benchmarks.host import of_kind, running_host
from benchmarks.places import CHECKOUT, PYTHON, Effort, progress

READING = ("messages main", "turns", "status", "groups list", "outbox list")
HELP_SECONDS, READING_SECONDS = 0.2, 0.25
HELP_TIMES, READING_TIMES = 4, 8
"""How many bare interpreters they may cost."""
MESSAGES = 50


async def measure(effort: Effort) -> list[Figure]:
    """On a running host with some messages, each command in turns with all others and with the floor."""
    async with running_host(runtime="process") as host:
        for number in range(MESSAGES):
            message = await host.say("main", f"note {number}")
        await host.event(of_kind("message.queued", message=message))
        return await asyncio.to_thread(_in_turns, host.home.root, effort.times(15))


def _in_turns(home: Path, times: int) -> list[Figure]:
    lines = {"--help": HELP_SECONDS, **dict.fromkeys(READING, READING_SECONDS)}
    seconds: dict[str, list[float]] = {line: [] for line in lines}
    bare = []
    for number in range(times):
        bare.append(_processor_seconds("-c", "pass"))
        for line in lines:
            at_home = () if line.startswith("-") else ("--home", str(home))
            seconds[line].append(_processor_seconds("-m", "orchestrator", *line.split(), *at_home))
        progress(f"round {number + 1} of {times}, `andy turns`: {seconds['turns'][-1]:.2f} s")
    floor = Series(name="floor: python -c pass", unit="s", values=tuple(bare))
    return [_figure(line, tuple(seconds[line]), floor, limit) for line, limit in lines.items()]


def _processor_seconds(*arguments: str) -> float:
    """Run an interpreter and return the processor seconds of that process, user and system."""
    with subprocess.Popen(
        [PYTHON, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, cwd=CHECKOUT
    ) as process:
        assert process.stderr is not None
        said = process.stderr.read()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, said
    return used.ru_utime + used.ru_stime


def _figure(line: str, seconds: tuple[float, ...], floor: Series, limit: float) -> Figure:
    is_help = line == "--help"
    measured = Series(name=f"andy {line}, processor time", unit="s", values=seconds)
    checks = (median_of(measured, limit), ratio_of(measured, floor, HELP_TIMES if is_help else READING_TIMES))
    return Figure(name=f"A command: andy {line}", measured=measured, floor=floor, checks=checks)
