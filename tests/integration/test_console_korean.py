"""A Korean page has no English sentence but names, settings, commands and what people and agents wrote."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from orchestrator.web.console.app import find_pages
from tests.support.console_browser import console_browser

PAGES = sorted(path for page in find_pages() for path in page.shows if "{" not in path)
DEEPER = (
    "/chats/family",
    "/groups/family",
    "/mind/family",
    "/board?group=family",
    "/log?group=family",
    "/log/search?q=milk",
    "/coming?group=family",
    "/safety?group=family",
    "/costs?group=family",
    "/mind?group=work",
    "/no-such",
)
SENTENCE = re.compile(r"[A-Za-z][A-Za-z'’]*(?:[ ,]+[a-z][a-z'’]*){3,}")
"""Four words in a row, all but the first in small letters."""
FOREIGN = ("said", "words", "name", "oneline", "quote", "last")
"""Classes of what people, agents and programs wrote."""
QUIET = ("code", "pre", "bdi", "script", "style", "textarea", "title", "option")
VOID = ("area", "br", "hr", "img", "input", "link", "meta", "use", "rect")
ALLOWED = ("the engine, the image", "andy ")
"""Beginnings of sentences that may stay English; with the second one a command begins."""


class Sentences(HTMLParser):
    """Collects English sentences that a page says itself."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self._quiet: list[bool] = []
        self.found: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        its = {name: value or "" for name, value in attrs}
        is_quiet = tag in QUIET or bool(set(FOREIGN) & set(its.get("class", "").split()))
        for name in ("aria-label", "title", "placeholder", "alt"):
            self._note(its.get(name, ""))
        if tag not in VOID:
            self._quiet.append(is_quiet or (bool(self._quiet) and self._quiet[-1]))

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID and self._quiet:
            self._quiet.pop()

    def handle_data(self, data: str) -> None:
        if not self._quiet or not self._quiet[-1]:
            self._note(data)

    def _note(self, text: str) -> None:
        self.found += [one for one in SENTENCE.findall(text) if not one.startswith(ALLOWED)]


@pytest.mark.slow
async def test_no_korean_page_has_an_english_sentence(tmp_path: Path) -> None:
    async with console_browser(tmp_path / "home") as browser:
        browser.cookies.set("andy_language", "ko")
        found = {}
        for path in (*PAGES, *DEEPER):
            page = await browser.get(f"/console{path}", follow_redirects=True)
            assert 'lang="ko"' in page.text or "<html" not in page.text
            sentences = Sentences(page.text).found
            if sentences:
                found[path] = sentences
    assert found == {}


def test_a_sentence_is_found_and_what_people_wrote_is_not_looked_at():
    page = (
        '<p title="this is not yet done">Nothing waits for you here.</p><p>한국어 andy status</p>'
        "<bdi>one of my own groups</bdi>"
    )
    assert Sentences(page).found == ["this is not yet done", "Nothing waits for you here"]
