"""Rules for the headers that pass the proxy. Pure: lists of (name, value) in bytes, as in ASGI."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import assert_never

from orchestrator.groups.settings import ModelFeature
from orchestrator.proxies.model.credentials import Credential, CredentialKind

Header = tuple[bytes, bytes]

EVENT_STREAM = b"text/event-stream"
"""The content type of a stream of events."""
OAUTH_BETA = b"oauth-2025-04-20"
"""The beta without which Anthropic's API accepts no token of a subscription."""
SUBAGENT_NAME = b"x-claude-code-agent-id"
"""The header in which the CLI names the subagent that sends a request; the agent's own have none."""

_REQUEST_NAMES = frozenset(
    {
        b"accept",
        b"anthropic-dangerous-direct-browser-access",
        b"anthropic-version",
        b"content-length",
        b"user-agent",
        b"x-app",
        b"x-claude-code-session-id",
        b"x-client-request-id",
    }
)
_REQUEST_PREFIXES = (b"x-stainless-",)
_RESPONSE_NAMES = frozenset(
    {
        b"content-encoding",
        b"content-length",
        b"content-type",
        b"request-id",
        b"retry-after",
        b"retry-after-ms",
        b"x-should-retry",
    }
)
_BETAS = frozenset(
    {
        b"advanced-tool-use",
        b"claude-code",
        b"claude-code-side-query",
        b"context-1m",
        b"context-hint",
        b"context-management",
        b"effort",
        b"extended-cache-ttl",
        b"fine-grained-tool-streaming",
        b"interleaved-thinking",
        b"mid-conversation-system",
        b"mid-conversation-system-clear-at",
        b"mid-conversation-tool-changes",
        b"per-turn-control",
        b"prompt-caching-evict",
        b"prompt-caching-scope",
        b"redact-thinking",
        b"structured-outputs",
        b"thinking-binding-controls",
        b"thinking-display-updates",
        b"thinking-resumption",
        b"thinking-token-count",
        b"token-counting",
        b"tool-provenance",
        b"tool-search-tool",
        b"web-search",
        b"web-search-results-only",
    }
)
"""Betas that the CLI of the agent requests, without their dates. Others may cost or reach something."""
_PAID_BETAS: Mapping[bytes, ModelFeature] = {b"compact": "compaction", b"fast-mode": "fast_mode"}
"""Betas that cost more, without their dates, each with the feature by which the owner allows it."""
_BETA_DATE = re.compile(rb"-20\d{2}-?\d{2}-?\d{2}$")
_RESPONSE_PREFIXES = (b"anthropic-ratelimit-",)
_TOKEN_NAMES = (b"x-api-key", b"authorization")
_NAME = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_LINE_BREAK = re.compile(rb"[\r\n\0]")


def framing_fault(headers: Iterable[Header]) -> str | None:
    """Return why two parsers could read different requests from these headers; None if they could not.

    Such requests are refused, because one parser's body could be another's second request.
    """
    lowered = [(name.lower(), value) for name, value in headers]
    lengths = _header_values(lowered, b"content-length")
    codings = _header_values(lowered, b"transfer-encoding")
    if lengths and codings:
        return "content-length and transfer-encoding exclude each other"
    if len(lengths) > 1 or not all(length.isdigit() for length in lengths):
        return "content-length must be one number"
    if len(codings) > 1 or not all(coding.lower() == b"chunked" for coding in codings):
        return "transfer-encoding must be chunked"
    if any(not _NAME.fullmatch(name) or _LINE_BREAK.search(value) for name, value in lowered):
        return "a header holds what no header may hold"
    if any(len(_header_values(lowered, name)) > 1 for name in _TOKEN_NAMES):
        return "the token must be given once"
    return None


def content_length(headers: Iterable[Header]) -> int | None:
    """Return the announced length in bytes; None if none is announced. Call after `framing_fault`."""
    lengths = _header_values(headers, b"content-length")
    return int(lengths[0]) if lengths else None


def retry_after_ms(headers: Iterable[Header]) -> int:
    """Return for how many milliseconds a service wants no further request, by its header `retry-after`.

    Return 0 if the header is missing, or is no number of seconds with at most six digits.
    """
    values = _header_values(headers, b"retry-after")
    # Six digits of seconds are eleven days; a longer number is no sensible answer.
    return int(values[0]) * 1000 if values and values[0].isdigit() and len(values[0]) <= 6 else 0


def is_from_subagent(headers: Iterable[Header]) -> bool:
    """Return whether a request is marked as one of a subagent, which an agent starts for a part of its work.

    The mark is not checked: a container that lies only divides its own usage in another way.
    """
    return bool(_header_values(headers, SUBAGENT_NAME))


