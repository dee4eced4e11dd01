"""Build the undo of a host, and delete what is too old to be undone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from orchestrator.groups.host_context import HostContext
from orchestrator.store import turn_effects
from orchestrator.undo.requests import UndoRequests
from orchestrator.undo.service import UndoService

SWEEP_SECONDS = 3_600.0


class UndoFeature:
    """The undo ability of a host. One is made for a host."""

    def __init__(self, host: HostContext) -> None:
        self._host = host
        self.service = UndoService.of(host)
        self.requests = UndoRequests(self.service)

    def loops(self) -> dict[str, Callable[[], Any]]:
        """Return the loops to supervise by their names."""
        return {"undo": self.run}

    async def run(self) -> None:
        """Delete what is too old, every hour."""
        while True:
            expire = partial(turn_effects.expire, now_ms=self._host.clock.now_ms())
            await self._host.database.write(expire)
            await asyncio.sleep(SWEEP_SECONDS)
