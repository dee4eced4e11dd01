"""The way to the model service that has no proxy of another between: HTTP/1.1 on connections of our own.

A general HTTP client costs each first byte two milliseconds, which is half of what the proxy may add.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from urllib.parse import urlsplit

from orchestrator.proxies.model import refusals
from orchestrator.proxies.model.answer import Answer, Order
from orchestrator.proxies.model.headers import Header
from orchestrator.proxies.model.limits import Limits
from orchestrator.proxies.model.line import Line, LineBroken, LineSilent, Origin
from orchestrator.proxies.model.lines import Lines, Unreachable
from orchestrator.proxies.model.refusals import AnswerCut, Refused


class Straight:
    """Sends orders. Making it reads the CA file and blocks for some 50 ms; do so in a thread."""

    def __init__(self, limits: Limits) -> None:
        import httpx

        # The trust of the other way, so that which way is taken makes no difference to it.
        self._lines = Lines(limits, trust=httpx.create_ssl_context())

    @asynccontextmanager
    async def send(self, order: Order) -> AsyncIterator[Answer]:
        """Send `order` and enter with its answer; leaving, also by cancellation, drops what is not read."""
        origin = Origin.of(order.url)
        line = await self._line(origin)
        try:
            yield await _answer(line, order)
        except BaseException:
            line.abort()
            raise
        self._lines.give_back(line, origin)

    async def close(self) -> None:
        self._lines.close()

    async def _line(self, origin: Origin) -> Line:
        try:
            return await self._lines.take(origin)
        except Unreachable as error:
            raise Refused(refusals.UNREACHABLE, cause=f"ConnectError: {error}") from None


async def _answer(line: Line, order: Order) -> Answer:
    try:
        head = await line.ask(order.method, _target(order.url), _headers(order), order.body)
    except LineBroken as error:
        raise Refused(refusals.BROKEN, cause=f"broke off: {error}") from None
    except LineSilent as error:
        raise Refused(refusals.SILENT, cause=f"silent: {error}") from None
    return Answer(status=head.status_code, headers=list(head.headers), chunks=_chunks(line))


async def _chunks(line: Line) -> AsyncGenerator[bytes]:
    try:
        async with aclosing(line.chunks()) as chunks:
            async for chunk in chunks:
                yield chunk
    except (LineBroken, LineSilent) as error:
        raise AnswerCut(type(error).__name__) from None


def _target(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"


def _headers(order: Order) -> list[Header]:
    """A body whose length the container did not tell goes in chunks."""
    has_length = any(name.lower() == b"content-length" for name, _ in order.headers)
    chunked = [] if order.body is None or has_length else [(b"transfer-encoding", b"chunked")]
    return [(b"host", urlsplit(order.url).netloc.encode("ascii")), *order.headers, *chunked]
