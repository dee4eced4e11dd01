"""Runs `andy doctor` in a process of its own, one at a time, and returns its findings as they arrive."""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from asyncio.subprocess import DEVNULL, Process
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from orchestrator.base.clock import Clock

LIMIT_SECONDS = 120.0
"""Seconds after which a running doctor is killed."""


class BackgroundDoctor:
    """The last run of `andy doctor` that a page started, running or ended."""

    def __init__(self, home: Path, *, clock: Clock) -> None:
        self._home = home
        self._clock = clock
        self._lock = asyncio.Lock()
        self._process: Process | None = None
        self._output: IO[bytes] | None = None
        self.started_ms: int | None = None
        """The start of the last run, in epoch milliseconds; None before the first."""

    @property
    def is_running(self) -> bool:
        """Return whether the check-up is under way."""
        return self._process is not None and self._process.returncode is None

    @property
    def has_failed(self) -> bool:
        """Whether the last run ended before its last check: it was killed, or failed."""
        return self._process is not None and self._process.returncode not in (None, 0, 1)

    async def start(self) -> bool:
        """Start a run. Return False if one is running already."""
        async with self._lock:
            if self.is_running:
                return False
            # A file and no pipe: a pipe that nobody reads fills up and stops the process.
            output = await asyncio.to_thread(tempfile.TemporaryFile)
            command = (sys.executable, "-m", "orchestrator", "doctor", "--each", "--home", str(self._home))
            process = await asyncio.create_subprocess_exec(
                *command, stdin=DEVNULL, stdout=output, stderr=DEVNULL
            )
            if self._output is not None:
                self._output.close()
            self._process, self._output, self.started_ms = process, output, self._clock.now_ms()
            asyncio.get_running_loop().call_later(LIMIT_SECONDS, _kill, process)
            return True

    async def findings(self) -> list[dict[str, Any]]:
        """Return the findings of the last run so far, each as a line of `andy doctor --each` has it."""
        if self._output is None:
            return []
        # After the last line end there is nothing, or a line that is being written.
        *complete_lines, _ = (await asyncio.to_thread(_content, self._output)).split(b"\n")
        return [json.loads(line) for line in complete_lines]


def _content(file: IO[bytes]) -> bytes:
    """Return the whole content of an open file. Blocks."""
    file.seek(0)
    return file.read()


def _kill(process: Process) -> None:
    """Kill a process unless it has ended."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            process.kill()
