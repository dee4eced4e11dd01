"""One request of a container to the upstream: its run, its end, and its line in the log."""

from __future__ import annotations

import json
import re
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import structlog

from orchestrator.base.logging import LogThrottle
from orchestrator.domain.failures import ModelError
from orchestrator.domain.model_services import OF_DOTENV, ModelService
from orchestrator.domain.values import Folder, Role, RunId, TurnId, TurnKind
from orchestrator.groups.settings import ModelFeature
from orchestrator.proxies.model.credentials import Credential
from orchestrator.proxies.model.error_responses import ProxyRefusal, ProxyRefused
from orchestrator.proxies.model.headers import EVENT_STREAM
from orchestrator.proxies.model.token_usage import ParsedUsage
from orchestrator.store.money.budgets import Budget

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunIdentity:
    """The run that a token belongs to, with its present turn and rights."""

    run_id: RunId
    folder: Folder
    """The folder of its group."""
    turn_id: TurnId | None = None
    """The turn that the run works on; None between turns, and for the host's own requests."""
    kind: TurnKind | None = None
    """The kind of that turn."""
    task_id: str | None = None
    """The scheduled task of that turn, if any."""
    is_main: bool = False
    """Whether it works for the owner in their own group."""
    role: Role = Role.OWNER
    """The role of the person whose turn it is, by which its requests are judged."""
    may_call_servers: bool = True
    """Whether that role may call MCP servers."""
    spend: int = 100
    """The part of each budget that turns of that role may use, in percent."""
    budgets: tuple[Budget, ...] = ()
    """All budgets that are set now, also those of other groups."""
    may_search: bool = False
    """Whether the model service may search the web for it."""
    is_open: bool = False
    """Whether its container reaches the internet."""
    model_features: tuple[ModelFeature, ...] = ()
    """The features of the model service that the owner lets its group pay for."""
    service: ModelService | None = None
    """The model service that its run uses; None: the one of `.env`, or a removed one."""
    removed_service: str | None = None
    """The name of the run's model service if that was removed: then its run may ask no model."""
    model: str | None = None
    """The model that its run uses; None leaves that to the agent."""

    may_move: bool = False
    """Whether its turn may move to another service that answers now: one that the turn has not left, or that
    has answered the host since.
    """
    other_service_answers: bool = False
    """Whether another service answers now, even if the turn has left it and may not return yet."""
    has_moved: bool = False
    """Whether its turn has left this run's service, and continues in another run."""

    @property
    def service_name(self) -> str:
        """The name of the run's model service."""
        return OF_DOTENV if self.service is None else self.service.name


class ExchangeEnd(StrEnum):
    """The way in which an exchange ended."""

    WHOLE = "whole"
    REFUSED = "refused"
    """The proxy refused the request, or the upstream gave no answer; the container got the reason."""
    CUT = "cut"
    """The answer broke off in the middle."""
    GONE = "gone"
    """The container disconnected."""
    STOPPED = "stopped"
    """The host shut down or failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyExchange:
    """One request to the upstream. `status` is the one that the container got, None if it got none."""

    path: str
    status: int | None
    ending: ExchangeEnd
    duration_ms: int
    bytes_in: int
    bytes_out: int
    usage: ParsedUsage | None = None
    """The usage that the answer reported, as far as it arrived."""
    is_subagent: bool = False
    """Whether the container marks it as a subagent's request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Denial:
    """A refused request. `unlogged` similar ones were not logged before it."""

    path: str
    peer: str
    refusal: ProxyRefusal
    unlogged: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """The model service's answer to a request that costs tokens. `status` is None if none came."""

    error: ModelError | None
    """The error; None for an answer that a model gave."""
    status: int | None
    duration_ms: int = 0
    """Milliseconds from the request to the first byte, or to the end of waiting for it."""
    retry_after_ms: int = 0
    """Milliseconds that the service asks to wait before the next request."""
    model: str | None = None
    """The model that the request named."""
    waited_ms: int = 0
    """Milliseconds since the outage of its turn began; 0 if there was none before."""


Identify = Callable[[str], Awaitable[RunIdentity | None]]
"""Returns the run whose token has this hash; None for an unknown token and for an ended run."""
OnExchange = Callable[[RunIdentity, ProxyExchange], None]
"""Called once after each exchange. Must be quick and must not raise."""
OnDenial = Callable[[RunIdentity | None, Denial], None]
"""Called for the first denial of a kind and then occasionally. Must be quick and must not raise."""
Admit = Callable[[RunIdentity], Awaitable[None]]
"""Admits a request that costs tokens, or raises `ProxyRefused`."""
Judge = Callable[[RunIdentity, Answered], Awaitable[bool]]
"""Called with an answer before the container gets it; returns whether the same request may be sent again."""


