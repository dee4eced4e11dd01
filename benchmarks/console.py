"""The console: a page of a long chat, how soon a message is in an open page, and what open pages cost."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

import httpx
import psutil

from benchmarks.figures import Check, Figure, Series
from benchmarks.host import RunningHost, cpu_seconds, running_host
from benchmarks.places import Effort, progress
from orchestrator.channels.local.channel import new_message
from orchestrator.cli.terminal import change
from orchestrator.domain.values import ChatJid
from orchestrator.groups import registration
from orchestrator.groups.registration import Registration, local_address
from orchestrator.store.conversation import messages
from orchestrator.store.database import Tx
from orchestrator.web.console.app import find_pages

STORED, TIMES, SEEN = 10_000, 30, 30
PAGE_MS, PAGE_KB, SEEN_MS = 50.0, 100.0, 200.0
GROUPS = 50
CLIENTS, CLIENT_PERCENT, CLIENT_MIB = 100, 1.0, 20.0
SETTLE_SECONDS = 3.0
IDLE_SECONDS = 32.0
"""Longer than two pings of each stream."""
LONG, FAMILY = "long", "family"
OF_ONE_GROUP = (
    "/chats/{}",
    "/groups/{}",
    "/board?group={}",
    "/coming?group={}",
    "/mind?group={}",
    "/costs?group={}",
    "/safety?group={}",
    "/log?group={}",
    "/log/search?q=day",
)
"""Pages of one group, and a search that finds every message."""


async def measure(effort: Effort) -> list[Figure]:
    async with running_host(runtime="process", groups=(LONG, FAMILY), listens=False) as host:
        await asyncio.to_thread(partial(_fill, host))
        async with _browser(host) as browser:
            return [
                await _page(browser, effort.times(TIMES)),
                await _pages(browser, effort.times(TIMES)),
                await _seen(host, browser, effort.times(SEEN)),
                await _idle(host, browser, effort),
            ]


def _fill(host: RunningHost) -> None:
    async def add(tx: Tx, now_ms: int) -> None:
        for number in range(GROUPS - 2):
            await registration.register(tx, Registration(folder=f"group-{number}").to_group(now_ms))
        jid = ChatJid(local_address(LONG))
        for number in range(STORED):
            one = new_message(
                jid, f"what was said on a day like any other, line {number}", sender="jane", now_ms=now_ms
            )
            await messages.add(
                tx, one, received_ms=now_ms, is_request=False, turn_id=None, ignored_reason="no trigger"
            )

    asyncio.run(change(host.home.root, add))
    progress(f"{STORED:,} messages and {GROUPS} groups are stored")


@asynccontextmanager
async def _browser(host: RunningHost) -> AsyncIterator[httpx.AsyncClient]:
    """A client that is signed in as a browser is."""
    address = await host.client.console_address()
    base, _, code = address.partition("/console/sign-in#")
    limits = httpx.Limits(max_connections=CLIENTS + 10)
    async with httpx.AsyncClient(base_url=base, timeout=60, trust_env=False, limits=limits) as browser:
        answer = await browser.post("/console/sign-in", data={"secret": code})
        assert answer.status_code == 303, answer.text
        yield browser


async def _page(browser: httpx.AsyncClient, times: int) -> Figure:
    took, size = [], 0
    for number in range(times + 3):
        began = time.perf_counter()
        answer = await browser.get(f"/console/chats/{LONG}")
        if number >= 3:  # the first ones load and compile
            took.append(1000 * (time.perf_counter() - began))
        assert answer.status_code == 200
        size = len(answer.content)
    measured = Series(name="first page", unit="ms", values=tuple(took))
    return Figure(
        name=f"A chat of {STORED:,} messages in the console",
        measured=measured,
        details=(Series(name="size", unit="kB", values=(size / 1000,)),),
        checks=(
            Check(what="median", value=measured.median, limit=PAGE_MS, unit="ms"),
            Check(what="size", value=size / 1000, limit=PAGE_KB, unit="kB"),
        ),
    )


async def _pages(browser: httpx.AsyncClient, times: int) -> Figure:
    """Each page of the console, from the request to its last byte."""
    of_all = sorted(path for page in find_pages() for path in page.shows if "{" not in path)
    paths = [*of_all, *(one.format(LONG) for one in OF_ONE_GROUP)]
    found: dict[str, list[float]] = {path: [] for path in paths}
    for number in range(times + 2):
        for path in paths:
            began = time.perf_counter()
            answer = await browser.get(f"/console{path}")
            if number >= 2:  # the first ones load and compile
                found[path].append(1000 * (time.perf_counter() - began))
            assert answer.status_code == 200, (path, answer.status_code)
    medians = sorted(((statistics.median(took), path) for path, took in found.items()), reverse=True)
    slowest, path = medians[0]
    progress(", ".join(f"{name} {took:.0f} ms" for took, name in medians[:5]))
    return Figure(
        name=f"{len(paths)} pages of the console, with {STORED:,} messages and {GROUPS} groups",
        measured=Series(name="median of each page", unit="ms", values=tuple(took for took, _ in medians)),
        checks=(Check(what=f"the slowest, {path}", value=slowest, limit=PAGE_MS, unit="ms"),),
    )


async def _seen(host: RunningHost, browser: httpx.AsyncClient, times: int) -> Figure:
    """From when a message is stored until its line is there, while the group's agent answers each of them."""
    took: list[float] = []
    heard = asyncio.Event()
    async with (
        asyncio.TaskGroup() as tasks,
        browser.stream("GET", "/console/live") as stream,
    ):
        listening = tasks.create_task(_listen(stream, heard), name="bench:listen")
        for number in range(times):
            await host.say(FAMILY, f"@Andy echo turn {number}")
            heard.clear()
            began = time.perf_counter()
            text = f"line {number} of somebody else"
            await host.say(FAMILY, text)
            while True:
                await heard.wait()
                heard.clear()
                part = await browser.get("/console/chats/family?part=lines")
                if text in part.text:
                    break
            took.append(1000 * (time.perf_counter() - began))
        listening.cancel()
    measured = Series(name="said → its line was sent", unit="ms", values=tuple(took))
    return Figure(
        name="A message in an open page, with a turn running",
        measured=measured,
        checks=(Check(what="median", value=measured.median, limit=SEEN_MS, unit="ms"),),
    )


