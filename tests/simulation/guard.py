"""Answer clocks and chance from a world, and refuse what would get past it to the real ones, or to threads.

What is refused raises `Unlisted`, which names the line, and is noted, so that the world fails even where the
program catches it. `docs/simulation.md` lists what is answered, and what is allowed for which reason.
"""

from __future__ import annotations

import _thread
import asyncio
import os
import random
import resource
import select
import signal
import socket
import sqlite3
import ssl
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import cache, partial, update_wrapper
from pathlib import Path
from types import FrameType, FunctionType, ModuleType
from typing import Any, ClassVar, NamedTuple, NoReturn
from unittest.mock import patch

import time_machine

from tests.simulation.loop import SimulatedLoop

SIMULATION = Path(__file__).parent
REPOSITORY = SIMULATION.parents[1]
AUDITED = (
    "socket.__new__", "socket.bind", "socket.connect", "socket.sendto", "socket.sendmsg",
    "socket.getaddrinfo", "socket.getnameinfo", "socket.gethostbyname", "socket.gethostbyaddr",
    "subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system", "os.exec",
    "time.sleep", "_thread.start_new_thread", "_thread.start_joinable_thread",
)  # fmt: skip
"""Events of Python's own audit that no step of a world may cause; newer Pythons alone have the last three."""
REFUSED = (
    time.sleep, os.times, resource.getrusage, signal.alarm, signal.setitimer, signal.pause, signal.sigwait,
    select.select, select.poll, select.epoll, _thread.start_new_thread, _thread.start_new,
    socket.socketpair, uuid.uuid1, uuid.getnode,
)  # fmt: skip
"""Functions that no step of a world may call."""
STEADY_CLOCKS = (time.monotonic, time.perf_counter, time.process_time, time.thread_time)
STEADY_CLOCKS_NS = (time.monotonic_ns, time.perf_counter_ns, time.process_time_ns, time.thread_time_ns)
"""Clocks that never jump. Those of the processor are among them: no step takes any time."""
MACHINE_CLOCKS = (time.clock_gettime, time.clock_gettime_ns)
RANDOM_BYTES = (os.urandom, os.getrandom, ssl.RAND_bytes)
WAIT, JOIN = threading.Condition.wait, threading.Thread.join
SEED, SEED_GLOBAL = random.Random.seed, random.seed
CONNECT = sqlite3.connect
REPLACED = {
    id(function): function
    for function in (
        *REFUSED, *STEADY_CLOCKS, *STEADY_CLOCKS_NS, *MACHINE_CLOCKS, *RANDOM_BYTES,
        WAIT, JOIN, SEED, SEED_GLOBAL, CONNECT,
    )
}  # fmt: skip
"""Each real function that something stands in for, by its identity."""
SQL_DATES = {
    "date": 0, "time": 0, "datetime": 0, "julianday": 0, "unixepoch": 0, "strftime": 1,
    "current_date": 0, "current_time": 0, "current_timestamp": 0,
}  # fmt: skip
"""SQLite's functions of time, and the place of the argument that is 'now' where it is left out."""


class Unlisted(BaseException):
    """A step reached for the real world by a way that nothing simulated stands in."""


class Refusals:
    """Notes what reached for the real world, and from which line."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def refuse(self, what: str, *_: Any, **__: Any) -> NoReturn:
        line = f"{what} at {_line_of_the_program()}"
        if line not in self.lines:
            self.lines.append(line)
        raise Unlisted(line)


def _line_of_the_program() -> str:
    """Return the line of Andy's, or of a test, that the running step came from.

    Of a thread that runs no line of these, it is the line that waits for the thread. Of a step without any,
    it is the innermost line.
    """
    frame = sys._getframe(1)
    while frame.f_code.co_filename == __file__ and frame.f_back is not None:
        frame = frame.f_back
    code, line = frame.f_code, frame.f_lineno
    # What is outside of the step, such as a test that runs a whole world, has not caused it.
    while frame is not None and frame.f_code is not SimulatedLoop._run_step.__code__:
        if _is_of_program(frame):
            code, line = frame.f_code, frame.f_lineno
            break
        frame = frame.f_back  # type: ignore[assignment]
    else:
        if (waiting := _frame_that_waits()) is not None:
            code, line = waiting.f_code, waiting.f_lineno
    path = Path(code.co_filename)
    name = path.relative_to(REPOSITORY) if path.is_relative_to(REPOSITORY) else path
    return f"{name}:{line} ({code.co_name})"


def _is_of_program(frame: FrameType) -> bool:
    """Return whether a frame runs a line of Andy's or of a test, not of a library or of the simulation."""
    path = Path(frame.f_code.co_filename)
    if not path.is_relative_to(REPOSITORY) or ".venv" in path.parts:
        return False
    return path.parent != SIMULATION or path.name.startswith("test_")


