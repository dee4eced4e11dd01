"""Where the console is joined to the HTTP API: its address, and the route that hands out one-time codes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from orchestrator.web.console.sessions import CODE_MS, SessionService
from orchestrator.web.guard import CONSOLE


def console_routes(build: Callable[[], ASGIApp], sessions: SessionService) -> list[BaseRoute]:
    """Return what leads to the console. `build` may block; it is called at the first request for a page."""

    async def enter(_: Request) -> Response:
        return RedirectResponse(f"{CONSOLE}/", status_code=303)

    async def make_code(_: Request) -> Response:
        # After '#', an address stays in the browser: it is in no log, and no request has it.
        path = f"{CONSOLE}/sign-in#{sessions.make_code()}"
        return JSONResponse({"path": path, "seconds": CODE_MS // 1000}, status_code=201)

    return [
        Route("/", enter),
        Route("/sessions/codes", make_code, methods=["POST"]),
        Mount(CONSOLE, app=_LazyConsole(build)),
    ]


class _LazyConsole:
    """The console, built in a thread when the first request for it comes: unused it costs nothing."""

    def __init__(self, build: Callable[[], ASGIApp]) -> None:
        self._build = build
        self._built: ASGIApp | None = None
        self._lock = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._lock:
            if self._built is None:
                self._built = await asyncio.to_thread(self._build)
        await self._built(scope, receive, send)
