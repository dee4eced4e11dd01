"""One run on another machine than the host's, as its container sees it.

The runner knows directories, stdin and stdout; so does the host. The carrier makes both true over one
connection: it lays down the group's files, hands the order over, sends what the runner says and writes, and
sends the files of a turn before its end. It takes nothing on trust but the certificate that it was given, and
holds no secret but the run's token.

A run goes through these states, whether the host is connected or not:

    LAYING ──start──▶ BETWEEN ──ack──▶ IN_TURN
                       ▲   │              │
                       │   turn end       turn end
                       │   ▼              ▼
                       └─stored───────── STORING

    BETWEEN ──runner ended──▶ LEAVING ──stored, too much──▶ ENDED    (the host takes its last files)
    IN_TURN ──runner ended──▶ ENDED                    (its turn does not count, nor do its files)
    BETWEEN, IN_TURN, STORING ──too much──▶ SPOILED ──runner ended──▶ ENDED
    LAYING ──too much──▶ OVER
    each ──bye──▶ OVER

A connection that breaks is made again. What belongs to one connection is in a `HostLink`, and forgotten with
it; stdout lasts as long as the run, and goes on where the host has had it. The host refuses a run that it has
given up: then the agent is killed at once, for its turn is another container's by now.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial
from pathlib import Path
from typing import IO, Any

from agent_runner.carrier.dial import CarrierOrder, Refused, is_hardened, was_oom_killed
from agent_runner.carrier.incoming import IncomingFiles
from agent_runner.carrier.local_trees import LocalTrees, problem_of
from agent_runner.carrier.requests import file_named_in, read_request
from agent_runner.carrier.runner_output import CHUNK_BYTES, RunnerOutput
from agent_runner.carrier.waiting_runner import BOXES, hand_over
from agent_runner.wire import START
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
MAX_LINE_BYTES = 16 * 1024 * 1024
RECONNECT_SECONDS = (0.1, 0.3, 1.0, 3.0)
ABANDONED_SECONDS = 3600.0
"""A host that has not been there for so long is not waited for."""
PIPE_SECONDS = 1.0
"""Seconds that a process which the agent left behind may hold its pipes open in silence."""
BROKEN_CODE, REFUSED_CODE = 70, 75


class CarrierState(Enum):
    """The state of a run."""

    LAYING = auto()
    """The group's files come, and the runner waits for its order."""
    BETWEEN = auto()
    """The runner has its order, and no turn is open."""
    IN_TURN = auto()
    """A turn was acknowledged."""
    STORING = auto()
    """A turn's end is held back until the host has stored the turn's files."""
    SPOILED = auto()
    """The turn cannot count any more: the runner is killed, and nothing more of it is passed on."""
    LEAVING = auto()
    """The runner has ended, and the host takes the files that it left."""
    ENDED = auto()
    """Each connection sends the exit of the runner, until the host says `bye`."""
    OVER = auto()
    """The container may end."""


class CarrierEvent(Enum):
    """An event that moves a run from one state to another."""

    START = auto()
    ACK = auto()
    TURN_END = auto()
    STORED = auto()
    """The host has stored all files of a turn's end, or of the runner's."""
    TOO_MUCH = auto()
    """The runner's files or output are more than may travel."""
    RUNNER_ENDED = auto()
    """The runner has ended, and all that its pipes held was read."""
    BYE = auto()