def _frame_that_waits() -> FrameType | None:
    """Return the innermost frame of the program in the task that waits for the running thread."""
    loop, found = asyncio._get_running_loop(), None
    if isinstance(loop, SimulatedLoop) and loop.thread_future is not None:
        for task in asyncio.all_tasks(loop):
            if task._fut_waiter is loop.thread_future:  # type: ignore[attr-defined]
                coroutine: Any = task.get_coro()
                while (frame := getattr(coroutine, "cr_frame", None)) is not None:
                    found = frame if _is_of_program(frame) else found
                    coroutine = coroutine.cr_await
    return found


# -- putting others in the place of real functions -----------------------------------------------------


class _Running:
    """What stands in for real functions now, in the thread of the world that runs."""

    thread = 0
    stand_ins: ClassVar[dict[Any, Callable[..., Any]]] = {}
    """By the real function, or by the name of one of SQLite's."""


class _Place(NamedTuple):
    """An attribute of a module or a class, or the defaults of a function, that holds a real function."""

    holder: Any
    name: str
    real: Any
    replacement: Any


_places: list[_Place] = []
_searched = {__name__}
"""Names of the modules that were searched for places; each is searched once a process."""


@contextmanager
def _standing_in(stand_ins: dict[Any, Callable[..., Any]]) -> Iterator[None]:
    """Put others in the place of real functions, wherever a module, a class or a default holds these."""
    before = _Running.stand_ins, _Running.thread
    places = () if _Running.stand_ins else _all_places()
    _Running.stand_ins, _Running.thread = {**_Running.stand_ins, **stand_ins}, threading.get_ident()
    try:
        for place in places:
            setattr(place.holder, place.name, place.replacement)
        yield
    finally:
        for place in places:
            setattr(place.holder, place.name, place.real)
        _Running.stand_ins, _Running.thread = before


def _all_places() -> tuple[_Place, ...]:
    """Return where the modules that are imported by now hold real functions."""
    for name, module in list(sys.modules.items()):
        if name not in _searched and isinstance(module, ModuleType):
            _searched.add(name)
            for holder in _holders(module):
                _places.extend(_places_in(holder))
    return tuple(_places)


def _holders(module: ModuleType) -> Iterator[Any]:
    """Yield a module, its classes, and the functions of both."""
    values = list(vars(module).values())
    classes = [one for one in values if issubclass(type(one), type) and one.__module__ == module.__name__]
    for holder in (module, *classes):
        yield holder
        yield from (one for one in map(_unwrapped, list(vars(holder).values())) if type(one) is FunctionType)


def _places_in(holder: Any) -> Iterator[_Place]:
    if type(holder) is FunctionType:
        positional, named = holder.__defaults__ or (), holder.__kwdefaults__ or {}
        if any(id(one) in REPLACED for one in positional):
            yield _Place(holder, "__defaults__", positional, tuple(map(_guarded, positional)))
        if any(id(one) in REPLACED for one in named.values()):
            yield _Place(
                holder, "__kwdefaults__", named, {name: _guarded(one) for name, one in named.items()}
            )
        return
    for name, value in list(vars(holder).items()):
        if id(function := _unwrapped(value)) in REPLACED:
            replacement = _guarded(function)
            # A class makes methods of Python's functions, and of those in C does not.
            is_method = isinstance(holder, ModuleType) or type(value) is FunctionType
            yield _Place(holder, name, value, replacement if is_method else staticmethod(replacement))


def _unwrapped(value: Any) -> Any:
    return value.__func__ if type(value) in (staticmethod, classmethod) else value


def _guarded(value: Any) -> Any:
    """Return what to put in the place of a real function; any other value as it is."""
    return _replacement(value) if id(value) in REPLACED else value


