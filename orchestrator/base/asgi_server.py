"""Serves an ASGI app on a bound socket, and leaves signals to `app.py`.

Any client may be hostile, so both servers of the host limit what uvicorn leaves unlimited: how many
connections are accepted at once, how many are open, and how long the head of a request may take.
"""

from __future__ import annotations

import asyncio
import itertools
import resource
import socket
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from agent_runner.wire.listeners import ACCEPTED_AT_ONCE, QUEUE, ScreenedListener, listen

CUT_SECONDS = 1.0
"""Seconds in which requests that were asked to end may do so before their connections are dropped."""
JOINED_BYTES = 64 * 1024
"""Most bytes that wait to be written together."""

STOPPING = "andy.stopping"
"""The key, in a request's state, of the event that its server sets when it starts to stop."""

MAX_OPEN_FILES = 8192
"""More open files than all servers together need: their connections are limited."""


def allow_open_files() -> None:
    """Raise this process's limit of open files, if the system allows it: the usual 1024 are soon used up."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):  # macOS may refuse the value that it reported as allowed
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


@contextmanager
def listening_also_at(listener: socket.socket, address: str | None) -> Iterator[tuple[socket.socket, ...]]:
    """Yield the listening sockets of a server: `listener`, and a second one if `address` is not None.

    The second one listens at the same port of `address`, and is closed after the block. With Docker Compose,
    Docker passes connections to the published port on to that address, where `listener` does not listen.

    Raises:
        OSError: it is not possible to listen there.
    """
    if address is None:
        yield (listener,)
        return
    with closing(listen(address, listener.getsockname()[1])) as second:
        yield (listener, second)


class BoundedConfig(uvicorn.Config):
    """Uvicorn's settings for a server whose connections are of a `BoundedProtocol`."""

    def __init__(
        self, app: Callable[..., Any], *, http: type[BoundedProtocol], head_seconds: float, **options: Any
    ) -> None:
        """`http` handles each connection to `app`; `options` are further settings of uvicorn."""
        super().__init__(
            app,
            http=http,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            backlog=ACCEPTED_AT_ONCE,
            timeout_graceful_shutdown=2,
            **options,
        )
        self.head_seconds = head_seconds
        """Seconds in which the head of a request has to arrive."""
        self.stopping = asyncio.Event()
        """Set when the server starts to stop: requests that would never end by themselves end then."""

    def is_full(self, address: str) -> bool:  # noqa: ARG002 - for servers that count
        """Return whether a client's IP address has so many connections that a further one is refused.

        Here there is no such limit; the configuration of a server that counts connections overrides this.
        """
        return False


