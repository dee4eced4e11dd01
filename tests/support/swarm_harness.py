"""A swarm runtime on processes: carriers, TLS and files are real; agents and nodes are not."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from agent_runner.wire.carrier import VERSION, CarrierConnection
from orchestrator.containers.swarm.container import SwarmContainer
from orchestrator.containers.swarm.runtime import SwarmRuntime
from orchestrator.domain.protocols import ContainerSpec, Mount
from orchestrator.domain.values import Folder, RunId
from tests.doubles.swarm_engine import ProcessSwarmEngine, StartedProcess, machine
from tests.support.runtimes import eventually

RUNNER = """
import json, os, pathlib, sys, time
os.chdir(pathlib.Path(os.environ['ANDY_WORKSPACE']) / 'group')
order = sys.stdin.readline()
def frame(n, kind, **more):
    print('---NANOCLAW_OUTPUT_START---')
    print(json.dumps({'v': 1, 'n': n, 'kind': kind, **more}, separators=(',', ':')))
    print('---NANOCLAW_OUTPUT_END---', flush=True)
def until(path):
    while not pathlib.Path(path).exists(): time.sleep(0.01)
"""
"""What the script of an agent begins with."""


class SwarmHarness:
    """One host's runtime and its home; `recorded` is the last frame of each run that its store has."""

    def __init__(self, home: Path, *, privileges: list[str] | None = None, is_gate: bool = False) -> None:
        """With `is_gate` agents connect to the host without a container between, as under Compose."""
        self.home = home
        self._is_gate = is_gate
        self.started: dict[str, StartedProcess] = {}
        self.recorded: dict[RunId, int] = {}
        self.logged: list[bytes] = []
        self._privileges = privileges
        self.machines = [machine("one")]
        self.without_image: set[str] = set()
        self.without_hardening: set[str] = set()
        self.slow: list[str] = []
        self.problems: list[str] = []
        """What the owner was told of nodes."""
        for name in ("data", "groups/family", "env", "input", "replies", "messages", "tasks", "global"):
            (home / name).mkdir(parents=True, exist_ok=True)

    def runtime(self, script: str, *, slots_per_node: int = 0) -> SwarmRuntime:
        engine = ProcessSwarmEngine(
            self.home,
            [sys.executable, "-S", "-c", RUNNER + script],
            started=self.started,
            machines=self.machines,
            without_image=self.without_image,
            without_hardening=self.without_hardening,
            slow=self.slow,
        )
        if self._privileges is not None:
            engine.privileges = self._privileges

        async def last_frame(run_id: RunId) -> int:
            return self.recorded.get(run_id, 0)

        async def tell_owner(problem: str) -> None:
            self.problems.append(problem)

        return SwarmRuntime(
            engine,
            data=self.home / "data",
            last_frame=last_frame,
            on_log=lambda _, data: self.logged.append(data),
            address="127.0.0.1",
            is_gate=self._is_gate,
            host_name="127.0.0.1",
            slots_per_node=slots_per_node,
            on_problem=tell_owner,
        )

    @property
    def group(self) -> Path:
        """The group's folder as the host has it."""
        return self.home / "groups" / "family"

    @property
    def workspace(self) -> Path:
        """The workspace as the node has it."""
        return self.home / "nodes" / "family"

    def spec(self, run: str = "r1", **changes: Any) -> ContainerSpec:
        writable = {"/workspace/ipc/messages", "/workspace/ipc/tasks", "/workspace/group"}
        places = {
            "/workspace/ipc/input": "input",
            "/workspace/ipc/replies": "replies",
            "/workspace/ipc/messages": "messages",
            "/workspace/ipc/tasks": "tasks",
            "/workspace/env": "env",
            "/workspace/global": "global",
            "/workspace/group": "groups/family",
        }
        mounts = [
            Mount(source=self.home / path, target=target, is_writable=target in writable)
            for target, path in places.items()
        ]
        spec = ContainerSpec(run_id=RunId(run), folder=Folder("family"), mounts=mounts)
        return replace(spec, **changes)

    @asynccontextmanager
    async def running(
        self, script: str, *, run: str = "r1"
    ) -> AsyncIterator[tuple[SwarmRuntime, SwarmContainer]]:
        """A started container of the script; removed at the end, its runtime closed."""
        runtime = self.runtime(script)
        try:
            assert await runtime.adopt() == []  # as a host does first
            container = await runtime.start(self.spec(run), "{}")
            try:
                yield runtime, container
            finally:
                await container.remove()
        finally:
            await runtime.close()

    async def connect(self, runtime: SwarmRuntime, ref: str, **hello: object) -> CarrierConnection:
        """Connect as the carrier of a started run would; its own is stopped, or it would come back."""
        os.kill(self.started[ref].process.pid, signal.SIGSTOP)
        return await connect(runtime, self.token(ref), **hello)

    def token(self, ref: str) -> str:
        """Return the token that the carrier of a started run shows."""
        return str(json.loads(self.started[ref].secret.read_text())["token"])


async def connect(runtime: SwarmRuntime, token: str, **hello: object) -> CarrierConnection:
    """Connect to the host with a token, trusting whatever certificate it shows."""
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    connection = CarrierConnection(
        *await asyncio.open_connection("127.0.0.1", runtime.door.port, ssl=context)
    )
    await connection.send("hello", v=VERSION, token=token, **hello)
    return connection


async def frames_of(container: SwarmContainer, *, until: int) -> list[int]:
    """Read the output up to frame `until`, and return the numbers of all frames seen."""
    seen: list[int] = []
    text = b""
    async with aclosing(container.output()) as output:
        async for chunk in output:
            text += chunk
            seen = [json.loads(line)["n"] for line in text.splitlines() if line.startswith(b"{")]
            if until in seen:
                break
    return seen


async def appears(path: Path) -> None:
    """Wait until a path is there."""
    await eventually(path.exists, f"{path.name} is there")
