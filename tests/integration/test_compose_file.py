"""The Compose file as docker-compose reads it: valid, and every service as closed as the agents are."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    """The services of the file, with all anchors and variables filled in."""
    if shutil.which("docker-compose") is None:
        pytest.skip("docker-compose is missing: apt-get install docker-compose")
    seen = subprocess.run(
        ["docker-compose", "--file", "docker-compose.yml", "config"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert seen.returncode == 0, seen.stderr
    found: dict[str, Any] = yaml.safe_load(seen.stdout)["services"]
    return found


def test_every_service_has_no_capability_by_itself_and_cannot_write_its_root(
    services: dict[str, Any],
) -> None:
    for name, service in services.items():
        assert service["cap_drop"] == ["ALL"], name
        assert service["read_only"] is True, name
        assert "no-new-privileges:true" in service["security_opt"], name
        assert not service.keys() & {"privileged", "pid", "ipc", "devices"}, name
        assert service.get("network_mode", "none") == "none", name


def test_the_engines_socket_is_in_the_filter_alone_and_nothing_listens_for_the_network(
    services: dict[str, Any],
) -> None:
    socket = "/var/run/docker.sock"
    with_socket = [name for name, one in services.items() if socket in str(one.get("volumes"))]
    ports = [port for one in services.values() for port in one.get("ports", ())]

    assert with_socket == ["engine"]
    assert ports
    assert all(str(port).startswith("127.0.0.1:") for port in ports)


def test_services_of_one_image_build_it_alike(services: dict[str, Any]) -> None:
    """Compose builds each service, and the last build has the name."""
    builds: dict[str, list[Any]] = {}
    for service in services.values():
        builds.setdefault(service["image"], []).append(service["build"])
    assert all(one == made[0] for made in builds.values() for one in made), builds
