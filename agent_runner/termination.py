"""End the process soon after SIGTERM, whatever the agent does."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
import time

TERMINATED = 128 + signal.SIGTERM
"""The exit code."""
HARD_STOP_SECONDS = 1.7
"""Seconds after SIGTERM at which the process ends, whatever it does."""


def on_sigterm() -> asyncio.Event:
    """Return an event that SIGTERM sets; at most `HARD_STOP_SECONDS` later the process ends.

    Call it once, in the main thread, with a running loop. A separate thread waits for the signal: a Python
    handler would wait for the main thread, which a callback of the agent may block.
    """
    terminated = asyncio.Event()
    loop = asyncio.get_running_loop()
    reader, writer = socket.socketpair()
    writer.settimeout(0)
    # Without a handler in Python, the signal would end the process at once and nothing would be written to
    # the descriptor.
    signal.signal(signal.SIGTERM, lambda *_: None)
    signal.set_wakeup_fd(writer.detach(), warn_on_full_buffer=False)

    def listen() -> None:
        """Wait for SIGTERM, set the event, and end the process if it still lives after the limit."""
        while signal.SIGTERM not in reader.recv(64):
            pass
        if not loop.is_closed():
            loop.call_soon_threadsafe(terminated.set)
        time.sleep(HARD_STOP_SECONDS)
        # `sys.exit` would only end this thread.
        os._exit(TERMINATED)

    threading.Thread(target=listen, name="sigterm", daemon=True).start()
    return terminated
