"""Draw the faults of a world whose agents run on the nodes of a swarm. Its seed is a word: `swarm7`."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.simulation.people import Fault, Plan

PREFIX = "swarm"
"""The beginning of the seeds of worlds with a swarm."""
KINDS = (
    *("kill", "kill", "kill at a send", "kill at a frame", "kill at a turn", "kill at a request"),
    *("node", "cut off", "broken", "broken", "broken at an end", "broken at an end", "broken at an end"),
    *("slow node", "carrier", "carrier", "hung", "mute", "engine"),
)
"""The misfortunes of such worlds, as often as they are named."""
LONG_SHARE = 0.1
"""The share of the worlds in which a container lives for more than an hour."""


def with_swarm(plan: Plan, seed: str) -> Plan:
    """Return a plan whose containers are on nodes, and in which what happens to nodes goes wrong."""
    chance = random.Random(f"{seed}:swarm")
    plan = replace(plan, nodes=chance.choice((2, 3, 3, 5)), slots=chance.choice((0, 2, 4)), foresight=0)
    if chance.random() < LONG_SHARE:
        return _long(plan, chance)
    factor = min(1.0, 900.0 / plan.seconds)
    said = tuple(replace(one, at_s=one.at_s * factor) for one in plan.said[:15])
    plan = replace(plan, seconds=plan.seconds * factor, said=said)
    is_calm = chance.random() < 0.15
    faults = () if is_calm else tuple(sorted(_faults(plan, chance), key=lambda one: one.at_s))
    if is_calm:
        from tests.simulation.messenger import Trouble

        plan = replace(plan, trouble=Trouble(), deaths=())
    return replace(plan, faults=faults)


def _faults(plan: Plan, chance: random.Random) -> Iterator[Fault]:
    from tests.simulation.people import Fault

    near = [one.at_s for one in plan.said]
    for _ in range(chance.randrange(2, 9)):
        kind = chance.choice(KINDS)
        amount = {
            "kill": chance.randrange(1, 400),
            "node": chance.choice((5, 60, 400)),
            "cut off": chance.choice((3, 20, 45, 200)),
            "broken": chance.choice((1, 60, 300, 900, 3000)),
            "slow node": chance.choice((20, 120)),
            "mute": chance.choice((5, 30, 120)),
            "engine": chance.choice((1, 20, 100)),
        }.get(kind, chance.choice((1, 2, 3, 5, 8, 14, 30)))
        again = chance.choice((0, 0, chance.randrange(1, 900))) if kind == "kill" else 0
        yield Fault(at_s=chance.choice(near) + chance.uniform(0, 8), kind=kind, amount=amount, again=again)


def _long(plan: Plan, chance: random.Random) -> Plan:
    """Return a plan of one chat that goes on for eighty minutes, whose connections break towards the end."""
    from tests.simulation.messenger import Trouble
    from tests.simulation.people import Fault, Said

    group = replace(plan.groups[0], other_chats=())
    said = tuple(
        Said(
            at_s=5.0 + 1_000.0 * number,
            who="Jane",
            jid=group.jid,
            kind=chance.choice(("echo", "list")),
            token=f"zq{number}x",
        )
        for number in range(5)
    )
    faults = tuple(
        Fault(at_s=at_s + chance.uniform(-5, 5), kind="broken", amount=chance.choice((1, 60, 300)))
        for at_s in (1_005.0, 4_005.0, 4_030.0)
    )
    return replace(
        plan,
        seconds=4_100.0,
        groups=(group,),
        said=said,
        faults=faults,
        deaths=(),
        trouble=Trouble(),
        idle_ms=1_800_000,
        age_ms=4 * 3_600_000,
        cap=5,
    )
