"""Turns after the first: files in `input/`, which the host writes and deletes."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from agent_runner.watch import DirectoryWatch
from agent_runner.wire.document import WireError
from agent_runner.wire.order import CLOSE_FILE, CloseOrder, TurnOrder

logger = logging.getLogger(__name__)

SWEEP_SECONDS = 1.0
"""Seconds after which the folder is looked at without a signal of a change."""


class TurnInbox:
    """Hands out the turns of one run, each once, in the order of their file names."""

    def __init__(self, directory: Path, run: str, *, handled: set[int]) -> None:
        """`directory` is the folder in which turns arrive as files, `run` the id of this run.

        `handled` are the numbers of turns that are skipped; those that are handed out are added to this set.
        """
        self._directory = directory
        self._run = run
        self._handled = handled
        self._read_names: set[str] = set()
        """The names of files that were read and that the host has not deleted yet."""
        self._logged_close_text: str | None = None
        """The last unreadable text of `CLOSE_FILE`, in which the host names runs to end, that was logged."""

    async def next(self) -> TurnOrder | None:
        """Wait for the next turn and return it; None means that the host wants this run to end."""
        watch = DirectoryWatch(self._directory)
        watch.start()
        try:
            async for _ in watch.checks(SWEEP_SECONDS):
                if turn := await asyncio.to_thread(self._take):
                    return turn
                # Looked for last: a turn that was written before the request to close is still answered.
                if await asyncio.to_thread(self._is_closed):
                    return None
        finally:
            watch.stop()
        raise AssertionError("checks never ends")

    def _take(self) -> TurnOrder | None:
        """Return the first turn of this run that was not handed out yet; None if there is none. Blocks."""
        for path in self._new_files():
            self._read_names.add(path.name)
            turn = self._parse(path)
            if turn and turn.run == self._run and turn.turn not in self._handled:
                self._handled.add(turn.turn)
                return turn
        return None

    def _new_files(self) -> list[Path]:
        """Return the files that were not read yet, oldest first."""
        try:
            names = sorted(path.name for path in self._directory.glob("*.json"))
        except OSError as error:
            logger.warning("input cannot be listed: %s", error.strerror)
            return []
        # The host deletes the files of ended turns; their names need not be remembered.
        self._read_names.intersection_update(names)
        return [self._directory / name for name in names if name not in self._read_names]

    def _parse(self, path: Path) -> TurnOrder | None:
        """Return the turn in a file; None if the file is gone, or is no turn, which is logged."""
        try:
            return TurnOrder.parse(path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, WireError) as error:
            logger.warning("input file %s is ignored: %s", path.name, error)
            return None

    def _is_closed(self) -> bool:
        """Return whether the host has asked this run to end, by a file. Blocks."""
        try:
            text = (self._directory / CLOSE_FILE).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return False
        try:
            return self._run in CloseOrder.parse(text).runs
        except WireError as error:
            if text != self._logged_close_text:  # logged once: the file stays, and is read again each time
                logger.warning("%s is ignored: %s", CLOSE_FILE, error)
            self._logged_close_text = text
            return False
