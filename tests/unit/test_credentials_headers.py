from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.proxies.model.credentials import NO_KEY_NEEDED, Credential, CredentialKind
from orchestrator.proxies.model.forwarder import LeakCheck
from orchestrator.proxies.model.headers import (
    OAUTH_BETA,
    Header,
    content_length,
    framing_fault,
    request_headers,
    response_headers,
    run_token,
)

SECRET = "sk-ant-api03-the-real-one"
KNOWN = [
    *(
        b"x-api-key",
        b"authorization",
        b"anthropic-beta",
        b"anthropic-version",
        b"content-type",
        b"content-length",
    ),
    *(
        b"connection",
        b"transfer-encoding",
        b"cookie",
        b"host",
        b"x-stainless-os",
        b"proxy-authorization",
        b"te",
    ),
    *(b"set-cookie", b"request-id", b"retry-after", b"anthropic-ratelimit-x", b"accept-encoding", b"upgrade"),
]

names = st.sampled_from(KNOWN) | st.from_regex(rb"[a-z][a-z0-9-]{0,20}", fullmatch=True)
cased = st.builds(lambda name, up: name.upper() if up else name, names, st.booleans())
values = st.sampled_from(
    [b"chunked", b"close", b"x-app, anthropic-beta", b"7", SECRET.encode(), b"a" + SECRET.encode()]
)
values |= st.from_regex(rb"[\x21-\x7e ]{0,40}", fullmatch=True)
header_lists = st.lists(st.tuples(cased, values), max_size=12)
credentials = st.sampled_from([kind for kind in CredentialKind if kind is not CredentialKind.NONE]).map(
    lambda kind: Credential(kind=kind, secret=SECRET, setting="ANTHROPIC_API_KEY")
)


def credential(kind: CredentialKind = CredentialKind.API_KEY) -> Credential:
    return Credential(kind=kind, secret=SECRET, setting="ANTHROPIC_API_KEY")


@given(header_lists, credentials)
def test_exactly_one_proof_goes_upstream_whatever_the_container_sends(
    headers: list[Header], real: Credential
) -> None:
    sent = request_headers(headers, real)
    proofs = [(name, value) for name, value in sent if name in {b"x-api-key", b"authorization"}]
    expected = (
        (b"x-api-key", SECRET.encode())
        if real.kind is CredentialKind.API_KEY
        else (b"authorization", f"Bearer {SECRET}".encode())
    )
    assert proofs == [expected]


@given(header_lists, credentials)
def test_the_oauth_beta_goes_with_oauth_tokens_and_with_nothing_else(
    headers: list[Header], real: Credential
) -> None:
    betas = [value for name, value in request_headers(headers, real) if name == b"anthropic-beta"]
    assert len(betas) <= 1
    listed = betas[0].split(b",") if betas else []
    assert listed.count(OAUTH_BETA) == (1 if real.kind is CredentialKind.OAUTH else 0)


@given(header_lists, credentials)
def test_only_listed_headers_pass_in_both_directions(headers: list[Header], real: Credential) -> None:
    upstream = {name for name, _ in request_headers(headers, real)}
    back = {name for name, _ in response_headers(headers, real)}
    for name in (b"cookie", b"host", b"connection", b"transfer-encoding", b"proxy-authorization", b"upgrade"):
        assert name not in upstream
        assert name not in back
    assert b"set-cookie" not in back
    assert not {b"x-api-key", b"authorization"} & back


@given(header_lists, credentials)
def test_no_header_that_comes_back_quotes_the_secret(headers: list[Header], real: Credential) -> None:
    assert all(SECRET.encode() not in value for _, value in response_headers(headers, real))


@given(header_lists, st.text("abcdefgh", min_size=8, max_size=8))
def test_the_token_of_the_run_never_goes_upstream(headers: list[Header], text: str) -> None:
    token = f"andy-{text}".encode()
    own: list[Header] = [(b"x-api-key", token), (b"Authorization", b"Bearer " + token)]
    assert all(token not in value for _, value in request_headers([*headers, *own], credential()))


def test_what_connection_names_stays_on_its_hop() -> None:
    headers = [(b"connection", b"x-app, Content-Length"), (b"x-app", b"cli"), (b"content-length", b"2")]
    names = [name for name, _ in request_headers(headers, credential())]
    assert names == [b"content-length", b"content-type", b"accept-encoding", b"x-api-key"]


def test_betas_of_several_headers_become_one() -> None:
    headers = [
        (b"anthropic-beta", b"effort-2025-11-24,  claude-code-20250219"),
        (b"Anthropic-Beta", b"claude-code-20250219,context-management-2025-06-27,"),
    ]
    sent = dict(request_headers(headers, credential(CredentialKind.OAUTH)))
    known = b"effort-2025-11-24,claude-code-20250219,context-management-2025-06-27,"
    assert sent[b"anthropic-beta"] == known + OAUTH_BETA


