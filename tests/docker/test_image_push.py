"""`andy image push` to a real registry, and an image that is set by its digest, pulled from there."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tarfile
from collections.abc import Iterator

import docker
import pytest

from orchestrator.containers.image import registry as image_registries
from orchestrator.containers.image.registry import repository_of
from tests.processes.image_registry import image_registry, is_installed

pytestmark = pytest.mark.docker
SMALL = "andy-push-test:latest"


def andy(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "orchestrator", "image", "push", *words]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.fixture
def registry(tmp_path) -> Iterator[str]:
    if not is_installed():
        pytest.skip("no docker-registry: apt-get install docker-registry")
    with image_registry(tmp_path) as address:
        yield address


@pytest.fixture
def small_image(docker_client: docker.APIClient) -> Iterator[str]:
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("empty"))
    repository, _, tag = SMALL.partition(":")
    docker_client.import_image_from_data(layer.getvalue(), repository=repository, tag=tag)
    yield SMALL
    for image in docker_client.images():
        names = [*(image["RepoTags"] or ()), *(image["RepoDigests"] or ())]
        if any(repository_of(name).endswith("andy-push-test") for name in names):
            docker_client.remove_image(image["Id"], force=True)


def test_a_pushed_image_is_told_by_its_digest_and_pulled_again(
    docker_client, registry, small_image, tmp_path
):
    pushed = andy(registry, "--tag", small_image, "--json", "--home", str(tmp_path))
    assert pushed.returncode == 0, pushed.stderr
    name = json.loads(pushed.stdout)["image"]

    assert name.startswith(f"{registry}/andy-push-test@sha256:")
    docker_client.remove_image(small_image)
    docker_client.remove_image(f"{registry}/andy-push-test:latest")
    said: list[str] = []
    for _ in range(2):
        image_registries.fetch(docker_client, name, say=said.append)
        assert name in docker_client.inspect_image(name)["RepoDigests"]
    assert said == [f"Pulling {name} …"]

    assert f"ANDY_IMAGE={name}" in andy(registry, "--tag", name, "--home", str(tmp_path)).stdout


def test_a_registry_that_is_not_there_is_told_with_the_fix(small_image, tmp_path):
    refused = andy("127.0.0.1:9", "--tag", small_image, "--home", str(tmp_path))
    assert refused.returncode == 1
    assert "Nothing listens there: start it, or fix the port." in refused.stderr
