"""Send the outbox's messages through the channels: in order within a chat, independently between chats."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import structlog

from orchestrator.base.backoff import doubled_pause
from orchestrator.base.clock import Clock
from orchestrator.base.event_bus import EventBus
from orchestrator.base.wakeups import Wakeup
from orchestrator.domain.errors import (
    LONGEST_PAUSES_MS,
    ChannelDown,
    ChannelRefused,
    OutcomeUnknown,
    SendRateFull,
    StoreError,
    is_retry_due,
    lengthened_pause,
)
from orchestrator.domain.polls import Poll
from orchestrator.domain.protocols import Channel, Feature
from orchestrator.domain.silence import is_silence
from orchestrator.domain.values import (
    Attachment,
    ChatJid,
    ChatMember,
    Message,
    MessageId,
    OutboxState,
    Outgoing,
    Retry,
)
from orchestrator.outbound.format import for_people, split
from orchestrator.store.conversation import messages, outbox, polls
from orchestrator.store.database import Database, Tx
from orchestrator.store.notices import host_events

log = structlog.get_logger(__name__)

T = TypeVar("T")

FIRST_BACKOFF_MS = 5_000
"""Milliseconds of the pause after the first failure; each further pause is twice as long."""
LONGEST_BACKOFF_MS = 3_600_000
"""Longest pause in milliseconds between two attempts."""
GIVE_UP_MS = 24 * 3_600_000
"""Milliseconds after which a message is given up: an outage of a messenger may last a day and lose nothing.
"""
RETAINED_FILES = 20
"""Number of sent files whose copies are retained per group, so that the owner can open them in the console.
"""
GIVE_UP_ATTEMPTS = 10
"""Least attempts before a message is given up: after a jump of the clock, age alone would end it untried."""
GIVE_UP_PAUSES = 30
"""Pauses in a row, some 100 minutes of them, before a message is given up whose messenger asks for them."""
SEND_SECONDS = 60.0
"""Seconds that a text may take; a file may take twice as long, and the time for its size."""
FILE_BYTES_PER_SECOND = 100_000
"""Bytes per second of the slowest line that is allowed for: a file's size extends the timeout of its send."""
STUCK_MS = 3_600_000
"""Milliseconds after which a message is given up as stuck, if its messenger is connected and others of its
chat wait behind it.
"""
STUCK_ATTEMPTS = 5
"""Least attempts before a message counts as stuck: after a jump of the clock, the time alone would end it."""
STUCK_REACTION_MS = 60_000
"""The same milliseconds for a reaction, for which no message should wait long."""
RECORD_TRIES, RECORD_PAUSE_SECONDS = 60, 5.0
"""Attempts to record how a send ended, and seconds between two: a full disk may have room again."""
SWEEP_SECONDS = 30.0
"""Most seconds between two looks at the outbox: a wake-up may be lost."""


def backoff_ms(attempts: int) -> int:
    """Return the pause in milliseconds after `attempts` failures: 5 s, 10 s, 20 s … at most an hour."""
    return int(doubled_pause(FIRST_BACKOFF_MS, LONGEST_BACKOFF_MS, failures=attempts))


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryHooks:
    """Callbacks that learn the result of each message, or keep it from being sent.

    They run as work for `Database.write`: they await nothing but `tx`.
    """

    why_not: Callable[[Tx, Outgoing], Awaitable[str | None]]
    """Return why a message must not be sent any more, or None; called right before it is sent."""
    note_sent: Callable[..., Awaitable[None]]
    """`(tx, outgoing, *, now_ms)`: called after the message was sent."""
    note_failed: Callable[..., Awaitable[Retry]]
    """`(tx, outgoing, error, *, now_ms, requested_ms, is_last_pause)`: called after a failed attempt; returns
    who decides about the next. `requested_ms` is the wait because the messenger asked for a pause, or 0.
    `is_last_pause` says that it has asked for too long, so that there is no next attempt.
    """
    note_given_up: Callable[..., Awaitable[None]]
    """`(tx, outgoing, error, *, now_ms)`: called when the message will never be sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Links:
    """The message to quote, the person to mention, and the thread to send to."""

    quote: Message | None
    mention: ChatMember | None
    thread: str | None
    poll: Poll | None = None
    """The poll that the message contains."""
    target: Message | None = None
    """The message that a reaction belongs to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Attempt:
    """A message that is about to be sent, or why it must not be."""

    outgoing: Outgoing
    text: str
    """The text to send, which the chat's history gets, too."""
    why_not: str | None
    links: _Links


