"""Check that the objects in a request are Andy's, and rebuild the request before it is passed on."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

from orchestrator.compose.socket_filter.inventory import Engine, EngineInventory, has_label, own_network
from orchestrator.compose.socket_filter.requests import (
    EngineRequest,
    FilteredResponse,
    ObjectNotFound,
    RequestForbidden,
    RequestKind,
    only_filter,
)
from orchestrator.compose.socket_filter.swarm_checks import SwarmChecks
from orchestrator.compose.socket_filter.template import INSTALL_LABEL, OVERLAY_NAME, PROJECT_LABEL

Survey = Callable[[], Awaitable[EngineInventory]]
INSTALL_FILTER = re.compile(rf"{re.escape(INSTALL_LABEL)}=[A-Za-z0-9_.-]{{1,128}}")


class Checks:
    """Checks requests against the engine's present state.

    Nothing is cached: an object of Andy's may be gone by now, and its name may be another's.
    """

    def __init__(self, engine: Engine, *, survey: Survey, image: str, has_swarm: bool = False) -> None:
        """`survey` returns what is Andy's now, and `image` is the tag of the agents' image.

        `has_swarm` allows agents on the nodes of a swarm, too.
        """
        self._engine = engine
        self._survey = survey
        self._image = image
        self._swarm = SwarmChecks(engine, survey=survey, image=image, is_wanted=has_swarm)

    async def check(self, request: EngineRequest) -> EngineRequest | FilteredResponse:
        """Return the request to pass on, or the filter's own answer to it.

        Raises:
            RequestForbidden: it names what is not Andy's.
            ObjectNotFound: the engine has no such object.
            httpx.HTTPError: the engine does not answer.
        """
        match request.kind:
            case RequestKind.ASK:  # about the engine itself, such as its version: no object is named
                return request
            case RequestKind.INSPECT_IMAGE:
                self._check_image(request.ref)
                return request
            case RequestKind.LIST_CONTAINERS:
                return await self._list_containers(request)
            case RequestKind.CREATE_CONTAINER:
                return await self._check_new_container(request)
            case (
                RequestKind.INSPECT_CONTAINER
                | RequestKind.START_CONTAINER
                | RequestKind.USE_CONTAINER
                | RequestKind.ATTACH
            ):
                return await self._check_container(request)
            case RequestKind.LIST_NETWORKS:
                return await self._list_networks(request)
            case RequestKind.CREATE_NETWORK:
                return await self._label_network(request)
            case RequestKind.INSPECT_NETWORK | RequestKind.REMOVE_NETWORK:
                return await self._check_network(request, await self._survey())
            case RequestKind.JOIN_NETWORK | RequestKind.LEAVE_NETWORK:
                return await self._check_connection(request)
            case kind:  # all other kinds are about a swarm
                return await self._swarm.check(kind, request)

    def _check_image(self, image: object) -> None:
        """Raise `RequestForbidden` if an image is not that of the agents."""
        if image != self._image:
            raise RequestForbidden(f"The image '{image}' is not the agents', which is '{self._image}'.")

    async def _list_containers(self, request: EngineRequest) -> FilteredResponse:
        """Answer a request to list containers: Andy's containers with the label that the request names.

        Raises `RequestForbidden` if it does not name the label of an installation of Andy's.
        """
        _, label = only_filter(request.query.get("filters", ""), "label")
        if not INSTALL_FILTER.fullmatch(label):
            raise RequestForbidden(f"Containers are listed by one '{INSTALL_LABEL}=…' only.")
        inventory = await self._survey()
        labelled = await self._engine.containers(label)
        return FilteredResponse(
            document=[
                container
                for container in labelled
                if inventory.owns_container(container, container["Labels"])
            ]
        )

    async def _check_new_container(self, request: EngineRequest) -> EngineRequest:
        """Check the image, the mounts and the network of a new container, and return the request unchanged.

        Raises `RequestForbidden`.
        """
        body = request.body or {}
        self._check_image(body["Image"])
        inventory = await self._survey()
        host = body["HostConfig"]
        for mount in host["Mounts"]:
            inventory.check_bind(mount["Source"], is_writable=not mount.get("ReadOnly", False))
        if host["NetworkMode"] != "none":
            await own_network(self._engine, inventory, host["NetworkMode"])
        return request

    async def _check_container(self, request: EngineRequest) -> EngineRequest:
        """Check that the container is Andy's and, before it is started, that its mounts still are.

        Return the request with the container's id in place of its name. Raises `ObjectNotFound`,
        `RequestForbidden`.
        """
        inventory = await self._survey()
        container = await self._own_container(request.ref, inventory)
        is_orchestrator = inventory.is_orchestrator(container["Id"])
        if is_orchestrator and request.kind is not RequestKind.INSPECT_CONTAINER:
            raise RequestForbidden("Andy's own container may be looked at, and no more.")
        if request.kind is RequestKind.START_CONTAINER:
            # Once more at the start, since a link may have been planted after the creation.
            for mount in container["Mounts"]:
                if mount["Type"] == "bind":
                    inventory.check_bind(mount["Source"], is_writable=mount["RW"])
        return _by_id(request, container)

    async def _own_container(self, ref: str, inventory: EngineInventory) -> Mapping[str, Any]:
        """Return what the engine knows of a container of Andy's, named by id or name.

        Raises:
            ObjectNotFound: there is no such container.
            RequestForbidden: it is not Andy's.
        """
        container = await self._engine.container(ref)
        if container is None:
            raise ObjectNotFound(f"No such container: {ref}")
        labels = (container.get("Config") or {}).get("Labels")
        if not (inventory.is_orchestrator(container["Id"]) or inventory.owns_container(container, labels)):
            raise RequestForbidden(f"The container '{ref}' is not Andy's.")
        return container

    async def _list_networks(self, request: EngineRequest) -> FilteredResponse:
        """Answer a request to list networks: those of this Compose project with the requested name or label.

        Without a filter, all of the project's. A name may be written as a pattern such as `^name$`.
        """
        key, value = only_filter(request.query.get("filters", ""), "name", "label")
        project_networks = await self._engine.networks(f"{PROJECT_LABEL}={(await self._survey()).project}")
        if key == "label":
            wanted = [network for network in project_networks if has_label(network["Labels"], value)]
        else:
            # A character that is escaped in the pattern, such as `\.`, counts as itself.
            wanted_name = value.removeprefix("^").removesuffix("$").replace("\\", "")
            wanted = [network for network in project_networks if wanted_name in ("", network["Name"])]
        return FilteredResponse(document=wanted)

    async def _label_network(self, request: EngineRequest) -> EngineRequest:
        """Return the request to create a network, with the label of this Compose project added.

        Raises `RequestForbidden` for a network across a swarm, if agents may not run on a swarm.
        """
        # A request without a driver does not get here: it does not fit `template.NewNetwork`.
        if (request.body or {})["Driver"] == "overlay":
            self._swarm.check_wanted()
        return request.labelled((await self._survey()).project)

    async def _check_network(self, request: EngineRequest, inventory: EngineInventory) -> EngineRequest:
        """Check that the network is Andy's, and return the request with its id in place of its name.

        The name may come to be another network's before the request is carried out.

        Raises `ObjectNotFound`, `RequestForbidden`.
        """
        return _by_id(request, await own_network(self._engine, inventory, request.ref))

    async def _check_connection(self, request: EngineRequest) -> EngineRequest:
        """Check a request to connect a container with a network, or to disconnect it: both must be Andy's.

        Return the request with their ids in place of their names. Raises `ObjectNotFound`,
        `RequestForbidden`.
        """
        inventory = await self._survey()
        body = dict(request.body or {})
        container = await self._own_container(body["Container"], inventory)
        body["Container"] = container["Id"]
        network = await own_network(self._engine, inventory, request.ref)
        if OVERLAY_NAME.fullmatch(network["Name"]) and not inventory.is_orchestrator(container["Id"]):
            raise RequestForbidden(
                "Of this machine's containers, only Andy's own joins a network of a swarm."
            )
        return _by_id(replace(request, body=body), network)


def _by_id(request: EngineRequest, engine_object: Mapping[str, Any]) -> EngineRequest:
    """Return the request with the id of the object in place of its name.

    `engine_object` is what the engine knows of the object. By the time the request is carried out, the name
    may be another object's.
    """
    # `version` is such as `/v1.41`, or empty. In `/v1.41/containers/NAME` the name is after the second slash
    # behind it. It is not searched for: a short name such as `c` would be found in `containers`.
    start = request.target.index("/", len(request.version) + 1) + 1
    end = start + len(request.ref)
    target = f"{request.target[:start]}{engine_object['Id']}{request.target[end:]}"
    return replace(request, target=target, ref=engine_object["Id"])
