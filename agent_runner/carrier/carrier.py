"""One run on another machine than the host's, as its container sees it.

The runner knows directories, stdin and stdout; so does the host. The carrier makes both true over one
connection: it lays down the group's files, hands the order over, sends what the runner says and writes, and
sends the files of a turn before its end. It takes nothing on trust but the certificate that it was given, and
holds no secret but the run's token.

A connection that breaks is made again: stdout is kept, and goes on where the host has had it. The host
refuses a run that it has given up: then the agent is killed at once, for its turn is another container's by
now.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO, Any

from agent_runner.carrier.dial import CarrierOrder, Refused, is_hardened, was_oom_killed
from agent_runner.carrier.incoming import IncomingFiles
from agent_runner.carrier.local_trees import LocalTrees, problem_of
from agent_runner.carrier.requests import file_named_in, read_request
from agent_runner.carrier.waiting_runner import BOXES, hand_over
from agent_runner.wire import START, trees
from agent_runner.wire.carrier import (
    CarrierConnection,
    CarrierMessage,
    ConnectionLost,
    relay,
    send_changes,
)
from agent_runner.wire.trees import Changes, StaleFile, TreeError

log = logging.getLogger(__name__)

SECRET = Path("/run/secrets/andy")
MAX_SPOOL_BYTES = 256 * 1024 * 1024
"""So much stdout may one run have: it is kept to the run's end, for a host that starts anew."""
MAX_LINE_BYTES = 16 * 1024 * 1024
STDERR_KEPT_BYTES = 64 * 1024
CHUNK_BYTES = trees.CHUNK_BYTES
RECONNECT_SECONDS = (0.1, 0.3, 1.0, 3.0)
ABANDONED_SECONDS = 3600.0
"""A host that has not been there for so long is not waited for."""
PIPE_SECONDS = 1.0
"""Seconds that a process which the agent left behind may hold its pipes open in silence."""
BROKEN_CODE, REFUSED_CODE = 70, 75


