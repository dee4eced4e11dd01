"""Refusals in the form of the Messages API, so that a client's own retries and messages work."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace

from orchestrator.proxies.model.headers import Header

MAX_MESSAGE_CHARS = 2_000
"""Characters of a service's error message that are passed on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyRefusal:
    """An error that the proxy itself answers, instead of the model service."""

    status: int
    kind: str
    """`error.type` of the API."""
    message: str
    headers: tuple[Header, ...] = ()

    def body(self) -> bytes:
        """Return the refusal as the JSON of an error of the Messages API."""
        error = {"type": self.kind, "message": self.message}
        return json.dumps({"type": "error", "error": error}).encode()


class ProxyRefused(Exception):
    """The request is not passed on, or got no answer."""

    def __init__(self, refusal: ProxyRefusal, *, cause: str | None = None) -> None:
        """`refusal` is for the container; `cause` says, for the log, why the service gave no answer.

        `cause` is None if the proxy itself refused the request.
        """
        self.refusal = refusal
        self.cause = cause
        """Why the service gave no answer, which counts as an outage; None if the proxy itself refused."""
        super().__init__(refusal.message)


class AnswerCut(Exception):
    """The answer broke off after it had started."""


# Measured with the real CLI: 403 ends a turn at once, but it retries 401, 429 and 5xx ten times.
NOT_AGAIN: tuple[Header, ...] = ((b"x-should-retry", b"false"),)


def service_error(status: int, body: bytes) -> ProxyRefusal:
    """Return the refusal that passes on a service's error, given its status and the body of its answer.

    It is for a client whose stream has started, so that the answer itself cannot be passed on.
    """
    try:
        error = json.loads(body)["error"]
        kind, message = str(error["type"])[:100], str(error["message"])[:MAX_MESSAGE_CHARS]
    except (ValueError, TypeError, LookupError, RecursionError):
        return replace(BROKEN, message=f"The model service answered with HTTP {status} and no stream.")
    return ProxyRefusal(status=status, kind=kind, message=message)


def malformed(reason: str) -> ProxyRefusal:
    """Return the refusal of a request that is malformed, with the reason."""
    return ProxyRefusal(
        status=400, kind="invalid_request_error", message=f"The request is malformed: {reason}."
    )


NOT_KNOWN = ProxyRefusal(
    status=401,
    kind="authentication_error",
    message="This token belongs to no run that is alive.",
)

OF_ANOTHER = ProxyRefusal(
    status=401,
    kind="authentication_error",
    message="This token belongs to another container.",
)


def no_credential(reason: str | None = None) -> ProxyRefusal:
    """Return the refusal when no credential is set: 403, unlike 401 for an unknown token of a run.

    `reason` is a sentence that says more, if there is one.
    """
    text = "No model credential is configured: set ANTHROPIC_API_KEY or CLAUDE_CODE_OAUTH_TOKEN in .env."
    return ProxyRefusal(
        status=403, kind="permission_error", message=f"{text} {reason}" if reason else text, headers=NOT_AGAIN
    )


def no_service_key(name: str, reason: str) -> ProxyRefusal:
    """Return the refusal when a model service that the owner added has no usable key.

    `reason` is a sentence that says why, or what is to be set.
    """
    text = f"The model service '{name}' has no usable key. {reason}"
    return ProxyRefusal(status=403, kind="permission_error", message=text, headers=NOT_AGAIN)


def no_service(name: str) -> ProxyRefusal:
    """Return the refusal when the model service of a run was removed."""
    text = f"The model service '{name}' was removed: ask again."
    return ProxyRefusal(status=403, kind="permission_error", message=text, headers=NOT_AGAIN)


MOVED = ProxyRefusal(
    status=503,
    kind="api_error",
    message="This model service does not answer: the turn goes on at another.",
    headers=NOT_AGAIN,
)

NOT_FOUND = ProxyRefusal(status=404, kind="not_found_error", message="Only the Messages API is served here.")


def wrong_method(allowed: str) -> ProxyRefusal:
    """Return the refusal of an HTTP method; `allowed` names the methods that the path takes."""
    return ProxyRefusal(
        status=405,
        kind="invalid_request_error",
        message=f"This path takes {allowed} only.",
        headers=((b"allow", allowed.encode()),),
    )


TOO_SLOW = ProxyRefusal(
    status=408, kind="timeout_error", message="The request's body did not arrive in time."
)


def too_large(limit: int) -> ProxyRefusal:
    """Return the refusal of a body of more than `limit` bytes."""
    return ProxyRefusal(
        status=413, kind="request_too_large", message=f"The request's body is above {limit:,} bytes."
    )


