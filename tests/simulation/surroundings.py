"""What stands for the real world while a simulated one runs: threads of SQLite, file events, the disk.

`World._replace` is the list. `guard.py` answers clocks and chance, and refuses what would get past the list.
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import os
import random
import stat
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, suppress
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any, NoReturn

import structlog

from orchestrator.store.loop_connection import LoopConnection
from tests.simulation.loop import PROCESS, SimulatedLoop, settle
from tests.simulation.storage import UnsyncedFiles


class SimulatedThread:
    """The thread of an aiosqlite connection: what is put into its queue becomes a step."""

    def __init__(self, target: Callable[..., Any], args: tuple[Any, ...] = (), **_: Any) -> None:
        (self._queue,) = args

    def start(self) -> None:
        self._queue.thread = self


class StepQueue:
    """The queue of such a thread."""

    def __init__(self) -> None:
        self.thread: SimulatedThread | None = None

    @classmethod
    def __class_getitem__(cls, _: object) -> type[StepQueue]:
        return cls

    def put_nowait(self, work: tuple[Any, Callable[[], Any]]) -> None:
        loop = asyncio.get_event_loop()
        assert isinstance(loop, SimulatedLoop)
        loop.soon_in_thread(self, lambda: _do(loop, *work))


def _do(loop: SimulatedLoop, future: Any, function: Callable[[], Any]) -> None:
    loop.thread_future = future
    try:
        result = function()
    except Exception as error:  # noqa: BLE001  # as aiosqlite does
        if future is not None:
            settle(future, None, error)
    else:
        if future is not None:
            settle(future, result, None)


class UnclosedConnection(LoopConnection):
    """A connection of a host that may be killed: nobody has to close it, and none warns that it was not."""

    def __del__(self) -> None:
        pass


class ThreadAtOnce:
    """A thread whose work ends at once and blocks nobody: to stop an observer."""

    def __init__(self, *, target: Callable[[], None], **_: Any) -> None:
        self._target = target

    def start(self) -> None:
        self._target()


class Signals:
    """The file system's signals. Some are lost, some come twice, all come late."""

    def __init__(self, loop: SimulatedLoop, seed: str) -> None:
        self._loop = loop
        self._chance = random.Random(f"{seed}:signals")
        self._lost = self._chance.choice((0.0, 0.05, 0.5, 1.0))
        """The share of the signals that this world loses."""
        self._watchers: dict[str, list[Observer]] = {}

    def add(self, directory: str, observer: Observer) -> None:
        self._watchers.setdefault(directory, []).append(observer)

    def remove(self, observer: Observer) -> None:
        for watchers in self._watchers.values():
            if observer in watchers:
                watchers.remove(observer)

    def changed(self, path: str) -> None:
        """Signal that a file came to be."""
        for observer in self._watchers.get(str(Path(path).parent.resolve()), ()):
            for _ in range(1 + (self._chance.random() < 0.1)):
                if self._chance.random() >= self._lost:
                    delay = self._chance.uniform(0.0001, 0.02)
                    self._loop.call_later(delay, observer.signal, context=observer.context)


class Observer:
    """In the place of watchdog's: calls its handler in the process that made it."""

    signals: Signals

    def __init__(self) -> None:
        self._handler: Any = None
        self._directories: list[str] = []
        self._is_started = False
        self.context = contextvars.copy_context()
        self.daemon = True

    def schedule(self, handler: Any, path: str, **_: Any) -> object:
        if not Path(path).is_dir():
            raise FileNotFoundError(2, "No such file or directory", path)
        self._handler = handler
        self._directories.append(os.path.realpath(path))
        if self._is_started:
            self.signals.add(self._directories[-1], self)
        return object()

    def unschedule(self, _: object) -> None:
        pass

    def start(self) -> None:
        self._is_started = True
        for directory in self._directories:
            self.signals.add(directory, self)

    def stop(self) -> None:
        self._is_started = False
        self.signals.remove(self)

    def is_alive(self) -> bool:
        return self._is_started

    def join(self, timeout: float | None = None) -> None:
        pass

    def signal(self) -> None:
        if self._is_started and not PROCESS.get().is_dead:
            # Both handlers of Andy's only set an event; which kind of change it was they never ask.
            (getattr(self._handler, "on_any_event", None) or self._handler.dispatch)(None)


