"""Serve the socket: read one request, judge it, send a rebuilt one to the engine, return its answer.

One request per connection: bytes after it are never passed on, except where the engine has turned the
connection into a container's streams.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import h11
import httpx
import structlog

from orchestrator.compose.socket_filter.checks import Checks
from orchestrator.compose.socket_filter.inventory import UNKNOWN_ANSWER
from orchestrator.compose.socket_filter.requests import (
    EngineRequest,
    FilteredResponse,
    ObjectNotFound,
    RequestForbidden,
    RequestKind,
    read,
)

log = structlog.get_logger(__name__)

MAX_HEAD_BYTES, MAX_BODY_BYTES = 16 * 1024, 256 * 1024
"""Most bytes of a request's head, and of its body."""
READ_SECONDS = 15.0
"""Seconds in which a request has to arrive."""
MAX_CONNECTIONS = 256
CHUNK_BYTES = 64 * 1024
BAD, FORBIDDEN, NOT_FOUND, BUSY, BAD_GATEWAY, SWITCHED = 400, 403, 404, 503, 502, 101

Connect = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _ReceivedRequest:
    """A whole request, as it was received. Nothing in it is checked yet."""

    method: str
    target: str
    body: bytes
    early_stdin: bytes
    """Bytes that came with the request and follow it: the start of a container's stdin."""


class FilterServer:
    """`handle` is called with each connection, and serves it in a task of its own."""

    def __init__(self, checks: Checks, *, connect: Connect) -> None:
        """`connect` opens a connection to the engine, and raises `OSError` if that fails."""
        self._checks = checks
        self._connect = connect
        self._tasks: set[asyncio.Task[None]] = set()
        """Tasks are stored here because asyncio forgets a task whose connection is closed on one side."""

    def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a new connection in a task, which `close` ends."""
        task = asyncio.get_running_loop().create_task(self.serve(reader, writer), name="filter-connection")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Close all open connections at once, and wait for their tasks to end."""
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request of a new connection, then close it. Raises nothing but cancellation.

        With more than `MAX_CONNECTIONS` open ones, the answer is that there are too many.
        """
        try:
            if len(self._tasks) > MAX_CONNECTIONS:
                return await _answer(writer, BUSY, "Too many connections.")
            await self._serve(reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            log.info("filter.broke_off", reason=str(error))
        finally:
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Read one request of a client, check it, and answer it or pass it on to the engine."""
        try:
            async with asyncio.timeout(READ_SECONDS):
                received = await _request(reader)
        except (h11.RemoteProtocolError, TimeoutError, RequestForbidden) as error:
            log.warning("filter.unreadable", reason=str(error))
            return await _answer(writer, BAD, f"This is no request that can be read: {error}")
        if received is None:
            return None
        try:
            checked = await self._checks.check(read(received.method, received.target, received.body))
        except RequestForbidden as refused:
            log.warning(
                "filter.refused", method=received.method, target=received.target[:300], reason=str(refused)
            )
            return await _answer(writer, FORBIDDEN, f"Andy's filter refuses: {refused}")
        except ObjectNotFound as missing:
            return await _answer(writer, NOT_FOUND, str(missing))
        except httpx.HTTPStatusError as error:  # such as a swarm's manager that has just restarted
            return await _answer(writer, error.response.status_code, error.response.text[:1000])
        except httpx.HTTPError as error:
            log.warning("filter.engine_gone", reason=repr(error))
            return await _answer(writer, BAD_GATEWAY, f"The engine does not answer: {error!r}")
        except UNKNOWN_ANSWER as error:
            log.warning("filter.engine_unknown", target=received.target[:300], reason=repr(error))
            return await _answer(writer, BAD_GATEWAY, f"The engine's answer cannot be read: {error!r}")
        if isinstance(checked, FilteredResponse):
            return await _respond(writer, 200, checked.document)
        return await self._pass_on(checked, received.early_stdin, reader, writer)

    async def _pass_on(
        self,
        checked: EngineRequest,
        early_stdin: bytes,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        """Send a checked request to the engine, and the engine's answer to the client.

        `early_stdin` are bytes that the client sent after the request: the start of a container's stdin.
        """
        try:
            from_engine, to_engine = await self._connect()
        except OSError as error:
            return await _answer(writer, BAD_GATEWAY, f"The engine does not answer: {error}")
        try:
            to_engine.write(_serialize(checked))
            await to_engine.drain()
            if checked.kind is RequestKind.ATTACH:
                await _attach(early_stdin, reader, writer, from_engine, to_engine)
            else:
                await _hand_back(from_engine, reader, writer)
        finally:
            to_engine.close()


async def _request(reader: asyncio.StreamReader) -> _ReceivedRequest | None:
    """Read one whole request from a client, at most `MAX_HEAD_BYTES` and `MAX_BODY_BYTES` long.

    None if the connection is closed before the head of the request is whole.

    Raises:
        RequestForbidden: its body is too long, or it waits for an answer before its body.
        h11.RemoteProtocolError: it is no HTTP request, or the connection is closed within its body.
    """
    parser = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)
    head: h11.Request | None = None
    body = bytearray()
    while True:
        match parser.next_event():
            case h11.NEED_DATA:
                if (data := await reader.read(CHUNK_BYTES)) == b"" and head is None:
                    return None
                # Empty data says that the connection is closed: within a request, h11 then raises an error.
                parser.receive_data(data)
            case h11.Request() as head:
                # Such a client would wait for an interim answer before it sends the body.
                if any(name == b"expect" for name, _ in head.headers):
                    raise RequestForbidden("'Expect' is not served.")
            case h11.Data() as part:
                body += part.data
                if len(body) > MAX_BODY_BYTES:
                    raise RequestForbidden(f"The body is longer than {MAX_BODY_BYTES} bytes.")
            case h11.EndOfMessage() | h11.PAUSED if head is not None:
                early_stdin, _ = parser.trailing_data
                return _ReceivedRequest(
                    method=head.method.decode("ascii"),
                    target=head.target.decode("ascii"),
                    body=bytes(body),
                    early_stdin=early_stdin,
                )
            case _:  # the connection was closed before a request
                return None


