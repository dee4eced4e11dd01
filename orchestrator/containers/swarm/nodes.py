"""The machines of a swarm: their states and problems, and the choice of one for the next container.

Swarm's own choice is not used, for three reasons. It counts each network that the gate is on as a task of the
manager, so that the manager gets no agents. It cannot limit the number of containers on a node. And it does
not prefer the node that has a group's files.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypedDict

import structlog

from agent_runner.wire.files import write_whole
from orchestrator.containers.docker import client as docker_client
from orchestrator.containers.docker.runtime import GROUP_LABEL, INSTALL_LABEL
from orchestrator.domain.errors import ContainerError

log = structlog.get_logger(__name__)

APIClient = Any
"""docker-py's client: its calls for swarms have no types."""

SLOTS_LABEL = "andy.slots"
"""The label of a node with its number of slots, which overrides the setting."""
FILES_ARE_WORTH = 2
"""Containers by which a node with the group's files may exceed the emptiest node and still be preferred."""
UNFIT_SECONDS = 300.0
"""Seconds for which a node that could not start a container is avoided, if there are others."""
MEMORY_FILE = "swarm-nodes.json"
"""The name of the file that stores a `NodeMemory`."""


class NodeRefused(ContainerError):
    """One node could not start a container, for a reason that does not apply to other nodes."""


class NodeSlow(ContainerError):
    """A node that has the image has not started a run in time; another try may succeed.

    After a node has left and joined networks in quick succession, its engine may wait for 30 s until it
    learns of a network.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One machine of the swarm, as its managers know it."""

    id: str
    name: str
    address: str
    state: str
    """`ready` or `down`, followed by `drain` or `pause` if the node accepts no new tasks."""
    labels: tuple[str, ...]
    """The labels, each as `name=value`."""
    is_open: bool
    """Whether the node accepts containers."""
    problem: str | None = None
    """The reason why it does not, with the fix; None if there is no problem."""

    def slots(self, usual: int) -> int | None:
        """Return how many containers the node may have; None for no limit.

        Its label `andy.slots` says that, or else `usual`. In both, 0 means no limit.
        """
        stated = dict(label.split("=", 1) for label in self.labels).get(SLOTS_LABEL, "")
        number = int(stated) if stated.isdecimal() else usual
        return number or None


class NodeView(TypedDict):
    """A machine of the swarm; there is none where agents run on this machine."""

    name: str
    address: str
    state: Annotated[str, "`ready` or `down`; `drain` or `pause` is added if it accepts no new containers."]
    labels: tuple[str, ...]
    slots: Annotated[int | None, "The most containers that it may run; null if it has no limit of its own."]
    groups: Annotated[tuple[str, ...], "The groups whose containers run on it."]
    problem: Annotated[str | None, "The reason why no container can run on it, with the fix."]


class NodeMemory:
    """A stored record of each group's last node, and of the nodes that could not start a container.

    Creating and changing it blocks while a small file is read or written.
    """

    def __init__(self, data: Path, *, now: Callable[[], float] = time.time) -> None:
        """`data` is the host's own directory, with the file; `now` returns the time in seconds (epoch)."""
        self._path = data / MEMORY_FILE
        self._now = now
        try:
            stored = json.loads(self._path.read_text(encoding="utf-8"))
            # The id of the node on which a group ran last, by the group's folder.
            self._last: dict[str, str] = dict(stored["last"])
            # Why a node could not start its last container, and when in epoch seconds, by the node's id.
            self._problems: dict[str, tuple[str, float]] = {
                node: (str(text), float(at)) for node, (text, at) in stored["problems"].items()
            }
        # The file does not exist yet, or is damaged. It only contains preferences, so none are remembered.
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            self._last, self._problems = {}, {}

    def last_of(self, folder: str) -> str | None:
        """Return the id of the node on which a group ran last; None if it is not known."""
        return self._last.get(folder)

    def problem_of(self, node_id: str) -> str | None:
        """Return why a node could not start its last container; None if it could."""
        return self._problems.get(node_id, (None, 0.0))[0]

    def unfit(self) -> frozenset[str]:
        """Return the ids of the nodes that failed to start a container in the last `UNFIT_SECONDS`."""
        since = self._now() - UNFIT_SECONDS
        return frozenset(node for node, (_, at) in self._problems.items() if at > since)

    def note_started(self, folder: str, node_id: str) -> None:
        """Record that a container of a group was started on a node, and forget the node's problem. Blocks.

        The file is written only if something changes.
        """
        if self._last.get(folder) == node_id and node_id not in self._problems:
            return
        self._last[folder] = node_id
        self._problems.pop(node_id, None)
        self._write()

    def note_problem(self, node_id: str, text: str) -> None:
        """Record why a node could not start a container, with the present time. Blocks."""
        self._problems[node_id] = (text, self._now())
        self._write()

    def _write(self) -> None:
        """Store the record in its file, if the disk takes it.

        It only contains preferences, so the start of a container must not fail for it.
        """
        stored = {"last": self._last, "problems": self._problems}
        try:
            write_whole(self._path, json.dumps(stored), mode=0o600)
        except OSError as error:
            log.warning("nodes.not_remembered", reason=str(error))


