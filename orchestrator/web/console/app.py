"""The console's app: it finds the pages, admits signed-in browsers, and shows errors as pages."""

from __future__ import annotations

import gzip
import hashlib
import json
import pkgutil
from collections.abc import Awaitable, Callable, Mapping
from importlib import import_module
from pathlib import Path
from urllib.parse import SplitResult, urlencode, urlsplit

import structlog
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.convertors import Convertor, register_url_convertor
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from orchestrator.domain.errors import AndyError, BadRequest
from orchestrator.web.bodies import BadBody
from orchestrator.web.connections import mark_admitted
from orchestrator.web.console import needs
from orchestrator.web.console import pages as page_modules
from orchestrator.web.console.catalogue import LANGUAGES, Catalogue
from orchestrator.web.console.doctor import BackgroundDoctor
from orchestrator.web.console.form_bodies import read_form
from orchestrator.web.console.form_tokens import FIELD, ChangedSince, FormGuard, SentForm
from orchestrator.web.console.live import LiveStreams, TooManyPages
from orchestrator.web.console.page import (
    NEEDS,
    ROOT,
    THEMES,
    Console,
    ConsoleServices,
    Page,
    View,
    came_from,
    own_path,
    policy,
    status_of,
    templates,
)
from orchestrator.web.console.sessions import SessionService, SignedIn
from orchestrator.web.event_stream import EventStream
from orchestrator.web.guard import (
    CONSOLE_HOST,
    COOKIE,
    SECURE_COOKIE,
    SHARED_HOSTS,
    host_of,
    is_from_elsewhere,
)
from orchestrator.web.refusals import OnRefusal, RefusedRequest

log = structlog.get_logger(__name__)

NO_PAGES = (f"{ROOT}/static/", f"{ROOT}/live")
"""The beginnings of paths below which there are no pages."""
FINDS_OWN_NAME = ("Chrome/", "Firefox/")
"""Parts of the `User-Agent` of browsers that resolve `*.localhost` to this machine by themselves."""
COOKIE_SECONDS = 30 * 24 * 3600
STATIC = Path(__file__).parent / "static"
KINDS = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".png": "image/png"}
KINDS |= {".webmanifest": "application/manifest+json"}
MANIFEST = "andy.webmanifest"
FOR_EVER = "public, max-age=31536000, immutable"


class NumberConvertor(Convertor[int]):
    """A number in a path, as large as the store allows; a path with a longer one matches no page."""

    regex = "[0-9]{1,15}"

    def convert(self, value: str) -> int:
        return int(value)

    def to_string(self, value: int) -> str:
        return str(value)


register_url_convertor("number", NumberConvertor())


def build_console(
    services: ConsoleServices, sessions: SessionService, *, started_ms: int, on_refusal: OnRefusal
) -> ASGIApp:
    """Build the app for everything below `/console`. Reads templates and texts from the disk: blocks.

    `started_ms`: the time when the host began to start, in epoch milliseconds.
    """
    host = services.host
    pages = find_pages()
    kinds = {*NEEDS, *(kind for page in pages for part in page.live.values() for kind in part)}
    origin = urlsplit(host.settings.andy_web_origin or "")
    files = {path.name: path.read_bytes() for path in sorted(STATIC.iterdir()) if path.suffix in KINDS}
    files[MANIFEST] = _manifest(files)
    console = Console(
        services=services,
        sessions=sessions,
        forms=FormGuard(host.database, clock=host.clock),
        live=LiveStreams(host.bus, start=str(started_ms), kinds=kinds),
        catalogue=Catalogue.load(),
        templates=templates(),
        pages=pages,
        clock=host.clock,
        zone=host.settings.zone,
        doctor=BackgroundDoctor(host.home.root, clock=host.clock),
        assets={name: _asset(name, content) for name, content in files.items()},
    )
    routes = _Routes(console, web_origin=origin, on_refusal=on_refusal)
    return Starlette(
        routes=[
            *routes.own(),
            Route("/static/{hash}/{name}", _static(files)),
            *(route for page in console.pages for route in routes.of(page)),
        ],
        middleware=[Middleware(SecurityHeaders), Middleware(Arrival, answer=routes.arrive)],
        exception_handlers={
            AndyError: routes.explain,
            HTTPException: routes.explain,
            RecursionError: routes.explain_depth,
            ValidationError: routes.explain_shape,
            Exception: routes.explain_fault,
        },
    )


