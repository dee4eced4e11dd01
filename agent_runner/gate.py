"""`python -m agent_runner.gate PORT ADDRESS`: pass connections on to the host, from networks it is not on.

The networks of agents on a swarm are closed. The gate stands on them and on the host's own network, and
passes on what comes to one port; what comes is encrypted, and means nothing to it.
"""

from __future__ import annotations

import asyncio
import sys

from agent_runner.wire.carrier import relay

MAX_CONNECTIONS = 2_000


async def serve(port: int, address: str) -> None:
    """Pass on connections to `address:port` until cancelled."""
    room = asyncio.Semaphore(MAX_CONNECTIONS)

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with room:
            try:
                async with asyncio.timeout(10):
                    other = await asyncio.open_connection(address, port)
            except (OSError, TimeoutError):
                writer.close()
                return
            await relay(reader, writer, other)

    async with await asyncio.start_server(carry, port=port) as server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), sys.argv[2]))
