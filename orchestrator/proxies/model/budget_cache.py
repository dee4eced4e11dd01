"""What is used of each budget, kept in mind: months of rows are added up once, not at each request."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from zoneinfo import ZoneInfo

from orchestrator.proxies.model import budgets as rules
from orchestrator.store import usage
from orchestrator.store.budgets import Budget, Period
from orchestrator.store.database import Tx


@dataclass(frozen=True, slots=True)
class _Counted:
    """What is counted alike: the same for any amount and unit."""

    budget: Budget
    span: rules.BudgetPeriod


class BudgetCache:
    """Sums of the stored entries and of those still on their way, for the periods that run now.

    This process alone writes usage, so what it has added up stays true.
    """

    def __init__(self, *, zone: ZoneInfo, waiting: Callable[[], Sequence[usage.UsageEntry]]) -> None:
        self._zone = zone
        self._waiting = waiting
        self._sums: dict[_Counted, usage.Sums] = {}
        self._spans: dict[Period, rules.BudgetPeriod] = {}

    def count(self, entry: usage.UsageEntry) -> None:
        """Add an entry as it is noted, before it is stored."""
        for key in self._sums:
            if rules.counts(key.budget, key.span, entry):
                self._sums[key] += usage.sums_of([entry])

    def knows(self, found: Iterable[Budget], now_ms: int) -> bool:
        """Whether `standings` can tell of these budgets."""
        return all(self._key(budget, now_ms) in self._sums for budget in found)

    async def learn(self, tx: Tx, found: Iterable[Budget], now_ms: int) -> None:
        """Add up what is not known yet. `tx` is of the database that entries are stored in."""
        for budget in found:
            key = self._key(budget, now_ms)
            if key not in self._sums:
                self._forget_ended(key.span)
                stored = await rules.spent_of(tx, budget, key.span)
                # Nothing is stored while `tx` is held, so each entry is either in the sum or still waiting.
                waiting = [one for one in self._waiting() if rules.counts(budget, key.span, one)]
                self._sums[key] = stored + usage.sums_of(waiting)

    def standings(self, found: Iterable[Budget], now_ms: int) -> list[rules.BudgetStanding]:
        """How budgets stand. Raises `KeyError` for one that was not learnt in this period."""
        keys = [(budget, self._key(budget, now_ms)) for budget in found]
        return [rules.standing_of(budget, key.span, self._sums[key]) for budget, key in keys]

    def _key(self, budget: Budget, now_ms: int) -> _Counted:
        return _Counted(replace(budget, id=0, amount=0), self._span(budget.period, now_ms))

    def _span(self, period: Period, now_ms: int) -> rules.BudgetPeriod:
        """The same as long as it lasts: dates are slow."""
        known = self._spans.get(period)
        if known is None or not known.start_ms <= now_ms < known.end_ms:
            known = self._spans[period] = rules.span_of(period, now_ms, self._zone)
        return known

    def _forget_ended(self, span: rules.BudgetPeriod) -> None:
        self._sums = {key: sums for key, sums in self._sums.items() if key.span.end_ms > span.start_ms}
