"""A disk that takes no writes for a while."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from orchestrator.store.database import Database


@asynccontextmanager
async def read_only(database: Database) -> AsyncIterator[None]:
    """Let SQLite refuse every write of a database within the block, as on a disk that became read-only."""
    await _refuse_writes(database, is_refusing=True)
    try:
        yield
    finally:
        await _refuse_writes(database, is_refusing=False)


async def _refuse_writes(database: Database, *, is_refusing: bool) -> None:
    async with database.reading() as tx:
        await tx.execute(f"PRAGMA query_only = {int(is_refusing)}")
