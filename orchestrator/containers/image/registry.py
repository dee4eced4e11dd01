"""Push the agent image to a registry, and pull an image that is named by its digest. All functions block."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from orchestrator.containers.docker.client import NOT_READY
from orchestrator.containers.image.base import inspect
from orchestrator.containers.image.progress import Say
from orchestrator.domain.errors import ContainerError, ImageMissing

if TYPE_CHECKING:
    import docker

SAY_SECONDS = 2.0
"""Seconds between two lines of progress."""
_REGISTRY = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:\d{1,5})?(/[a-z0-9]+([._-]+[a-z0-9]+)*)*")
FIXES = (
    ("http response to https",
     'give it a certificate, or name it in "insecure-registries" of every node\'s /etc/docker/daemon.json'),
    ("x509", "its certificate is unknown here: put its authority into /etc/docker/certs.d/{host}/ca.crt"),
    ("no basic auth", "log in first: docker login {host}"),
    ("unauthorized", "log in first: docker login {host}"),
    ("authentication required", "log in first: docker login {host}"),
    ("denied", "your account may not use that path: docker login {host}, or another path"),
    ("manifest unknown", "it has no image of this digest: push it there, or name another"),
    ("connection refused", "nothing listens there: start it, or fix the port"),
    ("no such host", "the name is unknown: fix it"),
    ("timeout", "it does not answer: fix the network or the name"),
    ("no space left", "its disk is full"),
)  # fmt: skip
"""Parts of the engine's errors about registries, in lower case, each with its fix.

The first match applies.
"""


class RegistryRefused(ContainerError):
    """A registry did not accept the image, or does not have it."""


def repository_of(name: str) -> str:
    """Return the name of an image without tag and digest, such as `registry:5000/andy-agent`."""
    name = name.partition("@")[0]
    before_colon, _, after_colon = name.rpartition(":")
    # Another colon precedes the port of a registry. After a port there is a slash; in a tag there is none.
    has_no_tag = not before_colon or "/" in after_colon
    return name if has_no_tag else before_colon


def tag_of(name: str) -> str:
    """Return the tag in the name of an image; `latest` if it has no tag, or has a digest."""
    repository = repository_of(name)
    has_tag = "@" not in name and repository != name
    return name[len(repository) + 1 :] if has_tag else "latest"


def push(client: docker.APIClient, image: str, registry: str, *, say: Say) -> str:
    """Push an image under its own tag, and return its name in the registry with the digest.

    With that name, nodes of a swarm can pull exactly this image. `registry` is a host, optionally with a port
    and a path, such as `registry:5000` or `ghcr.io/me`. The image also gets that name, without the digest, on
    this engine; if the registry refuses it, the name is removed again, or given back to its earlier image.

    Raises:
        ImageMissing: this machine has no such image.
        RegistryRefused: the registry did not accept it; the text has the fix.
    """
    host = registry.partition("/")[0]
    if not _REGISTRY.fullmatch(registry):
        raise RegistryRefused(
            f"'{registry}' is no registry: use a host and maybe a path in lower case, such as registry:5000"
            " or ghcr.io/me."
        )
    if inspect(client, image) is None:
        raise ImageMissing
    image_name = repository_of(image).rpartition("/")[2]
    # The path that the owner gives may end with the image's name already.
    name = registry if registry.rpartition("/")[2] == image_name else f"{registry}/{image_name}"
    tag = tag_of(image)
    earlier_image = inspect(client, f"{name}:{tag}")  # the image that has this name now, if any
    client.tag(image, name, tag=tag, force=True)
    say(f"Pushing {name} …")
    try:
        with _refusals():
            digest = _follow(client.push(name, tag=tag, stream=True, decode=True), say)
    except RegistryRefused as error:
        if earlier_image is None:
            client.remove_image(f"{name}:{tag}")  # the name alone: the image has its own, too
        else:
            client.tag(earlier_image["Id"], name, tag=tag, force=True)
        raise RegistryRefused(f"{host} did not take the image: {_with_fix(str(error), host)}") from None
    return f"{name}@{digest}"


def fetch(client: docker.APIClient, name: str, *, say: Say) -> None:
    """Pull an image by its name with a digest, unless it exists here. `say` shows that it begins.

    Raises:
        RegistryRefused: the registry does not give it; the text has the fix.
    """
    if inspect(client, name) is not None:
        return
    say(f"Pulling {name} …")
    host = name.partition("/")[0]
    try:
        with _refusals():
            for event in client.pull(name, stream=True, decode=True):
                _raise_error(event)
    except RegistryRefused as error:
        raise RegistryRefused(f"{host} does not give the image: {_with_fix(str(error), host)}") from None


@contextmanager
def _refusals() -> Iterator[None]:
    """Turn the engine's refusal of a push or pull into `RegistryRefused`, unless the engine is not ready.

    If the registry fails before any progress, the engine answers with an error status instead of an event.
    """
    from docker.errors import APIError

    try:
        yield
    except APIError as error:
        if error.status_code in NOT_READY:
            raise
        raise RegistryRefused(str(error.explanation or error).strip()) from error


def _follow(events: Iterable[dict[str, Any]], say: Say) -> str:
    """Read the engine's events of a push to the end, and return the digest of the pushed image.

    How many megabytes were sent is shown with `say` every `SAY_SECONDS`.

    Raises:
        RegistryRefused: an event contains an error, or none contains the digest.
    """
    # Bytes of each layer, by the layer's id.
    sent: dict[str, int] = {}
    total: dict[str, int] = {}
    digest = ""
    reported_at = time.monotonic()
    for event in events:
        _raise_error(event)
        detail = event.get("progressDetail") or {}
        layer = str(event.get("id", ""))
        if "total" in detail:
            total[layer] = detail["total"]
            sent[layer] = min(detail.get("current", 0), detail["total"])
        elif event.get("status") in ("Pushed", "Layer already exists"):
            sent[layer] = total.get(layer, 0)
        digest = (event.get("aux") or {}).get("Digest", digest)
        if total and time.monotonic() - reported_at >= SAY_SECONDS:
            reported_at = time.monotonic()
            say(f"  {sum(sent.values()) / 1e6:,.0f} of {sum(total.values()) / 1e6:,.0f} MB")
    if not digest:
        raise RegistryRefused("it named no digest")
    return digest


def _raise_error(event: dict[str, Any]) -> None:
    """Raise `RegistryRefused` if an event of the engine contains an error."""
    if "error" in event:
        raise RegistryRefused(str(event["error"]).strip())


def _with_fix(reason: str, host: str) -> str:
    """Return the engine's error `reason` as a sentence, followed by its fix if `FIXES` has one.

    `host` is the registry's, which the fix may name.
    """
    sentence = f"{reason.rstrip('.')}."
    fix = next((fix for error_part, fix in FIXES if error_part in reason.lower()), None)
    return sentence if fix is None else f"{sentence} {fix[0].upper()}{fix[1:].format(host=host)}."
