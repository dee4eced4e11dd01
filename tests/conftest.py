"""What most tests stand on: a real database, a clock that is moved, stages around them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from orchestrator.store.database import Database
from tests.fakes.clock import FakeClock
from tests.fakes.household import Household


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def database_path(tmp_path: Path) -> Path:
    return tmp_path / "store" / "messages.db"


@pytest.fixture
async def database(database_path: Path) -> AsyncIterator[Database]:
    opened = await Database.open(database_path)
    yield opened
    await opened.close()


@pytest.fixture
def household(database: Database, clock: FakeClock) -> Household:
    """No group is registered in it yet."""
    return Household(database, clock)
