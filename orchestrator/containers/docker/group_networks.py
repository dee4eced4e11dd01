"""The networks of agents when Andy is a container itself: one internal network per group, with Andy on it.

Groups cannot share one network, because a network on which Andy can be reached also lets its other containers
reach each other.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from orchestrator.containers.docker import network
from orchestrator.containers.docker.runtime import INSTALL_LABEL
from orchestrator.domain.values import Folder

if TYPE_CHECKING:
    from docker import APIClient

ALIAS = "orchestrator"
"""The name by which agents reach Andy. The name of an agent's own container is `andy`."""
IN_USE_OR_GONE = (403, 404)
# With this option the host has no address on the network either, so agents cannot reach the host's own ports.
NO_HOST = ("com.docker.network.bridge.inhibit_ipv4", "true")


class GroupNetworks:
    """The networks of an install's groups. All methods block.

    Call `join` before a container starts, `tidy` at the host's start and `remove` at its end.
    """

    def __init__(self, *, install: str, own_id: str) -> None:
        self._install = install
        self._own_id = own_id
        self._prefix = f"andy-{install}."
        self._one_at_a_time = threading.Lock()

    def join(self, client: APIClient, folder: Folder) -> str:
        """Return the name of the group's network, created if missing, with Andy on it.

        Raises docker-py's errors, and `ContainerError` when a network of that name is another's.
        """
        with self._one_at_a_time:
            found = self._find_or_make(client, f"{self._prefix}{folder}")
            self._enter(client, found["Id"])
        return str(found["Name"])

    def tidy(self, client: APIClient) -> None:
        """Remove the networks that no agent is on, and connect Andy to the others."""
        with self._one_at_a_time:
            self._tidy(client)

    def remove(self, client: APIClient) -> None:
        """Disconnect Andy from all networks, and remove those that no other container is connected to."""
        with self._one_at_a_time:
            for one in self._own(client):
                self._leave(client, one["Id"])
                _remove(client, one["Id"])
            _remove(client, network.open_name(self._install, suffix="out"))

    def _find_or_make(self, client: APIClient, name: str) -> dict[str, Any]:
        import docker.errors

        try:
            return network.find_or_make(client, name, self._install, is_internal=True, option=NO_HOST)
        except docker.errors.APIError as error:
            if "address pool" not in str(error.explanation):
                raise
        # The engine has addresses for about thirty networks only, so the unused ones are removed first.
        self._tidy(client)
        return network.find_or_make(client, name, self._install, is_internal=True, option=NO_HOST)

    def _tidy(self, client: APIClient) -> None:
        for one in self._own(client):
            others = set(client.inspect_network(one["Id"])["Containers"] or ()) - {self._own_id}
            if others:
                self._enter(client, one["Id"])
            else:
                self._leave(client, one["Id"])
                _remove(client, one["Id"])

    def _own(self, client: APIClient) -> list[dict[str, Any]]:
        return [
            one
            for one in client.networks()
            if (one["Labels"] or {}).get(INSTALL_LABEL) == self._install
            and one["Name"].startswith(self._prefix)
        ]

    def _enter(self, client: APIClient, ref: str) -> None:
        if self._own_id not in (client.inspect_network(ref)["Containers"] or {}):
            client.connect_container_to_network(self._own_id, ref, aliases=[ALIAS])

    def _leave(self, client: APIClient, ref: str) -> None:
        if self._own_id in (client.inspect_network(ref)["Containers"] or {}):
            client.disconnect_container_from_network(self._own_id, ref)


def _remove(client: APIClient, ref: str) -> None:
    """Remove a network, unless a container was connected to it meanwhile."""
    import docker.errors

    try:
        client.remove_network(ref)
    except docker.errors.APIError as error:
        if error.status_code not in IN_USE_OR_GONE:
            raise
