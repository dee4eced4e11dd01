"""Logins at MCP servers that want OAuth: how one is made, kept and renewed, and what is refused."""

from __future__ import annotations

import asyncio
import io
import itertools
import json
import logging.config
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, aclosing, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from orchestrator.cli import doctor_checks
from orchestrator.cli.main import _run
from orchestrator.cli.mcp_login import NotThisLogin, result_of, state_of
from orchestrator.domain.errors import AndyError
from orchestrator.domain.values import Folder
from orchestrator.groups import registration
from orchestrator.home.directory import Home as AndyHome
from orchestrator.proxies import mcp_logins, mcp_oauth
from orchestrator.proxies.feature import ContainerProxies
from orchestrator.proxies.mcp_gateway import McpGateway, SessionSeal
from orchestrator.proxies.mcp_logins import LoginNeeded, LoginRefused, McpLogin, McpTokens
from orchestrator.proxies.mcp_oauth import LoginRequest
from orchestrator.proxies.model.credentials import CredentialSource
from orchestrator.proxies.model.limits import ModelProxyLimits
from orchestrator.proxies.model.upstream_client import UpstreamClient
from orchestrator.proxies.parsing_process import ParsingProcess
from orchestrator.store.audit import AuditEvent
from orchestrator.store.database import Database
from orchestrator.store.settings.mcp_servers import McpServer
from tests.doubles.clock import FakeClock
from tests.doubles.faulty_upstream import FaultyUpstream, Received, answer
from tests.processes.mcp_login_server import LoginServer, browse
from tests.support.host_contexts import host_context
from tests.support.running_proxy import Proxied, proxied
from tests.support.store_harness import StoreHarness

REDIRECT = "http://127.0.0.1:8765/callback"
WRITE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "tools/call",
    "params": {"name": "write_note", "arguments": {"text": "milk"}},
}
ENDLESS = b'{"access_token": "a", "token_type": "Bearer", "expires_in": 1' + 400 * b"0" + b"}"
ACCEPT = {"accept": "application/json, text/event-stream", "mcp-protocol-version": "2025-06-18"}


@pytest.fixture
def notes() -> Iterator[LoginServer]:
    with LoginServer() as server:
        yield server


@pytest.fixture
async def upstream() -> AsyncIterator[UpstreamClient]:
    client = await asyncio.to_thread(UpstreamClient, ModelProxyLimits())
    yield client
    await client.close()


async def allow(address: str) -> Any:
    """Be the owner, who allows it."""
    return result_of(urlsplit(await asyncio.to_thread(browse, address)).query, state_of(address))


async def log_in(
    url: str,
    upstream: UpstreamClient,
    *,
    authorise: mcp_oauth.Authorise = allow,
    now_ms: int = 0,
    **fields: Any,
) -> McpLogin:
    request = LoginRequest(url=url, redirect_uri=REDIRECT, **fields)
    return await mcp_oauth.log_in(request, upstream, authorise=authorise, now_ms=lambda: now_ms)


@dataclass
class Home:
    """A proxy with a login at the notes; `ended` are the logins that the owner was notified of."""

    notes: LoginServer
    data: Path
    served: Proxied
    tokens: McpTokens
    clock: FakeClock
    server: McpServer
    noted: list[AuditEvent] = field(default_factory=list)
    ended: list[tuple[str, str | None]] = field(default_factory=list)
    ids: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    @property
    def login(self) -> McpLogin | None:
        return mcp_logins.read(self.data, self.server)

    async def begin(self) -> dict[str, str]:
        """Begin a session; return the headers for calls in it."""
        hello = {
            **WRITE,
            "method": "initialize",
            "params": {
                "protocolVersion": "2025-06-18",
                "capabilities": {},
                "clientInfo": {"name": "t", "version": "1"},
            },
        }
        response = await self.served.call("/mcp/notes", content=json.dumps(hello), headers=ACCEPT)
        assert response.status_code == 200, response.text
        return {**ACCEPT, "mcp-session-id": response.headers["mcp-session-id"]}

    async def call(self, headers: dict[str, str], tool: str = "write_note") -> tuple[int, str]:
        message = {**WRITE, "id": next(self.ids), "params": {**WRITE["params"], "name": tool}}
        response = await self.served.call("/mcp/notes", content=json.dumps(message), headers=headers)
        return response.status_code, response.text


