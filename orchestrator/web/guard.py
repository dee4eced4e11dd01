"""Access control of the server: programs need the token; the console signs browsers in itself.

Requests from pages of other origins are refused. Against CSRF, forms of the console need a token besides, see
`console.form_tokens`.
"""

from __future__ import annotations

import hmac
from base64 import b64decode
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.requests import cookie_parser
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from orchestrator.groups import secret_addresses
from orchestrator.web.connections import mark_admitted
from orchestrator.web.refusals import OnRefusal, RefusedRequest

OPEN_PATHS = frozenset({"/healthz"})
READ_PATHS = "/api/"
"""Below this path, a browser that is signed in to the console may read with its cookie, but change nothing.
"""
SESSION_COOKIES = SECURE_COOKIE, COOKIE = ("__Host-andy_session", "andy_session")
CONSOLE = "/console"
"""Below it are pages, which ask for a session instead of the token."""
CONSOLE_HOST = "andy.localhost"
"""The console's own name: browsers send a cookie to every port of a host, but not to another host name."""
SHARED_HOSTS = frozenset({"127.0.0.1", "localhost", "[::1]"})
"""The names by which browsers reach every server of this machine."""
OWN_HOSTS = SHARED_HOSTS | {CONSOLE_HOST}
_PORTS = {"http": 80, "https": 443}
MAX_REQUESTS = 256
"""The largest number of open requests with the token, such as those that wait for a reply or for events."""

IsSession = Callable[[str, str], Awaitable[bool]]
"""`(cookie, user_agent)`: returns whether a cookie is that of a console session."""


