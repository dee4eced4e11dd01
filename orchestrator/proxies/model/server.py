"""Serve the proxy on a bound socket, with a protocol stricter than uvicorn's own.

Containers are hostile here. Beyond the limits of every server of the host, this stops a client that never
reads, one that opens every connection, and messages that two parsers could read differently.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import re
import socket
from collections import Counter
from collections.abc import Callable, Collection
from typing import Any, cast

import h11
from uvicorn.server import ServerState

from agent_runner.wire.listeners import listen
from orchestrator.base.asgi_server import BoundedConfig, BoundedProtocol, Server
from orchestrator.domain.errors import AndyError
from orchestrator.proxies.model import error_responses
from orchestrator.proxies.model.limits import ModelProxyLimits

MAX_HEAD_BYTES = 16 * 1024
"""Bytes of a request's head, at most."""
MAX_HEAD_LINES = 200
"""Lines of a request's head; the CLI sends about thirty. Parsing 4,000 short ones takes 30 ms."""
MAX_SMALL_CHUNKS = 100
"""Chunks of a body that may be smaller than `SMALL_CHUNK_BYTES`. Each takes 20 µs to parse, however small."""
SMALL_CHUNK_BYTES = 1024

_HEAD_END = re.compile(rb"\n\r?\n")
_BARE_LINE_FEED = re.compile(rb"(?<!\r)\n")
_FOLDED = re.compile(rb"\n[ \t]")
_LENGTH = re.compile(rb"\ncontent-length[ \t]*:", re.IGNORECASE)


class StrictConnection(h11.Connection):
    """Refuses what h11 silently repairs: repeated lengths, folded lines, lines that end in a bare LF.

    It also refuses what takes h11 long for its size: heads of many lines, and bodies in many small chunks.
    """

    _chunks = 0
    """Chunks of the present request's body so far."""
    _body_bytes = 0
    """Bytes of the present request's body so far."""

    def next_event(self) -> h11.Event | type[h11.NEED_DATA | h11.PAUSED]:
        """Return the next event of HTTP. Raises `h11.RemoteProtocolError` for a request that is refused."""
        # Checked before h11 parses the head, as it drops the raw bytes then.
        if self.their_state is h11.IDLE:
            _check_head(self.trailing_data[0])
            self._chunks = self._body_bytes = 0
        event = super().next_event()
        if isinstance(event, h11.Data):
            self._count_chunk(event)
        return event

    def _count_chunk(self, piece: h11.Data) -> None:
        """Count a piece of a body. Raises `h11.RemoteProtocolError` when it has too many small chunks."""
        self._body_bytes += len(piece.data)
        self._chunks += piece.chunk_start  # a boolean: whether the piece begins a chunk
        # Each `SMALL_CHUNK_BYTES` of the body allow one more chunk.
        if self._chunks > MAX_SMALL_CHUNKS + self._body_bytes // SMALL_CHUNK_BYTES:
            raise h11.RemoteProtocolError("too many small chunks")


def _check_head(received: bytes) -> None:
    """Check the head of a request among the received bytes; a head that is not whole passes for now.

    Raises `h11.RemoteProtocolError` if two parsers could read it differently, or it is too long.
    """
    empty_line = _HEAD_END.search(received)
    if empty_line is None:
        return
    if empty_line.end() > MAX_HEAD_BYTES:  # h11 checks only while a head is incomplete
        raise h11.RemoteProtocolError("request head too long")
    head = received[: empty_line.end()]
    if head.count(b"\n") > MAX_HEAD_LINES:
        raise h11.RemoteProtocolError("request head has too many lines")
    if _BARE_LINE_FEED.search(head) or _FOLDED.search(head) or len(_LENGTH.findall(head)) > 1:
        raise h11.RemoteProtocolError("ambiguous request head")


def _peer(transport: asyncio.BaseTransport) -> str:
    """Return the IP address of the other end; empty if the connection has closed already."""
    address = transport.get_extra_info("peername")
    return str(address[0]) if address else ""


class ProxyConfig(BoundedConfig):
    """Uvicorn's settings and the proxy's limits, which its protocol reads."""

    def __init__(self, app: Callable[..., Any], limits: ModelProxyLimits) -> None:
        """`app` is the ASGI app to serve."""
        super().__init__(
            app,
            http=ProxyProtocol,
            head_seconds=limits.head_seconds,
            date_header=False,
            server_header=False,
            proxy_headers=False,
            h11_max_incomplete_event_size=MAX_HEAD_BYTES,
            timeout_keep_alive=limits.keep_alive_seconds,
        )
        self.limits = limits
        self.connections_by_peer: Counter[str] = Counter()

    def is_full(self, address: str) -> bool:
        """Return whether the container at `address`, or all together, have the most connections allowed."""
        return (
            self.connections_by_peer[address] >= self.limits.connections_a_peer
            or self.connections_by_peer.total() >= self.limits.connections
        )


