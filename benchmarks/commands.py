"""What an agent asks of the host: from the file in its mailbox to the reply, seen in a real container."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from benchmarks import engine
from benchmarks.figures import Figure, Series, median_of
from benchmarks.host import RunningHost, of_kind, running_host
from benchmarks.places import Effort, progress
from orchestrator.containers.docker.runtime import INSTALL_LABEL

COMMANDS = 120
WARM_UP = 5
MEDIAN_MS = 20.0
COMMITS = 1

ASKING = """
import asyncio, json, sys, time
from agent_runner.ipc_client import HostClient
from agent_runner.wire.mailbox import ListReminders
from agent_runner.workspace import Workspace

async def main():
    host = HostClient(Workspace.from_environment())
    for _ in range(int(sys.argv[1])):
        began = time.perf_counter()
        reply = await host.ask(ListReminders())
        print(json.dumps({"ms": 1000 * (time.perf_counter() - began), "ok": reply.ok}), flush=True)
        await asyncio.sleep(0.1)

asyncio.run(main())
"""
"""Asks as the runner's own tools do, ten times a second: the host lets a container ask twenty."""


async def measure(effort: Effort) -> list[Figure]:
    """In turns with one durable commit on the same disk, which every command is."""
    await asyncio.to_thread(engine.ensure_image)
    times = effort.times(COMMANDS)
    with tempfile.TemporaryDirectory(prefix="andy-bench-") as folder:
        async with running_host(runtime="docker") as host:
            message = await host.say("main", "hi")
            await host.event(of_kind("message.queued", message=message))
            await host.event(lambda event: event["kind"] == "turn.answered")
            asked, commits = await asyncio.to_thread(_ask, host, times + WARM_UP, Path(folder) / "floor.db")
    return [_figure(asked[WARM_UP:], commits[WARM_UP:])]


def _ask(host: RunningHost, times: int, floor: Path) -> tuple[list[float], list[float]]:
    asked: list[float] = []
    commits: list[float] = []
    for line in _lines_of_container(host, times):
        told = json.loads(line)
        assert told["ok"], told
        asked.append(told["ms"])
        commits.append(_commit(floor))
        if len(asked) % 50 == 0:
            progress(f"{len(asked)} of {times} commands, the last {asked[-1]:.1f} ms")
    return asked, commits


def _lines_of_container(host: RunningHost, times: int) -> Iterator[bytes]:
    """What a process beside the runner says, with its user and its directories."""
    client = engine.connect()
    install = (host.home.data / "install").read_text(encoding="utf-8").strip()
    (container,) = client.containers(filters={"label": [f"{INSTALL_LABEL}={install}"]})
    command = ["/opt/andy/bin/python", "-c", ASKING, str(times)]
    made = client.exec_create(container["Id"], command, stderr=True)
    rest = b""
    for piece in client.exec_start(made["Id"], stream=True):
        *lines, rest = (rest + piece).split(b"\n")
        yield from lines
    assert not rest, rest
    client.close()


def _commit(path: Path) -> float:
    """Milliseconds of a commit alone, as durable as the store's."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("CREATE TABLE IF NOT EXISTS rows (id INTEGER PRIMARY KEY, text TEXT)")
        began = time.perf_counter()
        for _ in range(COMMITS):
            connection.execute("INSERT INTO rows (text) VALUES ('a command of some length')")
        return 1000 * (time.perf_counter() - began)


def _figure(asked: list[float], commits: list[float]) -> Figure:
    measured = Series(name="written → reply read", unit="ms", values=tuple(asked))
    return Figure(
        name="A command of a container, docker",
        measured=measured,
        floor=Series(name="floor: a durable commit", unit="ms", values=tuple(commits)),
        checks=(median_of(measured, MEDIAN_MS),),
    )
