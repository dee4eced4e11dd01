"""A group with a dashboard of its own."""

from __future__ import annotations

import pytest

from tests.support.dashboard_harness import DashboardHarness
from tests.support.store_harness import StoreHarness


@pytest.fixture
async def home(store_harness: StoreHarness) -> DashboardHarness:
    await store_harness.add_group("family")
    return DashboardHarness(store_harness)
