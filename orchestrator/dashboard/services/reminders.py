"""Show and change reminders as the notifications that they are to people and agents.

A reminder is set by the command line, HTTP and the agent without a model, needs no dashboard, and lies in a
table of its own. Its id among notifications is `reminder_` and its number.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from orchestrator.dashboard.services.context import ServiceContext
from orchestrator.dashboard.views import serializers
from orchestrator.dashboard.views.board import as_notification
from orchestrator.dashboard.words import texts, when
from orchestrator.domain.dashboard import (
    Notification,
    Priority,
    ToolRefused,
    ToolResult,
)
from orchestrator.domain.values import Folder, Reminder, ReminderState
from orchestrator.store import reminders
from orchestrator.store.database import Tx

_ID = re.compile(r"reminder_(\d{1,15})")


def is_reminder(notification_id: str) -> bool:
    """Tell whether an id is that of a reminder."""
    return _ID.fullmatch(notification_id) is not None


async def to_come(
    tx: Tx, folder: Folder, *, from_ms: int | None = None, to_ms: int | None = None
) -> list[Notification]:
    """Return a group's reminders that were not sent yet, by due time."""
    return [
        as_notification(one)
        for one in await reminders.pending(tx, folder)
        if (from_ms is None or one.due_ms >= from_ms) and (to_ms is None or one.due_ms <= to_ms)
    ]


async def show(ctx: ServiceContext, *, notification_id: str, **filters: Any) -> ToolResult:
    """Show one reminder of the group, whatever the filters. Raises `ToolRefused` NOT_FOUND."""
    del filters
    one = as_notification(await _found(ctx, notification_id))
    return ToolResult(
        text=f"- {one.id}: {when.format_time(one.due_ms, ctx.zone)}, {one.status.value}: {one.message}",
        data={"notifications": [serializers.notification(one, ctx.zone)]},
    )


async def update(
    ctx: ServiceContext,
    *,
    notification_id: str,
    message: str | None = None,
    scheduled_at: str | None = None,
    priority: Priority | None = None,
) -> ToolResult:
    """Change the text or the time of a reminder to come; it has no priority. Raises `ToolRefused`."""
    del priority
    was = await _found(ctx, notification_id)
    if was.state is not ReminderState.PENDING:
        status = as_notification(was).status.value
        raise ToolRefused("NOT_PENDING", f"Notification {notification_id} is {status}.", status=status)
    one = was
    if message is not None:
        one = replace(one, text=texts.text("message", message, limit=texts.MAX_MESSAGE, is_needed=True))
    if scheduled_at is not None:
        one = replace(one, due_ms=when.due_ms(scheduled_at, now_ms=ctx.now_ms, zone=ctx.zone).at_ms)
    if one == was:
        raise ToolRefused("NOTHING_TO_CHANGE", f"Nothing of {notification_id} would be different.")
    await reminders.change(ctx.tx, one.id, text=one.text, due_ms=one.due_ms)
    due = when.format_time(one.due_ms, ctx.zone)
    return ToolResult(
        text=f"Notification {notification_id} is changed: {due}, {one.text}",
        data=serializers.notification(as_notification(one), ctx.zone),
    )


async def cancel(ctx: ServiceContext, *, notification_id: str, reason: str = "") -> ToolResult:
    """Cancel a reminder to come; a second cancel changes nothing. Raises `ToolRefused`."""
    del reason
    one = await _found(ctx, notification_id)
    if one.state is ReminderState.SENT:
        raise ToolRefused(
            "ALREADY_DELIVERED", f"Notification {notification_id} is delivered.", status="delivered"
        )
    word = "was cancelled before" if one.state is ReminderState.CANCELLED else "is cancelled"
    await reminders.close(ctx.tx, one.id, ReminderState.CANCELLED)
    ended = replace(one, state=ReminderState.CANCELLED)
    return ToolResult(
        text=f"Notification {notification_id} {word}.",
        data=serializers.notification(as_notification(ended), ctx.zone),
    )


async def _found(ctx: ServiceContext, notification_id: str) -> Reminder:
    known = _ID.fullmatch(notification_id)
    found = await reminders.get(ctx.tx, int(known[1])) if known else None
    # Nothing is said of another group's reminder, not even that it exists.
    if found is None or found.folder != ctx.folder:
        raise ToolRefused("NOT_FOUND", f"There is no notification '{notification_id[:80]}' here.")
    return found
