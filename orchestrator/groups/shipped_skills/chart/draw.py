"""Draw a chart of numbers, or an SVG, as a PNG: `draw.py chart.json|picture.svg picture.png`."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import resvg_py

WIDTH, HEIGHT = 1000, 620
LEFT, RIGHT, TOP, BOTTOM = 90, 960, 110, 540
LEGEND_TOP, LEGEND_SQUARE = 580, 16
"""The top of the legend, and the width of the square with the colour of a series, in pixels."""
COLOURS = ("#2a6f97", "#e07a5f", "#81b29a", "#f2cc8f", "#6d597a", "#8d99ae")
FONTS = Path("/usr/share/fonts/truetype/nanum")
MAX_LABELS = 60
"""Most labels of a chart, and so most numbers of a series."""
MAX_NUMBER = 1e300
"""The largest number of a chart, up or down: the differences and quotients of two are computed, too."""


class BadChart(Exception):
    """The chart cannot be drawn; the text gives the reason."""


def main() -> int:
    """Draw the chart that the command line names, and return the exit code."""
    if len(sys.argv) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    source, target = Path(sys.argv[1]), Path(sys.argv[2])
    try:
        svg = source.read_text("utf-8")
        if source.suffix == ".json":
            svg = svg_of(json.loads(svg))
        fonts = [str(path) for path in sorted(FONTS.glob("*.ttf"))]
        target.write_bytes(bytes(resvg_py.svg_to_bytes(svg_string=svg, font_files=fonts or None)))
    except (OSError, ValueError, ArithmeticError, BadChart, RuntimeError) as error:
        print(f"It cannot be drawn: {error}", file=sys.stderr)
        return 1
    print(f"{target}: {target.stat().st_size:,} bytes")
    return 0


def svg_of(chart: object) -> str:
    """Return a chart as SVG.

    `chart` is an object with `labels` and `series`, and perhaps `kind` (a key of `DRAWN`; else `bar`),
    `title` and `unit`.
    Raises `BadChart` if it cannot be drawn.
    """
    if not isinstance(chart, dict):
        raise BadChart("it has to be an object with kind, labels and series")
    labels, series = checked(chart)
    kind = chart.get("kind", "bar")
    if not isinstance(kind, str) or kind not in DRAWN:
        raise BadChart(f"kind has to be one of {', '.join(DRAWN)}")
    body = DRAWN[kind](labels, series, str(chart.get("unit", "")))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}"'
        ' font-family="NanumGothic, sans-serif">'
        f'<rect width="100%" height="100%" fill="white"/>'
        f"{text(WIDTH / 2, 50, str(chart.get('title', '')), size=30)}{body}</svg>"
    )


def checked(chart: dict[str, Any]) -> tuple[list[str], dict[str, list[float]]]:
    """Return the labels of a chart, and its series: lists of numbers by name, one number for each label.

    Raises `BadChart` if they are not of this form.
    """
    labels, series = chart.get("labels"), chart.get("series")
    if not isinstance(labels, list) or not 0 < len(labels) <= MAX_LABELS:
        raise BadChart(f"labels has to be a list of 1 to {MAX_LABELS}")
    if not isinstance(series, dict) or not 0 < len(series) <= len(COLOURS):
        raise BadChart(f"series has to be an object of 1 to {len(COLOURS)} lists")
    for name, values in series.items():
        if not isinstance(values, list) or len(values) != len(labels):
            raise BadChart(f"'{name}' has to have {len(labels)} numbers, one for each label")
        # Of no number (NaN), the comparison is false, too.
        if not all(type(value) in (int, float) and abs(value) <= MAX_NUMBER for value in values):
            raise BadChart(f"'{name}' has something that is no number, or one beyond {MAX_NUMBER:g}")
    return [str(label) for label in labels], series


def text(x: float, y: float, words: str, *, size: float = 20, anchor: str = "middle") -> str:
    """Return words as an SVG element.

    `x` and `y` are the position in pixels of its `anchor`: the "start", "middle" or "end" of the words.
    `size` is the height of the font in pixels.
    """
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size:.4g}" text-anchor="{anchor}">{escape(words)}</text>'
    )


def number(value: float) -> str:
    """Return a number with commas between thousands: whole from 100 on, else with two decimals at most.

    Below 1 it has three significant digits at most, so that a share such as 0.002 is not 0.
    """
    if abs(value) >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) < 1 else f"{value:.2f}".rstrip("0").rstrip(".")


def scale(series: dict[str, list[float]]) -> tuple[float, float, float]:
    """Return the lowest and the highest value of the vertical axis, and the step between its grid lines.

    All numbers of `series` and the zero are on the axis.
    """
    values = [0.0, *(value for values_of_series in series.values() for value in values_of_series)]
    low, high = min(values), max(values)
    span = high - low
    if span < 1 / MAX_NUMBER:  # zero, or too small for a quarter of it to be a number
        span = 1.0
    # The smallest round step (1, 2, 2.5 or 5 times a power of ten) that divides the span into at most five.
    # One of the factors always does, because the power is at most a quarter of the span.
    power = 10 ** math.floor(math.log10(span / 4))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if span / (factor * power) <= 5)
    # The top is never zero: if all numbers are zero, the axis would have no height.
    return math.floor(low / step) * step, math.ceil(high / step) * step or step, step


def axes(labels: list[str], series: dict[str, list[float]], unit: str) -> tuple[str, float, float]:
    """Return the SVG of grid, labels and legend, the value at the bottom, and the pixels for a value of 1.

    `unit` is the name of the values' unit, whose first 50 characters are written above the axis; it may be
    empty.
    """
    low, high, step = scale(series)
    factor = (BOTTOM - TOP) / (high - low)
    parts = []
    values = [low + index * step for index in range(round((high - low) / step) + 1)]
    # A digit is a little more than half as wide as high: long numbers are written smaller, to fit.
    size = min(16, (LEFT - 8) / (0.6 * max(len(number(value)) for value in values)))
    for value in values:
        y = BOTTOM - (value - low) * factor
        parts.append(f'<line x1="{LEFT}" x2="{RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(text(LEFT - 8, y + 6, number(value), size=size, anchor="end"))
    every = max(1, math.ceil(len(labels) / 12))  # no more than 12 labels are written
    for index, label in enumerate(labels):
        if index % every == 0:
            parts.append(text(centre(index, labels), BOTTOM + 28, label[:14], size=16))
    if unit:
        parts.append(text(8, TOP - 20, unit[:50], size=16, anchor="start"))
    return "".join(parts) + legend(series), low, factor


def centre(index: int, labels: list[str]) -> float:
    """Return the horizontal position, in pixels, of the middle of a label's part of the axis."""
    return LEFT + (RIGHT - LEFT) * (index + 0.5) / len(labels)


