"""After `kill -9` of the host with five containers live: how soon a new host has them all again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from benchmarks import engine
from benchmarks.figures import Figure, Series, median_of
from benchmarks.host import RunningHost, host_on, own_home
from benchmarks.places import Effort, progress
from orchestrator.home.directory import Home

LIVE = 5
ROUNDS = 5
RECOVERED_SECONDS = 3.0
PATIENCE_SECONDS = 60.0
SETTINGS = {"MAX_CONCURRENT_CONTAINERS": str(LIVE)}
TEXT = "show the shopping list"


async def measure(effort: Effort) -> list[Figure]:
    """In turns with a host that is killed and started with nothing to adopt."""
    await asyncio.to_thread(engine.ensure_image)
    found = []
    for number in range(effort.times(ROUNDS, at_least=3)):
        found.append(await _recover(effort.size(LIVE, smallest=2)))
        progress(f"round {number + 1}: {found[-1].told_seconds:.2f} s")
    return [_figure(found)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """Seconds since the new host's process was started."""

    adopted_seconds: float
    """Until the last of them was adopted."""
    told_seconds: float
    """Until the status named all of them."""
    bare_seconds: float
    """Until the status was told by a host that had none to adopt."""


async def _recover(live: int) -> Recovery:
    folders = [f"group{number}" for number in range(live)]
    bare_seconds = await _bare(folders)
    async with own_home(folders, runtime="docker") as home:
        async with host_on(home, runtime="docker", settings=SETTINGS, listens=False) as host:
            for folder in folders:
                await host.say(folder, TEXT)
            runs = await _live(host, lambda found: len(found) == live)
            await asyncio.to_thread(_kill, host)
        began = time.time()
        async with host_on(home, runtime="docker", settings=SETTINGS, listens=False) as host:
            await _live(host, lambda found: found == runs)
            told_seconds = time.time() - began
            adopted_at = await _adopted_at(home, count=live)
    return Recovery(adopted_seconds=adopted_at - began, told_seconds=told_seconds, bare_seconds=bare_seconds)


async def _bare(folders: list[str]) -> float:
    async with own_home(folders, runtime="docker") as home:
        async with host_on(home, runtime="docker", settings=SETTINGS, listens=False) as host:
            await asyncio.to_thread(_kill, host)
        began = time.time()
        async with host_on(home, runtime="docker", settings=SETTINGS, listens=False) as host:
            await _live(host, lambda found: not found)
            return time.time() - began


def _kill(host: RunningHost) -> None:
    host.process.kill()
    host.process.wait()


async def _live(host: RunningHost, is_wanted: Callable[[set[str]], bool]) -> set[str]:
    """The runs that have answered and live, once they are those wanted."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            told = (await host.client.status())["containers"]
            found = {one["run"] for one in told if one["state"] == "idle"}
            if is_wanted(found):
                return found
            await asyncio.sleep(0.005)


async def _adopted_at(home: Home, *, count: int) -> float:
    """When the last run was adopted, as the runs' logs have it; they are written a moment later."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(times := await asyncio.to_thread(_adoptions, home)) < count:  # noqa: ASYNC110 - another process writes
            await asyncio.sleep(0.05)
    return max(times)


def _adoptions(home: Home) -> list[float]:
    lines = (line for log in home.logs.glob("*/*.log") for line in log.read_text().splitlines())
    return [datetime.fromisoformat(line.split()[0]).timestamp() for line in lines if " run.adopted" in line]


def _figure(found: list[Recovery]) -> Figure:
    told = tuple(one.told_seconds for one in found)
    measured = Series(name=f"start → the status has all {LIVE}", unit="s", values=told)
    bare = Series(name="floor: none to adopt", unit="s", values=tuple(one.bare_seconds for one in found))
    adopted = Series(
        name="start → the last was adopted", unit="s", values=tuple(one.adopted_seconds for one in found)
    )
    return Figure(
        name=f"Recovery after kill -9, {LIVE} containers live, docker",
        measured=measured,
        floor=bare,
        checks=(median_of(measured, RECOVERED_SECONDS),),
        details=(adopted,),
    )
