"""A process that has imported all of `andy`, and begins `andy …` as a fork of itself for each order it gets.

    PYTHONPATH=… python fork_server.py DESCRIPTOR

An order comes over a socket, with four descriptors: the standard streams, and where the pid is told, then
the exit code.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import pkgutil
import select
import socket
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NoReturn

import orchestrator
from orchestrator import __main__

MAX_ORDER_BYTES = 200_000
FOREIGN = ("orchestrator.channels.whatsapp.", "orchestrator.channels.matrix.")
"""Messengers with libraries of their own, one of which starts threads that no fork survives: whoever needs
them imports them."""
LIBRARIES = ("httpcore", "tzlocal")
"""What `andy` imports only once it is needed."""


def _import_all() -> None:
    for module in pkgutil.walk_packages(orchestrator.__path__, "orchestrator."):
        if not module.name.startswith(FOREIGN):
            importlib.import_module(module.name)
    for name in LIBRARIES:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()


def _serve(orders: socket.socket) -> None:
    """Begin a process for each order. Returns in that process, and where nobody orders any more."""
    ends: dict[int, int] = {}
    """Process descriptor → where its exit code is told."""
    while True:
        for ready in select.select([orders, *ends], [], [])[0]:
            if isinstance(ready, int):
                _tell_end(ready, ends.pop(ready))
                continue
            order, descriptors, *_ = socket.recv_fds(orders, MAX_ORDER_BYTES, 4)
            if not order:
                sys.exit()
            pid = os.fork()
            if pid == 0:
                for inherited in (orders.detach(), *ends, *ends.values()):
                    os.close(inherited)
                _become(json.loads(order), descriptors)
                return
            *streams, told = descriptors
            for stream in streams:
                os.close(stream)
            ends[os.pidfd_open(pid)] = told
            os.write(told, b"%d\n" % pid)


def _tell_end(process: int, told: int) -> None:
    ended = os.waitid(os.P_PIDFD, process, os.WEXITED)
    assert ended is not None
    code = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
    with suppress(BrokenPipeError):  # nobody waits for it
        os.write(told, b"%d\n" % code)
    os.close(told)
    os.close(process)


def _become(order: Mapping[str, object], descriptors: Sequence[int]) -> None:
    *streams, told = descriptors
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.close(told)
    arguments, environment = order["arguments"], order["environment"]
    assert isinstance(arguments, list)
    assert isinstance(environment, dict)
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    os.chdir(str(order["directory"]))
    sys.argv = [str(__main__.__file__), *arguments]


def _run() -> int:
    """Run the command line. Returns the exit code that the interpreter would give."""
    try:
        __main__.main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001  # told as an interpreter tells what ends it
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


def _leave(code: int) -> NoReturn:
    """End as an interpreter does, but tidy up no memory: to copy it takes longer than most commands do."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    _import_all()
    _serve(socket.socket(fileno=int(sys.argv[1])))
    _leave(_run())
