"""The gate between the closed networks of a swarm and the host, with containers that mean ill."""

from __future__ import annotations

import asyncio

from agent_runner.wire import gate
from orchestrator.containers.swarm.door import MAX_RELAYS, MAX_STRANGERS
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


def test_the_host_lets_more_strangers_wait_than_one_container_can_be():
    assert MAX_RELAYS + 1 < gate.MAX_OF_ONE <= MAX_STRANGERS // 4
