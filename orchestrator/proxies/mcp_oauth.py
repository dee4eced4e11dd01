"""Log in to an MCP server by OAuth 2.1, renew a token and revoke it, with the client of the package `mcp`.

The package decides what to request and judges the answers: discovery (RFC 9728, RFC 8414, OpenID Connect),
registration (RFC 7591), PKCE (S256), `resource` (RFC 8707), `iss` (RFC 9207). Each request is sent by Andy's
own HTTP client, within limits: only https, or this machine for a server on it; no redirects; no private
network that the owner did not name.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
import re
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import httpx2
from mcp.client.auth import OAuthClientProvider, OAuthFlowError, OAuthRegistrationError, OAuthTokenError
from mcp.shared.auth import (
    AuthorizationCodeResult,
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthMetadata,
    OAuthToken,
    ProtectedResourceMetadata,
)
from pydantic import AnyUrl, ValidationError

from orchestrator.base.terminal_escaping import all_visible
from orchestrator.proxies.mcp_logins import LoginRefused, LoginUnreachable, McpLogin
from orchestrator.proxies.model.error_responses import AnswerCut, ProxyRefused
from orchestrator.proxies.model.upstream_client import UpstreamClient, UpstreamRequest

# A filter, because configuring logging again (as uvicorn does) enables loggers that were disabled.
logging.getLogger(OAuthClientProvider.__module__).addFilter(lambda _: False)

MAX_ANSWER_BYTES = 256 * 1024
ANSWER_SECONDS = 30.0
"""Seconds that a server has for one whole answer."""
PROTOCOL_VERSION = "2025-11-25"
MAX_ERROR_CHARS = 300
"""Characters of a server's text that a message to the owner repeats."""
LONG_AGO = 1.0
"""A past time in epoch seconds: with it as a token's expiry, the package renews the token."""
_SENT_HEADERS = frozenset(
    {"accept", "authorization", "content-length", "content-type", "mcp-protocol-version"}
)
_ERROR_CODE = re.compile(r"[a-z_]{1,50}")
_SECRET_METHODS = ("client_secret_basic", "client_secret_post")
_TOKEN = re.compile(r"[\x21-\x7e]{1,16384}")
_TEMPORARY_ERRORS = frozenset({"server_error", "slow_down", "temporarily_unavailable"})
_FIRST_MESSAGE = {
    "jsonrpc": "2.0",
    "id": 0,
    "method": "initialize",
    "params": {
        "protocolVersion": PROTOCOL_VERSION,
        "capabilities": {},
        "clientInfo": {"name": "Andy", "version": "1"},
    },
}