class ExchangeLog:
    """Logs the proxy's work: never a header, never a body."""

    def __init__(self) -> None:
        self._throttle = LogThrottle()
        self._refused: Credential | None = None
        """The credential that the service last rejected."""

    def log_exchange(self, identity: RunIdentity, exchange: ProxyExchange) -> None:
        """Log an exchange that has ended."""
        _log.info(
            "model request",
            run=identity.run_id,
            folder=identity.folder,
            path=exchange.path,
            status=exchange.status,
            ending=str(exchange.ending),
            duration_ms=exchange.duration_ms,
            bytes_in=exchange.bytes_in,
            bytes_out=exchange.bytes_out,
        )

    def log_if_rejected(self, status: int, credential: Credential) -> None:
        """Log that a service has rejected the credential, but do not repeat this for each request.

        It is logged again after the service has accepted a credential, or for another credential. `status` is
        that of the service's answer: 401 rejects the credential, any other status accepts it.
        """
        if status != 401:
            self._refused = None
        elif self._refused != credential:
            self._refused = credential
            _log.error("the credential was refused: check .env", setting=credential.setting)

    def log_refusal(
        self, refusal: ProxyRefusal, *, path: str, peer: str, identity: RunIdentity | None
    ) -> Denial | None:
        """Log that the proxy refuses a request, and return the record of it.

        Return None for one of many similar refusals, which is only counted. `peer` is the container's
        address, and `identity` its run, if its token is known.
        """
        # Counted for each group, or container without a known token, and each status: a group that is refused
        # in a loop does not hide another's refusals.
        key = (identity.folder if identity else peer, refusal.status)
        if not self._throttle.passes(key):
            return None
        denial = Denial(path=path, peer=peer, refusal=refusal, unlogged=self._throttle.take_dropped(key))
        _log.warning(
            "model request refused",
            run=identity.run_id if identity else None,
            folder=identity.folder if identity else None,
            peer=peer,
            path=path,
            status=refusal.status,
            kind=refusal.kind,
            unlogged=denial.unlogged,
        )
        return denial

    def log_unanswered(self, refused: ProxyRefused) -> None:
        """Log the cause for which a service gave no answer; a refusal by the proxy itself has none.

        Of many with the same cause, most are only counted.
        """
        if refused.cause and self._throttle.passes(refused.cause):
            _log.warning(
                "the model service did not answer",
                cause=refused.cause,
                status=refused.refusal.status,
                unlogged=self._throttle.take_dropped(refused.cause),
            )

    def log_quoted_credential(self, status: int) -> None:
        """Log that a service's answer, with this status, contained the credential and was cut."""
        _log.error("the upstream quoted the credential: answer cut", status=status)

    def log_failure(self, error: Exception, path: str) -> None:
        """Log the place in the code of an error, without its text or values, which may contain a header.

        Of many errors of the same type, most are only counted.
        """
        name = type(error).__name__
        if self._throttle.passes(name):
            trace = "".join(traceback.format_tb(error.__traceback__))
            unlogged = self._throttle.take_dropped(name)
            _log.error("credential proxy failed", path=path, error=name, trace=trace, unlogged=unlogged)


# Phrases in the messages of services that answer 400 or 422 where others answer 401, 402 or 404.
_NO_CREDIT = (
    "billing",
    "budget has been exceeded",
    "budget_exceeded",
    "credit balance",
    "insufficient balance",
    "insufficient credit",
    "insufficient_quota",
    "usage limit",
)
_NO_MODEL = (
    "invalid model",
    "model not exist",
    "model_not_found",
    "no such model",
    "not a valid model",
    "unknown model",
)
_NO_KEY = ("invalid api key", "organization has been disabled")
_ERROR_EVENT = b"event: error"
_KINDS = (b"application/json", EVENT_STREAM)
"""The content types of answers of the Messages API."""
_STATUS_OF_TYPE = {
    "authentication_error": 401,
    "billing_error": 402,
    "invalid_request_error": 400,
    "not_found_error": 404,
    "permission_error": 403,
    "rate_limit_error": 429,
}
"""The HTTP status for an error of the Messages API inside a successful answer; for others it is 500."""
_EVENT_NAME = re.compile(r"[a-z][a-z_]*")
"""The form of event names; newer APIs may have more of them. Those of other APIs contain dots."""


