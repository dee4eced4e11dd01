"""Reads the events of earlier starts back from the store, so that `andy events` can show them."""

from __future__ import annotations

from orchestrator.base.event_bus import EventBus, HostEvent
from orchestrator.dashboard.views import notification_log
from orchestrator.store.board import notifications as board_notifications
from orchestrator.store.database import Tx
from orchestrator.store.loop import events

MAX_RECALLED = 300
"""Events of each of the two kinds that are loaded: the event bus stores more than three times as many."""
BEFORE_THIS_START = 0
"""The number of all events of earlier processes; events of this process are numbered from 1."""


async def recall_events(tx: Tx, bus: EventBus) -> None:
    """Put events of earlier processes, read from the database, in front of those on the event bus.

    Those are the newest changes of notifications and events of loops. So a reader of the bus sees them, too.
    """
    loop_events = [
        HostEvent(
            n=BEFORE_THIS_START,
            at_ms=record.at_ms,
            kind=record.kind,
            group=record.group,
            data={"seq": record.seq, **record.data},
        )
        for record in await events.newest(tx, limit=MAX_RECALLED)
    ]
    notification_events = [
        HostEvent(
            n=BEFORE_THIS_START,
            at_ms=record.at_ms,
            kind=f"notification.{notification_log.event_word(record)}",
            **notification_log.event_fields(record),
        )
        for record in await board_notifications.newest_history(tx, limit=MAX_RECALLED)
    ]
    bus.recall(sorted([*loop_events, *notification_events], key=lambda event: event.at_ms))