Authorise = Callable[[str], Awaitable[AuthorizationCodeResult]]
"""Lets the owner open an address; returns the parameters with which the browser was redirected back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginRequest:
    """A login that the owner starts."""

    url: str
    redirect_uri: str
    """The address on this machine to which the browser is redirected."""
    client_id: str | None = None
    """The client id that the owner got for Andy; without one, Andy registers itself."""
    client_secret: str | None = field(default=None, repr=False)
    known_client: dict[str, Any] | None = field(default=None, repr=False)
    """The client of the previous login, if the owner set its id."""
    scope: str | None = None
    """The rights to request, if the server demanded some since the previous login;
    otherwise the server names them.
    """


async def log_in(
    request: LoginRequest, upstream: UpstreamClient, *, authorise: Authorise, now_ms: Callable[[], int]
) -> McpLogin:
    """Log in to an MCP server by OAuth, and return the login, which the caller stores.

    `authorise` lets the owner allow the login in a browser; `now_ms` returns the time in epoch milliseconds.

    Raises:
        LoginRefused: the server, its authorisation server or the owner refuses the login, or a server cannot
            be reached.
    """
    owner_client = _client_of_owner(request)
    flow = _Flow(request.url, upstream, client=owner_client, redirect_uri=request.redirect_uri)
    tokens = await flow.log_in(authorise, scope=request.scope)
    context = flow.provider.context
    metadata = context.oauth_metadata
    client = context.client_info
    # A login that has succeeded has found both.
    assert metadata is not None
    assert client is not None
    # The package later uses the client only with the authorisation server that is noted here.
    client.issuer = str(metadata.issuer)
    resource = context.protected_resource_metadata
    at_ms = now_ms()
    return McpLogin(
        id=secrets.token_hex(8),
        url=request.url,
        client=_json(client),
        is_own_client=owner_client is not None and client.client_id == owner_client.client_id,
        metadata=_json(metadata),
        resource=None if resource is None else _json(resource),
        obtained_ms=at_ms,
        **_token_fields(tokens, at_ms),
    )


async def renew(login: McpLogin, upstream: UpstreamClient, *, now_ms: int) -> dict[str, object]:
    """Request a new token for a login, and return the fields of `McpLogin` that it changes.

    The caller stores them. `now_ms` is the present time in epoch milliseconds.

    Raises:
        LoginUnreachable: no token came; the old one stays valid.
        LoginRefused: the login is no longer accepted; the text is the code of the refusal.
    """
    flow = _Flow.of(login, upstream)
    tokens = await flow.renew()
    return {"obtained_ms": now_ms, **_token_fields(tokens, now_ms)}


async def revoke(login: McpLogin, upstream: UpstreamClient) -> bool:
    """Request that the authorisation server revokes a login (RFC 7009), and return whether it confirms that.

    Return False also if the server cannot be reached.
    """
    try:
        return await _Flow.of(login, upstream).revoke(login)
    except LoginRefused:
        return False


class _Flow:
    """One login, renewal or revocation at one server.

    The package's flow is a generator: it yields each request to send, and is given the answer.
    """

    def __init__(
        self,
        url: str,
        upstream: UpstreamClient,
        *,
        client: OAuthClientInformationFull | None,
        redirect_uri: str,
        tokens: OAuthToken | None = None,
    ) -> None:
        """Prepare a flow for the MCP server at `url`.

        Args:
            url: the address of the MCP server.
            upstream: sends the requests.
            client: Andy as the authorisation server has registered it; None before that.
            redirect_uri: the address on this machine to which the browser is redirected.
            tokens: the tokens of an existing login; None for a new one.
        """
        self._url = url
        self._upstream = upstream
        self._storage = _Storage(tokens, client)
        self._first_request = httpx2.Request(
            "POST",
            url,
            json=_FIRST_MESSAGE,
            headers={
                "accept": "application/json, text/event-stream",
                "mcp-protocol-version": PROTOCOL_VERSION,
            },
        )
        self._needs_no_login = False
        """Whether the server answers without a login."""
        self._authorise: Authorise | None = None
        self._redirect_result: AuthorizationCodeResult | None = None
        self.provider = OAuthClientProvider(
            server_url=url,
            client_metadata=OAuthClientMetadata(redirect_uris=[AnyUrl(redirect_uri)], client_name="Andy"),
            storage=self._storage,
            redirect_handler=self._open_browser,
            callback_handler=self._redirect_parameters,
        )

    @classmethod
    def of(cls, login: McpLogin, upstream: UpstreamClient) -> _Flow:
        """Return the flow that renews or revokes an existing login.

        Raises `LoginRefused` if the package cannot read what is stored of the login.
        """
        try:
            client = OAuthClientInformationFull.model_validate(login.client)
            tokens = OAuthToken(
                access_token=login.access_token, refresh_token=login.refresh_token, scope=login.scope
            )
            # The package demands such an address, though neither a renewal nor a revocation uses it.
            redirect_uri = str(client.redirect_uris[0]) if client.redirect_uris else login.url
            flow = cls(login.url, upstream, client=client, redirect_uri=redirect_uri, tokens=tokens)
            context = flow.provider.context
            context.oauth_metadata = OAuthMetadata.model_validate(login.metadata)
            if login.resource is not None:
                context.protected_resource_metadata = ProtectedResourceMetadata.model_validate(login.resource)
        except ValidationError as error:
            raise LoginRefused("unreadable") from error
        # For a renewal: the package renews a token only once it has expired. A revocation ignores it.
        context.token_expiry_time = LONG_AGO
        return flow

    async def log_in(self, authorise: Authorise, *, scope: str | None) -> OAuthToken:
        """Return the token of a login that the owner allows in a browser.

        `authorise` sends the owner to the browser. `scope` are the rights to request; None for those that the
        server names.

        Raises:
            LoginRefused: the server, its authorisation server or the owner refuses the login, or a server
                cannot be reached.
        """
        self._authorise = authorise
        flow = self.provider.async_auth_flow(self._first_request)
        try:
            await self._answer_requests(flow, scope)
        except OAuthRegistrationError as error:
            raise LoginRefused(
                "Its authorisation server does not let Andy register by himself: register a client there and"
                " give its id, 'andy mcp login SERVER --client-id ID'."
            ) from error
        except OAuthTokenError as error:
            raise LoginRefused(
                "Its authorisation server gives no token for this login: try again."
            ) from error
        except OAuthFlowError as error:
            raise LoginRefused(f"The login is refused: {_bounded(str(error))}.") from error
        # The last two are for an invalid address, and for a lifetime that is too long for a date.
        except (ValidationError, ValueError, httpx2.InvalidURL, OverflowError) as error:
            raise LoginRefused("The answer of its authorisation server is not OAuth.") from error
        finally:
            await flow.aclose()
        if self._storage.tokens is None:
            raise LoginRefused("Its authorisation server gave no token.")
        return self._storage.tokens

    async def renew(self) -> OAuthToken:
        """Return a new token for the existing login.

        Raises:
            LoginUnreachable: no token came, but it may come later.
            LoginRefused: the login is no longer accepted; the text is the code of the refusal.
        """
        old_tokens = self._storage.tokens
        flow = self.provider.async_auth_flow(self._first_request)
        try:
            outgoing = await anext(flow)
            # Without a refresh token the package does not renew, and sends the first request at once.
            if outgoing is self._first_request:
                raise LoginRefused("no_refresh_token")
            answer = await self._send(outgoing)
            if answer.status_code != httpx2.codes.OK:
                raise _refusal(answer)
            # The package reads the new token from the answer and stores it in `_storage`.
            await flow.asend(answer)
        except OAuthFlowError as error:
            raise LoginRefused("unreadable") from error
        except OverflowError as error:  # the token's lifetime is too long for a date
            raise LoginUnreachable("It answers with what is no token.") from error
        finally:
            await flow.aclose()
        if self._storage.tokens is None or self._storage.tokens is old_tokens:
            raise LoginUnreachable("It answers with what is no token.")
        return self._storage.tokens

    async def revoke(self, login: McpLogin) -> bool:
        """Request that the login is revoked; return whether the authorisation server confirms it.

        Return False also if it has no address for revoking. Raises `LoginRefused` if it cannot be reached or
        its address may not be used.
        """
        context = self.provider.context
        context.client_info = await self._storage.get_client_info()
        endpoint = context.oauth_metadata.revocation_endpoint if context.oauth_metadata else None
        if endpoint is None or context.client_info is None:
            return False
        data = {
            # With a refresh token, the server should revoke its access tokens, too (RFC 7009, 2.1).
            "token": login.refresh_token or login.access_token,
            "client_id": context.client_info.client_id,
        }
        data, headers = context.prepare_token_auth(data, {})
        answer = await self._send(httpx2.Request("POST", str(endpoint), data=data, headers=headers))
        return answer.status_code == httpx2.codes.OK

    async def _answer_requests(
        self, flow: AsyncGenerator[httpx2.Request, httpx2.Response], scope: str | None
    ) -> None:
        """Send each request that the flow yields, and pass it the answer, until it ends or a token is stored.

        `scope` are the rights to request; None for those that the server names. Raises `LoginRefused`.
        """
        outgoing = await anext(flow)
        while self._storage.tokens is None:
            if outgoing.method == "POST" and outgoing is not self._first_request:
                # A POST registers Andy or requests a token: before it, the discovery must have succeeded.
                self._check_metadata()
            answer = await self._send(outgoing)
            if outgoing is self._first_request:
                self._needs_no_login = answer.is_success
                # A challenge makes the package start a login, even at a server that answers without one.
                answer = _challenge(answer, scope)
            try:
                outgoing = await flow.asend(answer)
            except StopAsyncIteration:
                return

    def _check_metadata(self) -> OAuthMetadata:
        """Return the metadata of the authorisation server.

        Raises `LoginRefused` if there is none, or if the server does not name PKCE with S256, which protects
        the code of a login.
        """
        metadata = self.provider.context.oauth_metadata
        if metadata is None:
            beginning = "The server answers without a login, and" if self._needs_no_login else "The server"
            raise LoginRefused(f"{beginning} names no authorisation server whose metadata can be used.")
        if "S256" not in (metadata.code_challenge_methods_supported or ()):
            raise LoginRefused("Its authorisation server does not say that it takes PKCE with S256.")
        return metadata

    async def _open_browser(self, address: str) -> None:
        """Send the owner's browser to `address` to allow the login, and store what it came back with.

        The package calls this before it requests the token, and then `_redirect_parameters`. Before the token
        is requested it must be known how the client's secret is sent, so that is chosen here too.

        Raises `LoginRefused` if the address may not be used, or the owner did not allow the login.
        """
        metadata = self._check_metadata()
        client = self.provider.context.client_info
        self._check_address(address)
        # Choose a way to send the client's secret that the token server knows: the registered way if
        # possible.
        if client is not None and client.token_endpoint_auth_method in _SECRET_METHODS:
            known_methods = metadata.token_endpoint_auth_methods_supported or _SECRET_METHODS
            preferred_methods = (client.token_endpoint_auth_method, *_SECRET_METHODS)
            usable_methods = (method for method in preferred_methods if method in known_methods)
            client.token_endpoint_auth_method = next(usable_methods, client.token_endpoint_auth_method)
        assert self._authorise is not None
        self._redirect_result = await self._authorise(address)

    async def _redirect_parameters(self) -> AuthorizationCodeResult:
        """Return the parameters with which the browser was redirected back. The package calls it."""
        assert self._redirect_result is not None
        return self._redirect_result

    async def _send(self, outgoing: httpx2.Request) -> httpx2.Response:
        """Send one request of the flow and return the answer, with an empty body for the first request.

        Of the package's headers, only those in `_SENT_HEADERS` are sent.

        Raises:
            LoginRefused: the address may not be used.
            LoginUnreachable: no whole answer came in time, or it is too long or encoded.
        """
        url = str(outgoing.url)
        is_public_only = self._check_address(url)
        headers = [
            (name, value) for name, value in outgoing.headers.raw if name.lower().decode() in _SENT_HEADERS
        ]
        body = await outgoing.aread()
        request = UpstreamRequest(
            method=outgoing.method,
            url=url,
            headers=[*headers, (b"accept-encoding", b"identity"), (b"user-agent", b"andy")],
            body=_one_chunk(body) if body else None,
            first_byte_seconds=ANSWER_SECONDS,
            is_public_only=is_public_only,
        )
        try:
            async with asyncio.timeout(ANSWER_SECONDS), self._upstream.send(request) as answer:
                content = b""
                # The body of the answer to the first request is not needed, and may be a stream without an
                # end.
                if outgoing is not self._first_request:
                    if not answer.is_plain:
                        raise LoginUnreachable(f"{_host(url)} answers in a coding that was not asked for.")
                    async for chunk in answer.chunks:
                        content += chunk
                        if len(content) > MAX_ANSWER_BYTES:
                            raise LoginUnreachable(f"{_host(url)} answers with more than 256 KiB.")
                # No `next_request`: redirects are not followed.
                return httpx2.Response(
                    answer.status, headers=answer.headers, content=content, request=outgoing
                )
        except (ProxyRefused, AnswerCut, TimeoutError) as error:
            cause = getattr(error, "cause", None) or type(error).__name__
            raise LoginUnreachable(f"{_host(url)} cannot be reached: {_bounded(str(cause))}.") from error

    def _check_address(self, url: str) -> bool:
        """Check an address of the flow, and return whether its host must be a public one of the internet.

        The MCP server's own host may be private, because the owner has named it. This machine may be used if
        the MCP server runs on it.

        Raises:
            LoginRefused: the address may not be used.
        """
        address = urlsplit(url)
        server = urlsplit(self._url)
        is_local = _is_loopback(address.hostname) and _is_loopback(server.hostname)
        if "@" in address.netloc or not (
            address.scheme == "https" or (address.scheme == "http" and is_local)
        ):
            raise LoginRefused(f"A login goes to https alone, and {_bounded(url)} is no https address.")
        return not is_local and address.hostname != server.hostname


class _Storage:
    """Stores the package's data in memory, as the package demands of a storage."""

    def __init__(self, tokens: OAuthToken | None, client: OAuthClientInformationFull | None) -> None:
        """Store the tokens of a login and Andy's registration as a client; None if there is none yet."""
        self.tokens = tokens
        self._client = client

    async def get_tokens(self) -> OAuthToken | None:
        """Return the tokens; None if there are none."""
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        """Replace the tokens."""
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        """Return the registered client; None if there is none."""
        return self._client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        """Replace the registered client."""
        self._client = client_info


