"""One life of the bridge's process, as the host holds it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import sys
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

import structlog

from orchestrator.channels.whatsapp import protocol
from orchestrator.channels.whatsapp.protocol import BridgeResponse, FromBridge, FromHost, StateReport
from orchestrator.domain.errors import ChannelDown, ChannelRefused

log = structlog.get_logger(__name__)

STOP_SECONDS = 8.0
GONE = "WhatsApp is not connected."
KEPT = (
    "PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV",
    "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SSL_CERT_FILE", "SSL_CERT_DIR",
    "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy", "SYSTEMROOT",
)  # fmt: skip
"""What of the environment it gets: no key of anyone else's."""
_PROGRAM = (sys.executable, "-m", "orchestrator.channels.whatsapp.bridge")


def command(store: Path, *more: str) -> tuple[str, ...]:
    """How the bridge is started on the login at `store`."""
    spool = store.with_name(f"{store.stem}-bridge.db")
    return (*_PROGRAM, "--store", str(store), "--spool", str(spool), *more)


def check_command() -> tuple[str, ...]:
    """How the bridge only tries whether the library loads."""
    return (*_PROGRAM, "--check")


def environment() -> dict[str, str]:
    """What of this process's environment the bridge gets."""
    return {name: os.environ[name] for name in KEPT if name in os.environ}


class BridgeProcess:
    """Start it with `run`, which ends with the process."""

    def __init__(self, command: Sequence[str], hear: Callable[[FromBridge], None]) -> None:
        """`hear` is called for every line that answers no request; it must not block."""
        self._command = command
        self._hear = hear
        self._process: asyncio.subprocess.Process | None = None
        self._numbers = itertools.count(1)
        self._asked: dict[int, asyncio.Future[BridgeResponse]] = {}
        self.stderr_tail: deque[str] = deque(maxlen=20)
        """The newest lines of its stderr."""

    async def run(self) -> int:
        """Return its exit code. Cancelled, it ends the process: gently, then by force."""
        self._process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=protocol.MAX_LINE_BYTES,
            start_new_session=True,  # Ctrl-C is the host's to answer
            env=environment(),
        )
        errors = asyncio.create_task(self._read_errors(self._process), name="whatsapp:stderr")
        try:
            await self._read(self._process)
        finally:
            await asyncio.shield(self._end(self._process, errors))
        return self._process.returncode or 0

    @property
    def is_alive(self) -> bool:
        """Whether it can be asked something."""
        stdin = self._process.stdin if self._process is not None else None
        return stdin is not None and not stdin.is_closing()

    def exit_state(self) -> StateReport:
        """How it ended when it did not say so itself: the Go side may take the whole process with it."""
        code = self._process.returncode if self._process is not None else None
        signs = [one for one in self.stderr_tail if one.startswith(("panic:", "fatal error:", "SIGSEGV"))]
        words = (signs or list(self.stderr_tail)[-1:] or ["it said nothing"])[0]
        return StateReport(state="disconnected", reason=f"its process ended with code {code}: {words}"[:300])

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        while line := await process.stdout.readline():
            try:
                self._take(protocol.from_bridge(line))
            except protocol.BadBridgeLine as error:
                log.warning("whatsapp.bad_line", reason=str(error))

    def _take(self, said: FromBridge) -> None:
        if not isinstance(said, BridgeResponse):
            self._hear(said)
            return
        asked = self._asked.pop(said.id, None)
        if asked is not None and not asked.done():
            asked.set_result(said)

    async def _read_errors(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None
        with contextlib.suppress(ValueError):  # a line without end: what it says does not matter any more
            while line := await process.stderr.readline():
                text = line.decode(errors="replace").strip()[:500]
                self.stderr_tail.append(text)
                log.debug("whatsapp.bridge", said=text)

    async def _end(self, process: asyncio.subprocess.Process, errors: asyncio.Task[None]) -> None:
        for asked in self._asked.values():
            if not asked.done():
                asked.set_exception(ChannelDown(GONE))
        self._asked.clear()
        assert process.stdin is not None
        process.stdin.close()
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        errors.cancel()
        await asyncio.gather(errors, return_exceptions=True)

    async def request(self, make: Callable[[int], FromHost]) -> BridgeResponse:
        """Ask and wait for the answer; `make` is given the request's number.

        Raises:
            ChannelDown: it cannot be done now.
            ChannelRefused: it never will.
        """
        number = next(self._numbers)
        asked: asyncio.Future[BridgeResponse] = asyncio.get_running_loop().create_future()
        self._asked[number] = asked
        try:
            await self.notify(make(number))
            answer = await asked
        finally:
            self._asked.pop(number, None)
        if answer.ok:
            return answer
        raise (ChannelRefused if answer.code == "refused" else ChannelDown)(f"WhatsApp: {answer.text}")

    async def notify(self, message: FromHost) -> None:
        """Say something that has no answer. Raises `ChannelDown`."""
        if not self.is_alive:
            raise ChannelDown(GONE)
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(protocol.line_of(message))
            await self._process.stdin.drain()
        except ConnectionError as error:
            raise ChannelDown(GONE) from error
