"""Reports what waits for the owner: requests, chats that call, questions, failures, late tasks, budgets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from zoneinfo import ZoneInfo

from orchestrator.domain.dashboard import BoardTask, Deadline, Question
from orchestrator.domain.failures import STOPPED_BY_HAND
from orchestrator.domain.values import Group, Turn
from orchestrator.reports import costs
from orchestrator.reports.approvals import ApprovalView, approval_row
from orchestrator.reports.groups import AccessRequestView, access_row
from orchestrator.store.access import approvals
from orchestrator.store.access import requests as access_requests
from orchestrator.store.board import questions as board_questions
from orchestrator.store.board import tasks as board_tasks
from orchestrator.store.database import Tx
from orchestrator.store.groups import groups
from orchestrator.store.runs import turns

MAX_ROWS = 20
"""Rows of each kind that are read."""
FAILED_MS = 24 * 3_600_000
"""Milliseconds that a failed turn waits for somebody to look."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerNeeds:
    """Matters that wait for the owner, each kind oldest first."""

    requests: list[ApprovalView]
    """The requests that can still be decided."""
    access: list[AccessRequestView]
    """The requests of chats that call and have no group."""
    questions: list[Question]
    failed: list[Turn]
    """Chat turns that failed; not those that somebody stopped, or that the owner has dismissed."""
    overdue: list[BoardTask]
    budgets: list[costs.BudgetView]
    """The budgets that are spent."""

    def __len__(self) -> int:
        """Return the number of all matters."""
        rows = len(self.requests) + len(self.access) + len(self.budgets)
        return rows + len(self.questions) + len(self.failed) + len(self.overdue)


async def owner_needs(
    tx: Tx, *, now_ms: int, zone: ZoneInfo, zone_of: Callable[[Group], ZoneInfo]
) -> OwnerNeeds:
    """Return the matters that wait for the owner, as `OwnerNeeds` lists them.

    A failed turn that nobody stopped is returned for `FAILED_MS` after its end. Of chats that call,
    questions, failures and late tasks, at most `MAX_ROWS` each are returned. `zone` is the owner's time zone,
    by which the periods of budgets end. `zone_of` returns the time zone of a group, by which the days of its
    tasks' deadlines end.
    """
    zones = {group.folder: zone_of(group) for group in await groups.every(tx)}
    # Among them are tasks whose deadline is the whole of today: `_is_over` leaves those out.
    late = await board_tasks.past_deadline(tx, now_ms=now_ms, limit=MAX_ROWS)
    budgets = await costs.budgets(tx, now_ms=now_ms, zone=zone)
    return OwnerNeeds(
        requests=[
            approval_row(approval, now_ms=now_ms)
            for approval in await approvals.waiting(tx, None, now_ms=now_ms)
        ],
        access=[access_row(request) for request in await access_requests.waiting(tx, limit=MAX_ROWS)],
        questions=await board_questions.unanswered_of_all(tx, limit=MAX_ROWS),
        failed=[
            turn
            for turn in await turns.last_failed(tx, since_ms=now_ms - FAILED_MS, limit=MAX_ROWS)
            if turn.reason != STOPPED_BY_HAND
        ],
        overdue=[
            task for task in late if _is_over(task.deadline, zones.get(task.folder, zone), now_ms=now_ms)
        ],
        budgets=[budget for budget in budgets if budget["percent"] >= 100],
    )


def _is_over(deadline: Deadline | None, zone: ZoneInfo, *, now_ms: int) -> bool:
    """Return whether a deadline has passed: its time or, for a whole day, the end of its day in `zone`. Pure.

    False for None.
    """
    if deadline is None:
        return False
    if deadline.date is None:
        return deadline.at_ms <= now_ms
    # The next midnight by the zone's clock: when the clocks change, it is not 24 hours later.
    next_day = date.fromisoformat(deadline.date) + timedelta(days=1)
    return datetime.combine(next_day, time(), zone).timestamp() * 1000 <= now_ms
