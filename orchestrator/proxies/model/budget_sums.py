"""Decide what a budget counts and whom it stops, sum its usage, and put that in words."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from zoneinfo import ZoneInfo

from orchestrator.base.clock import local_midnight, local_minute
from orchestrator.domain.values import Folder, Role, TurnKind
from orchestrator.store.database import Tx
from orchestrator.store.money import usage
from orchestrator.store.money.budgets import Budget, Period, Unit

WARNING_PERCENT = 80
"""The used part of a budget, in percent, at which chats are warned."""
NANO = 1_000_000_000
"""Billionths of a dollar in a dollar."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetPeriod:
    """A day or month of a budget, in epoch milliseconds; `end_ms` belongs to the next period."""

    start_ms: int
    end_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetAccount:
    """The account that a request is charged to."""

    folder: Folder
    is_main: bool
    """Whether it is the owner's own group."""
    is_background: bool
    """Whether the request is for background work, which nobody in the chat waits for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetStanding:
    """A budget, its usage in this period, and when the next period starts."""

    budget: Budget
    span: BudgetPeriod
    used: int
    """The usage in the budget's unit: tokens, or billionths of a dollar."""
    unpriced: int
    """Answers of unknown cost, which are not in `used` of a budget in money."""

    @property
    def is_spent(self) -> bool:
        """Whether the budget is used up."""
        return self.used >= self.budget.amount

    @property
    def is_near(self) -> bool:
        """Whether the chat is to be warned: at least `WARNING_PERCENT` of the budget are used."""
        return self.used * 100 >= self.budget.amount * WARNING_PERCENT

    @property
    def percent(self) -> int:
        """The used part of the budget in percent, rounded down."""
        return 100 if self.budget.amount == 0 else self.used * 100 // self.budget.amount


def span_of(period: Period, now_ms: int, zone: ZoneInfo) -> BudgetPeriod:
    """Return the day or month that contains `now_ms` in a time zone.

    A day may have 23 or 25 hours, when clocks are changed.
    """
    today = local_midnight(now_ms, zone)
    match period:
        case Period.DAY:
            start = today
            end = start + timedelta(days=1)
        case Period.MONTH:
            start = today.replace(day=1)
            # From the first day, 32 days always lead into the next month.
            end = (start + timedelta(days=32)).replace(day=1)
    return BudgetPeriod(start_ms=round(start.timestamp() * 1000), end_ms=round(end.timestamp() * 1000))


def concerns(budget: Budget, account: BudgetAccount) -> bool:
    """Return whether a budget counts the usage of an account.

    A budget without a folder is for all groups. One for background work counts no other usage.
    """
    counts_group = budget.folder in (None, account.folder)
    return counts_group and (account.is_background or not budget.is_background)


def stops(budget: Budget, account: BudgetAccount) -> bool:
    """Return whether a budget, once it is spent, refuses an account's requests.

    The owner's own chat is never stopped by a budget for all groups.
    """
    is_owners_chat = account.is_main and not account.is_background
    return concerns(budget, account) and not (is_owners_chat and budget.folder is None)


def standing_of(budget: Budget, span: BudgetPeriod, sums: usage.Sums) -> BudgetStanding:
    """Return how much of a budget is used: `sums` is the usage in `span` that the budget counts."""
    is_tokens = budget.unit is Unit.TOKENS
    return BudgetStanding(
        budget=budget,
        span=span,
        used=sums.tokens if is_tokens else sums.cost_nano_usd,
        unpriced=0 if is_tokens else sums.unpriced,
    )


async def standings(
    tx: Tx, budgets: Iterable[Budget], *, now_ms: int, zone: ZoneInfo
) -> list[BudgetStanding]:
    """Return how much of each budget is used in its present period, with one query for each.

    Only stored usage counts. Days and months are those of `zone`.
    """
    rows = []
    for budget in budgets:
        span = span_of(budget.period, now_ms, zone)
        rows.append(standing_of(budget, span, await spent_of(tx, budget, span)))
    return rows