@pytest.fixture
async def home(tmp_path: Path, notes: LoginServer, upstream: UpstreamClient) -> AsyncIterator[Home]:
    clock = FakeClock()
    server = McpServer(name="notes", url=notes.url, groups=(Folder("group-0"),))
    login = await log_in(notes.url, upstream, now_ms=clock.now_ms())
    mcp_logins.write(tmp_path, "notes", login)
    made: list[Home] = []

    async def find(folder: Folder, name: str) -> McpServer | None:
        return server if name == "notes" else None

    async def on_refused(name: str, login: McpLogin) -> None:
        made[0].ended.append((name, login.refused))

    async def client() -> UpstreamClient:
        return upstream

    tokens = McpTokens(tmp_path, client, clock=clock, on_refused=on_refused)
    async with AsyncExitStack() as stack:
        parsing = await stack.enter_async_context(aclosing(ParsingProcess(clock=clock)))
        gateway = McpGateway(
            find,
            lambda _: None,
            note=lambda event: made[0].noted.append(event),
            clock=clock,
            parsing=parsing,
            sessions=SessionSeal(b"key"),
            tokens=tokens,
        )
        served = await stack.enter_async_context(proxied(tmp_path, mcp=gateway))
        made.append(Home(notes, tmp_path, served, tokens, clock, server))
        yield made[0]
        notes.accounts.gate.set()
        await tokens.close()


async def test_a_login_is_discovered_registered_and_proved_by_pkce_for_this_resource(
    notes: LoginServer, upstream: UpstreamClient
) -> None:
    addresses: list[str] = []

    async def authorise(address: str) -> Any:
        addresses.append(address)
        return await allow(address)

    login = await log_in(notes.url, upstream, authorise=authorise, now_ms=5_000)

    asked = parse_qs(urlsplit(addresses[0]).query)
    assert asked["code_challenge_method"] == ["S256"]
    assert asked["redirect_uri"] == [REDIRECT]
    assert notes.accounts.resources == [notes.url]
    assert login.access_token in notes.accounts.tokens
    assert login.refresh_token in notes.accounts.refreshes
    assert (login.url, login.expires_ms, login.is_own_client) == (notes.url, 3_605_000, False)
    assert login.client["client_id"] in notes.accounts.clients
    assert login.access_token not in repr(login)
    assert (login.refresh_token or "") not in repr(login)
    assert str(login.client["client_secret"]) not in repr(login)


async def test_a_client_that_the_owner_was_given_is_used_and_used_again(
    notes: LoginServer, upstream: UpstreamClient
) -> None:
    first = await log_in(notes.url, upstream)
    known, secret = first.client["client_id"], first.client["client_secret"]
    notes.accounts.clients[known].token_endpoint_auth_method = "client_secret_basic"
    given = await log_in(notes.url, upstream, client_id=known, client_secret=secret)
    assert given.is_own_client
    assert given.client["client_id"] == known
    again = await log_in(notes.url, upstream, known_client=given.client)
    assert (again.is_own_client, again.client["client_id"]) == (True, known)
    assert len(notes.accounts.clients) == 1


async def test_calls_go_up_with_the_token_and_no_answer_brings_it_back(home: Home) -> None:
    headers = await home.begin()
    status, text = await home.call(headers)
    assert (status, home.notes.written) == (200, ["milk"])
    login = home.login
    assert login is not None
    assert home.notes.proofs[-1] == f"Bearer {login.access_token}"
    status, text = await home.call(headers, "tell_secret")
    assert "you showed me Bearer [secret]" in text
    assert login.access_token not in text + repr(home.noted)


@pytest.mark.parametrize("how", ["expired", "revoked"])
async def test_ten_calls_that_wait_for_a_new_token_renew_it_once(home: Home, how: str) -> None:
    headers = await home.begin()
    before = home.login
    assert before is not None
    home.clock.pass_ms(3_600_000 if how == "expired" else 60_000)
    home.notes.accounts.tokens.clear()
    home.notes.accounts.gate.clear()
    calls = [asyncio.create_task(home.call(headers)) for _ in range(10)]
    assert await asyncio.to_thread(home.notes.accounts.asked.wait, 60)
    home.notes.accounts.gate.set()
    found = await asyncio.gather(*calls)
    assert [status for status, _ in found] == [200] * 10, found
    assert home.notes.written == ["milk"] * 10
    assert home.notes.accounts.renewed == 1
    after = home.login
    assert after is not None
    assert after.refresh_token not in (None, before.refresh_token), "it was rotated"
    assert home.ended == []


async def test_a_token_that_ends_within_ten_calls_is_renewed_once_more(home: Home) -> None:
    headers = await home.begin()
    for round_number in (1, 2):
        home.clock.pass_ms(3_590_000)
        found = await asyncio.gather(*(home.call(headers) for _ in range(10)))
        assert [status for status, _ in found] == [200] * 10
        assert home.notes.accounts.renewed == round_number


