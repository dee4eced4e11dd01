"""A browser without scripts, signed in to the console of a whole host in this process."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager, closing
from functools import partial
from html import unescape
from pathlib import Path
from unittest.mock import patch

import httpx

from orchestrator import app
from orchestrator.app import Orchestrator
from orchestrator.base.clock import SystemClock
from orchestrator.containers import runtime_selection
from orchestrator.containers.process.runtime import ProcessRuntime
from orchestrator.home.directory import Home
from orchestrator.home.settings import Settings
from orchestrator.proxies.model.credentials import CredentialSource
from orchestrator.store.database import Database
from tests.doubles.clock import FakeClock
from tests.support.filled_store import fill_store
from tests.support.store_harness import StoreHarness

SILENT_AGENT = ("sleep", "infinity")
"""An agent that says nothing: no page needs more, and to start a real one takes most of a second."""


@asynccontextmanager
async def console_browser(root: Path, *, has_agents: bool = False) -> AsyncIterator[httpx.AsyncClient]:
    """Enter with a browser of a host on `root` whose store has something of everything.

    With `has_agents` the groups are answered by real agents.
    """
    home = Home(root)
    home.make()
    database = await Database.open(home.database)
    await fill_store(StoreHarness(database, FakeClock(SystemClock().now_ms())), home)
    await database.close()
    settings = Settings(andy_runtime="process", andy_agent="offline", andy_channels="", andy_port=0)
    host = Orchestrator(home, settings, credentials=CredentialSource(home.root, {}), say=lambda _: None)
    stop, address = asyncio.Event(), asyncio.get_running_loop().create_future()
    with ExitStack() as stack:
        if not has_agents:
            agents = partial(ProcessRuntime, command=SILENT_AGENT)
            stack.enter_context(patch.object(runtime_selection, "ProcessRuntime", agents))
            stack.enter_context(patch.object(app, "DRAIN_SECONDS", 0))  # their turns never end
        async with asyncio.TaskGroup() as tasks:
            serving = tasks.create_task(
                host.run(stop=stop, on_ready=address.set_result, leaves_containers=False)
            )
            await asyncio.wait({serving, address}, return_when=asyncio.FIRST_COMPLETED)
            async with httpx.AsyncClient(
                base_url=address.result(), trust_env=False, timeout=120, verify=False
            ) as made:
                token = home.token()
                assert (await made.post("/console/sign-in", data={"secret": token})).status_code == 303
                yield made
            stop.set()


async def write_beside(home: Home, *statements: str, rows: Sequence[Sequence[object]] = ((),)) -> None:
    """Write to the store of a host in this process, each statement once for each of `rows`.

    In a thread: the host may be in the middle of a transaction, and can end it only while its loop goes on.
    """

    def run() -> None:
        with closing(sqlite3.connect(home.database, timeout=60)) as store, store:
            for statement in statements:
                store.executemany(statement, rows)

    await asyncio.to_thread(run)


async def send_form(
    browser: httpx.AsyncClient, path: str, *, of: str = "/chats", **fields: str
) -> httpx.Response:
    """Send a form to a path below `/console` as the page `of` would, with what that shows now."""
    page = await browser.get(f"/console{of}")
    found = re.search(r'name="_form" value="([^"]+)"', page.text)
    assert found
    hidden = {**hidden_fields(page.text, path), "_form": found[1]}
    return await browser.post(f"/console{path}", data={**hidden, **fields}, follow_redirects=True)


def hidden_fields(page: str, path: str) -> dict[str, str]:
    """Return what the form of a page that goes to `path` sends by itself: its number and its state."""
    form = re.search(rf'action="/console{re.escape(path)}"(.*?)</form>', page, re.DOTALL)
    fields = re.findall(r'name="(_form|_seen)" value="([^"]+)"', form[1]) if form else []
    return {name: unescape(value) for name, value in fields}
