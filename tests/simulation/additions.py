"""Draw for some worlds further people and faults.

They are drawn apart from all else, so that the worlds without them stay as they were.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from orchestrator.domain.values import ChatJid, Folder
from tests.simulation.owner import OwnerAct

if TYPE_CHECKING:
    from tests.simulation.people import Fault, Plan, Said

SHARE = 0.6
"""The share of the worlds without a model that have additions."""
POLLS_SHARE = 0.35
"""The share of the worlds with a model in which there are polls."""
CROWDED_SHARE = 0.1
"""The share of the other worlds with additions in which four groups ask at once, with room for one."""
LONG_SHARE = 0.1
"""The share of the worlds without a model in which half of what is echoed is long."""
SHORT_TEXT_CHARS = 500
"""Characters of a text in these worlds: a long answer comes in three."""
NARROW = (
    "kill at a send", "kill at a send", "kill at a frame", "kill at a frame", "kill at a turn",
    "kill at a turn", "kill at a request", "kill at a request", "power", "container", "hung",
)  # fmt: skip
"""The faults of narrow worlds, as often as they are named."""
NARROW_SHARE = 0.5
"""The share of these that have few messages, and most of their faults at steps that matter."""
EXACT_SHARE = 0.5
"""The share of the narrow worlds in which one thing goes wrong, at a moment drawn from all there are."""
EFFECTS = (12, 12, 24, 48)
"""Numbers of effects after one of which a host is killed: until a container has its turn, until people read
the answer, and until an idle container is gone. A new container has some twenty effects more."""
DAY_MS = 86_400_000
SEASONS = {"autumn": -30 * DAY_MS, "spring": 124 * DAY_MS}
"""Milliseconds that a wall clock is ahead, to begin on the day before Berlin's clocks change."""
SILENT_SECONDS = 76 * 3600.0
"""Length of a world whose people say nothing for three days."""


def with_additions(plan: Plan, seed: str) -> Plan:
    """Return the plan of a seed with what newer worlds have besides."""
    chance = random.Random(f"{seed}:additions")
    if plan.services.asks_model:
        budget = random.Random(f"{seed}:budget of tokens").choice((0,) * 5 + (120, 300))
        return _with_polls(replace(plan, budget_tokens=budget), random.Random(f"{seed}:polls"))
    if chance.random() >= SHARE:
        return plan
    if random.Random(f"{seed}:narrow").random() < NARROW_SHARE:
        exact = random.Random(f"{seed}:exact")
        return _exact(plan, exact) if exact.random() < EXACT_SHARE else _narrow(plan, chance)
    crowd = random.Random(f"{seed}:crowd")
    if crowd.random() < CROWDED_SHARE:
        return _crowded(plan, crowd)
    plan = replace(plan, schema_behind=chance.choice((0, 0, 1, chance.randrange(2, 12))))
    if chance.random() < 0.06:
        plan = _silent(plan, chance)
    elif chance.random() < 0.06 and plan.seconds < 100_000:
        season = chance.choice(sorted(SEASONS))
        plan = replace(_stretched(plan, 30 * 3600.0), zone="Europe/Berlin", ahead_ms=SEASONS[season])
        plan = _at_times_of_day(plan, random.Random(f"{seed}:times of day"))
    said = (*plan.said, *_said(plan, chance))
    acts = (*_owner(plan, chance), *_second_thoughts(plan, random.Random(f"{seed}:second thoughts")))
    plan = replace(
        plan,
        said=tuple(sorted(said, key=lambda one: one.at_s)),
        owner=tuple(sorted(acts, key=lambda one: one.at_s)),
    )
    if chance.random() < 0.8:
        faults = (
            *plan.faults,
            *_faults(plan, chance),
            *_upgrades(plan, random.Random(f"{seed}:upgrades")),
            *_floods(plan, random.Random(f"{seed}:floods")),
        )
        plan = replace(plan, faults=tuple(sorted(faults, key=lambda one: one.at_s)))
    if chance.random() < 0.2:
        plan = replace(plan, loops=tuple(group.folder for group in plan.groups))
        plan = _asleep(plan, chance)
    return plan


