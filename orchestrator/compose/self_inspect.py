"""Find the container that this process runs in, if any, and the host's paths of its mounts."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Self

FILTER_SOCKET = "/run/andy/docker.sock"
MOUNT_TABLE = Path("/proc/self/mountinfo")
# The engine mounts a file over /etc/hostname from a folder that is named after the container's id.
ID_IN_HOSTNAME_MOUNT = re.compile(r"/containers/([0-9a-f]{64})/hostname /etc/hostname ")


def own_id(table: Path = MOUNT_TABLE) -> str | None:
    """Return the id of the container that this process runs in, or None on a host. Blocks.

    `table` is the kernel's list of mounts. In a container it names the folder that `/etc/hostname` comes
    from, and that folder is named after the container's id.
    """
    try:
        match = ID_IN_HOSTNAME_MOUNT.search(table.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return None
    return match[1] if match else None


def is_behind_filter() -> bool:
    """Return whether this is Andy's container of `docker-compose.yml`.

    Its only way to Docker is the socket of the filter, a program that passes on only what Andy needs.
    """
    return os.environ.get("DOCKER_HOST") == f"unix://{FILTER_SOCKET}"


@dataclass(frozen=True, slots=True, kw_only=True)
class BindMount:
    """One mount of a container: `source` is the host's path, `destination` the container's."""

    source: str
    destination: str
    is_writable: bool
    kind: str

    @classmethod
    def of(cls, mounts: Iterable[Mapping[str, Any]]) -> tuple[Self, ...]:
        """Return the mounts in the list `Mounts` with which Docker describes a container.

        A mount without a path on the host, such as a tmpfs, is left out.
        """
        return tuple(
            cls(
                source=mount["Source"],
                destination=mount["Destination"],
                is_writable=bool(mount["RW"]),
                kind=mount["Type"],
            )
            for mount in mounts
            if mount.get("Source")
        )

    def inside(self, source: str) -> PurePosixPath:
        """Return the path in the container of the host's path `source`, which is in this mount."""
        return PurePosixPath(self.destination) / PurePosixPath(source).relative_to(self.source)

    def outside(self, path: PurePosixPath) -> PurePosixPath:
        """Return the path on the host of the container's path `path`, which is in this mount."""
        return PurePosixPath(self.source) / path.relative_to(self.destination)


def mount_of_source(mounts: Sequence[BindMount], source: str) -> BindMount | None:
    """Return the innermost of `mounts` that contains the path `source` of the host.

    None if there is none, and for a path that is relative or has `..` in it.
    """
    path = PurePosixPath(source)
    # A path with `..` would be compared literally, but mean another place.
    if ".." in path.parts or not path.is_absolute():
        return None
    return max(
        (mount for mount in mounts if path.is_relative_to(mount.source)),
        key=lambda mount: len(PurePosixPath(mount.source).parts),
        default=None,
    )


def mounted_at(mounts: Sequence[BindMount], path: PurePosixPath) -> BindMount | None:
    """Return the innermost mount that a path of the container lies in; None if it lies in none."""
    return max(
        (mount for mount in mounts if path.is_relative_to(mount.destination)),
        key=lambda mount: len(PurePosixPath(mount.destination).parts),
        default=None,
    )
