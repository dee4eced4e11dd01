"""Build the web application: the routes it is given, behind the guard, with errors as JSON."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Match, Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from orchestrator.domain.errors import AndyError, BadRequest
from orchestrator.groups.secret_addresses import without_secret
from orchestrator.web.bodies import BadBody
from orchestrator.web.guard import AccessGuard, IsSession
from orchestrator.web.refusals import OnRefusal

MAX_PATH_CHARS = 200
"""Characters of an unknown path that its error repeats."""


def web_app(
    routes: Sequence[BaseRoute],
    *,
    token: str,
    on_refusal: OnRefusal,
    more_routes: Callable[[], Sequence[BaseRoute]] | None = None,
    web_origin: str | None = None,
    is_session: IsSession | None = None,
) -> Starlette:
    """Build the web application, in which a request needs the token.

    Exceptions are `/healthz`, the console, which has sessions, and the secret addresses of calendars and
    hooks.

    Args:
        routes: the routes that exist from the start.
        token: the secret that a request has to show.
        on_refusal: called for each refused request.
        more_routes: returns further routes. It is called in a thread at the first request that none of
            `routes` matches, and may block.
        web_origin: the origin of a reverse proxy before Andy, if there is one.
        is_session: returns whether a cookie belongs to a signed-in browser, which may read `/api/`, too.
    """
    guard = Middleware(
        AccessGuard, token=token, on_refusal=on_refusal, web_origin=web_origin, is_session=is_session
    )
    app = Starlette(
        routes=routes,
        middleware=[guard],
        exception_handlers={
            AndyError: _error_answer,
            HTTPException: _route_error_answer,
            RecursionError: _refuse_depth,
        },
    )
    if more_routes is not None:
        # The default gets each request that none of `routes` matches.
        app.router.default = LazyApp(lambda: Router(more_routes()))
    return app


class LazyApp:
    """An app that is built in a thread when its first request comes: unused, it costs nothing."""

    def __init__(self, build: Callable[[], ASGIApp]) -> None:
        """`build` returns the app; it is called once, in a thread, and may block."""
        self._build = build
        self._built: ASGIApp | None = None
        self._lock = asyncio.Lock()

    @property
    def routes(self) -> Sequence[BaseRoute]:
        """The routes of the app once it is built; none before."""
        return self._built.routes if isinstance(self._built, Router) else ()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request to the app, which is built first if it does not exist yet."""
        if self._built is None:
            async with self._lock:
                # Checked again: another request may have built it while this one waited for the lock.
                if self._built is None:
                    self._built = await asyncio.to_thread(self._build)
        await self._built(scope, receive, send)


async def _error_answer(_: Request, error: Exception) -> Response:
    """Return the JSON answer for an error of Andy's own.

    A `BadRequest` has its own status and code; any other error is a 503.
    """
    code = error.code if isinstance(error, BadRequest) else "unavailable"
    status = error.http_status if isinstance(error, BadRequest) else 503
    return JSONResponse({"error": {"code": code, "message": str(error)}}, status_code=status)


async def _route_error_answer(request: Request, error: Exception) -> Response:
    """Return the JSON answer for an unknown path, or for a method that the path does not allow.

    Any other HTTP error has the code `refused` and its own text.
    """
    assert isinstance(error, HTTPException)
    # A path may be a mistyped secret address, which must not be in the error, because programs log it.
    path = without_secret(request.url.path)[:MAX_PATH_CHARS]
    code, message, headers = "refused", error.detail, error.headers
    if error.status_code == 404:
        code, message = "not_found", f"There is nothing at {path}."
    elif error.status_code == 405:
        code, message = "method_not_allowed", f"{request.method} is not for {path}."
        headers = {"Allow": ", ".join(_methods_at(request))}
    content = {"error": {"code": code, "message": message}}
    return JSONResponse(content, status_code=error.status_code, headers=headers)


def _methods_at(request: Request) -> list[str]:
    """Return the sorted HTTP methods of all routes that match the path of a request.

    Starlette itself would list those of the first matching route only.
    """
    router = request.app.router
    more_routes = router.default.routes if isinstance(router.default, LazyApp) else ()
    matching = [
        route
        for route in (*router.routes, *more_routes)
        if isinstance(route, Route) and route.matches(request.scope)[0] is not Match.NONE
    ]
    return sorted({method for route in matching for method in route.methods or ()})


async def _refuse_depth(request: Request, _: Exception) -> Response:
    """Return the answer for a body that is nested so deeply that parsing exceeded the recursion limit."""
    return await _error_answer(request, BadBody("The body is nested too deeply."))
