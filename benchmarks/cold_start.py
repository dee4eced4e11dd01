"""The first message of a group: from the message to the first request of its Claude."""

from __future__ import annotations

import asyncio

import docker
from fakes.messages_api import ScriptedMessagesApi

from benchmarks import claude, engine
from benchmarks.figures import Figure, Series, ratio_of
from benchmarks.host import RunningHost, of_kind, running_host
from benchmarks.places import Effort, progress

PAIRS = 9
TIMES_THE_FLOOR = 1.5
CLOSE_AT_ONCE = {"IDLE_TIMEOUT": "1000"}


async def measure(effort: Effort) -> list[Figure]:
    """In turns with a bare container that runs the CLI at once; never two of them at a time."""
    await asyncio.to_thread(engine.ensure_image)
    times = effort.times(PAIRS, at_least=3) + 1  # the first of each warms the page cache
    folders = [f"cold{number}" for number in range(times)]
    cold: list[Cold] = []
    floor: list[float] = []
    with engine.bare_engine() as bare, claude.api_on(bare) as api:
        settings = {**claude.host_settings(api), **CLOSE_AT_ONCE}
        client = engine.connect()
        async with running_host(runtime="docker", agent="claude", groups=folders, settings=settings) as host:
            for folder in folders:
                cold.append(await _cold(host, api, folder))
                floor.append(await asyncio.to_thread(_floor, client, bare, api))
                progress(f"{folder}: {cold[-1].request_ms:.0f} ms, floor {floor[-1]:.0f} ms")
        client.close()
    return [_figure(cold[1:], floor[1:])]


class Cold:
    """One cold start, in milliseconds from the stored message."""

    def __init__(self, *, started_ms: float, request_ms: float) -> None:
        self.started_ms = started_ms
        self.request_ms = request_ms


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


def _floor(client: docker.APIClient, bare: engine.Bare, api: ScriptedMessagesApi) -> float:
    before = len(api.turns)
    container = engine.BareContainer(
        client, bare, entrypoint=claude.ONCE, environment=claude.environment(api)
    )
    try:
        requests = api.wait_for_turns(before + 1)
        container.wait()
        return 1000 * (requests[before].at - container.asked_at)
    finally:
        container.remove()


def _figure(cold: list[Cold], floor: list[float]) -> Figure:
    measured = Series(
        name="accepted → first request", unit="ms", values=tuple(one.request_ms for one in cold)
    )
    bare = Series(name="floor: docker run claude -p hi", unit="ms", values=tuple(floor))
    return Figure(
        name="A cold start, Claude agent, docker",
        measured=measured,
        floor=bare,
        checks=(ratio_of(measured, bare, TIMES_THE_FLOOR),),
        details=(
            Series(
                name="accepted → container started",
                unit="ms",
                values=tuple(one.started_ms for one in cold),
            ),
        ),
    )
