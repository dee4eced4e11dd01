"""What was measured, and what was hoped for."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field

NOISY_SPREAD = 0.25
"""A series whose middle half is wider than this part of its median says little."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Values of one kind, in the order they were measured."""

    name: str
    unit: str
    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    def quantile(self, part: float) -> float:
        """The smallest value that at least `part` of all values do not exceed."""
        ordered = sorted(self.values)
        return ordered[max(0, math.ceil(part * len(ordered)) - 1)]

    @property
    def p99(self) -> float:
        return self.quantile(0.99)

    @property
    def spread(self) -> float:
        """The width of the middle half, as a part of the median."""
        width = self.quantile(0.75) - self.quantile(0.25)
        return width / self.median if self.median else 0.0

    @property
    def is_noisy(self) -> bool:
        return len(self.values) > 1 and self.spread > NOISY_SPREAD


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One number against its target: at most `limit`, in `unit`."""

    what: str
    value: float
    limit: float
    unit: str

    @property
    def is_met(self) -> bool:
        return self.value <= self.limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One thing measured, beside its floor where it has one, with what was hoped for."""

    name: str
    measured: Series
    floor: Series | None = None
    checks: tuple[Check, ...] = ()
    details: tuple[Series, ...] = field(default=())

    @property
    def series(self) -> tuple[Series, ...]:
        return (self.measured, *((self.floor,) if self.floor else ()), *self.details)


def median_of(series: Series, limit: float) -> Check:
    return Check(what="median", value=series.median, limit=limit, unit=series.unit)


def p99_of(series: Series, limit: float) -> Check:
    return Check(what="p99", value=series.p99, limit=limit, unit=series.unit)


def ratio_of(measured: Series, floor: Series, limit: float) -> Check:
    """How many times its floor, of the medians."""
    return Check(what="times the floor", value=measured.median / floor.median, limit=limit, unit="x")


def p99_excess_of(measured: Series, floor: Series, limit: float) -> Check:
    """How much the slowest of a hundred are above the floor's median."""
    return Check(
        what="p99 above the floor", value=measured.p99 - floor.median, limit=limit, unit=measured.unit
    )


def excess_of(measured: Series, floor: Series, limit: float) -> Check:
    """How much above its floor, of the medians."""
    return Check(
        what="above the floor", value=measured.median - floor.median, limit=limit, unit=measured.unit
    )
