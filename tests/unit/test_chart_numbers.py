"""Test how the skill that draws charts writes numbers, and what it refuses."""

from __future__ import annotations

import re

import pytest

from orchestrator.groups.shipped_skills.chart.draw import WIDTH, BadChart, number, svg_of


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (3.0, "3"),
        (3.001, "3"),
        (3.5, "3.5"),
        (0.25, "0.25"),
        (99.999, "100"),
        (1234.5, "1,234"),
        (120, "120"),
        (0.002, "0.002"),
        (0.0125, "0.0125"),
        (-0.00007, "-7e-05"),
    ],
)
def test_a_number_has_no_point_without_decimals(value, text):
    assert number(value) == text


@pytest.mark.parametrize(
    ("unit", "value"), [("minutes per day", 3), ("€" * 300, 12_000_000_000), ("", -0.0037)]
)
def test_no_label_of_an_axis_leaves_the_picture(unit, value):
    svg = svg_of({"unit": unit, "labels": ["x"], "series": {"a": [value]}})
    texts = re.findall(
        r'<text x="([\d.]+)" [^>]*font-size="([\d.]+)" text-anchor="(start|end)">([^<]*)<', svg
    )
    assert len(texts) > 3
    for x, size, anchor, words in texts:
        # A digit of the font is 0.55 of its height wide, a wide letter about one height.
        width = float(size) * sum(0.55 if character in "0123456789,.-" else 1 for character in words)
        left, right = (float(x), float(x) + width) if anchor == "start" else (float(x) - width, float(x))
        assert left >= 0, words
        assert right <= WIDTH, words


@pytest.mark.parametrize(
    "chart",
    [
        {"series": {"x": [1]}, "kind": ["bar"]},
        {"series": {"x": [1]}, "kind": {}},
        {"series": {"x": [10**400]}},
        {"series": {"x": [1.7e308], "y": [-1.7e308]}},
    ],
)
def test_a_chart_that_cannot_be_drawn_is_refused(chart):
    with pytest.raises(BadChart):
        svg_of({"labels": ["a"], **chart})


def test_the_smallest_numbers_are_drawn():
    assert "<svg" in svg_of({"labels": ["a"], "series": {"x": [5e-324]}})
