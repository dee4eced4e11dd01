"""Remove everything that a test left on a Docker engine.

Something that is being removed already is no error: its end is waited for.
"""

from __future__ import annotations

import docker
from docker.errors import APIError, NotFound

from orchestrator.containers.docker.client import already_so
from tests.processes.andy import until

IN_USE = 403
"""What an engine says of a network whose last container it is still taking off."""


def clear_engine(client: docker.APIClient, label: str) -> None:
    """Remove all containers and networks that have `label`. Blocks until the engine has none of them."""
    of_it = {"label": [label]}
    until(lambda: _are_removed(client, of_it), what=f"the containers of {label} are gone")
    for one in client.networks(filters=of_it):
        until(lambda network=one["Id"]: _is_removed(client, network), what=f"the network of {label} is gone")


def _are_removed(client: docker.APIClient, filters: dict[str, list[str]]) -> bool:
    # At each look: one that the engine was still making when its host died appears after the first.
    found = client.containers(all=True, filters=filters)
    for one in found:
        with already_so():
            client.remove_container(one["Id"], force=True)
    return not found


def _is_removed(client: docker.APIClient, network: str) -> bool:
    try:
        client.remove_network(network)
    except NotFound:
        return True
    except APIError as error:
        if error.status_code != IN_USE:
            raise
        return False
    return True
