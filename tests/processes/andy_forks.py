"""Starts `andy …` as a fork of a process that has imported all of it: a tenth of the work of a new one.

Each test process has one such parent, started when it is first needed. A fork has its own arguments,
environment, time zone, directory and standard streams, so it differs from a new process only in what was
imported before it began. Tests that are about the start itself start a new process.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from tests.processes.forked_host import ForkedHost
from tests.support.leftovers import lasting

PROGRAM = Path(__file__).with_name("fork_server.py")


class AndyForks:
    """The parent, seen from the test process."""

    def __init__(self) -> None:
        self._orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._parent = subprocess.Popen(
                [sys.executable, str(PROGRAM), str(theirs.fileno())],
                env={**os.environ, "PYTHONPATH": str(PROGRAM.parents[2])},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        atexit.register(self.close)

    def begin(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        *,
        stdin: int,
        stdout: int,
        stderr: int,
    ) -> ForkedHost:
        """Begin `andy` with these arguments and descriptors."""
        order = {"arguments": list(arguments), "environment": dict(environment), "directory": str(Path.cwd())}
        reading, writing = os.pipe()
        try:
            socket.send_fds(self._orders, [json.dumps(order).encode()], [stdin, stdout, stderr, writing])
        finally:
            os.close(writing)
        told: IO[bytes] = os.fdopen(reading, "rb", buffering=0)  # what waits in the pipe is seen to wait
        return ForkedHost(int(told.readline()), told, has_own_pipe=True)

    def close(self) -> None:
        """End the parent; what it began lives on."""
        self._orders.close()
        self._parent.wait()


@functools.cache
def andy_forks() -> AndyForks:
    """Return the parent of this process's forks, started if it is not there yet."""
    with lasting():
        return AndyForks()
