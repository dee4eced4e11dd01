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
    """Run a program in the folder `cwd` to its end, and return what it wrote to stdout.

    `environment` are variables that are added to those of this process; None for none. Raises
    `ReleaseRefused` if it cannot be started, fails, or takes more than `seconds`; the text says why.
    """
    try:
        result = subprocess.run(
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
    if result.returncode != 0:
        last_lines = "\n".join((result.stdout + result.stderr).strip().splitlines()[-12:])
        raise ReleaseRefused(f"{_shown(command)} ended with code {result.returncode}:\n{last_lines}")
    return result.stdout


def _shown(command: tuple[str | Path, ...]) -> str:
    """Return the beginning of a command for a message, with the names of files instead of their paths."""
    return " ".join(Path(word).name if isinstance(word, Path) else word for word in command[:4])


def write_packages(source: Path, target: Path, *, epoch: str) -> Path:
    """Write the source distribution and the wheel of the checkout `source` into `target`; return the wheel.

    The wheel is made from the source distribution. `epoch` is the time of its files in epoch seconds, so that
    it is the same on every machine. Raises `ReleaseRefused`.
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
    """Write the parts lists (CycloneDX) of the host and of the image into `target`, with Andy's version.

    `source` is the checkout. Raises `ReleaseRefused`.
    """
    # '-o': the libraries are there already, in the environment that this runs in.
    run("make", "-o", ".venv/.ready", f"BIN={PROGRAMS}", "sbom", f"SBOM={target}", cwd=source)
    for path in target.glob("*.cdx.json"):
        parts = json.loads(path.read_text(encoding="utf-8"))
        parts["metadata"]["component"]["version"] = version
        path.write_text(json.dumps(parts, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def write_checksums(target: Path) -> None:
    """Write the file SHA256SUMS with the hashes of all other files of a folder."""
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
    """Build the images of the host and of agents from the checkout `source`.

    `images` maps their names in docker-compose.yml to those that they get. `version`, `revision` (the commit)
    and `created` (an ISO time) become labels. `takes_authorities`: whether this machine's certificate
    authorities are put into them; in an image that others run, they would be trusted there, too.

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
    """Build the host's image from the checkout `source` under this name, and print the progress.

    Raises `ContainerError`, `DockerException`.
    """
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
    """Push images to the registry `to`, and return their names there, with digests, by their local names.

    The local names are the values of `images`.

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
    """Remove those of the named images that exist; print the reason for one that cannot be removed."""
    for name in names:
        try:
            client.remove_image(name)
        except docker.errors.ImageNotFound:
            continue
        except docker.errors.APIError as error:
            print(f"{name} stays on the engine: {error.explanation}")
