"""Measure what a hundred virtual hours of twenty groups cost: `make simulate SPEED=1`."""

from __future__ import annotations

import time
from collections.abc import Iterator

from orchestrator.domain.values import ChatJid, Folder, Group
from tests.simulation.people import Fault, Plan, Said
from tests.simulation.world import World

HOURS = 100
GROUPS = 20


def rows() -> Iterator[str]:
    """Yield a row for each of three worlds, with the CPU seconds that it took."""
    World("warm", long_plan(kills=0, questions=0, hours=1)).run()  # imports, and the empty database
    for kills, questions in ((0, 0), (5, 0), (5, 20)):
        began = time.process_time()
        outcome = World("speed", long_plan(kills=kills, questions=questions)).run()
        spent = time.process_time() - began
        broken = f", {len(outcome.problems)} broken promises" if outcome.problems else ""
        yield f"{kills} kills, {questions} questions: {spent:.2f} CPU seconds, {outcome.steps} steps{broken}"


def long_plan(*, kills: int, questions: int, hours: int = HOURS) -> Plan:
    """Return a plan of many groups over a long time, in which these things happen at even distances."""
    seconds = hours * 3600.0
    groups = tuple(
        Group(jid=ChatJid(f"chirp:g{number}"), name=f"Group {number}", folder=Folder(f"g{number}"))
        for number in range(GROUPS)
    )
    said = tuple(
        Said(
            at_s=seconds * (number + 1) / (questions + 1),
            who="Jane",
            jid=groups[number % GROUPS].jid,
            kind="echo",
            token=f"zq{number}x",
        )
        for number in range(questions)
    )
    faults = tuple(
        Fault(at_s=seconds * (number + 0.5) / kills, kind="kill", amount=20) for number in range(kills)
    )
    return Plan(seconds=seconds, groups=groups, said=said, faults=faults, idle_ms=5_000)