async def all_standings(
    tx: Tx, budgets: Iterable[Budget], *, now_ms: int, zone: ZoneInfo
) -> list[BudgetStanding]:
    """Return how much of each budget is used in its present period, for many budgets.

    Unlike `standings`, it needs one query for each period. Only stored usage counts.
    """
    rows: list[BudgetStanding] = []
    # A `usage.Share` is a group's part of all usage, by one kind of turn.
    shares_in: dict[BudgetPeriod, dict[usage.Share, usage.Sums]] = {}
    for budget in budgets:
        span = span_of(budget.period, now_ms, zone)
        if span not in shares_in:
            shares_in[span] = await usage.shares(tx, since_ms=span.start_ms, until_ms=span.end_ms)
        sums = [share_sums for share, share_sums in shares_in[span].items() if _counts_share(budget, share)]
        rows.append(standing_of(budget, span, sum(sums, start=usage.Sums())))
    return rows


def _counts_share(budget: Budget, share: usage.Share) -> bool:
    """Return whether a budget counts a share: the usage of one group by one kind of turn.

    All usage but that of chat turns is background work, also the usage outside of turns.
    """
    is_chat = share.kind == TurnKind.CHAT
    return budget.folder in (None, share.folder) and not (budget.is_background and is_chat)


async def spent_budget(
    tx: Tx, budgets: Iterable[Budget], account: BudgetAccount, *, now_ms: int, zone: ZoneInfo
) -> BudgetStanding | None:
    """Return the first spent budget that refuses an account's requests; None if they may pass.

    Only stored usage counts.
    """
    stopping = [budget for budget in budgets if stops(budget, account)]
    return next(
        (
            standing
            for standing in await standings(tx, stopping, now_ms=now_ms, zone=zone)
            if standing.is_spent
        ),
        None,
    )


