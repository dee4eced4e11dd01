"""Record each change of a notification, in the transaction that makes the change."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from orchestrator.domain.dashboard import Notification, NotificationStatus
from orchestrator.store.board import notifications as board_notifications
from orchestrator.store.board.notifications import REWORDED, HistoryEntry
from orchestrator.store.database import Tx

HOST = "host"
"""The author of changes that nobody requested: notifications sent, postponed for the night, expired."""
POSTPONED, MOVED = "postponed", "moved"


async def record(
    tx: Tx,
    before: Notification | None,
    after: Notification,
    *,
    by: str,
    now_ms: int,
    turn_id: int | None = None,
    reason: str | None = None,
) -> None:
    """Record in a notification's history how it differs from its earlier state, one entry for each change.

    `before` is that state, None for a new notification. `by` is the author of the change: `HOST`, or the
    value of an `Actor`; `turn_id` the turn in which it was made, and `reason` why, if they are known.
    """
    for action, detail in _differences(before, after, by=by):
        if reason is not None:
            detail["reason"] = reason
        entry = HistoryEntry(
            folder=after.folder,
            notification_id=after.id,
            at_ms=now_ms,
            what=action,
            by=by,
            turn_id=turn_id,
            detail=detail,
        )
        await board_notifications.add_history(tx, entry)


def _differences(
    before: Notification | None, after: Notification, *, by: str
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each difference between two states of a notification as (name of the change, its details).

    `before` is None for a new notification. `by` is the author: a new time by the host is a postponement.
    """
    if before is None:
        yield "created", {"due_ms": after.due_ms, "message": after.message}
        return
    if before.due_ms != after.due_ms:
        yield (POSTPONED if by == HOST else MOVED), {"from_ms": before.due_ms, "to_ms": after.due_ms}
    if before.message != after.message:
        yield REWORDED, {"from": before.message, "to": after.message}
    if before.priority is not after.priority:
        yield "reprioritised", {"from": before.priority.value, "to": after.priority.value}
    if not after.status.is_open and before.status is not after.status:
        yield after.status.value, _end_details(after)
    elif after.error and (before.error, before.next_attempt_ms) != (after.error, after.next_attempt_ms):
        yield "not sent", {"error": after.error, "again_ms": after.next_attempt_ms}


def _end_details(after: Notification) -> dict[str, Any]:
    """Return the details of the history's entry about a notification that has ended.

    Empty values are left out.
    """
    match after.status:
        case NotificationStatus.DELIVERED:
            fields = {"message": after.message, "late_ms": after.late_ms}
        case NotificationStatus.CANCELLED:
            fields = {"reason": after.cancel_reason}
        case _:
            fields = {"error": after.error, "late_ms": after.late_ms}
    return {name: value for name, value in fields.items() if value}
