"""Create and remove the engine's objects for runs on a swarm: services, secrets, networks and the gate."""

from __future__ import annotations

import hashlib
import json
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import structlog

from orchestrator.containers.docker import client as docker_client
from orchestrator.containers.docker.client import EngineCalls
from orchestrator.containers.docker.runtime import GROUP_LABEL, INSTALL_LABEL, NO_NAMES, RUN_LABEL
from orchestrator.containers.image.registry import repository_of
from orchestrator.containers.swarm.nodes import Node, NodeRefused, check_manager, read_nodes
from orchestrator.domain.errors import ContainerError
from orchestrator.domain.protocols import ContainerSpec
from orchestrator.domain.values import Folder

APIClient = Any
"""docker-py's client: its calls for swarms have no types."""
log = structlog.get_logger(__name__)

TOKEN_LABEL = "andy.carrier"  # noqa: S105  # the name of a label
"""The label with the SHA-256 of a run's token, by which a restarted host recognises the run's carrier."""
NODE_LABEL = "andy.node"
"""The label with the id of the node that was chosen for a run."""
GATE_LABEL = "andy.gate"
"""The label with the gate's image, network and destination."""
GATE_BYTES = 128 * 1024**2
"""Bytes of memory that the gate may use."""
ALIAS = "orchestrator"
"""The name by which carriers reach the gate."""
USER = "1000:1000"
"""The user and group id of agents and of the gate."""
SCRATCH_BYTES = 256 * 1024**2
"""Bytes that an agent may store in `/tmp`."""
STOP_SECONDS = 10
"""Seconds between SIGTERM and SIGKILL when a service is removed."""
FAILED_STATES = frozenset({"failed", "rejected", "orphaned", "remove", "shutdown"})
SETTING_UP_STATES = frozenset({"new", "pending", "assigned", "accepted", "preparing"})
ENDED_STATES = FAILED_STATES | {"complete"}
SECRET_TARGET = "andy"  # noqa: S105  # the name of a file
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9-]")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunService:
    """A run's service in the engine, with the values of its labels. `ref` is the service's id."""

    ref: str
    run_id: str
    folder: str
    token_hash: str
    node_id: str = ""
    is_outdated: bool = False
    """Whether a new run would use another image now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskState:
    """The engine's progress with a run. `state` is Swarm's state of its task; `error` is Swarm's reason."""

    state: str
    error: str = ""

    @property
    def has_ended(self) -> bool:
        """Whether the run's container has ended, or will never start."""
        return self.state in ENDED_STATES

    @property
    def is_being_set_up(self) -> bool:
        """Whether the node may still have to fetch the image or join the group's network."""
        return self.state in SETTING_UP_STATES


class SecretReference(NamedTuple):
    """A secret of the engine, as a task refers to it."""

    id: str
    name: str


