"""Loops whose next wake is known, in a host without containers whose clock is moved."""

from __future__ import annotations

import pytest

from tests.support.loop_harness import MINUTE, LoopHarness, at


@pytest.fixture
def loop_harness(store_harness) -> LoopHarness:
    harness = LoopHarness(store_harness)
    harness.set("10:00:00")
    return harness


@pytest.fixture
async def idle(loop_harness):
    """A loop whose last cycle began at 09:59:00 and ended at 10:00:00; it sleeps until 10:20:00."""
    await loop_harness.on(
        last_start_ms=at("09:59:00"),
        last_end_ms=at("10:00:00"),
        next_wake_ms=at("10:20:00"),
        wake_set_by="auto",
        auto_interval_ms=20 * MINUTE,
    )
    return loop_harness


@pytest.fixture
async def due(loop_harness):
    """A loop whose wake is due at 10:00:00."""
    await loop_harness.on(
        next_wake_ms=at("10:00:00"), wake_set_by="auto", wake_reason="after 5 min by itself"
    )
    return loop_harness
