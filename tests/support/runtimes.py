"""Use each container runtime through one interface, with scripts as the program in a container."""

from __future__ import annotations

import asyncio
import secrets
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import docker

from orchestrator.containers.docker.runtime import INSTALL_LABEL, DockerRuntime
from orchestrator.containers.process.runtime import ProcessRuntime
from orchestrator.containers.swarm.runtime import SwarmRuntime
from orchestrator.domain.protocols import ContainerRuntime, ContainerSpec, RunningContainer
from orchestrator.domain.values import Folder, RunId
from tests.doubles.swarm_engine import ProcessSwarmEngine, StartedProcess
from tests.support.engine_cleanup import clear_engine

DEADLINE_SECONDS = 180.0


class Bench(Protocol):
    """A place to run containers in, and to see what is left of them."""

    def runtime(self, script: str, *, command: list[str] | None = None) -> ContainerRuntime:
        """A runtime whose containers run a Python script, or another command."""
        ...

    def left(self) -> list[str]:
        """What is there now of all the containers started here. Blocks."""
        ...


@dataclass
class DockerBench:
    client: docker.APIClient
    image: str
    install: str = field(default_factory=lambda: f"test-{secrets.token_hex(4)}")

    def runtime(
        self, script: str, *, command: list[str] | None = None, image: str | None = None
    ) -> DockerRuntime:
        return DockerRuntime(
            install=self.install,
            image=image or self.image,
            network=None,
            user="1000:1000",
            command=command or ["python3", "-S", "-c", script],
        )

    def left(self) -> list[str]:
        found = self.client.containers(all=True, filters={"label": [f"{INSTALL_LABEL}={self.install}"]})
        return [each["Id"] for each in found]

    def clear(self) -> None:
        clear_engine(self.client, f"{INSTALL_LABEL}={self.install}")


@dataclass
class ProcessBench:
    home: Path

    def runtime(self, script: str, *, command: list[str] | None = None) -> ProcessRuntime:
        return ProcessRuntime(home=self.home, command=command or [sys.executable, "-S", "-c", script])

    def left(self) -> list[str]:
        runs = self.home / "data" / "process"
        return [run.name for run in runs.iterdir()] if runs.is_dir() else []


@dataclass
class SwarmBench:
    """A swarm of one node that is this machine."""

    home: Path
    started: dict[str, StartedProcess] = field(default_factory=dict)

    def runtime(self, script: str, *, command: list[str] | None = None) -> SwarmRuntime:
        command = command or [sys.executable, "-S", "-c", script]
        engine = ProcessSwarmEngine(self.home, command, started=self.started)
        (self.home / "data").mkdir(parents=True, exist_ok=True)

        async def last_frame(run_id: RunId) -> int:
            return 0

        async def no_owner(_: str) -> None:
            pass

        return SwarmRuntime(
            engine,
            data=self.home / "data",
            last_frame=last_frame,
            on_log=lambda *_: None,
            on_problem=no_owner,
            address="127.0.0.1",
            host_name="127.0.0.1",
        )

    def left(self) -> list[str]:
        return list(self.started)


def a_spec(**changes: object) -> ContainerSpec:
    fields = {"run_id": RunId(f"run-{secrets.token_hex(4)}"), "folder": Folder("family"), "mounts": ()}
    return ContainerSpec(**{**fields, **changes})  # type: ignore[arg-type]


@asynccontextmanager
async def running(
    runtime: ContainerRuntime, *, order: str = "{}", spec: ContainerSpec | None = None
) -> AsyncIterator[RunningContainer]:
    """A started container; removed at the end, its runtime closed."""
    try:
        container = await runtime.start(spec or a_spec(), order)
        try:
            yield container
        finally:
            await container.remove()
    finally:
        await runtime.close()


async def all_of(container: RunningContainer) -> bytes:
    return b"".join([chunk async for chunk in container.output()])


async def line_of(output: AsyncIterator[bytes]) -> bytes:
    """The next line, whatever the chunks it comes in."""
    line = b""
    while not line.endswith(b"\n"):
        line += await anext(output)
    return line


async def eventually(holds: Callable[[], bool] | Callable[[], Awaitable[bool]], what: str) -> None:
    """Wait for a condition, with a deadline. `holds` may block."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while time.monotonic() < deadline:
        answer = await asyncio.to_thread(holds)
        if await answer if isinstance(answer, Awaitable) else answer:
            return
    raise AssertionError(f"not in {DEADLINE_SECONDS:g} s: {what}")