def usable(nodes: Sequence[Node], *, label: str | None = None, unfit: Collection[str] = ()) -> list[Node]:
    """Return the nodes that accept containers and have `label`, if one is passed.

    Nodes in `unfit` are left out, unless there are no others.

    Raises:
        ContainerError: there is no such node; the text has the fix.
    """
    usable_nodes = [node for node in nodes if node.is_open and (label is None or label in node.labels)]
    if not usable_nodes and label is not None and any(node.is_open for node in nodes):
        raise ContainerError(
            f"No node that takes containers has the label {label}:"
            f" 'docker node update --label-add {label} NODE'."
        )
    if not usable_nodes:
        raise ContainerError("No node takes containers: 'andy nodes' says why.")
    return [node for node in usable_nodes if node.id not in unfit] or usable_nodes


def choose_node(
    usable_nodes: Sequence[Node], occupied: Collection[str], *, slots: int, last: str | None = None
) -> Node | None:
    """Return the node for the next container: one with room that has the fewest. None when all are full.

    `occupied` contains, for each container, the id of its node. `slots` limits the containers of a node that
    sets no limit of its own; 0 means no limit. `last` is the id of the node that has the group's files. That
    node is preferred, unless its containers outnumber those of the emptiest node by more than
    `FILES_ARE_WORTH`, so that new nodes are used too.
    """
    counts = Counter(occupied)

    def has_room(node: Node) -> bool:
        """Return whether a node may have another container."""
        limit = node.slots(slots)
        return limit is None or counts[node.id] < limit

    with_room = sorted(filter(has_room, usable_nodes), key=lambda node: (counts[node.id], node.name, node.id))
    if not with_room:
        return None
    last_node = next((node for node in with_room if node.id == last), None)
    return (
        last_node
        if last_node and counts[last_node.id] <= counts[with_room[0].id] + FILES_ARE_WORTH
        else with_room[0]
    )


def room_of(usable_nodes: Sequence[Node], *, slots: int) -> int | None:
    """Return how many containers the nodes may have together; None when one of them has no limit.

    `slots` is the limit of each node that sets none of its own; 0 means no limit.
    """
    total = 0
    for node in usable_nodes:
        node_slots = node.slots(slots)
        if node_slots is None:
            return None
        total += node_slots
    return total


class Placement:
    """The choice of a node for each run, and the record of the node that each run's container is on."""

    def __init__(self, memory: NodeMemory, *, slots: int) -> None:
        """`slots` limits the containers of each node without the label `SLOTS_LABEL`; 0 means no limit."""
        self.memory = memory
        self.nodes: list[Node] = []
        """The nodes as they were listed last."""
        self.occupied: dict[str, str] = {}
        """The node of each run that may have a container there."""
        self._slots = slots

    def usable_nodes(self, label: str | None, *, excluded: Collection[str]) -> list[Node]:
        """Return the nodes that accept containers and have the `label` that a group wants; None for any.

        Full nodes are included. Nodes that lately failed to start a container are left out, unless all of
        them did. Then those whose id is in `excluded` are left out, so the list may be empty.

        Raises:
            ContainerError: no node accepts containers, or none with the label; the text has the fix.
        """
        usable_nodes = usable(self.nodes, label=label, unfit=self.memory.unfit())
        return [node for node in usable_nodes if node.id not in excluded]

    def reserve(self, run_id: str, folder: str, nodes: Sequence[Node]) -> Node | None:
        """Choose one of the nodes for a run and reserve a slot on it; return None when all are full."""
        last = self.memory.last_of(folder)
        node = choose_node(nodes, self.occupied.values(), slots=self._slots, last=last)
        if node is not None:
            self.occupied[run_id] = node.id
        return node

    def release(self, run_id: str) -> None:
        """Free the slot of a run; do nothing if it has none."""
        self.occupied.pop(run_id, None)

    def is_open(self, node_id: str) -> bool:
        """Return whether a node accepted containers when the nodes were listed last."""
        return any(node.id == node_id and node.is_open for node in self.nodes)

    @property
    def room(self) -> int | None:
        """The number of containers that all usable nodes may have together; None if there is no limit.

        None as well if no node is usable.
        """
        try:
            return room_of(self.usable_nodes(None, excluded=()), slots=self._slots)
        except ContainerError:  # no node is usable; the start of a container reports that
            return None


