"""Command lines that start the runner or the WhatsApp bridge as a fork of a process that has imported it all.

Such a program imports for half a second; a fork has nothing to import. Each test process has one template a
kind, started when it is first needed. Tests that are about the start itself, or look at the children of the
process, take the plain command.
"""

from __future__ import annotations

import atexit
import functools
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.leftovers import lasting
from tests.support.until import wait_until

TEMPLATE = Path(__file__).with_name("fork_template.py")
RELAY = Path(__file__).with_name("fork_relay.py")


class _Template:
    def __init__(self, kind: str) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="andy-forks-")
        self._path = Path(self._folder.name, "s")
        self._process = subprocess.Popen(
            [sys.executable, str(TEMPLATE), kind, str(self._path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        atexit.register(self._close)
        wait_until(self._listens, what=f"the template of {kind} listens")
        self.command = (sys.executable, "-I", "-S", str(RELAY), str(self._path))

    def _listens(self) -> bool:
        assert self._process.poll() is None, "the template has ended"
        return self._path.exists()

    def _close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        self._folder.cleanup()


@functools.cache
def _template(kind: str) -> _Template:
    with lasting():
        return _Template(kind)


def forked(kind: str, *program: str) -> tuple[str, ...]:
    """Return the command line of a program, `-m MODULE` or `-c CODE`, that is forked from a template."""
    if not hasattr(os, "pidfd_open"):
        return sys.executable, *program
    return *_template(kind).command, *program


def forked_bridge() -> tuple[str, ...]:
    """Return the command line of the bridge with a client that talks to the phone of a test."""
    return forked("bridge", "-m", "orchestrator.channels.whatsapp.bridge")