def _client_of_owner(request: LoginRequest) -> OAuthClientInformationFull | None:
    """Return the OAuth client that the owner has registered for Andy; None if Andy registers itself.

    The owner named it in this request, or at the previous login.
    """
    redirect_uris = [AnyUrl(request.redirect_uri)]
    if request.client_id is None:
        if request.known_client is None:
            return None
        return OAuthClientInformationFull.model_validate(
            {**request.known_client, "redirect_uris": redirect_uris}
        )
    return OAuthClientInformationFull(
        client_id=request.client_id,
        client_secret=request.client_secret,
        token_endpoint_auth_method=_SECRET_METHODS[0] if request.client_secret else "none",
        redirect_uris=redirect_uris,
    )


def _challenge(answer: httpx2.Response, scope: str | None) -> httpx2.Response:
    """Return the MCP server's answer to the first request as a challenge (401), which starts a login.

    A server that answers without a login may demand one for its tools only, so its answer becomes a
    challenge, too. `scope` are the rights to demand in it; None for those that the server names.

    Raises `LoginRefused` for any other answer.
    """
    if answer.status_code != httpx2.codes.UNAUTHORIZED and not answer.is_success:
        raise LoginRefused(f"The server answers with HTTP {answer.status_code}: is its URL right?")
    challenge = answer.headers.get("www-authenticate", "Bearer")
    if scope is not None:
        # Put first, because the package reads only the first scope of a challenge. The rest of the server's
        # own challenge follows without its scheme, the word `Bearer`.
        challenge = f'Bearer scope="{scope}", {challenge.partition(" ")[2]}'
    return httpx2.Response(
        httpx2.codes.UNAUTHORIZED, headers={"www-authenticate": challenge}, request=answer.request
    )


