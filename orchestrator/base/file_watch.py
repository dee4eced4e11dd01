"""Turns changes on disk into calls without details: the called code looks for itself."""

from __future__ import annotations

from collections.abc import Callable

from watchdog.events import FileSystemEvent, FileSystemEventHandler


class WatchHandler(FileSystemEventHandler):
    """Calls `signal` at each change that a watch's filter passes, in the observer's thread."""

    def __init__(self, signal: Callable[[], None]) -> None:
        """`signal` is called in another thread than the event loop's."""
        self._signal = signal

    def dispatch(self, event: FileSystemEvent) -> None:
        """Call `signal` for any kind of event; the called code looks at the disk itself."""
        del event
        self._signal()
