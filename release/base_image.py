"""Name the base of both images by its digest: `python -m release.base_image`, which asks the registry for it.

A tag is whatever the registry gives that day. A digest is one image, also where the registry or the way to it
lies; a newer base, with what was mended in it, is then a commit that somebody has seen.
"""

from __future__ import annotations

import re
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import docker
from docker.utils import kwargs_from_env

from orchestrator.containers.image.base import PYTHON_IMAGE, without_digest

FILES = ("Dockerfile", "container/Dockerfile", "docker-compose.yml", "orchestrator/containers/image/base.py")
"""The files of the checkout that name the base."""
NAMED = re.compile(re.escape(without_digest(PYTHON_IMAGE)) + r"(@sha256:[0-9a-f]{64})?")
PULL_SECONDS = 300
"""Seconds that the Docker engine may take for one request."""
_FIX = "pin it where a registry answers"


class NotPinned(Exception):
    """The digest cannot be had; the text is one line that names the fix."""


def pinned(text: str, name: str) -> str:
    """Return a text in which each name of the base image is replaced by `name`. Pure."""
    return NAMED.sub(name, text)


def is_pinned(root: Path) -> bool:
    """Return whether the `FILES` of a checkout name the base image with a digest in each place. Blocks."""
    paths = [root / file for file in FILES if (root / file).exists()]
    names = [name for path in paths for name in NAMED.finditer(path.read_text(encoding="utf-8"))]
    return all(name[1] for name in names)


def name_in_registry(client: docker.APIClient, name: str) -> str:
    """Pull an image and return its name with the digest that the registry has for it now.

    The engine checks what it gets against the digest. Raises `NotPinned`.
    """
    image = without_digest(name)
    repository, _, tag = image.rpartition(":")
    try:
        for event in client.pull(repository, tag=tag, stream=True, decode=True):
            if "error" in event:
                raise NotPinned(
                    f"{image} cannot be pulled ({event['error']}): pin it where a registry answers."
                )
        details: dict[str, Any] = client.inspect_image(image)  # type: ignore[no-untyped-call]
    except docker.errors.DockerException as error:
        raise NotPinned(f"{image} cannot be pulled ({error}): {_FIX}.") from error
    names = details["RepoDigests"] or ()
    digests = [name.partition("@")[2] for name in names if name.startswith(f"{repository}@")]
    if not digests:
        raise NotPinned(f"No registry has told a digest of {image}: 'docker rmi {image}', and pin it again.")
    return f"{image}@{digests[0]}"


def main(root: Path) -> int:
    """Write the base image's digest into each file that names it, and print the result.

    `root` is the checkout. Return the exit code; the reason for a failure is printed.
    """
    try:
        with closing(docker.APIClient(**kwargs_from_env(), timeout=PULL_SECONDS)) as client:
            name = name_in_registry(client, PYTHON_IMAGE)
    except (NotPinned, docker.errors.DockerException) as error:
        print(error, file=sys.stderr)
        return 1
    for file in FILES:
        path = root / file
        path.write_text(pinned(path.read_text(encoding="utf-8"), name), encoding="utf-8")
    print(f"Both images are built on {name}. Look at it, build, and commit it.")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(__file__).resolve().parents[1]))