NEXT_STATES: Mapping[CarrierState, Mapping[CarrierEvent, CarrierState]] = {
    CarrierState.LAYING: {
        CarrierEvent.START: CarrierState.BETWEEN,
        CarrierEvent.TOO_MUCH: CarrierState.OVER,
        CarrierEvent.BYE: CarrierState.OVER,
    },
    CarrierState.BETWEEN: {
        CarrierEvent.ACK: CarrierState.IN_TURN,
        CarrierEvent.TURN_END: CarrierState.STORING,
        CarrierEvent.TOO_MUCH: CarrierState.SPOILED,
        CarrierEvent.RUNNER_ENDED: CarrierState.LEAVING,
        CarrierEvent.BYE: CarrierState.OVER,
    },
    CarrierState.IN_TURN: {
        CarrierEvent.TURN_END: CarrierState.STORING,
        CarrierEvent.TOO_MUCH: CarrierState.SPOILED,
        CarrierEvent.RUNNER_ENDED: CarrierState.ENDED,
        CarrierEvent.BYE: CarrierState.OVER,
    },
    CarrierState.STORING: {
        CarrierEvent.STORED: CarrierState.BETWEEN,
        CarrierEvent.TOO_MUCH: CarrierState.SPOILED,
        CarrierEvent.BYE: CarrierState.OVER,
    },
    CarrierState.SPOILED: {
        CarrierEvent.RUNNER_ENDED: CarrierState.ENDED,
        CarrierEvent.BYE: CarrierState.OVER,
    },
    CarrierState.LEAVING: {
        CarrierEvent.STORED: CarrierState.ENDED,
        CarrierEvent.TOO_MUCH: CarrierState.ENDED,
        CarrierEvent.BYE: CarrierState.OVER,
    },
    CarrierState.ENDED: {CarrierEvent.BYE: CarrierState.OVER},
    CarrierState.OVER: {},
}
"""Map each state to the events that end it; any other event leaves it as it is."""
SENDING_FILES = (CarrierState.STORING, CarrierState.LEAVING)


@dataclass(slots=True, eq=False)
class HostLink:
    """One connection to the host, with all that is to be forgotten when it breaks."""

    connection: CarrierConnection
    requests_sent: set[tuple[str, str]] = field(default_factory=set)
    requests_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    staged: asyncio.Future[None] | None = None
    """The host's answer to the files that are being sent."""

    def end_stage(self, failure: Exception | None) -> None:
        """Note the host's answer to the files that were sent, or that none will come."""
        if self.staged is None or self.staged.done():
            return
        if failure is None:
            self.staged.set_result(None)
        else:
            self.staged.set_exception(failure)
            self.staged.exception()  # whoever waited may be gone: asyncio would call it never retrieved


