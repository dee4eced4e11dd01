"""Three nodes with the agent image, for the whole session; skipped with the reason where none can be had.

A machine that lacks a program can be given it, and where Docker was promised it is a failure that it was not.
A kernel without overlay networks is none.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.docker.conftest import agent_image, docker_client
from tests.processes.swarm_nodes import SwarmNodes, has_overlays, why_not
from tests.support.skips import THIS_MACHINE

__all__ = ["agent_image", "docker_client"]


@pytest.fixture(scope="session")
def nodes(agent_image: str) -> Iterator[SwarmNodes]:
    """Nodes that form a swarm; a test that spoils one leaves it healed or not needed."""
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    if not has_overlays():
        pytest.skip(f"{THIS_MACHINE}its kernel has no vxlan devices, or lets nobody make one")
    with SwarmNodes() as started:
        started.load(agent_image)
        with started.entered():
            previous = os.environ.get("DOCKER_HOST")
            os.environ["DOCKER_HOST"] = started.manager.docker_host
            try:
                yield started
            finally:
                os.environ.pop("DOCKER_HOST")
                if previous is not None:
                    os.environ["DOCKER_HOST"] = previous
