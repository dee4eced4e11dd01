"""Serves an ASGI app on a bound socket, and leaves signals to `app.py`.

Any client may be hostile, so both servers of the host limit what uvicorn leaves unlimited: how many
connections are accepted at once, how many are open, and how long the head of a request may take.
"""

from __future__ import annotations

import asyncio
import ctypes
import itertools
import resource
import socket
import struct
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

CUT_SECONDS = 1.0
"""Seconds in which requests that were asked to end may do so before their connections are dropped."""
ACCEPTED_AT_ONCE = 32
"""Connections accepted in one turn of the event loop. asyncio accepts all of them before a protocol can
refuse the first, so this is how far the open files may exceed a server's limits.
"""
REFUSED_AT_ONCE = 4
"""Connections refused in one turn of the event loop. One costs some 50 µs, most of it in the kernel; with 32,
a request of another container, which takes a dozen turns, waited three times as long.
"""
MAX_REFUSED, DROP_SECONDS = 32, 1.0
"""Refusals of one address in so many seconds, after which the kernel drops its attempts until they end."""
QUEUE = 256
"""Connections that wait in the kernel until they are accepted."""

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


def listen(host: str, port: int) -> socket.socket:
    """Listen on an address; port 0 lets the system choose. Raises `OSError` when it cannot."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio disables Nagle's delay (40 ms per answer) only if the protocol is named.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(QUEUE)
    except BaseException:
        listener.close()
        raise
    return listener


class ScreenedListener(socket.socket):
    """A listening socket that closes connections of addresses that have too many, right as it accepts them.

    A connection that asyncio has made costs ten times as much to close. An address that goes on nevertheless
    is not heard for a second: the kernel drops its attempts to connect, where it can, so that a container
    that connects again and again neither keeps the event loop busy nor fills the queue of the others.
    """

    def __init__(self, listener: socket.socket, is_full: Callable[[str], bool]) -> None:
        """Take a listening socket over; `is_full` returns whether an address has too many connections."""
        super().__init__(listener.family, listener.type, listener.proto, fileno=listener.detach())
        self._is_full = is_full
        self._refusals: Counter[str] = Counter()
        """Refused connections since the timer was started, by address."""
        self._timer: asyncio.TimerHandle | None = None
        self._is_dropping = False

    def accept(self) -> tuple[socket.socket, Any]:
        """Return the next connection that may stay. Raises `BlockingIOError` if there is none for now."""
        for _ in range(REFUSED_AT_ONCE):
            connection, address = super().accept()
            if not self._is_full(str(address[0])):
                return connection, address
            connection.close()
            self._count_refusal(str(address[0]))
        raise BlockingIOError

    def close(self) -> None:
        """Close this copy of the socket; others of it hear every address again."""
        self._hear_all()
        super().close()

    def _count_refusal(self, address: str) -> None:
        """Count a refused connection, and drop further ones of an address that had too many refused."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(DROP_SECONDS, self._hear_all)
        self._refusals[address] += 1
        # Elsewhere than on Linux, and with IPv6, they are refused one by one.
        if self._refusals[address] == MAX_REFUSED and sys.platform == "linux" and "." in address:
            addresses = [other for other, count in self._refusals.items() if count >= MAX_REFUSED]
            _attach_filter(self, addresses[-_MAX_DROPPED:])
            self._is_dropping = True

    def _hear_all(self) -> None:
        """Drop no attempts to connect any more, and begin to count anew."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._refusals.clear()
        if self._is_dropping:
            self._is_dropping = False
            self.setsockopt(socket.SOL_SOCKET, _SO_DETACH_FILTER, 0)


_SO_ATTACH_FILTER, _SO_DETACH_FILTER = 26, 27
_LOAD_WORD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_SENDER = 0xFFF00000 + 12
"""The place of the sender's address: 12 bytes into the header of IP."""
_MAX_DROPPED = 100


def _attach_filter(listener: socket.socket, addresses: Sequence[str]) -> None:
    """Have the kernel drop what these IPv4 addresses send to a listening socket.

    Connections that are open are not affected. See `bpf` in Linux's `Documentation/networking/filter.rst`.
    """
    program = [(_LOAD_WORD, 0, 0, _SENDER)]
    for left, address in zip(range(len(addresses), 0, -1), addresses, strict=True):
        # A match jumps over the other addresses and over the instruction that accepts.
        program.append((_JUMP_IF_EQUAL, left, 0, int.from_bytes(socket.inet_aton(address))))
    program += [(_RETURN, 0, 0, 0xFFFFFFFF), (_RETURN, 0, 0, 0)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *each) for each in program))
    description = struct.pack("HP", len(program), ctypes.addressof(code))
    listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, description)