class Delivery:
    """Sends the messages that are due, at most one at a time in each chat."""

    def __init__(
        self,
        database: Database,
        *,
        clock: Clock,
        name: str,
        channel_for: Callable[[ChatJid], Channel | None],
        tasks: asyncio.TaskGroup,
        wakeup: Wakeup,
        bus: EventBus,
        resends: Collection[str] = (),
        hooks: DeliveryHooks | None = None,
    ) -> None:
        """Set up the delivery; `run` sends.

        Args:
            database: the database with the outbox, the table of messages to send.
            clock: the clock.
            name: the assistant's name.
            channel_for: returns the channel of a chat; None if it is not set up.
            tasks: runs a task for each message that is being sent.
            wakeup: set when there may be something to send.
            bus: the event bus.
            resends: the names of channels on which a message is sent again even if it may have arrived, as
                the owner has set.
            hooks: called around each sending.
        """
        self._resends = resends
        self._hooks = hooks
        self._database = database
        self._clock = clock
        self._name = name
        self._channel_for = channel_for
        self._tasks = tasks
        self._wakeup = wakeup
        self._bus = bus
        # Chats in which a message is being sent. A second one would overtake it, or send the same again.
        self._busy: set[ChatJid] = set()
        self._pauses: dict[int, int] = {}
        """For each message whose last attempt ended with a request for a pause, how many did so in a row."""

    async def run(self) -> None:
        """Send the messages that are due, whenever the wake-up is set or one becomes due, until cancelled."""
        while True:
            await self._wakeup.wait(at_most_seconds=await self._start_due())

    async def drain(self, *, seconds: float) -> None:
        """Wait until no message is due any more, at most `seconds`; `run` has to send them meanwhile.

        A message that fails is due again only after a pause, so one failure of each is waited for.
        """
        with self._bus.listening() as events, suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while await self._has_due():
                    await events.get()

    async def _has_due(self) -> bool:
        """Return whether the first message of any chat is due."""
        first_messages = await self._database.read(outbox.heads)
        return any(
            is_retry_due(outgoing.next_attempt_ms, now_ms=self._clock.now_ms()) for outgoing in first_messages
        )

    async def _start_due(self) -> float:
        """Start a task for each chat whose next message is due; return in how many seconds to look again."""
        # The first message of each chat; the others wait behind it.
        first_messages = await self._database.read(outbox.heads)
        now_ms = self._clock.now_ms()
        wait_seconds = SWEEP_SECONDS
        for outgoing in first_messages:
            if outgoing.chat_jid in self._busy:
                continue
            if not is_retry_due(outgoing.next_attempt_ms, now_ms=now_ms):
                wait_seconds = min(wait_seconds, (outgoing.next_attempt_ms - now_ms) / 1000)
                continue
            self._busy.add(outgoing.chat_jid)
            self._tasks.create_task(self._deliver_in_chat(outgoing), name=f"deliver:{outgoing.id}")
        return wait_seconds

    async def _deliver_in_chat(self, outgoing: Outgoing) -> None:
        """Deliver `outgoing`, the first waiting message of a chat, then let the chat's next delivery start.

        An error is logged; then `outgoing` itself is delivered again.
        """
        try:
            await self._deliver(outgoing)
        except Exception:
            # `_attempt` handles the channels' errors, so this one is the store's or our own. The message
            # stays due: without a pause it would be tried again at once, without end.
            log.exception("delivery.failed", outgoing=outgoing.id)
            await asyncio.sleep(1)
        finally:
            self._busy.discard(outgoing.chat_jid)
            self._wakeup.set()

    async def _deliver(self, outgoing: Outgoing) -> None:
        """Send a message, or the first part of a longer one; if nothing is to be sent, record why.

        The other parts of a longer message become messages of their own in the outbox. A message that has
        changed since it was read is left for the next look.
        """
        channel = self._channel_for(outgoing.chat_jid)
        text_limit = channel.max_text_chars if channel else None
        parts = _parts(outgoing, text_limit)
        if outgoing.attachment is not None:
            # A caption is short, and may be empty.
            parts = parts[:1] or ("",)
        if outgoing.reacts_to is not None:
            parts = (outgoing.text,)  # the emoji, as it is
        if not parts:
            await self._finish(outgoing, OutboxState.SKIPPED, error="nothing in it was for people")
            return
        # Without a channel, `_attempt` only records that. All features are assumed then, so that a poll does
        # not become a text because its messenger is off.
        features = channel.features if channel else frozenset(Feature)
        # Committed before the send: a host that finds the state "sending" knows that it may have arrived
        # already.
        attempt = await self._database.write(
            lambda tx: self._begin(tx, outgoing, parts, features, text_limit=text_limit)
        )
        if attempt is None:
            return
        if attempt.why_not is not None:
            await self._finish(outgoing, OutboxState.SKIPPED, error=attempt.why_not)
            return
        await self._attempt(channel, attempt.outgoing, attempt.text, attempt.links)

    async def _attempt(self, channel: Channel | None, outgoing: Outgoing, text: str, links: _Links) -> None:
        """Send the `text` of the message `outgoing` once, and record the result.

        The result is that it was sent, that it is tried again later, or that it is given up: as DEAD if it
        was refused, as UNKNOWN if it may have arrived. A poll that the chat refuses is tried again as a text.
        `channel` is None if the chat's messenger is not set up. `links` are the quote, the mention and more
        to send with it.
        """
        # The pauses in a row that the messenger asked for; `_try_later` stores one more if it asks again.
        pauses = self._pauses.pop(outgoing.id, 0)
        try:
            channel_id = await self._send(channel, outgoing, text, links)
        except ChannelRefused as error:
            if links.poll is not None and not links.poll.is_text:
                await self._ask_by_numbers(outgoing, str(error))
                return
            await self._finish(outgoing, OutboxState.DEAD, error=str(error), notifies_chat=error.is_chat_fine)
        except OutcomeUnknown as error:
            # On the channels in `_resends`, the owner prefers a message that comes twice to one that is lost.
            if channel is not None and channel.name in self._resends:
                # An idempotent channel raises this if it cannot find out what became of the first attempt; so
                # the next one counts as the first and is sent, not looked up again. Any other channel has
                # noted which parts were sent, and does not send those again.
                is_idempotent = Feature.IDEMPOTENT in channel.features
                await self._try_later(
                    outgoing, str(error), end=OutboxState.UNKNOWN, forgets_tries=is_idempotent
                )
            else:
                await self._finish(outgoing, OutboxState.UNKNOWN, error=str(error))
        except ChannelDown as down:
            if isinstance(down, SendRateFull):
                pauses = 0  # the messenger has not asked for this pause, so it does not grow
            # A pause that the messenger asks for is no fault of this message, so it does not count as stuck.
            if not down.pause_seconds and await self._holds_up_chat(channel, outgoing):
                is_text = outgoing.reacts_to is None
                # Unknown, not dead: an attempt without an answer may have arrived.
                await self._finish(outgoing, OutboxState.UNKNOWN, error=str(down), notifies_chat=is_text)
            else:
                await self._try_later(
                    outgoing,
                    str(down),
                    pause_seconds=down.pause_seconds,
                    pauses=pauses,
                    moved_to=down.moved_to,
                )
        else:
            await self._mark_sent(outgoing, text, channel_id)

    async def _ask_by_numbers(self, outgoing: Outgoing, error: str) -> None:
        """Let a poll that its chat refused be sent again at once, as a text with numbered options.

        `error` is the reason of the refusal, which is stored.
        """
        log.info("delivery.poll_as_text", outgoing=outgoing.id, reason=error)

        async def note_refusal(tx: Tx) -> None:
            """Record that the question is asked as a text, and that this is due now."""
            await polls.note_text(tx, outgoing.message_id)
            # The poll was refused, so nothing has arrived: the text counts as never tried.
            await outbox.try_later(
                tx, outgoing.id, at_ms=self._clock.now_ms(), error=error, forgets_tries=True
            )

        await self._record(note_refusal)

    async def _begin(
        self,
        tx: Tx,
        outgoing: Outgoing,
        parts: Sequence[str],
        features: frozenset[Feature],
        *,
        text_limit: int | None,
    ) -> _Attempt | None:
        """Record that a message is about to be sent, and return it, with the reason if it must not be sent.

        It must not if the `DeliveryHooks` say so, the time of a poll is over, or an earlier part of the
        message was skipped or given up: then no attempt is recorded. Otherwise a message of several parts is
        split in the outbox, and the first part is returned. A poll that its channel cannot show is recorded
        as one that is sent as a text. None if the message has changed since it was read. `features` are the
        abilities of its channel, `text_limit` the most characters of a text there.
        """
        if not await outbox.still_waits(tx, outgoing):
            return None
        why_not = await self._hooks.why_not(tx, outgoing) if self._hooks else None
        links = await _links(tx, outgoing, features)
        if links.poll is not None and links.poll.ended_ms is not None:
            why_not = "the time of this question was over"
        # Such as a poll that was split before it ended.
        elif outgoing.part and await outbox.is_rest_of_unsent(tx, outgoing.id):
            why_not = outbox.REST_OF_UNSENT
        if links.poll is not None and not links.poll.is_text and Feature.POLLS not in features:
            await polls.note_text(tx, outgoing.message_id)
            links = replace(links, poll=replace(links.poll, is_text=True))
        if links.poll is not None:
            parts = _parts_of_poll(outgoing, links.poll, text_limit)
        if why_not is None:
            if len(parts) > 1:
                outgoing = await outbox.split(tx, outgoing, parts)
            await outbox.begin_attempt(tx, outgoing.id)
        return _Attempt(outgoing=outgoing, text=parts[0], why_not=why_not, links=links)

    async def _send(
        self, channel: Channel | None, outgoing: Outgoing, text: str, links: _Links
    ) -> MessageId | None:
        """Send the `text` of the message `outgoing` and return the messenger's id of it.

        None for a reaction, and if the messenger uses the host's id. `links` are the quote, the mention and
        more to send with it. A poll that its chat cannot show, and that was not split, is sent as its text
        with numbered options and a hint how to answer.

        Raises:
            ChannelDown: nothing was sent, or sending it again is harmless.
            ChannelRefused: the messenger will never take it.
            OutcomeUnknown: it may have arrived.
        """
        if channel is None:
            raise ChannelDown(f"No channel is connected for {outgoing.chat_jid}.")
        if outgoing.reacts_to is not None:
            await _react(channel, outgoing, links.target)
            return None
        is_idempotent = Feature.IDEMPOTENT in channel.features
        if outgoing.state is OutboxState.SENDING and not (is_idempotent or channel.name in self._resends):
            # An earlier host ended between the send and its record: sent again, the message could arrive
            # twice. In `_resends` are the channels for which the owner has chosen that.
            raise OutcomeUnknown
        if links.poll is not None and links.poll.is_text and outgoing.part is None:
            text = links.poll.text_to_answer  # the parts of a split one have it already
        seconds = SEND_SECONDS
        if outgoing.attachment is not None:
            size = await asyncio.to_thread(_checked_size, outgoing.attachment, channel.max_file_bytes)
            seconds += SEND_SECONDS + size / FILE_BYTES_PER_SECOND
        try:
            async with asyncio.timeout(seconds):
                return await channel.send(
                    outgoing.chat_jid,
                    text,
                    outgoing.message_id,
                    attachment=outgoing.attachment,
                    quote=links.quote,
                    mention=links.mention,
                    thread=links.thread,
                    **_poll_argument(links.poll),
                )
        except (ChannelDown, ChannelRefused, OutcomeUnknown):
            raise
        except Exception as error:
            # A channel's library may raise anything; an error without a pause would be retried in a tight
            # loop.
            if isinstance(error, TimeoutError):
                reason = f"The channel did not answer in {seconds:.0f} s."
            else:
                log.exception("channel.broke", channel=channel.name, outgoing=outgoing.id)
                reason = f"The channel broke ({type(error).__name__})."
            # Nobody knows whether it arrived. Only a messenger that drops repeats can be sent it again.
            if is_idempotent:
                raise ChannelDown(reason) from error
            raise OutcomeUnknown(f"{OutcomeUnknown()} {reason}") from error

    async def _mark_sent(self, outgoing: Outgoing, text: str, channel_id: MessageId | None) -> None:
        """Record that the message `outgoing` was sent with `text`, and publish `message.sent`.

        It is recorded in the outbox, in the chat's history unless it is a reaction, and by the hooks. Of the
        group's sent files, only the newest are retained: the others are deleted. `channel_id` is the
        messenger's id of the message; None if the messenger uses the host's id.
        """
        now_ms = self._clock.now_ms()

        async def record_sent(tx: Tx) -> Sequence[Path]:
            """Record that the message was sent, and return the paths of the files to delete."""
            # In one transaction with the chat's history: the agent has to know whatever its people have read.
            await outbox.finish(tx, outgoing.id, OutboxState.SENT, now_ms=now_ms)
            if outgoing.reacts_to is None:
                shown = _text_as_shown(outgoing, text)
                await messages.add_own(
                    tx, outgoing, text=shown, name=self._name, now_ms=now_ms, channel_id=channel_id
                )
            if self._hooks is not None:
                await self._hooks.note_sent(tx, outgoing, now_ms=now_ms)
            if outgoing.attachment is None:
                return ()
            return await outbox.surplus_files(tx, outgoing.folder, retained=RETAINED_FILES)

        for path in await self._record(record_sent):
            await asyncio.to_thread(path.unlink, missing_ok=True)
        self._bus.publish(
            "message.sent",
            group=outgoing.folder,
            message=outgoing.message_id,
            turn=outgoing.turn_id,
            detail=outgoing.chat_jid,
        )

    async def _record(self, work: Callable[[Tx], Awaitable[T]]) -> T:
        """Return the result of `work`, which records how an attempt ended; try again if the store fails.

        Unrecorded, the message would count as one that has perhaps arrived. Raises `StoreError` after
        `RECORD_TRIES`.
        """
        for tries_left in reversed(range(RECORD_TRIES)):
            try:
                return await self._database.write(work)
            except StoreError as error:
                if not tries_left:
                    raise
                log.warning("delivery.not_recorded", reason=str(error))
                await asyncio.sleep(RECORD_PAUSE_SECONDS)
        raise AssertionError("it is tried at least once")

    async def _try_later(
        self,
        outgoing: Outgoing,
        error: str,
        *,
        end: OutboxState = OutboxState.DEAD,
        forgets_tries: bool = False,
        pause_seconds: float = 0.0,
        pauses: int = 0,
        moved_to: str | None = None,
    ) -> None:
        """Let a message that failed be tried again after a pause, or give it up when it is too old.

        The feature that queued the message may decide otherwise: it can give up at once, or try again itself.

        Args:
            outgoing: the message.
            error: why it failed.
            end: the state that the message gets in case it is given up.
            forgets_tries: whether the channel takes the next attempt for the first, and so sends the message
                without finding out whether an earlier attempt has arrived.
            pause_seconds: the least pause before the next attempt; 0 for one that grows with the attempts.
                Unless `moved_to` is set, the pause counts as requested by the messenger. After a requested
                pause the attempt does not count, but a message older than `LONGEST_PAUSES_MS` is given up
                after `GIVE_UP_PAUSES` of them.
            pauses: the pauses in a row that the messenger had asked for before this one.
            moved_to: the chat's new address, to which all its waiting messages are redirected; None if it has
                not moved.
        """
        now_ms = self._clock.now_ms()
        # Attempts for a chat that has moved count, so that a message to a chat that moves again and again is
        # given up.
        is_requested = pause_seconds > 0 and moved_to is None
        attempts = outgoing.attempts + (not is_requested)  # one more, unless it is a requested pause
        wait_ms = backoff_ms(attempts)
        if is_requested:
            pauses = self._pauses[outgoing.id] = pauses + 1
        if pause_seconds:
            in_a_row = pauses if is_requested else attempts
            wait_ms = int(lengthened_pause(pause_seconds, pauses=in_a_row) * 1000)
        age_ms = now_ms - outgoing.created_ms
        # Not by the age alone: a message may have waited for days for its host, and the clock may jump.
        is_last_pause = is_requested and age_ms > LONGEST_PAUSES_MS and pauses >= GIVE_UP_PAUSES
        requested_ms = wait_ms if is_requested else 0
        match await self._note_failed(
            outgoing, error, now_ms=now_ms, requested_ms=requested_ms, is_last_pause=is_last_pause
        ):
            # The message is a notification, whose table has recorded when it is tried again.
            case Retry.BY_NOTIFICATION:
                await self._record(lambda tx: _redirect_if_moved(tx, outgoing, moved_to))
                return
            # Another message with the same content is being tried.
            case Retry.BY_ANOTHER:
                await self._finish(outgoing, end, error=error, notifies_agent=False)
                return
            case Retry.NEVER:
                await self._finish(outgoing, end, error=error)
                return
        if is_last_pause or (age_ms > GIVE_UP_MS and attempts >= GIVE_UP_ATTEMPTS):
            # The messenger of a chat with pauses works, so the chat can read why the message did not come.
            notifies_chat = is_last_pause and outgoing.reacts_to is None
            await self._finish(outgoing, end, error=error, notifies_chat=notifies_chat)
            return
        log.warning("delivery.later", outgoing=outgoing.id, attempts=attempts, reason=error)

        async def postpone(tx: Tx) -> None:
            """Record when the message is tried again, and at which address."""
            await outbox.try_later(
                tx,
                outgoing.id,
                at_ms=now_ms + wait_ms,
                error=error,
                forgets_tries=forgets_tries,
                is_requested=is_requested,
            )
            await _redirect_if_moved(tx, outgoing, moved_to)

        await self._record(postpone)

    async def _holds_up_chat(self, channel: Channel | None, outgoing: Outgoing) -> bool:
        """Return whether a message has to be given up, so that the other messages of its chat can be sent.

        It has to if others wait behind it, and it has failed for too long although the connection works.
        `channel` is None if the chat's messenger is not set up: then return False.
        """
        if channel is None or outgoing.attempts + 1 < STUCK_ATTEMPTS:
            return False
        status = channel.status()
        # Only the time since the channel connected counts: an outage must lose no message. The time starts
        # again with each new connection.
        since_ms = status.get("connected_since_ms") if status.get("state") == "connected" else None
        stuck_ms = STUCK_MS if outgoing.reacts_to is None else STUCK_REACTION_MS
        if since_ms is None or self._clock.now_ms() - max(since_ms, outgoing.created_ms) < stuck_ms:
            return False
        return await self._database.read(lambda tx: outbox.has_queue(tx, outgoing.chat_jid))

    async def _note_failed(
        self, outgoing: Outgoing, error: str, *, now_ms: int, requested_ms: int, is_last_pause: bool
    ) -> Retry:
        """Let the hooks record that an attempt to send a message failed.

        Return who decides about the next attempt. Without hooks, the rules of this class do. `requested_ms`
        is the wait because the messenger asked for a pause, or 0; with `is_last_pause` it has asked for too
        many, so that there is no next attempt.
        """
        hooks = self._hooks
        if hooks is None:
            return Retry.BY_OUTBOX
        return await self._record(
            lambda tx: hooks.note_failed(
                tx, outgoing, error, now_ms=now_ms, requested_ms=requested_ms, is_last_pause=is_last_pause
            )
        )

    async def _finish(
        self,
        outgoing: Outgoing,
        state: OutboxState,
        *,
        error: str,
        notifies_chat: bool = False,
        notifies_agent: bool = True,
    ) -> None:
        """Record in the outbox that a message will not be sent any more, with its final `state`.

        Args:
            outgoing: the message.
            state: the final state: SKIPPED if it was not to be sent, DEAD if it has not arrived, UNKNOWN if
                it may have arrived.
            error: the reason.
            notifies_chat: whether a text with the reason is sent to its chat, unless it was skipped.
            notifies_agent: whether the group's agent is notified that the message was not delivered, unless
                it was skipped. If False, the chat is not notified either.
        """
        now_ms = self._clock.now_ms()
        self._pauses.pop(outgoing.id, None)

        async def record_end(tx: Tx) -> None:
            """Record the final state, and notify those who have to know."""
            await outbox.finish(tx, outgoing.id, state, now_ms=now_ms, error=error)
            if state is not OutboxState.SKIPPED and notifies_agent:
                is_known = state is OutboxState.DEAD  # known not to have arrived
                await host_events.reply_undelivered(tx, outgoing, error, is_known=is_known, now_ms=now_ms)
                if notifies_chat:
                    text = _undelivered_text(outgoing, error, is_known=is_known)
                    await outbox.add_undelivered(tx, outgoing, text, now_ms=now_ms)
            if self._hooks is not None:
                await self._hooks.note_given_up(tx, outgoing, error, now_ms=now_ms)

        await self._record(record_end)
        if state is not OutboxState.SKIPPED:
            log.error(
                "delivery.given_up",
                state=str(state),
                outgoing=outgoing.id,
                chat=outgoing.chat_jid,
                reason=error,
            )
        self._bus.publish(
            f"message.{state}", group=outgoing.folder, message=outgoing.message_id, turn=outgoing.turn_id
        )


