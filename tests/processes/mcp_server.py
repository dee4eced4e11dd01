"""A real MCP server over streamable HTTP on loopback: it keeps notes, and the proof of each request."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from types import TracebackType
from typing import Any, Self

import uvicorn
from mcp.server import MCPServer


class NotesServer:
    """Serves in a thread. Enter it to start; `proofs` are the Authorization headers that came."""

    def __init__(self) -> None:
        self.proofs: list[str | None] = []
        self.written: list[str] = []
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}/mcp"
        server = MCPServer("notes", log_level="CRITICAL", **self.options())

        @server.tool()
        def write_note(text: str) -> str:
            """Keep a note."""
            self.written.append(text)
            return f"kept: {text}"

        @server.tool()
        def tell_secret() -> str:
            """Tell what the request was proved by, which no server should."""
            return f"you showed me {self.proofs[-1]}"

        app = server.streamable_http_app()

        async def noting(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "http":
                proof = dict(scope["headers"]).get(b"authorization")
                self.proofs.append(proof.decode() if proof else None)
            await app(scope, receive, send)

        self._server = uvicorn.Server(
            uvicorn.Config(noting, log_config=None, log_level=logging.CRITICAL + 1, ws="none")
        )
        self._thread = threading.Thread(target=self._serve, name="notes-server", daemon=True)

    def options(self) -> dict[str, Any]:
        """More options of the server, whose `url` is known."""
        return {}

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.should_exit = self._server.force_exit = True
        self._thread.join(timeout=60)
        self._socket.close()

    def _serve(self) -> None:
        asyncio.run(self._server.serve(sockets=[self._socket]))