@contextmanager
def fronted(listener: socket.socket, address: str | None) -> Iterator[tuple[socket.socket, ...]]:
    """Yield the listener, and with `address` another one at the same port of that address.

    Raises `OSError` when it cannot listen there.
    """
    if address is None:
        yield (listener,)
        return
    with closing(listen(address, listener.getsockname()[1])) as front:
        yield (listener, front)


class BoundedConfig(uvicorn.Config):
    """Uvicorn's settings for a server whose connections are of a `BoundedProtocol`."""

    def __init__(
        self, app: Callable[..., Any], *, http: type[BoundedProtocol], head_seconds: float, **options: Any
    ) -> None:
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
        """Return whether an address has too many connections for another one."""
        return False


class JoiningTransport(asyncio.Transport):
    """A transport that joins the pieces written in one turn of the event loop.

    uvicorn writes the head of an answer, each piece of its body and its end with a system call each, which
    are most of the cost of a short answer. The head waits for the first piece of the body, which is then
    written at once.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._transport = transport
        self._loop = loop
        self._waiting = bytearray()
        self._pieces = 0
        """The pieces written in this turn of the event loop."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Write, at the end of this turn at the latest. A large piece is written at once,
        so that flow control works.
        """
        if not data:
            return
        if not self._pieces:
            self._loop.call_soon(self._end_turn)
        self._pieces += 1
        self._waiting += data
        if self._pieces == 2 or len(self._waiting) > JOINED_BYTES:
            self._flush()

    def _end_turn(self) -> None:
        self._pieces = 0
        self._flush()

    def _flush(self) -> None:
        """Send what has been written since the last time, in one piece."""
        if self._waiting:
            waiting, self._waiting = self._waiting, bytearray()
            self._transport.write(waiting)

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def abort(self) -> None:
        self._waiting.clear()
        self._transport.abort()

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._transport.get_extra_info(name, default)

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._transport.resume_reading()


class BoundedProtocol(H11Protocol):
    """One connection. Its request head has to arrive in time; `surplus` selects which
    to close when there are too many.
    """

    _numbers = itertools.count()

    def __init__(
        self,
        config: BoundedConfig,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, {**app_state, STOPPING: config.stopping}, _loop)
        # uvicorn logs paths, which may contain secrets, as soon as a library gives its logger a handler.
        self.access_log = False
        self.number = next(self._numbers)
        """Counts up with each connection: a smaller number is an older connection."""
        self._head_seconds = config.head_seconds
        self._head_timer: asyncio.TimerHandle | None = None

    def surplus(self) -> Collection[BoundedProtocol]:
        """Return the connections to close now that this one was made."""
        return ()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept a connection; close those that are too many."""
        super().connection_made(JoiningTransport(transport, self.loop))
        self._arm_head_timer()
        for connection in self.surplus():
            connection.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm_head_timer()
        # uvicorn stops this timer only after an end without an error. Armed, it keeps the dead connection in
        # memory.
        self._unset_keepalive_if_required()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch_head()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch_head()

    def _watch_head(self) -> None:
        """Run the timer while the head of a request has come in part, and at no other time."""
        is_head_begun = self.conn.their_state is h11.IDLE and bool(self.conn.trailing_data[0])
        if not is_head_begun:
            self._disarm_head_timer()
        elif self._head_timer is None:
            self._arm_head_timer()

    def _arm_head_timer(self) -> None:
        self._head_timer = self.loop.call_later(self._head_seconds, self.transport.abort)

    def _disarm_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


class Server(uvicorn.Server):
    """Uvicorn without its signal handlers and without its timer ten times a second."""

    def __init__(self, config: BoundedConfig) -> None:
        super().__init__(config)
        self._stopping = config.stopping
        self._is_full = config.is_full

    def capture_signals(self) -> AbstractContextManager[None]:  # type: ignore[override]
        return nullcontext()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        for listener in sockets or ():
            # asyncio uses one number for the kernel's queue and for the connections accepted at once.
            listener.listen(QUEUE)

    async def main_loop(self) -> None:
        await self._stopping.wait()

    async def serve_on(self, *listeners: socket.socket) -> None:
        """Serve until cancelled. Then requests have the configured grace period before they are cut.

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
        """Wait for requests that were asked to end; then drop the remaining connections."""
        if self.server_state.tasks:
            await asyncio.wait(self.server_state.tasks, timeout=CUT_SECONDS)
        for connection in list(self.server_state.connections):
            connection.transport.abort()
