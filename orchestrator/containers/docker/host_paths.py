"""Map paths in Andy's own container to paths on the host.

Agents are then sibling containers of Andy's. The engine mounts their folders by the paths on the host.
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

AGENT_NETWORK = re.compile(r"andy-[0-9a-f]{12}[.-]")
"""The beginning of the names of networks that Andy shares with agents."""
MOUNTED_FOLDERS = ("groups", "data", "store")
"""Folders of the home that must be writable mounts of the host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPaths:
    """The id of Andy's own container, its mounts, and its address on the network on which it was started."""

    own_id: str
    mounts: Sequence[BindMount]
    address: str | None

    def on_host(self, path: Path) -> Path:
        """Translate a path in Andy's own container into the same file's path on the host.

        Raises:
            ContainerError: no folder of the host is mounted there; the text has the line to add to Compose's
            file.
        """
        mount = mounted_at(self.mounts, PurePosixPath(path))
        if mount is None:
            raise ContainerError(f"{path} is in Andy's own container alone. {mount_instruction(path)}")
        return Path(mount.outside(PurePosixPath(path)))

    def check_home(self, home: Path) -> None:
        """Check that the folders of `home` can be mounted in agents' containers.

        Raises:
            ContainerError: a folder is not on a writable mount of the host; the text has the fix.
        """
        for name in MOUNTED_FOLDERS:
            mount = mounted_at(self.mounts, PurePosixPath(home / name))
            if mount is None or not mount.is_writable:
                raise ContainerError(
                    f"{home / name} is in Andy's own container alone, or read-only. "
                    f"{mount_instruction(home / name)}"
                )

    def mount_hindrance(self, path: Path) -> str | None:
        """Return why a folder of the owner cannot be mounted in agents' containers; None if it can.

        Only a folder that is itself a bind mount of Andy's container can be mounted.
        """
        if any(mount.destination == str(path) and mount.kind == "bind" for mount in self.mounts):
            return None
        return f"Andy's own container has no such folder of the host. {mount_instruction(path)}"


def mount_instruction(path: Path) -> str:
    """Return the sentence that tells the owner how to mount a folder of the host into Andy's container.

    A folder of Andy's home (`groups`, `data` or `store`) is the one beside docker-compose.yml, and writable.
    Any other has the same path on the host, is only read, and is added to the owner's override file.
    """
    if path.name in MOUNTED_FOLDERS:
        place, file = f"./{path.name}:{path}", "docker-compose.yml"
    else:
        place, file = f"{path}:{path}:ro", "docker-compose.override.yml"
    return f"Add '- {place}' to the 'volumes' of 'andy' in {file}, then type 'docker compose up -d'."


def find() -> HostPaths | None:
    """Return the id, the mounts and the address of the container in which this process runs. Blocks.

    Return None if it runs in none, or in one that the engine does not know.

    Raises:
        EngineGone: no engine answers.
        ContainerError: the engine refused the request.
    """
    container_id = own_id()
    if container_id is None:
        return None
    try:
        with docker_client.translated(), closing(docker_client.connect()) as client:
            container_info = client.inspect_container(container_id)
    except ContainerNotFound:  # the engine runs in this same container, so its paths are this container's
        return None
    return HostPaths(
        own_id=container_info["Id"],
        mounts=BindMount.of(container_info["Mounts"]),
        address=_address(container_info),
    )


def _address(container_info: dict[str, Any]) -> str | None:
    """Return the container's IP address on Compose's network, or None if it has none.

    `container_info` is the engine's description of the container. Networks shared with agents are skipped.
    """
    networks = container_info["NetworkSettings"]["Networks"]
    for name, endpoint in networks.items():
        if not AGENT_NETWORK.match(name) and endpoint["IPAddress"]:
            return str(endpoint["IPAddress"])
    return None
