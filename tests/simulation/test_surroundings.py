"""What a world refuses: whatever would reach the real clock, chance, a thread, a socket or a process."""

from __future__ import annotations

import _random
import _thread
import asyncio
import inspect
import itertools
import os
import queue
import random
import resource
import secrets
import select
import selectors
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache, partial
from pathlib import Path
from time import monotonic as bound_monotonic
from time import sleep as bound_sleep
from typing import Any

import pytest

from orchestrator.domain.values import ChatJid, Folder, Group
from tests.simulation.guard import Refusals, Unlisted, audited, chance_of, time_of
from tests.simulation.loop import START_MS, Process, SimulatedLoop, WorldStuck
from tests.simulation.people import Fault, Plan, Said
from tests.simulation.storage import Storage, UnsyncedFiles
from tests.simulation.world import World


class _Bound:
    """Sleeps by names that it, its class and a class within it have, and by the default of a getter."""

    sleep = time.sleep

    class Inner:
        sleep = time.sleep

    def __init__(self) -> None:
        self.nap = time.sleep

    @property
    def slept(self: Any = None, sleep: Callable[[float], None] = time.sleep) -> None:
        sleep(0.001)


@dataclass
class _Stamped:
    used: Any = field(default_factory=os.times)


@dataclass(slots=True)
class _SlottedStamped:
    used: Any = field(default_factory=os.times)


class _Connection(sqlite3.Connection):
    """A class of connections of a test's own."""


def _sleep_by_default(sleep: Callable[[float], None] = time.sleep) -> None:
    sleep(0.001)


def _sleep_by_named_default(*, sleep: Callable[[float], None] = time.sleep) -> None:
    sleep(0.001)


def _sleeping(sleep: Callable[[float], None]) -> Callable[[], None]:
    return lambda: sleep(0.001)


@lru_cache
def _cached_sleep(sleep: Callable[[float], None] = time.sleep) -> None:
    sleep(0.001)


BOUND, CLOSURE, PARTIAL = _Bound(), _sleeping(time.sleep), partial(time.sleep, 0.001)
TABLE, ROW = {"nap": time.sleep}, [(time.sleep,)]
HELD, SIMPLE_QUEUE = threading.Lock(), queue.SimpleQueue[int]()
HELD.acquire()
SOCKET: Any = None
GENERATORS = (random.Random(), _random.Random(), [random.Random()])


def _sql(query: str) -> Any:
    with closing(sqlite3.connect(":memory:")) as connection:
        return connection.execute(query).fetchone()


