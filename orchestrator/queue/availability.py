"""Fail queued turns that no model would answer, and tell chats when an outage keeps them waiting."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import structlog

from orchestrator.base.clock import Clock
from orchestrator.base.event_bus import EventBus
from orchestrator.base.wakeups import Wakeups
from orchestrator.domain import failures
from orchestrator.domain.values import Group, Message, Role, Turn, TurnId, TurnKind, TurnState, rank
from orchestrator.groups import people, roles, settings
from orchestrator.groups.roles import Permission
from orchestrator.queue import retries
from orchestrator.store.conversation import messages, outbox, polls
from orchestrator.store.database import Database, Tx
from orchestrator.store.groups import groups
from orchestrator.store.runs import turn_outages, turns
from orchestrator.store.runs.model_refusals import ModelRefusal

log = structlog.get_logger(__name__)

BACKGROUND_PAUSE_MS = 60_000
"""Milliseconds after which a refused turn that nobody waits for is tried again."""
MAX_ASKERS = 200
"""Requests of a turn that are judged: a prompt shows no more, and splits the rest off into a later turn."""
LOWERED = "asked with the role that its sender has now"
"""The reason stored with a turn that has no requests left: everybody who asked in it has a lesser role now.
"""


class Availability:
    """Decides before a turn starts whether a model can answer it; its loop notifies chats of long outages."""

    def __init__(
        self,
        database: Database,
        *,
        clock: Clock,
        wakeups: Wakeups,
        bus: EventBus,
        refusal: Callable[[Group, Turn], Awaitable[ModelRefusal | None]],
    ) -> None:
        """Set up the check; `run` notifies chats of outages.

        `refusal` returns why no model would answer a turn of a group now; None if one may, or none is needed.
        """
        self._database = database
        self._clock = clock
        self._wakeups = wakeups
        self._bus = bus
        self._refusal = refusal

    async def turn_away(self, turn: Turn) -> bool:
        """Check whether a queued turn (a question to an agent) may start; if not, end or postpone it.

        Return True if it may not start, because this has dealt with it; False if it may.

        A turn that no model would answer fails, and its chat gets the reason. But one for which nobody waits,
        because an agent woke by itself (kind AUTO), is tried again after `BACKGROUND_PAUSE_MS`. If a sender
        in the turn has a lesser role by now, their messages are moved to a turn with the rights of that role.
        """
        group = await self._database.read(lambda tx: groups.by_folder(tx, turn.folder))
        if group is not None and turn.kind is TurnKind.CHAT and turn.command is None:
            # Judged again as it starts: rights may have been taken away while the question waited.
            move_lowered = partial(
                _move_lowered_requests, turn_id=turn.id, group=group, now_ms=self._clock.now_ms()
            )
            if await self._database.write(move_lowered):
                return True
        # A turn whose group is gone may start: the start itself fails the turn.
        if group is None or (refusal := await self._refusal(group, turn)) is None:
            return False
        now_ms = self._clock.now_ms()
        async with self._database.transaction() as tx:
            # The service was asked outside of this transaction: meanwhile the turn may have been stopped.
            current = await turns.get(tx, turn.id)
            if current is None or current.state is not TurnState.QUEUED:
                return True
            if turn.kind is TurnKind.AUTO:
                await turns.put_back(
                    tx,
                    current,
                    reason=failures.REFUSED_TASK,
                    not_before_ms=now_ms + BACKGROUND_PAUSE_MS,
                    counts_as_attempt=False,
                )
                return True
            await retries.refuse(tx, current, now_ms=now_ms)
        log.warning("turn.turned_away", turn=turn.id, group=turn.folder, cause=refusal.cause.value)
        self._bus.publish("turn.failed", group=turn.folder, turn=turn.id, reason=refusal.cause.value)
        self._wakeups.outbox.set()
        return True

    async def run(self) -> None:
        """Notify chats whose question has waited too long for an outage to end, until cancelled."""
        while True:
            wait_ms = await self.notify_waiting()
            seconds = None if wait_ms is None else max(0.0, wait_ms / 1000)
            await self._wakeups.outages.wait(at_most_seconds=seconds)

    async def notify_waiting(self) -> int | None:
        """Notify, once, the chat of each turn that has waited `OUTAGE_NOTICE_AFTER_MS` for an outage to end.

        Return in how many milliseconds the next notification is due, at most that delay; None if no other
        turn waits.
        """
        now_ms = self._clock.now_ms()
        waits_ms: list[int] = []
        async with self._database.transaction() as tx:
            for outage in await turn_outages.unannounced(tx):
                due_ms = outage.since_ms + failures.OUTAGE_NOTICE_AFTER_MS
                if due_ms > now_ms:
                    # After the clock was set back, `due_ms` may be far ahead: wait no longer than the whole
                    # delay.
                    waits_ms.append(min(due_ms - now_ms, failures.OUTAGE_NOTICE_AFTER_MS))
                    continue
                # In one transaction with the text, so that a crash in between neither repeats nor loses the
                # text.
                await turn_outages.note_announced(tx, outage.turn_id, now_ms=now_ms)
                await outbox.add(
                    tx,
                    chat_jid=outage.chat_jid,
                    folder=outage.folder,
                    text=failures.WAITING[outage.cause],
                    dedupe_key=f"outage:{outage.turn_id}",
                    now_ms=now_ms,
                )
        self._wakeups.outbox.set()
        return min(waits_ms, default=None)


async def _move_lowered_requests(tx: Tx, turn_id: TurnId, group: Group, *, now_ms: int) -> bool:
    """Move those messages out of a queued turn whose senders have a lesser role now than the turn has.

    They join a turn with the rights of that role, which may be this turn with its role lowered. If the queued
    turn is left without a request and without an ended poll to report, it ends as answered, and its other
    messages belong to no turn.

    Return True if the turn may not start as it was read: messages were moved, or it is no longer queued.
    """
    turn = await turns.get(tx, turn_id)
    if turn is None or turn.state is not TurnState.QUEUED:
        return True
    requests = await messages.requests_of(tx, turn.id, limit=MAX_ASKERS)
    current_roles = zip(requests, await people.roles_in(tx, group, requests), strict=True)
    # The ranks count from the role with the most rights on.
    lowered = [(message, role) for message, role in current_roles if rank(role) > rank(turn.role)]
    for message, role in lowered:
        await _move_to_role(tx, turn, message, role, group, now_ms=now_ms)
    remaining = await messages.requests_of(tx, turn.id, limit=1) or await polls.ended_in(tx, turn.id)
    if lowered and not remaining:
        await messages.release_all(tx, turn.id, reason=LOWERED)
        await turns.settle(tx, turn.id, TurnState.ANSWERED, reason=LOWERED, now_ms=now_ms)
    return bool(lowered)


async def _move_to_role(
    tx: Tx, turn: Turn, message: Message, role: Role, group: Group, *, now_ms: int
) -> None:
    """Move a message from `turn` to a turn that has only the rights of `role`.

    If the role is not restricted, that may be `turn` itself: it then gets the role, and keeps the message.
    If the role may not ask the agent anything, the message leaves its turn and joins none.
    """
    rights = roles.rights_of(role, settings.of(group))
    if Permission.CALL not in rights.may:
        await messages.release(tx, message.seq, reason=roles.MAY_NOT_CALL)
        return
    joined_id = await turns.join_chat(
        tx,
        turn.folder,
        turn.chat_jid,
        now_ms=now_ms,
        role=role,
        is_restricted=roles.is_restricted(rights, group),
    )
    if joined_id != turn.id:
        await messages.claim(tx, message.seq, joined_id)
        await turns.extend(tx, joined_id, message.seq)