def find_pages() -> tuple[Page, ...]:
    """Import every module of `pages/` and return their pages in the order of the navigation."""
    names = [module_info.name for module_info in pkgutil.iter_modules(page_modules.__path__)]
    modules = [import_module(f"{page_modules.__name__}.{name}") for name in names]
    pages = [module.PAGE for module in modules if hasattr(module, "PAGE")]
    return tuple(sorted(pages, key=lambda page: page.order))


def add_security_headers(headers: MutableHeaders) -> None:
    """Add the headers that protect the browser, except those that an answer has set itself."""
    headers.setdefault("Content-Security-Policy", policy())
    headers.setdefault("X-Content-Type-Options", "nosniff")
    # Not "no-referrer": browsers then send "Origin: null" with forms, and a form of another page
    # could not be distinguished from one of ours. Both send nothing to other origins.
    headers.setdefault("Referrer-Policy", "same-origin")
    headers.setdefault("X-Frame-Options", "DENY")
    headers.setdefault("Cross-Origin-Opener-Policy", "same-origin")
    headers.setdefault("Cross-Origin-Resource-Policy", "same-origin")
    headers.setdefault("Cache-Control", "no-store")


class SecurityHeaders:
    """ASGI middleware that adds security headers to every answer. A page sets its own, stricter policy."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            """Send a message of the app, with the security headers if it starts a response."""
            if message["type"] == "http.response.start":
                add_security_headers(MutableHeaders(scope=message))
            await send(message)

        await self._app(scope, receive, send_with_headers)


class Arrival:
    """ASGI middleware that calls `answer` first; a request that it answers is not passed on."""

    def __init__(self, app: ASGIApp, *, answer: Callable[[Request], Awaitable[Response | None]]) -> None:
        self._app = app
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answered = await self._answer(Request(scope)) if scope["type"] == "http" else None
        await (answered or self._app)(scope, receive, send)


class _Routes:
    """The routes of a console; all but the sign-in itself require a session."""

    def __init__(self, console: Console, *, web_origin: SplitResult, on_refusal: OnRefusal) -> None:
        """`web_origin` is the address under which people reach the console; `on_refusal` records a refused
        request.
        """
        self._console = console
        self._web_host = web_origin.netloc
        self._secure_host = web_origin.netloc if web_origin.scheme == "https" else None
        self._on_refusal = on_refusal

    def own(self) -> list[Route]:
        """Return the routes that belong to no page."""
        return [
            Route("/", self._enter),
            Route("/sign-in", self._show_sign_in),
            Route("/sign-in", self._sign_in, methods=["POST"]),
            Route("/sign-out", self._changing(None, self._sign_out), methods=["POST"]),
            Route("/preferences", self._changing(None, self._set_preferences), methods=["POST"]),
            Route("/live", self._stream),
        ]

    def of(self, page: Page) -> list[Route]:
        """Return the routes that belong to a page."""
        return [
            *(Route(path, self._showing(page, show)) for path, show in page.shows.items()),
            *(
                Route(path, self._changing(page, change), methods=["POST"])
                for path, change in page.changes.items()
            ),
        ]

    # The name and the page that a request comes from

    async def arrive(self, request: Request) -> Response | None:
        """Redirect a browser that used a shared name; show a link to one that another page has sent.

        Return None if neither is so, and the request is to be answered as usual.
        """
        view = View(self._console, request, page=None, signed_in=None)
        if request.method not in ("GET", "HEAD") or view.path.startswith(NO_PAGES):
            return None
        if (address := self._own_address(request)) is not None:
            return await self._redirect_to_own_name(request, address + view.here)
        if is_from_elsewhere(request.headers):
            # The link on this page is one of Andy's own: the browser sends the session's cookie with it.
            return view.render("elsewhere.html", status=403, target=own_path(view.here) or f"{ROOT}/")
        return None

    def _own_address(self, request: Request) -> str | None:
        """Return the console's own address if the browser used a name that all servers of this machine share.

        Otherwise return None. Only Chromium and Firefox are known to find every `*.localhost` by themselves.
        """
        host = request.headers.get("host", "")
        name = host_of(host)
        is_shared = name in SHARED_HOSTS and host != self._web_host
        if not is_shared or not any(browser in _user_agent(request) for browser in FINDS_OWN_NAME):
            return None
        return f"{request.url.scheme}://{CONSOLE_HOST}{host.removeprefix(name)}"

    async def _redirect_to_own_name(self, request: Request, address: str) -> Response:
        """Send a browser to the console's own name, and end a session that it began by a shared one."""
        answer = RedirectResponse(address, status_code=307)
        if COOKIE in request.cookies:
            # The browser has sent this cookie to every server of the machine, so others may know it.
            signed_in = await self._signed_in(request)
            if signed_in is not None:
                await self._console.sessions.sign_out(signed_in)
            answer.delete_cookie(COOKIE, path="/", httponly=True, samesite="strict")
        return answer

    # The session of the browser

    def _cookie_name(self, request: Request) -> str:
        """Return the name of the session's cookie: over https, one that browsers protect better."""
        # Browsers take a cookie whose name begins with `__Host-` over https only, as from a reverse proxy.
        is_secure = self._secure_host is not None and request.headers.get("host") == self._secure_host
        return SECURE_COOKIE if is_secure else COOKIE

    async def _signed_in(self, request: Request) -> SignedIn | None:
        """Return the session of the browser that sent a request, or None."""
        cookie = request.cookies.get(self._cookie_name(request), "")
        signed_in = await self._console.sessions.find(cookie, agent=_user_agent(request))
        if signed_in is not None:
            mark_admitted(request.scope)
        return signed_in

    def _redirect_to_sign_in(self, request: Request) -> Response:
        """Redirect a browser without a session to the sign-in, which leads back if that is safe."""
        # htmx would put the sign-in page into a part of this page; the header makes it load the whole page.
        if request.headers.get("hx-request"):
            return Response(status_code=401, headers={"HX-Redirect": f"{ROOT}/sign-in"})
        if request.method != "GET":
            # What the form held is gone with this request: the sign-in says so.
            return RedirectResponse(f"{ROOT}/sign-in?lost=form", status_code=303)
        return RedirectResponse(f"{ROOT}/sign-in?{_return_query(request)}", status_code=303)

    # The ways in

    def _showing(
        self, page: Page, show: Callable[[View], Awaitable[Response]]
    ) -> Callable[[Request], Awaitable[Response]]:
        """Return the handler of a `GET` route: `show`, for browsers that are signed in."""

        async def answer(request: Request) -> Response:
            """Show the page to an owner who is signed in; anybody else is sent to sign in."""
            signed_in = await self._signed_in(request)
            if signed_in is None:
                return self._redirect_to_sign_in(request)
            view = View(self._console, request, page=page, signed_in=signed_in)
            if view.part is None:
                view.waiting = await needs.read_waiting(view)
                view.needs = len(view.waiting) + self._console.troubles
            return await show(view)

        return answer

    def _changing(
        self, page: Page | None, change: Callable[[View, SentForm], Awaitable[Response]]
    ) -> Callable[[Request], Awaitable[Response]]:
        """Return the handler of a `POST` route: `change`, for browsers that are signed in.

        A form that was carried out is not carried out again if a browser sends it a second time. `page` is
        the page of the form; None for one outside of all pages.
        """

        async def answer(request: Request) -> Response:
            signed_in = await self._signed_in(request)
            if signed_in is None:
                return self._redirect_to_sign_in(request)
            view = View(self._console, request, page=page, signed_in=signed_in)
            # Needed if the handler shows a refused form again.
            view.needs = len(await needs.read_waiting(view)) + self._console.troubles
            # Only now, with a session: nobody else can make the host read a large body.
            async with read_form(request, upload_bytes=page.upload_bytes if page else 0) as form:
                async with self._console.forms.carrying_out(signed_in, form.raw(FIELD)) as taken:
                    answered = await change(view, form)
                    # A form that was refused is shown again and may be sent again.
                    taken.is_done = answered.status_code < 400
                return answered

        return answer

    async def _enter(self, request: Request) -> Response:
        """Redirect to the first page; without a session, show the sign-in."""
        if await self._signed_in(request) is None:
            return await self._show_sign_in(request)
        return RedirectResponse(ROOT + self._console.pages[0].path, status_code=303)

    async def _show_sign_in(self, request: Request) -> Response:
        """Show the sign-in; a browser that is signed in is redirected to the page that it requested."""
        if await self._signed_in(request) is not None:
            return RedirectResponse(
                _return_path(request) or ROOT + self._console.pages[0].path, status_code=303
            )
        return self._sign_in_page(request)

    def _sign_in_page(self, request: Request, error: BadRequest | None = None) -> Response:
        """Return the page of the sign-in, with the reason `error` if a sign-in was refused."""
        view = View(self._console, request, page=None, signed_in=None)
        view.error = view.why(error) if error else None
        status = error.http_status if error else 200
        is_lost = error is None and request.query_params.get("lost") == "form"
        return view.render("sign_in.html", status=status, next=_return_path(request) or "", is_lost=is_lost)

    async def _sign_in(self, request: Request) -> Response:
        """Sign a browser in with the code or the token in its form."""
        if (address := self._own_address(request)) is not None:
            # With a shared name, the browser would send the cookie to every other server of this machine.
            query = f"?{request.url.query}" if request.url.query else ""
            return RedirectResponse(f"{address}{ROOT}/sign-in{query}", status_code=303)
        async with read_form(request) as form:
            return await self._begin_session(request, form)

    async def _begin_session(self, request: Request, form: SentForm) -> Response:
        """Start a session for the token or code in a form, and redirect to the page that was requested."""
        try:
            signed_in = await self._console.sessions.sign_in(form.text("secret"), agent=_user_agent(request))
        except BadRequest as error:
            client = request.client.host if request.client else None
            self._on_refusal(
                RefusedRequest(error=error.code, path=request.url.path, method="POST", peer=client)
            )
            return self._sign_in_page(request, error)
        name = self._cookie_name(request)
        answer = RedirectResponse(own_path(form.text("next")) or f"{ROOT}/", status_code=303)
        answer.set_cookie(
            name,
            signed_in.cookie,
            max_age=COOKIE_SECONDS,
            path="/",
            httponly=True,
            samesite="strict",
            secure=name == SECURE_COOKIE,
        )
        return answer

    async def _sign_out(self, view: View, _: SentForm) -> Response:
        """End the session of a browser, and delete its cookie."""
        await self._console.sessions.sign_out(view.signed_in)
        answer = RedirectResponse(f"{ROOT}/sign-in", status_code=303)
        name = self._cookie_name(view.request)
        answer.delete_cookie(name, path="/", httponly=True, samesite="strict", secure=name == SECURE_COOKIE)
        return answer

    async def _set_preferences(self, _: View, form: SentForm) -> Response:
        """Store the chosen language and theme in cookies."""
        answer = RedirectResponse(own_path(form.text("next")) or f"{ROOT}/", status_code=303)
        for field, allowed in (("language", tuple(LANGUAGES)), ("theme", THEMES)):
            if form.text(field) in allowed:
                answer.set_cookie(
                    f"andy_{field}",
                    form.text(field),
                    max_age=COOKIE_SECONDS * 12,
                    path="/",
                    samesite="strict",
                )
        return answer

    async def _stream(self, request: Request) -> Response:
        """Return the stream of events for the open pages of a browser. Raises `TooManyPages`."""
        signed_in = await self._signed_in(request)
        if signed_in is None:
            return Response(status_code=401)

        # Checked again while the stream is open, so that it ends with the session.
        async def is_welcome() -> bool:
            """Return whether the session is still valid, for a stream that stays open."""
            return await self._console.sessions.find(signed_in.cookie, agent=_user_agent(request)) is not None

        if self._console.live.is_full:
            raise TooManyPages
        return EventStream(
            self._console.live.events(request.query_params.get("since", ""), is_welcome=is_welcome)
        )

    # Errors in words

    async def explain(self, request: Request, error: Exception) -> Response:
        """Return a page that explains an error and what to do; log a fault of the host's own."""
        status = status_of(error)
        signed_in = await self._signed_in(request)
        view = View(self._console, request, page=None, signed_in=signed_in)
        if signed_in is not None and status < 500:  # after a fault, counting the needs might fail too
            view.needs = len(await needs.read_waiting(view)) + self._console.troubles
        changed = error if isinstance(error, ChangedSince) else None
        text = view.why(error)
        if status >= 500:
            log.warning("console.failed", path=request.url.path, reason=str(error))
        back = came_from(request)
        return view.render("error.html", status=status, code=status, text=text, changed=changed, back=back)

    async def explain_depth(self, request: Request, _: Exception) -> Response:
        """Answer a request whose JSON is nested so deeply that parsing exceeded the recursion limit."""
        return await self.explain(request, BadBody("The text is nested too deeply."))

    async def explain_shape(self, request: Request, _: Exception) -> Response:
        """Answer a form with a field that a service refuses, such as one that is too long."""
        return await self.explain(request, BadBody("A field is empty, too long, or of the wrong kind."))

    async def explain_fault(self, request: Request, _: Exception) -> Response:
        """Answer after a fault of Andy itself, which the server logs with its traceback."""
        answer = await self.explain(request, HTTPException(500))
        # Starlette calls the handler of `Exception` outside of all middleware, which would add the headers.
        add_security_headers(answer.headers)
        return answer


