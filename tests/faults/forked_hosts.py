"""Hosts that are at work at once: all that one imports is here already, and each is a fork of this.

    ANDY_HOME=… python forked_hosts.py up …

Each line on stdin is a point of `crashing_host`: a host begins that dies there (0: nowhere). Its pid is
told on stdout, and its exit code once it has ended; then the next may begin.
"""

from __future__ import annotations

import gc
import os
import sys

import crashing_host

from orchestrator import app
from orchestrator.base import logging
from orchestrator.cli.main import main as andy
from orchestrator.web import chat_service

PRELOADED = (app, logging, chat_service)
"""What `andy up` imports only when it is asked for."""


def become_host(point: int) -> None:
    """Be `andy up` with stdin and stdout of its own; does not return."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    crashing_host.DIE_AT = point
    andy()


def main() -> None:
    gc.freeze()
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            become_host(int(line))
        print(pid, flush=True)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
