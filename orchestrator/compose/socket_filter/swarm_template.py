"""The services and secrets of a swarm that may be created: anything not listed here is refused.

One service is one agent, as `orchestrator/containers/swarm/services.py` builds it. `swarm_checks.py` compares
values that have to match each other, such as a volume and its group.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field, StringConstraints

from orchestrator.compose.socket_filter.template import (
    GROUP_LABEL,
    INSTALL_LABEL,
    MAX_MEMORY_BYTES,
    MAX_NANO_CPUS,
    RUN_LABEL,
    Id,
    Install,
    Strict,
)

TOKEN_LABEL, NODE_LABEL = "andy.carrier", "andy.node"  # names of labels
ON_NODE = "node.id=="

RunName = Annotated[str, StringConstraints(pattern=r"^andy-[A-Za-z0-9-]{1,180}$")]
OneNode = Annotated[str, StringConstraints(pattern=rf"^{ON_NODE}[a-z0-9]{{1,64}}$")]


class RunLabels(Strict):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, serialize_by_alias=True)

    install: Annotated[Install, Field(alias=INSTALL_LABEL)]
    group: Annotated[Id, Field(alias=GROUP_LABEL)]
    run: Annotated[Id, Field(alias=RUN_LABEL)]
    token: Annotated[Id, Field(alias=TOKEN_LABEL)]
    node: Annotated[Id, Field(alias=NODE_LABEL)]


class GroupLabel(Strict):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, serialize_by_alias=True)

    group: Annotated[Id, Field(alias=GROUP_LABEL)]


class VolumeOptions(Strict):
    """A volume's options. None of a driver are allowed: they could name any directory of the node."""

    Labels: GroupLabel


class WorkspaceVolume(Strict):
    Type: Literal["volume"]
    Source: Id | None = None
    Target: Literal["/workspace"]
    VolumeOptions: VolumeOptions


class ScratchSize(Strict):
    SizeBytes: Literal[268_435_456]
    """256 MiB: what is written there takes memory of the node."""
    Mode: Literal[0o1777]


class Scratch(Strict):
    Type: Literal["tmpfs"]
    Target: Literal["/tmp"]  # noqa: S108  # the container's own
    TmpfsOptions: ScratchSize


class SecretFile(Strict):
    Name: Literal["andy"]
    UID: Literal["1000"]
    GID: Literal["1000"]
    Mode: Literal[0o400]


class SecretShown(Strict):
    SecretID: Id
    SecretName: RunName
    File: SecretFile


class NoNames(Strict):
    Nameservers: tuple[Literal["127.0.0.1"]] = Field(strict=False)


class Container(Strict):
    """The restrictions of every agent's container on a node."""

    Image: str
    Labels: RunLabels
    Command: tuple[Literal["/opt/andy/bin/python"], Literal["-m"], Literal["agent_runner.carrier"]] = Field(
        strict=False
    )
    Args: tuple[()] = Field(strict=False)
    Hostname: Literal["andy"]
    User: Literal["1000:1000"]
    Init: Literal[True]
    ReadOnly: Literal[True]
    CapabilityDrop: tuple[Literal["ALL"]] = Field(strict=False)
    StopSignal: Literal["SIGTERM"]
    StopGracePeriod: Annotated[int, Field(gt=0)]
    DNSConfig: NoNames
    Mounts: tuple[WorkspaceVolume, Scratch] = Field(strict=False)
    Secrets: tuple[SecretShown] = Field(strict=False)


class Limits(Strict):
    NanoCPUs: Annotated[int, Field(gt=0, le=MAX_NANO_CPUS)]
    MemoryBytes: Annotated[int, Field(gt=0, le=MAX_MEMORY_BYTES)]
    Pids: Annotated[int, Field(gt=0, le=4096)]


class Resources(Strict):
    Limits: Limits


class NeverAgain(Strict):
    """The rule that a run is never started twice, also when its node comes back."""

    Condition: Literal["none"]


class NodePlacement(Strict):
    Constraints: tuple[OneNode] = Field(strict=False)


class JoinedNetwork(Strict):
    Target: Id


class LogOptions(Strict):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, serialize_by_alias=True)

    size: Annotated[Literal["1m"], Field(alias="max-size")]
    files: Annotated[Literal["2"], Field(alias="max-file")]


class LogDriver(Strict):
    Name: Literal["json-file"]
    Options: LogOptions


class Task(Strict):
    ContainerSpec: Container
    Resources: Resources
    RestartPolicy: NeverAgain
    Placement: NodePlacement
    Networks: tuple[JoinedNetwork] = Field(strict=False)
    LogDriver: LogDriver


class Replicas(Strict):
    Replicas: Literal[1]


class Replicated(Strict):
    Replicated: Replicas


class NoPorts(Strict):
    Mode: Literal["dnsrr"]


class NewService(Strict):
    """`POST /services/create`."""

    Name: RunName
    Labels: RunLabels
    TaskTemplate: Task
    Mode: Replicated
    EndpointSpec: NoPorts


class NewSecret(Strict):
    """`POST /secrets/create`: the engine stores it, and reveals its content to nobody."""

    Name: RunName
    Data: Annotated[str, StringConstraints(max_length=100_000, pattern=r"^[A-Za-z0-9+/=]+$")]
    Labels: RunLabels
