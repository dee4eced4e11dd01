"""A host that was forked where all it needs is imported already: a tenth of the work of a new process."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

PROGRAM = Path(__file__).parents[1] / "faults" / "forked_hosts.py"


class ForkedHost:
    """One host, with what is used of a `Popen`. Its parent tells how it ended."""

    def __init__(self, pid: int, told: IO[bytes], *, has_own_pipe: bool = False) -> None:
        self.pid = pid
        self._told = told
        self._has_own_pipe = has_own_pipe
        self._code: int | None = None

    def poll(self) -> int | None:
        return self._hear(0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._hear(timeout)
        assert code is not None, f"the host {self.pid} has not ended in {timeout} s"
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it may end between the look and the signal
                os.kill(self.pid, number)

    def _hear(self, seconds: float | None) -> int | None:
        if self._code is None and select.select([self._told], [], [], seconds)[0]:
            self._code = int(self._told.readline())
            if self._has_own_pipe:
                self._told.close()
        return self._code


class HostForks:
    """Where hosts are forked, one at a time: all with the same command line and environment."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: IO[bytes]) -> None:
        self._parent = subprocess.Popen(
            [sys.executable, str(PROGRAM), *command],
            bufsize=0,  # what waits in the pipe is seen to wait
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
        )

    def begin(self, point: int) -> ForkedHost:
        """Begin a host that dies at `point`; 0 for one that lives on."""
        assert self._parent.stdin is not None
        assert self._parent.stdout is not None
        self._parent.stdin.write(b"%d\n" % point)
        return ForkedHost(int(self._parent.stdout.readline()), self._parent.stdout)

    def close(self) -> None:
        """End the parent; no host may live any more."""
        self._parent.communicate()
