"""A flood of one group: what it does to another group's first answer, and what a message of it costs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import psutil

from benchmarks import engine
from benchmarks.figures import Check, Figure, Series, median_of, ratio_of
from benchmarks.host import RunningHost, cpu_seconds, running_host
from benchmarks.places import Effort, progress

PAIRS = 9
A_SECOND = 100.0
"""Messages that the one group writes: more than people can, and less than a host takes at most."""
TIMES_THE_SAME_FLOOD_ELSEWHERE = 1.2
MESSAGES = 2_000
WRITERS = (1, 16)
BATCH = 50
"""Messages between two looks at the host's processor time."""
PROCESSOR_MS = 2.0
RESIDENT_MIB = 85.0
LOUD = "loud"
PATIENCE_SECONDS = 120.0
CLOSE_AT_ONCE = {"IDLE_TIMEOUT": "1000"}


async def measure(effort: Effort) -> list[Figure]:
    await asyncio.to_thread(engine.ensure_image)
    messages = effort.times(MESSAGES // BATCH) * BATCH
    return [
        await _first_answers(effort.times(PAIRS, at_least=3), effort.warm_ups),
        *[await _intake(messages, each) for each in WRITERS],
    ]


async def _first_answers(times: int, warm_ups: int) -> Figure:
    """Measure first answers, each in a group of its own that has no container yet, in turns.

    One is beside a flood of another group, one beside the same flood of another Andy on this machine, and one
    without a flood. What the first takes longer than the second is what a group takes from another one; what
    the second takes longer than the third is what the machine takes.
    """
    rounds = range(times + warm_ups)
    folders = [LOUD, *(f"{kind}{number}" for number in rounds for kind in ("beside", "other", "quiet"))]
    beside: list[float] = []
    other: list[float] = []
    quiet: list[float] = []

    async def measure_beside(loud: RunningHost, folder: str) -> float:
        """Return the milliseconds of a first answer during a flood of the host `loud`."""
        async with _flood(loud) as flood:
            milliseconds = await _answer_ms(host, folder)
        progress(f"{folder}: beside {flood.sent / flood.seconds:.0f} messages a second {milliseconds:.0f} ms")
        return milliseconds

    async with (
        running_host(runtime="docker", groups=folders, settings=CLOSE_AT_ONCE, listens=False) as host,
        running_host(runtime="process", groups=[LOUD], settings=CLOSE_AT_ONCE, listens=False) as another,
    ):
        for number in rounds:
            # Each kind is first, second and third equally often.
            for kind in ("beside", "other", "quiet", "beside", "other")[number % 3 :][:3]:
                await _settled(host)
                await _settled(another)
                if kind == "beside":
                    beside.append(await measure_beside(host, f"beside{number}"))
                elif kind == "other":
                    other.append(await measure_beside(another, f"other{number}"))
                else:
                    quiet.append(await _answer_ms(host, f"quiet{number}"))
                    progress(f"quiet{number}: {quiet[-1]:.0f} ms")
    measured = Series(name="stored → answered, beside a flood", unit="ms", values=tuple(beside[warm_ups:]))
    floor = Series(
        name="floor: beside the same flood of another Andy", unit="ms", values=tuple(other[warm_ups:])
    )
    return Figure(
        name=f"A first answer beside {A_SECOND:.0f} messages a second of another group, docker",
        measured=measured,
        floor=floor,
        checks=(ratio_of(measured, floor, TIMES_THE_SAME_FLOOD_ELSEWHERE),),
        details=(Series(name="without any flood", unit="ms", values=tuple(quiet[warm_ups:])),),
    )


async def _answer_ms(host: RunningHost, folder: str) -> float:
    began = time.perf_counter()
    told = await host.client.say(
        folder, "show the shopping list", sender="bench", wait_seconds=PATIENCE_SECONDS
    )
    if not told.get("reply"):
        raise RuntimeError(f"There was no answer in {folder}: {told}")
    return 1000 * (time.perf_counter() - began)


async def _settled(host: RunningHost) -> None:
    """Wait until all that was written before is answered: it would be told as what comes next costs."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while _is_at_work(await host.client.status()):  # noqa: ASYNC110 - in another process
            await asyncio.sleep(0.05)


def _is_at_work(status: dict[str, Any]) -> bool:
    """Return whether anything is still to be answered or sent: a busy group's answer is not waited for."""
    is_answering = any(one["turn"] is not None for one in status["containers"])
    return bool(status["waiting"] or status["outbox"]["waiting"] or is_answering)


@dataclass(slots=True, kw_only=True)
class Flood:
    sent: int = 0
    seconds: float = 0.0


@asynccontextmanager
async def _flood(host: RunningHost) -> AsyncIterator[Flood]:
    """Let one group write without a pause; the group has a container that answers when this begins."""
    await _answer_ms(host, LOUD)
    flood = Flood()
    writer = asyncio.create_task(_write(host, flood), name="flood")
    try:
        yield flood
    finally:
        writer.cancel()
        await asyncio.wait({writer})


async def _write(host: RunningHost, flood: Flood) -> None:
    """Write at a rate; what a slow host has not taken in time is not made up for."""
    began = time.monotonic()
    while True:
        await host.say(LOUD, f"note {flood.sent}")
        flood.sent += 1
        flood.seconds = time.monotonic() - began
        await asyncio.sleep(max(0.0, flood.sent / A_SECOND - flood.seconds))


async def _intake(messages: int, writers: int) -> Figure:
    """Messages that call nobody, by clients that each wait for the answer of the door before the next."""
    values: list[float] = []
    async with running_host(runtime="process", listens=False) as host:
        await host.client.register({"folder": LOUD})
        await _write_many(host, BATCH, writers)
        began = time.monotonic()
        for _ in range(messages // BATCH):
            before = cpu_seconds(host.process.pid)
            await _write_many(host, BATCH, writers)
            values.append(1000 * (cpu_seconds(host.process.pid) - before) / BATCH)
        rate = messages / (time.monotonic() - began)
        mib = psutil.Process(host.process.pid).memory_info().rss / 1024**2
    progress(f"{writers} writers: {rate:.0f} messages a second, {mib:.1f} MiB")
    measured = Series(name=f"processor time of the host, batches of {BATCH}", unit="ms", values=tuple(values))
    return Figure(
        name=f"A message stored by HTTP, {writers} writer{'s' * (writers > 1)}",
        measured=measured,
        checks=(
            median_of(measured, PROCESSOR_MS),
            Check(what="resident afterwards", value=mib, limit=RESIDENT_MIB, unit="MiB"),
        ),
        details=(Series(name="messages a second", unit="/s", values=(rate,)),),
    )


async def _write_many(host: RunningHost, count: int, writers: int) -> None:
    left = list(range(count))

    async def write() -> None:
        while left:
            left.pop()
            await host.say(LOUD, "what was said on a day like any other")

    async with asyncio.TaskGroup() as group:
        for number in range(writers):
            group.create_task(write(), name=f"writer:{number}")
