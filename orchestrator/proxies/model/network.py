"""The connections under httpcore, by asyncio: httpcore's own backend takes 0.1 ms for each small piece.

A request's head and body are sent together here, and all bytes since the last read are read at once.
"""

from __future__ import annotations

import asyncio
import select
import ssl
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import httpcore

from orchestrator.proxies.egress.public_addresses import alternate_versions, first_to_answer, is_public
from orchestrator.proxies.name_lookups import NameLookups

READ_AHEAD_BYTES = 256 * 1024
"""Bytes that may be received but not read; above it, reading from the service pauses."""
JOINED_BYTES = 64 * 1024
"""Most bytes that wait to be written together."""
# RFC 8305 recommends 250 ms.
ATTEMPT_SECONDS = 0.25
"""Seconds that one address of a name is tried alone before the next is tried concurrently."""


class AsyncioBackend(httpcore.AsyncNetworkBackend):
    """Opens connections for a pool. Names are looked up in separate threads, a few per host.

    With `is_public_only` it connects only to internet addresses, whatever a name resolves to.
    """

    def __init__(self, lookups: NameLookups, *, is_public_only: bool = False) -> None:
        """`lookups` resolves names, with limits of its own."""
        self._lookups = lookups
        self._is_public_only = is_public_only

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - httpcore's signature, here and below
        local_address: str | None = None,  # noqa: ARG002
        socket_options: Iterable[Any] | None = None,  # noqa: ARG002
    ) -> AsyncioStream:
        """Look a host up and connect to it. The last two arguments are ignored.

        `timeout` limits both together, in seconds; None waits without a limit.

        Raises:
            httpcore.ConnectTimeout: nothing answers in time.
            httpcore.ConnectError: the host has no address that may be used, or refuses the connection.
        """
        try:
            async with asyncio.timeout(timeout):
                addresses = await self._lookups.look_up(host, port, share=host)
                if self._is_public_only:
                    addresses = _only_public(addresses)
                return await first_to_answer(
                    alternate_versions(addresses),
                    partial(_connect, port=port),
                    AsyncioStream.abort,
                    attempt_seconds=ATTEMPT_SECONDS,
                )
        except TimeoutError as error:
            raise httpcore.ConnectTimeout from error
        except OSError as error:
            raise httpcore.ConnectError(str(error)) from error


def _only_public(addresses: Sequence[str]) -> list[str]:
    """Return the addresses that belong to the internet, without private ones. Pure.

    `addresses` are those of one name. Raises `OSError` if there are some and all are private. For a service
    in the owner's network this is not called: its configured address shows that it is there.
    """
    public = [address for address in addresses if is_public(address)]
    if addresses and not public:
        raise OSError("its name leads to a private address, which nobody wrote")
    return public


async def _connect(address: str, port: int) -> AsyncioStream:
    """Connect to one address. Raises `OSError`."""
    loop = asyncio.get_running_loop()
    _, stream = await loop.create_connection(AsyncioStream, address, port)
    return stream


