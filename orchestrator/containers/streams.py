"""Pass blocking byte streams to the event loop, no faster than their reader reads."""

from __future__ import annotations

import asyncio
import struct
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Protocol

SLOTS = 16
"""Chunks that a pump may read before the reader has taken them."""
HEADER_BYTES = 8
"""Bytes of the header before each part of the engine's stream."""
STDERR = 2
"""The number of stderr in such a header."""


class Source(Protocol):
    """A blocking stream. One thread reads and closes it; any thread may interrupt the reading."""

    def chunks(self) -> Iterator[bytes]:
        """Yield the bytes of the stream as they come. Blocks."""
        ...

    def interrupt(self) -> None:
        """Make a read that blocks another thread, and all later reads, return as at the end of the stream."""
        ...

    def close(self) -> None:
        """Release the stream. Called by the reading thread."""
        ...


class Pump:
    """Passes a source's chunks to the event loop from a thread, at most `SLOTS` chunks ahead of the reader.

    The thread waits while the reader is slow. So a container that floods its output is slowed down and does
    not fill the host's memory. Closing the pump ends the thread.
    """

    def __init__(self, open_source: Callable[[], Source], *, name: str) -> None:
        """`open_source` is called in the pump's thread, which is called `name`."""
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[bytes | Exception | None] = asyncio.Queue()
        self._slots = threading.Semaphore(SLOTS)
        self._lock = threading.Lock()
        self._source: Source | None = None
        """The source that is being read; None before the thread has opened it."""
        self._is_closed = False
        """Whether nobody reads any more, so that the thread has to end."""
        self._thread = threading.Thread(target=self._run, args=(open_source,), name=name, daemon=True)
        self._thread.start()

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield chunks until the source ends. If an error ended it in the thread, raise that error here."""
        while (item := await self._queue.get()) is not None:
            if isinstance(item, Exception):
                raise item
            self._slots.release()  # the thread may read one more chunk
            yield item

    def close(self) -> None:
        """End the thread, which closes the source, even if the thread is blocked in a read."""
        with self._lock:
            self._is_closed = True
            if self._source is not None:
                self._source.interrupt()
        # The thread may be waiting for a slot and not for its source.
        self._slots.release()

    def _run(self, open_source: Callable[[], Source]) -> None:
        """Open the source, and pass its chunks to the reader, then its end (None) or its error.

        Runs in the pump's thread.
        """
        failure: Exception | None = None
        try:
            source = open_source()
            with closing(source):
                self._forward_chunks(source)
        except Exception as error:  # noqa: BLE001  # `chunks` raises it in the reader
            failure = error
        self._put(failure)

    def _forward_chunks(self, source: Source) -> None:
        """Pass chunks to the reader's queue until the source ends or the pump is closed.

        Runs in the pump's thread, and waits there while the reader is `SLOTS` chunks behind.
        """
        if not self._adopt_source(source):  # closed before the source was open
            return
        for chunk in source.chunks():
            self._slots.acquire()
            if self._is_closed:
                return
            self._put(chunk)

    def _adopt_source(self, source: Source) -> bool:
        """Register an opened source, so that `close` can interrupt it; return False if the pump is closed."""
        with self._lock:
            self._source = source
            return not self._is_closed

    def _put(self, item: bytes | Exception | None) -> None:
        """Add an item to the reader's queue from the pump's thread; None is the end of the stream."""
        try:
            self._loop.call_soon_threadsafe(self._queue.put_nowait, item)
        except RuntimeError:  # the loop is closed, so nobody reads any more
            self._is_closed = True


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes of one of the two streams, stdout or stderr."""

    is_stderr: bool
    data: bytes


class Demultiplexer:
    """Splits the engine's stream into stdout and stderr, independently of the chunks in which it arrives.

    A header of eight bytes precedes each part: the stream's number, three zeros, and the part's length as a
    big endian number of four bytes.
    """

    def __init__(self) -> None:
        """Expect a header first."""
        self._header = bytearray()
        """The bytes of a header that is not complete yet."""
        self._is_stderr = False
        """Whether the present part is of stderr."""
        self._remaining = 0
        """The bytes of the present part that are still to come."""

    def feed(self, chunk: bytes) -> Iterator[Piece]:
        """Yield the pieces of stdout and stderr in a chunk.

        A part or a header that the end of the chunk cuts off continues with the next chunk.
        """
        position = 0
        while position < len(chunk):
            if self._remaining:
                data = chunk[position : position + self._remaining]
                self._remaining -= len(data)
                yield Piece(self._is_stderr, data)
            else:
                data = chunk[position : position + HEADER_BYTES - len(self._header)]
                self._read_header(data)
            position += len(data)

    def _read_header(self, data: bytes) -> None:
        """Add bytes to the header of the next part.

        Once the header is complete, the stream and the length of the part are read from it.
        """
        self._header += data
        if len(self._header) == HEADER_BYTES:
            number, self._remaining = struct.unpack(">BxxxL", self._header)
            self._is_stderr = number == STDERR
            self._header.clear()


class Tail:
    """The last bytes of a stream, for a log or the report of an exit."""

    def __init__(self, limit: int = 4096) -> None:
        """`limit` is the number of bytes to store."""
        self._limit = limit
        self._data = b""

    def add(self, data: bytes) -> None:
        """Add bytes; only the last ones, up to the limit, are stored."""
        self._data = (self._data + data)[-self._limit :]

    def text(self) -> str:
        """Return the stored bytes as text."""
        return self._data.decode(errors="replace")
