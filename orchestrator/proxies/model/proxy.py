"""The credential proxy: containers use it as their model service, and it adds the real credential.

container --run token--> proxy --real credential--> Messages API; the answer is passed on as it comes.
A request is read whole first, and judged by what it asks of the service.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Self

from starlette.types import Receive, Scope, Send

from orchestrator.base.clock import SystemClock
from orchestrator.base.rate_limits import CallerPace
from orchestrator.domain.errors import SettingError
from orchestrator.domain.failures import ModelError
from orchestrator.domain.model_services import Ability, ModelService
from orchestrator.proxies.mcp_gateway import METHODS, PREFIX, McpGateway
from orchestrator.proxies.model import error_responses
from orchestrator.proxies.model import headers as rules
from orchestrator.proxies.model.client import ClientGone, ClientSide
from orchestrator.proxies.model.credentials import CredentialSource
from orchestrator.proxies.model.error_responses import NOT_AGAIN, AnswerCut, ProxyRefusal, ProxyRefused
from orchestrator.proxies.model.exchange import (
    Admit,
    Answered,
    ExchangeEnd,
    ExchangeLog,
    Identify,
    Judge,
    OnDenial,
    OnExchange,
    ProxyExchange,
    RunIdentity,
    classify,
)
from orchestrator.proxies.model.limits import (
    BodyBytes,
    HeldBytes,
    ModelProxyLimits,
    RequestSlots,
    SearchCounts,
    TurnCounts,
    seconds_before_moving,
)
from orchestrator.proxies.model.token_usage import BYTES_A_TOKEN, UsageParser
from orchestrator.proxies.parsing_process import ParsingProcess
from orchestrator.proxies.run_tokens import TokenBinding, token_hash

if TYPE_CHECKING:
    from orchestrator.proxies.model.forwarder import UpstreamTarget
    from orchestrator.proxies.model.upstream_client import UpstreamClient, UpstreamRequest, UpstreamResponse


CHEAP_MODEL = "claude-haiku-4-5"
"""The model for requests that any model can answer."""


class CredentialProxy:
    """Serves the Messages API to containers as the ASGI app `app`.

    As a context manager, it closes its connections at the end.
    """

    def __init__(
        self,
        source: CredentialSource,
        identify: Identify,
        *,
        limits: ModelProxyLimits | None = None,
        on_exchange: OnExchange | None = None,
        on_denial: OnDenial | None = None,
        admit: Admit | None = None,
        searches: SearchCounts | None = None,
        judge: Judge | None = None,
        mcp: McpGateway | None = None,
        parsing: ParsingProcess | None = None,
    ) -> None:
        """Build the proxy, which opens no connection yet.

        Args:
            source: returns the credentials of the model services.
            identify: returns the run of a token, by the token's hash.
            limits: bound the requests; the default has its own values.
            on_exchange: called after each exchange.
            on_denial: called for refusals that the audit is to have.
            admit: admits a request that costs tokens, or raises `ProxyRefused`; without it, all are admitted.
            searches: limits the web searches of a turn; without it, they are not limited.
            judge: called with each answer of a service, and says whether the container may try again.
            mcp: passes requests on to MCP servers; without it, none can be reached.
            parsing: parses bodies; by default in a process of its own.
        """
        self._source = source
        self._identify = identify
        self._limits = limits or ModelProxyLimits()
        self._on_exchange = on_exchange
        self._on_denial = on_denial
        self._admit = admit
        self._searches = searches
        self._judge = judge
        self._mcp = mcp
        self._slots = RequestSlots(a_group=self._limits.requests_a_group, overall=self._limits.requests)
        self._held_bytes = HeldBytes(
            a_group=self._limits.held_bytes_a_group,
            overall=self._limits.held_bytes,
            reserved=self._limits.reserved_bytes,
        )
        self._requests = TurnCounts()
        self._parsing = parsing or ParsingProcess(clock=SystemClock())
        self._token_binding = TokenBinding()
        self.refusals: Counter[int] = Counter()
        """Counts of refusals since the start, by status."""
        self._log = ExchangeLog()
        self._upstream: UpstreamClient | None = None
        self._opening = asyncio.Lock()
        """Held while `_upstream` is built."""
        self.app = ProxyRouter(self._serve, self._limits)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def upstream(self) -> UpstreamClient:
        """Return the HTTP client that sends requests to services, which is built at the first call."""
        if self._upstream is None:
            # Two first requests must not build two clients, of which one would never be closed.
            async with self._opening:
                if self._upstream is None:
                    self._upstream = await asyncio.to_thread(_open_upstream, self._limits)
        return self._upstream

    async def close(self) -> None:
        """Close all connections to services, and end the processes that parse bodies.

        Call when no request is served any more. May be called twice.
        """
        await self._parsing.aclose()
        if self._upstream is not None:
            upstream, self._upstream = self._upstream, None
            await upstream.close()

    async def probe(self, model: str | None, service: ModelService | None = None) -> Answered:
        """Send the host's own request for one word to a service, and return how it answers.

        The request costs about ten tokens. A `model` of None stands for the usual one of the service, and a
        `service` of None for the one of `.env`. A good answer is read to its end, and is an outage if it
        breaks off. No whole answer in time is an outage, too, but a service of the owner's own (`is_near`)
        that answers other requests meanwhile is only slow. To a service without a usable credential, nothing
        is sent.
        """
        # Imported at the first use, here and below: httpcore and its CA file take 30 ms of the host's start.
        from orchestrator.proxies.model import forwarder
        from orchestrator.proxies.model.request_policy import RequestFacts
        from orchestrator.proxies.model.upstream_client import UpstreamRequest

        upstream = await self.upstream()
        started = time.perf_counter()
        try:
            target = await self._upstream_target(service)
        except ProxyRefused as refused:
            return Answered(error=_credential_error(refused), status=None)
        is_streamed = service is None or Ability.STREAM in service.abilities
        usual_model = service.model if service is not None else None
        body = json.dumps(
            {
                "model": model or usual_model or CHEAP_MODEL,
                "max_tokens": 1,
                "messages": [{"role": "user", "content": "hello"}],
                "stream": is_streamed,
            }
        ).encode()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"anthropic-version", b"2023-06-01"),
            (b"user-agent", b"andy"),
        ]
        request = UpstreamRequest(
            method="POST",
            url=f"{target.base_url}{MESSAGES_PATH}",
            headers=rules.request_headers(headers, target.credential),
            body=forwarder.one_piece(body),
            facts=RequestFacts(is_streamed=is_streamed),
            is_public_only=target.is_public_only,
        )
        watch = forwarder.ServiceWatch(upstream, target, self._limits)
        seconds = self._limits.near_probe_seconds if watch.is_near else self._limits.probe_seconds
        try:
            async with (
                forwarder.run_beside(watch.watch() if watch.is_near else _do_nothing(), name="probe-life"),
                asyncio.timeout(seconds),
                upstream.send(replace(request, first_byte_seconds=seconds)) as answer,
            ):
                beginning = await forwarder.read_opening(answer, first_byte_seconds=seconds)
                answered = _judge_answer(answer, beginning, started, request)
                if answered.error is None:
                    # A service whose answer breaks off, or comes byte by byte, would not answer a turn
                    # either.
                    await forwarder.read_to_its_end(answer, beginning)
                return answered
        except TimeoutError:
            # A service of the owner's own that still responds to the checks of `watch` is busy with another
            # request.
            error = ModelError.SLOW if watch.is_near else ModelError.OUTAGE
            return Answered(error=error, status=None, duration_ms=_milliseconds_since(started))
        except (ProxyRefused, AnswerCut):
            return Answered(error=ModelError.OUTAGE, status=None, duration_ms=_milliseconds_since(started))

    async def _serve(self, path: str, client: ClientSide) -> None:
        """Check one request of a container, and answer it; `path` is one that the router serves.

        A refusal is counted and sent to the container. An error of the proxy itself is logged, and answered
        with 500 unless an answer has started.
        """
        identity: RunIdentity | None = None
        try:
            _check_head(client, self._limits)
            identity = await self._run_of(client)
            self._check_peer(identity, client)
            # Paced by run, not by address: with the process runtime all groups have the same address.
            client.caller = f"run {identity.run_id}"
            if await client.keep_pace():
                # The rights of the run can have changed during the pause.
                identity = await self._run_of(client)
            self._count_request(identity)
            with self._slots.hold(identity.folder), self._held_bytes.growing(identity.folder) as held:
                if path.startswith(PREFIX):
                    await self._pass_to_server(path.removeprefix(PREFIX), client, identity, held)
                    return
                _check_service(identity)
                if self._admit is not None and path == MESSAGES_PATH:
                    await self._admit(identity)
                target = await self._target_of_run(path, identity)
                await self._exchange(path, client, identity, target, held)
        except ProxyRefused as error:
            self._note_refusal(error.refusal, path, client, identity)
            await client.keep_pace()  # does nothing if it was called above
            await client.refuse(error.refusal)
        except Exception as error:  # noqa: BLE001 - uvicorn would log the values, which may be secrets
            self._log.log_failure(error, path)
            await client.keep_pace()
            if client.status is None:
                await client.refuse(error_responses.INTERNAL)

    def _count_request(self, identity: RunIdentity) -> None:
        """Count a request of a turn. Raises `ProxyRefused` if the turn has sent too many, of any kind."""
        max_requests = self._limits.requests_a_turn
        if self._requests.add(identity.run_id, identity.turn_id, 1) > max_requests:
            raise ProxyRefused(error_responses.ran_away(max_requests))

    async def _pass_to_server(
        self, name: str, client: ClientSide, identity: RunIdentity, held: BodyBytes
    ) -> None:
        """Pass a request on to the MCP server `name`, and its answer back, while the container is connected.

        `held` counts the bytes of the body in memory. An answer that breaks off leaves the container with a
        broken connection.

        Raises `ProxyRefused` if the request may not be sent, or the server refuses or is silent.
        """
        from orchestrator.proxies.model import forwarder

        if self._mcp is None:
            raise ProxyRefused(error_responses.NOT_FOUND)
        work = self._mcp.pass_on(name, client, identity, await self.upstream(), held)
        with suppress(ClientGone, AnswerCut):
            await forwarder.run_while_connected(client, work, name=f"mcp-client-{identity.run_id}")

    def _note_refusal(
        self, refusal: ProxyRefusal, path: str, client: ClientSide, identity: RunIdentity | None
    ) -> None:
        """Count and log a refusal, and report it for the audit unless it is one of many similar ones.

        `identity` is the run that sent the request; None if its token is not known.
        """
        self.refusals[refusal.status] += 1
        denial = self._log.log_refusal(refusal, path=path, peer=client.peer, identity=identity)
        if denial is not None and self._on_denial is not None:
            self._on_denial(identity, denial)

    async def _run_of(self, client: ClientSide) -> RunIdentity:
        """Return the run whose token a request has.

        Raises `ProxyRefused` (401) if there is no token, or it is unknown.
        """
        token = rules.run_token(client.headers)
        identity = await self._identify(token_hash(token)) if token else None
        if identity is None:
            raise ProxyRefused(error_responses.NOT_KNOWN)
        return identity

    def _check_peer(self, identity: RunIdentity, client: ClientSide) -> None:
        """Raise `ProxyRefused` (401) if a run's token was first shown by another container.

        The caller logs the refusal under the group that owns the token.
        """
        if not self._token_binding.owns(identity.run_id, client.peer):
            raise ProxyRefused(error_responses.OF_ANOTHER)

    async def _upstream_target(self, service: ModelService | None) -> UpstreamTarget:
        """Return a service with its credential; a `service` of None is the one of `.env`.

        Raises `ProxyRefused` (403) if the service has no usable credential.
        """
        read_target = partial(_read_target, self._source, service)
        try:
            # Without a thread if the file is unchanged: a thread delays each answer by half a millisecond.
            target = read_target() if self._source.is_fresh else await asyncio.to_thread(read_target)
        except SettingError as error:
            refusal = (
                error_responses.no_credential(str(error))
                if service is None
                else error_responses.no_service_key(service.name, str(error))
            )
            raise ProxyRefused(refusal) from error
        if target is None and service is not None:
            fix = f"Put {service.key_env}=… into .env."
            raise ProxyRefused(error_responses.no_service_key(service.name, fix))
        if target is None:
            raise ProxyRefused(error_responses.no_credential())
        return target

    async def _target_of_run(self, path: str, identity: RunIdentity) -> UpstreamTarget:
        """Return the service of a run with its credential.

        Before a turn starts, only the credential of the service of `.env` is checked. If a service that the
        owner added has no usable one for a model request, that counts as a refusal by the service (`_judge`).
        If it must not be tried again then, the turn moves to another service, provided that it may.

        Raises `ProxyRefused` if the service has no usable credential (403), or the turn moves to another.
        """
        try:
            return await self._upstream_target(identity.service)
        except ProxyRefused as error:
            if self._judge is not None and path == MESSAGES_PATH and identity.service is not None:
                answered = Answered(error=_credential_error(error), status=None)
                if not await self._judge(identity, answered) and identity.may_move:
                    raise ProxyRefused(error_responses.MOVED) from error
            raise

    async def _exchange(
        self,
        path: str,
        client: ClientSide,
        identity: RunIdentity,
        target: UpstreamTarget,
        held: BodyBytes,
    ) -> None:
        """Pass a container's request on to a service and the answer back; report the exchange at its end.

        The web searches that were reserved for the request are released then. `target` is the service with
        its credential, and `held` counts the bytes of the body in memory.
        """
        started = time.perf_counter()
        # This value stays if the exchange is cancelled in the middle, or fails.
        ending = ExchangeEnd.STOPPED
        parser = UsageParser()
        try:
            ending = await self._exchange_until_end(path, client, identity, target, parser, held)
        finally:
            exchange = ProxyExchange(
                path=path,
                status=client.status,
                ending=ending,
                duration_ms=round((time.perf_counter() - started) * 1000),
                bytes_in=client.bytes_in,
                bytes_out=client.bytes_out,
                usage=parser.usage_so_far() if path == MESSAGES_PATH else None,
                is_subagent=rules.is_from_subagent(client.headers),
            )
            self._log.log_exchange(identity, exchange)
            if self._on_exchange is not None:
                self._on_exchange(identity, exchange)
            self._end_searches(identity, parser, exchange)

    def _begin_searches(self, identity: RunIdentity, count: int, parser: UsageParser) -> None:
        """Reserve the `count` web searches that a request may make, and note them in its parser.

        Raises `ProxyRefused` if the turn has too few left.
        """
        if count and self._searches is not None:
            self._searches.begin(identity.run_id, identity.turn_id, count)
            parser.reserved_searches = count

    def _end_searches(self, identity: RunIdentity, parser: UsageParser, exchange: ProxyExchange) -> None:
        """Release the web searches that were reserved for a request that has ended.

        Those in the usage of `exchange` are counted already, by `on_exchange`. If the client disconnected
        before the end of the answer, the others that were reserved count as made, too.
        """
        count = parser.reserved_searches
        if not count or self._searches is None:
            return
        if exchange.ending is ExchangeEnd.GONE and not parser.is_whole:
            # The service may still make all that were reserved, and reports none of them.
            already_counted = exchange.usage.searches if exchange.usage is not None else 0
            self._searches.add(identity.run_id, identity.turn_id, max(0, count - already_counted))
        self._searches.end(identity.run_id, identity.turn_id, count)

    async def _exchange_until_end(
        self,
        path: str,
        client: ClientSide,
        identity: RunIdentity,
        target: UpstreamTarget,
        parser: UsageParser,
        held: BodyBytes,
    ) -> ExchangeEnd:
        """Pass a request on and its answer back, and return how that ended.

        A refusal is sent to the container. A model's answer that breaks off is judged as an outage, if as far
        as the host knows another service answers now. `parser` reads the usage from the answer.
        """
        from orchestrator.proxies.model import forwarder

        started = time.perf_counter()
        work = self._pass_on(path, client, identity, target, parser, held)
        try:
            await forwarder.run_while_connected(client, work, name=f"proxy-client-{identity.run_id}")
        except ProxyRefused as error:
            self._log.log_unanswered(error)
            # No cause means that the proxy itself has refused the request. Such a refusal is noted for the
            # audit, and is no outage.
            if error.cause is None:
                self._note_refusal(error.refusal, path, client, identity)
            refusal = await self._refusal_to_send(path, identity, error, started)
            await client.refuse(refusal)
            return ExchangeEnd.REFUSED
        except ClientGone:
            return ExchangeEnd.GONE
        except AnswerCut:
            if self._judge is not None and path == MESSAGES_PATH and identity.other_service_answers:
                broken_answer = Answered(
                    error=ModelError.OUTAGE, status=None, duration_ms=_milliseconds_since(started)
                )
                await self._judge(identity, broken_answer)
            return ExchangeEnd.CUT
        return ExchangeEnd.WHOLE

    async def _report_slow_answer(
        self, client: ClientSide, identity: RunIdentity, request: UpstreamRequest
    ) -> None:
        """Wait; after `slow_seconds` report that the answer is slow, and then send pings until cancelled.

        The caller cancels this when the answer starts. Nothing is done if the request is given up before
        `slow_seconds` are over.
        """
        from orchestrator.proxies.model import forwarder

        slow_seconds = self._limits.slow_seconds
        if request.first_byte_seconds <= slow_seconds:
            return
        await asyncio.sleep(slow_seconds)
        if self._judge is not None:
            slow_answer = Answered(error=ModelError.SLOW, status=None, duration_ms=round(slow_seconds * 1000))
            await self._judge(identity, slow_answer)
        await forwarder.send_pings(client, self._limits, is_streamed=request.facts.is_streamed)

    async def _refusal_to_send(
        self, path: str, identity: RunIdentity, error: ProxyRefused, started: float
    ) -> ProxyRefusal:
        """Return the refusal to send to the container for a request that got no answer.

        If the service is the cause and a model's answer was requested, `_judge` records an outage. When it
        says so, after a long outage or because the turn moves to another service, the refusal forbids the
        container to retry.
        `started` is the request's time by `time.perf_counter`.
        """
        if error.cause is None or self._judge is None or path != MESSAGES_PATH:
            return error.refusal
        answered = Answered(error=ModelError.OUTAGE, status=None, duration_ms=_milliseconds_since(started))
        may_try_again = await self._judge(identity, answered)
        return error.refusal if may_try_again else replace(error.refusal, headers=NOT_AGAIN)

    async def _pass_on(
        self,
        path: str,
        client: ClientSide,
        identity: RunIdentity,
        target: UpstreamTarget,
        parser: UsageParser,
        held: BodyBytes,
    ) -> None:
        """Pass a request on to a service and its answer back.

        A count of tokens that the service cannot make is estimated here. While the answer has not started, a
        slow one is reported. If another service could continue the turn, a service in the owner's network
        (`is_near`) is watched until its answer has ended. `parser` reads the usage from the answer, `held`
        counts the bytes of the body in memory.

        Raises:
            ProxyRefused: the request may not pass, the service gave no answer, or the turn moves to another.
            AnswerCut: the answer broke off after it had started.
        """
        from orchestrator.proxies.model import forwarder

        if path == COUNT_PATH and target.service and Ability.COUNTING not in target.service.abilities:
            body = await forwarder.whole_body(client, self._limits.body_bytes, held)
            await client.reply(200, json.dumps({"input_tokens": len(body) // BYTES_A_TOKEN}).encode())
            return
        request = await forwarder.upstream_request(
            path, client, identity, target, limits=self._limits, held=held, parsing=self._parsing
        )
        if path == MESSAGES_PATH:  # a count of tokens makes no searches
            self._begin_searches(identity, request.facts.searches, parser)
        upstream = await self.upstream()
        # `within_seconds` is set only if another service could continue the turn.
        another_could_continue = request.within_seconds is not None and path == MESSAGES_PATH
        watch = forwarder.ServiceWatch(upstream, target, self._limits)
        is_watched = another_could_continue and watch.is_near
        started = time.perf_counter()
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(
                forwarder.run_beside(
                    watch.watch() if is_watched else _do_nothing(), name=f"proxy-life-{identity.run_id}"
                )
            )
            async with forwarder.run_beside(
                self._report_slow_answer(client, identity, request)
                if path == MESSAGES_PATH
                else _do_nothing(),
                name=f"proxy-wait-{identity.run_id}",
            ):
                answer, beginning = await _open_answer(stack, upstream, request)
            watch.has_started = True
            self._log.log_if_rejected(answer.status, target.credential)
            may_try_again = True
            answered = _judge_answer(answer, beginning, started, request)
            if self._judge is not None and path == MESSAGES_PATH:
                may_try_again = await self._judge(identity, answered)
                if identity.may_move and answered.error is not None and not may_try_again:
                    # The turn moves to another service. The container must not get the service's own error:
                    # its CLI would send the request again here instead of ending the run.
                    raise ProxyRefused(error_responses.MOVED)
            event_seconds = None  # no limit for the pauses of the answer
            if another_could_continue and answered.error is None:
                event_seconds = max(
                    self._limits.moving_seconds,
                    seconds_before_moving(self._limits, target.service, target.base_url),
                )
            await forwarder.pass_back(
                answer,
                client,
                target.credential,
                beginning=beginning,
                may_try_again=may_try_again,
                parser=parser,
                on_quote=self._log.log_quoted_credential,
                event_seconds=event_seconds,
                ping_seconds=self._limits.moving_ping_seconds,
                on_chunk=watch.note_chunk,
            )


async def _open_answer(
    stack: AsyncExitStack, upstream: UpstreamClient, request: UpstreamRequest
) -> tuple[UpstreamResponse, bytes]:
    """Send a request; return the answer and the beginning of its body, by which it is judged.

    The answer stays open until `stack` unwinds. Raises `ProxyRefused` if it does not start in time.
    """
    from orchestrator.proxies.model import forwarder

    try:
        async with asyncio.timeout(request.within_seconds):
            answer = await stack.enter_async_context(upstream.send(request))
            return answer, await forwarder.read_opening(answer, first_byte_seconds=request.first_byte_seconds)
    except TimeoutError:
        raise ProxyRefused(error_responses.SILENT, cause="silent: its answer did not begin in time") from None


def _judge_answer(
    answer: UpstreamResponse, beginning: bytes, started: float, request: UpstreamRequest
) -> Answered:
    """Return how a service answered, judged by the head of its answer and the beginning of its body.

    The `error` of the result is None if a model has answered. `started` is the time of the request by
    `time.perf_counter`.
    """
    is_streamed = request.facts.is_streamed
    # A body that is compressed cannot be read here. A success counts as a model's answer then; any other
    # answer is judged by its status.
    is_judged = answer.is_plain or not 200 <= answer.status < 300
    error = classify(answer.status, beginning, answer.kind, is_streamed=is_streamed) if is_judged else None
    return Answered(
        model=request.facts.model,
        error=error,
        status=answer.status,
        duration_ms=_milliseconds_since(started),
        retry_after_ms=rules.retry_after_ms(answer.headers),
    )


async def _do_nothing() -> None:
    """Do nothing, in place of a watch where there is nothing to watch."""


def _milliseconds_since(started: float) -> int:
    """Return the whole milliseconds since a time of `time.perf_counter`."""
    return round((time.perf_counter() - started) * 1000)


def _open_upstream(limits: ModelProxyLimits) -> UpstreamClient:
    """Build the HTTP client for services. Blocks, as it loads libraries and a file of certificates."""
    from orchestrator.proxies.model.upstream_client import UpstreamClient

    return UpstreamClient(limits)


def _read_target(source: CredentialSource, service: ModelService | None) -> UpstreamTarget | None:
    """Return a service with its credential; None if no credential is set. Blocks.

    A `service` of None is the one of `.env`. Raises `SettingError` if a setting is unusable.
    """
    from orchestrator.proxies.model.forwarder import UpstreamTarget

    if service is not None:
        credential = source.credential_of(service)
        if credential is None:
            return None
        return UpstreamTarget(
            credential=credential, base_url=service.url, is_public_only=not service.is_near, service=service
        )
    credential = source.current()
    return UpstreamTarget(credential=credential, base_url=source.upstream()) if credential else None


def _check_service(identity: RunIdentity) -> None:
    """Raise `ProxyRefused` if the run's model service was removed, or its turn continues at another."""
    if identity.removed_service is not None:
        raise ProxyRefused(error_responses.no_service(identity.removed_service))
    if identity.has_moved:
        raise ProxyRefused(error_responses.MOVED)


