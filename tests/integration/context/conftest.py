"""A group's context on a real disk, and what was told of its troubles."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.context.context_manager import ContextManager
from orchestrator.context.files import ContextRepair
from tests.support.filled_contexts import COUNTER


@pytest.fixture
def troubles() -> list[ContextRepair]:
    return []


@pytest.fixture
def manager(tmp_path: Path, troubles: list[ContextRepair]) -> ContextManager:
    return ContextManager.of(
        tmp_path / "context", "family", counter=COUNTER, project_name="Family", report=troubles.append
    )
