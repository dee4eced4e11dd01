"""Pass one request on and its answer back, piece by piece, for as long as the container listens."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from orchestrator.domain.model_services import ModelService
from orchestrator.proxies.model import error_responses
from orchestrator.proxies.model import headers as rules
from orchestrator.proxies.model.client import ClientSide
from orchestrator.proxies.model.credentials import Credential, is_ordinary
from orchestrator.proxies.model.error_responses import NOT_AGAIN, AnswerCut, ProxyRefused
from orchestrator.proxies.model.exchange import RunIdentity
from orchestrator.proxies.model.headers import Header
from orchestrator.proxies.model.limits import (
    UPLOAD_BYTES_A_SECOND,
    BodyBytes,
    ModelProxyLimits,
    seconds_before_moving,
)
from orchestrator.proxies.model.request_policy import RequestFacts
from orchestrator.proxies.model.token_usage import UsageParser
from orchestrator.proxies.model.upstream_client import UpstreamClient, UpstreamRequest, UpstreamResponse
from orchestrator.proxies.parsing_process import ParsingProcess


class LeakCheck:
    """Finds a secret in a stream of chunks, also if one chunk has its start and the next its end."""

    def __init__(self, secret: str) -> None:
        """A secret that is an ordinary word is never found."""
        # A key that is a plain word, as local services accept, would cut each answer that contains the word.
        self._secret = b"" if is_ordinary(secret) else secret.encode()
        self._tail = b""
        """The last bytes of the stream so far: one fewer than the secret has."""

    def quotes_secret(self, chunk: bytes) -> bool:
        """Return whether `chunk` has the secret, or the end of one that began in earlier chunks.

        Call it once for each chunk, in order.
        """
        text = self._tail + chunk
        self._tail = text[-(len(self._secret) - 1) :] if len(self._secret) > 1 else b""
        return bool(self._secret) and self._secret in text


MAX_ERROR_BYTES = 64 * 1024
"""Bytes of an error answer that are read and judged before it is passed on."""
MAX_FIRST_EVENT_BYTES = 64 * 1024
"""Bytes in which a stream must bring an event."""
MAX_HEAD_BYTES = 256
"""Bytes of an event that contain its name."""
MAX_JUDGED_BYTES = 4 * 1024 * 1024
"""Most bytes that are read and judged of an answer that is no stream, before the answer is passed on. A
model's longest answer has an eighth of these.
"""
_ERROR_EVENT = re.compile(rb'^(?:event: ?error\s|data: ?\{\s*"type": ?"error")', re.MULTILINE)
_FIRST_EVENT = re.compile(rb"^data:.*?\n\r?\n", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamTarget:
    """The service that a request goes to, and the credential that the host adds."""

    credential: Credential
    base_url: str
    is_public_only: bool = False
    """Whether its host name may only lead to addresses of the internet, as the owner named no private one."""
    service: ModelService | None = None
    """The service that the owner added; None for the one of `.env`."""

    @property
    def has_all_features(self) -> bool:
        """Whether it counts as having all features of Anthropic's service, not only the common ones."""
        return self.service is None or self.service.kind == "anthropic"


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
    """Read a container's request, check it, and build the request that is sent to the model service.

    For a service other than Anthropic's, the body is rewritten to what the service can read.

    Args:
        path: the path of the request, without the query.
        client: the container's request.
        identity: the run that sent it.
        target: the service to which it goes, with the credential.
        limits: bound the body and the time.
        held: counts the bytes of the body in memory.
        parsing: parses the body in a process of its own.

    Raises:
        ProxyRefused: a GET has a body, or a POST is malformed or requests what its group may not.
    """
    body = await whole_body(client, limits.body_bytes, held) if _is_post(client) else None
    facts = RequestFacts()
    received = client.headers
    if body is None:
        await client.expect_no_body()
    elif target.service is not None and not target.has_all_features:
        facts, body = await parsing.adapt_model_request(
            identity.folder,
            body,
            model=identity.model or target.service.model,
            abilities=[ability.value for ability in target.service.abilities],
            may_search=identity.may_search,
            is_open=identity.is_open,
        )
        # Betas are Anthropic's own, and the body has another length now.
        received = _with_length(_without_betas(received), len(body))
    else:
        facts = await parsing.check_model_request(
            identity.folder,
            body,
            may_search=identity.may_search,
            is_open=identity.is_open,
            features=identity.model_features,
        )
    first_byte_seconds = _first_byte_seconds(identity, target, facts, limits)
    upload_seconds = len(body or b"") / UPLOAD_BYTES_A_SECOND
    # The CLI adds `?beta=true`, which means something only to Anthropic's service.
    query = f"?{client.query.decode('ascii')}" if client.query and target.has_all_features else ""
    return UpstreamRequest(
        method=client.method,
        url=f"{target.base_url}{path}{query}",
        headers=rules.request_headers(received, target.credential, features=identity.model_features),
        body=None if body is None else one_piece(body, held),
        first_byte_seconds=first_byte_seconds,
        # If the turn would leave for another service, one bound for the whole wait: those of connection,
        # upload and first byte would add up.
        within_seconds=first_byte_seconds + upload_seconds if _turn_may_leave(identity, facts) else None,
        facts=facts,
        is_public_only=target.is_public_only,
    )


