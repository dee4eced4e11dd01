"""A reverse proxy before a host: it ends TLS and passes bytes on, as nginx would; it can be cut off."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Self

CHUNK_BYTES = 65_536


def own_certificate(folder: Path) -> ssl.SSLContext:
    """Return what a server with a certificate of its own for `localhost` needs."""
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost"]
    more = ["-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*command, *more], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context


class ReverseProxy:
    """Enter it to listen on a port of its own; `target` then says where to pass connections on to."""

    def __init__(self, tls: ssl.SSLContext) -> None:
        self._tls = tls
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="reverse-proxy")
        self._open: set[asyncio.StreamWriter] = set()
        self._is_cut = False
        self.target = 0
        self.port = 0
        self.asked: list[bytes] = []
        """What browsers have sent, as it came."""

    def __enter__(self) -> Self:
        self._thread.start()
        self._server = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    def __exit__(self, *_: object) -> None:
        self._at_once(self._server.close)
        self.cut()
        asyncio.run_coroutine_threadsafe(self._ended(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def origin(self) -> str:
        return f"https://localhost:{self.port}"

    def cut(self) -> None:
        """Break every connection off, and let none come about until `mend`."""
        self._at_once(self._cut)

    def mend(self) -> None:
        self._is_cut = False

    async def _listen(self) -> asyncio.Server:
        return await asyncio.start_server(self._pass_on, "127.0.0.1", 0, ssl=self._tls)

    async def _ended(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    def _at_once(self, act: Callable[[], None]) -> None:
        done = threading.Event()

        def call() -> None:
            act()
            done.set()

        self._loop.call_soon_threadsafe(call)
        done.wait()

    def _cut(self) -> None:
        self._is_cut = True
        for writer in self._open:
            writer.transport.abort()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_cut:
            writer.transport.abort()
            return
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:  # the host is away: what nginx answers with 502
            writer.transport.abort()
            return
        self._open |= {writer, back}
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._pump(reader, back, keeps=True), name="there")
                both.create_task(self._pump(there, writer, keeps=False), name="back")
        finally:
            self._open -= {writer, back}
            for one in (writer, back):
                one.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, keeps: bool) -> None:
        with suppress(OSError):
            while data := await reader.read(CHUNK_BYTES):
                if keeps:
                    self.asked.append(data)
                writer.write(data)
                await writer.drain()
        writer.close()
