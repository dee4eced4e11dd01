"""A container outside of all networks of Andy's that records the requests which reach it."""

from __future__ import annotations

from dataclasses import dataclass

import docker


@dataclass(frozen=True, slots=True, kw_only=True)
class OutsideContainer:
    """A container that is on none of Andy's networks and serves HTTP on port 8000."""

    client: docker.APIClient
    id: str
    address: str

    def requests(self) -> list[str]:
        """Return the paths that were requested there. Blocks."""
        logs = self.client.logs(self.id).decode()
        return [line.split('"')[1].split()[1] for line in logs.splitlines() if '"' in line]
