"""Agents on three nodes of a swarm, in turns with the same on one engine.

The nodes are three engines of this machine, each in a network of its own. So the network between them takes
no time, and they share its cores: what is seen is what the swarm adds. It takes root.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import dataclass, field
from typing import Literal

from benchmarks import claude, engine
from benchmarks.fan_out import all_answered
from benchmarks.figures import Figure, Series, ratio_of
from benchmarks.host import RunningHost, of_kind, running_host
from benchmarks.places import IMAGE, Effort, progress
from tests.doubles.messages_api import Say, ScriptedMessagesApi
from tests.processes.swarm_nodes import SwarmNodes, why_not

PAIRS = 8
FOLLOW_UPS = 6
ROUNDS = 3
GROUPS = 20
SLOTS_A_NODE = 5
NODES = 3
COLD_TIMES = 1.3
FOLLOW_UP_TIMES = 1.2
SETTINGS = {"IDLE_TIMEOUT": "2000", "ANDY_FORESIGHT": "0"}
Runtime = Literal["docker", "swarm"]
RUNTIMES: tuple[Runtime, ...] = ("docker", "swarm")


async def measure(effort: Effort) -> list[Figure]:
    """First messages and follow-ups of a Claude agent, then many groups at once without a model."""
    with _swarm():
        timed = await _one_by_one(effort.times(PAIRS, at_least=3), effort.warm_ups)
        rounds = await _all_at_once(effort.times(ROUNDS) + 1, effort.size(GROUPS, smallest=NODES))
    return [*_figures(timed), _fan_out_figure(rounds)]


@contextmanager
def _swarm() -> Iterator[None]:
    """Start the nodes with the image, and stand on the network of the one that manages them.

    Where the engine manages as many nodes already, these are measured.
    """
    if _has_nodes():
        yield
        return
    reason = why_not()
    if reason is not None:
        raise RuntimeError(reason)
    engine.ensure_image()
    previous = os.environ.get("DOCKER_HOST")
    with SwarmNodes(NODES) as nodes:
        nodes.load(IMAGE)
        with nodes.entered():
            os.environ["DOCKER_HOST"] = nodes.manager.docker_host
            try:
                yield
            finally:
                os.environ.pop("DOCKER_HOST")
                if previous is not None:
                    os.environ["DOCKER_HOST"] = previous


def _has_nodes() -> bool:
    with closing(engine.connect()) as client:
        return bool(client.info()["Swarm"]["ControlAvailable"]) and len(client.nodes()) >= NODES


@dataclass(frozen=True, slots=True)
class Timed:
    """Milliseconds from a stored message to its first request at the API, by how the agent was found.

    `answer` is what follows a follow-up's request: until its answer is sent.
    """

    new: list[float] = field(default_factory=list)
    known: list[float] = field(default_factory=list)
    follow_up: list[float] = field(default_factory=list)
    answer: list[float] = field(default_factory=list)


@asynccontextmanager
async def _hosts(folders: list[str], **options: object) -> AsyncIterator[dict[Runtime, RunningHost]]:
    async with (
        running_host(runtime="docker", groups=folders, **options) as one,  # type: ignore[arg-type]
        running_host(runtime="swarm", groups=folders, **options) as many,  # type: ignore[arg-type]
    ):
        yield {"docker": one, "swarm": many}


async def _one_by_one(times: int, warm_ups: int) -> dict[Runtime, Timed]:
    """Never two containers at a time. A group is asked while it is new, then live, then when it was away."""
    timed = {runtime: Timed() for runtime in RUNTIMES}
    folders = [f"group{number}" for number in range(times + warm_ups)]
    with ScriptedMessagesApi(default=Say("Done.")) as api:
        settings = {**claude.host_settings(api), **SETTINGS}
        async with _hosts(folders, agent="claude", settings=settings) as hosts:
            for number, folder in enumerate(folders):
                for runtime in RUNTIMES if number % 2 else RUNTIMES[::-1]:
                    found = await _group(hosts[runtime], api, folder)
                    if number >= warm_ups:
                        for name in ("new", "known", "follow_up", "answer"):
                            getattr(timed[runtime], name).extend(getattr(found, name))
                    told = f"new {found.new[0]:.0f} ms, known {found.known[0]:.0f} ms"
                    progress(f"{folder}, {runtime}: {told}, follow-up {min(found.follow_up):.0f} ms at best")
    return timed


async def _group(host: RunningHost, api: ScriptedMessagesApi, folder: str) -> Timed:
    timed = Timed([(await _asked(host, api, folder))[0]])
    for _ in range(FOLLOW_UPS):
        request, answer = await _asked(host, api, folder)
        timed.follow_up.append(request)
        timed.answer.append(answer)
    await host.event(of_kind("run.ended", group=folder))
    timed.known.append((await _asked(host, api, folder))[0])
    await host.event(of_kind("run.ended", group=folder))
    return timed


async def _asked(host: RunningHost, api: ScriptedMessagesApi, folder: str) -> tuple[float, float]:
    """Milliseconds until the request of a message, and from then until its answer is sent."""
    before = len(api.turns)
    message = await host.say(folder, "hi")
    queued = await host.event(of_kind("message.queued", message=message))
    requests = await asyncio.to_thread(api.wait_for_turns, before + 1)
    sent = await host.event(of_kind("message.sent", group=folder))
    at_ms = float(1000 * requests[before].at)
    return at_ms - float(queued["at_ms"]), float(sent["at_ms"]) - at_ms


async def _all_at_once(rounds: int, groups: int) -> dict[Runtime, list[float]]:
    """Twenty groups through fifteen slots. In the first round they are new, then their nodes know them."""
    seconds: dict[Runtime, list[float]] = {runtime: [] for runtime in RUNTIMES}
    folders = [f"group{number:02d}" for number in range(groups)]
    settings = {**SETTINGS, "MAX_CONCURRENT_CONTAINERS": str(NODES * SLOTS_A_NODE)}
    async with _hosts(folders, settings=settings) as hosts:
        for number in range(rounds):
            for runtime in RUNTIMES if number % 2 else RUNTIMES[::-1]:
                seconds[runtime].append(await all_answered(hosts[runtime], folders))
                await _all_ended(hosts[runtime])
            told = ", ".join(f"{runtime} {values[-1]:.2f} s" for runtime, values in seconds.items())
            progress(f"round {number}: {told}")
    return seconds


async def _all_ended(host: RunningHost) -> None:
    while (await host.client.status())["containers"]:  # noqa: ASYNC110  # another process ends them
        await asyncio.sleep(0.2)


def _figures(timed: dict[Runtime, Timed]) -> list[Figure]:
    def series(runtime: Runtime, name: str, what: str) -> Series:
        return Series(name=f"{runtime}: {what}", unit="ms", values=tuple(getattr(timed[runtime], name)))

    def figure(name: str, title: str, what: str, times: float | None) -> Figure:
        measured, floor = series("swarm", name, what), series("docker", name, what)
        checks = () if times is None else (ratio_of(measured, floor, times),)
        return Figure(name=title, measured=measured, floor=floor, checks=checks)

    return [
        figure("new", "A group's first message, Claude agent", "stored → first request", COLD_TIMES),
        figure("known", "A first message when the container had ended", "stored → first request", COLD_TIMES),
        figure("follow_up", "A follow-up, Claude agent", "stored → its request", FOLLOW_UP_TIMES),
        figure("answer", "The answer to a follow-up", "its request → its answer is sent", None),
    ]


def _fan_out_figure(seconds: dict[Runtime, list[float]]) -> Figure:
    slots = NODES * SLOTS_A_NODE
    return Figure(
        name=f"{GROUPS} groups at once, offline agent",
        measured=Series(name=f"swarm: {NODES} nodes", unit="s", values=tuple(seconds["swarm"][1:])),
        floor=Series(name=f"docker: {slots} slots", unit="s", values=tuple(seconds["docker"][1:])),
        details=tuple(
            Series(name=f"{runtime}: groups that were new", unit="s", values=tuple(seconds[runtime][:1]))
            for runtime in RUNTIMES
        ),
    )
