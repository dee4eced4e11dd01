"""The first message of a group: from the message to the first request of its Claude."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

import docker

from benchmarks import claude, engine
from benchmarks.figures import Figure, Series, ratio_of
from benchmarks.host import RunningHost, of_kind, running_host
from benchmarks.places import Effort, progress
from tests.doubles.messages_api import ScriptedMessagesApi

PAIRS = 9
TIMES_THE_FLOOR = 1.5
CLOSE_AT_ONCE = {"IDLE_TIMEOUT": "1000"}


async def measure(effort: Effort) -> list[Figure]:
    """In turns with a bare container that runs the CLI at once; never two of them at a time."""
    await asyncio.to_thread(engine.ensure_image)
    times = effort.times(PAIRS, at_least=3) + effort.warm_ups
    folders = [f"cold{number}" for number in range(times)]
    cold: list[Cold] = []
    floor: list[Cold] = []
    with engine.bare_engine() as bare, claude.api_on(bare) as api:
        settings = {**claude.host_settings(api), **CLOSE_AT_ONCE}
        client = engine.connect()
        async with running_host(runtime="docker", agent="claude", groups=folders, settings=settings) as host:
            for folder in folders:
                cold.append(await _cold(host, api, folder))
                floor.append(await asyncio.to_thread(_floor, client, bare, api))
                progress(f"{folder}: {cold[-1].request_ms:.0f} ms, floor {floor[-1].request_ms:.0f} ms")
        client.close()
    return [_figure(cold[effort.warm_ups :], floor[effort.warm_ups :])]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cold:
    """One cold start, in milliseconds from its cause."""

    started_ms: float
    request_ms: float


async def _cold(host: RunningHost, api: ScriptedMessagesApi, folder: str) -> Cold:
    before = len(api.turns)
    message = await host.say(folder, "hi")
    queued = await host.event(of_kind("message.queued", message=message))
    started = await host.event(of_kind("run.started", group=folder))
    requests = await asyncio.to_thread(api.wait_for_turns, before + 1)
    await host.event(of_kind("run.ended", group=folder))
    return Cold(
        started_ms=started["at_ms"] - queued["at_ms"],
        request_ms=1000 * requests[before].at - queued["at_ms"],
    )


def _floor(client: docker.APIClient, bare: engine.Bare, api: ScriptedMessagesApi) -> Cold:
    before = len(api.turns)
    container = engine.BareContainer(
        client, bare, entrypoint=claude.ONCE, environment=claude.environment(api)
    )
    started_ms = 1000 * (time.time() - container.asked_at)
    try:
        requests = api.wait_for_turns(before + 1)
        container.wait()
        request_ms = 1000 * (requests[before].at - container.asked_at)
        return Cold(started_ms=started_ms, request_ms=request_ms)
    finally:
        container.remove()


def _figure(cold: Sequence[Cold], floor: Sequence[Cold]) -> Figure:
    def series(name: str, values: list[float]) -> Series:
        return Series(name=name, unit="ms", values=tuple(values))

    measured = series("accepted → first request", [one.request_ms for one in cold])
    bare = series("floor: docker run claude -p hi", [one.request_ms for one in floor])
    return Figure(
        name="A cold start, Claude agent, docker",
        measured=measured,
        floor=bare,
        checks=(ratio_of(measured, bare, TIMES_THE_FLOOR),),
        details=(
            series("accepted → container started", [one.started_ms for one in cold]),
            series("floor: container started", [one.started_ms for one in floor]),
        ),
    )
