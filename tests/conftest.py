"""What most tests stand on: a real database, a clock that is moved, stages around them."""

from __future__ import annotations

import gc
import subprocess
import warnings
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from orchestrator.store.database import Database
from tests.doubles.clock import FakeClock
from tests.support.household import Household

# How long an example takes says more of the machine than of the code. The same examples each time: what was
# seen to pass passes again; `make soak` looks for others.
settings.register_profile(
    "andy", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("soak", settings.get_profile("andy"), derandomize=False, max_examples=500)
settings.load_profile("andy")

collect_ignore_glob: list[str] = []
_without: list[str] = []

with warnings.catch_warnings():
    # neonize asks `uname` as it is imported and leaves the pipe open: one test at random would be blamed.
    warnings.simplefilter("ignore", ResourceWarning)
    try:
        import neonize  # noqa: F401
    except ImportError as error:
        collect_ignore_glob += ["*/test_whatsapp*", "*/integration/whatsapp/*", "*/test_channel_contract*"]
        _without.append(f"the tests of WhatsApp are left out: {error} (Debian: apt-get install libmagic1)")
    gc.collect()
    for left in subprocess._active[:]:  # type: ignore[attr-defined]
        left.wait()
        left.stdout.close()


def pytest_report_header() -> list[str]:
    return _without


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
