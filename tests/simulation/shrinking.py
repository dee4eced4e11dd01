"""Find the few acts, faults and switches of a world that are enough to break a promise.

Each thing in a plan has a name, such as `said3`, `fault0` or `lost_after`. A smaller world is a seed and the
names of what is left, so it can be replayed: `make simulate SEED=7/2 ONLY="said3 fault0 group1"`. The number
after the slash is the draw: the plan is that of seed 7, but the order of steps and the length of waits are
drawn anew. They differ anyway once a thing is left out, so each set of things is tried with several draws.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from tests.simulation.messenger import Trouble
from tests.simulation.people import Plan
from tests.simulation.world import World, root_of

SWITCHES: dict[str, Any] = {
    "loops": (), "schema_behind": 0, "ahead_ms": 0, "budget_tokens": 0, "foresight": 0, "slots": 0, "cap": 5,
}  # fmt: skip
"""Settings of a plan that are things of their own, and their values in a world without them."""
REST = "rest"
"""The name of the time that a world goes on after the last act and fault, beyond `LAST_SECONDS`."""
LAST_SECONDS = 60.0
"""Virtual seconds that a world goes on after its last act and fault in any case."""
DRAWS = (1, 3, 10, 30)
"""Most tries of a set of things, in the first round and in the later ones."""
FAULTS = ("fault", "death", "outage")
"""Beginnings of the names of things that count as faults."""
MOST_TIMES_AS_LONG = 3.0
"""CPU seconds after which a try is given up, as a multiple of what the whole world took."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Thing:
    """Something in a plan that can be left out."""

    name: str
    at_s: float = 0.0
    classes: tuple[str, ...] = ()
    """The classes that it belongs to, such as all messages of a person."""
    group: str = ""
    """The name of the group without which it cannot be; empty for none."""


def things_of(plan: Plan) -> list[Thing]:
    """Return all things of a plan in the order of their times."""
    return sorted(_things(plan), key=lambda one: one.at_s)


def _things(plan: Plan) -> Iterator[Thing]:
    group_of: dict[str, str] = {}
    for number, group in enumerate(plan.groups):
        yield Thing(f"group{number}")
        group_of |= dict.fromkeys((group.folder, *group.chats), f"group{number}")
    for number, said in enumerate(plan.said):
        classes = ("said", f"by {said.who}", f"in {said.jid}", f"said {said.kind}")
        yield Thing(f"said{number}", said.at_s, classes, group_of[said.jid])
    for number, act in enumerate(plan.owner):
        yield Thing(f"act{number}", act.at_s, ("acts", f"act {act.kind}"), group_of[act.folder])
    for number, fault in enumerate(plan.faults):
        yield Thing(f"fault{number}", fault.at_s, ("faults", f"fault {fault.kind}"))
    for number, outage in enumerate(plan.services.faults):
        classes = ("outages", f"outage {outage.kind}", f"outage of {outage.service}")
        yield Thing(f"outage{number}", outage.at_s, classes)
    # Numbered as the containers are, which begin with c1.
    deaths = ((number, frame) for number, frame in enumerate(plan.deaths, start=1) if frame)
    yield from (Thing(f"death{number}", classes=("deaths",)) for number, frame in deaths)
    for name in Trouble.__dataclass_fields__:
        if getattr(plan.trouble, name):
            yield Thing(name, classes=("trouble",))
    yield from (Thing(name) for name, none in SWITCHES.items() if getattr(plan, name) != none)
    if plan.seconds > _last_moment(plan) + LAST_SECONDS:
        yield Thing(REST)


def _last_moment(plan: Plan) -> float:
    acts = (*(one.at_s for one in plan.said), *(one.at_s for one in plan.owner))
    faults = (*(one.at_s for one in plan.faults), *(one.end_s for one in plan.services.faults))
    return max((*acts, *faults), default=0.0)