def legend(series: dict[str, list[float]]) -> str:
    """Return the SVG of the names of several series with their colours; empty for a single series."""
    if len(series) < 2:
        return ""
    parts = []
    for index, name in enumerate(series):
        x = LEFT + index * (RIGHT - LEFT) / len(series)
        square = f'width="{LEGEND_SQUARE}" height="{LEGEND_SQUARE}"'
        parts.append(f'<rect x="{x:.1f}" y="{LEGEND_TOP}" {square} fill="{COLOURS[index]}"/>')
        parts.append(text(x + LEGEND_SQUARE + 8, LEGEND_TOP + 15, name[:20], size=16, anchor="start"))
    return "".join(parts)


def bars(labels: list[str], series: dict[str, list[float]], unit: str) -> str:
    """Return the SVG of a bar chart, with the bars of several series side by side.

    `series` has a number for each of the `labels`; `unit` is the name of the numbers' unit, perhaps empty.
    Values are written at the bars if there are at most 16 bars.
    """
    frame, low, factor = axes(labels, series, unit)
    width = (RIGHT - LEFT) / len(labels) * 0.8 / len(series)
    zero = BOTTOM + low * factor
    parts = []
    for place, values in enumerate(series.values()):
        for index, value in enumerate(values):
            x = centre(index, labels) + (place - len(series) / 2) * width
            y, height = min(zero, zero - value * factor), abs(value) * factor
            parts.append(
                f'<rect x="{x:.1f}" y="{y:.1f}" width="{width * 0.95:.1f}" height="{height:.1f}"'
                f' fill="{COLOURS[place]}"/>'
            )
            if len(labels) * len(series) <= 16:
                parts.append(text(x + width / 2, y - 6, number(value), size=15))
    return frame + "".join(parts)


def lines(labels: list[str], series: dict[str, list[float]], unit: str) -> str:
    """Return the SVG of a line chart with a line for each series.

    `series` has a number for each of the `labels`; `unit` is the name of the numbers' unit, perhaps empty.
    """
    frame, low, factor = axes(labels, series, unit)
    parts = []
    for place, values in enumerate(series.values()):
        points = [
            f"{centre(index, labels):.1f},{BOTTOM - (value - low) * factor:.1f}"
            for index, value in enumerate(values)
        ]
        parts.append(
            f'<polyline points="{" ".join(points)}" fill="none" stroke="{COLOURS[place]}" stroke-width="4"/>'
        )
    return frame + "".join(parts)


def pie(labels: list[str], series: dict[str, list[float]], unit: str) -> str:
    """Return the SVG of a pie chart of one series, with a legend of its shares.

    `series` has a number for each of the `labels`; `unit` is the name of the numbers' unit, perhaps empty.

    Raises `BadChart` if the numbers cannot be shown as shares.
    """
    values = next(iter(series.values()))
    total = sum(values)
    if len(series) > 1 or len(values) > len(COLOURS) or min(values) < 0 or total <= 0:
        raise BadChart(f"a pie shows one series of at most {len(COLOURS)} numbers, none below zero")
    parts, angle = [], -math.pi / 2
    for index, value in enumerate(values):
        share = value / total
        # An SVG arc of a whole circle ends where it starts, and would not be drawn.
        reach = min(share, 0.99999) * 2 * math.pi
        ends = [
            f"{330 + 210 * math.cos(end):.2f} {325 + 210 * math.sin(end):.2f}"
            for end in (angle, angle + reach)
        ]
        parts.append(
            f'<path d="M330 325 L{ends[0]} A210 210 0 {int(share > 0.5)} 1 {ends[1]} Z"'
            f' fill="{COLOURS[index]}" stroke="white" stroke-width="2"/>'
        )
        y = 190 + index * 50
        parts.append(f'<rect x="600" y="{y}" width="22" height="22" fill="{COLOURS[index]}"/>')
        words = f"{labels[index][:18]}: {number(value)}{f' {unit}' if unit else ''} ({share:.0%})"
        parts.append(text(634, y + 18, words, anchor="start"))
        angle += share * 2 * math.pi
    return "".join(parts)


DRAWN = {"bar": bars, "line": lines, "pie": pie}

if __name__ == "__main__":
    raise SystemExit(main())
