"""Worlds of many groups on many nodes: what an idle group costs, and how many questions a host can take.

`make simulate SCALE=1` prints the table of `docs/simulation.md`.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from time import thread_time
from types import FrameType
from typing import Any

from orchestrator.domain.values import ChatJid, Folder, Group
from tests.simulation.loop import PROCESS
from tests.simulation.people import Plan, Said
from tests.simulation.swarm import SwarmedEngine
from tests.simulation.world import World

HOST = str(Path(__file__).parents[2] / "orchestrator")
cpu_seconds = partial(thread_time)
"""The real CPU seconds of this thread: a world answers `thread_time` itself, but looks into no `partial`."""
BEGINS_S, ENDS_S = 600.0, 1_500.0
"""Virtual seconds between which calls are counted: once the host has started, over sweeps of all loops."""


def plan_of_many(
    groups: int, *, alive: int, hours: float, nodes: int = 0, slots: int = 0, cap: int = 5
) -> Plan:
    """Return a plan with so many groups, in the first of which a person asks for a word each half hour."""
    half_hours = range(int(hours * 2))
    said = (
        Said(
            at_s=60.0 + 1800.0 * half_hour + 1_500.0 * number / alive,
            who="Jane",
            jid=f"chirp:g{number}",
            kind="echo",
            token=f"zq{half_hour * alive + number}x",
        )
        for half_hour in half_hours
        for number in range(alive)
    )
    return Plan(
        seconds=hours * 3600.0,
        groups=tuple(
            Group(jid=ChatJid(f"chirp:g{number}"), name=f"Group {number}", folder=Folder(f"g{number}"))
            for number in range(groups)
        ),
        said=tuple(sorted(said, key=lambda one: one.at_s)),
        faults=(),
        cap=cap,
        idle_ms=300_000,
        nodes=nodes,
        slots=slots,
    )


def week_of(
    groups: int, *, nodes: int, slots: int, burst: int, days: float = 7, questions: int | None = None
) -> Plan:
    """Return a plan in which so many groups, or all, ask once, and `burst` of them within a minute."""
    plan = plan_of_many(groups, alive=1, hours=24.0 * days, nodes=nodes, slots=slots, cap=nodes * slots)
    asking = groups if questions is None else questions
    bursts = -(-asking // burst)
    pause_s = (plan.seconds - 3_600.0) / bursts
    said = (
        Said(
            at_s=600.0 + pause_s * (number // burst) + 60.0 / burst * (number % burst),
            who="Jane",
            jid=f"chirp:g{number}",
            kind="echo",
            token=f"zq{number}x",
        )
        for number in range(asking)
    )
    return replace(plan, said=tuple(said))


def waits_of(world: World) -> list[float]:
    """Return the seconds from each question of a world to its answer, the shortest first."""
    waits = []
    for written in world.people.all:
        messenger = world.messenger_of(written.said.jid)
        answers = (one for one in messenger.shown if one.jid == written.said.jid and one.by == "Andy")
        answer = next(one for one in answers if written.said.token in one.text)
        waits.append((answer.at_ms - written.post.at_ms) / 1000)
    return sorted(waits)


class TimedWorld(World):
    """A world that measures the processor's time of the host's steps, apart from that of all others."""

    def __init__(self, seed: str, plan: Plan) -> None:
        super().__init__(seed, plan)
        self.host_seconds = 0.0
        """CPU seconds of the host's steps."""
        self._is_host = False
        """Whether the last step was the host's."""
        self._began_s = 0.0
        self._run_step = self.loop._run_step
        self.loop._run_step = self._timed  # type: ignore[method-assign]

    def _timed(self, handle: asyncio.Handle) -> None:
        process = handle._context.get(PROCESS)  # type: ignore[attr-defined]
        is_host = process is not None and process is self.host
        # Not around each step: to ask for the processor's time costs as much as a short step.
        if is_host != self._is_host:
            self._is_host = is_host
            now_s = cpu_seconds()
            if is_host:
                self._began_s = now_s
            else:
                self.host_seconds += now_s - self._began_s
        self._run_step(handle)


