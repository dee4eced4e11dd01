"""Answer clocks and chance from a world, and refuse what would get past it to the real ones, or to threads.

What is refused raises `Unlisted`, which names the line, and is noted, so that the world fails even where the
program catches it. `docs/simulation.md` lists what is answered, and what is allowed for which reason.
"""

from __future__ import annotations

import _queue
import _random
import _signal  # type: ignore[import-not-found]
import _thread
import asyncio
import ctypes
import gc
import os
import random
import resource
import select
import socket
import sqlite3
import ssl
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from types import CodeType, FrameType, FunctionType, ModuleType
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
UNSTEADY_FILES = ("/dev/random", "/dev/urandom", "/proc/loadavg", "/proc/stat", "/proc/uptime")
"""Files of chance and of the machine's time, which no step of a world may open."""
REFUSED = (
    time.sleep, os.times, os.getloadavg, resource.getrusage, select.select, select.poll,
    _signal.alarm, _signal.setitimer, _signal.pause,
    _signal.sigwait, _signal.sigwaitinfo, _signal.sigtimedwait,
    _thread.start_new_thread, _thread.start_new, socket.socketpair, uuid.uuid1, uuid.getnode,
)  # fmt: skip
"""Functions that no step of a world may call."""
STEADY_CLOCKS = (time.monotonic, time.perf_counter, time.process_time, time.thread_time)
STEADY_CLOCKS_NS = (time.monotonic_ns, time.perf_counter_ns, time.process_time_ns, time.thread_time_ns)
"""Clocks that never jump. Those of the processor are among them: no step takes any time."""
MACHINE_CLOCKS = (time.clock_gettime, time.clock_gettime_ns)
RANDOM_BYTES = (os.urandom, os.getrandom, ssl.RAND_bytes)
OTHERS = (threading.Condition.wait, threading.Thread.join, random.Random.seed, sqlite3.connect)
"""Functions that something else stands in for."""
METHODS = ((select.epoll, "poll"), (_queue.SimpleQueue, "get"), (_thread.LockType, "acquire"))
"""Methods of C that may wait for as long as their timeout says."""
SQL_DATES = {
    "date": 0, "time": 0, "datetime": 0, "julianday": 0, "unixepoch": 0, "strftime": 1,
    "current_date": 0, "current_time": 0, "current_timestamp": 0,
}  # fmt: skip
"""SQLite's functions of time, and the place of the argument that is 'now' where it is left out."""
SQL_FUNCTIONS = (*SQL_DATES, "random", "randomblob")
LEAVES = (str, int, float, bytes, bool, type(None), CodeType)
CONTAINERS = ("builtins", "collections", "dataclasses", "functools")
"""Modules whose objects are searched for what they hold."""
METH_VARARGS, METH_KEYWORDS = 1, 2
"""CPython's flags of a function that takes any arguments."""


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
    return _is_file_of_program(frame.f_code.co_filename)


def _is_file_of_program(name: str) -> bool:
    path = Path(name)
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
    """The functions that stand in for real ones now, in the thread of the world that runs."""

    thread = 0
    stand_ins: ClassVar[dict[str, Callable[..., Any]]] = {}
    """By the name of a real function, of an event of Python's audit, or of one of SQLite's functions."""
    is_connecting = False
    """Whether a database is being opened whose functions will be those of the world."""
    is_hooked = False


class _Switch(NamedTuple):
    """Has a real function call what stands in for it, or do again what it did.

    The function itself is changed, not the places that hold it: no search finds all of these.
    """

    real: Callable[..., Any]
    """Does what the function did before the world."""
    turn: Callable[[bool], None]


@contextmanager
def _standing_in(stand_ins: dict[str, Callable[..., Any]]) -> Iterator[None]:
    """Put others in the place of real functions, whoever holds these, and have Python's audit call them."""
    if not _Running.is_hooked:
        sys.addaudithook(_hear)  # which cannot be taken out again
        _Running.is_hooked = True
    before = _Running.stand_ins, _Running.thread
    switches = () if _Running.stand_ins else SWITCHES.values()
    _Running.stand_ins, _Running.thread = {**_Running.stand_ins, **stand_ins}, threading.get_ident()
    try:
        for switch in switches:
            switch.turn(True)
        yield
    finally:
        for switch in switches:
            switch.turn(False)
        _Running.stand_ins, _Running.thread = before


def _hear(event: str, given: tuple[Any, ...]) -> None:
    stand_in = _Running.stand_ins.get(event)
    if stand_in is not None and threading.get_ident() == _Running.thread:
        stand_in(*given)


def _name(function: Any) -> str:
    # The longer name of a function of C's has its `self`, which a switch changes.
    return f"{function.__module__}.{function.__name__}"


