"""The files and images of a release, made of a clone at its commit."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

import docker

from orchestrator.containers.image import build, registry
from orchestrator.containers.image.base import BaseImage, provide_base
from orchestrator.containers.image.context import HOST_AUTHORITIES, ImageSources
from orchestrator.containers.image.progress import BuildProgress, follow_build
from orchestrator.domain.errors import ContainerError, ImageMissing
from release.decisions import AGENT, HOST, IMAGES, ReleaseRefused, checksums, image_labels

PROGRAMS = Path(sys.executable).parent
"""The folder of Python with the locked libraries, and of the programs beside it."""
SUMS, COMPOSE, CHANGES = "SHA256SUMS", "docker-compose.yml", "CHANGES.md"
_SDIST = "import sys; from setuptools import build_meta as b; b.build_sdist(sys.argv[1])"
_WHEEL = "import sys; from setuptools import build_meta as b; b.build_wheel(sys.argv[1])"


def run(
    *command: str | Path,
    cwd: Path,
    environment: Mapping[str, str] | None = None,
    seconds: float = 600,
) -> str:
    """Run a program to its end and return what it wrote. Raises `ReleaseRefused` with its last words."""
    try:
        done = subprocess.run(
            command,
            cwd=cwd,
            env={**os.environ, **environment} if environment is not None else None,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ReleaseRefused(f"{_shown(command)} does not run: {error}") from error
    if done.returncode != 0:
        words = "\n".join((done.stdout + done.stderr).strip().splitlines()[-12:])
        raise ReleaseRefused(f"{_shown(command)} ended with code {done.returncode}:\n{words}")
    return done.stdout


def _shown(command: tuple[str | Path, ...]) -> str:
    return " ".join(Path(word).name if isinstance(word, Path) else word for word in command[:4])


def write_packages(source: Path, target: Path, *, epoch: str) -> Path:
    """Write sdist and wheel into `target`, and return the wheel. It is made of what the sdist holds.

    `epoch` is the time of the files in the wheel in seconds, so that it comes out the same on every machine.
    """
    run(sys.executable, "-c", _SDIST, target, cwd=source)
    (sdist,) = target.glob("*.tar.gz")
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(sdist) as packed:
            packed.extractall(folder, filter="data")
        (unpacked,) = Path(folder).iterdir()
        run(sys.executable, "-c", _WHEEL, target, cwd=unpacked, environment={"SOURCE_DATE_EPOCH": epoch})
    (wheel,) = target.glob("*.whl")
    return wheel


def write_parts_lists(source: Path, target: Path, version: str) -> None:
    """Write what host and image are made of as CycloneDX, with the version of Andy in it."""
    # '-o': the libraries are there already, in the environment that this runs in.
    run("make", "-o", ".venv/.ready", f"BIN={PROGRAMS}", "sbom", f"SBOM={target}", cwd=source)
    for path in target.glob("*.cdx.json"):
        parts = json.loads(path.read_text(encoding="utf-8"))
        parts["metadata"]["component"]["version"] = version
        path.write_text(json.dumps(parts, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def write_checksums(target: Path) -> None:
    """Write SHA256SUMS of all other files of the folder."""
    files = [path for path in target.iterdir() if path.name != SUMS]
    hashes = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    (target / SUMS).write_text(checksums(hashes), encoding="utf-8")


def build_images(
    client: docker.APIClient,
    source: Path,
    images: Mapping[str, str],
    *,
    version: str,
    revision: str,
    created: str,
    takes_authorities: bool,
) -> None:
    """Build both images under the names that `images` has for those in docker-compose.yml.

    The certificate authorities of this machine come along only where `takes_authorities`: in an image that
    others run they would be trusted there, too.

    Raises:
        ReleaseRefused: an image cannot be built here.
    """
    authorities = HOST_AUTHORITIES if takes_authorities else source / "none"
    run("make", "certificates", f"AUTHORITIES={authorities}", cwd=source)
    # 'andy image build' packs no hidden file: the engine has the same layers for both only without it.
    (source / "container" / "certificates" / ".gitkeep").unlink(missing_ok=True)
    about = {name: image_labels(name, version=version, revision=revision, created=created) for name in IMAGES}
    try:
        build.build(
            client,
            tag=images[f"{AGENT}:latest"],
            sources=ImageSources.below(source),
            authorities=authorities,
            about=about[AGENT],
            layers=(),
            say=print,
        )
        _build_host(client, source, images[f"{HOST}:latest"], about[HOST])
    except (ContainerError, docker.errors.DockerException) as error:
        raise ReleaseRefused(f"The images cannot be built here: {error}") from error


def _build_host(client: docker.APIClient, source: Path, name: str, labels: Mapping[str, str]) -> None:
    progress = BuildProgress(print)
    base = provide_base(client, BaseImage.AUTO, progress)
    events = client.build(
        path=str(source),
        tag=name,
        labels=dict(labels),
        buildargs=build.build_arguments(base, os.environ),
        network_mode="host",
        rm=True,
        forcerm=True,
        decode=True,
    )
    follow_build(events, progress)


def push_images(client: docker.APIClient, images: Mapping[str, str], to: str) -> dict[str, str]:
    """Push images to a registry and return their names with digests, by those that they had before.

    Raises:
        ReleaseRefused: the registry does not take one, or there is none to push.
    """
    pushed = {}
    for name in images.values():
        try:
            pushed[name] = registry.push(client, name, to, say=print)
        except registry.RegistryRefused as error:
            raise ReleaseRefused(str(error)) from error
        except ImageMissing as error:
            raise ReleaseRefused(f"{name} is not on this engine: release where it was built.") from error
    return pushed


def remove_images(client: docker.APIClient, names: Iterable[str]) -> None:
    """Remove the images that are there; layers that other images have stay."""
    for name in names:
        try:
            client.remove_image(name)
        except docker.errors.ImageNotFound:
            continue
        except docker.errors.APIError as error:
            print(f"{name} stays on the engine: {error.explanation}")
