"""Collects the facts of the running host that the store does not know, and adds them to its status."""

from __future__ import annotations

import asyncio
import shutil
from typing import Any

from orchestrator import __version__
from orchestrator.channels.registry import Channels
from orchestrator.containers.feature import ContainersFeature
from orchestrator.groups.host_context import HostContext
from orchestrator.proxies.feature import ContainerProxies
from orchestrator.queue.feature import QueueFeature
from orchestrator.reports.status import HostFacts, gather
from orchestrator.store import groups


class StatusService:
    """Answers `GET /status` and `andy status`."""

    def __init__(
        self,
        host: HostContext,
        *,
        started_ms: int,
        containers: ContainersFeature,
        proxies: ContainerProxies,
        queue: QueueFeature,
        channels: Channels,
    ) -> None:
        """`started_ms` is when the host began to start, in epoch milliseconds."""
        self._host = host
        self._started_ms = started_ms
        self._containers = containers
        self._proxies = proxies
        self._queue = queue
        self._channels = channels

    async def status(self) -> dict[str, Any]:
        """Return what runs, waits and is stuck, as JSON types."""
        settings, clock, selected = self._host.settings, self._host.clock, self._containers.selected
        home = self._host.home.root
        free_bytes = (await asyncio.to_thread(shutil.disk_usage, home)).free
        credential = await asyncio.to_thread(self._proxies.credential)
        has_engine = await selected.has_engine()
        channel_states = {channel.name: channel.status() for channel in self._channels.all}
        async with self._host.database.reading() as tx:
            first = next(iter(await groups.every(tx)), None)
            # What the setting 'auto' means cannot be said while the credential cannot be read.
            is_known = not credential.problem
            facts = HostFacts(
                version=__version__,
                home=str(home),
                runtime=selected.runtime.name,
                is_isolated=selected.runtime.is_isolated,
                image=selected.image,
                agent=self._containers.orders.agent(first) if first and is_known else settings.andy_agent,
                credential=credential,
                slots=settings.max_concurrent_containers,
                live=self._containers.pool.live(),
                is_stopping=not self._queue.is_taking_work,
                started_ms=self._started_ms,
                now_ms=clock.now_ms(),
                steady_ms=clock.steady_ms(),
                disk_free_bytes=free_bytes,
                channels={name: state for name, state in channel_states.items() if state},
                has_engine=has_engine,
            )
            return await gather(tx, facts)
