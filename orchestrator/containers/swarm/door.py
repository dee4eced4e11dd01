"""The port at which carriers connect to the host, over TLS only and with the token of their run."""

from __future__ import annotations

import asyncio
import datetime as dt
import hashlib
import os
import socket
import ssl
import time
from asyncio import sslproto
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from weakref import WeakSet

import structlog

from agent_runner.wire.carrier import (
    SILENCE_SECONDS,
    VERSION,
    CarrierConnection,
    CarrierMessage,
    ConnectionLost,
    relay,
)
from agent_runner.wire.listeners import listen
from orchestrator.containers.swarm.session import CarrierSession
from orchestrator.containers.swarm.unidentified import AcceptedSocket, UnidentifiedConnections
from orchestrator.proxies import strict_json

log = structlog.get_logger(__name__)

HELLO_SECONDS = 10.0
"""Seconds that a connection has to show the token of a known run, or to take its refusal."""
SHUTDOWN_SECONDS = 600.0
"""Seconds that a carrier has to take the end of an answer, some 650 KB at most; asyncio drops the rest.

They are many, so that no answer is cut on a slow node. The gate bounds the connections of one container.
"""
ACCEPT_PAUSE_SECONDS = 1.0
"""Seconds without another connection after one could not be accepted, say for too many open files."""
TLS_BUFFER_BYTES = 64 * 1024
"""Size of the buffer that asyncio allocates for a connection as soon as its TLS begins."""
SMALL_HEADER_SECONDS = 0.001
"""Processor seconds of parsing up to which a header causes no pause."""
CLOSING_ITERATIONS = 100
"""Most iterations of the event loop to wait for asyncio to close the connections of a door that ends."""
PAUSE_FACTOR = 9
"""Seconds that a connection waits for each processor second that parsing one of its headers took."""
MAX_RELAYS = 64
"""Connections to the proxies that one run may have open at once."""
CERTIFICATE_DAYS = 3650
"""Days for which a new certificate is valid."""
NAME = "andy"


class HostConnection(CarrierConnection):
    """The host's end of a connection to a carrier. The carrier is not trusted: an agent may control it."""

    async def parse_header(self, header: bytes) -> Any:
        """Parse a header as JSON within the limits of `strict_json`. Raises `ValueError`.

        After a header that took long to parse, the connection waits, so that parsing its headers takes a
        tenth of a processor at most.
        """
        began = time.thread_time()
        try:
            return strict_json.parse(header)
        finally:
            if (seconds := time.thread_time() - began) > SMALL_HEADER_SECONDS:
                await asyncio.sleep(seconds * PAUSE_FACTOR)


