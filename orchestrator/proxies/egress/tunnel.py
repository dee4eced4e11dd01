"""Copy bytes both ways between a container and the host that it connected to."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

CHUNK_BYTES = 64 * 1024


@dataclass(slots=True, kw_only=True)
class Carried:
    """The number of bytes sent and received so far."""

    bytes_out: int = 0
    bytes_in: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """The first bytes for the target, and the filter for those that follow."""

    data: bytes
    filter: Callable[[bytes], bytes] | None = None
    """Returns the bytes that may be sent now; may hold some back, and may raise."""


class Tunnel:
    """Copies until both sides have ended, one breaks, or nothing moves for `idle_seconds`."""

    def __init__(self, *, idle_seconds: float) -> None:
        self._idle_seconds = idle_seconds
        self._limit: asyncio.Timeout | None = None
        self.carried = Carried()

    async def carry(
        self,
        inside: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        outside: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        opening: Callable[[], Awaitable[Opening]],
    ) -> None:
        """Copy in both directions; `opening` provides the first bytes for the target, before any other.

        Raises:
            OSError: a side broke.
            TimeoutError: both were silent.
            Exception: whatever `opening` or its filter raises.
        """
        async with asyncio.timeout(self._idle_seconds) as self._limit:
            try:
                # Both ways from the start: in some protocols the server speaks first.
                async with asyncio.TaskGroup() as ways:
                    ways.create_task(self._pump_out(opening, inside[0], outside[1]), name="egress-out")
                    ways.create_task(self._pump(outside[0], inside[1], is_out=False), name="egress-in")
            except BaseExceptionGroup as errors:
                # Callers match on the exception itself, not on a group of it.
                raise errors.exceptions[0] from None

    async def _pump_out(
        self,
        opening: Callable[[], Awaitable[Opening]],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        opened = await opening()
        await self._send(writer, opened.data, is_out=True)
        await self._pump(reader, writer, is_out=True, only=opened.filter)

    async def _pump(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        is_out: bool,
        only: Callable[[bytes], bytes] | None = None,
    ) -> None:
        while chunk := await reader.read(CHUNK_BYTES):
            if passed := chunk if only is None else only(chunk):
                await self._send(writer, passed, is_out=is_out)
        # Only this way ends: a client that has sent all may still wait for the answer.
        if writer.can_write_eof():
            writer.write_eof()

    async def _send(self, writer: asyncio.StreamWriter, chunk: bytes, *, is_out: bool) -> None:
        if is_out:
            self.carried.bytes_out += len(chunk)
        else:
            self.carried.bytes_in += len(chunk)
        writer.write(chunk)
        await writer.drain()
        # Bytes in either direction count: a long download is silent in the other one.
        if self._limit is not None and not self._limit.expired():
            self._limit.reschedule(asyncio.get_running_loop().time() + self._idle_seconds)
