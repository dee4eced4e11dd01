"""A first message whose container was started ahead, in turns with one that starts its container."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from benchmarks import claude, engine
from benchmarks.figures import Figure, Series, median_of, ratio_of
from benchmarks.host import RunningHost, of_kind, running_host
from benchmarks.places import Effort, progress
from tests.doubles.messages_api import ScriptedMessagesApi

PAIRS = 7
TARGET_MS = 300
OF_A_COLD_START = 0.4
CLOSE_AT_ONCE = {"IDLE_TIMEOUT": "1000"}


async def measure(effort: Effort) -> list[Figure]:
    """Each in a group of its own, so that both find what a group's first container finds."""
    await asyncio.to_thread(engine.ensure_image)
    times = effort.times(PAIRS, at_least=3) + effort.warm_ups
    pairs = [(f"warm{number}", f"cold{number}") for number in range(times)]
    folders = [folder for pair in pairs for folder in pair]
    warm: list[float] = []
    cold: list[float] = []
    with engine.bare_engine() as bare, claude.api_on(bare) as api:
        settings = {**claude.host_settings(api), **CLOSE_AT_ONCE}
        async with running_host(runtime="docker", agent="claude", groups=folders, settings=settings) as host:
            for number, (warm_folder, cold_folder) in enumerate(pairs):
                if number % 2:
                    cold.append(await _request_ms(host, api, cold_folder))
                await _get_ready(host, warm_folder)
                warm.append(await _request_ms(host, api, warm_folder))
                if not number % 2:
                    cold.append(await _request_ms(host, api, cold_folder))
                progress(f"{number}: warm {warm[-1]:.0f} ms, cold {cold[-1]:.0f} ms")
            wasted = [await _wasted_cpu(host, folder) for folder in folders[: min(3, times)]]
    return [_figure(warm[effort.warm_ups :], cold[effort.warm_ups :], wasted)]


async def _get_ready(host: RunningHost, folder: str) -> None:
    """Open a group's chat, and wait until its container has booted."""
    await host.client.open_chat(folder)
    await host.event(of_kind("run.ready", group=folder))


async def _request_ms(host: RunningHost, api: ScriptedMessagesApi, folder: str) -> float:
    before = len(api.turns)
    message = await host.say(folder, "hi")
    queued = await host.event(of_kind("message.queued", message=message))
    requests = await asyncio.to_thread(api.wait_for_turns, before + 1)
    await host.event(of_kind("run.ended", group=folder))
    return float(1000 * requests[before].at) - float(queued["at_ms"])


async def _wasted_cpu(host: RunningHost, folder: str) -> float:
    """Start a container ahead that nobody asks anything, and return the processor seconds it cost."""
    before = (await host.client.status())["foresight"]["wasted_cpu_seconds"]
    await _get_ready(host, folder)
    await host.client.unregister(folder)
    await host.event(of_kind("run.ended", group=folder))
    after = (await host.client.status())["foresight"]["wasted_cpu_seconds"]
    return float(after) - float(before)


def _figure(warm: Sequence[float], cold: Sequence[float], wasted: Sequence[float]) -> Figure:
    measured = Series(name="message stored → first request", unit="ms", values=tuple(warm))
    floor = Series(name="without foresight", unit="ms", values=tuple(cold))
    return Figure(
        name="A first message whose container was started ahead, Claude agent, docker",
        measured=measured,
        floor=floor,
        checks=(median_of(measured, TARGET_MS), ratio_of(measured, floor, OF_A_COLD_START)),
        details=(Series(name="processor time of one in vain", unit="s", values=tuple(wasted)),),
    )