class JoiningTransport(asyncio.Transport):
    """A transport that joins the pieces written in one turn of the event loop.

    uvicorn writes the head of an answer, each piece of its body and its end with a system call each. These
    calls are most of the cost of a short answer. Here the head waits for the first piece of the body. Then
    both are written at once, and further pieces are joined until the end of the turn.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        """`transport` sends what this one has joined."""
        super().__init__()
        self._transport = transport
        self._loop = loop
        self._waiting = bytearray()
        self._piece_count = 0
        """The number of pieces written in this turn of the event loop."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Write a piece of an answer, joined with others of the same turn of the event loop.

        It is written at the end of this turn at the latest. More than `JOINED_BYTES` are written at once, so
        that flow control works.
        """
        if not data:
            return
        if not self._piece_count:
            self._loop.call_soon(self._end_turn)
        self._piece_count += 1
        self._waiting += data
        # The second piece is the first one of the body, which shall not wait.
        if self._piece_count == 2 or len(self._waiting) > JOINED_BYTES:
            self._flush()

    def _end_turn(self) -> None:
        """Send the waiting pieces as this turn of the event loop ends, and set their count to zero."""
        self._piece_count = 0
        self._flush()

    def _flush(self) -> None:
        """Send the waiting pieces, joined to one."""
        if self._waiting:
            waiting, self._waiting = self._waiting, bytearray()
            self._transport.write(waiting)

    def close(self) -> None:
        """Close the connection after the waiting pieces were sent."""
        self._flush()
        self._transport.close()

    def abort(self) -> None:
        """Close the connection at once; the waiting pieces are dropped."""
        self._waiting.clear()
        self._transport.abort()

    def is_closing(self) -> bool:
        """Return whether the connection is closed or about to be."""
        return self._transport.is_closing()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return the inner transport's value of this name, such as `peername`; `default` if it has none."""
        return self._transport.get_extra_info(name, default)

    def pause_reading(self) -> None:
        """Receive no more bytes until `resume_reading`."""
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Receive bytes again after `pause_reading`."""
        self._transport.resume_reading()


class BoundedProtocol(H11Protocol):
    """One connection, whose request head has to arrive in time.

    `surplus` selects which connections to close when there are too many.
    """

    _numbers = itertools.count()

    def __init__(
        self,
        config: BoundedConfig,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        """The arguments are uvicorn's; requests also get the event that is set when the server stops."""
        super().__init__(config, server_state, {**app_state, STOPPING: config.stopping}, _loop)
        # uvicorn logs paths, which may contain secrets, as soon as a library gives its logger a handler.
        self.access_log = False
        self.number = next(self._numbers)
        """Counts up with each connection: a smaller number is an older connection."""
        self._head_seconds = config.head_seconds
        self._head_timer: asyncio.TimerHandle | None = None
        """Closes the connection unless the head of a request arrives in time; None while none is due."""

    def surplus(self) -> Collection[BoundedProtocol]:
        """Return the connections to close now that this one was made; here none.

        The connection of a server that limits their number overrides this.
        """
        return ()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timer of the first request's head, and close the connections of `surplus`."""
        super().connection_made(JoiningTransport(transport, self.loop))
        self._arm_head_timer()
        for connection in self.surplus():
            connection.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timers of this connection, which has ended; `exc` is None if it ended without an error."""
        self._disarm_head_timer()
        # uvicorn stops this timer only after an end without an error. Armed, it keeps the dead connection in
        # memory.
        self._unset_keepalive_if_required()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Pass received bytes on to uvicorn, and watch whether they complete the head of a request."""
        super().data_received(data)
        self._watch_head()

    def on_response_complete(self) -> None:
        """Go on to the next request, whose head may have arrived in part already."""
        super().on_response_complete()
        self._watch_head()

    def _watch_head(self) -> None:
        """Run the timer that closes the connection while only a part of a request's head has come."""
        # h11 returns the received bytes that it could not parse yet as `trailing_data`. If it has some while
        # the client has begun no request (`IDLE`), they are a part of the next request's head.
        is_head_begun = self.conn.their_state is h11.IDLE and bool(self.conn.trailing_data[0])
        if not is_head_begun:
            self._disarm_head_timer()
        elif self._head_timer is None:
            self._arm_head_timer()

    def _arm_head_timer(self) -> None:
        """Start the timer that closes the connection if the head of the request does not arrive in time."""
        self._head_timer = self.loop.call_later(self._head_seconds, self.transport.abort)

    def _disarm_head_timer(self) -> None:
        """Stop the timer for the head of a request, if it runs."""
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


class Server(uvicorn.Server):
    """Uvicorn that installs no signal handlers, and does not wake up ten times a second while it is idle."""

    def __init__(self, config: BoundedConfig) -> None:
        """`config` has the app, the limits, and the event that is set when this server stops."""
        super().__init__(config)
        self._stopping = config.stopping
        self._is_full = config.is_full

    def capture_signals(self) -> AbstractContextManager[None]:  # type: ignore[override]
        """Install no signal handlers, which uvicorn would do here: the host has its own."""
        return nullcontext()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to accept connections on these sockets; in the kernel, `QUEUE` more of them may wait."""
        await super().startup(sockets=sockets)
        for listener in sockets or ():
            # asyncio has one number (`backlog`) for two limits: how many connections are accepted at once,
            # and how many wait in the kernel. It is small because of the first; the second is raised here.
            listener.listen(QUEUE)

    async def main_loop(self) -> None:
        """Wait until the server is to stop; uvicorn's own loop would wake up ten times a second."""
        await self._stopping.wait()

    async def serve_on(self, *listeners: socket.socket) -> None:
        """Serve until cancelled. Then requests have the configured grace period before they are cut.

        A new connection of a client that has too many (`BoundedConfig.is_full`) is closed at once.
        The `listeners` stay open and can be served on again.
        """
        # Copies, because uvicorn closes the sockets that it is passed.
        own: list[socket.socket] = [ScreenedListener(listener.dup(), self._is_full) for listener in listeners]
        try:
            await self.serve(sockets=own)
        finally:
            self._stopping.set()
            if self.started:
                await self.shutdown(sockets=own)
            await self._cut()
            for listener in own:
                listener.close()

    async def _cut(self) -> None:
        """Wait up to `CUT_SECONDS` for the requests that run to end; then drop all connections."""
        if self.server_state.tasks:
            await asyncio.wait(self.server_state.tasks, timeout=CUT_SECONDS)
        for connection in list(self.server_state.connections):
            connection.transport.abort()
