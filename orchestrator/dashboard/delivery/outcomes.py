"""Record on a notification whether its message was sent, in the caller's transaction."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import structlog

from orchestrator.base.wakeups import Wakeup
from orchestrator.dashboard.delivery import decision
from orchestrator.dashboard.services import notification_log
from orchestrator.domain.dashboard import Notification, NotificationStatus
from orchestrator.domain.values import OutboxState, Outgoing, Retry
from orchestrator.store.board import dashboards
from orchestrator.store.board import deliveries as board_deliveries
from orchestrator.store.board import notifications as board_notifications
from orchestrator.store.conversation import outbox
from orchestrator.store.database import Tx, after_commit
from orchestrator.store.notices import host_events

log = structlog.get_logger(__name__)


APOLOGY = "⚠️ This should have come earlier: {text}"


class DeliveryOutcomes:
    """Handlers that the outbox calls before and after it sends the message of a notification."""

    def __init__(self, *, wakeup: Wakeup) -> None:
        """`wakeup` wakes the dispatcher of notifications."""
        self._wakeup = wakeup

    async def why_not(self, tx: Tx, outgoing: Outgoing) -> str | None:
        """Return why a message of the outbox must not be sent any more; None if it may be sent.

        Called right before it is sent. A message that belongs to no notification may be sent. Any other may
        be sent only while its notification has the status SENDING, which it gets when its message is queued;
        a notification that was cancelled or changed meanwhile has another status, or was removed.
        """
        row = await board_deliveries.of_outgoing(tx, outgoing)
        if row is None:
            is_removed = await board_deliveries.is_of_removed(tx, outgoing)
            return "its notification was removed" if is_removed else None
        if row.status is not NotificationStatus.SENDING:
            return f"notification {row.id} is {row.status.value}"
        # The message itself is being sent already: an earlier host died before it recorded the result. So the
        # chat may get it twice.
        if outgoing.state is OutboxState.SENDING:
            log.warning("notification.maybe_duplicate", notification=row.id, group=row.folder)
        return None

    async def note_sent(self, tx: Tx, outgoing: Outgoing, *, now_ms: int) -> None:
        """Record that a notification's message reached its chat; other messages are ignored.

        The agent gets a line about the notification in its next prompt.
        """
        row = await board_deliveries.of_outgoing(tx, outgoing)
        if row is None or not row.status.is_open:
            return
        await store_change(
            tx,
            row,
            now_ms=now_ms,
            status=NotificationStatus.DELIVERED,
            delivered_ms=now_ms,
            late_ms=max(0, now_ms - row.due_ms),
            error=None,
        )
        await host_events.notification_delivered(tx, row.folder, row.message, now_ms=now_ms)
        # The dispatcher publishes what is recorded, and this transaction may yet be rolled back.
        after_commit(tx, self._wakeup.set)

    async def note_failed(
        self,
        tx: Tx,
        outgoing: Outgoing,
        error: str,
        *,
        now_ms: int,
        requested_ms: int = 0,
        is_last_pause: bool = False,
    ) -> Retry:
        """Record a failed attempt to send a notification's message, and return who is to try again.

        After the last attempt the notification has failed, and its chat gets the text with an apology. If the
        message belongs to no notification, nothing is recorded, and the outbox is to try again; if its
        notification has ended, nobody is to. Of a notification's message that was split, all parts but the
        first are deleted, whoever is to try again.

        `requested_ms` is the wait in milliseconds because the messenger asked for a pause; 0 if it asked for
        none. An attempt after which it asks for a pause does not count. With `is_last_pause` the messenger
        has asked for pauses for too long, so this attempt was the last. The apology is sent when the pause is
        over.
        """
        row = await board_deliveries.of_outgoing(tx, outgoing)
        if row is None:
            return Retry.BY_OUTBOX  # the outbox, as it does with every other message
        # Otherwise the other parts of a long text would be sent before the first one, or without it. Another
        # attempt, or the apology, brings the whole text.
        await outbox.drop_other_parts(tx, outgoing.id)
        if not row.status.is_open:
            return Retry.NEVER
        pause_ms = decision.pause_ms(row.attempts)
        if is_last_pause or (pause_ms is None and not requested_ms):
            await self._fail(tx, row, error, now_ms=now_ms)
            await _apologise(tx, row, outgoing, at_ms=now_ms + requested_ms)
            return Retry.BY_ANOTHER  # the message with the apology
        # Only the notification's row says when to try again; the outbox must not retry on its own schedule.
        not_before_ms = now_ms + requested_ms if requested_ms else None
        await board_deliveries.hold(tx, outgoing, error=error, not_before_ms=not_before_ms)
        retry_ms = now_ms + max(pause_ms or decision.PAUSES_MS[-1], requested_ms)
        await store_change(
            tx,
            row,
            now_ms=now_ms,
            status=NotificationStatus.PENDING,
            # The claim counted this attempt; it does not count if the messenger asked for a pause.
            attempts=row.attempts - (requested_ms > 0),
            next_attempt_ms=retry_ms,
            error=error,
        )
        after_commit(tx, self._wakeup.set)
        return Retry.BY_NOTIFICATION  # by `next_attempt_ms` of the notification

    async def note_given_up(self, tx: Tx, outgoing: Outgoing, error: str, *, now_ms: int) -> None:
        """Record that a notification failed, as its message will never be sent.

        Nothing is recorded for a message of no notification, or if the notification has ended already.
        """
        row = await board_deliveries.of_outgoing(tx, outgoing)
        if row is not None and row.status.is_open:
            await self._fail(tx, row, error, now_ms=now_ms)

    async def _fail(self, tx: Tx, row: Notification, error: str, *, now_ms: int) -> None:
        """Record and log that a notification failed for good, and wake the dispatcher to publish that."""
        await store_change(tx, row, now_ms=now_ms, status=NotificationStatus.FAILED, error=error)
        log.error("notification.failed", notification=row.id, group=row.folder, reason=error)
        after_commit(tx, self._wakeup.set)


async def _apologise(tx: Tx, row: Notification, outgoing: Outgoing, *, at_ms: int) -> None:
    """Queue the text of a failed notification once more, with an apology, for the chat of `outgoing`.

    It is not sent before `at_ms`. It is an ordinary message, which the outbox tries for a day, so the text
    comes late but is not lost.
    """
    # The key names the notification, so a host that dies here apologises once.
    await outbox.add(
        tx,
        chat_jid=outgoing.chat_jid,
        folder=row.folder,
        text=APOLOGY.format(text=row.message),
        dedupe_key=f"notification-late:{row.folder}:{row.id}",
        now_ms=at_ms,
    )


async def store_change(
    tx: Tx, row: Notification, *, now_ms: int, reason: str | None = None, **changes: Any
) -> Notification:
    """Change fields of a notification that was read in this transaction, and return the changed row.

    `changes` are new values by field name. The dispatcher's claim on it is removed. The change is recorded in
    its history as one of the host, with `reason` if there is one.
    """
    version = await dashboards.advance(tx, row.folder)
    changed = replace(row, claim_token=None, claim_until_ms=None, version=version, **changes)
    await board_notifications.put(tx, changed, read_version=row.version)
    await notification_log.record(tx, row, changed, by=notification_log.HOST, now_ms=now_ms, reason=reason)
    return changed
