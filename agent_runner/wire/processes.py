"""End a child process of asyncio. The host and the agent's container both start such processes."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress

CLOSE_SECONDS = 5.0
"""Most seconds that a killed process is waited for: another one that it started may hold its pipes open."""


async def kill_and_wait(process: asyncio.subprocess.Process, *, with_group: bool = False) -> None:
    """Kill a process unless it has ended, discard what it still printed, and wait until it is gone.

    With `with_group`, every process of its group is killed too, even if the process itself has ended; it must
    have been started with `start_new_session=True`. Nobody else may read its stdout or stderr meanwhile.
    """
    with suppress(ProcessLookupError):
        if with_group:
            os.killpg(process.pid, signal.SIGKILL)
        elif process.returncode is None:
            process.kill()
    if process.stdin is not None:
        process.stdin.close()
    # Up to Python 3.12, `wait` returns only when every pipe has reached its end (cpython#119710). asyncio
    # stops reading a pipe whose bytes nobody takes, so the caller would wait for ever.
    pipes = [pipe for pipe in (process.stdout, process.stderr) if pipe is not None]
    with suppress(TimeoutError):
        async with asyncio.timeout(CLOSE_SECONDS):
            await asyncio.gather(process.wait(), *(discard(pipe) for pipe in pipes))


async def discard(pipe: asyncio.StreamReader) -> None:
    """Read a pipe to its end and drop the bytes."""
    while await pipe.read(65_536):
        pass
