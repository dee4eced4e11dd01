"""Serve the proxy on a socket that is bound beforehand, and leave signals to the app."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import uvicorn

from orchestrator.credentials.limits import Limits
from orchestrator.credentials.protocol import ProxyConfig
from orchestrator.errors import AndyError

_TAKEN = {errno.EADDRINUSE, errno.EACCES}


def bind(host: str, preferred_port: int) -> socket.socket:
    """Listen on `host` at `preferred_port`, or, when that is taken, at a port the system chooses.

    Raises:
        AndyError: this machine has no such address.
    """
    try:
        return _listen(host, preferred_port)
    except OSError as error:
        if error.errno not in _TAKEN:
            raise _no_address(host, error) from error
    try:
        return _listen(host, 0)
    except OSError as error:
        raise _no_address(host, error) from error


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio turns Nagle's delay (40 ms an answer) off only where the protocol is named.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(256)
    except BaseException:
        listener.close()
        raise
    return listener


def _no_address(host: str, error: OSError) -> AndyError:
    reason = error.strerror or str(error)
    return AndyError(
        f"The credential proxy cannot listen on {host} ({reason}): use an address of this machine."
    )


class _Server(uvicorn.Server):
    """Uvicorn without its signal handlers and without its tick ten times a second."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.stopping = asyncio.Event()

    def capture_signals(self) -> AbstractContextManager[None]:  # type: ignore[override]
        return nullcontext()

    async def main_loop(self) -> None:
        await self.stopping.wait()

    async def end_requests(self) -> None:
        """Wait for requests that were told to end; drop what is still connected."""
        if self.server_state.tasks:
            await asyncio.wait(self.server_state.tasks, timeout=1.0)
        for connection in list(self.server_state.connections):
            connection.transport.abort()


class ProxyServer:
    """Serves one ASGI app on one listening socket, which it owns."""

    def __init__(
        self, app: Callable[..., Any], listener: socket.socket, *, limits: Limits | None = None
    ) -> None:
        self._app = app
        self._listener = listener
        self._limits = limits or Limits()

    @property
    def port(self) -> int:
        port: int = self._listener.getsockname()[1]
        return port

    async def serve(self) -> None:
        """Serve until cancelled. Then requests under way have two seconds to end before they are cut.

        May be called again after it ended, until `close`.
        """
        server = _Server(ProxyConfig(self._app, self._limits))
        listener = self._listener.dup()  # uvicorn closes the one it is given
        try:
            await server.serve(sockets=[listener])
        finally:
            if server.started:
                await server.shutdown(sockets=[listener])
            await server.end_requests()
            listener.close()

    def close(self) -> None:
        """Let go of the socket."""
        self._listener.close()
