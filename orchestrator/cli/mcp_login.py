"""Log in to an MCP server in the owner's browser, which is redirected here, or whose address is pasted."""

from __future__ import annotations

import asyncio
import hmac
import re
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

from orchestrator.base.clock import SystemClock
from orchestrator.base.terminal_escaping import all_visible
from orchestrator.cli import terminal
from orchestrator.domain.errors import BadRequest
from orchestrator.proxies import mcp_logins
from orchestrator.proxies.mcp_logins import LoginRefused, McpLogin
from orchestrator.reports import mcp
from orchestrator.store.settings import mcp_servers
from orchestrator.store.settings.mcp_servers import McpServer

if TYPE_CHECKING:
    from mcp.shared.auth import AuthorizationCodeResult
    from starlette.requests import Request
    from starlette.responses import Response

    from orchestrator.proxies.model.upstream_client import UpstreamClient

HOST, PATH = "127.0.0.1", "/callback"
WAIT_SECONDS = 600.0
"""Seconds that the owner may take in the browser."""
HEAD_SECONDS = 10.0
"""Seconds that the browser may take to send a request."""
MAX_PASTES = 3
"""The number of tries to paste the address."""
DONE_PAGE = "Andy has the answer: go back to the terminal.\nAndy가 답을 받았어요. 터미널로 돌아가세요.\n"
FOREIGN_PAGE = "This belongs to no login that Andy waits for.\nAndy가 기다리는 로그인이 아니에요.\n"
_ERROR_CODE = re.compile(r"[a-z_]{1,50}")


