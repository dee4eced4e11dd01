"""Two checkouts side by side: the values of their runs, pooled figure by figure, as one table.

The functions are given the documents that `report.save` writes, so an older checkout's do as well.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.figures import Series

Document = Mapping[str, Any]
BESIDE_THE_FLOOR = frozenset(
    {"times the floor", "above the floor", "p99 above the floor", "more than with one"}
)
"""A figure that has only such targets is told by its median too."""
HEADINGS = ("figure", "before", "after", "ratio", "spread", "n", "target", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One number of a figure in both checkouts. None stands for what a checkout cannot tell."""

    name: str
    unit: str
    before: float | None
    after: float | None
    spreads: tuple[float | None, float | None]
    """The middle halves as parts of the medians, before and after."""
    counts: tuple[int, int]
    limit: float | None = None

    @property
    def ratio(self) -> float | None:
        """After, in terms of before."""
        return self.after / self.before if self.before and self.after is not None else None

    @property
    def is_met(self) -> bool | None:
        return None if self.limit is None or self.after is None else self.after <= self.limit


def rows(before: Iterable[Document], after: Iterable[Document]) -> list[Row]:
    """Return a row for each target, and one for each figure without; each side's runs are pooled.

    What a figure is made of, and its targets, are told by the newer side; its own targets are an older
    side's past.
    """
    olds, news = _by_name(before), _by_name(after)
    found: list[Row] = []
    for name, runs in news.items():
        found += _rows_of(name, olds.get(name, []), runs)
    return found


def _by_name(documents: Iterable[Document]) -> dict[str, list[Document]]:
    figures: dict[str, list[Document]] = {}
    for document in documents:
        for figure in document["figures"]:
            figures.setdefault(figure["name"], []).append(figure)
    return figures


def _rows_of(name: str, olds: Sequence[Document], news: Sequence[Document]) -> list[Row]:
    newest = news[-1]
    measured, floor = newest["series"][0]["name"], newest.get("floor")
    sides = [_Side(runs, measured, floor) for runs in (olds, news)]
    checks: list[Document] = list(newest["checks"])
    if all(check["what"] in BESIDE_THE_FLOOR for check in checks):
        checks = [{"what": "median"}, *checks]
    found = []
    for check in checks:
        before, after = (side.number(check["what"]) for side in sides)
        found.append(
            Row(
                name=name if check["what"] == "median" else f"{name}: {check['what']}",
                unit=check.get("unit") or newest["series"][0]["unit"],
                before=before,
                after=after,
                spreads=(sides[0].spread, sides[1].spread),
                counts=(sides[0].count, sides[1].count),
                limit=check.get("limit"),
            )
        )
    return found


class _Side:
    """The runs of one figure in one checkout."""

    def __init__(self, runs: Sequence[Document], measured: str, floor: str | None) -> None:
        self._runs = runs
        self._measured = _pooled(runs, measured)
        self._floor = _pooled(runs, floor) if floor else None

    @property
    def count(self) -> int:
        return len(self._measured.values) if self._measured else 0

    @property
    def spread(self) -> float | None:
        return self._measured.spread if self._measured else None

    def number(self, what: str) -> float | None:
        """Work a number out of all values where its name says how, else take the median of the runs' own."""
        measured, floor = self._measured, self._floor
        if measured is None:
            return None
        match what:
            case "median":
                return measured.median
            case "p99":
                return measured.p99
            case "times the floor" if floor:
                return measured.median / floor.median
            case "above the floor" if floor:
                return measured.median - floor.median
            case "p99 above the floor" if floor:
                return measured.p99 - floor.median
        told = [check["value"] for run in self._runs for check in run["checks"] if check["what"] == what]
        return statistics.median(told) if told else None


def _pooled(runs: Sequence[Document], name: str) -> Series | None:
    found = [series for run in runs for series in run["series"] if series["name"] == name]
    values = tuple(value for series in found for value in series["values"])
    return Series(name=name, unit=found[0]["unit"], values=values) if values else None


def table(found: Sequence[Row]) -> str:
    """The rows as Markdown, aligned to be read as it is."""
    cells = [HEADINGS, *(_cells(row) for row in found)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(HEADINGS))]
    lines = [_line(line, widths) for line in cells]
    return "\n".join([lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]])


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) + " |"


def _cells(row: Row) -> tuple[str, ...]:
    spreads = [f"{100 * spread:.0f}" if spread is not None else "–" for spread in row.spreads]
    return (
        row.name,
        _amount(row.before, row.unit),
        _amount(row.after, row.unit),
        f"{row.ratio:.2f}" if row.ratio is not None else "–",
        f"{' / '.join(spreads)} %",
        " / ".join(str(count) for count in row.counts),
        f"≤ {_amount(row.limit, row.unit)}" if row.limit is not None else "–",
        {None: "–", True: "met", False: "not met"}[row.is_met],
    )


def _amount(value: float | None, unit: str) -> str:
    if value is None:
        return "–"
    number = f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return f"{number} ×" if unit == "x" else f"{number} {unit}"


def document(found: Sequence[Row]) -> list[dict[str, Any]]:
    """The rows as JSON."""
    return [
        {
            "name": row.name,
            "unit": row.unit,
            "before": row.before,
            "after": row.after,
            "ratio": row.ratio,
            "spreads": row.spreads,
            "counts": row.counts,
            "limit": row.limit,
            "is_met": row.is_met,
        }
        for row in found
    ]