def _first_byte_seconds(
    identity: RunIdentity, target: UpstreamTarget, facts: RequestFacts, limits: ModelProxyLimits
) -> float:
    """Return how many seconds an answer may take to start: less if another service could continue the turn.

    The owner may have set the time for a service.
    """
    seconds_without_other = limits.first_byte_of(target.base_url)
    if target.service is not None and target.service.first_byte_seconds is not None:
        seconds_without_other = float(target.service.first_byte_seconds)
    return (
        seconds_before_moving(limits, target.service, target.base_url)
        if _turn_may_leave(identity, facts)
        else seconds_without_other
    )


def _turn_may_leave(identity: RunIdentity, facts: RequestFacts) -> bool:
    """Return whether a turn would leave a service that does not answer this request in time.

    Only a streamed answer is known to start soon.
    """
    return identity.other_service_answers and facts.is_streamed


def _without_betas(received: Sequence[Header]) -> list[Header]:
    """Return the headers without `anthropic-beta`, which requests features of Anthropic's own service."""
    return [header for header in received if header[0].lower() != b"anthropic-beta"]


def _with_length(received: Sequence[Header], length: int) -> list[Header]:
    """Return the headers with `content-length` replaced by a new length in bytes."""
    others = [header for header in received if header[0].lower() != b"content-length"]
    return [*others, (b"content-length", str(length).encode())]


def _is_post(client: ClientSide) -> bool:
    """Return whether a request is a POST: only those have a body."""
    return client.method == "POST"


async def whole_body(client: ClientSide, limit: int, held: BodyBytes) -> bytes:
    """Read the body of a request and return it; `held` counts its bytes in memory as they come.

    Raises:
        ProxyRefused: the body is longer than `limit` bytes, comes too slowly, or there is no memory for it.
        ClientGone: the container has closed the connection.
    """
    chunks = []
    async for chunk in client.body(limit):
        held.add(len(chunk))
        chunks.append(chunk)
    return b"".join(chunks)


async def one_piece(body: bytes, held: BodyBytes | None = None) -> AsyncIterator[bytes]:
    """Yield a body in one piece, and afterwards release the bytes that `held` counts, if any.

    The HTTP client continues the iteration once it has sent the piece.
    """
    yield body
    if held is not None:
        held.release()


