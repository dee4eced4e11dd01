"""The side of the model service: straight there, or by the proxy of this machine's environment."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.request import getproxies

from orchestrator.proxies.model import refusals
from orchestrator.proxies.model.answer import UpstreamRequest, UpstreamResponse
from orchestrator.proxies.model.detour import ProxiedUpstream
from orchestrator.proxies.model.limits import ModelProxyLimits
from orchestrator.proxies.model.refusals import ProxyRefused
from orchestrator.proxies.model.straight import DirectUpstream


class Upstream:
    """Sends orders. Opening it reads the CA file and blocks for some 50 ms; do so in a thread."""

    def __init__(self, limits: ModelProxyLimits) -> None:
        self._way: ProxiedUpstream | DirectUpstream = (
            ProxiedUpstream(limits) if getproxies() else DirectUpstream(limits)
        )

    @asynccontextmanager
    async def send(self, order: UpstreamRequest) -> AsyncIterator[UpstreamResponse]:
        """Send `order` and enter with its answer; leaving, also by cancellation, drops what is not read.

        Raises:
            Refused: no answer came. What `order.body` raises passes through.
        """
        async with self._way.send(order) as answer:
            if not 200 <= answer.status <= 599:
                raise ProxyRefused(refusals.BROKEN, cause=f"status {answer.status}")
            yield answer

    async def close(self) -> None:
        await self._way.close()
