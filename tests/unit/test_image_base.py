"""Which base is taken, and what is said when none can be had. The engine here is a small one on loopback."""

from __future__ import annotations

import json
import os
import socketserver
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import docker
import pytest

from orchestrator.containers.docker.client import translated
from orchestrator.containers.image import base as image_base
from orchestrator.containers.image import build, registry
from orchestrator.containers.image.base import BaseImage, find_debootstrap, pack_root, provide_base
from orchestrator.containers.image.context import ImageSources
from orchestrator.containers.image.progress import BuildProgress
from orchestrator.domain.errors import EngineGone, ImageNotBuilt, NoBaseImage

PROJECT = Path(__file__).parents[2]


@dataclass
class Engine:
    """Knows some images and answers a pull as told; `pull=None` never answers."""

    images: dict[str, dict[str, str]] = field(default_factory=dict)
    pull: tuple[int, list[dict[str, Any]] | bytes] | None = (200, [{"status": "Status: Downloaded"}])
    is_over: threading.Event = field(default_factory=threading.Event)
    asked: list[str] = field(default_factory=list)
    missing_bytes: int = 0
    """Bytes of the answer to a pull that are promised and never sent."""
    holds_connection: bool = False
    """Whether the connection stays open while such bytes are missing."""


class Handler(BaseHTTPRequestHandler):
    engine: Engine

    def do_GET(self) -> None:
        tag = self.path.partition("/images/")[2].removesuffix("/json")
        self.engine.asked.append(tag)
        if tag in self.engine.images:
            self.answer(200, [{"Id": f"sha256:{tag}", "Config": {"Labels": self.engine.images[tag]}}])
        else:
            self.answer(404, [{"message": f"No such image: {tag}"}])

    def do_POST(self) -> None:
        asked = parse_qs(urlsplit(self.path).query)
        if "fromSrc" in asked:
            self.rfile.read(int(self.headers["Content-Length"]))
            # As Podman: the tag is read of the name alone.
            self.engine.images[asked["repo"][0]] = {image_base.DEBIAN_LABEL: image_base.DEBIAN_RECIPE}
            self.answer(200, [{"status": "sha256:1"}])
            return
        self.engine.asked.append("pull")
        if self.engine.pull is None:
            self.engine.is_over.wait()
        else:
            self.answer(*self.engine.pull)

    def answer(self, status: int, lines: list[dict[str, Any]] | bytes) -> None:
        body = lines if isinstance(lines, bytes) else "\r\n".join(json.dumps(line) for line in lines).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        missing_bytes = self.engine.missing_bytes if self.command == "POST" else 0
        self.send_header("Content-Length", str(len(body) + missing_bytes))
        self.end_headers()
        self.wfile.write(body)
        if missing_bytes and self.engine.holds_connection:
            self.engine.is_over.wait()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def engine() -> Engine:
    return Engine()


@pytest.fixture
def client(engine: Engine) -> Iterator[docker.APIClient]:
    handler = type("EngineHandler", (Handler,), {"engine": engine})
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), name="small engine")
        thread.start()
        api = docker.APIClient(base_url=f"tcp://127.0.0.1:{server.server_address[1]}", version="1.41")
        yield api
        engine.is_over.set()
        api.close()
        server.shutdown()
        thread.join()


