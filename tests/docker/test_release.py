"""A release of a copy of the project, made, tried, and not kept: `make release DRY=1`."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import tarfile
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import docker
import pytest
import yaml

from release import __main__ as command
from release import trial
from release.artifacts import CHANGES, COMPOSE, SUMS
from tests.processes.image_registry import image_registry, is_installed
from tests.support.skips import only_in_soak

PROJECT = Path(__file__).parents[2]
VERSION = "9.8.7"

pytestmark = [pytest.mark.docker, pytest.mark.timeout(2400)]


def git(root: Path, *words: str) -> str:
    done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The project as it would be committed now, with something to release."""
    root = tmp_path / "checkout"
    listed = git(PROJECT, "ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0")
    for name in filter(None, listed):
        if (PROJECT / name).is_file():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(PROJECT / name, root / name)
    log = root / "CHANGELOG.md"
    log.write_text(log.read_text().replace("## Unreleased\n", "## Unreleased\n\n- A bell.\n", 1))
    git(root, "init", "--quiet", "--initial-branch", "main")
    for key, value in (("user.name", "Mia"), ("user.email", "mia@example.org")):
        git(root, "config", key, value)
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message", "All of it")
    return root


@only_in_soak
@pytest.mark.parametrize("is_pushed", [False, True], ids=["from the engine", "from a registry"])
def test_a_dry_run_makes_installs_and_starts_a_release_and_keeps_nothing(
    docker_client: docker.APIClient,
    agent_image: str,
    checkout: Path,
    monkeypatch,
    tmp_path,
    capsys,
    is_pushed,
) -> None:
    if is_pushed and not is_installed():
        pytest.skip("no docker-registry: apt-get install docker-registry")
    before = git(checkout, "rev-parse", "HEAD")
    seen: dict[str, Any] = {}
    start = trial.try_compose

    def look_and_start(made: Path, folder: Path) -> None:
        shutil.copytree(made, tmp_path / "made")
        start(made, folder)
        services = yaml.safe_load((made / COMPOSE).read_text())["services"]
        for name in ("andy", "agent"):
            image = services[name]["image"].partition(":-")[2].removesuffix("}")
            seen[name] = docker_client.inspect_image(image)

    monkeypatch.setattr(trial, "try_compose", look_and_start)
    with image_registry(tmp_path) if is_pushed else nullcontext() as registry:
        wanted = command.Wanted(version=VERSION, is_dry=True, registry=registry)
        command.release(checkout, wanted)
    shutil.rmtree(tmp_path / "registry", ignore_errors=True)  # some hundred MB

    made, said = tmp_path / "made", capsys.readouterr().out
    assert "✓ All steps succeeded." in said  # 'andy demo' of the wheel
    assert "I'll remind you" in said  # Andy of the Compose file
    assert_whole(made, registry)
    for image in seen.values():
        labels = image["Config"]["Labels"]
        assert labels["org.opencontainers.image.version"] == VERSION
        assert len(labels["org.opencontainers.image.revision"]) == 40
    assert seen["agent"]["Config"]["Labels"]["org.opencontainers.image.title"] == "andy-agent"

    assert git(checkout, "rev-parse", "HEAD") == before
    assert git(checkout, "status", "--porcelain", "--ignored") == git(checkout, "tag") == ""
    tags = [tag for image in docker_client.images() for tag in image["RepoTags"] or ()]
    assert [tag for tag in tags if VERSION in tag or (registry and registry in tag)] == []


def assert_whole(made: Path, registry: str | None) -> None:
    """All files of a release are there, and say the same."""
    wheel, sdist = f"andy_assistant-{VERSION}-py3-none-any.whl", f"andy_assistant-{VERSION}.tar.gz"
    parts = ("andy-host.cdx.json", "andy-image.cdx.json")
    assert {path.name for path in made.iterdir()} == {wheel, sdist, *parts, COMPOSE, CHANGES, SUMS}
    sums = dict(reversed(line.split()) for line in (made / SUMS).read_text().splitlines())
    assert sums == {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in made.iterdir()
        if path.name != SUMS
    }
    for name in parts:
        assert json.loads((made / name).read_text())["metadata"]["component"]["version"] == VERSION
    with tarfile.open(made / sdist) as packed:
        assert f"andy_assistant-{VERSION}/container/Dockerfile" in packed.getnames()
    text = (made / COMPOSE).read_text()
    image = f"{registry}/andy-orchestrator@sha256:" if registry else f"andy-orchestrator:{VERSION}-dry-run-"
    assert text.count(image) == 2
    assert "- A bell." in (made / CHANGES).read_text()