@cache
def _replacement(real: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls what stands in for a real one, or the real one.

    It calls the real one in other threads, and after the world for modules that were imported in it.
    """

    def call(*given: Any, **named: Any) -> Any:
        if threading.get_ident() == _Running.thread:
            return _Running.stand_ins.get(real, real)(*given, **named)
        return real(*given, **named)

    return update_wrapper(call, real, updated=())


def _connect(*given: Any, **named: Any) -> sqlite3.Connection:
    """Open a database whose functions of time and chance are those of the world."""
    connection: sqlite3.Connection = CONNECT(*given, **named)
    for name, function in _Running.stand_ins.items():
        if isinstance(name, str):
            connection.create_function(name, -1, function)
    return connection


# -- time and chance -----------------------------------------------------------------------------------


class _WorldTime:
    """In the place of a `time_machine.Traveller`: datetime and time ask it for the wall time."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self.time_ns = loop.wall_ns

    def _stop(self) -> None:
        pass


@contextmanager
def time_of(loop: SimulatedLoop) -> Iterator[None]:
    """Have the whole interpreter tell the time of a loop."""
    travel = time_machine.travel(0.0, tick=False)
    travel.start()
    time_machine.traveller_stack[-1] = _WorldTime(loop)  # type: ignore[call-overload]
    steady_ns = loop.steady_ns
    stand_ins: dict[Any, Callable[..., Any]] = dict.fromkeys(STEADY_CLOCKS, lambda: steady_ns() / 1e9)
    try:
        with _standing_in(stand_ins | dict.fromkeys(STEADY_CLOCKS_NS, steady_ns)):
            yield
    finally:
        travel.stop()


@contextmanager
def chance_of(seed: str) -> Iterator[None]:
    """Draw from a seed whatever the program draws: ids, tokens, jitter."""
    drawn = random.Random(f"{seed}:program")
    seeds = random.Random(f"{seed}:generators")

    def seed_generator(generator: random.Random, a: Any = None, version: int = 2) -> None:
        SEED(generator, seeds.getrandbits(64) if a is None else a, version)

    stand_ins: dict[Any, Callable[..., Any]] = {
        **dict.fromkeys(RANDOM_BYTES, lambda size, *_: drawn.randbytes(size)),
        SEED: seed_generator,
        SEED_GLOBAL: lambda a=None, version=2: seed_generator(random._inst, a, version),  # type: ignore[attr-defined]
        CONNECT: _connect,
        "random": lambda: seeds.getrandbits(63),
        "randomblob": seeds.randbytes,
    }
    before = random.getstate()
    random.seed(f"{seed}:global")
    try:
        # A generator of names that is left of an earlier world, or of none, would go on with its own seed.
        with _standing_in(stand_ins), patch.object(tempfile, "_name_sequence", None):
            yield
    finally:
        random.setstate(before)


# -- what is refused -----------------------------------------------------------------------------------


class _Audit:
    """Python's audit hook, which cannot be taken out again: it looks only while a world runs."""

    refusals: Refusals | None = None
    thread = 0
    is_hooked = False

    @classmethod
    def hear(cls, event: str, _: tuple[Any, ...]) -> None:
        if cls.refusals is not None and event in AUDITED and threading.get_ident() == cls.thread:
            refusals = cls.refusals
            cls.refusals = None  # what is looked up for the report is no further offence
            try:
                refusals.refuse(event)
            finally:
                cls.refusals = refusals


@contextmanager
def audited(refusals: Refusals) -> Iterator[None]:
    """Refuse, in this thread, what reaches for the real world."""
    if not _Audit.is_hooked:
        sys.addaudithook(_Audit.hear)
        _Audit.is_hooked = True
    _Audit.refusals, _Audit.thread = refusals, threading.get_ident()
    refuse = refusals.refuse

    def clock(read: Callable[[int], Any], number: int) -> Any:
        # time-machine answers this one with the time of the world.
        return read(number) if number == time.CLOCK_REALTIME else refuse("a clock of the machine")

    def wait(condition: threading.Condition, timeout: float | None = None) -> bool:
        return WAIT(condition, timeout) if timeout is not None and timeout <= 0 else refuse("a thread's wait")

    def join(thread: threading.Thread, timeout: float | None = None) -> None:
        return refuse("a wait for a thread") if thread.is_alive() else JOIN(thread, timeout)

    def date(name: str, *given: Any) -> Any:
        moment = given[SQL_DATES[name] :] or ("now",)
        if str(moment[0]).lower() == "now":
            refuse(f"SQL's {name}")
        return dates.execute(f"SELECT {name}({', '.join('?' * len(given))})", given).fetchone()[0]

    with closing(CONNECT(":memory:")) as dates:
        stand_ins: dict[Any, Callable[..., Any]] = {
            **{real: partial(refuse, f"{real.__module__}.{real.__name__}") for real in REFUSED},
            **{read: partial(clock, read) for read in MACHINE_CLOCKS},
            WAIT: wait,
            JOIN: join,
            CONNECT: _connect,
            **{name: partial(date, name) for name in SQL_DATES},
        }
        try:
            with _standing_in(stand_ins):
                yield
        finally:
            _Audit.refusals = None