@pytest.fixture
def no_debootstrap(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(**_: object) -> str:
        raise NoBaseImage("debootstrap is missing")

    monkeypatch.setattr(image_base, "find_debootstrap", missing)


def provide(client: docker.APIClient, base: BaseImage) -> str:
    return provide_base(client, base, BuildProgress(print))


@pytest.mark.parametrize("base", [BaseImage.AUTO, BaseImage.PULL])
def test_a_base_that_is_here_is_not_asked_for(
    client: docker.APIClient, engine: Engine, base: BaseImage
) -> None:
    engine.images[image_base.PYTHON_IMAGE] = {}
    assert provide(client, base) == image_base.PYTHON_IMAGE
    assert "pull" not in engine.asked


@pytest.mark.parametrize("base", [BaseImage.AUTO, BaseImage.DEBIAN])
def test_a_debian_base_that_was_made_before_is_used_again(
    client: docker.APIClient, engine: Engine, base: BaseImage
) -> None:
    engine.images[image_base.DEBIAN_IMAGE] = {image_base.DEBIAN_LABEL: image_base.DEBIAN_RECIPE}
    assert provide(client, base) == image_base.DEBIAN_IMAGE
    assert "pull" not in engine.asked


@pytest.mark.usefixtures("no_debootstrap")
def test_a_debian_base_of_another_recipe_is_made_anew(client: docker.APIClient, engine: Engine) -> None:
    engine.images[image_base.DEBIAN_IMAGE] = {image_base.DEBIAN_LABEL: "an older one"}
    with pytest.raises(NoBaseImage, match="debootstrap"):
        provide(client, BaseImage.DEBIAN)


def test_without_any_base_the_registry_is_asked(client: docker.APIClient, engine: Engine) -> None:
    assert provide(client, BaseImage.AUTO) == image_base.PYTHON_IMAGE
    assert engine.asked[-1] == "pull"


REFUSALS = [
    (500, [{"message": "no such host"}]),
    (200, [{"status": "Pulling"}, {"error": "no such host"}]),
]


@pytest.mark.parametrize("refusal", REFUSALS)
def test_a_refused_pull_names_the_reason_and_the_mend(
    client: docker.APIClient, engine: Engine, refusal: tuple[int, list[dict[str, Any]]]
) -> None:
    engine.pull = refusal
    with pytest.raises(NoBaseImage, match=r"no such host.*--base debian"):
        provide(client, BaseImage.PULL)


@pytest.mark.usefixtures("no_debootstrap")
def test_auto_turns_to_debian_when_the_pull_is_refused(client: docker.APIClient, engine: Engine) -> None:
    engine.pull = REFUSALS[0]
    with pytest.raises(NoBaseImage, match="debootstrap is missing"):
        provide(client, BaseImage.AUTO)


def test_a_silent_registry_is_not_waited_for_without_end(
    client: docker.APIClient, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_base, "PULL_SILENCE_SECONDS", 0.1)
    engine.pull = None
    with pytest.raises(NoBaseImage, match="no word from it"):
        provide(client, BaseImage.PULL)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ((200, b'{"status'), "engine's answer cannot be read"),
        ((500, b"<h1>Bad gateway</h1>"), "the container engine answers 500"),
        ((500, b"{}"), "the container engine answers 500"),
    ],
)
def test_a_damaged_answer_to_a_pull_is_named(
    client: docker.APIClient, engine: Engine, answer: tuple[int, bytes], reason: str
) -> None:
    engine.pull = answer
    with pytest.raises(NoBaseImage, match=rf"{reason}.*--base debian"):
        provide(client, BaseImage.PULL)


def test_an_engine_that_closes_the_connection_is_not_called_silent(
    client: docker.APIClient, engine: Engine
) -> None:
    engine.missing_bytes = 10
    with pytest.raises(NoBaseImage, match="the connection to the container engine broke"):
        provide(client, BaseImage.PULL)


def test_a_registry_that_falls_silent_in_the_middle_is_called_silent(
    client: docker.APIClient, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_base, "PULL_SILENCE_SECONDS", 0.1)
    engine.missing_bytes, engine.holds_connection = 10, True
    with pytest.raises(NoBaseImage, match="no word from it"):
        provide(client, BaseImage.PULL)


def test_debian_without_debootstrap_names_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.which", lambda name, path: None)
    with pytest.raises(NoBaseImage, match="apt-get install debootstrap"):
        find_debootstrap(user_id=0, path=str(tmp_path))


def test_debian_as_an_ordinary_user_asks_for_root(tmp_path: Path) -> None:
    program = tmp_path / "debootstrap"
    program.touch(mode=0o755)
    with pytest.raises(NoBaseImage, match="needs root"):
        find_debootstrap(user_id=1000, path=str(tmp_path))
    assert find_debootstrap(user_id=0, path=str(tmp_path)) == str(program)


