"""The container's side of one exchange: read its request, write its answer, notice when it disconnects."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress

from starlette.types import Message, Receive, Scope, Send

from orchestrator.base.rate_limits import CallerPace
from orchestrator.proxies.model.error_responses import TOO_SLOW, ProxyRefusal, ProxyRefused, too_large
from orchestrator.proxies.model.headers import Header
from orchestrator.proxies.model.limits import ModelProxyLimits


class ClientGone(Exception):
    """The container closed its connection."""


class ClientSide:
    """One request of a container. `body` is iterated once; then `until_gone` waits for a disconnect."""

    def __init__(
        self, scope: Scope, receive: Receive, send: Send, limits: ModelProxyLimits, pace: CallerPace
    ) -> None:
        """Wrap one request of ASGI: `scope`, `receive` and `send` are its parts.

        `limits` bound its body in time, and `pace` slows down callers that send much.
        """
        self.headers: list[Header] = list(scope["headers"])
        self.method: str = scope["method"]
        self.query: bytes = scope["query_string"]
        self.peer: str = (scope["client"] or ("?",))[0]  # the address in ASGI's pair of address and port
        self.caller = self.peer
        """The caller whose pace this counts for: the address, or the run once its token is known."""
        self.status: int | None = None
        """The answer's status, once it has started."""
        self.has_early_stream = False
        """Whether a stream was started before the service's answer: only events can follow then."""
        self.is_answered = False
        """Whether the whole answer was sent."""
        self.bytes_in = 0
        """Bytes of the request's body so far."""
        self.bytes_out = 0
        """Bytes of the answer's body so far."""
        self._receive = receive
        self._send = send
        self._limits = limits
        self._pace = pace
        self._is_counted = False
        """Whether the request was counted for its caller's pace."""
        self._seconds_left = limits.body_seconds
        """Seconds that the host still waits for pieces of the body, in all."""
        self._body_ended = asyncio.Event()

    async def keep_pace(self) -> bool:
        """Count this request for its caller, and wait if the caller has sent many lately.

        Return whether there was a wait.

        A second call does nothing.
        """
        if self._is_counted:
            return False
        self._is_counted = True
        is_stranger = self.caller == self.peer  # the run is not known yet, only the address
        # The pace is measured in bytes: a request costs a fixed number, beside the bytes of its body.
        cost = self._limits.stranger_bytes if is_stranger else self._limits.request_bytes
        seconds = self._pace.request_seconds(self.caller, cost)
        if seconds > 0:
            await asyncio.sleep(seconds)
        return seconds > 0

    async def body(self, limit: int) -> AsyncIterator[bytes]:
        """Yield the body as it comes.

        Raises:
            ProxyRefused: the body is larger than `limit` bytes (413), or takes too long (408).
            ClientGone: the container has closed the connection.
        """
        while not self._body_ended.is_set():
            chunk = await self._next_chunk()
            self.bytes_in += len(chunk)
            if self.bytes_in > limit:
                raise ProxyRefused(too_large(limit))
            if chunk:
                yield chunk

    async def expect_no_body(self) -> None:
        """Read the body to its end. Raises `ProxyRefused` when there is one."""
        async for _ in self.body(0):
            pass

    async def _next_chunk(self) -> bytes:
        """Wait for the next piece of the body and return it.

        Raises `ProxyRefused` (408) if the time for the body is used up, `ClientGone` if the container has
        closed the connection.
        """
        loop = asyncio.get_running_loop()
        started = loop.time()
        try:
            async with asyncio.timeout(self._seconds_left):
                message = await self._receive()
        except TimeoutError:
            raise ProxyRefused(TOO_SLOW) from None
        # Only the wait for the container counts. The pauses by which `_chunk_of` slows it down, and the time
        # in which the service takes the body, are not the container's fault.
        self._seconds_left -= loop.time() - started
        return await self._chunk_of(message)

    async def _chunk_of(self, message: Message) -> bytes:
        """Return the bytes in a message of ASGI, after a pause if the caller has sent many bytes lately.

        Note if they are the last of the body.

        Raises `ClientGone` if the message says that the container has closed the connection.
        """
        if message["type"] == "http.disconnect":
            raise ClientGone
        if not message.get("more_body", False):
            self._body_ended.set()
        chunk: bytes = message.get("body", b"")
        # An empty piece only says that the body has ended: there is nothing to read more slowly.
        if chunk and (seconds := self._pace.wait_seconds(self.caller, len(chunk))) > 0:
            await asyncio.sleep(seconds)
        return chunk

    async def until_gone(self) -> None:
        """Wait until the client disconnects; raise `ClientGone` if its answer was not whole by then."""
        # Only one place may receive messages at a time: `body` does until the request's body has ended.
        await self._body_ended.wait()
        while (await self._receive())["type"] != "http.disconnect":
            pass
        if not self.is_answered:
            raise ClientGone

    async def begin(self, status: int, headers: Iterable[Header]) -> None:
        """Send the head of the answer.

        If the client has not sent its whole body yet, the header `connection: close` is added.
        """
        closing = [] if self._body_ended.is_set() else [(b"connection", b"close")]
        self.status = status
        await self._send({"type": "http.response.start", "status": status, "headers": [*headers, *closing]})

    async def write(self, chunk: bytes) -> None:
        """Send a piece of the answer's body."""
        self.bytes_out += len(chunk)
        await self._send({"type": "http.response.body", "body": chunk, "more_body": True})

    async def end(self) -> None:
        """Complete the answer, after dropping what the client still sends of its body.

        Without this call the client sees a broken connection.
        """
        if not self._body_ended.is_set():
            await self._drop_unread_body()
        self.is_answered = True
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def reply(self, status: int, body: bytes, headers: Iterable[Header] = ()) -> None:
        """Send a whole answer: a status, a body in JSON, and further headers."""
        length = str(len(body)).encode()
        await self.begin(
            status, [(b"content-type", b"application/json"), (b"content-length", length), *headers]
        )
        await self.write(body)
        await self.end()

    async def begin_stream(self) -> None:
        """Start an answer that is a stream of events, before the service has started its own."""
        self.has_early_stream = True
        await self.begin(200, [(b"content-type", b"text/event-stream; charset=utf-8")])

    async def ping(self) -> None:
        """Send a ping in a stream, as the service itself does."""
        await self.write(b'event: ping\ndata: {"type": "ping"}\n\n')

    async def refuse(self, refusal: ProxyRefusal) -> None:
        """Send a refusal as the whole answer, or as the last event of a started stream."""
        if self.has_early_stream:
            await self.write(b"event: error\ndata: " + refusal.body() + b"\n\n")
            await self.end()
            return
        await self.reply(refusal.status, refusal.body(), refusal.headers)

    async def _drop_unread_body(self) -> None:
        """Read and drop the rest of the request's body, for at most `linger_seconds`.

        Closing with unread data would reset the connection, and the client would lose the answer.
        """
        with suppress(TimeoutError, ClientGone):
            async with asyncio.timeout(self._limits.linger_seconds):
                while not self._body_ended.is_set():
                    await self._chunk_of(await self._receive())
