"""The console page Log: rows of lines in any form, filters that find them, links to what they name."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from html import unescape

import httpx
import pytest
import pytest_asyncio

from orchestrator.home.directory import Home
from orchestrator.web.console.pages.log import event_text
from tests.support.console_browser import console_browser

pytestmark = pytest.mark.asyncio(loop_scope="module")

AT = "2026-11-25T18:09:57.5Z"
LINES = [
    json.dumps({"event": "as.json", "level": "error", "timestamp": AT, "group": "family", "run": "R1"}),
    "2026-11-25 18:09:57 [error    ] as.console                     group=family turn=1",
    "2026-11-25T18:09:57Z [\x1b[33mwarning  \x1b[0m] \x1b[1mas.colours\x1b[0m group=work",
    "18:09:57.943 [uvicorn.error ERROR] - as.foreign",
    json.dumps({"event": "as.quiet", "level": "info", "timestamp": AT}),
    '{"event": "as.torn", "lev',
    "[" * 3_000,
    json.dumps(
        {"event": "was.planned", "timestamp": AT, "due_ms": 1795856400000, "files": "['A.md', 'B.md']"}
    ),
    json.dumps({"event": "was.idle", "timestamp": AT, "none of it": "{}"}),
    json.dumps({"event": "as.secret", "level": "info", "timestamp": AT, "key": "sk-ant-" + "x" * 30}),
    json.dumps(
        {"event": "as.markup <b>", "level": "info", "timestamp": AT, "run": "../../x", "group": "a&b"}
    ),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[httpx.AsyncClient]:
    root = tmp_path_factory.mktemp("log") / "home"
    async with console_browser(root) as made:
        path = Home(root).host_log
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join(f"{one}\n" for one in LINES), encoding="utf-8")
        yield made


async def rows(browser: httpx.AsyncClient, **query: str) -> list[str]:
    page = await browser.get("/console/log", params=query)
    assert page.status_code == 200
    found = re.search(r"<ol.*?</ol>", page.text, re.DOTALL)
    shown = unescape(re.sub(r"<[^>]+>", "", found[0])) if found else ""
    return re.findall(r"\bas(?:\.|: )(\w+)", shown, re.IGNORECASE)


async def test_the_level_is_read_in_every_form_of_line(browser):
    assert await rows(browser, level="error") == ["json", "console", "foreign"]
    assert await rows(browser, level="warning") == ["json", "console", "colours", "foreign"]
    shown = await rows(browser)
    assert shown == ["json", "console", "colours", "foreign", "quiet", "torn", "secret", "markup"]


async def test_a_groups_lines_are_found_in_the_log_of_the_host(browser):
    assert await rows(browser, group="family", run="host") == ["json", "console"]
    assert await rows(browser, group="work", run="host", level="warning") == ["colours"]
    assert await rows(browser, words="as.QUIET") == ["quiet"]


async def test_a_row_has_local_time_and_leads_to_what_it_names(browser):
    page = (await browser.get("/console/log")).text
    assert '<a href="/console/log?group=family&amp;run=R1">As: json</a>' in page
    assert re.search(r'<a href="/console/chats/family/messages/\d+">As: console</a>', page)
    assert re.search(r"<time datetime=\"2026-11-2[56]T[^\"]+\">\d\d:\d\d:57</time>", page)
    assert "sk-ant-xxx" not in page
    assert "<b>" not in page


async def test_the_newest_line_is_the_last_and_is_in_view(browser):
    page = (await browser.get("/console/log")).text
    assert page.index("As: json") < page.index("As: quiet")
    assert 'class="log lines-of-log" data-follow' in page


async def test_an_event_and_its_facts_are_words(browser):
    assert event_text("host.started") == "Host: started"
    assert event_text("Worker Agent: rules begin") == "Worker Agent: rules begin"
    page = (await browser.get("/console/log")).text
    assert re.search(r"<span>due</span> \w+,? ?\w* ?\d* ?\w* ?\d\d:\d\d</span>", page), "no epoch"
    assert "<span>files</span> A.md, B.md</span>" in page
    assert "none of it" not in page


async def test_a_run_without_a_log_is_said_so(browser):
    page = await browser.get("/console/log?group=family&run=nobody")
    assert page.status_code == 200
    assert "nobody" in page.text
