"""Print the table of docs/security.md: `make containment`."""

from __future__ import annotations

import asyncio
import logging
import sys
import tempfile
import types
from pathlib import Path

import structlog

REPOSITORY = Path(__file__).parents[2]
if __name__ == "__main__":
    # A package of a library is called `tests`, too: ours has no name unless pytest gives it one.
    sys.path.insert(0, str(REPOSITORY))
    tests = types.ModuleType("tests")
    tests.__path__ = [str(REPOSITORY / "tests")]
    sys.modules["tests"] = tests

from orchestrator.store.database import Database  # noqa: E402
from tests.containment import harness  # noqa: E402
from tests.containment.andy import andy  # noqa: E402
from tests.containment.settings import HEAD, SETTINGS, row  # noqa: E402
from tests.doubles.clock import FakeClock  # noqa: E402
from tests.support.store_harness import StoreHarness  # noqa: E402


async def _print_table() -> None:
    print(HEAD)
    for (_, way), setting in SETTINGS.items():
        with tempfile.TemporaryDirectory() as place:
            path = Path(place) / "store" / "messages.db"
            path.parent.mkdir()
            database = await Database.open(path)
            async with andy(
                setting, StoreHarness(database, FakeClock()), path, Path(place) / "home"
            ) as system:
                outcomes = await harness.measure(system, harness.tasks(), injected_by=way)
                print(row(setting, way, outcomes), flush=True)
            await database.close()


if __name__ == "__main__":
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    asyncio.run(_print_table())
