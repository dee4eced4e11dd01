"""Test how the skill that draws charts writes numbers."""

from __future__ import annotations

import pytest

from orchestrator.groups.shipped_skills.chart.draw import number


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
    ],
)
def test_a_number_has_no_point_without_decimals(value, text):
    assert number(value) == text
