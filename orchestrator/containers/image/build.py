"""The agent image: check that it exists and is current, and build it.

All functions block, some for minutes. Call them in a worker thread, with a client that no other thread uses.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent_runner.wire.document import WIRE_VERSION
from orchestrator.containers.image.base import BaseImage, inspect, labels_of, provide_base
from orchestrator.containers.image.context import (
    DOCKERFILE,
    HOST_AUTHORITIES,
    ImageSources,
    build_context,
)
from orchestrator.containers.image.progress import BuildProgress, Say, follow_build
from orchestrator.domain.errors import EngineGone, ImageNotBuilt

if TYPE_CHECKING:
    import docker

__all__ = ["TAG", "BaseImage", "build", "is_current", "is_present"]

TAG = "andy-agent:latest"
SOURCE_LABEL = "andy.source"
"""The label with the hash of the sources that an image was built from."""
WIRE_LABEL = "andy.wire"
"""The label with the version of the protocol between host and runner."""
LAYERS_LABEL = "andy.layers"
"""The label with the optional layers of an image."""
LAYERS = ("browser", "node", "pip")
"""Optional layers of the image, which `container/layers/install.sh` installs."""
IN_USE_OR_GONE = (409, 404)
PASSED_ON = (
    "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL",
    "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
)  # fmt: skip
"""Variables of the host's environment that a build receives as arguments.

They are not stored in the image.
"""


def is_present(client: docker.APIClient, tag: str = TAG) -> bool:
    """Return whether there is an image of that tag. Raises `EngineGone`."""
    with _engine_errors():
        return inspect(client, tag) is not None


def is_current(client: docker.APIClient, tag: str, sources: ImageSources) -> bool:
    """Return whether the image exists, was built from the present sources, and has the present wire version.

    Raises:
        EngineGone: no engine answers.
        ImageNotBuilt: a part of the sources is missing.
    """
    with _engine_errors():
        labels = labels_of(client, tag)
    return _labels(sources).items() <= labels.items()


def _labels(sources: ImageSources) -> dict[str, str]:
    """Return the labels that an image of these sources gets, by which `is_current` recognises the image."""
    return {SOURCE_LABEL: sources.hash(), WIRE_LABEL: str(WIRE_VERSION)}


def build(
    client: docker.APIClient,
    *,
    tag: str = TAG,
    base: BaseImage = BaseImage.AUTO,
    layers: Collection[str] | None = None,
    sources: ImageSources,
    authorities: Path = HOST_AUTHORITIES,
    about: Mapping[str, str] | None = None,
    say: Say,
) -> str:
    """Build the image, reporting its progress to `say` line by line, and return its id.

    This takes minutes the first time, and seconds after a change of the runner. `base` says where the image
    to build on comes from, and `sources` are the folders with the files. `layers` are some of `LAYERS`, or
    None for those of the present image. The image gets the certificate authorities in the folder
    `authorities` and the labels `about`. The image that had the tag before is removed, unless it
    has another tag or a container uses it.

    Raises:
        EngineGone: no engine answers.
        ImageNotBuilt: the image cannot be built here; the text names the fix.
    """
    labels = {**(about or {}), **_labels(sources)}
    context = build_context(sources, authorities)
    with _engine_errors():
        earlier_image = inspect(client, tag)
        chosen = layers_of(client, tag) if layers is None else tuple(sorted(set(layers)))
        labels[LAYERS_LABEL] = " ".join(chosen)
        progress = BuildProgress(say)
        base_image = provide_base(client, base, progress)
        events = client.build(
            fileobj=context,
            custom_context=True,
            dockerfile=DOCKERFILE,
            tag=tag,
            labels=labels,
            buildargs={**build_arguments(base_image, os.environ), "WITH": " ".join(chosen)},
            # The build uses the host's network, because the proxies and package indexes in the host's
            # settings may be reachable from there only.
            network_mode="host",
            rm=True,
            forcerm=True,
            decode=True,
        )
        follow_build(events, progress)
        return _remove_replaced(client, tag, earlier_image)  # it returns the id of the new image


def layers_of(client: docker.APIClient, tag: str = TAG) -> tuple[str, ...]:
    """Return the optional layers of the image, as far as this version knows them; empty without an image."""
    names = labels_of(client, tag).get(LAYERS_LABEL, "").split()
    return tuple(name for name in names if name in LAYERS)


def _remove_replaced(client: docker.APIClient, tag: str, earlier_image: dict[str, Any] | None) -> str:
    """Remove the image that had the tag before a build, unless it is in use; return the new image's id.

    `earlier_image` is the engine's description of that image; None if there was none. Raises `ImageNotBuilt`
    if there is no image of that tag now.
    """
    new_image = inspect(client, tag)
    if new_image is None:
        raise ImageNotBuilt(f"The engine built {tag} and has lost it since: run 'andy image build' again.")
    if earlier_image is not None and earlier_image["Id"] != new_image["Id"]:
        _remove_if_unused(client, earlier_image["Id"])
    return str(new_image["Id"])


def _remove_if_unused(client: docker.APIClient, image_id: str) -> None:
    """Remove an image unless it still has a tag or a container uses it. A missing image is no error."""
    from docker.errors import APIError

    description = inspect(client, image_id)
    if description is None or description["RepoTags"]:
        return
    try:
        client.remove_image(image_id)
    except APIError as error:
        if error.status_code not in IN_USE_OR_GONE:
            raise


def build_arguments(base_image: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the build arguments: the base image, and some variables of the host's `environment`.

    The variables are those in `PASSED_ON`, for package indexes and proxies, as far as they are set.
    """
    passed_on = {name: environment[name] for name in PASSED_ON if environment.get(name)}
    return {"BASE_IMAGE": base_image, **passed_on}


@contextmanager
def _engine_errors() -> Iterator[None]:
    """Turn errors of docker-py and its transport that leave the `with` block into errors of this project.

    Raises:
        ImageNotBuilt: the engine refuses.
        EngineGone: the engine does not answer.
    """
    from docker.errors import DockerException
    from requests import RequestException
    from urllib3.exceptions import HTTPError

    try:
        yield
    except DockerException as error:
        raise ImageNotBuilt(f"The engine refuses: {error}. 'docker info' shows its state.") from error
    except (RequestException, HTTPError) as error:  # the latter while a stream of docker-py is read
        raise EngineGone from error
