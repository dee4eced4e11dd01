"""The base image by its digest: looked up at a registry that is there, written down, and built on."""

from __future__ import annotations

import io
import re
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest

from orchestrator.containers.image import base
from orchestrator.containers.image.base import BaseImage, provide_base
from orchestrator.containers.image.progress import BuildProgress
from release import base_image
from tests.processes.image_registry import image_registry, is_installed

pytestmark = pytest.mark.docker
PROJECT = Path(__file__).parents[2]


def push(client: docker.APIClient, name: str, content: str) -> None:
    """Push a base with one file under a name that another may have had before."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        tar.addfile(tarfile.TarInfo(content))
    repository, _, tag = name.rpartition(":")
    client.import_image_from_data(layer.getvalue(), repository=repository, tag=tag)
    for event in client.push(repository, tag=tag, stream=True, decode=True):
        assert "error" not in event, event


def forget(client: docker.APIClient, repository: str) -> None:
    for image in client.images():
        names = [*(image["RepoTags"] or ()), *(image["RepoDigests"] or ())]
        if any(name.startswith(repository) for name in names):
            client.remove_image(image["Id"], force=True)


@pytest.fixture
def name(tmp_path: Path, docker_client: docker.APIClient) -> Iterator[str]:
    """The name of a base at a registry of this machine."""
    if not is_installed():
        pytest.skip("no docker-registry: apt-get install docker-registry")
    with image_registry(tmp_path) as address:
        yield f"{address}/python:3.13-slim-bookworm"
        forget(docker_client, f"{address}/python")


def test_a_base_by_its_digest_stays_the_same_whatever_its_tag_becomes(
    docker_client: docker.APIClient, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    push(docker_client, name, "first")
    pinned = base_image.name_in_registry(docker_client, name)
    push(docker_client, name, "second")
    assert re.fullmatch(re.escape(name) + "@sha256:[0-9a-f]{64}", pinned)
    assert base_image.name_in_registry(docker_client, pinned) != pinned, "looked up anew it is the newest"
    forget(docker_client, name.rpartition(":")[0])
    monkeypatch.setattr(base, "PYTHON_IMAGE", pinned)

    assert provide_base(docker_client, BaseImage.PULL, BuildProgress(print)) == pinned

    layers = docker_client.inspect_image(pinned)["RootFS"]["Layers"]

    recipe = io.BytesIO(f"FROM {pinned}\nLABEL a=b\n".encode())
    said = list(docker_client.build(fileobj=recipe, decode=True, rm=True))
    (built,) = [line["stream"].split()[-1] for line in said if "Successfully built" in line.get("stream", "")]
    assert docker_client.inspect_image(built)["RootFS"]["Layers"] == layers
    docker_client.remove_image(built)
    assert any(pinned.partition("@")[2] in one for one in docker_client.inspect_image(pinned)["RepoDigests"])
    with pytest.raises(base_image.NotPinned, match="pin it where a registry answers"):
        base_image.name_in_registry(docker_client, f"{name}x")


def test_the_digest_is_written_into_each_file_that_names_the_base(tmp_path: Path) -> None:
    for file in base_image.FILES:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(PROJECT / file, tmp_path / file)
    for digit in "ab":
        pinned = f"{base.without_digest(base.PYTHON_IMAGE)}@sha256:{digit * 64}"
        for file in base_image.FILES:
            text = base_image.pinned((tmp_path / file).read_text(), pinned)
            (tmp_path / file).write_text(text)
            assert {found[0] for found in base_image.NAMED.finditer(text)} == {pinned}
        assert base_image.is_pinned(tmp_path)
    (tmp_path / "Dockerfile").write_text(f"FROM {base.without_digest(base.PYTHON_IMAGE)}\n")
    assert not base_image.is_pinned(tmp_path)


def test_no_other_file_names_the_base() -> None:
    places = [PROJECT / "orchestrator", PROJECT / "container", PROJECT / "release"]
    known = {".py", ".sh", ".toml", ""}
    files = [path for place in places for path in place.rglob("*") if path.suffix in known]
    files += [*PROJECT.glob("*"), *(PROJECT / ".ci").glob("*")]
    naming = {
        str(path.relative_to(PROJECT))
        for path in files
        if path.is_file() and base_image.NAMED.search(path.read_text(errors="replace"))
    }
    assert naming == set(base_image.FILES)
