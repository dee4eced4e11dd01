"""Start the bridge's process, exchange lines with it, and end it. This is the host's side of the bridge."""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

import structlog

from agent_runner.wire.processes import kill_and_wait
from orchestrator.channels.whatsapp import protocol
from orchestrator.channels.whatsapp.protocol import BridgeResponse, FromBridge, FromHost, StateReport
from orchestrator.domain.errors import ChannelDown, ChannelRefused

log = structlog.get_logger(__name__)

STOP_SECONDS = 8.0
"""Seconds that the process has to exit after its stdin was closed, before it is killed."""
NOT_CONNECTED = "WhatsApp is not connected."
INHERITED_VARIABLES = (
    "PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV",
    "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SSL_CERT_FILE", "SSL_CERT_DIR",
    "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy", "SYSTEMROOT",
)  # fmt: skip
"""Names of the environment variables that the bridge inherits: others may contain keys of other services."""
_PROGRAM = (sys.executable, "-m", "orchestrator.channels.whatsapp.bridge")


def command(store: Path, *options: str) -> tuple[str, ...]:
    """Return the command line that starts the bridge, the process that speaks WhatsApp.

    `store` is the path of the login's database, and `options` are further words of the command line. The
    bridge's own database is beside that of the login: `whatsapp-bridge.db` beside `whatsapp.db`.
    """
    spool = store.with_name(f"{store.stem}-bridge.db")
    return (*_PROGRAM, "--store", str(store), "--spool", str(spool), *options)


def check_command() -> tuple[str, ...]:
    """Return the command line that starts the bridge only to check that the WhatsApp library loads."""
    return (*_PROGRAM, "--check")


def environment() -> dict[str, str]:
    """Return the variables of this process's environment that the bridge inherits."""
    return {name: os.environ[name] for name in INHERITED_VARIABLES if name in os.environ}


async def _finish_despite_cancellation(ending: asyncio.Task[None]) -> None:
    """Wait until `ending` is done, also if the caller is cancelled, and raise the cancellation only then.

    `ending` must end within a bounded time.
    """
    # The caller can be cancelled twice: once because the login ended, and again because the host stops at the
    # same time. If the second cancellation stopped the cleanup, the bridge's process would outlive the host.
    cancelled: asyncio.CancelledError | None = None
    while not ending.done():
        try:
            await asyncio.shield(ending)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    ending.result()