@pytest.mark.parametrize(
    "beta",
    [b"fast-mode-2026-02-01", b"compact-2026-01-12", b"files-api-2025-04-14", b"tomorrow", b"effort-x"],
)
def test_a_beta_that_may_cost_or_reach_something_does_not_go_up(beta: bytes) -> None:
    sent = dict(request_headers([(b"anthropic-beta", b"effort-2025-11-24," + beta)], credential()))
    assert sent[b"anthropic-beta"] == b"effort-2025-11-24"


def test_a_beta_that_costs_more_goes_up_where_the_owner_allows_just_that() -> None:
    headers = [(b"anthropic-beta", b"fast-mode-2026-02-01,compact-2026-01-12,files-api-2025-04-14")]
    sent = dict(request_headers(headers, credential(), features=("fast_mode",)))
    assert sent[b"anthropic-beta"] == b"fast-mode-2026-02-01"
    sent = dict(request_headers(headers, credential(), features=("compaction", "inference_geo")))
    assert sent[b"anthropic-beta"] == b"compact-2026-01-12"


def test_the_type_of_the_content_is_the_proxys_own() -> None:
    headers = [(b"content-type", b"application/json; charset=utf-7")]
    sent = [value for name, value in request_headers(headers, credential()) if name == b"content-type"]
    assert sent == [b"application/json"]


@pytest.mark.parametrize(
    "headers",
    [
        [(b"content-length", b"1"), (b"Transfer-Encoding", b"chunked")],
        [(b"content-length", b"1"), (b"Content-Length", b"1")],
        [(b"content-length", b"1, 1")],
        [(b"content-length", b"-1")],
        [(b"content-length", b"")],
        [(b"transfer-encoding", b"identity")],
        [(b"transfer-encoding", b"chunked"), (b"transfer-encoding", b"chunked")],
        [(b"x-app", b"a\r\nx-api-key: b")],
        [(b"x-app", b"a\nb")],
        [(b"x-app\r\nb", b"a")],
        [(b"x app", b"a")],
        [(b"", b"a")],
        [(b"x-api-key", b"a"), (b"X-Api-Key", b"a")],
        [(b"authorization", b"Bearer a"), (b"authorization", b"Bearer b")],
    ],
)
def test_headers_that_two_readers_read_differently_are_a_fault(headers: list[Header]) -> None:
    assert framing_fault(headers) is not None


def test_ordinary_headers_are_no_fault() -> None:
    headers = [
        (b"Content-Length", b"12"),
        (b"x-app", b"cli \xff"),
        (b"x-api-key", b"a"),
        (b"accept", b"a, b"),
    ]
    assert framing_fault(headers) is None
    assert content_length(headers) == 12
    assert framing_fault([(b"transfer-encoding", b"Chunked")]) is None
    assert content_length([]) is None


@pytest.mark.parametrize(
    ("headers", "token"),
    [
        ([], None),
        ([(b"X-Api-Key", b" a ")], "a"),
        ([(b"x-api-key", b"a"), (b"authorization", b"Bearer b")], "a"),
        ([(b"x-api-key", b""), (b"authorization", b"bearer  b")], "b"),
        ([(b"authorization", b"Bearer ")], None),
        ([(b"authorization", b"Basic b")], None),
    ],
)
def test_the_token_is_a_key_or_a_bearer(headers: list[Header], token: str | None) -> None:
    assert run_token(headers) == token


@given(st.binary(max_size=40), st.binary(max_size=40), st.lists(st.integers(0, 100), max_size=5))
def test_a_secret_is_noticed_however_it_is_cut(before: bytes, after: bytes, cuts: list[int]) -> None:
    text = before + SECRET.encode() + after
    edges = [0, *sorted({min(cut, len(text)) for cut in cuts}), len(text)]
    chunks = [text[start:end] for start, end in pairwise(edges)]
    guard = LeakCheck(SECRET)
    assert any(guard.quotes_secret(chunk) for chunk in chunks)


@given(st.lists(st.binary(max_size=20), max_size=6))
def test_a_stream_without_the_secret_passes(chunks: list[bytes]) -> None:
    guard = LeakCheck(SECRET)
    assert not any(guard.quotes_secret(chunk) for chunk in chunks)


def test_a_service_without_a_key_gets_none_and_all_of_its_headers_come_back():
    headers = [(b"x-api-key", b"the run's token"), (b"authorization", b"Bearer the-run-token")]
    sent = dict(request_headers(headers, NO_KEY_NEEDED))
    assert not {b"x-api-key", b"authorization"} & sent.keys()
    assert response_headers([(b"content-type", b"text/plain")], NO_KEY_NEEDED) == [
        (b"content-type", b"text/plain")
    ]
