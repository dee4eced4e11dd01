"""A browser's page that is signed in to a running Andy, and what it must never do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import psutil
from axe_playwright_python.base import AXE_SCRIPT, AxeResults
from playwright.sync_api import BrowserContext, ConsoleMessage, Page, Request

from orchestrator.web.guard import OWN_HOSTS
from tests.processes.andy import AndyProcess

WIDTHS = (390, 1280)
ALL_RULES = {"resultTypes": ["violations"]}
COLOUR_RULES = {**ALL_RULES, "runOnly": ["color-contrast", "link-in-text-block"]}
THEMES = {"light": ALL_RULES, "dark": COLOUR_RULES}
"""Themes, each with the rules of axe that it is judged by: a theme changes nothing but colours."""


@dataclass(slots=True, kw_only=True)
class Visit:
    """One page and what was seen of it."""

    page: Page
    address: str
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    """What the browser said against the page: refused by its policy, failed scripts."""
    allowed: list[str] = field(default_factory=list)
    """Parts of complaints that a test provokes."""

    def foreign(self) -> list[str]:
        port = self.address.rpartition(":")[2]
        own = (*(f"http://{host}:{port}/" for host in OWN_HOSTS), "data:", "blob:")
        return [one for one in self.requests if not one.startswith(own)]

    def unexpected(self) -> list[str]:
        return [one for one in self.complaints if not any(part in one for part in self.allowed)]


def code_address(andy: AndyProcess) -> str:
    """What `andy open --no-browser` prints."""
    with andy.http() as http:
        made = http.post("/sessions/codes")
    assert made.status_code == 201, made.text
    return andy.address + str(made.json()["path"])


@contextmanager
def visit(context: BrowserContext, andy: AndyProcess) -> Iterator[Visit]:
    page = context.new_page()
    made = Visit(page=page, address=andy.address)

    def note_request(request: Request) -> None:
        made.requests.append(request.url)

    def note_message(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            made.complaints.append(message.text)

    context.on("request", note_request)
    page.on("console", note_message)
    page.on("pageerror", lambda error: made.complaints.append(str(error)))
    page.goto(code_address(andy))
    page.wait_for_url("**/console/now")
    yield made
    page.close()
    assert made.foreign() == []
    assert made.unexpected() == [], made.unexpected()


def suspend_agent(andy: AndyProcess, folder: str) -> None:
    """Have the agent of a group, which is at rest, never answer again."""
    (run,) = andy.rows("SELECT id FROM runs WHERE group_folder = ? AND ended_ms IS NULL", folder)
    for process in psutil.Process(andy.pid).children(recursive=True):
        if any("agent_runner" in word for word in process.cmdline()):
            process.suspend() if run["id"] in str(process.environ()) + str(process.cmdline()) else None


def assert_accessible(page: Page) -> None:
    """Look at a page light and dark, on a phone and on a desk: axe finds nothing, nothing sticks out."""
    before = page.viewport_size
    # First, or colours fade from one theme to the next while axe measures them.
    page.emulate_media(reduced_motion="reduce")
    page.evaluate(AXE_SCRIPT)  # half a megabyte: once for all runs
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        for theme, rules in THEMES.items():
            page.emulate_media(color_scheme=theme, reduced_motion="reduce")  # type: ignore[arg-type]
            found = AxeResults(page.evaluate("rules => axe.run(rules)", rules))
            assert found.violations_count == 0, f"{width} px, {theme}: {found.generate_report()}"
        assert_nothing_sticks_out(page)
    if before:
        page.set_viewport_size(before)


STICKING_OUT = """() => {
    const root = document.scrollingElement;
    if (root.scrollWidth <= root.clientWidth) return [];
    const out = [...document.querySelectorAll("body *")].filter(
        (one) => one.getBoundingClientRect().right > root.clientWidth && !one.closest("nav")
    );
    return [`${root.scrollWidth - root.clientWidth} px`, ...out.map((one) => one.outerHTML.slice(0, 200))];
}"""


def assert_nothing_sticks_out(page: Page) -> None:
    """Look whether the page is wider than its window; what scrolls by itself may be."""
    found = page.evaluate(STICKING_OUT)
    assert found == [], f"{page.url}: {found}"
