"""One group's container does its worst to the proxies: what another group's answer and `/healthz` make of it.

Six connections send JSON that is dear to read, one body after the other, while ten more stay open and send
nothing or a byte now and then, with the token of its run. In the other attack three hundred connections show
a wrong token, and another is opened for each that is closed. All of it comes from a real container.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx

from benchmarks import claude, engine
from benchmarks.figures import Figure, Series, ratio_of
from benchmarks.host import RunningHost, running_host
from benchmarks.places import Effort, progress
from orchestrator.containers.docker.runtime import GROUP_LABEL, INSTALL_LABEL
from tests.doubles.messages_api import Say, ScriptedMessagesApi

PAIRS = 8
ANSWERS = 5
"""Answers that each half of a pair waits for."""
TIMES_A_QUIET_HOST = 2.0
HEALTH_PAUSE_SECONDS = 0.05
EVE, BOB = "eve", "bob"
PATIENCE_SECONDS = 120.0
ATTACK = r"""
import collections, itertools, os, select, socket, sys, threading, time, urllib.parse
proxy = urllib.parse.urlsplit(os.environ["ANTHROPIC_BASE_URL"])
counts = collections.Counter()
BODIES = [
    b"{" + b",".join(b'"k%d":0' % number for number in range(990_000)) + b"}",
    b'{"messages":[' + b",".join([b"{}"] * 499_000) + b"]}",
    b'{"messages":[' + b",".join([b"9" * 4_000] * 8_000) + b"]}",
    b'{"messages":[' + b",".join([b"1.5e-7"] * 900_000) + b"]}",
    b'{"messages":[' + b",".join([b"[0]"] * 24_000) + b"]}",  # within all bounds
    b'{"messages":' + b"[" * 90_000 + b"]" * 90_000 + b"}",
]

def head(method, path, *lines, token=os.environ["ANTHROPIC_API_KEY"]):
    own = [method + " " + path + " HTTP/1.1", "host: x", "x-api-key: " + token]
    return "\r\n".join([*own, "content-type: application/json", *lines, "", ""]).encode()

def dial():
    return socket.create_connection((proxy.hostname, proxy.port), timeout=60)

def flood(body, paths):
    for path in itertools.cycle(paths):
        try:
            with dial() as line:
                try:
                    line.sendall(head("POST", path, "content-length: %d" % len(body)) + body)
                except OSError:
                    pass
                counts[line.recv(64)[9:12].decode()] += 1
        except OSError as error:
            counts[type(error).__name__] += 1
            time.sleep(0.01)

def reconnect(payload, width=300):
    poll, open_lines = select.epoll(), {}
    while True:
        while len(open_lines) < width:
            line = socket.socket()
            line.setblocking(False)
            line.connect_ex((proxy.hostname, proxy.port))
            open_lines[line.fileno()] = line
            poll.register(line, select.EPOLLOUT)
        for number, events in poll.poll(1):
            line = open_lines[number]
            try:
                if events == select.EPOLLOUT:
                    line.send(payload)
                    poll.modify(line, select.EPOLLIN)
                    continue
            except OSError:
                pass
            counts["connections"] += 1
            del open_lines[number]
            line.close()

def idle(first, more):
    while True:
        try:
            with dial() as line:
                line.sendall(first)
                while more:
                    line.sendall(more)
                    time.sleep(1)
                line.recv(64)
        except OSError:
            pass
        time.sleep(0.1)

chunked = head("POST", "/v1/messages", "transfer-encoding: chunked")
paths = ("/v1/messages/count_tokens", "/v1/messages")
jobs = [(flood, (body, paths)) for body in BODIES]
jobs += [(idle, (head("GET", "/mcp/notes", "accept: text/event-stream"), b""))] * 3
jobs += [(idle, (chunked, b"1\r\n{\r\n"))] * 4 + [(idle, (chunked[:20], b""))] * 3
if sys.argv[1] == "connections":
    jobs = [(reconnect, (head("POST", "/v1/messages", "content-length: 2", token="wrong") + b"{}",))]
for work, arguments in jobs:
    threading.Thread(target=work, args=arguments, daemon=True).start()
