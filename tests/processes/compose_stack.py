"""The whole stack of `docker-compose.yml`, brought up by the real docker-compose on a copy of the project."""

from __future__ import annotations

import os
import secrets
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import docker
import docker.errors
import httpx

from tests.processes.andy import until
from tests.support.engine_cleanup import clear_engine

SOURCES = (
    "agent_runner", "container", "orchestrator", "docs",
    "Dockerfile", "docker-compose.yml", ".dockerignore", "pyproject.toml",
    "requirements-messengers.lock", "requirements-voice.lock",
    "README.md", "CHANGELOG.md", "Makefile",
)  # fmt: skip
# What differs on the machine of a reader: Compose as a plugin, `sudo`, and that nothing is set up yet.
AT_HOME = f"""
docker() {{ [ "$1" = compose ] && shift && docker-compose "$@"; }}
sudo() {{ "$@"; }}
make() {{ mkdir -p .venv/bin && ln -sf {sys.prefix}/bin/andy .venv/bin/andy; }}
"""
BUILD_SECONDS, UP_SECONDS, DOWN_SECONDS = 1800, 400, 400
FOLDER, FILE = 0o755, 0o644
KEPT = ("PATH", "HOME", "DOCKER_HOST", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL")


class ComposeStack:
    """A checkout in `root` under names of its own. Leaving it clears the engine of all that is its own.

    An `agent_image` that is given is there already, and stays.
    """

    def __init__(
        self,
        root: Path,
        *,
        client: docker.APIClient,
        base_image: str,
        project: Path,
        agent_image: str | None = None,
    ) -> None:
        self.root = root
        self.client = client
        self.name = f"andytest{secrets.token_hex(4)}"
        self.orchestrator_image = f"andy-orchestrator:{self.name}"
        self.agent_image = agent_image or f"andy-agent:{self.name}"
        self._made = [self.orchestrator_image, *([] if agent_image else [self.agent_image])]
        self.port = _free_port()
        self._base_image = base_image
        _copy_checkout(project, root)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    @property
    def environment(self) -> Mapping[str, str]:
        kept = {name: os.environ[name] for name in KEPT if name in os.environ}
        return kept | {
            "COMPOSE_PROJECT_NAME": self.name,
            "BASE_IMAGE": self._base_image,
            "ORCHESTRATOR_IMAGE": self.orchestrator_image,
            "ANDY_IMAGE": self.agent_image,
            "ANDY_PORT": str(self.port),
        }

    def compose(
        self,
        *arguments: str,
        seconds: float = UP_SECONDS,
        is_checked: bool = True,
        environment: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            ["docker-compose", *arguments],
            cwd=self.root,
            env={**self.environment, **(environment or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
        assert done.returncode == 0 or not is_checked, (
            f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}\n{self.told()}"
        )
        return done

    def type(self, lines: str) -> None:
        """Have a shell at a terminal run lines of the documentation, with what is installed here."""
        script = f"{AT_HOME}\n{lines}"
        done = subprocess.run(
            ["script", "--quiet", "--return", "--command", f"bash -ec {shlex.quote(script)}", "/dev/null"],
            cwd=self.root,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=UP_SECONDS,
            check=False,
        )
        assert done.returncode == 0, f"{done.stdout[-3000:]}\n{self.told()}"

    def up(self) -> None:
        """As a user does: what is not built is built."""
        self.compose("up", "-d", seconds=BUILD_SECONDS)
        self.until_up()

    def until_up(self) -> None:
        until(self.is_up, seconds=UP_SECONDS, what=f"Andy answers on {self.port}:\n{self.told()}")

    def is_up(self) -> bool:
        try:
            return httpx.get(f"{self.address}/healthz", trust_env=False, timeout=5).is_success
        except httpx.TransportError:
            return False

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def install(self) -> str:
        return (self.root / "data" / "install").read_text()

    def say(self, text: str, *, group: str = "main", wait: float = 240.0) -> dict[str, Any]:
        headers = {"Authorization": f"Bearer {(self.root / 'data' / 'token').read_text()}"}
        answer = httpx.post(
            f"{self.address}/chat",
            json={"group": group, "text": text, "wait": wait},
            headers=headers,
            trust_env=False,
            timeout=wait + 60,
        )
        answer.raise_for_status()
        found: dict[str, Any] = answer.json()
        return found

    def container(self, service: str) -> dict[str, Any]:
        """What the engine knows of a service's container."""
        labels = [f"com.docker.compose.project={self.name}", f"com.docker.compose.service={service}"]
        (found,) = self.client.containers(all=True, filters={"label": labels})
        seen: dict[str, Any] = self.client.inspect_container(found["Id"])
        return seen

    def agents(self, group: str | None = None) -> list[dict[str, Any]]:
        """What the engine knows of the agents that live, of all groups or of one."""
        labels = [f"andy.install={self.install}", *([f"andy.group={group}"] if group else [])]
        found = self.client.containers(filters={"label": labels})
        return [seen for one in found if (seen := self._inspected(one["Id"])) is not None]

    def _inspected(self, container: str) -> dict[str, Any] | None:
        """None once it is gone."""
        try:
            seen: dict[str, Any] = self.client.inspect_container(container)
        except docker.errors.NotFound:
            return None
        return seen

    def told(self) -> str:
        """The last words of the services."""
        return self.compose("logs", "--tail", "15", "--no-color", is_checked=False).stdout

    def left(self) -> list[str]:
        """All that is on the engine of this stack, its images aside."""
        project = {"label": [f"com.docker.compose.project={self.name}"]}
        install = {"label": [f"andy.install={self.install}"]}
        return [
            *(one["Id"] for by in (project, install) for one in self.client.containers(all=True, filters=by)),
            *(one["Name"] for by in (project, install) for one in self.client.networks(filters=by)),
            *(one["Name"] for one in self.client.volumes(filters=project)["Volumes"] or ()),
        ]

    def clear(self) -> None:
        self.compose("down", "--volumes", "--timeout", "60", seconds=DOWN_SECONDS, is_checked=False)
        if (self.root / "data" / "install").is_file():
            clear_engine(self.client, f"andy.install={self.install}")
        for tag in self._made:
            forget_image(self.client, tag)


def forget_image(client: docker.APIClient, tag: str) -> None:
    """Only what its first stage installed stays, without a name, for the next build."""
    try:
        client.remove_image(tag)
    except docker.errors.ImageNotFound:
        return


def _copy_checkout(project: Path, root: Path) -> None:
    """What git would give, with the authorities of this machine taken along as the documentation says."""
    for name in SOURCES:
        if (project / name).is_dir():
            shutil.copytree(project / name, root / name, ignore=shutil.ignore_patterns("__pycache__", ".*"))
        else:
            (root / name).write_bytes((project / name).read_bytes())
    for name in ("groups", "data", "store", "backups"):
        (root / name).mkdir()
    subprocess.run(["make", "certificates"], cwd=root, check=True, capture_output=True)
    # A strict umask would miss the engine's cache, and reach the image.
    for path in (root, *root.rglob("*")):
        path.chmod(FOLDER if path.is_dir() else FILE)


def _free_port() -> int:
    """One that the kernel gives nobody by itself: it is bound minutes from now only, when all is built."""
    while True:
        port = 20_000 + secrets.randbelow(10_000)
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                return port
