"""The routes that add the console to the HTTP API: its pages, and the route that makes one-time codes."""

from __future__ import annotations

from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.types import ASGIApp

from orchestrator.web.app import LazyApp
from orchestrator.web.console.sessions import CODE_MS, SessionService
from orchestrator.web.guard import CONSOLE


def console_routes(build: Callable[[], ASGIApp], sessions: SessionService) -> list[BaseRoute]:
    """Return the routes of the console: its pages, and the one by which a program gets a one-time code.

    `build` makes the application of the pages. It may block, and is called at the first request for a page.
    """

    async def enter(_: Request) -> Response:
        """Redirect a request for `/` to the console."""
        return RedirectResponse(f"{CONSOLE}/", status_code=303)

    async def make_code(_: Request) -> Response:
        """Make a one-time code, and answer with the path of its sign-in page and its validity in seconds."""
        # After '#', an address stays in the browser: it is in no log, and no request has it.
        path = f"{CONSOLE}/sign-in#{sessions.make_code()}"
        return JSONResponse({"path": path, "seconds": CODE_MS // 1000}, status_code=201)

    return [
        Route("/", enter),
        Route("/sessions/codes", make_code, methods=["POST"]),
        Mount(CONSOLE, app=LazyApp(build)),
    ]
