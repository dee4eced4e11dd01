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

from orchestrator.domain.errors import AndyError, BadRequest, StoreError
from orchestrator.web.bodies import BAD_FIELD, BadBody
from orchestrator.web.connections import mark_admitted
from orchestrator.web.console import needs
from orchestrator.web.console import pages as page_modules
from orchestrator.web.console.catalogue import LANGUAGES, Catalogue
from orchestrator.web.console.doctor import BackgroundDoctor
from orchestrator.web.console.form_bodies import read_form
from orchestrator.web.console.form_tokens import TOKEN_FIELD, ChangedSince, FormGuard, SentForm
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
"""Seconds for which a browser stores the session's cookie; one of preferences lasts twelve times as long."""
STATIC = Path(__file__).parent / "static"
KINDS = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".png": "image/png"}
KINDS |= {".webmanifest": "application/manifest+json"}
"""The content types of static files, by the end of their names."""
MANIFEST = "andy.webmanifest"
"""The name of the file by which a browser can install the console as an app."""
CACHE_FOR_A_YEAR = "public, max-age=31536000, immutable"
"""The header Cache-Control of a file whose address changes with its content."""


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
    """Build the ASGI app for everything below `/console`. Blocks, as it reads files from the disk.

    Args:
        services: what the pages read and change.
        sessions: the sessions of signed-in browsers.
        started_ms: the time when the host began to start, in epoch milliseconds.
        on_refusal: called for each refused sign-in.
    """
    host = services.host
    pages = find_pages()
    # The events after which some part of a page has to be loaded again.
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
            *routes.common(),
            Route("/static/{hash}/{name}", _static(files)),
            *(route for page in console.pages for route in routes.of_page(page)),
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
    """Import every module of `pages/`, and return the pages that they declare, in the navigation's order."""
    names = [module_info.name for module_info in pkgutil.iter_modules(page_modules.__path__)]
    modules = [import_module(f"{page_modules.__name__}.{name}") for name in names]
    pages = [module.PAGE for module in modules if hasattr(module, "PAGE")]
    return tuple(sorted(pages, key=lambda page: page.order))


def add_security_headers(headers: MutableHeaders) -> None:
    """Add the headers that protect the browser, except those that an answer has set itself."""
    headers.setdefault("Content-Security-Policy", policy())
    headers.setdefault("X-Content-Type-Options", "nosniff")
    # Not "no-referrer": with that, browsers send "Origin: null" with forms, and the form of another site
    # could not be distinguished from the console's. Both values send nothing to other sites.
    headers.setdefault("Referrer-Policy", "same-origin")
    headers.setdefault("X-Frame-Options", "DENY")
    headers.setdefault("Cross-Origin-Opener-Policy", "same-origin")
    headers.setdefault("Cross-Origin-Resource-Policy", "same-origin")
    headers.setdefault("Cache-Control", "no-store")


class SecurityHeaders:
    """ASGI middleware that adds security headers to every answer.

    A page sets its own content security policy, which lets its inline scripts run.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request to the app, and add the security headers to its answer."""

        async def send_with_headers(message: Message) -> None:
            """Send a message of the app, with the security headers if it starts a response."""
            if message["type"] == "http.response.start":
                add_security_headers(MutableHeaders(scope=message))
            await send(message)

        await self._app(scope, receive, send_with_headers)


