"""The door of a swarm, as programs meet it that have no token, or mean ill with one."""

from __future__ import annotations

import asyncio
import gc
import json
import socket
import ssl
import struct
import weakref
from asyncio.sslproto import SSLProtocol
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, cast

import pytest

from agent_runner.wire import carrier, gate
from agent_runner.wire.carrier import (
    ENTRIES_A_MESSAGE,
    MAX_HELLO_BYTES,
    VERSION,
    ConnectionLost,
    changes_from,
    send_changes,
)
from agent_runner.wire.trees import MAX_ENTRIES, Changes, Entry, TreeError
from orchestrator.containers.swarm import door as door_module
from orchestrator.containers.swarm import unidentified as unidentified_module
from orchestrator.containers.swarm.door import CarrierDoor, HostConnection
from orchestrator.containers.swarm.group_files import MAX_REMOVED, OpenStage
from orchestrator.containers.swarm.unidentified import AcceptedSocket
from orchestrator.proxies import strict_json
from tests.support.until import DEADLINE_SECONDS, until

TlsEnds = weakref.WeakSet[SSLProtocol]
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class HeldSession:
    """A run whose connection says no more than its end."""

    run_id = "run-1"

    def __init__(self) -> None:
        self.served = 0
        self.may_end = asyncio.Event()

    async def serve(self, connection: HostConnection, hello: object) -> None:
        self.served += 1
        await self.may_end.wait()
        connection.writer.write(b"the end")
        await connection.writer.drain()


@asynccontextmanager
async def opened(
    folder: Path, session: HeldSession | None = None
) -> AsyncIterator[tuple[CarrierDoor, list[str]]]:
    """A door that knows one run or none; yields it and the hashes of all tokens that it looked for."""
    looked_for: list[str] = []

    def find(token: str) -> Any:
        looked_for.append(token)
        return session

    door = CarrierDoor(folder, find=find)
    door.knows_all_runs.set()
    await door.open("127.0.0.1")
    try:
        yield door, looked_for
    finally:
        await door.close()


async def dial(door: CarrierDoor) -> Streams:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return await asyncio.open_connection("127.0.0.1", door.port, ssl=context)


def message(header: bytes, payload: bytes = b"") -> bytes:
    return struct.pack(">II", len(header), len(payload)) + header + payload


def hello(**fields: Any) -> bytes:
    return json.dumps({"kind": "hello", "v": VERSION, "token": "x" * 43, **fields}).encode()


async def answer(streams: Streams, *pieces: bytes) -> bytes:
    """Send the pieces and return all that comes before the door hangs up."""
    reader, writer = streams
    async with asyncio.timeout(DEADLINE_SECONDS):
        try:
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
            return await reader.read()
        except ConnectionError:
            return b""
        finally:
            writer.close()


@pytest.mark.parametrize(
    "sent",
    [
        struct.pack(">II", MAX_HELLO_BYTES + 1, 0),
        struct.pack(">II", 2, 1),
        struct.pack(">II", 2**32 - 1, 2**32 - 1),
        message(hello(more="x" * MAX_HELLO_BYTES)),
        message(hello(), b"x"),
    ],
    ids=["header", "payload", "both", "whole-header", "whole-payload"],
)
async def test_what_is_larger_than_a_hello_is_dropped_before_it_has_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(door_module, "HELLO_SECONDS", 10 * DEADLINE_SECONDS)
    monkeypatch.setattr(carrier, "SILENCE_SECONDS", 10 * DEADLINE_SECONDS)
    async with opened(tmp_path) as (door, looked_for):
        assert await answer(await dial(door), sent) == b""
    assert looked_for == []


@pytest.mark.parametrize(
    "header",
    [
        b"[" * 16_000,
        b'{"kind": "hello", "kind": "ping"}',
        b'{"a": ' + b"9" * 15_000 + b"}",
        b"\xff\xfe",
        b'{"kind": "hello", "v": 2, "token": 1}',
        b"[]",
    ],
)
async def test_a_hello_that_is_no_strict_json_is_dropped_without_a_word(
    tmp_path: Path, header: bytes
) -> None:
    async with opened(tmp_path) as (door, looked_for):
        assert await answer(await dial(door), message(header)) == b""
    assert looked_for == []


