"""Whether what a request names is Andy's, and what is passed on of it."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, assert_never

from orchestrator.compose.socket_filter.engine import Engine
from orchestrator.compose.socket_filter.inventory import Ground
from orchestrator.compose.socket_filter.requests import Asked, Deed, Refused
from orchestrator.compose.socket_filter.template import INSTALL_LABEL, NETWORK_NAME, PROJECT_LABEL

Survey = Callable[[], Awaitable[Ground]]
LABEL_ASKED = re.compile(rf"{re.escape(INSTALL_LABEL)}=[A-Za-z0-9_.-]{{1,128}}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """The filter's own answer: a list without what is not Andy's."""

    document: Any


class Checks:
    """Looks each time anew: what was Andy's a moment ago may be gone, and its name another's."""

    def __init__(self, engine: Engine, *, survey: Survey, image: str) -> None:
        self._engine = engine
        self._survey = survey
        self._image = image

    async def check(self, asked: Asked) -> Asked | Answered:
        """Return what to pass on, or the answer.

        Raises:
            Refused: it names what is not Andy's.
            httpx.HTTPError: the engine does not answer.
        """
        match asked.deed:
            case Deed.ASK:
                return asked
            case Deed.INSPECT_IMAGE:
                self._check_image(asked.ref)
                return asked
            case Deed.LIST_CONTAINERS:
                return await self._containers(asked)
            case Deed.CREATE_CONTAINER:
                return await self._create(asked)
            case Deed.INSPECT_CONTAINER | Deed.START_CONTAINER | Deed.USE_CONTAINER | Deed.ATTACH:
                return await self._container(asked)
            case Deed.LIST_NETWORKS:
                return await self._networks(asked)
            case Deed.CREATE_NETWORK:
                return await self._mark(asked)
            case Deed.INSPECT_NETWORK | Deed.REMOVE_NETWORK:
                return await self._network(asked, await self._survey())
            case Deed.JOIN_NETWORK | Deed.LEAVE_NETWORK:
                return await self._plug(asked)
            case deed:
                assert_never(deed)

    def _check_image(self, named: object) -> None:
        if named != self._image:
            raise Refused(f"The image '{named}' is not the agents', which is '{self._image}'.")

    async def _containers(self, asked: Asked) -> Answered:
        label = _only(asked.query.get("filters", ""), "label")
        if not LABEL_ASKED.fullmatch(label):
            raise Refused(f"Containers are listed by one '{INSTALL_LABEL}=…' only.")
        ground = await self._survey()
        found = await self._engine.containers(label)
        return Answered(document=[one for one in found if ground.owns_container(one, one["Labels"])])

    async def _create(self, asked: Asked) -> Asked:
        body = asked.body or {}
        self._check_image(body["Image"])
        ground = await self._survey()
        host = body["HostConfig"]
        for one in host["Mounts"]:
            ground.check_bind(one["Source"], is_writable=not one.get("ReadOnly", False))
        if host["NetworkMode"] != "none":
            await self._own_network(host["NetworkMode"], ground)
        return asked

    async def _container(self, asked: Asked) -> Asked:
        ground = await self._survey()
        found = await self._own_container(asked.ref, ground)
        is_orchestrator = ground.is_orchestrator(found["Id"])
        if is_orchestrator and asked.deed is not Deed.INSPECT_CONTAINER:
            raise Refused("Andy's own container may be looked at, and no more.")
        if asked.deed is Deed.START_CONTAINER:
            for one in found["Mounts"]:
                if one["Type"] == "bind":
                    ground.check_bind(one["Source"], is_writable=one["RW"])
        return _by_id(asked, found)

    async def _own_container(self, ref: str, ground: Ground) -> Mapping[str, Any]:
        found = await self._engine.container(ref)
        if found is None:
            raise NotThere(f"No such container: {ref}")
        labels = (found.get("Config") or {}).get("Labels")
        if not (ground.is_orchestrator(found["Id"]) or ground.owns_container(found, labels)):
            raise Refused(f"The container '{ref}' is not Andy's.")
        return found

    async def _networks(self, asked: Asked) -> Answered:
        name = _only(asked.query.get("filters", ""), "name")
        bare = name.removeprefix("^").removesuffix("$").replace("\\", "")
        ground = await self._survey()
        found = await self._engine.networks(f"{PROJECT_LABEL}={ground.project}")
        wanted = [one for one in found if one["Name"] == bare or bare == ""]
        return Answered(document=wanted)

    async def _mark(self, asked: Asked) -> Asked:
        body = dict(asked.body or {})
        ground = await self._survey()
        body["Labels"] = body["Labels"] | {PROJECT_LABEL: ground.project}
        return replace(asked, body=body)

    async def _network(self, asked: Asked, ground: Ground) -> Asked:
        return _by_id(asked, await self._own_network(asked.ref, ground))

    async def _own_network(self, ref: str, ground: Ground) -> Mapping[str, Any]:
        found = await self._engine.network(ref)
        if found is None:
            raise NotThere(f"network {ref} not found")
        if not (ground.owns_network(found) and NETWORK_NAME.fullmatch(found["Name"])):
            raise Refused(f"The network '{ref}' is not Andy's.")
        return found

    async def _plug(self, asked: Asked) -> Asked:
        ground = await self._survey()
        body = dict(asked.body or {})
        found = await self._own_container(body["Container"], ground)
        body["Container"] = found["Id"]
        return _by_id(replace(asked, body=body), await self._own_network(asked.ref, ground))


class NotThere(Exception):
    """The engine has none such; docker-py takes it as "gone already"."""


def _by_id(asked: Asked, found: Mapping[str, Any]) -> Asked:
    """Name it by its id from here on: a name may become another's in between."""
    return replace(asked, target=asked.target.replace(f"/{asked.ref}", f"/{found['Id']}", 1), ref=found["Id"])


def _only(text: str, key: str) -> str:
    """The one value of the one filter that may be there; empty when nothing is filtered."""
    try:
        found = json.loads(text) if text else {}
    except (ValueError, RecursionError) as error:
        raise Refused("The filters are no JSON.") from error
    match found:
        case {} if not found:
            return ""
        case dict() if list(found) == [key] and isinstance(found[key], list) and len(found[key]) == 1:
            return str(found[key][0])
    raise Refused(f"The only filter here is one '{key}'.")