def row_of(groups: int, *, nodes: int, slots: int, burst: int, days: float, questions: int) -> str:
    """Live such a world through, and return its row of the table."""
    plan = week_of(groups, nodes=nodes, slots=slots, burst=burst, days=days, questions=questions)
    world = TimedWorld("scale", plan)
    began = cpu_seconds()
    outcome = world.run()
    spent = cpu_seconds() - began
    assert isinstance(world.engine, SwarmedEngine)
    waits = waits_of(world)
    cells = (
        f"{groups:,}",
        f"{nodes} × {slots}",
        f"{days:g}",
        f"{questions:,}, {burst} a minute",
        f"{median(waits):.1f}, {waits[-1]:.1f}",
        f"{world.engine.most_apart}",
        f"{world.host_seconds:.0f}",
        f"{spent:.0f}",
        f"{len(outcome.problems)}",
    )
    return f"| {' | '.join(cells)} |"


COLUMNS = (
    "groups", "nodes and slots of each", "days", "questions", "seconds to an answer: median, longest",
    "most containers that a node had more than another", "CPU seconds of the host", "of the whole world",
    "broken promises",
)  # fmt: skip


def rows() -> Iterator[str]:
    """Yield the rows of the table: a short stretch of few groups and of many, bursts, and a week."""
    yield f"| {' | '.join(COLUMNS)} |"
    yield f"|{' --- |' * len(COLUMNS)}"
    World("warm", plan_of_many(1, alive=1, hours=0.5)).run()  # imports, and the empty database
    yield row_of(100, nodes=50, slots=2, burst=50, days=0.25, questions=50)
    yield row_of(1000, nodes=50, slots=2, burst=50, days=0.25, questions=50)
    yield row_of(1000, nodes=50, slots=2, burst=200, days=0.25, questions=200)
    yield row_of(1000, nodes=50, slots=2, burst=100, days=7, questions=1000)


class CountedWorld(World):
    """A world that counts the calls of the host's functions in a part of its time, and takes no leaps."""

    def __init__(self, seed: str, plan: Plan) -> None:
        super().__init__(seed, plan)
        self.calls: Counter[str] = Counter()
        """The number of calls of each of the host's functions, by its file and name."""

    async def _live(self) -> None:
        self.loop.call_at(BEGINS_S, sys.setprofile, self._count)
        self.loop.call_at(ENDS_S, sys.setprofile, None)
        await super()._live()

    async def _leap_when_idle(self) -> None:
        """Live each second through: what is done in idle time is what is counted."""

    def _count(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(HOST):
            self.calls[f"{code.co_filename.removeprefix(HOST)} {code.co_qualname}"] += 1


def calls_of(groups: int, *, alive: int) -> Counter[str]:
    """Return the number of calls of each function in a quarter of an hour with so many groups."""
    world = CountedWorld("scale", plan_of_many(groups, alive=alive, hours=0.5))
    with _no_profile():
        outcome = world.run()
    assert outcome.problems == []
    assert outcome.answers == len(world.plan.said)
    return world.calls


def idle_steps_of(groups: int) -> int:
    """Return the steps of six hours in which nothing happens, after each of so many groups has asked once."""
    plan = week_of(groups, nodes=0, slots=0, burst=groups, days=8 / 24)
    world = World("idle", replace(plan, cap=5, idle_ms=5_000))
    steps: list[int] = []
    for hour in (1.5, 7.5):
        world.loop.call_at(hour * 3_600.0, lambda: steps.append(world.loop.step))
    outcome = world.run()
    assert (outcome.problems, outcome.answers) == ([], groups)
    return steps[1] - steps[0]


@contextmanager
def _no_profile() -> Iterator[None]:
    """Leave no profile function behind, however the world ends."""
    try:
        yield
    finally:
        sys.setprofile(None)
