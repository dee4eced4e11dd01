"""What the host costs while nothing happens."""

from __future__ import annotations

import asyncio
import itertools
import time

import psutil

from benchmarks import engine
from benchmarks.figures import Check, Figure, Series
from benchmarks.host import RunningHost, cpu_seconds, running_host
from benchmarks.places import Effort, progress

SETTLE_SECONDS = 5.0
WINDOWS = 3
WINDOW_SECONDS = 30.0
IDLE_PERCENT = 0.1
IDLE_MIB = 70.0
GROUPS = (1, 50)


async def measure(effort: Effort) -> list[Figure]:
    await asyncio.to_thread(engine.ensure_image)
    seconds = WINDOW_SECONDS * max(effort.of_full, 0.33)
    return [
        figure
        for runtime, groups in itertools.product(("docker", "process"), GROUPS)
        for figure in await _idle(runtime, groups, seconds)
    ]


async def _idle(runtime: str, groups: int, seconds: float) -> list[Figure]:
    folders = [f"group{number:02d}" for number in range(groups - 1)]  # main is one of them
    async with running_host(runtime=runtime, groups=folders, listens=False) as host:  # type: ignore[arg-type]
        await asyncio.sleep(SETTLE_SECONDS)
        percents = [await _percent(host, seconds) for _ in range(WINDOWS)]
        memory = psutil.Process(host.process.pid).memory_info().rss / 1024**2
    progress(f"{runtime}, {groups} groups: {max(percents):.3f} % of a core, {memory:.1f} MiB")
    return _figures(f"{runtime}, {groups} group{'s' * (groups > 1)}", percents, memory)


async def _percent(host: RunningHost, seconds: float) -> float:
    """Percent of one core over `seconds`."""
    began, before = time.monotonic(), cpu_seconds(host.process.pid)
    await asyncio.sleep(seconds)
    return 100 * (cpu_seconds(host.process.pid) - before) / (time.monotonic() - began)


def _figures(name: str, percents: list[float], memory: float) -> list[Figure]:
    cpu = Series(name="of a core", unit="%", values=tuple(percents))
    rss = Series(name="resident", unit="MiB", values=(memory,))
    whole = sum(percents) / len(percents)
    return [
        Figure(
            name=f"The idle host, {name}",
            measured=cpu,
            details=(rss,),
            checks=(
                Check(what="mean of all windows", value=whole, limit=IDLE_PERCENT, unit="%"),
                Check(what="resident", value=memory, limit=IDLE_MIB, unit="MiB"),
            ),
        )
    ]
