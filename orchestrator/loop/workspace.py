"""Notices when somebody other than its agent changes the files of a group."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import structlog
from watchdog.events import (
    FileClosedEvent,
    FileDeletedEvent,
    FileMovedEvent,
    FileSystemEvent,
    FileSystemEventHandler,
)
from watchdog.observers import Observer
from watchdog.observers.api import BaseObserver, ObservedWatch

from orchestrator.clock import Clock
from orchestrator.events import Bus, Event
from orchestrator.hints import Hint
from orchestrator.models import Folder, Turn
from orchestrator.store import loops, turns, wakes
from orchestrator.store.database import Database

log = structlog.get_logger(__name__)

SWEEP_SECONDS = 60.0
"""Deeper folders are looked at so often, and all where the system signals nothing."""
SETTLE_SECONDS = 0.3
"""Who saves a file writes it in several steps."""
ECHO_MS = 3_000
"""What changes so soon after its agent worked, its agent has changed."""
MAX_FILES, MAX_DEPTH = 2_000, 3
KEPT_BY_THE_HOST = frozenset({"attachments", "conversations"})
"""What lies in there is told otherwise."""
RECENT_TURNS = 20
KIND = "workspace"

Files = Mapping[str, tuple[int, int]]
"""A file's path in its group's folder → when it was changed, in ms, and its size."""


def files_of(folder: Path) -> Files:
    """What lies in a group's folder, hidden files and links left out, at most `MAX_FILES`. Blocks."""
    found: dict[str, tuple[int, int]] = {}
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return found
    _walk(descriptor, "", found)
    return found


def _walk(descriptor: int, above: str, found: dict[str, tuple[int, int]]) -> None:
    """List a directory and close it. The tree is a container's: nothing in it is followed."""
    try:
        with os.scandir(descriptor) as entries:
            for entry in entries:
                if len(found) >= MAX_FILES:
                    return
                if not entry.name.startswith("."):
                    _take(entry, descriptor, above, found)
    except OSError as error:
        log.debug("workspace.not_listed", reason=error.strerror)
    finally:
        os.close(descriptor)


def _take(entry: os.DirEntry[str], descriptor: int, above: str, found: dict[str, tuple[int, int]]) -> None:
    path = f"{above}{entry.name}"
    try:
        if entry.is_file(follow_symlinks=False):
            seen = entry.stat(follow_symlinks=False)
            found[path] = (seen.st_mtime_ns // 1_000_000, seen.st_size)
        elif (
            entry.is_dir(follow_symlinks=False)
            and path not in KEPT_BY_THE_HOST
            and path.count("/") < MAX_DEPTH
        ):
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
            _walk(os.open(entry.name, flags, dir_fd=descriptor), f"{path}/", found)
    except OSError as error:
        log.debug("workspace.not_looked_at", reason=error.strerror)


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What changed between two looks, by whom."""

    by_agent: tuple[str, ...]
    by_others: tuple[str, ...]


def compare(before: Files, after: Files, recent: list[Turn], *, now_ms: int) -> Changes:
    """Tell changes of others from those that happened while the group's agent worked, or just after."""
    mine: list[str] = []
    others: list[str] = []
    for path in sorted(before.keys() | after.keys()):
        if before.get(path) == after.get(path):
            continue
        changed_ms = min(after[path][0], now_ms) if path in after else now_ms
        is_own = any(_was_at_work(turn, changed_ms) for turn in recent)
        (mine if is_own else others).append(path)
    return Changes(by_agent=tuple(mine), by_others=tuple(others))


def _was_at_work(turn: Turn, at_ms: int) -> bool:
    if turn.started_ms is None:
        return False
    return turn.started_ms - ECHO_MS <= at_ms and (turn.ended_ms is None or at_ms <= turn.ended_ms + ECHO_MS)


class Workspaces:
    """Looks after the folders of the groups whose loop is on."""

    def __init__(
        self,
        root: Path,
        database: Database,
        *,
        clock: Clock,
        bus: Bus,
        touched: set[Folder],
        sweep_seconds: float = SWEEP_SECONDS,
    ) -> None:
        """`touched` is told the groups in whose folder their agent changed something."""
        self._root = root
        self._database = database
        self._clock = clock
        self._bus = bus
        self._touched = touched
        self._sweep_seconds = sweep_seconds
        self._hint = Hint()
        self._known: dict[Folder, Files] = {}
        self._watches: dict[Folder, ObservedWatch] = {}
        self._observer: BaseObserver | None = None
        bus.taps.append(self._hear)

    async def run(self) -> None:
        try:
            while True:
                await self.look()
                await self._hint.wait(at_most_seconds=self._sweep_seconds)
                if self._known:
                    await asyncio.sleep(SETTLE_SECONDS)
        finally:
            await asyncio.to_thread(self._stop)

    def _hear(self, event: Event) -> None:
        """A loop may have been switched on."""
        if event.kind in ("loop.changed", "command.control_loop") and event.detail != KIND:
            self._hint.give()

    async def look(self) -> None:
        """Compare the folders of all loops that are alive with what was seen last."""
        async with self._database.reading() as tx:
            alive = {loop.folder for loop in await loops.alive(tx)}
        for folder in self._known.keys() - alive:
            await asyncio.to_thread(self._forget, folder)
        for folder in alive:
            await asyncio.to_thread(self._watch, folder, self._signal())
            await self._compare(folder)

    async def _compare(self, folder: Folder) -> None:
        found = await asyncio.to_thread(files_of, self._root / folder)
        before = self._known.get(folder)
        if before == found:
            return
        self._known[folder] = found
        if before is None:
            return
        now_ms = self._clock.now_ms()
        async with self._database.transaction() as tx:
            changes = compare(
                before, found, await turns.recent(tx, limit=RECENT_TURNS, folder=folder), now_ms=now_ms
            )
            is_new = bool(changes.by_others) and await wakes.add(
                tx,
                folder,
                kind=KIND,
                key=KIND,
                reason=", ".join(changes.by_others),
                now_ms=now_ms,
            )
        if changes.by_agent:
            self._touched.add(folder)
        if is_new:
            self._bus.publish("loop.changed", group=folder, detail=KIND)

    def _signal(self) -> Callable[[], None]:
        loop = asyncio.get_running_loop()

        def signal() -> None:
            loop.call_soon_threadsafe(self._hint.give)

        return signal

    def _watch(self, folder: Folder, signal: Callable[[], None]) -> None:
        """Have changes of the folder itself signalled. Never deeper: the tree below is a container's."""
        if folder in self._watches:
            return
        if self._observer is None:
            self._observer = Observer()
            self._observer.start()
        try:
            self._watches[folder] = self._observer.schedule(
                _Handler(signal),
                os.fspath(self._root / folder),
                event_filter=[FileClosedEvent, FileMovedEvent, FileDeletedEvent],
            )
        except OSError as error:
            log.debug("workspace.not_watched", group=folder, reason=error.strerror)

    def _forget(self, folder: Folder) -> None:
        del self._known[folder]
        watch = self._watches.pop(folder, None)
        if watch is not None and self._observer is not None:
            self._observer.unschedule(watch)

    def _stop(self) -> None:
        observer, self._observer = self._observer, None
        self._watches.clear()
        if observer is not None:
            observer.stop()
            observer.join()


class _Handler(FileSystemEventHandler):
    def __init__(self, signal: Callable[[], None]) -> None:
        self._signal = signal

    def dispatch(self, event: FileSystemEvent) -> None:
        """Runs in the observer's thread, for each change that the filter lets through."""
        del event
        self._signal()
