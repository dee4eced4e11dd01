"""What a world refuses: whatever would reach the real clock, a thread, a socket or a process."""

from __future__ import annotations

import asyncio
import secrets
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.simulation.loop import START_MS, Process, SimulatedLoop, WorldStuck
from tests.simulation.storage import Storage, UnsyncedFiles
from tests.simulation.surroundings import Refusals, Unlisted, audited, chance_of, time_of


@pytest.mark.parametrize(
    "reach",
    [
        lambda: time.sleep(0.001),
        lambda: socket.socket(),
        lambda: socket.getaddrinfo("localhost", 80),
        lambda: subprocess.run([sys.executable, "-c", ""], check=False),
        pytest.param(
            lambda: threading.Thread(target=print).start(),
            marks=pytest.mark.leaves("the object of the thread that was not started"),
        ),
    ],
)
def test_a_way_to_the_real_world_is_refused_and_its_line_named(reach: Callable[[], Any]) -> None:
    refusals = Refusals()
    with audited(refusals), pytest.raises(Unlisted):
        reach()
    (line,) = refusals.lines
    assert ":" in line


def test_an_error_that_the_program_catches_is_noted_all_the_same() -> None:
    refusals = Refusals()
    with audited(refusals), suppress(BaseException):
        socket.socket()
    assert len(refusals.lines) == 1


def test_time_passes_only_by_timers_and_the_same_for_everybody() -> None:
    loop = SimulatedLoop("s", Refusals().refuse)

    async def sleep() -> tuple[float, datetime, float]:
        began = time.monotonic()
        await asyncio.sleep(3600)
        return time.monotonic() - began, datetime.now(UTC), time.time()

    with time_of(loop):
        elapsed, now, wall = loop.run_until_complete(sleep())
    loop.close()
    assert elapsed == pytest.approx(3600)
    assert wall == now.timestamp() == pytest.approx(START_MS / 1000 + 3600)


def test_a_world_in_which_nothing_can_happen_any_more_says_so() -> None:
    loop = SimulatedLoop("s", Refusals().refuse)
    with pytest.raises(WorldStuck):
        loop.run_until_complete(loop.create_future())
    loop.close()


def test_threads_and_ids_are_drawn_from_the_seed() -> None:
    def lived(seed: str) -> tuple[list[str], list[int]]:
        loop, order = SimulatedLoop(seed, Refusals().refuse), list[int]()

        async def live() -> list[str]:
            async with asyncio.TaskGroup() as tasks:
                for number in range(20):
                    tasks.create_task(asyncio.to_thread(order.append, number))
            return [secrets.token_hex(4) for _ in range(3)]

        with chance_of(seed):
            ids = loop.run_until_complete(live())
        loop.close()
        return ids, order

    assert lived("one") == lived("one")
    assert lived("one")[0] != lived("two")[0]
    assert lived("one")[1] != list(range(20))


def test_no_step_of_a_dead_process_is_run_not_even_its_finally() -> None:
    loop, ran = SimulatedLoop("s", Refusals().refuse), list[str]()
    process = Process("host")

    async def host() -> None:
        try:
            await asyncio.sleep(10)
            ran.append("after")
        finally:
            ran.append("finally")

    async def outside() -> None:
        loop.start(process, host(), "host")
        await asyncio.sleep(5)
        process.is_dead = True
        await asyncio.sleep(20)

    loop.run_until_complete(outside())
    assert ran == []
    loop.close()


@pytest.mark.parametrize(("level", "left"), [("FULL", 2), ("NORMAL", 1)])
def test_a_failure_of_power_takes_what_was_committed_without_being_synced(
    tmp_path: Path, level: str, left: int
) -> None:
    path = tmp_path / "a.db"
    first = sqlite3.connect(path, isolation_level=None)
    first.execute("PRAGMA journal_mode = WAL")
    first.execute("CREATE TABLE turns (id INTEGER)")
    first.execute("INSERT INTO turns VALUES (1)")
    storage = Storage(path)
    with storage.open():
        first.close()
        with storage.watching():
            connection = sqlite3.connect(path, isolation_level=None)
        connection.execute(f"PRAGMA synchronous = {level}")
        storage.watch(connection)
        for statement in ("BEGIN IMMEDIATE", "INSERT INTO turns VALUES (2)", "COMMIT"):
            connection.execute(statement)
        disk = storage.before_power_loss()
        connection.close()
        storage.after_power_loss(disk)
        with closing(sqlite3.connect(path)) as after:
            assert after.execute("SELECT count(*) FROM turns").fetchone() == (left,)


def test_a_failure_of_power_may_take_a_file_that_was_not_synced_and_no_other(tmp_path: Path) -> None:
    unsynced, source = UnsyncedFiles("s"), tmp_path / "source"
    for number in range(40):
        source.write_text("new")
        target = tmp_path / f"{number % 2}-{number}"
        if number % 2:
            found = source.stat()
            unsynced.note_sync(found.st_dev, found.st_ino)
        unsynced.before_move(source, target, now_s=1.0)
        source.rename(target)
        if number % 2:
            unsynced.note_directory_sync(tmp_path)
    unsynced.lose(now_s=2.0)
    texts = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert [text for name, text in texts.items() if name.startswith("1-")] == ["new"] * 20
    assert {text for name, text in texts.items() if name.startswith("0-")} == {"new", ""}
    assert len(texts) < 40
