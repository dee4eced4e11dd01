"""A process that has imported what programs of one kind need, and forks itself for each relay that asks.

    python fork_template.py KIND SOCKET

It ends with its standard input. A fork is killed when its relay is gone, as if it had been that process.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import marshal
import os
import runpy
import select
import signal
import socket
import sys
import threading
import time
import types
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parents[2]
MAX_ORDER_BYTES = 200_000
RUNNER = (
    "agent_runner.agents.claude.agent",
    "agent_runner.agents.claude.cli_command",
    "agent_runner.ans.sdk_hooks",
    "agent_runner.ans.lazy_notices",
    "agent_runner.agents.offline",
    "agent_runner.runner",
)
BRIDGE = (
    "argparse",
    "filelock",
    "orchestrator.channels.whatsapp.neonize_session",
    "orchestrator.channels.whatsapp.pairing_session",
    "orchestrator.channels.whatsapp.spool",
    "tests.processes.whatsapp_bridge",
)


def _import_runner() -> None:
    os.environ["PYDANTIC_DISABLE_PLUGINS"] = "1"
    from agent_runner.agents.claude.sdk_import import import_sdk

    import_sdk()
    for name in RUNNER:
        importlib.import_module(name)
    importlib.import_module("agent_runner.agents.claude.sdk_client")


def _import_bridge() -> None:
    # Some library installs a package of this name, which would win over a directory without a file in it.
    package = sys.modules["tests"] = types.ModuleType("tests")
    package.__path__ = [str(ROOT / "tests")]
    for name in BRIDGE:
        importlib.import_module(name)
    from orchestrator.channels.whatsapp import library
    from tests.processes.whatsapp_bridge import remote_client

    library.load = lambda: remote_client


KINDS = {"runner": _import_runner, "bridge": _import_bridge}


class Template:
    """The parent of the forks."""

    def __init__(self, path: str) -> None:
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(f"{path}.new")
        self._listener.listen(64)
        Path(f"{path}.new").rename(path)  # whoever finds it can connect
        self._relays: dict[socket.socket, int] = {}
        """Relay → descriptor of the process that it stands for."""

    def serve(self) -> tuple[list[str], dict[str, str], str] | None:
        """Fork for each relay. Return its order in a fork; None as nobody may ask any more."""
        while True:
            processes = {process: relay for relay, process in self._relays.items()}
            for ready in select.select([0, self._listener, *self._relays, *processes], [], [])[0]:
                if ready == 0:
                    return None
                if ready is self._listener:
                    if (order := self._begin()) is not None:
                        return order
                elif ready in self._relays:
                    self._take(ready)
                elif ready in processes and self._relays.get(processes[ready]) == ready:
                    self._report_end(processes[ready])

    def _begin(self) -> tuple[list[str], dict[str, str], str] | None:
        relay, _ = self._listener.accept()
        order, streams, *_ = socket.recv_fds(relay, MAX_ORDER_BYTES, 3)
        if len(streams) != 3:
            relay.close()
            return None
        pid = os.fork()
        if pid:
            for stream in streams:
                os.close(stream)
            self._relays[relay] = os.pidfd_open(pid)
            return None
        for other, process in self._relays.items():
            other.close()
            os.close(process)
        self._listener.close()
        relay.close()
        os.setsid()
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        arguments, environment, directory = marshal.loads(order)
        return arguments, environment, directory

    def _take(self, relay: socket.socket) -> None:
        """Pass a signal on; a relay that is gone was killed."""
        process = self._relays[relay]
        try:
            number = int(relay.recv(16) or b"0")
        except ConnectionError:
            number = 0
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(process, number or signal.SIGKILL)
        if not number:
            self._report_end(relay)

    def _report_end(self, relay: socket.socket) -> None:
        process = self._relays.pop(relay)
        ended = os.waitid(os.P_PIDFD, process, os.WEXITED)
        assert ended is not None
        code = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
        with suppress(OSError):
            relay.send(b"%d" % code)
        relay.close()
        os.close(process)


def _run(arguments: list[str]) -> int:
    """Run a module or a text as Python does. Return the exit code that the interpreter would give."""
    kind, program, *rest = arguments
    try:
        if kind == "-m":
            sys.argv = [program, *rest]
            runpy.run_module(program, run_name="__main__", alter_sys=True)
        else:
            sys.argv = ["-c", *rest]
            names: dict[str, Any] = {"__name__": "__main__"}
            exec(compile(program, "<string>", "exec"), names)
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001  # reported as an interpreter reports what ends it
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


def _leave(code: int) -> NoReturn:
    """End as an interpreter does, but tidy up no memory."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def main() -> None:
    kind, path = sys.argv[1:]
    sys.path[0] = str(ROOT)
    KINDS[kind]()
    gc.collect()
    gc.freeze()
    order = Template(path).serve()
    if order is None:
        return
    arguments, environment, directory = order
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    os.chdir(directory)
    _leave(_run(arguments))


if __name__ == "__main__":
    main()
