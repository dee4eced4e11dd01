"""A group with a dashboard of its own."""

from __future__ import annotations

import pytest

from tests.support.dashboard_harness import DashboardHouse
from tests.support.household import Household


@pytest.fixture
async def home(household: Household) -> DashboardHouse:
    await household.add_group("family")
    return DashboardHouse(household)