class Carrier:
    """One run: the runner's process, its directories, and the connection to the host."""

    def __init__(self, order: CarrierOrder, root: Path, waiting: subprocess.Popen[bytes]) -> None:
        self._order = order
        self._root = root
        self._process = waiting
        self._has_begun = False
        """Whether the runner has its order."""
        self._trees = LocalTrees(root)
        self._incoming = IncomingFiles(self._trees)
        self._spool = tempfile.TemporaryFile()  # noqa: SIM115  # lives as long as the run
        self._spooled = 0
        self._errors = bytearray()
        self._connection: CarrierConnection | None = None
        self._connected = asyncio.Event()
        self._news = asyncio.Event()
        self._staging = asyncio.Lock()
        self._staged: asyncio.Future[None] | None = None
        self._requests_sent: set[tuple[str, str]] = set()
        self._has_open_turn = False
        self._is_keeping = False
        """Whether a turn's end waits until its files are kept."""
        self._problem: dict[str, str] = {}
        """Why this node cannot keep what it is sent, as the next connection tells it."""
        self._is_muted = False
        """Whether nothing more of the runner is passed on: its turn cannot count any more."""
        self._exit: dict[str, Any] | None = None
        self._tasks: asyncio.TaskGroup
        self._is_over = asyncio.Event()

    async def run(self) -> int:
        """Carry the run to its end, and return the exit code of the container."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, lambda: self._stop(2.0))
        code = 0
        try:
            async with asyncio.TaskGroup() as self._tasks:
                self._tasks.create_task(self._talk(), name="carrier:talk")
                self._tasks.create_task(self._end_with_host(), name="carrier:over")
        except* _Over:
            code = int((self._exit or {}).get("code") or 0)
        except* Refused as refused:
            log.warning("the host refuses this run: %s", refused.exceptions[0])
            self._kill(signal.SIGKILL)
            code = REFUSED_CODE
        except* Exception:
            # Without its carrier the agent would work on for nobody, and hold its slot until silence tells.
            log.exception("the carrier broke")
            self._kill(signal.SIGKILL)
            code = BROKEN_CODE
        return code

    async def _end_with_host(self) -> None:
        """End all other tasks once the host has taken everything."""
        await self._is_over.wait()
        raise _Over

    async def _talk(self) -> None:
        """Stay connected; make the connection again however often it breaks."""
        loop = asyncio.get_running_loop()
        last, pauses = loop.time(), iter(RECONNECT_SECONDS)
        while True:
            try:
                connection, welcome = await self._order.connect(
                    is_hardened=is_hardened(), is_started=self._has_begun, **self._problem
                )
                pauses = iter(RECONNECT_SECONDS)
                await self._serve(connection, welcome.number("out"))
            except (ConnectionLost, OSError, TimeoutError) as error:
                log.warning("no connection to the host: %s", error)
            else:
                continue
            last = loop.time() if self._connected.is_set() else last
            self._connected.clear()
            if loop.time() - last > ABANDONED_SECONDS:
                raise Refused(f"the host has been away for {ABANDONED_SECONDS:g} s")
            await asyncio.sleep(next(pauses, RECONNECT_SECONDS[-1]))

    async def _serve(self, connection: CarrierConnection, out: int) -> None:
        """Serve one connection until it breaks. Raises `ConnectionLost`."""
        self._connection = connection
        self._requests_sent.clear()
        if not self._has_begun:  # what another connection began to lay down comes anew
            self._incoming.begin_anew()
        self._connected.set()
        why = "the run is over"
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._send_output(connection, out), name="carrier:output")
                tasks.create_task(connection.keep_alive(), name="carrier:ping")
                while not self._is_over.is_set():
                    await self._obey(connection, await connection.receive(), tasks)
        except* (ConnectionLost, OSError, TreeError) as lost:
            why, self._problem = str(lost.exceptions[0]), problem_of(lost.exceptions[0])
        finally:
            self._connected.clear()
            self._connection = None
            self._end_stage(ConnectionLost("before the files were taken"))
            connection.close()
        raise ConnectionLost(why)

    async def _obey(
        self, connection: CarrierConnection, message: CarrierMessage, tasks: asyncio.TaskGroup
    ) -> None:
        match message.kind:
            case "tree" | "file" | "change":
                await self._incoming.take(message)
            case "laid":
                # Beside the receiving: the host sends files while it is still asked for others.
                tasks.create_task(self._incoming.ask_for_files(connection), name="carrier:need")
            case "start":
                await self._start(message)
            case "took":
                await asyncio.to_thread(self._forget_request, message.text("box"), message.text("name"))
            case "staged":
                self._end_stage(None)
            case "stale":
                self._end_stage(StaleFile("it was written to while it was sent"))
            case "too_much":
                self._kill(signal.SIGKILL)
            case "stop":
                self._stop(message.number("milliseconds") / 1000)
            case "bye":
                self._is_over.set()

    # The agent

    async def _start(self, message: CarrierMessage) -> None:
        """Give the runner its order; from now on what it says and writes is carried."""
        if self._has_begun or not self._incoming.is_whole:
            return
        for port in message.fields.get("ports") or ():
            await asyncio.start_server(partial(self._relay, int(port)), "127.0.0.1", int(port))
        self._has_begun = True
        given = asyncio.to_thread(hand_over, self._process, message.mapping("environment"), message.payload)
        self._tasks.create_task(given, name="carrier:order")
        self._tasks.create_task(self._watch_end(), name="carrier:end")
        for box in BOXES:
            self._tasks.create_task(self._watch_box(box), name=f"carrier:{box}")

    async def _relay(self, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry one connection of the agent to a proxy of the host."""
        try:
            connection, _ = await self._order.connect(port=port)
        except (ConnectionLost, OSError, Refused, TimeoutError):
            writer.close()
            return
        await relay(reader, writer, (connection.reader, connection.writer))

    # What the runner says

    async def _watch_end(self) -> None:
        """Spool the runner's output until it has ended; then say how."""
        process = self._process
        async with asyncio.TaskGroup() as tasks:
            reading = [
                tasks.create_task(self._read_stdout(await _reader_of(process.stdout)), name="carrier:stdout"),
                tasks.create_task(self._read_stderr(await _reader_of(process.stderr)), name="carrier:stderr"),
            ]
            code = await asyncio.to_thread(process.wait)
            # What it started must not go on beside the next try of its turn, nor hold its pipes open.
            self._kill(signal.SIGKILL)
            await self._drain(reading)
            if not self._has_open_turn:
                await self._stage(0)
            for each in reading:
                each.cancel()
        self._exit = {"code": 128 - code if code < 0 else code, "was_oom_killed": was_oom_killed()}
        self._news.set()

    async def _drain(self, reading: Sequence[asyncio.Task[None]]) -> None:
        """Wait for what the pipes still hold; a program that escaped may hold them open, saying nothing."""
        before = -1
        while before < self._spooled or self._is_keeping:
            before = self._spooled
            if not (await asyncio.wait(reading, timeout=PIPE_SECONDS))[1]:
                return

    async def _read_stdout(self, stdout: asyncio.StreamReader) -> None:
        line = bytearray()
        while data := await stdout.read(CHUNK_BYTES):
            for part in data.splitlines(keepends=True):
                line += part
                if line.endswith(b"\n") or len(line) > MAX_LINE_BYTES:
                    await self._note_frame(bytes(line))
                    await self._spool_bytes(bytes(line))
                    line.clear()
            if line and not line.startswith((b"{", START.encode()[: len(line)])):
                await self._spool_bytes(bytes(line))  # no frame: it need not be whole to be passed on
                line.clear()
        await self._spool_bytes(bytes(line))

    async def _note_frame(self, line: bytes) -> None:
        """Have the host keep a turn's files before it hears of the turn's end."""
        if b'"turn_end"' not in line and b'"ack"' not in line:
            return
        try:
            frame = json.loads(line)
        except ValueError:
            return
        if not isinstance(frame, dict):
            return
        if frame.get("kind") == "ack":
            self._has_open_turn = True
        elif frame.get("kind") == "turn_end" and isinstance(frame.get("n"), int):
            self._is_keeping = True
            await self._stage(frame["n"])
            self._is_keeping = self._has_open_turn = False

    async def _spool_bytes(self, data: bytes) -> None:
        if self._is_muted:
            return
        if self._spooled + len(data) > MAX_SPOOL_BYTES:
            self._kill(signal.SIGKILL)
            return
        os.pwrite(self._spool.fileno(), data, self._spooled)  # to memory: a thread for each line takes longer
        self._spooled += len(data)
        self._news.set()

    async def _read_stderr(self, stderr: asyncio.StreamReader) -> None:
        while data := await stderr.read(CHUNK_BYTES):
            self._errors += data
            del self._errors[:-STDERR_KEPT_BYTES]
            self._news.set()

    async def _send_output(self, connection: CarrierConnection, at: int) -> None:
        """Send stdout from an offset on, and stderr beside it; at the end, how the runner ended."""
        while True:
            self._news.clear()
            has_ended = self._exit
            errors, self._errors = bytes(self._errors), bytearray()
            if errors:
                await connection.send("err", errors)
            while at < self._spooled:
                data = os.pread(self._spool.fileno(), CHUNK_BYTES, at)  # of memory, as above
                await connection.send("out", data, at=at)
                at += len(data)
            if has_ended is not None:
                await connection.send("exit", **has_ended)
                return
            await self._news.wait()

    # What the agent writes

    async def _stage(self, n: int) -> None:
        """Have the host keep what the agent changed, as of turn end `n`; 0 stands for no turn's end.

        It is tried on each connection until one has taken it all.
        """
        while True:
            await self._connected.wait()
            connection = self._connection
            if connection is None:
                continue
            try:
                await self._send_changes(connection, n, self._trees.look)
            except TreeError as error:
                # It may not travel, so the turn must not count as answered with it left behind.
                with suppress(ConnectionLost):
                    await connection.send("too_much", reason=str(error))
                self._is_muted = True
                self._kill(signal.SIGKILL)
                return
            except ConnectionLost:
                await asyncio.sleep(0.05)
                continue
            return

    async def _send_changes(
        self, connection: CarrierConnection, n: int, look: Callable[[], dict[str, Changes]]
    ) -> None:
        """Have the host keep what is found; files that programs write to meanwhile are sent anew."""
        async with self._staging:
            while True:
                changed = await asyncio.to_thread(look)
                if not changed and n == 0:
                    return
                self._staged = asyncio.get_running_loop().create_future()
                with suppress(StaleFile, FileNotFoundError):
                    for target, each in changed.items():
                        await send_changes(
                            connection, "stage", target, self._trees.path_of(target), each, n=n
                        )
                    await connection.send("stage_end", n=n)
                    await self._staged
                    self._trees.took(changed)
                    return

    def _end_stage(self, failure: Exception | None) -> None:
        if self._staged is None or self._staged.done():
            return
        if failure is None:
            self._staged.set_result(None)
        else:
            self._staged.set_exception(failure)

    async def _watch_box(self, box: str) -> None:
        """Send the requests that the agent writes; each is removed once the host has stored it."""
        # Imported once the agent has started: connecting does not wait for it.
        from agent_runner.watch import DirectoryWatch

        watch = DirectoryWatch(self._root / "ipc" / box)
        watch.start()
        async for _ in watch.looks(1.0):
            await self._connected.wait()
            with suppress(ConnectionLost):
                await self._send_requests(box)

    async def _send_requests(self, box: str) -> None:
        directory = self._root / "ipc" / box
        for name in sorted(path.name for path in directory.iterdir()):
            connection = self._connection
            if name.startswith(".") or (box, name) in self._requests_sent or connection is None:
                continue
            text = await asyncio.to_thread(read_request, directory / name)
            if text is None:
                continue
            self._requests_sent.add((box, name))
            if (path := file_named_in(text)) is not None:
                await self._send_changes(connection, 0, partial(self._trees.one, "/workspace/group", path))
            await connection.send("request", text, box=box, name=name)

    def _forget_request(self, box: str, name: str) -> None:
        if box in BOXES and "/" not in name:
            (self._root / "ipc" / box / name).unlink(missing_ok=True)

    # Its end

    def _stop(self, grace_seconds: float) -> None:
        if not self._has_begun:
            self._is_over.set()
            return
        self._kill(signal.SIGTERM, only_runner=True)
        asyncio.get_running_loop().call_later(grace_seconds, self._kill, signal.SIGKILL)

    def _kill(self, number: signal.Signals, *, only_runner: bool = False) -> None:
        with suppress(ProcessLookupError):
            if only_runner:
                self._process.send_signal(number)
            else:
                os.killpg(self._process.pid, number)


async def _reader_of(pipe: IO[bytes] | None) -> asyncio.StreamReader:
    reader = asyncio.StreamReader(limit=CHUNK_BYTES)
    protocol = asyncio.StreamReaderProtocol(reader)
    await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, pipe)
    return reader


class _Over(Exception):
    """The run is over, and the host has taken all of it."""


def carry(root: Path, waiting: subprocess.Popen[bytes]) -> int:
    """Carry a run whose runner waits for its order, and return the exit code of the container."""
    logging.basicConfig(level=logging.WARNING, format="carrier: %(message)s")
    order = CarrierOrder.read(Path(os.environ.get("ANDY_CARRIER_SECRET", SECRET)))

    async def run() -> int:
        return await Carrier(order, root, waiting).run()

    return asyncio.run(run())
