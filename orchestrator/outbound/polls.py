"""End polls at their time: count no more votes, close them in the messenger, and queue their turns."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

import structlog

from orchestrator.base.clock import Clock
from orchestrator.base.event_bus import EventBus, until_next
from orchestrator.base.wakeups import Wakeups
from orchestrator.domain.errors import ChannelDown, ChannelRefused, StoreError
from orchestrator.domain.polls import Poll
from orchestrator.domain.protocols import Channel, Feature
from orchestrator.domain.values import ChatJid, Message, OutboxState
from orchestrator.groups import roles, settings
from orchestrator.outbound.delivery import GIVE_UP_MS, SEND_SECONDS
from orchestrator.store.conversation import messages, outbox, polls
from orchestrator.store.database import Database, Tx
from orchestrator.store.groups import groups
from orchestrator.store.runs import turns

log = structlog.get_logger(__name__)

SWEEP_SECONDS = 60.0
"""Most seconds between two looks for polls that end."""


class PollEnds:
    """Ends the polls that are due, one after another."""

    def __init__(
        self,
        database: Database,
        *,
        clock: Clock,
        channel_for: Callable[[ChatJid], Channel | None],
        bus: EventBus,
        wakeups: Wakeups,
    ) -> None:
        """Set up; `run` ends polls. `channel_for` returns the channel of a chat; None if it is not set up."""
        self._database = database
        self._clock = clock
        self._channel_for = channel_for
        self._bus = bus
        self._wakeups = wakeups

    async def run(self) -> None:
        """End polls at their time until cancelled."""
        with self._bus.listening("command.send_poll") as events:
            while True:
                await until_next(events, at_most_seconds=await self.end_due())

    async def end_due(self) -> float:
        """End the polls whose time is over, close them in their messengers, and wake the queue of turns.

        Return in how many seconds to look again.

        Raises:
            ExceptionGroup: some polls could not be ended for an unexpected reason; all others were.
        """
        failures: list[Exception] = []
        for poll in await self._database.read(partial(polls.ended_by, now_ms=self._clock.now_ms())):
            try:
                await self._database.write(partial(self._end, poll=poll))
            except StoreError:  # then no other poll can be written, either
                raise
            except Exception as error:
                log.exception("poll.not_ended", group=poll.folder, poll=poll.id)
                failures.append(error)
            else:
                log.info("poll.ended", group=poll.folder, poll=poll.id)
                self._wakeups.lanes.set()
        for poll in await self._database.read(polls.to_close):
            await self._close(poll)
        if failures:
            raise ExceptionGroup("Polls could not be ended.", failures)
        next_ms = await self._database.read(polls.next_end_ms)
        if next_ms is None:
            return SWEEP_SECONDS
        return min(SWEEP_SECONDS, max(0.0, (next_ms - self._clock.now_ms()) / 1000))

    async def _end(self, tx: Tx, poll: Poll) -> None:
        """Record that a poll whose time is over has ended.

        A poll that was sent gets a turn that reports its result to the agent, unless it asked a question of
        the dashboard, or its chat no longer belongs to its group.
        """
        now_ms = self._clock.now_ms()
        if poll not in await polls.ended_by(tx, now_ms):
            return  # it has ended, or was deleted, since it was read
        group = await groups.by_jid(tx, poll.chat_jid)
        turn_id = None
        # A poll that was never sent, or whose chat is gone, has no result.
        sent = await outbox.by_message_id(tx, poll.message_id)
        # The outbox may no longer have its row; the chat's history has what was sent.
        was_sent = (sent is not None and sent.state is OutboxState.SENT) or (
            await messages.find(tx, poll.chat_jid, poll.message_id) is not None
        )
        if was_sent and group is not None and group.folder == poll.folder and poll.board_question is None:
            rights = roles.rights_of(poll.role, settings.of(group))
            # The chat's waiting turn, which the poll's end joins as a message would; a new one if none waits.
            turn_id = await turns.join_chat(
                tx,
                group.folder,
                poll.chat_jid,
                now_ms=now_ms,
                role=poll.role,
                is_restricted=roles.is_restricted(rights, group),
            )
        await polls.end(tx, poll, turn_id, now_ms=now_ms)

    async def _close(self, poll: Poll) -> None:
        """Close a poll that has ended in its messenger, and record that.

        While the messenger is unreachable, nothing is recorded, so that the next call tries again, for a day.
        """
        now_ms = self._clock.now_ms()
        message = await self._database.read(lambda tx: messages.find(tx, poll.chat_jid, poll.message_id))
        try:
            if message is not None and not poll.is_text:
                await self._close_in_messenger(message)
        except (ChannelDown, TimeoutError) as error:
            log.warning("poll.not_closed", poll=poll.id, reason=str(error))
            if now_ms - (poll.ended_ms or 0) < GIVE_UP_MS:
                return
        # Votes are not counted any more in any case: a poll that the messenger cannot close only looks open.
        except ChannelRefused as error:
            log.info("poll.not_closed", poll=poll.id, reason=str(error))
        except Exception:
            log.exception("poll.not_closed", poll=poll.id)
        await self._database.write(lambda tx: polls.note_closed(tx, poll, now_ms=now_ms))

    async def _close_in_messenger(self, message: Message) -> None:
        """Close the poll that a message shows, so that the messenger takes no more votes.

        Nothing is done if the messenger has no polls of its own.

        Raises:
            ChannelDown, TimeoutError: the poll is still open; closing it may succeed later.
            ChannelRefused: the messenger cannot close the poll.
        """
        channel = self._channel_for(message.chat_jid)
        if channel is None:
            # The messenger may be left out of the settings for this start of the host only. After this
            # error, closing the poll is tried again.
            raise ChannelDown("No messenger of this host has the chat.")
        if Feature.POLLS in channel.features:
            async with asyncio.timeout(SEND_SECONDS):
                await channel.end_poll(message)
