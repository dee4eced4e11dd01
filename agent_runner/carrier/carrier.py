"""Connect the runner of a container on another machine with the host.

Runner and host exchange directories, stdin and stdout, as if they were on one machine. The carrier provides
these over one connection: it writes the group's files, passes the host's order for the run to the runner,
sends the runner's output and requests to the host, and sends the files of a turn before the turn's end. It
trusts only the host whose certificate it was given, and has no secret but the run's token.

A run goes through these states, whether the host is connected or not:

    LAYING ──start──▶ BETWEEN ──ack──▶ IN_TURN
                       ▲   │              │
                       │   turn end       turn end
                       │   ▼              ▼
                       └─stored───────── STORING

    BETWEEN ──runner ended──▶ LEAVING ──stored or too much──▶ ENDED    (the host takes its last files)
    IN_TURN ──runner ended──▶ ENDED                    (its turn does not count, nor do its files)
    BETWEEN, IN_TURN, STORING ──too much──▶ SPOILED ──runner ended──▶ ENDED
    LAYING ──too much──▶ OVER
    each but OVER ──bye──▶ OVER

"Too much": the run's files or its output exceed a limit, or its files cannot be read. "Bye": the host removes
the container, and in the state OVER the carrier ends. "Stored": the host has all files.

A connection that breaks is made again. A `HostLink` has the state of one connection, and is dropped with it.
Stdout is stored to the end of the run, and is sent from the first byte that the host lacks. The host refuses
a run that it has given up: then the agent is killed at once, because its turn may already be running in
another container.
"""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial
from pathlib import Path
from typing import IO, Any

from agent_runner.carrier.dial import CarrierOrder, Refused, is_hardened, was_oom_killed
from agent_runner.carrier.incoming import IncomingFiles
from agent_runner.carrier.local_trees import LocalTrees, problem_of
from agent_runner.carrier.requests import (
    Version,
    file_named_in,
    read_request,
    remove_request,
    request_names,
)
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
"""The default path of the file with the address of the host and the run's token."""
MAX_LINE_BYTES = 16 * 1024 * 1024
"""Bytes of one line of stdout after which the line is passed on without its end."""
RECONNECT_SECONDS = (0.1, 0.3, 1.0, 3.0)
"""Seconds between attempts to connect; the last pause is repeated."""
ABANDONED_SECONDS = 3600.0
"""Seconds without a connection to the host after which the run ends."""
PIPE_SECONDS = 1.0
"""Seconds without output after the runner's end until its pipes are closed.

A process that the agent left behind may hold them open.
"""
GRACE_SECONDS = 2.0
"""Seconds that the runner may take to end after the container got SIGTERM; then it is killed."""
REQUEST_PAUSES_SECONDS = (0.0, 0.1, 0.3, *[1.0] * 27)
"""Seconds to wait before each search for a changed file that a request names. Another search follows if the
file was changed while it was sent; if that happens after the last search, too, it cannot be sent.
"""
STALE_PAUSES_SECONDS = (*REQUEST_PAUSES_SECONDS, *[5.0] * 54)
"""Likewise for all changed files, for five minutes: without them, the turn fails."""
REPLACED_FILE_ERRORS = frozenset(
    {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EINVAL, errno.ENXIO, errno.EACCES}
)
"""Numbers of errors of opening a file that was found: it was removed since, is no plain file any more, or may
not be read any more.
"""
BROKEN_CODE, REFUSED_CODE = 70, 75
"""Exit codes of the container when the carrier fails, and when the host refuses the run or stays away."""