class SwarmServices:
    """The calls to a manager's engine. All of them block and raise docker-py's errors."""

    def __init__(
        self, *, install: str, image: str, gate_id: str = "", command: list[str] | None = None
    ) -> None:
        """`install` is the id of this installation, and `image` the name of the agent image for nodes.

        `gate_id` is the id of the container through which agents reach the host; `command` replaces the
        program that runs the agent.
        """
        self._install = install
        self._image = image
        self.gate_id = gate_id
        self.make_gate: Callable[[APIClient], str] | None = None
        """Find or create the gate and return its id; None if `gate_id` never changes."""
        self._is_gate_joined = False
        """Whether the gate that was found last has been connected to the networks of all runs."""
        self._command = command or []
        self._one_at_a_time = threading.Lock()

    def create(
        self,
        client: APIClient,
        spec: ContainerSpec,
        *,
        secret: Mapping[str, object],
        token_hash: str,
        node_id: str,
        keeps_files: bool,
    ) -> str:
        """Have a node start the container of a run; return the id of the engine's service for it.

        `secret` is written to a file that only the container can read. A label with `token_hash` identifies
        the run after a restart of the host. With `keeps_files` the container's workspace is the group's
        volume on that node, which only one run at a time may use. Otherwise it is a volume that the node
        removes with the container. After an error neither a service nor a secret is left; the group's
        network may stay.
        """
        labels = self._labels(spec.folder, spec.run_id) | {TOKEN_LABEL: token_hash, NODE_LABEL: node_id}
        name = _NOT_IN_NAMES.sub("-", f"andy-{spec.run_id}")
        network = self._network(client, spec.folder)
        secret_id = client.create_secret(name, json.dumps(secret).encode(), labels=labels)["ID"]
        try:
            service = client.create_service(
                _template(
                    spec,
                    labels,
                    self._image,
                    self._command,
                    SecretReference(secret_id, name),
                    network,
                    f"andy-{self._install}-{spec.folder}" if keeps_files else None,
                    node_id,
                ),
                name=name,
                labels=labels,
                # Not a job, because engines before version 24 do not end a job's container when its service
                # is removed. A service with one task and no restarts runs once too.
                mode={"Replicated": {"Replicas": 1}},
                endpoint_spec={"Mode": "dnsrr"},  # no virtual address: nothing connects to the service
            )
        except BaseException:
            self.remove(client, name)
            raise
        return str(service["ID"])

    def remove(self, client: APIClient, ref: str) -> None:
        """Remove a run's service, which kills its container, and its secret. Missing ones are no error.

        `ref` is the id or the name of the service.
        """
        # The secret is found by the id of the run, which is in a label of the service. If the service was
        # never created, `ref` is the name that it was to have, which the secret has, too.
        run_id_or_name = ref
        for service in client.services(filters={"id": ref}) or client.services(filters={"name": ref}):
            run_id_or_name = service["Spec"]["Labels"].get(RUN_LABEL, "")
            with docker_client.already_so():
                client.remove_service(service["ID"])
        for secret in client.secrets(filters={"label": [f"{INSTALL_LABEL}={self._install}"]}):
            keys = (secret["Spec"]["Labels"].get(RUN_LABEL), secret["Spec"]["Name"])
            # Empty for a service without that label: then no secret is known to be its own.
            if run_id_or_name and run_id_or_name in keys:
                with docker_client.already_so():
                    client.remove_secret(secret["ID"])

    def run_services(self, client: APIClient) -> list[RunService]:
        """Return the services of this install's runs that the engine has.

        Each comes with the values of its labels, and with whether its image is outdated; an image that the
        engine does not name counts as current.
        """
        return [
            RunService(
                ref=service["ID"],
                run_id=service["Spec"]["Labels"][RUN_LABEL],
                folder=service["Spec"]["Labels"][GROUP_LABEL],
                token_hash=service["Spec"]["Labels"].get(TOKEN_LABEL, ""),
                node_id=service["Spec"]["Labels"].get(NODE_LABEL, ""),
                is_outdated=_image_of(service, unknown=self._image) != self._image,
            )
            for service in client.services(filters={"label": [f"{INSTALL_LABEL}={self._install}"]})
            if RUN_LABEL in service["Spec"]["Labels"]
        ]

    def task(self, client: APIClient, ref: str) -> TaskState:
        """Return the state of the newest task of a run's service; a task is one container of it.

        If there is no task yet, the state is `new`. If there is no such service, it is `remove`. `ref` is the
        service's id.
        """
        tasks = client.tasks(filters={"service": ref})
        if not tasks:
            has_service = bool(client.services(filters={"id": ref}))
            return TaskState(state="new" if has_service else "remove")
        newest = max(tasks, key=lambda task: task["CreatedAt"])
        status = newest["Status"]
        error = status.get("Err") or ""
        return TaskState(state=status["State"], error=error)

    def tidy(self, client: APIClient) -> bool:
        """Remove secrets and networks of this install that no run needs any more.

        Return whether all networks could be removed. An engine refuses until the last container has left a
        network.
        """
        of_install = {"label": [f"{INSTALL_LABEL}={self._install}"]}
        run_services = self.run_services(client)
        live_runs = {service.run_id for service in run_services}
        folders = {service.folder for service in run_services}
        for secret in client.secrets(filters=of_install):
            if secret["Spec"]["Labels"].get(RUN_LABEL) not in live_runs:
                with docker_client.already_so():  # ignores that it is gone already
                    client.remove_secret(secret["ID"])
        with self._one_at_a_time:
            dropped = [
                self._drop_network(client, network["Id"])
                for network in client.networks(filters=of_install)
                if network["Driver"] == "overlay"
                and (network["Labels"] or {}).get(GROUP_LABEL) not in folders
            ]
        return all(dropped)

    def keep_gate(self, client: APIClient) -> None:
        """Make sure that the gate runs, the container through which agents reach the host.

        It also has to be on the networks of all runs. An engine that restarts may not start the gate again.
        """
        if self.make_gate is None:
            return  # the gate never changes
        with self._one_at_a_time:
            gate_id = self.make_gate(client)
            if gate_id != self.gate_id:
                self.gate_id, self._is_gate_joined = gate_id, False
        if not self._is_gate_joined:
            for folder in {service.folder for service in self.run_services(client)}:
                self._network(client, Folder(folder))  # connects the gate to the network
            self._is_gate_joined = True

    def _labels(self, folder: Folder, run_id: str) -> dict[str, str]:
        """Return the labels of the engine's objects for a run: install, group's folder and run's id."""
        return {INSTALL_LABEL: self._install, GROUP_LABEL: folder, RUN_LABEL: run_id}

    def _network(self, client: APIClient, folder: Folder) -> str:
        """Return the id of a group's network, which is created if missing, with the gate connected to it.

        The network leads nowhere but to the gate, the container through which agents reach the host.
        """
        # The name has a hash of the folder's name, because Swarm accepts only names in the form of host
        # names. A folder's name may be longer and contain other letters.
        name = f"andy-{self._install}-{hashlib.sha256(folder.encode()).hexdigest()[:12]}"
        with self._one_at_a_time:
            # Swarm also returns networks whose names only begin like this, unless a container of this engine
            # is on the network. So the names are compared here. (A pattern such as `^name$` finds nothing.)
            existing = [network for network in client.networks(names=[name]) if network["Name"] == name]
            if existing:
                ref = str(existing[0]["Id"])
            else:
                # The engine need not encrypt this network, because everything on it is TLS to a pinned
                # certificate.
                ref = client.create_network(
                    name,
                    driver="overlay",
                    internal=True,
                    attachable=True,
                    scope="swarm",
                    labels={INSTALL_LABEL: self._install, GROUP_LABEL: folder},
                )["Id"]
            if self.gate_id not in (client.inspect_network(ref)["Containers"] or {}):
                with docker_client.already_so():
                    client.connect_container_to_network(self.gate_id, ref, aliases=[ALIAS])
        return ref

    def _drop_network(self, client: APIClient, ref: str) -> bool:
        """Disconnect the gate, through which agents reach the host, from a network, and remove the network.

        Return False if that is not possible, because a container is still on it.
        """
        import docker.errors

        try:
            if self.gate_id in (client.inspect_network(ref)["Containers"] or {}):
                client.disconnect_container_from_network(self.gate_id, ref, force=True)
            client.remove_network(ref)
        except docker.errors.APIError as error:  # a container is still leaving it; `tidy` tries again
            log.info("network.kept", reason=str(error.explanation or error))
            return False
        return True


