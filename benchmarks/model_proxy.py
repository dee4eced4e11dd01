"""What the proxy adds between a container and the model: beside the same requests sent straight."""

from __future__ import annotations

import asyncio
import json
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.figures import Check, Figure, Series, excess_of, ratio_of
from benchmarks.model_sides import GROUPS
from benchmarks.places import PROJECT, Effort, progress

FIRST_BYTES = 300
FIRST_BYTE_MS = 4.0
APART_SECONDS = 0.03
STREAMS = 50
EVENTS_A_SECOND = 40
"""Of each stream: what a fast model sends."""
STREAM_SECONDS = 5.0
FAST_EVENTS = 20_000
TIMES = 4
LEAST_OF_DIRECT = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """Where to send requests, and as whom."""

    name: str
    port: int
    token: str

    def request(self, *, events: int, a_second: float, group: int = 0) -> bytes:
        asked = {"events": events, "a_second": a_second}
        body = json.dumps({"model": "m", "stream": True, "messages": [], "metadata": asked}).encode()
        head = f"POST /v1/messages HTTP/1.1\r\nhost: x\r\nx-api-key: {self.token}{group}\r\n"
        return f"{head}content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body


@dataclass(frozen=True, slots=True, kw_only=True)
class Sides:
    direct: Way
    proxied: Way
    host_pid: int

    def each(self) -> tuple[Way, Way]:
        return self.proxied, self.direct


async def measure(effort: Effort) -> list[Figure]:
    with _sides() as sides:
        return [
            await _first_byte(sides, effort.times(FIRST_BYTES)),
            await _one_stream(sides, effort.times(TIMES)),
            await _many_streams(sides, effort.times(TIMES), effort.seconds(STREAM_SECONDS)),
        ]


# Measurements


async def _first_byte(sides: Sides, times: int) -> Figure:
    """In turns, each on a warm connection of its own, as far apart as an agent sends them at least."""
    values: dict[str, list[float]] = {"proxied": [], "direct": []}
    lines = {way.name: await asyncio.open_connection("127.0.0.1", way.port) for way in sides.each()}
    for number in range(times + 5):
        for way in sides.each():
            await asyncio.sleep(APART_SECONDS)
            took = await _until_first_byte(*lines[way.name], way.request(events=1, a_second=0))
            if number >= 5:
                values[way.name].append(took)
    for _, writer in lines.values():
        writer.close()
    proxied, direct = (
        _series("through the proxy", "ms", values["proxied"]),
        _series("floor: straight", "ms", values["direct"]),
    )
    check = excess_of(proxied, direct, FIRST_BYTE_MS)
    return Figure(name="The first byte of an answer", measured=proxied, floor=direct, checks=(check,))


async def _one_stream(sides: Sides, times: int) -> Figure:
    """As fast as it goes: far faster than any model, so the ratio is told and nothing is promised."""
    values: dict[str, list[float]] = {"proxied": [], "direct": []}
    for _ in range(times):
        for way in sides.each():
            began = time.perf_counter()
            size = await _whole(way, events=FAST_EVENTS, a_second=0)
            values[way.name].append(size / 1e6 / (time.perf_counter() - began))
    return Figure(
        name="One stream without a pace",
        measured=_series("through the proxy", "MB/s", values["proxied"]),
        floor=_series("straight", "MB/s", values["direct"]),
    )


async def _many_streams(sides: Sides, times: int, seconds: float) -> Figure:
    values: dict[str, list[float]] = {"proxied": [], "direct": []}
    cpu: list[float] = []
    for number in range(times):
        for way in sides.each():
            began, before = time.perf_counter(), _cpu_seconds(sides.host_pid)
            await asyncio.gather(*(_paced(way, number % GROUPS, seconds) for number in range(STREAMS)))
            took = time.perf_counter() - began
            values[way.name].append(took)
            if way is sides.proxied:
                cpu.append(100 * (_cpu_seconds(sides.host_pid) - before) / took)
        progress(f"{number + 1} of {times} times {STREAMS} streams, {cpu[-1]:.0f} % of a core")
    proxied = _series("through the proxy", "s", values["proxied"])
    direct = _series("floor: straight", "s", values["direct"])
    most = ratio_of(proxied, direct, 1 / LEAST_OF_DIRECT)
    return Figure(
        name=f"{STREAMS} streams at once, {EVENTS_A_SECOND} events a second each",
        measured=proxied,
        floor=direct,
        checks=(
            Check(
                what=f"times the floor ({LEAST_OF_DIRECT} of its throughput)",
                value=most.value,
                limit=most.limit,
                unit="x",
            ),
        ),
        details=(_series("host, of a core", "%", cpu),),
    )


async def _paced(way: Way, group: int, seconds: float) -> int:
    events = round(EVENTS_A_SECOND * seconds)
    return await _whole(way, events=events, a_second=EVENTS_A_SECOND, group=group)


# The client


async def _until_first_byte(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes
) -> float:
    """Milliseconds to the first byte of the body; then the rest is read."""
    began = time.perf_counter()
    writer.write(request)
    head = await reader.readuntil(b"\r\n\r\n")
    assert b" 200 " in head, head
    first = await reader.read(1)
    took = 1000 * (time.perf_counter() - began)
    await _rest(reader, first)
    return took


async def _whole(way: Way, *, events: int, a_second: float, group: int = 0) -> int:
    """Ask on a connection of its own and return how many bytes came."""
    reader, writer = await asyncio.open_connection("127.0.0.1", way.port, limit=2**20)
    writer.write(way.request(events=events, a_second=a_second, group=group))
    head = await reader.readuntil(b"\r\n\r\n")
    assert b" 200 " in head, head
    size = await _rest(reader, b"")
    writer.close()
    return size


async def _rest(reader: asyncio.StreamReader, seen: bytes) -> int:
    """Read to the last chunk, which is empty."""
    size, tail = len(seen), seen
    while not tail.endswith(b"\r\n0\r\n\r\n"):
        chunk = await reader.read(2**18)
        assert chunk, "the answer broke off"
        size += len(chunk)
        tail = (tail + chunk)[-7:]
    return size


# The processes


@contextmanager
def _sides() -> Iterator[Sides]:
    token = f"andy-{secrets.token_hex(8)}"
    with _process("service") as (service, service_port):
        url = f"http://127.0.0.1:{service_port}"
        with (
            tempfile.TemporaryDirectory(prefix="andy-bench-") as folder,
            _process("host", url, token, folder) as (host, host_port),
        ):
            assert service.pid != host.pid
            yield Sides(
                direct=Way(name="direct", port=service_port, token=token),
                proxied=Way(name="proxied", port=host_port, token=token),
                host_pid=host.pid,
            )


@contextmanager
def _process(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    command = [sys.executable, "-m", "benchmarks.model_sides", *arguments]
    process = subprocess.Popen(
        command, cwd=PROJECT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert process.stdout is not None
        yield process, int(process.stdout.readline())
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def _cpu_seconds(pid: int) -> float:
    told = [path.read_text(encoding="utf-8") for path in Path(f"/proc/{pid}/task").glob("*/schedstat")]
    return sum(int(each.split()[0]) for each in told) / 1e9


def _series(name: str, unit: str, values: list[float]) -> Series:
    return Series(name=name, unit=unit, values=tuple(values))