class CarrierState(Enum):
    """The state of a run."""

    LAYING = auto()
    """The group's files are arriving, and the runner waits for its order."""
    BETWEEN = auto()
    """The runner has its order, and no turn is open."""
    IN_TURN = auto()
    """The runner has acknowledged a turn, and not ended it."""
    STORING = auto()
    """A turn's end is held back until the host has stored the turn's files."""
    SPOILED = auto()
    """Files or output exceeded a limit, or files cannot be read, so the turn fails: the runner is killed, its
    output dropped.
    """
    LEAVING = auto()
    """The runner has ended, and the host stores its last changes of files."""
    ENDED = auto()
    """The runner's exit is sent on each connection until the host answers `bye`."""
    OVER = auto()
    """The container may end."""


class CarrierEvent(Enum):
    """An event that moves a run from one state to another."""

    START = auto()
    ACK = auto()
    TURN_END = auto()
    STORED = auto()
    """The host has stored all files as of a turn's end, or as of the runner's end."""
    TOO_MUCH = auto()
    """The runner's files or output exceed a limit, or its files cannot be read."""
    RUNNER_ENDED = auto()
    """The runner has ended, and the rest of its output was read."""
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
"""Map each state to the events that end it and the states that follow; any other event is ignored."""
SENDING_FILES = (CarrierState.STORING, CarrierState.LEAVING)
"""The states in which changed files are sent to the host."""


@dataclass(slots=True, eq=False)
class HostLink:
    """One connection to the host, with the state that is dropped when it breaks."""

    connection: CarrierConnection
    output_sent: int = 0
    """Bytes of the runner's stdout that the host had before, or was sent over this connection."""
    requests_sent: dict[tuple[str, str], Version] = field(default_factory=dict)
    """The versions of the request files that were sent over this connection, by mailbox directory and name.

    A request that the host has confirmed is removed from here.
    """
    requests_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    staged: asyncio.Future[None] | None = None
    """Resolved by the host's answer to the files that were sent; None before the first files."""

    def end_stage(self, failure: Exception | None) -> None:
        """Resolve `staged`: with no error if `failure` is None, else with that error.

        Do nothing if no files were sent, or if the host has answered already.
        """
        if self.staged is None or self.staged.done():
            return
        if failure is None:
            self.staged.set_result(None)
        else:
            self.staged.set_exception(failure)
            # Retrieved here, or asyncio would log it as never retrieved if nobody waits any more.
            self.staged.exception()