def swarm_image(client: APIClient, *, tag: str) -> str:
    """Return the image's name for nodes: with its digest in a registry, else the image's id. Blocks.

    Nodes can use an id only if they have the image already. The tag is not used, because each start would ask
    a registry for it first, which takes 20 s if none answers.

    Raises:
        ContainerError: this engine manages no swarm.
    """
    check_manager(client)
    description = client.inspect_image(tag)
    # Only a digest under the tag's own name is used. Nodes on which the image was loaded by hand do not have
    # it under the name of another repository.
    repository = repository_of(tag)
    for name_with_digest in description.get("RepoDigests") or ():
        if repository_of(name_with_digest) == repository:
            return str(name_with_digest)
    return str(description["Id"])


def ensure_gate(client: APIClient, *, install: str, image: str, network: str, port: int, address: str) -> str:
    """Find or create the gate, a container that forwards agents' connections to `address:port`. Blocks.

    Return its id. A gate that was made with another image, network or destination, or does not run, is
    replaced. Raises docker-py's errors.
    """
    import docker.errors

    name = f"andy-{install}-gate"
    labels = {INSTALL_LABEL: install, GATE_LABEL: f"{image} {network} {address}:{port}"}
    try:
        existing = client.inspect_container(name)
        if existing["Config"]["Labels"].items() >= labels.items() and existing["State"]["Running"]:
            return str(existing["Id"])
        client.remove_container(name, force=True)
    except docker.errors.NotFound:
        pass
    created = client.create_container(
        image,
        entrypoint=["/opt/andy/bin/python", "-m", "agent_runner.wire.gate"],
        command=[str(port), address],
        name=name,
        hostname="gate",
        user=USER,
        labels=labels,
        host_config=client.create_host_config(
            network_mode=network,
            read_only=True,
            init=True,
            cap_drop=["ALL"],
            security_opt=["no-new-privileges"],
            mem_limit=GATE_BYTES,
            pids_limit=64,
            restart_policy={"Name": "unless-stopped"},
        ),
    )
    client.start(created["Id"])
    return str(created["Id"])


