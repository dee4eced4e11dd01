"""Create and find an install's network, which its containers share with the host but not with each other."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orchestrator.containers.docker import client as docker_client
from orchestrator.containers.docker.runtime import INSTALL_LABEL
from orchestrator.domain.errors import ContainerError

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

    They reach whatever listens on a non-loopback address of the host, unless a `Firewall` prevents it.

    Raises:
        EngineGone: no engine answers.
        ContainerError: the network cannot be created, or one of that name has another owner or other options.
    """
    return await asyncio.to_thread(_ensure, install)


def find_network(client: APIClient, install: str) -> NetworkInfo | None:
    """Find the network of an install, or return None. Blocks. Raises docker-py's errors."""
    found = named(client, _name(install))
    return None if found is None else _info(found)


async def remove_network(install: str) -> None:
    """Remove the network; a missing one is no error. Raises like `ensure_network`."""
    await asyncio.to_thread(_remove, install)


def open_network(client: APIClient, *, install: str, suffix: str = "open") -> str:
    """Find or create the network `andy-{install}-{suffix}`, and return its name. Blocks.

    Its containers reach the internet but not each other. Raises like `find_or_make`.
    """
    name = open_name(install, suffix=suffix)
    return str(find_or_make(client, name, install, is_internal=False)["Name"])


def open_name(install: str, *, suffix: str = "open") -> str:
    return f"{_name(install)}-{suffix}"


def find_or_make(
    client: APIClient, name: str, install: str, *, is_internal: bool, option: tuple[str, str] = NO_NEIGHBOURS
) -> dict[str, Any]:
    """Return the network of that name, created with `option` if missing. Blocks.

    Raises docker-py's errors, and `ContainerError` when a network of that name has another owner or other
    options.
    """
    found = named(client, name) or _made(client, name, install, is_internal=is_internal, option=option)
    _refuse_others(found, install, is_internal=is_internal, option=option)
    return found


def _ensure(install: str) -> NetworkInfo:
    name = _name(install)
    with _client() as client:
        found = find_or_make(client, name, install, is_internal=True)
    return _info(found)


def _remove(install: str) -> None:
    with _client() as client:
        for name in (_name(install), open_name(install)):
            with docker_client.already_so():
                client.remove_network(name)


@contextmanager
def _client() -> Iterator[APIClient]:
    with docker_client.translated(), closing(docker_client.connect()) as client:
        yield client


def _name(install: str) -> str:
    return f"andy-{install}"


def named(client: APIClient, name: str) -> dict[str, Any] | None:
    """Find the network of that name; of several, the oldest, since the engine can create two at once."""
    found = [each for each in client.networks(names=[f"^{name}$"]) if each["Name"] == name]
    return min(found, key=_age) if found else None


def _made(
    client: APIClient, name: str, install: str, *, is_internal: bool, option: tuple[str, str]
) -> dict[str, Any]:
    import docker.errors

    made = ""
    try:
        made = client.create_network(
            name,
            driver="bridge",
            internal=is_internal,
            check_duplicate=True,
            labels={INSTALL_LABEL: install},
            options=dict([option]),
        )["Id"]
    except docker.errors.APIError as error:
        # With its default settings, an engine has addresses for 31 networks.
        if "address pool" in str(error.explanation):
            raise ContainerError(NO_ADDRESSES) from error
        if error.status_code != ANOTHER_WAS_FASTER:
            raise
    found = named(client, name)
    if found is None:
        raise ContainerError(f"Docker lost the network '{name}' that it just made: try again.")
    if made and found["Id"] != made:
        client.remove_network(made)
    elif made:
        _refuse_less(client, found, option)
    return found


def _refuse_less(client: APIClient, made: dict[str, Any], option: tuple[str, str]) -> None:
    """Remove a network that the engine created with fewer options than requested, and raise an error."""
    key, value = option
    if (made["Options"] or {}).get(key) != value:
        client.remove_network(made["Id"])
        raise ContainerError(NOT_CLOSED.format(option=key))


def _age(network: dict[str, Any]) -> tuple[str, str]:
    return network["Created"], network["Id"]


def _refuse_others(seen: dict[str, Any], install: str, *, is_internal: bool, option: tuple[str, str]) -> None:
    is_ours = (seen["Labels"] or {}).get(INSTALL_LABEL) == install
    key, value = option
    is_as_made = seen["Internal"] == is_internal and (seen["Options"] or {}).get(key) == value
    if not (is_ours and is_as_made):
        name, kind = seen["Name"], "a closed one" if is_internal else "an open one"
        raise ContainerError(f"The network '{name}' is not {kind} of Andy: 'docker network rm {name}'.")


def _info(seen: dict[str, Any]) -> NetworkInfo:
    bridge = (seen["Options"] or {}).get("com.docker.network.bridge.name") or f"br-{seen['Id'][:12]}"
    return NetworkInfo(name=seen["Name"], gateway=_gateway(seen), bridge=bridge)


def _gateway(seen: dict[str, Any]) -> str:
    for config in seen["IPAM"]["Config"] or ():
        if "Gateway" in config:
            return str(config["Gateway"]).partition("/")[0]
    raise ContainerError(f"The network '{seen['Name']}' has no gateway: remove it and start Andy again.")
