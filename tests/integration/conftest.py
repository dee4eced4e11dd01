"""What tests of the runner share."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent_runner.workspace import Workspace
from tests.processes.runner import make_workspace


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    """The folders that a container has mounted, as the host makes them for its agent."""
    return make_workspace(tmp_path)