def share_of(budget: Budget, percent: int) -> Budget:
    """Return the budget with its amount reduced to `percent`, the part that a role may use."""
    return replace(budget, amount=budget.amount * percent // 100)


async def spent_of(tx: Tx, budget: Budget, span: BudgetPeriod) -> usage.Sums:
    """Return the sums of the stored usage that a budget counts in the period `span`."""
    return await usage.spent(
        tx,
        folder=budget.folder,
        since_ms=span.start_ms,
        until_ms=span.end_ms,
        only_background=budget.is_background,
    )


def counts(budget: Budget, span: BudgetPeriod, entry: usage.UsageEntry) -> bool:
    """Return whether a budget counts the usage of one answer (`entry`) in the period `span`."""
    return (
        budget.folder in (None, entry.folder)
        and (entry.is_background or not budget.is_background)
        and span.start_ms <= entry.at_ms < span.end_ms
    )


# In words


def amount_in_words(unit: Unit, amount: int) -> str:
    """Return an amount in words, such as `12,000 tokens` or `$1.50`.

    The amount is in tokens, or in billionths of a dollar. Below a dollar, parts of a cent are shown.
    """
    if unit is Unit.TOKENS:
        return f"{amount:,} tokens"
    usd = amount / NANO
    is_in_whole_cents = amount % (NANO // 100) == 0
    return f"${usd:,.2f}" if usd >= 1 or is_in_whole_cents else f"${usd:,.4f}"


def name_of(budget: Budget) -> str:
    """Return a budget in words, such as `the budget of family for today`."""
    group_text = f"of {budget.folder}" if budget.folder else "of all groups"
    purpose = " for background work" if budget.is_background else ""
    return f"the budget {group_text}{purpose} for {'today' if budget.period is Period.DAY else 'this month'}"


def spent_in_words(standing: BudgetStanding, zone: ZoneInfo) -> str:
    """Return the reason for a spent budget, which finishes the sentence "I could not answer: …"."""
    limit = amount_in_words(standing.budget.unit, standing.budget.amount)
    next_start = local_minute(standing.span.end_ms, zone)
    return f"{name_of(standing.budget)} is spent ({limit}). The next begins on {next_start}."


def share_in_words(standing: BudgetStanding, role: Role, folder: Folder, percent: int, zone: ZoneInfo) -> str:
    """Return the reason that a role's share of a budget is spent; it finishes "I could not answer: …".

    `percent` is the share that people of the role have in the group `folder`; `standing` belongs to the whole
    budget or to that share.
    """
    next_start = local_minute(standing.span.end_ms, zone)
    # Each group has its own roles and shares, also of a budget for all groups: the text names the group.
    people = f"{role}s" if standing.budget.folder else f"{role}s of {folder}"
    return (
        f"{people} may use {percent} % of {name_of(standing.budget)} together, and that is spent."
        f" The next begins on {next_start}."
    )


def warning_of(standing: BudgetStanding, zone: ZoneInfo) -> str | None:
    """Return the text that warns a chat of a spent or nearly spent budget; None below `WARNING_PERCENT`."""
    name = name_of(standing.budget)
    amount = amount_in_words(standing.budget.unit, standing.budget.amount)
    if standing.is_spent:
        consequence = "Background work rests" if standing.budget.is_background else "I ask the model no more"
        next_start = local_minute(standing.span.end_ms, zone)
        return f"⚠️ {name[0].upper()}{name[1:]} is spent ({amount}). {consequence} until {next_start}."
    if standing.is_near:
        return f"⚠️ {standing.percent} % of {name} is used ({amount})."
    return None


@dataclass(frozen=True, slots=True)
class _SumKey:
    """The key of a cached sum: budgets that differ only in id and amount share one."""

    budget: Budget
    span: BudgetPeriod


class BudgetCache:
    """Caches the usage that budgets count in their present periods, stored and not yet stored.

    Only this process writes usage, so the cached sums stay correct.
    """

    def __init__(self, *, zone: ZoneInfo, waiting: Callable[[], Sequence[usage.UsageEntry]]) -> None:
        """Set up an empty cache; `waiting` returns the entries that are not stored yet."""
        self._zone = zone
        self._waiting = waiting
        self._sums: dict[_SumKey, usage.Sums] = {}
        self._spans: dict[Period, BudgetPeriod] = {}
        """The present day and month, as they were last computed."""

    def count(self, entry: usage.UsageEntry) -> None:
        """Add the usage of one answer to the cached sums that count it, before it is stored."""
        for key in self._sums:
            if counts(key.budget, key.span, entry):
                self._sums[key] += usage.sums_of([entry])

    def has_sums(self, wanted: Iterable[Budget], now_ms: int) -> bool:
        """Return whether the sums of all these budgets for the periods of `now_ms` are in the cache."""
        return all(self._key(budget, now_ms) in self._sums for budget in wanted)

    async def load(self, tx: Tx, wanted: Iterable[Budget], now_ms: int) -> None:
        """Load the missing sums of budgets for the periods of `now_ms`.

        Before a sum is loaded, those of periods that ended before its period are dropped.

        `tx` is a transaction of the connection that also stores the usage.
        """
        for budget in wanted:
            key = self._key(budget, now_ms)
            if key not in self._sums:
                self._forget_ended(key.span)
                stored = await spent_of(tx, budget, key.span)
                # Nothing is stored while `tx` is open, so each entry is either in the sum or still waiting.
                unstored = [entry for entry in self._waiting() if counts(budget, key.span, entry)]
                self._sums[key] = stored + usage.sums_of(unstored)

    def standings(self, wanted: Iterable[Budget], now_ms: int) -> list[BudgetStanding]:
        """Return how much of each budget is used.

        Raises `KeyError` for a budget whose sum was not loaded in the period of `now_ms`.
        """
        keys = [(budget, self._key(budget, now_ms)) for budget in wanted]
        return [standing_of(budget, key.span, self._sums[key]) for budget, key in keys]

    def _key(self, budget: Budget, now_ms: int) -> _SumKey:
        """Return the key of a budget's cached sum: the budget without id and amount, and its period now."""
        return _SumKey(replace(budget, id=0, amount=0), self._span(budget.period, now_ms))

    def _span(self, period: Period, now_ms: int) -> BudgetPeriod:
        """Return the day or month that contains `now_ms`, cached because date arithmetic is slow."""
        cached = self._spans.get(period)
        if cached is None or not cached.start_ms <= now_ms < cached.end_ms:
            cached = self._spans[period] = span_of(period, now_ms, self._zone)
        return cached

    def _forget_ended(self, span: BudgetPeriod) -> None:
        """Drop the sums of periods that ended before `span` began."""
        self._sums = {key: sums for key, sums in self._sums.items() if key.span.end_ms > span.start_ms}
