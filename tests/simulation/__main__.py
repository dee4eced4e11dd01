"""Replay a world by its seed, or try many: `make simulate SEED=7`, `make simulate WORLDS=100`."""

from __future__ import annotations

import argparse
import itertools
import os
import subprocess
import sys
import time
import traceback
import types
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
if __name__ == "__main__":
    # A package of a library is called `tests`, too: ours has no name unless pytest gives it one.
    sys.path.insert(0, str(REPOSITORY))
    tests = types.ModuleType("tests")
    tests.__path__ = [str(REPOSITORY / "tests")]
    sys.modules["tests"] = tests

from tests.simulation import scale, speed  # noqa: E402
from tests.simulation.people import QUIET, Plan  # noqa: E402
from tests.simulation.planted import BUGS, look_for  # noqa: E402
from tests.simulation.shrinking import Shrinking, only  # noqa: E402
from tests.simulation.story import story_of  # noqa: E402
from tests.simulation.swarm_plan import PREFIX  # noqa: E402
from tests.simulation.undoing import try_undos  # noqa: E402
from tests.simulation.world import Outcome, World, remove_template  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(prog="make simulate", description=__doc__)
    parser.add_argument("--seed", default="", help="the world to tell")
    parser.add_argument("--worlds", type=int, default=0, help="try so many new worlds, from the seed on")
    parser.add_argument("--minutes", type=float, default=0.0, help="try new worlds for so long")
    parser.add_argument(
        "--shrink",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="CPU seconds to look for less that breaks it",
    )
    parser.add_argument("--only", default="", metavar="NAMES", help="tell it with these of its things alone")
    parser.add_argument("--whole", action="store_true", help="tell every event and line of the log")
    parser.add_argument("--digest", action="store_true", help="say only the hash of what happened")
    parser.add_argument("--until-broken", action="store_true", help="end with the first world that breaks")
    parser.add_argument("--models", action="store_true", help="try only worlds whose agents ask a model")
    parser.add_argument(
        "--loops", action="store_true", help="try only worlds whose agents wake by themselves"
    )
    parser.add_argument(
        "--family", default="", help="try only worlds that were drawn as narrow, exact or crowded"
    )
    parser.add_argument("--swarm", action="store_true", help="try only worlds whose agents run on a swarm")
    parser.add_argument(
        "--mixed", action="store_true", help="try a world without a swarm and one with a swarm in turns"
    )
    parser.add_argument(
        "--quiet",
        action="store_true",
        help="try worlds of days, in which people seldom write",
    )
    parser.add_argument(
        "--total-hours", type=float, default=0.0, help="try new worlds until they have lasted for so long"
    )
    parser.add_argument("--hours", type=float, default=0.0, help="try only worlds of so many hours at most")
    parser.add_argument("--planted", default="", help="plant bugs: a part of the names of some, or all")
    parser.add_argument(
        "--undo", type=int, default=0, help="try undo of so many turns, and kills at its steps"
    )
    parser.add_argument("--speed", action="store_true", help="say what a hundred virtual hours cost")
    parser.add_argument("--scale", action="store_true", help="say what many groups on many nodes cost")
    options = parser.parse_args()
    if options.speed or options.scale:
        for row in speed.rows() if options.speed else scale.rows():
            print(row, flush=True)
        return 0
    if options.undo:
        first = int(options.seed or time.time_ns() // 1_000_000_000)
        return try_undos(first, options.undo, is_until_broken=options.until_broken)
    if options.planted:
        return _plant(
            options.planted,
            seed=options.seed or "1",
            worlds=options.worlds or (sys.maxsize if options.minutes else 40),
            minutes=options.minutes,
            shrink=options.shrink,
        )
    if options.worlds or options.minutes or options.total_hours:
        return _try_many(
            options.seed,
            worlds=options.worlds,
            minutes=options.minutes,
            is_until_broken=options.until_broken,
            is_of_models=options.models,
            is_of_loops=options.loops,
            most_hours=options.hours,
            family=options.family,
            is_of_swarm=options.swarm or options.seed.startswith(PREFIX),
            is_mixed=options.mixed,
            is_quiet=options.quiet or options.seed.startswith(QUIET),
            total_hours=options.total_hours,
        )
    seed = options.seed or str(time.time_ns() // 1_000_000)
    plan = Plan.drawn(seed)
    names = options.only.split()
    try:
        less = only(plan, names) if names else plan
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    if options.shrink:
        search = Shrinking(
            seed, plan, names, seconds=options.shrink, say=lambda text: print(text, flush=True)
        )
        search.run()
        seed, less = search.seed, only(plan, search.names)
        print(f"To see it again: {search.command}")
    outcome = World(seed, less).run()
    if options.digest:
        print(outcome.digest)
    else:
        print("\n".join(story_of(outcome, is_whole=options.whole)))
    return 1 if outcome.problems else 0


def _plant(names: str, *, seed: str, worlds: int, minutes: float, shrink: float) -> int:
    wanted = [bug for bug in BUGS if names in ("all", bug.name) or names in bug.name]
    if not wanted:
        print(
            f"No planted bug has {names!r} in its name; all are in tests/simulation/planted.py.",
            file=sys.stderr,
        )
        return 2
    print("| planted | worlds | the promise that broke |\n| --- | --- | --- |")
    rows = []
    for bug in wanted:
        rows.append(look_for(bug, first=int(seed), worlds=worlds, seconds=minutes * 60, shrink=shrink))
        print(rows[-1], flush=True)
    return any(" | – | " in row for row in rows)


def _try_many(
    first_seed: str,
    *,
    worlds: int,
    minutes: float,
    is_until_broken: bool = False,
    is_of_models: bool = False,
    is_of_loops: bool = False,
    most_hours: float = 0.0,
    family: str = "",
    is_of_swarm: bool = False,
    is_mixed: bool = False,
    is_quiet: bool = False,
    total_hours: float = 0.0,
) -> int:
    first_seed = first_seed.removeprefix(PREFIX).removeprefix(QUIET)
    first = int(first_seed) if first_seed else time.time_ns() // 1_000_000_000
    print(f"The first seed is {first}.", flush=True)
    began, broken = time.process_time(), 0
    total = [0.0, 0, 0, 0, 0, 0]
    number = 0
    compared = set[str]()
    """The kinds of worlds of which one was lived through in another process, too."""
    kinds = ("", PREFIX) if is_mixed else (PREFIX,) if is_of_swarm else (QUIET,) if is_quiet else ("",)
    seeds = _seeds(
        (f"{kind}{number}" for number in itertools.count(first) for kind in kinds),
        is_of_models=is_of_models,
        is_of_loops=is_of_loops,
        most_hours=most_hours,
        family=family,
    )
    while (
        (not worlds or number < worlds)
        and (not minutes or time.process_time() - began < minutes * 60)
        and (not total_hours or total[0] < total_hours)
    ):
        seed = next(seeds)
        number += 1
        try:
            outcome = World(seed).run()
        except Exception:  # noqa: BLE001  # whatever breaks a world, its number has to be said
            broken += 1
            print(f"Seed {seed}: the world itself broke.\n{traceback.format_exc()}", flush=True)
            _say_how_to_replay(seed)
            break  # what is left of it would be in the way of the next one
        total = [a + b for a, b in zip(total, _figures(outcome), strict=True)]
        kind = seed.rstrip("0123456789")
        is_first, compared = kind not in compared, compared | {kind}
        if is_first and (other := digest_elsewhere(seed, hash_seed="1")) != outcome.digest:
            outcome.problems.append(f"In another process it is another world: {outcome.digest}, {other}.")
        if outcome.problems:
            broken += 1
            print(f"Seed {outcome.seed}: " + " | ".join(outcome.problems[:3]), flush=True)
            _say_how_to_replay(seed)
            if is_until_broken:
                break
    spent = time.process_time() - began
    hours, kills, messages, steps, service_faults, moves = total
    print(
        f"{number} worlds, {broken} with a broken promise: {hours:.0f} virtual hours, {kills} kills,"
        f" {messages} messages, {service_faults} faults of model services, {moves} moves of turns,"
        f" {steps} steps in {spent:.0f} CPU seconds"
        f" ({hours / max(spent, 0.001):.2f} virtual hours a second)."
    )
    return 1 if broken else 0


def _say_how_to_replay(seed: str) -> None:
    print(f"To see what happened: make simulate SEED={seed}", flush=True)


def digest_elsewhere(seed: str, *, hash_seed: str) -> str:
    """Return the hash of what happens in a world that another process lives through."""
    elsewhere = subprocess.run(
        [sys.executable, __file__, "--seed", seed, "--digest"],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        stdout=subprocess.PIPE,
        text=True,
        check=False,  # it says the hash of a world that breaks a promise, too
    )
    return elsewhere.stdout.strip()


def _seeds(
    seeds: Iterator[str], *, is_of_models: bool, is_of_loops: bool, most_hours: float, family: str
) -> Iterator[str]:
    """Yield the seeds of the worlds that are wanted."""
    for seed in seeds:
        plan = Plan.drawn(seed)
        if (is_of_models and not plan.services.asks_model) or (is_of_loops and not plan.loops):
            continue
        if family and plan.family != family:
            continue
        if not most_hours or plan.seconds <= most_hours * 3600:
            yield seed


def _figures(outcome: Outcome) -> tuple[float, int, int, int, int, int]:
    return (
        outcome.hours,
        outcome.kills,
        outcome.messages,
        outcome.steps,
        outcome.service_faults,
        outcome.moves,
    )


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    remove_template()
    # Frames of killed hosts hold statements of closed databases, in which the interpreter crashes as it ends.
    os._exit(code)
