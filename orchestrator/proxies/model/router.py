"""The few paths that are served; everything else is refused in the API's form."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from starlette.types import Receive, Scope, Send

from orchestrator.proxies.model import refusals
from orchestrator.proxies.model.client import ClientSide
from orchestrator.proxies.model.limits import ModelProxyLimits

COSTLY = "/v1/messages"
"""The one path whose answers cost tokens."""

Serve = Callable[[str, ClientSide], Awaitable[None]]
"""Answer a request of the given path."""


@dataclass(frozen=True, slots=True)
class _Endpoint:
    """How a path is served, and the methods it takes."""

    serve: Serve
    methods: tuple[str, ...]


class ProxyRouter:
    """The app: the Messages API by `serve`, and `/` as a sign of life. A path is one of these, whole."""

    def __init__(self, serve: Serve, limits: ModelProxyLimits) -> None:
        self._limits = limits
        self._endpoints: Mapping[str, _Endpoint] = {
            "/": _Endpoint(_answer_probe, ("GET", "HEAD")),
            COSTLY: _Endpoint(serve, ("POST",)),
            "/v1/messages/count_tokens": _Endpoint(serve, ("POST",)),
            "/v1/models": _Endpoint(serve, ("GET",)),
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        client = ClientSide(scope, receive, send, self._limits)
        path = scope["path"]
        endpoint = self._endpoints.get(path)
        if endpoint is None:
            await client.refuse(refusals.NOT_FOUND)
        elif client.method not in endpoint.methods:
            await client.refuse(refusals.wrong_method(", ".join(endpoint.methods)))
        else:
            await endpoint.serve(path, client)


async def _answer_probe(_path: str, client: ClientSide) -> None:
    try:
        await client.expect_no_body()
    except refusals.ProxyRefused as error:
        await client.refuse(error.refusal)
    else:
        await client.reply(200, b"{}")
