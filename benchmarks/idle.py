"""What hosts cost while nothing happens: with few groups and with a thousand, all watched at once."""

from __future__ import annotations

import asyncio
import time
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from typing import Literal

import psutil

from benchmarks import engine
from benchmarks.figures import Check, Figure, Series
from benchmarks.host import RunningHost, cpu_seconds, running_host
from benchmarks.places import Effort, progress

SETTLE_SECONDS = 15.0
WINDOWS = 3
WINDOW_SECONDS = 15.0
IDLE_PERCENT, IDLE_MIB = 0.1, 60.0
MANY = 1_000
MORE_PERCENT, MORE_MIB = 0.1, 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A host to watch."""

    runtime: Literal["docker", "process"]
    groups: int

    def __str__(self) -> str:
        return f"{self.runtime}, {self.groups:,} group{'s' * (self.groups > 1)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Idle:
    """What one of them cost."""

    kind: Kind
    percents: tuple[float, ...]
    """Of a core, a window each."""
    mib: float
    start_seconds: float

    @property
    def percent(self) -> float:
        return sum(self.percents) / len(self.percents)


ONE, THOUSAND = Kind(runtime="process", groups=1), Kind(runtime="process", groups=MANY)
KINDS = (
    ONE,
    Kind(runtime="process", groups=50),
    THOUSAND,
    Kind(runtime="docker", groups=1),
    Kind(runtime="docker", groups=50),
)


async def measure(effort: Effort) -> list[Figure]:
    """All at once: an idle host is in nobody's way, and all of them meet the same machine."""
    await asyncio.to_thread(engine.ensure_image)
    async with AsyncExitStack() as hosts:
        running = {
            kind: await hosts.enter_async_context(_host(kind, most=effort.size(MANY, smallest=3)))
            for kind in KINDS
        }
        await asyncio.sleep(effort.seconds(SETTLE_SECONDS))
        watched = await _watch(running, effort.seconds(WINDOW_SECONDS * max(effort.of_full, 0.66)))
    for one in watched.values():
        progress(f"{one.kind}: {max(one.percents):.3f} % of a core, {one.mib:.1f} MiB")
    few = [_few(one) for one in watched.values() if one.kind.groups < MANY]
    return [*few, *_many(watched[THOUSAND], watched[ONE])]


def _host(kind: Kind, *, most: int) -> AbstractAsyncContextManager[RunningHost]:
    folders = [f"group{number:04d}" for number in range(min(kind.groups, most) - 1)]  # main is one of them
    return running_host(runtime=kind.runtime, groups=folders, listens=False)


async def _watch(running: dict[Kind, RunningHost], seconds: float) -> dict[Kind, Idle]:
    percents: dict[Kind, list[float]] = {kind: [] for kind in running}
    for _ in range(WINDOWS):
        began = time.monotonic()
        before = {kind: cpu_seconds(host.process.pid) for kind, host in running.items()}
        await asyncio.sleep(seconds)
        passed = time.monotonic() - began
        for kind, host in running.items():
            percents[kind].append(100 * (cpu_seconds(host.process.pid) - before[kind]) / passed)
    return {
        kind: Idle(
            kind=kind,
            percents=tuple(percents[kind]),
            mib=psutil.Process(host.process.pid).memory_info().rss / 1024**2,
            start_seconds=host.start_seconds,
        )
        for kind, host in running.items()
    }


def _few(one: Idle) -> Figure:
    return Figure(
        name=f"The idle host, {one.kind}",
        measured=Series(name="of a core", unit="%", values=one.percents),
        details=(Series(name="resident", unit="MiB", values=(one.mib,)),),
        checks=(
            Check(what="mean of all windows", value=one.percent, limit=IDLE_PERCENT, unit="%"),
            Check(what="resident", value=one.mib, limit=IDLE_MIB, unit="MiB"),
        ),
    )


def _many(many: Idle, one: Idle) -> list[Figure]:
    name, more = f"{MANY:,} groups beside one", "more than with one"
    return [
        Figure(
            name=f"The idle host, {name}: processor",
            measured=Series(name=f"{MANY:,} groups, of a core", unit="%", values=many.percents),
            floor=Series(name="1 group, of a core", unit="%", values=one.percents),
            checks=(Check(what=more, value=many.percent - one.percent, limit=MORE_PERCENT, unit="%"),),
        ),
        Figure(
            name=f"The idle host, {name}: memory",
            measured=Series(name=f"{MANY:,} groups, resident", unit="MiB", values=(many.mib,)),
            floor=Series(name="1 group, resident", unit="MiB", values=(one.mib,)),
            checks=(Check(what=more, value=many.mib - one.mib, limit=MORE_MIB, unit="MiB"),),
        ),
        Figure(
            name=f"The start of a host, {name}",
            measured=Series(name=f"{MANY:,} groups", unit="s", values=(many.start_seconds,)),
            floor=Series(name="1 group", unit="s", values=(one.start_seconds,)),
        ),
    ]