def with_long_answers(plan: Plan, seed: str) -> Plan:
    """Return the plan of a seed with answers that are too long for one text, in some worlds."""
    chance = random.Random(f"{seed}:long")
    if plan.services.asks_model or chance.random() >= LONG_SHARE:
        return plan
    said = tuple(
        replace(one, kind="long") if one.kind == "echo" and chance.random() < 0.5 else one
        for one in plan.said
    )
    return replace(plan, said=said, text_chars=SHORT_TEXT_CHARS)


def _narrow(plan: Plan, chance: random.Random) -> Plan:
    """Return a plan of few messages in one chat, most of which meet a fault at a step that matters."""
    from tests.simulation.messenger import Trouble
    from tests.simulation.people import Fault, Said

    name = chance.choice(("chirp", "flock"))
    group = replace(plan.groups[0], jid=ChatJid(f"{name}:g0"), other_chats=())
    said, faults = list[Said](), list[Fault]()
    for number in range(chance.randrange(3, 7)):
        at_s = 5.0 + 40.0 * number
        kind = chance.choice(("echo", "echo", "remind", "list"))
        said.append(Said(at_s=at_s, who="Jane", jid=group.jid, kind=kind, token=f"zq{number}x", minutes=1))
        kind = chance.choice(("", *NARROW))
        amount = chance.choice((1, 2, 3, 4, 6, 9, 14, 30)) if "kill" in kind else chance.randrange(1, 400)
        if kind:
            after = 0.0 if "kill" in kind else chance.uniform(0, 5)
            faults.append(Fault(at_s=at_s + after, kind=kind, amount=amount))
    if chance.random() < 0.25:
        calm = replace(
            plan, groups=(group,), said=tuple(said), faults=(), deaths=(), trouble=Trouble(), cap=5
        )
        return replace(calm, seconds=said[-1].at_s + 60.0, family="narrow")
    trouble = Trouble(
        lost_before=chance.choice((0.0, 0.0, 0.3)),
        lost_after=chance.choice((0.0, 0.0, 0.3)),
        redelivers=chance.choice((0.0, 0.5)),
    )
    return replace(
        plan,
        seconds=said[-1].at_s + 60.0,
        groups=(group,),
        said=tuple(said),
        faults=tuple(faults),
        family="narrow",
        deaths=tuple(chance.choice((0, 0, 0, chance.randrange(1, 12))) for _ in range(20)),
        trouble=trouble,
        cap=chance.choice((1, 5)),
    )


def _crowded(plan: Plan, chance: random.Random) -> Plan:
    """Return a plan in which four groups ask at once, one container may live, and nothing goes wrong."""
    from tests.simulation.messenger import Trouble
    from tests.simulation.people import Said

    groups = tuple(
        replace(plan.groups[0], jid=ChatJid(f"chirp:g{number}"), folder=Folder(f"g{number}"), other_chats=())
        for number in range(4)
    )
    moments = sorted(chance.uniform(5, 35) for _ in range(24))
    said = tuple(
        Said(at_s=at_s, who="Jane", jid=chance.choice(groups).jid, kind="echo", token=f"zq{number}x")
        for number, at_s in enumerate(moments)
    )
    return replace(
        plan,
        seconds=120.0,
        groups=groups,
        said=said,
        faults=(),
        deaths=(),
        trouble=Trouble(),
        family="crowded",
        cap=1,
        idle_ms=20_000,
    )