def _call_of(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls what stands in for a real one, and in other threads the real one."""

    def call(*given: Any, **named: Any) -> Any:
        if threading.get_ident() == _Running.thread:
            return _Running.stand_ins.get(name, real)(*given, **named)
        return real(*given, **named)

    return call


def _switch_of_python(function: FunctionType) -> _Switch:
    """Return a switch that changes the code of a function of Python's."""
    own, own_defaults = function.__code__, function.__kwdefaults__
    real = FunctionType(own, function.__globals__, None, function.__defaults__, function.__closure__)
    real.__kwdefaults__ = own_defaults

    def call(*given: Any, _call: Any, **named: Any) -> Any:
        return _call(*given, **named)

    # A function takes no code with another number of free variables than it has cells for.
    code = call.__code__.replace(co_freevars=own.co_freevars)
    defaults = {**(own_defaults or {}), "_call": _call_of(_name(function), real)}

    def turn(is_on: bool) -> None:
        # Another thread may call the function in between: its own code does not mind the other defaults.
        function.__kwdefaults__ = defaults
        function.__code__ = code if is_on else own
        if not is_on:
            function.__kwdefaults__ = own_defaults

    return _Switch(real, turn)


class _Definition(ctypes.Structure):
    """CPython's `PyMethodDef`."""

    _fields_: ClassVar = [
        ("name", ctypes.c_void_p), ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int), ("doc", ctypes.c_void_p),
    ]  # fmt: skip


class _Builtin(ctypes.Structure):
    """CPython's `PyCFunctionObject`, after its head, which is that of any object."""

    _fields_: ClassVar = [
        ("definition", ctypes.c_void_p), ("self", ctypes.c_void_p), ("module", ctypes.c_void_p),
        ("weak_references", ctypes.c_void_p), ("vectorcall", ctypes.c_void_p),
    ]  # fmt: skip


def _switch_of_c(function: Any) -> _Switch:
    """Return a switch that makes a function of C's be `PyObject_Call` of another one."""
    fields = _Builtin.from_address(id(function) + object.__basicsize__)
    assert fields.self == id(function.__self__), "this Python has another PyCFunctionObject"
    own = fields.definition, fields.self, fields.vectorcall
    new = ctypes.pythonapi.PyCFunction_NewEx
    new.argtypes, new.restype = (ctypes.c_void_p, ctypes.py_object, ctypes.py_object), ctypes.py_object
    real = new(own[0], function.__self__, function.__module__)
    call = _call_of(_name(function), real)
    for held in (function, call):  # by addresses, which Python does not count
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(held))
    was = _Definition.from_address(own[0])
    to_call = ctypes.cast(ctypes.pythonapi.PyObject_Call, ctypes.c_void_p)
    definition = _Definition(was.name, to_call, METH_VARARGS | METH_KEYWORDS, was.doc)

    def turn(is_on: bool) -> None:
        changed = ctypes.addressof(definition), id(call), None
        # No other thread runs between these three: Python changes threads at calls and jumps alone.
        fields.definition, fields.self, fields.vectorcall = changed if is_on else own

    return _Switch(real, turn)


def _switch_of_method(owner: type, name: str) -> _Switch:
    """Return a switch that changes a method in the dict of a class of C's, which Python shows for reading."""
    (methods,) = gc.get_referents(vars(owner))
    real = methods[name]
    call = _call_of(f"{owner.__name__}.{name}", real)

    def turn(is_on: bool) -> None:
        methods[name] = call if is_on else real
        ctypes.pythonapi.PyType_Modified(ctypes.py_object(owner))

    return _Switch(real, turn)


SWITCHES = {
    **{
        _name(one): _switch_of_python(one) if isinstance(one, FunctionType) else _switch_of_c(one)
        for one in (
            *REFUSED, *STEADY_CLOCKS, *STEADY_CLOCKS_NS, *MACHINE_CLOCKS, *RANDOM_BYTES, *OTHERS,
        )
    },
    **{f"{owner.__name__}.{name}": _switch_of_method(owner, name) for owner, name in METHODS},
}  # fmt: skip
"""The switch of each real function, by its name."""
WAIT, JOIN, SEED, CONNECT = (SWITCHES[_name(one)].real for one in OTHERS)
GET, ACQUIRE = SWITCHES["SimpleQueue.get"].real, SWITCHES["lock.acquire"].real


def _by_name(functions: Iterable[Any], stand_in: Callable[..., Any]) -> dict[str, Callable[..., Any]]:
    return dict.fromkeys(map(_name, functions), stand_in)


