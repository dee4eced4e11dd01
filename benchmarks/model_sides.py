"""The two sides of the model's proxy, each as a process: `python -m benchmarks.model_sides service|host`.

The service streams as many events as the request's body asks for, so many a second, or as fast as they
go. The host is the proxy as `andy up` runs it: ledger, budgets and audit on a database. Each prints the
port it listens on; the host takes the service's URL, a token and a directory of its own.
"""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import AsyncExitStack
from pathlib import Path

from orchestrator.base import logging
from orchestrator.base.clock import SystemClock
from orchestrator.base.event_bus import EventBus
from orchestrator.domain.values import Folder, Run, RunId
from orchestrator.groups import registration
from orchestrator.groups.host_context import HostContext
from orchestrator.home.directory import Home
from orchestrator.home.settings import Settings
from orchestrator.proxies.feature import ContainerProxies
from orchestrator.proxies.model.credentials import CredentialSource
from orchestrator.proxies.run_tokens import token_hash
from orchestrator.reports import costs
from orchestrator.store.database import Database
from orchestrator.store.money.budgets import Period
from orchestrator.store.runs import runs

USAGE = {"input_tokens": 1000, "output_tokens": 1}
MODEL = "claude-sonnet-4-5-20250929"
WORD = {"type": "text_delta", "text": "some words of an answer, as a model streams them"}
DELTA = {"type": "content_block_delta", "index": 0, "delta": WORD}
GROUPS = 5
"""A group has 16 requests under way at most."""
BURST = 64
"""Events written at once where no pace is asked for."""


def sse(event: dict[str, object]) -> bytes:
    return f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


START = chunk(sse({"type": "message_start", "message": {"model": MODEL, "usage": USAGE}}))
MIDDLE = sse(DELTA)
END = chunk(sse({"type": "message_delta", "usage": {"output_tokens": 50}}) + sse({"type": "message_stop"}))
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


async def serve() -> None:
    server = await asyncio.start_server(_answer_all, "127.0.0.1", 0, backlog=256)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


async def _answer_all(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            if b"transfer-encoding: chunked" in head:
                body = await _chunked(reader)
            else:
                body = await reader.readexactly(int(head.split(b"content-length: ")[1].split(b"\r\n")[0]))
            await _stream(writer, json.loads(body)["metadata"])
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


async def _chunked(reader: asyncio.StreamReader) -> bytes:
    body = b""
    while size := int(await reader.readuntil(b"\r\n"), 16):
        body += (await reader.readexactly(size + 2))[:-2]
    await reader.readexactly(2)
    return body


async def _stream(writer: asyncio.StreamWriter, asked: dict[str, float]) -> None:
    writer.write(HEAD + START)
    loop = asyncio.get_running_loop()
    began, pace = loop.time(), asked["a_second"]
    left = int(asked["events"])
    while left:
        size = 1 if pace else min(left, BURST)
        writer.write(chunk(MIDDLE * size))
        await writer.drain()
        left -= size
        if pace:
            await asyncio.sleep(max(0.0, began + (asked["events"] - left) / pace - loop.time()))
    writer.write(END + b"0\r\n\r\n")
    await writer.drain()


async def host(service: str, token: str, data: Path) -> None:
    logging.configure("info")
    clock = SystemClock()
    async with AsyncExitStack() as stack:
        database = await Database.open(data / "messages.db")
        stack.push_async_callback(database.close)
        await _prepare(database, token, clock.now_ms())
        reader = await Database.open_readonly(data / "messages.db")
        stack.push_async_callback(reader.close)
        home = Home(data)
        home.make()
        context = HostContext(
            home=home,
            settings=Settings(tz="UTC"),
            clock=clock,
            database=database,
            reader=reader,
            bus=EventBus(clock),
        )
        doors = ContainerProxies(
            context,
            credentials=CredentialSource(
                data, {"ANTHROPIC_API_KEY": "sk-bench-key", "ANTHROPIC_BASE_URL": service}
            ),
            address="127.0.0.1",
            on_runaway=_never,
        )
        doors.admission._requests_a_turn = 10**9  # noqa: SLF001 - a benchmark is a loop that runs away
        await doors.open(stack)
        print((home.data / "proxy-port").read_text(), flush=True)
        async with asyncio.TaskGroup() as tasks:
            for name, loop in doors.loops().items():
                tasks.create_task(loop(), name=name)  # type: ignore[arg-type]


async def _prepare(database: Database, token: str, now_ms: int) -> None:
    """As many groups as it takes, each with budgets and a run whose token is `token` and its number."""
    amount = costs.parse_amount("1000000M")
    async with database.transaction() as tx:
        await registration.ensure_main(tx, now_ms=now_ms)
        for number in range(GROUPS):
            await runs.begin(tx, _run(number, f"{token}{number}", now_ms))
        for period in Period:
            await costs.set_budget(tx, amount, period=period, folder=None, is_background=False, now_ms=now_ms)


def _run(number: int, token: str, now_ms: int) -> Run:
    return Run(
        id=RunId(f"bench-{number}"),
        folder=Folder(f"group-{number}"),
        is_isolated=False,
        runtime="none",
        container_ref=None,
        token_hash=token_hash(token),
        last_frame=0,
        started_ms=now_ms,
        ended_ms=None,
        exit_kind=None,
        exit_detail=None,
    )


async def _never(run_id: RunId, reason: str) -> None:
    raise AssertionError(f"{run_id}: {reason}")


if __name__ == "__main__":
    asyncio.run(serve() if sys.argv[1] == "service" else host(sys.argv[2], sys.argv[3], Path(sys.argv[4])))
