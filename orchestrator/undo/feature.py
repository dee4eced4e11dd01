"""Build the undo of a host: snapshots of a group's files around each turn, and their restoration."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any

import structlog

from orchestrator.domain.errors import StoreError
from orchestrator.domain.protocols import Channel
from orchestrator.domain.values import ChatJid, Folder, Turn, TurnKind
from orchestrator.groups.host_context import HostContext
from orchestrator.store.undo import turn_effects, undos
from orchestrator.undo import file_effects
from orchestrator.undo.files import GroupFiles
from orchestrator.undo.requests import UndoRequests
from orchestrator.undo.service import UndoService

log = structlog.get_logger(__name__)

SWEEP_SECONDS = 3_600.0
BEGIN_SECONDS = 5.0
"""Seconds that a turn waits for the snapshot of its group's files; after that it starts without one."""


class UndoFeature:
    """The undo feature of a host, built once."""

    def __init__(
        self, host: HostContext, *, channel_for: Callable[[ChatJid], Channel | None] = lambda _: None
    ) -> None:
        """`channel_for` returns the messenger of a chat, which may be able to delete sent messages."""

        self._host = host
        self.files = GroupFiles(host.home.root)
        self.service = UndoService(host.clock, self.files, channel_for)
        self.requests = UndoRequests(self.service)
        self._locks: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    def loops(self) -> dict[str, Callable[[], Any]]:
        """Return the coroutine function that the host runs as long as it lives, by its name."""
        return {"undo": self.run}

    async def run(self) -> None:
        """Record what turns changed in files, and restore files for undos, until cancelled.

        After the end of a turn and after an undo, that is done for its group. At the start and every
        `SWEEP_SECONDS` it is done for all groups, and what is too old to be undone is deleted.
        """
        with self._host.bus.listening("turn.answered", "turn.failed", "turn.undone") as events:
            while True:
                # At each start, too: an undo that a kill interrupted after its commit has files left to
                # restore.
                await self.sweep()
                until = asyncio.get_running_loop().time() + SWEEP_SECONDS
                with suppress(TimeoutError):
                    while True:
                        async with asyncio.timeout_at(until):
                            event = await events.get()
                        # These events always have a group.
                        await self._try(self.catch_up, Folder(event.group or ""))

    async def sweep(self) -> None:
        """Record changes of ended turns and restore files for undos in all groups.

        Recorded changes that are too old to be undone are deleted, and then stored file contents that nothing
        needs any more. A group in which nothing has happened costs only a look at its turns. An error in one
        group is logged, and does not stop the others.

        Raises:
            StoreError: the database cannot be written.
        """
        expire = partial(turn_effects.expire, now_ms=self._host.clock.now_ms())
        folders_with_expired = await self._host.database.write(expire)
        due_undos = await self._host.database.read(undos.due)
        # A turn is open until its changes of files are recorded.
        folders_with_open_turns = await asyncio.to_thread(self.files.with_open_turns)
        for folder in sorted({*folders_with_open_turns, *(undo.folder for undo in due_undos)}):
            await self._try(self.catch_up, Folder(folder))
        # `uncollected` returns the groups that may have stored contents which nothing needs any more.
        for folder in sorted({*folders_with_expired, *await asyncio.to_thread(self.files.uncollected)}):
            await self._try(self._collect, Folder(folder))

    async def _try(self, work: Callable[[Folder], Awaitable[None]], folder: Folder) -> None:
        """Do `work` for a group; log an error, so that it does not stop the others.

        Raises:
            StoreError: the database cannot be written.
        """
        try:
            await work(folder)
        except StoreError:  # then no other group can be written, either
            raise
        except Exception:
            log.exception("undo.group_failed", group=folder)

    async def _collect(self, folder: Folder) -> None:
        """Delete the stored file contents of a group that no recorded change needs any more."""
        # Locked, because the content of an effect that is recorded after this read would be deleted.
        async with self._locks[folder]:
            hashes = await self._host.database.read(partial(file_effects.hashes, folder=folder))
            await asyncio.to_thread(self.files.collect, folder, hashes)

    async def before_turn(self, turn: Turn) -> None:
        """Take a snapshot of a group's files before an agent's turn, so that its changes can be undone.

        After an error, or if it takes too long, the turn starts without a snapshot.
        """
        # Two kinds of turns change no files: a worker turn updates a dashboard, and a session command acts on
        # the conversation.
        if turn.kind is TurnKind.WORKER or turn.command is not None:
            return
        clock = self._host.clock
        until_ms = clock.steady_ms() + 1000 * BEGIN_SECONDS
        try:
            async with asyncio.timeout(BEGIN_SECONDS):
                # The changes of earlier turns are recorded before this turn adds its own to the same files.
                await self.catch_up(turn.folder)
                # The thread cannot be cancelled. So at its end it calls `is_late`, because the turn may have
                # begun meanwhile.
                await asyncio.to_thread(
                    self.files.begin, turn.folder, turn.id, is_late=lambda: clock.steady_ms() > until_ms
                )
        except Exception as error:  # noqa: BLE001  # a turn must not fail because it cannot be undone
            log.warning("undo.files_not_kept", group=turn.folder, turn=turn.id, reason=repr(error))

    async def catch_up(self, folder: Folder) -> None:
        """Record the changes of a group's ended turns, and restore the files for its undos."""
        async with self._locks[folder]:
            await file_effects.catch_up(
                self._host.database, self.files, folder, now_ms=self._host.clock.now_ms()
            )
