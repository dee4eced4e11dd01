"""Copy bytes both ways between a container and the host that it connected to."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

CHUNK_BYTES = 64 * 1024


@dataclass(slots=True, kw_only=True)
class Carried:
    """The number of bytes sent and received so far."""

    bytes_out: int = 0
    bytes_in: int = 0


class Tunnel:
    """Carries until both sides have ended, one breaks, or nothing moves for `idle_seconds`."""

    def __init__(self, *, idle_seconds: float) -> None:
        self._idle_seconds = idle_seconds
        self._limit: asyncio.Timeout | None = None
        self.carried = Carried()

    async def carry(
        self,
        inside: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        outside: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        early: bytes,
    ) -> None:
        """Send what came early, then carry.

        Raises:
            OSError: a side broke.
            TimeoutError: both were silent.
        """
        async with asyncio.timeout(self._idle_seconds) as self._limit:
            await self._send(outside[1], early, is_out=True)
            try:
                async with asyncio.TaskGroup() as ways:
                    ways.create_task(self._pump(inside[0], outside[1], is_out=True), name="egress-out")
                    ways.create_task(self._pump(outside[0], inside[1], is_out=False), name="egress-in")
            except BaseExceptionGroup as errors:
                raise errors.exceptions[0] from None

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_out: bool
    ) -> None:
        while chunk := await reader.read(CHUNK_BYTES):
            await self._send(writer, chunk, is_out=is_out)
        if writer.can_write_eof():
            writer.write_eof()

    async def _send(self, writer: asyncio.StreamWriter, chunk: bytes, *, is_out: bool) -> None:
        if is_out:
            self.carried.bytes_out += len(chunk)
        else:
            self.carried.bytes_in += len(chunk)
        writer.write(chunk)
        await writer.drain()
        if self._limit is not None and not self._limit.expired():
            self._limit.reschedule(asyncio.get_running_loop().time() + self._idle_seconds)
