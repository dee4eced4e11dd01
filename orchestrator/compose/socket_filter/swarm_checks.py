"""Check requests about a swarm: they may concern only Andy's own objects.

A new service must have the image of agents, and the volume, network and secret of its own group and run.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal, assert_never

from orchestrator.compose.socket_filter.inventory import Engine, EngineInventory, has_label, own_network
from orchestrator.compose.socket_filter.requests import (
    EngineRequest,
    FilteredResponse,
    ObjectNotFound,
    RequestForbidden,
    RequestKind,
    only_filter,
)
from orchestrator.compose.socket_filter.swarm_template import NODE_LABEL, ON_NODE
from orchestrator.compose.socket_filter.template import GROUP_LABEL, INSTALL_LABEL, PROJECT_LABEL, RUN_LABEL

SwarmKind = Literal[
    RequestKind.ASK_SWARM,
    RequestKind.LIST_NODES,
    RequestKind.LIST_SERVICES,
    RequestKind.CREATE_SERVICE,
    RequestKind.REMOVE_SERVICE,
    RequestKind.LIST_TASKS,
    RequestKind.LIST_SECRETS,
    RequestKind.CREATE_SECRET,
    RequestKind.REMOVE_SECRET,
]
ALLOWED_WITHOUT_SWARM = frozenset(
    {
        RequestKind.LIST_SERVICES,
        RequestKind.REMOVE_SERVICE,
        RequestKind.LIST_TASKS,
        RequestKind.LIST_SECRETS,
        RequestKind.REMOVE_SECRET,
    }
)
"""Requests that pass with every runtime: after a change of runtime, leftovers on the swarm are removed."""
OF_SECRETS = (RequestKind.LIST_SECRETS, RequestKind.REMOVE_SECRET)


class SwarmChecks:
    """The part of `Checks` that is about a swarm. Nothing is cached here either."""

    def __init__(
        self,
        engine: Engine,
        *,
        survey: Callable[[], Awaitable[EngineInventory]],
        image: str,
        is_wanted: bool,
    ) -> None:
        """`survey` returns what is Andy's now, and `image` is the tag of the agents' image.

        `is_wanted` lets agents run on the nodes of a swarm.
        """
        self._engine = engine
        self._survey = survey
        self._image = image
        self._is_wanted = is_wanted

    def check_wanted(self) -> None:
        """Raise `RequestForbidden`, with the fix, if agents may not run on the nodes of a swarm."""
        if not self._is_wanted:
            raise RequestForbidden(
                "That is for a swarm: set ANDY_RUNTIME=swarm in .env, then 'docker compose up -d'."
            )

    async def check(self, kind: SwarmKind, request: EngineRequest) -> EngineRequest | FilteredResponse:
        """Return the request to pass on, or the filter's own answer to it.

        Raises:
            RequestForbidden: it names what is not Andy's, or no swarm is wanted.
            ObjectNotFound: Andy has no such object.
            httpx.HTTPError: the engine does not answer.
        """
        if kind not in ALLOWED_WITHOUT_SWARM:
            self.check_wanted()
        match kind:
            case RequestKind.ASK_SWARM:
                state = await self._engine.swarm()
                needed_fields = {name: state[name] for name in ("LocalNodeState", "ControlAvailable")}
                return FilteredResponse(document={"Swarm": needed_fields})
            case RequestKind.LIST_NODES:
                return FilteredResponse(document=[_plain_node(node) for node in await self._engine.nodes()])
            case RequestKind.LIST_SERVICES | RequestKind.LIST_SECRETS:
                return await self._list(request)
            case RequestKind.LIST_TASKS:
                return await self._list_tasks(request)
            case RequestKind.CREATE_SERVICE:
                return await self._check_service(request)
            case RequestKind.CREATE_SECRET:
                return request.labelled((await self._survey()).project)
            case RequestKind.REMOVE_SERVICE | RequestKind.REMOVE_SECRET:  # named by id
                if not any(
                    item["ID"] == request.ref for item in await self._own_services_or_secrets(request)
                ):
                    raise ObjectNotFound(f"Andy has no {request.ref} on the swarm.")
                return request
            case other:
                assert_never(other)

    async def _own_services_or_secrets(self, request: EngineRequest) -> list[dict[str, Any]]:
        """Return the secrets or the services of this Compose project, whichever the request is about."""
        label = f"{PROJECT_LABEL}={(await self._survey()).project}"
        ask = self._engine.secrets if request.kind in OF_SECRETS else self._engine.services
        return await ask(label)

    async def _list(self, request: EngineRequest) -> FilteredResponse:
        """Answer a request to list services or secrets: those of this project that the filter names."""
        key, value = only_filter(request.query.get("filters", ""), "label", "id", "name")

        def is_requested(item: Mapping[str, Any]) -> bool:
            """Return whether the filter names this service or secret; true without a filter."""
            match key:
                case "":
                    return True
                case "label":
                    return has_label(item["Spec"]["Labels"], value)
                case "id":
                    return bool(item["ID"] == value)
                case _:  # "name": `only_filter` has refused every other key
                    return bool(item["Spec"]["Name"] == value)

        return FilteredResponse(
            document=[item for item in await self._own_services_or_secrets(request) if is_requested(item)]
        )

    async def _list_tasks(self, request: EngineRequest) -> FilteredResponse:
        """Answer a request to list tasks: those of this Compose project's services.

        With a service in the filter, only the tasks of that one.
        """
        _, ref = only_filter(request.query.get("filters", ""), "service")
        ids = [
            service["ID"]
            for service in await self._own_services_or_secrets(request)
            if ref in ("", service["ID"])
        ]
        # Without a service in the filter, the engine would list everybody's tasks.
        return FilteredResponse(document=await self._engine.tasks(ids) if ids else [])

    async def _check_service(self, request: EngineRequest) -> EngineRequest:
        """Check that all parts of a new service belong to one run (container) of one group.

        Return the request with the label of this Compose project. Raises `RequestForbidden`.
        """
        # `NewService` has checked the form of the body: each list that is read by `[0]` here has an element.
        body = request.body or {}
        labels, task = body["Labels"], body["TaskTemplate"]
        container, inventory = task["ContainerSpec"], await self._survey()
        if container["Labels"] != labels:
            raise RequestForbidden("The labels of the container are not those of the service.")
        # Such as `node.id==abc`, where the label of the node is `abc`.
        if task["Placement"]["Constraints"][0] != ON_NODE + labels[NODE_LABEL]:
            raise RequestForbidden("The node is not the one that the labels name.")
        await self._check_image(container["Image"])
        _check_workspace(container["Mounts"][0], labels)
        await self._check_network(task["Networks"][0]["Target"], labels, inventory)
        await self._check_secret(container["Secrets"][0]["SecretID"], labels, inventory)
        return request.labelled(inventory.project)

    async def _check_image(self, name: str) -> None:
        """Raise `RequestForbidden` if `name`, an id or a digest, is not that of the agents' image."""
        image = await self._engine.image(self._image)
        if image is None or name not in (image["Id"], *(image.get("RepoDigests") or ())):
            raise RequestForbidden(f"The image '{name}' is not the agents', which is '{self._image}'.")

    async def _check_network(self, ref: str, labels: Mapping[str, str], inventory: EngineInventory) -> None:
        """Raise `RequestForbidden` if the network `ref` is not that of the group in the service's labels."""
        network_labels = (await own_network(self._engine, inventory, ref))["Labels"]
        if any(network_labels.get(name) != labels[name] for name in (INSTALL_LABEL, GROUP_LABEL)):
            raise RequestForbidden(f"The network '{ref}' is not that of the group.")

    async def _check_secret(self, ref: str, labels: Mapping[str, str], inventory: EngineInventory) -> None:
        """Raise `RequestForbidden` if the secret `ref` is not that of the run in the service's labels."""
        for secret in await self._engine.secrets(f"{PROJECT_LABEL}={inventory.project}"):
            if secret["ID"] == ref and secret["Spec"]["Labels"].get(RUN_LABEL) == labels[RUN_LABEL]:
                return
        raise RequestForbidden(f"The secret '{ref}' is not that of the run.")


def _check_workspace(mount: Mapping[str, Any], labels: Mapping[str, str]) -> None:
    """Raise `RequestForbidden` if a volume for a workspace is not that of the group in the service's labels.

    A named volume stays on its node with a group's files, so only that group may mount it.
    """
    own_name = f"andy-{labels[INSTALL_LABEL]}-{labels[GROUP_LABEL]}"
    group = mount["VolumeOptions"]["Labels"][GROUP_LABEL]
    # A volume without a name (`Source`) is a new one, which has nobody's files.
    if mount.get("Source", own_name) != own_name or group != labels[GROUP_LABEL]:
        raise RequestForbidden(f"The volume '{mount.get('Source')}' is not that of the group.")


def _plain_node(node: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a node that Andy needs, without its certificates and its engine's abilities.

    A field that is missing becomes None, such as the host name of a node that was never reached.
    """
    return {
        "ID": node["ID"],
        "Spec": {name: node["Spec"].get(name) for name in ("Availability", "Labels")},
        "Status": node["Status"],
        "Description": {"Hostname": (node.get("Description") or {}).get("Hostname")},
    }