print("begun", flush=True)
sys.stdin.read()
print(dict(counts), flush=True)
os._exit(0)
"""


async def measure(effort: Effort) -> list[Figure]:
    await asyncio.to_thread(engine.ensure_image)
    return [figure for attack in ("JSON", "connections") for figure in await _measure(attack, effort)]


async def _measure(attack: str, effort: Effort) -> list[Figure]:
    answers: dict[str, list[float]] = {"attacked": [], "quiet": []}
    health: dict[str, list[float]] = {"attacked": [], "quiet": []}
    with ScriptedMessagesApi(default=Say("Done.")) as api:
        settings = claude.host_settings(api)
        async with running_host(
            runtime="docker", agent="claude", groups=(EVE, BOB), settings=settings, listens=False
        ) as host:
            await _answer_ms(host, BOB)
            for number in range(effort.times(PAIRS)):
                for kind in ("attacked", "quiet") if number % 2 else ("quiet", "attacked"):
                    async with contextlib.AsyncExitStack() as stack:
                        if kind == "attacked":
                            await _answer_ms(host, EVE)  # its container may have been ended for what it did
                            await stack.enter_async_context(_attack(host, attack))
                        await stack.enter_async_context(_watched(host, health[kind]))
                        for _ in range(effort.times(ANSWERS)):
                            answers[kind].append(await _answer_ms(host, BOB))
                    progress(
                        f"{attack}, {kind} {number}:"
                        f" {answers[kind][-1]:.0f} ms, healthz {health[kind][-1]:.1f} ms"
                    )
    return [_figure(attack, "another group's answer", answers), _figure(attack, "`/healthz`", health)]


def _figure(attack: str, name: str, values: dict[str, list[float]]) -> Figure:
    attacked = Series(name="under attack", unit="ms", values=tuple(values["attacked"]))
    quiet = Series(name="quiet", unit="ms", values=tuple(values["quiet"]))
    return Figure(
        name=f"A container floods the proxies with {attack}: {name}, Claude agent, docker",
        measured=attacked,
        floor=quiet,
        checks=(ratio_of(attacked, quiet, TIMES_A_QUIET_HOST),),
        details=tuple(
            Series(name=f"slowest, {one.name}", unit="ms", values=(max(one.values),))
            for one in (attacked, quiet)
        ),
    )


async def _answer_ms(host: RunningHost, folder: str) -> float:
    began = time.perf_counter()
    answer = await host.client.say(folder, "go on", sender="bench", wait_seconds=PATIENCE_SECONDS)
    if not answer.get("reply"):
        raise RuntimeError(f"There was no answer in {folder}: {answer}")
    return 1000 * (time.perf_counter() - began)


@asynccontextmanager
async def _watched(host: RunningHost, values: list[float]) -> AsyncIterator[None]:
    """Ask `/healthz` all the while, and once at least."""
    address = host.home.address_file.read_text(encoding="utf-8").strip()
    async with httpx.AsyncClient(base_url=address, timeout=PATIENCE_SECONDS, trust_env=False) as http:

        async def ask() -> None:
            began = time.perf_counter()
            (await http.get("/healthz")).raise_for_status()
            values.append(1000 * (time.perf_counter() - began))

        async def watch() -> None:
            while True:
                await ask()
                await asyncio.sleep(HEALTH_PAUSE_SECONDS)

        await http.get("/healthz")
        await ask()
        task = asyncio.create_task(watch(), name="healthz")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait({task})


@asynccontextmanager
async def _attack(host: RunningHost, attack: str) -> AsyncIterator[None]:
    container = await asyncio.to_thread(_container_of, host, EVE)
    process = await asyncio.create_subprocess_exec(
        *("docker", "exec", "-i", container, "python3", "-S", "-c", ATTACK, attack),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    async with asyncio.timeout(PATIENCE_SECONDS):
        if await process.stdout.readline() != b"begun\n":
            raise RuntimeError("The attack did not begin.")
    try:
        yield
    finally:
        process.stdin.close()
        answered = (await process.stdout.read()).decode().strip()
        await process.wait()
        progress(f"the attack was answered with {answered or 'the end of its container'}")


def _container_of(host: RunningHost, folder: str) -> str:
    install = (host.home.data / "install").read_text(encoding="utf-8").strip()
    client = engine.connect()
    try:
        labels = [f"{INSTALL_LABEL}={install}", f"{GROUP_LABEL}={folder}"]
        (found,) = client.containers(filters={"label": labels})
        return str(found["Id"])
    finally:
        client.close()
