"""The figures as a table for people and as JSON for comparisons."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.figures import Check, Figure, Series
from benchmarks.places import PROJECT

RESULTS = Path(__file__).parent / "results"
HEADINGS = ("", "p10", "median", "p99", "middle half", "spread", "ratio", "n", "")


def table(figures: Iterable[Figure]) -> str:
    """All figures: a line a series, a line a target."""
    lines: list[str] = []
    for figure in figures:
        lines += ["", figure.name, *_rows(figure)]
        lines += [_check_line(check) for check in figure.checks]
    return "\n".join(lines)


def _rows(figure: Figure) -> list[str]:
    rows = [HEADINGS, *(_row(series, floor=figure.floor) for series in figure.series)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADINGS))]
    return ["  " + "  ".join(_aligned(row, widths)).rstrip() for row in rows]


def _aligned(row: Sequence[str], widths: Sequence[int]) -> list[str]:
    first, *others = zip(row, widths, strict=True)
    return [first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)]


def _row(series: Series, *, floor: Series | None) -> tuple[str, ...]:
    middle = f"{_number(series.quantile(0.25))} to {_number(series.quantile(0.75))}"
    name = f"{series.name}, {series.unit}"
    return (
        name,
        _number(series.quantile(0.1)),
        _number(series.median),
        _number(series.p99),
        middle,
        f"{100 * series.spread:.0f} %",
        _ratio(series, floor),
        str(len(series.values)),
        "noisy" if series.is_noisy else "",
    )


def _ratio(series: Series, floor: Series | None) -> str:
    """How many times the floor that was measured beside it."""
    if floor is None or series is floor or series.unit != floor.unit or not floor.median:
        return ""
    return f"{series.median / floor.median:.2f}"


def _check_line(check: Check) -> str:
    word = "met   " if check.is_met else "MISSED"
    unit = "" if check.unit == "x" else f" {check.unit}"
    return f"  {word} {check.what}: {_number(check.value)}{unit} (target: at most {check.limit:g}{unit})"


def _number(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def save(figures: Sequence[Figure]) -> Path:
    """Write all values beside what they were measured on."""
    return write({"machine": machine(), "figures": [document(figure) for figure in figures]})


def write(content: Mapping[str, Any]) -> Path:
    """Write a document of results under the time of now."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{time.strftime('%Y%m%dT%H%M%S')}.json"
    path.write_text(json.dumps(content, indent=1), encoding="utf-8")
    return path


def machine() -> dict[str, Any]:
    return {
        "commit": _commit(),
        "python": platform.python_version(),
        "system": platform.platform(),
        "cores": os.cpu_count(),
        "load": os.getloadavg(),
    }


def load() -> str:
    """The machine's load of the last 1, 5 and 15 minutes."""
    return ", ".join(f"{value:.1f}" for value in os.getloadavg())


def _commit() -> str | None:
    asked = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=PROJECT, capture_output=True, text=True, check=False
    )
    return asked.stdout.strip() or None


def document(figure: Figure) -> dict[str, Any]:
    """A figure as JSON."""
    return {
        "name": figure.name,
        "floor": figure.floor.name if figure.floor else None,
        "series": [
            {
                "name": series.name,
                "unit": series.unit,
                "p10": series.quantile(0.1),
                "median": series.median,
                "p99": series.p99,
                "spread": series.spread,
                "is_noisy": series.is_noisy,
                "values": series.values,
            }
            for series in figure.series
        ],
        "checks": [
            {
                "what": check.what,
                "value": check.value,
                "limit": check.limit,
                "unit": check.unit,
                "is_met": check.is_met,
            }
            for check in figure.checks
        ],
    }