async def test_a_renewal_that_is_refused_ends_the_login_and_the_owner_is_notified_once(home: Home) -> None:
    headers = await home.begin()
    home.clock.pass_ms(3_600_000)
    home.notes.accounts.end_all()
    found = await asyncio.gather(*(home.call(headers) for _ in range(5)))
    found.append(await home.call(headers))
    for status, text in found:
        assert status == 200
        answer = json.loads(text)
        assert answer["result"]["isError"]
        assert "andy mcp login notes" in answer["result"]["content"][0]["text"]
    assert home.ended == [("notes", "invalid_grant")]
    assert home.notes.written == []
    login = home.login
    assert login is not None
    assert login.is_over(home.clock.now_ms())
    before = login.model_copy(update={"refused": None})
    assert await home.tokens._renew(home.server, before) == login, "who had read it before asks nobody again"
    assert len(home.ended) == 1
    response = await home.served.call("/mcp/notes", method="GET", headers=headers)
    assert response.status_code == 403
    assert "andy mcp login notes" in response.text
    assert "andy mcp login notes" in home.noted[-1].detail["refused"]


async def test_a_new_token_that_is_refused_at_once_is_not_renewed_again_and_again(home: Home) -> None:
    headers = await home.begin()
    home.clock.pass_ms(60_000)
    home.notes.accounts.tokens.clear()
    assert (await home.call(headers))[0] == 200
    for _ in range(3):
        home.notes.accounts.tokens.clear()
        assert "andy mcp login notes" in (await home.call(headers))[1]
    assert home.notes.accounts.renewed == 1
    assert home.ended == [], "the login may count again"


async def test_a_renewal_outlives_who_waited_for_it(home: Home) -> None:
    home.clock.pass_ms(3_600_000)
    home.notes.accounts.gate.clear()
    waiting = asyncio.create_task(home.tokens.token(home.server))
    assert await asyncio.to_thread(home.notes.accounts.asked.wait, 60)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    home.notes.accounts.gate.set()
    await home.tokens.close()
    login = home.login
    assert login is not None
    assert login.refresh_token in home.notes.accounts.refreshes
    assert await home.tokens.token(home.server) == login.access_token
    assert home.notes.accounts.renewed == 1


async def test_a_login_that_is_made_while_another_is_renewed_stays(
    home: Home, upstream: UpstreamClient
) -> None:
    home.clock.pass_ms(3_600_000)
    home.notes.accounts.gate.clear()
    waiting = asyncio.create_task(home.tokens.token(home.server))
    assert await asyncio.to_thread(home.notes.accounts.asked.wait, 60)
    newer = await log_in(home.notes.url, upstream, now_ms=home.clock.now_ms())
    mcp_logins.write(home.data, "notes", newer)
    home.notes.accounts.gate.set()
    assert await waiting == newer.access_token
    assert home.login == newer
    mcp_logins.write(home.data, "notes", None)
    assert await home.tokens.token(home.server) is None


