"""Whether the memory of the host stays flat: 50,000 turns of the offline agent, containers started ahead."""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass, field

import psutil

from benchmarks.figures import Check, Figure, Series
from benchmarks.host import RunningHost, running_host
from benchmarks.places import Effort, progress

TURNS = int(os.environ.get("SOAK_TURNS", "50000"))
GROUPS, AT_ONCE, SLOTS = 15, 5, 8
BURST = 100
"""So many turns a group is asked before the talk moves on: one container ends, another was started ahead."""
SAMPLES = 50
WARM_UP = 0.2
"""The first part of the turns fills caches that are bounded; growth is judged after it."""
MORE_MIB = 1.0
"""In 10,000 turns: what is kept of each turn, be it 100 bytes, would show."""
PATIENCE_SECONDS = 120.0


@dataclass(slots=True, kw_only=True)
class Soak:
    """The answered turns so far, and the memory of the host at some of them."""

    host: RunningHost
    turns: int
    asked: int = 0
    answered: int = 0
    began: float = field(default_factory=time.monotonic)
    samples: list[tuple[int, float]] = field(default_factory=list)
    """Answered turns, and MiB resident then."""

    def take_turn(self) -> int | None:
        if self.asked >= self.turns:
            return None
        self.asked += 1
        return self.asked

    def count_answer(self) -> None:
        self.answered += 1
        if self.answered % max(1, self.turns // SAMPLES) == 0:
            mib = psutil.Process(self.host.process.pid).memory_info().rss / 1024**2
            self.samples.append((self.answered, mib))
            rate = self.answered / (time.monotonic() - self.began)
            progress(f"{self.answered:,} of {self.turns:,} turns, {rate:.0f} a second: {mib:.1f} MiB")


async def measure(effort: Effort) -> list[Figure]:
    """Ask groups in bursts, some at once; each burst begins by opening the chat, which starts a container."""
    folders = [f"soak{number:02d}" for number in range(GROUPS)]
    settings = {"MAX_CONCURRENT_CONTAINERS": str(SLOTS), "ANDY_FORESIGHT": "2", "IDLE_TIMEOUT": "1000"}
    async with running_host(runtime="process", groups=folders, settings=settings, listens=False) as host:
        soak = Soak(host=host, turns=effort.times(TURNS) if effort.of_full else SAMPLES)
        async with asyncio.TaskGroup() as talks:
            for number in range(AT_ONCE):
                talks.create_task(_talk(soak, folders[number::AT_ONCE]), name=f"talk:{number}")
        foresight = (await host.client.status())["foresight"]
    progress(f"containers started ahead: {foresight}")
    return [figure(soak.samples)]


async def _talk(soak: Soak, folders: list[str]) -> None:
    """Ask these groups in turns, a burst each, until all turns are taken."""
    while True:
        for folder in folders:
            await soak.host.client.open_chat(folder)
            for _ in range(BURST):
                number = soak.take_turn()
                if number is None:
                    return
                await _ask(soak.host, folder, f"echo turn {number}")
                soak.count_answer()


async def _ask(host: RunningHost, folder: str, text: str) -> None:
    told = await host.client.say(folder, text, sender="bench", wait_seconds=PATIENCE_SECONDS)
    if text.removeprefix("echo ") not in str(told.get("reply")):
        raise RuntimeError(f"“{text}” got no answer of its own: {told}")


def slope(samples: list[tuple[int, float]]) -> float:
    """MiB more in 10,000 turns, by least squares over what comes after the warm-up."""
    last = samples[-1][0]
    steady = [(turns / 10_000, mib) for turns, mib in samples if turns > WARM_UP * last]
    mean_turns = sum(turns for turns, _ in steady) / len(steady)
    mean_mib = sum(mib for _, mib in steady) / len(steady)
    width = sum((turns - mean_turns) ** 2 for turns, _ in steady)
    return sum((turns - mean_turns) * (mib - mean_mib) for turns, mib in steady) / width


def figure(samples: list[tuple[int, float]]) -> Figure:
    resident = Series(name="resident", unit="MiB", values=tuple(mib for _, mib in samples))
    return Figure(
        name=f"The host's memory over {samples[-1][0]:,} turns, foresight on, offline agent, process",
        measured=resident,
        checks=(Check(what="more in 10,000 turns", value=slope(samples), limit=MORE_MIB, unit="MiB"),),
    )
