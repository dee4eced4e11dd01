"""What a faulty or hostile container needs: the engine and the image, said where they cannot be had."""

from __future__ import annotations

from tests.docker.conftest import agent_image, docker_client

__all__ = ["agent_image", "docker_client"]
