"""The console's own app: it finds the pages, lets in who is signed in, and tells errors in words."""

from __future__ import annotations

import hashlib
import pkgutil
from collections.abc import Awaitable, Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlencode, urlsplit

import structlog
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from orchestrator.domain.errors import AndyError, BadRequest
from orchestrator.web.connections import mark_admitted
from orchestrator.web.console import pages as page_modules
from orchestrator.web.console.catalogue import LANGUAGES, Catalogue
from orchestrator.web.console.form_bodies import read_form
from orchestrator.web.console.forms import FIELD, ChangedSince, FormGuard, SentForm
from orchestrator.web.console.live import LiveStreams, TooManyPages, Watch
from orchestrator.web.console.page import (
    ROOT,
    THEMES,
    Console,
    Page,
    View,
    came_from,
    own_path,
    policy,
    templates,
)
from orchestrator.web.console.sessions import SessionService, SignedIn
from orchestrator.web.event_stream import EventStream
from orchestrator.web.guard import COOKIE, SECURE_COOKIE
from orchestrator.web.refusals import OnRefusal, RefusedRequest

if TYPE_CHECKING:
    from orchestrator.web.api.routes import ApiServices
    from orchestrator.web.feature import WebFeature

log = structlog.get_logger(__name__)

COOKIE_SECONDS = 30 * 24 * 3600
STATIC = Path(__file__).parent / "static"
KINDS = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".png": "image/png"}
FOR_EVER = "public, max-age=31536000, immutable"


def build_console(
    web: WebFeature,
    api: ApiServices,
    sessions: SessionService,
    *,
    on_refusal: OnRefusal,
) -> ASGIApp:
    """Build the app for everything below `/console`. Reads templates and texts from the disk: blocks."""
    host = web.host
    origin = urlsplit(host.settings.andy_web_origin or "")
    secure_host = origin.netloc if origin.scheme == "https" else None
    files = {path.name: path.read_bytes() for path in sorted(STATIC.iterdir()) if path.suffix in KINDS}
    console = Console(
        web=web,
        api=api,
        sessions=sessions,
        forms=FormGuard(),
        live=LiveStreams(host.bus, start=str(web.started_ms)),
        catalogue=Catalogue.load(),
        templates=templates(),
        pages=find_pages(),
        clock=host.clock,
        zone=host.settings.zone,
        assets={name: f"{ROOT}/static/{_hash(content)}/{name}" for name, content in files.items()},
    )
    routes = _Routes(console, secure_host=secure_host, on_refusal=on_refusal)
    return Starlette(
        routes=[
            *routes.own(),
            Route("/static/{hash}/{name}", _static(files)),
            *(route for page in console.pages for route in routes.of(page)),
        ],
        middleware=[Middleware(SecurityHeaders)],
        exception_handlers={
            AndyError: routes.explain,
            HTTPException: routes.explain,
        },
    )


def find_pages() -> tuple[Page, ...]:
    """Import every module of `pages/` and return their pages in the order of the navigation."""
    names = [one.name for one in pkgutil.iter_modules(page_modules.__path__)]
    found = [import_module(f"{page_modules.__name__}.{name}") for name in names]
    pages = [module.PAGE for module in found if hasattr(module, "PAGE")]
    return tuple(sorted(pages, key=lambda page: page.order))