class Arrival:
    """ASGI middleware that may answer a request before the app gets it."""

    def __init__(self, app: ASGIApp, *, answer: Callable[[Request], Awaitable[Response | None]]) -> None:
        """`answer` returns the answer to a request, or None to pass the request to `app`."""
        self._app = app
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response that `self._answer` returns for a request; without one, leave it to the app."""
        response = await self._answer(Request(scope)) if scope["type"] == "http" else None
        # A response is an ASGI app itself.
        responder = self._app if response is None else response
        await responder(scope, receive, send)


class _Routes:
    """The routes of a console; all but the sign-in itself require a session."""

    def __init__(self, console: Console, *, web_origin: SplitResult, on_refusal: OnRefusal) -> None:
        """Store what the routes need.

        Args:
            console: what all pages share.
            web_origin: the parts of the address under which people reach the console by a reverse proxy;
                empty without one.
            on_refusal: called for each refused sign-in.
        """
        self._console = console
        self._web_host = web_origin.netloc
        self._secure_host = web_origin.netloc if web_origin.scheme == "https" else None
        self._on_refusal = on_refusal

    def common(self) -> list[Route]:
        """Return the routes that belong to no page, such as the sign-in."""
        return [
            Route("/", self._enter),
            Route("/sign-in", self._show_sign_in),
            Route("/sign-in", self._sign_in, methods=["POST"]),
            Route("/sign-out", self._form_handler(None, self._sign_out), methods=["POST"]),
            Route("/preferences", self._form_handler(None, self._set_preferences), methods=["POST"]),
            Route("/live", self._stream),
        ]

    def of_page(self, page: Page) -> list[Route]:
        """Return the routes of a page: those that show it, and those of its forms."""
        return [
            *(Route(path, self._page_handler(page, show)) for path, show in page.shows.items()),
            *(
                Route(path, self._form_handler(page, change), methods=["POST"])
                for path, change in page.changes.items()
            ),
        ]

    # The name and the page that a request comes from

    async def arrive(self, request: Request) -> Response | None:
        """Return an answer for a browser that must not see the page yet, or None to answer as usual.

        A browser that used a name such as `localhost`, which all servers of this machine share, is redirected
        to the console's own name. A browser that comes from another site's page gets a link to follow. Forms,
        static files and streams are answered as usual.
        """
        view = View(self._console, request, page=None, signed_in=None)
        if request.method not in ("GET", "HEAD") or view.path.startswith(NO_PAGES):
            return None
        if (address := self._own_address(request)) is not None:
            return await self._redirect_to_own_name(request, address + view.here)
        if is_from_elsewhere(request.headers):
            # A click on the link comes from the console itself, so the browser sends the session's cookie.
            return view.render("elsewhere.html", status=403, target=own_path(view.here) or f"{ROOT}/")
        return None

    def _own_address(self, request: Request) -> str | None:
        """Return the origin with the console's own name if the browser used a name such as `localhost`.

        All servers of this machine share such a name. Return None if the browser used another name, or that
        of the reverse proxy. Return None, too, for a browser that is not known to find every `*.localhost` by
        itself, as Chromium and Firefox do.
        """
        host = request.headers.get("host", "")
        name = host_of(host)
        is_shared = name in SHARED_HOSTS and host != self._web_host
        if not is_shared or not any(browser in _user_agent(request) for browser in FINDS_OWN_NAME):
            return None
        return f"{request.url.scheme}://{CONSOLE_HOST}{host.removeprefix(name)}"

    async def _redirect_to_own_name(self, request: Request, address: str) -> Response:
        """Redirect a browser to `address`, which has the console's own name.

        A session that began under a shared name such as `localhost` is ended.
        """
        answer = RedirectResponse(address, status_code=307)
        if COOKIE in request.cookies:
            # The browser has sent this cookie to every server of the machine, so others may know it.
            signed_in = await self._session_of(request)
            if signed_in is not None:
                await self._console.sessions.sign_out(signed_in)
            answer.delete_cookie(COOKIE, path="/", httponly=True, samesite="strict")
        return answer

    # The session of the browser

    def _cookie_name(self, request: Request) -> str:
        """Return the name of the session's cookie: over https, a name that browsers protect better."""
        # Browsers take a cookie whose name begins with `__Host-` over https only, as from a reverse proxy.
        is_secure = self._secure_host is not None and request.headers.get("host") == self._secure_host
        return SECURE_COOKIE if is_secure else COOKIE

    async def _session_of(self, request: Request) -> SignedIn | None:
        """Return the session of the browser that sent a request, or None if it is not signed in.

        With a session, the request's connection is marked as authorised.
        """
        cookie = request.cookies.get(self._cookie_name(request), "")
        signed_in = await self._console.sessions.find(cookie, agent=_user_agent(request))
        if signed_in is not None:
            mark_admitted(request.scope)
        return signed_in

    def _redirect_to_sign_in(self, request: Request) -> Response:
        """Return the redirection to the sign-in for a browser without a session.

        After the sign-in, the browser returns to the requested page. If a form was sent, the sign-in says
        instead that the form is lost. A request of htmx gets neither.
        """
        # htmx, which loads parts of a page, would put the sign-in page into the part. This header makes it
        # load the whole page.
        if request.headers.get("hx-request"):
            return Response(status_code=401, headers={"HX-Redirect": f"{ROOT}/sign-in"})
        if request.method != "GET":
            # What was typed into the form is lost with this request: the sign-in says so.
            return RedirectResponse(f"{ROOT}/sign-in?lost=form", status_code=303)
        return RedirectResponse(f"{ROOT}/sign-in?{_return_query(request)}", status_code=303)

    # The ways in

    def _page_handler(
        self, page: Page, show: Callable[[View], Awaitable[Response]]
    ) -> Callable[[Request], Awaitable[Response]]:
        """Return the handler of a `GET` route of a page, which calls `show` for a signed-in browser.

        Any other browser is redirected to the sign-in.
        """

        async def answer(request: Request) -> Response:
            """Show the page to a browser that is signed in; redirect any other to the sign-in."""
            signed_in = await self._session_of(request)
            if signed_in is None:
                return self._redirect_to_sign_in(request)
            view = View(self._console, request, page=page, signed_in=signed_in)
            if view.part is None:
                # Only a whole page shows how many things wait for the owner.
                view.waiting = await needs.read_waiting(view)
                view.needs = len(view.waiting) + self._console.failing_parts
            return await show(view)

        return answer

    def _form_handler(
        self, page: Page | None, change: Callable[[View, SentForm], Awaitable[Response]]
    ) -> Callable[[Request], Awaitable[Response]]:
        """Return the handler of a `POST` route, which calls `change` with the form of a signed-in browser.

        Any other browser is redirected to the sign-in. A form that was carried out is refused if the browser
        sends it a second time. `page` is the page of the form; None for a form outside of all pages.
        """

        async def answer(request: Request) -> Response:
            """Carry out the form of a browser that is signed in; redirect any other to the sign-in."""
            signed_in = await self._session_of(request)
            if signed_in is None:
                return self._redirect_to_sign_in(request)
            view = View(self._console, request, page=page, signed_in=signed_in)
            # Needed if the handler shows a refused form again.
            view.needs = len(await needs.read_waiting(view)) + self._console.failing_parts
            # Read only with a session, so that nobody else can make the host read a large body.
            async with read_form(request, upload_bytes=page.upload_bytes if page else 0) as form:
                async with self._console.forms.carrying_out(signed_in, form.raw(TOKEN_FIELD)) as taken:
                    answered = await change(view, form)
                    # A form that was refused is shown again and may be sent again.
                    taken.is_done = answered.status_code < 400
                return answered

        return answer

    async def _enter(self, request: Request) -> Response:
        """Redirect a signed-in browser to the first page; show the sign-in to any other."""
        if await self._session_of(request) is None:
            return await self._show_sign_in(request)
        return RedirectResponse(ROOT + self._console.pages[0].path, status_code=303)

    async def _show_sign_in(self, request: Request) -> Response:
        """Show the sign-in; redirect a browser that is signed in to the page that it requested before."""
        if await self._session_of(request) is not None:
            return RedirectResponse(
                _return_path(request) or ROOT + self._console.pages[0].path, status_code=303
            )
        return self._sign_in_page(request)

    def _sign_in_page(self, request: Request, error: BadRequest | None = None) -> Response:
        """Return the page of the sign-in; with `error`, it says why a sign-in was refused.

        With `lost=form` in the query, it says that a form, sent after the session had ended, was lost.
        """
        view = View(self._console, request, page=None, signed_in=None)
        view.error = view.why(error) if error else None
        status = error.http_status if error else 200
        is_lost = error is None and request.query_params.get("lost") == "form"
        return view.render("sign_in.html", status=status, next=_return_path(request) or "", is_lost=is_lost)

    async def _sign_in(self, request: Request) -> Response:
        """Sign a browser in with the code or the token in its form, and redirect it to the requested page.

        A browser that used a shared name such as `localhost` is not signed in, but redirected to the sign-in
        under the console's own name.
        """
        if (address := self._own_address(request)) is not None:
            # With a shared name, the browser would send the cookie to every other server of this machine.
            query = f"?{request.url.query}" if request.url.query else ""
            return RedirectResponse(f"{address}{ROOT}/sign-in{query}", status_code=303)
        async with read_form(request) as form:
            return await self._begin_session(request, form)

    async def _begin_session(self, request: Request, form: SentForm) -> Response:
        """Start a session for the token or code in a form, and redirect to the page that was requested.

        If it is not valid, the refusal is reported and the sign-in is shown again.
        """
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
        """End the session of a browser, delete its cookie, and redirect to the sign-in."""
        await self._console.sessions.sign_out(view.signed_in)
        answer = RedirectResponse(f"{ROOT}/sign-in", status_code=303)
        name = self._cookie_name(view.request)
        answer.delete_cookie(name, path="/", httponly=True, samesite="strict", secure=name == SECURE_COOKIE)
        return answer

    async def _set_preferences(self, _: View, form: SentForm) -> Response:
        """Store the language and the theme of a form in cookies, and redirect back; ignore unknown ones."""
        answer = RedirectResponse(own_path(form.text("next")) or f"{ROOT}/", status_code=303)
        for field, allowed in (("language", tuple(LANGUAGES)), ("theme", THEMES)):
            if form.text(field) in allowed:
                answer.set_cookie(
                    f"andy_{field}",
                    form.text(field),
                    max_age=COOKIE_SECONDS * 12,  # about a year
                    path="/",
                    samesite="strict",
                )
        return answer

    async def _stream(self, request: Request) -> Response:
        """Answer with the stream of events for an open page; 401 for a browser that is not signed in.

        Raises `TooManyPages` if too many streams are open.
        """
        signed_in = await self._session_of(request)
        if signed_in is None:
            return Response(status_code=401)

        # Checked again while the stream is open, so that it ends with the session.
        async def is_signed_in() -> bool:
            """Return whether the session is still valid, for a stream that stays open."""
            return await self._console.sessions.find(signed_in.cookie, agent=_user_agent(request)) is not None

        if self._console.live.is_full:
            raise TooManyPages
        return EventStream(
            self._console.live.events(request.query_params.get("since", ""), is_signed_in=is_signed_in)
        )

    # Errors in words

    async def explain(self, request: Request, error: Exception) -> Response:
        """Return a page that says what went wrong and what to do; log a fault of the host itself.

        For a form about something that has changed since its page was opened (`ChangedSince`), the page also
        shows what has changed.
        """
        status = status_of(error)
        try:
            signed_in = await self._session_of(request)
        except StoreError:
            # This may be the fault itself. The page is then as for a browser that is not signed in.
            signed_in = None
        view = View(self._console, request, page=None, signed_in=signed_in)
        # The number of things that wait for the owner, which the navigation of the page shows. After a fault
        # it is not counted, because that might fail too.
        if signed_in is not None and status < 500:
            view.needs = len(await needs.read_waiting(view)) + self._console.failing_parts
        changed = error if isinstance(error, ChangedSince) else None
        text = view.why(error)
        if status >= 500:
            log.warning("console.failed", path=request.url.path, reason=str(error))
        back = came_from(request)
        return view.render("error.html", status=status, code=status, text=text, changed=changed, back=back)

    async def explain_depth(self, request: Request, _: Exception) -> Response:
        """Return the error page for a body so deeply nested that parsing exceeded the recursion limit."""
        return await self.explain(request, BadBody("The text is nested too deeply."))

    async def explain_shape(self, request: Request, _: Exception) -> Response:
        """Return the error page for a form with a field that is refused, such as one that is too long."""
        return await self.explain(request, BadBody(BAD_FIELD))

    async def explain_fault(self, request: Request, _: Exception) -> Response:
        """Return the error page for a fault of Andy itself, which the server logs with its traceback."""
        answer = await self.explain(request, HTTPException(500))
        # Starlette calls the handler of `Exception` outside of all middleware, which would add the headers.
        add_security_headers(answer.headers)
        return answer