async def test_nothing_comes_before_the_hello(tmp_path: Path) -> None:
    """Pings of a stranger would be parsed without end."""
    async with opened(tmp_path) as (door, looked_for):
        said = await answer(await dial(door), message(b'{"kind":"ping"}'), message(hello()))
        assert b'"kind":"refused"' in said
        assert looked_for == []
        assert b'"kind":"refused"' in await answer(await dial(door), message(hello()))
        assert len(set(looked_for)) == 1


def allow(monkeypatch: pytest.MonkeyPatch, *, undisturbed: int, unidentified: int, seconds: float) -> None:
    """Let so many connections be undisturbed, and open at all; time is over only for those that are ended."""
    monkeypatch.setattr(unidentified_module, "MAX_UNDISTURBED", undisturbed)
    monkeypatch.setattr(unidentified_module, "MAX_UNIDENTIFIED", unidentified)
    monkeypatch.setattr(unidentified_module, "UNDISTURBED_SECONDS", seconds)
    monkeypatch.setattr(unidentified_module, "TRIM_SECONDS", 0.0)
    monkeypatch.setattr(door_module, "HELLO_SECONDS", 10 * DEADLINE_SECONDS)


async def end_of(streams: Streams) -> None:
    """Wait until the door has ended a connection."""
    async with asyncio.timeout(DEADLINE_SECONDS):
        with suppress(ConnectionError):
            assert await streams[0].read() == b""
    streams[1].close()


async def test_more_strangers_than_there_is_room_for_are_sent_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    allow(monkeypatch, undisturbed=2, unidentified=2, seconds=10 * DEADLINE_SECONDS)
    async with opened(tmp_path) as (door, _):
        waiting = [await dial(door) for _ in range(2)]
        with pytest.raises(OSError):  # noqa: PT011 - which one depends on how far its handshake came
            await dial(door)
        for streams in waiting:
            assert b"refused" in await answer(streams, message(hello()))
        await until(lambda: len(door._unidentified) == 0, "the refused ones are closed")
        assert b"refused" in await answer(await dial(door), message(hello()))


@pytest.mark.parametrize("is_tls", [True, False], ids=["no-hello", "no-handshake"])
async def test_connections_that_say_nothing_make_room_for_one_that_speaks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_tls: bool
) -> None:
    allow(monkeypatch, undisturbed=1, unidentified=2, seconds=0.0)
    async with opened(tmp_path) as (door, _):
        for _ in range(3):
            silent = await (dial(door) if is_tls else asyncio.open_connection("127.0.0.1", door.port))
            speaking = await dial(door)
            await end_of(silent)
            assert b"refused" in await answer(speaking, message(hello()))


async def test_a_connection_with_the_token_of_a_run_is_ended_for_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    allow(monkeypatch, undisturbed=1, unidentified=3, seconds=0.0)
    session = HeldSession()
    async with opened(tmp_path, session) as (door, _):
        known = await dial(door)
        known[1].write(message(hello()))
        await until(lambda: session.served == 1, "it is known")
        for _ in range(3):
            silent = await dial(door)
            other = await dial(door)
            await end_of(silent)
            other[1].transport.abort()
        known[1].write(message(b'{"kind":"ping"}'))
        session.may_end.set()
        assert await known[0].read() == b"the end"
        known[1].close()


async def test_a_door_that_closes_ends_every_connection(tmp_path: Path) -> None:
    session = HeldSession()
    async with opened(tmp_path, session) as (door, _):
        known, silent = await dial(door), await dial(door)
        bare = await asyncio.open_connection("127.0.0.1", door.port)
        known[1].write(message(hello()))
        await until(lambda: session.served == 1, "it is known")
        await until(lambda: len(door._unidentified) == 2, "the others are accepted")
    assert len(door._unidentified) == 0
    for streams in (known, silent, bare):
        await end_of(streams)


async def test_strangers_that_reset_leave_no_traceback(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: reported.append(context))
    async with opened(tmp_path) as (door, _):
        for sent in (b"", b"\0\0", struct.pack(">II", 5000, 0) + b"[1,", message(hello())):
            _, writer = await dial(door)
            writer.write(sent)
            await writer.drain()
            connected: socket.socket = writer.get_extra_info("socket")
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
        assert b"refused" in await answer(await dial(door), message(hello()))
    assert reported == []
    assert "Traceback" not in capfd.readouterr().err + caplog.text


