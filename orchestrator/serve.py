"""Serve an ASGI app on a socket that is bound beforehand, and leave signals to the app."""

from __future__ import annotations

import asyncio
import socket
from contextlib import AbstractContextManager, nullcontext

import uvicorn


class Server(uvicorn.Server):
    """Uvicorn without its signal handlers and without its tick ten times a second."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._stopping = asyncio.Event()

    def capture_signals(self) -> AbstractContextManager[None]:  # type: ignore[override]
        return nullcontext()

    async def main_loop(self) -> None:
        await self._stopping.wait()

    def abort_connections(self) -> None:
        for connection in list(self.server_state.connections):
            connection.transport.abort()

    async def serve_on(self, listener: socket.socket) -> None:
        """Serve until cancelled; then end within the configured grace and cut what is left."""
        own = listener.dup()  # uvicorn closes the one it is given
        try:
            await self.serve(sockets=[own])
        finally:
            if self.started:
                await self.shutdown(sockets=[own])
            self.abort_connections()
            own.close()