def _return_query(request: Request) -> str:
    """Return the query with which the sign-in leads back to a request's address: `next=%2Fconsole%2Fnow`."""
    address = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    return urlencode({"next": address})


def _return_path(request: Request) -> str | None:
    """Return the path to which the sign-in leads back; None if there is none, or it is not the console's."""
    return own_path(request.query_params.get("next", ""))


def _user_agent(request: Request) -> str:
    return str(request.headers.get("user-agent", ""))


def _hash(content: bytes) -> str:
    """Return the hash of a static file's content that is a part of the file's address."""
    return hashlib.sha256(content).hexdigest()[:16]


def _asset(name: str, content: bytes) -> str:
    """Return the path at which a static file is served; it changes with the file's content."""
    return f"{ROOT}/static/{_hash(content)}/{name}"


def _manifest(files: Mapping[str, bytes]) -> bytes:
    """Return the web app manifest, with which a browser can install the console as an app.

    `files` has the contents of the static files by name, among them the icons.
    """
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
    # Only static files are compressed, and no page. An attacker who can put text into a page could guess the
    # secrets in it by the length of the compressed page (the attack BREACH).
    packed = {name: gzip.compress(content) for name, content in files.items() if not name.endswith(".png")}

    async def answer(request: Request) -> Response:
        """Answer with the file whose name is in the path.

        If the path has the hash of an earlier version, today's file is returned, and must not be stored.
        """
        name = request.path_params["name"]
        if name not in files:
            raise HTTPException(404)
        kind = KINDS[Path(name).suffix]
        # The content at a path with the right hash never changes, so a browser may store it.
        is_current = request.path_params["hash"] == _hash(files[name])
        headers = {
            "Cache-Control": CACHE_FOR_A_YEAR if is_current else "no-store",
            "Vary": "Accept-Encoding",
        }
        if name in packed and "gzip" in request.headers.get("accept-encoding", ""):
            return Response(packed[name], media_type=kind, headers={**headers, "Content-Encoding": "gzip"})
        return Response(files[name], media_type=kind, headers=headers)

    return answer
