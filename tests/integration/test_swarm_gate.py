"""The gate between the closed networks of a swarm and the host, with containers that mean ill."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

from agent_runner.wire import carrier, gate
from agent_runner.wire.carrier import MAX_HELLO_BYTES
from orchestrator.containers.swarm.door import HELLO_SECONDS, MAX_RELAYS, TLS_BUFFER_BYTES
from orchestrator.containers.swarm.unidentified import MAX_UNDISTURBED, MAX_UNIDENTIFIED
from tests.support.runtimes import eventually


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(100):
        writer.write(data)
    writer.close()


async def echoes(port: int, source: str) -> bool:
    """Whether what is said to the gate from an address comes back."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(source, 0))
    try:
        writer.write(b"hello")
        return await reader.read(100) == b"hello"
    except ConnectionResetError:
        return False
    finally:
        writer.close()


def open_descriptors() -> set[str]:
    return {path.name for path in Path("/proc/self/fd").iterdir()}


async def is_alone() -> bool:
    return len(asyncio.all_tasks()) == 1


async def test_one_container_that_connects_without_end_keeps_no_other_from_the_host():
    """Its places come free again as its connections end."""
    async with await asyncio.start_server(echo, "127.0.0.1", 0) as host:
        carry = gate.Gate(host.sockets[0].getsockname()[1], "127.0.0.1").carry
        async with await asyncio.start_server(carry, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            held = [
                await asyncio.open_connection("127.0.0.1", port, local_addr=("127.0.0.2", 0))
                for _ in range(gate.MAX_OF_ONE)
            ]
            for _, writer in held:
                writer.write(b"mine")
            assert [await reader.read(100) for reader, _ in held] == [b"mine"] * len(held)

            assert not await echoes(port, "127.0.0.2")
            assert await echoes(port, "127.0.0.3")

            for reader, writer in held:
                writer.write_eof()
                assert await reader.read(100) == b""
                writer.close()
            await eventually(is_alone, "the gate has let go of all")
            assert await echoes(port, "127.0.0.2")
            await eventually(is_alone, "and of the last")


async def test_a_container_that_has_too_many_is_refused_before_its_connection_costs_anything(monkeypatch):
    made = []
    real_connection_made = asyncio.StreamReaderProtocol.connection_made

    def connection_made(protocol, transport):
        made.append((transport.get_extra_info("sockname")[1], transport.get_extra_info("peername")[0]))
        real_connection_made(protocol, transport)

    monkeypatch.setattr(gate, "MAX_OF_ONE", 1)
    monkeypatch.setattr(asyncio.StreamReaderProtocol, "connection_made", connection_made)
    async with await asyncio.start_server(echo, "127.0.0.1", 0) as host:
        host_port = host.sockets[0].getsockname()[1]
        async with await gate.open_gate(host_port, "127.0.0.1", "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=("127.0.0.2", 0))
            writer.write(b"mine")
            assert await reader.read(100) == b"mine"

            assert [await echoes(port, "127.0.0.2") for _ in range(10)] == [False] * 10
            assert await echoes(port, "127.0.0.3")
            assert [peer for at, peer in made if at == port] == ["127.0.0.2", "127.0.0.3"]
            writer.close()
            await eventually(is_alone, "the gate has let go of all")


async def test_a_connection_that_has_to_wait_is_passed_on_only_then_and_holds_up_no_other(monkeypatch):
    served = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.append(await reader.read(100))
        writer.write(served[-1])
        writer.close()

    monkeypatch.setattr(gate.Pace, "wait_seconds", lambda _, peer, __: 3_600 * (peer == "127.0.0.2"))
    async with await asyncio.start_server(serve, "127.0.0.1", 0) as host:
        carry = gate.Gate(host.sockets[0].getsockname()[1], "127.0.0.1").carry
        async with await asyncio.start_server(carry, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            _, waiting = await asyncio.open_connection("127.0.0.1", port, local_addr=("127.0.0.2", 0))
            waiting.write(b"flood")
            await waiting.drain()
            for _ in range(3):
                assert await echoes(port, "127.0.0.3")
            assert served == [b"hello"] * 3
            waiting.close()
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
            await eventually(is_alone, "the gate has let go of all")


async def test_a_connection_that_the_host_has_ended_holds_no_place_however_long_its_container_holds_it():
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as host:
        carry = gate.Gate(host.sockets[0].getsockname()[1], "127.0.0.1").carry
        async with await asyncio.start_server(carry, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=("127.0.0.2", 0))
            writer.write(b"hello")
            assert await reader.read(100) == b""
            await eventually(is_alone, "the gate has let go of it")
            writer.close()


async def test_a_container_that_does_not_take_its_answer_holds_its_place_until_that_is_dropped(monkeypatch):
    monkeypatch.setattr(gate, "LINGER_SECONDS", 0.1)
    serving = asyncio.Event()

    async def fill(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(bytes(60_000))
        writer.close()
        serving.set()

    async with await asyncio.start_server(fill, "127.0.0.1", 0) as host:
        carrying = gate.Gate(host.sockets[0].getsockname()[1], "127.0.0.1")
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        listener.bind(("127.0.0.1", 0))
        async with await asyncio.start_server(carrying.carry, sock=listener) as server:
            with socket.socket() as container:
                container.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
                container.setblocking(False)
                before = open_descriptors()
                await asyncio.get_running_loop().sock_connect(container, server.sockets[0].getsockname())
                await serving.wait()
                await eventually(is_alone, "the gate has let go of it")
                await eventually(lambda: open_descriptors() <= before, "and closed it")
                assert not carrying._open


async def test_a_container_that_takes_nothing_of_a_long_answer_holds_its_place_only_for_a_while(monkeypatch):
    """The end of the answer, and so of the host's connection, does not reach the gate."""
    monkeypatch.setattr(gate, "LINGER_SECONDS", 0.1)
    monkeypatch.setattr(carrier, "STALL_SECONDS", 0.1)

    async def fill(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(bytes(20_000_000))
        writer.transport.abort()

    async with await asyncio.start_server(fill, "127.0.0.1", 0) as host:
        carrying = gate.Gate(host.sockets[0].getsockname()[1], "127.0.0.1")
        async with await asyncio.start_server(carrying.carry, "127.0.0.1", 0) as server:
            before = open_descriptors()
            with socket.socket() as container:
                container.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
                container.setblocking(False)
                await asyncio.get_running_loop().sock_connect(container, server.sockets[0].getsockname())
                await eventually(lambda: carrying._open, "it has its place")
                await eventually(lambda: not carrying._open, "and holds it no more")
                await eventually(is_alone, "the gate has let go of it")
            assert open_descriptors() <= before


async def test_a_container_that_has_said_all_still_gets_its_answer():
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.read())
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as host:
        carry = gate.Gate(host.sockets[0].getsockname()[1], "127.0.0.1").carry
        async with await asyncio.start_server(carry, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"hello")
            writer.write_eof()
            assert await reader.read() == b"hello"
            writer.close()
            await eventually(is_alone, "the gate has let go of it")


def test_the_host_lets_more_strangers_wait_than_one_container_can_be():
    assert MAX_RELAYS + 1 < gate.MAX_OF_ONE < MAX_UNDISTURBED < MAX_UNIDENTIFIED


def test_strangers_hold_little_memory_for_a_short_time():
    assert MAX_UNIDENTIFIED * (TLS_BUFFER_BYTES + 4 * MAX_HELLO_BYTES) <= 40 * 1024 * 1024
    assert HELLO_SECONDS <= 10
