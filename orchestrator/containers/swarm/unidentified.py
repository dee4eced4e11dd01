"""Bound what a connection may take that has not shown the token of a run.

It is a connection at the door, the port of the host at which the carriers of a swarm connect.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from typing import Any

from agent_runner.wire.carrier import MAX_HELLO_BYTES

MAX_UNDISTURBED = 128
"""Connections without a token up to which none is ended for another one."""
MAX_UNIDENTIFIED = 256
"""Connections that may be open without having shown a token: several times those of one container.

From its ClientHello on, each takes some 130 KiB, of which 64 are asyncio's buffer, so 33 MB together. It is
290 KiB, 75 MB together, if the handshake is made to take a second ClientHello that is announced as large.
"""
UNDISTURBED_SECONDS = 1.0
"""Seconds that a connection has to show its token even if there are more than `MAX_UNDISTURBED`."""
TRIM_SECONDS = 0.05
"""Seconds until the oldest are ended, in which the host reads what it already has of their messages."""
MAX_CLIENT_HELLO_BYTES = 8 * 1024
"""Most bytes of the first message of TLS, the ClientHello; a carrier's has one or two thousand.

OpenSSL allocates room for as many as its first bytes announce, and would accept 128 KiB.
"""
MAX_UNIDENTIFIED_BYTES = MAX_HELLO_BYTES + 2 * MAX_CLIENT_HELLO_BYTES
"""Most bytes that are read of a connection before it has shown a token: the handshake and its hello."""
_HANDSHAKE_RECORD, _CLIENT_HELLO = 22, 1
"""The first byte of a TLS record with a part of the handshake, and of a ClientHello in it."""
_RECORD_HEADER_BYTES, _MESSAGE_HEADER_BYTES = 5, 4


class AcceptedSocket(socket.socket):
    """A connection at the door. Until it has shown a token, no more is read than a carrier has to send."""

    def __init__(self, connection: socket.socket) -> None:
        """Take over an accepted connection; the object `connection` cannot be used any more."""
        super().__init__(connection.family, connection.type, connection.proto, fileno=connection.detach())
        self.bytes_left: int | None = MAX_UNIDENTIFIED_BYTES
        """Bytes that may still be read of it; None for any number."""

    async def wait_for_client_hello(self) -> None:
        """Wait for the first bytes, which have to begin TLS with a message of ordinary length.

        Without this wait, a client that only connects would cost memory for TLS. Raises `OSError` for other
        bytes.
        """
        loop = asyncio.get_running_loop()
        has_come = asyncio.Event()
        loop.add_reader(self, has_come.set)
        try:
            await has_come.wait()
        finally:
            loop.remove_reader(self)
        # The bytes stay in the socket for OpenSSL. A carrier sends its whole first message at once, so that
        # these first ones come together.
        headers = self.recv(_RECORD_HEADER_BYTES + _MESSAGE_HEADER_BYTES, socket.MSG_PEEK)
        record, message = headers[:_RECORD_HEADER_BYTES], headers[_RECORD_HEADER_BYTES:]
        # The header of a message is its type, a byte, and its length, three bytes.
        if (
            len(message) < _MESSAGE_HEADER_BYTES
            or (record[0], message[0]) != (_HANDSHAKE_RECORD, _CLIENT_HELLO)
            or int.from_bytes(message[1:]) > MAX_CLIENT_HELLO_BYTES
        ):
            raise ConnectionAbortedError("it does not begin with a ClientHello of TLS")

    def end(self) -> None:
        """Shut the connection down; asyncio, to which it was given, then meets its end and closes it."""
        with suppress(OSError):  # it is closed already
            self.shutdown(socket.SHUT_RDWR)

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        """Read into a buffer; asyncio calls this. Raises `ConnectionAbortedError` if no more may be read."""
        if self.bytes_left is None:
            return super().recv_into(buffer, nbytes, flags)
        if not self.bytes_left:
            raise ConnectionAbortedError("it sends too much before its token")
        # `nbytes` is 0 for as many bytes as the buffer has room for.
        received = super().recv_into(buffer, min(nbytes or len(buffer), self.bytes_left), flags)
        self.bytes_left -= received
        return received


class UnidentifiedConnections:
    """Counts connections from when they are accepted until they have shown a token or are closed.

    So a connection also counts before the handshake of TLS, and while it is refused. If there are too many,
    the oldest are ended. A carrier shows its token at once, so programs that only hold connections open,
    however many they make, keep no carrier out.
    """

    def __init__(self) -> None:
        self._open: dict[AcceptedSocket, tuple[asyncio.Task[None], float]] = {}
        """Maps each connection to the task that serves it and its start by the loop's clock."""
        self._trim_timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        """Return how many connections are counted now."""
        return len(self._open)

    @property
    def is_full(self) -> bool:
        """Whether no further connection may be accepted now."""
        return len(self._open) >= MAX_UNIDENTIFIED

    def add(self, accepted: AcceptedSocket, serving: asyncio.Task[None]) -> None:
        """Count a connection until the task that serves it is done, or it is identified.

        If the task is cancelled, it has to end the connection at once.
        """
        loop = asyncio.get_running_loop()
        self._open[accepted] = (serving, loop.time())
        serving.add_done_callback(lambda _: self._open.pop(accepted, None))
        if len(self._open) > MAX_UNDISTURBED and self._trim_timer is None:
            self._trim_timer = loop.call_later(TRIM_SECONDS, self._trim)

    def identify(self, accepted: AcceptedSocket) -> None:
        """Count a connection no more, and let it send as much as it wants: it has shown a run's token."""
        self._open.pop(accepted, None)
        accepted.bytes_left = None

    def close(self) -> None:
        """Stop the timer that ends the oldest connections."""
        if self._trim_timer is not None:
            self._trim_timer.cancel()

    def _trim(self) -> None:
        """End the oldest connections until no more than `MAX_UNDISTURBED` are left.

        No connection that is younger than `UNDISTURBED_SECONDS` is ended: this is called again when the
        oldest of them has reached that age.
        """
        self._trim_timer = None
        loop = asyncio.get_running_loop()
        for accepted, (serving, began) in tuple(self._open.items()):
            if len(self._open) <= MAX_UNDISTURBED:
                return
            if loop.time() - began < UNDISTURBED_SECONDS:
                # The connections are in the order in which they came, so the others are younger still.
                self._trim_timer = loop.call_at(began + UNDISTURBED_SECONDS, self._trim)
                return
            serving.cancel()
            del self._open[accepted]
