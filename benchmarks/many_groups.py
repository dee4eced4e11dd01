"""What a thousand registered groups cost while nobody writes: beside a host with one."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

import psutil

from benchmarks.figures import Check, Figure, Series
from benchmarks.host import RunningHost, cpu_seconds, running_host
from benchmarks.places import Effort, progress

GROUPS = 1_000
SETTLE_SECONDS = 15.0
WINDOWS = 3
WINDOW_SECONDS = 30.0
MORE_PERCENT = 0.1
MORE_MIB = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Idle:
    percents: tuple[float, ...]
    """Of a core, a window each."""
    mib: float
    start_seconds: float


async def measure(effort: Effort) -> list[Figure]:
    seconds = WINDOW_SECONDS * max(effort.of_full, 0.33)
    one = await _idle(1, seconds)
    many = await _idle(GROUPS, seconds)
    return [_cpu(many, one), _memory(many, one), _start(many, one)]


async def _idle(groups: int, seconds: float) -> Idle:
    folders = [f"group{number:04d}" for number in range(groups - 1)]  # main is one of them
    async with running_host(runtime="process", groups=folders, listens=False) as host:
        await asyncio.sleep(SETTLE_SECONDS)
        percents = [await _percent(host, seconds) for _ in range(WINDOWS)]
        mib = psutil.Process(host.process.pid).memory_info().rss / 1024**2
        start = host.start_seconds
    progress(f"{groups} groups: {max(percents):.3f} % of a core, {mib:.1f} MiB, started in {start:.2f} s")
    return Idle(percents=tuple(percents), mib=mib, start_seconds=start)


async def _percent(host: RunningHost, seconds: float) -> float:
    began, before = time.monotonic(), cpu_seconds(host.process.pid)
    await asyncio.sleep(seconds)
    return 100 * (cpu_seconds(host.process.pid) - before) / (time.monotonic() - began)


def _cpu(many: Idle, one: Idle) -> Figure:
    more = sum(many.percents) / WINDOWS - sum(one.percents) / WINDOWS
    return Figure(
        name=f"The idle host, {GROUPS:,} groups beside one: processor",
        measured=Series(name=f"{GROUPS:,} groups, of a core", unit="%", values=many.percents),
        floor=Series(name="1 group, of a core", unit="%", values=one.percents),
        checks=(Check(what="more than with one", value=more, limit=MORE_PERCENT, unit="%"),),
    )


def _memory(many: Idle, one: Idle) -> Figure:
    return Figure(
        name=f"The idle host, {GROUPS:,} groups beside one: memory",
        measured=Series(name=f"{GROUPS:,} groups, resident", unit="MiB", values=(many.mib,)),
        floor=Series(name="1 group, resident", unit="MiB", values=(one.mib,)),
        checks=(Check(what="more than with one", value=many.mib - one.mib, limit=MORE_MIB, unit="MiB"),),
    )


def _start(many: Idle, one: Idle) -> Figure:
    return Figure(
        name=f"The start of a host, {GROUPS:,} groups beside one",
        measured=Series(name=f"{GROUPS:,} groups", unit="s", values=(many.start_seconds,)),
        floor=Series(name="1 group", unit="s", values=(one.start_seconds,)),
    )
