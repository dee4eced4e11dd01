"""The port where carriers connect to the host: only over TLS, and only with the token of their run."""

from __future__ import annotations

import asyncio
import datetime as dt
import hashlib
import os
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import structlog

from agent_runner.wire.carrier import VERSION, CarrierConnection, CarrierMessage, ConnectionLost, relay
from orchestrator.containers.swarm.session import CarrierSession
from orchestrator.proxies import strict_json

log = structlog.get_logger(__name__)

HELLO_SECONDS = 10.0
MAX_STRANGERS = 512
"""Connections that may be open without having shown a token: several times those of one container."""
SMALL_HEADER_SECONDS = 0.001
PAUSE_FACTOR = 9
"""Seconds that a connection waits for each second that a large header of it took to parse."""
MAX_RELAYS = 64
"""Connections to the proxies that one run may have open at once."""
CERTIFICATE_DAYS = 3650
NAME = "andy"


class HostConnection(CarrierConnection):
    """The host's end of a connection to a carrier, in whose container an agent may do what it likes."""

    async def parse_header(self, header: bytes) -> Any:
        """Return the JSON of a header within the bounds of `strict_json`. Raises `ValueError`.

        After one that took long its run waits, so that its headers take a tenth of a processor at most.
        """
        began = time.thread_time()
        try:
            return strict_json.parse(header)
        finally:
            if (seconds := time.thread_time() - began) > SMALL_HEADER_SECONDS:
                await asyncio.sleep(seconds * PAUSE_FACTOR)


class CarrierDoor:
    """A TLS server. Each connection shows the token of a run, and serves that run's control or one relay."""

    def __init__(self, data: Path, *, find: Callable[[str], CarrierSession | None]) -> None:
        """`find` returns the live session whose token has this SHA-256 (hex); None for any other."""
        self._files = data / "carrier.crt", data / "carrier.key"
        self._find = find
        self._server: asyncio.Server | None = None
        self._meetings: set[asyncio.Task[None]] = set()
        self._strangers = 0
        self.port = 0
        self.knows_all_runs = asyncio.Event()
        """Set once a host that starts has found the runs of an earlier one: before, it knows none of them."""

    async def open(self, address: str, preferred_port: int = 0) -> None:
        """Listen at an address, on the preferred port if that is free. Raises `OSError`."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        await asyncio.to_thread(ensure_certificate, *self._files)
        context.load_cert_chain(*self._files)
        try:
            self._server = await asyncio.start_server(self._begin, address, preferred_port, ssl=context)
        except OSError:
            self._server = await asyncio.start_server(self._begin, address, 0, ssl=context)
        self.port = int(self._server.sockets[0].getsockname()[1])

    @property
    def certificate(self) -> str:
        """Return the certificate that a carrier pins, as PEM."""
        return self._files[0].read_text(encoding="ascii")

    async def close(self) -> None:
        """Take no more connections, and end those that are open."""
        if self._server is not None:
            self._server.close()
        for meeting in tuple(self._meetings):
            meeting.cancel()
        if self._meetings:
            await asyncio.wait(self._meetings)

    def _begin(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # A task of our own: asyncio's reports one that was cancelled as an error.
        meeting = asyncio.create_task(self._meet(reader, writer), name="carrier-door")
        self._meetings.add(meeting)
        meeting.add_done_callback(self._meetings.discard)

    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = HostConnection(reader, writer)
        if self._strangers >= MAX_STRANGERS:
            writer.transport.abort()  # a carrier comes again
            return
        try:
            hello, session = await self._meet_stranger(connection)
        except (ConnectionLost, OSError, TimeoutError):
            writer.transport.abort()  # it need not agree to be over, which takes TLS half a minute
            return
        try:
            if session is None:
                # Said once and for all: a carrier that is refused ends its agent.
                await connection.send("refused", reason="this run is over, or no run of this host")
                log.info("carrier.refused")
            elif "port" in hello.fields:
                await self._relay(connection, session, hello.number("port"))
            else:
                await session.serve(connection, hello)
        except (ConnectionLost, OSError, TimeoutError):
            pass
        finally:
            connection.close()

    async def _meet_stranger(
        self, connection: CarrierConnection
    ) -> tuple[CarrierMessage, CarrierSession | None]:
        """Return the hello of a connection, and the session whose token it shows.

        Raises:
            ConnectionLost: it is no hello.
            TimeoutError: it did not come in time.
        """
        self._strangers += 1
        try:
            async with asyncio.timeout(HELLO_SECONDS):
                hello = await connection.receive_hello()
                session = self._session_of(hello)
                if session is None:
                    # Not found in time, it is closed without a word, and its carrier comes again.
                    await self.knows_all_runs.wait()
                    session = self._session_of(hello)
                return hello, session
        finally:
            self._strangers -= 1

    def _session_of(self, hello: CarrierMessage) -> CarrierSession | None:
        if hello.kind != "hello" or hello.fields.get("v") != VERSION:
            return None
        token = hello.text("token")
        return self._find(hashlib.sha256(token.encode("utf-8", "replace")).hexdigest())

    async def _relay(self, connection: CarrierConnection, session: CarrierSession, port: int) -> None:
        """Carry a connection of an agent to a proxy, which knows the run by an address of its own."""
        if port not in session.ports or len(session.relays) >= MAX_RELAYS:
            await connection.send("refused", reason="no such proxy, or too many connections")
            return
        task = asyncio.current_task()
        assert task is not None
        session.relays.add(task)
        try:
            other = await asyncio.open_connection(
                "127.0.0.1", port, local_addr=(loopback_of(session.run_id), 0)
            )
            await connection.send("welcome", out=0)
            await relay(connection.reader, connection.writer, other)
        finally:
            session.relays.discard(task)


def loopback_of(run_id: str) -> str:
    """Return an address of this machine that stands for a run: a token counts from one address only."""
    digest = hashlib.sha256(run_id.encode()).digest()
    return f"127.{digest[0] % 254 + 1}.{digest[1]}.{digest[2] % 254 + 1}"


def ensure_certificate(certificate: Path, key: Path) -> None:
    """Make the certificate that carriers pin, where there is none. Blocks. Raises `OSError`."""
    if certificate.is_file() and key.is_file():
        return
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    private = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, NAME)])
    now = dt.datetime.now(dt.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(private.public_key())
        .serial_number(x509.random_serial_number())
        # Nodes whose clocks are behind take it, too.
        .not_valid_before(now - dt.timedelta(days=2))
        .not_valid_after(now + dt.timedelta(days=CERTIFICATE_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(private, hashes.SHA256())
    )
    secret = private.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    for path, text in ((key, secret), (certificate, made.public_bytes(serialization.Encoding.PEM))):
        partial = path.with_name(f".{path.name}.new")
        with suppress(FileNotFoundError):
            partial.unlink()
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(text)
        partial.rename(path)
