"""`python -m benchmarks [NAME…] [--quick]`."""

from __future__ import annotations

import argparse
import asyncio
import importlib
import sys
import time
import traceback

from benchmarks import report
from benchmarks.figures import Figure
from benchmarks.places import Effort, progress

NAMES = (
    "turn_price",
    "start_up",
    "command_line",
    "console",
    "idle",
    "many_groups",
    "hot_path",
    "hot_claude",
    "noticing",
    "commands",
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
QUICK = 0.2


def main() -> int:
    """Measure, print the table, write the JSON. 1 when something could not be measured."""
    options = _options()
    figures: list[Figure] = []
    failures = 0
    for name in options.names or NAMES:
        began = time.monotonic()
        progress(f"{name} begins")
        try:
            found = asyncio.run(_measure(name, Effort(of_full=QUICK if options.quick else 1.0)))
        except Exception as error:  # noqa: BLE001 - one benchmark's trouble is not another's
            failures += 1
            progress(f"{name} could not be measured")
            traceback.print_exception(error)
            continue
        figures += found
        progress(f"{name} took {time.monotonic() - began:.0f} s")
        print(report.table(found), flush=True)
    if figures:
        _summarise(figures)
    return 1 if failures else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure how fast Andy is.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(NAMES)}; without any, all")
    parser.add_argument("--quick", action="store_true", help="a fifth of the measurements: a first look")
    options = parser.parse_args()
    unknown = set(options.names) - set(NAMES)
    if unknown:
        parser.error(f"no such benchmark: {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
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


if __name__ == "__main__":
    sys.exit(main())
