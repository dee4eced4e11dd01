"""Serve an ASGI app on a socket that is bound beforehand, and leave signals to the app."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext

import uvicorn

CUT_SECONDS = 1.0


def listen(host: str, port: int) -> socket.socket:
    """Listen on an address; port 0 lets the system choose. Raises `OSError` when it cannot."""
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


@contextmanager
def fronted(listener: socket.socket, address: str | None) -> Iterator[tuple[socket.socket, ...]]:
    """Listen at the same port of `address`, too, if there is one. Raises `OSError` when it cannot."""
    if address is None:
        yield (listener,)
        return
    with closing(listen(address, listener.getsockname()[1])) as front:
        yield (listener, front)


class Server(uvicorn.Server):
    """Uvicorn without its signal handlers and without its tick ten times a second."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._stopping = asyncio.Event()

    def capture_signals(self) -> AbstractContextManager[None]:  # type: ignore[override]
        return nullcontext()

    async def main_loop(self) -> None:
        await self._stopping.wait()

    async def serve_on(self, *listeners: socket.socket) -> None:
        """Serve until cancelled. Then requests have the configured grace to end before they are cut.

        The `listeners` stay open and can be served on again.
        """
        own = [one.dup() for one in listeners]  # uvicorn closes those it is given
        try:
            await self.serve(sockets=own)
        finally:
            if self.started:
                await self.shutdown(sockets=own)
            await self._cut()
            for one in own:
                one.close()

    async def _cut(self) -> None:
        """Wait for requests that were told to end; drop what is still connected."""
        if self.server_state.tasks:
            await asyncio.wait(self.server_state.tasks, timeout=CUT_SECONDS)
        for connection in list(self.server_state.connections):
            connection.transport.abort()
