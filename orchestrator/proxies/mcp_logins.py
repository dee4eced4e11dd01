"""The owner's logins at MCP servers that use OAuth: a file for each, and the token for each call.

A login is stored in `data/mcp-logins/`, mode 600: no container sees it and no backup contains it. A token
that has expired, or that the server rejects, is renewed once for all waiting calls.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import structlog
from filelock import FileLock
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from agent_runner.wire.files import write_whole
from orchestrator.base.clock import Clock
from orchestrator.domain.errors import AndyError
from orchestrator.store.settings.mcp_servers import McpServer

if TYPE_CHECKING:
    from orchestrator.proxies.model.upstream_client import UpstreamClient

log = structlog.get_logger(__name__)

FOLDER = "mcp-logins"
"""The folder of logins in `data/`."""
MAX_FILE_BYTES = 256 * 1024
"""Bytes of a login's file; a longer one counts as unreadable."""
LOCK_SECONDS = 10.0
"""Seconds to wait for another process that changes a login."""
LEEWAY_MS = 30_000
"""Milliseconds before its expiry at which a token is renewed; for a short-lived one, the last tenth."""
FRESH_MS = 30_000
"""Milliseconds for which a token counts as new: a server that rejects it then would reject the next, too."""
CLOSE_SECONDS = 10.0
"""Seconds that a shutdown waits for running renewals."""
MAX_SCOPE_CHARS = 2_000
"""Characters of all rights that are stored for the next login."""
_INSUFFICIENT_SCOPE = re.compile(r'(?:^|[\s,])error="?insufficient_scope(?![\w-])')
_SCOPE = re.compile(r'(?:^|[\s,])scope="([\x20\x21\x23-\x5b\x5d-\x7e]{1,1000})"')
"""A scope by RFC 6749: printable, without quotes and backslashes."""


class LoginRefused(AndyError):
    """A login was not possible, or is no longer accepted; the text says why."""


class LoginUnreachable(LoginRefused):
    """The token server does not answer now, or answers without a token: it may work later."""


class LoginNeeded(Exception):
    """There is no login, or it is no longer accepted; the text is for the agent."""


class McpLogin(BaseModel):
    """A login at one server. OAuth's own documents are stored unchanged, as JSON."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    """A random id, another for each login."""
    url: str
    """The address of the server that it is for; it is used for no other."""
    client: dict[str, Any] = Field(repr=False)
    """The registration of Andy as a client, by RFC 7591."""
    is_own_client: bool
    """Whether the owner set the client's id; otherwise Andy registered itself."""
    metadata: dict[str, Any]
    """The metadata of the authorisation server, by RFC 8414."""
    resource: dict[str, Any] | None
    """The metadata of the MCP server, by RFC 9728, if it has any."""
    access_token: str = Field(repr=False)
    refresh_token: str | None = Field(repr=False)
    """The token with which the access token is renewed; None if it cannot be renewed."""
    scope: str | None
    """The rights of the access token, as the server names them; None if it names none."""
    wanted_scope: str | None = None
    """The rights that the server has demanded since, for the next login."""
    obtained_ms: int
    """The time when the token was obtained, in epoch milliseconds."""
    expires_ms: int | None
    """The time when the token expires, in epoch milliseconds; None if the server does not say."""
    refused: str | None = None
    """The code with which a renewal was finally refused, such as `invalid_grant`."""

    def is_spent(self, now_ms: int) -> bool:
        """Return whether the token has expired or is about to.

        It is about to for the last `LEEWAY_MS` or the last tenth of its time, whichever is shorter.
        """
        if self.expires_ms is None:
            return False
        lifetime_ms = max(0, self.expires_ms - self.obtained_ms)
        return now_ms >= self.expires_ms - min(LEEWAY_MS, lifetime_ms // 10)

    def has_expired(self, now_ms: int) -> bool:
        """Return whether the token has expired; one without a known time never does."""
        return self.expires_ms is not None and now_ms >= self.expires_ms

    def is_over(self, now_ms: int) -> bool:
        """Return whether the owner has to log in again: this login was refused, or expired for good."""
        return self.refused is not None or (self.refresh_token is None and self.has_expired(now_ms))


OnRefused = Callable[[str, McpLogin], Awaitable[None]]
"""`(server, login)`: notify the owner, once per login, that it is no longer accepted."""


def _path(data: Path, name: str) -> Path:
    """Return the path of the file with the login for a server, under the folder `data/` of the home."""
    return data / FOLDER / f"{name}.json"


def read(data: Path, server: McpServer) -> McpLogin | None:
    """Return the stored login for a server, or None if there is none. Blocks.

    `data` is the folder `data/` of the home. A login for another address, an unreadable file and a login at a
    server that uses a secret from `.env` count as none.
    """
    try:
        with _path(data, server.name).open(encoding="utf-8") as file:
            login = McpLogin.model_validate_json(file.read(MAX_FILE_BYTES))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, ValidationError):
        log.warning("mcp.login_unreadable", server=server.name)
        return None
    return login if login.url == server.url and server.secret_env is None else None


