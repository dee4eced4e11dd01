"""The engine and the image of the Docker tests, for the contracts that run on them too."""

from __future__ import annotations

from tests.docker.conftest import agent_image, docker_client

__all__ = ["agent_image", "docker_client"]