def read_nodes(client: APIClient) -> list[Node]:
    """Return the machines of the swarm. Blocks. Raises docker-py's errors."""
    return [_node(engine_node) for engine_node in client.nodes()]


def check_manager(client: APIClient) -> None:
    """Check that this machine's engine manages a swarm. Blocks. Raises `ContainerError` with the fix."""
    swarm = client.info()["Swarm"]
    if swarm["LocalNodeState"] != "active" or not swarm["ControlAvailable"]:
        raise ContainerError(
            "This machine's Docker manages no swarm: 'docker swarm init' makes one;"
            " ANDY_RUNTIME=docker needs none."
        )


def inspect_nodes(data: Path, *, install: str, slots: int) -> list[NodeView]:
    """List the machines of the swarm that this machine's engine manages. Blocks.

    `data` is the host's own directory, `install` the id of this installation, and `slots` the setting for the
    number of containers of a node (0 for no limit).

    Raises:
        ContainerError: the engine manages no swarm, or does not answer.
    """
    with docker_client.translated(), closing(docker_client.connect()) as client:
        check_manager(client)
        return list_nodes(client, install=install, memory=NodeMemory(data), slots=slots)


def list_nodes(client: APIClient, *, install: str, memory: NodeMemory, slots: int) -> list[NodeView]:
    """List the machines of the swarm, by name, with the groups whose containers run there. Blocks.

    `slots` limits the containers of a node that sets no limit of its own; 0 for none. Raises docker-py's
    errors.
    """
    services: Mapping[str, Any] = {
        service["ID"]: service["Spec"]["Labels"]
        for service in client.services(filters={"label": [f"{INSTALL_LABEL}={install}"]})
    }
    running: dict[str, list[str]] = {}
    for task in client.tasks():
        labels = services.get(task["ServiceID"], {})
        if task["Status"]["State"] == "running" and GROUP_LABEL in labels:
            running.setdefault(task["NodeID"], []).append(labels[GROUP_LABEL])
    return [
        NodeView(
            name=node.name,
            address=node.address,
            state=node.state,
            labels=node.labels,
            slots=node.slots(slots),
            groups=tuple(sorted(running.get(node.id, []))),
            problem=node.problem or memory.problem_of(node.id),
        )
        for node in sorted(read_nodes(client), key=lambda node: (node.name, node.address))
    ]


def _node(engine_node: Mapping[str, Any]) -> Node:
    """Return the node that the engine describes as `engine_node`.

    It has a `problem` if it is down, drained or paused, so that it accepts no containers.
    """
    state, availability = engine_node["Status"]["State"], engine_node["Spec"]["Availability"]
    problem = None
    if state != "ready":
        problem = engine_node["Status"].get("Message") or "it does not answer"
    elif availability != "active":
        problem = (
            f"its availability is '{availability}':"
            " 'docker node update --availability active' lets it take containers again"
        )
    return Node(
        id=engine_node["ID"],
        # A node that was never reached has not said its name.
        name=(engine_node.get("Description") or {}).get("Hostname") or engine_node["ID"],
        address=engine_node["Status"].get("Addr", ""),
        state=state if availability == "active" else f"{state}, {availability}",
        labels=tuple(
            f"{key}={value}" for key, value in sorted((engine_node["Spec"].get("Labels") or {}).items())
        ),
        is_open=(state, availability) == ("ready", "active"),
        problem=problem,
    )
