"""The egress proxy: it checks the token and the group's allow-list, then tunnels bytes to the target.

Containers are hostile here: heads are limited in size and time, connections in number, and the host's own
list and lookup decide what they reach. One address serves many hosts, so each hello of a TLS connection has
to name the host that CONNECT named.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import structlog

from agent_runner.wire.listeners import ACCEPTED_AT_ONCE, QUEUE, ScreenedListener
from orchestrator.base.clock import Clock
from orchestrator.base.logging import LogThrottle
from orchestrator.base.rate_limits import CallerPace
from orchestrator.domain.network_targets import NetworkTarget
from orchestrator.domain.values import Folder, RunId, TurnId
from orchestrator.proxies.egress import client_hello, public_addresses
from orchestrator.proxies.egress.client_hello import (
    HANDSHAKE_RECORD,
    MAX_HELLO_BYTES,
    BadClientHello,
    ClientHello,
    ClientHelloReader,
    HelloRefused,
    LaterHellos,
)
from orchestrator.proxies.egress.head import BadHead, Connect, Gone, read_connect
from orchestrator.proxies.egress.public_addresses import EgressConnection, EgressUnreachable, Resolver
from orchestrator.proxies.egress.tunnel import ByteCounts, Opening, Tunnel
from orchestrator.proxies.run_tokens import TokenBinding
from orchestrator.store.audit import AuditEvent

log = structlog.get_logger(__name__)

Counted = TypeVar("Counted", str, Folder)

LINGER_SECONDS = 2.0
"""Seconds that a closing connection has to deliver what was written."""
TLS_PORT = 443
"""The port on which only TLS is accepted. Other ports, which the owner lists by number, may carry anything.
"""
ACCESS_DENIED = b"\x15\x03\x03\x00\x02\x02\x31"
"""A fatal alert of TLS: clients then report "access denied" instead of a broken connection."""
_REASONS = {
    400: "Bad Request",
    403: "Forbidden",
    405: "Method Not Allowed",
    407: "Proxy Authentication Required",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EgressLimits:
    """Limits of the proxy. Times are in seconds."""

    connections_a_peer: int = 96
    """Connections that one container may have open, whatever it has sent on them."""
    connections_a_group: int = 64
    """Connections of one group's tokens, counted from the moment the token is known,
    even before they are made.
    """
    connections: int = 512
    """Connections of all containers together; five containers at their own limit stay below it."""
    requests_at_once: int = 256
    """Requests that a run, or an address without a valid token, may send before it is slowed down."""
    requests_a_second: float = 64.0
    """Requests per second of one run after its first ones, and of an address without a valid token.

    Each costs a look into the database, and a row in the audit if it passes.
    """
    head_seconds: float = 10.0
    """Seconds until the head of a request must be whole."""
    hello_seconds: float = 10.0
    """Seconds until the first TLS hello must be whole."""
    connect_seconds: float = 10.0
    """Seconds until the target must be connected."""
    idle_seconds: float = 600.0
    """Seconds without a byte in either direction, after which a connection is closed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EgressCaller:
    """The run of a token, and the targets that its group may reach now."""

    run_id: RunId
    folder: Folder
    turn_id: TurnId | None
    """The turn that runs in the container; None between turns."""
    allowed: frozenset[NetworkTarget]
    asks: bool = False
    """Whether the owner is asked about other targets."""


class OpeningRefused(Exception):
    """The first bytes of a connection, or a later hello, may not be sent to the target."""

    def __init__(self, text: str, *, is_tls: bool = True, server_name: str | None = None) -> None:
        """Store why.

        Args:
            text: the reason, for the container and the log.
            is_tls: whether the client speaks TLS, and so understands a TLS alert.
            server_name: the other host that the hello names; None if it names none.
        """
        super().__init__(text)
        self.is_tls = is_tls
        self.server_name = server_name


