"""Find processes, threads, open files, sockets and event loops that a test has not ended or closed."""

from __future__ import annotations

import gc
import sqlite3
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.support.until import DEADLINE_SECONDS, LOOK_SECONDS

SELF = Path("/proc/self")
"""The folder in which Linux says what a process has; elsewhere only threads are looked at."""
LASTING_THREADS = ("pytest_timeout", "execnet")
APART = ("docker", "host", "browser", "swarm")
"""The marks of tests that speak with servers of the whole session: connections to these are kept for the next
test, and some of the servers are killed and started again. So neither of the two is looked at there."""
DATABASE_FILES = tuple(f".db{part}{gone}" for part in ("", "-wal", "-shm") for gone in ("", " (deleted)"))
"""The endings of files that SQLite has open, also where their folder is gone."""
_lasting: set[str] = set()
"""Things that stay to the end of the test process."""


@contextmanager
def lasting() -> Iterator[None]:
    """Start in it what all tests of the process share from their first use on."""
    before = held()
    yield
    _lasting.update(held() - before)


class Leftovers:
    """A plugin of pytest: what a test has started is gone after it, or the test fails and names the rest.

    Where a fixture of the session is made, what it starts may stay. From the first test on that shares one of
    its module or class, the last test of the file answers for all: what belongs to the fixture cannot be told
    apart.
    """

    def __init__(self) -> None:
        self._before: set[str] | None = None
        self._is_shared = False
        """Whether a test of this file has used a fixture that may still be there."""

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Generator[None, object, object]:
        if fixturedef.scope != "session":
            return (yield)
        with lasting():
            return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self) -> Generator[None, None, None]:
        if self._before is None:
            self._before = held()
        yield

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> Generator[None, None, None]:
        yield
        is_last = nextitem is None or nextitem.path != item.path
        self._is_shared = not is_last and (self._is_shared or shares(item))
        if self._is_shared:
            return
        known, self._before = self._before or set(), None
        if item.get_closest_marker("leaves") is None:
            left = left_behind(known, is_apart=any(map(item.get_closest_marker, APART)))
        else:
            left = set()
        assert not left, f"left behind: {'; '.join(sorted(left))}"


def shares(item: pytest.Item) -> bool:
    """Return whether a test uses a fixture that other tests of its file use, too."""
    fixtures = getattr(item, "_fixtureinfo", None)
    scopes = {
        definition.scope
        for name, definitions in (fixtures.name2fixturedefs.items() if fixtures else ())
        # pytest gives one to each class of unittest, such as a state machine of Hypothesis; it does nothing.
        if not name.startswith("_unittest_")
        for definition in definitions
    }
    return not scopes <= {"function", "session"}


def left_behind(known: set[str], *, is_apart: bool = False) -> set[str]:
    """Return what is there beside what is known, once nothing of it ends any more."""

    def found() -> set[str]:
        new = held() - known - _lasting
        return {one for one in new if not (is_apart and (one.startswith("process") or "socket:" in one))}

    deadline = time.monotonic() + DEADLINE_SECONDS
    while (left := found()) and time.monotonic() < deadline:
        # A thread that was asked to end may hold what closes only when it is collected: SQLite keeps the
        # files of a closed connection open as long as one of its statements lives.
        gc.collect()
        if all(one.endswith(DATABASE_FILES) for one in left) and not _open_databases():
            return set()
        time.sleep(LOOK_SECONDS)
    return left


def _open_databases() -> bool:
    """Return whether a connection to SQLite is open; one that was closed may still wait for a statement."""
    for one in gc.get_objects():
        if isinstance(one, sqlite3.Connection):
            try:
                _ = one.total_changes
            except sqlite3.ProgrammingError:
                continue
            return True
    return False


def held() -> set[str]:
    """Return a line for each process, thread and file that this process has now."""
    threads = {
        f"thread {one.name} ({one.ident})"
        for one in threading.enumerate()
        if not one.name.startswith(LASTING_THREADS)
    }
    return threads | _children() | _files()


def _children() -> set[str]:
    found: set[str] = set()
    for task in SELF.glob("task/*/children"):
        with suppress(OSError):  # a thread that has just ended
            found |= {f"process {pid}" for pid in task.read_text().split()}
    return found


def _files() -> set[str]:
    found: set[str] = set()
    with suppress(FileNotFoundError):
        for one in (SELF / "fd").iterdir():
            with suppress(OSError):  # the folder itself, which is closed by now
                found.add(f"file {one.name} {one.readlink()}")
    return found
