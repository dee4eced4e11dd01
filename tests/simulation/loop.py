"""An event loop whose clock, order and threads are drawn from a seed.

Nothing waits: when no step is ready, the clock is set to the next timer. A function for a thread is one step
that runs some drawn time later. Each step belongs to a process: the host, a container, or the world outside;
the steps of a dead process are never run, those of a frozen one wait.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import random
import sys
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn
from weakref import WeakKeyDictionary

START_MS = 1_795_392_000_000
"""When each world begins, in epoch milliseconds: Monday, 2026-11-23, 00:00 UTC."""
MANY_CANCELLED = 200
"""Cancelled timers that lie in the heap before they are taken out of it."""
MAX_THREAD_SECONDS = 0.003
"""Seconds that the work of a thread takes at the most, but for the few that are late."""
LATE_THREADS = 0.01
"""The share of the threads that are late."""
MAX_LATE_SECONDS = 0.4


class WorldStuck(Exception):
    """Nothing can ever happen any more, or something happens again and again without an end."""


class Process:
    """What ends as a whole: one life of the host, one container, or the world outside of both."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_dead = False
        self.is_frozen = False
        self.is_hung = False
        """Whether it stays frozen for good."""
        self.slowness = 1
        """How much longer its threads take than those of others."""
        self.tasks: list[asyncio.Task[Any]] = []
        """Its tasks. A dead one keeps them, or their `finally` would run as they are collected."""
        self._prune_at = 500

    def keep(self, task: asyncio.Task[Any]) -> None:
        self.tasks.append(task)
        if len(self.tasks) > self._prune_at and not self.is_dead:
            self.tasks = [one for one in self.tasks if not one.done()]
            self._prune_at = 500 + 2 * len(self.tasks)


OUTSIDE = Process("outside")
PROCESS: contextvars.ContextVar[Process] = contextvars.ContextVar("process", default=OUTSIDE)
"""The process that the running step belongs to."""


