"""Read logs: the last lines of one, and lines as they are added. This works whether or not the host runs."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from orchestrator.containers.logs import files
from orchestrator.containers.logs.files import RunFile
from orchestrator.domain.errors import BadRequest

READ_SECONDS = 0.25
"""Seconds between two reads of a log that is followed."""
CHUNK_BYTES = 64 * 1024


class NoLog(BadRequest):
    """There is no such log."""

    code = "no_log"
    http_status = 404


def run_log(root: Path, folder: str, run: str | None) -> RunFile:
    """Return the newest log of a group. With `run`, only runs whose id begins with that text count.

    Raises:
        NoLog: there is none.
    """
    logs = files.of_group(root, folder)
    if run is not None:
        logs = [log for log in logs if log.run.startswith(run)]
    if not logs:
        which = f"run '{run}' of '{folder}'" if run else f"'{folder}'"
        raise NoLog(
            f"There is no log of {which}: nothing ran there, or that is no group (see 'andy groups list'). "
            "Logs are kept for 14 days, at most 50 a group."
        )
    return logs[-1]


def last_lines(path: Path, count: int) -> tuple[list[str], int]:
    """Return the last `count` complete lines of a file, and the position in bytes at which they end.

    Raises:
        NoLog: the file does not exist.
    """
    try:
        with path.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            content = _last_bytes(file, end, count)
    except FileNotFoundError as error:
        raise NoLog(f"There is no log at {path} yet.") from error
    whole = content[: content.rfind(b"\n") + 1]
    lines = whole.decode(errors="replace").split("\n")[:-1]
    incomplete_bytes = len(content) - len(whole)
    # `lines[-0:]` would be all lines.
    return lines[-count:] if count else [], end - incomplete_bytes


def _last_bytes(file: BinaryIO, end: int, count: int) -> bytes:
    """Return the last bytes of a file, enough to contain more than `count` line breaks if the file has them.

    `end` is the size of the file in bytes.
    """
    content = b""
    start = end
    while start > 0 and content.count(b"\n") <= count:
        size = min(CHUNK_BYTES, start)
        start -= size
        file.seek(start)
        content = file.read(size) + content
    return content


class Follower:
    """A reader of the lines that are added to a file.

    If the file is replaced, it goes on with the new one.
    """

    def __init__(self, path: Path, *, start: int = 0) -> None:
        """`start` is the position in bytes from which lines are read."""
        self.path = path
        self._position = start
        self._inode: int | None = None
        """The file that was read last: another number at the same path is a new log."""

    def more(self) -> list[str]:
        """Return the complete lines that were added since the last call; none while the file is missing."""
        try:
            with self.path.open("rb") as file:
                self._restart_if_replaced(os.fstat(file.fileno()))
                file.seek(self._position)
                content = file.read()
        except FileNotFoundError:
            return []
        whole = content[: content.rfind(b"\n") + 1]
        self._position += len(whole)
        return whole.decode(errors="replace").split("\n")[:-1]

    def _restart_if_replaced(self, status: os.stat_result) -> None:
        """Read from the start again if `status` is of another file than before, or of a shorter one."""
        if self._inode not in (None, status.st_ino) or status.st_size < self._position:
            self._position = 0
        self._inode = status.st_ino


def follow_group(
    root: Path, folder: str, *, shown: RunFile | None, start: int, wait: Callable[[], None]
) -> Iterator[str]:
    """Yield each line that is added to a group's logs, without end, also to the logs of later runs.

    Where the run changes from one line to the next, a heading with its id is yielded. `shown` is the log
    whose lines up to byte `start` were shown already, or None. Lines that other logs contain at the call are
    left out. `wait` is called between two reads of all logs.
    """
    followers = {log.path: Follower(log.path, start=_size(log.path)) for log in files.of_group(root, folder)}
    if shown is not None:
        followers[shown.path] = Follower(shown.path, start=start)
    last_path = shown.path if shown else None
    while True:
        for log in files.of_group(root, folder):
            for line in followers.setdefault(log.path, Follower(log.path)).more():
                if log.path != last_path:
                    yield f"──── run {log.run}"
                    last_path = log.path
                yield line
        wait()


def follow_file(path: Path, *, start: int, wait: Callable[[], None]) -> Iterator[str]:
    """Yield each line of a file from the byte `start` on, and then those that are added, without end.

    The file may be replaced by a new one meanwhile (rotated). `wait` is called between two reads.
    """
    follower = Follower(path, start=start)
    while True:
        yield from follower.more()
        wait()


def pause() -> None:
    """Sleep for the time between two reads of a log that is followed."""
    time.sleep(READ_SECONDS)


def _size(path: Path) -> int:
    """Return the size of a file in bytes; 0 if it does not exist."""
    return path.stat().st_size if path.exists() else 0
