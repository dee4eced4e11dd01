"""What the engine of a swarm is asked for: hardened services, closed networks, and nothing secret in them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from orchestrator.containers.swarm import services
from orchestrator.containers.swarm.services import RunService, SwarmServices, TaskState
from orchestrator.domain.errors import ContainerError
from orchestrator.domain.protocols import ContainerSpec, Mount
from orchestrator.domain.values import Folder, RunId


class FakeManager:
    """A manager that writes down what it is asked to make; its answers have the shapes of the real one."""

    def __init__(self) -> None:
        self.made: dict[str, dict[str, Any]] = {}
        self.removed: list[str] = []
        self.networks_there: list[str] = []
        self.swarm = {"LocalNodeState": "active", "ControlAvailable": True}
        self.image: dict[str, Any] = {"Id": "sha256:abc"}

    def info(self) -> dict[str, Any]:
        return {"Swarm": self.swarm}

    def networks(self, *, names: list[str]) -> list[dict[str, Any]]:
        """Find networks as Swarm does where no container of the manager is on them: no pattern counts."""
        found = [name for name in self.networks_there if name.startswith(tuple(names))]
        return [{"Id": f"net-{name}", "Name": name} for name in found]

    def create_network(self, name: str, **options: Any) -> dict[str, str]:
        self.made["network"] = {"name": name, **options}
        return {"Id": "net1"}

    def inspect_network(self, _: str) -> dict[str, Any]:
        return {"Containers": {}}

    def connect_container_to_network(self, container: str, network: str, **options: Any) -> None:
        self.made["connected"] = {"container": container, "network": network, **options}

    def create_secret(self, name: str, data: bytes, **options: Any) -> dict[str, str]:
        self.made["secret"] = {"name": name, "data": data, **options}
        return {"ID": "sec1"}

    def create_service(self, template: dict[str, Any], **options: Any) -> dict[str, str]:
        self.made["service"] = {"template": template, **options}
        return {"ID": "svc1"}

    def services(self, **_: object) -> list[dict[str, Any]]:
        made = self.made.get("service")
        return (
            [] if made is None else [{"ID": "svc1", "Spec": {"Labels": made["labels"], "Name": made["name"]}}]
        )

    def secrets(self, **_: object) -> list[dict[str, Any]]:
        made = self.made["secret"]
        return [{"ID": "sec1", "Spec": {"Labels": made["labels"], "Name": made["name"]}}]

    def remove_service(self, ref: str) -> None:
        self.removed.append(ref)

    def remove_secret(self, ref: str) -> None:
        self.removed.append(ref)

    def inspect_image(self, _: str) -> dict[str, Any]:
        return self.image


@pytest.fixture
def manager() -> FakeManager:
    return FakeManager()


def create(manager: FakeManager, *, keeps_files: bool = True, **changes: Any) -> dict[str, Any]:
    spec = ContainerSpec(
        **{
            "run_id": RunId("r1:x"),
            "folder": Folder("family"),
            "mounts": (Mount(source=services.__file__, target="/workspace/group", is_writable=True),),
            "environment": {"ANTHROPIC_API_KEY": "andy-token-of-the-run"},
            "memory_bytes": 1024**3,
            "cpus": 1.5,
            "pids": 300,
            **changes,
        }
    )
    own = SwarmServices(install="i1", image="sha256:abc", gate_id="gate1")
    secret = {"token": "carrier-secret"}
    ref = own.create(manager, spec, secret=secret, token_hash="hash", node_id="n1", keeps_files=keeps_files)
    assert ref == "svc1"
    return manager.made["service"]


def test_a_run_is_a_hardened_service_that_is_never_started_twice(manager):
    made = create(manager)
    container = made["template"]["ContainerSpec"]

    assert made["mode"] == {"Replicated": {"Replicas": 1}}
    assert made["endpoint_spec"] == {"Mode": "dnsrr"}
    assert made["template"]["RestartPolicy"] == {"Condition": "none"}
    assert (container["User"], container["ReadOnly"], container["Init"]) == ("1000:1000", True, True)
    assert container["CapabilityDrop"] == ["ALL"]
    assert container["DNSConfig"] == {"Nameservers": ["127.0.0.1"]}
    assert made["template"]["Resources"] == {
        "Limits": {"NanoCPUs": 1_500_000_000, "MemoryBytes": 1024**3, "Pids": 300}
    }
    assert made["labels"] == container["Labels"]
    assert container["Labels"].items() >= {"andy.install": "i1", "andy.group": "family"}.items()


def test_no_directory_of_the_node_and_nothing_secret_stands_in_the_service(manager):
    made = create(manager)
    text = json.dumps(made)

    assert [mount["Type"] for mount in made["template"]["ContainerSpec"]["Mounts"]] == ["volume", "tmpfs"]
    assert made["template"]["ContainerSpec"]["Mounts"][0]["Source"] == "andy-i1-family"
    assert "andy-token-of-the-run" not in text
    assert "carrier-secret" not in text
    assert json.loads(manager.made["secret"]["data"]) == {"token": "carrier-secret"}


def test_a_group_has_a_closed_network_of_its_own_with_the_gate_on_it(manager):
    create(manager)

    network = manager.made["network"]
    assert (network["driver"], network["internal"], network["attachable"]) == ("overlay", True, True)
    assert network["name"].startswith("andy-i1-")
    assert "." not in network["name"]
    assert manager.made["connected"] == {"container": "gate1", "network": "net1", "aliases": ["orchestrator"]}


def test_a_run_beside_another_of_its_group_has_a_volume_that_goes_with_its_container(manager):
    (mount, _) = create(manager, keeps_files=False)["template"]["ContainerSpec"]["Mounts"]
    assert (mount["Type"], mount["Target"], mount.get("Source")) == ("volume", "/workspace", None)


def test_a_run_goes_to_the_node_that_was_chosen_for_it(manager):
    made = create(manager)
    assert made["template"]["Placement"] == {"Constraints": ["node.id==n1"]}
    assert made["labels"]["andy.node"] == "n1"


@pytest.mark.parametrize(
    ("tag", "digests", "named"),
    [
        ("andy-agent:latest", [], "sha256:abc"),
        ("andy-agent:latest", ["registry:5000/andy-agent@sha256:1"], "sha256:abc"),
        ("registry:5000/andy-agent:v1", ["andy-agent@sha256:1", "registry:5000/andy-agent@sha256:2"],
         "registry:5000/andy-agent@sha256:2"),
        ("registry:5000/andy-agent@sha256:2", ["registry:5000/andy-agent@sha256:2"],
         "registry:5000/andy-agent@sha256:2"),
        ("registry:5000/andy-agent", ["registry:5000/andy-agent@sha256:2"],
         "registry:5000/andy-agent@sha256:2"),
    ],
)  # fmt: skip
def test_nodes_are_told_the_digest_of_the_name_that_is_set_or_the_id(manager, tag, digests, named):
    manager.image = {"Id": "sha256:abc", "RepoDigests": digests}
    assert services.swarm_image(manager, tag=tag) == named


def test_removing_a_run_removes_its_secret(manager):
    create(manager)

    SwarmServices(install="i1", image="", gate_id="").remove(manager, "svc1")

    assert manager.removed == ["svc1", "sec1"]


@pytest.mark.parametrize(
    ("state", "error", "says"),
    [
        (
            "rejected",
            "No such image: andy-agent@sha256:1",
            "one has not the agent image: 'andy nodes load-image'",
        ),
        ("rejected", "no space left on device", "one could not start it: no space left"),
        ("failed", "task: non-zero exit (75)", "non-zero exit"),
        ("complete", "", "its task is 'complete'"),
    ],
)
def test_a_task_that_has_ended_before_it_began_says_why(state, error, says):
    with pytest.raises(ContainerError, match=says.replace("(", r"\(")):
        services.refuse_failed(TaskState(state=state, error=error), node="one")


def test_a_task_that_may_still_come_is_waited_for():
    services.refuse_failed(
        TaskState(state="pending", error="no suitable node (1 node not available)"), node="one"
    )


def test_an_engine_that_manages_no_swarm_is_refused_with_the_fix(manager):
    services.check_manager(manager)
    manager.swarm = {"LocalNodeState": "inactive", "ControlAvailable": False}
    with pytest.raises(ContainerError, match="docker swarm init"):
        services.check_manager(manager)


@pytest.mark.parametrize(("image", "is_outdated"), [("sha256:abc", False), ("sha256:def", True)])
def test_a_run_is_outdated_once_nodes_would_be_given_another_image(manager, image, is_outdated):
    made = create(manager)
    manager.services = lambda **_: [
        {"ID": "svc1", "Spec": {"Labels": made["labels"], "TaskTemplate": made["template"]}}
    ]

    (found,) = SwarmServices(install="i1", image=image).run_services(manager)

    assert (found.run_id, found.is_outdated) == ("r1:x", is_outdated)


def test_a_run_of_which_the_engine_says_no_image_is_not_outdated(manager):
    made = create(manager)
    manager.services = lambda **_: [{"ID": "svc1", "Spec": {"Labels": made["labels"]}}]

    (found,) = SwarmServices(install="i1", image="any").run_services(manager)

    assert not found.is_outdated


def test_a_groups_network_that_is_there_already_is_the_one_it_gets(manager):
    create(manager)
    name = manager.made.pop("network")["name"]
    manager.networks_there = [f"{name}0", name]

    create(manager)

    assert "network" not in manager.made
    assert manager.made["connected"]["network"] == f"net-{name}"


def test_a_gate_that_was_made_anew_comes_to_the_networks_of_all_runs(manager):
    made = iter(["gate1", "gate1", "gate2", "gate2"])
    own = SwarmServices(install="i1", image="")
    own.make_gate = lambda _: next(made)
    networks = []
    own._network = lambda _, folder: networks.append(folder)

    def not_now(_, folder):
        raise ConnectionError

    own.run_services = lambda _: [RunService(ref="s", run_id="r", folder="family", token_hash="")]

    own.keep_gate(manager)
    own.keep_gate(manager)
    assert networks == ["family"]

    own._network, join = not_now, own._network
    with pytest.raises(ConnectionError):
        own.keep_gate(manager)
    own._network = join
    own.keep_gate(manager)
    assert own.gate_id == "gate2"
    assert networks == ["family", "family"], "once for each, also where it was not possible at first"