def busy(limit: int, things: str = "requests") -> ProxyRefusal:
    """Return the refusal when `limit` requests, or other `things`, are in progress already."""
    return ProxyRefusal(
        status=429,
        kind="rate_limit_error",
        message=f"There are {limit:,} {things} under way already: try again.",
        headers=((b"retry-after", b"1"),),
    )


def parsed_too_much(wait_ms: float) -> ProxyRefusal:
    """Return the refusal of a group whose bodies took too long to parse.

    The group's requests are served again after `wait_ms` milliseconds.
    """
    return ProxyRefusal(
        status=429,
        kind="rate_limit_error",
        message="The requests of this group took the host too long to read: wait, and send smaller ones.",
        headers=((b"retry-after", str(math.ceil(wait_ms / 1000)).encode()),),
    )


NOT_READ = ProxyRefusal(
    status=429,
    kind="rate_limit_error",
    message="The host is too busy to read this request at the moment: try again.",
    headers=((b"retry-after", b"1"),),
)


def budget_spent(reason: str) -> ProxyRefusal:
    """Return the refusal when a budget is spent; `reason` is a sentence with a small first letter."""
    text = f"{reason[0].upper()}{reason[1:]} Trying again does not help: tell the user."
    return ProxyRefusal(status=402, kind="billing_error", message=text, headers=NOT_AGAIN)


NO_SEARCH = ProxyRefusal(
    status=403,
    kind="permission_error",
    message="Web search is off for this group, or was used too often in this turn: go on without it.",
    headers=NOT_AGAIN,
)


def too_many_searches(left: int) -> ProxyRefusal:
    """Return the refusal of a request that allows more web searches than its turn has left.

    `left` is the number that the turn may still make.
    """
    text = f"This turn may search the web {left} more times: send max_uses of at most {left}."
    return ProxyRefusal(status=403, kind="permission_error", message=text, headers=NOT_AGAIN)


def not_allowed(feature: str) -> ProxyRefusal:
    """Return the refusal of a feature that a group may not use; `feature` finishes "may not use …"."""
    text = f"This group may not use {feature}."
    return ProxyRefusal(status=403, kind="permission_error", message=text, headers=NOT_AGAIN)


def ran_away(limit: int) -> ProxyRefusal:
    """Return the refusal when a turn has sent more than `limit` requests."""
    text = f"More than {limit} requests in one turn: the host has stopped it."
    return ProxyRefusal(status=429, kind="rate_limit_error", message=text, headers=NOT_AGAIN)


UNRECORDED = ProxyRefusal(
    status=503, kind="api_error", message="The host cannot record what is used: its disk may be full."
)
INTERNAL = ProxyRefusal(
    status=500, kind="api_error", message="The credential proxy failed; its log says why."
)

# Clients retry 5xx. 529 is only for the service: clients read it as "this model is overloaded" and change the
# model or drop background requests, for which a network fault is no reason.
UNREACHABLE = ProxyRefusal(
    status=502, kind="api_error", message="The model service cannot be reached from the host."
)
BROKEN = ProxyRefusal(
    status=502, kind="api_error", message="The model service broke off or answered with what is no HTTP."
)
MCP_REFUSES = ProxyRefusal(
    status=502,
    kind="api_error",
    message="The MCP server does not take the owner's secret: tell the owner.",
    headers=NOT_AGAIN,
)
MCP_ENCODED = ProxyRefusal(
    status=502,
    kind="api_error",
    message="The MCP server answers in a content coding that was not asked for: tell the owner.",
    headers=NOT_AGAIN,
)
MCP_NO_SESSION = ProxyRefusal(
    status=404,
    kind="not_found_error",
    message="This session is over, or is another group's: begin a new one.",
)


def mcp_not_done(reason: str) -> ProxyRefusal:
    """Return the refusal of a GET or DELETE at an MCP server, with the reason."""
    return ProxyRefusal(
        status=403, kind="permission_error", message=f"Not done: {reason}.", headers=NOT_AGAIN
    )


def mcp_no_token(name: str) -> ProxyRefusal:
    """Return the refusal when the token for an MCP server cannot be renewed now."""
    text = f"The login at the MCP server '{name}' has to be renewed, which fails now: try again later."
    return ProxyRefusal(status=502, kind="api_error", message=text, headers=NOT_AGAIN)


def of_mcp_server(name: str, refusal: ProxyRefusal) -> ProxyRefusal:
    """Return `refusal` (`UNREACHABLE`, `BROKEN` or `SILENT`) with a text about the MCP server `name`."""
    return replace(refusal, message=refusal.message.replace("The model service", f"The MCP server '{name}'"))


SILENT = ProxyRefusal(status=504, kind="timeout_error", message="The model service did not answer in time.")
