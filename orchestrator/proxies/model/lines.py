"""Warm connections to the model service, straight from this machine."""

from __future__ import annotations

import asyncio
import ssl
from collections import defaultdict
from dataclasses import dataclass

from orchestrator.proxies.model.limits import Limits
from orchestrator.proxies.model.line import Line, Origin

MAX_IDLE = 32


class Unreachable(Exception):
    """There is no connection to be had."""


@dataclass(frozen=True, slots=True)
class _Idle:
    line: Line
    since: float


class Lines:
    """Connections that wait for their next request. How many are in use is not bounded here."""

    def __init__(self, limits: Limits, *, trust: ssl.SSLContext) -> None:
        self._limits = limits
        self._trust = trust
        self._idle: defaultdict[Origin, list[_Idle]] = defaultdict(list)

    async def take(self, origin: Origin) -> Line:
        """Return a connection to `origin`, the one used last if any waits. Raises `Unreachable`."""
        oldest = asyncio.get_running_loop().time() - self._limits.pool_seconds
        waiting = self._idle[origin]
        while waiting:
            found = waiting.pop()
            if found.line.is_idle and found.since > oldest and not found.line.has_news:
                return found.line
            found.line.abort()
        return await self._connected(origin)

    def give_back(self, line: Line, origin: Origin) -> None:
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

    async def _connected(self, origin: Origin) -> Line:
        try:
            async with asyncio.timeout(self._limits.connect_seconds):
                _, line = await asyncio.get_running_loop().create_connection(
                    lambda: Line(self._limits),
                    origin.host,
                    origin.port,
                    happy_eyeballs_delay=0.25,
                    ssl=self._trust if origin.is_secure else None,
                )
        except TimeoutError:
            raise Unreachable("no connection in time") from None
        except (OSError, ssl.SSLError) as error:
            raise Unreachable(str(error)) from error
        return line
