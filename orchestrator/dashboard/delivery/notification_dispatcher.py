"""Send notifications at their time: a due one is claimed and put into the outbox in one transaction."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import structlog

from orchestrator.base.clock import Clock
from orchestrator.base.event_bus import EventBus
from orchestrator.base.wakeups import Wakeups
from orchestrator.dashboard.delivery import decision
from orchestrator.dashboard.delivery.outcomes import write
from orchestrator.dashboard.rules import alerts
from orchestrator.dashboard.rules.slots import Hours
from orchestrator.dashboard.words import rule_texts
from orchestrator.domain.dashboard import Notification, NotificationStatus
from orchestrator.domain.values import ChatJid, Group
from orchestrator.store import (
    dashboard_deliveries,
    dashboard_notifications,
    dashboard_questions,
    dashboard_tasks,
    groups,
    host_events,
    outbox,
)
from orchestrator.store.database import Database, Tx

log = structlog.get_logger(__name__)

SWEEP_SECONDS = 5.0
"""Other processes write notifications too, and cannot wake this one."""
CLAIM_MS = 60_000
AT_ONCE = 200
NO_GROUP = "Group gone"
TOLD_TOO_LATE = 3
"""So many of those that came too late are named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchResult:
    """What happened to one notification that was due."""

    notification: Notification
    outcome: str
    """`claimed`, `kept`, `taken`, `postponed`, `cancelled`, `expired`, or `overtaken` by later news."""
    group: Group | None = None


class NotificationDispatcher:
    """Sleep until the next notification is due or one changed, then dispatch what is due.

    Several dispatchers may work on one database: a claim in the row keeps them apart.
    """

    def __init__(
        self,
        database: Database,
        *,
        clock: Clock,
        wakeups: Wakeups,
        bus: EventBus,
        hours_of: Callable[[Group], Hours],
        daily_limit: int,
    ) -> None:
        self._database = database
        self._clock = clock
        self._wakeups = wakeups
        self._bus = bus
        self._hours_of = hours_of
        self._daily_limit = daily_limit

    async def run(self) -> None:
        """Dispatch notifications until the task is cancelled."""
        while True:
            wait_seconds = await self.send_due()
            await self._wakeups.notifications.wait(at_most_seconds=wait_seconds)

    async def send_due(self) -> float:
        """Dispatch all that is due, and return in how many seconds to look again."""
        # A read first: most looks find nothing due, and a write transaction would make others wait.
        next_ms = await self._database.read(dashboard_notifications.next_due_ms)
        if next_ms is not None and next_ms <= self._clock.now_ms():
            await self._hand_over()
            next_ms = await self._database.read(dashboard_notifications.next_due_ms)
        if next_ms is None:
            return SWEEP_SECONDS
        return min(SWEEP_SECONDS, max(0.0, (next_ms - self._clock.now_ms()) / 1000))

    async def _hand_over(self) -> None:
        now_ms = self._clock.now_ms()
        async with self._database.transaction() as tx:
            due = await dashboard_notifications.due(tx, now_ms, limit=AT_ONCE)
            done = [await self._settle(tx, row, now_ms=now_ms) for row in due]
            await _notify_expired(tx, [row for row in done if row.outcome == "expired"], now_ms=now_ms)
            await dashboard_deliveries.drop_held(tx, now_ms=now_ms)
        self._wakeups.outbox.set()
        for row in done:
            self._publish(row)

    async def _settle(self, tx: Tx, row: Notification, *, now_ms: int) -> DispatchResult:
        group = await groups.by_folder(tx, row.folder)
        context = None if group is None else await self._circumstances(tx, row, group, now_ms=now_ms)
        if context is not None:
            row = await _with_current_words(tx, row, context, now_ms=now_ms)
        text = decision.words_of(row, now_ms=now_ms)
        # One that waits in the outbox of a slow channel is still on its way: its claim is extended, not taken
        # anew.
        if await dashboard_deliveries.keep_claim(tx, row, text=text, until_ms=now_ms + CLAIM_MS):
            return DispatchResult(notification=row, outcome="kept")
        if group is None or context is None:
            # Only reminders keep their chat: a person asked for them, so they come without a group too.
            if row.chat_jid is not None:
                return await _claim(tx, row, row.chat_jid, now_ms=now_ms)
            await _cancel(tx, row, NO_GROUP, now_ms=now_ms)
            return DispatchResult(notification=row, outcome="cancelled")
        match decision.decide(row, context, now_ms=now_ms):
            case decision.SendNow():
                return await _claim(tx, row, group.chat_for(row.chat_jid), now_ms=now_ms)
            case decision.Postpone(at_ms=at_ms, reason=reason):
                await write(
                    tx, row, now_ms=now_ms, reason=reason, status=NotificationStatus.PENDING, due_ms=at_ms
                )
                log.info("notification.postponed", notification=row.id, group=row.folder, reason=reason)
                outcome = "postponed"
            case decision.Expire():
                late_ms = now_ms - row.due_ms
                await write(tx, row, now_ms=now_ms, status=NotificationStatus.EXPIRED, late_ms=late_ms)
                # Where the rules say that the task is overdue anyway, a line about a missed alert would only
                # add to it.
                outcome = "overtaken"
                if not alerts.says_overdue(row.cause, context.task, context.hours, now_ms=now_ms):
                    await host_events.notification_expired(tx, row.folder, row.message, now_ms=now_ms)
                    outcome = "expired"
            case decision.Cancel(reason=reason):
                await _cancel(tx, row, reason, now_ms=now_ms)
                outcome = "cancelled"
        return DispatchResult(notification=row, outcome=outcome, group=group)

    async def _circumstances(
        self, tx: Tx, row: Notification, group: Group, *, now_ms: int
    ) -> decision.DeliveryContext:
        hours = self._hours_of(group)
        task = await dashboard_tasks.get(tx, row.folder, row.task_id) if row.task_id else None
        question = await dashboard_questions.get(tx, row.folder, row.question_id) if row.question_id else None
        midnight = hours.start_of(hours.day_of(now_ms))
        return decision.DeliveryContext(
            hours=hours,
            task=task,
            question=question,
            sent_today=await dashboard_deliveries.told_by_itself(tx, row.folder, since_ms=midnight)
            if self._daily_limit
            else 0,
            daily_limit=self._daily_limit,
        )

    def _publish(self, done: DispatchResult) -> None:
        row = done.notification
        match done.outcome:
            case "claimed":
                log.info("Cron: executing job", job=f"notification_{row.id}", group=row.folder)
                self._bus.publish("notification.due", group=row.folder, detail=row.id)
            case "expired" | "overtaken":
                self._bus.publish("notification.expired", group=row.folder, detail=row.id)
            case "cancelled":
                self._bus.publish("notification.cancelled", group=row.folder, detail=row.id)
            case "postponed":
                self._bus.publish("notification.postponed", group=row.folder, detail=row.id)


