"""A world on a seed: the real host on a real disk, its containers, its messengers and its people in one loop.

`World(seed).run()` lives it through and returns what happened. All that is drawn is drawn from the seed.
"""

from __future__ import annotations

import asyncio
import atexit
import contextvars
import hashlib
import os
import random
import shutil
import sqlite3
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import croniter  # noqa: F401  # as it is imported first, it asks a program for the machine's architecture
import prometheus_client  # noqa: F401  # as it is imported first, it reads the machine's counters
import structlog

from agent_runner.agents.offline import OfflineAgent
from orchestrator.app import Orchestrator
from orchestrator.containers.runtime_selection import SelectedRuntime
from orchestrator.domain.errors import HomeError
from orchestrator.groups import registration
from orchestrator.home import lock as home_lock
from orchestrator.home.directory import Home
from orchestrator.home.settings import Settings
from orchestrator.loop.service import apply_action
from orchestrator.proxies.model.credentials import CredentialSource
from orchestrator.proxies.model.limits import ModelProxyLimits
from orchestrator.store import database as store_database
from orchestrator.store.database import Tx
from orchestrator.store.direct import run_at_once
from orchestrator.store.money import budgets
from orchestrator.store.money.budgets import Period, Unit
from tests.simulation import guard, surroundings
from tests.simulation.engine import Engine, SimulatedRuntime, on_sigterm
from tests.simulation.loop import OUTSIDE, PROCESS, START_MS, Process, SimulatedLoop, WorldStuck
from tests.simulation.memory import entries_of
from tests.simulation.messenger import EntryPoint, Messenger
from tests.simulation.model_agent import ModelAgent
from tests.simulation.owner import Door, Owner
from tests.simulation.people import Faults, People, Plan
from tests.simulation.services import KEYS, MODEL, Services, SimulatedUpstream, add_services
from tests.simulation.storage import Storage, UnsyncedFiles
from tests.simulation.swarm import SwarmedEngine, replaced_by, swarm_runtime
from tests.simulation.wire import Wire

MEMORY = Path("/dev/shm")
LONGEST_LEAP_SECONDS = 3_600.0
"""Seconds of idle time that pass at once: each loop of the host wakes once an hour, as its slowest sweeps do.

What is due at a moment of its own, a reminder or a task, ends a leap before it."""
CLOSES_WITHIN_SECONDS = 900.0
"""Seconds beyond its time after which a container that idles is closed, whatever went wrong before."""
MOST_STEPS, STEPS_A_MESSAGE = 2_000_000, 20_000
"""Steps of a world, and more for each message, after which it counts as one that does not come to rest."""
SETTLE_SECONDS = 8 * 3600.0
"""Virtual seconds in which all must be quiet after the faults have ended."""


@dataclass(slots=True)
class Line:
    """One thing that happened."""

    at_s: float
    step: int
    kind: str
    text: str

    def __str__(self) -> str:
        hours, rest = divmod(self.at_s, 3600)
        minutes, seconds = divmod(rest, 60)
        at = f"{int(hours):3d}:{int(minutes):02d}:{seconds:06.3f}"
        start = f"{at}  step {self.step:7d}  {self.kind:9s}  "
        # A text of several lines stays apart from the lines of the story.
        return start + self.text.replace("\n", "\n" + " " * len(start))


@dataclass(slots=True)
class Outcome:
    """A world that is over."""

    seed: str
    lines: list[Line]
    problems: list[str] = field(default_factory=list)
    hours: float = 0.0
    steps: int = 0
    kills: int = 0
    messages: int = 0
    answers: int = 0
    service_faults: int = 0
    moves: int = 0
    """Number of times that a turn went on at another model service."""

    @property
    def digest(self) -> str:
        """A hash of all that happened: the same for the same seed."""
        text = "\n".join(map(str, self.lines))
        return hashlib.sha256(f"{text}\n{self.steps}".encode()).hexdigest()[:16]


def root_of(process_id: int) -> Path:
    """Return the directory of the world that a process lives through in the running thread."""
    place = MEMORY if MEMORY.is_dir() else Path("/tmp")
    return place / f"andy-world-{process_id}-{threading.get_ident() % 100_000}"


