"""Remove from contexts, summaries and snapshots the messages that their senders deleted.

Each deletion is a row in the store until it is carried out, so a killed host does it at its next start.
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
from orchestrator.domain.errors import ContextBusy, StoreError
from orchestrator.domain.values import Folder, Group
from orchestrator.store.conversation import exchanges
from orchestrator.store.conversation.exchanges import TurnExchange
from orchestrator.store.database import Database, Tx
from orchestrator.store.groups import groups
from orchestrator.store.runs import sessions, turns
from orchestrator.store.runs.sessions import PendingDeletion

log = structlog.get_logger(__name__)

SWEEP_SECONDS = 60.0
TRIGGERS = (AMENDED, "turn.answered", "turn.failed", "group.configured", DUE)
"""Events after which there may be a deletion to carry out."""


class DeletionSync:
    """Carries out the stored deletions in the contexts of all groups. Each host has one instance."""

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
        """`name` is the assistant's name. `session_files` is `data/sessions`.

        `on_forgetting` is called with each group before its deletions are carried out. `removals` carries
        out the removals of people; None on a host without them.
        """
        self._database = database
        self._recorder = recorder
        self._clock = clock
        self._bus = bus
        self._name = name
        self._on_forgetting = on_forgetting
        self._session_files = session_files
        self._removals = removals
        self._ended_sessions: dict[Folder, int] = {}
        """The groups whose session was ended, but whose transcripts are not all deleted. Each has the number
        of requests for a new session that this has fulfilled.
        """

    async def run(self) -> None:
        """Carry out deletions after each event that may bring some, and once a minute.

        Run until cancelled.
        """
        with self._bus.listening(*TRIGGERS) as events:
            while True:
                await self.sweep()
                await _until_event(events)

    async def sweep(self) -> None:
        """Carry out all pending deletions of messages.

        People who are to be forgotten are removed first, since that deletes messages, too. The agent's
        session of each group that has forgotten something is ended. A group whose files are busy or cannot be
        written is left for the next sweep.

        Raises:
            ExceptionGroup: it failed in some groups for an unexpected reason; the others were tried. The host
                tries again, and notifies the owner if it keeps failing.
            StoreError: the database failed; the remaining groups were not tried.
        """
        failures: list[Exception] = []
        if self._removals is not None:
            try:
                await self._removals.sweep()
            except ExceptionGroup as group_of_failures:
                failures += group_of_failures.exceptions
        for group, deletions in await self._database.read(_pending_deletions):
            try:
                if deletions:
                    await self._forget(group, deletions)
                await self._end_session(group)
            except StoreError:  # then no other group can be written, either
                raise
            except Exception as error:
                log.exception("context.not_forgotten", group=group.folder)
                failures.append(error)
        if failures:
            raise ExceptionGroup("Groups could not forget.", failures)

    async def _end_session(self, group: Group) -> None:
        """End the agent's session of a group that has forgotten something, and the group's containers.

        The session would still contain the forgotten texts. Its transcripts are deleted; if some cannot be
        deleted, a later sweep tries again. While a turn of the group runs, nothing is done: a later sweep
        ends the session.
        """
        async with self._database.transaction() as tx:
            if await turns.running_of(tx, group.folder) is not None:
                return
            # When something was forgotten, `request_new_session` recorded that.
            if not (request_count := await sessions.new_session_requests(tx, group.folder)):
                return
            # If only deleting the transcripts is tried again, the session and the containers are new already.
            is_ended = self._ended_sessions.get(group.folder) == request_count
            # The session that has begun since has none of the forgotten texts: its transcript stays.
            new_session = await sessions.current(tx, group.folder) if is_ended else None
            if not is_ended:
                await sessions.lose(tx, group.folder)  # the next run begins a new one
                # The configuration is stored unchanged, but with a new time. Because of that, the group's
                # containers, which still use the old session, are ended.
                await groups.set_config(tx, group.folder, group.container_config, now_ms=self._clock.now_ms())
        self._ended_sessions[group.folder] = request_count
        if not is_ended:
            self._bus.publish("group.configured", group=group.folder)
        # Outside a transaction: the agent may have written many transcripts, and other groups need the
        # database meanwhile.
        try:
            await asyncio.to_thread(transcript.remove_all, self._session_files, group.folder, new_session)
        except OSError as error:
            log.warning("context.transcript_not_removed", group=group.folder, reason=str(error))
            return
        self._ended_sessions.pop(group.folder, None)
        # Only now: if the host is killed before all transcripts are deleted, the record makes the next host
        # do it. The record stays, too, if more requests came meanwhile.
        await self._database.write(lambda tx: sessions.finish_new_session(tx, group.folder, request_count))

    async def _forget(self, group: Group, deletions: Sequence[PendingDeletion]) -> None:
        """Carry out the `deletions` of one group; each names a turn of which messages were deleted.

        If its files are busy or cannot be written, that is logged, and the next sweep tries again.
        """
        folder = group.folder
        try:
            # The recorder updates a group's context one time after the other. So after this update, none is
            # under way that has read the texts before they were deleted, and would still write them.
            await self._recorder.catch_up(folder)
            self._on_forgetting(folder)  # drops a summary that a model is writing of the texts
            await self._remove(group, deletions)
            await self._database.write(lambda tx: sessions.finish_deletions(tx, folder, deletions))
            await self._recorder.catch_up(folder)  # updates the container's copy too
        except (ContextBusy, OSError) as error:
            log.warning("context.messages_not_removed", group=folder, reason=str(error))
            return
        log.info("context.messages_removed", group=folder, turns=len(deletions))

    async def _remove(self, group: Group, deletions: Sequence[PendingDeletion]) -> None:
        """Remove deleted parts of questions, and answers whose text was forgotten, from the group's context.

        Each of `deletions` names a turn whose question lost a message. The question is replaced by what is
        left of it, or by a note if nothing is.
        """
        manager = self._recorder.manager(group.folder)
        now_ms = self._clock.now_ms()
        stored_turns = await asyncio.to_thread(manager.stored_turns, now_ms=now_ms)
        turn_exchanges = await self._database.read(
            lambda tx: exchanges.of_turns(tx, group.folder, stored_turns)
        )
        present_messages = {
            message.id: _stored_form(message) for message in self._messages_in(turn_exchanges, group)
        }
        changed_ids = [question_id(deletion.turn) for deletion in deletions]
        # Answers to a deleted message stay. An answer that was itself forgotten has no text any more; nor has
        # one that was never given, which no context has.
        changed_ids += [
            answer_id(exchange.turn)
            for exchange in turn_exchanges
            if not any(text.strip() for text in exchange.said)
        ]
        await asyncio.to_thread(manager.remove_messages, changed_ids, present_messages, now_ms=now_ms)

    def _messages_in(self, turn_exchanges: Iterable[TurnExchange], group: Group) -> Iterable[NewMessage]:
        """Return the messages of turns' questions and answers, in the form in which contexts store them."""
        return (
            message
            for exchange in turn_exchanges
            for message in message_mapping.messages_of(exchange, group, name=self._name)
        )


async def _pending_deletions(tx: Tx) -> list[tuple[Group, list[PendingDeletion]]]:
    """Return the groups that have something to forget, each with its pending deletions of messages.

    The deletions of a group may be empty: then only its session is to be ended. This runs after each turn, so
    groups with nothing to forget must cost nothing.
    """
    return [
        (group, await sessions.pending_deletions(tx, folder))
        for folder in await sessions.groups_with_deleted_text(tx)
        if (group := await groups.by_folder(tx, folder)) is not None
    ]


async def _until_event(events: asyncio.Queue[HostEvent]) -> None:
    """Wait for the next event, or for `SWEEP_SECONDS` if none comes."""
    try:
        async with asyncio.timeout(SWEEP_SECONDS):
            await events.get()
    except TimeoutError:
        return


def _stored_form(message: NewMessage) -> ContextMessage:
    """Return a new message in the form in which a context stores it."""
    return ContextMessage(id=message.id, role=message.role, content=message.content, ts=iso(message.at_ms))