SELECTOR = selectors.DefaultSelector()
UNSTARTED = pytest.mark.leaves("the object of the thread that was not started")
# fmt: off
ESCAPES = {
    "sleep": lambda: time.sleep(0.001),
    "sleep, bound in a module": lambda: bound_sleep(0.001),
    "sleep, bound in a class": lambda: _Bound.sleep(0.001),
    "sleep, bound by a default": _sleep_by_default,
    "sleep, bound by a named default": _sleep_by_named_default,
    "sleep, bound in a class of a class": lambda: _Bound.Inner.sleep(0.001),
    "sleep, bound in an object": lambda: BOUND.nap(0.001),
    "sleep, bound by the default of a getter": vars(_Bound)["slept"].fget,
    "sleep, bound by a closure": CLOSURE,
    "sleep, bound by a function with a cache": _cached_sleep.__wrapped__,
    "sleep, in a partial": lambda: PARTIAL(),
    "sleep, in a dict": lambda: TABLE["nap"](0.001),
    "sleep, in a tuple in a list": lambda: ROW[0][0](0.001),
    "times of the process, as a field": lambda: _Stamped(),
    "times of the process, as a field with slots": lambda: _SlottedStamped(),
    "a clock of the machine": lambda: time.clock_gettime(time.CLOCK_MONOTONIC),
    "a clock of the machine, in ns": lambda: time.clock_gettime_ns(time.CLOCK_BOOTTIME),
    "times of the process": lambda: os.times(),
    "what the process used": lambda: resource.getrusage(resource.RUSAGE_SELF),
    "an alarm": lambda: signal.setitimer(signal.ITIMER_REAL, 10.0),
    "a wait for an event": lambda: threading.Event().wait(0.001),
    "a wait for a semaphore": lambda: threading.Semaphore(0).acquire(timeout=0.001),
    "a wait for a queue": lambda: queue.Queue[int]().get(timeout=0.001),
    "a wait for a simple queue": lambda: queue.SimpleQueue[int]().get(timeout=0.001),
    "a wait for a simple queue of before": lambda: SIMPLE_QUEUE.get(timeout=0.001),
    "a wait for a lock": lambda: HELD.acquire(timeout=0.001),
    "a wait for a signal": lambda: signal.sigtimedwait([signal.SIGUSR1], 0.001),
    "the load of the machine": lambda: os.getloadavg(),
    "a file of chance": lambda: Path("/dev/urandom").open("rb").close(),
    "a descriptor of chance": lambda: os.open(b"/dev/random", os.O_RDONLY),
    "the time since the start of the machine": lambda: Path("/proc/uptime").read_text(),
    "a connection to a database by its class": lambda: sqlite3.Connection(":memory:"),
    "a connection to a database by a class of its own": lambda: _Connection(":memory:"),
    "a wait for a result": lambda: Future[int]().result(timeout=0.001),
    "a wait for a descriptor": lambda: select.select([], [], [], 0.001),
    "a poll of descriptors": lambda: select.poll(),
    "a selector": lambda: SELECTOR.select(0.001),
    "a thread": lambda: threading.Thread(target=print).start(),
    "a bare thread": lambda: _thread.start_new_thread(print, ()),
    "a pool of threads": lambda: ThreadPoolExecutor(1).submit(print),
    "a socket": lambda: socket.socket(),
    "a pair of sockets": lambda: socket.socketpair(),
    "a look-up of a name": lambda: socket.getaddrinfo("localhost", 80),
    "a program": lambda: subprocess.run([sys.executable, "-c", ""], check=False),
    "a fork": lambda: os.fork(),
    "an id of the machine": lambda: uuid.uuid1(),
    "SQL: now": lambda: _sql("SELECT datetime('now')"),
    "SQL: now, unsaid": lambda: _sql("SELECT unixepoch()"),
    "SQL: now, as a format": lambda: _sql("SELECT strftime('%s', 'NOW')"),
    "SQL: the current time": lambda: _sql("SELECT CURRENT_TIMESTAMP"),
}
"""Ways to the real world, each in a line of its own."""
# fmt: on


@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=UNSTARTED if "thread" in one else ()) for one in ESCAPES]
)
def test_a_way_to_the_real_world_is_refused_and_its_line_named(name: str) -> None:
    reach, refusals = ESCAPES[name], Refusals()
    with audited(refusals), pytest.raises((Unlisted, sqlite3.OperationalError)):
        reach()
    function = _sql if name.startswith("SQL") else reach
    lines, first = inspect.getsourcelines(function)
    (said,) = refusals.lines
    assert said.endswith(
        f" at tests/simulation/test_surroundings.py:{first + len(lines) - 1} ({function.__name__})"
    )


LOOP_ESCAPES: dict[str, Callable[[asyncio.AbstractEventLoop], Any]] = {
    "a pool of processes": lambda loop: loop.run_in_executor(Executor(), print),
    "a socket of a file": lambda loop: loop.create_unix_connection(asyncio.Protocol, "/tmp/a"),
    "a server of a file": lambda loop: loop.create_unix_server(asyncio.Protocol, "/tmp/a"),
    "a pipe to read": lambda loop: loop.connect_read_pipe(asyncio.Protocol, sys.stdin),
    "a pipe to write": lambda loop: loop.connect_write_pipe(asyncio.Protocol, sys.stdout),
    "a bare socket": lambda loop: loop.sock_connect(SOCKET, ("127.0.0.1", 9)),
    "data of a bare socket": lambda loop: loop.sock_recv(SOCKET, 1),
}
"""Ways to the real world by a method of the loop."""


@pytest.mark.parametrize("name", LOOP_ESCAPES)
def test_a_way_to_the_real_world_by_the_loop_is_refused_and_its_line_named(name: str) -> None:
    refusals = Refusals()
    loop = SimulatedLoop("s", refusals.refuse)

    async def ask() -> int:
        with suppress(Exception, Unlisted):
            await LOOP_ESCAPES[name](loop)
        return inspect.currentframe().f_lineno - 1  # type: ignore[union-attr]

    with audited(refusals):
        line = loop.run_until_complete(ask())
    loop.close()
    (said,) = refusals.lines
    _, first = inspect.getsourcelines(LOOP_ESCAPES[name])
    assert said.rsplit(":", 1)[1] in (f"{line} (ask)", f"{first} (<lambda>)")


