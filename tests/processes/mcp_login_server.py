"""A real MCP server that wants OAuth, with its authorisation server, of the package `mcp`, on loopback."""

from __future__ import annotations

import asyncio
import secrets
import threading
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import httpx
from mcp.server.auth.provider import (
    AccessToken,
    AuthorizationCode,
    AuthorizationParams,
    OAuthAuthorizationServerProvider,
    RefreshToken,
    TokenError,
    construct_redirect_uri,
)
from mcp.server.auth.settings import AuthSettings, ClientRegistrationOptions, RevocationOptions
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken
from pydantic import AnyHttpUrl

from tests.processes.mcp_server import NotesServer


@dataclass
class Accounts(OAuthAuthorizationServerProvider[AuthorizationCode, RefreshToken, AccessToken]):
    """The tokens of one owner, who allows everything. A refresh token counts once."""

    lasts_seconds: int = 3600
    denies: bool = False
    clients: dict[str, OAuthClientInformationFull] = field(default_factory=dict)
    codes: dict[str, AuthorizationCode] = field(default_factory=dict)
    tokens: dict[str, AccessToken] = field(default_factory=dict)
    refreshes: dict[str, RefreshToken] = field(default_factory=dict)
    resources: list[str | None] = field(default_factory=list)
    """The `resource` of each code."""
    renewed: int = 0
    gate: threading.Event = field(default_factory=threading.Event)
    """A renewal is answered once this is set."""
    asked: threading.Event = field(default_factory=threading.Event)
    """Set when a renewal has been asked for."""

    def __post_init__(self) -> None:
        self.gate.set()

    async def get_client(self, client_id: str) -> OAuthClientInformationFull | None:
        return self.clients.get(client_id)

    async def register_client(self, client_info: OAuthClientInformationFull) -> None:
        self.clients[client_info.client_id] = client_info

    async def authorize(self, client: OAuthClientInformationFull, params: AuthorizationParams) -> str:
        if self.denies:
            return construct_redirect_uri(str(params.redirect_uri), error="access_denied", state=params.state)
        code = secrets.token_urlsafe()
        self.resources.append(params.resource)
        self.codes[code] = AuthorizationCode(
            code=code,
            scopes=params.scopes or [],
            expires_at=2**40,
            client_id=client.client_id,
            code_challenge=params.code_challenge,
            redirect_uri=params.redirect_uri,
            redirect_uri_provided_explicitly=params.redirect_uri_provided_explicitly,
            resource=params.resource,
        )
        return construct_redirect_uri(str(params.redirect_uri), code=code, state=params.state)

    async def load_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: str
    ) -> AuthorizationCode | None:
        return self.codes.get(authorization_code)

    async def exchange_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: AuthorizationCode
    ) -> OAuthToken:
        del self.codes[authorization_code.code]
        return self._new(client.client_id, authorization_code.scopes)

    async def load_refresh_token(
        self, client: OAuthClientInformationFull, refresh_token: str
    ) -> RefreshToken | None:
        return self.refreshes.get(refresh_token)

    async def exchange_refresh_token(
        self, client: OAuthClientInformationFull, refresh_token: RefreshToken, scopes: list[str]
    ) -> OAuthToken:
        self.renewed += 1
        self.asked.set()
        await asyncio.to_thread(self.gate.wait)
        if self.refreshes.pop(refresh_token.token, None) is None:
            raise TokenError("invalid_grant")
        return self._new(client.client_id, scopes)

    async def load_access_token(self, token: str) -> AccessToken | None:
        return self.tokens.get(token)

    async def revoke_token(self, token: AccessToken | RefreshToken) -> None:
        self.end_all()

    def end_all(self) -> None:
        """Let no token count any more."""
        self.tokens.clear()
        self.refreshes.clear()

    def _new(self, client_id: str, scopes: list[str]) -> OAuthToken:
        token, refresh = f"at-{secrets.token_urlsafe()}", f"rt-{secrets.token_urlsafe()}"
        self.tokens[token] = AccessToken(token=token, client_id=client_id, scopes=scopes)
        self.refreshes[refresh] = RefreshToken(token=refresh, client_id=client_id, scopes=scopes)
        return OAuthToken(access_token=token, refresh_token=refresh, expires_in=self.lasts_seconds)


class LoginServer(NotesServer):
    """The notes, for who has logged in. `accounts` decides who has."""

    def __init__(self) -> None:
        self.accounts = Accounts()
        super().__init__()

    def options(self) -> dict[str, Any]:
        """Have it be its own authorisation server."""
        address = urlsplit(self.url)
        return {
            "auth_server_provider": self.accounts,
            "auth": AuthSettings(
                issuer_url=AnyHttpUrl(f"http://{address.netloc}"),
                resource_server_url=AnyHttpUrl(self.url),
                client_registration_options=ClientRegistrationOptions(enabled=True),
                revocation_options=RevocationOptions(enabled=True),
                validate_token_resource=False,
            ),
        }


def browse(address: str) -> str:
    """Open an address as the owner's browser does; return where it is sent, without going there."""
    with httpx.Client(trust_env=False) as client:
        return client.get(address).headers["location"]
