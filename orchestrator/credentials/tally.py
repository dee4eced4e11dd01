"""What is used of each budget, kept in mind: months of rows are added up once, not at each request."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from zoneinfo import ZoneInfo

from orchestrator.clock import Clock
from orchestrator.credentials import budgets as rules
from orchestrator.store import usage
from orchestrator.store.budgets import Budget
from orchestrator.store.database import Tx


@dataclass(frozen=True, slots=True)
class _Counted:
    """What is counted alike: the same for any amount and unit."""

    budget: Budget
    span: rules.Span


class Tally:
    """Sums of the stored entries and of those still on their way, for the periods that run now.

    This process alone writes usage, so what it has added up stays true.
    """

    def __init__(self, *, clock: Clock, zone: ZoneInfo, waiting: Callable[[], Sequence[usage.Entry]]) -> None:
        self._clock = clock
        self._zone = zone
        self._waiting = waiting
        self._sums: dict[_Counted, usage.Sums] = {}

    def count(self, entry: usage.Entry) -> None:
        """Add an entry as it is noted, before it is stored."""
        for key in self._sums:
            if rules.counts(key.budget, key.span, entry):
                self._sums[key] += usage.sums_of([entry])

    async def standings(self, tx: Tx, found: Iterable[Budget]) -> list[rules.Standing]:
        """How budgets stand at this moment. `tx` is read where a sum is not known yet."""
        now_ms = self._clock.now_ms()
        standings = []
        for budget in found:
            span = rules.span_of(budget.period, now_ms, self._zone)
            standings.append(rules.standing_of(budget, span, await self._sums_of(tx, budget, span)))
        return standings

    async def _sums_of(self, tx: Tx, budget: Budget, span: rules.Span) -> usage.Sums:
        key = _Counted(replace(budget, id=0, amount=0), span)
        if key not in self._sums:
            self._forget_ended(span)
            stored = await rules.spent_of(tx, budget, span)
            # Nothing is stored while `tx` is held, so each entry is either in the sum or still waiting.
            waiting = [one for one in self._waiting() if rules.counts(budget, span, one)]
            self._sums[key] = stored + usage.sums_of(waiting)
        return self._sums[key]

    def _forget_ended(self, span: rules.Span) -> None:
        self._sums = {key: sums for key, sums in self._sums.items() if key.span.end_ms > span.start_ms}
