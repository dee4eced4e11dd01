"""The way to the model service by the proxy that the environment names. The only module that uses httpx."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import cast

import httpx

from orchestrator.proxies.model import refusals
from orchestrator.proxies.model.answer import UpstreamRequest, UpstreamResponse
from orchestrator.proxies.model.limits import ModelProxyLimits
from orchestrator.proxies.model.refusals import AnswerCut, ProxyRefusal, ProxyRefused


class ProxiedUpstream:
    """Sends orders. Making it reads the CA file and blocks for some 50 ms; do so in a thread."""

    def __init__(self, limits: ModelProxyLimits) -> None:
        self._answer_seconds = limits.answer_seconds
        self._timeout = httpx.Timeout(
            limits.first_byte_seconds, connect=limits.connect_seconds, write=limits.write_seconds
        )
        pool = httpx.Limits(
            max_connections=limits.requests,
            max_keepalive_connections=32,
            keepalive_expiry=limits.pool_seconds,
        )
        self._client = httpx.AsyncClient(trust_env=True, http2=False, follow_redirects=False, limits=pool)

    @asynccontextmanager
    async def send(self, order: UpstreamRequest) -> AsyncIterator[UpstreamResponse]:
        """Send `order` and enter with its answer; leaving, also by cancellation, drops what is not read."""
        response = await self._open(order)
        try:
            headers = response.headers.raw
            yield UpstreamResponse(status=response.status_code, headers=headers, chunks=_chunks(response))
        finally:
            await response.aclose()

    async def _open(self, order: UpstreamRequest) -> httpx.Response:
        # Not `build_request`: it would add the client's own headers and cookies.
        timeouts = self._timeout.as_dict()
        request = httpx.Request(
            order.method,
            order.url,
            headers=list(order.headers),
            content=order.body,
            extensions={"timeout": timeouts},
        )
        try:
            response = await self._client.send(request, stream=True, auth=httpx.Auth())
        except httpx.HTTPError as error:
            raise ProxyRefused(_refusal(error), cause=_cause(error)) from None
        timeouts["read"] = self._answer_seconds  # the body is read by what stands there when it is read
        return response

    async def close(self) -> None:
        await self._client.aclose()


async def _chunks(response: httpx.Response) -> AsyncGenerator[bytes]:
    try:
        raw = cast("AsyncGenerator[bytes]", response.aiter_raw())
        async with aclosing(raw):
            async for chunk in raw:
                yield chunk
    except httpx.HTTPError as error:
        raise AnswerCut(type(error).__name__) from None


def _cause(error: httpx.HTTPError) -> str:
    """Name the error; only that of a connection is worth its text, and cannot quote a request."""
    name = type(error).__name__
    return f"{name}: {error}" if isinstance(error, httpx.ConnectError) else name


def _refusal(error: httpx.HTTPError) -> ProxyRefusal:
    match error:
        case httpx.ConnectError() | httpx.ConnectTimeout() | httpx.ProxyError():
            return refusals.UNREACHABLE
        case httpx.TimeoutException():
            return refusals.SILENT
        case _:
            return refusals.BROKEN
