"""A swarm's engine whose containers are processes of this machine: carriers are real, nodes are not."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.containers.swarm.nodes import Node
from orchestrator.containers.swarm.services import RunService, TaskState
from orchestrator.domain.protocols import ContainerSpec


def machine(name: str, **changes: Any) -> Node:
    """A node that takes containers, unless `changes` say otherwise."""
    said = {"id": name, "name": name, "address": "", "state": "ready", "labels": (), "is_open": True}
    return Node(**{**said, **changes})


@dataclass
class StartedProcess:
    service: RunService
    process: asyncio.subprocess.Process
    workspace: Path
    secret: Path


@dataclass
class ProcessSwarmEngine:
    """`command` replaces the runner, as it does in a service; each group's workspace stays between runs."""

    root: Path
    command: list[str]
    privileges: list[str] = field(default_factory=lambda: ["setpriv", "--no-new-privs"])
    started: dict[str, StartedProcess] = field(default_factory=dict)
    machines: list[Node] = field(default_factory=lambda: [machine("one")])
    without_image: set[str] = field(default_factory=set)
    """The ids of nodes that have not the agent image."""
    without_hardening: set[str] = field(default_factory=set)
    slow: list[str] = field(default_factory=list)
    """The ids of nodes whose next container is set up without end; each counts once."""
    set_up: set[str] = field(default_factory=set)
    """The containers that are set up without end."""

    async def nodes(self) -> list[Node]:
        return self.machines

    async def create(
        self,
        spec: ContainerSpec,
        *,
        secret: dict[str, object],
        token_hash: str,
        node_id: str,
        keeps_files: bool,
    ) -> str:
        workspace = self.root / "nodes" / (spec.folder if keeps_files else f".{spec.run_id}")
        workspace.mkdir(parents=True, exist_ok=True)
        path = self.root / f"{spec.run_id}.secret"
        path.write_text(json.dumps(secret))
        ref = f"service-{spec.run_id}"
        instead = ["false"] if node_id in self.without_image else []
        if node_id in self.slow:
            self.slow.remove(node_id)
            self.set_up.add(ref)
            instead = ["sh", "-c", "exec sleep infinity"]
        process = await asyncio.create_subprocess_exec(
            *instead,
            *([] if node_id in self.without_hardening else self.privileges),
            sys.executable,
            "-m",
            "agent_runner.carrier",
            *self.command,
            stdin=asyncio.subprocess.DEVNULL,
            env={**os.environ, "ANDY_WORKSPACE": str(workspace), "ANDY_CARRIER_SECRET": str(path)},
            start_new_session=True,
        )
        service = RunService(
            ref=ref, run_id=spec.run_id, folder=spec.folder, token_hash=token_hash, node_id=node_id
        )
        self.started[ref] = StartedProcess(service, process, workspace, path)
        return ref

    async def remove(self, ref: str) -> None:
        one = self.started.pop(ref, None)
        if one is None:
            return
        self.set_up.discard(ref)
        self.kill(one)
        await one.process.wait()
        one.secret.unlink()
        if one.workspace.name.startswith("."):
            shutil.rmtree(one.workspace)

    def kill(self, one: StartedProcess) -> None:
        """End the carrier and its agent as a node does that is gone."""
        agents: list[str] = []
        with suppress(FileNotFoundError, ProcessLookupError):  # it may have ended by itself this moment
            agents = Path(f"/proc/{one.process.pid}/task/{one.process.pid}/children").read_text().split()
        with suppress(ProcessLookupError):
            one.process.kill()  # first, or it may still tell how its agent ended
        for agent in agents:
            with suppress(ProcessLookupError):
                os.killpg(int(agent), signal.SIGKILL)

    async def run_services(self) -> list[RunService]:
        return [one.service for one in self.started.values()]

    async def task(self, ref: str) -> TaskState:
        one = self.started.get(ref)
        if one is None:
            return TaskState(state="remove")
        if one.service.node_id in self.without_image:
            return TaskState(state="rejected", error="No such image: sha256:abc")
        if ref in self.set_up:
            return TaskState(state="preparing")
        code = one.process.returncode
        return TaskState(state="running" if code is None else "complete" if code == 0 else "failed")

    async def keep_gate(self) -> None:
        pass

    async def close(self) -> None:
        pass
