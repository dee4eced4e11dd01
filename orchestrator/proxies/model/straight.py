"""The way to the model service that has no proxy of another between: HTTP/1.1 on connections of our own.

A general HTTP client costs each first byte two milliseconds, which is half of what the proxy may add.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from urllib.parse import urlsplit

from orchestrator.proxies.model import refusals
from orchestrator.proxies.model.answer import UpstreamRequest, UpstreamResponse
from orchestrator.proxies.model.headers import Header
from orchestrator.proxies.model.limits import ModelProxyLimits
from orchestrator.proxies.model.line import (
    ConnectionBroken,
    ConnectionSilent,
    UpstreamConnection,
    UpstreamOrigin,
)
from orchestrator.proxies.model.lines import ConnectionPool, UpstreamUnreachable
from orchestrator.proxies.model.refusals import AnswerCut, ProxyRefused


class DirectUpstream:
    """Sends orders. Making it reads the CA file and blocks for some 50 ms; do so in a thread."""

    def __init__(self, limits: ModelProxyLimits) -> None:
        import httpx

        # The trust of the other way, so that which way is taken makes no difference to it.
        self._lines = ConnectionPool(limits, trust=httpx.create_ssl_context())

    @asynccontextmanager
    async def send(self, order: UpstreamRequest) -> AsyncIterator[UpstreamResponse]:
        """Send `order` and enter with its answer; leaving, also by cancellation, drops what is not read."""
        origin = UpstreamOrigin.of(order.url)
        line = await self._line(origin)
        try:
            yield await _answer(line, order)
        except BaseException:
            line.abort()
            raise
        self._lines.give_back(line, origin)

    async def close(self) -> None:
        self._lines.close()

    async def _line(self, origin: UpstreamOrigin) -> UpstreamConnection:
        try:
            return await self._lines.take(origin)
        except UpstreamUnreachable as error:
            raise ProxyRefused(refusals.UNREACHABLE, cause=f"ConnectError: {error}") from None


async def _answer(line: UpstreamConnection, order: UpstreamRequest) -> UpstreamResponse:
    try:
        head = await line.ask(order.method, _target(order.url), _headers(order), order.body)
    except ConnectionBroken as error:
        raise ProxyRefused(refusals.BROKEN, cause=f"broke off: {error}") from None
    except ConnectionSilent as error:
        raise ProxyRefused(refusals.SILENT, cause=f"silent: {error}") from None
    return UpstreamResponse(status=head.status_code, headers=list(head.headers), chunks=_chunks(line))


async def _chunks(line: UpstreamConnection) -> AsyncGenerator[bytes]:
    try:
        async with aclosing(line.chunks()) as chunks:
            async for chunk in chunks:
                yield chunk
    except (ConnectionBroken, ConnectionSilent) as error:
        raise AnswerCut(type(error).__name__) from None


def _target(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"


def _headers(order: UpstreamRequest) -> list[Header]:
    """A body whose length the container did not tell goes in chunks."""
    has_length = any(name.lower() == b"content-length" for name, _ in order.headers)
    chunked = [] if order.body is None or has_length else [(b"transfer-encoding", b"chunked")]
    return [(b"host", urlsplit(order.url).netloc.encode("ascii")), *order.headers, *chunked]
