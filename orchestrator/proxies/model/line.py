"""One connection to the model service: HTTP/1.1, one exchange at a time."""

from __future__ import annotations

import asyncio
import select
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import urlsplit

import h11

from orchestrator.proxies.model.headers import Header
from orchestrator.proxies.model.limits import ModelProxyLimits

MAX_HEAD_BYTES = 100_000
MAX_WAITING_BYTES = 256 * 1024
"""Received and not taken yet; then the service is read no further."""


class ConnectionBroken(Exception):
    """The connection ended, or carried what is no HTTP."""


class ConnectionSilent(Exception):
    """Nothing came, or nothing was taken, in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamOrigin:
    """Where a connection leads."""

    is_secure: bool
    host: str
    port: int

    @classmethod
    def of(cls, url: str) -> UpstreamOrigin:
        parts = urlsplit(url)
        is_secure = parts.scheme == "https"
        return cls(
            is_secure=is_secure, host=parts.hostname or "", port=parts.port or (443 if is_secure else 80)
        )


class UpstreamConnection(asyncio.Protocol):
    """A connection. `ask` on it, then take `chunks`; if it `is_idle` after that, it can be asked again."""

    def __init__(self, limits: ModelProxyLimits) -> None:
        self._limits = limits
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD_BYTES)
        self._transport: asyncio.Transport
        self._received = bytearray()
        self._has_ended = False
        self._fault: Exception | None = None
        self._patience_seconds = limits.answer_seconds
        self._arrived = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()

    @property
    def is_idle(self) -> bool:
        """Whether it can be asked. One that speaks unasked cannot: its words would be the next answer."""
        is_quiet = not self._received and not self._http.trailing_data[0]
        is_open = not self._has_ended and not self._transport.is_closing()
        return self._http.our_state is h11.IDLE and is_quiet and is_open

    @property
    def has_news(self) -> bool:
        """Whether something has come that the event loop was not told yet, such as the end."""
        poll = select.poll()
        poll.register(self._transport.get_extra_info("socket").fileno(), select.POLLIN)
        return bool(poll.poll(0))

    def abort(self) -> None:
        """Drop the connection and what is under way on it."""
        self._transport.abort()

    async def ask(
        self, method: str, target: str, headers: list[Header], body: AsyncIterator[bytes] | None
    ) -> h11.Response:
        """Send a request and return the head of its answer. What `body` raises passes through.

        Raises:
            LineBroken: no answer came.
            LineSilent: none came in time.
        """
        self._patience_seconds = self._limits.first_byte_seconds
        head = self._http.send(h11.Request(method=method, target=target, headers=headers))
        with suppress(ConnectionError):  # who refuses in the middle of a body has often said why
            await self._send(head or b"", body)
        while not isinstance(event := await self._next(), h11.Response):
            if not isinstance(event, h11.InformationalResponse):
                raise ConnectionBroken("it closed")
        self._patience_seconds = self._limits.answer_seconds
        return event

    async def chunks(self) -> AsyncGenerator[bytes]:
        """Yield the answer's body as it comes: what has arrived together is one chunk."""
        while True:
            parts: list[bytes] = []
            while isinstance(event := self._parsed(), h11.Data):
                parts.append(event.data)
            if parts:
                yield b"".join(parts)
            if isinstance(event, h11.EndOfMessage):
                break
            if event is not h11.NEED_DATA:
                raise ConnectionBroken("it closed")
            self._http.receive_data(await self._read())
        if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
            self._http.start_next_cycle()

    async def _send(self, head: bytes, body: AsyncIterator[bytes] | None) -> None:
        """The head goes with the first of the body, in one packet where it fits."""
        waiting = head
        if body is not None:
            async for chunk in body:
                await self._write(waiting + (self._http.send(h11.Data(data=chunk)) or b""))
                waiting = b""
        await self._write(waiting + (self._http.send(h11.EndOfMessage()) or b""))

    async def _next(self) -> h11.Event | type[h11.NEED_DATA | h11.PAUSED]:
        while (event := self._parsed()) is h11.NEED_DATA:
            self._http.receive_data(await self._read())
        return event

    def _parsed(self) -> h11.Event | type[h11.NEED_DATA | h11.PAUSED]:
        try:
            return self._http.next_event()
        except h11.RemoteProtocolError as error:
            raise ConnectionBroken("no HTTP") from error

    async def _read(self) -> bytes:
        """Return what has come, at least a byte; nothing at the end."""
        if not self._received and not self._has_ended:
            await self._until_arrived()
        if not self._received and self._fault is not None:
            raise ConnectionBroken(type(self._fault).__name__) from self._fault
        received = bytes(self._received)
        self._received.clear()
        if not self._has_ended:
            self._transport.resume_reading()
        return received

    async def _until_arrived(self) -> None:
        self._arrived.clear()
        try:
            async with asyncio.timeout(self._patience_seconds):
                await self._arrived.wait()
        except TimeoutError:
            raise ConnectionSilent("no answer") from None

    async def _write(self, data: bytes) -> None:
        if self._has_ended:
            raise ConnectionResetError
        if data:
            self._transport.write(data)
        if not self._writable.is_set():
            try:
                async with asyncio.timeout(self._limits.write_seconds):
                    await self._writable.wait()
            except TimeoutError:
                raise ConnectionSilent("it takes no more") from None

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        if len(self._received) > MAX_WAITING_BYTES:
            self._transport.pause_reading()
        self._arrived.set()

    def eof_received(self) -> None:
        self._has_ended = True
        self._arrived.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._has_ended = True
        self._fault = exc
        self._arrived.set()
        self._writable.set()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()