def _return_query(request: Request) -> str:
    """Return the query with which the sign-in leads back to the path of a request: `next=/console/now`."""
    whole = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    return urlencode({"next": whole})


def _return_path(request: Request) -> str | None:
    """Return the path to which the sign-in leads back, or None if there is none that is safe."""
    return own_path(request.query_params.get("next", ""))


def _user_agent(request: Request) -> str:
    return str(request.headers.get("user-agent", ""))


def _hash(content: bytes) -> str:
    """Return the start of a file's hash, which is part of its address."""
    return hashlib.sha256(content).hexdigest()[:16]


def _asset(name: str, content: bytes) -> str:
    """Return the path of a static file, which has the hash of its content."""
    return f"{ROOT}/static/{_hash(content)}/{name}"


def _manifest(files: Mapping[str, bytes]) -> bytes:
    """Return the web app manifest, with which a browser can install the console as an app."""
    icons = [
        {"src": _asset(name, files[name]), "sizes": f"{size}x{size}", "type": "image/png", "purpose": purpose}
        for name, size, purpose in (
            ("andy-192.png", 192, "any"),
            ("andy-512.png", 512, "any"),
            ("andy-maskable.png", 512, "maskable"),
        )
    ]
    colours = {"background_color": "#f6f6f3", "theme_color": "#f6f6f3"}
    app = {"id": f"{ROOT}/", "start_url": f"{ROOT}/", "scope": f"{ROOT}/", "display": "standalone"}
    return json.dumps({"name": "Andy", "short_name": "Andy", **app, **colours, "icons": icons}).encode()


def _static(files: Mapping[str, bytes]) -> Callable[[Request], Awaitable[Response]]:
    """Return the handler that serves static files; `files` has their contents by name."""
    # Only these files are compressed, and no page: the length of a compressed page would tell an attacker,
    # who can put text of his own into it, something of the secrets in it.
    packed = {name: gzip.compress(content) for name, content in files.items() if not name.endswith(".png")}

    async def answer(request: Request) -> Response:
        """Return the file; one under an earlier version's path is returned too, but not to be kept."""
        name = request.path_params["name"]
        if name not in files:
            raise HTTPException(404)
        kind = KINDS[Path(name).suffix]
        # The content of a path with the hash of its file never changes. A path with the hash of an earlier
        # Andy gives today's file, which a browser must not store under it.
        is_current = request.path_params["hash"] == _hash(files[name])
        headers = {"Cache-Control": FOR_EVER if is_current else "no-store", "Vary": "Accept-Encoding"}
        if name in packed and "gzip" in request.headers.get("accept-encoding", ""):
            return Response(packed[name], media_type=kind, headers={**headers, "Content-Encoding": "gzip"})
        return Response(files[name], media_type=kind, headers=headers)

    return answer
