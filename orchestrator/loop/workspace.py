"""Wake a group's loop when somebody other than its agent changes files in its folder."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import structlog
from watchdog.events import (
    FileClosedEvent,
    FileDeletedEvent,
    FileMovedEvent,
)
from watchdog.observers import Observer
from watchdog.observers.api import BaseObserver, ObservedWatch

from orchestrator.base.clock import Clock
from orchestrator.base.event_bus import EventBus, HostEvent
from orchestrator.base.file_watch import WatchHandler
from orchestrator.base.terminal_escaping import visible
from orchestrator.base.wakeups import Wakeup
from orchestrator.domain.errors import StoreError
from orchestrator.domain.values import Folder, Turn, TurnState
from orchestrator.store.database import Database, Tx
from orchestrator.store.loop import loops, wake_requests
from orchestrator.store.runs import sessions, turns
from orchestrator.store.runs.sessions import WorkspaceSnapshot

log = structlog.get_logger(__name__)

SWEEP_SECONDS = 60.0
"""Seconds between two listings of a group's files where the system signals changes. It signals those of the
top folder only.
"""
BLIND_SWEEP_SECONDS = 5.0
"""Seconds between two sweeps of a group's files where the system signals no changes."""
SETTLE_SECONDS = 0.3
"""Seconds without a change before a file counts as saved: programs write in several steps."""
ECHO_MS = 3_000
"""Milliseconds after an agent's work in which a change counts as its own."""
MAX_FILES, MAX_DEPTH = 2_000, 3
"""Files of a group that are listed, and the depth of the folders that are searched."""
FILLED_BY_THE_HOST = frozenset({"attachments", "conversations"})
"""Folders that the host fills itself: its own files must not wake an agent."""
RECENT_TURNS = 20
"""Turns of a group by whose times a change counts as its agent's own."""
KIND = "workspace"
UNNAMED = "files were removed or replaced"
"""The reason for changes without a file name, which happened while no host ran."""

Files = Mapping[str, tuple[int, int]]
"""A file's path in its group's folder → its modification time in epoch ms, and its size in bytes."""


def files_of(folder: Path) -> Files:
    """Return the files of a group's folder, each with its time and size. Blocks.

    Hidden files, links, and folders that the host fills itself are left out; at most `MAX_FILES` are
    returned. If the folder cannot be read, there are no files, so that a removed folder is a change, too.
    """
    files: dict[str, tuple[int, int]] = {}
    # No link is followed: the container writes the folder, and a link could list the host's files.
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return files
    _walk(descriptor, "", files)
    return files


def _walk(descriptor: int, prefix: str, files: dict[str, tuple[int, int]]) -> None:
    """Add the files below an open directory to `files`, and close its `descriptor`. Links are not followed.

    `prefix` is the path of the directory in the group's folder, with a slash at its end. What cannot be read
    is left out.
    """
    try:
        with os.scandir(descriptor) as entries:
            for entry in entries:
                if len(files) >= MAX_FILES:
                    return
                if not entry.name.startswith("."):
                    _add_entry(entry, descriptor, prefix, files)
    except OSError as error:
        log.debug("workspace.not_listed", reason=error.strerror)
    finally:
        os.close(descriptor)


