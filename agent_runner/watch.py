"""Wake a task when a directory changes. Signals are only hints; a periodic sweep guarantees the look."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

from watchdog.events import (
    FileClosedEvent,
    FileCreatedEvent,
    FileMovedEvent,
    FileSystemEvent,
    FileSystemEventHandler,
)
from watchdog.observers.api import BaseObserver

from agent_runner.wire.arrivals import new_observer

logger = logging.getLogger(__name__)

WRITTEN = [FileClosedEvent, FileCreatedEvent, FileMovedEvent]
"""The events of a file that is written in place or renamed into place."""


class DirectoryWatch(FileSystemEventHandler):
    """Watches one directory, also through a link: a process has links where a container has mounts.

    If the system sends no signals, only the sweep remains.
    """

    def __init__(self, directory: Path) -> None:
        """`directory` is watched from `start` on.

        Must be called in a running event loop, whose tasks are woken.
        """
        self._directory = directory
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._observer: BaseObserver | None = None

    def start(self) -> None:
        """Watch from now on. If the system gives no signals, log that: only the periodic checks remain."""
        try:
            directory = self._directory.resolve(strict=True)  # watchdog would watch a link itself
            self._observer = new_observer()
            self._observer.daemon = True
            self._observer.schedule(self, str(directory), event_filter=WRITTEN)
            self._observer.start()
        except OSError as error:
            logger.warning("no change signals from %s: %s", self._directory.name, error.strerror)

    def stop(self) -> None:
        """End the threads without waiting for them, since a turn that was just read would wait, too."""
        if self._observer is not None:
            threading.Thread(target=self._observer.stop, name="watch:stop", daemon=True).start()

    def on_any_event(self, event: FileSystemEvent) -> None:
        """Wake the waiting tasks for any change. Runs in the observer's thread."""
        del event
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        """Wake all tasks that wait for a change."""
        self._changed.set()
        # Replaced, not cleared: several tasks may wait, and each has to see the change.
        self._changed = asyncio.Event()

    async def checks(self, sweep_seconds: float) -> AsyncIterator[None]:
        """Yield when the directory is to be read: at once, after each signal, and every `sweep_seconds`."""
        while True:
            # Taken before the caller reads the directory, so that a change meanwhile is not missed.
            changed = self._changed
            yield
            with suppress(TimeoutError):
                async with asyncio.timeout(sweep_seconds):
                    await changed.wait()
