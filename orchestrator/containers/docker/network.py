"""Create and find an install's network, which its containers share with the host but not with each other."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orchestrator.containers.docker import client as docker_client
from orchestrator.containers.docker.runtime import INSTALL_LABEL
from orchestrator.domain.errors import ContainerError, NoAddresses

if TYPE_CHECKING:
    from docker import APIClient

ANOTHER_WAS_FASTER = 409
"""The HTTP status when a network of the same name was created meanwhile."""
NO_ADDRESSES = (
    "Docker has no addresses left for another network: remove those that nobody uses with "
    "'docker network prune', or give it more as 'default-address-pools' in /etc/docker/daemon.json."
)
NOT_CLOSED = (
    "The engine has left out what separates agents on the network that it made ({option}), as Podman does: "
    "Andy's agents need Docker's own engine, or ANDY_RUNTIME=process, which isolates nothing."
)
NO_NEIGHBOURS = ("com.docker.network.bridge.enable_icc", "false")
"""The option that prevents containers of a network from reaching each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkInfo:
    """A network. `gateway` is the host's address on it, at which containers reach the host.

    `bridge` is the name of the host's interface on it.
    """

    name: str
    gateway: str
    bridge: str


async def ensure_network(install: str) -> NetworkInfo:
    """Find or create the network `andy-{install}`, whose containers reach the host but not each other.

    `install` is the id of this installation. Containers of the network reach whatever listens on a
    non-loopback address of the host, unless a `Firewall` prevents it.

    Raises:
        EngineGone: no engine answers.
        ContainerError: the network cannot be created, or one of that name has another owner or other options.
    """
    return await asyncio.to_thread(_ensure, install)


def find_network(client: APIClient, install: str) -> NetworkInfo | None:
    """Return the network of the install with this id, or None if there is none. Blocks.

    Raises docker-py's errors, and `ContainerError` if the network has no gateway.
    """
    network_info = find_by_name(client, _name(install))
    return None if network_info is None else _info(network_info)


async def remove_network(install: str) -> None:
    """Remove both networks of the install with this id: its own, and the one of open containers.

    Open containers reach the internet directly. A missing network is no error.

    Raises:
        EngineGone: no engine answers.
        ContainerError: the engine refused.
    """
    await asyncio.to_thread(_remove, install)


def open_network(client: APIClient, *, install: str, suffix: str = "open") -> str:
    """Find or create the network for open containers, and return its name. Blocks.

    The name is `andy-{install}-{suffix}`. Open containers reach the internet directly, but not each other.
    Raises docker-py's errors, and `ContainerError` when a network of that name has another owner or other
    options.
    """
    name = open_name(install, suffix=suffix)
    return str(find_or_create(client, name, install, is_internal=False)["Name"])


def open_name(install: str, *, suffix: str = "open") -> str:
    """Return the name of an install's network for open containers, those that reach the internet directly."""
    return f"{_name(install)}-{suffix}"


def find_or_create(
    client: APIClient, name: str, install: str, *, is_internal: bool, option: tuple[str, str] = NO_NEIGHBOURS
) -> dict[str, Any]:
    """Return the engine's description of the network of that name, which is created if missing. Blocks.

    `install` is the id of the installation that owns it. `option` is the driver option, as name and value,
    with which it is created. `is_internal` says whether it has no way to the internet.

    Raises docker-py's errors, `NoAddresses` when the engine has no addresses left for a new network, and
    `ContainerError` when a network of that name has another owner or other options.
    """
    network_info = find_by_name(client, name)
    if network_info is None:
        network_info = _create(client, name, install, is_internal=is_internal, option=option)
    _raise_if_different(network_info, install, is_internal=is_internal, option=option)
    return network_info


def _ensure(install: str) -> NetworkInfo:
    """Find or create an install's own network, and return it. Blocks."""
    name = _name(install)
    with _client() as client:
        network_info = find_or_create(client, name, install, is_internal=True)
    return _info(network_info)


def _remove(install: str) -> None:
    """Remove an install's own network and the one of its open containers, if they exist. Blocks."""
    with _client() as client:
        for name in (_name(install), open_name(install)):
            with docker_client.already_so():
                client.remove_network(name)


@contextmanager
def _client() -> Iterator[APIClient]:
    """Yield a new client for the engine and close it; errors are translated."""
    with docker_client.translated(), closing(docker_client.connect()) as client:
        yield client


