"""Copy bytes both ways between a container and the host that it connected to."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

CHUNK_BYTES = 64 * 1024
"""Bytes that are read at a time, at most."""


@dataclass(slots=True, kw_only=True)
class ByteCounts:
    """The number of bytes sent to the target and received from it so far."""

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
        """Prepare a tunnel that ends when nothing was sent either way for `idle_seconds`."""
        self._idle_seconds = idle_seconds
        self._limit: asyncio.Timeout | None = None
        """The time limit of the running `carry`, which each copied piece postpones; None before `carry`."""
        self.counts = ByteCounts()

    async def carry(
        self,
        container: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        target: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        opening: Callable[[], Awaitable[Opening]],
    ) -> None:
        """Copy in both directions until both sides have ended.

        `container` and `target` are the two connections, each as its reader and its writer. `opening` is
        awaited once: it returns the first bytes for the target, and the filter for those that follow.

        If one direction fails, the other is cancelled.

        Raises:
            OSError: a side broke.
            TimeoutError: both were silent for `idle_seconds`.
            Exception: whatever `opening` or its filter raises.
        """
        async with asyncio.timeout(self._idle_seconds) as self._limit:
            try:
                # Both ways from the start: in some protocols the server sends the first bytes.
                async with asyncio.TaskGroup() as directions:
                    directions.create_task(
                        self._copy_out(opening, container[0], target[1]), name="egress-out"
                    )
                    directions.create_task(
                        self._copy(target[0], container[1], is_out=False), name="egress-in"
                    )
            except BaseExceptionGroup as errors:
                # Callers match on the exception itself, not on a group. The first one ended the copying.
                raise errors.exceptions[0] from None

    async def _copy_out(
        self,
        opening: Callable[[], Awaitable[Opening]],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        """Send the container's first bytes to the target, then copy those that follow through a filter.

        `opening` reads and checks the first bytes; it returns them with the filter, which checks the rest, or
        no filter.
        """
        first = await opening()
        await self._send(writer, first.data, is_out=True)
        await self._copy(reader, writer, is_out=True, byte_filter=first.filter)

    async def _copy(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        is_out: bool,
        byte_filter: Callable[[bytes], bytes] | None = None,
    ) -> None:
        """Copy from a reader to a writer until the reader ends; `is_out` is the direction, for the counts.

        `byte_filter` returns the bytes to pass on after each chunk; without it, every chunk is passed on.
        """
        while chunk := await reader.read(CHUNK_BYTES):
            sendable = chunk if byte_filter is None else byte_filter(chunk)
            if sendable:
                await self._send(writer, sendable, is_out=is_out)
        # Only this direction ends: a client that has sent all may still wait for the answer.
        if writer.can_write_eof():
            writer.write_eof()

    async def _send(self, writer: asyncio.StreamWriter, chunk: bytes, *, is_out: bool) -> None:
        """Write bytes, count them, and restart the time limit for silence.

        `is_out` says whether they go to the target.
        """
        if is_out:
            self.counts.bytes_out += len(chunk)
        else:
            self.counts.bytes_in += len(chunk)
        writer.write(chunk)
        await writer.drain()
        # Bytes in either direction restart it: a long download is silent in the other one. A limit that has
        # expired cannot be restarted.
        if self._limit is not None and not self._limit.expired():
            self._limit.reschedule(asyncio.get_running_loop().time() + self._idle_seconds)
