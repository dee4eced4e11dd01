"""End a child process of asyncio. The host and the agent's container both start such processes."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress

CLOSE_SECONDS = 5.0
"""Most seconds that a killed process is waited for: it ends only when the kernel is done with its disk."""


async def kill_and_wait(process: asyncio.subprocess.Process, *, with_group: bool = False) -> None:
    """Kill a process unless it has ended, drop its unread output, and wait up to `CLOSE_SECONDS` for its end.

    With `with_group`, every process of its group is killed too, even if the process itself has ended; it must
    have been started with `start_new_session=True`. A task that still reads its stdout or stderr gets the end
    of the stream. The process is killed even if this is cancelled at once.
    """
    with suppress(ProcessLookupError):
        if with_group:
            os.killpg(process.pid, signal.SIGKILL)
        elif process.returncode is None:
            # Not `process.kill`: if the process has just ended, that takes its exit code, and asyncio, which
            # finds none, reports 255.
            os.kill(process.pid, signal.SIGKILL)
    # Up to Python 3.12, `wait` returns only when every pipe has reached its end (cpython#119710). That never
    # comes while bytes wait in a pipe that nobody reads, or another process holds the pipe open.
    close_pipes(process)
    with suppress(TimeoutError):
        async with asyncio.timeout(CLOSE_SECONDS):
            await process.wait()


def close_pipes(process: asyncio.subprocess.Process) -> None:
    """Close this side of a process's stdin, stdout and stderr, and drop the data that is still in them."""
    transport = process._transport  # type: ignore[attr-defined]  # noqa: SLF001 - `Process` hides its pipes
    for descriptor in range(3):
        pipe = transport.get_pipe_transport(descriptor)
        if isinstance(pipe, asyncio.WriteTransport):
            # `close` would wait until all is written. `abort` fails on a pipe that is closed already.
            if pipe.get_write_buffer_size() or not pipe.is_closing():
                pipe.abort()
        elif pipe is not None:
            pipe.close()