@pytest.fixture
def tls_ends(monkeypatch: pytest.MonkeyPatch) -> Iterator[TlsEnds]:
    """The objects of the test's doors that hold TLS and its buffers; no garbage is collected meanwhile."""
    made: TlsEnds = weakref.WeakSet()
    real = SSLProtocol.__init__

    def init(protocol: SSLProtocol, *given: Any, **named: Any) -> None:
        real(protocol, *given, **named)
        if protocol._server_side:  # type: ignore[attr-defined]
            made.add(protocol)

    monkeypatch.setattr(SSLProtocol, "__init__", init)
    gc.disable()
    yield made
    gc.enable()


def leave(streams: Streams) -> None:
    """Reset a connection."""
    connected: socket.socket = streams[1].get_extra_info("socket")
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    streams[1].transport.abort()


async def fail_in_handshake(door: CarrierDoor, tls_ends: TlsEnds) -> None:
    streams = await asyncio.open_connection("127.0.0.1", door.port)
    streams[1].write(b"\x16\x03\x01\x00\x08\x01\x00\x00\x04late")
    await end_of(streams)


async def leave_in_handshake(door: CarrierDoor, tls_ends: TlsEnds) -> None:
    streams = await asyncio.open_connection("127.0.0.1", door.port)
    streams[1].write(CLIENT_HELLO)
    await until(lambda: len(tls_ends) == 1, "the handshake has begun")
    leave(streams)


async def leave_after_it(door: CarrierDoor, tls_ends: TlsEnds) -> None:
    streams = await dial(door)
    await until(lambda: len(tls_ends) == 1, "it is met")
    leave(streams)


async def be_refused(door: CarrierDoor, _: TlsEnds | None = None) -> None:
    assert b"refused" in await answer(await dial(door), message(hello()))


async def be_ended(door: CarrierDoor, tls_ends: TlsEnds) -> None:
    streams = await dial(door)
    await until(lambda: len(door._serving) == 1, "it is met")
    door._unidentified._trim()
    await end_of(streams)


CLIENT_HELLO = b"\x16\x03\x01\x10\x00\x01\x00\x10\x00\x03\x03"
"""The beginning of a TLS record with a ClientHello of 4096 bytes."""


@pytest.mark.parametrize(
    "stranger", [fail_in_handshake, leave_in_handshake, leave_after_it, be_refused, be_ended]
)
async def test_a_stranger_that_is_gone_leaves_no_memory_to_collect(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    tls_ends: TlsEnds,
    stranger: Callable[[CarrierDoor, TlsEnds], Awaitable[None]],
) -> None:
    allow(monkeypatch, undisturbed=0, unidentified=5, seconds=0.0)
    monkeypatch.setattr(unidentified_module, "TRIM_SECONDS", 10 * DEADLINE_SECONDS)
    async with opened(tmp_path) as (door, _):
        await stranger(door, tls_ends)
        await until(lambda: not door._serving, "the door has ended it")
        await until(lambda: len(tls_ends) == 0, "nothing is left of it")


async def test_a_stranger_that_sends_nothing_costs_no_memory_for_tls(
    tmp_path: Path, tls_ends: TlsEnds
) -> None:
    async with opened(tmp_path) as (door, _):
        _, writer = await asyncio.open_connection("127.0.0.1", door.port)
        await be_refused(door)  # after the other was accepted
        await until(lambda: len(door._unidentified) == 1, "only the silent one is left")
        assert len(tls_ends) == 0
        writer.close()


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x40\x00\x01\x02\x00\x00",
        b"\x16\x03\x01\x00\x04\x01\x00\x20\x01",
        b"\x17\x03\x01\x10\x00\x01\x00\x10\x00",
        b"\x16\x03\x01\x10\x00\x02\x00\x10\x00",
        b"GET / HTTP/1.1\r\n",
        b"\x16\x03\x01",
    ],
    ids=["131072 bytes", "8193 bytes", "other record", "other message", "http", "a part"],
)
async def test_what_does_not_begin_with_a_clienthello_of_ordinary_length_gets_no_tls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tls_ends: TlsEnds, sent: bytes
) -> None:
    monkeypatch.setattr(door_module, "HELLO_SECONDS", 10 * DEADLINE_SECONDS)
    async with opened(tmp_path) as (door, _):
        streams = await asyncio.open_connection("127.0.0.1", door.port)
        streams[1].write(sent)
        await end_of(streams)
        assert len(tls_ends) == 0


