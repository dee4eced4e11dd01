"""Both runtimes: Docker's needs an engine and the image, and says so where it is skipped."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docker.conftest import agent_image, docker_client

__all__ = ["agent_image", "docker_client"]

HERE = Path(__file__).parent
HUNG_SECONDS = 1500
"""Some start five containers one after another; each may take minutes where the engine has more to do."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Have whatever waits here give up by itself, and say for what, before it counts as hung."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.host)
            if not item.get_closest_marker("timeout"):
                item.add_marker(pytest.mark.timeout(HUNG_SECONDS))


@pytest.fixture(params=["process", pytest.param("docker", marks=pytest.mark.docker)])
def runtime(request: pytest.FixtureRequest) -> str:
    """Where agents run."""
    if request.param == "docker":
        request.getfixturevalue("agent_image")
    return str(request.param)
