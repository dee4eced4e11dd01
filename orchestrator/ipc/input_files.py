"""Write the files that a container reads: turns and close orders in `input/`, replies in `replies/`.

The container cannot write to either folder, so no file there is a link that it has planted. All calls block
for the time of a small file: make them in a worker thread.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

import structlog

from agent_runner.wire import files
from agent_runner.wire.document import WireError
from agent_runner.wire.mailbox import Reply
from agent_runner.wire.order import CLOSE_FILE, CloseOrder, TurnOrder
from orchestrator.domain.errors import MailboxError
from orchestrator.domain.values import Folder, RunId
from orchestrator.ipc import entries

log = structlog.get_logger(__name__)

REPLY_SECONDS = 3600.0
"""Seconds that a reply stays. A tool waits ten seconds for it."""
MAX_REPLIES = 1_000
"""Replies of a group that stay, the newest ones."""
MAX_ORDER_BYTES = 64 * 1024 * 1024
"""More bytes than any order has: a prompt alone may have 1.2 MB, and the same words are in its requests."""
MAX_LEFT = 10_000
"""Files of `input/` that one call of `clear_stale` looks at; the others follow the next time."""


def write_turn(input_dir: Path, order: TurnOrder) -> str:
    """Hand a turn to a live container, by a file with its order in the container's input folder.

    Returns:
        The name of the file, by which `remove_turn` removes it.

    Raises:
        OSError: it cannot be written; nothing was handed over.
    """
    name = files.unique_name()
    files.write_whole(input_dir / name, order.to_json())
    return name


def remove_turn(input_dir: Path, name: str) -> None:
    """Remove the file of a turn, so that it is not read, or because it was. A missing file is no error."""
    (input_dir / name).unlink(missing_ok=True)


def write_close(input_dir: Path, runs: Collection[str]) -> None:
    """Write the file by which the containers of `runs` are asked to end after their present turn.

    The file replaces an earlier one, so `runs` must name every run that still has to end.
    """
    # The runs are named, because a group's containers share the folder: an old file must close no other run.
    order = CloseOrder(runs=tuple(sorted(runs)))
    files.write_whole(input_dir / CLOSE_FILE, order.to_json())


class InputFiles:
    """Writes and removes files in the `input/` of every group, and knows the file of each turn."""

    def __init__(self, ipc: Path) -> None:
        """`ipc` contains a folder for each group, with its `input/`."""
        self._ipc = ipc
        self._names: dict[int, str] = {}
        """The name of each turn's file, by the turn's id."""
        self._writing = threading.Lock()  # no file is removed while it is being written

    def write_turn(self, folder: Folder, order: TurnOrder) -> None:
        """Write the file that hands a turn to a group's container, and remove an earlier file of the turn.

        Raises `OSError`.
        """
        with self._writing:
            earlier_name = self._names.get(order.turn)
            self._names[order.turn] = write_turn(self._input_of(folder), order)
        # The new file is written first: a crash in between leaves two files of the turn, but never none.
        if earlier_name is not None:
            remove_turn(self._input_of(folder), earlier_name)

    def write_close(self, folder: Folder, closing: Collection[RunId]) -> None:
        """Write the file by which these runs of a group, and no others, are asked to end.

        Raises `OSError`.
        """
        with self._writing:
            write_close(self._input_of(folder), closing)

    def remove_turn(self, folder: Folder, turn_id: int) -> None:
        """Remove the file of a turn that its container has read; a turn without a file is no error.

        A failure is only logged: the container takes each turn once, and the file goes with its run.
        """
        name = self._names.pop(turn_id, None)
        if name is None:
            return
        try:
            remove_turn(self._input_of(folder), name)
        except OSError as error:
            log.warning("input.not_cleared", group=folder, reason=str(error))

    def remove_run_files(self, folder: Folder, run_id: RunId) -> None:
        """Remove the input files that are for this ended run and no other, and that it has not read."""
        self._clear(folder, lambda run: run == run_id)

    def remove_files_of_others(self, living: Collection[RunId]) -> None:
        """Remove, in every group, the input files that are for none of the runs in `living`.

        Called when a host starts. The names of the remaining turns' files are remembered, so that
        `remove_turn` finds them.
        """
        for directory in self._ipc.glob("*/input"):
            self._clear(Folder(directory.parent.name), lambda run: run not in living)

    def _clear(self, folder: Folder, is_over: Callable[[str], bool]) -> None:
        """Remove the input files of a group whose runs are over, and remember the names of the others.

        `is_over` returns whether the run with an id is over. A failure is only logged.
        """
        try:
            with self._writing:
                remaining = clear_stale(self._input_of(folder), is_over)
        # The files of ended runs may stay until the next call: each names its run, so no live run reads them.
        except (MailboxError, OSError) as error:
            log.warning("input.not_cleared", group=folder, reason=str(error))
            return
        self._names |= {file.turn: file.name for file in remaining if file.turn is not None}

    def _input_of(self, folder: Folder) -> Path:
        """Return the path of a group's `input/`."""
        return self._ipc / folder / "input"


