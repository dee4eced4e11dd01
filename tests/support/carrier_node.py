"""Run a carrier on real files, with doubles for the host and the runner's process, in virtual time.

Time passes only when a test lets it pass, and each step ends when the event loop has nothing left to do.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import io
import json
import os
import selectors
import signal
import socket
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any
from unittest import mock

from agent_runner.carrier import carrier as carrier_module
from agent_runner.carrier import runner_output
from agent_runner.carrier.carrier import Carrier
from agent_runner.carrier.dial import greet
from agent_runner.watch import DirectoryWatch
from agent_runner.wire import trees
from agent_runner.wire.carrier import CarrierConnection, CarrierMessage, ConnectionLost, changes_from
from agent_runner.wire.trees import Changes

GROUP = "/workspace/group"
INPUT = "/workspace/ipc/input"
BOXES = ("messages", "tasks")
Answer = tuple[str, bytes, dict[str, Any]]
"""A message of the host: its kind, payload and fields."""
ABANDONED_SECONDS = 60.0
"""Seconds after which the carrier does not wait for its host any more; an hour outside of these tests."""
MAX_OUTPUT_BYTES = 2048
"""Bytes that the runner may say, so few that a test reaches them."""


class _IdleSelector(selectors.DefaultSelector):
    """Tells its loop when nothing is left to do before the time of its next timer."""

    loop: ManualLoop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if not (found := super().select(0)) and timeout != 0:
            self.loop.pass_idle_time(timeout)
        return found


class ManualLoop(asyncio.SelectorEventLoop):
    """An event loop that runs until nothing is left to do; its clock stands still meanwhile."""

    def __init__(self) -> None:
        selector = _IdleSelector()
        selector.loop = self
        super().__init__(selector)
        self._now = 1000.0
        self._until = self._now

    def time(self) -> float:
        return self._now

    def pass_seconds(self, seconds: float) -> None:
        """Run all that happens in these seconds."""
        self._until = self._now + seconds
        self.run_forever()

    def pass_idle_time(self, timeout: float | None) -> None:
        """Go on to the next timer, or to the end of the time that is to pass."""
        if timeout is not None and self._now + timeout <= self._until:
            self._now += timeout
        else:
            self._now = self._until
            self.stop()


class RunnerDouble:
    """The process of a runner as `subprocess.Popen` gives it; what it does is the test's to say."""

    def __init__(self) -> None:
        self.pid = 1
        self.stdin = io.BytesIO()
        self.code: int | None = None
        """Its exit code; None while it runs."""
        self.is_deaf = False
        """Whether it takes no notice of SIGTERM."""
        self.is_reaped = False
        """Whether all of its group was killed once it had ended."""
        self.ended: concurrent.futures.Future[int] = concurrent.futures.Future()
        (out, self._out), (err, self._err) = os.pipe(), os.pipe()
        self.stdout, self.stderr = os.fdopen(out, "rb", 0), os.fdopen(err, "rb", 0)
        self._open = {self._out, self._err}

    def write(self, data: bytes) -> None:
        """Write to stdout."""
        os.write(self._out, data)

    def end(self, code: int, *, leaves_child: bool) -> None:
        """End. A child that it leaves may hold its pipes open."""
        if self.code is None:
            self.code = code
            if not leaves_child:
                self.close_pipes()
            if self.ended.set_running_or_notify_cancel():  # nobody waits any more once the carrier is gone
                self.ended.set_result(code)

    def close_pipes(self) -> None:
        """Close the ends of the pipes that are written to."""
        while self._open:
            os.close(self._open.pop())

    def wait(self) -> int:
        """Never run: `_ThreadsDouble` sees that this is waited for, and gives `ended` in its place."""
        raise AssertionError("a thread would block here until the runner ends")

    def send_signal(self, number: signal.Signals) -> None:
        if not self.is_deaf:
            self.end(-number, leaves_child=False)

    def kill_group(self, pid: int, number: signal.Signals) -> None:
        """Stand for `os.killpg`."""
        assert pid == self.pid
        self.is_reaped |= self.code is not None
        self.end(-number, leaves_child=False)


class _ThreadsDouble(concurrent.futures.ThreadPoolExecutor):
    """Runs at once what a thread would run; the end of the runner's process is waited for without one."""

    def __init__(self, runner: RunnerDouble) -> None:
        super().__init__(1)
        self._runner = runner

    def submit(self, work: Any, /, *args: Any, **options: Any) -> concurrent.futures.Future[Any]:
        if args[:1] == (self._runner.wait,) or self._runner.wait in getattr(work, "args", ()):
            return self._runner.ended
        done: concurrent.futures.Future[Any] = concurrent.futures.Future()
        try:
            done.set_result(work(*args, **options))
        except Exception as error:  # noqa: BLE001  # whoever waits for it raises it
            done.set_exception(error)
        return done


