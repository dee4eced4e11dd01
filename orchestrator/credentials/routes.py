"""The few paths that are served; everything else is refused in the API's form."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from starlette.applications import Starlette
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from orchestrator.credentials import refusals
from orchestrator.credentials.client import ClientSide
from orchestrator.credentials.limits import Limits

COSTLY = "/v1/messages"
"""The one path whose answers cost tokens."""

Serve = Callable[[str, ClientSide], Awaitable[None]]
"""Answer a request of the given path."""


@dataclass(frozen=True, slots=True)
class _Endpoint:
    """A path and the methods it takes, as an ASGI app."""

    serve: Serve
    path: str
    methods: tuple[str, ...]
    limits: Limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        client = ClientSide(scope, receive, send, self.limits)
        if self.methods and client.method not in self.methods:
            await client.refuse(refusals.wrong_method(", ".join(self.methods)))
        else:
            await self.serve(self.path, client)


def proxy_app(serve: Serve, limits: Limits) -> Starlette:
    """Make the app: the Messages API by `serve`, and `/` as a sign of life."""

    def route(path: str, served_by: Serve, *methods: str) -> Route:
        return Route(path, _Endpoint(served_by, path, methods, limits))

    app = Starlette(
        routes=[
            route("/", _answer_probe, "GET", "HEAD"),
            route(COSTLY, serve, "POST"),
            route("/v1/messages/count_tokens", serve, "POST"),
            route("/v1/models", serve, "GET"),
        ]
    )
    app.router.redirect_slashes = False
    app.router.default = _Endpoint(_answer_not_found, "", (), limits)
    return app


async def _answer_probe(_path: str, client: ClientSide) -> None:
    try:
        await client.expect_no_body()
    except refusals.Refused as error:
        await client.refuse(error.refusal)
    else:
        await client.reply(200, b"{}")


async def _answer_not_found(_path: str, client: ClientSide) -> None:
    await client.refuse(refusals.NOT_FOUND)
