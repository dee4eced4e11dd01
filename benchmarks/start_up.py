"""How soon the command line answers and the host is there."""

from __future__ import annotations

import asyncio
import subprocess
import time

from benchmarks import engine
from benchmarks.figures import Figure, Series, median_of
from benchmarks.host import cpu_seconds, running_host
from benchmarks.places import CHECKOUT, PYTHON, Effort, progress

VERSION_SECONDS = 0.3
HEALTHY_SECONDS = 1.0


async def measure(effort: Effort) -> list[Figure]:
    await asyncio.to_thread(engine.ensure_image)
    return [
        _version(effort.times(21)),
        await _healthy("docker", effort.times(5)),
        await _healthy("process", effort.times(5)),
    ]


def _version(times: int) -> Figure:
    """In turns with an interpreter that does nothing."""
    told, bare = [], []
    for _ in range(times):
        bare.append(_seconds([PYTHON, "-c", "pass"]))
        told.append(_seconds([PYTHON, "-m", "orchestrator", "--version"]))
    measured = Series(name="andy --version", unit="s", values=tuple(told))
    floor = Series(name="floor: python -c pass", unit="s", values=tuple(bare))
    return Figure(
        name="The version is told", measured=measured, floor=floor,
        checks=(median_of(measured, VERSION_SECONDS),),
    )  # fmt: skip


def _seconds(command: list[str]) -> float:
    began = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True, cwd=CHECKOUT)
    return time.perf_counter() - began


async def _healthy(runtime: str, times: int) -> Figure:
    seconds, cpu = [], []
    for number in range(times):
        async with running_host(runtime=runtime) as host:  # type: ignore[arg-type]
            seconds.append(host.start_seconds)
            cpu.append(cpu_seconds(host.process.pid))
        progress(f"start {number + 1} of {times}, {runtime}: {seconds[-1]:.2f} s")
    measured = Series(name=f"start to /healthz, {runtime}", unit="s", values=tuple(seconds))
    return Figure(
        name=f"The host starts on a new home, {runtime}",
        measured=measured,
        checks=(median_of(measured, HEALTHY_SECONDS),),
        details=(Series(name="processor time until then", unit="s", values=tuple(cpu)),),
    )