def run_token(headers: Iterable[Header]) -> str | None:
    """Return the run's token in `x-api-key`, else in `Authorization: Bearer`; None if there is none."""
    token_headers = {name.lower(): value for name, value in headers if name.lower() in _TOKEN_NAMES}
    key = token_headers.get(b"x-api-key", b"").strip()
    if key:
        return key.decode("latin-1")
    scheme, _, token = token_headers.get(b"authorization", b"").strip().partition(b" ")
    if scheme.lower() != b"bearer":
        return None
    return token.strip().decode("latin-1") or None


def request_headers(
    headers: Sequence[Header], credential: Credential, *, features: Collection[ModelFeature] = ()
) -> list[Header]:
    """Return the headers for the model service: those of a container that may pass, and the real credential.

    Whatever the container sent as a credential is dropped. `features` are those of the model service that the
    owner lets the group pay for. The answer is requested uncompressed, so that it can be passed on and
    checked piece by piece.
    """
    dropped = _connection_headers(headers)
    passed = [
        (name.lower(), value)
        for name, value in headers
        if name.lower() not in dropped and _is_allowed(name.lower(), _REQUEST_NAMES, _REQUEST_PREFIXES)
    ]
    betas = () if b"anthropic-beta" in dropped else _allowed_betas(headers, features)
    return [
        *passed,
        # The proxy's own value, because a parser that honours a charset would read another request.
        (b"content-type", b"application/json"),
        (b"accept-encoding", b"identity"),
        *_beta_header(betas, credential.kind),
        *_credential_header(credential),
    ]


def response_headers(headers: Sequence[Header], credential: Credential) -> list[Header]:
    """Return the headers for the container: the allowed ones, without any that quotes the credential."""
    dropped = _connection_headers(headers)
    secret = credential.secret.encode()
    return [
        (name.lower(), value)
        for name, value in headers
        if name.lower() not in dropped
        and _is_allowed(name.lower(), _RESPONSE_NAMES, _RESPONSE_PREFIXES)
        and not (secret and secret in value)
    ]


def _header_values(headers: Iterable[Header], name: bytes) -> list[bytes]:
    """Return all values of a header; `name` is in lower case."""
    return [value for header, value in headers if header.lower() == name]


def _is_allowed(name: bytes, names: frozenset[bytes], prefixes: tuple[bytes, ...]) -> bool:
    """Return whether a header may pass, by its name or the beginning of its name in lower case."""
    return name in names or name.startswith(prefixes)


def _connection_headers(headers: Iterable[Header]) -> frozenset[bytes]:
    """Return the names that the header `Connection` lists: those headers are not passed on.

    `content-length` is left out, because it always has to be passed on.
    """
    listed = b",".join(_header_values(headers, b"connection")).lower().split(b",")
    # Without its length, the body would be sent in chunks.
    return frozenset(name.strip() for name in listed) - {b"content-length"}


def _allowed_betas(headers: Iterable[Header], features: Collection[ModelFeature]) -> tuple[bytes, ...]:
    """Return the betas (features of the API) that a request names and its group may use, each once.

    `features` are those that the owner lets the group pay for. Unknown betas are left out.
    """
    requested = b",".join(_header_values(headers, b"anthropic-beta")).split(b",")
    names = dict.fromkeys(name.strip() for name in requested)
    allowed = _BETAS | {beta for beta, feature in _PAID_BETAS.items() if feature in features}
    # Compared without its date: `context-1m-2025-08-07` is the beta `context-1m`.
    return tuple(name for name in names if _BETA_DATE.sub(b"", name) in allowed)


def _beta_header(betas: tuple[bytes, ...], kind: CredentialKind) -> list[Header]:
    """Return the header `anthropic-beta` with these betas; none if there are none.

    If the credential (`kind`) is an OAuth token, the OAuth beta is added; else it is removed, even if the
    container requests it.
    """
    others = [name for name in betas if name != OAUTH_BETA]
    names = [*others, OAUTH_BETA] if kind is CredentialKind.OAUTH else others
    return [(b"anthropic-beta", b",".join(names))] if names else []


def _credential_header(credential: Credential) -> list[Header]:
    """Return the header with the credential; none if the service needs no credential."""
    secret = credential.secret.encode()
    match credential.kind:
        case CredentialKind.API_KEY:
            return [(b"x-api-key", secret)]
        case CredentialKind.OAUTH | CredentialKind.BEARER:
            return [(b"authorization", b"Bearer " + secret)]
        case CredentialKind.NONE:
            return []
        case _:
            assert_never(credential.kind)
