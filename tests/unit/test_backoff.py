"""Tests of the pauses between attempts at something that fails again and again."""

from __future__ import annotations

import pytest

from orchestrator.base.backoff import doubled_pause


@pytest.mark.parametrize(("failures", "pause"), [(1, 2), (2, 4), (3, 8), (8, 256), (9, 300), (5_000, 300)])
def test_a_pause_doubles_with_each_failure_up_to_the_longest(failures: int, pause: float) -> None:
    assert doubled_pause(2.0, 300.0, failures=failures) == pause