def _exact(plan: Plan, chance: random.Random) -> Plan:
    """Return a plan of up to three messages in one chat; one meets a misfortune at a drawn moment."""
    from tests.simulation.messenger import Trouble
    from tests.simulation.people import EXACT, Fault, Said

    name = chance.choice(("chirp", "flock"))
    group = replace(plan.groups[0], jid=ChatJid(f"{name}:g0"), other_chats=())
    kind = chance.choice((EXACT,) * 7 + ("engine", "hung", "messenger"))
    gap_s = chance.choice(
        (4.0, 4.0, 8.0, 30.0)
    )  # the next question finds the container at work, idle, or gone
    said = [
        Said(
            at_s=5.0 + gap_s * number,
            who="Jane",
            jid=group.jid,
            kind=chance.choice(("echo", "echo", "remind", "remind", "list")),
            token=f"zq{number}x",
            minutes=1,
        )
        for number in range(chance.choice((1, 2, 2, 3)))
    ]
    at_s = chance.choice(said[-2:]).at_s
    seconds = said[-1].at_s + 60.0
    match kind:
        case "engine":
            amount = chance.choice((1, 5, 20, 50, 90))
            faults = [Fault(at_s=at_s + chance.uniform(0.5, 3.0), kind=kind, amount=amount)]
        case "hung":
            faults = [Fault(at_s=at_s + chance.uniform(0.3, 4.0), kind=kind)]
        case "messenger":  # for longer than a reminder is tried again as one
            said = [replace(one, kind="remind") for one in said]
            faults = [Fault(at_s=said[-1].at_s + 20.0, kind=kind, amount=1_200, place=name)]
            # What is asked afterwards tells what the agent knows of the time before.
            said.append(replace(said[0], at_s=said[-1].at_s + 1_400.0, kind="echo", token="zq9x"))
            seconds = said[-1].at_s + 60.0
        case _:
            amounts = [1 + chance.randrange(chance.choice(EFFECTS)) for _ in range(2)]
            faults = [Fault(at_s=at_s, kind=kind, amount=amount) for amount in amounts]
            if chance.random() < 0.7:  # else once more, on what the next life does
                faults.pop()
    return replace(
        plan,
        seconds=seconds,
        groups=(group,),
        said=tuple(said),
        faults=tuple(faults),
        family="exact",
        deaths=(),
        trouble=Trouble(redelivers=chance.choice((0.0, 0.0, 0.5))),
        cap=5,
        foresight=chance.choice((0, 0, 1)),
        idle_ms=chance.choice((5_000, 20_000)),
    )


def _with_polls(plan: Plan, chance: random.Random) -> Plan:
    """Return a plan in which, in a third of the worlds, people of a chat vote and change their minds."""
    from tests.simulation.people import PERSONS, Said

    if chance.random() >= POLLS_SHARE:
        return plan
    jid = chance.choice([jid for group in plan.groups for jid in group.chats])
    said = list(plan.said)
    for number in range(chance.choice((1, 2))):
        at_s = chance.choice(plan.said).at_s + chance.uniform(0, 30)
        poll = Said(at_s=at_s, who="Jane", jid=jid, kind="poll", token=f"zq{950 + number}x")
        said.append(poll)
        said += [
            Said(
                at_s=at_s + chance.uniform(15, 120),
                who=chance.choice(PERSONS),
                jid=jid,
                kind="vote",
                token=f"zq{960 + 10 * number + vote}x",
                minutes=chance.randrange(3),
            )
            for vote in range(chance.randrange(1, 7))
        ]
    last = max(one.at_s for one in said) + 30
    return replace(plan, said=tuple(sorted(said, key=lambda one: one.at_s)), seconds=max(plan.seconds, last))


def _stretched(plan: Plan, seconds: float) -> Plan:
    """Return a plan whose people say the same over another time."""
    factor = seconds / plan.seconds
    return replace(
        plan,
        seconds=seconds,
        said=tuple(replace(one, at_s=one.at_s * factor) for one in plan.said),
        faults=tuple(replace(one, at_s=one.at_s * factor) for one in plan.faults),
    )


def _at_times_of_day(plan: Plan, chance: random.Random) -> Plan:
    """Return a plan in which people ask for reminders at times of the night in which clocks are changed."""
    from tests.simulation.people import Said

    chats = [jid for group in plan.groups for jid in group.chats]
    said = tuple(
        Said(
            at_s=chance.uniform(600, 15 * 3600.0),
            who="Jane",
            jid=chance.choice(chats),
            kind="remind at",
            token=f"zq{900 + number}x",
            clock=chance.choice(("01:30", "02:30", "02:30", "03:30")),
        )
        for number in range(3)
    )
    return replace(plan, said=tuple(sorted((*plan.said, *said), key=lambda one: one.at_s)))


def _silent(plan: Plan, chance: random.Random) -> Plan:
    """Return a plan whose people talk for an hour, then three days later for another."""
    plan = _stretched(plan, 3600.0)
    later = SILENT_SECONDS - 3600.0
    half = chance.uniform(600, 3000)
    return replace(
        plan,
        seconds=SILENT_SECONDS,
        said=tuple(one if one.at_s < half else replace(one, at_s=one.at_s + later) for one in plan.said),
        faults=tuple(one if one.at_s < half else replace(one, at_s=one.at_s + later) for one in plan.faults),
    )


