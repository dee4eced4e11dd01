"""Index messages that were stored before the search index existed, in the background, batch by batch."""

from __future__ import annotations

import asyncio

import structlog

from orchestrator.store.conversation import message_search
from orchestrator.store.database import Database

log = structlog.get_logger(__name__)

PAUSE_SECONDS = 0.02
"""Seconds between two batches, so that indexing uses less than half of the one connection that writes."""


async def fill_search_index(database: Database) -> None:
    """Index all stored messages for the search, batch by batch, from the newest to the oldest.

    If the host stops meanwhile, the next start continues.
    """
    batches = 0
    while True:
        async with database.reading() as tx:
            # The number of the oldest message that is indexed; messages are numbered from 1 on.
            if await message_search.indexed_from(tx) <= 1:
                break
        is_more = await database.write(message_search.fill)
        batches += 1
        if not is_more:
            break
        await asyncio.sleep(PAUSE_SECONDS)
    if batches:
        log.info("search_index.filled", batches=batches)