class ProxyProtocol(BoundedProtocol):
    """One connection of a container."""

    def __init__(
        self,
        config: BoundedConfig,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.conn = StrictConnection(h11.SERVER, MAX_HEAD_BYTES)
        # The proxy has its own log: a container could fill the host's log with uvicorn's messages.
        self.logger = logging.Logger("credential-proxy", logging.CRITICAL)  # noqa: LOG001 - silent, here alone
        self._limits = cast("ProxyConfig", config).limits
        self._connections_by_peer = cast("ProxyConfig", config).connections_by_peer
        self._address = ""
        self._stall_timer: asyncio.TimerHandle | None = None
        """Runs while the client reads nothing, and then ends the connection."""

    def surplus(self) -> Collection[BoundedProtocol]:
        """Return the connections to close: this one if its container, or all together, have too many."""
        # Needed beside `is_full`: connections that are accepted together pass it before the first counts.
        by_peer = self._connections_by_peer
        is_peer_greedy = by_peer[self._address] > self._limits.connections_a_peer
        return (self,) if is_peer_greedy or by_peer.total() > self._limits.connections else ()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Count this connection for its container; the base class then closes it if there are too many."""
        self._address = _peer(transport)
        self._connections_by_peer[self._address] += 1
        super().connection_made(transport)  # calls `surplus`

    def connection_lost(self, exc: Exception | None) -> None:
        """Subtract an ended connection from the count of its container, and stop its timer."""
        self._connections_by_peer[self._address] -= 1
        if not self._connections_by_peer[self._address]:
            # Otherwise each address that ever connected would stay in memory.
            del self._connections_by_peer[self._address]
        self._disarm_stall_timer()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Start the timer that ends the connection, as the client does not read its answer now."""
        super().pause_writing()
        if self._stall_timer is None:
            self._stall_timer = self.loop.call_later(self._limits.stall_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """Stop the timer, because the client reads again."""
        self._disarm_stall_timer()
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - uvicorn passes it
        """Refuse input that is no valid HTTP, and close the connection. Uvicorn calls this.

        The refusal has the form of the Messages API. It is left out if an answer has started already.
        """
        if self.conn.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
            self._write_refusal()
        # The app may be waiting for the rest of a body, which will never come.
        if self.cycle is not None:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.transport.close()

    def _write_refusal(self) -> None:
        """Write the answer 400 in the form of the Messages API."""
        body = error_responses.malformed(
            "it is no HTTP/1.1, can be read in two ways, has too long a head, or comes in too small chunks"
        ).body()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        head = h11.Response(status_code=400, headers=headers, reason=b"Bad Request")
        for event in (head, h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")

    def _disarm_stall_timer(self) -> None:
        """Stop the timer that would end a connection whose client reads nothing."""
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None


_TAKEN = {errno.EADDRINUSE, errno.EACCES}


def bind(host: str, preferred_port: int) -> socket.socket:
    """Return a socket that listens on the address `host`.

    Its port is `preferred_port` or, if that is taken or not permitted, one that the system chooses.

    Raises:
        AndyError: this machine has no such address.
    """
    try:
        return listen(host, preferred_port)
    except OSError as error:
        if error.errno not in _TAKEN:
            raise _no_address(host, error) from error
    try:
        return listen(host, 0)
    except OSError as error:
        raise _no_address(host, error) from error


def _no_address(host: str, error: OSError) -> AndyError:
    """Return the error for an address that this machine does not have."""
    reason = error.strerror or str(error)
    return AndyError(
        f"The credential proxy cannot listen on {host} ({reason}): use an address of this machine."
    )


class ProxyServer:
    """Serves one ASGI app on one listening socket, which it owns."""

    def __init__(
        self, app: Callable[..., Any], listener: socket.socket, *, limits: ModelProxyLimits | None = None
    ) -> None:
        """`app` is the ASGI app, `listener` the socket; `limits` have default values."""
        self._app = app
        self._listener = listener
        self._limits = limits or ModelProxyLimits()

    @property
    def port(self) -> int:
        """The port on which the proxy listens."""
        port: int = self._listener.getsockname()[1]
        return port

    async def serve(self) -> None:
        """Serve requests until cancelled. Then running requests have two seconds to end before they are cut.

        May be called again after it ended, until `close`.
        """
        await Server(ProxyConfig(self._app, self._limits)).serve_on(self._listener)

    def close(self) -> None:
        """Close the socket."""
        self._listener.close()