def _name(install: str) -> str:
    """Return the name of an install's own network."""
    return f"andy-{install}"


def find_by_name(client: APIClient, name: str) -> dict[str, Any] | None:
    """Return the engine's description of the network with this name, or None if there is none.

    The engine can create two of one name at the same time: of several, the oldest is returned.
    """
    # The engine reads the name as a pattern, so the names that it returns are compared again. `_age` sorts by
    # the time of creation.
    same_name = [listed for listed in client.networks(names=[f"^{name}$"]) if listed["Name"] == name]
    return min(same_name, key=_age) if same_name else None


def _create(
    client: APIClient, name: str, install: str, *, is_internal: bool, option: tuple[str, str]
) -> dict[str, Any]:
    """Create a network and return the engine's description of it.

    If another process created one of that name at the same time, the older of the two is returned, and ours
    is removed. `option` is a driver option as name and value.

    Raises docker-py's errors, `NoAddresses` when the engine has no addresses left for it, and
    `ContainerError` when the engine has created the network without `option`.
    """
    import docker.errors

    created_id = ""
    try:
        created_id = client.create_network(
            name,
            driver="bridge",
            internal=is_internal,
            check_duplicate=True,
            labels={INSTALL_LABEL: install},
            options=dict([option]),
        )["Id"]
    except docker.errors.APIError as error:
        # With its default settings, an engine has addresses for 31 networks. Then it says that all address
        # pools are in use.
        if "address pool" in str(error.explanation):
            raise NoAddresses(NO_ADDRESSES) from error
        if error.status_code != ANOTHER_WAS_FASTER:
            raise
    oldest = find_by_name(client, name)
    if oldest is None:
        raise ContainerError(f"Docker lost the network '{name}' that it just made: try again.")
    if created_id and oldest["Id"] != created_id:
        client.remove_network(created_id)  # another process created one of this name first
    elif created_id:
        _raise_if_option_missing(client, oldest, option)
    return oldest


def _raise_if_option_missing(client: APIClient, created: dict[str, Any], option: tuple[str, str]) -> None:
    """If the engine has created a network without the requested option, remove it and raise `ContainerError`.

    `created` is the engine's description of the network. `option` is a name and a value.
    """
    key, value = option
    if (created["Options"] or {}).get(key) != value:
        client.remove_network(created["Id"])
        raise ContainerError(NOT_CLOSED.format(option=key))


def _age(network: dict[str, Any]) -> tuple[str, str]:
    """Return a key by which networks are sorted, the oldest first; the id makes the order of two unique."""
    return network["Created"], network["Id"]


def _raise_if_different(
    network_info: dict[str, Any], install: str, *, is_internal: bool, option: tuple[str, str]
) -> None:
    """Raise `ContainerError` if an existing network is not this install's, or was created with other options.

    `option` is the driver option, as name and value, that it must have.
    """
    is_ours = (network_info["Labels"] or {}).get(INSTALL_LABEL) == install
    key, value = option
    has_options = (
        network_info["Internal"] == is_internal and (network_info["Options"] or {}).get(key) == value
    )
    if not (is_ours and has_options):
        name = network_info["Name"]
        kind = "a closed one" if is_internal else "an open one"
        raise ContainerError(f"The network '{name}' is not {kind} of Andy: 'docker network rm {name}'.")


def _info(network_info: dict[str, Any]) -> NetworkInfo:
    """Return the name, the gateway's address and the host's interface of a network that the engine describes.

    Raises `ContainerError` if it has no gateway.
    """
    options = network_info["Options"] or {}
    # Unless an option names it, the engine calls the interface by the first characters of the network's id.
    bridge = options.get("com.docker.network.bridge.name") or f"br-{network_info['Id'][:12]}"
    return NetworkInfo(name=network_info["Name"], gateway=_gateway(network_info), bridge=bridge)


def _gateway(network_info: dict[str, Any]) -> str:
    """Return the address of a network's gateway, without the prefix length.

    `network_info` is the engine's description. Raises `ContainerError` if the network has no gateway.
    """
    for config in network_info["IPAM"]["Config"] or ():
        if "Gateway" in config:
            return str(config["Gateway"]).partition("/")[0]
    raise ContainerError(
        f"The network '{network_info['Name']}' has no gateway: remove it and start Andy again."
    )