def _said(plan: Plan, chance: random.Random) -> Iterator[Said]:
    """Yield replies to Andy, and reactions."""
    from tests.simulation.people import PERSONS, Said

    chats = [jid for group in plan.groups for jid in group.chats]
    moments = [one.at_s for one in plan.said]
    for number in range(chance.randrange(2, 8)):
        yield Said(
            at_s=min(chance.choice(moments) + chance.uniform(5, 60), plan.seconds * 0.95),
            who=chance.choice(PERSONS),
            jid=chance.choice(chats),
            kind=chance.choice(("reply", "reply", "react")),
            token=f"zq{len(plan.said) + number}x",
        )


def _asleep(plan: Plan, chance: random.Random) -> Plan:
    """Return a plan in which all groups tell their agents to sleep, several times and at the same moments."""
    from tests.simulation.people import Said

    last = max((one.at_s for one in plan.said), default=0.0)
    sleeps = tuple(
        Said(
            at_s=last + 30 + 60 * again + chance.uniform(0, 3),
            who="Jane",
            jid=group.jid,
            kind="sleep",
            token=f"zq{700 + 10 * number + again}x",
            minutes=240,
        )
        for number, group in enumerate(plan.groups)
        for again in range(6)
    )
    said = tuple(sorted((*plan.said, *sleeps), key=lambda one: one.at_s))
    longer = chance.choice((900.0, 900.0, 4.5 * 3600.0))
    return replace(plan, said=said, seconds=max(plan.seconds, last + longer))


def _owner(plan: Plan, chance: random.Random) -> Iterator[OwnerAct]:
    kinds = ("rename", "rename", "once", "reminder") + (("daily",) if plan.seconds > 90_000 else ())
    for number in range(chance.randrange(0, 6)):
        yield OwnerAct(
            at_s=chance.uniform(5, plan.seconds * 0.9),
            kind=chance.choice(kinds),
            folder=chance.choice(plan.groups).folder,
            token=f"zq{800 + number}x",
            minutes=chance.choice((1, 2, 5)),
        )


def _second_thoughts(plan: Plan, chance: random.Random) -> Iterator[OwnerAct]:
    """Yield reminders that are moved or canceled after they were set, and looks at the console."""
    for number in range(chance.choice((0, 1, 3))):
        yield OwnerAct(
            at_s=chance.uniform(5, plan.seconds * 0.9),
            kind=chance.choice(("move", "cancel", "console")),
            folder=chance.choice(plan.groups).folder,
            token=f"zq{850 + number}x",
            minutes=chance.choice((1, 2, 5)),
        )


def _upgrades(plan: Plan, chance: random.Random) -> Iterator[Fault]:
    """Yield an upgrade between two lives, in a third of the worlds."""
    from tests.simulation.people import Fault

    if chance.random() < 1 / 3:
        at_s = chance.choice(plan.said).at_s + chance.uniform(0, 8)
        yield Fault(at_s=at_s, kind="upgrade", amount=chance.choice((1, 2, 3, 4, 6)))


def _floods(plan: Plan, chance: random.Random) -> Iterator[Fault]:
    """Yield floods of output of a container that works, in a third of the worlds."""
    from tests.simulation.people import Fault

    if chance.random() < 1 / 3:
        for _ in range(chance.choice((1, 3))):
            yield Fault(at_s=chance.choice(plan.said).at_s + chance.uniform(0.5, 5), kind="flood")


def _faults(plan: Plan, chance: random.Random) -> Iterator[Fault]:
    from tests.simulation.people import Fault

    near = [one.at_s for one in plan.said]
    kinds = ("power",) * 2 + ("kill at a send",) * 3 + ("kill at a frame",) * 3 + ("full", "second host")
    for _ in range(chance.randrange(1, 7)):
        kind = chance.choice(kinds)
        amount = {
            "power": chance.randrange(1, 400),
            "kill at a send": chance.choice((1, 2, 3, 4, 6, 10, 20, 40)),
            "kill at a frame": chance.choice((1, 2, 4, 8, 15, 30, 60)),
            "full": chance.choice((1, 10, 120)),
            "second host": 0,
        }[kind]
        again = chance.choice((0, 0, chance.randrange(1, 900))) if kind == "power" else 0
        yield Fault(at_s=chance.choice(near) + chance.uniform(0, 8), kind=kind, amount=amount, again=again)