def test_a_base_from_debian_is_imported_under_its_whole_name(
    client: docker.APIClient, engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tmp_path / "debootstrap"
    made.write_text('#!/bin/sh\nfor target; do :; done\nmkdir -p "$target/etc"\n')
    made.chmod(0o755)
    monkeypatch.setattr(image_base, "find_debootstrap", lambda **_: str(made))
    assert provide(client, BaseImage.DEBIAN) == image_base.DEBIAN_IMAGE
    assert image_base.DEBIAN_IMAGE in engine.images


def test_the_packed_base_has_its_folders_but_not_what_no_container_reads(tmp_path: Path) -> None:
    for name in ("usr/bin/python3", "usr/share/doc/python3/README", "var/lib/apt/lists/index", "dev/null"):
        path = tmp_path / "root" / name
        path.parent.mkdir(parents=True)
        path.touch()
    packed = pack_root(tmp_path / "root", tmp_path / "root.tar", BuildProgress(print))
    with tarfile.open(packed) as tar:
        names = set(tar.getnames())
    assert {"./usr/bin/python3", "./usr/share/doc", "./var/lib/apt/lists", "./dev"} <= names
    assert not {"./usr/share/doc/python3", "./var/lib/apt/lists/index", "./dev/null"} & names


def test_a_failing_program_is_told_with_its_words(tmp_path: Path) -> None:
    with pytest.raises(NoBaseImage, match=r"(?s)tar ended with code 2.*absent: Cannot open"):
        pack_root(tmp_path / "absent", tmp_path / "root.tar", BuildProgress(print))


def test_an_engine_that_is_gone_is_told_as_that(client: docker.APIClient) -> None:
    gone = docker.APIClient(base_url="tcp://127.0.0.1:9", version="1.41")
    with pytest.raises(EngineGone):
        build.is_present(gone)
    with pytest.raises(EngineGone):
        build.build(gone, sources=ImageSources.below(PROJECT), say=print)
    gone.close()


def test_an_engine_that_refuses_is_told_with_its_reason(client: docker.APIClient, engine: Engine) -> None:
    engine.images[image_base.PYTHON_IMAGE] = {}
    engine.pull = (500, [{"message": "no space left on device"}])
    with pytest.raises(ImageNotBuilt, match="no space left on device"):
        build.build(client, sources=ImageSources.below(PROJECT), say=print)


DENIED = "pull access denied for r/x, repository does not exist or may require 'docker login': denied"


@pytest.mark.parametrize(
    ("status", "lines", "fix"),
    [
        (404, [{"message": DENIED}], "docker login r.example"),
        (404, [{"message": "manifest for r/x not found: manifest unknown"}], "of this digest"),
        (500, [{"message": "Get https://r.example/v2/: connection refused"}], "Nothing listens there"),
        (200, [{"error": "lookup r.example: no such host"}], "The name is unknown"),
        (500, [{"message": "something new"}], "something new."),
    ],
)
def test_a_registry_that_does_not_give_an_image_is_named_with_the_fix(
    client: docker.APIClient, engine: Engine, status: int, lines: list[dict[str, Any]], fix: str
) -> None:
    engine.pull = (status, lines)
    with (
        pytest.raises(registry.RegistryRefused, match=rf"r\.example does not give the image: .*{fix}"),
        translated(),
    ):
        registry.fetch(client, f"r.example/x@sha256:{'a' * 64}", say=print)


def test_an_engine_that_is_not_ready_to_pull_is_no_refusal_of_the_registry(
    client: docker.APIClient, engine: Engine
) -> None:
    engine.pull = (503, [{"message": "starting"}])
    with pytest.raises(EngineGone), translated():
        registry.fetch(client, f"r.example/x@sha256:{'a' * 64}", say=print)


def test_only_what_pip_and_proxies_need_is_passed_on() -> None:
    environment = {"PIP_INDEX_URL": "an index", "https_proxy": "", "ANTHROPIC_API_KEY": "a key", **os.environ}
    arguments = build.build_arguments("a base", environment | {"PIP_INDEX_URL": "an index"})
    assert arguments["BASE_IMAGE"] == "a base"
    assert arguments["PIP_INDEX_URL"] == "an index"
    assert set(arguments) <= {"BASE_IMAGE", *build.PASSED_ON}
