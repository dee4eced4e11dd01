"""The agent image is copied to nodes from a container on a network, also after a copy that was killed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from docker.errors import APIError
from requests import Response

from orchestrator.containers.swarm import image_copies

NAME = "andy-home-images"


class Engine:
    """An engine with a container, a network and services by name, which refuses what Docker refuses."""

    def __init__(self) -> None:
        self.containers: set[str] = set()
        self.has_network = False
        self.services_left: list[str] = []

    def inspect_image(self, name: str) -> dict[str, Any]:
        return {"Id": f"sha256:{name}"}

    def get_image(self, name: str) -> Iterator[bytes]:
        return iter([name.encode()])

    def services(self, filters: dict[str, list[str]]) -> list[dict[str, Any]]:
        assert filters == {"label": ["andy.install=home", "andy.copy=image"]}
        return [{"ID": name} for name in self.services_left]

    def remove_service(self, name: str) -> None:
        self.services_left.remove(name)

    def networks(self, names: list[str]) -> list[dict[str, Any]]:
        assert names == [NAME]
        return [{"Id": NAME}] if self.has_network else []

    def create_network(self, name: str, **_: Any) -> dict[str, Any]:
        self._refuse_if(self.has_network, 409)
        self.has_network = True
        return {"Id": name}

    def remove_network(self, _: str) -> None:
        self._refuse_if(bool(self.containers or self.services_left), 403)
        self.has_network = False

    def create_container(self, _: str, *, name: str, **__: Any) -> dict[str, Any]:
        self._refuse_if(name in self.containers, 409)
        self.containers.add(name)
        return {"Id": name}

    def remove_container(self, name: str, *, force: bool) -> None:
        assert force
        self._refuse_if(name not in self.containers, 404)
        self.containers.remove(name)

    def start(self, _: str) -> None: ...

    def create_networking_config(self, config: Any) -> Any:
        return config

    def create_endpoint_config(self, **config: Any) -> Any:
        return config

    def create_host_config(self, **config: Any) -> Any:
        return config

    @staticmethod
    def _refuse_if(is_refused: bool, status: int) -> None:
        if is_refused:
            response = Response()
            response.status_code = status
            raise APIError("refused", response=response)


def test_a_copy_removes_what_a_killed_one_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_copies, "LOOK_SECONDS", 0)
    engine = Engine()
    engine.containers, engine.has_network = {NAME}, True
    engine.services_left = [f"{NAME}-1"]
    copy = image_copies._Copy(engine, "agent", "home", print)

    with copy.served(tmp_path) as hashes:
        assert len(hashes) == 1
        assert (engine.containers, engine.has_network, engine.services_left) == ({NAME}, True, [])

    assert (engine.containers, engine.has_network) == (set(), False)