class NotThisLogin(Exception):
    """An address does not belong to the waiting login: it has another `state`, or none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginOptions:
    """The choices of the owner for a login."""

    client_id: str | None = None
    client_secret: str | None = field(default=None, repr=False)
    port: int | None = None
    """The port of the address to which the browser is redirected; None for any free port."""
    is_pasted: bool = False


async def log_in(
    home: Path | None, name: str, options: LoginOptions, *, say: Callable[[str], None]
) -> McpLogin:
    """Log the owner in to the MCP server `name` by OAuth, store the login, and return it.

    `say` shows a line of the progress to a person.

    Raises:
        LoginRefused: the owner or the service refused, or nobody answered in time.
        BadRequest: there is no such server, it takes no login, or the port is taken.
    """
    from orchestrator.proxies import mcp_oauth

    server, data = await _server(home, name), terminal.home_of(home).data
    assert server.url is not None
    previous_login = await asyncio.to_thread(mcp_logins.read, data, server)
    # An id for Andy that the owner set at the previous login is used again.
    known_client = (
        previous_login.client if previous_login is not None and previous_login.is_own_client else None
    )
    with closing(_listener(options.port or _port_of(known_client))) as listener:
        request = mcp_oauth.LoginRequest(
            url=server.url,
            redirect_uri=f"http://{HOST}:{listener.getsockname()[1]}{PATH}",
            client_id=options.client_id,
            client_secret=options.client_secret,
            known_client=known_client,
            scope=previous_login.wanted_scope if previous_login is not None else None,
        )
        wait_for_result = _read_pasted if options.is_pasted else partial(_wait_for_browser, listener)
        async with _upstream() as upstream:
            login = await mcp_oauth.log_in(
                request,
                upstream,
                authorise=lambda address: wait_for_result(address, say),
                now_ms=SystemClock().now_ms,
            )
    await asyncio.to_thread(mcp_logins.write, data, name, login)
    await terminal.change(
        home, lambda tx, now_ms: mcp.note_login(tx, server, is_logged_in=True, now_ms=now_ms)
    )
    return login


async def log_out(home: Path | None, name: str) -> bool | None:
    """Delete the login to the MCP server `name`, and revoke it at its authorisation server.

    Return whether that server confirmed it; None if nobody was logged in. Raises `BadRequest` if there is no
    such MCP server, or it takes no login.
    """
    from orchestrator.proxies import mcp_oauth

    server, data = await _server(home, name), terminal.home_of(home).data
    login = await asyncio.to_thread(mcp_logins.read, data, server)
    # Deleted here first: a service that does not answer must not keep the token on this machine.
    await asyncio.to_thread(mcp_logins.write, data, name, None)
    if login is None:
        return None
    await terminal.change(
        home, lambda tx, now_ms: mcp.note_login(tx, server, is_logged_in=False, now_ms=now_ms)
    )
    async with _upstream() as upstream:
        return await mcp_oauth.revoke(login, upstream)


async def _server(home: Path | None, name: str) -> McpServer:
    """Return the MCP server `name`. Raises `BadRequest` if there is none, or it takes no login."""
    # Nothing is changed: only a transaction is needed.
    server = await terminal.change(home, lambda tx, _: mcp_servers.by_name(tx, name))
    if server is None:
        raise BadRequest(f"There is no MCP server '{name}': see 'andy mcp list'.")
    if server.url is None:
        raise BadRequest(f"'{name}' is a program in the container, which nobody logs in to.")
    if server.secret_env is not None:
        raise BadRequest(
            f"'{name}' is called with {server.secret_env}: add it again without --secret-env to log in."
        )
    return server


@asynccontextmanager
async def _upstream() -> AsyncIterator[UpstreamClient]:
    """Yield a client for requests to the authorisation server of a login; it is closed after the block."""
    from orchestrator.proxies.model.limits import ModelProxyLimits
    from orchestrator.proxies.model.upstream_client import UpstreamClient

    client = await asyncio.to_thread(UpstreamClient, ModelProxyLimits())
    try:
        yield client
    finally:
        await client.close()


def _listener(port: int | None) -> socket.socket:
    """Listen on a port of this machine; None takes any free one. Raises `BadRequest` if it is taken."""
    from agent_runner.wire.listeners import listen

    try:
        return listen(HOST, port or 0)
    except OSError as error:
        raise BadRequest(f"Port {port} of this machine is taken: give another with --port.") from error


def _port_of(client: dict[str, object] | None) -> int | None:
    """Return the port of the address to which an earlier login redirected the browser; None without one.

    `client` is the OAuth client of that login, with which the address is registered.
    """
    uris = (client or {}).get("redirect_uris")
    return urlsplit(str(uris[0])).port if isinstance(uris, list) and uris else None


async def _wait_for_browser(
    listener: socket.socket, address: str, say: Callable[[str], None]
) -> AuthorizationCodeResult:
    """Wait until the owner's browser is redirected to `listener`, and return the result of the login.

    `address` is the one that the owner opens. Requests that do not belong to this login are refused. `say`
    shows a line to the owner.

    Raises:
        LoginRefused: the login was refused, or nobody allowed it within `WAIT_SECONDS`.
    """
    from starlette.applications import Starlette
    from starlette.responses import PlainTextResponse
    from starlette.routing import Route

    from orchestrator.base.asgi_server import BoundedConfig, BoundedProtocol, Server

    state = state_of(address)
    login_result: asyncio.Future[AuthorizationCodeResult] = asyncio.get_running_loop().create_future()

    async def callback(request: Request) -> Response:
        """Answer the browser, and end the wait if the address belongs to this login."""
        try:
            result = result_of(request.url.query, state)
        except NotThisLogin:
            # The wait goes on: any page in the browser can call this address with a result of its own.
            return PlainTextResponse(FOREIGN_PAGE, status_code=400)
        except LoginRefused as error:
            # Only the first answer counts: a page that is loaded again brings a second one.
            if not login_result.done():
                login_result.set_exception(error)
        else:
            if not login_result.done():
                login_result.set_result(result)
        # The address has the code of the login in it, so the browser must not send it to another site.
        return PlainTextResponse(DONE_PAGE, headers={"referrer-policy": "no-referrer"})

    app = Starlette(routes=[Route(PATH, callback, methods=["GET"])])
    server = Server(BoundedConfig(app, http=BoundedProtocol, head_seconds=HEAD_SECONDS))
    serving = asyncio.create_task(server.serve_on(listener), name="mcp-login-callback")
    try:
        say(f"Open this address in a browser of this machine, and allow Andy:\n\n{address}\n")
        say("Waiting for the browser. Is it on another machine? Stop with Ctrl+C, and add --paste.")
        async with asyncio.timeout(WAIT_SECONDS):
            return await login_result
    except TimeoutError as error:
        raise LoginRefused("Nobody allowed it within 10 minutes: begin again.") from error
    finally:
        serving.cancel()
        await asyncio.wait([serving])


async def _read_pasted(address: str, say: Callable[[str], None]) -> AuthorizationCodeResult:
    """Return the result of a login, from the address that the owner's browser was redirected to.

    The owner opens `address` on any machine, and pastes the address at which the browser ends. `say` shows a
    line to the owner.

    Raises:
        LoginRefused: the login was refused, or no such address was pasted.
    """
    say(f"Open this address in a browser, and allow Andy:\n\n{address}\n")
    say(f"The browser ends at http://{HOST}…, and cannot open it. Copy that address whole, paste it here:")
    for _ in range(MAX_PASTES):
        line = terminal.typed(sys.stdin.readline)
        if not line:
            break
        try:
            return result_of(urlsplit(line.strip()).query, state_of(address))
        except (NotThisLogin, ValueError):
            say("That is no address of this login. It has 'code=' and 'state=' in it. Paste it again:")
    raise LoginRefused("No address of this login was pasted: begin again.")


def state_of(address: str) -> str:
    """Return the parameter `state` of the address that the owner opens, which identifies a login."""
    return parse_qs(urlsplit(address).query)["state"][0]


def result_of(query: str, state: str) -> AuthorizationCodeResult:
    """Return the result in the query of the address to which a browser was redirected after a login.

    `state` identifies the login that waits.

    Raises:
        NotThisLogin: the query belongs to another login, has too many parameters or one of them twice, or has
            neither a code nor an error.
        LoginRefused: the server refused the login.
    """
    from mcp.shared.auth import AuthorizationCodeResult

    try:
        result = parse_qs(query, keep_blank_values=True, max_num_fields=20)
    except ValueError as error:
        raise NotThisLogin from error
    # OAuth allows each parameter once: which of two is meant is not known.
    if any(len(values) > 1 for values in result.values()):
        raise NotThisLogin
    fields = {name: values[0] for name, values in result.items()}
    if not hmac.compare_digest(fields.get("state", "").encode(), state.encode()):
        raise NotThisLogin
    if "error" in fields:
        code = fields["error"] if _ERROR_CODE.fullmatch(fields["error"]) else "an error"
        text = all_visible(fields.get("error_description", ""))[:200]
        raise LoginRefused(f"The login was refused: {code}{f' ({text})' if text else ''}.")
    if not fields.get("code"):
        raise NotThisLogin
    return AuthorizationCodeResult(code=fields["code"], state=fields["state"], iss=fields.get("iss"))
