"""The networks of agents when Andy is a container itself: one internal network per group, with Andy on it.

They cannot share one network: Andy has to be reachable on it, and then containers on it can reach each other.
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
"""The name by which agents reach Andy. Their own is `andy`."""
IN_USE_OR_GONE = (403, 404)
# The host has no address on it either, so its own ports cannot be reached.
NO_HOST = ("com.docker.network.bridge.inhibit_ipv4", "true")


class GroupNetworks:
    """`join` for a coming container, `tidy` at the start, `remove` at the end. All of it blocks."""

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
        """Remove networks without agents, and connect to the others."""
        with self._one_at_a_time:
            self._tidy(client)

    def remove(self, client: APIClient) -> None:
        """Remove all networks that nobody else is connected to."""
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
        # The engine has addresses for about thirty networks: remove unused ones.
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
