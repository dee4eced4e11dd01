"""An Andy without a clone: the built wheel in an environment of its own, in an empty folder."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import docker
import pytest

from orchestrator.containers.image import build
from orchestrator.containers.image.context import ImageSources
from release.artifacts import write_packages
from release.trial import clean_environment, install_wheel

PROJECT = Path(__file__).parents[2]
TAG = "andy-agent-test:wheel"
SECONDS = 240

pytestmark = [pytest.mark.docker, pytest.mark.timeout(SECONDS * 3)]


@dataclass(frozen=True)
class Installed:
    """A program as `pipx install` leaves it; its owner has a home folder and stands in an empty one."""

    andy: Path
    folder: Path
    owner: Path

    def run(self, *words: str, code: int = 0) -> str:
        done = subprocess.run(
            [self.andy, *words],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout

    @property
    def environment(self) -> dict[str, str]:
        return {**clean_environment(self.owner), "ANDY_IMAGE": TAG}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Build the wheel and install it, with the libraries of this environment behind it."""
    root = tmp_path_factory.mktemp("wheel")
    source = root / "source"  # a build in the clone would leave a folder in it
    for name in ("orchestrator", "agent_runner", "container"):
        shutil.copytree(PROJECT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md"):
        shutil.copy2(PROJECT / name, source / name)
    (root / "made").mkdir()
    andy = install_wheel(write_packages(source, root / "made", epoch="1700000000"), root / "env")
    for name in ("empty", "owner"):
        (root / name).mkdir()
    return Installed(andy=andy, folder=root / "empty", owner=root / "owner")


@pytest.fixture
def own_image(docker_client: docker.APIClient, agent_image: str) -> Iterator[str]:
    """The image that the wheel builds; the engine has its layers of the clone's."""
    yield TAG
    docker_client.remove_image(TAG, force=True)


def test_the_demo_says_commands_that_are_on_the_path(installed: Installed) -> None:
    said = installed.run("demo", "--runtime", "process")
    assert "All steps succeeded. Next: andy up, and in another terminal andy chat main" in said
    assert list(installed.folder.iterdir()) == []


def test_it_builds_the_image_of_the_clone_and_removes_what_it_made(
    installed: Installed, docker_client: docker.APIClient, own_image: str
) -> None:
    installed.run("image", "build")
    assert build.is_current(docker_client, own_image, ImageSources.below(PROJECT))

    installed.run("groups", "register", "family")
    home = installed.owner / ".local" / "share" / "andy"
    assert (home / "groups" / "family").is_dir()
    assert list(installed.folder.iterdir()) == []

    found = json.loads(installed.run("doctor", "--json"))
    said = json.dumps(found)
    assert "checkout" not in said
    assert "make " not in said

    (home / "data").mkdir(exist_ok=True)
    (home / "data" / "install").write_text("wheel0test")  # as a start leaves it
    docker_client.create_network("andy-wheel0test", labels={"andy.install": "wheel0test"})
    removed = installed.run("uninstall", "--yes")
    assert docker_client.networks(names=["andy-wheel0test"]) == []
    assert f"rm -r {home}" in removed
    assert home.is_dir()
