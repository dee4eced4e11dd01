"""The side of the model service: one pool of warm connections. The only module that imports httpx."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import cast
from urllib.request import getproxies

import httpx

from orchestrator.credentials import refusals
from orchestrator.credentials.headers import Header
from orchestrator.credentials.limits import Limits
from orchestrator.credentials.refusals import AnswerCut, Refusal, Refused


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A request as it goes upstream. `headers` hold the credential, so they show in no repr."""

    method: str
    url: str
    headers: Sequence[Header]
    body: AsyncIterator[bytes] | None

    def __repr__(self) -> str:
        return f"Order({self.method} {self.url})"


class Answer:
    """An answer whose head has come."""

    def __init__(self, response: httpx.Response) -> None:
        self._response = response
        self.status = response.status_code
        self.headers: list[Header] = response.headers.raw

    async def chunks(self) -> AsyncGenerator[bytes]:
        """Yield the body as it comes, not decompressed. Raises `AnswerCut`."""
        try:
            raw = cast("AsyncGenerator[bytes]", self._response.aiter_raw())
            async with aclosing(raw):
                async for chunk in raw:
                    yield chunk
        except httpx.HTTPError as error:
            raise AnswerCut(type(error).__name__) from None


class Upstream:
    """Sends orders. Opening it reads the CA file and blocks for some 50 ms; do so in a thread."""

    def __init__(self, limits: Limits) -> None:
        self._timeout = httpx.Timeout(
            limits.answer_seconds, connect=limits.connect_seconds, write=limits.write_seconds
        )
        pool = httpx.Limits(
            max_connections=limits.requests,
            max_keepalive_connections=32,
            keepalive_expiry=limits.pool_seconds,
        )
        # A client knows the proxies of the environment. Where there are none, its cookies, redirects and
        # hooks would cost each first byte half a millisecond for nothing.
        self._client = (
            httpx.AsyncClient(trust_env=True, http2=False, follow_redirects=False, limits=pool)
            if getproxies()
            else None
        )
        self._transport = httpx.AsyncHTTPTransport(trust_env=True, http2=False, limits=pool)

    @asynccontextmanager
    async def send(self, order: Order) -> AsyncIterator[Answer]:
        """Send `order` and enter with its answer; leaving, also by cancellation, drops what is not read.

        Raises:
            Refused: no answer came. What `order.body` raises passes through.
        """
        response = await self._open(order)
        try:
            if not 200 <= response.status_code <= 599:
                raise Refused(refusals.BROKEN, cause=f"status {response.status_code}")
            yield Answer(response)
        finally:
            await response.aclose()

    async def _open(self, order: Order) -> httpx.Response:
        # Not `build_request`: it would add the client's own headers and cookies.
        request = httpx.Request(
            order.method,
            order.url,
            headers=list(order.headers),
            content=order.body,
            extensions={"timeout": self._timeout.as_dict()},
        )
        try:
            if self._client is not None:
                return await self._client.send(request, stream=True, auth=httpx.Auth())
            return await self._transport.handle_async_request(request)
        except httpx.HTTPError as error:
            raise Refused(_refusal(error), cause=_cause(error)) from None

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()
        await self._transport.aclose()


def _cause(error: httpx.HTTPError) -> str:
    """Name the error; only that of a connection is worth its text, and cannot quote a request."""
    name = type(error).__name__
    return f"{name}: {error}" if isinstance(error, httpx.ConnectError) else name


def _refusal(error: httpx.HTTPError) -> Refusal:
    match error:
        case httpx.ConnectError() | httpx.ConnectTimeout() | httpx.ProxyError():
            return refusals.UNREACHABLE
        case httpx.TimeoutException():
            return refusals.SILENT
        case _:
            return refusals.BROKEN
