"""Worlds of many groups, of which few are alive: what an idle group costs, counted in calls of functions."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from orchestrator.domain.values import ChatJid, Folder, Group
from tests.simulation.people import Plan, Said
from tests.simulation.world import World

HOST = str(Path(__file__).parents[2] / "orchestrator")
BEGINS_S, ENDS_S = 600.0, 1_500.0
"""Virtual seconds between which calls are counted: once the host has started, over sweeps of all loops."""


def plan_of_many(groups: int, *, alive: int, hours: float, nodes: int = 0, cap: int = 5) -> Plan:
    """Return a plan with so many groups, in the first of which a person asks for a word each half hour."""
    half_hours = range(int(hours * 2))
    said = (
        Said(
            at_s=60.0 + 1800.0 * half_hour + 1_500.0 * number / alive,
            who="Jane",
            jid=f"chirp:g{number}",
            kind="echo",
            token=f"zq{half_hour}a{number}x",
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
    )


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


@contextmanager
def _no_profile() -> Iterator[None]:
    """Leave no profile function behind, however the world ends."""
    try:
        yield
    finally:
        sys.setprofile(None)
