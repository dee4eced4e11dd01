"""Finds Andy's objects on this engine: its own container, folders, agents and networks."""

from __future__ import annotations

import json
import stat
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Self
from urllib.parse import quote

import httpx

from orchestrator.compose.self_inspect import BindMount, mount_of_source
from orchestrator.compose.socket_filter.requests import ObjectNotFound, RequestForbidden
from orchestrator.compose.socket_filter.template import (
    GROUP_LABEL,
    INSTALL_LABEL,
    NETWORK_NAME,
    OVERLAY_NAME,
    PROJECT_LABEL,
    RUN_LABEL,
)
from orchestrator.home.directory import SHOWN_TO_MAIN

ASK_SECONDS = 30.0
"""Seconds that the engine may take to answer."""
RUNS = (httpx.codes.NO_CONTENT, httpx.codes.NOT_MODIFIED)
"""Statuses of an answer to a start: the container was started, or ran already."""

UNKNOWN_ANSWER = (AttributeError, LookupError, TypeError, ValueError)
"""Errors of an engine's answer that is no JSON, or has other fields than are known here."""


class Engine:
    """Asks the engine the filter's own questions. Answers are the engine's JSON, None for what is missing."""

    def __init__(self, socket_path: str) -> None:
        """`socket_path` is that of the engine's Unix socket."""
        transport = httpx.AsyncHTTPTransport(uds=socket_path)
        self._http = httpx.AsyncClient(transport=transport, base_url="http://docker", timeout=ASK_SECONDS)

    async def __aenter__(self) -> Self:
        """Return this connection, which `__aexit__` closes."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the connections to the engine."""
        await self._http.aclose()

    async def container(self, ref: str) -> dict[str, Any] | None:
        """Return what the engine knows of a container, named by id or name.

        None if there is no such container.
        """
        answer: dict[str, Any] | None = await self._get(f"/containers/{quote(ref, safe='')}/json")
        return answer

    async def containers(self, *labels: str) -> list[dict[str, Any]]:
        """Return all containers that have these labels, running or not."""
        answer: list[dict[str, Any]] = await self._get("/containers/json", all="1", filters={"label": labels})
        return answer

    async def network(self, ref: str) -> dict[str, Any] | None:
        """Return what the engine knows of a network, named by id or name.

        None if there is no such network.
        """
        answer: dict[str, Any] | None = await self._get(f"/networks/{quote(ref, safe='')}")
        return answer

    async def networks(self, label: str) -> list[dict[str, Any]]:
        """Return all networks that have this label, `name=value`."""
        answer: list[dict[str, Any]] = await self._get("/networks", filters={"label": [label]})
        return answer

    async def image(self, name: str) -> dict[str, Any] | None:
        """Return what the engine knows of an image; None if there is no such image."""
        answer: dict[str, Any] | None = await self._get(f"/images/{quote(name, safe='/:@')}/json")
        return answer

    async def swarm(self) -> dict[str, Any]:
        """Return what the engine says of its part in a swarm: the field `Swarm` of `GET /info`."""
        answer: dict[str, Any] = await self._get("/info")
        return dict(answer["Swarm"])

    async def nodes(self) -> list[dict[str, Any]]:
        """Return the machines of the swarm."""
        answer: list[dict[str, Any]] = await self._get("/nodes")
        return answer

    async def services(self, label: str) -> list[dict[str, Any]]:
        """Return all services of the swarm that have this label, `name=value`."""
        answer: list[dict[str, Any]] = await self._get("/services", filters={"label": [label]})
        return answer

    async def secrets(self, label: str) -> list[dict[str, Any]]:
        """Return all secrets of the swarm that have this label, `name=value`; their contents stay secret."""
        answer: list[dict[str, Any]] = await self._get("/secrets", filters={"label": [label]})
        return answer

    async def tasks(self, services: Collection[str]) -> list[dict[str, Any]]:
        """Return the tasks of the services with these ids; empty if one of these services is gone."""
        answer: list[dict[str, Any]] | None = await self._get("/tasks", filters={"service": [*services]})
        return answer or []

    async def start(self, ref: str) -> str | None:
        """Start a container. Return why it did not start, or None when it runs."""
        answer = await self._http.post(f"/containers/{quote(ref, safe='')}/start")
        return None if answer.status_code in RUNS else answer.text[:500]

    async def _get(self, path: str, *, filters: object = None, **query: str) -> Any:
        """Return the JSON of the engine's answer to `GET path`; None if it knows no such object.

        `filters` limit a list, `query` has other parameters. Raises `httpx.HTTPError`.
        """
        parameters = query | ({"filters": json.dumps(filters)} if filters else {})
        answer = await self._http.get(path, params=parameters)
        if answer.status_code == httpx.codes.NOT_FOUND:
            return None
        answer.raise_for_status()
        return answer.json()


