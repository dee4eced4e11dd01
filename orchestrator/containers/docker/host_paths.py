"""Paths on the host, for an Andy in a container: agents are sibling containers,
mounted from the host's paths.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from orchestrator.compose.self_inspect import BindMount, mounted_at, own_id
from orchestrator.containers.docker import client as docker_client
from orchestrator.containers.docker.client import ContainerNotFound
from orchestrator.domain.errors import ContainerError

OF_AGENTS = re.compile(r"andy-[0-9a-f]{12}[.-]")
NEEDED = ("groups", "data", "store")


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPaths:
    """This container: its id, its mounts, and its address on the network on which it was started."""

    own_id: str
    held: Sequence[BindMount]
    address: str | None

    def on_host(self, path: Path) -> Path:
        """Return the host's path of a path in this container.

        Raises:
            ContainerError: it exists in this container alone; the text has the line to add.
        """
        held = mounted_at(self.held, PurePosixPath(path))
        if held is None:
            raise ContainerError(f"{path} is in Andy's own container alone. {fix(path)}")
        return Path(held.outside(PurePosixPath(path)))

    def check_home(self, home: Path) -> None:
        """Check that agents can be given the folders of a home. Raises `ContainerError`."""
        for name in NEEDED:
            held = mounted_at(self.held, PurePosixPath(home / name))
            if held is None or not held.is_writable:
                raise ContainerError(
                    f"{home / name} is in Andy's own container alone, or read-only. {fix(home / name)}"
                )

    def hindrance(self, path: Path) -> str | None:
        """Return why an owner's folder cannot be shown: only a folder with a mount of its
        own has a known host path.
        """
        if any(one.destination == str(path) and one.kind == "bind" for one in self.held):
            return None
        return f"Andy's own container has no such folder of the host. {fix(path)}"


def fix(path: Path) -> str:
    """Return the line that mounts a folder of the host into Andy's container."""
    source = f"./{path.name}" if path.name in NEEDED else str(path)
    return (
        f"Add '- {source}:{path}' to the 'volumes' of 'andy' in docker-compose.yml: 'docker compose up -d'."
    )


def find() -> HostPaths | None:
    """Return the engine's description of this container; None outside of its containers. Blocks.

    Raises:
        EngineGone, ContainerError
    """
    found_id = own_id()
    if found_id is None:
        return None
    try:
        with docker_client.translated(), closing(docker_client.connect()) as client:
            seen = client.inspect_container(found_id)
    except ContainerNotFound:  # an engine in this same container: its paths are this container's
        return None
    return HostPaths(own_id=seen["Id"], held=BindMount.of(seen["Mounts"]), address=_address(seen))


def _address(seen: dict[str, Any]) -> str | None:
    """Return the address on Compose's network, not one on the networks shared with agents."""
    networks = seen["NetworkSettings"]["Networks"]
    return next(
        (
            one["IPAddress"]
            for name, one in networks.items()
            if not OF_AGENTS.match(name) and one["IPAddress"]
        ),
        None,
    )
