"""A node that has no agent image fetches it from a registry, by the digest that the push told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import closing

import pytest

from orchestrator.containers.swarm.services import SwarmServices, remove_all
from tests.processes.andy import AndyProcess
from tests.processes.image_registry import image_registry, is_installed
from tests.processes.swarm_nodes import SwarmNodes
from tests.support.skips import only_in_soak

pytestmark = [pytest.mark.swarm, pytest.mark.timeout(900)]


@pytest.fixture
def pushed(nodes: SwarmNodes, agent_image: str, tmp_path):
    """The image's name with the digest, in a registry that all nodes reach."""
    if not is_installed():
        pytest.skip("no docker-registry: apt-get install docker-registry")
    with image_registry(tmp_path, nodes.manager.address) as registry:
        command = [sys.executable, "-m", "orchestrator", "image", "push", registry, "--tag", agent_image]
        done = subprocess.run(
            [*command, "--json", "--home", str(tmp_path)], capture_output=True, text=True, env=os.environ
        )
        assert done.returncode == 0, done.stderr
        yield json.loads(done.stdout)["image"]


@only_in_soak
def test_a_node_fetches_the_image_by_the_digest_that_was_told(nodes, agent_image, pushed, tmp_path):
    bare = nodes.nodes[-1]
    with closing(bare.client()) as client, closing(nodes.manager.client()) as manager:
        client.remove_image(agent_image, force=True)
        node_id = client.info()["Swarm"]["NodeID"]
        known = manager.inspect_node(node_id)
        manager.update_node(
            node_id, known["Version"]["Index"], {**known["Spec"], "Labels": {"has": "nothing"}}
        )
        environment = {"ANDY_IMAGE": pushed, "DOCKER_HOST": nodes.manager.docker_host}
        andy = AndyProcess(tmp_path / "home", runtime="swarm", environment=environment)
        andy.is_forked = False
        try:
            with andy:
                config = ["groups", "config", "main", "--set", '{"node_label": "has=nothing"}']
                subprocess.run([*andy.program, *config], env=andy.environment, check=True)
                assert andy.say("todo buy stamps")["outcome"] == "answered"
                assert list(nodes.containers("andy.group=main").values()) == [bare]
                assert pushed in client.inspect_image(pushed)["RepoDigests"]
        finally:
            remove_all(manager, install=andy.install, services=SwarmServices(install=andy.install, image=""))
            nodes.load(agent_image)  # for the tests that follow