class Disk:
    """The directories of the home: real ones on tmpfs, that can be full and signal their new files."""

    def __init__(self, loop: SimulatedLoop, signals: Signals, unsynced: UnsyncedFiles | None) -> None:
        """`unsynced` notes what the disk may not have yet; None where the power does not fail."""
        self._loop = loop
        self._signals = signals
        self._unsynced = unsynced
        self.is_full = False
        self.on_request: Callable[[], None] = lambda: None
        """Called as a container has put a file into place."""
        self.on_change: Callable[[], None] = lambda: None
        """Called as a file was put into place or removed."""
        self._replace, self._rename, self._unlink = os.replace, os.rename, os.unlink
        self._stamps: set[int] = set()
        """The virtual times that files were given, in epoch nanoseconds."""

    def replace(self, source: Any, target: Any, **places: Any) -> None:
        self._move(self._replace, source, target, places)

    def unlink(self, path: Any, **places: Any) -> None:
        self._unlink(path, **places)
        self.on_change()

    def sync(self, descriptor: int) -> None:
        """Note that a file or a directory is on the disk; tmpfs has nothing to sync."""
        if self._unsynced is None:
            return
        found = os.fstat(descriptor)
        if stat.S_ISDIR(found.st_mode):
            self._unsynced.note_directory_sync(Path(f"/proc/self/fd/{descriptor}").readlink())
        else:
            self._unsynced.note_sync(found.st_dev, found.st_ino)

    def rename(self, source: Any, target: Any, **places: Any) -> None:
        self._move(self._rename, source, target, places)

    def _move(self, move: Callable[..., None], source: Any, target: Any, places: dict[str, Any]) -> None:
        if self.is_full and PROCESS.get().name != "outside":
            raise OSError(28, "No space left on device", str(target))
        if self._unsynced is not None and not places:
            self._unsynced.before_move(Path(source), Path(target), self._loop.time())
        move(source, target, **places)
        if not places:
            self.stamp(target)
            self._signals.changed(os.fspath(target))
            if PROCESS.get().name.startswith("container"):
                self.on_request()
        self.on_change()

    def stamp(self, path: Any) -> None:
        """Give a file the virtual time."""
        now = self._loop.wall_ns()
        self._stamps.add(now)
        os.utime(path, ns=(now, now), follow_symlinks=False)

    def write_in_place(self, path: Path, text: str) -> None:
        """Write a file as a program does that puts nothing into place."""
        path.write_text(text, encoding="utf-8")
        self.stamp(path)
        self._signals.changed(os.fspath(path))

    def changed_ms(self, info: os.stat_result) -> int:
        """In the place of the change time, which is that of the real clock and which nobody can set."""
        if info.st_mtime_ns not in self._stamps:
            self._loop.refuse("the real time of a file")
        return info.st_mtime_ns // 1_000_000


@cache
def freeze_imports() -> None:
    """Keep what was imported out of all later collections, once a process and before its first world.

    A world must not be frozen itself, or its cycles would stay.
    """
    gc.collect()
    gc.freeze()


@contextmanager
def without_collections() -> Iterator[None]:
    """Collect no cycles meanwhile: when they are collected is drawn from no seed."""
    was_on = gc.isenabled()
    with _unheard_ends():  # of the world before, which its caller kept until now
        gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def bury(loop: SimulatedLoop, graves: list[Any]) -> None:
    """Close what is left of each task. Its `finally` runs only now, when the world is over, unheard."""
    with _unheard_ends():
        for task in asyncio.all_tasks(loop):
            with suppress(BaseException):
                task.get_coro().close()
        graves.clear()
        gc.collect()


@contextmanager
def _unheard_ends() -> Iterator[None]:
    """Let nobody hear what coroutines of dead processes say and warn of as they are closed or collected."""
    hook, logs = sys.unraisablehook, structlog.get_config()
    sys.unraisablehook = lambda _: None
    structlog.configure(processors=[_unheard])
    try:
        with warnings.catch_warnings(), redirect_stderr(StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        sys.unraisablehook = hook
        structlog.configure(**logs)


def _unheard(*_: Any) -> NoReturn:
    raise structlog.DropEvent