def remove_all(
    client: APIClient, *, install: str, services: SwarmServices, own_id: str | None = None
) -> None:
    """Remove the install's runs, secrets, gate and networks from the swarm. Blocks.

    A network that a container has still not left after 20 seconds stays.

    If the host runs in a container, `own_id` is that container's id. The container is the gate then, so it is
    not removed but only leaves the networks.
    """
    services.gate_id = own_id or services.gate_id
    for service in services.run_services(client):
        services.remove(client, service.ref)
    if own_id is None:  # before the networks, which can only be removed when no container is on them
        with docker_client.already_so():
            client.remove_container(f"andy-{install}-gate", force=True)
    deadline = time.monotonic() + 2 * STOP_SECONDS
    while not services.tidy(client) and time.monotonic() < deadline:
        time.sleep(1.0)  # containers leave their network after their service, and Swarm reports no event


def _template(
    spec: ContainerSpec,
    labels: dict[str, str],
    image: str,
    command: list[str],
    secret: SecretReference,
    network: str,
    volume: str | None,
    node_id: str,
) -> dict[str, Any]:
    """Return the task template by which the engine runs a container on a node: its image, limits and so on.

    `secret` is shown to the container as a file. `network` is the id of its network, and `node_id` that of
    its node. `volume` is the name of the workspace's volume, or None for one that is removed with the
    container. `command` are arguments for the program in the container.
    """
    uid, _, gid = USER.partition(":")
    limits = {"NanoCPUs": round(spec.cpus * 1e9), "MemoryBytes": spec.memory_bytes, "Pids": spec.pids}
    return {
        "ContainerSpec": {
            "Image": image,
            "Labels": labels,
            "Command": ["/opt/andy/bin/python", "-m", "agent_runner.carrier"],
            "Args": command,
            "Hostname": "andy",
            "User": USER,
            "Init": True,
            "ReadOnly": True,
            "CapabilityDrop": ["ALL"],
            "StopSignal": "SIGTERM",
            "StopGracePeriod": STOP_SECONDS * 10**9,
            "DNSConfig": {"Nameservers": list(NO_NAMES)},
            "Mounts": [
                # In the group's volume, the files stay on the node for the group's next run there. Other
                # groups have other volumes. A volume without a name is removed with its container.
                {
                    "Type": "volume",
                    **({} if volume is None else {"Source": volume}),
                    "Target": "/workspace",
                    "VolumeOptions": {"Labels": {GROUP_LABEL: spec.folder}},
                },
                _tmpfs("/tmp"),  # noqa: S108  # the container's own
            ],
            "Secrets": [
                {
                    "SecretID": secret.id,
                    "SecretName": secret.name,
                    "File": {"Name": SECRET_TARGET, "UID": uid, "GID": gid, "Mode": 0o400},
                }
            ],
        },
        "Resources": {"Limits": limits},
        "RestartPolicy": {"Condition": "none"},
        "Placement": {"Constraints": [f"node.id=={node_id}"]},
        "Networks": [{"Target": network}],
        "LogDriver": {"Name": "json-file", "Options": {"max-size": "1m", "max-file": "2"}},
    }


