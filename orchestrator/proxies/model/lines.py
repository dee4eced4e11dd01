"""Warm connections to the model service, straight from this machine."""

from __future__ import annotations

import asyncio
import ssl
from collections import defaultdict
from dataclasses import dataclass

from orchestrator.proxies.model.limits import ModelProxyLimits
from orchestrator.proxies.model.line import UpstreamConnection, UpstreamOrigin

MAX_IDLE = 32


class UpstreamUnreachable(Exception):
    """There is no connection to be had."""


@dataclass(frozen=True, slots=True)
class _Idle:
    line: UpstreamConnection
    since: float


class ConnectionPool:
    """Connections that wait for their next request. How many are in use is not bounded here."""

    def __init__(self, limits: ModelProxyLimits, *, trust: ssl.SSLContext) -> None:
        self._limits = limits
        self._trust = trust
        self._idle: defaultdict[UpstreamOrigin, list[_Idle]] = defaultdict(list)

    async def take(self, origin: UpstreamOrigin) -> UpstreamConnection:
        """Return a connection to `origin`, the one used last if any waits. Raises `UpstreamUnreachable`."""
        oldest = asyncio.get_running_loop().time() - self._limits.pool_seconds
        waiting = self._idle[origin]
        while waiting:
            found = waiting.pop()
            if found.line.is_idle and found.since > oldest and not found.line.has_news:
                return found.line
            found.line.abort()
        return await self._connected(origin)

    def give_back(self, line: UpstreamConnection, origin: UpstreamOrigin) -> None:
        """Keep a connection for the next request, or drop it when it is not fit for one."""
        waiting = self._idle[origin]
        if not line.is_idle:
            line.abort()
            return
        waiting.append(_Idle(line, asyncio.get_running_loop().time()))
        if len(waiting) > MAX_IDLE:
            waiting.pop(0).line.abort()

    def close(self) -> None:
        """Drop those that wait."""
        for waiting in self._idle.values():
            for each in waiting:
                each.line.abort()
        self._idle.clear()

    async def _connected(self, origin: UpstreamOrigin) -> UpstreamConnection:
        try:
            async with asyncio.timeout(self._limits.connect_seconds):
                _, line = await asyncio.get_running_loop().create_connection(
                    lambda: UpstreamConnection(self._limits),
                    origin.host,
                    origin.port,
                    happy_eyeballs_delay=0.25,
                    ssl=self._trust if origin.is_secure else None,
                )
        except TimeoutError:
            raise UpstreamUnreachable("no connection in time") from None
        except (OSError, ssl.SSLError) as error:
            raise UpstreamUnreachable(str(error)) from error
        return line
