"""What the engine answers when a network is to be made, and what the owner is told then."""

from __future__ import annotations

from typing import Any

import pytest
from docker.errors import APIError
from requests import Response

from orchestrator.containers.docker import network
from orchestrator.domain.errors import ContainerError


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
    words = "could not find an available, non-overlapping IPv4 address pool among the defaults to assign"
    with pytest.raises(ContainerError, match="docker network prune"):
        made_by(Engine(404, words))


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