async def test_a_login_stays_while_who_renews_it_is_away(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    headers = await home.begin()
    home.clock.pass_ms(3_600_000)
    kept = home.login
    assert kept is not None
    away = {**kept.metadata, "token_endpoint": "http://127.0.0.1:1/token"}
    mcp_logins.write(home.data, "notes", kept.model_copy(update={"metadata": away}))
    home.clock.pass_ms(-1_000)
    assert (await home.call(headers))[0] == 200, "the old token counts to its last second"
    home.clock.pass_ms(1_000)
    status, text = await home.call(headers)
    assert status == 502
    assert "try again later" in text
    assert home.ended == []
    mcp_logins.write(home.data, "notes", kept)
    assert (await home.call(headers))[0] == 200


async def test_a_disk_that_takes_nothing_costs_no_token(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    headers = await home.begin()
    home.clock.pass_ms(3_600_000)
    before = home.login

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(mcp_logins, "write_whole", full)
        assert (await home.call(headers))[0] == 502
    assert (home.login, home.notes.accounts.renewed) == (before, 0)
    assert (await home.call(headers))[0] == 200


async def test_who_has_no_login_is_asked_for_one_and_a_login_for_another_address_counts_for_nothing(
    home: Home,
) -> None:
    login = home.login
    assert login is not None
    mcp_logins.write(home.data, "notes", login.model_copy(update={"url": "http://127.0.0.1:1/mcp"}))
    status, text = await home.call(ACCEPT)
    assert status == 200
    assert "andy mcp login notes" in text
    assert home.notes.proofs[-1] is None
    mcp_logins.delete_outdated(home.data, home.server)
    assert not (home.data / "mcp-logins" / "notes.json").exists()


async def test_a_file_of_a_login_is_the_owners_alone_and_one_that_is_spoilt_counts_for_nothing(
    home: Home,
) -> None:
    path = home.data / "mcp-logins" / "notes.json"
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    for spoilt in ("", "{}", "[" * 100_000, '{"id": 1}'):
        path.write_text(spoilt)
        assert home.login is None
        assert await home.tokens.token(home.server) is None


async def test_without_a_way_to_renew_the_login_is_over_when_its_token_is(home: Home) -> None:
    login = home.login
    assert login is not None
    mcp_logins.write(home.data, "notes", login.model_copy(update={"refresh_token": None}))
    home.clock.pass_ms(3_595_000)
    assert await home.tokens.token(home.server) == login.access_token
    home.clock.pass_ms(5_000)
    with pytest.raises(LoginNeeded):
        await home.tokens.token(home.server)


@pytest.mark.parametrize(
    ("challenge", "scope"),
    [
        ('Bearer error="insufficient_scope", scope="notes:write"', "notes:write"),
        ('Bearer scope="notes:write", error=insufficient_scope', "notes:write"),
        ('Bearer error="insufficient_scope"', ""),
        ('Bearer error="insufficient_scope", scope="a\\"b"', ""),
        ('Bearer error="insufficient_scope_of_mine", scope="a"', None),
        ('Bearer error="invalid_token", scope="a"', None),
        ("", None),
    ],
)
def test_a_server_that_wants_more_rights_is_understood(challenge: str, scope: str | None) -> None:
    assert mcp_logins.wanted_scope([challenge.encode()]) == scope


async def test_rights_that_a_server_misses_are_asked_for_at_the_next_login(
    strange: tuple[FaultyUpstream, Published], upstream: UpstreamClient, tmp_path: Path
) -> None:
    server, published = strange
    published.token["scope"] = "notes:read"
    login = await log_in(f"{server.url}/mcp", upstream, authorise=allow_here)
    mcp_logins.write(tmp_path, "notes", login)
    notes = McpServer(name="notes", url=login.url, groups=())

    async def client() -> UpstreamClient:
        return upstream

    async def on_refused(name: str, login: McpLogin) -> None:
        raise AssertionError

    tokens = McpTokens(tmp_path, client, clock=FakeClock(), on_refused=on_refused)
    for wanted in ("notes:write", "notes:write notes:read", "", "notes:share"):
        await tokens.note_wanted_scope(notes, wanted)
    stored = mcp_logins.read(tmp_path, notes)
    assert stored is not None
    assert stored.wanted_scope == "notes:read notes:write notes:share"
    assert stored.access_token == login.access_token
    assert mcp_logins.change(tmp_path, "notes", stored, access_token="at-2")
    assert not mcp_logins.change(tmp_path, "notes", stored, wanted_scope="x"), "an old token brings none back"

    addresses: list[str] = []

    async def authorise(address: str) -> Any:
        addresses.append(address)
        return await allow_here(address)

    challenge = (
        'www-authenticate: Bearer scope="notes:read", resource_metadata="' + server.url + RESOURCE + '"'
    )
    published.bodies["/mcp"] = (401, b"", (challenge,))
    await log_in(login.url, upstream, authorise=authorise, scope=stored.wanted_scope)
    await log_in(login.url, upstream, authorise=authorise)
    scopes = [parse_qs(urlsplit(address).query)["scope"][0] for address in addresses]
    assert scopes == ["notes:read notes:write notes:share", "notes:read"]


async def test_a_call_that_needs_more_rights_is_answered_with_the_way_to_them(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with FaultyUpstream() as strict:
        wanting = 'Bearer error="insufficient_scope", scope="notes:write"'
        strict.behave = answer(403, b"{}", www_authenticate=wanting)
        login = home.login
        assert login is not None
        object.__setattr__(home.server, "url", f"{strict.url}/mcp")
        mcp_logins.write(home.data, "notes", login.model_copy(update={"url": home.server.url}))

        def full(*_: object, **__: object) -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patched:
            patched.setattr(mcp_logins, "write_whole", full)
            assert "more rights" in (await home.call(ACCEPT))[1]
        status, text = await home.call(ACCEPT)
        assert (status, "more rights" in text, "andy mcp login notes" in text) == (200, True, True)
        stored = home.login
        assert stored is not None
        assert stored.wanted_scope == "notes:write"
        strict.behave = answer(403, b"{}")
        assert (await home.call(ACCEPT))[0] == 502


# What servers publish


@dataclass
class Published:
    """A server with its metadata, each of which a test may spoil."""

    base: str
    resource: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    bodies: dict[str, tuple[int, bytes, tuple[str, ...]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.resource = {"resource": f"{self.base}/mcp", "authorization_servers": [self.base]}
        self.metadata = {
            "issuer": self.base,
            "authorization_endpoint": f"{self.base}/authorize",
            "token_endpoint": f"{self.base}/token",
            "registration_endpoint": f"{self.base}/register",
            "code_challenge_methods_supported": ["S256"],
        }
        self.client = {"client_id": "andy", "token_endpoint_auth_method": "none"}
        self.token: dict[str, Any] = {"access_token": "at-1", "token_type": "Bearer", "expires_in": 60}

    def answers(self) -> dict[str, tuple[int, bytes, tuple[str, ...]]]:
        def of(document: object) -> tuple[int, bytes, tuple[str, ...]]:
            return 200, json.dumps(document).encode(), ()

        return {
            "/mcp": (401, b"", ("www-authenticate: Bearer",)),
            "/.well-known/oauth-protected-resource/mcp": of(self.resource),
            "/.well-known/oauth-authorization-server": of(self.metadata),
            "/register": of(self.client),
            "/token": of(self.token),
            **self.bodies,
        }

    async def behave(
        self, received: Received, _: FaultyUpstream, __: asyncio.StreamReader, to: asyncio.StreamWriter
    ) -> None:
        status, body, headers = self.answers().get(received.target.partition("?")[0], (404, b"", ()))
        lines = [f"HTTP/1.1 {status} X", f"content-length: {len(body)}", *headers, "", ""]
        to.write("\r\n".join(lines).encode() + body)


@pytest.fixture
async def strange() -> AsyncIterator[tuple[FaultyUpstream, Published]]:
    async with FaultyUpstream() as server:
        published = Published(server.url)
        server.behave = published.behave
        yield server, published


async def allow_here(address: str) -> Any:
    return result_of(f"code=c&state={state_of(address)}", state_of(address))


def spoil_metadata(**fields: object) -> Callable[[Published], None]:
    return lambda one: one.metadata.update(fields)


def spoil_resource(**fields: object) -> Callable[[Published], None]:
    return lambda one: one.resource.update(fields)


def serve(path: str, body: bytes, status: int = 200, *headers: str) -> Callable[[Published], None]:
    return lambda one: one.bodies.update({path: (status, body, headers)})


METADATA = "/.well-known/oauth-authorization-server"
RESOURCE = "/.well-known/oauth-protected-resource/mcp"


async def test_what_a_server_publishes_is_enough_for_a_login(
    strange: tuple[FaultyUpstream, Published], upstream: UpstreamClient
) -> None:
    server, _ = strange
    login = await log_in(f"{server.url}/mcp", upstream, authorise=allow_here)
    assert login.access_token == "at-1"
    assert [one.target for one in server.received] == ["/mcp", RESOURCE, METADATA, "/register", "/token"]
    form = parse_qs(server.received[-1].body.decode())
    assert form["resource"] == [f"{server.url}/mcp"]
    assert 43 <= len(form["code_verifier"][0]) <= 128


async def test_the_secret_of_a_client_goes_up_as_the_authorisation_server_takes_it(
    strange: tuple[FaultyUpstream, Published], upstream: UpstreamClient
) -> None:
    server, published = strange
    for methods, is_in_form in (
        (["client_secret_post"], True),
        (["client_secret_basic"], False),
        (None, False),
    ):
        published.metadata["token_endpoint_auth_methods_supported"] = methods
        url = f"{server.url}/mcp"
        await log_in(url, upstream, authorise=allow_here, client_id="own", client_secret="s3cret")
        sent = server.received[-1]
        assert ("s3cret" in sent.body.decode()) is is_in_form
        assert bool(sent.values("authorization")) is not is_in_form
        assert "/register" not in [one.target for one in server.received]


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (spoil_metadata(issuer="http://127.0.0.1:9"), "issuer mismatch"),
        (spoil_metadata(issuer="https://evil.example"), "issuer mismatch"),
        (spoil_metadata(code_challenge_methods_supported=["plain"]), "PKCE"),
        (lambda one: one.metadata.pop("code_challenge_methods_supported"), "PKCE"),
        (spoil_metadata(token_endpoint="http://evil.example/token"), "no https"),
        (spoil_metadata(registration_endpoint="http://169.254.169.254/latest"), "no https"),
        (spoil_metadata(authorization_endpoint="http://evil.example/authorize"), "no https"),
        (spoil_metadata(token_endpoint="https://user:pw@127.0.0.1/token"), "no https"),
        (spoil_metadata(token_endpoint="https://10.0.0.1/token"), "private address"),
        (spoil_metadata(registration_endpoint="https://192.168.0.1/register"), "private address"),
        (spoil_metadata(token_endpoint="javascript:alert(1)"), "metadata can be used"),
        (serve(METADATA, b"<html>"), "metadata can be used"),
        (serve(METADATA, b"\xff\xfe\x00"), "metadata can be used"),
        (serve(METADATA, b"[" * 100_000), "metadata can be used"),
        (serve(METADATA, b'{"issuer": 7}'), "metadata can be used"),
        (serve(METADATA, b" " * 300_000), "256 KiB"),
        (serve(METADATA, b"", 302, "location: http://169.254.169.254/"), "metadata can be used"),
        (serve(METADATA, b"{}", 200, "content-encoding: gzip"), "coding"),
        (spoil_resource(resource="https://other.example/mcp"), "does not match"),
        (spoil_resource(authorization_servers=["http://169.254.169.254"]), "no https"),
        (spoil_resource(authorization_servers=["https://10.1.2.3"]), "private address"),
        (
            serve("/mcp", b"", 401, 'www-authenticate: Bearer resource_metadata="http://10.0.0.1/x"'),
            "no https",
        ),
        (
            serve("/mcp", b"", 401, 'www-authenticate: Bearer resource_metadata="file:///etc/passwd"'),
            "no https",
        ),
        (
            serve("/mcp", b"", 401, 'www-authenticate: Bearer resource_metadata="https://a.example/\tb"'),
            "not OAuth",
        ),
        (serve("/mcp", b"", 404), "HTTP 404"),
        (serve("/register", b'{"error": "no"}', 403), "--client-id"),
        (serve("/register", b"{}"), "--client-id"),
        (
            serve("/register", b'{"client_id": "a", "token_endpoint_auth_method": "tls_client_auth"}'),
            "--client-id",
        ),
        (serve("/token", b'{"error": "invalid_grant"}', 400), "no token"),
        (serve("/token", b'{"access_token": 7}'), "no token"),
        (serve("/token", b'{"access_token": "a\\r\\nx: y", "token_type": "Bearer"}'), "no header"),
        (serve("/token", b'{"access_token": "", "token_type": "Bearer"}'), "no header"),
        (serve("/token", b'{"access_token": "a", "token_type": "mac"}'), "no token"),
        (serve("/token", ENDLESS), "not OAuth"),
    ],
)
async def test_what_no_login_may_follow_is_refused_in_one_line(
    strange: tuple[FaultyUpstream, Published],
    upstream: UpstreamClient,
    spoil: Callable[[Published], object],
    words: str,
) -> None:
    server, published = strange
    spoil(published)
    with pytest.raises(LoginRefused, match=words) as refused:
        await log_in(f"{server.url}/mcp", upstream, authorise=allow_here)
    assert "\n" not in str(refused.value)
    assert "at-1" not in str(refused.value)


async def test_a_server_elsewhere_may_name_no_address_of_this_machine(upstream: UpstreamClient) -> None:
    flow = mcp_oauth._Flow("https://notes.example/mcp", upstream, client=None, redirect_uri=REDIRECT)
    assert flow._check_address("https://notes.example/token") is False, "the owner named this host"
    assert flow._check_address("https://auth.example/token") is True
    assert flow._check_address("https://127.0.0.1/token") is True
    for address in (
        "http://127.0.0.1:8080/token",
        "http://localhost/",
        "http://notes.example/",
        "//notes.example",
    ):
        with pytest.raises(LoginRefused):
            flow._check_address(address)


@pytest.mark.parametrize(
    ("status", "body", "is_over"),
    [
        (400, b'{"error": "invalid_grant"}', True),
        (401, b'{"error": "invalid_client"}', True),
        (400, b'{"error": "temporarily_unavailable"}', False),
        (400, b'{"error": "\\u001b[2J"}', False),
        (400, b"<html>", False),
        (403, b"<html>", False),
        (404, b'{"error": "not_found"}', False),
        (429, b'{"error": "invalid_grant"}', False),
        (500, b'{"error": "invalid_grant"}', False),
        (302, b"", False),
        (200, b"<html>", False),
        (200, b'{"access_token": 7}', False),
        (200, ENDLESS, False),
    ],
)
async def test_only_a_refusal_of_oauth_ends_a_login(
    strange: tuple[FaultyUpstream, Published],
    upstream: UpstreamClient,
    caplog: pytest.LogCaptureFixture,
    status: int,
    body: bytes,
    is_over: bool,
) -> None:
    server, published = strange
    # As uvicorn does, which enables each logger that was disabled.
    logging.config.dictConfig({"version": 1, "disable_existing_loggers": False})
    published.token["refresh_token"] = "rt-1"
    login = await log_in(f"{server.url}/mcp", upstream, authorise=allow_here)
    published.bodies["/token"] = (status, body, ("location: http://169.254.169.254/",))
    with pytest.raises(LoginRefused) as refused:
        await mcp_oauth.renew(login, upstream, now_ms=0)
    assert isinstance(refused.value, mcp_logins.LoginUnreachable) is not is_over
    assert not caplog.records, "what is logged there holds answers"
    published.bodies.clear()
    published.token = {"access_token": "at-2", "token_type": "bearer", "expires_in": 60}
    renewed = await mcp_oauth.renew(login, upstream, now_ms=1_000)
    assert (renewed["access_token"], renewed["refresh_token"]) == ("at-2", "rt-1")
    assert (renewed["obtained_ms"], renewed["expires_ms"]) == (1_000, 61_000)
    form = parse_qs(server.received[-1].body.decode())
    assert (form["grant_type"], form["refresh_token"]) == (["refresh_token"], ["rt-1"])
    assert form["resource"] == [f"{server.url}/mcp"]


# What comes back from the browser


@pytest.mark.parametrize(
    "query",
    [
        "",
        "code=c",
        "code=c&state=other",
        "code=c&state=",
        "state=s1",
        "code=&state=s1",
        "code=c&state=s1&state=s1",
        "code=c&code=d&state=s1",
        "error=access_denied&state=other",
        "&".join(["code=c", "state=s1", *(f"a{number}=1" for number in range(30))]),
    ],
)
def test_an_address_of_another_login_is_refused(query: str) -> None:
    with pytest.raises(NotThisLogin):
        result_of(query, "s1")


def test_a_login_that_the_owner_refuses_ends_with_the_reason() -> None:
    with pytest.raises(LoginRefused, match=r"access_denied \(not \\u001b\[2J today\)"):
        result_of("error=access_denied&error_description=not+%1b%5b2J+today&state=s1", "s1")


async def test_a_result_with_a_foreign_issuer_is_refused(
    strange: tuple[FaultyUpstream, Published], upstream: UpstreamClient
) -> None:
    server, _ = strange

    async def authorise(address: str) -> Any:
        state = state_of(address)
        return result_of(f"code=c&state={state}&iss=https://evil.example", state)

    with pytest.raises(LoginRefused, match="iss mismatch"):
        await log_in(f"{server.url}/mcp", upstream, authorise=authorise)
    assert server.received[-1].target == "/register", "the code goes nowhere"


# The commands


@pytest.fixture
def andy_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, notes: LoginServer) -> AndyHome:
    monkeypatch.setenv("ANDY_HOME", str(tmp_path))
    home = AndyHome(tmp_path)
    home.make()

    async def make() -> None:
        database = await Database.open(home.database)
        async with database.transaction() as tx:
            await registration.ensure_main(tx, now_ms=0)
        await database.close()

    asyncio.run(make())
    _run(["mcp", "add", "notes", notes.url])
    return home


def listed(capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    _run(["mcp", "list"])
    return capsys.readouterr().out


def pasted(monkeypatch: pytest.MonkeyPatch, answer: Callable[[str], list[str]]) -> None:
    """Have the owner open the address that is printed, and paste what `answer` makes of it."""
    printed: list[str] = []

    class Pasting(io.StringIO):
        def readline(self, *_: object) -> str:  # type: ignore[override]
            if not lines:
                address = next(one for text in printed for one in text.split() if "code_challenge" in one)
                lines.extend([*answer(address), ""])
            return lines.pop(0)

    lines: list[str] = []
    monkeypatch.setattr("sys.stdin", Pasting())
    monkeypatch.setattr("builtins.print", lambda *texts, **_: printed.extend(map(str, texts)))


@pytest.mark.slow
def test_the_owner_logs_in_with_a_browser_of_this_machine_and_out(
    andy_home: AndyHome, notes: LoginServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "none" in listed(capsys)
    command = [sys.executable, "-m", "orchestrator", "mcp", "login", "notes"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as andy:
        assert andy.stdout is not None
        assert andy.stderr is not None
        address = next(line.strip() for line in andy.stdout if "code_challenge" in line)
        with httpx.Client(trust_env=False) as browser:
            back = browse(address)
            foreign = browser.get(back.replace(state_of(address), "stolen"))
            assert (foreign.status_code, "belongs to no login" in foreign.text) == (400, True)
            assert browser.get(back.partition("callback")[0]).status_code == 404
            assert "go back to the terminal" in browser.get(back).text
        assert "Logged in to 'notes'" in andy.stdout.read()
        assert andy.stderr.read() == ""
    assert andy.returncode == 0
    login = json.loads((andy_home.data / "mcp-logins" / "notes.json").read_text())
    assert login["access_token"] in notes.accounts.tokens
    assert "logged in" in listed(capsys)

    _run(["mcp", "logout", "notes"])
    assert "revoked there" in capsys.readouterr().out
    assert notes.accounts.tokens == {}
    _run(["mcp", "logout", "notes"])
    assert "Nobody was logged in" in capsys.readouterr().out
    assert not (andy_home.data / "mcp-logins" / "notes.json").exists()
    with closing(sqlite3.connect(andy_home.database)) as store:
        rows = store.execute("SELECT kind, detail FROM audit ORDER BY id").fetchall()
    assert [kind for kind, _ in rows if "logged" in kind] == ["mcp.logged_in", "mcp.logged_out"]
    assert login["access_token"] not in repr(rows)


def test_the_owner_logs_in_with_a_browser_of_another_machine(
    andy_home: AndyHome, notes: LoginServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        pasted(
            patched, lambda address: ["hello", "http://127.0.0.1/callback?code=c&state=x", browse(address)]
        )
        _run(["mcp", "login", "notes", "--paste"])
    server = McpServer(name="notes", url=notes.url, groups=())
    login = mcp_logins.read(andy_home.data, server)
    assert login is not None
    assert login.access_token in notes.accounts.tokens
    _run(["mcp", "remove", "notes"])
    assert mcp_logins.read(andy_home.data, server) is None, "it goes with the server"


def test_a_login_that_does_not_come_about_changes_nothing(
    andy_home: AndyHome, notes: LoginServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        pasted(patched, lambda _: ["code=c", "x", "http://127.0.0.1/?code=c&state=stolen"])
        with pytest.raises(AndyError, match="No address of this login"):
            _run(["mcp", "login", "notes", "--paste"])
    notes.accounts.denies = True
    with monkeypatch.context() as patched:
        pasted(patched, lambda address: [browse(address)])
        with pytest.raises(AndyError, match="access_denied"):
            _run(["mcp", "login", "notes", "--paste"])
    assert not (andy_home.data / "mcp-logins" / "notes.json").exists()


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["nothing"], "andy mcp list"),
        (["dice"], "a program"),
        (["secret"], "NOTES_TOKEN"),
        (["notes", "--client-secret-env", "A_SECRET"], "--client-id"),
        (["notes", "--client-id", "a", "--client-secret-env", "A_SECRET"], "A_SECRET=…"),
    ],
)
def test_a_login_that_cannot_be_is_refused_with_the_fix(
    andy_home: AndyHome, words: list[str], text: str
) -> None:
    (andy_home.root / "mcp" / "dice").mkdir(parents=True)
    (andy_home.root / "mcp" / "dice" / "server.py").touch()
    _run(["mcp", "add", "dice", "--command", "python3 server.py"])
    _run(["mcp", "add", "secret", "https://notes.example/mcp", "--secret-env", "NOTES_TOKEN"])
    with pytest.raises(AndyError, match=text):
        _run(["mcp", "login", *words])


def test_a_login_that_is_over_is_shown_with_the_way_back(
    andy_home: AndyHome,
    notes: LoginServer,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with monkeypatch.context() as patched:
        pasted(patched, lambda address: [browse(address)])
        _run(["mcp", "login", "notes", "--paste"])
    server = McpServer(name="notes", url=notes.url, groups=())
    login = mcp_logins.read(andy_home.data, server)
    assert login is not None
    assert asyncio.run(doctor_checks.mcp_servers(andy_home)).state == "ok"
    mcp_logins.write(andy_home.data, "notes", login.model_copy(update={"refused": "invalid_grant"}))
    assert "LOGIN OVER: andy mcp login notes" in listed(capsys)
    finding = asyncio.run(doctor_checks.mcp_servers(andy_home))
    assert (finding.state, finding.fix) == ("bad", "andy mcp login notes")

    _run(["mcp", "add", "notes", "https://elsewhere.example/mcp"])
    assert not (andy_home.data / "mcp-logins" / "notes.json").exists(), "a token goes to no other address"
    assert asyncio.run(doctor_checks.mcp_servers(andy_home)).state == "ok"


@pytest.mark.parametrize("left", ["", "80", "x", "99999", "-1", "\u0663"])
async def test_a_host_starts_with_a_key_and_ports_that_a_crash_has_left_in_part(
    store_harness: StoreHarness, tmp_path: Path, left: str
) -> None:
    host = host_context(store_harness, tmp_path)
    host.home.data.mkdir(parents=True, exist_ok=True)
    for name in ("mcp-session-key", "proxy-port", "egress-port"):
        (host.home.data / name).write_text(left, encoding="utf-8")
    proxies = ContainerProxies(
        host, credentials=CredentialSource(tmp_path, {}), address="127.0.0.1", on_runaway=lambda *_: None
    )
    async with AsyncExitStack() as stack:
        await proxies.open(stack)
    assert len((host.home.data / "mcp-session-key").read_bytes()) == 32
    assert int((host.home.data / "proxy-port").read_text()) > 0


async def test_a_host_notifies_its_owner_once_a_login(store_harness: StoreHarness, tmp_path: Path) -> None:
    await store_harness.add_group("main", is_main=True)
    proxies = ContainerProxies(
        host_context(store_harness, tmp_path),
        credentials=CredentialSource(tmp_path, {}),
        address="127.0.0.1",
        on_runaway=lambda *_: None,
    )
    login = McpLogin(
        id="1",
        url="https://notes.example/mcp",
        client={},
        is_own_client=False,
        metadata={},
        resource=None,
        access_token="at-1",
        refresh_token="rt-1",
        scope=None,
        obtained_ms=0,
        expires_ms=None,
        refused="invalid_grant",
    )
    for _ in range(2):
        await proxies._notify_login_refused("notes", login)
    (row,) = await store_harness.rows("SELECT text FROM outbox")
    assert "andy mcp login notes" in row["text"]
    await proxies._notify_login_refused("notes", login.model_copy(update={"id": "2"}))
    assert len(await store_harness.rows("SELECT text FROM outbox")) == 2, "another login"
    rows = await store_harness.rows("SELECT detail FROM audit WHERE kind = 'mcp.login_ended'")
    assert [json.loads(one["detail"])["reason"] for one in rows] == ["invalid_grant"] * 3
