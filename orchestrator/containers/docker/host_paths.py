"""Paths on the host, for an Andy that runs in a container itself: its agents are sibling containers."""

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
    """This container: its id, what it has mounted, and its address on the network it was started in."""

    own_id: str
    held: Sequence[BindMount]
    address: str | None

    def on_host(self, path: Path) -> Path:
        """Tell where the host has a path of ours.

        Raises:
            ContainerError: it is in this container alone; the text has the line to add.
        """
        held = mounted_at(self.held, PurePosixPath(path))
        if held is None:
            raise ContainerError(f"{path} is in Andy's own container alone. {fix(path)}")
        return Path(held.outside(PurePosixPath(path)))

    def check_home(self, home: Path) -> None:
        """Refuse a home whose folders agents could not be given. Raises `ContainerError`."""
        for name in NEEDED:
            held = mounted_at(self.held, PurePosixPath(home / name))
            if held is None or not held.is_writable:
                raise ContainerError(
                    f"{home / name} is in Andy's own container alone, or read-only. {fix(home / name)}"
                )

    def hindrance(self, path: Path) -> str | None:
        """Tell why an owner's folder cannot be shown: only one that is mounted by itself has a sure place."""
        if any(one.destination == str(path) and one.kind == "bind" for one in self.held):
            return None
        return f"Andy's own container has no such folder of the host. {fix(path)}"


def fix(path: Path) -> str:
    """The line that makes a folder of the host known to Andy."""
    source = f"./{path.name}" if path.name in NEEDED else str(path)
    return (
        f"Add '- {source}:{path}' to the 'volumes' of 'andy' in docker-compose.yml: 'docker compose up -d'."
    )


def find() -> HostPaths | None:
    """Ask the engine what this container is; None where this is none of its containers. Blocks.

    Raises:
        EngineGone, ContainerError
    """
    found_id = own_id()
    if found_id is None:
        return None
    try:
        with docker_client.translated(), closing(docker_client.connect()) as client:
            seen = client.inspect_container(found_id)
    except ContainerNotFound:  # an engine beside us in the same container: its paths are ours
        return None
    return HostPaths(own_id=seen["Id"], held=BindMount.of(seen["Mounts"]), address=_address(seen))


def _address(seen: dict[str, Any]) -> str | None:
    """The address on the network of Compose: none of those that agents share with us."""
    networks = seen["NetworkSettings"]["Networks"]
    return next(
        (
            one["IPAddress"]
            for name, one in networks.items()
            if not OF_AGENTS.match(name) and one["IPAddress"]
        ),
        None,
    )
