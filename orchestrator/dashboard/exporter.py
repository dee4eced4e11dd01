"""Keeps the files of each dashboard true: a second after it changed, at the latest after a minute."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import structlog

from orchestrator.dashboard import export
from orchestrator.events import Bus, Event
from orchestrator.models import Folder, Group
from orchestrator.store import dashboards, groups
from orchestrator.store.database import Database

log = structlog.get_logger(__name__)

SWEEP_SECONDS = 60.0
DEBOUNCE_SECONDS = 1.0
DIRECTORY = "dashboard"
_HINTS = ("command.dashboard", "dashboard.", "notification.", "worker.")


class Exporter:
    """Looks at the revisions: a dashboard that has not changed is not written."""

    def __init__(
        self,
        root: Path,
        database: Database,
        *,
        bus: Bus,
        zone_of: Callable[[Group], ZoneInfo],
        debounce_seconds: float = DEBOUNCE_SECONDS,
    ) -> None:
        """`root` holds a directory a group, which is there once a container of it was prepared."""
        self._root = root
        self._database = database
        self._bus = bus
        self._zone_of = zone_of
        self._debounce_seconds = debounce_seconds
        self._written: dict[Folder, tuple[int, str]] = {}

    async def run(self) -> None:
        with self._bus.listening() as events:
            while True:
                await self.write_all()
                await self._until_changed(events)
                await asyncio.sleep(self._debounce_seconds)
                while not events.empty():
                    events.get_nowait()

    async def write_all(self) -> None:
        """Write what has changed since it was written last."""
        async with self._database.reading() as tx:
            known = {one.folder: one for one in await groups.every(tx)}
            boards = await dashboards.every(tx)
        for board in boards:
            group = known.get(board.folder)
            if group is not None:
                await self._write(group, board.revision)

    async def _write(self, group: Group, revision: int) -> None:
        zone, directory = self._zone_of(group), self._root / group.folder
        if self._written.get(group.folder) == (revision, zone.key) or not directory.is_dir():
            return
        try:
            database = await self._path()
            written = await asyncio.to_thread(_export, database, group.folder, zone, directory / DIRECTORY)
        except OSError as error:
            log.warning("dashboard.not_exported", group=group.folder, reason=error.strerror)
            return
        self._written[group.folder] = (written, zone.key)

    async def _path(self) -> Path:
        async with self._database.reading() as tx:
            rows = await tx.execute_fetchall("PRAGMA database_list")
        return Path(next(iter(rows))["file"])

    async def _until_changed(self, events: asyncio.Queue[Event]) -> None:
        try:
            async with asyncio.timeout(SWEEP_SECONDS):
                while not (await events.get()).kind.startswith(_HINTS):
                    continue
        except TimeoutError:
            return


def _export(database: Path, folder: Folder, zone: ZoneInfo, directory: Path) -> int:
    """Write the files by a connection of its own and return their revision.

    A large dashboard takes seconds, in which the host goes on and its transactions do not wait.
    """
    revision, documents = asyncio.run(_read(database, folder, zone))
    export.write(directory, export.contents(documents))
    return revision


async def _read(database: Path, folder: Folder, zone: ZoneInfo) -> tuple[int, dict[str, Any]]:
    reader = await Database.open_readonly(database)
    try:
        async with reader.reading() as tx:
            await tx.execute("BEGIN")  # all of it as of one moment
            board = await dashboards.get(tx, folder)
            documents = await export.documents_of(tx, folder, zone)
    finally:
        await reader.close()
    return (board.revision if board else 0), documents or {}
