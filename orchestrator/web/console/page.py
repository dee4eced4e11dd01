"""The declaration of a console page: its routes, texts, templates, and the events that update it.

A page is a module in `pages/` with a `PAGE`, a file of texts in `texts/` and templates in `templates/`, all
of one name. A route is a function that takes a `View`, and for a change also a `SentForm`.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from datetime import date as date_type
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, quote, urlsplit
from zoneinfo import ZoneInfo

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from agent_runner.wire.times import TimeRefusal
from orchestrator.base.clock import Clock
from orchestrator.base.terminal_escaping import all_visible
from orchestrator.domain.errors import AndyError, BadRequest
from orchestrator.domain.values import Group
from orchestrator.reports.audit import AuditCheck
from orchestrator.web.bodies import whole_number
from orchestrator.web.console import marks
from orchestrator.web.console.catalogue import LANGUAGES, Catalogue, preferred_language
from orchestrator.web.console.doctor import BackgroundDoctor
from orchestrator.web.console.form_tokens import FormGuard, SentForm, state_as_text
from orchestrator.web.console.live import LiveStreams, Parts
from orchestrator.web.console.reasons import key_of
from orchestrator.web.console.sessions import SessionService, SignedIn

if TYPE_CHECKING:
    from orchestrator.channels.registry import Channels
    from orchestrator.containers.feature import ContainersFeature
    from orchestrator.context.feature import ContextFeature
    from orchestrator.groups.host_context import HostContext
    from orchestrator.proxies.model.routing import ModelRouter
    from orchestrator.undo.service import UndoService
    from orchestrator.web.api.routes import ApiServices
    from orchestrator.web.console.needs import Waiting

ROOT = "/console"
TEMPLATES = Path(__file__).parent / "templates"
THEMES = ("auto", "light", "dark")
MAX_FLASHES = 1_000
MAX_VALUE_CHARS = 100
"""Characters of a refused value that its error repeats."""
NEEDS = ("approval.*", "access.*", "dashboard.*", "command.dashboard", "turn.*", "channel.*", "host.*")
"""Kinds of events that may change what waits for the owner."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flash:
    """A text about what was just done, which the next page shows once."""

    text: str
    undo: str
    """The address of a form that undoes the change; empty if there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One entry of the navigation, with all the routes that belong to it. Paths begin after `/console`."""

    name: str
    """The page's name and that of its texts: `NAME.toml` has at least `title` and `about`."""
    order: int
    """The position in the navigation, in tens, so that a page can be put between two others."""
    shows: Mapping[str, Callable[[View], Awaitable[Response]]]
    """The handlers of `GET`, by path. The navigation leads to the first path."""
    changes: Mapping[str, Callable[[View, SentForm], Awaitable[Response]]] = field(default_factory=dict)
    """The handlers of `POST`, by path. They are called after the form was checked."""
    live: Parts = field(default_factory=dict)
    """The parts of the page that update themselves, each with the kinds of events that may change it."""
    of_all_groups: tuple[str, ...] = ()
    """Names of `live` parts that events of every group change, on a page of one group too."""
    is_daily: bool = False
    """Whether the page is in the first part of the navigation, which a phone shows as tabs."""
    upload_bytes: int = 0
    """The largest form with files, in bytes; 0 allows no files."""

    @property
    def path(self) -> str:
        """The path to which the navigation leads: the first one that the page shows."""
        return next(iter(self.shows))


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleServices:
    """The services of the host that pages call."""

    host: HostContext
    """Database, settings, home, clock and event bus of the host."""
    api: ApiServices
    """The services behind the HTTP API: `api.groups`, `api.tasks`, `api.status`, …"""
    channels: Channels
    containers: ContainersFeature
    contexts: ContextFeature
    undo: UndoService
    models: ModelRouter
    """The model services, their states, and the choices of groups."""
    restart: Callable[[], None] | None
    """Restarts the host gracefully; None if that is not possible."""


