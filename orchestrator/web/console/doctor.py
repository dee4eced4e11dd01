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
    """The last run of `andy doctor` that a page has started; it checks this installation."""

    def __init__(self, home: Path, *, clock: Clock) -> None:
        """`home` is the directory of the installation to check."""
        self._home = home
        self._clock = clock
        self._lock = asyncio.Lock()
        self._process: Process | None = None
        """The process of the last run, also after its end; None before the first."""
        self._output: IO[bytes] | None = None
        self.started_ms: int | None = None
        """The start of the last run, in epoch milliseconds; None before the first."""

    @property
    def is_running(self) -> bool:
        """Whether the last run is still running."""
        return self._process is not None and self._process.returncode is None

    @property
    def has_failed(self) -> bool:
        """Whether the last run ended before its last check: it was killed, or failed."""
        # 0: all is well. 1: a check has found a fault. None: it is running.
        return self._process is not None and self._process.returncode not in (None, 0, 1)

    async def start(self) -> bool:
        """Start a run, which is killed after `LIMIT_SECONDS`. Return False if one is running already."""
        async with self._lock:
            if self.is_running:
                return False
            # The output goes to a file: a pipe that nobody reads would fill up and stop the process.
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
        """Return the findings of the last run so far; none before the first run.

        Each is a JSON object, as `andy doctor --each` prints it.
        """
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
