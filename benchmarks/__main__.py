"""`python -m benchmarks [NAME…] [--quick] [--once] [--compare REF]`."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib
import sys
import time
import traceback
from collections.abc import Sequence

from benchmarks import checkouts, comparison, report, rounds
from benchmarks.figures import Figure
from benchmarks.places import Effort, progress

NAMES = (
    "turn_price",
    "start_up",
    "command_line",
    "console",
    "idle",
    "hot_path",
    "hot_claude",
    "flood",
    "hostile_bodies",
    "noticing",
    "commands",
    "undo",
    "dashboard",
    "many_messages",
    "lists",
    "cold_start",
    "warm_start",
    "restore",
    "due_task",
    "fan_out",
    "recovery",
    "model_proxy",
    "ans",
)
LONG = ("soak", "swarm", "swarm_host")
"""Those that are asked for by name alone."""
COMPARED = (
    "start_up",
    "command_line",
    "hot_path",
    "hot_claude",
    "flood",
    "commands",
    "cold_start",
    "warm_start",
    "due_task",
    "fan_out",
    "recovery",
    "idle",
)
"""What a comparison takes without names: what people wait for, and what a host costs."""
QUICK = 0.2
EFFORT_OF_A_ROUND, QUICK_ROUNDS, MOST_ROUNDS = 0.1, 1, 20
MINUTES = 15.0


def main() -> int:
    """Measure, print the table, write the JSON. 1 when something cannot be measured or, judged, is missed."""
    options = _options()
    if options.compare:
        return _compare(options)
    figures: list[Figure] = []
    failures = 0
    effort = Effort(of_full=0.0 if options.once else options.effort or (QUICK if options.quick else 1.0))
    for name in options.names or NAMES:
        began = time.monotonic()
        progress(f"{name} begins")
        try:
            found = asyncio.run(_measure(name, effort))
        except Exception as error:  # noqa: BLE001 - one benchmark's trouble is not another's
            failures += 1
            progress(f"{name} could not be measured")
            traceback.print_exception(error)
            continue
        figures += found
        progress(f"{name} took {time.monotonic() - began:.0f} s")
        if not options.once:
            print(report.table(found), flush=True)
    if figures and not options.once:
        _summarise(figures)
    is_missed = any(not check.is_met for figure in figures for check in figure.checks)
    return 1 if failures or (options.judge and is_missed) else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure how fast Andy is.")
    known = (*NAMES, *LONG)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"{', '.join(known)}; without any, all but the last"
    )
    parser.add_argument(
        "--quick", action="store_true", help="a fifth of the measurements, or one round: a first look"
    )
    parser.add_argument(
        "--once", action="store_true", help="only whether all can be measured: once, and no figures"
    )
    parser.add_argument("--judge", action="store_true", help="fail when a target is missed")
    parser.add_argument("--effort", type=float, metavar="PART", help="this part of the measurements")
    parser.add_argument(
        "--compare", metavar="REF", help="measure a commit, branch or tag beside this checkout, in turns"
    )
    parser.add_argument(
        "--minutes", type=float, default=MINUTES, help="how long a comparison goes on [%(default)g]"
    )
    options = parser.parse_args()
    unknown = set(options.names) - set(known)
    if unknown:
        parser.error(f"no such benchmark: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    return options


async def _measure(name: str, effort: Effort) -> list[Figure]:
    module = importlib.import_module(f"benchmarks.{name}")
    found: list[Figure] = await module.measure(effort)
    return found


def _summarise(figures: list[Figure]) -> None:
    checks = [check for figure in figures for check in figure.checks]
    noisy = sum(series.is_noisy for figure in figures for series in figure.series)
    met = sum(check.is_met for check in checks)
    print(f"\n{met} of {len(checks)} targets met, {noisy} series noisy. All values: {report.save(figures)}")


def _compare(options: argparse.Namespace) -> int:
    """Measure both checkouts in rounds, and print one table of both. 2 for a commit that is not there."""
    try:
        before = rounds.Side(checkout=checkouts.prepare(options.compare))
    except checkouts.UnknownCommit:
        print(
            f"git knows no commit {options.compare} here: give a commit, a branch or a tag", file=sys.stderr
        )
        return 2
    after = rounds.Side(checkout=checkouts.this_checkout())
    with contextlib.suppress(KeyboardInterrupt):  # what was measured until then is told
        rounds.run(
            options.names or COMPARED,
            before,
            after,
            budget=rounds.Budget(seconds=60 * options.minutes),
            effort=options.effort or EFFORT_OF_A_ROUND,
            rounds=QUICK_ROUNDS if options.quick else MOST_ROUNDS,
        )
    found = comparison.rows(before.documents, after.documents)
    document = {
        "before": before.checkout.commit,
        "after": after.checkout.commit,
        "machine": report.machine(),
        "rows": comparison.document(found),
        "runs": {"before": before.documents, "after": after.documents},
    }
    path = report.write(document)
    print(_told(found, before, after))
    print(f"\nAll values: {path}")
    return 1 if after.cannot else 0


def _told(found: Sequence[comparison.Row], before: rounds.Side, after: rounds.Side) -> str:
    missed = [row.name for row in found if row.is_met is False]
    sides = f"Before: {before.checkout.commit}. After: {after.checkout.commit}, with what is not committed"
    lines = [f"{sides}. Load {report.load()}.", "", comparison.table(found)]
    if missed:
        lines += ["", f"Not met: {'; '.join(missed)}."]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
