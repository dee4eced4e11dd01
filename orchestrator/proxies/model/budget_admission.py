"""Decide before each request that costs tokens whether it may pass, and report budgets to chats."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from zoneinfo import ZoneInfo

import structlog

from orchestrator.base.clock import Clock
from orchestrator.domain.values import ChatJid, Folder, Group, Role, RunId, rank
from orchestrator.proxies.model import budget_sums as rules
from orchestrator.proxies.model import error_responses
from orchestrator.proxies.model.budget_sums import BudgetCache
from orchestrator.proxies.model.error_responses import ProxyRefused
from orchestrator.proxies.model.exchange import RunIdentity
from orchestrator.proxies.model.limits import SearchCounts, TurnCounts
from orchestrator.proxies.model.token_usage import Prices
from orchestrator.proxies.model.usage_writer import UsageWriter
from orchestrator.store.conversation import outbox
from orchestrator.store.database import Database, Tx
from orchestrator.store.groups import groups
from orchestrator.store.money import budgets, usage
from orchestrator.store.notices import host_events
from orchestrator.store.runs import turn_outages

log = structlog.get_logger(__name__)

WHOLE_PERCENT = 100
"""The share of a role that may use a group's budgets without a limit of its own."""
SEARCHES_A_TURN = 50
"""Web searches per turn. One costs about as much as two thousand input tokens."""

OnRunaway = Callable[[RunId, str], Awaitable[None]]
"""Ends a run that sends requests without end; the text is the reason, such as `it asked the model …`."""