class SimulatedTask(asyncio.Task[Any]):
    """A task whose hash is a number in order: sets of tasks are gone through alike in each run."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], number: int, **named: Any) -> None:
        self._number = number
        super().__init__(coroutine, **named)

    def __hash__(self) -> int:
        return self._number


class SimulatedFuture(asyncio.Future[Any]):
    """A future with such a hash."""

    def __init__(self, number: int, loop: asyncio.AbstractEventLoop) -> None:
        self._number = number
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self._number


class SimulatedLoop(asyncio.BaseEventLoop):
    """Runs the steps of all processes of one world.

    `refuse` is told of whatever would reach the real world and raises.
    """

    def __init__(self, seed: str, refuse: Callable[[str], NoReturn]) -> None:
        super().__init__()
        self._chance = random.Random(f"{seed}:loop")
        self._is_shuffled = self._chance.random() < 0.5
        """Whether tasks that are ready at once run in a drawn order; else in that of asyncio."""
        self.refuse = refuse
        self.network: Any = None
        """The network of a world with a swarm; None where nothing is connected by sockets."""
        self._now = 0.0
        self._count = 0
        self.step = 0
        self.most_steps = sys.maxsize
        """The steps after which the loop gives up."""
        self.ahead_ms = 0
        """How far the wall clock has jumped."""
        self.errors: list[dict[str, Any]] = []
        """What nobody caught in a callback or a task."""
        self.thread_future: asyncio.Future[Any] | None = None
        """The future of the thread that runs now, or that ran last."""
        self.stop_at = 0
        """The step before which `on_stop` is called; 0 is none."""
        self.on_stop: Callable[[], None] = lambda: None
        self._frozen: list[asyncio.Handle] = []
        self._graves: list[asyncio.Handle] = []
        self._free_at: WeakKeyDictionary[object, float] = WeakKeyDictionary()
        """When each thread and each executor of one thread has done what it was given (virtual seconds)."""
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        """A heap of timers. The tuples are compared without a line of Python, unlike the handles."""
        self._cancelled = 0
        self.set_task_factory(self._new_task)
        self.set_exception_handler(lambda _, context: self._note_error(context))

    # -- time ------------------------------------------------------------------------------------------

    def time(self) -> float:
        return self._now

    def steady_ns(self) -> int:
        """Return nanoseconds that never jump."""
        return round(self._now * 1_000_000) * 1_000

    def wall_ns(self) -> int:
        """Return the wall time in epoch nanoseconds, with its jumps."""
        return (START_MS + self.ahead_ms) * 1_000_000 + self.steady_ns()

    # -- steps -----------------------------------------------------------------------------------------

    def leap(self, to_s: float) -> None:
        """Let time pass at once, as far as to `to_s`: each timer until then runs once, late."""
        self._now = max(self._now, to_s)

    def call_at(
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        self._count += 1
        heapq.heappush(self._timers, (when, self._count, timer))
        timer._scheduled = True
        return timer

    def call_soon(
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def _run_once(self) -> None:
        ready: deque[asyncio.Handle] = self._ready
        timers = self._timers
        self._drop_cancelled()
        if not ready:
            if not timers:
                raise WorldStuck("Nothing can ever happen any more: no step is ready and no timer is set.")
            if self.step > self.most_steps:
                raise WorldStuck(f"It does not come to rest: it has taken {self.step:,} steps.")
            self._now = max(self._now, timers[0][0])
        now = self._now
        while timers and timers[0][0] <= now:
            timer = heapq.heappop(timers)[2]
            timer._scheduled = False
            ready.append(timer)
        batch = list(ready)
        ready.clear()
        if self._is_shuffled and len(batch) > 1:
            self._shuffle(batch)
        for place, handle in enumerate(batch):
            self._run_step(handle)
            if self._stopping:
                ready.extendleft(reversed(batch[place + 1 :]))
                return

    def _run_step(self, handle: asyncio.Handle) -> None:
        if handle._cancelled:
            return
        process = handle._context.get(PROCESS, OUTSIDE)
        if process.is_dead:
            self._graves.append(handle)  # let go of, its coroutine would run its `finally`
        elif process.is_frozen:
            self._frozen.append(handle)
        else:
            self.step += 1
            if self.step == self.stop_at:
                self.on_stop()
                if process.is_dead:
                    self._graves.append(handle)
                    return
            handle._run()

    def _shuffle(self, batch: list[asyncio.Handle]) -> None:
        """Put the steps of tasks into a drawn order; other callbacks stay where they are, as asyncio says."""
        places = [
            place
            for place, handle in enumerate(batch)
            if isinstance(getattr(handle._callback, "__self__", None), asyncio.Task)
        ]
        drawn = [batch[place] for place in places]
        self._chance.shuffle(drawn)
        for place, handle in zip(places, drawn, strict=True):
            batch[place] = handle

    def thaw(self) -> None:
        """Run again what was frozen."""
        self._ready.extend(self._frozen)
        self._frozen.clear()

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        if handle._scheduled:
            self._cancelled += 1

    def _drop_cancelled(self) -> None:
        timers = self._timers
        if self._cancelled > MANY_CANCELLED and self._cancelled * 2 > len(timers):
            for _, _, timer in timers:
                timer._scheduled = not timer._cancelled
            timers[:] = [one for one in timers if not one[2]._cancelled]
            heapq.heapify(timers)
            self._cancelled = 0
        while timers and timers[0][2]._cancelled:
            heapq.heappop(timers)[2]._scheduled = False
            self._cancelled -= 1

    def _write_to_self(self) -> None:
        pass  # there is no other thread that it would have to wake

    def _process_events(self, event_list: object) -> None:
        pass

    # -- tasks and threads -----------------------------------------------------------------------------

    def _new_task(
        self, loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, Any], **named: Any
    ) -> asyncio.Task[Any]:
        self._count += 1
        task = SimulatedTask(coroutine, self._count, loop=loop, **named)
        context = named.get("context")
        (PROCESS.get() if context is None else context.get(PROCESS, OUTSIDE)).keep(task)
        return task

    def create_future(self) -> asyncio.Future[Any]:
        self._count += 1
        return SimulatedFuture(self._count, self)

    def start(self, process: Process, main: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """Run a coroutine as the first task of a process."""
        context = contextvars.Context()
        context.run(PROCESS.set, process)
        return self.create_task(main, name=name, context=context)

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        """Run a function as one step, a drawn time later; those for one thread in their order."""
        if executor is not None and not isinstance(executor, ThreadPoolExecutor):
            self.refuse("a pool of processes")
        future = self.create_future()
        done = self._now + self._thread_seconds()
        if isinstance(executor, ThreadPoolExecutor) and executor._max_workers == 1:
            done = self._free_at[executor] = max(done, self._free_at.get(executor, 0.0))
        self.call_at(done, self._run_thread, future, func, args)
        return future

    def soon_in_thread(self, thread: object, call: Callable[[], None]) -> None:
        """Run a call of a thread as a step of its own, after the earlier ones of this thread."""
        done = max(self._now + self._thread_seconds(), self._free_at.get(thread, 0.0))
        self._free_at[thread] = done
        self.call_at(done, call)

    def _thread_seconds(self) -> float:
        most = MAX_LATE_SECONDS if self._chance.random() < LATE_THREADS else MAX_THREAD_SECONDS
        return self._chance.uniform(0.00002, most) * PROCESS.get().slowness

    def _run_thread(self, future: asyncio.Future[Any], func: Callable[..., Any], args: Any) -> None:
        self.thread_future = future
        try:
            result = func(*args)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:  # noqa: BLE001  # whatever leaves a thread reaches who waits for it
            settle(future, None, error)
        else:
            if isinstance(result, asyncio.Future):  # of what the thread would wait for
                result.add_done_callback(lambda done: settle(future, done.result(), None))
            else:
                settle(future, result, None)

    def _note_error(self, context: dict[str, Any]) -> None:
        if not PROCESS.get().is_dead:
            self.errors.append(context)

    # -- what is not simulated -------------------------------------------------------------------------

    async def create_server(
        self, factory: Any, host: Any = None, port: Any = None, sock: Any = None, **_: Any
    ) -> Any:
        if self.network is None:
            self.refuse("a server's socket")
        return self.network.listen(lambda link: link.accept(factory()), port)

    async def sock_accept(self, sock: Any) -> Any:
        return await sock.accept(), None

    async def create_connection(self, factory: Any, host: Any = None, port: Any = None, **_: Any) -> Any:
        if self.network is None:
            self.refuse("a connection's socket")
        return await self.network.connect(factory, port)


def _refusing(what: str) -> Callable[..., NoReturn]:
    def method(self: SimulatedLoop, *_: Any, **__: Any) -> NoReturn:
        self.refuse(what)

    return method


for _name in (
    "getaddrinfo", "getnameinfo", "subprocess_exec", "subprocess_shell",
    "_make_socket_transport", "_make_ssl_transport", "_make_datagram_transport",
    "_make_read_pipe_transport", "_make_write_pipe_transport", "_make_subprocess_transport",
    # What a loop without sockets and signals does not have: its error might be caught.
    *(
        name
        for name, method in vars(asyncio.AbstractEventLoop).items()
        if callable(method) and getattr(SimulatedLoop, name) is method
    ),
):  # fmt: skip
    setattr(SimulatedLoop, _name, _refusing(f"the loop's {_name}"))


def settle(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    """Give a future what a thread found; whoever waits for it goes on in a step of its own."""
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
