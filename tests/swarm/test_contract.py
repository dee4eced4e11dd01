"""What every `ContainerRuntime` holds to, on the nodes of a real swarm: the contract's own tests."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from orchestrator.containers.docker import client as docker_client
from orchestrator.containers.docker import network
from orchestrator.containers.swarm.runtime import SwarmRuntime
from orchestrator.containers.swarm.services import (
    ManagerEngine,
    SwarmServices,
    ensure_gate,
    remove_all,
    swarm_image,
)
from orchestrator.domain.values import RunId
from tests.contract.test_runtime_contract import *  # noqa: F403  # its tests are collected here once more
from tests.processes.swarm_nodes import SwarmNodes

pytestmark = [pytest.mark.swarm, pytest.mark.timeout(300)]


class GatedRuntime(SwarmRuntime):
    """A runtime whose gate leads to its own door, as a host makes it when it starts."""

    def __init__(self, install: str, services: SwarmServices, **options: Any) -> None:
        super().__init__(ManagerEngine(services), **options)
        self._install, self._services = install, services
        self._making = asyncio.Lock()

    async def open(self) -> None:
        async with self._making:
            if not self._services.gate_id:
                joined = await network.ensure_network(self._install)
                self._address = joined.gateway
                await super().open()
                self._services.gate_id = await asyncio.to_thread(self._make_gate, joined)

    def _make_gate(self, joined: network.NetworkInfo) -> str:
        with closing(docker_client.connect()) as client:
            return ensure_gate(
                client,
                install=self._install,
                image=self._services._image,
                network=joined.name,
                port=self.door.port,
                address=joined.gateway,
            )


class NodesBench:
    """Three nodes, of which the first manages the swarm and is the host's."""

    def __init__(self, home: Path, image: str) -> None:
        self._data = home / "data"
        self._data.mkdir(parents=True)
        with closing(docker_client.connect()) as client:
            self._image = swarm_image(client, tag=image)
        self._install = f"test-{secrets.token_hex(4)}"

    def runtime(self, script: str, *, command: list[str] | None = None) -> SwarmRuntime:
        services = SwarmServices(
            install=self._install, image=self._image, command=command or ["python3", "-S", "-c", script]
        )

        async def last_frame(_: RunId) -> int:
            return 0

        async def no_owner(_: str) -> None:
            pass

        return GatedRuntime(
            self._install,
            services,
            data=self._data,
            last_frame=last_frame,
            on_log=lambda *_: None,
            on_problem=no_owner,
            address="127.0.0.1",
        )

    def left(self) -> list[str]:
        services = SwarmServices(install=self._install, image=self._image)
        with closing(docker_client.connect()) as client:
            return [one.ref for one in services.run_services(client)]

    def clear(self) -> None:
        services = SwarmServices(install=self._install, image=self._image)
        with closing(docker_client.connect()) as client:
            remove_all(client, install=self._install, services=services)


@pytest.fixture
def bench(nodes: SwarmNodes, agent_image: str, tmp_path: Path) -> Iterator[NodesBench]:
    made = NodesBench(tmp_path / "home", agent_image)
    yield made
    made.clear()
    asyncio.run(network.remove_network(made._install))
