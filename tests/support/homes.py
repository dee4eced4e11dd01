"""Make a home with groups before a host is started on it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path

from orchestrator.domain.values import Group
from orchestrator.groups import registration
from orchestrator.home.directory import Home
from orchestrator.store.database import Database


def furnish(root: Path, groups: Iterable[Group]) -> None:
    """Register `groups` in a home of its own making, main besides. The host must not run."""
    asyncio.run(_furnish(Home(root), groups))


async def _furnish(home: Home, groups: Iterable[Group]) -> None:
    await asyncio.to_thread(home.make)
    database = await Database.open(home.database)
    try:
        async with database.transaction() as tx:
            await registration.ensure_main(tx, now_ms=0)
            for group in groups:
                await registration.register(tx, group)
    finally:
        await database.close()
