"""Send notifications when they are due, and so also people's reminders, which are notifications.

A due one is claimed and put into the outbox in one transaction.
"""

from __future__ import annotations

import secrets
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import structlog

from orchestrator.base.clock import Clock
from orchestrator.base.event_bus import EventBus
from orchestrator.base.wakeups import Wakeups
from orchestrator.dashboard.delivery import decision, question_polls
from orchestrator.dashboard.delivery.decision import DeliveryDecision, Verdict
from orchestrator.dashboard.delivery.outcomes import store_change
from orchestrator.dashboard.rules.slots import Hours
from orchestrator.dashboard.views import notification_log
from orchestrator.dashboard.words import rule_texts
from orchestrator.domain.dashboard import Notification, NotificationStatus
from orchestrator.domain.values import ChatJid, Folder, Group
from orchestrator.groups import owner
from orchestrator.store.board import deliveries as board_deliveries
from orchestrator.store.board import notifications as board_notifications
from orchestrator.store.board.deliveries import DueNotification
from orchestrator.store.board.notifications import NotificationOutlook
from orchestrator.store.conversation import outbox
from orchestrator.store.database import Database, Tx, all_or_nothing
from orchestrator.store.notices import host_events

log = structlog.get_logger(__name__)

SWEEP_SECONDS = 5.0
"""Largest number of seconds between two passes: other processes write notifications too, without a wake-up.
"""
CLAIM_MS = 60_000
"""Milliseconds after which another dispatcher may take over a claimed notification."""
MAX_AT_ONCE = 200
"""The largest number of notifications, or of changes, that one transaction handles."""
NOT_DISPATCHED = (
    "⚠️ I cannot send the notification {id} to '{group}' ({reason}). I try again each minute, and everything"
    " else goes on. Fix: 'andy logs' has the details for a bug report; an upgrade may have the fix."
)
MAX_NAMED = 3
"""The largest number of expired notifications that the line to the chat names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchResult:
    """The result of dispatching one due notification."""

    due: DueNotification
    outcome: str
    """`claimed`, `waiting` in the outbox still, `taken` by another dispatcher, `postponed`, `cancelled`,
    `expired`, or `overtaken` by an overdue alert that the rules send instead."""


class NotificationDispatcher:
    """Sleep until the next notification is due or one changes, then dispatch those that are due.

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
        """`hours_of` returns a group's hours for notifications.

        `daily_limit` is the largest number of automatic notifications, urgent ones not counted, that a group
        gets in a day; 0 for no limit.
        """
        self._database = database
        self._clock = clock
        self._wakeups = wakeups
        self._bus = bus
        self._hours_of = hours_of
        self._daily_limit = daily_limit
        self._published_id: int | None = None
        """Number of the last change whose event was published; None before the first pass."""

    async def run(self) -> None:
        """Send each notification when it is due, until the task is cancelled."""
        while True:
            wait_seconds = await self.send_due()
            # A changed notification ends the wait: it may be due sooner.
            await self._wakeups.notifications.wait(at_most_seconds=wait_seconds)

    async def send_due(self) -> float:
        """Dispatch the notifications that are due, and publish changes of notifications as events.

        Return after how many seconds to call this again.
        """
        # A read comes first: mostly there is nothing to do, and a write transaction makes others wait.
        outlook = await self._database.read(self._outlook)
        if self._published_id is None:
            self._published_id = outlook.newest_change
        if outlook.next_ms is not None and outlook.next_ms <= self._clock.now_ms():
            await self._dispatch_due()
            outlook = await self._database.read(self._outlook)
        if outlook.newest_change != self._published_id:
            await self._publish_changes(self._published_id)
        if outlook.next_ms is None:
            return SWEEP_SECONDS
        return min(SWEEP_SECONDS, max(0.0, (outlook.next_ms - self._clock.now_ms()) / 1000))

    async def _outlook(self, tx: Tx) -> NotificationOutlook:
        """Return when the next notification is due, and the number of the newest change."""
        return await board_notifications.outlook(tx, now_ms=self._clock.now_ms())

    async def _dispatch_due(self) -> None:
        """Decide on the due notifications, at most `MAX_AT_ONCE`, and record that in one transaction.

        The transaction also notifies the chats of expired notifications, and ends held messages of the outbox
        whose notification has ended. Then wake the outbox, which sends the due notifications, and publish an
        event for each that is to be sent.
        """
        now_ms = self._clock.now_ms()
        async with self._database.transaction() as tx:
            rows = await board_notifications.due(tx, now_ms, limit=MAX_AT_ONCE)
            dispatched = [await self._dispatch_apart(tx, row, now_ms=now_ms) for row in rows]
            results = [result for result in dispatched if result is not None]
            await _notify_expired(
                tx, [result.due for result in results if result.outcome == "expired"], now_ms=now_ms
            )
            await board_deliveries.drop_held(tx, now_ms=now_ms)  # messages whose notification has ended
        self._wakeups.outbox.set()
        for result in results:
            if result.outcome == "claimed":
                row = result.due.row
                # These words are documented: people search the log for them.
                log.info("Cron: executing job", job=f"notification_{row.id}", group=row.folder)
                self._bus.publish("notification.due", group=row.folder, detail=row.id)

    async def _dispatch_apart(self, tx: Tx, row: Notification, *, now_ms: int) -> DispatchResult | None:
        """Dispatch a notification as `_dispatch` does, but so that an error does not stop the other ones.

        After an error, only a pause of `CLAIM_MS` is recorded, the owner is notified once for each reason,
        and None is returned. An error of the database itself is raised: then no other notification can be
        recorded, either.
        """
        try:
            async with all_or_nothing(tx):
                return await self._dispatch(tx, await board_deliveries.with_subject(tx, row), now_ms=now_ms)
        except Exception as error:
            if isinstance(error, sqlite3.Error) and not isinstance(error, sqlite3.IntegrityError):
                raise
            log.exception("notification.not_dispatched", notification=row.id, group=row.folder)
            reason = f"{type(error).__name__}: {error}"
        await board_deliveries.pause(tx, row, until_ms=now_ms + CLAIM_MS)
        # Not its text: the agent of the owner's group reads this, and must not read another group's words.
        text = NOT_DISPATCHED.format(id=row.id, group=row.folder, reason=reason)
        try:
            async with all_or_nothing(tx):
                await owner.notify(tx, text, about=f"notification:{row.folder}:{row.id}", now_ms=now_ms)
        except sqlite3.IntegrityError:  # such as of the outbox, which may be the reason itself
            log.exception("notification.owner_not_notified", notification=row.id, group=row.folder)
        return None

    async def _dispatch(self, tx: Tx, due: DueNotification, *, now_ms: int) -> DispatchResult:
        """Decide what happens to a notification that is due, and record it in the transaction.

        It is claimed, so that no other dispatcher sends it, and put into the outbox; or it is postponed,
        expired or cancelled. If it waits in the outbox already, its claim is extended instead; if another
        dispatcher has taken it, nothing is done. Return it with the outcome, a word that `DispatchResult`
        explains.
        """
        hours = None if due.group is None else self._hours_of(due.group)
        decided = decision.decide(due, hours, now_ms=now_ms)
        row = decided.row
        until_ms = now_ms + CLAIM_MS
        poll = question_polls.poll_of(row, due.question, decided.text, now_ms=now_ms)
        text = decided.text if poll is None else poll.text
        # A notification in the outbox of a slow channel is still on its way: its claim is extended, since a
        # new claim would count as another attempt.
        if row.status is NotificationStatus.SENDING and await board_deliveries.extend_claim(
            tx, row, text=text, until_ms=until_ms
        ):
            return DispatchResult(due=due, outcome="waiting")
        match await self._verdict_within_daily_limit(tx, decided, hours, now_ms=now_ms):
            case decision.SendNow(chat_jid=chat_jid):
                token = secrets.token_hex(8)
                is_claimed = await board_deliveries.claim(
                    tx, row, chat_jid, text=text, poll=poll, token=token, now_ms=now_ms, until_ms=until_ms
                )
                # Without the claim, another dispatcher has taken the notification.
                outcome = "claimed" if is_claimed else "taken"
            case decision.Postpone(at_ms=at_ms, reason=reason):
                pending = NotificationStatus.PENDING
                await store_change(tx, row, now_ms=now_ms, reason=reason, status=pending, due_ms=at_ms)
                log.info("notification.postponed", notification=row.id, group=row.folder, reason=reason)
                outcome = "postponed"
            case decision.Expire(is_reported=is_reported):
                late_ms = now_ms - row.due_ms
                await store_change(tx, row, now_ms=now_ms, status=NotificationStatus.EXPIRED, late_ms=late_ms)
                # The agent gets a line about it in its next prompt; not if an overdue alert is sent instead.
                if is_reported:
                    await host_events.notification_expired(tx, row.folder, row.message, now_ms=now_ms)
                outcome = "expired" if is_reported else "overtaken"
            case decision.Cancel(reason=reason):
                cancelled = NotificationStatus.CANCELLED
                await store_change(
                    tx, row, now_ms=now_ms, status=cancelled, cancelled_ms=now_ms, cancel_reason=reason
                )
                outcome = "cancelled"
        return DispatchResult(due=replace(due, row=row), outcome=outcome)

    async def _verdict_within_daily_limit(
        self, tx: Tx, decided: DeliveryDecision, hours: Hours | None, *, now_ms: int
    ) -> Verdict:
        """Return the verdict, or a postponement to the next day if the group's daily limit is used up.

        `hours` are the group's hours for notifications, None where the group was removed.
        """
        verdict = decided.verdict
        # A daily limit of 0 means that there is none.
        has_limit = isinstance(verdict, decision.SendNow) and verdict.has_daily_limit
        if not (has_limit and self._daily_limit and hours):
            return verdict
        midnight_ms = hours.start_of(hours.day_of(now_ms))
        sent = await board_deliveries.count_automatic(
            tx, decided.row.folder, since_ms=midnight_ms, now_ms=now_ms
        )
        return verdict if sent < self._daily_limit else decision.next_day(hours, now_ms=now_ms)

    async def _publish_changes(self, published_id: int) -> None:
        """Publish an event for each change of a notification after the change with number `published_id`."""
        # From the store, so that each change is published once whichever process made it, and none that was
        # rolled back.
        async with self._database.reading() as tx:
            changes = await board_notifications.history_after(tx, published_id, limit=MAX_AT_ONCE)
            # Without changes, the newest number is read again: an import that replaces a dashboard removes
            # the newest rows, and later changes get their numbers.
            newest_id = changes[-1].id if changes else await board_notifications.newest_history_id(tx)
        self._published_id = newest_id
        for change in changes:
            fields = notification_log.event_fields(change)
            self._bus.publish(f"notification.{notification_log.event_word(change)}", **fields)
        # There may be more: the next pass, which this starts at once, publishes them.
        if len(changes) == MAX_AT_ONCE:
            self._wakeups.notifications.set()