Identify = Callable[[str], Awaitable[EgressCaller | None]]
"""Returns the holder of a token; None for an unknown token and for an ended run's."""
Approve = Callable[[EgressCaller, NetworkTarget], Awaitable[str | None]]
"""Asks the owner about a target, and waits a limited time; returns None if it is allowed, else the reason."""
Note = Callable[[AuditEvent], None]
"""Takes a row for the audit. Must be quick and must not raise."""


class EgressProxy:
    """Serves CONNECT on a listening socket, which it owns."""

    def __init__(
        self,
        listener: socket.socket,
        *,
        identify: Identify,
        note: Note,
        clock: Clock,
        approve: Approve | None = None,
        internet: Resolver | None = None,
        limits: EgressLimits | None = None,
    ) -> None:
        """Build the proxy; it serves nothing before `serve`.

        Args:
            listener: the listening socket.
            identify: returns the holder of a token.
            note: takes a row for the audit.
            clock: the host's clock, for the audit and the pace of requests.
            approve: asks the owner about a target; without it, nobody is asked.
            internet: resolves and connects; the default is the real one.
            limits: numbers and times that bound the connections; the default has its own values.
        """
        self._listener = listener
        self._identify = identify
        self._note = note
        self._clock = clock
        self._approve = approve
        self._internet = internet or Resolver()
        self._limits = limits or EgressLimits()
        self._connections_by_group: Counter[Folder] = Counter()
        self._connections_by_peer: Counter[str] = Counter()
        self._pace = CallerPace(
            clock, at_once=self._limits.requests_at_once, a_second=self._limits.requests_a_second
        )
        self._throttle = LogThrottle()
        self._token_binding = TokenBinding()

    @property
    def port(self) -> int:
        """The port on which the proxy listens."""
        port: int = self._listener.getsockname()[1]
        return port

    def close(self) -> None:
        """Close the listening socket."""
        self._listener.close()

    async def serve(self) -> None:
        """Serve until cancelled, which closes open connections. May be called again, until `close`."""
        async with asyncio.TaskGroup() as connections:

            def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                """Start a task that serves a new connection, unless there are too many."""
                peer = _peer(writer)
                # Checked again: connections that are accepted together pass the listener's check before the
                # first of them is counted.
                if self._is_full(peer):
                    writer.transport.abort()
                    return
                self._connections_by_peer[peer] += 1
                task = connections.create_task(self._serve(reader, writer, peer), name="egress")
                task.add_done_callback(lambda _: self._forget_connection(peer))

            # This socket closes a connection for which `_is_full` returns True as soon as it is accepted. It
            # is a copy, because the server closes the socket that it is given, and `serve` may be called
            # again.
            listener = ScreenedListener(self._listener.dup(), self._is_full)
            server = await asyncio.start_server(accept, sock=listener, backlog=ACCEPTED_AT_ONCE)
            # asyncio has one number (`backlog`) for two limits: how many connections are accepted at once,
            # and how many wait in the kernel. It is small because of the first; the second is raised here.
            self._listener.listen(QUEUE)
            try:
                # A future that nobody sets: this waits until it is cancelled.
                await asyncio.get_running_loop().create_future()
            finally:
                server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, peer: str) -> None:
        """Serve one connection: an error in it ends this connection only."""
        try:
            await self._answer(reader, writer, peer)
        except (Gone, OSError, TimeoutError):
            log.debug("egress.broke_off")
        except Exception as error:
            # While the store cannot be written, for example, each request fails.
            if self._throttle.passes(type(error).__name__):
                log.exception("egress.failed", unlogged=self._throttle.take_dropped(type(error).__name__))
        finally:
            await _close_connection(writer)

    def _forget_connection(self, peer: str) -> None:
        """Subtract a closed connection from the count of the container with the address `peer`."""
        self._connections_by_peer[peer] -= 1
        if not self._connections_by_peer[peer]:
            del self._connections_by_peer[peer]

    def _is_full(self, peer: str) -> bool:
        """Return whether there is no room for one more connection of a container; if so, record the refusal.

        `peer` is the container's address. The caller closes the connection without an answer, as writing one
        would need a task of its own.
        """
        reason = self._overload_reason(peer)
        if reason is not None:
            self._record_refusal(None, None, peer, reason)
        return reason is not None

    def _overload_reason(self, peer: str) -> str | None:
        """Return why there is no room for one more connection from the address `peer`, or None."""
        if self._connections_by_peer[peer] >= self._limits.connections_a_peer:
            return "this container has too many connections open"
        if self._connections_by_peer.total() >= self._limits.connections:
            return "too many connections are open"
        return None

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, peer: str) -> None:
        """Read one request, check it, and copy bytes both ways; a refusal is answered and recorded.

        `peer` is the address of the container.

        Raises:
            Gone, OSError, TimeoutError: the client left, a connection broke, or nothing came for too long.
        """
        caller: EgressCaller | None = None
        target: NetworkTarget | None = None
        counts_for_run = False
        try:
            async with asyncio.timeout(self._limits.head_seconds):
                request = await read_connect(reader)
            target = request.target
            caller = await self._identify(request.token)
            caller = self._check_caller(caller, peer)
            counts_for_run = True
            # Paced by run, not by address: with the process runtime all groups have the same address.
            if await self._keep_pace(f"run {caller.run_id}"):
                # There was a wait, in which what the run may reach can have changed.
                caller = self._check_caller(await self._identify(request.token), peer)
            caller = await self._check_target(caller, request, peer)
            with _count_one_more(self._connections_by_group, caller.folder):
                outside = await self._connect(target, caller.folder)
                await self._carry_bytes(caller, request, (reader, writer), outside)
        except (BadHead, EgressUnreachable) as error:
            status = error.status if isinstance(error, BadHead) else 403
            self._record_refusal(caller, target, peer, str(error))
            if not counts_for_run:
                # The token is missing, unknown or another container's: the request counts for the address.
                await self._keep_pace(peer)
            await _refuse(writer, status, str(error))
        except OpeningRefused as error:
            name_detail = {} if error.server_name is None else {"server_name": error.server_name}
            self._record_refusal(caller, target, peer, str(error), **name_detail)
            if error.is_tls:
                writer.write(ACCESS_DENIED)
            else:
                await _refuse(writer, 403, str(error))

    async def _keep_pace(self, name: str) -> bool:
        """Count a request of a run or an address, and wait if that has sent too many lately.

        `name` is the run as `run ID`, or the address. Return whether there was a wait.
        """
        seconds = self._pace.request_seconds(name)
        if seconds > 0:
            await asyncio.sleep(seconds)
        return seconds > 0

    def _check_caller(self, caller: EgressCaller | None, peer: str) -> EgressCaller:
        """Return `caller`, the run of a token, if its own container has shown the token.

        A token belongs to the first container that shows it; `peer` is the address of the present one.

        Raises `BadHead` (407) if `caller` is None, as for an unknown token, or if another container has shown
        the token before.
        """
        if caller is None:
            raise BadHead(407, "this token belongs to no run that is alive")
        if not self._token_binding.owns(caller.run_id, peer):
            raise BadHead(407, "this token belongs to another container")
        return caller

    async def _check_target(self, caller: EgressCaller, request: Connect, peer: str) -> EgressCaller:
        """Check that a request's target is on the group's list, or else ask the owner and wait for the
        decision.

        Return `caller`, or after such a wait the same run with what it may reach now. `peer` is the address
        of its container.

        Raises:
            EgressUnreachable: the target is not allowed, or the group has too many connections open.
            BadHead: the run has ended meanwhile.
        """
        target = request.target
        if target not in caller.allowed:
            reason: str | None = "it is not on the list of this group"
            if caller.asks and self._approve is not None:
                reason = await self._approve(caller, target)
            if reason is not None:
                raise EgressUnreachable(reason)
            caller = self._check_caller(await self._identify(request.token), peer)
            if not caller.asks and target not in caller.allowed:
                raise EgressUnreachable("it is no longer allowed to this group")
        if self._connections_by_group[caller.folder] >= self._limits.connections_a_group:
            raise EgressUnreachable("this group has too many connections open")
        return caller

    async def _connect(self, target: NetworkTarget, folder: Folder) -> EgressConnection:
        """Connect to a target, within the limit of time, and return the connection, which the caller closes.

        `folder` is the group of the run: its lookups of names are limited. Raises `EgressUnreachable`.
        """
        try:
            async with asyncio.timeout(self._limits.connect_seconds):
                return await public_addresses.connect(self._internet, target, folder)
        except TimeoutError:
            raise EgressUnreachable("nothing answers there in time") from None

    async def _carry_bytes(
        self,
        caller: EgressCaller,
        request: Connect,
        container: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        outside: EgressConnection,
    ) -> None:
        """Answer the container that it is connected, copy bytes until the end, and record the connection.

        Args:
            caller: the run that sent the request.
            request: its CONNECT.
            container: the reader and the writer of the container's connection.
            outside: the connection to the target, which is closed at the end.

        Raises:
            OpeningRefused: the client's first bytes, or a later hello, may not go to the target.
            Gone, OSError, TimeoutError: the client left, a side broke, or both were silent.
        """
        tunnel = Tunnel(idle_seconds=self._limits.idle_seconds)
        started = time.monotonic()
        is_refused = False
        try:
            # Before any byte is checked: a client sends its TLS hello only after this answer.
            container[1].write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            opening = partial(self._read_first_bytes, request, container[0])
            await tunnel.carry(container, (outside.reader, outside.writer), opening=opening)
        except OpeningRefused:
            is_refused = True
            raise
        finally:
            outside.abort()
            # A refusal has a row of its own. The connection has one, too, if bytes had gone to the target
            # before.
            if not is_refused or tunnel.counts.bytes_out:
                self._record_connection(
                    caller, request.target, outside.address, tunnel.counts, time.monotonic() - started
                )

    async def _read_first_bytes(self, request: Connect, reader: asyncio.StreamReader) -> Opening:
        """Read and check the client's first bytes; return them with the filter for the bytes after them.

        A TLS hello must name the target. On `TLS_PORT` the first bytes must be such a hello; on other ports,
        bytes that are not TLS pass unfiltered. `reader` reads from the container.

        Raises:
            OpeningRefused: they may not go to the target.
            Gone: the client closed the connection before its hello was whole.
        """
        early = request.early  # bytes that came together with the request
        if request.target.port != TLS_PORT:
            # Wait for a first byte, which tells whether the client speaks TLS.
            early = early or await reader.read(MAX_HELLO_BYTES)
            if early[:1] != bytes([HANDSHAKE_RECORD]):
                return Opening(data=early)
        hellos = ClientHelloReader()
        try:
            async with asyncio.timeout(self._limits.hello_seconds):
                hello = await _read_hello(hellos, early, reader)
        except TimeoutError:
            raise OpeningRefused("no whole TLS hello came in time") from None
        except BadClientHello as error:
            is_tls = hellos.received[0] == HANDSHAKE_RECORD
            raise OpeningRefused(str(error), is_tls=is_tls) from error
        if (reason := client_hello.refusal(hello, request.target)) is not None:
            raise OpeningRefused(reason, server_name=hello.server_name)
        later_filter = partial(_check_later, LaterHellos(request.target, hello))
        return Opening(data=hellos.hello_bytes + later_filter(hellos.later_bytes), filter=later_filter)

    def _record_connection(
        self, caller: EgressCaller, target: NetworkTarget, address: str, counts: ByteCounts, seconds: float
    ) -> None:
        """Record a connection that has ended, in the log and in the audit.

        `address` is the one that the target's name led to; `seconds` is how long the connection was open.
        """
        detail = {
            "target": str(target),
            "address": address,
            "bytes_out": counts.bytes_out,
            "bytes_in": counts.bytes_in,
            "ms": round(seconds * 1000),
        }
        log.info("egress.connection", group=caller.folder, run=caller.run_id, **detail)
        self._note(self._event("egress.connection", caller, detail))

    def _record_refusal(
        self,
        caller: EgressCaller | None,
        target: NetworkTarget | None,
        peer: str,
        reason: str,
        **more: str,
    ) -> None:
        """Record a refusal in the log and in the audit, unless similar ones were recorded just before.

        `caller` is None if the token is not known, `target` if the request could not be read. `peer` is the
        address of the container. `more` are further fields of the record.
        """
        # A container that tries in a loop must not fill the log and the audit.
        key = (caller.folder if caller else peer, reason)
        if not self._throttle.passes(key):
            return
        # "unlogged" is the number of similar refusals since the last one that was recorded.
        detail = {
            "target": str(target) if target else None,
            "peer": peer,
            "reason": reason,
            "unlogged": self._throttle.take_dropped(key),
            **more,
        }
        log.warning("egress.refused", group=caller.folder if caller else None, **detail)
        self._note(self._event("egress.refused", caller, detail))

    def _event(self, kind: str, caller: EgressCaller | None, detail: dict[str, Any]) -> AuditEvent:
        """Return an event for the audit about a run; `caller` is None if the run is not known.

        `kind` is the event's name, such as "egress.refused".
        """
        return AuditEvent(
            at_ms=self._clock.now_ms(),
            kind=kind,
            folder=caller.folder if caller else None,
            run_id=caller.run_id if caller else None,
            turn_id=caller.turn_id if caller else None,
            detail=detail,
        )


