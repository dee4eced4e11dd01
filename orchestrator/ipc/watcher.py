"""Wake the host when a container has written a request.

A signal of the file system is only a hint and may be lost; a sweep every few seconds finds each request.
"""

from __future__ import annotations

import asyncio
import errno
import os
import stat
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import structlog
from watchdog.events import (
    FileClosedEvent,
    FileCreatedEvent,
    FileMovedEvent,
)
from watchdog.observers.api import BaseObserver

from agent_runner.wire.arrivals import new_observer
from orchestrator.base.file_watch import WatchHandler
from orchestrator.base.wakeups import Wakeup
from orchestrator.domain.values import Folder

MAILBOXES = ("messages", "tasks")
BLIND_SWEEP_SECONDS = 1.0
"""Seconds between sweeps of a group for which the system sends no signals."""

log = structlog.get_logger(__name__)


class MailboxWatcher:
    """Reports which groups' mailboxes to look at. All methods are called on one event loop.

    Each group has an observer of its own. In a shared one, a group that floods its mailbox would overflow the
    kernel's queue, and lose the other groups' changes, too.
    """

    def __init__(
        self, root: Path, *, mailboxes: Sequence[str] = MAILBOXES, sweep_seconds: float = 5.0
    ) -> None:
        """`root` contains a folder for each group, and each of these the directories `mailboxes`.

        A watched group is looked at after each signal of the system, and every `sweep_seconds` without one.
        """
        self._root = root
        self._mailboxes = tuple(mailboxes)
        self._sweep_seconds = sweep_seconds
        self._watches: dict[Folder, _Watch] = {}
        self._woken: set[Folder] = set()
        """The groups that `wait` returns next."""
        self._wakeup = Wakeup()
        self._last_sweep = 0.0
        """The time at which all groups were woken last, by the event loop's clock."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    @property
    def folders(self) -> Collection[Folder]:
        """The watched groups: those that have a container."""
        return self._watches.keys()

    async def watch(self, folder: Folder) -> None:
        """Watch a group: `wait` returns it after each change in its mailboxes, and once for present files.

        A repeated call starts a new watch, for directories that were replaced meanwhile. If the system allows
        no more watches, the group is looked at every `BLIND_SWEEP_SECONDS` instead.
        """
        # watchdog calls from its own thread, where asyncio's objects must not be used.
        loop = asyncio.get_running_loop()

        def signal() -> None:
            """Wake the group from watchdog's thread, unless it is woken already."""
            if folder not in self._woken:
                loop.call_soon_threadsafe(self.wake, folder)

        earlier = self._watches.get(folder)
        watch = self._watches[folder] = _Watch(
            [self._root / folder / name for name in self._mailboxes], signal
        )
        if earlier is not None:
            await asyncio.to_thread(earlier.stop)
        await asyncio.to_thread(watch.start)
        if watch.trouble is not None:
            log.warning("mailbox_not_watched", group=folder, error=watch.trouble, sweep=BLIND_SWEEP_SECONDS)
        self.wake(folder)

    async def unwatch(self, folder: Folder) -> None:
        """Stop watching a group, which `wait` then returns a last time.

        A group that is not watched is no error.
        """
        watch = self._watches.pop(folder, None)
        # Without the last look, requests from a container's last moment would wait until it starts again.
        if watch is not None:
            self.wake(folder)
            await asyncio.to_thread(watch.stop)

    async def stop(self) -> None:
        """Stop watching all groups, and wait until the threads of their observers have ended."""
        watches, self._watches = list(self._watches.values()), {}
        await asyncio.to_thread(_stop_all, watches)

    def wake(self, folder: Folder) -> None:
        """Make `wait` return a group, so that its mailboxes are looked at, such as when not all was read."""
        self._woken.add(folder)
        self._wakeup.set()

    async def wait(self) -> frozenset[Folder]:
        """Wait until groups were woken, and return their folders, whose mailboxes have to be looked at now.

        At fixed intervals, in a sweep, all watched groups are returned, however often some are woken
        meanwhile. Without a watched group there is no sweep.
        """
        loop = asyncio.get_running_loop()
        while True:
            seconds_until_sweep = self._seconds_until_sweep(loop.time())
            # Checked before the woken groups, or a group that is always busy would postpone the sweep without
            # end.
            if seconds_until_sweep == 0:
                self._woken.update(self._watches)
                self._last_sweep = loop.time()
            if self._woken:
                woken, self._woken = frozenset(self._woken), set()
                return woken
            await self._wakeup.wait(at_most_seconds=seconds_until_sweep)

    def _seconds_until_sweep(self, now_seconds: float) -> float | None:
        """Return the seconds until all watched groups are looked at next; None without a watched group.

        `now_seconds` is the time by the event loop's clock.
        """
        if not self._watches:
            return None
        is_blind = any(watch.trouble is not None for watch in self._watches.values())
        pause = min(self._sweep_seconds, BLIND_SWEEP_SECONDS) if is_blind else self._sweep_seconds
        return max(0.0, self._last_sweep + pause - now_seconds)


class _Watch:
    """The observer of one group. `start` and `stop` block; in whatever order they come, `stop` wins."""

    def __init__(self, directories: Iterable[Path], signal: Callable[[], None]) -> None:
        """Watch the directories themselves, not the tree below them.

        `signal` is called after each change, in the observer's thread.
        """
        self._directories = tuple(directories)
        self._handler = WatchHandler(signal)
        self._observer: BaseObserver | None = None
        self._is_stopped = False
        self._lock = threading.Lock()
        self.trouble: str | None = None
        """Why the system sends no signals here; None when it does."""

    def start(self) -> None:
        """Start observing the group's directories, unless `stop` was called.

        After a failure `trouble` says why.
        """
        with self._lock:
            if self._is_stopped:
                return
            try:
                self._observe()
            # inotify has a limit per user; Andy works without it, only slower.
            except OSError as error:
                self._end()
                is_limit = error.errno in {errno.ENOSPC, errno.EMFILE}
                self.trouble = f"{error}{'; raise it with sysctl fs.inotify' if is_limit else ''}"

    def stop(self) -> None:
        """Stop observing for good: `start` does nothing from then on. Blocks until the thread has ended."""
        with self._lock:
            self._is_stopped = True
            self._end()

    def _observe(self) -> None:
        """Start an observer of the directories, which runs in a thread of its own.

        Raises:
            OSError: a directory is missing or is none, or the system allows no more watches.
        """
        self._observer = new_observer()
        for directory in self._directories:
            # watchdog would watch the parent of a path that is no directory.
            if not stat.S_ISDIR(directory.lstat().st_mode):
                raise NotADirectoryError(f"{directory.name} is no directory")
            # Never recursive: the container may make the tree below as deep as it likes.
            self._observer.schedule(
                self._handler,
                os.fspath(directory),
                # Neither opening nor closing without a write: the host's own reading would wake it again.
                event_filter=[FileCreatedEvent, FileMovedEvent, FileClosedEvent],
            )
        self._observer.start()

    def _end(self) -> None:
        """Stop the observer and wait for its thread."""
        observer, self._observer = self._observer, None
        if observer is not None:
            observer.stop()
            # An observer whose start failed has no thread, and joining it would raise.
            if observer.is_alive():
                observer.join()


def _stop_all(watches: Iterable[_Watch]) -> None:
    """End all observers. Blocks until their threads have ended."""
    for watch in watches:
        watch.stop()