@dataclass(slots=True, kw_only=True)
class Console:
    """The console of a host: the objects that all of its pages share."""

    services: ConsoleServices
    sessions: SessionService
    forms: FormGuard
    live: LiveStreams
    catalogue: Catalogue
    templates: Environment
    pages: tuple[Page, ...]
    clock: Clock
    zone: ZoneInfo
    assets: Mapping[str, str]
    """The name of a file in `static/` → its path with its hash."""
    doctor: BackgroundDoctor
    backups: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while a backup is made or checked: one at a time."""
    counting_ahead: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while the times of the days ahead are counted in a thread: one page at a time."""
    audit_check: AuditCheck = field(default_factory=AuditCheck)
    failing_parts: int = 0
    """The number of failing parts when the page Now was rendered last."""
    flashes: dict[str, Flash] = field(default_factory=dict)
    """A session → the text that its next page shows once."""

    def page(self, name: str) -> Page | None:
        """Return the page with this name, or None if there is none."""
        return next((page for page in self.pages if page.name == name), None)


class View:
    """One request for a page, with everything a template needs to answer it."""

    def __init__(
        self, console: Console, request: Request, *, page: Page | None, signed_in: SignedIn | None
    ) -> None:
        """Prepare to answer a request to the console.

        `page` is the page to which the request's route belongs, None for an error page. `signed_in` is the
        browser's session, None before the sign-in. Language and theme are read from the request.
        """
        self.console = console
        self.services = console.services
        self.host = console.services.host
        self.api = console.services.api
        self.request = request
        self.page = page
        self.nonce = secrets.token_urlsafe(16)
        self.since = console.live.now
        """The id of the newest event before this page was rendered: its stream continues from there."""
        self._signed_in = signed_in
        self.needs = 0
        """The number of things that wait for the owner."""
        self.waiting: Waiting | None = None
        """The things that wait for the owner; None when only a part of a page is shown."""
        self.group_names: dict[str, str] = {}
        """The names of the groups that `choices` was called with, by folder."""
        self.error: str | None = None
        """The reason why a form was refused; the page that shows it again says so at its top."""
        chosen_language = request.cookies.get("andy_language", "")
        self.language = (
            chosen_language
            if chosen_language in LANGUAGES
            else preferred_language(request.headers.get("accept-language", ""))
        )
        theme = request.cookies.get("andy_theme", "")
        self.theme = theme if theme in THEMES else "auto"

    # The request

    @property
    def path(self) -> str:
        """The path of this page, as the browser knows it."""
        return str(self.request.scope["root_path"] + _path_below_root(self.request))

    @property
    def here(self) -> str:
        """The path of this page with its query, but without the query's `part`.

        In the answer to a form, it is that of the page that the form was on.
        """
        if self.request.method != "GET":
            return came_from(self.request)
        # Quoted again: this text from the browser becomes part of links in the page.
        query = "&".join(
            f"{quote(name, safe='')}={quote(value, safe='')}"
            for name, value in self.request.query_params.multi_items()
            if name != "part"
        )
        return self.path + (f"?{query}" if query else "")

    @property
    def part(self) -> str | None:
        """The name of the part of the page that is requested alone, to update it; None for the whole page."""
        name = self.query("part")
        return name if self.page and name in self.page.live else None

    @property
    def is_signed_in(self) -> bool:
        """Whether the browser of this request is signed in."""
        return self._signed_in is not None

    @property
    def signed_in(self) -> SignedIn:
        """The browser's session. Only for routes behind the sign-in, which always have one."""
        assert self._signed_in is not None, "only pages behind the sign-in ask"
        return self._signed_in

    def query(self, name: str, default: str = "") -> str:
        """Return a parameter of the address's query; `default` if it is missing."""
        return str(self.request.query_params.get(name, default))

    def number(self, name: str, default: int = 0) -> int:
        """Return a parameter of the address's query as a number; `default` if it is missing or no number."""
        number = whole_number(self.query(name))
        return default if number is None else number

    def path_param(self, name: str) -> str:
        """Return the part of the request's path that stands for `{name}` in the path of the route."""
        return str(self.request.path_params[name])

    def choices(self, groups: Iterable[Group], *, first: str = "base.all_groups") -> list[tuple[str, str]]:
        """Return the options of a list from which a group is chosen: pairs of a group's folder and its name.

        Of groups with the same name, the folder is added to the name. `first` is the key of the text of an
        option before them that stands for no group; with an empty key there is none. The names are added to
        `group_names`.
        """
        named = [(group.folder, all_visible(group.name[:60])) for group in groups]
        self.group_names |= named
        times = Counter(name for _, name in named)
        distinct = [(folder, name if times[name] == 1 else f"{name} ({folder})") for folder, name in named]
        return [*([("", self.t(first))] if first else []), *distinct]

    # Texts

    def t(self, key: str, /, **values: object) -> str:
        """Return the text with this key in the page's language.

        A key that begins with `.` is one of this page's texts. `values` replace the placeholders in the text.
        """
        full_key = f"{self.page.name}{key}" if key.startswith(".") and self.page else key
        return self.console.catalogue.text(self.language, full_key, **values)

    def why(self, error: Exception) -> str:
        """Return the text of an error in the page's language, by the error's code.

        Attributes of the error, such as the name of a group, replace the placeholders in the text. Without a
        text for the code, it is the own text of an `AndyError`, and a general one for any other error.
        """
        own_text = str(error) if isinstance(error, AndyError) else ""
        values = {name: str(value)[:MAX_VALUE_CHARS] for name, value in vars(error).items()} | {
            "own": own_text
        }
        refusal = getattr(error, "refusal", None)
        # The reason of a refused time is more exact than the code that all of them share.
        codes = [f"time_{refusal.reason}"] if isinstance(refusal, TimeRefusal) else []
        codes.append(str(getattr(error, "code", None) or f"http_{status_of(error)}").lower())
        catalogue = self.console.catalogue
        # `errors.CODE` is the console's own text for an error, in each language. `services.CODE` only
        # translates the text that the error has itself, in English.
        for code in codes:
            if catalogue.has(f"errors.{code}"):
                return self.t(f"errors.{code}", **values)
            translated = catalogue.translated(self.language, f"services.{code}", own_text, values)
            # Without a translation, `translated` returns the text unchanged.
            if translated != own_text:
                return translated
        return own_text or self.t("errors.http_other")

    def reason(self, text: str | None) -> str:
        """Return a reason that the host has stored, translated if it is one of Andy's own texts."""
        key = key_of(text or "")
        return self.translated(key, text or "") if key else text or ""

    def translated(self, key: str, english: str) -> str:
        """Return the text with this key in the page's language; `english`, the original, if there is none."""
        return self.console.catalogue.translated(self.language, key, english, {})

    def at(self, at_ms: int | None, *, zone: ZoneInfo | None = None) -> Markup:
        """Return a time as HTML, such as `09:30`, or `Tue 24 Nov 09:30` on another day than today.

        The full time is its title. A dash for None. `zone` is the console's time zone if it is None.
        """
        if at_ms is None:
            return Markup("–")
        moment = datetime.fromtimestamp(at_ms / 1000, UTC).astimezone(zone or self.console.zone)
        today = datetime.fromtimestamp(self.now_ms / 1000, UTC).astimezone(zone or self.console.zone)
        is_today = moment.date() == today.date()
        shown = f"{moment:%H:%M}" if is_today else f"{self.date(moment.date(), today.date())} {moment:%H:%M}"
        return Markup('<time datetime="{}" title="{}">{}</time>').format(
            moment.isoformat(timespec="seconds"), f"{moment:%Y-%m-%d %H:%M:%S %Z}", shown
        )

    def minute(self, at_ms: int) -> Markup:
        """Return the time of day as HTML, such as `09:30`; the full time is its title."""
        moment = datetime.fromtimestamp(at_ms / 1000, UTC).astimezone(self.console.zone)
        return Markup('<time datetime="{}" title="{}">{}</time>').format(
            moment.isoformat(timespec="seconds"), f"{moment:%Y-%m-%d %H:%M:%S %Z}", f"{moment:%H:%M}"
        )

    def when(self, at_ms: int) -> Markup:
        """Return a time as HTML for lists: the time of day if it is today, else the day.

        The full time is its title.
        """
        moment = datetime.fromtimestamp(at_ms / 1000, UTC).astimezone(self.console.zone)
        today = datetime.fromtimestamp(self.now_ms / 1000, self.console.zone).date()
        is_today = moment.date() == today
        return Markup('<time datetime="{}" title="{}">{}</time>').format(
            moment.isoformat(timespec="seconds"),
            f"{moment:%Y-%m-%d %H:%M:%S %Z}",
            f"{moment:%H:%M}" if is_today else self.date(moment.date(), today),
        )

    def second(self, at_ms: int | None) -> Markup:
        """Return the time of day to the second as HTML; the full time is its title. A dash for None."""
        if at_ms is None:
            return Markup("–")
        moment = datetime.fromtimestamp(at_ms / 1000, UTC).astimezone(self.console.zone)
        return Markup('<time datetime="{}" title="{}">{}</time>').format(
            moment.isoformat(timespec="milliseconds"), f"{moment:%Y-%m-%d %H:%M:%S %Z}", f"{moment:%H:%M:%S}"
        )

    def day(self, date: str) -> str:
        """Return a date such as `2026-11-24` for people: `Today, Tue 24 Nov`."""
        day = datetime.fromisoformat(date).date()
        today = datetime.fromtimestamp(self.now_ms / 1000, self.console.zone).date()
        near = {-1: "base.yesterday", 0: "base.today", 1: "base.tomorrow"}.get((day - today).days)
        shown = self.date(day, today)
        return f"{self.t(near)}, {shown}" if near else shown

    def date(self, day: date_type, today: date_type) -> str:
        """Return `day` in the page's language, as `Tue 24 Nov`; with its year unless `today` has the same."""
        key = "base.date" if day.year == today.year else "base.date_with_year"
        return self.t(
            key,
            weekday=self.t("base.weekdays").split()[day.weekday()],
            month=self.t("base.months").split()[day.month - 1],
            day=day.day,
            year=day.year,
        )

    def span(self, seconds: float) -> str:
        """Return a duration for people, in two units at most: `12 s`, `4 min`, `3 h 5 min`, `2 days`."""
        if seconds < 60:
            return self.t("base.seconds", n=f"{seconds:.0f}")
        minutes = int(seconds // 60)
        if minutes < 60:
            return self.t("base.minutes", n=minutes)
        hours = minutes // 60
        if hours < 48:
            return self.t("base.hours", n=hours, minutes=minutes % 60)
        return self.t("base.days", n=hours // 24)

    def ago(self, at_ms: int) -> str:
        """Return how long ago a time (epoch ms) was, for people: `4 min ago`."""
        return self.t("base.ago", span=self.span(max(0, self.now_ms - at_ms) / 1000))

    @property
    def now_ms(self) -> int:
        """The current time in epoch milliseconds."""
        return self.console.clock.now_ms()

    # The answer

    def form_field(self) -> str:
        """Return the value of the hidden field that every form needs: a number, signed for this session."""
        return self.console.forms.make(self.signed_in.secret)

    def seen(self, state: Mapping[str, object]) -> str:
        """Return the value of the hidden field with the state that a form shows, as JSON.

        With it `SentForm.check_unchanged` finds out whether somebody else has changed the state meanwhile.
        """
        return json.dumps(state_as_text(state), ensure_ascii=False)

    def refused(self, action: str) -> bool:
        """Return whether the page is shown again because its form with the address `action` was refused."""
        return self.error is not None and self.request.url.path == self.url(action)

    def flash(self) -> Flash | None:
        """Return the text about the change that led to this page, once.

        None if there is none, or if only a part of the page is requested.
        """
        # Otherwise, another page that updates a part of itself just then would take the text from this page.
        if self._signed_in is None or self.query("part"):
            return None
        return self.console.flashes.pop(self._signed_in.session.id, None)

    def live_parts(self) -> str:
        """Return, as JSON, the live parts of this page, each with the kinds of events that change it.

        `console.js` reads it, and reloads a part after such an event. Parts in `everywhere` react to the
        events of every group, the others only to those of the page's group.
        """
        parts = self.page.live if self.page else {}
        # The navigation of every page has the part `needs`: the number of things that wait for the owner.
        everywhere = {"needs": NEEDS} | {
            name: parts[name] for name in (self.page.of_all_groups if self.page else ())
        }
        of_this_group = {name: kinds for name, kinds in parts.items() if name not in everywhere}
        return json.dumps({"parts": of_this_group, "everywhere": everywhere}, separators=(",", ":"))

    def asset(self, name: str) -> str:
        """Return the path of a file in `static/`, which contains a hash of the file's contents."""
        return self.console.assets[name]

    def url(self, path: str) -> str:
        """Return the address of a path of the console, such as `/console/now` for `/now`."""
        return ROOT + path

    def render(self, template: str, *, status: int = 200, **data: Any) -> Response:
        """Return the page, or the requested part of it, as rendered from a template with `data`.

        `status` is the HTTP status. If `view.error` is set, the page shows it at the top, opens the form that
        it is about, and has the status 422 in place of 200.
        """
        if self.error and status == 200:
            status = 422
        page_template = self.console.templates.get_template(template)
        context = page_template.new_context({"view": self, "t": self.t, **data})
        # A live part is a block of the page's template, rendered without the page around it.
        if self.part is not None and self.part in page_template.blocks:
            html = "".join(page_template.blocks[self.part](context))
        else:
            html = "".join(page_template.root_render_func(context))
        return HTMLResponse(html, status_code=status, headers={"Content-Security-Policy": policy(self.nonce)})

    def done(self, path: str, text: str | None = None, *, undo: str = "") -> Response:
        """Redirect the browser to `path` after a change; the session's next page shows `text` once.

        `undo` is the address of a form without fields that undoes the change: a button beside the text. If
        the form was on the page Now, `path` is ignored: the browser goes back to Now, where other things may
        wait for a decision.
        """
        if came_from(self.request) == f"{ROOT}/now":
            path = "/now"
        if text is not None:
            # Bound the table: a session that loads no further page leaves its text here.
            if len(self.console.flashes) >= MAX_FLASHES:
                self.console.flashes.clear()
            self.console.flashes[self.signed_in.session.id] = Flash(text=text, undo=undo)
        return RedirectResponse(ROOT + path, status_code=303)


def policy(nonce: str | None = None) -> str:
    """Return the content security policy of a page, which says what a browser may load and run for it.

    Only scripts of the console itself, and inline scripts with the random text `nonce`, may run.
    """
    scripts = "'self'" + (f" 'nonce-{nonce}'" if nonce else "")
    return (
        f"default-src 'none'; script-src {scripts}; style-src 'self'; connect-src 'self'; img-src 'self';"
        " manifest-src 'self'; worker-src 'self';"
        " form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    )


# Compiled once in a process: it takes 1.2 seconds of a processor.
@cache
def templates() -> Environment:
    """Read and compile every template, which takes a second and blocks; later calls return the same ones."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        auto_reload=False,
        cache_size=-1,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {
        "rich": marks.rich,
        "plain": marks.plain,
        "written_out": marks.written_out,
        "host_notes": marks.host_notes,
        "is_cut": marks.is_cut,
        "labelled": marks.labelled,
        "languages": LANGUAGES,
    }
    environment.globals["ui"] = environment.get_template("ui.html").module
    # All of them now, so that no request waits for a template to be compiled.
    for name in environment.list_templates():
        environment.get_template(name)
    return environment


def status_of(error: Exception) -> int:
    """Return the HTTP status with which an error is answered."""
    if isinstance(error, HTTPException):
        return error.status_code
    # Any other error is the host's own, and may be over at the next try.
    return error.http_status if isinstance(error, BadRequest) else 503


def came_from(request: Request) -> str:
    """Return the path, with its query, of the console page that sent a request, by its `Referer` header.

    Only the path in the header counts, not its host. If the header is missing, or its path is none of the
    console, return the path of the console itself.
    """
    parts = _url_parts(request.headers.get("referer", ""))
    return own_path(parts.path + (f"?{parts.query}" if parts.query else "")) or f"{ROOT}/"


def own_path(text: str) -> str | None:
    """Return a path that a browser sent, with its query, if it is one of the console; else None.

    A path that could lead to another host is refused.
    """
    parts = _url_parts(text)
    path = parts.path
    # A browser could read a backslash, `//`, a blank or a control character as the beginning of another host.
    if (
        not path.startswith(f"{ROOT}/")
        or "\\" in text
        or "//" in path
        or any(ord(character) < 33 for character in text)
    ):
        return None
    return path + (f"?{parts.query}" if parts.query else "")


def _url_parts(text: str) -> SplitResult:
    """Return the parts of a URL that a browser sent; empty parts if it is none. 2,000 characters are read."""
    try:
        return urlsplit(text[:2000])
    except ValueError:  # such as for a `[` that begins no address of IPv6
        return urlsplit("")


def _path_below_root(request: Request) -> str:
    """Return the path of a request below that at which the console is mounted."""
    path, root = str(request.scope["path"]), str(request.scope["root_path"])
    return path.removeprefix(root) if root and path.startswith(root) else path