class Carrier:
    """One run: the runner's process, its directories, and the connection to the host."""

    def __init__(self, order: CarrierOrder, root: Path, waiting: subprocess.Popen[bytes]) -> None:
        self._order = order
        self._process = waiting
        self._trees = LocalTrees(root)
        self._incoming = IncomingFiles(self._trees)
        self._output = RunnerOutput()
        self._state = CarrierState.LAYING
        self._link: HostLink | None = None
        self._staging = asyncio.Lock()
        """Held while files are sent and until the host has answered: it takes one set of files at a time."""
        self._exit: dict[str, Any] = {}
        """The fields of the `exit` message, once the runner has ended."""
        self._changed = asyncio.Event()
        """Set, and replaced, with each change of the state, the link or the output."""
        self._tasks: asyncio.TaskGroup

    async def run(self) -> int:
        """Carry the run to its end, and return the exit code of the container."""
        try:
            async with asyncio.TaskGroup() as self._tasks:
                self._tasks.create_task(self._talk(), name="carrier:talk")
                self._tasks.create_task(self._end_with_host(), name="carrier:over")
        except* _Over:
            code = int(self._exit.get("code", 0))
        except* Refused as refused:
            log.warning("the host refuses this run: %s", refused.exceptions[0])
            code = REFUSED_CODE
        except* Exception:
            log.exception("the carrier broke")
            code = BROKEN_CODE
        finally:
            # Without its carrier the agent would work on for nobody, and hold its slot until silence tells.
            self._kill(signal.SIGKILL)
            self._output.close()
            self._incoming.close()
        return code

    def stop(self, grace_seconds: float) -> None:
        """End the runner: at once if it has no order yet, by force after the grace."""
        if self._state is CarrierState.LAYING:
            self._on(CarrierEvent.BYE)
            return
        self._kill(signal.SIGTERM, only_runner=True)
        asyncio.get_running_loop().call_later(grace_seconds, self._kill, signal.SIGKILL)

    def _on(self, event: CarrierEvent) -> None:
        """Take an event: go to the next state, and do what entering it asks for."""
        before, self._state = self._state, NEXT_STATES[self._state].get(event, self._state)
        if self._state is CarrierState.SPOILED is not before:
            self._kill(signal.SIGKILL)
        self._notify()

    def _notify(self) -> None:
        """Wake all who wait for a change."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def _end_with_host(self) -> None:
        """End all other tasks once the run is over."""
        while self._state is not CarrierState.OVER:
            await self._changed.wait()
        raise _Over

    async def _next_link(self, before: HostLink | None = None) -> HostLink:
        """Return the present connection, or the next; `before` is one that has failed."""
        while (link := self._link) is None or link is before:
            await self._changed.wait()
        return link

    # The connection

    async def _talk(self) -> None:
        """Stay connected; make the connection again however often it breaks. Raises `Refused`."""
        loop = asyncio.get_running_loop()
        last, pauses = loop.time(), iter(RECONNECT_SECONDS)
        problem: dict[str, str] = {}
        while True:
            try:
                connection, welcome = await self._order.connect(
                    is_hardened=is_hardened(), is_started=self._state is not CarrierState.LAYING, **problem
                )
            except (ConnectionLost, OSError, TimeoutError) as error:
                log.warning("no connection to the host: %s", error)
            else:
                pauses = iter(RECONNECT_SECONDS)
                lost = await self._serve(connection, welcome)
                log.warning("the connection to the host is lost: %s", lost)
                last, problem = loop.time(), problem_of(lost)
            if loop.time() - last > ABANDONED_SECONDS:
                raise Refused(f"the host has been away for {ABANDONED_SECONDS:g} s")
            await asyncio.sleep(next(pauses, RECONNECT_SECONDS[-1]))

    async def _serve(self, connection: CarrierConnection, welcome: CarrierMessage) -> Exception:
        """Serve one connection until it breaks, and return the reason."""
        self._incoming.begin_connection(is_anew=self._state is CarrierState.LAYING)
        link = HostLink(connection)
        lost: Exception = ConnectionLost("the run is over")
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._send_output(link, welcome.number("out")), name="carrier:output")
                tasks.create_task(connection.keep_alive(), name="carrier:ping")
                self._link = link
                self._notify()
                while self._state is not CarrierState.OVER:
                    await self._obey(link, await connection.receive(), tasks)
        except* (ConnectionLost, OSError, TreeError) as group:
            lost = group.exceptions[0]
        finally:
            self._link = None
            link.end_stage(ConnectionLost("before the files were taken"))
            self._notify()
            connection.close()
        return lost

    async def _obey(self, link: HostLink, message: CarrierMessage, tasks: asyncio.TaskGroup) -> None:
        match message.kind:
            case "tree" | "file" | "change":
                await self._incoming.take(message)
            case "laid":
                # Beside the receiving: the host sends files while it is still asked for others.
                tasks.create_task(self._incoming.ask_for_files(link.connection), name="carrier:need")
            case "start":
                self._start(message)
            case "took":
                await asyncio.to_thread(self._forget_request, message.text("box"), message.text("name"))
            case "staged":
                link.end_stage(None)
            case "stale":
                link.end_stage(StaleFile("it was written to while it was sent"))
            case "too_much":
                self._on(CarrierEvent.TOO_MUCH)
                link.end_stage(ConnectionLost("the host takes no such files"))
            case "stop":
                self.stop(message.number("milliseconds") / 1000)
            case "bye":
                self._on(CarrierEvent.BYE)

    # The agent

    def _start(self, message: CarrierMessage) -> None:
        """Give the runner its order; from now on what it says and writes is carried."""
        if self._state is CarrierState.LAYING and self._incoming.is_whole:
            self._on(CarrierEvent.START)
            self._tasks.create_task(self._carry_runner(message), name="carrier:runner")
            for box in BOXES:
                self._tasks.create_task(self._watch_box(box), name=f"carrier:{box}")

    async def _carry_runner(self, message: CarrierMessage) -> None:
        """Open the ways to the host's proxies, give the runner its order, and follow it to its end."""
        with ExitStack() as servers:
            for port in message.fields.get("ports") or ():
                server = await asyncio.start_server(partial(self._relay, int(port)), "127.0.0.1", int(port))
                servers.callback(server.close)
            given = asyncio.to_thread(
                hand_over, self._process, message.mapping("environment"), message.payload
            )
            self._tasks.create_task(given, name="carrier:order")
            await self._watch_end()

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
        """Read the runner's output until it has ended; then say how."""
        process = self._process
        async with asyncio.TaskGroup() as tasks:
            reading = [
                tasks.create_task(self._read_stdout(), name="carrier:stdout"),
                tasks.create_task(self._read_stderr(), name="carrier:stderr"),
            ]
            code = await asyncio.to_thread(process.wait)
            # What it started must not go on beside the next try of its turn, nor hold its pipes open.
            self._kill(signal.SIGKILL)
            await self._drain(reading)
            for each in reading:
                each.cancel()
        self._exit = {"code": 128 - code if code < 0 else code, "was_oom_killed": was_oom_killed()}
        self._on(CarrierEvent.RUNNER_ENDED)
        await self._send_files(0)

    async def _drain(self, reading: list[asyncio.Task[None]]) -> None:
        """Wait for what the pipes still hold; a program that escaped may hold them open, saying nothing."""
        before = -1
        while before < self._output.size or self._state is CarrierState.STORING:
            before = self._output.size
            if not (await asyncio.wait(reading, timeout=PIPE_SECONDS))[1]:
                return

    async def _read_stdout(self) -> None:
        async with _reading(self._process.stdout) as stdout:
            await self._pass_on_lines(stdout)

    async def _pass_on_lines(self, stdout: asyncio.StreamReader) -> None:
        line = bytearray()
        while data := await stdout.read(CHUNK_BYTES):
            for part in data.splitlines(keepends=True):
                line += part
                if line.endswith(b"\n") or len(line) > MAX_LINE_BYTES:
                    await self._note_frame(bytes(line))
                    self._pass_on(bytes(line))
                    line.clear()
            if line and not line.startswith((b"{", START.encode()[: len(line)])):
                self._pass_on(bytes(line))  # no frame: it need not be whole to be passed on
                line.clear()
        self._pass_on(bytes(line))

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
            self._on(CarrierEvent.ACK)
        elif frame.get("kind") == "turn_end" and isinstance(frame.get("n"), int):
            self._on(CarrierEvent.TURN_END)
            await self._send_files(frame["n"])

    def _pass_on(self, data: bytes) -> None:
        """Have the host hear what the runner said; a part left out would make another answer of the rest."""
        if self._state is CarrierState.SPOILED:
            return
        if self._output.add(data):
            self._notify()
        else:
            self._on(CarrierEvent.TOO_MUCH)

    async def _read_stderr(self) -> None:
        async with _reading(self._process.stderr) as stderr:
            while data := await stderr.read(CHUNK_BYTES):
                self._output.add_errors(data)
                self._notify()

    async def _send_output(self, link: HostLink, at: int) -> None:
        """Send stdout from an offset on, and stderr beside it; at the end, how the runner ended."""
        connection = link.connection
        while True:
            changed = self._changed
            has_ended = self._state is CarrierState.ENDED
            if errors := self._output.take_errors():
                await connection.send("err", errors)
            while data := self._output.read(at):
                await connection.send("out", data, at=at)
                at += len(data)
            if has_ended:
                # The host takes nothing after the exit, so what the agent asked for last goes first.
                for box in BOXES:
                    await self._send_requests(link, box)
                await connection.send("exit", **self._exit)
                return
            await changed.wait()

    # What the agent writes

    async def _send_files(self, n: int) -> None:
        """Have the host keep what the agent changed, as of turn end `n`; 0 stands for no turn's end.

        It is tried on each connection until one has taken it all.
        """
        link: HostLink | None = None
        while self._state in SENDING_FILES:
            link = await self._next_link(link)
            try:
                await self._send_changes(link, n, self._trees.look)
            except TreeError as error:
                # It may not travel, so the turn must not count as answered with it left behind.
                with suppress(ConnectionLost):
                    await link.connection.send("too_much", reason=str(error))
                self._on(CarrierEvent.TOO_MUCH)
            except ConnectionLost:
                continue
            else:
                self._on(CarrierEvent.STORED)

    async def _send_changes(self, link: HostLink, n: int, look: Callable[[], dict[str, Changes]]) -> None:
        """Have the host keep what is found; files that programs write to meanwhile are sent anew."""
        async with self._staging:
            while True:
                changed = await asyncio.to_thread(look)
                if not changed and n == 0:
                    return
                link.staged = asyncio.get_running_loop().create_future()
                for target, each in changed.items():
                    # The host misses a file that was removed since: it calls all of it stale, and begins
                    # anew. To begin anew here alone would add the files to those that it already has.
                    with suppress(FileNotFoundError):
                        await send_changes(
                            link.connection, "stage", target, self._trees.path_of(target), each, n=n
                        )
                # Files of no turn's end count at once, also where the connection breaks before the answer.
                self._trees.doubt(changed)
                await link.connection.send("stage_end", n=n)
                with suppress(StaleFile):
                    await link.staged
                    self._trees.took(changed)
                    return

    async def _watch_box(self, box: str) -> None:
        """Send the requests that the agent writes; each is removed once the host has stored it."""
        # Imported once the agent has started: connecting does not wait for it.
        from agent_runner.watch import DirectoryWatch

        watch = DirectoryWatch(self._box(box))
        watch.start()
        try:
            async for _ in watch.looks(1.0):
                link = await self._next_link()
                with suppress(ConnectionLost):
                    await self._send_requests(link, box)
        finally:
            watch.stop()

    async def _send_requests(self, link: HostLink, box: str) -> None:
        """Send the requests of a mailbox that this connection has not sent. Raises `ConnectionLost`."""
        directory = self._box(box)
        async with link.requests_lock:
            for name in sorted(path.name for path in directory.iterdir()):
                if name.startswith(".") or (box, name) in link.requests_sent:
                    continue
                text = await asyncio.to_thread(read_request, directory / name)
                if text is None:
                    continue
                if (path := file_named_in(text)) is not None:
                    await self._send_changes(link, 0, partial(self._trees.one, "/workspace/group", path))
                await link.connection.send("request", text, box=box, name=name)
                link.requests_sent.add((box, name))

    def _forget_request(self, box: str, name: str) -> None:
        if box in BOXES and "/" not in name:
            (self._box(box) / name).unlink(missing_ok=True)

    def _box(self, box: str) -> Path:
        """Return the directory of a mailbox."""
        return self._trees.path_of(f"/workspace/ipc/{box}")

    def _kill(self, number: signal.Signals, *, only_runner: bool = False) -> None:
        with suppress(ProcessLookupError):
            if only_runner:
                self._process.send_signal(number)
            else:
                os.killpg(self._process.pid, number)


@asynccontextmanager
async def _reading(pipe: IO[bytes] | None) -> AsyncIterator[asyncio.StreamReader]:
    """Open a pipe of the runner; it is closed at the end, also where a program that escaped holds it open."""
    reader = asyncio.StreamReader(limit=CHUNK_BYTES)
    protocol = asyncio.StreamReaderProtocol(reader)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, pipe)
    try:
        yield reader
    finally:
        transport.close()


class _Over(Exception):
    """The run is over, and the host has taken all of it."""


def carry(root: Path, waiting: subprocess.Popen[bytes]) -> int:
    """Carry a run whose runner waits for its order, and return the exit code of the container."""
    logging.basicConfig(level=logging.WARNING, format="carrier: %(message)s")
    order = CarrierOrder.read(Path(os.environ.get("ANDY_CARRIER_SECRET", SECRET)))

    async def run() -> int:
        carrier = Carrier(order, root, waiting)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, carrier.stop, 2.0)
        return await carrier.run()

    return asyncio.run(run())
