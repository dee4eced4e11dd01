"""Watch directories for files that are written or renamed into them, as `files.write_whole` does."""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from watchdog.observers.api import BaseObserver


def new_observer() -> BaseObserver:
    """Return a watchdog observer that reports a renamed file as a new one, as soon as it has its new name.

    watchdog's own observer for Linux pairs the two halves of a rename. When it reads the first half alone, it
    waits 0.5 s for the second one and holds back all later events, so that nearly every file of
    `files.write_whole` was seen late. Here the kernel is not asked for first halves. A file that is moved out
    of a watched directory is therefore not reported.

    Raises:
        OSError: the system has no handle for another observer.
    """
    return _observer_class()()


@functools.cache
def _observer_class() -> Callable[[], BaseObserver]:
    """Return the class of watchdog observers for this platform; on Linux a subclass of watchdog's.

    The subclass reports a file only when it is whole; in a recursive watch, also when it is created.
    """
    # Imported on the first call: watchdog loads slowly, and not every process here watches a directory.
    if sys.platform != "linux":
        from watchdog.observers import Observer

        return Observer
    from watchdog.observers.inotify import InotifyEmitter, InotifyObserver
    from watchdog.observers.inotify_c import InotifyConstants, Mask

    class ArrivalEmitter(InotifyEmitter):
        """Asks the kernel only for events of files that have arrived whole."""

        def get_event_mask_from_filter(self) -> Mask:
            """Return the events to ask the kernel for, without those of incomplete or departed files."""
            # Nobody waits for a file that was moved away.
            unwanted = InotifyConstants.IN_MOVED_FROM
            if not self.watch.is_recursive:
                # A file that was only created is not whole; its closing or renaming is reported. A recursive
                # watch needs this event, by which watchdog learns of new directories.
                unwanted = Mask(unwanted | InotifyConstants.IN_CREATE)
            return Mask(super().get_event_mask_from_filter() & ~unwanted)

    class ArrivalObserver(InotifyObserver):
        """Watchdog's observer with another emitter."""

        def __init__(self) -> None:
            super().__init__()
            self._emitter_class = ArrivalEmitter

    return ArrivalObserver