def _check_head(client: ClientSide, limits: ModelProxyLimits) -> None:
    """Raise `ProxyRefused` if a request's head is ambiguous, or announces a body that is too large."""
    fault = rules.framing_fault(client.headers)
    if fault:
        raise ProxyRefused(error_responses.malformed(fault))
    if (rules.content_length(client.headers) or 0) > limits.body_bytes:
        raise ProxyRefused(error_responses.too_large(limits.body_bytes))


MESSAGES_PATH = "/v1/messages"
"""The only path whose answers cost tokens."""
COUNT_PATH = "/v1/messages/count_tokens"
"""The path at which the tokens of a request are counted, for free."""

Serve = Callable[[str, ClientSide], Awaitable[None]]
"""Answers a container's request for a path."""


@dataclass(frozen=True, slots=True)
class _Endpoint:
    """The handler of a path, and its methods."""

    serve: Serve
    methods: tuple[str, ...]


class ProxyRouter:
    """The ASGI app: it finds the handler of a path.

    `serve` handles the Messages API and, below `/mcp/`, MCP servers; `/` is a health check.
    """

    def __init__(self, serve: Serve, limits: ModelProxyLimits) -> None:
        """`limits` bound the bodies and the pace of callers."""
        self._limits = limits
        self._pace = CallerPace(
            SystemClock(), at_once=limits.body_bytes_at_once, a_second=limits.body_bytes_a_second
        )
        self._mcp_endpoint = _Endpoint(serve, METHODS)
        self._endpoints: Mapping[str, _Endpoint] = {
            "/": _Endpoint(_answer_health_check, ("GET", "HEAD")),
            MESSAGES_PATH: _Endpoint(serve, ("POST",)),
            COUNT_PATH: _Endpoint(serve, ("POST",)),
            "/v1/models": _Endpoint(serve, ("GET",)),
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one HTTP request by the endpoint of its path; refuse an unknown path or method."""
        client = ClientSide(scope, receive, send, self._limits, self._pace)
        path = scope["path"]
        endpoint = self._mcp_endpoint if path.startswith(PREFIX) else self._endpoints.get(path)
        if endpoint is None:
            await client.keep_pace()
            await client.refuse(error_responses.NOT_FOUND)
        elif client.method not in endpoint.methods:
            await client.keep_pace()
            await client.refuse(error_responses.wrong_method(", ".join(endpoint.methods)))
        else:
            await endpoint.serve(path, client)


def _credential_error(refused: ProxyRefused) -> ModelError:
    """Return why a service has no usable credential, from the refusal that `_upstream_target` raised."""
    # Its cause is the error of a setting that cannot be read or used; without one, there is no key.
    return ModelError.KEY_UNREADABLE if isinstance(refused.__cause__, SettingError) else ModelError.NO_KEY


async def _answer_health_check(_path: str, client: ClientSide) -> None:
    """Answer a health check with an empty JSON object."""
    await client.keep_pace()
    try:
        await client.expect_no_body()
    except error_responses.ProxyRefused as error:
        await client.refuse(error.refusal)
    else:
        await client.reply(200, b"{}")