async def test_while_the_host_starts_a_stranger_sends_no_more_than_a_hello_and_is_ended_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    allow(monkeypatch, undisturbed=1, unidentified=2, seconds=0.0)
    async with opened(tmp_path) as (door, looked_for):
        door.knows_all_runs.clear()
        flooding = await dial(door)
        flooding[1].write(message(hello()) + bytes(1_000_000))
        async with asyncio.timeout(DEADLINE_SECONDS):
            with suppress(ConnectionError):
                await flooding[1].drain()
                assert await flooding[0].read() == b""
        flooding[1].transport.abort()
        waiting = await dial(door)
        waiting[1].write(message(hello()))
        await until(lambda: len(looked_for) == 2, "both have shown what token they have")
        last = await dial(door)
        await end_of(waiting)
        await until(lambda: len(door._serving) == 1, "only the last is served")
        last[1].transport.abort()


async def test_a_connection_ended_right_after_its_handshake_takes_no_number_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tls_ends: TlsEnds
) -> None:
    async with opened(tmp_path) as (door, _):
        real = asyncio.StreamReaderProtocol.connection_made

        def connection_made(protocol: asyncio.StreamReaderProtocol, transport: Any) -> None:
            real(protocol, transport)
            if transport.get_extra_info("sockname")[1] == door.port:
                monkeypatch.undo()
                for serving in door._serving:
                    serving.cancel()

        monkeypatch.setattr(asyncio.StreamReaderProtocol, "connection_made", connection_made)
        await end_of(await dial(door))
        await be_refused(door)
        await until(lambda: len(tls_ends) == 0, "asyncio has closed it")


async def test_a_node_that_takes_no_end_of_its_control_connection_does_not_hold_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tls_ends: TlsEnds
) -> None:
    monkeypatch.setattr(door_module, "SILENCE_SECONDS", 0.0)
    session = HeldSession()
    async with opened(tmp_path, session) as (door, _):
        _, writer = await dial(door)
        writer.write(message(hello()))
        await until(lambda: session.served == 1, "it is known")
        writer.transport._ssl_protocol._transport.pause_reading()  # type: ignore[attr-defined]
        session.may_end.set()
        await until(lambda: len(tls_ends) == 0, "the door has closed it")
        writer.transport.abort()