def _connect(*given: Any, **named: Any) -> sqlite3.Connection:
    """Open a database whose functions of time and chance are those of the world."""
    before, _Running.is_connecting = _Running.is_connecting, True
    try:
        connection: sqlite3.Connection = CONNECT(*given, **named)
    finally:
        _Running.is_connecting = before
    for name in SQL_FUNCTIONS:
        if name in _Running.stand_ins:
            connection.create_function(name, -1, _Running.stand_ins[name])
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
    stand_ins = _by_name(STEADY_CLOCKS, lambda: steady_ns() / 1e9)
    try:
        with _standing_in(stand_ins | _by_name(STEADY_CLOCKS_NS, steady_ns)):
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

    bare = _random.Random
    stand_ins: dict[str, Callable[..., Any]] = {
        **_by_name(RANDOM_BYTES, lambda size, *_: drawn.randbytes(size)),
        **_by_name((random.Random.seed,), seed_generator),
        **_by_name((sqlite3.connect,), _connect),
        "random": lambda: seeds.getrandbits(63),
        "randomblob": seeds.randbytes,
    }
    before = [(generator, generator.getstate()) for generator in (random._inst, *_generators())]
    for generator, _ in before[1:]:
        generator.seed(random.Random(f"{seed}:before").getrandbits(64))
    random.seed(f"{seed}:global")
    try:
        with (
            _standing_in(stand_ins),
            patch.object(_random, "Random", lambda a=None: bare(seeds.getrandbits(64) if a is None else a)),
            # A generator of names that is left of before the world would go on with its own seed.
            patch.object(tempfile, "_name_sequence", None),
        ):
            yield
    finally:
        for generator, state in before:
            generator.setstate(state)


_searched: set[str] = set()
_generators_found: dict[int, _random.Random] = {}


def _generators() -> Iterable[_random.Random]:
    """Return the generators that modules of the program hold, directly or in what they hold.

    Each module is searched once a process.
    """
    modules = [one for one in list(sys.modules.values()) if isinstance(one, ModuleType)]
    names = {one.__name__ for one in modules if _is_file_of_program(getattr(one, "__file__", None) or "")}
    seen = {id(random._inst), *map(id, modules), *(id(vars(one)) for one in modules)}
    found = [vars(one) for one in modules if one.__name__ in names - _searched]
    _searched.update(names)
    while found:
        held, found = gc.get_referents(*found), []
        for one in held:
            if id(one) in seen or type(one) in LEAVES:
                continue
            seen.add(id(one))
            if isinstance(one, _random.Random) and not isinstance(one, random.SystemRandom):
                _generators_found[id(one)] = one
            elif _is_searched(one, names):
                found.append(one)
    return _generators_found.values()


def _is_searched(one: Any, names: set[str]) -> bool:
    """Return whether an object may hold what is of the program, not of a library."""
    if isinstance(one, type | FunctionType):
        return one.__module__ in names
    return type(one).__module__ in CONTAINERS or type(one).__module__ in names


# -- what is refused -----------------------------------------------------------------------------------


Refuse = Callable[[str], NoReturn]


def _get(refuse: Refuse, queue: Any, block: bool = True, timeout: float | None = None) -> Any:
    may_wait = block and timeout != 0 and queue.empty()
    return refuse("a wait for a queue") if may_wait else GET(queue, block, timeout)


def _acquire(refuse: Refuse, lock: Any, blocking: bool = True, timeout: float = -1) -> Any:
    may_wait = blocking and timeout != 0 and lock.locked()
    return refuse("a wait for a lock") if may_wait else ACQUIRE(lock, blocking, timeout)


def _open(refuse: Refuse, path: Any, *_: Any) -> None:
    if isinstance(path, str | bytes) and os.fsdecode(path) in UNSTEADY_FILES:
        refuse(os.fsdecode(path))


def _begin_connection(refuse: Refuse, *_: Any) -> None:
    if not _Running.is_connecting:
        refuse("a connection that sqlite3.connect did not make")


@contextmanager
def audited(refusals: Refusals) -> Iterator[None]:
    """Refuse, in this thread, what reaches for the real world."""
    refuse = refusals.refuse

    def clock(read: Callable[[int], Any], number: int) -> Any:
        # time-machine answers this one with the time of the world.
        return read(number) if number == time.CLOCK_REALTIME else refuse("a clock of the machine")

    def wait(condition: threading.Condition, timeout: float | None = None) -> Any:
        return WAIT(condition, timeout) if timeout is not None and timeout <= 0 else refuse("a thread's wait")

    def join(thread: threading.Thread, timeout: float | None = None) -> Any:
        return refuse("a wait for a thread") if thread.is_alive() else JOIN(thread, timeout)

    def date(name: str, *given: Any) -> Any:
        moment = given[SQL_DATES[name] :] or ("now",)
        if str(moment[0]).lower() == "now":
            refuse(f"SQL's {name}")
        return dates.execute(f"SELECT {name}({', '.join('?' * len(given))})", given).fetchone()[0]

    with closing(CONNECT(":memory:")) as dates:
        stand_ins: dict[str, Callable[..., Any]] = {
            **{event: partial(refuse, event) for event in AUDITED},
            **{name: partial(refuse, name) for name in (*map(_name, REFUSED), "epoll.poll")},
            **{_name(read): partial(clock, SWITCHES[_name(read)].real) for read in MACHINE_CLOCKS},
            **_by_name((threading.Condition.wait,), wait),
            **_by_name((threading.Thread.join,), join),
            **_by_name((sqlite3.connect,), _connect),
            "SimpleQueue.get": partial(_get, refuse),
            "lock.acquire": partial(_acquire, refuse),
            "open": partial(_open, refuse),
            "sqlite3.connect": partial(_begin_connection, refuse),
            **{name: partial(date, name) for name in SQL_DATES},
        }
        with _standing_in(stand_ins):
            yield
