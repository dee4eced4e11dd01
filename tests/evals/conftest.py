"""A group with a dashboard, and the workspace of its agent."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent_runner.workspace import Workspace
from tests.processes.runner import make_workspace
from tests.support.dashboard_harness import DashboardHouse
from tests.support.household import Household


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return make_workspace(tmp_path / "workspace")


@pytest.fixture
def home(household: Household) -> DashboardHouse:
    return DashboardHouse(household)