def _serialize(checked: EngineRequest) -> bytes:
    """Return a checked request as bytes for the engine. It contains nothing of the received bytes."""
    body = b"" if checked.body is None else json.dumps(checked.body).encode()
    head = [f"{checked.method} {checked.target} HTTP/1.1", "Host: docker", "User-Agent: andy"]
    if checked.kind is RequestKind.ATTACH:
        # The engine turns the connection into the container's streams.
        head += ["Connection: Upgrade", "Upgrade: tcp"]
    else:
        # So that nothing can follow the request that was judged.
        head += ["Connection: close"]
    if checked.body is not None:
        head += ["Content-Type: application/json"]
    if checked.method == "POST":
        head += [f"Content-Length: {len(body)}"]
    return "\r\n".join([*head, "", ""]).encode("ascii") + body


async def _hand_back(
    from_engine: asyncio.StreamReader, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Copy the engine's answer to the client, to its end or until the client disconnects or sends more."""
    async with asyncio.TaskGroup() as tasks:
        copying = tasks.create_task(_copy(from_engine, writer), name="filter-answer")
        watching = tasks.create_task(_wait_for_disconnect(reader), name="filter-watch")
        await asyncio.wait((copying, watching), return_when=asyncio.FIRST_COMPLETED)
        copying.cancel()
        watching.cancel()


async def _wait_for_disconnect(reader: asyncio.StreamReader) -> None:
    """Return when the client disconnects, or sends anything more, which is ignored."""
    with suppress(OSError):
        await reader.read(1)


async def _attach(
    early_stdin: bytes,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    from_engine: asyncio.StreamReader,
    to_engine: asyncio.StreamWriter,
) -> None:
    """Connect the client with a container's streams, until the container's output ends.

    `early_stdin` is the start of the container's stdin. If the engine refuses, the client gets its error
    message.
    """
    head = await from_engine.readuntil(b"\r\n\r\n")
    try:
        status = int(head.split(b" ", 2)[1])  # `HTTP/1.1 101 UPGRADED`
    except (IndexError, ValueError) as error:
        log.warning("filter.engine_unknown", reason=repr(error))
        return await _answer(writer, BAD_GATEWAY, "The engine's answer cannot be read.")
    if status != SWITCHED:
        # The engine would accept further requests on this connection: not a byte more may reach it.
        to_engine.write_eof()
        return await _answer(writer, status, await _message(from_engine))
    writer.write(head)
    to_engine.write(early_stdin)
    async with asyncio.TaskGroup() as tasks:
        output = tasks.create_task(_copy(from_engine, writer), name="filter-output")
        stdin = tasks.create_task(_copy(reader, to_engine, ends_writer=True), name="filter-order")
        # The client may end the container's stdin early, and still reads its output.
        await asyncio.wait((output,))
        stdin.cancel()
    return None


async def _message(from_engine: asyncio.StreamReader) -> str:
    """Return the error message in the body of the engine's answer; the start of the body if it has none."""
    data = b""
    # The engine need not close the connection after its answer, so only the bytes of two seconds are read.
    with suppress(TimeoutError):
        async with asyncio.timeout(2):
            while part := await from_engine.read(CHUNK_BYTES):
                data += part
    with suppress(*UNKNOWN_ANSWER):
        return str(json.loads(data)["message"])
    return data.decode("utf-8", "replace")[:1000]


async def _copy(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, ends_writer: bool = False
) -> None:
    """Copy bytes until `reader` or the connection ends; with `ends_writer`, then end `writer`'s stream."""
    with suppress(OSError):
        while data := await reader.read(CHUNK_BYTES):
            writer.write(data)
            await writer.drain()
        if ends_writer and writer.can_write_eof():
            writer.write_eof()


async def _answer(writer: asyncio.StreamWriter, status: int, text: str) -> None:
    """Answer a request with a message, in the form in which the engine reports an error."""
    await _respond(writer, status, {"message": text})


async def _respond(writer: asyncio.StreamWriter, status: int, document: Any) -> None:
    """Answer a request with a JSON document."""
    body = json.dumps(document).encode()
    head = (
        f"HTTP/1.1 {status} Andy\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    writer.write(head.encode() + body)
    await writer.drain()