ROLE_LABEL, ROLE = "andy.role", "orchestrator"
COMPOSE_LABEL = "com.docker.compose.project"
PER_GROUP = ("ipc", "env", "sessions", "skills")
"""Folders in `data` that contain one folder for each group."""
PROJECT_VIEW = PurePosixPath("data/project")
"""The empty folder in which main's view of the project is put together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineInventory:
    """The containers, folders and networks of this home on the engine.

    `ids` are the orchestrator's containers: two while one replaces another.
    """

    project: str
    home: PurePosixPath
    ids: frozenset[str]
    orchestrator_mounts: Sequence[BindMount]
    filter_mounts: Sequence[BindMount]

    def owns_container(self, container: Mapping[str, Any], labels: Mapping[str, str] | None) -> bool:
        """Return whether a container is an agent of this home, judged by its labels and bind mounts.

        `container` is what the engine knows of it. Its `labels` are passed separately, because a list of
        containers has them in another field than the answer about one container.
        """
        binds = [mount for mount in container.get("Mounts") or () if mount["Type"] == "bind"]
        # Labels alone prove nothing, since whoever creates a container chooses them.
        has_labels = all(name in (labels or {}) for name in (INSTALL_LABEL, GROUP_LABEL, RUN_LABEL))
        return has_labels and bool(binds) and all(self._is_in_own_mount(mount["Source"]) for mount in binds)

    def _is_in_own_mount(self, source: str) -> bool:
        """Return whether a path of the host is in a folder that Andy's own container has."""
        return mount_of_source(self.orchestrator_mounts, source) is not None

    def owns_network(self, network: Mapping[str, Any]) -> bool:
        """Return whether a network was made by this Compose project."""
        return (network.get("Labels") or {}).get(PROJECT_LABEL) == self.project

    def is_orchestrator(self, container_id: str) -> bool:
        """Return whether a container is this Compose project's orchestrator, the running or an old one."""
        return container_id in self.ids

    def check_bind(self, source: str, *, is_writable: bool) -> None:
        """Check that the folder `source` of the host may be mounted into an agent's container.

        That is a folder of the home for agents, or one outside of it that the owner mounted into Andy.

        Raises:
            RequestForbidden: it is neither, or the agent may not write there; or it is in the home, and a
                part of its path is a link or missing, or the filter cannot see it.
        """
        mount = mount_of_source(self.orchestrator_mounts, source)
        if mount is None:
            raise RequestForbidden(f"{source} lies in no folder that Andy itself was given.")
        if is_writable and not mount.is_writable:
            raise RequestForbidden(f"{source} may be read only: Andy itself cannot write there.")
        inside = mount.inside(source)
        if not inside.is_relative_to(self.home):
            self._check_extra(source, mount)
            return
        if not _is_for_agents(inside.relative_to(self.home), is_writable=is_writable):
            raise RequestForbidden(f"{source} is not for agents.")
        self._check_links(source)

    def _check_extra(self, source: str, mount: BindMount) -> None:
        """Raise `RequestForbidden` unless a folder outside of the home is itself one that the owner mounted.

        `mount` is the mount of Andy's container in which the folder is: a part of it is not enough.
        """
        if mount.source != source or mount.kind != "bind":
            raise RequestForbidden(f"{source} is a part of a folder: mount it into Andy by itself.")

    def _check_links(self, source: str) -> None:
        """Raise `RequestForbidden` unless each part of the host's path `source` is a folder or a plain file.

        The engine follows links as root, and a hostile orchestrator could plant one. A path that is in no
        mount of the filter is refused, too, because it cannot be checked.
        """
        filter_mount = mount_of_source(self.filter_mounts, source)
        if filter_mount is None:
            raise RequestForbidden(
                f"The filter does not see {source}: give 'engine' the same folders as 'andy'."
            )
        path = Path(filter_mount.destination)
        for part in filter_mount.inside(source).relative_to(filter_mount.destination).parts:
            path = path / part
            mode = _mode(path)
            if mode is None or not (stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
                raise RequestForbidden(f"{source} is not there, or has a link in it.")


def _mode(path: Path) -> int | None:
    """Return the mode of a path itself, not of what it links to; None if it cannot be read."""
    try:
        return path.lstat().st_mode
    except OSError:
        return None


def _is_for_agents(path: PurePosixPath, *, is_writable: bool) -> bool:
    """Return whether an agent may have a path below the home mounted, as `containers/mounts.py` mounts them.

    `path` is relative to the home. `is_writable` says that the agent could write there.
    """
    match path.parts:
        case ("groups",):  # main may read the folders of all groups
            return not is_writable
        case ("groups", *_):  # a group's own folder, and what is in it
            return True
        case ("mcp", _):  # the owner's programs, which agents may run and nobody may change
            return not is_writable
        case ("data", kind, _, *_) if kind in PER_GROUP:  # such as `data/ipc/family`
            return True
        case (name, *_) if name in SHOWN_TO_MAIN:  # the parts of the project that main may read
            return not is_writable
    # Only main has this empty folder, in which the files that it may read are mounted.
    return path == PROJECT_VIEW and not is_writable


async def survey(engine: Engine, *, own_id: str, home: PurePosixPath) -> EngineInventory:
    """Return what belongs to Andy now, from what the engine says of this filter and its orchestrator.

    `own_id` is the id of the filter's container; `home` is the path of Andy's home in his own container.

    Raises:
        RequestForbidden: the filter's container is not in a Compose project, or there is no orchestrator.
    """
    filter_container, hosts = await orchestrators(engine, own_id=own_id)
    project = filter_container["Config"]["Labels"][COMPOSE_LABEL]
    # While one orchestrator replaces another there are two, and the newer one's mounts count.
    newest = max(hosts, key=lambda container: int(container["Created"]), default=None)
    if newest is None:
        raise RequestForbidden(f"There is no orchestrator in the Compose project '{project}'.")
    return EngineInventory(
        project=project,
        home=home,
        ids=frozenset(container["Id"] for container in hosts),
        orchestrator_mounts=BindMount.of(newest["Mounts"]),
        filter_mounts=BindMount.of(filter_container["Mounts"]),
    )


async def orchestrators(
    engine: Engine, *, own_id: str
) -> tuple[Mapping[str, Any], Sequence[Mapping[str, Any]]]:
    """Return the filter's own container, and the containers of Andy's host in the same Compose project.

    There are two of them while one replaces another. `own_id` is the id of the filter's container.

    Raises:
        RequestForbidden: the filter's container is not one of a Compose project, or is not known.
    """
    filter_container = await engine.container(own_id)
    project = ((filter_container or {}).get("Config", {}).get("Labels") or {}).get(COMPOSE_LABEL)
    if filter_container is None or not project:
        raise RequestForbidden("The filter does not know its own container: start it with docker compose.")
    return filter_container, await engine.containers(f"{COMPOSE_LABEL}={project}", f"{ROLE_LABEL}={ROLE}")


async def own_network(engine: Engine, inventory: EngineInventory, ref: str) -> Mapping[str, Any]:
    """Return what the engine knows of a network of this Compose project, named by id or name.

    Raises:
        ObjectNotFound: there is none of that name.
        RequestForbidden: it is not Andy's.
    """
    network = await engine.network(ref)
    if network is None:
        raise ObjectNotFound(f"network {ref} not found")
    has_name = NETWORK_NAME.fullmatch(network["Name"]) or OVERLAY_NAME.fullmatch(network["Name"])
    if not (inventory.owns_network(network) and has_name):
        raise RequestForbidden(f"The network '{ref}' is not Andy's.")
    return network


def has_label(labels: Mapping[str, str] | None, wanted: str) -> bool:
    """Return whether labels, which may be None, contain the one that `wanted` writes as `name=value`."""
    name, _, value = wanted.partition("=")
    return (labels or {}).get(name) == value
