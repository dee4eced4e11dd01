"""Measure two checkouts in rounds: in each, every benchmark runs once in both, before the next one begins."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.checkouts import Checkout
from benchmarks.places import progress

SPEAKS_HTTP_ALONE = frozenset(
    {
        "start_up",
        "command_line",
        "idle",
        "hot_path",
        "hot_claude",
        "flood",
        "cold_start",
        "warm_start",
        "fan_out",
        "recovery",
        "soak",
    }
)  # fmt: skip
"""These know a host from outside, so the files of this checkout measure that of an older one too. The others
use modules of the checkout: there each has to measure itself."""


@dataclass(slots=True, kw_only=True)
class Budget:
    """The time there is, and what each benchmark took of it so far."""

    seconds: float
    began: float = field(default_factory=time.monotonic)
    took: dict[str, float] = field(default_factory=dict)

    def allows(self, name: str, now: float) -> bool:
        """Whether it would end in time: as long as it took before, or any time for what was never tried."""
        return now - self.began + self.took.get(name, 0.0) <= self.seconds


@dataclass(slots=True, kw_only=True)
class Side:
    """One of the two checkouts, and what was measured there."""

    checkout: Checkout
    documents: list[dict[str, Any]] = field(default_factory=list)
    cannot: set[str] = field(default_factory=set)
    """What could not be measured, and is not tried again."""

    def measure(self, name: str, effort: float) -> None:
        is_shared = name in SPEAKS_HTTP_ALONE
        if name in self.cannot:
            return
        try:
            if not is_shared and not self.checkout.has(name):
                raise FileNotFoundError(f"it has no benchmark {name}")  # noqa: TRY301 - one way to tell it
            self.documents.append(self.checkout.measure(name, is_shared=is_shared, effort=effort))
        except (subprocess.CalledProcessError, FileNotFoundError) as error:
            progress(f"{self.checkout.commit} cannot tell {name}: {error}")
            self.cannot.add(name)


def order(number: int, before: Side, after: Side) -> tuple[Side, Side]:
    """Return who is first in a round: in turns, so that a machine that slows down favours nobody."""
    return (after, before) if number % 2 else (before, after)


def run(
    names: Sequence[str], before: Side, after: Side, *, budget: Budget, effort: float, rounds: int
) -> None:
    """Measure round after round, at most so many, as long as there is time."""
    for number in range(rounds):
        for name in names:
            began = time.monotonic()
            if not budget.allows(name, began):
                continue
            progress(f"round {number + 1}: {name}, {began - budget.began:.0f} s gone")
            for side in order(number, before, after):
                side.measure(name, effort)
            budget.took[name] = time.monotonic() - began