class CarrierDoor:
    """A TLS server for carriers.

    Each connection shows the token of a run. It then is that run's control connection, or relays one
    connection of the agent to a proxy of the host.
    """

    def __init__(self, data: Path, *, find: Callable[[str], CarrierSession | None]) -> None:
        """`data` is the host's own directory, for its certificate and key.

        `find` returns the live session whose token has this SHA-256 in hexadecimal digits, or None.
        """
        self._certificate_file, self._key_file = data / "carrier.crt", data / "carrier.key"
        self._find = find
        self._listener: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        """The task that accepts connections."""
        self._serving: set[asyncio.Task[None]] = set()
        """The tasks that serve the open connections."""
        self._accepted: WeakSet[AcceptedSocket] = WeakSet()
        """Every accepted connection that still exists, for `close`."""
        self._unidentified = UnidentifiedConnections()
        self._is_closed = False
        self.port = 0
        """The port at which it listens; 0 before it does."""
        self.knows_all_runs = asyncio.Event()
        """Set when the runtime has looked for containers that an earlier host left, if any.

        Before that, an unknown token may be that of such a container.
        """

    async def open(self, address: str, preferred_port: int = 0) -> None:
        """Listen for TLS connections at an address, on the preferred port if that is free, else on any.

        The host's certificate is created if there is none. Sets `port`, and for the whole process the
        size of the buffers of asyncio's later TLS connections. Raises `OSError`.
        """
        # For each TLS connection, asyncio would allocate a buffer of 256 KiB. It makes the objects of this
        # class itself, so the size can only be set in the class.
        sslproto.SSLProtocol.max_size = TLS_BUFFER_BYTES
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        await asyncio.to_thread(ensure_certificate, self._certificate_file, self._key_file)
        context.load_cert_chain(self._certificate_file, self._key_file)
        try:
            listener = listen(address, preferred_port)
        except OSError:
            listener = listen(address, 0)
        listener.settimeout(0)
        self._listener = listener
        self.port = int(listener.getsockname()[1])
        self._accepting = asyncio.create_task(self._accept(listener, context), name="carrier-door:accept")

    async def _accept(self, listener: socket.socket, context: ssl.SSLContext) -> None:
        """Serve each new connection in a task of its own, until cancelled.

        It is closed at once while too many others have not shown a token. After an error, such as for too
        many open files, this pauses.
        """
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(listener)
            except ConnectionAbortedError:
                continue
            except OSError as error:
                log.warning("carrier.not_accepted", reason=str(error))
                await asyncio.sleep(ACCEPT_PAUSE_SECONDS)
                continue
            if self._unidentified.is_full:
                connection.close()  # a carrier tries again
            else:
                accepted = AcceptedSocket(connection)
                self._accepted.add(accepted)
                serving = asyncio.create_task(self._serve(accepted, context), name="carrier-door")
                self._serving.add(serving)
                serving.add_done_callback(self._serving.discard)
                self._unidentified.add(accepted, serving)
            await asyncio.sleep(0)  # so that many that come at once do not hold up other work

    @property
    def certificate(self) -> str:
        """The host's certificate in PEM format. Containers on other nodes connect to no other."""
        return self._certificate_file.read_text(encoding="ascii")

    async def close(self) -> None:
        """Accept no more connections, end the open ones, and wait until they are closed.

        The last wait is for `CLOSING_ITERATIONS` iterations of the event loop at most.
        """
        self._is_closed = True
        self._unidentified.close()
        if self._accepting is not None and self._listener is not None:
            self._accepting.cancel()
            await asyncio.wait([self._accepting])
            self._listener.close()
        for serving in tuple(self._serving):
            serving.cancel()
        if self._serving:
            await asyncio.wait(self._serving)
        # Also those whose TLS is being ended in order, which may wait for a node that is gone.
        for accepted in tuple(self._accepted):
            accepted.end()
        # asyncio closes a socket, whose number is -1 then, in a later iteration of the event loop.
        for _ in range(CLOSING_ITERATIONS):
            if all(accepted.fileno() == -1 for accepted in tuple(self._accepted)):
                break
            await asyncio.sleep(0)

    async def _serve(self, accepted: AcceptedSocket, context: ssl.SSLContext) -> None:
        """Serve a connection from its first byte to its end.

        The first message shows the token of a run. If it also names a port of the host, one connection of the
        agent is relayed to that port. Otherwise this is the run's control connection. If no run has the
        token, the connection is refused.
        """
        connection = session = None
        try:
            async with asyncio.timeout(HELLO_SECONDS):
                connection = HostConnection(*await begin_tls(accepted, context))
                hello, session = await self._identify(connection)
                if session is None:
                    # Sent only if the run is certainly unknown, because a carrier that is refused ends its
                    # agent.
                    await connection.send("refused", reason="this run is over, or no run of this host")
                    log.info("carrier.refused")
                    connection.close()
                    await connection.writer.wait_closed()
                    return
            self._unidentified.identify(accepted)
            if "port" in hello.fields:
                try:
                    await self._relay(connection, session, hello.number("port"))
                except asyncio.CancelledError:  # the run is over, so nobody waits for the rest of an answer
                    asyncio.get_running_loop().call_later(SILENCE_SECONDS, accepted.end)
                    raise
            else:
                try:
                    await session.serve(connection, hello)
                finally:
                    # An orderly end of TLS would wait `SHUTDOWN_SECONDS` for a node that is gone. The last
                    # messages of this connection are short, so its socket is shut down sooner.
                    asyncio.get_running_loop().call_later(SILENCE_SECONDS, accepted.end)
        except (ConnectionLost, OSError, TimeoutError) as error:
            # The other side connects again. With the tracebacks, the buffers of TLS would stay in memory.
            drop_tracebacks(error)
        finally:
            if connection is not None:
                if session is None or self._is_closed:
                    # An orderly end of TLS would wait for the other side.
                    connection.writer.transport.abort()
                else:
                    connection.close()

    async def _identify(self, connection: HostConnection) -> tuple[CarrierMessage, CarrierSession | None]:
        """Return the first message (hello) of a connection, and the session of the run whose token it shows.

        The session is None if no run has that token.

        Raises:
            ConnectionLost: the connection ended, or did not begin with a hello.
        """
        hello = await connection.receive_hello()
        session = self._session_of(hello)
        if session is None:
            # If this takes too long, the connection is closed without a refusal, so the carrier tries again.
            await self.knows_all_runs.wait()
            session = self._session_of(hello)
        return hello, session

    def _session_of(self, hello: CarrierMessage) -> CarrierSession | None:
        """Return the session of the run whose token a first message (hello) shows.

        None for an unknown token, another version of the protocol, or a message of another kind.
        """
        if hello.kind != "hello" or hello.fields.get("v") != VERSION:
            return None
        token = hello.text("token")
        return self._find(hashlib.sha256(token.encode("utf-8", "replace")).hexdigest())

    async def _relay(self, connection: CarrierConnection, session: CarrierSession, port: int) -> None:
        """Relay a connection of an agent to the proxy at this port of the host, until either side ends it.

        It is refused for another port than a proxy's, or if the run has too many connections. The connection
        to the proxy comes from the run's own loopback address, by which the proxy recognises the run.
        """
        if port not in session.ports or len(session.relays) >= MAX_RELAYS:
            await connection.send("refused", reason="no such proxy, or too many connections")
            return
        task = asyncio.current_task()
        assert task is not None
        session.relays.add(task)  # counted, and cancelled with the session
        try:
            other = await asyncio.open_connection(
                "127.0.0.1", port, local_addr=(loopback_of(session.run_id), 0)
            )
            await connection.send("welcome", out=0)  # `out` counts output, of which a relay has none
            await relay(connection.reader, connection.writer, other)
        finally:
            session.relays.discard(task)