def classify(
    status: int, body: bytes = b"", kind: bytes | None = None, *, is_streamed: bool = False
) -> ModelError | None:
    """Return the error that a model service's answer stands for; None if a model has answered.

    A rejected key, an account without credit and an unknown model are rejected at every further request. A
    reached limit and trouble of the service (`OUTAGE`) pass by themselves. `FOREIGN` is an answer of another
    API than the Messages API. Anything else (`OTHER`) is the request's own fault.

    Args:
        status: the HTTP status.
        body: the whole body, or of a stream the first event with data.
        kind: the content type, in lower case; None without one.
        is_streamed: whether the request demanded a stream.
    """
    if 200 <= status < 300:
        return _error_in_successful_answer(body, kind, is_streamed=is_streamed)
    match status:
        case _ if 300 <= status < 400:
            return ModelError.FOREIGN
        case 401 | 403:
            return ModelError.KEY_REFUSED
        case 402:
            return ModelError.NO_CREDIT
        # Services use these for almost anything, so only the words in the message tell the errors apart.
        case 400 | 422:
            return _error_by_message(_error_message(body).lower())
        case 404:
            return ModelError.UNKNOWN_MODEL
        case 405 | 410:
            return ModelError.FOREIGN
        case 408 | 429:
            return ModelError.OUTAGE
        case _ if status >= 500:
            return ModelError.OUTAGE
        case _:
            return ModelError.OTHER


def _error_in_successful_answer(
    body: bytes, content_type: bytes | None, *, is_streamed: bool
) -> ModelError | None:
    """Return the error in an answer with a successful status; None if the answer is a message.

    A document of another API than the Messages API is an error, too.

    Args:
        body: the whole body, or of a stream the first event with data.
        content_type: the content type, in lower case. Without one, the first byte of the body decides whether
            it is a stream.
        is_streamed: whether the request demanded a stream.
    """
    if content_type is not None and not content_type.startswith(_KINDS):
        return ModelError.FOREIGN
    is_stream = (
        body.lstrip()[:1] not in (b"{", b"[")
        if content_type is None
        else content_type.startswith(EVENT_STREAM)
    )
    document = _parse_object(_first_event_data(body) if is_stream else body)
    error = document.get("error")
    is_error = document.get("type") == "error" or body.lstrip().startswith(_ERROR_EVENT)
    if is_error or isinstance(error, dict):
        # Judged as if it had come with the status that belongs to it.
        return classify(_status_of_error(error), json.dumps(document).encode())
    if is_stream:
        name = document.get("type")
        is_expected = isinstance(name, str) and _EVENT_NAME.fullmatch(name) is not None
    else:
        is_expected = document.get("type") == "message" and isinstance(document.get("content"), list)
        # A client that demanded a stream cannot read a whole message.
        is_expected = is_expected and not is_streamed
    return None if is_expected else ModelError.FOREIGN


def _status_of_error(error: Any) -> int:
    """Return the HTTP status that an error stands for, by its own code or type; 500 if neither is known.

    Some services send errors with a successful status. `error` is the member "error" of the answer.
    """
    code = error.get("code", error.get("status")) if isinstance(error, dict) else None
    if isinstance(code, int) and 400 <= code <= 599:
        return code
    name = error.get("type") if isinstance(error, dict) else None
    return _STATUS_OF_TYPE.get(name, 500) if isinstance(name, str) else 500


def _first_event_data(events: bytes) -> bytes:
    """Return the data of the first event that has any, from the beginning of a stream of events."""
    for event in events.replace(b"\r", b"").split(b"\n\n"):
        lines = [
            line.removeprefix(b"data:").strip() for line in event.split(b"\n") if line.startswith(b"data:")
        ]
        if lines:
            return b"\n".join(lines)
    return b""


def _parse_object(body: bytes) -> dict[str, Any]:
    """Return the JSON object in a body; an empty one if the body is no object."""
    try:
        value = json.loads(body.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _error_by_message(message: str) -> ModelError:
    """Return the error that the message of an answer stands for; `message` is in lower case."""
    if any(phrase in message for phrase in _NO_CREDIT):
        return ModelError.NO_CREDIT
    if any(phrase in message for phrase in _NO_KEY):
        return ModelError.KEY_REFUSED
    return ModelError.UNKNOWN_MODEL if any(phrase in message for phrase in _NO_MODEL) else ModelError.OTHER


def _error_message(body: bytes) -> str:
    """Return the type and the message of an error in the form of the Messages API; empty for another form."""
    error = _parse_object(body).get("error")
    return f"{error.get('type', '')} {error.get('message', '')}" if isinstance(error, dict) else ""
