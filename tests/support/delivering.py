"""Run the host's delivery of the outbox while a block of a test runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager

from orchestrator.base.clock import Clock
from orchestrator.base.event_bus import EventBus
from orchestrator.base.wakeups import Wakeup
from orchestrator.domain.protocols import Channel
from orchestrator.outbound.delivery import Delivery, DeliveryHooks
from orchestrator.store.database import Database


@asynccontextmanager
async def delivering(
    database: Database,
    channel: Channel,
    *,
    clock: Clock,
    wakeup: Wakeup,
    bus: EventBus,
    resends: Collection[str] = (),
    hooks: DeliveryHooks | None = None,
) -> AsyncIterator[Delivery]:
    """Send what waits in the outbox to one messenger. The block begins before anything is sent."""
    async with asyncio.TaskGroup() as tasks:
        delivery = Delivery(
            database,
            clock=clock,
            name="Andy",
            channel_for=lambda jid: channel if channel.owns(jid) else None,
            tasks=tasks,
            wakeup=wakeup,
            bus=bus,
            resends=resends,
            hooks=hooks,
        )
        running = tasks.create_task(delivery.run(), name="delivery")
        try:
            yield delivery
        finally:
            running.cancel()
