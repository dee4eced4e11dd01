"""Learns how models count tokens, from answers that were text alone: joins the ledger with the counter."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from orchestrator.base.clock import Clock
from orchestrator.base.event_bus import EventBus
from orchestrator.context.tokens import TokenCounter, TokenFactors
from orchestrator.store import usage
from orchestrator.store.database import Database

LEDGER_MS = 5_000
"""By then the ledger has all of a turn that ended."""


class TokenCalibration:
    """Made once for a host."""

    def __init__(
        self, database: Database, *, factors: TokenFactors, counter: TokenCounter, clock: Clock, bus: EventBus
    ) -> None:
        self._database = database
        self._factors = factors
        self._counter = counter
        self._clock = clock
        self._bus = bus
        self._learned_to_ms = clock.now_ms()

    async def run(self) -> None:
        """Learn from the turns before it whenever one was answered."""
        with self._bus.listening("turn.answered") as events:
            while True:
                await events.get()
                await self.learn()

    async def learn(self) -> None:
        """Learn from each turn that ended since the last time, if not a moment ago."""
        until_ms = self._clock.now_ms() - LEDGER_MS
        async with self._database.reading() as tx:
            found = await usage.plain_answers(tx, since_ms=self._learned_to_ms, until_ms=until_ms)
        await asyncio.to_thread(self._take, found)
        self._learned_to_ms = max(self._learned_to_ms, until_ms)

    def _take(self, found: Sequence[usage.PlainAnswer]) -> None:
        for one in found:
            self._factors.learn(one.model, counted=self._counter.count(one.text), reported=one.output_tokens)
