"""Remove messages that their sender deleted from contexts, summaries and snapshots.

Each deletion is a row in the store until it is done, so a host that dies meanwhile does it at its next start.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import structlog

from orchestrator.base.clock import Clock
from orchestrator.base.event_bus import EventBus, HostEvent
from orchestrator.context import message_mapping, transcript
from orchestrator.context.dialogue import NewMessage
from orchestrator.context.models import ContextMessage, answer_id, iso, question_id
from orchestrator.context.person_removal import DUE, PersonRemovals
from orchestrator.context.recorder import AMENDED, ContextRecorder
from orchestrator.domain.errors import ContextBusy
from orchestrator.domain.values import Folder, Group
from orchestrator.store import exchanges, groups, sessions, turns
from orchestrator.store.database import Database, Tx
from orchestrator.store.exchanges import TurnExchange
from orchestrator.store.sessions import PendingDeletion

log = structlog.get_logger(__name__)

SWEEP_SECONDS = 60.0
NEWS = (AMENDED, "turn.answered", "turn.failed", "group.configured", DUE)
"""Events after which there may be something to forget."""


class DeletionSync:
    """Carries the deletions that are stored as rows into the contexts of all groups.

    One is made for a host.
    """

    def __init__(
        self,
        database: Database,
        recorder: ContextRecorder,
        *,
        clock: Clock,
        bus: EventBus,
        name: str,
        on_forgetting: Callable[[Folder], None],
        session_files: Path,
        removals: PersonRemovals | None = None,
    ) -> None:
        """`name` is the assistant's name; `on_forgetting` is called with each group before its deletions are
        done; `session_files` is `data/sessions`; `removals` forgets people who are to be forgotten.
        """
        self._database = database
        self._recorder = recorder
        self._clock = clock
        self._bus = bus
        self._name = name
        self._on_forgetting = on_forgetting
        self._session_files = session_files
        self._removals = removals

    async def run(self) -> None:
        """Look for deletions whenever a message was amended, and once a minute."""
        with self._bus.listening(*NEWS) as events:
            while True:
                await self.sweep()
                await _until_news(events)

    async def sweep(self) -> None:
        """Carry out all deletions that wait; first those of people, which make more of them."""
        if self._removals is not None:
            await self._removals.sweep()
        for group, waiting in await self._database.read(_waiting_deletions):
            if waiting:
                await self._forget(group, waiting)
            await self._end_session(group)

    async def _end_session(self, group: Group) -> None:
        """End the session of a group that was told to forget something, once no turn runs in it."""
        async with self._database.transaction() as tx:
            turn = await turns.running_of(tx, group.folder)
            if turn is not None or not await sessions.take_new_session(tx, group.folder):
                return
            await sessions.lose(tx, group.folder)
            # Containers end that began before their group was configured: they live in the old session.
            await groups.set_config(tx, group.folder, group.container_config, now_ms=self._clock.now_ms())
        self._bus.publish("group.configured", group=group.folder)
        try:
            await asyncio.to_thread(transcript.remove_all, self._session_files, group.folder)
        except OSError as error:
            log.warning("context.transcript_not_removed", group=group.folder, reason=str(error))

    async def _forget(self, group: Group, waiting: Sequence[PendingDeletion]) -> None:
        folder = group.folder
        try:
            # Whoever read the words before they were taken back has written them now.
            await self._recorder.catch_up(folder)
            self._on_forgetting(folder)
            await self._remove(group, waiting)
            await self._database.write(lambda tx: sessions.finish_deletions(tx, folder, waiting))
            await self._recorder.catch_up(folder)  # its container's copy
        except (ContextBusy, OSError) as error:
            log.warning("context.messages_not_removed", group=folder, reason=str(error))
            return
        log.info("context.messages_removed", group=folder, turns=len(waiting))

    async def _remove(self, group: Group, waiting: Sequence[PendingDeletion]) -> None:
        manager = self._recorder.manager(group.folder)
        now_ms = self._clock.now_ms()
        stored_turns = await asyncio.to_thread(manager.stored_turns, now_ms=now_ms)
        found = await self._database.read(lambda tx: exchanges.of_turns(tx, group.folder, stored_turns))
        words = {one.id: _message(one) for one in self._spoken(found, group)}
        taken = [question_id(one.turn) for one in waiting]
        # What the agent made of a deleted message stays; an answer that was forgotten has no words left.
        taken += [answer_id(one.turn) for one in found if not any(text.strip() for text in one.said)]
        await asyncio.to_thread(manager.remove_messages, taken, words, now_ms=now_ms)

    def _spoken(self, found: Iterable[TurnExchange], group: Group) -> Iterable[NewMessage]:
        return (
            one for exchange in found for one in message_mapping.spoken_in(exchange, group, name=self._name)
        )


async def _waiting_deletions(tx: Tx) -> list[tuple[Group, list[PendingDeletion]]]:
    """Return the groups in which something is to be forgotten, with their deletions.

    It is asked after each turn: no group may cost anything that has none.
    """
    return [
        (group, await sessions.pending_deletions(tx, folder))
        for folder in await sessions.groups_to_forget(tx)
        if (group := await groups.by_folder(tx, folder)) is not None
    ]


async def _until_news(events: asyncio.Queue[HostEvent]) -> None:
    try:
        async with asyncio.timeout(SWEEP_SECONDS):
            await events.get()
    except TimeoutError:
        return


def _message(spoken: NewMessage) -> ContextMessage:
    return ContextMessage(id=spoken.id, role=spoken.role, content=spoken.content, ts=iso(spoken.at_ms))
