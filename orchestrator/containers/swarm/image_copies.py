"""Copy the agent image to the nodes of a swarm that lack it: a task on each node fetches and loads it.

A task itself needs an image to run in. That is an earlier agent image which the node has, else the image
`through`, which the node has or can pull. For a node that has neither and reaches no registry, the result
contains a command to load the image by hand.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import IO, Any

from orchestrator.containers.docker import client as docker_client
from orchestrator.containers.docker.runtime import INSTALL_LABEL
from orchestrator.containers.image.build import WIRE_LABEL
from orchestrator.containers.image.progress import Say
from orchestrator.containers.swarm.nodes import Node, check_manager, read_nodes
from orchestrator.domain.errors import ContainerError

APIClient = Any
"""docker-py's client: its calls for swarms have no types."""

CALL_SECONDS = 600
"""Seconds that the engine may take to answer a call."""
ALIAS, PORT = "images", 8000
"""The name and port at which the nodes' tasks fetch the image."""
BLOCK_BYTES = 8 * 1024 * 1024
"""Bytes of each block of the packed image, whose hash the tasks check."""
EARLIER = 3
"""Earlier agent images that are tried, the newest first."""
LOOK_SECONDS = 1.0
"""Seconds between two looks at the progress."""
SILENT_SECONDS = 180.0
"""Seconds that a node may show no progress before the copy to it fails."""
ENDED = frozenset({"complete", "failed", "rejected", "orphaned", "shutdown", "remove"})
"""Swarm's states of a task that has ended."""


def copy_image(
    client: APIClient, image: str, *, install: str, data: Path, through: str, say: Say
) -> dict[str, str | None]:
    """Copy an image to all nodes of the swarm that accept tasks and lack it. Blocks for minutes.

    Return, by each node's name, the reason why the node lacks the image, or None if it has it. The image is
    packed into a file in the folder `data`, which needs room for it. On each node, a task loads that file.
    The task runs in an earlier agent image that the node has, or else in the image `through`. `say` shows the
    progress.

    Raises:
        ContainerError: this engine manages no swarm, or the image is named by a registry's digest.
    """
    check_manager(client)
    if "@" in image:
        raise ContainerError(
            "ANDY_IMAGE is of a registry, by its digest: nodes fetch it from there themselves."
        )
    nodes = read_nodes(client)
    copy = _Copy(client, image, install, say)
    open_nodes = [node for node in nodes if node.is_open]
    outcome: dict[str, str | None] = {node.name: node.problem for node in nodes if not node.is_open}
    lacking = copy.nodes_lacking(open_nodes)
    outcome |= {node.name: None for node in open_nodes if node not in lacking}
    if not lacking:
        return outcome
    with copy.served(data) as hashes:
        for candidate in [*copy.earlier_images(), through]:
            shown_candidate = candidate[: len("sha256:") + 12]  # an id, shortened as Docker does
            say(f"{', '.join(node.name for node in lacking)}: loading it by a task in {shown_candidate} …")
            loaded = copy.load(lacking, candidate, hashes)
            outcome |= {node.name: None for node in loaded}
            lacking = [node for node in lacking if node not in loaded]
            if not lacking:
                break
    by_hand = f"no image there to load it with: docker save {image} | ssh NODE docker load"
    return outcome | {node.name: copy.failures.get(node.id, by_hand) for node in lacking}


