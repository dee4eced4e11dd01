"""Each page of the console, and whatever it leads to, is shown in both languages by a whole host."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import urldefrag, urlencode, urljoin, urlsplit

import httpx
import pytest

from orchestrator.backup import inspection
from orchestrator.domain.errors import BackupError
from orchestrator.home.directory import Home
from orchestrator.web.console import needs
from orchestrator.web.console.app import find_pages
from orchestrator.web.console.catalogue import LANGUAGES
from orchestrator.web.console.page import View
from tests.support.console_browser import console_browser

PAGES_OF_ALL = sorted(path for page in find_pages() for path in page.shows if "{" not in path)
NO_PAGES = ("/console/live", "/console/static/")
MOST_BYTES = 110_000
"""Bytes that a page and all that it loads may have on their way."""
MOST = 600
"""Addresses that are asked at most: more means that links lead on without an end."""


@pytest.fixture
async def browser(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    async with console_browser(tmp_path / "home") as made:
        yield made


@pytest.mark.slow
@pytest.mark.parametrize("language", LANGUAGES)
async def test_each_page_and_each_link_on_it_leads_to_a_page(browser, language):
    browser.cookies.set("andy_language", language)
    waiting = [(f"/console{path}", "the navigation") for path in PAGES_OF_ALL]
    seen = {path for path, _ in waiting}
    for path, origin in waiting:
        answer = await browser.get(path, follow_redirects=True)
        assert answer.status_code == 200, f"{path} of {origin}: {answer.status_code} {answer.text[-500:]}"
        if not answer.headers["content-type"].startswith("text/html"):
            continue
        for link in links(answer):
            if link not in seen:
                seen.add(link)
                waiting.append((link, path))
        assert len(seen) < MOST, sorted(seen)[-20:]
    assert len(seen) > len(PAGES_OF_ALL)


class Links(HTMLParser):
    """Collects where a page leads: its links, its live parts, and each choice in a form that only asks."""

    def __init__(self, page: httpx.Response) -> None:
        super().__init__()
        self._base = str(page.url)
        self._action: str | None = None
        self._choice = ""
        self.found: list[str] = []
        self.feed(page.text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        its = {name: value or "" for name, value in attrs}
        self.found += [urljoin(self._base, its[name]) for name in ("href", "hx-get") if name in its]
        if tag == "form":
            asks = its.get("method", "get") == "get"
            self._action = urljoin(self._base, its.get("action", "?")) if asks else None
        if tag == "select":
            self._choice = its.get("name", "")
        if tag == "option" and self._action is not None:
            chosen = urlencode({self._choice: its.get("value", "")})
            self.found.append(f"{self._action.partition('?')[0]}?{chosen}")


def links(page: httpx.Response) -> list[str]:
    """Return the addresses of other pages of the console that a page leads to, without their host."""
    own = [
        urlsplit(urldefrag(one).url)
        for one in Links(page).found
        if one.startswith(str(page.url.join("/console/")))
    ]
    return [f"{one.path}?{one.query}".rstrip("?") for one in own if not one.path.startswith(NO_PAGES)]


@pytest.mark.slow
async def test_a_page_with_all_that_it_loads_is_light(browser):
    page = await browser.get("/console/chats/family")
    loaded = set(re.findall(r'(?:src|href|data-worker)="(/console/static/[^"#]+)', page.text))
    assert {Path(path).suffix for path in loaded} >= {".js", ".css", ".svg", ".webmanifest"}
    weight = len(page.content)
    for path in loaded:
        async with browser.stream("GET", path) as answer:
            weight += len(b"".join([chunk async for chunk in answer.aiter_raw()]))
            is_packed = answer.headers.get("content-encoding") == "gzip"
        assert is_packed == (Path(path).suffix != ".png"), path
    assert weight < MOST_BYTES
    plain = await browser.get(
        next(one for one in loaded if one.endswith(".css")), headers={"accept-encoding": "identity"}
    )
    assert "content-encoding" not in plain.headers


async def test_a_group_that_is_registered_while_now_is_made_stands_on_it(browser, monkeypatch):
    look = needs.read_waiting

    async def look_before(view: View) -> needs.Waiting:
        found = await look(view)
        return replace(found, names={})

    monkeypatch.setattr(needs, "read_waiting", look_before)
    page = await browser.get("/console/now")
    assert page.status_code == 200
    assert "Settings: Family" in page.text


async def test_a_backup_that_cannot_be_read_leaves_every_page_as_it_is(
    browser: httpx.AsyncClient, tmp_path: Path
) -> None:
    backups = tmp_path / "home/backups"
    backups.mkdir(exist_ok=True)
    (backups / "loop.tar.gz").symlink_to("loop.tar.gz")
    assert (await browser.get("/console/now")).status_code == 200
    assert (await browser.get("/console/care")).status_code == 200


async def test_a_backup_that_is_removed_while_it_is_inspected_is_none(
    browser: httpx.AsyncClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "home/backups/mine.tar.gz"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"a backup")

    def inspect_what_goes(_: Home, source: Path, **__: object) -> None:
        source.unlink()
        raise BackupError("It is gone.")

    monkeypatch.setattr(inspection, "inspect", inspect_what_goes)
    page = await browser.get("/console/care/backups/mine.tar.gz/restore")
    assert page.status_code == 404
    assert "There is no backup" in page.text


async def test_the_page_now_looks_once_for_what_waits(
    browser: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, look = [], needs.owner_needs

    async def counted(*arguments: Any, **more: Any) -> needs.OwnerNeeds:
        looks.append(arguments)
        return await look(*arguments, **more)

    monkeypatch.setattr(needs, "owner_needs", counted)
    assert (await browser.get("/console/now")).status_code == 200
    assert len(looks) == 1
    assert (await browser.get("/console/now?part=waiting")).status_code == 200
    assert len(looks) == 2, "a part of the page looks for itself"
