"""Turn queued turns away that no model would answer, and notify chats that wait for an outage to end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import structlog

from orchestrator.base.clock import Clock
from orchestrator.base.event_bus import EventBus
from orchestrator.base.wakeups import Wakeups
from orchestrator.domain import failures
from orchestrator.domain.values import Group, Turn, TurnKind, TurnState
from orchestrator.queue import retries
from orchestrator.store import groups, outbox, turn_outages, turns
from orchestrator.store.database import Database
from orchestrator.store.model_refusals import ModelRefusal

log = structlog.get_logger(__name__)

BACKGROUND_PAUSE_MS = 60_000


class Availability:
    """Decides before a turn begins whether it can be answered; its loop notifies chats of long outages."""

    def __init__(
        self,
        database: Database,
        *,
        clock: Clock,
        wakeups: Wakeups,
        bus: EventBus,
        refusal: Callable[[Group, Turn], Awaitable[ModelRefusal | None]],
    ) -> None:
        """`refusal` returns why no model would answer a turn of a group now.

        It returns None where one may answer, or where none is needed.
        """
        self._database = database
        self._clock = clock
        self._wakeups = wakeups
        self._bus = bus
        self._refusal = refusal

    async def turn_away(self, turn: Turn) -> bool:
        """End a queued turn that no model would answer; return False when it may begin.

        What nobody waits for, a free cycle, stays queued and is looked at again in a minute.
        """
        group = await self._database.read(lambda tx: groups.by_folder(tx, turn.folder))
        if group is None or (refusal := await self._refusal(group, turn)) is None:
            return False
        now_ms = self._clock.now_ms()
        async with self._database.transaction() as tx:
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
        """Notify chats whose questions have waited longer for an outage than people wait in silence."""
        while True:
            wait_ms = await self.notify_waiting()
            seconds = None if wait_ms is None else max(0.0, wait_ms / 1000)
            await self._wakeups.outages.wait(at_most_seconds=seconds)

    async def notify_waiting(self) -> int | None:
        """Notify the chats that are due; return in how many ms the next one is, or None when none waits."""
        now_ms = self._clock.now_ms()
        ahead: list[int] = []
        async with self._database.transaction() as tx:
            for one in await turn_outages.unannounced(tx):
                due_ms = one.since_ms + failures.TELL_OUTAGE_AFTER_MS
                if due_ms > now_ms:
                    # The clock may have been set back.
                    ahead.append(min(due_ms - now_ms, failures.TELL_OUTAGE_AFTER_MS))
                    continue
                await turn_outages.note_announced(tx, one.turn_id, now_ms=now_ms)
                await outbox.add(
                    tx,
                    chat_jid=one.chat_jid,
                    folder=one.folder,
                    text=failures.WAITING[one.cause],
                    dedupe_key=f"outage:{one.turn_id}",
                    now_ms=now_ms,
                )
        self._wakeups.outbox.set()
        return min(ahead, default=None)
