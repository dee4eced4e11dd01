"""Bound the connections at the swarm's door that have not shown the token of a run."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Hashable
from contextlib import suppress
from typing import Any

MAX_UNDISTURBED = 128
"""Connections without a token up to which none is ended for another one."""
MAX_UNIDENTIFIED = 256
"""Connections that may be open without having shown a token: several times those of one container.

Each takes some 120 KiB, of which 64 are asyncio's buffer for TLS.
"""
UNDISTURBED_SECONDS = 1.0
"""Seconds that a connection has to show its token even if there are more than `MAX_UNDISTURBED`."""
TRIM_SECONDS = 0.05
"""Seconds until the oldest are ended, in which the host reads what it already has of their messages."""
CLOSE_SECONDS, LOOK_SECONDS = 1.0, 0.005
"""Most seconds that asyncio is given to close what was ended, and seconds between two looks at it."""
REFUSED_AT_ONCE = 4
"""Connections refused in one turn of the event loop: each costs some 50 µs."""


class UnidentifiedConnections:
    """Counts connections from when they are accepted until they have shown a token or are closed.

    So a connection also counts before the handshake of TLS is finished, and after it is refused. If there are
    too many, the oldest are ended. A carrier shows its token at once, so programs that only hold connections
    open, however many they make, keep no carrier out.
    """

    def __init__(self) -> None:
        self._open: dict[Hashable, tuple[socket.socket, float]] = {}
        """Maps the other side's address and port to the connection and its start by the loop's clock."""
        self._trim_timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        """Return how many there are, of which some may be closed already."""
        return len(self._open)

    def add(self, connection: socket.socket, peer: Hashable) -> bool:
        """Count an accepted connection from the address `peer`; return False if there is no room for it."""
        if len(self._open) >= MAX_UNIDENTIFIED:
            self._forget_closed()
            if len(self._open) >= MAX_UNIDENTIFIED:
                return False
        loop = asyncio.get_running_loop()
        self._open.pop(
            peer, None
        )  # a closed one with the same port, whose place among the oldest it would get
        self._open[peer] = (connection, loop.time())
        if len(self._open) > MAX_UNDISTURBED and self._trim_timer is None:
            self._trim_timer = loop.call_later(TRIM_SECONDS, self._trim)
        return True

    def identify(self, peer: Hashable) -> None:
        """Count the connection from an address no more: it has shown the token of a run."""
        self._open.pop(peer, None)

    async def end_all(self) -> None:
        """End all of them, and wait until asyncio has closed them, a second at most."""
        if self._trim_timer is not None:
            self._trim_timer.cancel()
        for connection, _ in self._open.values():
            _end(connection)
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                while self._open:
                    await asyncio.sleep(LOOK_SECONDS)
                    self._forget_closed()

    def _trim(self) -> None:
        """End the oldest until no more than `MAX_UNDISTURBED` are left, but none that is still young."""
        self._trim_timer = None
        self._forget_closed()
        loop = asyncio.get_running_loop()
        for peer, (connection, began) in tuple(self._open.items()):
            if len(self._open) <= MAX_UNDISTURBED:
                return
            if loop.time() - began < UNDISTURBED_SECONDS:
                # The others are younger still.
                self._trim_timer = loop.call_at(began + UNDISTURBED_SECONDS, self._trim)
                return
            del self._open[peer]
            _end(connection)

    def _forget_closed(self) -> None:
        """Count those no more that are closed."""
        self._open = {peer: one for peer, one in self._open.items() if one[0].fileno() >= 0}


def _end(connection: socket.socket) -> None:
    """Shut a connection down; asyncio, whose connection it is, then meets its end and closes it."""
    with suppress(OSError):  # it is closed already
        connection.shutdown(socket.SHUT_RDWR)


class CountedListener(socket.socket):
    """A listening socket that counts each connection as it is accepted, and closes it if there is no room."""

    def __init__(self, listener: socket.socket, unidentified: UnidentifiedConnections) -> None:
        """Take a listening socket over, whose connections are counted in `unidentified`."""
        super().__init__(listener.family, listener.type, listener.proto, fileno=listener.detach())
        self._unidentified = unidentified

    def accept(self) -> tuple[socket.socket, Any]:
        """Return the next connection that may stay. Raises `BlockingIOError` if there is none for now."""
        for _ in range(REFUSED_AT_ONCE):
            connection, peer = super().accept()
            if self._unidentified.add(connection, peer):
                return connection, peer
            connection.close()  # a carrier tries again
        raise BlockingIOError
