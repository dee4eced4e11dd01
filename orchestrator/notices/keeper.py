"""Ends notices whose time is over, sets free what nobody tells any more, forgets what ended long ago."""

from __future__ import annotations

import asyncio

import structlog

from orchestrator.base.clock import Clock
from orchestrator.base.event_bus import EventBus
from orchestrator.store import notice_claims, notices
from orchestrator.store.database import Database

log = structlog.get_logger(__name__)

SWEEP_SECONDS = 60.0
"""Nothing waits for it: what is over is told to no turn anyway."""


class NoticeKeeper:
    """Looks once a minute."""

    def __init__(self, database: Database, *, clock: Clock, bus: EventBus) -> None:
        self._database = database
        self._clock = clock
        self._bus = bus

    async def run(self) -> None:
        while True:
            await self.sweep()
            await asyncio.sleep(SWEEP_SECONDS)

    async def sweep(self) -> None:
        """Do it once, by the time that is now."""
        now_ms = self._clock.now_ms()
        async with self._database.transaction() as tx:
            freed = await notice_claims.free_stale(tx, now_ms=now_ms)
            expired = await notices.expire(tx, now_ms=now_ms)
            await notices.prune(tx, now_ms=now_ms)
        if freed:
            log.warning(
                "notices.set_free", count=freed, reason="their turns had ended without a word of them"
            )
        for kept in expired:
            self._bus.publish("notice.expired", group=kept.folder, detail=str(kept.id), reason=kept.reason)
