"""A follow-up to a Claude that lives: from the message to the request it leads to."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks import claude, engine
from benchmarks.figures import Figure, Series, excess_of, p99_excess_of
from benchmarks.host import RunningHost, of_kind, running_host
from benchmarks.hot_path import PAUSE_SECONDS
from benchmarks.places import Effort, progress
from tests.doubles.messages_api import ScriptedMessagesApi

FOLLOW_UPS = 200
ABOVE_THE_FLOOR_MS, P99_ABOVE_THE_FLOOR_MS = 20.0, 60.0


async def measure(effort: Effort) -> list[Figure]:
    """In turns with the SDK alone in a container, which asks the same API without the proxy."""
    await asyncio.to_thread(engine.ensure_image)
    times = effort.times(FOLLOW_UPS)
    hot: list[float] = []
    floor: list[float] = []
    with engine.bare_engine() as bare, claude.api_on(bare) as api, _session(bare, api) as session:
        async with running_host(runtime="docker", agent="claude", settings=claude.host_settings(api)) as host:
            await _turn(host, api)
            await asyncio.to_thread(_bare_turn, session, api)
            for number in range(times):
                hot.append(await _turn(host, api))
                await asyncio.sleep(PAUSE_SECONDS)
                floor.append(await asyncio.to_thread(_bare_turn, session, api))
                if (number + 1) % 20 == 0:
                    progress(f"{number + 1} of {times} follow-ups")
    return [_figure(hot, floor)]


@contextmanager
def _session(bare: engine.Bare, api: ScriptedMessagesApi) -> Iterator[engine.BareContainer]:
    client = engine.connect()
    container = engine.BareContainer(
        client, bare, entrypoint=claude.IN_A_SESSION, environment=claude.environment(api)
    )
    try:
        container.line()
        yield container
    finally:
        container.remove()
        client.close()


async def _turn(host: RunningHost, api: ScriptedMessagesApi) -> float:
    """Milliseconds from the stored message to the request."""
    before = len(api.turns)
    message = await host.say("main", "go on")
    queued = await host.event(of_kind("message.queued", message=message))
    await host.event(of_kind("message.sent", turn=queued["turn"]))
    return float(1000 * api.turns[before].at - queued["at_ms"])


def _bare_turn(session: engine.BareContainer, api: ScriptedMessagesApi) -> float:
    before = len(api.turns)
    session.write("go on")
    asked_at = float(session.line())
    return float(1000 * (api.turns[before].at - asked_at))


def _figure(hot: list[float], floor: list[float]) -> Figure:
    measured = Series(name="accepted → request at the API", unit="ms", values=tuple(hot))
    bare = Series(name="floor: SDK query() → request", unit="ms", values=tuple(floor))
    return Figure(
        name="A follow-up, Claude agent, docker",
        measured=measured,
        floor=bare,
        checks=(
            excess_of(measured, bare, ABOVE_THE_FLOOR_MS),
            p99_excess_of(measured, bare, P99_ABOVE_THE_FLOOR_MS),
        ),
    )