def test_generators_of_before_the_world_draw_from_its_seed_and_go_on_after_it() -> None:
    def drawn(seed: str) -> list[float]:
        (first, bare, (last,)) = GENERATORS
        before = first.getstate()
        with chance_of(seed):
            numbers = [first.random(), bare.random(), last.random(), _random.Random().random()]
        assert first.getstate() == before
        return numbers

    assert drawn("one") == drawn("one")
    assert not set(drawn("one")) & set(drawn("two"))


def test_of_what_a_thread_does_the_line_is_named_that_has_asked_for_it() -> None:
    refusals = Refusals()
    loop = SimulatedLoop("s", refusals.refuse)

    async def ask() -> int:
        with suppress(Unlisted):
            await asyncio.to_thread(socket.socket)
        return inspect.currentframe().f_lineno - 1  # type: ignore[union-attr]

    with audited(refusals):
        line = loop.run_until_complete(ask())
    loop.close()
    assert refusals.lines == [f"socket.__new__ at tests/simulation/test_surroundings.py:{line} (ask)"]


def test_other_threads_and_whoever_comes_after_a_world_have_the_real_clock() -> None:
    loop, refusals = SimulatedLoop("s", Refusals().refuse), Refusals()
    begin, told = threading.Event(), list[float]()

    def tell() -> None:
        begin.wait()
        time.sleep(0)
        told.append(time.monotonic())

    thread = threading.Thread(target=tell)
    thread.start()
    with time_of(loop), audited(refusals):
        from_world = [time.monotonic, time.sleep]  # as a module binds them that a world imports first
        begin.set()
        while thread.is_alive():
            os.sched_yield()
    thread.join()
    loop.close()
    from_world[1](0)
    assert from_world[0]() >= told[0] > 0
    assert time.monotonic() >= told[0]
    assert (time.sleep, refusals.lines) == (bound_sleep, [])


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
        steady = {bound_monotonic(), time.perf_counter(), time.thread_time(), time.process_time()}
        assert steady == {time.monotonic()} == {time.monotonic_ns() / 1e9}
        return bound_monotonic() - began, datetime.now(UTC), time.clock_gettime(time.CLOCK_REALTIME)

    with time_of(loop):
        elapsed, now, wall = loop.run_until_complete(sleep())
    loop.close()
    assert elapsed == pytest.approx(3600)
    assert wall == now.timestamp() == pytest.approx(START_MS / 1000 + 3600)


def test_a_world_in_which_something_happens_without_an_end_says_so() -> None:
    async def go_on() -> None:
        for _ in itertools.count():
            await asyncio.sleep(1)

    loop = SimulatedLoop("s", Refusals().refuse)
    loop.most_steps = 100
    with pytest.raises(WorldStuck, match="does not come to rest: it has taken 101 steps"):
        loop.run_until_complete(go_on())
    loop.close()


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
            ids = [secrets.token_hex(4), uuid.uuid4().hex, os.getrandom(4).hex()]
            random.seed()
            numbers = [random.random(), random.Random().random(), random.SystemRandom().random()]
            with closing(sqlite3.connect(":memory:")) as connection:
                (of_sql,) = connection.execute("SELECT hex(randomblob(8)) || random()").fetchone()
            return [*ids, *map(str, numbers), of_sql]

        with chance_of(seed):
            ids = loop.run_until_complete(live())
        loop.close()
        return ids, order

    assert lived("one") == lived("one")
    assert not set(lived("one")[0]) & set(lived("two")[0])
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


def test_what_a_failure_of_power_leaves_of_an_agents_request_has_a_virtual_time() -> None:
    said = (Said(at_s=5.0, who="Jane", jid=ChatJid("chirp:g0"), kind="echo", token="zq1x"),)
    group = Group(jid=ChatJid("chirp:g0"), name="Group 0", folder=Folder("g0"))
    power = Fault(at_s=20.0, kind="power", amount=1)
    plan = Plan(seconds=60.0, groups=(group,), said=said, faults=(power,))

    class WithRequests(World):
        def _lose_power(self, left: dict[Path, bytes]) -> None:
            for number in range(12):  # of which the failure leaves some empty
                source = self.home.ipc / "g0" / "source"
                source.write_text("{}")
                self.disk.replace(source, self.home.ipc / "g0/messages" / f"{number}.json")
            super()._lose_power(left)

    world = WithRequests("power", plan)
    assert [one for one in world.run().problems if "real time" in one] == []
    assert world.unsynced is not None
    assert world.unsynced.lost > 3