def _refusal(answer: httpx2.Response) -> LoginRefused:
    """Return the error for an answer without a token.

    For a lasting refusal by OAuth's rules it is a plain `LoginRefused`, which ends the login, with the code
    of the refusal as its text. For anything else it is `LoginUnreachable`.
    """
    code: object = None
    if answer.status_code in (httpx2.codes.BAD_REQUEST, httpx2.codes.UNAUTHORIZED, httpx2.codes.FORBIDDEN):
        try:
            content = json.loads(answer.content)
        except (ValueError, RecursionError):
            content = None
        code = content.get("error") if isinstance(content, dict) else None
    if isinstance(code, str) and _ERROR_CODE.fullmatch(code) and code not in _TEMPORARY_ERRORS:
        return LoginRefused(code)
    return LoginUnreachable(f"It answers with HTTP {answer.status_code}.")


def _token_fields(tokens: OAuthToken, now_ms: int) -> dict[str, Any]:
    """Return the fields of `McpLogin` that a token determines; `now_ms` is when it was obtained.

    Raises `LoginUnreachable` for a token that cannot be sent in a header.
    """
    lifetime_seconds = tokens.expires_in
    if not _TOKEN.fullmatch(tokens.access_token):
        raise LoginUnreachable("It gives a token that no header can carry.")
    return {
        "access_token": tokens.access_token,
        "refresh_token": tokens.refresh_token,
        "scope": tokens.scope,
        "expires_ms": None if lifetime_seconds is None else now_ms + lifetime_seconds * 1000,
    }


def _json(model: OAuthClientInformationFull | OAuthMetadata | ProtectedResourceMetadata) -> dict[str, Any]:
    """Return a document of OAuth as JSON data, without the members that are not set."""
    return model.model_dump(mode="json", exclude_none=True)


async def _one_chunk(body: bytes) -> AsyncGenerator[bytes]:
    """Yield a whole body as one chunk."""
    yield body


def _is_loopback(host: str | None) -> bool:
    """Return whether a host name or IP address means this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host or "").is_loopback
    except ValueError:
        return False


def _host(url: str) -> str:
    """Return the host in an address, for a message to the owner."""
    return urlsplit(url).hostname or "the server"


def _bounded(text: str) -> str:
    """Return a server's text for a message to the owner, shortened and with all characters made visible."""
    shown = all_visible(text)
    return shown if len(shown) <= MAX_ERROR_CHARS else f"{shown[:MAX_ERROR_CHARS]}…"
