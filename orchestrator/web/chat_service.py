"""Store a message that arrived over HTTP, wait for its reply, and return its state."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from orchestrator.base.clock import Clock
from orchestrator.base.event_bus import EventBus, HostEvent
from orchestrator.domain.errors import BadRequest
from orchestrator.domain.values import (
    Folder,
    Group,
    Inbound,
    Message,
    OutboxState,
    TurnId,
    TurnKind,
    TurnState,
)
from orchestrator.inbound.intake import Accepted, Intake, Taken
from orchestrator.store.conversation import messages, outbox
from orchestrator.store.database import Database, Tx
from orchestrator.store.groups import groups
from orchestrator.store.runs import turns

SETTLED = (TurnState.ANSWERED, TurnState.FAILED)
"""States of a turn that has ended."""
GONE = (OutboxState.SENT, OutboxState.SKIPPED, OutboxState.UNKNOWN, OutboxState.DEAD)
"""States of a reply that the host will not send any more."""
SETTLING = frozenset({"turn.answered", "turn.failed", *(f"message.{state}" for state in GONE)})
"""Events after which a waiting message may be settled."""


class KeyReused(BadRequest):
    """The key was used for another text: a new message needs a new key."""

    code = "key_reused"
    http_status = 409


class UnknownMessage(BadRequest):
    """There is no such message."""

    code = "unknown_message"
    http_status = 404


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageStatus:
    """The state of a message: `outcome` is its turn's state, or `ignored`."""

    id: str
    group: str | None
    outcome: str
    reason: str | None = None
    """The reason why it is ignored, or why its turn failed."""
    turn: int | None = None
    replies: tuple[str, ...] = ()
    """The texts of the replies so far."""
    place: int | None = None
    """The position of its turn in the queue, from 1; None if the turn does not wait."""
    joined: int = 0
    """The number of earlier messages that the same queued turn answers."""
    is_settled: bool = False
    """Whether nothing more will happen: it is ignored, or its turn has ended and all replies were sent."""

    def to_json_dict(self) -> dict[str, Any]:
        """Return the state as the API sends it, without values that are None.

        `joined`, the number of earlier messages that the same turn answers, is left out if it is 0, too.
        """
        fields = {
            "id": self.id,
            "group": self.group,
            "outcome": self.outcome,
            "reason": self.reason,
            "turn": self.turn,
            "reply": "\n\n".join(self.replies) if self.replies else None,
            "place": self.place,  # in the queue
            "joined": self.joined or None,
        }
        return {name: value for name, value in fields.items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class _StoredMessage:
    """The state of a message right after it was stored."""

    status: MessageStatus
    is_busy: bool
    """Whether the group's agent works on another turn, so that nobody waits for the reply."""


class ChatService:
    """Takes messages of this machine: each is stored before the request is answered."""

    def __init__(
        self,
        database: Database,
        *,
        intake: Intake,
        is_hopeless: Callable[[str], bool],
        clock: Clock,
        bus: EventBus,
        on_opened: Callable[[Folder], None] = lambda _: None,
    ) -> None:
        """Build the service of one host.

        Args:
            database: stores the messages.
            intake: decides what becomes of a message, and stores it.
            is_hopeless: returns whether a message with this outcome stays unanswered, as the host is ending.
            clock: the host's clock.
            bus: carries the events by which the service notices a reply.
            on_opened: called with the folder of a group that somebody is about to write to.
        """
        self._database = database
        self._intake = intake
        self._is_hopeless = is_hopeless
        self._clock = clock
        self._bus = bus
        self._on_opened = on_opened

    async def open(self, folder: str) -> None:
        """Report to `on_opened` that somebody is about to write to a group. Raises `UnknownGroup`."""
        group = await self._database.read(lambda tx: groups.known(tx, folder))
        self._on_opened(group.folder)

    async def say(
        self, message_for: Callable[[Group, int], Inbound], folder: str, *, wait_seconds: float
    ) -> MessageStatus:
        """Store a message for a group, and return its state.

        `message_for(group, now_ms)` returns the message to store. If the group's agent is free, this returns
        only after its reply, or after `wait_seconds`.

        Raises:
            UnknownGroup, TextEmpty, TextTooLong: the message cannot be accepted.
            KeyReused: another text was stored under the message's id, which is made of the sender's key.

        After each of these errors, nothing is stored.
        """
        if not wait_seconds:
            return (await self._store(message_for, folder)).status
        # Listening begins before the message is stored: its reply may come at once.
        with self._bus.listening() as events:
            stored = await self._store(message_for, folder)
            if stored.is_busy or stored.status.is_settled:
                return stored.status
            return await self._wait_until_settled(stored.status, events, wait_seconds)

    async def _store(self, message_for: Callable[[Group, int], Inbound], folder: str) -> _StoredMessage:
        """Store the message that `message_for(group, now_ms)` returns, and announce that it is stored.

        Return its state, as read in the same transaction. Raises what `say` raises.
        """

        async def take(tx: Tx) -> tuple[Taken, _StoredMessage]:
            """Store the message; return the intake's report, and the state of the message."""
            group = await groups.known(tx, folder)
            running = await turns.running_of(tx, group.folder)
            taken = await self._intake.take(tx, message_for(group, self._clock.now_ms()))
            if taken.accepted.outcome == "duplicate":
                await _check_same(tx, taken.message)
            status = await _status_after_storing(tx, taken.message, group, taken.accepted)
            # The running turn may be the message's own, as for one that is sent again: then it waits for no
            # other turn.
            is_its_turn = running is not None and running.id == status.turn
            # A chat turn may run beside a worker turn, so a message does not wait for that.
            is_busy = running is not None and running.kind is not TurnKind.WORKER and not is_its_turn
            # A message that was answered without an agent waits for no other turn.
            is_busy = is_busy and status.outcome not in SETTLED
            return taken, _StoredMessage(status=status, is_busy=is_busy)

        taken, stored = await self._database.write(take)
        self._intake.announce(taken)
        return stored

    async def _wait_until_settled(
        self, status: MessageStatus, events: asyncio.Queue[HostEvent], wait_seconds: float
    ) -> MessageStatus:
        """Wait until a message is settled, for at most `wait_seconds`, and return its state.

        If the message will not be answered because the host is ending, this returns at once. `status` is the
        message's state so far, and `events` has received the host's events since that was read.
        """
        try:
            async with asyncio.timeout(wait_seconds):
                while not (status.is_settled or self._is_hopeless(status.outcome)):
                    await _wait_for_event(status, events)
                    status = await self.find(status.id)
        except TimeoutError:
            # Read once more: the state may have changed since the last event.
            return await self.find(status.id)
        return status

    async def find(self, message_id: str, *, wait_seconds: float = 0.0) -> MessageStatus:
        """Return the state of a message, after waiting for its reply for at most `wait_seconds`.

        Raises `UnknownMessage`.
        """
        if not wait_seconds:
            return await self._database.read(lambda tx: _status_of(tx, message_id))
        with self._bus.listening() as events:
            return await self._wait_until_settled(await self.find(message_id), events, wait_seconds)


async def _wait_for_event(status: MessageStatus, events: asyncio.Queue[HostEvent]) -> None:
    """Wait for an event after which the message may be settled.

    `status` is the state of the message. `events` receives the events of all groups; those of other groups
    are ignored.
    """
    while True:
        event = await events.get()
        # An event without a group, such as the end of the host, may concern every message. Other groups'
        # events are ignored: otherwise each waiting client would read the store at each of them.
        if event.group is None or (event.group == status.group and event.kind in SETTLING):
            return


async def _status_of(tx: Tx, message_id: str) -> MessageStatus:
    """Return the state of a stored message. Raises `UnknownMessage`."""
    message = await messages.by_id(tx, message_id)
    if message is None:
        raise UnknownMessage(f"There is no message '{message_id}'.")
    group = await groups.by_jid(tx, message.chat_jid)
    if message.turn_id is None:
        return _status_of_ignored(message, group, message.ignored_reason)
    return await _status_in_turn(tx, message, group, message.turn_id)


async def _check_same(tx: Tx, message: Inbound) -> None:
    """Raise `KeyReused` if the stored message with the id of `message` has another text."""
    stored = await messages.find(tx, message.chat_jid, message.id)
    if stored is not None and stored.text != message.text:
        raise KeyReused


async def _status_after_storing(tx: Tx, message: Inbound, group: Group, accepted: Accepted) -> MessageStatus:
    """Return the state of a message that was just stored; `accepted` is what the intake decided about it."""
    if accepted.turn_id is None:
        return _status_of_ignored(message, group, accepted.reason)
    return await _status_in_turn(tx, message, group, accepted.turn_id)


def _status_of_ignored(message: Message | Inbound, group: Group | None, reason: str | None) -> MessageStatus:
    """Return the state of a message without a turn; `reason` says why it has none, if that is known."""
    folder = group.folder if group else None
    return MessageStatus(id=message.id, group=folder, outcome="ignored", reason=reason, is_settled=True)


async def _status_in_turn(
    tx: Tx, message: Message | Inbound, group: Group | None, turn_id: TurnId
) -> MessageStatus:
    """Return the state of a message that belongs to the turn `turn_id`.

    If the turn is no longer stored, the message counts as ignored for an unknown reason.
    """
    turn = await turns.get(tx, turn_id)
    if turn is None:
        return _status_of_ignored(message, group, None)
    sent = await outbox.of_turn(tx, turn.id)
    is_waiting = turn.state is TurnState.QUEUED
    return MessageStatus(
        id=message.id,
        group=group.folder if group else None,
        outcome=turn.state.value,
        reason=turn.reason,
        turn=turn.id,
        replies=tuple(reply.text for reply in await messages.sent_in(tx, turn.id)),
        place=(await turns.queue_positions(tx)).get(turn.id) if is_waiting else None,
        # The number of earlier messages that the same turn answers, which this message has joined.
        joined=await messages.before_in_turn(tx, turn.id, message.chat_jid, message.id) if is_waiting else 0,
        is_settled=turn.state in SETTLED and all(outgoing.state in GONE for outgoing in sent),
    )
