"""A group with a dashboard of its own."""

from __future__ import annotations

import pytest

from tests.fakes.dashboard_house import DashboardHouse
from tests.fakes.household import Household


@pytest.fixture
async def home(household: Household) -> DashboardHouse:
    await household.add_group("family")
    return DashboardHouse(household)