def _tmpfs(target: str) -> dict[str, Any]:
    """Return the description of a mount in memory at `target` that every user in the container may write."""
    return {"Type": "tmpfs", "Target": target, "TmpfsOptions": {"SizeBytes": SCRATCH_BYTES, "Mode": 0o1777}}


def refuse_failed(task: TaskState, *, node: str) -> None:
    """Raise an error if a run's task has ended, which it must not before the agent begins.

    `node` is the name of the node, for the text of the error.

    Raises:
        NodeRefused: the node could not set the container up.
        ContainerError: the container ended before the agent began.
    """
    if not task.has_ended:
        return
    reason = task.error or f"its task is '{task.state}'"
    if "No such image" in reason:
        raise NodeRefused(
            f"{node} has not the agent image: 'andy nodes load-image' copies it there, and"
            " 'andy image push REGISTRY' brings it into a registry."
        )
    if task.state == "rejected":
        raise NodeRefused(f"{node} could not start it: {reason}.")
    raise ContainerError(f"{node} started it in vain: {reason}.")


class ManagerEngine:
    """A `SwarmEngine` that runs the calls of `SwarmServices` in threads and raises errors of the host."""

    def __init__(self, services: SwarmServices) -> None:
        """`services` makes the calls, which block."""
        self.services = services
        self._calls = EngineCalls()

    async def create(
        self,
        spec: ContainerSpec,
        *,
        secret: dict[str, object],
        token_hash: str,
        node_id: str,
        keeps_files: bool,
    ) -> str:
        """Have a node start the container of a run; return the id of the engine's service for it.

        The arguments are passed on to `SwarmServices.create`. Raises `EngineGone` and `ContainerError`.
        """
        return await self._calls.call(
            partial(
                self.services.create,
                spec=spec,
                secret=secret,
                token_hash=token_hash,
                node_id=node_id,
                keeps_files=keeps_files,
            )
        )

    async def nodes(self) -> list[Node]:
        """Return the machines of the swarm."""
        return await self._calls.call(read_nodes)

    async def remove(self, ref: str) -> None:
        """Remove a run's service, which kills its container, and its secret. Missing ones are no error."""
        await self._calls.call(partial(self.services.remove, ref=ref))

    async def run_services(self) -> list[RunService]:
        """Return the services of this install's runs that the engine has."""
        return await self._calls.call(self.services.run_services)

    async def task(self, ref: str) -> TaskState:
        """Return the state of the newest container of the service with the id `ref`."""
        return await self._calls.call(partial(self.services.task, ref=ref))

    async def keep_gate(self) -> None:
        """Make sure that the gate runs, through which agents reach the host, and is on the runs' networks."""
        await self._calls.call(self.services.keep_gate)

    async def tidy(self) -> None:
        """Remove secrets and networks that no run needs any more."""
        await self._calls.call(self.services.tidy)

    async def close(self) -> None:
        """Wait for the calls in progress, then close the connections."""
        await self._calls.close()


def _image_of(service: dict[str, Any], *, unknown: str) -> str:
    """Return the image of a service; `unknown` if the engine's description does not contain it."""
    task = service["Spec"].get("TaskTemplate") or {}
    return (task.get("ContainerSpec") or {}).get("Image") or unknown
