"""Audit rows for refused requests: one row for each kind and minute, however many requests there are."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

import structlog

from orchestrator.base.clock import Clock
from orchestrator.base.wakeups import Wakeup
from orchestrator.domain.errors import StoreError
from orchestrator.store import audit
from orchestrator.store.database import Database, after_commit

log = structlog.get_logger(__name__)

PERIOD_SECONDS = 60.0
MAX_CHARS = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedRequest:
    """A refused request: its target and the reason, but never a token."""

    error: str
    path: str
    method: str
    peer: str | None
    given: str | None = None
    """The host or the origin that it named."""


OnRefusal = Callable[[RefusedRequest], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Counted:
    """The first of several refusals of one kind, and how many there are."""

    first: RefusedRequest
    first_ms: int
    count: int = 1


class RefusalAudit:
    """Counts refusals at once, and writes them later; the first one of its kind in a minute without delay."""

    def __init__(
        self,
        database: Database,
        *,
        clock: Clock,
        on_added: Callable[[], None] = lambda: None,
        period_seconds: float = PERIOD_SECONDS,
    ) -> None:
        """`database` stores the audit. `on_added` is called after rows were written.

        `period_seconds` is the least time between two rows about the same error.
        """
        self._database = database
        self._on_added = on_added
        self._clock = clock
        self._period_seconds = period_seconds
        self._counted: dict[str, _Counted] = {}
        """Refusals that are not written yet, by kind of error."""
        self._due: dict[str, float] = {}
        """Kind → the time of the event loop from which on it may be written again."""
        self._wakeup = Wakeup()

    def note(self, refusal: RefusedRequest) -> None:
        """Count a refused request, to be written to the audit by `run`.

        Requests with the same error are counted together; only the details of the first one are written.
        """
        counted = self._counted.get(refusal.error)
        if counted is None:
            self._counted[refusal.error] = _Counted(first=refusal, first_ms=self._clock.now_ms())
        else:
            self._counted[refusal.error] = replace(counted, count=counted.count + 1)
        self._wakeup.set()

    async def run(self) -> None:
        """Write the counted refusals to the audit until cancelled, and then those that remain.

        Each kind, which is an error's code, is written at once, and then at most once in a period.
        """
        try:
            while True:
                await self._wakeup.wait(at_most_seconds=self._seconds_until_due())
                loop_time = asyncio.get_running_loop().time()
                due = {kind for kind in self._counted if self._due.get(kind, loop_time) <= loop_time}
                # Refusals that come until then are counted, and written as one row: a flood must not fill
                # the audit.
                self._due |= dict.fromkeys(due, loop_time + self._period_seconds)
                await self.write(due)
        finally:
            await self.write()

    def _seconds_until_due(self) -> float | None:
        """Return the seconds until a counted refusal may be written; None if none is counted."""
        loop_time = asyncio.get_running_loop().time()
        return min(
            (max(0.0, self._due.get(kind, loop_time) - loop_time) for kind in self._counted), default=None
        )

    async def write(self, kinds: Collection[str] | None = None) -> None:
        """Write the counted refusals with the errors `kinds`, or all if it is None, to the audit.

        After an error of the database they stay counted, and the error is logged. Those that come while the
        rows are written are counted for the next time.
        """
        to_write = {
            kind: counted for kind, counted in self._counted.items() if kinds is None or kind in kinds
        }
        if not to_write:
            return
        for kind in to_write:
            del self._counted[kind]
        try:
            async with self._database.transaction() as tx:
                for counted in to_write.values():
                    await audit.append(tx, _event(counted))
                after_commit(tx, to_write.clear)
        except BaseException as error:
            # None was written: they are counted again, with those that came meanwhile, and after a
            # cancellation `run` writes them. After the commit, `to_write` is empty, so none counts twice.
            for kind, unwritten in to_write.items():
                later = self._counted.get(kind)
                count = unwritten.count + (later.count if later else 0)
                self._counted[kind] = replace(unwritten, count=count)
            if not isinstance(error, StoreError):
                raise
            log.warning("refusals.not_recorded", reason=str(error), kinds=sorted(to_write))
            return
        self._on_added()


def _event(counted: _Counted) -> audit.AuditEvent:
    """Return the audit row about counted refusals of one kind.

    Its field `given` is the host or origin for which the first request was refused; None for other reasons.
    """
    first = counted.first
    detail = {
        "error": first.error,
        "count": counted.count,
        "method": _plain(first.method),
        "path": _plain(first.path),
        "peer": first.peer,
        "given": None if first.given is None else _plain(first.given),
    }
    return audit.AuditEvent(at_ms=counted.first_ms, kind="http.refused", detail=detail)


def _plain(text: str) -> str:
    """Return a text of a stranger as one short line of ASCII characters, others escaped.

    The one other character is `…`, by which a path shows that a secret was left out.
    """
    # The slice removes the quotes that `ascii` adds.
    return ascii(text[:MAX_CHARS])[1:-1].replace(r"\u2026", "…")
