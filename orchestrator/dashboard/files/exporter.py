"""Keeps the files of each dashboard true: at once after it changed, a second after the time before."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from zoneinfo import ZoneInfo

import structlog

from orchestrator.base.event_bus import EventBus, HostEvent
from orchestrator.dashboard.files import export
from orchestrator.domain.values import Folder, Group
from orchestrator.store import dashboards, groups
from orchestrator.store.database import Database

log = structlog.get_logger(__name__)

SWEEP_SECONDS = 60.0
PAUSE_SECONDS = 1.0
SHARE = 10
"""It pauses so many times as long as it wrote: a tenth of a core, however large the dashboards are."""
DIRECTORY = "dashboard"
_HINTS = ("command.dashboard*", "dashboard.*", "notification.*", "worker.*")


class Exporter:
    """Looks at the revisions: a dashboard that has not changed is not written."""

    def __init__(
        self,
        root: Path,
        database: Database,
        *,
        bus: EventBus,
        zone_of: Callable[[Group], ZoneInfo],
        pause_seconds: float = PAUSE_SECONDS,
    ) -> None:
        """`root` holds a directory a group, which is there once a container of it was prepared."""
        self._root = root
        self._database = database
        self._bus = bus
        self._zone_of = zone_of
        self._pause_seconds = pause_seconds
        self._written: dict[Folder, tuple[int, str]] = {}
        self._texts: dict[Folder, tuple[str, export.Texts]] = {}
        """What was encoded for the files of a group, and in which zone."""

    async def run(self) -> None:
        with self._bus.listening(*_HINTS) as events:
            while True:
                while not events.empty():
                    events.get_nowait()
                began = time.monotonic()
                await self.write_all()
                await self.pause(time.monotonic() - began)
                await _until_changed(events)

    async def pause(self, took_seconds: float) -> None:
        """Let changes gather after a write that took so long: a dashboard is always written whole."""
        await asyncio.sleep(max(self._pause_seconds, SHARE * took_seconds))

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
        key, known = self._texts.pop(group.folder, (zone.key, {}))
        try:
            found = await asyncio.to_thread(
                _export,
                await self._database.path(),
                group.folder,
                zone,
                directory / DIRECTORY,
                known if key == zone.key else {},
            )
        except OSError as error:
            log.warning("dashboard.not_exported", group=group.folder, reason=error.strerror)
            return
        if found is not None:
            self._texts[group.folder] = (zone.key, found.texts)
            self._written[group.folder] = (found.revision, zone.key)


async def _until_changed(events: asyncio.Queue[HostEvent]) -> None:
    try:
        async with asyncio.timeout(SWEEP_SECONDS):
            await events.get()
    except TimeoutError:
        return


def _export(
    database: Path, folder: Folder, zone: ZoneInfo, directory: Path, known: export.Texts
) -> export.Exported | None:
    """Write the files of a dashboard: the host goes on meanwhile, its transactions do not wait."""
    found = export.read(database, folder, zone, known)
    if found is not None:
        export.write(directory, found.contents)
    return found