async def test_a_slow_node_gets_the_whole_of_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asyncio.constants, "SSL_SHUTDOWN_TIMEOUT", 1e-6)
    size = 20_000_000

    async def send_all(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(bytes(size))
        writer.close()

    async with await asyncio.start_server(send_all, "127.0.0.1", 0) as proxy:
        session = RelayingSession(proxy.sockets[0].getsockname()[1])
        async with opened(tmp_path, session) as (door, _):  # type: ignore[arg-type]
            reader, writer = await dial(door)
            writer.write(message(hello(port=next(iter(session.ports)))))
            received = 0
            async with asyncio.timeout(DEADLINE_SECONDS):
                header_bytes, _ = struct.unpack(">II", await reader.readexactly(8))
                await reader.readexactly(header_bytes)
                # Read slowly only at the end, when the proxy has sent all.
                while session.relays:
                    received += len(await reader.read(64 * 1024))
                for _ in range(3):
                    other = await dial(door)
                    other[1].transport.abort()
                while data := await reader.read(64 * 1024):
                    received += len(data)
            writer.close()
            assert received == size


@pytest.mark.parametrize("ends", ["the run", "the door", "the door, after the proxy"])
async def test_a_relay_of_a_node_that_is_gone_is_held_no_longer_than_what_it_belongs_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    accepted: list[AcceptedSocket] = []

    def accept(connection: socket.socket) -> AcceptedSocket:
        accepted.append(AcceptedSocket(connection))
        return accepted[-1]

    monkeypatch.setattr(door_module, "AcceptedSocket", accept)
    monkeypatch.setattr(door_module, "SILENCE_SECONDS", 0.0)

    may_end = asyncio.Event()

    async def wait_for_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.wait(
            {asyncio.create_task(may_end.wait()), asyncio.create_task(reader.read())},
            return_when="FIRST_COMPLETED",
        )
        writer.close()

    async with await asyncio.start_server(wait_for_end, "127.0.0.1", 0) as proxy:
        session = RelayingSession(proxy.sockets[0].getsockname()[1])
        async with opened(tmp_path, session) as (door, _):  # type: ignore[arg-type]
            reader, writer = await dial(door)
            writer.write(message(hello(port=next(iter(session.ports)))))
            header_bytes, _ = struct.unpack(">II", await reader.readexactly(8))
            await reader.readexactly(header_bytes)
            # As a node that is gone, it answers nothing from here on.
            cast("asyncio.ReadTransport", writer.transport).pause_reading()
            if ends == "the run":
                for relay in session.relays:
                    relay.cancel()
                await until(lambda: accepted[0].fileno() == -1, "it is closed")
            if ends == "the door, after the proxy":
                may_end.set()
                await until(lambda: not session.relays, "the relay has ended")
                await until(lambda: not door._serving, "its connection is being closed")
        await until(lambda: accepted[0].fileno() == -1, "it is closed")
        writer.transport.abort()


class RelayingSession:
    """A run with one proxy."""

    run_id = "run-1"

    def __init__(self, port: int) -> None:
        self.ports = frozenset({port})
        self.relays: set[asyncio.Task[None]] = set()


async def test_a_header_with_more_parts_than_any_has_ends_its_own_connection() -> None:
    reader = asyncio.StreamReader()
    reader.feed_data(message(b'{"kind":"stage","removed":[' + b"1," * 100_000 + b"1]}"))
    with pytest.raises(ConnectionLost, match="100,000 parts"):
        await HostConnection(reader, writer=None).receive()  # type: ignore[arg-type]


class Sent:
    """Takes messages as a connection would, and reads them as the host does."""

    def __init__(self) -> None:
        self.changes: list[Changes] = []

    async def send(self, kind: str, payload: bytes = b"", **fields: Any) -> None:
        header = json.dumps({"kind": kind, **fields}).encode()
        reader = asyncio.StreamReader()
        reader.feed_data(message(header, payload))
        assert strict_json.parse(header)
        taken = await HostConnection(reader, writer=None).receive()  # type: ignore[arg-type]
        self.changes.append(changes_from(taken))


async def test_a_turn_that_removes_all_that_a_tree_may_hold_is_told_in_headers_that_the_host_takes(
    tmp_path: Path,
) -> None:
    removed = tuple(f"file {number}" for number in range(MAX_ENTRIES))
    put = {f"folder {number}": Entry("dir", 0o755) for number in range(ENTRIES_A_MESSAGE + 1)}
    sent = Sent()
    await send_changes(sent, "stage", "/workspace/group", tmp_path, Changes(removed, put))  # type: ignore[arg-type]
    assert tuple(path for one in sent.changes for path in one.removed) == removed
    assert {path: entry for one in sent.changes for path, entry in one.put.items()} == put
    assert not any(one.removed for one in sent.changes[-2:]), "something else may be put in their place"

    empty = Sent()
    await send_changes(empty, "stage", "/workspace/group", tmp_path, Changes((), {}))  # type: ignore[arg-type]
    assert empty.changes == [Changes((), {})]


@pytest.mark.parametrize(
    "changes",
    [
        Changes(tuple("x" * 2000), {}),
        Changes((), {str(number): Entry("dir") for number in range(2000)}),
        Changes((), {"file": Entry("file", size=200 * 1024**2)}),
    ],
)
def test_what_a_turn_leaves_is_bounded_however_often_it_says_it(tmp_path: Path, changes: Changes) -> None:
    stage = OpenStage(tmp_path, 1)
    with pytest.raises(TreeError, match="more than a turn may leave"):  # noqa: PT012
        for _ in range(MAX_REMOVED // 2000 + 1):
            stage.extend("/workspace/group", changes)


def test_one_container_makes_ten_connections_a_second_after_as_many_at_once_as_it_may_have() -> None:
    pace = gate.Pace()
    assert [pace.wait_seconds("a", 0.0) for _ in range(gate.MAX_OF_ONE)] == [0.0] * gate.MAX_OF_ONE
    assert pace.wait_seconds("a", 0.0) == pytest.approx(0.1)
    assert pace.wait_seconds("a", 0.0) == pytest.approx(0.2)
    assert pace.wait_seconds("b", 0.0) == 0.0
    assert pace.wait_seconds("a", 10.0) == 0.0, "it has waited"
    for peer in range(2 * gate.MAX_PACES):
        pace.wait_seconds(str(peer), 1000.0 + peer)
    assert len(pace._last_begin) <= gate.MAX_PACES + 1
