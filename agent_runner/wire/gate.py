"""Forward connections from the closed networks of agents to the host: `python -m agent_runner.wire.gate …`.

The networks of agents on a swarm are closed. The gate is on them and on the host's own network, and forwards
what comes to one port, without decrypting it.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter

from agent_runner.wire.carrier import relay
from agent_runner.wire.listeners import ACCEPTED_AT_ONCE, QUEUE, ScreenedListener, listen

MAX_CONNECTIONS = 2_000
"""Most connections that are passed on at once."""
CONNECT_SECONDS = 10.0
"""Seconds that connecting to the host may take."""
LINGER_SECONDS = 10.0
"""Seconds that a container has to take what is left of a connection that the host has ended."""
MAX_OF_ONE = 80
"""Connections of one container: more than the host serves, fewer than it lets wait."""
SECONDS_A_CONNECTION = 0.1
"""Seconds between two connections of one container, once it has made `MAX_OF_ONE` at once.

Each costs the host a handshake of TLS, a millisecond or two, before it knows who is there.
"""
MAX_PACES = 1_000
"""Containers whose pace is remembered; those that may connect at once are forgotten first."""


class Pace:
    """Spreads the connections of one container: `MAX_OF_ONE` at once, then ten a second."""

    def __init__(self) -> None:
        self._last_begin: dict[str, float] = {}
        """Map each container's address to the time, in seconds of the event loop's clock, at which its last
        connection would begin if each began `SECONDS_A_CONNECTION` after the one before.
        """

    def wait_seconds(self, peer: str, now_seconds: float) -> float:
        """Count a new connection of the container at an address, and return the seconds that it has to wait.

        `peer` is the address; `now_seconds` is the time by the event loop's clock.
        """
        # Each connection moves the address's time on by one step; nothing waits while that time is at most
        # `MAX_OF_ONE` steps ahead of now.
        begin = max(now_seconds, self._last_begin.get(peer, now_seconds)) + SECONDS_A_CONNECTION
        if peer not in self._last_begin and len(self._last_begin) >= MAX_PACES:
            self._last_begin = {
                other: last_begin
                for other, last_begin in self._last_begin.items()
                if last_begin > now_seconds
            }
        self._last_begin[peer] = begin
        return max(0.0, begin - now_seconds - MAX_OF_ONE * SECONDS_A_CONNECTION)


class Gate:
    """Passes connections on to `address:port`."""

    def __init__(self, port: int, address: str) -> None:
        """Connections are passed on to this port of `address`."""
        self._port = port
        self._address = address
        self._total_limit = asyncio.Semaphore(MAX_CONNECTIONS)
        self._open: Counter[str] = Counter()
        """Map each container's address to the number of its open connections."""
        self._pace = Pace()

    def is_full(self, peer: str) -> bool:
        """Return whether the container at an address has as many open connections as it may."""
        return self._open[peer] >= MAX_OF_ONE

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass one connection on until it ends, after a delay if its container has made many.

        It also waits while `MAX_CONNECTIONS` of all containers are passed on, and is closed at once if its
        container has too many open ones.
        """
        # Only here is the connecting container visible: to the host, all come from the gate.
        peer = str((writer.get_extra_info("peername") or ("gone",))[0])
        # The listener has checked this, too, but it accepts several connections before any is counted.
        if self.is_full(peer):
            writer.close()
            return
        self._open[peer] += 1
        try:
            # Delayed, not closed: an honest container may need many at once.
            await asyncio.sleep(self._pace.wait_seconds(peer, asyncio.get_running_loop().time()))
            async with self._total_limit:
                await self._pass_on(reader, writer)
        finally:
            writer.close()  # also where the gate ends while the connection still waits
            self._open[peer] -= 1
            if not self._open[peer]:
                del self._open[peer]  # or each address ever seen would stay

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Relay a connection to the address behind the gate; close it if that cannot be reached."""
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                other = await asyncio.open_connection(self._address, self._port)
        except (OSError, TimeoutError):
            writer.close()
            return
        await relay(reader, writer, other)
        await _end(writer)


async def _end(writer: asyncio.StreamWriter) -> None:
    """Close a container's connection after it has taken what was still to be sent to it.

    What it has not taken after `LINGER_SECONDS` is dropped, so that the connection soon counts no longer as
    open. A container that takes nothing of a long answer is given up by `relay`, before this is called.
    """
    writer.close()
    try:
        async with asyncio.timeout(LINGER_SECONDS):
            await writer.wait_closed()
    except OSError:  # also a `TimeoutError`
        writer.transport.abort()


async def open_gate(port: int, address: str, at: str, preferred_port: int) -> asyncio.Server:
    """Return a listening server that passes connections on to `address:port`.

    It listens at the address `at` of this machine, on `preferred_port` if that is free, else on any. Raises
    `OSError`.
    """
    gate = Gate(port, address)
    try:
        return await _open_at(gate, at, preferred_port)
    except OSError:
        return await _open_at(gate, at, 0)


async def _open_at(gate: Gate, at: str, port: int) -> asyncio.Server:
    """Return a server for a gate that listens at an address and a port; 0 is any port. Raises `OSError`."""
    screened = ScreenedListener(listen(at, port), gate.is_full)
    server = await asyncio.start_server(gate.carry, sock=screened, backlog=ACCEPTED_AT_ONCE)
    # asyncio has one number (`backlog`) for two limits: how many connections are accepted at once, and how
    # many wait in the kernel. It is small because of the first; the second is raised here.
    screened.listen(QUEUE)
    return server


async def serve(port: int, address: str) -> None:
    """Pass connections to `port` of any address of this machine on to `address:port`, until cancelled."""
    async with await _open_at(Gate(port, address), "0.0.0.0", port) as server:  # noqa: S104 - its networks are closed
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), sys.argv[2]))