async def read_opening(answer: UpstreamResponse, *, first_byte_seconds: float) -> bytes:
    """Read and return the beginning of an answer's body, as much as is needed to judge the answer.

    That is a stream's first event with data, all of an error, and all of any other body. For an encoded body,
    which nobody requested, it is the first bytes.

    Raises:
        ProxyRefused: the beginning of a stream, an error, or the first byte of another body did not come
            within `first_byte_seconds`; or the answer broke off.
    """
    received = bytearray()
    try:
        async with asyncio.timeout(first_byte_seconds) as deadline:
            async for chunk in answer.chunks:
                received += chunk
                if _can_be_judged(answer, received, chunk):
                    break
                if answer.status < 400 and not answer.is_event_stream:
                    # The HTTP client limits each wait for more of an answer that has started.
                    deadline.reschedule(None)
    except TimeoutError:
        raise ProxyRefused(error_responses.SILENT, cause="silent: no byte of its answer") from None
    except AnswerCut as error:
        raise ProxyRefused(error_responses.BROKEN, cause=f"broke off: {error}") from None
    return bytes(received)


def _can_be_judged(answer: UpstreamResponse, received: bytes | bytearray, chunk: bytes) -> bool:
    """Return whether the part of an answer read so far is enough to judge it.

    `received` is that part, and `chunk` the piece that was added last. An error is judged by its whole body,
    and so is a successful answer that is no stream: for these, only a limit of bytes gives True. Always True
    for a successful answer in an encoding, which cannot be read.
    """
    if answer.status >= 400:
        return len(received) >= MAX_ERROR_BYTES
    if not answer.is_plain:
        return True
    if answer.is_event_stream:
        # Only a line break can complete an event, so other chunks need no search.
        has_event = b"\n" in chunk and _FIRST_EVENT.search(received) is not None
        return has_event or len(received) >= MAX_FIRST_EVENT_BYTES
    return len(received) >= MAX_JUDGED_BYTES


async def pass_back(
    answer: UpstreamResponse,
    client: ClientSide,
    credential: Credential,
    *,
    beginning: bytes,
    may_try_again: bool,
    parser: UsageParser,
    on_quote: Callable[[int], None],
    event_seconds: float | None = None,
    ping_seconds: float = 0,
    on_chunk: Callable[[], None],
) -> None:
    """Send a service's answer to the client, piece by piece.

    If a stream was started for the client early, an answer that is no stream becomes an event with an error.

    Args:
        answer: the service's answer.
        client: the container's side.
        credential: the one that was sent, which must not reach the container.
        beginning: the part of the answer's body that was read already.
        may_try_again: whether the client may send the same request again.
        parser: reads the usage from the answer.
        on_quote: called with the answer's status if the answer quotes the credential.
        event_seconds: limits how long a stream may bring no whole event; None for no limit.
        ping_seconds: limits, if `event_seconds` is set, how long a stream may bring nothing but pings.
        on_chunk: called for each piece of the body.

    Raises:
        AnswerCut: the answer breaks off, comes to a stop, or would quote the credential; or a stream that
            `event_seconds` limits has no proper end.
    """
    parser.begin(answer.status, answer.headers)
    leak_check = LeakCheck(credential.secret)
    # The head of a stream has been sent, so an error can only follow as an event.
    if client.has_early_stream and not answer.is_event_stream:
        if leak_check.quotes_secret(beginning):
            on_quote(answer.status)
            raise AnswerCut
        await client.refuse(error_responses.service_error(answer.status, beginning))
        return
    if not client.has_early_stream:
        headers = rules.response_headers(answer.headers, credential)
        if not may_try_again:
            # The service's own `x-should-retry` would contradict it.
            replaced_names = {name for name, _ in NOT_AGAIN}
            headers = [*(header for header in headers if header[0] not in replaced_names), *NOT_AGAIN]
        await client.begin(answer.status, headers)

    async def pass_on(chunk: bytes) -> None:
        """Send a piece of the body.

        Raises `AnswerCut` before sending it if the answer would then quote the host's credential.
        """
        # Counted before it is written: the usage has cost something even if the client disconnects now.
        parser.feed(chunk)
        if leak_check.quotes_secret(chunk):
            on_quote(answer.status)
            raise AnswerCut
        await client.write(chunk)

    async with aclosing(answer.chunks) as chunks:
        async for chunk in paced_events(chunks, beginning, event_seconds, ping_seconds):
            on_chunk()
            await pass_on(chunk)
    if event_seconds is not None and answer.is_event_stream and not parser.is_whole:
        raise AnswerCut("its stream has no end")
    await client.end()


