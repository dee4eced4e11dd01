"""The HTTP client for the model service: straight, or by the proxy that this machine's environment names.

Imported with the first start only: httpx and its CA file take some 50 ms to load.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import httpx

from orchestrator.proxies.model import error_responses
from orchestrator.proxies.model.error_responses import AnswerCut, ProxyRefusal, ProxyRefused
from orchestrator.proxies.model.headers import Header
from orchestrator.proxies.model.limits import ModelProxyLimits

MAX_IDLE = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamRequest:
    """A request as it goes upstream. `headers` hold the credential, so they show in no repr."""

    method: str
    url: str
    headers: Sequence[Header] = field(repr=False)
    body: AsyncIterator[bytes] | None = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamResponse:
    """A response whose head has arrived."""

    status: int
    headers: list[Header]
    chunks: AsyncGenerator[bytes]
    """The body as it arrives, not decompressed. Raises `AnswerCut`."""


class UpstreamClient:
    """Sends requests on connections that it keeps warm.

    Making it reads the CA file, which blocks for some 50 ms: do so in a thread.
    """

    def __init__(self, limits: ModelProxyLimits) -> None:
        self._answer_seconds = limits.answer_seconds
        self._timeout = httpx.Timeout(
            limits.first_byte_seconds, connect=limits.connect_seconds, write=limits.write_seconds
        )
        pool = httpx.Limits(
            max_connections=limits.requests,
            max_keepalive_connections=MAX_IDLE,
            keepalive_expiry=limits.pool_seconds,
        )
        self._http = httpx.AsyncClient(trust_env=True, http2=False, follow_redirects=False, limits=pool)

    @asynccontextmanager
    async def send(self, request: UpstreamRequest) -> AsyncIterator[UpstreamResponse]:
        """Send `request` and enter with its response; leaving, also by cancellation, drops what is not read.

        Raises:
            ProxyRefused: no answer came. What `request.body` raises passes through.
        """
        response = await self._open(request)
        parser = _parser_of(response)
        try:
            if not 200 <= response.status_code <= 599:
                raise ProxyRefused(error_responses.BROKEN, cause=f"status {response.status_code}")
            yield UpstreamResponse(
                status=response.status_code, headers=response.headers.raw, chunks=_chunks(response)
            )
        finally:
            await response.aclose()
            # httpcore looks for unasked bytes on the socket before it uses a connection again, but not among
            # those that it has read with the response: they would be the response to somebody else's request.
            if parser is None or parser.trailing_data[0]:
                await response.extensions["network_stream"].aclose()

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def _open(self, request: UpstreamRequest) -> httpx.Response:
        timeouts = self._timeout.as_dict()
        # Not `build_request`: it would add the client's own headers and cookies.
        outgoing = httpx.Request(
            request.method,
            request.url,
            headers=list(request.headers),
            content=request.body,
            extensions={"timeout": timeouts},
        )
        try:
            # The empty `Auth` keeps httpx from looking for a password in the URL or in ~/.netrc.
            response = await self._http.send(outgoing, stream=True, auth=httpx.Auth())
        except httpx.HTTPError as error:
            raise ProxyRefused(_refusal(error), cause=_cause(error)) from None
        # httpcore looks the timeout up again when it reads the body.
        timeouts["read"] = self._answer_seconds
        return response


def _parser_of(response: httpx.Response) -> Any:
    """Return the h11 parser of the connection that a response came on.

    There is no public way to it. None where another version of the libraries has it elsewhere; the connection
    is then used once, and a test that counts connections fails.
    """
    found: Any = response.stream
    for name in ("_stream", "_httpcore_stream", "_stream", "_connection", "_h11_state"):
        found = getattr(found, name, None)
    return found


async def _chunks(response: httpx.Response) -> AsyncGenerator[bytes]:
    try:
        raw = cast("AsyncGenerator[bytes]", response.aiter_raw())
        async with aclosing(raw):
            async for chunk in raw:
                yield chunk
    except httpx.HTTPError as error:
        raise AnswerCut(type(error).__name__) from None


def _cause(error: httpx.HTTPError) -> str:
    """Name the error. Only that of a connection is worth its text, which cannot quote a request."""
    name = type(error).__name__
    return f"{name}: {error}" if isinstance(error, httpx.ConnectError) else name


def _refusal(error: httpx.HTTPError) -> ProxyRefusal:
    match error:
        case httpx.ConnectError() | httpx.ConnectTimeout() | httpx.ProxyError():
            return error_responses.UNREACHABLE
        case httpx.TimeoutException():
            return error_responses.SILENT
        case _:
            return error_responses.BROKEN
