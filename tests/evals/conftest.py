"""A group with a dashboard, and the workspace of its agent."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent_runner.workspace import Workspace
from tests.processes.runner import make_workspace
from tests.support.dashboard_harness import DashboardHarness
from tests.support.store_harness import StoreHarness


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return make_workspace(tmp_path / "workspace")


@pytest.fixture
def home(store_harness: StoreHarness) -> DashboardHarness:
    return DashboardHarness(store_harness)