async def _listen(stream: httpx.Response, heard: asyncio.Event) -> None:
    async for line in stream.aiter_lines():
        if line == "event: change":
            heard.set()


async def _idle(host: RunningHost, browser: httpx.AsyncClient, effort: Effort) -> Figure:
    process = psutil.Process(host.process.pid)
    settling = effort.seconds(SETTLE_SECONDS)
    seconds = effort.seconds(IDLE_SECONDS * max(effort.of_full, 0.5))
    await asyncio.sleep(settling)
    before = process.memory_info().rss
    alone = await _percent(host, seconds)
    async with AsyncExitStack() as stack, asyncio.TaskGroup() as tasks:
        readers: list[asyncio.Task[Any]] = []
        for number in range(CLIENTS):
            stream = await stack.enter_async_context(browser.stream("GET", "/console/live"))
            assert stream.status_code == 200
            readers.append(tasks.create_task(_listen(stream, asyncio.Event()), name=f"bench:page:{number}"))
        await asyncio.sleep(settling)
        percent = await _percent(host, seconds)
        grown = (process.memory_info().rss - before) / 1024**2
        for reader in readers:
            reader.cancel()
    progress(f"{CLIENTS} pages: {percent:.3f} % of a core ({alone:.3f} % without), {grown:+.1f} MiB")
    return Figure(
        name=f"{CLIENTS} idle pages",
        measured=Series(name="of a core", unit="%", values=(percent - alone,)),
        details=(Series(name="grown by", unit="MiB", values=(grown,)),),
        checks=(
            Check(what="more of a core", value=percent - alone, limit=CLIENT_PERCENT, unit="%"),
            Check(what="more memory", value=grown, limit=CLIENT_MIB, unit="MiB"),
        ),
    )


async def _percent(host: RunningHost, seconds: float) -> float:
    began, before = time.monotonic(), cpu_seconds(host.process.pid)
    await asyncio.sleep(seconds)
    return 100 * (cpu_seconds(host.process.pid) - before) / (time.monotonic() - began)
