"""A model service on loopback whose behaviour a test sets, byte by byte, including faults."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Self

from tests.support.until import DEADLINE_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """A request as it came over the wire."""

    target: str
    headers: list[tuple[str, str]]
    body: bytes

    def values(self, name: str) -> list[str]:
        return [value for found, value in self.headers if found == name]


Behave = Callable[["Received", "FaultyUpstream", asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def answer(status: int, body: bytes, **headers: str) -> Behave:
    """Answer with a whole body."""
    lines = [f"HTTP/1.1 {status} X", f"content-length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    head = "\r\n".join([*lines, "", ""]).encode()

    async def behave(
        _: Received, __: FaultyUpstream, ___: asyncio.StreamReader, to: asyncio.StreamWriter
    ) -> None:
        to.write(head + body)

    return behave


def say(raw: bytes) -> Behave:
    """Write `raw` and close."""

    async def behave(
        _: Received, __: FaultyUpstream, ___: asyncio.StreamReader, to: asyncio.StreamWriter
    ) -> None:
        to.write(raw)
        await to.drain()
        to.close()

    return behave


async def hang(
    _: Received, up: FaultyUpstream, reader: asyncio.StreamReader, __: asyncio.StreamWriter
) -> None:
    """Never answer; note when the caller hangs up."""
    await up.until_hung_up(reader)


async def reset(_: Received, __: FaultyUpstream, ___: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
    to.transport.abort()


@dataclass(slots=True)
class FaultyUpstream:
    """Serve `behave` on `url`. Enter it."""

    behave: Behave = field(default_factory=lambda: answer(200, b"{}", content_type="application/json"))
    received: list[Received] = field(default_factory=list)
    connections: int = 0
    hung_up: asyncio.Event = field(default_factory=asyncio.Event)
    more: asyncio.Event = field(default_factory=asyncio.Event)
    """Set by a test to let a stream go on."""
    _arrived: asyncio.Event = field(default_factory=asyncio.Event)
    _server: asyncio.Server | None = None
    _serving: dict[asyncio.Task[None], asyncio.StreamWriter] = field(default_factory=dict)

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self._serving.values():
            writer.close()
        await asyncio.gather(*self._serving)
        await self._server.wait_closed()

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def until_received(self, count: int = 1) -> None:
        async with asyncio.timeout(DEADLINE_SECONDS):
            while len(self.received) < count:
                self._arrived.clear()
                await self._arrived.wait()

    async def until_hung_up(self, reader: asyncio.StreamReader) -> None:
        with suppress(ConnectionError):
            await reader.read()
        self.hung_up.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._serving[task] = writer
        try:
            while not writer.is_closing():
                request = await _read(reader)
                self.received.append(request)
                self._arrived.set()
                await self.behave(request, self, reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            self.hung_up.set()
        finally:
            writer.close()


async def _read(reader: asyncio.StreamReader) -> Received:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.removesuffix("\r\n\r\n").split("\r\n")
    pairs = [line.split(": ", 1) for line in lines]
    headers = [(name.lower(), value) for name, value in pairs]
    named = dict(headers)
    if "chunked" in named.get("transfer-encoding", ""):
        body = await _read_chunks(reader)
    else:
        body = await reader.readexactly(int(named.get("content-length", "0")))
    return Received(target=first.split(" ")[1], headers=headers, body=body)


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    body = b""
    while size := int((await reader.readuntil(b"\r\n")).strip(), 16):
        body += await reader.readexactly(size)
        await reader.readexactly(2)
    await reader.readexactly(2)
    return body