async def _with_current_words(
    tx: Tx, row: Notification, context: decision.DeliveryContext, *, now_ms: int
) -> Notification:
    """Return the notification with the words of the rules that are true now.

    Words that a person or an agent has chosen stay as they are.
    """
    if row.cause is None or await dashboard_notifications.was_reworded(tx, row.folder, row.id):
        return row
    text = alerts.text_of(
        row.cause, task=context.task, question=context.question, hours=context.hours, at_ms=now_ms
    )
    return row if text is None else replace(row, message=text)


async def _cancel(tx: Tx, row: Notification, reason: str, *, now_ms: int) -> None:
    cancelled = NotificationStatus.CANCELLED
    await write(tx, row, now_ms=now_ms, status=cancelled, cancelled_ms=now_ms, cancel_reason=reason)


async def _claim(tx: Tx, row: Notification, chat_jid: ChatJid, *, now_ms: int) -> DispatchResult:
    """Claim the notification, unless another dispatcher has it, and put it into the outbox."""
    token = secrets.token_hex(8)
    until_ms = now_ms + CLAIM_MS
    # Another process may have claimed it since it was read; the version in the row decides.
    if not await dashboard_notifications.claim(tx, row, token, now_ms=now_ms, until_ms=until_ms):
        return DispatchResult(notification=row, outcome="taken")
    text = decision.words_of(row, now_ms=now_ms)
    await dashboard_deliveries.hand_over(tx, row, chat_jid, text=text, now_ms=now_ms)
    return DispatchResult(notification=row, outcome="claimed")


async def _notify_expired(tx: Tx, expired: Sequence[DispatchResult], *, now_ms: int) -> None:
    """Send each group one line that names the notifications that came too late."""
    # One line a group: after a long pause there may be dozens.
    groups_of = {row.group.folder: row.group for row in expired if row.group is not None}
    for folder, group in groups_of.items():
        late = [row.notification for row in expired if row.notification.folder == folder]
        await outbox.add(
            tx,
            chat_jid=group.jid,
            folder=folder,
            text=expired_line([row.message for row in late]),
            dedupe_key=f"expired:{folder}:{late[0].id}:{now_ms}",
            now_ms=now_ms,
        )


def expired_line(texts: Sequence[str]) -> str:
    """Return the line about late ones: `⌛ Too late to be of use: “water the plants” and 2 more.`"""
    named = ", ".join(f"“{rule_texts.shorten(text)}”" for text in texts[:TOLD_TOO_LATE])
    more = f" and {len(texts) - TOLD_TOO_LATE} more" if len(texts) > TOLD_TOO_LATE else ""
    return f"⌛ Too late to be of use: {named}{more}."
