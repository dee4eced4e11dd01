"""Andy under Compose on the manager of a swarm: one line of `.env` brings his agents to the other nodes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import docker
import pytest

from orchestrator.containers.swarm.services import ALIAS
from tests.docker.conftest import PROJECT
from tests.docker.test_compose import REACH, base_of
from tests.processes.andy import until
from tests.processes.compose_stack import ComposeStack, forget_image
from tests.processes.swarm_nodes import SwarmNode, SwarmNodes
from tests.support.skips import only_in_soak

pytestmark = [pytest.mark.swarm, pytest.mark.timeout(1800)]

BUILD_SECONDS = 1200


@pytest.fixture
def stack(
    nodes: SwarmNodes,
    docker_client: docker.APIClient,
    agent_image: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[ComposeStack]:
    """The stack at the manager's engine, not yet up. Its image is built by the engine of this machine."""
    if shutil.which("docker-compose") is None:
        pytest.skip("docker-compose is missing: apt-get install docker-compose")
    root = tmp_path_factory.mktemp("checkout")
    base_image = base_of(docker_client)
    with (
        closing(nodes.manager.client()) as client,
        ComposeStack(
            root, client=client, base_image=base_image, project=PROJECT, agent_image=agent_image
        ) as made,
    ):
        made.compose("build", "andy", seconds=BUILD_SECONDS, environment={"DOCKER_HOST": nodes.machine})
        nodes.load(made.orchestrator_image, only=nodes.manager)
        forget_image(docker_client, made.orchestrator_image)
        socket = f"{nodes.manager.root}/docker.sock:/var/run/docker.sock"
        override = {"version": "3.7", "services": {"engine": {"volumes": [socket]}}}
        (root / "docker-compose.override.yml").write_text(json.dumps(override))
        (root / ".env").write_text("ANDY_RUNTIME=swarm\n")
        yield made


def left_on_swarm(stack: ComposeStack) -> list[str]:
    """All that the swarm has of this stack."""
    mine = {"label": [f"andy.install={stack.install}"]}
    return [
        *(one["ID"] for one in stack.client.services(filters=mine)),
        *(one["ID"] for one in stack.client.secrets(filters=mine)),
        *(one["Name"] for one in networks_of(stack)),
    ]


def networks_of(stack: ComposeStack) -> list[dict[str, Any]]:
    """The networks of its agents, on this machine and between the nodes."""
    found: list[dict[str, Any]] = stack.client.networks(filters={"label": [f"andy.install={stack.install}"]})
    return found


def where(nodes: SwarmNodes, stack: ComposeStack) -> dict[str, SwarmNode]:
    """The containers of the agents, and the node of each."""
    return nodes.containers(f"andy.install={stack.install}")


def reaches(stack: ComposeStack, node: SwarmNode, agent: str) -> list[str]:
    """What an agent gets at the gate, and at the HTTP API by both addresses that Andy has."""
    gate = int((stack.root / "data" / "carrier-port").read_text())
    networks = stack.container("andy")["NetworkSettings"]["Networks"]
    front = networks[f"{stack.name}_default"]["IPAddress"]
    tried = json.dumps([[ALIAS, gate], [ALIAS, stack.port], [front, stack.port]])
    command = [
        "docker",
        "--host",
        node.docker_host,
        "exec",
        agent,
        "/opt/andy/bin/python",
        "-c",
        REACH,
        tried,
    ]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


def andy(stack: ComposeStack, *arguments: str) -> str:
    return stack.compose("exec", "-T", "andy", "andy", *arguments).stdout


def kill(stack: ComposeStack) -> None:
    """Kill Andy, and wait until Docker has started him again."""
    before = stack.container("andy")["State"]["Pid"]
    os.kill(before, signal.SIGKILL)
    until(lambda: stack.container("andy")["State"]["Pid"] not in (0, before), what="restarted")
    stack.until_up()


def label(client: docker.APIClient, node: SwarmNode, **labels: str) -> None:
    with closing(node.client()) as own:
        ref = own.info()["Swarm"]["NodeID"]
    known: dict[str, Any] = client.inspect_node(ref)
    spec = known["Spec"] | {"Labels": {**known["Spec"].get("Labels", {}), **labels}}
    client.update_node(ref, known["Version"]["Index"], spec)


def test_one_line_brings_agents_to_another_node_where_a_new_container_of_andy_takes_them_over(stack, nodes):
    away = nodes.nodes[1]
    label(stack.client, away, compose="here")
    stack.up()
    andy(stack, "groups", "config", "main", "--set", '{"node_label": "compose=here"}')

    assert stack.say("todo apples")["outcome"] == "answered"
    assert set(where(nodes, stack).values()) == {away}
    seen = json.loads(andy(stack, "nodes", "--json"))
    assert [node["groups"] for node in seen if "compose=here" in node["labels"]] == [["main"]]
    (agent,) = where(nodes, stack)
    assert reaches(stack, away, agent) == ["reached", "refused", "closed"]

    kill(stack)
    assert stack.say("todo bread")["outcome"] == "answered"
    stack.client.remove_container(stack.container("andy")["Id"], force=True)
    stack.up()
    assert stack.say("todo carrots")["outcome"] == "answered"
    assert set(where(nodes, stack)) == {agent}
    todo = (stack.root / "groups" / "main" / "todo.md").read_text()
    assert todo.split("- [ ] ")[1:] == ["apples\n", "bread\n", "carrots\n"]

    stack.compose("down", "--volumes")
    until(lambda: not where(nodes, stack), what="the swarm's container is gone")
    assert left_on_swarm(stack) == []
    until(lambda: not stack.left(), what="nothing of it is left on this machine")


@only_in_soak
def test_another_runtime_ends_what_the_one_before_left_and_an_engine_that_restarts_brings_all_back(
    stack, nodes
):
    stack.up()
    stack.say("todo apples")
    stack.client.remove_container(stack.container("andy")["Id"], force=True)
    (stack.root / ".env").write_text("ANDY_RUNTIME=docker\n")
    stack.up()
    until(lambda: not left_on_swarm(stack), what="nothing is left on the swarm")
    until(lambda: not where(nodes, stack), what="the swarm's container is gone")
    assert stack.say("todo bread")["outcome"] == "answered"
    assert [one["Id"] for one in stack.agents()] == list(where(nodes, stack))

    stack.client.remove_container(stack.container("andy")["Id"], force=True)
    (stack.root / ".env").write_text("ANDY_RUNTIME=swarm\n")
    stack.up()
    assert stack.say("todo carrots")["outcome"] == "answered"
    assert [network["Driver"] for network in networks_of(stack)] == ["overlay"]

    nodes.manager.restart_engine()
    stack.until_up()
    assert stack.say("todo dates")["outcome"] == "answered"
    stack.compose("down", "--volumes")
    until(lambda: not where(nodes, stack), what="the swarm's container is gone")
    assert left_on_swarm(stack) == []
    todo = (stack.root / "groups" / "main" / "todo.md").read_text()
    assert todo.split("- [ ] ")[1:] == ["apples\n", "bread\n", "carrots\n", "dates\n"]
