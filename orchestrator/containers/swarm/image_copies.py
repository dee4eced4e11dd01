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
from contextlib import contextmanager, suppress
from importlib import resources
from pathlib import Path
from typing import Any

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
    """Copy an image to all open nodes that lack it.

    Return for each node's name the reason why the node lacks the image, or None if it has it. Blocks for
    minutes. The image is packed into a file in `data`, which needs room for it.

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
    outcome: dict[str, str | None] = {one.name: one.problem for one in nodes if not one.is_open}
    left = copy.lacking([one for one in nodes if one.is_open])
    outcome |= {one.name: None for one in nodes if one.is_open and one not in left}
    if not left:
        return outcome
    with copy.served(data) as hashes:
        for candidate in [*copy.earlier(), through]:
            say(f"{', '.join(one.name for one in left)}: loading it by a task in {candidate[:19]} …")
            done = copy.load(left, candidate, hashes)
            outcome |= {one.name: None for one in left if one in done}
            left = [one for one in left if one not in done]
            if not left:
                break
    why = f"no image there to load it with: docker save {image} | ssh NODE docker load"
    return outcome | {one.name: copy.failures.get(one.id, why) for one in left}


class _Copy:
    def __init__(self, client: APIClient, image: str, install: str, say: Say) -> None:
        self._client = client
        self._image = image
        self._id = str(client.inspect_image(image)["Id"])
        self._labels = {INSTALL_LABEL: install, "andy.copy": "image"}
        self._name = f"andy-{install}-images"
        self._say = say
        self._script = resources.files("agent_runner").joinpath("image_copy.py").read_text(encoding="utf-8")
        self._network = self._server = ""
        self.failures: dict[str, str] = {}

    def lacking(self, nodes: Collection[Node]) -> list[Node]:
        """Return the nodes on which a task in the image cannot run, because they lack it."""
        ended = self._run(nodes, self._id, ["python3", "-c", ""])
        return [node for node in nodes if ended.get(node.id) != "complete"]

    def earlier(self) -> list[str]:
        """Return the ids of other agent images on this engine, newest first; nodes may have them too."""
        found = [one for one in self._client.images(filters={"label": WIRE_LABEL}) if one["Id"] != self._id]
        return [one["Id"] for one in sorted(found, key=lambda one: -one["Created"])[:EARLIER]]

    @contextmanager
    def served(self, data: Path) -> Iterator[list[str]]:
        """Pack the image and serve it from a container on this machine; yield the hashes of its blocks."""
        with tempfile.NamedTemporaryFile(prefix="image-", suffix=".tar", dir=data) as archive:
            hashes = self._pack(archive)
            Path(archive.name).chmod(0o644)
            try:
                self._serve(archive.name)
                yield hashes
            finally:
                if self._server:
                    self._client.remove_container(self._server, force=True)
                self._drop_network()

    def load(self, nodes: Collection[Node], candidate: str, hashes: list[str]) -> list[Node]:
        """Load the image on nodes by tasks in the image `candidate`; return the nodes that have it then."""
        words = ["python3", "-c", self._script, "load", f"{ALIAS}:{PORT}", self._id, json.dumps(hashes)]
        ended = self._run(nodes, candidate, words, blocks=len(hashes))
        return [node for node in nodes if ended.get(node.id) == "complete"]

    def _pack(self, archive: Any) -> list[str]:
        hashes, block, sent, said_at = [], bytearray(), 0, time.monotonic()
        for chunk in self._client.get_image(self._image):
            archive.write(chunk)
            block += chunk
            sent += len(chunk)
            while len(block) >= BLOCK_BYTES:
                hashes.append(hashlib.sha256(block[:BLOCK_BYTES]).hexdigest())
                del block[:BLOCK_BYTES]
            if time.monotonic() - said_at > 2:
                said_at = time.monotonic()
                self._say(f"Packing it: {sent / 1e6:,.0f} MB …")
        archive.flush()
        return [*hashes, hashlib.sha256(block).hexdigest()] if block else hashes

    def _serve(self, path: str) -> None:
        client = self._client
        with suppress(ContainerError):
            self._drop_network()
        self._network = client.create_network(
            self._name, driver="overlay", internal=True, attachable=True, scope="swarm", labels=self._labels
        )["Id"]
        with docker_client.already_so():
            client.remove_container(self._name, force=True)
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

    def _run(
        self, nodes: Collection[Node], image: str, words: list[str], *, blocks: int = 0
    ) -> dict[str, str]:
        """Run a task on each node; return the state in which each ended, by the node's id.

        Nodes whose task has not ended when it is given up are missing. `blocks` is not 0 for the task that
        loads the image: it gets the engine's socket and the network of the server.
        """
        client, wanted = self._client, {node.id for node in nodes}
        others = [f"node.id!={one.id}" for one in read_nodes(client) if one.id not in wanted]
        container: dict[str, Any] = {
            "Image": image,
            "Command": words,
            "Env": ["NODE={{.Node.ID}}"],
            "User": "0:0",
            "ReadOnly": True,
            "CapabilityDrop": ["ALL"],
        }
        template: dict[str, Any] = {
            "ContainerSpec": container,
            "RestartPolicy": {"Condition": "none"},
            "Placement": {"Constraints": others},
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
        names = {node.id: node.name for node in nodes}
        seen: dict[str, tuple[str, int]] = {}
        changed_at = time.monotonic()
        while True:
            states = {
                one["NodeID"]: one["Status"] for one in self._client.tasks(filters={"service": service})
            }
            sent = self._sent() if blocks else {}
            now = {node: (status["State"], sent.get(node, 0)) for node, status in states.items()}
            if now != seen:
                seen, changed_at = now, time.monotonic()
                for node, (state, count) in now.items():
                    if blocks and state == "running":
                        self._say(f"  {names.get(node, node)}: {100 * count // blocks} %")
            ended = {node: status["State"] for node, status in states.items() if status["State"] in ENDED}
            if names.keys() <= ended.keys() or time.monotonic() - changed_at > SILENT_SECONDS:
                return ended
            time.sleep(LOOK_SECONDS)

    def _sent(self) -> dict[str, int]:
        """Return from the server's log how many blocks each node has, and record the nodes' failures."""
        sent: dict[str, int] = {}
        for line in self._client.logs(self._server, stderr=False).decode("utf-8", "replace").splitlines():
            what, node, text = [*line.split(" ", 2), "", ""][:3]
            if what == "block":
                # The server sends each block in a separate thread, so its lines may be out of order.
                sent[node] = max(sent.get(node, 0), int(text) + 1)
            elif what == "failed":
                self.failures[node] = text
        return sent

    def _drop_network(self) -> None:
        """Remove the network; while tasks are still leaving it, try again for 20 seconds."""
        import docker.errors

        for _ in range(20):
            try:
                for one in self._client.networks(names=[self._name]):
                    self._client.remove_network(one["Id"])
            except docker.errors.APIError:
                time.sleep(LOOK_SECONDS)
            else:
                return