async def _redirect_if_moved(tx: Tx, outgoing: Outgoing, moved_to: str | None) -> None:
    """Redirect all waiting messages of a chat to the address `moved_to`, unless that is None."""
    if moved_to is not None:
        await outbox.move(tx, outgoing.chat_jid, ChatJid(moved_to))


def _poll_argument(poll: Poll | None) -> dict[str, Any]:
    """Return the argument `poll` of `Channel.send` as a dictionary; empty for None, or a poll sent as a text.

    It is left out then, because a channel without polls may accept no such argument.
    """
    return {} if poll is None or poll.is_text else {"poll": poll}


async def _react(channel: Channel, outgoing: Outgoing, target: Message | None) -> None:
    """Put the emoji of the outbox's entry `outgoing` under the message `target`.

    Repeating this is harmless, since an emoji replaces Andy's previous one.

    Raises:
        ChannelDown: it may work later.
        ChannelRefused: it never will work, for example because the message is gone (`target` is None).
    """
    if Feature.REACTIONS not in channel.features:
        raise ChannelRefused("This messenger shows no reactions.")
    if target is None:
        raise ChannelRefused("The message is gone.")
    try:
        async with asyncio.timeout(SEND_SECONDS):
            await channel.react(target, outgoing.text)
    except (ChannelDown, ChannelRefused):
        raise
    except TimeoutError as error:
        raise ChannelDown("The messenger did not answer in time.") from error
    except Exception as error:
        log.exception("channel.broke", channel=channel.name, outgoing=outgoing.id)
        raise ChannelRefused(f"The messenger broke ({type(error).__name__}).") from error


