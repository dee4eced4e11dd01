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
"""Seconds between two looks at rows that still wait."""

OnUsageStored = Callable[[Sequence[usage.UsageEntry]], Awaitable[None]]
"""Awaited with the entries that were just stored."""


@dataclass(frozen=True, slots=True)
class _Row:
    """A row for the audit, with the usage that belongs to it, if any."""

    event: audit.AuditEvent
    entry: usage.UsageEntry | None = None


def _ignore(entry: usage.UsageEntry) -> None:
    """Do nothing, in place of `on_entry`."""


class UsageWriter:
    """Takes rows of the audit and of usage at once, and stores them a moment later."""

    def __init__(
        self,
        database: Database,
        *,
        clock: Clock,
        on_entry: Callable[[usage.UsageEntry], None] = _ignore,
        on_stored: Callable[[], None] = lambda: None,
        on_usage_stored: OnUsageStored | None = None,
        prices: Prices | None = None,
    ) -> None:
        """Build the writer; `run` stores the rows.

        Args:
            database: stores the rows.
            clock: the host's clock.
            on_entry: called with the usage of each answer as it is noted.
            on_stored: called after rows were stored in the audit.
            on_usage_stored: awaited with the usage that was just stored.
            prices: the prices by which costs are estimated; the built-in list by default.
        """
        self._prices = prices or Prices()
        self._database = database
        self._clock = clock
        self._on_entry = on_entry
        self._on_stored = on_stored
        self._on_usage_stored = on_usage_stored
        self._rows: list[_Row] = []
        """The rows that are not stored yet, the oldest first."""
        self._wakeup = Wakeup()
        self._writing = asyncio.Lock()

    @property
    def waiting(self) -> list[usage.UsageEntry]:
        """The usage that is not stored yet."""
        return [row.entry for row in self._rows if row.entry is not None]

    @property
    def is_behind(self) -> bool:
        """Whether so many rows wait for the database that requests must be refused."""
        return len(self._rows) > MAX_WAITING

    def note_exchange(self, identity: RunIdentity, exchange: ProxyExchange) -> None:
        """Note a request that was passed to a model service, for the audit and the usage.

        Each web search that the service made for it gets a row of its own in the audit.
        """
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
        searches = entry.searches if entry else 0
        for number in range(1, searches + 1):
            search = {"model": detail["model"], "number": number}
            self._add_row(_Row(_event("web.search", identity, search, now_ms)))
        if entry is not None:
            self._on_entry(entry)

    def note_denial(self, identity: RunIdentity | None, denial: Denial) -> None:
        """Note a request that the proxy has refused, for the audit.

        `identity` is the run that sent it; None if that is not known.
        """
        detail = {
            "path": denial.path,
            "peer": denial.peer,
            "status": denial.refusal.status,
            "error": denial.refusal.kind,
            "reason": denial.refusal.message,
            "unlogged": denial.unlogged,  # the number of similar refusals before it that got no row
        }
        self._add_row(_Row(_event("api.refused", identity, detail, self._clock.now_ms())))

    def note(self, event: audit.AuditEvent, entry: usage.UsageEntry | None = None) -> None:
        """Note an event that is neither an exchange nor a denial; it is stored in the audit a moment later.

        `entry` is the usage that is stored with it, if it has cost something.
        """
        self._add_row(_Row(event, entry))
        if entry is not None:
            self._on_entry(entry)

    async def run(self) -> None:
        """Store noted rows whenever there are some, until cancelled or an error is raised.

        Rows that could not be stored stay for the next call.
        """
        while True:
            await self.flush()
            # Rows that were added meanwhile may wait; without any, only a new row ends the pause.
            await self._wakeup.wait(at_most_seconds=SWEEP_SECONDS if self._rows else None)

    async def flush(self) -> None:
        """Store all rows noted until now, then call `on_stored`, and `on_usage_stored` with their usage.

        Without rows, nothing is done. Raises `StoreError` if they cannot be stored; then they stay noted.
        """
        async with self._writing:
            # Rows may be added while the batch is written; only those of the batch are removed afterwards.
            batch = list(self._rows)
            if not batch:
                return
            await _finish_despite_cancellation(self._store(batch))
        self._on_stored()
        entries = [row.entry for row in batch if row.entry is not None]
        if entries and self._on_usage_stored is not None:
            await self._on_usage_stored(entries)

    async def _store(self, batch: Sequence[_Row]) -> None:
        """Store the first rows of `_rows`, given as `batch`, and remove them there."""
        async with self._database.transaction() as tx:
            await _append_rows(tx, batch)
        del self._rows[: len(batch)]

    def _entry(self, identity: RunIdentity, exchange: ProxyExchange, now_ms: int) -> usage.UsageEntry | None:
        """Return the usage of an exchange with its estimated cost; None if the answer reported no usage."""
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
    """Await `work`, and let it finish even if the caller is cancelled meanwhile.

    The cancellation is raised after that, and a failure of `work` is then only logged. A transaction may be
    committed even if nobody waits for it, so its end has to be known.
    """
    task = asyncio.create_task(work, name="usage-writer-store")
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        if task.exception() is not None:
            log.warning("usage.not_stored", reason=str(task.exception()))
        raise


async def _append_rows(tx: Tx, batch: Sequence[_Row]) -> None:
    """Append rows to the audit in the store, and their usage to the usage table."""
    for row in batch:
        await audit.append(tx, row.event)
        if row.entry is not None:
            await usage.add(tx, row.entry)


def _event(kind: str, identity: RunIdentity | None, detail: dict[str, Any], now_ms: int) -> audit.AuditEvent:
    """Return an event for the audit about a run; `identity` is None if the run is not known.

    `kind` is the event's name, such as "api.request".
    """
    return audit.AuditEvent(
        at_ms=now_ms,
        kind=kind,
        folder=identity.folder if identity else None,
        run_id=identity.run_id if identity else None,
        turn_id=identity.turn_id if identity else None,
        detail=detail,
    )
