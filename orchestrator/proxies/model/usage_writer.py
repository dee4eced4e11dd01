"""Store the proxy's usage and audit rows in batches, so that no request waits for a commit."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from orchestrator.base.clock import Clock
from orchestrator.base.wakeups import Wakeup
from orchestrator.proxies.model.exchange import Denial, ProxyExchange, RunIdentity
from orchestrator.proxies.model.token_usage import Prices
from orchestrator.store import audit
from orchestrator.store.database import Database, Tx
from orchestrator.store.money import usage

log = structlog.get_logger(__name__)

MAX_WAITING = 5_000
"""Rows that may wait for the database before requests are refused, because uncounted ones may not pass."""
SWEEP_SECONDS = 30.0

Settle = Callable[[Sequence[usage.UsageEntry]], Awaitable[None]]
"""Acts on entries that were just stored."""


@dataclass(frozen=True, slots=True)
class _Row:
    event: audit.AuditEvent
    entry: usage.UsageEntry | None = None


def _ignore(entry: usage.UsageEntry) -> None:
    """Do nothing: entries are only stored."""


class UsageWriter:
    """Notes entries at once and stores them a moment later. `waiting` are the unstored ones."""

    def __init__(
        self,
        database: Database,
        *,
        clock: Clock,
        on_entry: Callable[[usage.UsageEntry], None] = _ignore,
        on_stored: Callable[[], None] = lambda: None,
        settle: Settle | None = None,
        prices: Prices | None = None,
    ) -> None:
        """`on_entry` gets each entry as it is noted; `on_stored` is called once some are in the audit.

        `settle` acts on the entries that were just stored. `prices` are the list's by default.
        """
        self._prices = prices or Prices()
        self._database = database
        self._clock = clock
        self._on_entry = on_entry
        self._on_stored = on_stored
        self._settle = settle
        self._rows: list[_Row] = []
        self._wakeup = Wakeup()
        self._writing = asyncio.Lock()

    @property
    def waiting(self) -> list[usage.UsageEntry]:
        """The entries that are not stored yet."""
        return [row.entry for row in self._rows if row.entry is not None]

    @property
    def is_behind(self) -> bool:
        """Return whether so many entries wait for the database that requests must be refused."""
        return len(self._rows) > MAX_WAITING

    def exchanged(self, identity: RunIdentity, exchange: ProxyExchange) -> None:
        """Note a request that was sent to the upstream."""
        now_ms = self._clock.now_ms()
        detail = {
            "path": exchange.path,
            "status": exchange.status,
            "ending": exchange.ending,
            "ms": exchange.duration_ms,
            "bytes_in": exchange.bytes_in,
            "bytes_out": exchange.bytes_out,
            "model": exchange.usage.model if exchange.usage else None,
            "service": identity.service_name,
        }
        entry = self._entry(identity, exchange, now_ms)
        self._add_row(_Row(_event("api.request", identity, detail, now_ms), entry))
        for number in range(1, (entry.searches if entry else 0) + 1):
            search = {"model": detail["model"], "number": number}
            self._add_row(_Row(_event("web.search", identity, search, now_ms)))
        if entry is not None:
            self._on_entry(entry)

    def denied(self, identity: RunIdentity | None, denial: Denial) -> None:
        """Note a request that was refused here. `identity` is the run that asked; None if it is not known."""
        detail = {
            "path": denial.path,
            "peer": denial.peer,
            "status": denial.refusal.status,
            "error": denial.refusal.kind,
            "reason": denial.refusal.message,
            "unlogged": denial.unlogged,
        }
        self._add_row(_Row(_event("api.refused", identity, detail, self._clock.now_ms())))

    def note(self, event: audit.AuditEvent, entry: usage.UsageEntry | None = None) -> None:
        """Note another event for the audit, with its cost if it has one."""
        self._add_row(_Row(event, entry))
        if entry is not None:
            self._on_entry(entry)

    async def run(self) -> None:
        """Store noted entries whenever there are some. After a failure they stay for the next time."""
        while True:
            await self.flush()
            # Rows that are left could not be stored, and are tried again; without any, only a new one can
            # matter.
            await self._wakeup.wait(at_most_seconds=SWEEP_SECONDS if self._rows else None)

    async def flush(self) -> None:
        """Store all rows noted until now, then call `on_stored`, and `settle` with the entries among them.

        Raises `StoreError`.
        """
        async with self._writing:
            # Rows may be added while the batch is written; only those of the batch are removed afterwards.
            batch = list(self._rows)
            if not batch:
                return
            await _finish_despite_cancellation(self._store(batch))
        self._on_stored()
        entries = [row.entry for row in batch if row.entry is not None]
        if entries and self._settle is not None:
            await self._settle(entries)

    async def _store(self, batch: Sequence[_Row]) -> None:
        """Store a batch of rows, and forget them."""
        async with self._database.transaction() as tx:
            await _append_rows(tx, batch)
        del self._rows[: len(batch)]

    def _entry(self, identity: RunIdentity, exchange: ProxyExchange, now_ms: int) -> usage.UsageEntry | None:
        """Return the usage of an exchange with its cost; None if its answer reported none."""
        parsed_usage = exchange.usage
        if parsed_usage is None:
            return None
        cost = self._prices.cost_at(identity.service, parsed_usage)
        return usage.UsageEntry(
            at_ms=now_ms,
            folder=identity.folder,
            run_id=identity.run_id,
            turn_id=identity.turn_id,
            kind=identity.kind,
            task_id=identity.task_id,
            model=parsed_usage.model,
            input_tokens=parsed_usage.input_tokens,
            output_tokens=parsed_usage.output_tokens,
            cache_read_tokens=parsed_usage.cache_read_tokens,
            cache_write_tokens=parsed_usage.cache_write_tokens,
            searches=parsed_usage.searches,
            service=identity.service.name if identity.service is not None else None,
            is_subagent=exchange.is_subagent,
            cost_nano_usd=cost.nano_usd,
            is_assumed=cost.is_assumed,
            is_whole=parsed_usage.is_whole,
        )

    def _add_row(self, row: _Row) -> None:
        """Add a row to those that wait, and wake the loop that stores them."""
        self._rows.append(row)
        self._wakeup.set()


async def _finish_despite_cancellation(work: Coroutine[Any, Any, None]) -> None:
    """Finish `work` even when cancelled meanwhile: a commit counts even if nobody waits for it."""
    task = asyncio.create_task(work, name="usage-writer-store")
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        if task.exception() is not None:
            log.warning("usage.not_stored", reason=str(task.exception()))
        raise


async def _append_rows(tx: Tx, batch: Sequence[_Row]) -> None:
    """Append rows to the audit, and their entries to the usage."""
    for row in batch:
        await audit.append(tx, row.event)
        if row.entry is not None:
            await usage.add(tx, row.entry)


def _event(kind: str, identity: RunIdentity | None, detail: dict[str, Any], now_ms: int) -> audit.AuditEvent:
    """Return an event of the audit about a run; None if the run is not known."""
    return audit.AuditEvent(
        at_ms=now_ms,
        kind=kind,
        folder=identity.folder if identity else None,
        run_id=identity.run_id if identity else None,
        turn_id=identity.turn_id if identity else None,
        detail=detail,
    )