class Admission:
    """Admits requests while their budgets last and their turn stays within its limits."""

    def __init__(
        self,
        database: Database,
        *,
        clock: Clock,
        zone: ZoneInfo,
        requests_a_turn: int,
        on_queued: Callable[[], None],
        on_runaway: OnRunaway,
        on_noted: Callable[[], None] = lambda: None,
        prices: Prices | None = None,
    ) -> None:
        """Set up the admission of one host.

        Args:
            database: has the budgets and the usage.
            clock: the host's clock.
            zone: the time zone in which days and months of budgets begin.
            requests_a_turn: the most model requests of one turn.
            on_queued: called when a message to a chat was queued.
            on_runaway: ends a run that sends requests without end.
            on_noted: called when rows were added to the audit.
            prices: the prices by which costs are estimated; the built-in list by default.
        """
        self._database = database
        self._clock = clock
        self._zone = zone
        self._requests_a_turn = requests_a_turn
        self._on_queued = on_queued
        self._on_runaway = on_runaway
        self._request_counts = TurnCounts()
        self.searches = SearchCounts(SEARCHES_A_TURN)
        self.usage_writer = UsageWriter(
            database,
            clock=clock,
            on_entry=self._count,
            on_stored=on_noted,
            on_usage_stored=self._notify_of_used_budgets,
            prices=prices,
        )
        self._budget_cache = BudgetCache(zone=zone, waiting=lambda: self.usage_writer.waiting)

    async def admit(self, identity: RunIdentity) -> None:
        """Count a request of a run, and raise if it may not pass.

        The reason for a refusal is recorded before the container gets it.

        Raises:
            ProxyRefused: a budget is spent, or the share of it that the turn's role may use; the turn has
                sent too many requests; or nothing can be recorded.
        """
        # An answer that cannot be recorded would not count for any budget.
        if self.usage_writer.is_behind:
            raise ProxyRefused(error_responses.UNRECORDED)
        await self._check_count(identity)
        spent = await self._spent_budget(identity)
        if spent is not None:
            await self._refuse(identity, spent)
        if identity.spend < WHOLE_PERCENT:
            await self._check_share(identity)

    async def _check_count(self, identity: RunIdentity) -> None:
        """Count a request of a turn.

        If the turn has sent too many, the reason is recorded, its run is stopped, and `ProxyRefused` is
        raised. If the run cannot be stopped, that error is raised, and the turn's next request stops it.
        """
        turn = identity.run_id, identity.turn_id
        count = self._request_counts.add(*turn, 1)
        if count <= self._requests_a_turn:
            return
        reason = f"it asked the model more than {self._requests_a_turn} times in one turn."
        # The run is stopped once; further requests of its turn are only refused.
        if count == self._requests_a_turn + 1:
            log.error("turn.ran_away", group=identity.folder, run=identity.run_id, turn=identity.turn_id)
            try:
                await self._stop(identity, "runaway", reason)
                await self._on_runaway(identity.run_id, reason)
            except BaseException:
                # Back to the limit, so that the next request is again the one that stops the run.
                self._request_counts.add(*turn, self._requests_a_turn - self._request_counts.of(*turn))
                raise
        raise ProxyRefused(error_responses.ran_away(self._requests_a_turn))

    async def _spent_budget(self, identity: RunIdentity) -> rules.BudgetStanding | None:
        """Return a budget that is used up and stops requests of this run; None if there is none."""
        account = _account_of(identity)
        stopping = [budget for budget in identity.budgets if rules.stops(budget, account)]
        standings = await self._standings(stopping)
        return next((standing for standing in standings if standing.is_spent), None)

    async def _check_share(self, identity: RunIdentity) -> None:
        """Check that the role behind a turn has not used its share of a budget.

        `identity.spend` is the share in percent. Roles are a group's: also for a budget of all groups, only
        the usage in this group counts, in turns of this role and of roles that may do less. Usage of other
        turns that is not stored yet is left out; it counts at a later request.

        Raises `ProxyRefused` if the share is used up, and records first that the turn is stopped. For a share
        of 0 nothing is recorded.
        """
        if identity.spend == 0:
            raise ProxyRefused(error_responses.not_allowed(f"the model in a turn of a {identity.role}"))
        account = _account_of(identity)
        now_ms = self._clock.now_ms()
        for budget in identity.budgets:
            if not rules.concerns(budget, account):
                continue
            span = rules.span_of(budget.period, now_ms, self._zone)
            # Read from the store each time: the cache has no sums by role.
            async with self._database.reading() as tx:
                stored_sums = await usage.spent_by(
                    tx,
                    # This role and all that may do less: they use the share together.
                    tuple(Role)[rank(identity.role) :],
                    folder=identity.folder,
                    since_ms=span.start_ms,
                    until_ms=span.end_ms,
                    only_background=budget.is_background,
                )
                # Nothing is stored while `tx` is open, so each entry is either in the sum or still waiting.
                unstored_sums = usage.sums_of(
                    entry
                    for entry in self.usage_writer.waiting
                    if entry.turn_id == identity.turn_id and rules.counts(budget, span, entry)
                )
            share = rules.share_of(budget, identity.spend)
            standing = rules.standing_of(share, span, stored_sums + unstored_sums)
            if standing.is_spent:
                reason = rules.share_in_words(
                    standing, identity.role, identity.folder, identity.spend, self._zone
                )
                await self._stop(identity, "budget", reason)
                raise ProxyRefused(error_responses.budget_spent(reason))

    async def _standings(self, wanted: Sequence[budgets.Budget]) -> list[rules.BudgetStanding]:
        """Return how much of each budget is used, by the cache; missing sums are first loaded into it."""
        now_ms = self._clock.now_ms()
        if not self._budget_cache.has_sums(wanted, now_ms):
            async with self._database.reading() as tx:
                await self._budget_cache.load(tx, wanted, now_ms)
        return self._budget_cache.standings(wanted, now_ms)

    async def _refuse(self, identity: RunIdentity, spent_budget: rules.BudgetStanding) -> None:
        """Record that a spent budget stops a turn, notify the chats, and raise `ProxyRefused`."""
        reason = rules.spent_in_words(spent_budget, self._zone)
        # The reason is stored before the container reads the refusal: otherwise the turn could end first,
        # without one.
        async with self._database.transaction() as tx:
            if identity.turn_id is not None:
                await turn_outages.note_stop(
                    tx, identity.turn_id, code="budget", reason=reason, now_ms=self._clock.now_ms()
                )
            await self._notify(tx, spent_budget, identity.folder)
        self._on_queued()
        raise ProxyRefused(error_responses.budget_spent(reason))

    async def _stop(self, identity: RunIdentity, code: str, reason: str) -> None:
        """Record why a run's turn is stopped, if it has one; people who wait for the turn read the reason.

        `code` is the kind of the reason, such as "budget".
        """
        if identity.turn_id is not None:
            async with self._database.transaction() as tx:
                await turn_outages.note_stop(
                    tx, identity.turn_id, code=code, reason=reason, now_ms=self._clock.now_ms()
                )

    def _count(self, entry: usage.UsageEntry) -> None:
        """Add the usage of one answer to the cached sums, and its web searches to the count of its turn."""
        self._budget_cache.count(entry)
        if entry.searches:
            self.searches.add(entry.run_id, entry.turn_id, entry.searches)

    async def _notify_of_used_budgets(self, entries: Sequence[usage.UsageEntry]) -> None:
        """Notify chats of the budgets that newly stored usage has nearly or wholly used up.

        `on_queued` is called even if no message was queued.
        """
        now_ms = self._clock.now_ms()
        async with self._database.transaction() as tx:
            all_budgets = await budgets.every(tx)
            for folder in dict.fromkeys(entry.folder for entry in entries):
                group_budgets = [budget for budget in all_budgets if budget.folder in (None, folder)]
                await self._budget_cache.load(tx, group_budgets, now_ms)
                for standing in self._budget_cache.standings(group_budgets, now_ms):
                    await self._notify(tx, standing, folder)
        self._on_queued()

    async def _notify(self, tx: Tx, standing: rules.BudgetStanding, folder: Folder) -> None:
        """Notify the owner, and perhaps the group `folder`, that a budget is nearly or wholly spent.

        The group is notified of its own budgets, and of any other that is wholly spent. Each chat is notified
        once per period and limit. Nothing is sent below `WARNING_PERCENT`.
        """
        text = rules.warning_of(standing, self._zone)
        if text is None:
            return
        concerns_group = standing.is_spent or standing.budget.folder is not None
        for group in await groups.every(tx):
            if group.is_main or (concerns_group and group.folder == folder):
                await self._notify_group(tx, standing, group, text)

    async def _notify_group(self, tx: Tx, standing: rules.BudgetStanding, group: Group, text: str) -> None:
        """Queue a text about a budget for a group's chat and its agent.

        It is queued once for each period, amount and limit, which is `WARNING_PERCENT` or all of the budget.
        """
        limit_percent = 100 if standing.is_spent else rules.WARNING_PERCENT
        # The amount is in the key, so that a raised budget warns again in the same period.
        key = f"budget:{standing.budget.id}:{standing.budget.amount}:{standing.span.start_ms}:{limit_percent}"
        now_ms = self._clock.now_ms()
        is_new = await outbox.add(
            tx,
            chat_jid=ChatJid(group.jid),
            folder=group.folder,
            text=text,
            dedupe_key=f"{key}:{group.folder}",
            now_ms=now_ms,
        )
        if is_new:
            await host_events.budget_warning(
                tx, group.folder, text, percent=standing.percent, key=str(standing.budget.id), now_ms=now_ms
            )


def _account_of(identity: RunIdentity) -> rules.BudgetAccount:
    """Return the account of a run's requests: its group, and whether they are background work."""
    return rules.BudgetAccount(
        folder=identity.folder,
        is_main=identity.is_main,
        is_background=usage.is_background(identity.kind),
    )
