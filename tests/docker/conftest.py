"""A real engine and the real image; both skip with the reason where they cannot be had."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest
from docker.errors import DockerException
from docker.utils import kwargs_from_env
from filelock import FileLock

from orchestrator.containers.image import build
from orchestrator.containers.image.context import ImageSources
from orchestrator.domain.errors import NoBaseImage
from tests.support.outside_container import OutsideContainer
from tests.support.runtimes import DockerBench

PROJECT = Path(__file__).parents[2]
BUILD_SECONDS = 900
ENGINE_SECONDS = 600
"""For one call: beside builds and dozens of containers, an engine may take minutes."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whichever test comes first builds the image, so each may take as long as that."""
    for item in items:
        if "agent_image" in getattr(item, "fixturenames", ()) and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(BUILD_SECONDS))


@pytest.fixture(scope="session")
def docker_client() -> Iterator[docker.APIClient]:
    """A client of the engine that the environment names."""
    try:
        client = docker.APIClient(**kwargs_from_env(), timeout=ENGINE_SECONDS)
    except DockerException as error:
        pytest.skip(f"no Docker engine answers: {error}")
    yield client
    client.close()


@pytest.fixture(scope="session")
def agent_image(docker_client: docker.APIClient) -> str:
    """The tag of the agent image (`ANDY_IMAGE`), built when it is missing or stale."""
    tag = os.environ.get("ANDY_IMAGE", build.TAG)
    with FileLock(Path(tempfile.gettempdir()) / "andy-agent-image.lock"):  # tests run in two processes
        if not build.is_current(docker_client, tag, ImageSources.below(PROJECT)):
            try:
                build.build(docker_client, tag=tag, sources=ImageSources.below(PROJECT), say=print)
            except NoBaseImage as error:
                pytest.skip(str(error))
    return tag


@pytest.fixture
def network_bench(docker_client: docker.APIClient, agent_image: str) -> Iterator[DockerBench]:
    """A bench whose networks are removed, too."""
    bench = DockerBench(docker_client, agent_image)
    yield bench
    bench.clear()
    for each in docker_client.networks(filters={"label": [f"andy.install={bench.install}"]}):
        docker_client.remove_network(each["Id"])


@pytest.fixture
def outside(docker_client: docker.APIClient, agent_image: str) -> Iterator[OutsideContainer]:
    serve = ["python3", "-u", "-S", "-m", "http.server", "8000"]
    made = docker_client.create_container(agent_image, entrypoint=serve)
    try:
        docker_client.start(made)
        address = docker_client.inspect_container(made)["NetworkSettings"]["IPAddress"]
        yield OutsideContainer(client=docker_client, id=made["Id"], address=address)
    finally:
        docker_client.remove_container(made, force=True)