class Carrier:
    """One run: the runner's process, its directories, and the connection to the host."""

    def __init__(self, order: CarrierOrder, root: Path, waiting: subprocess.Popen[bytes]) -> None:
        """`order` names the host and has the run's token; `root` is the workspace.

        `waiting` is the runner's process, which waits for its order.
        """
        self._carrier_order = order
        self._process = waiting
        self._trees = LocalTrees(root)
        self._incoming = IncomingFiles(self._trees)
        self._output = RunnerOutput()
        self._state = CarrierState.LAYING
        self._link: HostLink | None = None
        """The present connection to the host; None while there is none."""
        self._staging = asyncio.Lock()
        """Locked while files are sent, until the host answers: it accepts one set of files at a time."""
        self._exit: dict[str, Any] = {}
        """The fields of the `exit` message, once the runner has ended."""
        self._changed = asyncio.Event()
        """Set, and replaced, with each change of the state, the link or the output."""
        self._tasks: asyncio.TaskGroup

    async def run(self) -> int:
        """Serve the run to its end, and return the exit code of the container.

        A runner that still lives then is killed. The code is that of the runner, `REFUSED_CODE` if the host
        refuses the run, or `BROKEN_CODE` after an error.
        """
        try:
            # The task group ends only by an error, so one of the `except*` below always sets `code`: at the
            # end of the run `_end_with_host` raises `_Over`.
            async with asyncio.TaskGroup() as self._tasks:
                self._tasks.create_task(self._stay_connected(), name="carrier:talk")
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
            # Without its carrier, the agent would work for nothing, and use its slot until the host notices
            # that the carrier is silent.
            self._kill(signal.SIGKILL)
            self._output.close()
            self._incoming.close()
        return code

    def stop(self, grace_seconds: float) -> None:
        """End the runner: with SIGTERM, and with SIGKILL after `grace_seconds`.

        If it has no order yet, the whole run is over at once.
        """
        if self._state is CarrierState.LAYING:
            self._change_state(CarrierEvent.BYE)
            return
        self._kill(signal.SIGTERM, only_runner=True)
        asyncio.get_running_loop().call_later(grace_seconds, self._kill, signal.SIGKILL)

    def _change_state(self, event: CarrierEvent) -> None:
        """Go to the state that follows an event, if any follows; on entering `SPOILED`, kill the runner."""
        earlier = self._state
        self._state = NEXT_STATES[earlier].get(event, earlier)
        if self._state is CarrierState.SPOILED and earlier is not CarrierState.SPOILED:
            self._kill(signal.SIGKILL)
        self._notify()

    def _notify(self) -> None:
        """Wake the tasks that wait for a change."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def _end_with_host(self) -> None:
        """Wait until the run is over, then raise `_Over`, which ends the other tasks of the run."""
        while self._state is not CarrierState.OVER:
            await self._changed.wait()
        raise _Over

    async def _next_link(self, lost: HostLink | None = None) -> HostLink:
        """Return the present connection to the host; wait for the next if there is none, or only `lost`."""
        while (link := self._link) is None or link is lost:
            await self._changed.wait()
        return link

    # The connection

    async def _stay_connected(self) -> None:
        """Keep a connection to the host, and make another whenever it breaks. Runs until cancelled.

        Raises:
            Refused: the host refuses the run, or could not be reached for `ABANDONED_SECONDS`.
        """
        loop = asyncio.get_running_loop()
        last_connected, pauses = loop.time(), iter(RECONNECT_SECONDS)
        # A field of the next hello, if a full disk of this machine ended the last connection.
        problem: dict[str, str] = {}
        while True:
            try:
                connection, welcome = await self._carrier_order.connect(
                    is_hardened=is_hardened(),
                    is_started=self._state is not CarrierState.LAYING,
                    change=self._incoming.last_change,
                    **problem,
                )
            except (ConnectionLost, OSError, TimeoutError) as error:
                log.warning("no connection to the host: %s", error)
            else:
                pauses = iter(RECONNECT_SECONDS)
                lost = await self._serve(connection, welcome)
                log.warning("the connection to the host is lost: %s", lost)
                last_connected, problem = loop.time(), problem_of(lost)
            if loop.time() - last_connected > ABANDONED_SECONDS:
                raise Refused(f"the host has been away for {ABANDONED_SECONDS:g} s")
            await asyncio.sleep(next(pauses, RECONNECT_SECONDS[-1]))

    async def _serve(self, connection: CarrierConnection, welcome: CarrierMessage) -> Exception:
        """Serve one connection until it breaks, and return the error that ended it.

        `welcome` is the host's answer to the hello; it says how much of the output the host has.
        """
        self._incoming.begin_connection(has_order=self._state is not CarrierState.LAYING)
        link = HostLink(connection)
        lost: Exception = ConnectionLost("the run is over")
        try:
            async with asyncio.TaskGroup() as tasks:
                output_start = welcome.number("out")
                tasks.create_task(self._send_output(link, output_start), name="carrier:output")
                tasks.create_task(connection.keep_alive(), name="carrier:ping")
                self._link = link
                self._notify()
                # In the state OVER, `_end_with_host` cancels this method and the tasks of `tasks`.
                while self._state is not CarrierState.OVER:
                    await self._handle_message(link, await connection.receive(), tasks)
        except* (ConnectionLost, OSError, TreeError) as group:
            lost = group.exceptions[0]
        finally:
            self._link = None
            link.end_stage(ConnectionLost("before the files were taken"))
            self._notify()
            connection.close()
        return lost

    async def _handle_message(
        self, link: HostLink, message: CarrierMessage, tasks: asyncio.TaskGroup
    ) -> None:
        """Carry out one message of the host; a message of an unknown kind is ignored.

        Work that must not delay the next message runs in a task of `tasks`.
        """
        match message.kind:
            case "tree" | "file" | "change" | "change_end":
                await self._incoming.handle(message)
            case "laid":
                # In a task of its own: files arrive while others are still being requested.
                tasks.create_task(self._incoming.request_missing_files(link.connection), name="carrier:need")
            case "start":
                self._start(message)
            case "took":  # the host has stored a request
                await self._end_request(link, message.text("box"), message.text("name"))
            case "staged":
                link.end_stage(None)
            case "stale":
                link.end_stage(StaleFile("it was written to while it was sent"))
            case "too_much":
                self._change_state(CarrierEvent.TOO_MUCH)
                # The connection goes on: the error only ends the waiting for the host's answer, so that
                # `_send_files` sees the new state.
                link.end_stage(ConnectionLost("the host takes no such files"))
            case "stop":
                self.stop(message.number("milliseconds") / 1000)
            case "bye":
                self._change_state(CarrierEvent.BYE)

    # The agent

    def _start(self, message: CarrierMessage) -> None:
        """Start the tasks that give the runner its order and pass on its output and requests.

        A repeated `start`, or one before all files have arrived, is ignored.
        """
        if self._state is CarrierState.LAYING and self._incoming.is_whole:
            self._change_state(CarrierEvent.START)
            self._tasks.create_task(self._run_runner(message), name="carrier:runner")
            for box in BOXES:
                self._tasks.create_task(self._watch_box(box), name=f"carrier:{box}")

    async def _run_runner(self, message: CarrierMessage) -> None:
        """Give the runner the environment and order in a `start` message, and wait for its end.

        Meanwhile listen on the ports of the host's proxies, which the agent uses.
        """
        with ExitStack() as servers:
            for port in message.fields.get("ports") or ():
                server = await asyncio.start_server(partial(self._relay, int(port)), "127.0.0.1", int(port))
                servers.callback(server.close)
            order_handed_over = asyncio.to_thread(
                hand_over, self._process, message.mapping("environment"), message.payload
            )
            self._tasks.create_task(order_handed_over, name="carrier:order")
            await self._watch_end()

    async def _relay(self, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass one connection of the agent on to the proxy of the host on this port.

        It is closed if the host cannot be reached.
        """
        try:
            connection, _ = await self._carrier_order.connect(port=port)
        except (ConnectionLost, OSError, Refused, TimeoutError):
            writer.close()
            return
        await relay(reader, writer, (connection.reader, connection.writer))

    # The runner's output

    async def _watch_end(self) -> None:
        """Read the runner's output until it has ended, and record its exit.

        Then send the changes of files that it made after its last turn. None are sent if it ended in a turn,
        which then does not count, or if the run is spoiled.
        """
        process = self._process
        async with asyncio.TaskGroup() as tasks:
            reading = [
                tasks.create_task(self._read_stdout(), name="carrier:stdout"),
                tasks.create_task(self._read_stderr(), name="carrier:stderr"),
            ]
            code = await asyncio.to_thread(process.wait)
            # Kill what it started: that must not run beside the next attempt, nor keep the pipes open.
            self._kill(signal.SIGKILL)
            await self._drain(reading)
            for task in reading:
                task.cancel()
        # A negative code is the signal that killed it: as shells do, 128 and the signal's number.
        self._exit = {"code": 128 - code if code < 0 else code, "was_oom_killed": was_oom_killed()}
        self._change_state(CarrierEvent.RUNNER_ENDED)
        await self._send_files(0)  # it sends nothing unless the state is LEAVING now

    async def _drain(self, reading: list[asyncio.Task[None]]) -> None:
        """Wait until the tasks in `reading` have read the runner's pipes to their end.

        A process that was not killed with the runner may keep the pipes open without writing to them. So also
        return if nothing was read for `PIPE_SECONDS`, unless the files of a turn are being sent.
        """
        earlier_size = -1  # less than any size, for the first round
        while earlier_size < self._output.size or self._state is CarrierState.STORING:
            earlier_size = self._output.size
            _, still_reading = await asyncio.wait(reading, timeout=PIPE_SECONDS)
            if not still_reading:
                return

    async def _read_stdout(self) -> None:
        """Add the runner's stdout to the output until it ends."""
        async with _reading(self._process.stdout) as stdout:
            await self._forward_lines(stdout)

    async def _forward_lines(self, stdout: asyncio.StreamReader) -> None:
        """Add the runner's stdout to the output, line by line, so that frames are noticed.

        The start of a line that can be no frame is added at once. The rest of that line is then treated as a
        line of its own.
        """
        line = bytearray()
        while data := await stdout.read(CHUNK_BYTES):
            for part in data.splitlines(keepends=True):
                line += part
                if line.endswith(b"\n") or len(line) > MAX_LINE_BYTES:
                    await self._note_frame(bytes(line))
                    self._forward(bytes(line))
                    line.clear()
            # A line with a frame begins with `{`, and the line before it is `START`. Any other line can be
            # added before it is complete.
            if line and not line.startswith((b"{", START.encode()[: len(line)])):
                self._forward(bytes(line))
                line.clear()
        self._forward(bytes(line))

    async def _note_frame(self, line: bytes) -> None:
        """Take note of a turn's start or end; at its end, return only after the host has stored its files.

        The host must have the files before it reads the end of the turn, because they take effect then.
        """
        # A quick check, because most lines need not be parsed.
        if b'"turn_end"' not in line and b'"ack"' not in line:
            return
        try:
            frame = json.loads(line)
        except (ValueError, RecursionError):
            return
        if not isinstance(frame, dict):
            return
        if frame.get("kind") == "ack":
            self._change_state(CarrierEvent.ACK)
        elif frame.get("kind") == "turn_end" and isinstance(frame.get("n"), int):
            self._change_state(CarrierEvent.TURN_END)
            await self._send_files(frame["n"])

    def _forward(self, data: bytes) -> None:
        """Add bytes to the output that is sent to the host.

        If they would make the whole output too long, none of them is added, and the run is spoiled: the
        runner is killed, and its turn fails, because without these bytes the output after them would mean
        something else. The output of a spoiled run is dropped.
        """
        if self._state is CarrierState.SPOILED:
            return
        if self._output.add(data):
            self._notify()
        else:
            self._change_state(CarrierEvent.TOO_MUCH)

    async def _read_stderr(self) -> None:
        """Add the runner's stderr to the output."""
        async with _reading(self._process.stderr) as stderr:
            while data := await stderr.read(CHUNK_BYTES):
                self._output.add_errors(data)
                self._notify()

    async def _send_output(self, link: HostLink, offset: int) -> None:
        """Send the runner's stdout from a byte offset on, and its stderr, as they are written.

        After the runner's end, also send the last requests and the exit, and return.
        """
        connection = link.connection
        while True:
            # Read before everything else: a change during the sends below must not be missed.
            changed = self._changed
            has_ended = self._state is CarrierState.ENDED
            if errors := self._output.take_errors():
                await connection.send("err", errors)
            while data := self._output.read(offset):
                await connection.send("out", data, at=offset)
                offset += len(data)
            if link.output_sent != offset:
                link.output_sent = offset
                self._notify()
            if has_ended:
                # The host accepts nothing after the exit, so the agent's last requests are sent before it.
                for box in BOXES:
                    await self._send_requests(link, box)
                await connection.send("exit", **self._exit)
                return
            await changed.wait()

    # The agent's files and requests

    async def _send_files(self, n: int) -> None:
        """Have the host store the agent's changes of files, and return once it has all of them.

        `n` is the number of the frame that ends the turn, 0 for the changes after the last turn. If the
        connection breaks, the changes are sent again over the next. If the files exceed a limit, or cannot be
        read, the turn fails instead.
        """
        link: HostLink | None = None
        while self._state in SENDING_FILES:
            link = await self._next_link(link)
            try:
                await self._send_changes(link, n, self._trees.find_changes)
            except (TreeError, OSError) as error:
                # These files cannot be sent, and without them the turn must not count as answered.
                with suppress(ConnectionLost):
                    await link.connection.send("too_much", reason=_why_not_sent(error))
                self._change_state(CarrierEvent.TOO_MUCH)
            except ConnectionLost:
                continue  # with the next connection
            else:
                self._change_state(CarrierEvent.STORED)

    async def _send_changes(
        self,
        link: HostLink,
        n: int,
        find_changes: Callable[[], dict[str, Changes]],
        pauses_seconds: Sequence[float] = STALE_PAUSES_SECONDS,
    ) -> None:
        """Have the host store the changes that `find_changes` returns, and wait for its answer.

        `find_changes` blocks and returns the changes by target. If a file changes while it is sent, the
        changes are found and sent again, after the pauses in `pauses_seconds`. `n` is the number of the
        frame that ends the turn, with which the changes take effect; 0 for changes outside of a turn, or for
        a request, which take effect at once. With 0, nothing is sent if nothing has changed.

        Raises:
            ConnectionLost: the connection broke, or the host refused the files.
            StaleFile: one of the files changed each time, also after the last pause.
            TreeError: the files exceed a limit.
            OSError: a file cannot be read.
        """
        async with self._staging:
            for pause_seconds in pauses_seconds:
                await asyncio.sleep(pause_seconds)
                changed = await asyncio.to_thread(find_changes)
                if not changed and n == 0:
                    return
                link.staged = asyncio.get_running_loop().create_future()
                for target, changes in changed.items():
                    try:
                        await send_changes(
                            link.connection, "stage", target, self._trees.path_of(target), changes, n=n
                        )
                    except OSError as error:
                        # The rest of its directory is not sent then: the host misses it, drops all files of
                        # this search, and answers `stale`. A new search before that answer would make the
                        # host mix the files of both.
                        if error.errno not in REPLACED_FILE_ERRORS:
                            raise
                # From here on the host may have the changes, even if the connection breaks before it answers.
                # The paths count as changed until it does, so that they are sent again even if the agent
                # restores their earlier content.
                self._trees.mark_uncertain(changed)
                await link.connection.send("stage_end", n=n)
                with suppress(StaleFile):
                    await link.staged
                    self._trees.mark_stored(changed)
                    return
            raise StaleFile("a program changes one of them all the time")

    async def _watch_box(self, box: str) -> None:
        """Send the request files that the agent writes to the mailbox directory named `box`, until cancelled.

        A file is removed when the host answers `took`.
        """
        # Imported only when the agent has started, so that connecting does not wait for the import.
        from agent_runner.watch import DirectoryWatch

        watch = DirectoryWatch(self._box_path(box))
        watch.start()
        try:
            async for _ in watch.checks(1.0):
                link = await self._next_link()
                with suppress(ConnectionLost):
                    await self._send_requests(link, box)
        finally:
            watch.stop()

    async def _send_requests(self, link: HostLink, box: str) -> None:
        """Send the requests in the mailbox directory `box` that this connection has not sent yet.

        A file of the group that a request names is sent before the request, and takes effect at once. A file
        that changes all the time is not sent: the host answers the request with the file that it has, if any.

        Raises:
            ConnectionLost: the connection broke, or the host refused the file.
            OSError: the file cannot be read, or another file has replaced the directory.
        """
        directory = self._box_path(box)
        async with link.requests_lock:
            for name in await asyncio.to_thread(request_names, directory):
                if (box, name) in link.requests_sent:
                    continue
                request_and_version = await asyncio.to_thread(read_request, directory / name)
                if request_and_version is None:
                    continue  # it is gone, too large, or no plain file
                request, version = request_and_version
                if (path := file_named_in(request)) is not None:
                    # Without the output, the host would wait for the ends of earlier turns forever.
                    await self._wait_until_output_sent(link)
                    find_changes = partial(self._trees.file_changes, "/workspace/group", path)
                    with suppress(StaleFile):
                        await self._send_changes(link, 0, find_changes, REQUEST_PAUSES_SECONDS)
                # Before it is sent: the host may confirm it at once.
                link.requests_sent[box, name] = version
                await link.connection.send("request", request, box=box, name=name)

    async def _wait_until_output_sent(self, link: HostLink) -> None:
        """Wait until a connection has sent all of the output so far.

        Call this before sending a file that a request names. When the host receives that file, it reads no
        further message until it has put the files of all earlier turns in place. For that it needs the ends
        of these turns, which are in the output. If the output came after the file, the host would wait for
        it forever.

        Raises:
            ConnectionLost: the connection broke before that.
        """
        size = self._output.size
        while link.output_sent < size:
            if self._link is not link:
                raise ConnectionLost("before the output was sent")
            await self._changed.wait()

    async def _end_request(self, link: HostLink, box: str, name: str) -> None:
        """Remove a request file that the host has stored, so that a later file of the same name is sent.

        Nothing is done for a name that was not sent. If the file was replaced since it was sent, it stays,
        and is sent as a new request. If it cannot be removed, it stays marked as sent.
        """
        if (box, name) in link.requests_sent:
            version = link.requests_sent[box, name]
            # Only once the file is removed, or it would be sent again.
            if await asyncio.to_thread(remove_request, self._box_path(box) / name, version):
                del link.requests_sent[box, name]

    def _box_path(self, box: str) -> Path:
        """Return the local path of the mailbox directory named `box`."""
        return self._trees.path_of(f"/workspace/ipc/{box}")

    def _kill(self, number: signal.Signals, *, only_runner: bool = False) -> None:
        """Send a signal to the runner and all that it started, or to the runner alone.

        A process that has ended already is ignored.
        """
        with suppress(ProcessLookupError):
            if only_runner:
                self._process.send_signal(number)
            else:
                os.killpg(self._process.pid, number)


