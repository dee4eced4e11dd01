from __future__ import annotations

import asyncio
import itertools
import struct
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.containers.streams import SLOTS, Demultiplexer, Pump, Tail
from tests.support.runtimes import eventually


def muxed(parts: list[tuple[int, bytes]]) -> bytes:
    return b"".join(struct.pack(">BxxxL", number, len(data)) + data for number, data in parts)


@given(
    parts=st.lists(st.tuples(st.sampled_from([1, 2]), st.binary(max_size=40)), max_size=8),
    cuts=st.lists(st.integers(0, 400), max_size=8),
)
def test_the_streams_come_apart_wherever_they_are_cut(parts, cuts):
    stream = muxed(parts)
    edges = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    splitter = Demultiplexer()
    pieces = [piece for begin, end in itertools.pairwise(edges) for piece in splitter.feed(stream[begin:end])]

    for number in (1, 2):
        heard = b"".join(piece.data for piece in pieces if piece.is_stderr == (number == 2))
        assert heard == b"".join(data for each, data in parts if each == number)


def test_a_tail_keeps_the_last_bytes():
    tail = Tail(limit=6)
    for data in (b"abc", b"defgh", "끝".encode()):
        tail.add(data)

    assert tail.text() == "fgh끝"


class Endless:
    def __init__(self) -> None:
        self.given = 0
        self.is_closed = threading.Event()
        self.is_over = threading.Event()

    def chunks(self) -> Iterator[bytes]:
        while not self.is_over.is_set():
            self.given += 1
            yield b"x"

    def interrupt(self) -> None:
        self.is_over.set()

    def close(self) -> None:
        self.is_closed.set()


async def test_a_source_is_read_only_a_little_ahead_of_its_reader():
    source = Endless()
    pump = Pump(lambda: source, name="pump")
    chunks = pump.chunks()
    for _ in range(3):
        await anext(chunks)
    await eventually(lambda: source.given == SLOTS + 4, "the thread waits for the reader")

    pump.close()

    await eventually(source.is_closed.is_set, "the source is closed")
    assert source.given == SLOTS + 4


async def test_closing_before_the_source_is_open_closes_it_when_it_is():
    source, may_open = Endless(), threading.Event()

    def opened() -> Endless:
        may_open.wait()
        return source

    pump = Pump(opened, name="pump")
    pump.close()
    may_open.set()

    await eventually(source.is_closed.is_set, "the source is closed")
    assert source.given == 0


async def test_the_reader_learns_what_the_source_raised():
    def opened() -> Endless:
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        await anext(Pump(opened, name="pump").chunks())


async def test_closing_after_the_loop_is_gone_still_ends_the_thread():
    source = Endless()
    loop = asyncio.new_event_loop()

    async def begin() -> Pump:
        return Pump(lambda: source, name="pump")

    pump = await asyncio.to_thread(loop.run_until_complete, begin())
    loop.close()
    pump.close()

    await eventually(source.is_closed.is_set, "the source is closed")
