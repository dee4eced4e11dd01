"""The HTTP client for the model service: direct, or through the proxy that the environment names.

It uses httpcore alone: httpx around it would take half of the millisecond that the proxy adds to a first
byte. It is imported after the host's start: with its CA file, it takes some 30 ms to load.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast
from urllib.parse import unquote_to_bytes, urlsplit
from urllib.request import getproxies, proxy_bypass

import certifi
import httpcore

from orchestrator.proxies.model import error_responses
from orchestrator.proxies.model.error_responses import AnswerCut, ProxyRefusal, ProxyRefused
from orchestrator.proxies.model.headers import EVENT_STREAM, Header
from orchestrator.proxies.model.limits import QUICK_FIRST_BYTE_SECONDS, ModelProxyLimits
from orchestrator.proxies.model.network import AsyncioBackend
from orchestrator.proxies.model.request_policy import RequestFacts
from orchestrator.proxies.name_lookups import NameLookups

MAX_IDLE = 32
"""Idle connections of a pool that stay open."""
# Without the URL, which may have a password.
UNUSABLE_PROXY = (
    "HTTP_PROXY, HTTPS_PROXY or ALL_PROXY of the host names no proxy by http:// or https://:"
    " correct it, or name the host in NO_PROXY"
)
"""The reason why no request can be sent through the proxy that the environment names."""

_FAULTS = (
    httpcore.NetworkError,
    httpcore.ProtocolError,
    httpcore.ProxyError,
    httpcore.TimeoutException,
    httpcore.UnsupportedProtocol,
)
"""Errors of a request that is not answered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamRequest:
    """A request to the upstream. `headers` contain the credential, so they are not in its repr."""

    method: str
    url: str
    headers: Sequence[Header] = field(repr=False)
    body: AsyncIterator[bytes] | None = field(repr=False)
    first_byte_seconds: float = QUICK_FIRST_BYTE_SECONDS
    """Seconds that the answer may take to start."""
    within_seconds: float | None = None
    """Seconds from the start of the request to that of its answer, if another service could continue; else
    None.
    """
    facts: RequestFacts = field(default_factory=RequestFacts)
    """The facts of the body, by which the answer is judged."""
    is_public_only: bool = False
    """Whether it may only go to internet addresses, whatever its host's name resolves to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamResponse:
    """A response whose head has arrived."""

    status: int
    headers: list[Header]
    chunks: AsyncGenerator[bytes]
    """The body as it arrives, not decompressed. Raises `AnswerCut`."""

    @property
    def kind(self) -> bytes | None:
        """The content type, in lower case; None if there is none."""
        return self._header_value(b"content-type")

    @property
    def is_plain(self) -> bool:
        """Whether the body is not encoded."""
        return self._header_value(b"content-encoding") in (None, b"", b"identity")

    @property
    def is_event_stream(self) -> bool:
        """Whether the body is a readable stream of events."""
        kind = self.kind
        return self.status == 200 and self.is_plain and kind is not None and kind.startswith(EVENT_STREAM)

    def _header_value(self, name: bytes) -> bytes | None:
        """Return the first value of a header, in lower case; None if the answer has no such header.

        `name` is in lower case.
        """
        values = (value.strip().lower() for known, value in self.headers if known.lower() == name)
        return next(values, None)


class UpstreamClient:
    """Sends requests on connections that it reuses.

    Creating it reads the CA file, which blocks for some 20 ms: do so in a thread.
    """

    def __init__(self, limits: ModelProxyLimits) -> None:
        """`limits` bound the number of connections and each wait."""
        self._limits = limits
        self._trusted_authorities = _trusted_authorities()
        self._proxies = getproxies()
        self._proxy_of: dict[tuple[str, str], str | None] = {}
        """Maps scheme and host to the URL of the proxy in between, or None for a direct connection."""
        self._pools: dict[tuple[str | None, bool], httpcore.AsyncConnectionPool] = {}
        """The open connections, by the URL of the proxy and whether only public addresses may be reached."""
        self._lookups = NameLookups()

    @asynccontextmanager
    async def send(self, request: UpstreamRequest) -> AsyncIterator[UpstreamResponse]:
        """Send a request, and yield its response once the head has arrived.

        When the block ends, also by cancellation, the unread rest of the response is dropped.

        Raises:
            ProxyRefused: no valid answer came.
            Exception: whatever the iterator `request.body` raises.
        """
        response = await self._open(request)
        parser = _parser_of(response)
        try:
            if not 200 <= response.status <= 599:
                raise ProxyRefused(error_responses.BROKEN, cause=f"status {response.status}")
            yield UpstreamResponse(status=response.status, headers=response.headers, chunks=_chunks(response))
        finally:
            await response.aclose()
            # Bytes after this response must not be taken for the response to the next request. Before it
            # reuses a connection, httpcore looks for such bytes in the socket, but not among those that it
            # has read together with the response. So the connection is closed if there are some, or if they
            # cannot be seen here, for want of the parser.
            if parser is None or parser.trailing_data[0]:
                await response.extensions["network_stream"].aclose()

    async def close(self) -> None:
        """Close all connections."""
        for pool in self._pools.values():
            await pool.aclose()

    async def _open(self, request: UpstreamRequest) -> httpcore.Response:
        """Send a request and return its response once the head has arrived.

        Raises `ProxyRefused` if no answer came.
        """
        limits = self._limits
        address = urlsplit(request.url)
        timeouts = {
            "connect": limits.connect_seconds,
            "write": limits.write_seconds,
            "read": request.first_byte_seconds,
            "pool": request.first_byte_seconds,
        }
        outgoing = httpcore.Request(
            request.method,
            request.url,
            # httpcore adds no Host header by itself. A login before the host in the URL is left out.
            headers=[(b"host", address.netloc.rpartition("@")[2].encode("ascii")), *_with_framing(request)],
            content=request.body,
            extensions={"timeout": timeouts},
        )
        pool = self._pool(address.scheme, address.hostname or "", is_public_only=request.is_public_only)
        try:
            response = await pool.handle_async_request(outgoing)
        except _FAULTS as error:
            raise ProxyRefused(_refusal_for(error), cause=_cause(error)) from None
        # httpcore looks the timeout up again in this dictionary when it reads the body.
        timeouts["read"] = limits.answer_seconds
        return response

    def _pool(self, scheme: str, host: str, *, is_public_only: bool) -> httpcore.AsyncConnectionPool:
        """Return the pool of connections for a host: through the proxy that the environment names, or direct.

        With `is_public_only`, direct connections reach only internet addresses. Raises `ProxyRefused` if that
        proxy cannot be used.
        """
        if (scheme, host) not in self._proxy_of:
            proxy_url = self._proxies.get(scheme) or self._proxies.get("all")
            self._proxy_of[scheme, host] = None if proxy_bypass(host) else proxy_url
        proxy = self._proxy_of[scheme, host]
        # A proxy looks the name up itself, so only direct connections can be limited to public addresses.
        can_be_limited = proxy is None
        key = (proxy, is_public_only and can_be_limited)
        if key not in self._pools:
            self._pools[key] = httpcore.AsyncConnectionPool(
                ssl_context=self._trusted_authorities,
                proxy=None if proxy is None else _parse_proxy(proxy),
                max_connections=self._limits.requests,
                max_keepalive_connections=MAX_IDLE,
                keepalive_expiry=self._limits.pool_seconds,
                network_backend=AsyncioBackend(
                    self._lookups, is_public_only=is_public_only and can_be_limited
                ),
            )
        return self._pools[key]


def _trusted_authorities() -> ssl.SSLContext:
    """Return the authorities whose certificates are trusted.

    They are those in `SSL_CERT_FILE` or `SSL_CERT_DIR`, as in other programs, else those of certifi.
    """
    file, folder = os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")
    if folder and not file:
        return ssl.create_default_context(capath=folder)
    return ssl.create_default_context(cafile=file or certifi.where())


def _parse_proxy(url: str) -> httpcore.Proxy:
    """Return the proxy for httpcore from its URL, which may have a login and lack a scheme.

    Raises `ProxyRefused` if it is no usable URL of an http or https proxy: httpcore fails with others, such
    as those of SOCKS, and those with a host that is not ASCII.
    """
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        without_login = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
        is_usable = (
            parts.scheme in ("http", "https")
            and bool(parts.hostname)
            and parts.port != 0
            and without_login.isascii()
        )
    except ValueError:
        is_usable = False
    if not is_usable:
        raise ProxyRefused(error_responses.UNREACHABLE, cause=UNUSABLE_PROXY)
    # As bytes: httpcore takes no other text than ASCII.
    login = (
        (unquote_to_bytes(parts.username), unquote_to_bytes(parts.password or "")) if parts.username else None
    )
    return httpcore.Proxy(without_login, auth=login)


def _with_framing(request: UpstreamRequest) -> list[Header]:
    """Return the headers of a request, with `transfer-encoding` added for a body of unknown length."""
    has_length = any(name.lower() == b"content-length" for name, _ in request.headers)
    chunked = [] if request.body is None or has_length else [(b"transfer-encoding", b"chunked")]
    return [*request.headers, *chunked]


def _parser_of(response: httpcore.Response) -> Any:
    """Return the h11 parser of a response's connection, which has the bytes after the response.

    The library has no public access to it. Return None if another version has it elsewhere; then no
    connection is used twice, and a test that counts connections fails.
    """
    layer: Any = response.stream
    for name in ("_stream", "_connection", "_h11_state"):
        layer = getattr(layer, name, None)
    return layer


async def _chunks(response: httpcore.Response) -> AsyncGenerator[bytes]:
    """Yield the body of a response as it arrives. Raises `AnswerCut` if it breaks off."""
    try:
        async with aclosing(cast("AsyncGenerator[bytes]", response.aiter_stream())) as stream:
            async for chunk in stream:
                yield chunk
    except _FAULTS as error:
        raise AnswerCut(type(error).__name__) from None


def _cause(error: Exception) -> str:
    """Return the error's name, for the log, and the text of a failed connection.

    The texts of other errors are left out, because they may quote a request.
    """
    name = type(error).__name__
    return f"{name}: {error}" if isinstance(error, httpcore.ConnectError) else name


def _refusal_for(error: Exception) -> ProxyRefusal:
    """Return the refusal to send to the container for an error of the connection or the service."""
    match error:
        case httpcore.ConnectError() | httpcore.ConnectTimeout() | httpcore.ProxyError():
            return error_responses.UNREACHABLE
        case httpcore.TimeoutException():
            return error_responses.SILENT
        case _:
            return error_responses.BROKEN