class BridgeProcess:
    """Runs one process of the bridge. Create a new object for each process."""

    def __init__(self, command: Sequence[str], on_report: Callable[[FromBridge], None]) -> None:
        """Set up the process of the bridge; `run` starts it.

        `command` is its command line. `on_report` is called with each report of the bridge that is not the
        response to a request; it must not block.
        """
        self._command = command
        self._on_report = on_report
        self._process: asyncio.subprocess.Process | None = None
        self._numbers = itertools.count(1)
        self._pending: dict[int, asyncio.Future[BridgeResponse]] = {}
        self.stderr_tail: deque[str] = deque(maxlen=20)
        """The last 20 lines of the process's stderr."""
        self._crash_line = ""
        """The first line of stderr about a crash; empty without one. A long stack follows it."""

    async def run(self) -> int:
        """Start the process, handle the lines that it prints until it ends, and return its exit code.

        When this is cancelled, the process is asked to exit and killed if it does not.
        """
        self._process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=protocol.MAX_LINE_BYTES,
            start_new_session=True,  # so that Ctrl-C in the terminal reaches the host alone
            env=environment(),
        )
        errors = asyncio.create_task(self._read_errors(self._process), name="whatsapp:stderr")
        try:
            await self._read(self._process)
        finally:
            ending = asyncio.create_task(self._end(self._process, errors), name="whatsapp:end")
            await _finish_despite_cancellation(ending)
        return self._process.returncode or 0

    @property
    def is_alive(self) -> bool:
        """Whether the process accepts requests: it was started and its stdin is open."""
        stdin = self._process.stdin if self._process is not None else None
        return stdin is not None and not stdin.is_closing()

    def exit_state(self) -> StateReport:
        """Return the state of a process that ended without reporting why.

        The reason in it is the exit code and a line of stderr. A panic in the library's Go code ends the
        whole process and is visible on stderr alone.
        """
        code = self._process.returncode if self._process is not None else None
        last_line = self.stderr_tail[-1] if self.stderr_tail else "it said nothing"
        # The first line of a crash names its cause; otherwise the last line of all is the best clue.
        clue = self._crash_line or last_line
        return StateReport(state="disconnected", reason=f"its process ended with code {code}: {clue}"[:300])

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        """Route each line of the process's stdout until that ends; a bad line is logged and skipped."""
        assert process.stdout is not None
        while True:
            try:
                if not (line := await process.stdout.readline()):
                    return
                self._route(protocol.from_bridge(line))
            except (protocol.BadBridgeLine, ValueError) as error:  # ValueError: readline met an overlong line
                log.warning("whatsapp.bad_line", reason=str(error)[:200])

    def _route(self, report: FromBridge) -> None:
        """Hand a response to the `request` that waits for it, and any other report to `on_report`."""
        if not isinstance(report, BridgeResponse):
            self._on_report(report)
            return
        pending = self._pending.pop(report.id, None)
        if pending is not None and not pending.done():
            pending.set_result(report)

    async def _read_errors(self, process: asyncio.subprocess.Process) -> None:
        """Store and log the lines of the process's stderr until that ends."""
        assert process.stderr is not None
        while True:
            try:
                if not (line := await process.stderr.readline()):
                    return
            except ValueError:  # readline met an overlong line and has dropped its beginning
                continue
            text = line.decode(errors="replace").strip()[:500]
            self.stderr_tail.append(text)
            if not self._crash_line and text.startswith(("panic:", "fatal error:", "SIGSEGV")):
                self._crash_line = text
            log.debug("whatsapp.bridge", stderr=text)

    async def _end(self, process: asyncio.subprocess.Process, stderr_reader: asyncio.Task[None]) -> None:
        """Fail the open requests, and ask the process to exit by closing its stdin; kill it if it does not.

        `stderr_reader` is the task that reads the process's stderr; it is cancelled last.
        """
        for pending in self._pending.values():
            if not pending.done():
                pending.set_exception(ChannelDown(NOT_CONNECTED))
        self._pending.clear()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        try:
            async with asyncio.timeout(STOP_SECONDS):
                # With unread bytes in its stdout, the process would neither end nor be seen to have ended.
                await asyncio.gather(process.wait(), _discard(process.stdout), stderr_reader)
        except TimeoutError:
            pass
        finally:
            await kill_and_wait(process)
        stderr_reader.cancel()
        await asyncio.gather(stderr_reader, return_exceptions=True)

    async def request(self, make: Callable[[int], FromHost]) -> BridgeResponse:
        """Send a request to the bridge and wait for its response.

        `make` builds the request from the number that it is passed, by which the response is recognised.

        Raises:
            ChannelDown: the request cannot be carried out now, but may succeed later.
            ChannelRefused: the request can never be carried out.
        """
        number = next(self._numbers)
        pending: asyncio.Future[BridgeResponse] = asyncio.get_running_loop().create_future()
        self._pending[number] = pending
        try:
            await self.notify(make(number))
            response = await pending
        finally:
            self._pending.pop(number, None)
        if response.ok:
            return response
        error_class = ChannelRefused if response.code == "refused" else ChannelDown
        raise error_class(f"WhatsApp: {response.text}")

    async def notify(self, message: FromHost) -> None:
        """Send a message to the bridge without waiting for a response.

        Raises `ChannelDown` when the process does not run, or takes no more messages.
        """
        if not self.is_alive:
            raise ChannelDown(NOT_CONNECTED)
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(protocol.line_of(message))
            await self._process.stdin.drain()
        except ConnectionError as error:
            raise ChannelDown(NOT_CONNECTED) from error


async def _discard(pipe: asyncio.StreamReader) -> None:
    """Read a pipe to its end and drop the bytes."""
    while await pipe.read(65_536):
        pass