class World:
    """One world. It is made, run once, and gone."""

    def __init__(self, seed: int | str, plan: Plan | None = None, *, root: Path | None = None) -> None:
        """`plan` replaces what the people and the faults of the seed do, to shrink a world."""
        surroundings.freeze_imports()
        self.seed = str(seed)
        self.plan = plan or Plan.drawn(self.seed)
        self.lines: list[Line] = []
        self.problems: list[str] = []
        self.kills = 0
        self.is_settling = False
        self.root = root or root_of(os.getpid())
        self.refusals = guard.Refusals()
        self.loop = SimulatedLoop(self.seed, self.refusals.refuse)
        self.loop.most_steps = MOST_STEPS + STEPS_A_MESSAGE * len(self.plan.said)
        self._chance = random.Random(f"{self.seed}:world")
        self.loop.ahead_ms = self.plan.ahead_ms
        self.home = Home(self.root / "home")
        self.storage = Storage(self.home.database)
        self._reader: sqlite3.Connection | None = None
        has_power_loss = any(fault.kind == "power" for fault in self.plan.faults)
        self.unsynced = UnsyncedFiles(self.seed) if has_power_loss else None
        self._resting_since_s = 0.0
        self.power_losses = 0
        self.on_turn: Callable[[], None] = lambda: None
        """Called as a turn was given to a container."""
        self.on_effect: Callable[[], None] = lambda: None
        """Called after the host that lives now has done something that outlasts it."""
        self.tasks_when_quiet = 0
        self.names_of_tasks = ""
        self.second_hosts = 0
        """Number of second hosts on the home that were refused."""
        self.host: Process | None = None
        self.orchestrator: Orchestrator | None = None
        self._host_number = 0
        self._host_task: asyncio.Task[Any] | None = None
        self._connections: list[tuple[Process, sqlite3.Connection]] = []
        self._locks: list[tuple[Process, Any]] = []
        self._graves: list[Any] = []
        self._kill_why = ""
        self._upgrades_over = 0
        self.upgrades = 0
        """Number of lives that began with a database and containers of an older program."""
        self.memory: list[tuple[int, Counter[str]]] = []
        """For each look at the host's memory: the messages until then, and the entries of its collections."""
        self._is_kill_of_power = False
        self._stop: asyncio.Event | None = None
        self.door: Door | None = None
        """The web server of the host that lives now."""

    # -- running ---------------------------------------------------------------------------------------

    def run(self) -> Outcome:
        """Live the world through, judge it, and return what happened."""
        shutil.rmtree(self.root, ignore_errors=True)
        (self.root / "engine").mkdir(parents=True)
        with ExitStack() as stack:
            stack.enter_context(surroundings.without_collections())
            _furnish(self.home, self.plan)
            if self.plan.schema_behind:
                (found,) = self.rows("PRAGMA user_version")
                self.note("world", f"the database is brought along from version {found[0]}")
            stack.enter_context(self.storage.open())
            asyncio.set_event_loop(self.loop)
            stack.callback(asyncio.set_event_loop, None)
            self._replace(stack)
            try:
                self.loop.run_until_complete(self._live())
            except WorldStuck as stuck:
                self.problems.append(str(stuck))
            finally:
                self._end_process_parts(None)
                self._graves += [self.loop, self.orchestrator, self._host_task, self.host]
        hours, steps = self.loop.time() / 3600, self.loop.step
        self._judge()
        self.loop._ready.clear()  # type: ignore[attr-defined]
        outcome = Outcome(
            seed=self.seed,
            lines=self.lines,
            problems=self.problems,
            hours=hours,
            steps=steps,
            kills=self.kills,
            messages=self.people.written,
            answers=sum(post.by == "Andy" for one in self.messengers for post in one.shown),
            service_faults=len(self.plan.services.faults),
            moves=len(self.rows("SELECT 1 FROM turn_moves")),
        )
        self._bury()
        return outcome

    def _bury(self) -> None:
        self._close_reader()
        self.loop.close()
        self.orchestrator = self._host_task = self.host = None
        OUTSIDE.tasks.clear()  # which all worlds of this process share
        surroundings.bury(self.loop, self._graves)
        del surroundings.Observer.signals
        shutil.rmtree(self.root, ignore_errors=True)

    def _replace(self, stack: ExitStack) -> None:
        """Put everything simulated in the place of what it stands for. This is the list."""
        enter = stack.enter_context
        loop, seed = self.loop, self.seed
        enter(guard.time_of(loop))
        enter(guard.chance_of(seed))
        self.signals = surroundings.Signals(loop, seed)
        self.disk = surroundings.Disk(loop, self.signals, self.unsynced)
        self.engine = self._new_engine()
        self.storage.on_commit = self.disk.on_change = self.engine.on_call = self.note_effect
        self.messengers = (
            Messenger("chirp", loop, seed, self.note, is_idempotent=True),
            Messenger("flock", loop, seed, self.note, is_idempotent=False),
        )
        # Only then: a question of the board would be such a poll, too, in worlds that had none.
        self.messengers[0].has_polls = any(one.kind == "poll" for one in self.plan.said)
        for messenger in self.messengers:
            messenger.max_text_chars = self.plan.text_chars or messenger.max_text_chars
        self.people = People(self, self.plan)
        self.owner = Owner(self, self.plan.owner)
        self.faults = Faults(self, self.plan)
        self.services = Services(loop, seed, self.plan.services, self.note)
        self.wire = self.engine.wire = Wire(loop, seed)
        surroundings.Observer.signals = self.signals
        put: list[tuple[str, Any]] = [
            ("os.replace", self.disk.replace),
            ("os.rename", self.disk.rename),
            ("os.fsync", self.disk.sync),
            ("os.unlink", self.disk.unlink),
            ("aiosqlite.core.Thread", surroundings.SimulatedThread),
            ("aiosqlite.core.SimpleQueue", surroundings.StepQueue),
            ("orchestrator.store.loop_connection.LoopConnection", surroundings.UnclosedConnection),
            ("agent_runner.watch.new_observer", surroundings.Observer),
            ("agent_runner.watch.threading", _Threads),
            ("agent_runner.runner.on_sigterm", on_sigterm),
            ("agent_runner.session.used_cpu_seconds", lambda: 0.25),
            ("orchestrator.ipc.watcher.new_observer", surroundings.Observer),
            ("orchestrator.loop.workspace.Observer", surroundings.Observer),
            ("orchestrator.containers.runtime_selection.choose", self._choose),
            ("orchestrator.containers.docker.runtime._ping", self.engine.check),
            ("orchestrator.channels.discovery._other_entry_points", self._entry_points),
            ("orchestrator.app.listen_locally", _listen_locally),
            ("orchestrator.proxies.feature.bind", lambda *_: _Listener(8701)),
            ("orchestrator.proxies.model.server.ProxyServer.serve", self._serve_containers()),
            ("orchestrator.proxies.model.proxy._open_upstream", self._open_upstream),
            ("orchestrator.proxies.parsing_process.SMALL_BYTES", 1 << 30),
            ("agent_runner.agents.claude.agent.ClaudeAgent", self.engine.noting(self.agent())),
            ("agent_runner.agents.offline.OfflineAgent", self.engine.noting(OfflineAgent)),
            ("orchestrator.ipc.entries.changed_ms", self.disk.changed_ms),
            # Files have times of the real clock, which say nothing of the world's.
            ("agent_runner.wire.trees.JUST_NOW_NS", 1 << 62),
            ("orchestrator.proxies.egress.proxy.EgressProxy.serve", _serve_nobody),
            ("orchestrator.web.feature.WebFeature.serve", self._serve_web()),
            ("orchestrator.store.database._connect", self._connect),
            ("orchestrator.home.lock.acquire", self._lock),
        ]
        if isinstance(self.engine, SwarmedEngine):
            put += replaced_by(self.engine)
        for target, replacement in put:
            enter(patch(target, replacement))
        enter(self._logs())
        enter(guard.audited(self.refusals))
        loop.on_stop = lambda: self.kill_host(self._kill_why)

    def _new_engine(self) -> Engine:
        root = self.root / "engine"
        if not self.plan.nodes:
            return Engine(self.loop, root, self.seed, self.note)
        engine = SwarmedEngine(self.loop, root, self.seed, self.note, nodes=self.plan.nodes)
        self.loop.network = engine.network
        return engine

    async def _live(self) -> None:
        self.start_host()
        self.loop.create_task(self.people.live(), name="people")
        self.loop.create_task(self.owner.live(), name="owner")
        faults = self.loop.create_task(self.faults.live(), name="faults")
        leaps = self.loop.create_task(self._leap_when_idle(), name="leaps")
        for at_s in self.plan.looks_at_s:
            self.loop.call_at(at_s, self._look_at_memory)
        await asyncio.sleep(self.plan.seconds)
        self.is_settling = True
        faults.cancel()
        self.loop.stop_at = 0
        self.faults.end()
        self.note("world", "the faults have ended")
        await self._settle()
        leaps.cancel()
        await self._shut_down()

    async def _leap_when_idle(self) -> None:
        """Pass the time in which nothing goes on and nothing is due in leaps, not second by second."""
        while True:
            await asyncio.sleep(10)
            now = self.loop.time()
            if self._is_idle():
                to_s = min(now + LONGEST_LEAP_SECONDS, self.plan.next_moment(now), self._next_due()) - 30
                if to_s > now + 30:
                    self.loop.leap(to_s)

    def _is_idle(self) -> bool:
        is_up = self.host is not None and not self.host.is_dead
        return (
            is_up
            and not self.engine.containers
            and not self.services.open_requests
            and self.people.is_heard()
            and not self.plan.is_amiss(self.loop.time())
            and self.unsettled() == 0
        )

    def _next_due(self) -> float:
        """Return when the next notification is due, in virtual seconds."""
        (row,) = self.rows(
            "SELECT min(ms) AS ms FROM ("
            "SELECT max(due_ms, ifnull(next_attempt_ms, 0), ifnull(claim_until_ms, 0)) AS ms"
            " FROM notifications WHERE status IN ('pending', 'sending') AND audience = 'user'"
            " UNION ALL SELECT next_run FROM scheduled_tasks WHERE status = 'active'"
            " UNION ALL SELECT ends_ms FROM polls WHERE ended_ms IS NULL"
            " UNION ALL SELECT next_wake_ms FROM loop_state WHERE status = 'on')"
        )
        if row["ms"] is None:
            return float("inf")
        return self.loop.time() + row["ms"] / 1000 - self.loop.wall_ns() / 1e9

    async def _settle(self) -> None:
        """Wait until all is quiet, or for as long as that may take."""
        end = self.loop.time() + SETTLE_SECONDS
        self._resting_since_s = self.loop.time()
        while self.loop.time() < end:
            await asyncio.sleep(60)
            if self.plan.services.asks_model and self.loop.time() < self.plan.seconds + 150:
                continue  # a service that works again is to be asked again by now
            if (
                self._host_task is not None  # one that was killed last may start only now
                and self.people.is_content()
                and self.owner.is_content()
                and self._is_settled()
            ):
                self._count_tasks()
                return
        self.note("world", "it did not become quiet")
        left = [container.process.name for container in self.engine.containers.values()]
        self.problems += [f"Not quiet after {SETTLE_SECONDS / 3600:.0f} hours: {name}" for name in left]

    def _is_settled(self) -> bool:
        """Return whether nothing is to be done and no container is left; note one that idles too long."""
        if not self.engine.containers:
            return self.unsettled(reminders=True) == 0
        (row,) = self.rows("SELECT count(*) AS n FROM turns WHERE state IN ('queued', 'running')")
        now_s = self.loop.time()
        if row["n"] or self.plan.foresight or self.plan.loops:
            self._resting_since_s = now_s
        elif now_s - self._resting_since_s > self.plan.idle_ms / 1000 + CLOSES_WITHIN_SECONDS:
            names = [container.process.name for container in self.engine.containers.values()]
            self.problems.append(f"Idle and not closed for {now_s - self._resting_since_s:.0f} s: {names}")
            self._resting_since_s = float("inf")
        return False

    def _look_at_memory(self) -> None:
        """Note how much each collection of the host holds."""
        if self.host is not None and not self.host.is_dead:
            alive = [task for task in self.host.tasks if not task.done()]
            self.memory.append((self.people.written, entries_of(alive)))

    def _count_tasks(self) -> None:
        """Note how many tasks the host has now."""
        if self.host is None:
            return
        alive = Counter(task.get_name().split(":")[0] for task in self.host.tasks if not task.done())
        self.tasks_when_quiet = alive.total()
        self.names_of_tasks = ", ".join(f"{count} {name}" for name, count in alive.most_common(8))

    async def _shut_down(self) -> None:
        assert self._stop is not None
        task = self._host_task
        if task is None:
            self.problems.append("The host does not run at the end.")
            return
        self.is_settling = True
        self._is_stopping = True
        self._stop.set()
        done, _ = await asyncio.wait([task], timeout=120)
        if not done:
            self.problems.append("The host does not end when it is asked to.")

    def agent(self) -> Any:
        """Return what stands for the agent that asks a model."""
        return ModelAgent

    # -- the host --------------------------------------------------------------------------------------

    _is_stopping = False
    _second: Process | None = None
    """Another host that tries to start on the home."""

    def start_host(self) -> None:
        self._host_number += 1
        self.host = Process(f"host {self._host_number}")
        self._graves.append(self.host)
        self.note("host", f"{self.host.name} starts")
        self._host_task = self.loop.start(self.host, self._run_host(self.host), self.host.name)
        self._host_task.add_done_callback(self._host_ended, context=contextvars.Context())
        if again := self.faults.kills_while_starting():
            self.kill_in_steps(again, "while it starts")

    async def _run_host(self, process: Process) -> None:
        settings = Settings(
            tz=self.plan.zone,
            andy_runtime="process",
            andy_agent="claude" if self.plan.services.asks_model else "offline",
            andy_model=MODEL if self.plan.services.asks_model else None,
            andy_channels="chirp,flock",
            max_concurrent_containers=self.plan.cap,
            andy_foresight=self.plan.foresight,
            idle_timeout=self.plan.idle_ms,
            max_containers_per_node=self.plan.slots,
            container_timeout=self.plan.age_ms,
        )
        credentials = CredentialSource(self.home.root, KEYS if self.plan.services.asks_model else {})
        self._stop = asyncio.Event()
        orchestrator = Orchestrator(
            self.home, settings, credentials=credentials, say=lambda text: self.note("host", text)
        )
        self.orchestrator = orchestrator
        self._graves.append(orchestrator)
        orchestrator.bus.taps.append(self._take_event)
        await orchestrator.run(stop=self._stop, on_ready=lambda _: self.note("host", f"{process.name} is up"))

    def _host_ended(self, task: asyncio.Task[Any]) -> None:
        if self.host is None or task is not self._host_task:
            return
        error = None if task.cancelled() else task.exception()
        self._host_task = None
        self._end_process_parts(self.host)
        self.host.is_dead = True
        self.engine.note_host_death(self.host)
        if self._is_stopping and error is None:
            self.note("host", "it has ended as it was asked to")
            return
        self.note("host", f"{self.host.name} ended by itself: {_explained(error)}")
        if not self.faults.explain_end(error):
            self.problems.append(f"The host ended by itself: {_explained(error)}")
        if not self._is_stopping:
            self.loop.call_later(5.0, self.start_host, context=contextvars.Context())

    def kill_in_steps(self, steps: int, why: str, *, is_of_power: bool = False) -> None:
        """Kill the host before the step that is so many from now, and with it the machine it runs on."""
        self.loop.stop_at = self.loop.step + max(1, steps)
        self._kill_why, self._is_kill_of_power = why, is_of_power

    def kill_host(self, why: str) -> None:
        """End the host as SIGKILL does: its memory is gone, and what it had not committed."""
        if self.host is None or self.host.is_dead or self.is_settling:
            return
        self.kills += 1
        self.note("fault", f"{self.host.name} is killed {why}".rstrip())
        self.host.is_dead = True
        self.wire.note_death(self.host)
        self.engine.note_host_death(self.host)
        self._host_task = None
        left = self.storage.before_power_loss() if self._is_kill_of_power else {}
        self._end_process_parts(self.host)
        if self._second is not None:
            self._second.is_dead = True
            self._end_process_parts(self._second)
            self._second = None
        if left:
            self._lose_power(left)
        if self._upgrades_over:
            self._upgrade()
        self.door = None
        pause = self._chance.choice((0.5, 3.0, 30.0, 600.0))
        self.loop.call_later(pause, self.start_host, context=contextvars.Context())

    def upgrade_at_kill(self, versions: int) -> None:
        """Let the next life of the host be that of a program with so many migrations more."""
        self._upgrades_over = versions

    def _upgrade(self) -> None:
        """Put what the host leaves into the database of an older program, whose containers are outdated, too.

        The older program is not there to have lived with it, but what it would not have written is gone.
        """
        self.upgrades += 1
        self._close_reader()
        with self.storage.closed():
            _age(self.home.database, self._upgrades_over)
        self._upgrades_over = 0
        self.engine.has_newer_image()

    def _lose_power(self, left: dict[Path, bytes]) -> None:
        """End all that runs on the host's machine, and leave on its disk what is there for sure."""
        self.power_losses += 1
        are_gone = self._chance.random() < 0.5  # an engine remembers its containers, other runtimes do not
        self.engine.lose_power(are_gone=are_gone)
        self._close_reader()
        self.storage.after_power_loss(left)
        if self.unsynced is not None:
            for path in self.unsynced.lose(self.loop.time()):
                self.disk.stamp(path)

    def start_second_host(self) -> None:
        """Start another host on the same home, as a person does who forgot about the first one."""
        is_up = self.host is not None and not self.host.is_dead and self.door is not None
        if not is_up or self._second is not None:
            return
        process = self._second = Process("a second host")
        self._graves.append(process)
        task = self.loop.start(process, self._run_second_host(), process.name)
        self._graves.append(task)

    async def _run_second_host(self) -> None:
        orchestrator = Orchestrator(
            self.home,
            Settings(andy_runtime="process", andy_agent="offline", andy_channels="chirp,flock"),
            credentials=CredentialSource(self.home.root, {}),
            say=lambda text: self.note("host", f"a second host: {text}"),
        )
        self._graves.append(orchestrator)
        process = self._second
        try:
            await orchestrator.run(stop=asyncio.Event(), on_ready=self._two_are_up)
        except HomeError as error:
            self.second_hosts += 1
            self.note("host", f"a second host is refused: {error}")
        finally:
            self._end_process_parts(process)
            self._second = None

    def _two_are_up(self, _: str) -> None:
        self.problems.append("Two hosts run on one home.")

    def _end_process_parts(self, process: Process | None) -> None:
        """Let go of what the system takes back of a process that is gone; None is all of them."""
        for owner, connection in self._connections:
            if process in (None, owner):
                with suppress(sqlite3.Error):
                    connection.rollback()
                with suppress(sqlite3.Error):
                    connection.close()
        for owner, lock in self._locks:
            if process in (None, owner):
                lock.release(force=True)
        self._connections = [one for one in self._connections if process not in (None, one[0])]
        self._locks = [one for one in self._locks if process not in (None, one[0])]

    # -- replacements ----------------------------------------------------------------------------------

    async def _choose(self, *_: Any, **given: Any) -> SelectedRuntime:
        if self.plan.nodes:
            names = ("home", "install", "last_frame", "on_log", "on_node_problem", "slots_per_node")
            return swarm_runtime(**{name: given[name] for name in names})
        return SelectedRuntime(
            runtime=SimulatedRuntime(self.engine),
            host_address="127.0.0.1",
            listen_address="127.0.0.1",
            uid=os.getuid(),
            forget=_nothing,
        )

    def _entry_points(self) -> dict[str, Any]:
        return {one.name: EntryPoint(one) for one in self.messengers}

    def _serve_containers(self) -> Any:
        """Return what stands for `ProxyServer.serve`: nobody calls it where no agent asks a model."""

        async def serve(server: Any) -> None:
            await self.wire.serve(server._app)

        return serve

    def _open_upstream(self, limits: ModelProxyLimits) -> SimulatedUpstream:
        return SimulatedUpstream(self.services, limits)

    def _serve_web(self) -> Any:
        """Return what stands for `WebFeature.serve`: its app is there to be asked, where the owner asks."""

        async def serve(feature: Any, *_: Any) -> None:
            if self.plan.owner:
                app = feature._app(lambda *_, **__: None)
                self.door = Door(PROCESS.get(), app, feature.token)
            else:
                self.door = Door(PROCESS.get(), _nothing, "")
            await asyncio.Event().wait()

        return serve

    _real_connect = staticmethod(store_database._connect)
    _real_lock = staticmethod(home_lock.acquire)

    def _connect(self, *given: Any) -> sqlite3.Connection:
        with self.storage.watching():
            connection = self._real_connect(*given)
        self.storage.watch(connection)
        self._connections.append((PROCESS.get(), connection))
        return connection

    def _lock(self, home: Home) -> Any:
        lock = World._real_lock(home)
        self._locks.append((PROCESS.get(), lock))
        return lock

    # -- what happens ----------------------------------------------------------------------------------

    def note(self, kind: str, text: str) -> None:
        text = text.replace(str(self.root), "~")  # the number of this process is in it
        self.lines.append(Line(self.loop.time(), self.loop.step, kind, text))

    def note_effect(self) -> None:
        """Take note of a commit, a file, a call of the engine or a shown text, where the host did it."""
        if PROCESS.get() is self.host:
            self.on_effect()

    def _take_event(self, event: Any) -> None:
        if event.kind in ("turn.started", "turn.handed_over"):
            self.on_turn()
        if event.kind.startswith(("turn.", "run.started")):
            self._resting_since_s = self.loop.time()
        ids = " ".join(
            f"{name}={value}"
            for name, value in event.to_json_dict().items()
            if name not in ("n", "at_ms", "kind")
        )
        self.note("event", f"{event.kind} {ids}")

    @contextmanager
    def _logs(self) -> Iterator[None]:
        def take(logger: object, method: str, fields: dict[str, Any]) -> dict[str, Any]:
            error = fields.pop("exc_info", None)
            words = " ".join(f"{name}={value}" for name, value in fields.items() if name != "event")
            text = f"{method}: {fields['event']} {words}"
            if isinstance(error, BaseException):
                text += f" [{_explained(error)}]"
            elif error:
                text += f" [{_explained(sys.exc_info()[1])}]"
            self.note("log", text)
            raise structlog.DropEvent

        before = structlog.get_config()
        structlog.configure(processors=[take], cache_logger_on_first_use=False)
        try:
            yield
        finally:
            structlog.configure(**before)

    def messenger_of(self, jid: str) -> Messenger:
        return next(one for one in self.messengers if jid.startswith(f"{one.name}:"))

    def since_start_s(self, wall_ms: int) -> float:
        """Return the virtual seconds at a wall time; only where the plan does not set the clock."""
        return (wall_ms - START_MS - self.plan.ahead_ms) / 1000

    def has_set_clock(self) -> bool:
        """Return whether the plan sets the wall clock."""
        return any(fault.kind == "clock" for fault in self.plan.faults)

    def rows(self, sql: str, *given: Any) -> list[sqlite3.Row]:
        # One connection: each new one would parse the schema of 60 tables for a single query.
        if self._reader is None:
            self._reader = sqlite3.connect(f"{self.home.database.as_uri()}?mode=ro", uri=True)
            self._reader.row_factory = sqlite3.Row
        return self._reader.execute(sql, given).fetchall()

    def _close_reader(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def unsettled(self, *, reminders: bool = False) -> int:
        """Count what the host has still to do; with `reminders`, also what waits for a time or a service."""
        (row,) = self.rows(
            "SELECT (SELECT count(*) FROM turns WHERE state IN ('queued', 'running'))"
            " + (SELECT count(*) FROM outbox WHERE state IN ('held', 'pending', 'sending'))"
            " + (SELECT count(*) FROM runs WHERE ended_ms IS NULL)"
            " + (SELECT count(*) FROM notifications"
            " WHERE type = 'reminder' AND status IN ('pending', 'sending') AND ?)"
            " + (SELECT count(*) FROM scheduled_tasks"
            " WHERE status = 'active' AND schedule_type = 'once' AND ?)"
            " + (SELECT count(*) FROM polls WHERE ends_ms IS NOT NULL AND ended_ms IS NULL AND ?)"
            " + (SELECT count(*) FROM service_outages WHERE ended_ms IS NULL AND ?)"
            " + (SELECT count(*) FROM model_refusals WHERE ended_ms IS NULL AND ?)"
            " AS n",
            reminders,
            reminders,
            reminders,
            reminders,
            reminders,
        )
        return int(row["n"])

    def _judge(self) -> None:
        from tests.simulation.judges import judge

        judge(self)


class _Threads:
    """In the place of `threading` where an observer is stopped."""

    Thread = surroundings.ThreadAtOnce


class _Listener:
    """A socket that listens to nobody."""

    def __init__(self, port: int) -> None:
        self._port = port

    def getsockname(self) -> tuple[str, int]:
        return "127.0.0.1", self._port

    def close(self) -> None:
        pass


@contextmanager
def _listen_locally(port: int) -> Iterator[tuple[_Listener, ...]]:
    yield (_Listener(8700),)


async def _serve_nobody(*_: Any) -> None:
    await asyncio.Event().wait()


async def _nothing(*_: Any) -> None:
    pass


def _explained(error: BaseException | None) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if error is None:
        return "without an error"
    where = ""
    frame = error.__traceback__
    while frame is not None:
        code = frame.tb_frame.f_code
        if "/orchestrator/" in code.co_filename or "/agent_runner/" in code.co_filename:
            where = f" at {'/'.join(Path(code.co_filename).parts[-3:])}:{frame.tb_lineno}"
        frame = frame.tb_next
    return f"{type(error).__name__}: {error}{where}"


_template: list[Path] = []


def remove_template() -> None:
    """Remove the empty database that each world of this process began with; called also as it exits."""
    while _template:
        _template.pop().unlink(missing_ok=True)


def _furnish(home: Home, plan: Plan) -> None:
    """Make a home with the groups of a plan. The empty database is migrated once a process."""
    home.database.parent.mkdir(parents=True)
    if not _template:
        place = MEMORY if MEMORY.is_dir() else Path("/tmp")
        path = place / f"andy-world-template-{os.getpid()}.db"
        path.unlink(missing_ok=True)
        store_database._prepare(path)
        connection = sqlite3.connect(path)
        connection.execute("PRAGMA journal_mode = DELETE")
        connection.close()
        _template.append(path)
        atexit.register(remove_template)
    shutil.copyfile(_template[0], home.database)
    # Without a loop and a thread for it, which take longer than what they do here.
    with closing(store_database._connect(home.database, "journal_mode = WAL", "foreign_keys = ON")) as new:
        new.execute("BEGIN IMMEDIATE")
        run_at_once(new, lambda tx: _register(tx, plan))
        new.execute("COMMIT")
    if plan.schema_behind:
        _age(home.database, plan.schema_behind)


def _age(path: Path, versions: int) -> None:
    """Put what a database has into one that an older program has made."""
    newer = path.with_name("newer.db")
    # Copied page by page, with what is in the log alone: a connection of a killed host that still has a
    # statement keeps the log from being put into the file.
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(newer)) as target:
        source.backup(target)
    for ending in ("", "-wal", "-shm"):
        path.with_name(f"{path.name}{ending}").unlink(missing_ok=True)
    older = store_database.migrations()[:-versions]
    with patch.object(store_database, "migrations", lambda: older):
        store_database._prepare(path)
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("ATTACH ? AS newer", (str(newer),))
    names = "SELECT name FROM {} WHERE type = 'table' AND sql NOT LIKE 'CREATE VIRTUAL%'"
    known = {name for (name,) in connection.execute(names.format("newer.sqlite_master"))}
    connection.execute("PRAGMA foreign_keys = OFF")
    for (table,) in connection.execute(names.format("main.sqlite_master")).fetchall():
        if table not in known or table.startswith(("sqlite_", "message_search")):
            continue
        both = [_columns(connection, schema, table) for schema in ("main", "newer")]
        columns = ", ".join(name for name in both[0] if name in both[1])
        connection.execute(
            f"INSERT OR IGNORE INTO main.{table} ({columns}) SELECT {columns} FROM newer.{table}"
        )
    # Numbers that were used once are not used again.
    connection.execute("DELETE FROM main.sqlite_sequence")
    connection.execute("INSERT INTO main.sqlite_sequence SELECT * FROM newer.sqlite_sequence")
    connection.close()
    newer.unlink()


def _columns(connection: sqlite3.Connection, schema: str, table: str) -> list[str]:
    return [row[1] for row in connection.execute(f"PRAGMA {schema}.table_info({table})")]


async def _register(tx: Tx, plan: Plan) -> None:
    """Store the groups, services, loops and the budget of a plan."""
    await registration.ensure_main(tx, now_ms=0)
    await add_services(tx, plan.services.fallbacks)
    for group in plan.groups:
        if group.is_main:
            await registration.add_chat(tx, group.folder, group.jid, now_ms=0)
            continue
        await registration.register(tx, group)
        for jid in group.other_chats:
            await registration.add_chat(tx, group.folder, jid, now_ms=0)
    for folder in plan.loops:
        await apply_action(tx, folder, "on", now_ms=START_MS + plan.ahead_ms)
    if plan.budget_tokens:
        await budgets.put(
            tx,
            folder=None,
            is_background=False,
            period=Period.DAY,
            unit=Unit.TOKENS,
            amount=plan.budget_tokens,
            now_ms=0,
        )
