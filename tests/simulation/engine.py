"""The engine of a simulated world: containers that outlive the host, and the real agent runner in them."""

from __future__ import annotations

import asyncio
import contextvars
import random
import shutil
from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path
from typing import Any

from agent_runner import runner
from agent_runner.frame_writer import FrameWriter
from agent_runner.interfaces import Say, TurnOutcome
from agent_runner.wire import END, START
from agent_runner.wire.frames import FailureFrame, Ready
from agent_runner.wire.order import RunOrder, TurnOrder
from agent_runner.workspace import Workspace
from orchestrator.containers.process.layout import ProcessLayout
from orchestrator.domain.errors import EngineGone
from orchestrator.domain.protocols import ContainerSpec, Exit
from tests.simulation.loop import Process, SimulatedLoop
from tests.simulation.text_judges import WORD
from tests.simulation.wire import Wire

TERMINATED, KILLED = 143, 137
CONTAINER: contextvars.ContextVar[Container] = contextvars.ContextVar("container")
"""The container that the running step belongs to."""
Note = Callable[..., None]


class Engine:
    """All containers of a world. `is_away` answers nobody; the containers go on."""

    def __init__(self, loop: SimulatedLoop, root: Path, seed: str, note: Note) -> None:
        self.loop = loop
        self.root = root
        self.chance = random.Random(f"{seed}:engine")
        self.note = note
        self.containers: dict[str, Container] = {}
        self.is_away = False
        self.back_at_s = -1.0
        """When it came back last."""
        self.started = 0
        self.most_working = 0
        """The largest number of containers that have worked at once, looked at with each start of one."""
        self.given_words: set[tuple[str, str]] = set()
        """The words of people that agents were given, each with the folder of its group."""
        self.on_frame: Callable[[], None] = lambda: None
        """Called as a container has written a frame."""
        self.on_call: Callable[[], None] = lambda: None
        """Called after a container was started, stopped or removed by a call."""
        self.dies_at: list[int] = []
        """For containers to come: the number of written frames at which each dies; 0 is none."""
        self._away: asyncio.Event | None = None
        self.wire: Wire | None = None
        """The way to the proxy, in a world whose agents ask a model."""

    async def latency(self) -> None:
        await asyncio.sleep(self.chance.uniform(0.001, 0.05))
        self.check()

    def check(self) -> None:
        if self.is_away:
            raise EngineGone

    def go_away(self) -> None:
        """Answer nothing any more; streams break."""
        self.is_away = True
        for container in self.containers.values():
            container.wake()

    def come_back(self) -> None:
        if self.is_away:
            self.back_at_s = self.loop.time()
        self.is_away = False

    def has_newer_image(self) -> None:
        """Let all containers that there are be of an older image from now on."""
        for container in self.containers.values():
            container.is_outdated = True

    def take_fault(self, kind: str, amount: int) -> bool:
        """Let a misfortune happen that only an engine of this kind has; return whether it was one."""
        return False

    def end_faults(self) -> None:
        """End all misfortune of the engine."""
        self.come_back()

    def lose_power(self, *, are_gone: bool) -> None:
        """End all containers as the host's machine does; some engines forget them with it."""
        for container in list(self.containers.values()):
            container.end(KILLED)
            if are_gone:
                container.remove()

    def noting(self, make_agent: Callable[..., Any]) -> Callable[..., Any]:
        """Return what makes the same agents, but notes the words of people that each is given."""

        def make(*given: Any, **named: Any) -> Any:
            agent, folder = make_agent(*given, **named), CONTAINER.get().folder
            answer = agent.answer

            async def note_and_answer(turn: TurnOrder, say: Say) -> TurnOutcome:
                self.given_words.update((folder, word) for word in WORD.findall(turn.model_dump_json()))
                return await answer(turn, say)  # type: ignore[no-any-return]

            agent.answer = note_and_answer
            return agent

        return make

    def note_host_death(self, process: Process) -> None:
        """Note that a host is gone."""

    def start(self, spec: ContainerSpec, order: str) -> Container:
        self.started += 1
        layout = ProcessLayout(self.root / f"c{self.started}")
        layout.make(spec.mounts)
        container = Container(self, spec, layout, order)
        self.containers[spec.run_id] = container
        self.most_working = max(self.most_working, len(self.working))
        self.on_call()
        return container

    @property
    def working(self) -> list[Container]:
        return [one for one in self.containers.values() if one.exit is None]


def is_out_before_death(frame: int) -> bool:
    """Return whether a container that dies at this frame has written it before: half of the deaths are so."""
    return frame % 2 == 1


def death_at_frame(process: Process, frame: int, *, is_out: bool) -> str:
    """Return the line that tells of the death of a container."""
    return f"{process.name} dies {'after' if is_out else 'before'} its frame {frame} is out"


FLOOD_LINES, FLOOD_FRAMES = 3_000, 40
"""Lines and unreadable frames that a container writes at once as it floods its output."""
UNREADABLE = f"{START}\n{{not to be read\n{END}\n".encode()


class MemoryPipe(FrameWriter):
    """The runner's way out without a descriptor: frames go to the container's output."""

    def __init__(self, write: Callable[[bytes], None]) -> None:  # it starts no thread
        self._write_frame = write
        self._lock = _NoLock()  # type: ignore[assignment]
        self._last_number = 0
        self._queued = self  # type: ignore[assignment]
        self.is_broken = False

    def finish(self, seconds: float | None = None) -> None:
        pass

    def put(self, frame: Any, **fields: Any) -> None:  # type: ignore[override]
        if isinstance(frame, bytes):  # the queue of the writer's thread is this object, too
            self._write_frame(frame)
        else:
            super().put(frame, **fields)


