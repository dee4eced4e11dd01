"""What the host leaves for a container: turns in `input/`, answers in `replies/`.

Both are read-only in the container, so no link can be waiting here. All calls block for the time of a
small file: make them in a worker thread.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection
from pathlib import Path

from agent_runner.wire import files
from agent_runner.wire.mailbox import Reply
from agent_runner.wire.order import CLOSE_FILE, CloseOrder, TurnOrder
from orchestrator.models import Folder, RunId

REPLY_SECONDS = 3600.0
"""How long an answer stays. A tool waits for it ten seconds."""
MAX_REPLIES = 1_000


def write_turn(input_dir: Path, order: TurnOrder) -> str:
    """Hand a turn to a live container.

    Returns:
        The name of its file, by which `remove_turn` takes it back.

    Raises:
        OSError: it cannot be written; nothing was handed over.
    """
    name = files.unique_name()
    files.write_whole(input_dir / name, order.to_json())
    return name


def remove_turn(input_dir: Path, name: str) -> None:
    """Take a turn back, or clear one that was read. One that is gone is no error."""
    (input_dir / name).unlink(missing_ok=True)


def write_close(input_dir: Path, runs: Collection[str]) -> None:
    """Ask `runs` to end after their turn. Replaces what was asked before: name every run still meant."""
    order = CloseOrder(runs=tuple(sorted(runs)))
    files.write_whole(input_dir / CLOSE_FILE, order.to_json())


class Inputs:
    """The `input/` of every group, and which file there holds which turn."""

    def __init__(self, ipc: Path) -> None:
        self._ipc = ipc
        self._names: dict[int, str] = {}

    def write_turn(self, folder: Folder, order: TurnOrder) -> None:
        """See `write_turn`."""
        self._names[order.turn] = write_turn(self._of(folder), order)

    def write_close(self, folder: Folder, closing: Collection[RunId]) -> None:
        """See `write_close`."""
        write_close(self._of(folder), closing)

    def forget_turn(self, folder: Folder, turn_id: int) -> None:
        """Remove the file of a turn that was taken; one that never had a file is no error."""
        name = self._names.pop(turn_id, None)
        if name is not None:
            remove_turn(self._of(folder), name)

    def _of(self, folder: Folder) -> Path:
        return self._ipc / folder / "input"


def clear_stale(input_dir: Path, *, keep: Collection[str] = ()) -> tuple[str, ...]:
    """Remove all that earlier runs left in `input/`, but not the names in `keep`; a missing one is clear.

    Returns:
        The removed names, oldest first.
    """
    stale = tuple(sorted(set(_names(input_dir)) - set(keep)))
    for name in stale:
        (input_dir / name).unlink(missing_ok=True)
    return stale


def write_reply(replies_dir: Path, reply: Reply) -> None:
    """Answer one request, and drop replies that nobody waits for any more.

    Raises:
        OSError: it cannot be written; the container will say that the host did not answer.
    """
    files.write_whole(replies_dir / f"{reply.request_id}.json", reply.to_json())
    prune_replies(replies_dir)


def prune_replies(replies_dir: Path, *, now_seconds: float | None = None) -> None:
    """Keep the newest `MAX_REPLIES` of the last `REPLY_SECONDS` (`now_seconds`: epoch, for tests)."""
    now = time.time() if now_seconds is None else now_seconds
    with os.scandir(replies_dir) as found:
        newest_first = sorted(((entry.stat().st_mtime, entry.path) for entry in found), reverse=True)
    for place, (written, path) in enumerate(newest_first):
        if place >= MAX_REPLIES or now - written > REPLY_SECONDS:
            Path(path).unlink(missing_ok=True)


def _names(directory: Path) -> list[str]:
    try:
        return os.listdir(directory)  # noqa: PTH208 - names are all that is needed
    except FileNotFoundError:
        return []
