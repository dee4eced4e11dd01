"""Twenty groups on three machines, one of which goes down in the middle of a turn that writes a file."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from orchestrator.containers.swarm.services import SwarmServices, ensure_gate, remove_all
from orchestrator.domain.protocols import ContainerSpec
from orchestrator.domain.values import Folder, RunId
from tests.doubles.messages_api import Recorded, Say, ScriptedMessagesApi, UseTool
from tests.processes.andy import AndyProcess, until
from tests.processes.swarm_nodes import SwarmNode, SwarmNodes
from tests.support.skips import only_in_soak

pytestmark = [pytest.mark.swarm, pytest.mark.timeout(900)]

GROUPS = 20
WRITE = "seq 1 50000 > report.txt"


class Model:
    """Writes a report by a tool that hangs until it is told not to, then answers."""

    def __init__(self) -> None:
        self.hangs = True

    def __call__(self, request: Recorded) -> Say | UseTool:
        if "the report" not in str(request.body["messages"]):
            return Say("hello")
        if "tool_result" in str(request.body["messages"][-1]):
            return Say("The report is written.")
        return UseTool("Bash", {"command": f"{WRITE}; sleep 3600" if self.hangs else WRITE})


@pytest.fixture(scope="module")
def model() -> Model:
    return Model()


@pytest.fixture(scope="module")
def andy(
    nodes: SwarmNodes, agent_image: str, model: Model, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[AndyProcess]:
    """A host at the manager, whose group `work` asks a model; the others have the agent without one."""
    home = tmp_path_factory.mktemp("swarm") / "home"
    with ScriptedMessagesApi(model) as api:
        andy = AndyProcess(
            home,
            runtime="swarm",
            agent="claude",
            environment={
                "ANTHROPIC_BASE_URL": api.url,
                "ANTHROPIC_API_KEY": "sk-ant-test",
                "ANDY_IMAGE": agent_image,
                "DOCKER_HOST": nodes.manager.docker_host,
                "MAX_CONCURRENT_CONTAINERS": "15",
                "MAX_CONTAINERS_PER_NODE": "5",
            },
        )
        andy.is_forked = False
        with andy:
            yield andy
            andy.terminate()


def register(andy: AndyProcess, folder: str, agent: str) -> None:
    command = ["groups", "register", folder, "--no-trigger", "--config", json.dumps({"agent": agent})]
    done = subprocess.run([*andy.program, *command], env=andy.environment, capture_output=True)
    assert done.returncode == 0, done.stderr


def test_a_container_whose_carrier_answers_nobody_ends_and_leaves_nothing_when_its_run_is_removed(
    nodes, agent_image
):
    own = SwarmServices(install="alone", image=agent_image)
    spec = ContainerSpec(run_id=RunId("stuck"), folder=Folder("stuck"), mounts=())
    nobody = {"address": "127.0.0.1", "port": 9, "certificate": "-", "token": "-"}
    with closing(nodes.manager.client()) as client:
        own.gate_id = ensure_gate(
            client, install="alone", image=agent_image, network="bridge", port=9, address="127.0.0.1"
        )
        try:
            node_id = client.info()["Swarm"]["NodeID"]
            ref = own.create(client, spec, secret=nobody, token_hash="-", node_id=node_id, keeps_files=False)
            until(lambda: nodes.containers("andy.run=stuck"), what="it runs on a node")
            volumes = {"label": "andy.group=stuck"}
            assert len(client.volumes(volumes)["Volumes"]) == 1

            own.remove(client, ref)

            until(lambda: not nodes.containers("andy.run=stuck"), what="it is gone")
            until(lambda: not client.volumes(volumes)["Volumes"], what="so is its workspace")
        finally:
            remove_all(client, install="alone", services=own)


def test_a_groups_network_is_found_again_where_no_container_of_the_manager_is_on_it(nodes, agent_image):
    own = SwarmServices(install="again", image=agent_image)
    with closing(nodes.manager.client()) as client:
        own.gate_id = ensure_gate(
            client, install="again", image=agent_image, network="bridge", port=9, address="127.0.0.1"
        )
        try:
            first = client.inspect_network(own._network(client, Folder("family")))
            own._drop_network(client, first["Id"])
            options = {name: first[name] for name in ("Driver", "Internal", "Attachable", "Scope", "Labels")}
            made = client.create_network(
                first["Name"], **{name.lower(): value for name, value in options.items()}
            )
            assert own._network(client, Folder("family")) == made["Id"]
        finally:
            remove_all(client, install="again", services=own)


def node_of(nodes: SwarmNodes, folder: str) -> SwarmNode | None:
    return next(iter(nodes.containers(f"andy.group={folder}").values()), None)


def replies(andy: AndyProcess, folder: str) -> list[str]:
    found = andy.rows(
        "SELECT content FROM messages WHERE chat_jid = ? AND is_bot_message = 1", f"local:{folder}"
    )
    # Who waits for a slot is told so.
    return [row["content"] for row in found if not row["content"].startswith("⏳")]


@only_in_soak
def test_three_nodes_answer_twenty_groups(andy, nodes):
    folders = [f"group{number}" for number in range(GROUPS)]
    for folder in folders:
        register(andy, folder, "offline")

    asked = [andy.say("todo buy stamps", group=folder, wait=0)["id"] for folder in folders]
    used = set()

    def is_done() -> bool:
        used.update(node.address for node in nodes.containers("andy.run").values())
        return all(andy.find(one)["outcome"] == "answered" for one in asked)

    until(is_done, seconds=400, what="all are answered")

    assert used == {node.address for node in nodes.nodes}
    for folder in folders:
        assert replies(andy, folder) == ["Added to the to-do list: buy stamps."]
        assert "buy stamps" in (andy.home / "groups" / folder / "todo.md").read_text()


def test_a_gate_that_does_not_come_back_with_its_engine_is_started_by_the_host(andy, nodes):
    with closing(nodes.manager.client()) as client:
        client.stop(
            f"andy-{andy.install}-gate", timeout=1
        )  # as an engine leaves it that finds no network yet

    assert andy.say("todo buy bread", group="main")["outcome"] == "answered"


def test_a_node_killed_in_a_turn_that_writes_a_file_costs_neither(andy, nodes, model):
    register(andy, "work", "claude")
    report = andy.home / "groups" / "work" / "report.txt"

    asked = andy.say("Write the report", group="work", wait=0)["id"]
    first = until(lambda: written_at(nodes), what="the file is written on a node")
    assert not report.exists()
    model.hangs = False
    if first is nodes.manager:
        first.cut()  # the host itself lives there, and Swarm's manager: only its agents are lost
        first.heal()
        kill_agents(nodes, first)
    else:
        first.kill()

    assert andy.until_settled(asked)["outcome"] == "answered"
    assert replies(andy, "work") == ["The report is written."]
    assert report.read_text() == "".join(f"{number}\n" for number in range(1, 50_001))
    assert andy.rows("SELECT count(*) AS n FROM runs WHERE group_folder = 'work'")[0]["n"] == 2


def written_at(nodes: SwarmNodes) -> SwarmNode | None:
    """The node on which the report has come to be whole."""
    for node in nodes.nodes:
        for path in Path(node.root).glob("data/volumes/andy-*-work/_data/group/report.txt"):
            if path.stat().st_size > 280_000:
                return node
    return None


def kill_agents(nodes: SwarmNodes, node: SwarmNode) -> None:
    for ref, where in nodes.containers("andy.group=work").items():
        if where is node:
            with node.client() as client:
                client.kill(ref)