class AsyncioStream(httpcore.AsyncNetworkStream, asyncio.Protocol):
    """One connection: a stream for httpcore, a protocol for asyncio."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport
        self._received = bytearray()
        """Bytes that came and were not read yet."""
        self._unsent = bytearray()
        """Bytes that wait to be written together."""
        self._has_ended = False
        """Whether the other end sends nothing more."""
        self._fault: Exception | None = None
        """The error with which the connection broke."""
        self._arrived = asyncio.Event()
        """Set when bytes, or the end, have come."""
        self._writable = asyncio.Event()
        """Set while the operating system takes further bytes."""
        self._writable.set()

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ARG002, ASYNC109
        """Send what waits to be written, then return all received bytes: at least one, or none at the end.

        `max_bytes` is ignored: there is no reason to return less. `timeout` is in seconds; None waits without
        a limit.

        Raises:
            httpcore.ReadTimeout: nothing came in time.
            httpcore.WriteTimeout: what waited to be written was not taken in time.
            httpcore.NetworkError: the connection broke.
        """
        # A caller that starts to read has written its whole request: now its pieces are sent together.
        await self._flush(timeout)
        if not self._received and not self._has_ended:
            await self._wait_for_bytes(timeout)
        if not self._received and self._fault is not None:
            raise httpcore.ReadError(str(self._fault)) from self._fault
        received = bytes(self._received)
        self._received.clear()
        if not self._has_ended:
            # Reading may have been paused above `READ_AHEAD_BYTES`; otherwise this does nothing.
            self._transport.resume_reading()
        return received

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109
        """Write bytes. A small piece is sent later, together with more bytes or at the next `read`.

        `timeout` is in seconds; None waits without a limit.

        Raises:
            httpcore.WriteTimeout: the bytes were not taken in time.
            httpcore.WriteError: the connection has ended.
        """
        self._unsent += buffer
        if len(self._unsent) > JOINED_BYTES:
            await self._flush(timeout)

    async def aclose(self) -> None:
        """Drop the connection and all unfinished transfers."""
        self.abort()

    def abort(self) -> None:
        """Drop the connection as `aclose` does."""
        # `close` would first wait for unsent bytes, which a silent peer never takes.
        self._transport.abort()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> AsyncioStream:
        """Encrypt the connection by TLS from now on, and return this same stream.

        `server_hostname` is the name that the server's certificate must have, `timeout` is in seconds.

        Raises:
            httpcore.ConnectTimeout: the server did not answer in time.
            httpcore.ConnectError: the certificate is not accepted, or the connection broke.
        """
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout):
                await self._flush(None)
                transport = await loop.start_tls(
                    self._transport, self, ssl_context, server_hostname=server_hostname
                )
        except TimeoutError as error:
            raise httpcore.ConnectTimeout from error
        except OSError as error:
            raise httpcore.ConnectError(str(error)) from error
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        return self

    def get_extra_info(self, info: str) -> Any:
        """Return an attribute of the connection by its name in asyncio, such as "peername".

        httpcore's own "is_readable" is True if the other end has closed the connection, or sent bytes that
        nobody requested: then its pool does not use the connection again.
        """
        if info == "is_readable":
            return bool(self._received) or self._has_ended or self._has_unread_input()
        return self._transport.get_extra_info(info)

    def _has_unread_input(self) -> bool:
        """Return whether the socket has bytes, or an end, that the event loop has not reported yet.

        Return True for a connection that is lost already.
        """
        connected_socket = self._transport.get_extra_info("socket")
        # asyncio drops the socket of an encrypted connection a moment before it calls `connection_lost`.
        if connected_socket is None or connected_socket.fileno() < 0:
            return True
        # Not `select.select`, which fails for descriptors of 1,024 and above.
        poll = select.poll()
        poll.register(connected_socket.fileno(), select.POLLIN)
        return bool(poll.poll(0))

    async def _wait_for_bytes(self, seconds: float | None) -> None:
        """Wait until bytes, or the end, have come.

        `seconds` limit the wait; None waits without a limit. Raises `httpcore.ReadTimeout`.
        """
        self._arrived.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._arrived.wait()
        except TimeoutError as error:
            raise httpcore.ReadTimeout from error

    async def _flush(self, seconds: float | None) -> None:
        """Send the bytes that wait to be written, and wait until the operating system takes more.

        `seconds` limit the wait; None waits without a limit.

        Raises:
            httpcore.WriteTimeout: the bytes were not taken in time.
            httpcore.WriteError: the connection has ended.
        """
        if not self._unsent:
            return
        unsent, self._unsent = self._unsent, bytearray()
        if self._has_ended:
            raise httpcore.WriteError("it closed")
        self._transport.write(unsent)
        try:
            async with asyncio.timeout(seconds):
                await self._writable.wait()
        except TimeoutError as error:
            raise httpcore.WriteTimeout from error

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport of the new connection. asyncio calls this method and those below."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Store received bytes, and stop reading from the socket while too many are not read."""
        self._received += data
        if len(self._received) > READ_AHEAD_BYTES:
            self._transport.pause_reading()
        self._arrived.set()

    def eof_received(self) -> None:
        """Note that the other end sends nothing more."""
        self._has_ended = True
        self._arrived.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """Note that the connection has ended, with an error or without, and wake whatever waits for it."""
        self._has_ended = True
        self._fault = exc
        self._arrived.set()
        self._writable.set()

    def pause_writing(self) -> None:
        """Make writers wait, because too many bytes are not sent yet."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """Let writers continue."""
        self._writable.set()
