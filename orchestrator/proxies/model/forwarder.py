"""Pass one request on and its answer back, as they come, for as long as the container listens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from orchestrator.proxies.model import error_responses
from orchestrator.proxies.model import headers as rules
from orchestrator.proxies.model.client import ClientSide
from orchestrator.proxies.model.credentials import Credential
from orchestrator.proxies.model.error_responses import NOT_AGAIN, AnswerCut, ProxyRefused
from orchestrator.proxies.model.exchange import RunIdentity
from orchestrator.proxies.model.limits import BodyBytes, ModelProxyLimits
from orchestrator.proxies.model.token_usage import UsageParser
from orchestrator.proxies.model.upstream_client import UpstreamRequest, UpstreamResponse
from orchestrator.proxies.parsing_process import ParsingProcess


class LeakCheck:
    """Notices a secret in a stream of chunks, also one cut across them, before its last byte passes."""

    def __init__(self, secret: str) -> None:
        self._secret = secret.encode()
        self._tail = b""

    def quotes_secret(self, chunk: bytes) -> bool:
        """Tell whether `chunk` completes the secret. Call once a chunk, in order."""
        seen = self._tail + chunk
        self._tail = seen[-(len(self._secret) - 1) :] if len(self._secret) > 1 else b""
        return self._secret in seen


MAX_ERROR_BYTES = 64 * 1024
"""Of an answer that is an error, so much is looked at before it is passed on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamTarget:
    """The service that a request goes to, and the credential that the host adds."""

    credential: Credential
    base_url: str


async def upstream_request(
    path: str,
    client: ClientSide,
    identity: RunIdentity,
    target: UpstreamTarget,
    *,
    limits: ModelProxyLimits,
    held: BodyBytes,
    parsing: ParsingProcess,
) -> UpstreamRequest:
    """Make the upstream's request of the container's.

    Raises `ProxyRefused` when a GET brings a body, and when a POST asks for what its group may not.
    """
    body = await whole_body(client, limits.body_bytes, held) if _is_post(client) else None
    if body is None:
        await client.expect_no_body()
    else:
        await parsing.check_model_request(
            identity.folder, body, may_search=identity.may_search, is_open=identity.is_open
        )
    query = f"?{client.query.decode('ascii')}" if client.query else ""
    return UpstreamRequest(
        method=client.method,
        url=f"{target.base_url}{path}{query}",
        headers=rules.request_headers(client.headers, target.credential),
        body=None if body is None else once(body, held),
    )


def _is_post(client: ClientSide) -> bool:
    return client.method == "POST"


async def whole_body(client: ClientSide, limit: int, held: BodyBytes) -> bytes:
    """Return the body of a request, whose bytes are counted as they come. Raises `ProxyRefused`."""
    chunks = []
    async for chunk in client.body(limit):
        held.add(len(chunk))
        chunks.append(chunk)
    return b"".join(chunks)


async def once(body: bytes, held: BodyBytes | None = None) -> AsyncIterator[bytes]:
    """Yield a body in one piece, and give its bytes back once it has gone up."""
    yield body
    if held is not None:
        held.release()


async def opening(answer: UpstreamResponse, limits: ModelProxyLimits) -> bytes:
    """Wait for the body of `answer` to begin, and take that off it; of an error, which is short, all.

    Raises:
        Refused: it does not begin, or breaks off before it has.
    """
    taken = bytearray()
    try:
        async with asyncio.timeout(limits.first_byte_seconds):
            async for chunk in answer.chunks:
                taken += chunk
                if answer.status < 400 or len(taken) >= MAX_ERROR_BYTES:
                    break
    except TimeoutError:
        raise ProxyRefused(error_responses.SILENT, cause="silent: no byte of its answer") from None
    except AnswerCut as error:
        raise ProxyRefused(error_responses.BROKEN, cause=f"broke off: {error}") from None
    return bytes(taken)


async def pass_back(
    answer: UpstreamResponse,
    client: ClientSide,
    credential: Credential,
    *,
    begun: bytes,
    may_try_again: bool,
    parser: UsageParser,
    on_quote: Callable[[int], None],
) -> None:
    """Send `answer`, whose body has `begun` with that, to the client.

    Raises `AnswerCut` when it breaks off, or would quote the credential.
    """
    parser.begin(answer.status, answer.headers)
    guard = LeakCheck(credential.secret)
    passed = rules.response_headers(answer.headers, credential)
    if not may_try_again:
        passed = [*(one for one in passed if one[0] != NOT_AGAIN[0][0]), *NOT_AGAIN]
    await client.begin(answer.status, passed)

    async def pass_on(chunk: bytes) -> None:
        parser.feed(chunk)  # before it is written: who hangs up now has had it all the same
        if guard.quotes_secret(chunk):
            on_quote(answer.status)
            raise AnswerCut
        await client.write(chunk)

    async with aclosing(answer.chunks) as chunks:
        if begun:
            await pass_on(begun)
        async for chunk in chunks:
            await pass_on(chunk)
    await client.end()


async def while_connected(client: ClientSide, work: Coroutine[Any, Any, None], *, name: str) -> None:
    """Do `work`, and cancel it the moment the client hangs up. Raises what either raises, bare."""
    try:
        async with asyncio.TaskGroup() as group:
            watch = group.create_task(client.until_gone(), name=name)
            await work
            watch.cancel()
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