async def _notify_expired(tx: Tx, expired: Sequence[DueNotification], *, now_ms: int) -> None:
    """Queue a message to each chat about its notifications that came too late to be sent.

    It names the first `MAX_NAMED`, and counts the others.
    """
    # One line a chat: after a long pause there may be dozens.
    late_of_chats: dict[tuple[Folder, ChatJid], list[Notification]] = defaultdict(list)
    for due in expired:
        if due.group is not None:
            late_of_chats[due.group.folder, due.group.chat_for(due.row.chat_jid)].append(due.row)
    for (folder, chat_jid), late in late_of_chats.items():
        try:
            async with all_or_nothing(tx):
                await outbox.add(
                    tx,
                    chat_jid=chat_jid,
                    folder=folder,
                    text=expired_line([row.message for row in late]),
                    dedupe_key=f"expired:{folder}:{late[0].id}:{now_ms}",
                    now_ms=now_ms,
                )
        except sqlite3.IntegrityError:  # the others are notified all the same
            log.exception("notification.expiry_not_notified", group=folder)


def expired_line(texts: Sequence[str]) -> str:
    """Return the line to a chat about notifications that came too late to be sent; `texts` are their texts.

    For example `⌛ Too late to be of use: “water the plants” and 2 more.`
    """
    named = ", ".join(f"“{rule_texts.shorten(text)}”" for text in texts[:MAX_NAMED])
    others = f" and {len(texts) - MAX_NAMED} more" if len(texts) > MAX_NAMED else ""
    return f"⌛ Too late to be of use: {named}{others}."
