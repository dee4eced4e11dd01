"""Pass one request on and its answer back, as they come, for as long as the container listens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from orchestrator.domain.model_services import ModelService
from orchestrator.proxies.model import error_responses
from orchestrator.proxies.model import headers as rules
from orchestrator.proxies.model.client import ClientSide
from orchestrator.proxies.model.credentials import Credential
from orchestrator.proxies.model.error_responses import NOT_AGAIN, AnswerCut, ProxyRefused
from orchestrator.proxies.model.exchange import RunIdentity
from orchestrator.proxies.model.headers import Header
from orchestrator.proxies.model.limits import BodyBytes, ModelProxyLimits, moving_seconds_of
from orchestrator.proxies.model.request_policy import RequestFacts
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
        return bool(self._secret) and self._secret in seen


MAX_ERROR_BYTES = 64 * 1024
"""Bytes of an error answer that are read and judged before it is passed on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamTarget:
    """The service that a request goes to, and the credential that the host adds."""

    credential: Credential
    base_url: str
    is_public_only: bool = False
    """Whether its name may lead to addresses of the internet alone: the owner wrote no other."""
    service: ModelService | None = None
    """The service by its name; None: the one of `.env`."""

    @property
    def is_plain(self) -> bool:
        """Whether it reads what all services of the Messages API do, and not all that Anthropic's does."""
        return self.service is not None and self.service.kind != "anthropic"


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
    facts = RequestFacts()
    received = client.headers
    if body is None:
        await client.expect_no_body()
    elif target.is_plain and target.service is not None:
        facts, body = await parsing.adapt_model_request(
            identity.folder,
            body,
            model=identity.model or target.service.model,
            abilities=[ability.value for ability in target.service.abilities],
            may_search=identity.may_search,
            is_open=identity.is_open,
        )
        received = _with_length(_without_betas(received), len(body))
    else:
        facts = await parsing.check_model_request(
            identity.folder,
            body,
            may_search=identity.may_search,
            is_open=identity.is_open,
            features=identity.model_features,
        )
    query = f"?{client.query.decode('ascii')}" if client.query and not target.is_plain else ""
    return UpstreamRequest(
        method=client.method,
        url=f"{target.base_url}{path}{query}",
        headers=rules.request_headers(received, target.credential, features=identity.model_features),
        body=None if body is None else once(body, held),
        first_byte_seconds=_first_byte_seconds(identity, target, facts, limits),
        facts=facts,
        is_public_only=target.is_public_only,
    )


def _first_byte_seconds(
    identity: RunIdentity, target: UpstreamTarget, facts: RequestFacts, limits: ModelProxyLimits
) -> float:
    """Return how long an answer may take to begin: less where another service would go on with the turn."""
    usual = limits.first_byte_of(target.base_url)
    if target.service is not None and target.service.first_byte_seconds is not None:
        usual = float(target.service.first_byte_seconds)
    if identity.may_move and facts.is_streamed:
        return moving_seconds_of(limits, target.service, target.base_url)
    return usual


def _without_betas(received: Sequence[Header]) -> list[Header]:
    return [one for one in received if one[0].lower() != b"anthropic-beta"]


def _with_length(received: Sequence[Header], length: int) -> list[Header]:
    """Return the headers of a body that was written anew."""
    kept = [one for one in received if one[0].lower() != b"content-length"]
    return [*kept, (b"content-length", str(length).encode())]


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


async def opening(answer: UpstreamResponse, *, first_byte_seconds: float) -> bytes:
    """Wait for the body of `answer` to begin, and take that off it; of an error, which is short, all.

    Raises:
        Refused: it does not begin, or breaks off before it has.
    """
    taken = bytearray()
    try:
        async with asyncio.timeout(first_byte_seconds):
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
    event_seconds: float | None = None,
) -> None:
    """Send `answer`, whose body has `begun` with that, to the client.

    `event_seconds` bounds how long a stream may bring no whole event.

    Raises `AnswerCut` when it breaks off, comes to a stop, or would quote the credential.
    """
    parser.begin(answer.status, answer.headers)
    guard = LeakCheck(credential.secret)
    if client.is_early and not _is_event_stream(answer):
        if guard.quotes_secret(begun):
            on_quote(answer.status)
            raise AnswerCut
        await client.refuse(error_responses.of_service(answer.status, begun))
        return
    if not client.is_early:
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
        async for chunk in in_events(chunks, begun, event_seconds):
            await pass_on(chunk)
    if event_seconds is not None and _is_event_stream(answer) and not parser.is_whole:
        raise AnswerCut("its stream has no end")
    await client.end()


async def in_events(
    chunks: AsyncIterator[bytes], begun: bytes, seconds: float | None
) -> AsyncIterator[bytes]:
    """Yield chunks as they come, for as long as they make a whole event every so many seconds.

    Raises `AnswerCut` when they do not: a byte a second is no answer.
    """
    if seconds is None:
        async for chunk in chunks:
            yield chunk
        return
    loop = asyncio.get_running_loop()
    deadline, tail = loop.time() + seconds, begun[-3:]
    while True:
        try:
            async with asyncio.timeout_at(deadline):
                chunk = await anext(chunks)
        except StopAsyncIteration:
            return
        except TimeoutError:
            raise AnswerCut("it came to a stop") from None
        seen, tail = tail + chunk, (tail + chunk)[-3:]
        if b"\n\n" in seen or b"\n\r\n" in seen:
            deadline = loop.time() + seconds
        yield chunk


def _is_event_stream(answer: UpstreamResponse) -> bool:
    """Return whether the body of an answer can follow the pings of a stream that has begun."""
    found = {name.lower(): value.strip().lower() for name, value in answer.headers}
    is_plain = found.get(b"content-encoding", b"identity") == b"identity"
    is_stream = found.get(b"content-type", b"").startswith(b"text/event-stream")
    return answer.status == 200 and is_plain and is_stream


async def while_connected(client: ClientSide, work: Coroutine[Any, Any, None], *, name: str) -> None:
    """Do `work`, and cancel it the moment the client hangs up. Raises what either raises, bare."""
    async with beside(client.until_gone(), name=name):
        await work


@asynccontextmanager
async def beside(watch: Coroutine[Any, Any, None], *, name: str) -> AsyncIterator[None]:
    """Run `watch` while the block runs, and cancel it after. Raises what either raises, bare."""
    try:
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(watch, name=name)
            yield
            watching.cancel()
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None


async def keep_waiting(client: ClientSide, limits: ModelProxyLimits, *, is_streamed: bool) -> None:
    """Keep a client connected whose answer takes long to begin, for as long as this runs.

    Only a stream can: it begins at once, with pings as the service itself sends them.
    """
    if not is_streamed:
        return
    await client.begin_stream()
    while True:
        await client.ping()
        await asyncio.sleep(limits.ping_seconds)
