"""Both runtimes: Docker's needs an engine and the image, and says so where it is skipped."""

from __future__ import annotations

import pytest

from tests.docker.conftest import agent_image, docker_client

__all__ = ["agent_image", "docker_client"]


@pytest.fixture(params=["process", pytest.param("docker", marks=pytest.mark.docker)])
def runtime(request: pytest.FixtureRequest) -> str:
    """Where agents run."""
    if request.param == "docker":
        request.getfixturevalue("agent_image")
    return str(request.param)
