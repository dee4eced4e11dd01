"""Which machine of a swarm takes the next container, and what is said of each."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.containers.swarm.nodes import (
    UNFIT_SECONDS,
    NodeMemory,
    choose_node,
    list_nodes,
    read_nodes,
    room_of,
    usable,
)
from orchestrator.domain.errors import ContainerError
from tests.doubles.swarm_engine import machine

ONE, TWO, THREE = machine("one"), machine("two"), machine("three")


def choose(
    held: list[str], *, slots: int = 0, last: str | None = None, nodes=(ONE, TWO, THREE)
) -> str | None:
    chosen = choose_node(nodes, held, slots=slots, last=last)
    return chosen and chosen.id


@pytest.mark.parametrize(
    ("held", "slots", "last", "chosen"),
    [
        ([], 0, None, "one"),
        (["one"], 0, None, "three"),
        (["one", "two", "three", "two"], 0, None, "one"),
        (["one", "one"], 0, "one", "one"),
        (["one", "one", "one"], 0, "one", "three"),
        (["one"], 1, "one", "three"),
        (["one", "two", "three"], 1, "one", None),
        ([], 0, "gone", "one"),
    ],
)
def test_a_container_goes_where_the_files_are_or_the_fewest_and_never_beyond_the_slots(
    held, slots, last, chosen
):
    assert choose(held, slots=slots, last=last) == chosen


@pytest.mark.parametrize(
    ("state", "availability", "problem"),
    [
        ("ready", "active", None),
        ("ready", "drain", "'drain': 'docker node update --availability active'"),
        ("ready", "pause", "'pause': 'docker node update --availability active'"),
        ("ready", "of the future", "'of the future'"),
        ("down", "active", "does not answer"),
    ],
)
def test_each_node_that_takes_no_containers_has_a_problem(
    state: str, availability: str, problem: str | None
) -> None:
    described = {
        "ID": "one",
        "Status": {"State": state},
        "Spec": {"Availability": availability},
        "Description": {"Hostname": "one"},
    }
    (node,) = read_nodes(SimpleNamespace(nodes=lambda: [described]))
    assert node.is_open is (problem is None)
    assert node.problem is None if problem is None else problem in node.problem


def test_each_of_three_nodes_gets_a_third():
    held: list[str] = []
    for _ in range(15):
        held.append(choose(held, slots=5))
    assert sorted(held) == ["one"] * 5 + ["three"] * 5 + ["two"] * 5
    assert choose(held, slots=5) is None


def test_a_label_of_the_node_says_how_many_it_may_have():
    small, plain = machine("small", labels=("andy.slots=1",)), machine("z")
    assert choose([], slots=4, nodes=(small, plain)) == "small"
    assert choose(["small", "z"], slots=4, nodes=(small, plain)) == "z"
    assert room_of((small, plain), slots=4) == 5
    assert room_of((small, plain), slots=0) is None
    assert machine("odd", labels=("andy.slots=many",)).slots(4) == 4


def test_nodes_that_take_nothing_or_lack_the_label_are_left_out():
    drained, fast = machine("drained", is_open=False), machine("fast", labels=("disk=fast",))
    assert usable([drained, ONE, fast]) == [ONE, fast]
    assert usable([drained, ONE, fast], label="disk=fast") == [fast]
    with pytest.raises(ContainerError, match="--label-add disk=slow"):
        usable([drained, ONE, fast], label="disk=slow")
    with pytest.raises(ContainerError, match="andy nodes"):
        usable([drained])


def test_an_unfit_node_is_taken_only_where_no_other_is_left():
    assert usable([ONE, TWO], unfit={"one"}) == [TWO]
    assert usable([ONE, TWO], unfit={"one", "two"}) == [ONE, TWO]


def test_what_is_remembered_of_nodes_outlives_the_host_and_a_start_clears_a_problem(tmp_path):
    now = 1_000.0
    memory = NodeMemory(tmp_path, now=lambda: now)
    memory.note_started("family", "one")
    memory.note_problem("two", "no image")

    again = NodeMemory(tmp_path, now=lambda: now)
    assert (again.last_of("family"), again.problem_of("two"), again.unfit()) == ("one", "no image", {"two"})
    now += UNFIT_SECONDS + 1
    assert (again.problem_of("two"), again.unfit()) == ("no image", frozenset())
    again.note_started("family", "two")
    assert (again.problem_of("two"), NodeMemory(tmp_path).last_of("family")) == (None, "two")


def test_a_memory_that_cannot_be_written_is_known_as_long_as_the_host_lives(tmp_path):
    memory = NodeMemory(tmp_path / "missing")
    memory.note_started("family", "one")
    memory.note_problem("two", "no image")
    assert (memory.last_of("family"), memory.problem_of("two")) == ("one", "no image")


@pytest.mark.parametrize(
    "text", ["", "[]", '{"last": 3, "problems": {}}', '{"last": {}}', '{"last": {}, "problems": 3}']
)
def test_a_broken_memory_is_as_none(tmp_path, text):
    (tmp_path / "swarm-nodes.json").write_text(text)
    assert NodeMemory(tmp_path).last_of("family") is None


class Manager:
    """Answers with the shapes of a real manager."""

    def __init__(self) -> None:
        self.node: dict[str, Any] = {
            "ID": "n1",
            "Spec": {"Labels": {"disk": "fast"}, "Availability": "active"},
            "Description": {"Hostname": "one"},
            "Status": {"State": "ready", "Addr": "10.0.0.1"},
        }

    def nodes(self) -> list[dict[str, Any]]:
        return [self.node]

    def services(self, **_: object) -> list[dict[str, Any]]:
        return [{"ID": "svc1", "Spec": {"Labels": {"andy.group": "family", "andy.run": "r1"}}}]

    def tasks(self) -> list[dict[str, Any]]:
        return [
            {"ServiceID": "svc1", "NodeID": "n1", "Status": {"State": "running"}},
            {"ServiceID": "other", "NodeID": "n1", "Status": {"State": "running"}},
        ]


def test_nodes_are_listed_with_what_runs_there_and_what_is_wrong(tmp_path):
    manager, memory = Manager(), NodeMemory(tmp_path)

    def listed():
        (found,) = list_nodes(manager, install="i1", memory=memory, slots=5)
        return found

    found = listed()
    assert [found[key] for key in ("name", "address", "state", "slots")] == ["one", "10.0.0.1", "ready", 5]
    assert (found["groups"], found["labels"], found["problem"]) == (("family",), ("disk=fast",), None)

    memory.note_problem("n1", "one has not the agent image")
    assert listed()["problem"] == "one has not the agent image"

    manager.node["Status"] = {"State": "down", "Addr": "10.0.0.1", "Message": "heartbeat failure"}
    assert listed()["problem"] == "heartbeat failure"

    manager.node["Status"] = {"State": "ready"}
    manager.node["Spec"]["Availability"] = "drain"
    assert listed()["state"] == "ready, drain"
    assert "docker node update" in listed()["problem"]