class EventPace:
    """Limits how long a stream may bring no event or comment at all, and how long it may bring only
    comments and pings.
    """

    def __init__(self, seconds: float, ping_seconds: float, now_seconds: float) -> None:
        """Start both limits at `now_seconds`, the present time in the event loop's seconds.

        `seconds` limit the wait for any event or comment, `ping_seconds` that for an event that is no ping.
        If `ping_seconds` are fewer than `seconds`, `seconds` count for both.
        """
        self._seconds = seconds
        self._progress_seconds = max(seconds, ping_seconds)
        self._block = b""
        """The beginning of the event that is not complete yet, shortened."""
        self.deadline = now_seconds + seconds
        """The time by which the next event must have come."""
        self._progress_deadline = now_seconds + self._progress_seconds
        """The time by which the next event that is no ping must have come."""

    def postpone(self, seconds: float) -> None:
        """Extend both limits by `seconds` in which nobody waited for the stream."""
        self.deadline += seconds
        self._progress_deadline += seconds

    def feed(self, chunk: bytes, now_seconds: float) -> None:
        """Process the next bytes of the stream, and extend `deadline` if they complete an event or comment.

        Comments and pings extend it only up to the time by which another event must have come. `now_seconds`
        is the present time in the event loop's seconds.

        Raises `AnswerCut` for an event that is an error, because nothing follows it.
        """
        *events, unfinished = (self._block + chunk.replace(b"\r", b"")).split(b"\n\n")
        # The head of an event contains its name. The last byte is stored, too, because it may be the first of
        # the two line breaks that end the event.
        is_short = len(unfinished) <= MAX_HEAD_BYTES
        self._block = unfinished if is_short else unfinished[:MAX_HEAD_BYTES] + unfinished[-1:]
        heads = [event[:MAX_HEAD_BYTES] for event in events if event.strip()]
        if any(_ERROR_EVENT.search(head) for head in heads):
            raise AnswerCut("its stream ends with an error")
        # A comment has a head, too, but no `data:`.
        if any(b"data:" in head and b'"ping"' not in head for head in heads):
            self._progress_deadline = now_seconds + self._progress_seconds
        if heads:
            self.deadline = min(now_seconds + self._seconds, self._progress_deadline)


async def paced_events(
    chunks: AsyncIterator[bytes], beginning: bytes, seconds: float | None, ping_seconds: float
) -> AsyncIterator[bytes]:
    """Yield the bytes in `beginning` and then those of `chunks`, as long as they complete events in time.

    `seconds` limit the wait for any event, and `ping_seconds` the wait for one that is no ping. The time in
    which the caller handles a piece does not count. If `seconds` is None, there is no limit.

    Raises `AnswerCut` when an event is late, even if single bytes still come.
    """
    if seconds is None:
        if beginning:
            yield beginning
        async for chunk in chunks:
            yield chunk
        return
    now = asyncio.get_running_loop().time
    pace = EventPace(seconds, ping_seconds, now())
    chunk = beginning
    while True:
        pace.feed(chunk, now())
        yielded_at = now()
        yield chunk
        pace.postpone(now() - yielded_at)
        try:
            async with asyncio.timeout_at(pace.deadline):
                chunk = await anext(chunks)
        except StopAsyncIteration:
            return
        except TimeoutError:
            raise AnswerCut("it came to a stop") from None