async def _links(tx: Tx, outgoing: Outgoing, features: frozenset[Feature]) -> _Links:
    """Return what a message is sent with: the quoted message, the mentioned person, the thread, its poll.

    What its channel cannot show, by its `features`, is left out, except for the poll. For a reaction, return
    only the message that it belongs to.
    """
    if outgoing.reacts_to is not None:
        target = await messages.find(tx, outgoing.chat_jid, outgoing.reacts_to)
        return _Links(quote=None, mention=None, thread=None, target=target)
    quote = mention = thread = None
    poll = await polls.of_message(tx, outgoing.message_id) if outgoing.attachment is None else None
    if Feature.QUOTES in features and outgoing.turn_id is not None:
        quote = await messages.to_quote(tx, outgoing.turn_id, outgoing.chat_jid)
    if Feature.MENTIONS in features and outgoing.mention is not None:
        mention = await messages.member_to_mention(tx, outgoing.chat_jid, outgoing.mention)
    if Feature.THREADS in features and outgoing.turn_id is not None:
        thread = await messages.thread_of(tx, outgoing.turn_id, outgoing.chat_jid)
    return _Links(quote=quote, mention=mention, thread=thread, poll=poll)


def _checked_size(file: Attachment, limit: int | None) -> int:
    """Return the size of a file in bytes. Blocks.

    `limit` is the size in bytes that the messenger takes; None means any.

    Raises:
        ChannelDown: the file cannot be looked at now.
        ChannelRefused: the file is missing, or the messenger takes no file this large.
    """
    try:
        size = file.path.stat().st_size
    except FileNotFoundError as error:
        raise ChannelRefused(f"{file.name} is no longer there.", is_chat_fine=True) from error
    except OSError as error:  # such as a disk that does not answer
        raise ChannelDown(f"{file.name} cannot be read: {error.strerror}.") from error
    if limit is not None and size > limit:
        raise ChannelRefused(
            f"{file.name} has {size / 1e6:.1f} MB, and this messenger takes {limit / 1e6:.0f} MB at most.",
            is_chat_fine=True,
        )
    return size