class _Copy:
    """The copying of one image, with the objects of the engine that it needs meanwhile."""

    def __init__(self, client: APIClient, image: str, install: str, say: Say) -> None:
        """`image` is the name of the image to copy; `say` shows a line of progress to a person."""
        self._client = client
        self._image = image
        self._id = str(client.inspect_image(image)["Id"])
        self._labels = {INSTALL_LABEL: install, "andy.copy": "image"}
        self._name = f"andy-{install}-images"
        self._say = say
        self._script = resources.files("agent_runner").joinpath("image_copy.py").read_text(encoding="utf-8")
        self._network = self._server = ""
        self.failures: dict[str, str] = {}
        """The reason why loading failed on a node, by the node's id."""

    def nodes_lacking(self, nodes: Collection[Node]) -> list[Node]:
        """Start a task in the image on each node and return the nodes where it did not run: they lack it."""
        end_states = self._run(nodes, self._id, ["python3", "-c", ""])
        return [node for node in nodes if end_states.get(node.id) != "complete"]

    def earlier_images(self) -> list[str]:
        """Return the ids of the newest other agent images on this engine, at most `EARLIER`, newest first.

        Nodes may have them, too.
        """
        agent_images = self._client.images(filters={"label": WIRE_LABEL})
        others = [image for image in agent_images if image["Id"] != self._id]
        newest_first = sorted(others, key=lambda image: image["Created"], reverse=True)
        return [image["Id"] for image in newest_first[:EARLIER]]

    @contextmanager
    def served(self, data: Path) -> Iterator[list[str]]:
        """Pack the image and serve it from a container on this machine; yield the hashes of its blocks.

        After the `with` block the container, its network and the packed file are removed.
        """
        with tempfile.NamedTemporaryFile(prefix="image-", suffix=".tar", dir=data) as archive:
            hashes = self._pack(archive)
            Path(archive.name).chmod(0o644)  # for the user of the container that serves it
            try:
                self._serve(archive.name)
                yield hashes
            finally:
                if self._server:
                    self._client.remove_container(self._server, force=True)
                self._drop_network()

    def load(self, nodes: Collection[Node], candidate: str, hashes: list[str]) -> list[Node]:
        """Load the image on nodes, by a task on each that runs in the image `candidate`.

        `hashes` are those of the packed image's blocks, which the tasks check. Return the nodes that have the
        image then.
        """
        command = ["python3", "-c", self._script, "load", f"{ALIAS}:{PORT}", self._id, json.dumps(hashes)]
        end_states = self._run(nodes, candidate, command, blocks=len(hashes))
        return [node for node in nodes if end_states.get(node.id) == "complete"]

    def _pack(self, archive: IO[bytes]) -> list[str]:
        """Write the image to the open file `archive`, and return the hashes of its blocks of `BLOCK_BYTES`.

        Each is a SHA-256 in hexadecimal digits. The last block may be shorter.
        """
        hashes: list[str] = []
        block = bytearray()
        sent = 0
        reported_at = time.monotonic()
        for chunk in self._client.get_image(self._image):
            archive.write(chunk)
            block += chunk
            sent += len(chunk)
            while len(block) >= BLOCK_BYTES:
                hashes.append(hashlib.sha256(block[:BLOCK_BYTES]).hexdigest())
                del block[:BLOCK_BYTES]
            if time.monotonic() - reported_at > 2:
                reported_at = time.monotonic()
                self._say(f"Packing it: {sent / 1e6:,.0f} MB …")
        archive.flush()
        return [*hashes, hashlib.sha256(block).hexdigest()] if block else hashes

    def _serve(self, path: str) -> None:
        """Start a container that serves the packed image at `path` to the nodes, on a network of its own."""
        client = self._client
        self._remove_leftovers()
        self._network = client.create_network(
            self._name, driver="overlay", internal=True, attachable=True, scope="swarm", labels=self._labels
        )["Id"]
        self._server = client.create_container(
            self._id,
            entrypoint=["python3", "-c", self._script],
            command=["serve", "/image.tar", str(PORT)],
            name=self._name,
            labels=self._labels,
            networking_config=client.create_networking_config(
                {self._name: client.create_endpoint_config(aliases=[ALIAS])}
            ),
            host_config=client.create_host_config(
                network_mode=self._name,
                read_only=True,
                cap_drop=["ALL"],
                security_opt=["no-new-privileges"],
                init=True,
                binds={path: {"bind": "/image.tar", "mode": "ro"}},
            ),
        )["Id"]
        client.start(self._server)

    def _remove_leftovers(self) -> None:
        """Remove the services, the container and the network of a copy that was killed."""
        client = self._client
        labels = [f"{name}={value}" for name, value in self._labels.items()]
        for service in client.services(filters={"label": labels}):
            with docker_client.already_so():
                client.remove_service(service["ID"])
        with docker_client.already_so():
            client.remove_container(self._name, force=True)
        self._drop_network()  # last: the engine refuses it while something uses the network

    def _run(
        self, nodes: Collection[Node], image: str, command: list[str], *, blocks: int = 0
    ) -> dict[str, str]:
        """Run `command` in a container of `image` on each of the nodes; return the state in which each ended.

        The keys are the nodes' ids. If no task makes progress for `SILENT_SECONDS`, the nodes whose task has
        not ended are missing. `blocks` is the number of blocks of the packed image for a task that loads it,
        else 0. A loading task gets the engine's socket, and the network of the server that sends the blocks.
        """
        client = self._client
        node_ids = {node.id for node in nodes}
        # The service runs on all nodes but those that the constraints exclude.
        constraints = [f"node.id!={node.id}" for node in read_nodes(client) if node.id not in node_ids]
        container: dict[str, Any] = {
            "Image": image,
            "Command": command,
            "Env": ["NODE={{.Node.ID}}"],  # Swarm puts the node's id in
            "User": "0:0",
            "ReadOnly": True,
            "CapabilityDrop": ["ALL"],
        }
        template: dict[str, Any] = {
            "ContainerSpec": container,
            "RestartPolicy": {"Condition": "none"},
            "Placement": {"Constraints": constraints},
        }
        if blocks:
            socket = "/var/run/docker.sock"
            container["Mounts"] = [{"Type": "bind", "Source": socket, "Target": socket}]
            template["Networks"] = [{"Target": self._network}]
        # A service and not a job: engines before version 24 do not end the containers of a job that is
        # removed.
        service = client.create_service(
            template, name=f"{self._name}-{time.time_ns():x}", labels=self._labels, mode={"Global": {}}
        )["ID"]
        try:
            return self._follow(service, nodes, blocks)
        finally:
            with docker_client.already_so():
                client.remove_service(service)

    def _follow(self, service: str, nodes: Collection[Node], blocks: int) -> dict[str, str]:
        """Report the progress of a service's tasks until all have ended, or none made progress for too long.

        Return the state in which each task ended, by the node's id. `blocks` is the number of blocks that
        each node loads, or 0 if none are loaded.
        """
        names = {node.id: node.name for node in nodes}
        # The state of the task and the number of its blocks, by the node's id.
        last_progress: dict[str, tuple[str, int]] = {}
        changed_at = time.monotonic()
        while True:
            tasks = self._client.tasks(filters={"service": service})
            states = {task["NodeID"]: task["Status"]["State"] for task in tasks}
            sent = self._blocks_sent() if blocks else {}
            progress = {node_id: (state, sent.get(node_id, 0)) for node_id, state in states.items()}
            if progress != last_progress:
                last_progress = progress
                changed_at = time.monotonic()
                for node_id, (state, count) in progress.items():
                    if blocks and state == "running":
                        self._say(f"  {names.get(node_id, node_id)}: {100 * count // blocks} %")
            end_states = {node_id: state for node_id, state in states.items() if state in ENDED}
            if names.keys() <= end_states.keys() or time.monotonic() - changed_at > SILENT_SECONDS:
                return end_states
            time.sleep(LOOK_SECONDS)

    def _blocks_sent(self) -> dict[str, int]:
        """Return how many blocks of the image each node has, by the node's id, and record nodes' failures.

        Both are read from the log of the server, whose lines are `block NODE NUMBER` and `failed NODE
        REASON`.
        """
        sent: dict[str, int] = {}
        for line in self._client.logs(self._server, stderr=False).decode("utf-8", "replace").splitlines():
            # Filled up, so that there are three parts of any line.
            kind, node_id, text = [*line.split(" ", 2), "", ""][:3]
            if kind == "block":
                # The server sends each block in a separate thread, so its lines may be out of order.
                sent[node_id] = max(sent.get(node_id, 0), int(text) + 1)
            elif kind == "failed":
                self.failures[node_id] = text
        return sent

    def _drop_network(self) -> None:
        """Remove the network of the copy, if it exists.

        While tasks are still leaving it, retry for 20 seconds; after that it stays.
        """
        import docker.errors

        for _ in range(20):
            try:
                for network in self._client.networks(names=[self._name]):
                    self._client.remove_network(network["Id"])
            except docker.errors.APIError:
                time.sleep(LOOK_SECONDS)
            else:
                return
