"""What the engine answers when a network is to be made, and what the owner is told then."""

from __future__ import annotations

from typing import Any

import pytest
from docker.errors import APIError
from requests import Response

from orchestrator.containers.docker import group_networks, network
from orchestrator.containers.docker.group_networks import GroupNetworks
from orchestrator.domain.errors import ContainerError
from orchestrator.domain.values import Folder

NO_POOL = "could not find an available, non-overlapping IPv4 address pool among the defaults to assign"


class Engine:
    """Has no network, and refuses to make one with the status and the words of a real engine."""

    def __init__(self, status: int, words: str) -> None:
        self.answer = Response()
        self.answer.status_code = status
        self.words = words

    def networks(self, *, names: list[str]) -> list[dict[str, Any]]:
        return []

    def create_network(self, name: str, **_: object) -> dict[str, Any]:
        raise APIError("refused", self.answer, self.words)


def made_by(engine: Engine) -> None:
    network.find_or_create(engine, "andy-1", "1", is_internal=True)  # type: ignore[arg-type]


def test_an_engine_without_addresses_is_told_of_with_the_fix():
    with pytest.raises(ContainerError, match="docker network prune"):
        made_by(Engine(404, NO_POOL))


def test_any_other_refusal_is_not_taken_for_a_network_that_is_there():
    with pytest.raises(APIError):
        made_by(Engine(404, "plugin not found"))


class LessEngine(Engine):
    """Makes networks without the options that it was asked for, as Podman does."""

    def __init__(self) -> None:
        super().__init__(201, "")
        self.there: list[dict[str, Any]] = []

    def networks(self, *, names: list[str]) -> list[dict[str, Any]]:
        return self.there

    def create_network(self, name: str, *, labels: dict[str, str], **_: object) -> dict[str, Any]:
        one = {"Id": "1", "Name": name, "Created": "", "Internal": True, "Labels": labels, "Options": {}}
        self.there.append(one)
        return one

    def remove_network(self, network_id: str) -> None:
        self.there = [one for one in self.there if one["Id"] != network_id]


def test_an_engine_that_separates_no_agents_is_refused_and_nothing_of_it_stays():
    engine = LessEngine()
    with pytest.raises(ContainerError, match=r"enable_icc.*Podman.*Docker's own engine"):
        made_by(engine)
    assert engine.there == []


class FullEngine(Engine):
    """Has addresses for two networks, and containers on those in `used`."""

    def __init__(self, *used: str) -> None:
        super().__init__(400, NO_POOL)
        self.used = used
        self.there: list[dict[str, Any]] = []

    def networks(self, *, names: list[str] | None = None) -> list[dict[str, Any]]:
        return [one for one in self.there if names is None or names == [f"^{one['Name']}$"]]

    def create_network(
        self, name: str, *, labels: dict[str, str], options: dict[str, str], **_: object
    ) -> dict[str, Any]:
        if len(self.there) == 2:
            raise APIError("refused", self.answer, self.words)
        made = {"Id": name, "Name": name, "Created": "", "Internal": True, "Labels": labels}
        containers = {"agent": {}} if name in self.used else {}
        self.there.append({**made, "Options": options, "Containers": containers})
        return made

    def inspect_network(self, network_id: str) -> dict[str, Any]:
        return next(one for one in self.there if one["Id"] == network_id)

    def connect_container_to_network(self, container: str, network_id: str, *, aliases: list[str]) -> None:
        self.inspect_network(network_id)["Containers"][container] = {}

    def disconnect_container_from_network(self, container: str, network_id: str) -> None:
        del self.inspect_network(network_id)["Containers"][container]

    def remove_network(self, network_id: str) -> None:
        self.there.remove(self.inspect_network(network_id))


def joined(engine: FullEngine) -> list[str]:
    networks = GroupNetworks(install="1", own_id="andy")
    for folder in ("family", "work", "garden"):
        networks.join(engine, Folder(folder))  # type: ignore[arg-type]
    return [one["Name"] for one in engine.there]


def test_where_addresses_run_out_the_networks_that_no_agent_uses_make_room(monkeypatch):
    monkeypatch.setattr(group_networks, "START_SECONDS", 0.0)
    assert joined(FullEngine("andy-1.work")) == ["andy-1.work", "andy-1.garden"]


def test_a_network_whose_container_is_being_started_makes_no_room():
    engine = FullEngine("andy-1.work")
    with pytest.raises(ContainerError, match="docker network prune"):
        joined(engine)
    assert [one["Name"] for one in engine.there] == ["andy-1.family", "andy-1.work"]


def test_where_agents_use_all_networks_the_owner_is_told_the_fix():
    with pytest.raises(ContainerError, match="docker network prune"):
        joined(FullEngine("andy-1.family", "andy-1.work"))