def only(plan: Plan, names: Collection[str]) -> Plan:
    """Return a plan with the named things of another.

    Raises `ValueError` for a name that it does not have, and for a thing whose group is not named.
    """
    things = {one.name: one for one in _things(plan)}
    if unknown := sorted(set(names) - set(things)):
        raise ValueError(f"The world has no {', '.join(unknown)}. It has {' '.join(things)}.")
    for name in sorted(names):
        if (group := things[name].group) and group not in names:
            raise ValueError(f"{name} needs its group: add {group} to ONLY, or leave out {name}.")

    def kept(kind: str, items: tuple[T, ...]) -> tuple[T, ...]:
        return tuple(one for number, one in enumerate(items) if f"{kind}{number}" in names)

    groups = kept("group", plan.groups)
    folders = {group.folder for group in groups}
    # The others are 0, not left out: a container finds its own by its number.
    deaths = tuple(
        frame if f"death{number}" in names else 0 for number, frame in enumerate(plan.deaths, start=1)
    )
    less = replace(
        plan,
        groups=groups,
        said=kept("said", plan.said),
        owner=kept("act", plan.owner),
        faults=kept("fault", plan.faults),
        deaths=deaths if any(deaths) else (),
        services=replace(plan.services, faults=kept("outage", plan.services.faults)),
        trouble=Trouble(
            **{name: getattr(plan.trouble, name) for name in Trouble.__dataclass_fields__ if name in names}
        ),
        **{name: none for name, none in SWITCHES.items() if name not in names},
    )
    less = replace(less, loops=tuple(folder for folder in less.loops if folder in folders))
    seconds = less.seconds if REST in names else min(less.seconds, _last_moment(less) + LAST_SECONDS)
    return replace(less, seconds=seconds)


def kind_of(problem: str) -> str:
    """Return the words of a problem that all those have that break the same promise: no numbers, no names."""
    words = problem.partition(":")[0].partition(",")[0].split()
    return " ".join(one for one in words if not one.startswith("(") and not any(map(str.isdigit, one)))


