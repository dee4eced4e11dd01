"""Write reminders to the table of notifications, and build the dispatcher that sends them."""

from __future__ import annotations

from orchestrator.dashboard.delivery.due_notifications import NotificationDispatcher
from orchestrator.dashboard.rules.slots import Hours
from orchestrator.dashboard.services.context import new_id
from orchestrator.domain.dashboard import Actor, Notification, NotificationStatus
from orchestrator.domain.values import Group
from orchestrator.store.board import dashboards
from orchestrator.store.board import notifications as board_notifications
from orchestrator.store.database import Tx
from tests.support.store_harness import SEOUL, StoreHarness


def notifier(harness: StoreHarness) -> NotificationDispatcher:
    """Return what sends the notifications of a host without containers, in Seoul."""
    return NotificationDispatcher(
        harness.database,
        clock=harness.clock,
        wakeups=harness.wakeups,
        bus=harness.bus,
        hours_of=lambda _: Hours(zone=SEOUL),
        daily_limit=10,
    )


async def put_reminder(
    tx: Tx,
    group: Group,
    *,
    text: str,
    due_ms: int,
    now_ms: int,
    asked_by: str | None = None,
    status: NotificationStatus = NotificationStatus.PENDING,
) -> int:
    """Write a reminder as if a person had set it, and return its number."""
    await dashboards.ensure(tx, group.folder, now_ms=now_ms)
    notification_id = new_id("n")
    row = Notification(
        folder=group.folder,
        id=notification_id,
        message=text,
        due_ms=due_ms,
        status=status,
        delivered_ms=due_ms if status is NotificationStatus.DELIVERED else None,
        created_by=Actor.USER,
        created_ms=now_ms,
        chat_jid=group.jid,
        asked_by=asked_by,
        version=await dashboards.advance(tx, group.folder),
    )
    await board_notifications.put(tx, row, read_version=None)
    made = await board_notifications.get(tx, group.folder, notification_id)
    assert made is not None
    assert made.number is not None
    return made.number
