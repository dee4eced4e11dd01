"""Provide the base of the agent image: from a registry, or from Debian's archive if no registry answers."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.containers.image.progress import BuildProgress
from orchestrator.domain.errors import NoBaseImage

if TYPE_CHECKING:
    import docker
    import requests

PYTHON_IMAGE = "python:3.13-slim-bookworm"
"""The base from a registry. `make pin` adds the digest of the checked image to the name."""
DEBIAN_IMAGE = "andy-base:bookworm"
"""The tag of the base that is built from Debian's archive."""
DEBIAN_LABEL = "andy.base"
"""The label with the recipe of that base."""
DEBIAN_RECIPE = "bookworm minbase python3,python3-venv,ca-certificates 1"
"""The recipe of the Debian base: suite, variant, packages, version.

A base with another recipe is built again.
"""
PULL_SILENCE_SECONDS = 60.0
"""Seconds without an answer of the engine after which a pull fails."""
UNWANTED = ("dev", "proc", "sys", "run", "tmp", "var/log", "var/cache/apt", "var/lib/apt/lists",
            "usr/share/doc", "usr/share/man", "usr/share/info", "usr/share/locale")  # fmt: skip
"""Folders of the unpacked system that are empty in the base: `pack_root` leaves out their contents."""


class BaseImage(StrEnum):
    """The choice of where the base comes from."""

    AUTO = "auto"
    """Use a base that exists here, else pull one, else build one from Debian's archive."""
    PULL = "pull"
    DEBIAN = "debian"


def provide_base(client: docker.APIClient, base: BaseImage, progress: BuildProgress) -> str:
    """Make sure that the base of the agent image exists, and return its tag.

    `base` says where it comes from. What is done is reported to `progress`.

    Raises:
        NoBaseImage: it cannot be provided; the text names the fix.
    """
    match base:
        case BaseImage.PULL:
            return _pull_base(client, progress)
        case BaseImage.DEBIAN:
            return _build_debian_base(client, progress)
        case BaseImage.AUTO:
            return _pull_or_build_base(client, progress)


def _pull_or_build_base(client: docker.APIClient, progress: BuildProgress) -> str:
    """Return the tag of a base image that exists here, the registry's if both do.

    If none exists, pull the registry's or, if that fails, build one from Debian's archive.

    Raises:
        NoBaseImage: none of these is possible.
    """
    if inspect(client, PYTHON_IMAGE) is None and _has_debian(client):
        return _build_debian_base(client, progress)  # builds nothing, because it exists
    try:
        return _pull_base(client, progress)  # pulls nothing if it exists
    except NoBaseImage as error:
        progress.report(f"{error} Making one from Debian's archive now")
        return _build_debian_base(client, progress)


def inspect(client: docker.APIClient, tag: str) -> dict[str, Any] | None:
    """Return the engine's description of an image, or None if it does not exist."""
    from docker.errors import ImageNotFound

    try:
        description: dict[str, Any] = client.inspect_image(tag)  # type: ignore[no-untyped-call]
    except ImageNotFound:
        return None
    return description


def without_digest(name: str) -> str:
    """Return the name of an image without its digest."""
    return name.partition("@")[0]


def labels_of(client: docker.APIClient, tag: str) -> dict[str, str]:
    """Return the labels of an image; empty if there is no image."""
    description = inspect(client, tag)
    return {} if description is None else description["Config"]["Labels"] or {}


def _pull_base(client: docker.APIClient, progress: BuildProgress) -> str:
    """Pull the base from the registry unless it exists here, and return its tag. Raises `NoBaseImage`."""
    if inspect(client, PYTHON_IMAGE) is not None:
        progress.report(f"{PYTHON_IMAGE} is here")
        return PYTHON_IMAGE
    progress.report(f"asking the registry for {PYTHON_IMAGE}")
    for event in _pull_events(client):
        if "error" in event:
            raise _pull_error(str(event["error"]))
        if str(event.get("status", "")).startswith(("Pull complete", "Status:")):
            progress.report(f"{event['status']} {event.get('id', '')}".strip())
    return PYTHON_IMAGE


def _pull_events(client: docker.APIClient) -> Iterator[dict[str, Any]]:
    """Pull the base image from the registry, and yield the engine's events of the pull.

    docker-py's own call is not used, because it has no time limit for a registry that does not answer.

    Raises:
        NoBaseImage: the engine refuses, its answer breaks off or cannot be read, or the registry does not
            answer.
    """
    from docker.auth import get_config_header
    from requests import RequestException, Timeout
    from urllib3.exceptions import ReadTimeoutError

    repository, _, tag = without_digest(PYTHON_IMAGE).rpartition(":")
    # If the name has a digest, the image is requested by it, so that the engine accepts no other image.
    tag = PYTHON_IMAGE.partition("@")[2] or tag
    header = get_config_header(client, "docker.io")
    try:
        with client.post(
            f"{client.base_url}/v{client.api_version}/images/create",
            params={"fromImage": repository, "tag": tag},
            headers={"X-Registry-Auth": header} if header else {},
            stream=True,
            timeout=PULL_SILENCE_SECONDS,
        ) as response:
            if not response.ok:
                raise _pull_error(_refusal(response))
            yield from (json.loads(line) for line in response.iter_lines() if line.strip())
    except RequestException as error:
        # requests gives a silence in the middle of an answer no error of its own.
        if isinstance(error, Timeout) or any(isinstance(cause, ReadTimeoutError) for cause in error.args):
            raise _pull_error(f"no word from it for {PULL_SILENCE_SECONDS:.0f} s") from error
        raise _pull_error("the connection to the container engine broke") from error
    except ValueError as error:
        raise _pull_error("the container engine's answer cannot be read") from error


