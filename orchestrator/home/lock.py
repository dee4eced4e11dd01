"""The lock of a home, which lets only one Andy run on it, and the mark of one that is starting."""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from agent_runner.wire import files
from orchestrator.base import installation
from orchestrator.domain.errors import HomeError

if TYPE_CHECKING:
    from filelock import FileLock

    from orchestrator.home.directory import Home


def acquire(home: Home) -> FileLock:
    """Take the lock of the home for this process; the caller releases it.

    Raises:
        HomeError: another orchestrator is running on it.
        OSError: the lock file cannot be opened, such as one of another user.
    """
    from filelock import FileLock, Timeout

    # The system releases a file lock whenever the process dies; the mere existence of a file would stay.
    taken = FileLock(home.lock_file)
    try:
        taken.acquire(timeout=0)
    except Timeout as error:
        fix = "stop it first, or use another ANDY_HOME"
        # The home has this path only in Andy's container, which Docker Compose starts. Most likely a restore
        # needs the lock there.
        if str(home.root) == installation.COMPOSE_HOME:
            fix = "Docker starts and stops him here. The console's page Care puts a backup in place"
        raise HomeError(f"Andy is running on {home.root} already: {fix}.") from error
    return taken


@contextmanager
def starting(home: Home, *, now_ms: int) -> Iterator[Callable[[], None]]:
    """Write a file that shows other processes that this one is starting, and yield a function.

    The function deletes the file; if it was not called, the end of the block does. If another process is
    starting already, its file is neither replaced nor deleted.
    """
    with ExitStack() as stack:
        if starting_since_ms(home) is None:
            fresh = home.starting_file.with_name(f".starting-{secrets.token_hex(4)}")
            files.write_whole(fresh, f"{os.getpid()} {now_ms}")
            # Locked before others can see it, and until it is deleted.
            fcntl.flock(stack.enter_context(fresh.open()), fcntl.LOCK_EX)
            fresh.replace(home.starting_file)
            stack.callback(home.starting_file.unlink, missing_ok=True)
        yield stack.close


def starting_since_ms(home: Home) -> int | None:
    """Return since when another process or this one has been starting Andy on this home.

    It is a time in epoch milliseconds; None if no process is starting.
    """
    try:
        with home.starting_file.open(encoding="utf-8") as file:
            _, since_ms = map(int, file.read().split())
            # The file outlives a process that was killed, and its id may be used again; the lock ends.
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return since_ms
    except (OSError, ValueError):
        pass
    return None