class HostDouble:
    """One life of the host: it takes messages when the test says so, as the real session would."""

    def __init__(self, node: CarrierNode) -> None:
        self.node = node
        self.is_up = True
        self.connection: CarrierConnection | None = None
        self.inbox: list[CarrierMessage] = []
        """Messages that have come and were not taken."""
        self.heard = bytearray()
        self.acknowledged = 0
        """The last turn end whose files were acknowledged as stored."""
        self.exits: list[int] = []
        self.input: dict[str, bytes] = node.host_input
        self._stage: tuple[int, dict[str, Changes], dict[tuple[str, str], bytes]] | None = None

    async def meet(self, connection: CarrierConnection) -> None:
        """Serve a connection from its hello until it breaks."""
        hello = await connection.receive_hello()
        is_started = hello.fields["is_started"]
        assert self.connection is None, "the carrier is connected twice"
        assert is_started == self.node.carrier_started
        if self.node.has_started and not is_started:
            self.node.is_refused = True
            await connection.send("refused", reason="this run had a container before")
            connection.close()
            return
        self.connection, self.inbox, self._stage = connection, [], None
        self.exits, self._sent_requests = [], set[tuple[str, bytes]]()
        await connection.send("welcome", out=len(self.heard))
        pings = asyncio.get_running_loop().create_task(connection.keep_alive())
        try:
            await (self._send_input() if is_started else self._lay_down())
            while True:
                self.inbox.append(await connection.receive())
        except ConnectionLost:
            self._forget(connection)
        finally:
            pings.cancel()
            with suppress(asyncio.CancelledError, ConnectionLost):
                await pings
            connection.close()

    def _forget(self, connection: CarrierConnection) -> None:
        if self.connection is connection:
            self.connection, self.inbox, self._stage = None, [], None

    def break_off(self) -> None:
        """Lose the connection, and what has come and was not taken."""
        if self.connection is not None:
            self.connection.close()
            self._forget(self.connection)

    def send(self, kind: str, payload: bytes = b"", **fields: Any) -> None:
        """Send a message."""
        assert self.connection is not None
        sent = self.node.loop.create_task(self.connection.send(kind, payload, **fields))
        self.node.settle()
        assert sent.done()
        with suppress(ConnectionLost):
            sent.result()

    # The messages that it sends

    async def _lay_down(self) -> None:
        assert self.connection is not None
        for target, files in ((GROUP, self.node.host_files), (INPUT, self.input)):
            await self.connection.send(
                "tree",
                target=target,
                entries={path: _fields(data) for path, data in files.items()},
                is_last=True,
                is_whole=True,
                is_writable=target == GROUP,
            )
        await self.connection.send("laid")

    async def _send_input(self) -> None:
        """Send all that was ever written for the agent: who knows what an earlier connection has sent."""
        assert self.connection is not None
        for name, data in self.input.items():
            await self._send_file(self.connection, name, data, parts=2)

    async def _send_file(
        self, connection: CarrierConnection, name: str, data: bytes, *, parts: int, is_whole: bool = True
    ) -> None:
        await connection.send("change", target=INPUT, removed=[], put={name: _fields(data)})
        size = -(-len(data) // parts)
        pieces = [data[at : at + size] for at in range(0, len(data), size)]
        for number, piece in enumerate(pieces if is_whole else pieces[:-1], start=1):
            await connection.send("file", piece, target=INPUT, path=name, is_last=number == len(pieces))

    def write_input(self, name: str, *, parts: int, is_whole: bool) -> None:
        """Write a file for the agent, and send it in parts; the last is missing unless it is whole."""
        assert self.connection is not None
        self.input[name] = f"input {name} ".encode() * 3
        sending = self._send_file(self.connection, name, self.input[name], parts=parts, is_whole=is_whole)
        self.node.run(sending)

    def kinds(self) -> list[str]:
        """Return the kinds of the messages that have come and were not taken."""
        return [message.kind for message in self.inbox]

    # The messages that it takes

    def take(self, *, is_answered: bool = True, is_stale: bool = False) -> None:
        """Take the oldest message that has come, if one has, and answer it."""
        if not self.inbox:
            return
        message = self.inbox.pop(0)
        answers = self._answers(message, is_stale=is_stale)
        if is_answered and self.connection is not None:
            for kind, payload, fields in answers:
                self.send(kind, payload, **fields)
                if kind == "staged":
                    self.acknowledged = fields["n"]
                if kind == "too_much":
                    self.break_off()

    def _answers(self, message: CarrierMessage, *, is_stale: bool) -> list[Answer]:
        match message.kind:
            case "need":
                return self._needed(message)
            case "ready":
                self.node.has_started = True
                return [("start", b"order", {"environment": {}, "ports": []})]
            case "out":
                self._take_output(message)
            case "stage" | "file" | "stage_end":
                return self._take_stage(message, is_stale=is_stale)
            case "request":
                return self._take_request(message)
            case "exit":
                assert not self.node.unsent_requests(), "the exit came before a request"
                assert self.node.runner.is_reaped, "what the runner started is still there"
                self.exits.append(message.number("code"))
        return []

    def _needed(self, message: CarrierMessage) -> list[Answer]:
        target = message.text("target")
        files = self.node.host_files if target == GROUP else self.input
        return [
            ("file", files[path], {"target": target, "path": path, "is_last": True})
            for path in message.texts("paths")
        ]

    def _take_output(self, message: CarrierMessage) -> None:
        at = message.number("at")
        data = message.payload
        assert at == len(self.heard), "a gap in the output, or some of it again"
        self.heard += data
        for line in data.splitlines():
            frame = json.loads(line)
            if frame["kind"] == "turn_end" and frame["n"] > self.node.recorded:
                assert frame["n"] in self.node.stored, "a turn's end came before its files"
                self.node.recorded = frame["n"]
                self.node.put_in_place(self.node.stored.pop(frame["n"]))

    def _take_stage(self, message: CarrierMessage, *, is_stale: bool) -> list[Answer]:
        n = message.fields.get("n")
        if message.kind == "stage":
            if self._stage is None or self._stage[0] != n:
                self._stage = n, {}, {}
            target, changed = message.text("target"), changes_from(message)
            before = self._stage[1].get(target, Changes((), {}))
            together = Changes((*before.removed, *changed.removed), {**before.put, **changed.put})
            self._stage[1][target] = together
        elif message.kind == "file":
            assert self._stage is not None
            key = message.text("target"), message.text("path")
            data = self._stage[2][key] = self._stage[2].get(key, b"") + message.payload
            assert len(data) <= self._stage[1][key[0]].put[key[1]].size, "more of a file than was announced"
        else:
            stage, self._stage = self._stage or (n, {}, {}), None
            assert stage[0] == n
            if self.node.refuses_files:
                return [("too_much", b"", {"reason": "more than a turn may leave"})]
            announced = [(key, path) for key, each in stage[1].items() for path in each.put]
            if is_stale or not set(announced) <= stage[2].keys():
                return [("stale", b"", {"n": n})]
            self._seal(*stage)
            return [("staged", b"", {"n": n})]
        return []

    def _seal(self, n: int, changed: dict[str, Changes], files: dict[tuple[str, str], bytes]) -> None:
        found: dict[str, bytes | None] = {}
        for target, each in changed.items():
            assert target == GROUP
            found.update(dict.fromkeys(each.removed))
            for path, entry in each.put.items():
                data = files[target, path]
                assert entry == trees.entry_from(_fields(data))
                found[path] = data
        if n == 0:
            assert not self.node.stored, "files of no turn came before those of one that has ended"
            is_left = self.node.runner.code is not None and not self.node.is_in_turn
            assert is_left or found.keys() <= self.node.sent_files, "files of a turn that has not ended"
            self.node.put_in_place(found)
        else:
            self.node.stored = {n: found}
            assert self.node.after(found) == self.node.files()

    def _take_request(self, message: CarrierMessage) -> list[Answer]:
        name = message.text("name")
        request_key = name, message.payload
        assert request_key not in self._sent_requests, "a request came twice over one connection"
        self._sent_requests.add(request_key)
        self.node.stored_requests[name] = message.payload
        request = json.loads(message.payload)
        if request["type"] == "send_file":
            file = request["path"].rpartition("/")[2]
            assert file in self.node.host_files or file not in self.node.files(), "a request before its file"
        return [("took", b"", {"box": message.text("box"), "name": name})]


class CarrierNode:
    """A node with one carrier, and all that lasts longer than one life of its host."""

    def __init__(self, folder: Path) -> None:
        self.loop = ManualLoop()
        self.runner = RunnerDouble()
        self.loop.set_default_executor(_ThreadsDouble(self.runner))
        self.code: int | None = None
        """The exit code of the container; None while the carrier is there."""
        self.has_started = False
        """Whether a host has given the order."""
        self.is_in_turn = False
        """Whether the test's runner has begun a turn and not ended it."""
        self.refuses_files = False
        """Whether any host finds the files more than may travel."""
        self.sent_files: set[str] = set()
        """The files that the agent asked to send."""
        self.is_refused = False
        """Whether a host has refused the carrier."""
        self.host_files: dict[str, bytes] = {"CLAUDE.md": b"be kind", "old.md": b"old"}
        self.host_input: dict[str, bytes] = {"0.json": b"the first input"}
        self.stored: dict[int, dict[str, bytes | None]] = {}
        """Files that the host keeps for a turn's end that it has not heard; None for one that is removed."""
        self.recorded = 0
        self.requests: dict[str, bytes] = {}
        self.stored_requests: dict[str, bytes] = {}
        self._root = folder
        for box in BOXES:
            (folder / "ipc" / box).mkdir(parents=True)
        self._replaced = ExitStack()
        for owner, name, value in (
            (carrier_module, "ABANDONED_SECONDS", ABANDONED_SECONDS),
            (runner_output, "MAX_OUTPUT_BYTES", MAX_OUTPUT_BYTES),
            (carrier_module.os, "killpg", self.runner.kill_group),
            (DirectoryWatch, "start", lambda _: None),  # the sweep is left
        ):
            self._replaced.enter_context(mock.patch.object(owner, name, value))
        self._meetings: set[asyncio.Task[None]] = set()
        self.host = HostDouble(self)
        self.carrier = self.loop.run_until_complete(self._begin(folder))
        self._life = self.loop.create_task(self.carrier.run())
        self.settle()

    async def _begin(self, folder: Path) -> Carrier:
        return Carrier(self, folder, self.runner)  # type: ignore[arg-type]  # stands for both of them

    async def connect(self, **hello: Any) -> tuple[CarrierConnection, CarrierMessage]:
        """Reach the host without TLS, as `CarrierOrder.connect` does with it."""
        if not self.host.is_up:
            raise ConnectionRefusedError
        here, there = socket.socketpair()
        connection = CarrierConnection(*await asyncio.open_connection(sock=here))
        other = CarrierConnection(*await asyncio.open_connection(sock=there))
        self._meetings.add(self.loop.create_task(self.host.meet(other)))
        return connection, await greet(connection, token="token", **hello)

    def another_host(self) -> HostDouble:
        """Begin another life of the host, which has what lasts and remembers nothing else."""
        self.host = HostDouble(self)
        return self.host

    # Time

    def settle(self) -> None:
        """Run until nothing is left to do."""
        self.pass_seconds(0)

    def pass_seconds(self, seconds: float) -> None:
        """Run all that happens in these seconds."""
        self.loop.pass_seconds(seconds)
        if self.code is None and self._life.done():
            self.code = self._life.result()
        for meeting in [one for one in self._meetings if one.done()]:
            self._meetings.remove(meeting)
            meeting.result()

    def run(self, work: Any) -> None:
        """Run a coroutine to its end, and all that follows from it."""
        task = self.loop.create_task(work)
        self.settle()
        assert task.done()
        task.result()

    def close(self) -> None:
        """End all that runs."""
        self.host.break_off()
        self._life.cancel()
        for meeting in self._meetings:
            meeting.cancel()
        self.loop.pass_seconds(0)
        self.runner.end(0, leaves_child=False)
        self.runner.close_pipes()
        self.runner.stdout.close()
        self.runner.stderr.close()
        self.loop.close()
        self._replaced.close()

    # Files

    @property
    def group(self) -> Path:
        """The folder where the agent works."""
        return self._root / "group"

    @property
    def carrier_started(self) -> bool:
        """Whether the runner has its order."""
        return self.runner.stdin.closed

    def files(self) -> dict[str, bytes]:
        """Return the files of the group as the agent has them."""
        return {path.name: path.read_bytes() for path in self.group.iterdir()}

    def input_files(self) -> dict[str, bytes]:
        """Return what the host wrote for the agent, as the agent has it."""
        return {path.name: path.read_bytes() for path in (self._root / "ipc" / "input").iterdir()}

    def after(self, changed: dict[str, bytes | None]) -> dict[str, bytes]:
        """Return the host's files with changes put in place."""
        return {path: data for path, data in {**self.host_files, **changed}.items() if data is not None}

    def put_in_place(self, changed: dict[str, bytes | None]) -> None:
        """Change the host's files."""
        self.host_files = self.after(changed)

    def write_request(self, name: str, file: str | None = None, *, text: str = "") -> None:
        """Write a request of the agent: a message with `text` or its name, or to send `file`."""
        request = {"type": "message", "text": text or name}
        if file is not None:
            self.sent_files.add(file)
            (self.group / file).write_text(file)
            request = {"type": "send_file", "path": f"{GROUP}/{file}"}
        self.requests[name] = json.dumps(request).encode()
        (self._root / "ipc" / "tasks" / name).write_bytes(self.requests[name])

    def waiting_requests(self) -> set[str]:
        """Return the names of the requests that the carrier has not removed."""
        return {path.name for box in BOXES for path in (self._root / "ipc" / box).glob("*")}

    def unsent_requests(self) -> set[str]:
        """Return the names of the requests that no host has stored."""
        return self.requests.keys() - self.stored_requests.keys()


def _fields(data: bytes) -> dict[str, Any]:
    """Return the fields that describe a plain file."""
    import hashlib

    return trees.fields_of(trees.Entry("file", 0o644, len(data), hashlib.sha256(data).hexdigest()))
