"""Build the host's context around the store of a test."""

from __future__ import annotations

from pathlib import Path

from orchestrator.groups.host_context import HostContext
from orchestrator.home.directory import Home
from orchestrator.home.settings import Settings
from orchestrator.store.database import Database
from tests.support.store_harness import StoreHarness


def host_context(
    harness: StoreHarness,
    root: Path | None = None,
    settings: Settings | None = None,
    *,
    reader: Database | None = None,
) -> HostContext:
    """Return the context of a host on `root`, whose directories are made; without it nothing is on disk."""
    home = Home(root or Path("/nonexistent"))
    if root is not None:
        home.make()
    return HostContext(
        home=home,
        settings=settings or Settings(tz="Asia/Seoul"),
        clock=harness.clock,
        database=harness.database,
        reader=reader or harness.database,
        bus=harness.bus,
        wakeups=harness.wakeups,
    )
