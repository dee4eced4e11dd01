"""What is said of a push, and of a registry that cannot be used."""

from __future__ import annotations

import docker.errors
import pytest

from orchestrator.containers.image import registry
from orchestrator.domain.errors import ImageMissing

DIGEST = f"sha256:{'a' * 64}"


class Engine:
    """An engine that answers a push with the events of a real one."""

    def __init__(self, *events: dict) -> None:
        self.events = events
        self.tagged: list[tuple[str, str]] = []
        self.pushed: list[str] = []
        self.tags: list[object] = []
        self.names = {"andy-agent": "sha256:1"}
        """The id of the image that has each name."""

    def inspect_image(self, name: str) -> dict:
        if name.startswith("r:5000/") and name not in self.names:
            raise docker.errors.ImageNotFound(name)
        return {"Id": self.names.get(name, "sha256:1")}

    def remove_image(self, name: str) -> None:
        del self.names[name]

    def tag(self, image: str, name: str, *, tag: str, **_: object) -> None:
        self.tagged.append((image, name))
        self.names[f"{name}:{tag}"] = image if image.startswith("sha256:") else "sha256:1"
        self.tags.append(tag)

    def push(self, name: str, *, tag: str, **_: object):
        self.pushed.append(name)
        self.tags.append(tag)
        return iter(self.events)


PUSHED = (
    {"status": "Preparing", "id": "l1", "progressDetail": {}},
    {"status": "Pushing", "id": "l1", "progressDetail": {"current": 500_000, "total": 2_000_000}},
    {"status": "Pushed", "id": "l1", "progressDetail": {}},
    {"status": "Layer already exists", "id": "l2", "progressDetail": {}},
    {"progressDetail": {}, "aux": {"Tag": "latest", "Digest": DIGEST, "Size": 1}},
)


@pytest.mark.parametrize(
    ("image", "to", "name"),
    [
        ("andy-agent:latest", "registry:5000", "registry:5000/andy-agent"),
        ("andy-agent:latest", "ghcr.io/me", "ghcr.io/me/andy-agent"),
        ("andy-agent:latest", "ghcr.io/me/andy-agent", "ghcr.io/me/andy-agent"),
        (f"old:5000/andy-agent@{DIGEST}", "new:5000", "new:5000/andy-agent"),
        ("old:5000/andy-agent", "10.0.0.1:5000", "10.0.0.1:5000/andy-agent"),
    ],
)
def test_a_push_returns_the_name_with_the_digest(image, to, name):
    engine = Engine(*PUSHED)
    assert registry.push(engine, image, to, say=lambda _: None) == f"{name}@{DIGEST}"
    assert (engine.tagged, engine.pushed) == ([(image, name)], [name])


@pytest.mark.parametrize(
    ("image", "tag"),
    [
        ("andy-agent:0.2.0", "0.2.0"),
        ("old:5000/andy-agent:0.2.0", "0.2.0"),
        ("old:5000/andy-agent", "latest"),
        (f"old:5000/andy-agent:0.2.0@{DIGEST}", "latest"),
    ],
)
def test_an_image_has_the_same_tag_in_the_registry(image, tag):
    engine = Engine(*PUSHED)
    registry.push(engine, image, "r:5000", say=lambda _: None)
    assert engine.tags == [tag, tag]


def test_progress_is_said(monkeypatch):
    monkeypatch.setattr(registry, "SAY_SECONDS", 0.0)
    said: list[str] = []
    registry.push(Engine(*PUSHED), "andy-agent", "r:5000", say=said.append)
    assert said[0] == "Pushing r:5000/andy-agent …"
    assert said[1:3] == ["  0 of 2 MB", "  2 of 2 MB"]


@pytest.mark.parametrize(
    ("error", "fix"),
    [
        ("Get https://r:5000/v2/: http: server gave HTTP response to HTTPS client", "insecure-registries"),
        ("no basic auth credentials", "docker login r:5000"),
        ("dial tcp 10.0.0.1:5000: connect: connection refused", "Nothing listens there"),
        ("x509: certificate signed by unknown authority", "/etc/docker/certs.d/r:5000/ca.crt"),
        ("something new", "something new."),
    ],
)
def test_a_registry_that_does_not_take_it_is_told_with_the_fix(error, fix):
    engine = Engine({"error": error})
    with pytest.raises(registry.RegistryRefused, match="r:5000 did not take the image: ") as told:
        registry.push(engine, "andy-agent", "r:5000", say=lambda _: None)
    assert fix in str(told.value)
    assert set(engine.names) == {"andy-agent"}, "the name in the registry is gone again"


def test_a_name_of_an_earlier_push_goes_back_to_its_image_where_the_next_one_fails():
    engine = Engine({"error": "denied"})
    engine.names["r:5000/andy-agent:latest"] = "sha256:2"
    with pytest.raises(registry.RegistryRefused):
        registry.push(engine, "andy-agent", "r:5000", say=lambda _: None)
    assert engine.names["r:5000/andy-agent:latest"] == "sha256:2", "it is no name of the image not pushed"


@pytest.mark.parametrize("to", ["https://r:5000", "", "r:5000/", "r/UPPER", "a b", "-x", "r:5000/a@b"])
def test_what_is_no_registry_is_refused_before_anything_is_tagged(to):
    engine = Engine()
    with pytest.raises(registry.RegistryRefused, match="is no registry"):
        registry.push(engine, "andy-agent", to, say=lambda _: None)
    assert engine.tagged == []


def test_a_push_of_no_image_is_refused():
    from docker.errors import ImageNotFound

    class Empty(Engine):
        def inspect_image(self, _: str) -> dict:
            raise ImageNotFound("no")

    with pytest.raises(ImageMissing):
        registry.push(Empty(), "andy-agent", "r:5000", say=lambda _: None)


@pytest.mark.parametrize(
    ("name", "repository"),
    [
        ("a", "a"),
        ("a:1", "a"),
        ("r:5000/a", "r:5000/a"),
        ("r:5000/a:1", "r:5000/a"),
        (f"r:5000/a@{DIGEST}", "r:5000/a"),
    ],
)
def test_the_repository_is_the_name_without_tag_and_digest(name, repository):
    assert registry.repository_of(name) == repository
