"""The networks of agents when Andy is a container itself: one internal network per group, with Andy on it.

Groups cannot share one network, because a network on which Andy can be reached also lets its other containers
reach each other.
"""

from __future__ import annotations

import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from orchestrator.containers.docker import network
from orchestrator.containers.docker.runtime import INSTALL_LABEL
from orchestrator.domain.errors import NoAddresses
from orchestrator.domain.values import Folder

if TYPE_CHECKING:
    from docker import APIClient

ALIAS = "orchestrator"
"""The name by which agents reach Andy. The name of an agent's own container is `andy`."""
IN_USE_OR_GONE = (403, 404)
START_SECONDS = 120.0
"""Seconds that a container may take to start on the network that was handed out for it."""
# With this option the host has no address on the network either, so agents cannot reach the host's own ports.
WITHOUT_HOST_ADDRESS = ("com.docker.network.bridge.inhibit_ipv4", "true")


class GroupNetworks:
    """The networks of an install's groups. All methods block.

    Call `join` before a container starts, `tidy` at the host's start and `remove` at its end.
    """

    def __init__(self, *, install: str, own_id: str) -> None:
        """`install` is the id of this installation, and `own_id` that of the container in which Andy runs."""
        self._install = install
        self._own_id = own_id
        self._prefix = f"andy-{install}."
        self._one_at_a_time = threading.Lock()
        self._joined_at: dict[str, float] = {}
        """When each network was handed out last, by its name, in seconds of the monotonic clock."""

    def join(self, client: APIClient, folder: Folder) -> str:
        """Return the name of the group's network, created if missing, with Andy on it.

        `folder` names the group. Raises docker-py's errors, and `ContainerError` when a network of that name
        does not belong to this install, or all of the engine's addresses are in use.
        """
        with self._one_at_a_time:
            group_network = self._find_or_create(client, f"{self._prefix}{folder}")
            self._connect_andy(client, group_network["Id"])
            self._joined_at[group_network["Name"]] = time.monotonic()
        return str(group_network["Name"])

    def tidy(self, client: APIClient) -> None:
        """Remove the group networks that no agent's container is on, and connect Andy to the others."""
        with self._one_at_a_time:
            self._tidy_networks(client)

    def remove(self, client: APIClient) -> None:
        """Disconnect Andy from all group networks, and remove those that no other container is connected to.

        The network by which agents reach the internet directly is removed, too.
        """
        with self._one_at_a_time:
            for group_network in self._group_networks(client):
                self._disconnect_andy(client, group_network["Id"])
                _remove(client, group_network["Id"])
            # The network over which containers reach the internet without Andy's proxy.
            _remove(client, network.open_name(self._install, suffix="out"))

    def _find_or_create(self, client: APIClient, name: str) -> dict[str, Any]:
        """Return the engine's description of the internal network `name`, which is created if missing.

        The host has no address on it. If the engine has no addresses left for a new network, unused group
        networks are removed, and it is tried once more.
        """
        create = partial(
            network.find_or_create,
            client,
            name,
            self._install,
            is_internal=True,
            option=WITHOUT_HOST_ADDRESS,
        )
        try:
            return create()
        except NoAddresses:
            # The engine has addresses for about thirty networks only.
            self._tidy_networks(client)
            return create()

    def _tidy_networks(self, client: APIClient) -> None:
        """Remove the group networks that no agent's container is on, and connect Andy to the others.

        Andy's own container, which runs this process, is no agent's. Networks that were handed out a moment
        ago are left alone, because their containers are still being started. The caller holds the lock.
        """
        now = time.monotonic()
        for group_network in self._group_networks(client):
            # A network that this process has not handed out, such as an earlier host's, counts as old: for it
            # the difference is at least `START_SECONDS`.
            if now - self._joined_at.get(group_network["Name"], -START_SECONDS) < START_SECONDS:
                continue
            network_id = group_network["Id"]
            agents = set(client.inspect_network(network_id)["Containers"] or ()) - {self._own_id}
            if agents:
                self._connect_andy(client, network_id)
            else:
                self._disconnect_andy(client, network_id)
                _remove(client, network_id)

    def _group_networks(self, client: APIClient) -> list[dict[str, Any]]:
        """Return the engine's descriptions of this install's group networks, found by label and name."""
        return [
            listed
            for listed in client.networks()
            if (listed["Labels"] or {}).get(INSTALL_LABEL) == self._install
            and listed["Name"].startswith(self._prefix)
        ]

    def _connect_andy(self, client: APIClient, ref: str) -> None:
        """Connect Andy to the network with the id `ref`, unless it is connected."""
        if self._own_id not in (client.inspect_network(ref)["Containers"] or {}):
            client.connect_container_to_network(self._own_id, ref, aliases=[ALIAS])

    def _disconnect_andy(self, client: APIClient, ref: str) -> None:
        """Disconnect Andy from the network with the id `ref`, if it is connected."""
        if self._own_id in (client.inspect_network(ref)["Containers"] or {}):
            client.disconnect_container_from_network(self._own_id, ref)


def _remove(client: APIClient, ref: str) -> None:
    """Remove a network, unless a container was connected to it meanwhile. A missing one is no error."""
    import docker.errors

    try:
        client.remove_network(ref)
    except docker.errors.APIError as error:
        if error.status_code not in IN_USE_OR_GONE:
            raise
