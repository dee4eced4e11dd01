"""A host on the manager of a swarm, killed again and again: its answers, files and containers afterwards."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from orchestrator.containers.docker.runtime import GROUP_LABEL, INSTALL_LABEL, RUN_LABEL
from orchestrator.containers.swarm.services import SwarmServices, remove_all
from tests.processes.andy import PROGRAM, until
from tests.processes.killable_andy import MortalAndy
from tests.processes.swarm_nodes import SwarmNode, SwarmNodes


class SwarmAndy(MortalAndy):
    """Started by a thread that has entered the manager's network."""

    def __init__(
        self, home: Path, nodes: SwarmNodes, *, image: str, environment: Mapping[str, str] | None = None
    ) -> None:
        own = {"ANDY_IMAGE": image, "DOCKER_HOST": nodes.manager.docker_host}
        super().__init__(home, runtime="swarm", environment={**own, **(environment or {})})
        self._nodes = nodes

    def cli(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run `andy …` on the manager's network, where forks of another process would not be."""
        return subprocess.run(
            [*PROGRAM, *arguments], env=self.environment, capture_output=True, text=True, check=False
        )

    def containers(self) -> dict[str, str]:
        """The services of runs: service by run."""
        with closing(self._nodes.manager.client()) as client:
            found = client.services(filters={"label": [f"{INSTALL_LABEL}={self.install}"]})
        return {one["Spec"]["Labels"][RUN_LABEL]: one["ID"] for one in found}

    def working(self) -> dict[str, SwarmNode]:
        """The node of each run that has a container."""
        found = {}
        for node in self._nodes.nodes:
            if node.listens():
                with closing(node.client()) as client:
                    for one in client.containers(filters={"label": [f"{INSTALL_LABEL}={self.install}"]}):
                        if GROUP_LABEL in one["Labels"]:
                            found[one["Labels"][RUN_LABEL]] = node
        return found

    def check_files(self) -> int:
        """Each list has what was answered in its group, once, and nothing else. Gives how much that is."""
        # An answer that counts was given a moment before its files are put in place.
        until(lambda: not list(self.home.glob("data/swarm/*/[0-9]*")), what="no turn's files wait")
        answered = self.rows(
            "SELECT t.group_folder, m.content FROM messages m JOIN turns t ON t.id = m.turn_id"
            " WHERE m.sender <> 'andy' AND t.state = 'answered' AND m.content LIKE 'todo %'"
        )
        for folder in {row["group_folder"] for row in answered}:
            wanted = {row["content"].split()[-1] for row in answered if row["group_folder"] == folder}
            text = (self.home / "groups" / folder / "todo.md").read_text(encoding="utf-8")
            times = Counter(text.split())
            kept = {word for word in times if word[0] == "k" and word[1:5].isdecimal()}
            assert kept == wanted, f"{folder}: lost {wanted - kept}, of no answer {kept - wanted}"
            assert {times[word] for word in wanted} <= {1}, f"{folder}: doubled in {text}"
        return len(answered)

    def _remove_containers(self) -> None:
        with closing(self._nodes.manager.client()) as client:
            services = SwarmServices(install=self.install, image="")
            remove_all(client, install=self.install, services=services)
        until(lambda: not self.working(), what="the containers of its runs are gone")