class _NoLock:
    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


class Container:
    """One container: a process of the world. Its output is kept until it is removed."""

    def __init__(self, engine: Engine, spec: ContainerSpec, layout: ProcessLayout, order: str) -> None:
        self.engine = engine
        self.run_id, self.folder = spec.run_id, spec.folder
        self.environment = spec.environment
        self.ref = f"c{engine.started}"
        self.process = Process(f"container {self.ref} of {self.folder}")
        self.output: list[bytes] = []
        self.frames = 0
        self.exit: Exit | None = None
        self.is_outdated = False
        self.terminated = asyncio.Event()
        self._changed = asyncio.Event()
        self._layout = layout
        self.dies_at = engine.dies_at.pop(0) if engine.dies_at else 0
        context = contextvars.Context()
        context.run(CONTAINER.set, self)
        from tests.simulation.loop import PROCESS

        context.run(PROCESS.set, self.process)
        self.task = engine.loop.create_task(self._live(order), name=f"container:{self.ref}", context=context)

    async def _live(self, order: str) -> None:
        await asyncio.sleep(self.engine.chance.uniform(0.1, 2.0) * self.process.slowness)
        pipe = MemoryPipe(self._write)
        try:
            parsed = RunOrder.parse(order.encode())
        except Exception as error:  # noqa: BLE001  # as the runner does
            pipe.put(FailureFrame, code="order", error=f"The order cannot be read: {error}")
            self.end(2)
            return
        pipe.put(Ready)
        code = await runner.live(parsed, Workspace(self._layout.workspace), pipe)
        self.end(code)

    def _write(self, data: bytes) -> None:
        self.frames += 1
        if self.dies_at and self.frames >= self.dies_at:
            is_out = is_out_before_death(self.dies_at)
            if is_out:
                self.output.append(data)
            if self.exit is None:
                self.engine.note("fault", death_at_frame(self.process, self.frames, is_out=is_out))
            elif is_out:
                what = f"wrote frame {self.frames} in the step of its death, so it is out, too"
                self.engine.note("container", f"{self.process.name} {what}")
            self.end(KILLED)
            return
        self.output.append(data)
        self.engine.on_frame()
        self.wake()

    def flood(self) -> None:
        """Write what no frame is, and frames that cannot be read, as a broken program does."""
        noise = b"".join(b"%d: something that nobody reads\n" % number for number in range(FLOOD_LINES))
        self.output.append(noise + b"".join(UNREADABLE for _ in range(FLOOD_FRAMES)))
        self.wake()

    def wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    @property
    def changed(self) -> asyncio.Event:
        return self._changed

    def end(self, code: int) -> None:
        if self.exit is None:
            self.exit = Exit(code=code)
            self.process.is_dead = True
            if self.engine.wire is not None:
                self.engine.wire.note_death(self.process)
            self.engine.note("container", f"{self.process.name} has ended with {code}")
            self.wake()

    def remove(self) -> None:
        self.end(KILLED)
        self.engine.containers.pop(self.run_id, None)
        shutil.rmtree(self._layout.run, ignore_errors=True)


class Handle:
    """A `RunningContainer`: a container as one life of the host sees it."""

    def __init__(self, container: Container) -> None:
        self.is_outdated = container.is_outdated
        self._container = container
        self._engine = container.engine
        self.run_id, self.folder, self.ref = container.run_id, container.folder, container.ref

    async def output(self) -> AsyncGenerator[bytes, None]:
        place = 0
        while True:
            self._engine.check()
            changed = self._container.changed
            if place < len(self._container.output):
                data = b"".join(self._container.output[place:])
                place = len(self._container.output)
                cut = self._engine.chance.randrange(len(data) + 1)
                for piece in (data[:cut], data[cut:]):
                    if piece:
                        yield piece
                        await self._engine.latency()
                continue
            if self._container.exit is not None:
                return
            await changed.wait()

    async def wait(self) -> Exit:
        while self._container.exit is None:
            self._engine.check()
            await self._container.changed.wait()
        await self._engine.latency()
        return self._container.exit

    async def stop(self, *, grace_seconds: float = 2.0) -> None:
        await self._engine.latency()
        self._container.terminated.set()
        try:
            async with asyncio.timeout(grace_seconds):
                while self._container.exit is None:
                    await self._container.changed.wait()
        except TimeoutError:
            self._container.end(KILLED)
        self._engine.on_call()
        self._engine.check()

    async def remove(self) -> None:
        await self._engine.latency()
        self._container.remove()
        self._engine.on_call()


class SimulatedRuntime:
    """The `ContainerRuntime` of one life of the host."""

    name, is_isolated = "simulated", True

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def start(self, spec: ContainerSpec, order: str) -> Handle:
        await self._engine.latency()
        # Once the engine has it, a host that ends before it knows leaves it for the next to adopt.
        container = self._engine.start(spec, order)
        try:
            await self._engine.latency()
        except BaseException:
            container.remove()
            raise
        return Handle(container)

    async def adopt(self) -> Sequence[Handle]:
        await self._engine.latency()
        return [Handle(one) for one in self._engine.containers.values()]

    async def close(self) -> None:
        pass


def on_sigterm() -> asyncio.Event:
    """In the place of the runner's own: SIGTERM is an event of the container."""
    return CONTAINER.get().terminated
