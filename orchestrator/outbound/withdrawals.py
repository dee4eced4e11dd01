"""Delete the messages of undone turns at their messengers.

A message that cannot be deleted stays in its chat, which gets a text with the reason.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from orchestrator.base.clock import Clock
from orchestrator.base.event_bus import EventBus
from orchestrator.base.wakeups import Wakeup
from orchestrator.domain.errors import ChannelDown, ChannelRefused, is_retry_due
from orchestrator.domain.protocols import Channel, Feature
from orchestrator.domain.values import ChatJid, Message, Outgoing
from orchestrator.outbound.delivery import GIVE_UP_ATTEMPTS, GIVE_UP_MS, SEND_SECONDS, backoff_ms
from orchestrator.store.conversation import messages, outbox, withdrawals
from orchestrator.store.conversation.withdrawals import Withdrawal
from orchestrator.store.database import Database, Tx
from orchestrator.store.runs import sessions

log = structlog.get_logger(__name__)

SWEEP_SECONDS = 60.0
DELETES_NOTHING = "this messenger deletes no messages"


class Withdrawals:
    """Deletes the messages that are due, one after another."""

    def __init__(
        self,
        database: Database,
        *,
        clock: Clock,
        channel_for: Callable[[ChatJid], Channel | None],
        bus: EventBus,
        wakeup: Wakeup,
    ) -> None:
        """Set up the deletions; `run` carries them out.

        `channel_for` returns the channel of a chat; None if it is not set up. `wakeup` wakes the delivery of
        texts to chats.
        """
        self._database = database
        self._clock = clock
        self._channel_for = channel_for
        self._bus = bus
        self._wakeup = wakeup

    async def run(self) -> None:
        """Delete the messages that undone turns had sent, until cancelled.

        A turn is a question to the agent; to undo it, its messages are taken back as well.
        """
        with self._bus.listening("turn.undone") as events:
            while True:
                await self.withdraw_due()
                try:
                    async with asyncio.timeout(SWEEP_SECONDS):
                        await events.get()
                except TimeoutError:
                    continue

    async def withdraw_due(self) -> None:
        """Try all deletions of messages that are due now, one after another."""
        for withdrawal in await self._database.read(withdrawals.unfinished):
            if is_retry_due(withdrawal.next_attempt_ms, now_ms=self._clock.now_ms()):
                await self._withdraw(withdrawal)

    async def _withdraw(self, withdrawal: Withdrawal) -> None:
        """Delete a sent message or reaction at its messenger, and record that.

        If the messenger is unreachable, the deletion is tried again later. If the messenger refuses, or its
        code fails, the deletion is given up, and the chat gets a text with the reason. For a message that is
        no longer stored, the deletion is only recorded as ended.
        """

        async def load(tx: Tx) -> tuple[Outgoing | None, Message | None]:
            """Return the outbox's entry to take back, and the message in the chat that it is about.

            That is the sent message itself, or the one that a reaction belongs to. None for each that is
            gone.
            """
            rows = await outbox.by_ids(tx, [withdrawal.outbox_id])
            if not rows:
                return None, None
            message_id = rows[0].reacts_to or rows[0].message_id
            return rows[0], await messages.find(tx, rows[0].chat_jid, message_id)

        outgoing, message = await self._database.read(load)
        if outgoing is None or message is None:
            await self._database.write(
                lambda tx: withdrawals.finish(tx, withdrawal.outbox_id, error="it is gone")
            )
            return
        channel = self._channel_for(message.chat_jid)
        try:
            await _take_back(channel, outgoing, message)
        except (ChannelDown, TimeoutError) as error:
            reason = str(error) or "the messenger did not answer in time"
            pause_seconds = error.pause_seconds if isinstance(error, ChannelDown) else 0.0
            await self._postpone(withdrawal, outgoing, reason, pause_seconds=pause_seconds)
        except ChannelRefused as error:
            await self._give_up(withdrawal, outgoing, str(error))
        except Exception as error:
            log.exception("withdrawal.broke", message=message.id)
            await self._give_up(withdrawal, outgoing, type(error).__name__)
        else:
            await self._finish(withdrawal, outgoing, message)

    async def _finish(self, withdrawal: Withdrawal, outgoing: Outgoing, message: Message) -> None:
        """Record that a message or reaction was deleted, remove a message's text here, and publish that.

        `message` is the deleted message, or the one that the deleted reaction was under.
        """

        async def record_deletion(tx: Tx) -> None:
            """Record the deletion, and remove the message's text; a reaction has none."""
            await withdrawals.finish(tx, withdrawal.outbox_id)
            if outgoing.reacts_to is not None:
                return
            # As when a person deletes a message: its text is removed from the store and from the
            # conversation.
            await messages.blank(tx, message)
            turn_id = await outbox.blank(tx, message.id)
            if turn_id is not None and outgoing.folder is not None:
                await sessions.note_deletion(tx, outgoing.folder, turn_id, message.seq)

        await self._database.write(record_deletion)
        self._bus.publish("message.amended", group=outgoing.folder, message=message.id)

    async def _postpone(
        self, withdrawal: Withdrawal, outgoing: Outgoing, error: str, *, pause_seconds: float
    ) -> None:
        """Record that a deletion failed and when to try it again.

        A deletion that is older than `GIVE_UP_MS` is given up after `GIVE_UP_ATTEMPTS` attempts.

        `pause_seconds` is the pause that the messenger asks for, 0 if it asks for none.
        """
        now_ms = self._clock.now_ms()
        attempts = withdrawal.attempts + 1
        if now_ms - withdrawal.created_ms > GIVE_UP_MS and attempts >= GIVE_UP_ATTEMPTS:
            await self._give_up(withdrawal, outgoing, error)
            return
        at_ms = now_ms + max(backoff_ms(attempts), int(pause_seconds * 1000))
        await self._database.write(
            lambda tx: withdrawals.try_later(tx, withdrawal.outbox_id, at_ms=at_ms, error=error)
        )

    async def _give_up(self, withdrawal: Withdrawal, outgoing: Outgoing, error: str) -> None:
        """Record that a message stays in its chat, and send the chat the reason, `error`."""

        async def record_failure(tx: Tx) -> None:
            """Record the reason, and queue the text for the chat."""
            await withdrawals.finish(tx, withdrawal.outbox_id, error=error)
            await outbox.add(
                tx,
                chat_jid=outgoing.chat_jid,
                folder=outgoing.folder,
                text=f"⚠️ I could not delete a message that I had sent here: {error.rstrip('.')}.",
                dedupe_key=f"withdrawn:{withdrawal.outbox_id}:{withdrawal.turn_id}",
                now_ms=self._clock.now_ms(),
            )

        log.warning("withdrawal.given_up", outgoing=withdrawal.outbox_id, reason=error)
        await self._database.write(record_failure)
        self._wakeup.set()


async def _take_back(channel: Channel | None, outgoing: Outgoing, message: Message) -> None:
    """Delete a message in its chat, or remove Andy's reaction from it if `outgoing` is a reaction.

    `channel` is None if the chat's messenger is not set up.

    Raises:
        ChannelDown, TimeoutError: it was not deleted; it may work later.
        ChannelRefused: it was not deleted, and never will be. Without a channel, or if the channel cannot
            delete messages, this is raised at once.
    """
    if channel is not None and outgoing.reacts_to is not None:
        async with asyncio.timeout(SEND_SECONDS):
            await channel.react(message, "")
        return
    if channel is None or Feature.WITHDRAWALS not in channel.features:
        raise ChannelRefused(DELETES_NOTHING)
    async with asyncio.timeout(SEND_SECONDS):
        await channel.withdraw(message)
