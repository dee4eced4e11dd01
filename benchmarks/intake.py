"""A message over HTTP until it is stored, from one client and from sixteen; a first answer beside a flood."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from benchmarks.figures import Check, Figure, Series, median_of, ratio_of
from benchmarks.host import RunningHost, cpu_seconds, host_on, of_kind, own_home
from benchmarks.places import Effort, progress
from orchestrator.cli.terminal import change
from orchestrator.domain.home import Home
from orchestrator.domain.values import ChatJid, Folder, Group
from orchestrator.groups.registration import register

TALK, FLOODED = "talk", "flooded"
MESSAGES = 160
"""Of each kind in a round: from one client, then from all of them."""
ROUNDS = 10
CLIENTS = 16
CPU_MS = 2.0
FLOOD_A_SECOND = 50
FIRST_ANSWERS = 10
TIMES_THE_QUIET = 1.2


async def measure(effort: Effort) -> list[Figure]:
    rounds, answers = effort.times(ROUNDS), effort.times(FIRST_ANSWERS)
    others = [f"group-{number}" for number in range(2 * answers)]
    async with own_home((FLOODED, *others), runtime="process") as home:
        await _register_talk(home)
        async with host_on(home, runtime="process") as host:
            return [*await _intake(host, rounds), await _beside_a_flood(host, others)]


async def _register_talk(home: Home) -> None:
    """Add a group in which messages call nobody: they are stored, and that is all."""

    async def act(tx: Any, now_ms: int) -> None:
        group = Group(jid=ChatJid(f"local:{TALK}"), name=TALK, folder=Folder(TALK), added_ms=now_ms)
        await register(tx, group)

    await change(home.root, act)


@dataclass(slots=True, kw_only=True)
class _Clients:
    """What so many clients at once cost: each sends its next message when the last one is stored."""

    count: int
    cpu_ms: list[float] = field(default_factory=list)
    """The host's processor time a message, in each round."""
    a_second: list[float] = field(default_factory=list)

    async def send(self, host: RunningHost, messages: int) -> None:
        began, used = time.perf_counter(), cpu_seconds(host.process.pid)
        async with asyncio.TaskGroup() as clients:
            for _ in range(self.count):
                clients.create_task(_say(host, TALK, messages // self.count), name="client")
        self.cpu_ms.append(1000 * (cpu_seconds(host.process.pid) - used) / messages)
        self.a_second.append(messages / (time.perf_counter() - began))


async def _intake(host: RunningHost, rounds: int) -> list[Figure]:
    one, many = _Clients(count=1), _Clients(count=CLIENTS)
    await one.send(host, MESSAGES)
    one = _Clients(count=1)
    for _ in range(rounds):
        await one.send(host, MESSAGES)
        await many.send(host, MESSAGES)
    progress(f"intake: {2 * rounds * MESSAGES:,} messages")
    alone = Series(name="processor time a message, one client", unit="ms", values=tuple(one.cpu_ms))
    together = Series(name=f"the same, {CLIENTS} clients", unit="ms", values=tuple(many.cpu_ms))
    rate = Series(name="a second, one client", unit="", values=tuple(one.a_second))
    rates = Series(name=f"a second, {CLIENTS} clients", unit="", values=tuple(many.a_second))
    faster = Check(what="one client's rate", value=rate.median / rates.median, limit=1.0, unit="x")
    return [
        Figure(
            name="Intake of a message over HTTP",
            measured=alone,
            checks=(median_of(alone, CPU_MS), median_of(together, CPU_MS), faster),
            details=(together, rate, rates),
        )
    ]


async def _say(host: RunningHost, group: str, times: int) -> None:
    """Say something so many times over one connection, with as little work of the client as there can be."""
    port = int(host.home.address_file.read_text(encoding="utf-8").rpartition(":")[2])
    body = json.dumps({"group": group, "text": "nobody is called here", "wait": 0})
    head = (
        f"POST /chat HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer {host.home.token()}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for _ in range(times):
            writer.write(f"{head}{body}".encode())
            answer = (await reader.readuntil(b"\r\n\r\n")).lower()
            await reader.readexactly(int(answer.partition(b"content-length:")[2].split(b"\r\n")[0]))
            assert answer.startswith((b"http/1.1 200", b"http/1.1 202")), answer
    finally:
        writer.close()


async def _beside_a_flood(host: RunningHost, others: list[str]) -> Figure:
    """In turns: the first answer in a group while nobody else writes, and while another group is flooded."""
    quiet, flooded = [], []
    for number in range(0, len(others), 2):
        quiet.append(await _first_answer(host, others[number]))
        async with _flood(host):
            flooded.append(await _first_answer(host, others[number + 1]))
    progress(f"a flood: {len(others)} first answers")
    measured = Series(
        name=f"beside {FLOOD_A_SECOND} messages a second elsewhere", unit="ms", values=tuple(flooded)
    )
    floor = Series(name="nobody else writes", unit="ms", values=tuple(quiet))
    return Figure(
        name="A first answer, offline agent, process",
        measured=measured,
        floor=floor,
        checks=(ratio_of(measured, floor, TIMES_THE_QUIET),),
    )


async def _first_answer(host: RunningHost, group: str) -> float:
    """Milliseconds from the stored message to the sent reply, by the host's own clock."""
    message = await host.say(group, "add milk to the shopping list")
    queued = await host.event(of_kind("message.queued", message=message))
    sent = await host.event(of_kind("message.sent", turn=queued["turn"]))
    return float(sent["at_ms"] - queued["at_ms"])


@asynccontextmanager
async def _flood(host: RunningHost) -> AsyncIterator[None]:
    """Write to a group all the while, so many times a second, whose agent answers as it can."""

    async def write() -> None:
        async with asyncio.TaskGroup() as sent:
            while True:
                sent.create_task(_say(host, FLOODED, 1), name="flood")
                await asyncio.sleep(1 / FLOOD_A_SECOND)

    flood = asyncio.create_task(write(), name="flood")
    try:
        await asyncio.sleep(1)
        yield
    finally:
        flood.cancel()
        await asyncio.wait({flood})