def _refusal(response: requests.Response) -> str:
    """Return the engine's message about a request that it refused; its status if there is no message."""
    try:
        return str(response.json()["message"])
    except (ValueError, LookupError, TypeError):
        return f"the container engine answers {response.status_code}"


def _pull_error(reason: str) -> NoBaseImage:
    """Return the error for a base that cannot be pulled, with the reason and the fix."""
    return NoBaseImage(
        f"{PYTHON_IMAGE} cannot be pulled ({reason.strip()}): "
        "check the network, or build with '--base debian', which needs no registry."
    )


def _has_debian(client: docker.APIClient) -> bool:
    """Return whether the base from Debian's archive exists with the present recipe."""
    return labels_of(client, DEBIAN_IMAGE).get(DEBIAN_LABEL) == DEBIAN_RECIPE


def _build_debian_base(client: docker.APIClient, progress: BuildProgress) -> str:
    """Build the base from Debian's archive unless it exists, and return its tag. Raises `NoBaseImage`."""
    if _has_debian(client):
        progress.report(f"{DEBIAN_IMAGE} is here")
        return DEBIAN_IMAGE
    # The program is in /usr/sbin, which the search path of a user may lack.
    debootstrap = find_debootstrap(
        user_id=os.geteuid(), path=f"{os.environ.get('PATH', os.defpath)}{os.pathsep}/usr/sbin"
    )
    with _scratch() as folder:
        progress.report("unpacking Debian's archive, about a minute")
        suite, variant, packages, _ = DEBIAN_RECIPE.split()  # the last part only counts the recipe's versions
        target = folder / "root"
        _run([debootstrap, f"--variant={variant}", f"--include={packages}", suite, str(target)], progress)
        _import(client, pack_root(target, folder / "root.tar", progress), progress)
    return DEBIAN_IMAGE


def find_debootstrap(*, user_id: int, path: str) -> str:
    """Return the path of `debootstrap`, the program that unpacks Debian's archive.

    `path` lists the folders to search, separated as in the environment variable PATH. `user_id` is the id of
    the user that this process runs as.

    Raises:
        NoBaseImage: the program is missing, or the user is not root; the text names the fix.
    """
    program = shutil.which("debootstrap", path=path)
    if program is None:
        raise NoBaseImage(
            "debootstrap is missing, which makes a base without a registry: 'apt-get install debootstrap'."
        )
    if user_id != 0:
        raise NoBaseImage(
            "A base from Debian's archive needs root: 'sudo andy image build --base debian', once."
        )
    return program


@contextmanager
def _scratch() -> Iterator[Path]:
    """Yield a new temporary folder for the unpacked system, and remove it."""
    # Not in /tmp, which is often mounted with `nodev`, where no device files can be made. Removed without
    # crossing file systems, because a failed debootstrap may have left the host's /proc mounted in it.
    folder = Path(tempfile.mkdtemp(prefix="andy-base-", dir="/var/tmp"))
    try:
        yield folder
    finally:
        subprocess.run(["rm", "-rf", "--one-file-system", str(folder)], check=False)


def pack_root(root: Path, target: Path, progress: BuildProgress) -> Path:
    """Write `root` without its `UNWANTED` contents as the tar `target`, and return that path."""
    excludes = [f"--exclude=./{folder}/*" for folder in UNWANTED]
    _run(["tar", "--numeric-owner", *excludes, "-C", str(root), "-cf", str(target), "."], progress)
    return target


def _import(client: docker.APIClient, packed: Path, progress: BuildProgress) -> None:
    """Import a packed root file system as the image `DEBIAN_IMAGE`. Raises `NoBaseImage`."""
    progress.report(f"importing {packed.stat().st_size / 1e6:.0f} MB as {DEBIAN_IMAGE}")
    changes = [
        f'LABEL {DEBIAN_LABEL}="{DEBIAN_RECIPE}"',
        "ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    ]
    # The tag is passed as part of the name, because Podman accepts no other form.
    answer = client.import_image(src=str(packed), repository=DEBIAN_IMAGE, changes=changes)
    if not _has_debian(client):
        raise NoBaseImage(progress.failure_text(f"the engine did not take it and said {answer}"))


def _run(command: Sequence[str], progress: BuildProgress) -> None:
    """Run a program to its end and report its output, line by line.

    If several lines begin with the same word, such as "Retrieving", only the first is reported. The others
    are remembered for the text of an error.

    Raises:
        NoBaseImage: the program failed; the text has its last lines.
    """
    reported_words: set[str] = set()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True
    ) as process:
        for line in process.stdout or ():
            text = line.strip().removeprefix("I: ")  # how debootstrap marks an informing line
            first_word = text.partition(" ")[0]
            if first_word in reported_words:
                progress.remember(text)
            else:
                progress.report(text)
            reported_words.add(first_word)
    if process.returncode:
        raise NoBaseImage(progress.failure_text(f"{command[0]} ended with code {process.returncode}"))
