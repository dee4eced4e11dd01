"""Containers on the nodes of a swarm that is not there: carriers that speak the protocol, in one process.

It reads secrets from stdin, a line each, as containers find them, and answers each turn at once.
"""

from __future__ import annotations

import asyncio
import json
import sys

from agent_runner.carrier.dial import CarrierOrder
from agent_runner.wire.carrier import CarrierConnection, ConnectionLost
from agent_runner.wire.frames import END, START


class SimulatedCarrier:
    """One container: it takes all files that it is offered, and leaves one behind."""

    def __init__(self, order: CarrierOrder) -> None:
        self._order = order
        self._sent = 0

    async def run(self) -> None:
        """Answer the turn of the order, wait for `_close`, and end."""
        connection, _ = await self._order.connect(is_hardened=True, is_started=False, node="simulated")
        pings = asyncio.create_task(connection.keep_alive(), name="pings")
        try:
            await self._live(connection)
        except ConnectionLost:
            pass
        finally:
            pings.cancel()
            connection.close()

    async def _live(self, connection: CarrierConnection) -> None:
        while (message := await connection.receive()).kind != "bye":
            if message.kind == "laid":
                await connection.send("ready")
            elif message.kind == "start":
                await self._say(connection, n=1, kind="ack", turn=1)
                await connection.send("stage_end", n=2)
            elif message.kind == "staged":
                await self._say(connection, n=2, kind="turn_end", turn=1, status="success")
            elif message.kind == "stop":
                await connection.send("exit", code=0, was_oom_killed=False)

    async def _say(self, connection: CarrierConnection, **frame: object) -> None:
        text = f"{START}\n{json.dumps({'v': 1, **frame})}\n{END}\n".encode()
        await connection.send("out", text, at=self._sent)
        self._sent += len(text)


async def carry_all() -> None:
    """Be the container of each secret that comes, until stdin ends."""
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    async with asyncio.TaskGroup() as tasks:
        while line := await reader.readline():
            carrier = SimulatedCarrier(CarrierOrder(**json.loads(line)))
            tasks.create_task(carrier.run(), name="carrier")


if __name__ == "__main__":
    asyncio.run(carry_all())
