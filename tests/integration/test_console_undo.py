"""Undo in the console: a message's page says what it would do, and does it after a question."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from html import unescape
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from orchestrator.home.directory import Home
from tests.support.console_browser import console_browser, send_form

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("undo") / "home"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser(root: Path) -> AsyncIterator[httpx.AsyncClient]:
    async with console_browser(root, has_agents=True) as made:
        yield made


async def say(browser: httpx.AsyncClient, root: Path, text: str) -> str:
    headers = {"Authorization": f"Bearer {Home(root).token()}"}
    said = await browser.post("/chat", json={"group": "work", "text": text, "wait": 100}, headers=headers)
    return str(said.json()["reply"])


async def page_with(browser: httpx.AsyncClient, text: str) -> str:
    """The page of the message with a text, which the conversation leads to for its undo."""
    shown = (await browser.get("/console/chats/work")).text
    (line,) = [one for one in shown.split("<article") if text in one and 'class="button small"' in one]
    found = re.search(r'href="/console(/chats/work/messages/\d+)#undo"', line)
    assert found
    return found[1]


async def shown(browser: httpx.AsyncClient, page: str) -> str:
    return unescape(re.sub(r"<[^>]+>", " ", (await browser.get(f"/console{page}")).text))


async def test_a_turn_is_undone_after_a_question_and_the_undo_at_once(
    browser: httpx.AsyncClient, root: Path
) -> None:
    await say(browser, root, "add salt to the kitchen list")
    lists = root / "groups" / "work" / "lists"
    before = (lists / "kitchen.md").read_bytes()
    await say(browser, root, "add pepper to the kitchen list")
    after = (lists / "kitchen.md").read_bytes()
    page = await page_with(browser, "add pepper")
    assert "the file “lists/kitchen.md” is as it was" in await shown(browser, page)
    turn = re.search(r"/chats/work/turns/(\d+)/undo", (await browser.get(f"/console{page}")).text)
    assert turn
    path = f"/chats/work/turns/{turn[1]}/undo"
    done = await send_form(browser, path, of=page)
    assert done.status_code == 200
    assert f"Turn {turn[1]} is undone: the file “lists/kitchen.md” is as it was." in unescape(done.text)
    assert (lists / "kitchen.md").read_bytes() == before
    assert "This is what the undo does" not in await shown(browser, page)
    back = re.search(r'action="/console(/chats/work/turns/\d+/undo)"', done.text)
    assert back
    again = await send_form(browser, back[1], of="/chats/work")
    assert again.status_code == 200
    assert (lists / "kitchen.md").read_bytes() == after
    assert await asyncio.to_thread(authors_of_undos, root) == ["console", "console"]


def authors_of_undos(root: Path) -> list[str]:
    with closing(sqlite3.connect(f"file:{Home(root).database}?mode=ro", uri=True)) as connection:
        return [row[0] for row in connection.execute("SELECT by_whom FROM undos")]


async def test_what_was_changed_since_is_named_before(browser: httpx.AsyncClient, root: Path) -> None:
    await say(browser, root, "add nails to the shed list")
    await say(browser, root, "add screws to the shed list")
    page = await page_with(browser, "add nails")
    text = await shown(browser, page)
    assert "This was changed again since" in text
    assert "the file “lists/shed.md” (by “add screws to the shed list”)" in text
    found = re.search(r"/chats/work/turns/(\d+)/undo", (await browser.get(f"/console{page}")).text)
    assert found
    path = f"/chats/work/turns/{found[1]}/undo"
    refused = await send_form(browser, path, of=page)
    assert refused.status_code == 409
    assert (root / "groups/work/lists/shed.md").exists()
    await send_form(browser, path, of=page, anyway="1")
    assert not (root / "groups/work/lists/shed.md").exists()
