"""The containers and networks that may be created: anything not listed here is refused.

Names are exactly those of Docker's API: the engine accepts any case, this does not. Fields that docker-py
always sends are allowed with the one value that it sends.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, RootModel, StringConstraints

INSTALL_LABEL, GROUP_LABEL, RUN_LABEL = "andy.install", "andy.group", "andy.run"
PROJECT_LABEL = "andy.project"
NAME = r"andy-[A-Za-z0-9_.-]{1,180}"
NETWORK_NAME = re.compile(r"andy-[0-9a-f]{12}(-out|\.[A-Za-z0-9_.-]{1,64})")
OVERLAY_NAME = re.compile(r"andy-[0-9a-f]{12}-[0-9a-f]{12}")
MAX_MEMORY_BYTES, MAX_NANO_CPUS = 1024**4, 512 * 10**9
"""The most that the configuration of a group may give its containers: 1 TiB, and 512 processors."""
SCRATCH = r"rw,exec,nosuid,nodev,size=256m,mode=(1777|0755,uid=[0-9]{1,7},gid=[0-9]{1,7})"

ScratchPlace = Literal["/tmp", "/home/andy"]  # noqa: S108  # the container's own
Id = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.-]{1,128}$")]
NetworkName = Annotated[str, StringConstraints(pattern=rf"^({NETWORK_NAME.pattern})$")]
OverlayName = Annotated[str, StringConstraints(pattern=rf"^({OVERLAY_NAME.pattern})$")]
Install = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{12}$")]
AbsolutePath = Annotated[str, StringConstraints(pattern=r"^(/[^/\x00]+)+$")]


class Strict(BaseModel):
    """A model that refuses unknown fields and converts no types."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class BindOptions(Strict):
    Propagation: Literal["private"]


class Bind(Strict):
    Type: Literal["bind"]
    Source: AbsolutePath
    Target: AbsolutePath
    ReadOnly: bool = False
    BindOptions: BindOptions


class LogLimits(Strict):
    Type: Literal["json-file"]
    Config: dict[Literal["max-size", "max-file"], Annotated[str, StringConstraints(pattern=r"^[0-9]+m?$")]]


class HostConfig(Strict):
    """The restrictions of agents' containers, as `orchestrator/containers/docker/runtime.py` sets them."""

    Init: Literal[True]
    ReadonlyRootfs: Literal[True]
    CapDrop: tuple[Literal["ALL"]] = Field(strict=False)
    SecurityOpt: tuple[Literal["no-new-privileges"]] = Field(strict=False)
    Memory: Annotated[int, Field(gt=0, le=MAX_MEMORY_BYTES)]
    MemorySwap: Annotated[int, Field(gt=0, le=MAX_MEMORY_BYTES)]
    NanoCpus: Annotated[int, Field(gt=0, le=MAX_NANO_CPUS)]
    PidsLimit: Annotated[int, Field(gt=0, le=4096)]
    NetworkMode: NetworkName | Literal["none"]
    Dns: list[Literal["127.0.0.1"]] | None = None
    Tmpfs: dict[ScratchPlace, Annotated[str, StringConstraints(pattern=rf"^({SCRATCH})$")]]
    LogConfig: LogLimits
    Mounts: Annotated[list[Bind], Field(min_length=1, max_length=64)]


class Labels(Strict):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, serialize_by_alias=True)

    install: Annotated[Id, Field(alias=INSTALL_LABEL)]
    group: Annotated[Id, Field(alias=GROUP_LABEL)]
    run: Annotated[Id, Field(alias=RUN_LABEL)]


class NewContainer(Strict):
    """`POST /containers/create`."""

    Image: str
    # Neither the user nor the group can be 0: no agent runs as root.
    User: Annotated[str, StringConstraints(pattern=r"^[1-9][0-9]{0,9}:[1-9][0-9]{0,9}$")]
    Env: list[str] = []
    Labels: Labels
    HostConfig: HostConfig
    Hostname: Literal["andy"] = "andy"
    StopSignal: Literal["SIGTERM"] = "SIGTERM"
    Tty: Literal[False] = False
    OpenStdin: Literal[True] = True
    StdinOnce: bool = True
    AttachStdin: bool = True
    AttachStdout: bool = True
    AttachStderr: bool = True
    NetworkDisabled: Literal[False] = False


class NetworkLabels(Strict):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, serialize_by_alias=True)

    install: Annotated[Id, Field(alias=INSTALL_LABEL)]


class NewBridge(Strict):
    """A new network on this machine: closed, or open with containers that cannot reach each other."""

    Name: NetworkName
    Driver: Literal["bridge"]
    CheckDuplicate: Literal[True]
    Internal: bool = False
    Options: (
        dict[
            Literal["com.docker.network.bridge.enable_icc", "com.docker.network.bridge.inhibit_ipv4"],
            Literal["true", "false"],
        ]
        | None
    ) = None
    Labels: NetworkLabels


class OverlayLabels(Strict):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, serialize_by_alias=True)

    install: Annotated[Install, Field(alias=INSTALL_LABEL)]
    group: Annotated[Id, Field(alias=GROUP_LABEL)]


class NewOverlay(Strict):
    """A closed network of one group between the nodes of a swarm, which Andy's own container can join."""

    Name: OverlayName
    Driver: Literal["overlay"]
    Internal: Literal[True]
    Attachable: Literal[True]
    Scope: Literal["swarm"]
    Labels: OverlayLabels


class NewNetwork(RootModel[Annotated[NewBridge | NewOverlay, Field(discriminator="Driver")]]):
    """`POST /networks/create`."""


class Endpoint(Strict):
    """A container's place on a network. It has no address of its choice: the engine gives it one."""

    Aliases: Annotated[list[Id], Field(max_length=2)] = []


class Join(Strict):
    """`POST /networks/…/connect`."""

    Container: Id
    EndpointConfig: Endpoint | None = None


class Leave(Strict):
    """`POST /networks/…/disconnect`."""

    Container: Id
    Force: bool = False