class Shrinking:
    """The search for a smaller world: delta debugging over the things of a plan.

    The end of the world is cut off first. Then whole classes of things are left out, halves of what is left
    in the order of time, quarters, and at last single ones; and all again until nothing more can go, with
    more draws for each set.
    """

    def __init__(
        self,
        seed: str,
        plan: Plan,
        names: Collection[str] = (),
        *,
        seconds: float,
        say: Callable[[str], None],
    ) -> None:
        """`names` are the things to begin with, all where there are none.

        `seconds` is the CPU time of the search, and `say` is told of each smaller world.
        """
        self.seed, self._plan, self._say = seed, plan, say
        self._number = seed.partition("/")[0]
        self._things = things_of(plan)
        self.names = frozenset(names or (one.name for one in self._things))
        """The names of what is left."""
        self._tried: set[tuple[frozenset[str], str]] = set()
        self._deadline_s = _cpu_seconds() + seconds
        self._most_seconds = seconds
        """CPU seconds of a try, at the most."""
        self._kind = ""
        self.tries = 0
        self._is_out_of_time = False
        """Whether a world was not tried because the time was over."""

    def run(self) -> None:
        """Look for a smaller world until the time is over; `seed` and `names` say which was found."""
        began_s, began_by_clock_s = _cpu_seconds(), time.monotonic()
        # Here, so that each try is a fork of a process that has all modules and an empty database already.
        problems = World(self.seed, only(self._plan, self.names)).run().problems
        if not problems:
            self._say("Every promise is kept, so there is nothing to shrink.")
            return
        self._say(f"… {self.size} break it")
        self._kind = kind_of(problems[0])
        self._most_seconds = 1.0 + MOST_TIMES_AS_LONG * (_cpu_seconds() - began_s)
        self._cut_the_end()
        self._keep_only_what_is_named(problems[0])
        for draws in DRAWS:
            before = None
            while before != self.names and not self._is_out_of_time:
                before = self.names
                for portion in self._portions():
                    self._leave_out(portion, draws)
        end = (
            "The time is over, with more it may get smaller"
            if self._is_out_of_time
            else "Nothing more can go"
        )
        by_clock_s = time.monotonic() - began_by_clock_s
        self._say(
            f"{end}: {self.tries} smaller worlds were tried in {_cpu_seconds() - began_s:.0f} CPU seconds"
            f" ({by_clock_s:.0f} by the clock)."
        )

    @property
    def size(self) -> str:
        """Return the amount that is left, in words."""
        said, faults = (sum(name.startswith(kind) for name in self.names) for kind in ("said", FAULTS))
        return f"{said} messages, {faults} faults, {len(self.names) - said - faults} other things"

    @property
    def command(self) -> str:
        """Return the command that replays the smaller world."""
        names = [one.name for one in self._things if one.name in self.names]
        return f'make simulate SEED={self.seed} ONLY="{" ".join(names)}"'

    def _cut_the_end(self) -> None:
        """Leave out what came after the promise broke: all that was before it stays as it was."""
        size = len(self.names) // 2
        while size >= 1:
            later = [one.name for one in self._left() if one.at_s > 0][-size:]
            if not self._leave_out(later, 1):
                size //= 2

    def _keep_only_what_is_named(self, problem: str) -> None:
        """Leave out what people said elsewhere than where the promise broke, as far as that goes at once."""
        said = [one for number, one in enumerate(self._plan.said) if f"{one.token} " in f"{problem} "]
        chats = {one.jid for one in said} or {one.jid for one in self._plan.said if one.jid in problem}
        if chats:
            others = {f"in {one.jid}" for one in self._plan.said if one.jid not in chats}
            self._leave_out({one.name for one in self._things if others.intersection(one.classes)}, DRAWS[1])

    def _portions(self) -> Iterator[set[str]]:
        """Yield what to leave out at once: first classes, the largest first, then ever smaller parts."""
        classes = defaultdict[str, set[str]](set)
        for one in self._left():
            for name in one.classes or (one.name,):
                classes[name].add(one.name)
            if one.group:
                classes[one.group].add(one.name)
        yield from sorted(classes.values(), key=len, reverse=True)
        size = len(self.names) // 2
        while size >= 1:
            names = [one.name for one in self._left()]
            yield from (set(names[start : start + size]) for start in range(0, len(names), size))
            size //= 2

    def _left(self) -> list[Thing]:
        return [one for one in self._things if one.name in self.names]

    def _leave_out(self, portion: Collection[str], draws: int) -> bool:
        """Leave out these things if a promise of the same kind is broken without them; return whether so."""
        names = self.names.difference(portion)
        gone = {one.name for one in self._things if one.group and one.group not in names}
        names = names.difference(gone)
        if names == self.names:
            return False
        seeds = [self.seed, *(f"{self._number}/{draw}" for draw in range(1, draws))]
        for seed in dict.fromkeys(seeds):
            if (names, seed) in self._tried:
                continue
            if _cpu_seconds() > self._deadline_s:
                self._is_out_of_time = True
                return False
            self._tried.add((names, seed))
            if self._kind in map(kind_of, self._try(names, seed)):
                self.names, self.seed = names, seed
                self._say(f"… {self.size} are enough")
                return True
        return False

    def _try(self, names: Collection[str], seed: str) -> list[str]:
        """Return the problems of a world, which a process of its own lives through.

        So nothing is left of it in this process, and it need not be taken apart. Without a result, because it
        took too long, it has none.
        """
        self.tries += 1
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(read)
            _live(World(seed, only(self._plan, names)), write, most_seconds=self._most_seconds)
        os.close(write)
        with os.fdopen(read, encoding="utf-8") as pipe:
            text = pipe.read()
        os.waitpid(child, 0)
        shutil.rmtree(root_of(child), ignore_errors=True)
        problems: list[str] = json.loads(text or "[]")
        return problems


def _live(world: World, write: int, *, most_seconds: float) -> None:
    """Live a world through, write its problems as JSON, and end the process."""
    limit = int(most_seconds) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 1))
    try:
        problems = world.run().problems
    except BaseException as error:  # noqa: BLE001  # whatever it is, this process ends here
        problems = [f"The world itself broke: {error!r}"]
    with os.fdopen(write, "w", encoding="utf-8") as pipe:
        json.dump(problems, pipe)
    os._exit(0)


def _cpu_seconds() -> float:
    """Return the CPU seconds of this process and of those that it has waited for."""
    return sum(os.times()[:4])