async def read_to_its_end(answer: UpstreamResponse, beginning: bytes) -> None:
    """Read the rest of an answer whose first bytes are `beginning`, to check that it comes to its end.

    Raises `AnswerCut` if the answer breaks off, or if it is a stream without its last event.
    """
    parser = UsageParser()  # for the end of a stream alone
    parser.begin(answer.status, answer.headers)
    parser.feed(beginning)
    async for chunk in answer.chunks:
        parser.feed(chunk)
    if answer.is_event_stream and not parser.is_whole:
        raise AnswerCut("its stream has no end")


class ServiceWatch:
    """Watches one of the owner's own services while it works on a request, to notice if it hangs."""

    def __init__(self, upstream: UpstreamClient, target: UpstreamTarget, limits: ModelProxyLimits) -> None:
        """`upstream` sends the small requests that check the service `target`.

        `limits` say how often, and how long each answer may take.
        """
        self._upstream = upstream
        self._request = UpstreamRequest(
            method="GET",
            url=f"{target.base_url}/",
            headers=[(b"accept", b"*/*"), (b"user-agent", b"andy")],
            body=None,
            first_byte_seconds=limits.life_seconds,
        )
        self._limits = limits
        self.is_near = target.service is not None and target.service.is_near
        """Whether it is one of the owner's own services; only those are watched."""
        self.has_started = False
        """Whether the service's answer has started."""
        self._is_flowing = False
        """Whether a piece of the service's answer has come since the last check began."""

    def note_chunk(self) -> None:
        """Note that a piece of the service's answer has come, which shows that the service works.

        A server with a single thread gives no other sign while it answers.
        """
        self._is_flowing = True

    async def watch(self) -> None:
        """Check again and again that the service answers a small request; any answer counts.

        A piece of its answer to the request that it works on counts, too (`note_chunk`). It never returns,
        but ends by an error or when it is cancelled.

        Raises:
            ProxyRefused: the service failed two checks in a row, before its answer was passed on.
            AnswerCut: the service failed two checks in a row, in the middle of its answer.
        """
        misses = 0
        while misses < 2:
            # After a failed check the next one follows at once, so that the host soon gives up a service that
            # hangs.
            if misses == 0:
                await asyncio.sleep(self._limits.life_after_seconds)
            self._is_flowing = False
            misses = 0 if await self._service_answers() or self._is_flowing else misses + 1
        if self.has_started:
            raise AnswerCut("its service gave no sign of life")
        raise ProxyRefused(error_responses.SILENT, cause="silent: its service gave no sign of life")

    async def _service_answers(self) -> bool:
        """Return whether the service answers a small request in time."""
        try:
            async with asyncio.timeout(self._limits.life_seconds), self._upstream.send(self._request):
                return True
        except (ProxyRefused, TimeoutError):
            return False


async def run_while_connected(client: ClientSide, work: Coroutine[Any, Any, None], *, name: str) -> None:
    """Run `work` to its end, but cancel it the moment the client disconnects.

    `name` is for the task that watches the client. Exceptions of `work` are raised as they are, and
    `ClientGone` if the client has disconnected.
    """
    async with run_beside(client.until_gone(), name=name):
        await work


@asynccontextmanager
async def run_beside(watch: Coroutine[Any, Any, None], *, name: str) -> AsyncIterator[None]:
    """Run `watch` in a task with this name while the block runs, and cancel it when the block ends.

    If either raises, the other is cancelled, and the exception is raised as it is, not in a group.
    """
    try:
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(watch, name=name)
            yield
            watching.cancel()
    except BaseExceptionGroup as errors:
        # Callers match on the exceptions themselves (`ClientGone`, `AnswerCut`), not on groups of them.
        raise errors.exceptions[0] from None


async def send_pings(client: ClientSide, limits: ModelProxyLimits, *, is_streamed: bool) -> None:
    """Send pings to a client whose answer takes long to start, so that it stays connected, until cancelled.

    That is possible only if the client requested a stream (`is_streamed`): it is started, and the first ping
    is sent at once. For any other request nothing is done.
    """
    if not is_streamed:
        return
    await client.begin_stream()
    while True:
        await client.ping()
        await asyncio.sleep(limits.ping_seconds)