def _undelivered_text(outgoing: Outgoing, error: str, *, is_known: bool) -> str:
    """Return the text for the chat that a message was not sent, because of `error`.

    If it is not known whether it was sent (`is_known` is False), the text says that. It does not quote the
    message, since the message's words may be the cause.
    """
    subject = f"the file {outgoing.attachment.name}" if outgoing.attachment else "an answer"
    if is_known:
        return f"⚠️ I could not send {subject}: {error}"
    return f"⚠️ I do not know whether {subject} has arrived: {error}"


def _text_as_shown(outgoing: Outgoing, text: str) -> str:
    """Return a message as the chat saw it: its `text`, and the name of its file in brackets."""
    if outgoing.attachment is None:
        return text
    return "\n".join(part for part in (text, f"[file {outgoing.attachment.name}]") if part)


def _parts(outgoing: Outgoing, limit: int | None) -> tuple[str, ...]:
    """Return the text of a message for people, in parts of at most `limit` characters (None: of any length).

    There is no part if the text has nothing for people, or is an agent's word that it has nothing to say.
    """
    if outgoing.part is not None:
        # It is a part already: a second cut could fall elsewhere.
        return (outgoing.text,)
    shown = for_people(outgoing.text)
    if outgoing.turn_id is not None and is_silence(shown):
        return ()
    return split(shown, limit)


def _parts_of_poll(outgoing: Outgoing, poll: Poll, limit: int | None) -> tuple[str, ...]:
    """Return the text of a message with a poll, in parts if it is too long for a chat without polls.

    The parts have at most `limit` characters (None: of any length), the last one the hint how to answer. A
    text that needs no parts is without the hint, as the chat's history has it.
    """
    if poll.is_text and outgoing.part is None:
        parts = split(poll.text_to_answer, limit)
        if len(parts) > 1:
            return parts
    return _parts(outgoing, None)
