"""The machines of a swarm: what each is, what is wrong with it, and which of them takes the next container.

Swarm would choose, but not as is wanted here: it counts each network that the gate stands on as a task of the
manager, which then gets no agents; it knows no cap for a node; and it prefers none that has a group's files.
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

from agent_runner.wire.files import write_whole
from orchestrator.containers.docker import client as docker_client
from orchestrator.containers.docker.runtime import GROUP_LABEL, INSTALL_LABEL
from orchestrator.domain.errors import ContainerError

APIClient = Any
"""docker-py's client: its calls for swarms have no types."""

SLOTS_LABEL = "andy.slots"
"""The label by which a node has another number of slots than the setting says."""
FILES_ARE_WORTH = 2
"""Containers that a node with the group's files may have more than the emptiest node, and still be chosen."""
UNFIT_SECONDS = 300.0
"""Seconds that a node which could not start a container is avoided while others can."""
MEMORY_FILE = "swarm-nodes.json"


class NodeRefused(ContainerError):
    """One node could not start a container, for a reason of its own; another node may."""


class NodeSlow(ContainerError):
    """A node that has the image has not begun a run in time; another try may be lucky.

    After a node has left and joined networks in quick succession, its engine may wait 30 s for news of one.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One machine of the swarm, as its managers know it."""

    id: str
    name: str
    address: str
    state: str
    """`ready` or `down`, with `drain` or `pause` where it takes nothing new."""
    labels: tuple[str, ...]
    """Each as `name=value`."""
    is_open: bool
    """Whether it takes containers."""
    problem: str | None = None

    def slots(self, usual: int) -> int | None:
        """Return how many containers it may have: what its label says, else `usual`; None for no limit."""
        said = dict(label.split("=", 1) for label in self.labels).get(SLOTS_LABEL, "")
        number = int(said) if said.isdecimal() else usual
        return number or None


class NodeView(TypedDict):
    """A machine of the swarm; there is none where agents run on this machine."""

    name: str
    address: str
    state: Annotated[str, "`ready` or `down`, with `drain` or `pause` where it takes nothing new."]
    labels: tuple[str, ...]
    slots: Annotated[int | None, "How many containers it may have; null for no limit of its own."]
    groups: Annotated[tuple[str, ...], "Those whose containers run there."]
    problem: Annotated[str | None, "Why it takes none, with the fix."]


class NodeMemory:
    """A stored record of each group's last node, and of the nodes that could not start a container.

    Its methods block for the moment that a small file takes.
    """

    def __init__(self, data: Path, *, now: Callable[[], float] = time.time) -> None:
        """`data` is the host's own directory; `now` returns seconds."""
        self._path = data / MEMORY_FILE
        self._now = now
        try:
            stored = json.loads(self._path.read_text(encoding="utf-8"))
            self._last: dict[str, str] = dict(stored["last"])
            self._problems: dict[str, tuple[str, float]] = {
                node: (str(text), float(at)) for node, (text, at) in stored["problems"].items()
            }
        except (OSError, ValueError, KeyError, TypeError):  # none yet, or of a crash: it is only a preference
            self._last, self._problems = {}, {}

    def last_of(self, folder: str) -> str | None:
        """Return the id of the node on which a group ran last."""
        return self._last.get(folder)

    def problem_of(self, node_id: str) -> str | None:
        """Return why a node could not start its last container; None when it could."""
        return self._problems.get(node_id, (None, 0.0))[0]

    def unfit(self) -> frozenset[str]:
        """Return the ids of the nodes that could not start a container lately."""
        since = self._now() - UNFIT_SECONDS
        return frozenset(node for node, (_, at) in self._problems.items() if at > since)

    def note_started(self, folder: str, node_id: str) -> None:
        """Remember that a container of a group runs on a node."""
        if self._last.get(folder) == node_id and node_id not in self._problems:
            return
        self._last[folder] = node_id
        self._problems.pop(node_id, None)
        self._write()

    def note_problem(self, node_id: str, text: str) -> None:
        """Remember why a node could not start a container."""
        self._problems[node_id] = (text, self._now())
        self._write()

    def _write(self) -> None:
        stored = {"last": self._last, "problems": self._problems}
        write_whole(self._path, json.dumps(stored), mode=0o600)


def usable(nodes: Sequence[Node], *, label: str | None = None, unfit: Collection[str] = ()) -> list[Node]:
    """Return the nodes that take containers of a group with this `node_label`; unfit ones if no others do.

    Raises:
        ContainerError: there is none, with the fix.
    """
    able = [node for node in nodes if node.is_open and (label is None or label in node.labels)]
    if not able and label is not None and any(node.is_open for node in nodes):
        raise ContainerError(
            f"No node that takes containers has the label {label}:"
            f" 'docker node update --label-add {label} NODE'."
        )
    if not able:
        raise ContainerError("No node takes containers: 'andy nodes' says why.")
    return [node for node in able if node.id not in unfit] or able