def _add_entry(
    entry: os.DirEntry[str], descriptor: int, prefix: str, files: dict[str, tuple[int, int]]
) -> None:
    """Add an entry of a directory to `files`: a file, or the files below a directory.

    `descriptor` is the open directory that has the entry, and `prefix` its path in the group's folder.
    """
    path = f"{prefix}{entry.name}"
    try:
        if entry.is_file(follow_symlinks=False):
            status = entry.stat(follow_symlinks=False)
            files[path] = (status.st_mtime_ns // 1_000_000, status.st_size)
        elif (
            entry.is_dir(follow_symlinks=False)
            and path not in FILLED_BY_THE_HOST
            and path.count("/") < MAX_DEPTH
        ):
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
            _walk(os.open(entry.name, flags, dir_fd=descriptor), f"{path}/", files)
    except OSError as error:
        log.debug("workspace.not_looked_at", reason=error.strerror)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspaceChanges:
    """The files that changed between two listings, by who changed them."""

    by_agent: tuple[str, ...]
    by_others: tuple[str, ...]


def compare(before: Files, after: Files, recent: list[Turn], *, now_ms: int) -> WorkspaceChanges:
    """Return the files that differ between two listings, by who changed them.

    A change counts as the agent's if it was made while the agent worked, or just before or after. `recent`
    are the group's newest turns, which show when the agent worked.
    """
    by_agent: list[str] = []
    by_others: list[str] = []
    for path in sorted(before.keys() | after.keys()):
        if before.get(path) == after.get(path):
            continue
        # A removed file has no time any more, and a time in the future would count as another's change.
        changed_ms = min(after[path][0], now_ms) if path in after else now_ms
        is_own = any(_was_at_work(turn, changed_ms) for turn in recent)
        (by_agent if is_own else by_others).append(path)
    return WorkspaceChanges(by_agent=tuple(by_agent), by_others=tuple(by_others))


def compare_unseen(
    snapshot: WorkspaceSnapshot, after: Files, recent: list[Turn], *, now_ms: int
) -> WorkspaceChanges:
    """Return the changes since the last listing of an earlier host process, by who made them.

    Only the time and the digest of that listing are stored, in `snapshot`. `after` is the present listing,
    and `recent` are the group's newest turns, which show when the agent worked.
    """
    if snapshot.digest == digest_of(after):
        return WorkspaceChanges(by_agent=(), by_others=())
    # The digest names no files, so those with newer times are the best guess at what changed.
    newer = {path: (at_ms, size) for path, (at_ms, size) in after.items() if at_ms > snapshot.at_ms}
    if newer:
        return compare({}, newer, recent, now_ms=now_ms)
    is_own = any(_was_at_work_since(turn, snapshot.at_ms) for turn in recent)
    return WorkspaceChanges(by_agent=(UNNAMED,) if is_own else (), by_others=() if is_own else (UNNAMED,))


def digest_of(files: Files) -> str:
    """Return a hash of a listing of files, which does not depend on the order of the files."""
    return hashlib.blake2b(repr(sorted(files.items())).encode(), digest_size=16).hexdigest()


def _was_at_work(turn: Turn, at_ms: int) -> bool:
    """Return whether a turn of the agent ran at the time `at_ms`, or up to `ECHO_MS` before or after it."""
    if turn.started_ms is None or at_ms < turn.started_ms - ECHO_MS:
        return False
    return _was_at_work_since(turn, at_ms)


def _was_at_work_since(turn: Turn, at_ms: int) -> bool:
    """Return whether a turn of the agent ran at the time `at_ms` or later, or up to `ECHO_MS` before.

    A turn that waits for another attempt counts as running until the attempt is due.
    """
    if turn.started_ms is None:
        return False
    ended_ms = turn.not_before_ms if turn.state is TurnState.QUEUED else turn.ended_ms
    return ended_ms is None or at_ms <= ended_ms + ECHO_MS


class Workspaces:
    """Watches the folders of the groups whose loop is on."""

    def __init__(
        self,
        root: Path,
        database: Database,
        *,
        clock: Clock,
        bus: EventBus,
        changed_by_agent: set[Folder],
        sweep_seconds: float = SWEEP_SECONDS,
    ) -> None:
        """Set up the watcher; `run` watches.

        Args:
            root: the folder with the folders of all groups.
            database: the database.
            clock: the clock.
            bus: the event bus, whose events show when a loop is switched.
            changed_by_agent: to this set the watcher adds the groups whose agent itself has changed files in
                their folder. The loop's recorder takes them out when it records what the agent has done.
            sweep_seconds: the seconds between two listings, at most.
        """
        self._root = root
        self._database = database
        self._clock = clock
        self._bus = bus
        self._changed_by_agent = changed_by_agent
        self._sweep_seconds = sweep_seconds
        self._wakeup = Wakeup()
        self._last_listings: dict[Folder, Files] = {}
        """The last listing of each group whose folder is watched."""
        self._watches: dict[Folder, ObservedWatch] = {}
        self._unwatchable: set[Folder] = set()
        """Groups whose folder the system cannot watch, and which are listed more often."""
        self._observer: BaseObserver | None = None
        bus.taps.append(self._on_event)

    async def run(self) -> None:
        """Watch the folders of groups whose loop is on, until cancelled; then stop the observer's threads.

        They are listed when the system signals a change, and at intervals, which are short while it cannot
        watch one of them.
        """
        try:
            while True:
                await self.look()
                most_seconds = BLIND_SWEEP_SECONDS if self._unwatchable else self._sweep_seconds
                await self._wakeup.wait(at_most_seconds=min(self._sweep_seconds, most_seconds))
                # Let a program that is saving files finish. Without a listing, no folder is watched.
                if self._last_listings:
                    await asyncio.sleep(SETTLE_SECONDS)
        finally:
            await asyncio.to_thread(self.stop)

    def _on_event(self, event: HostEvent) -> None:
        """Wake `run` for another look when a loop may have been switched on or off."""
        # Events that `_compare` publishes have the detail `KIND`; by those, each look would cause the next.
        if event.kind in ("loop.changed", "command.control_loop") and event.detail != KIND:
            self._wakeup.set()

    async def look(self) -> None:
        """Compare the folder of each group whose loop is on with its last listing, and record the changes.

        Folders of groups whose loop is off now are watched no more. An error in one group is logged, and does
        not stop the others.

        Raises:
            StoreError: the database cannot be written; some groups may not have been compared.
        """
        async with self._database.reading() as tx:
            alive = {loop.folder for loop in await loops.alive(tx)}
            # Without a stored listing, the loop was off and is on again: files that changed meanwhile are to
            # wake no agent, so the listing in memory is deleted, too.
            for folder in sorted(self._last_listings.keys() & alive):
                if await sessions.last_workspace(tx, folder) is None:
                    del self._last_listings[folder]
        for folder in sorted(self._last_listings.keys() - alive):
            await asyncio.to_thread(self._unwatch, folder)
            await self._forget(folder)
        for folder in sorted(alive):
            try:
                await asyncio.to_thread(self._watch, folder, self._thread_safe_signal())
                await self._compare(folder)
            except StoreError:  # then no other group can be written, either
                raise
            except Exception:
                log.exception("workspace.not_compared", group=folder)

    async def _compare(self, folder: Folder) -> None:
        """List a group's files and record what has changed since the last listing.

        Changes by others than the group's agent request that the agent wakes.
        """
        # Taken before the listing, so that a change during it is found again, not missed.
        looked_ms = self._clock.now_ms()
        files = await asyncio.to_thread(files_of, self._root / folder)
        if self._last_listings.get(folder) == files:
            return
        async with self._database.transaction() as tx:
            changes = await self._changes(tx, folder, files)
            is_new = bool(changes.by_others) and await wake_requests.add(
                tx,
                folder,
                kind=KIND,
                key=KIND,
                source="files",
                # File names may contain surrogates, which no database accepts.
                reason=visible(", ".join(changes.by_others)),
                now_ms=self._clock.now_ms(),
            )
            await sessions.note_workspace(
                tx, folder, WorkspaceSnapshot(at_ms=looked_ms, digest=digest_of(files))
            )
        # After the commit: if that fails, the next pass finds the same change again.
        self._last_listings[folder] = files
        if changes.by_agent:
            self._changed_by_agent.add(folder)  # so that the present cycle counts as one that did something
        if is_new:
            self._bus.publish("loop.changed", group=folder, detail=KIND)

    async def _changes(self, tx: Tx, folder: Folder, files: Files) -> WorkspaceChanges:
        """Return how the listing `files` of a group differs from its last one, by who made the changes.

        The last listing is the one in memory or, if this process has made none yet, what an earlier process
        stored of its last one. If nothing is stored, there are no changes.
        """
        snapshot = await sessions.last_workspace(tx, folder)
        if snapshot is None:
            # The first listing since the group's loop was switched on.
            return WorkspaceChanges(by_agent=(), by_others=())
        # The turns show when the group's agent worked, and so which changes are its own.
        recent = await turns.recent(tx, limit=RECENT_TURNS, folder=folder)
        before, now_ms = self._last_listings.get(folder), self._clock.now_ms()
        if before is not None:
            return compare(before, files, recent, now_ms=now_ms)
        return compare_unseen(snapshot, files, recent, now_ms=now_ms)

    async def _forget(self, folder: Folder) -> None:
        """Delete the last listing of a group's files, here and in the database."""
        await self._database.write(lambda tx: sessions.forget_workspace(tx, folder))
        del self._last_listings[folder]

    def _thread_safe_signal(self) -> Callable[[], None]:
        """Return a function that wakes `run`, and that the observer's thread may call."""
        loop = asyncio.get_running_loop()

        def signal() -> None:
            """Wake `run`; the observer calls this in a thread of its own."""
            loop.call_soon_threadsafe(self._wakeup.set)

        return signal

    def _watch(self, folder: Folder, signal: Callable[[], None]) -> None:
        """Watch a group's folder, so that the system calls `signal` when files in it change. Blocks.

        Only the folder itself is watched, and nothing below it, since a container writes that tree. If the
        system cannot watch it, that is logged once, and the folder is listed more often.
        """
        if folder in self._watches:
            return
        try:
            # Only kinds of events that a change makes: reading the files would signal others.
            self._watches[folder] = self._started_observer().schedule(
                WatchHandler(signal),
                os.fspath(self._root / folder),
                event_filter=[FileClosedEvent, FileMovedEvent, FileDeletedEvent],
            )
        # Logged once; from then on the group is listed every few seconds instead.
        except OSError as error:
            if folder not in self._unwatchable:
                log.warning("workspace.not_watched", group=folder, reason=error.strerror)
            self._unwatchable.add(folder)
        else:
            self._unwatchable.discard(folder)

    def _started_observer(self) -> BaseObserver:
        """Return the observer of folders, started if needed.

        Raises `OSError` if the system has no handle for another one.
        """
        if self._observer is None:
            observer = Observer()
            observer.start()
            self._observer = observer
        return self._observer

    def _unwatch(self, folder: Folder) -> None:
        """Stop watching a group's folder for changes, if it is watched. Blocks."""
        self._unwatchable.discard(folder)
        watch = self._watches.pop(folder, None)
        if watch is not None and self._observer is not None:
            self._observer.unschedule(watch)

    def stop(self) -> None:
        """Stop the observer and its threads. Blocks."""
        observer, self._observer = self._observer, None
        self._watches.clear()
        if observer is not None:
            observer.stop()
            observer.join()
