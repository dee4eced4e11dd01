"""What a swarm of twenty nodes costs its host: a thousand groups, a hundred live agents, no engine.

The host's side is real: its door, TLS, the files of each group. Engine, nodes and agents are simulated, the
carriers in a process of their own, so that the processor time told is the host's alone.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import psutil

from benchmarks.figures import Figure, Series, median_of
from benchmarks.places import PROJECT, Effort, progress
from orchestrator.containers.swarm.container import SwarmContainer
from orchestrator.containers.swarm.nodes import Node
from orchestrator.containers.swarm.runtime import SwarmRuntime
from orchestrator.containers.swarm.services import RunService, TaskState
from orchestrator.domain.protocols import ContainerSpec, Mount
from orchestrator.domain.values import Folder, RunId

GROUPS = 1_000
NODES, SLOTS_A_NODE = 20, 5
IDLE_SECONDS = 30.0
FILES = 5
MIB_A_RUN = 1.0
IDLE_PERCENT = 10.0
CARRIERS = PROJECT / "benchmarks" / "simulated_carriers.py"
TREES = {
    "/workspace/ipc/input": "input",
    "/workspace/ipc/replies": "replies",
    "/workspace/ipc/messages": "messages",
    "/workspace/ipc/tasks": "tasks",
    "/workspace/env": "env",
    "/workspace/group": "group",
}
WRITABLE = ("/workspace/ipc/messages", "/workspace/ipc/tasks", "/workspace/group")


class SimulatedEngine:
    """A manager whose nodes start everything at once."""

    def __init__(self, carriers: asyncio.subprocess.Process) -> None:
        self._carriers = carriers
        self._nodes = [
            Node(id=name, name=name, address="", state="ready", labels=(), is_open=True)
            for name in (f"node{number}" for number in range(NODES))
        ]

    async def nodes(self) -> list[Node]:
        return self._nodes

    async def create(
        self,
        spec: ContainerSpec,
        *,
        secret: dict[str, object],
        token_hash: str,
        node_id: str,
        keeps_files: bool,
    ) -> str:
        del token_hash, node_id, keeps_files
        assert self._carriers.stdin is not None
        self._carriers.stdin.write(json.dumps(secret).encode() + b"\n")
        return str(spec.run_id)

    async def remove(self, ref: str) -> None:
        """Do nothing: a carrier ends when it is told."""

    async def run_services(self) -> list[RunService]:
        return []

    async def task(self, ref: str) -> TaskState:
        del ref
        return TaskState(state="running")

    async def keep_gate(self) -> None:
        pass

    async def close(self) -> None:
        """Do nothing: there is no connection."""


async def measure(effort: Effort) -> list[Figure]:
    """First as many live agents as there are slots, with nothing to do; then a turn of every group."""
    live = NODES * SLOTS_A_NODE
    turns = effort.times(GROUPS, at_least=live)
    with tempfile.TemporaryDirectory(prefix="andy-bench-") as folder:
        specs = await asyncio.to_thread(_groups, Path(folder), effort.size(GROUPS, smallest=live))
        async with _runtime(Path(folder)) as runtime:
            for spec in specs[:5]:  # what is loaded and made once is not a run's
                await _turn(runtime, spec)
            before = _mib()
            running = [await runtime.start(spec, "{}") for spec in specs[:live]]
            for one in running:
                await _answer(one)
            a_run = (_mib() - before) / live
            percents = [await _idle_percent(IDLE_SECONDS * effort.of_full) for _ in range(2)]
            for one in running:
                await one.remove()
            progress(f"{live} live agents: {a_run:.2f} MiB each, {percents[-1]:.2f} % of a core in all")
            held = _mib()
            cpu_ms = await _all(runtime, specs[:turns], live)
            grown = _mib() - held
    progress(
        f"{turns} turns: {sum(cpu_ms) / len(cpu_ms):.1f} ms of processor time each, {grown:.1f} MiB more"
    )
    return _figures(live, turns, a_run, percents, cpu_ms, grown)


def _groups(home: Path, count: int) -> list[ContainerSpec]:
    (home / "data").mkdir()
    specs = []
    for number in range(count):
        root = home / f"group{number:04d}"
        for name in TREES.values():
            (root / name).mkdir(parents=True)
        for file in range(FILES):
            (root / "group" / f"{file}.md").write_text(f"{number} {file}\n" * 100)
        mounts = [
            Mount(source=root / name, target=target, is_writable=target in WRITABLE)
            for target, name in TREES.items()
        ]
        specs.append(ContainerSpec(run_id=RunId(root.name), folder=Folder(root.name), mounts=mounts))
    return specs


@asynccontextmanager
async def _runtime(home: Path) -> AsyncIterator[SwarmRuntime]:
    carriers = await asyncio.create_subprocess_exec(
        sys.executable, str(CARRIERS), cwd=PROJECT, stdin=asyncio.subprocess.PIPE
    )

    async def tell(problem: str) -> None:
        progress(problem)

    async def last_frame(_: RunId) -> int:
        return 99  # whatever a turn has left counts

    runtime = SwarmRuntime(
        SimulatedEngine(carriers),
        data=home / "data",
        last_frame=last_frame,
        on_log=lambda *_: None,
        address="127.0.0.1",
        host_name="127.0.0.1",
        on_problem=tell,
        slots_per_node=SLOTS_A_NODE,
    )
    try:
        yield runtime
    finally:
        await runtime.close()
        carriers.kill()
        await carriers.wait()


async def _turn(runtime: SwarmRuntime, spec: ContainerSpec) -> None:
    container = await runtime.start(spec, "{}")
    await _answer(container)
    await container.remove()


async def _answer(container: SwarmContainer) -> None:
    said = b""
    async with aclosing(container.output()) as output:
        while b"turn_end" not in said:
            said += await anext(output)


async def _all(runtime: SwarmRuntime, specs: Sequence[ContainerSpec], slots: int) -> list[float]:
    """Have each group answered once, and return the processor time of each hundred's mean turn."""
    taken: list[float] = []
    for at in range(0, len(specs), slots):
        part, before = specs[at : at + slots], time.process_time()
        await asyncio.gather(*(_turn(runtime, spec) for spec in part))
        taken.append(1000 * (time.process_time() - before) / len(part))
    return taken


async def _idle_percent(seconds: float) -> float:
    began, before = time.monotonic(), time.process_time()
    await asyncio.sleep(seconds)
    return 100 * (time.process_time() - before) / (time.monotonic() - began)


def _mib() -> float:
    return float(psutil.Process().memory_info().rss) / 1024**2


def _figures(
    live: int, turns: int, a_run: float, percents: list[float], cpu_ms: list[float], grown: float
) -> list[Figure]:
    def figure(name: str, what: str, unit: str, values: Sequence[float], limit: float | None) -> Figure:
        measured = Series(name=what, unit=unit, values=tuple(values))
        checks = () if limit is None else (median_of(measured, limit),)
        return Figure(name=name, measured=measured, checks=checks)

    swarm = f"The host of {GROUPS:,} groups on {NODES} simulated nodes"
    return [
        figure(f"{swarm}: memory", f"a live agent of {live}", "MiB", [a_run], MIB_A_RUN),
        figure(f"{swarm}: nothing to do", f"{live} live agents, of a core", "%", percents, IDLE_PERCENT),
        figure(f"{swarm}: a turn each, start and end included", "processor time", "ms", cpu_ms, None),
        figure(f"{swarm}: after {turns:,} turns", "more memory", "MiB", [grown], None),
    ]