@contextmanager
def _count_one_more(counter: Counter[Counted], key: Counted) -> Iterator[None]:
    """Count one more for `key` in `counter` while the block runs; a key whose count is 0 is removed."""
    counter[key] += 1
    try:
        yield
    finally:
        counter[key] -= 1
        if not counter[key]:
            del counter[key]


async def _read_hello(hellos: ClientHelloReader, early: bytes, reader: asyncio.StreamReader) -> ClientHello:
    """Read until the first TLS hello of a connection is whole, and return it.

    `hellos` collects the bytes; `early` are those that were read already.

    Raises:
        BadClientHello: it is no hello, or malformed or too long.
        Gone: the connection ended before.
    """
    data = early
    while (hello := hellos.feed(data)) is None:
        data = await reader.read(MAX_HELLO_BYTES)
        if not data:
            raise Gone
    return hello


def _check_later(hellos: LaterHellos, data: bytes) -> bytes:
    """Feed bytes of the client to the check of later hellos; return the bytes to send to the target now.

    Bytes that were held back earlier may be among them. Raises `OpeningRefused`.
    """
    try:
        return hellos.feed(data)
    except BadClientHello as error:
        raise OpeningRefused(str(error)) from error
    except HelloRefused as error:
        raise OpeningRefused(str(error), server_name=error.server_name) from error


def _peer(writer: asyncio.StreamWriter) -> str:
    """Return the IP address of the connection's other end, or `?` if it has closed already."""
    address = writer.get_extra_info("peername")
    return str(address[0]) if address else "?"


async def _close_connection(writer: asyncio.StreamWriter) -> None:
    """Close a connection; wait at most `LINGER_SECONDS` until the written bytes are delivered."""
    writer.close()
    try:
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(LINGER_SECONDS):
                await writer.wait_closed()
    finally:
        writer.transport.abort()


async def _refuse(writer: asyncio.StreamWriter, status: int, text: str) -> None:
    """Write a refusal as an HTTP answer: a status of `_REASONS`, and a text that the container can show."""
    body = f"Andy refuses this connection: {text}.\n".encode()
    challenge = b'proxy-authenticate: Basic realm="andy"\r\n' if status == 407 else b""
    head = f"HTTP/1.1 {status} {_REASONS[status]}\r\ncontent-length: {len(body)}\r\nconnection: close\r\n"
    writer.write(head.encode() + challenge + b"content-type: text/plain\r\n\r\n" + body)
    await writer.drain()