def write(data: Path, name: str, login: McpLogin | None) -> None:
    """Store the login for the server `name` in place of an earlier one; None deletes it. Blocks."""
    with _with_lock(data, name) as path:
        if login is None:
            path.unlink(missing_ok=True)
        else:
            write_whole(path, login.model_dump_json(indent=2) + "\n", mode=0o600)


def change(data: Path, name: str, login: McpLogin, **fields: object) -> bool:
    """Change fields of the stored login for the server `name`, and return whether they were changed. Blocks.

    Nothing is changed if the file is gone or unreadable, or differs from `login`, as read before: it may have
    another login, a newer token, or the reason of a refusal by now.
    """
    with _with_lock(data, name) as path:
        try:
            stored = McpLogin.model_validate_json(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return False
        compared_fields = ("id", "access_token", "refused")
        if any(getattr(stored, field) != getattr(login, field) for field in compared_fields):
            return False
        write_whole(path, stored.model_copy(update=fields).model_dump_json(indent=2) + "\n", mode=0o600)
    return True


@contextmanager
def _with_lock(data: Path, name: str) -> Iterator[Path]:
    """Yield the path of the file with the login for a server; other writers wait until the block ends.

    The file's folder is created if missing.
    """
    path = _path(data, name)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # A file lock, because other processes write, too: `andy mcp login` is one.
    with FileLock(path.parent / ".lock", timeout=LOCK_SECONDS):
        yield path


def delete_outdated(data: Path, server: McpServer) -> None:
    """Delete a login that does not match a server's present settings. Blocks."""
    if _path(data, server.name).exists() and read(data, server) is None:
        write(data, server.name, None)


class McpTokens:
    """Provides the token for a call to an MCP server, and renews it once for all calls that wait."""

    def __init__(
        self,
        data: Path,
        upstream: Callable[[], Awaitable[UpstreamClient]],
        *,
        clock: Clock,
        on_refused: OnRefused,
    ) -> None:
        """Prepare for the servers' first calls.

        `data` is the folder `data/` of the home, with the stored logins. `upstream` returns the HTTP client
        for requests. `on_refused` is called for a login that is no longer accepted.
        """
        self._data = data
        self._upstream = upstream
        self._clock = clock
        self._on_refused = on_refused
        self._renewals: dict[str, asyncio.Task[McpLogin]] = {}
        """The running renewals, by the name of the server."""

    async def token(self, server: McpServer, *, refused: str | None = None) -> str | None:
        """Return the token for calls to a server, renewed if due; None if there is no login.

        Args:
            server: the server that is called.
            refused: the token that the server has just rejected, if any.

        Raises:
            LoginNeeded: the login is no longer accepted, or there is no other token than the rejected one.
            LoginUnreachable: the token has to be renewed, and that is not possible now.
        """
        login = await asyncio.to_thread(read, self._data, server)
        if login is None:
            return None
        if self._is_due(login, refused):
            try:
                login = await self._join_renewal(server, login)
            except LoginUnreachable:
                # A token that is only about to expire can still be used.
                if refused is not None or login.has_expired(self._clock.now_ms()):
                    raise
        now_ms = self._clock.now_ms()
        if login.is_over(now_ms) or login.access_token == refused:
            raise LoginNeeded(login_again_text(server.name))
        return login.access_token

    async def note_wanted_scope(self, server: McpServer, scope: str) -> None:
        """Store that a server demands more rights, so that the next login requests them, too.

        Nothing is stored without a login or a scope, if all rights together have more than `MAX_SCOPE_CHARS`
        characters, or if the file cannot be written.
        """
        login = await asyncio.to_thread(read, self._data, server)
        if login is None or not scope:
            return
        known_scopes = (login.scope or "").split() + (login.wanted_scope or "").split()
        wanted = " ".join(dict.fromkeys([*known_scopes, *scope.split()]))
        if wanted != login.wanted_scope and len(wanted) <= MAX_SCOPE_CHARS:
            # If the token was renewed meanwhile, or the disk is full, the next call meets the demand again.
            with suppress(OSError):
                await asyncio.to_thread(change, self._data, server.name, login, wanted_scope=wanted)

    async def close(self) -> None:
        """Wait at most `CLOSE_SECONDS` for running renewals, whose tokens would be lost, then cancel them."""
        if self._renewals:
            await asyncio.wait(self._renewals.values(), timeout=CLOSE_SECONDS)
        for renewal in self._renewals.values():
            renewal.cancel()

    def _is_due(self, login: McpLogin, rejected_token: str | None) -> bool:
        """Return whether to renew a login's token: it is about to expire, or the server just rejected it.

        `rejected_token` is the token that the server rejected; None if it rejected none. Always False for a
        login that is no longer accepted, and for one without a refresh token: neither can be renewed.
        """
        now_ms = self._clock.now_ms()
        if login.refused is not None or login.refresh_token is None:
            return False
        # A server that rejects a token right after it was obtained would reject the next one, too. A negative
        # age, after the clock was set back, does not count as new.
        is_fresh = 0 <= now_ms - login.obtained_ms < FRESH_MS
        return login.is_spent(now_ms) or (login.access_token == rejected_token and not is_fresh)

    async def _join_renewal(self, server: McpServer, login: McpLogin) -> McpLogin:
        """Return the login with a new token, from the renewal that is running or a new one."""
        if (renewal := self._renewals.get(server.name)) is None:
            # A task of its own: the caller may be cancelled, but the new token must not be lost.
            renewal = asyncio.create_task(self._renew(server, login), name=f"mcp-renewal:{server.name}")
            self._renewals[server.name] = renewal
            renewal.add_done_callback(partial(self._end_renewal, server.name))
        return await asyncio.shield(renewal)

    def _end_renewal(self, name: str, renewal: asyncio.Task[McpLogin]) -> None:
        """Forget a renewal that has ended, and log its error."""
        del self._renewals[name]
        if not renewal.cancelled() and (error := renewal.exception()) is not None:
            log.warning("mcp.login_not_renewed", server=name, error=type(error).__name__)

    async def _renew(self, server: McpServer, login: McpLogin) -> McpLogin:
        """Renew the token of a login, store the result, and return the login.

        The returned login has a new token, or the reason of a refusal; the owner is notified of a refusal. If
        another login has been stored meanwhile, the other login is returned.

        Raises `LoginUnreachable` if the token server or the disk fails; the old token stays stored.
        """
        mcp_oauth = await asyncio.to_thread(_oauth)
        # Store the login unchanged first: a disk that cannot be written has to be noticed before the old
        # token is used up. `_store` returns False if another login was stored meanwhile.
        if not await self._store(server, login):
            return await self._newer_login(server, login)
        fields: dict[str, object]
        try:
            fields = await mcp_oauth.renew(login, await self._upstream(), now_ms=self._clock.now_ms())
        except LoginUnreachable:
            # Caught first, because it is a subclass of `LoginRefused`, which would end the login.
            raise
        except LoginRefused as error:
            fields = {"refused": str(error)}
        if not await self._store(server, login, **fields):
            return await self._newer_login(server, login)
        renewed = login.model_copy(update=fields)
        if renewed.refused is not None:
            await self._on_refused(server.name, renewed)
        else:
            log.info("mcp.login_renewed", server=server.name)
        return renewed

    async def _store(self, server: McpServer, login: McpLogin, **fields: object) -> bool:
        """Change fields of the stored login; return False, changing nothing, if it was replaced or deleted.

        Raises `LoginUnreachable` if the file cannot be written.
        """
        try:
            return await asyncio.to_thread(change, self._data, server.name, login, **fields)
        except OSError as error:
            raise LoginUnreachable("Its login cannot be stored.") from error

    async def _newer_login(self, server: McpServer, login: McpLogin) -> McpLogin:
        """Return the stored login that has replaced `login`; if none is stored, `login` marked as refused."""
        stored = await asyncio.to_thread(read, self._data, server)
        return stored or login.model_copy(update={"refused": "logged_out"})


def _oauth() -> ModuleType:
    """Load the OAuth library: it takes a third of a second, and few homes need it. Blocks."""
    from orchestrator.proxies import mcp_oauth

    return mcp_oauth


def wanted_scope(challenges: Sequence[bytes]) -> str | None:
    """Return the rights that a refusal demands (OAuth's `scope`); empty if it demands more but names none.

    `challenges` are the values of the refusal's header www-authenticate, such as
    `Bearer error="insufficient_scope", scope="files:write"`: that gives `files:write`. Return None if the
    server refuses for another reason than missing rights.
    """
    text = b", ".join(challenges).decode("latin-1")
    if not _INSUFFICIENT_SCOPE.search(text):
        return None
    match = _SCOPE.search(text)
    return match[1] if match else ""


def more_rights_text(name: str) -> str:
    """Return the text for the agent that the login at the server `name` has too few rights for a call.

    Andy's owner, who has set up the server, has to log in again.
    """
    return (
        f"the MCP server '{name}' wants more rights, and its owner has to log in again: andy mcp login {name}"
    )


def login_again_text(name: str) -> str:
    """Return the text for the agent that the owner has to log in at the server `name` first."""
    return f"the MCP server '{name}' wants a login, and its owner has to log in: andy mcp login {name}"