class AccessGuard:
    """ASGI middleware that checks Host, Origin and the token before a body is read."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        token: str,
        on_refusal: OnRefusal,
        web_origin: str | None = None,
        is_session: IsSession | None = None,
    ) -> None:
        """`app` is the application that gets the allowed requests.

        `token` is the API's, `on_refusal` is called for each refused request. `web_origin` is the origin of a
        reverse proxy in front of the server: `https://andy.example`. `is_session` returns whether a cookie is
        that of a session of the console.
        """
        self._is_session = is_session
        self._app = app
        self._web_origin = web_origin
        self._web_host = urlsplit(web_origin).netloc if web_origin else None
        self._token = token.encode()
        self._on_refusal = on_refusal
        self._under_way = 0
        """The number of authorised requests that are not answered yet."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass an allowed request to the application; answer and report a refused one.

        Requests that need the token are counted while they are under way, for the limit `MAX_REQUESTS`. A
        scope that is no HTTP request is passed on unchecked: the server takes nothing else from clients.
        """
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            refusal = self._origin_refusal(scope, headers) or await self._access_refusal(scope, headers)
            if refusal is None and not _is_open(scope["path"]):
                # Without this mark, the connection may be closed for newer ones before the answer.
                mark_admitted(scope)
            if refusal is not None:
                self._on_refusal(_refused_request(scope, refusal))
                await refusal.response(scope, receive, send)
                return
        if scope["type"] != "http" or _is_open(scope["path"]):
            # Not counted: clients without a token must not use up the `MAX_REQUESTS` of authorised ones.
            await self._app(scope, receive, send)
            return
        self._under_way += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._under_way -= 1

    def _origin_refusal(self, scope: Scope, headers: Headers) -> _Refusal | None:
        """Return the refusal of a request for another host or from another origin; None if it is allowed."""
        # Against DNS rebinding: a site whose name resolves to 127.0.0.1 still sends its own name.
        host = headers.get("host", "")
        if host != self._web_host and not _is_own_host(host, scope):
            return _refused(403, "bad_host", "Ask for 127.0.0.1 or localhost, with its port.", given=host)
        origin = headers.get("origin")
        if origin is not None and not self._is_own_page(origin, host, scope["scheme"]):
            return _refused(403, "bad_origin", "Pages of other origins may not come in.", given=origin)
        # Browsers consider another port of this machine the same site, so cookies alone prove nothing.
        if is_from_elsewhere(headers) and not _is_link_to_console(scope, headers):
            return _refused(403, "bad_origin", "Links and pictures of other pages may not come in.")
        return None

    async def _access_refusal(self, scope: Scope, headers: Headers) -> _Refusal | None:
        """Return the refusal of a request without the token, or beyond `MAX_REQUESTS`; None if it is allowed.

        To read below `/api/`, the cookie of a console session is enough.
        """
        # Behind these paths a session or a secret is checked; `/healthz` shows nothing that is private.
        if _is_open(scope["path"]):
            return None
        has_token = hmac.compare_digest(_token_in(headers.get("authorization", "")), self._token)
        if not (has_token or await self._may_read(scope, headers)):
            refusal = _refused(
                401, "bad_token", "Send 'Authorization: Bearer …' with the token in data/token."
            )
            # A browser then asks for the password, so that a person can open such an address, too.
            if "text/html" in headers.get("accept", ""):
                refusal.response.headers["WWW-Authenticate"] = 'Basic realm="Andy: the token is the password"'
            return refusal
        if self._under_way >= MAX_REQUESTS:
            return _refused(503, "busy", f"{MAX_REQUESTS} requests are under way: end some, then try again.")
        return None

    async def _may_read(self, scope: Scope, headers: Headers) -> bool:
        """Return whether a request only reads, below `/api/`, and has the cookie of a console session."""
        # Only for reading: browsers send a cookie by themselves, also for a page at another port.
        if self._is_session is None or scope["method"] != "GET" or not scope["path"].startswith(READ_PATHS):
            return False
        cookies = cookie_parser(headers.get("cookie", ""))
        agent = headers.get("user-agent", "")
        sent_cookies = [cookies[name] for name in SESSION_COOKIES if name in cookies]
        # A list, because `any` takes no asynchronous generator.
        return any([await self._is_session(cookie, agent) for cookie in sent_cookies])

    def _is_own_page(self, origin: str, host: str, scheme: str) -> bool:
        """Return whether a page of this origin is one of this server, under the host of the request."""
        if host == self._web_host:
            return origin == self._web_origin
        return _is_same_origin(origin, scheme, host)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Refusal:
    """The answer to a refused request, its error code, and the host or the origin that it named."""

    error: str
    response: JSONResponse
    given: str | None = None
    """The host or the origin that the request named; None if it was refused for another reason."""


def _refused_request(scope: Scope, refusal: _Refusal) -> RefusedRequest:
    """Return a refused request as it is counted for the audit, without secrets in its path."""
    client = scope.get("client")
    return RefusedRequest(
        error=refusal.error,
        path=secret_addresses.without_secret(scope["path"]),
        method=scope["method"],
        peer=client[0] if client else None,
        given=refusal.given,
    )


def _is_open(path: str) -> bool:
    """Return whether a path needs no token: the health check, the console, secret calendars and hooks."""
    return path in OPEN_PATHS or path.startswith(secret_addresses.SECRET_PATHS) or _is_console(path)


def is_from_elsewhere(headers: Headers) -> bool:
    """Return whether a page of another origin made this request, as browsers report it."""
    return headers.get("sec-fetch-site") in {"cross-site", "same-site"}


def _is_link_to_console(scope: Scope, headers: Headers) -> bool:
    """Return whether a person followed a link of another page to the console, which is allowed."""
    is_link = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
    return is_link and scope["method"] == "GET" and _is_console(scope["path"])


def _is_console(path: str) -> bool:
    """Return whether a path belongs to the console; `/` does, too."""
    return path in {"/", CONSOLE} or path.startswith(f"{CONSOLE}/")


def _is_own_host(host: str, scope: Scope) -> bool:
    """Return whether the `Host` header of a request names this machine and the port at which it arrived.

    Without a port, it names the usual one of its scheme, as `http` has 80.
    """
    if host_of(host) not in OWN_HOSTS:
        return False
    # The address and the port at which the server listens; neither is known for a Unix socket.
    server = scope.get("server")
    if not server or server[1] is None:
        return True
    has_port = host_of(host) != host
    port = host.rpartition(":")[2] if has_port else ""
    return port == str(server[1]) or (not port and server[1] == _PORTS.get(scope["scheme"]))


def _is_same_origin(origin: str, scheme: str, host: str) -> bool:
    """Return whether a page's origin is that of this server under `host`.

    A port that is left out is the usual one of its scheme.
    """
    try:
        page, server = urlsplit(origin), urlsplit(f"{scheme}://{host}")
        return (page.scheme, page.hostname, page.port or _PORTS.get(page.scheme)) == (
            server.scheme,
            server.hostname,
            server.port or _PORTS.get(scheme),
        )
    except ValueError:
        return False


def _token_in(authorization: str) -> bytes:
    """Return the token in an `Authorization` header: a bearer token, or the password of any user.

    Empty if none.
    """
    kind, _, credential = authorization.partition(" ")
    match kind.lower():
        case "bearer":
            return credential.encode()
        case "basic":
            try:
                return b64decode(credential, validate=True).partition(b":")[2]  # of `USER:PASSWORD`
            except ValueError:
                return b""
    return b""


def host_of(value: str) -> str:
    """Return the host in a `Host` header, without its port."""
    # An IPv6 address has colons of its own, and is in brackets here: `[::1]` is without a port, `[::1]:80`
    # has one.
    is_address_with_port = value.startswith("[") and not value.endswith("]")
    return value.rsplit(":", 1)[0] if value.count(":") == 1 or is_address_with_port else value


def _refused(status: int, code: str, text: str, *, given: str | None = None) -> _Refusal:
    """Return the refusal of a request, with its answer: an HTTP status, an error code and a text for people.

    `given` is the host or the origin that the request named, if it was refused for that.
    """
    response = JSONResponse({"error": {"code": code, "message": text}}, status_code=status)
    return _Refusal(error=code, response=response, given=given)