async def begin_tls(
    accepted: AcceptedSocket, context: ssl.SSLContext
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Do the handshake of TLS on an accepted connection, and return the connection's reader and writer.

    The connection is closed if this fails or is cancelled. Raises `OSError`.
    """
    try:
        await accepted.wait_for_client_hello()
    except BaseException:
        accepted.close()
        raise
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    try:
        transport, protocol = await loop.connect_accepted_socket(
            lambda: asyncio.StreamReaderProtocol(reader),
            accepted,
            ssl=context,
            ssl_shutdown_timeout=SHUTDOWN_SECONDS,
        )
    except BaseException as error:
        drop_tracebacks(error)
        # The socket is asyncio's now, which closes it. Closed here, its number would be another connection's
        # while asyncio still uses it.
        accepted.end()
        raise
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)


def drop_tracebacks(error: BaseException | None) -> None:
    """Remove the tracebacks of an error and of the errors that it came from.

    asyncio stores the error of a connection in an object that has the buffers of TLS, and to which the stack
    frames of the traceback refer. Only a full garbage collection, which is rare in a large program, would
    free such a circle of references.
    """
    while error is not None:
        error.__traceback__ = None
        error = error.__context__


def loopback_of(run_id: str) -> str:
    """Return the loopback address from which a run's connections come to the proxies, such as `127.7.81.20`.

    It is computed from the run's id. Each run needs an address of its own, because the proxies accept a run's
    token from one address only.
    """
    # The second and the last number are 1 to 254: the address is never in 127.0.*, where this machine's own
    # programs listen, and never ends with 0 or 255.
    digest = hashlib.sha256(run_id.encode()).digest()
    return f"127.{digest[0] % 254 + 1}.{digest[1]}.{digest[2] % 254 + 1}"


def ensure_certificate(certificate: Path, key: Path) -> None:
    """Create the certificate and the key by which containers on other nodes recognise the host. Blocks.

    Nothing is done if both files exist and neither is empty. The certificate is self-signed. Raises
    `OSError`.
    """
    # Files that earlier versions wrote may be empty after a power cut.
    if all(path.is_file() and path.stat().st_size for path in (certificate, key)):
        return
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    private = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, NAME)])
    now = dt.datetime.now(dt.UTC)
    built = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(private.public_key())
        .serial_number(x509.random_serial_number())
        # Valid from two days ago, so that nodes whose clocks are slow accept it too.
        .not_valid_before(now - dt.timedelta(days=2))
        .not_valid_after(now + dt.timedelta(days=CERTIFICATE_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(private, hashes.SHA256())
    )
    secret = private.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    # The certificate is written last, and each file is on the disk before it gets its name: where it is, its
    # key is whole, too, also after a power cut.
    for path, content in ((key, secret), (certificate, built.public_bytes(serialization.Encoding.PEM))):
        partial = path.with_name(f".{path.name}.new")
        with suppress(FileNotFoundError):
            partial.unlink()
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        partial.rename(path)