@dataclass(frozen=True, slots=True, kw_only=True)
class RemainingInput:
    """A file in `input/` that its runs have not removed."""

    name: str
    runs: tuple[str, ...] = ()
    """The runs it is for; none, if it cannot be read."""
    turn: int | None = None
    """The turn in it; None for a request to end, and for an unreadable file."""


def clear_stale(input_dir: Path, is_over: Callable[[str], bool]) -> list[RemainingInput]:
    """Remove files whose runs are all over, and unreadable ones; a missing directory counts as empty.

    `is_over` returns whether the run with an id is over. Call this while nothing is written there, because
    half a file counts as unreadable. At most `MAX_LEFT` files are looked at.

    Returns:
        The files with a run that is not over, oldest first.

    Raises:
        MailboxError: `input_dir` is not the directory that the host made.
        OSError: it cannot be read.
    """
    remaining: list[RemainingInput] = []
    with entries.opened(input_dir) as directory:
        if directory is None:
            return remaining
        for name in entries.survey(directory, MAX_LEFT).names:
            file = _read_input(directory, name)
            # A file that cannot be read names no run. `all` is true for none, so it is removed as well.
            if not all(map(is_over, file.runs)):
                remaining.append(file)
            elif entries.remove(directory, name):
                log.info("input.cleared", file=name, runs=file.runs, turn=file.turn)
    return remaining


def _read_input(directory_fd: int, name: str) -> RemainingInput:
    """Return the runs that a file in `input/` is for, and its turn; neither if it cannot be read.

    A file whose name begins with a dot was never completed, and counts as unreadable.
    """
    content = entries.read(directory_fd, name, frozenset({os.geteuid()}), limit=MAX_ORDER_BYTES)
    if not isinstance(content, entries.EntryContent) or name.startswith("."):
        return RemainingInput(name=name)
    try:
        if name == CLOSE_FILE:
            return RemainingInput(name=name, runs=CloseOrder.parse(content.body).runs)
        order = TurnOrder.parse(content.body)
    except WireError:
        return RemainingInput(name=name)
    return RemainingInput(name=name, runs=(order.run,), turn=order.turn)


def write_reply(replies_dir: Path, reply: Reply) -> None:
    """Write the reply to a request, then delete old replies, as `prune_replies` does.

    Raises:
        OSError: it cannot be written; the container will say that the host did not answer.
    """
    files.write_whole(replies_dir / f"{reply.request_id}.json", reply.to_json())
    prune_replies(replies_dir)


def prune_replies(replies_dir: Path, *, now_seconds: float | None = None) -> None:
    """Delete replies beyond the newest `MAX_REPLIES`, and those older than `REPLY_SECONDS`.

    `now_seconds` is the time as seconds since the epoch; None for the present time.
    """
    now = time.time() if now_seconds is None else now_seconds
    # The number is limited, too, because a container with endless requests must not fill the disk with
    # replies.
    with os.scandir(replies_dir) as replies:
        newest_first = sorted(((entry.stat().st_mtime, entry.path) for entry in replies), reverse=True)
    for index, (written, path) in enumerate(newest_first):
        if index >= MAX_REPLIES or now - written > REPLY_SECONDS:
            Path(path).unlink(missing_ok=True)