def choose_node(
    able: Sequence[Node], held: Collection[str], *, slots: int, last: str | None = None
) -> Node | None:
    """Return the node that is to take a container; None when all are full.

    `held` has the id of a node for each container on it, `last` is the one with the group's files. That one
    is taken as long as it is not much fuller than the emptiest, so that new nodes get their share.
    """
    counts = Counter(held)

    def has_room(node: Node) -> bool:
        most = node.slots(slots)
        return most is None or counts[node.id] < most

    free = sorted(filter(has_room, able), key=lambda node: (counts[node.id], node.name, node.id))
    if not free:
        return None
    own = next((node for node in free if node.id == last), None)
    return own if own and counts[own.id] <= counts[free[0].id] + FILES_ARE_WORTH else free[0]


def room_of(able: Sequence[Node], *, slots: int) -> int | None:
    """Return how many containers the nodes may have together; None when one of them has no limit."""
    each = [node.slots(slots) for node in able]
    return None if None in each else sum(filter(None, each))


class Placement:
    """The choice of a node for each run, and the record of the node that each run's container is on."""

    def __init__(self, memory: NodeMemory, *, slots: int) -> None:
        """`slots` bounds the containers of each node that has no label about it; 0 does not."""
        self.memory = memory
        self.nodes: list[Node] = []
        """The nodes as they were seen last."""
        self.held: dict[str, str] = {}
        """The node of each run that may have a container there."""
        self._slots = slots

    def left(self, label: str | None, *, without: Collection[str]) -> list[Node]:
        """Return the nodes that may take a container, but for some. Raises like `usable`."""
        able = usable(self.nodes, label=label, unfit=self.memory.unfit())
        return [node for node in able if node.id not in without]

    def hold(self, run_id: str, folder: str, nodes: Sequence[Node]) -> Node | None:
        """Choose one of the nodes for a run and hold a slot on it; None when all are full."""
        last = self.memory.last_of(folder)
        node = choose_node(nodes, self.held.values(), slots=self._slots, last=last)
        if node is not None:
            self.held[run_id] = node.id
        return node

    def release(self, run_id: str) -> None:
        """Give the slot of a run back; of one that holds none it is no error."""
        self.held.pop(run_id, None)

    def is_open(self, node_id: str) -> bool:
        """Whether a node took containers when it was seen last."""
        return any(node.id == node_id and node.is_open for node in self.nodes)

    @property
    def room(self) -> int | None:
        """The number of containers that all nodes still take together; None if nothing bounds them."""
        try:
            return room_of(self.left(None, without=()), slots=self._slots)
        except ContainerError:  # no node at all: who starts one is told
            return None


def read_nodes(client: APIClient) -> list[Node]:
    """Return the machines of the swarm. Blocks. Raises what docker-py raises."""
    return [_node(one) for one in client.nodes()]


def check_manager(client: APIClient) -> None:
    """Check that this machine's engine manages a swarm. Blocks. Raises `ContainerError` with the fix."""
    swarm = client.info()["Swarm"]
    if swarm["LocalNodeState"] != "active" or not swarm["ControlAvailable"]:
        raise ContainerError(
            "This machine's Docker manages no swarm: 'docker swarm init' makes one;"
            " ANDY_RUNTIME=docker needs none."
        )


def look_at_nodes(data: Path, *, install: str, slots: int) -> list[NodeView]:
    """List the machines of the swarm that this machine's engine manages. Blocks.

    Raises:
        ContainerError: it manages none, or does not answer.
    """
    with docker_client.translated(), closing(docker_client.connect()) as client:
        check_manager(client)
        return list_nodes(client, install=install, memory=NodeMemory(data), slots=slots)


def list_nodes(client: APIClient, *, install: str, memory: NodeMemory, slots: int) -> list[NodeView]:
    """List the machines of the swarm with what runs there. Blocks. Raises what docker-py raises."""
    services: Mapping[str, Any] = {
        one["ID"]: one["Spec"]["Labels"]
        for one in client.services(filters={"label": [f"{INSTALL_LABEL}={install}"]})
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


def _node(said: Mapping[str, Any]) -> Node:
    state, availability = said["Status"]["State"], said["Spec"]["Availability"]
    problem = None
    if state != "ready":
        problem = said["Status"].get("Message") or "it does not answer"
    elif availability == "drain":
        problem = "it is drained: 'docker node update --availability active' lets it take containers again"
    return Node(
        id=said["ID"],
        name=said["Description"]["Hostname"],
        address=said["Status"].get("Addr", ""),
        state=state if availability == "active" else f"{state}, {availability}",
        labels=tuple(f"{key}={value}" for key, value in sorted((said["Spec"].get("Labels") or {}).items())),
        is_open=(state, availability) == ("ready", "active"),
        problem=problem,
    )