def _why_not_sent(error: TreeError | OSError) -> str:
    """Return the reason for the host that the files of a turn cannot be sent."""
    if isinstance(error, TreeError):
        return str(error)
    return f"{str(error.filename or 'a file')[:80]!r} cannot be read: {error.strerror}"


@asynccontextmanager
async def _reading(pipe: IO[bytes] | None) -> AsyncIterator[asyncio.StreamReader]:
    """Yield a reader of one of the runner's pipes, and close it after the block.

    Another process may still have the pipe open for writing.
    """
    reader = asyncio.StreamReader(limit=CHUNK_BYTES)
    protocol = asyncio.StreamReaderProtocol(reader)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, pipe)
    try:
        yield reader
    finally:
        transport.close()


class _Over(Exception):
    """The run is over: ends the other tasks of the carrier."""


def carry(root: Path, waiting: subprocess.Popen[bytes]) -> int:
    """Run the carrier of a runner that waits for its order, and return the exit code of the container.

    `root` is the workspace; `waiting` is the runner's process. SIGTERM ends the run.
    """
    logging.basicConfig(level=logging.WARNING, format="carrier: %(message)s")
    order = CarrierOrder.read(Path(os.environ.get("ANDY_CARRIER_SECRET", SECRET)))

    async def run() -> int:
        """Serve the run until it ends or SIGTERM comes, and return the exit code."""
        carrier = Carrier(order, root, waiting)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, carrier.stop, GRACE_SECONDS)
        return await carrier.run()

    return asyncio.run(run())