class SecurityHeaders:
    """ASGI middleware: what every answer says to the browser. A page brings its own, stricter policy."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.setdefault("Content-Security-Policy", policy())
                headers.setdefault("X-Content-Type-Options", "nosniff")
                # Not "no-referrer": browsers then send "Origin: null" with forms, and a form of another page
                # could not be told from one of ours. Other origins are told nothing by either.
                headers.setdefault("Referrer-Policy", "same-origin")
                headers.setdefault("X-Frame-Options", "DENY")
                headers.setdefault("Cross-Origin-Opener-Policy", "same-origin")
                headers.setdefault("Cross-Origin-Resource-Policy", "same-origin")
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        await self._app(scope, receive, send_with_headers)


class _Routes:
    """The routes of a console, each behind the sign-in but for the sign-in itself."""

    def __init__(self, console: Console, *, secure_host: str | None, on_refusal: OnRefusal) -> None:
        self._console = console
        self._secure_host = secure_host
        self._on_refusal = on_refusal

    def own(self) -> list[Route]:
        """The routes that belong to no page."""
        return [
            Route("/", self._enter),
            Route("/sign-in", self._show_sign_in),
            Route("/sign-in", self._sign_in, methods=["POST"]),
            Route("/sign-out", self._changing(None, self._sign_out), methods=["POST"]),
            Route("/preferences", self._changing(None, self._prefer), methods=["POST"]),
            Route("/live/{page}", self._stream),
        ]

    def of(self, page: Page) -> list[Route]:
        return [
            *(Route(path, self._showing(page, show)) for path, show in page.shows.items()),
            *(
                Route(path, self._changing(page, change), methods=["POST"])
                for path, change in page.changes.items()
            ),
        ]

    # Who it is

    def _cookie_name(self, request: Request) -> str:
        is_secure = self._secure_host is not None and request.headers.get("host") == self._secure_host
        return SECURE_COOKIE if is_secure else COOKIE

    async def _who(self, request: Request) -> SignedIn | None:
        found = await self._console.sessions.find(request.cookies.get(self._cookie_name(request), ""))
        if found is not None:
            mark_admitted(request.scope)
        return found

    def _turn_away(self, request: Request) -> Response:
        """Send who is not signed in to do it, and back afterwards where that is safe."""
        if request.headers.get("hx-request"):
            return Response(status_code=401, headers={"HX-Redirect": f"{ROOT}/sign-in"})
        if request.method != "GET":
            return RedirectResponse(f"{ROOT}/sign-in?lost=form", status_code=303)
        return RedirectResponse(f"{ROOT}/sign-in?{_next_query(request)}", status_code=303)

    # The ways in

    def _showing(
        self, page: Page, show: Callable[[View], Awaitable[Response]]
    ) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            signed_in = await self._who(request)
            if signed_in is None:
                return self._turn_away(request)
            return await show(View(self._console, request, page=page, signed_in=signed_in))

        return answer

    def _changing(
        self, page: Page | None, change: Callable[[View, SentForm], Awaitable[Response]]
    ) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            signed_in = await self._who(request)
            if signed_in is None:
                return self._turn_away(request)
            view = View(self._console, request, page=page, signed_in=signed_in)
            async with read_form(request, upload_bytes=page.upload_bytes if page else 0) as form:
                number = self._console.forms.take(signed_in.secret, form.raw(FIELD))
                try:
                    answered = await change(view, form)
                except BaseException:
                    self._console.forms.give_back(number)
                    raise
                if answered.status_code >= 400:
                    self._console.forms.give_back(number)
                return answered

        return answer

    async def _enter(self, request: Request) -> Response:
        if await self._who(request) is None:
            return await self._show_sign_in(request)
        return RedirectResponse(ROOT + self._console.pages[0].path, status_code=303)

    async def _show_sign_in(self, request: Request) -> Response:
        if await self._who(request) is not None:
            return RedirectResponse(_wanted(request) or ROOT + self._console.pages[0].path, status_code=303)
        return self._sign_in_page(request)

    def _sign_in_page(self, request: Request, error: BadRequest | None = None) -> Response:
        view = View(self._console, request, page=None, signed_in=None)
        view.error = _text_of(view, error) if error else None
        status = error.http_status if error else 200
        is_lost = error is None and request.query_params.get("lost") == "form"
        return view.render("sign_in.html", status=status, next=_wanted(request) or "", is_lost=is_lost)

    async def _sign_in(self, request: Request) -> Response:
        async with read_form(request) as form:
            return await self._begin_session(request, form)

    async def _begin_session(self, request: Request, form: SentForm) -> Response:
        browser = _browser_of(request.headers.get("user-agent", ""))
        try:
            signed_in = await self._console.sessions.sign_in(form.text("secret"), browser=browser)
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
        await self._console.sessions.sign_out(view.signed_in)
        answer = RedirectResponse(f"{ROOT}/sign-in", status_code=303)
        name = self._cookie_name(view.request)
        answer.delete_cookie(name, path="/", httponly=True, samesite="strict", secure=name == SECURE_COOKIE)
        return answer

    async def _prefer(self, _: View, form: SentForm) -> Response:
        """Keep the language or the look that was chosen in a cookie."""
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
        page = self._console.page(request.path_params["page"])
        signed_in = await self._who(request)
        if signed_in is None or page is None:
            return Response(status_code=401 if signed_in is None else 404)
        watch = Watch(
            parts=page.live,
            group=request.query_params.get("group"),
            after=request.headers.get("last-event-id") or request.query_params.get("since", ""),
        )

        async def is_welcome() -> bool:
            return await self._console.sessions.find(signed_in.cookie) is not None

        if self._console.live.is_full:
            raise TooManyPages
        return EventStream(self._console.live.events(watch, is_welcome=is_welcome))

    # Errors in words

    async def explain(self, request: Request, error: Exception) -> Response:
        """Answer an error as a page that says what is wrong and what to do."""
        status = _status_of(error)
        signed_in = await self._who(request)
        view = View(self._console, request, page=None, signed_in=signed_in)
        changed = error if isinstance(error, ChangedSince) else None
        text = _text_of(view, error)
        if status >= 500:
            log.warning("console.failed", path=request.url.path, reason=str(error))
        back = came_from(request)
        return view.render("error.html", status=status, code=status, text=text, changed=changed, back=back)


def _status_of(error: Exception) -> int:
    if isinstance(error, HTTPException):
        return error.status_code
    return error.http_status if isinstance(error, BadRequest) else 503


def _text_of(view: View, error: Exception) -> str:
    """The words for an error: the catalogue's where it has some for its code, else its own."""
    code = getattr(error, "code", None) or f"http_{_status_of(error)}"
    if view.console.catalogue.has(f"errors.{code}"):
        return view.t(f"errors.{code}")
    return str(error) if isinstance(error, AndyError) else view.t("errors.http_other")


def _next_query(request: Request) -> str:
    whole = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    return urlencode({"next": whole})


def _wanted(request: Request) -> str | None:
    return own_path(request.query_params.get("next", ""))


def _browser_of(agent: str) -> str:
    """What a browser calls itself, in a word or two."""
    system = next(
        (one for one in ("iPhone", "iPad", "Android", "Windows", "Mac OS", "Linux") if one in agent), ""
    )
    names = {"Edg/": "Edge", "Firefox/": "Firefox", "Chrome/": "Chrome", "Safari/": "Safari"}
    name = next((name for mark, name in names.items() if mark in agent), ascii(agent[:40])[1:-1])
    return f"{name} ({system})" if system else name


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _static(files: Mapping[str, bytes]) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in files:
            raise HTTPException(404)
        kind = KINDS[Path(name).suffix]
        headers = {
            "Cache-Control": FOR_EVER if request.path_params["hash"] == _hash(files[name]) else "no-store"
        }
        return Response(files[name], media_type=kind, headers=headers)

    return answer
