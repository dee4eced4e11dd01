"""Containers without Andy, straight on the engine: the floor under what Andy does."""

from __future__ import annotations

import secrets
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import docker
from docker.errors import APIError, NotFound
from docker.types import LogConfig, Mount
from docker.utils import kwargs_from_env

from benchmarks.places import CHECKOUT, IMAGE, PROJECT, progress
from orchestrator.containers.docker.runtime import INSTALL_LABEL
from orchestrator.containers.streams import Demultiplexer

USER = "1000:1000"
READ_SECONDS = 120.0
SCRATCH = "rw,exec,nosuid,nodev,size=256m"


def connect() -> docker.APIClient:
    """A client for one thread."""
    return docker.APIClient(**kwargs_from_env(), timeout=int(READ_SECONDS))


def ensure_image() -> None:
    """Build the agent image when it is missing or stale, so that no measurement pays for it.

    That of another checkout was built by its own command when it was prepared.
    """
    if CHECKOUT != PROJECT:
        return
    from orchestrator.containers import runtime_selection

    runtime_selection.ensure_image(IMAGE, progress)


def clear_install(install: str) -> None:
    """Remove all containers and networks that carry the label of an install."""
    client = connect()
    only = {"label": [f"{INSTALL_LABEL}={install}"]}
    for each in client.containers(all=True, filters=only):
        with suppress(NotFound):
            client.remove_container(each["Id"], force=True, v=True)
    for each in client.networks(filters=only):
        with suppress(APIError):
            client.remove_network(each["Id"])
    client.close()


@dataclass(slots=True)
class Bare:
    """Somewhere to run bare containers: a closed network and a label of its own."""

    install: str = field(default_factory=lambda: f"bench-{secrets.token_hex(4)}")
    gateway: str = ""
    """The host's address on the network."""


@contextmanager
def bare_engine() -> Iterator[Bare]:
    """Make the network; remove it at the end with every container of its label."""
    bare, client = Bare(), connect()
    try:
        name = f"andy-{bare.install}"
        client.create_network(name, driver="bridge", internal=True, labels={INSTALL_LABEL: bare.install})
        bare.gateway = client.inspect_network(name)["IPAM"]["Config"][0]["Gateway"].partition("/")[0]
        yield bare
    finally:
        clear_install(bare.install)
        client.close()


class BareContainer:
    """A started container with its stdin and stdout at hand. All calls block."""

    def __init__(
        self,
        client: docker.APIClient,
        bare: Bare,
        *,
        entrypoint: Sequence[str] | None = None,
        environment: Mapping[str, str] | None = None,
        mounts: Sequence[tuple[str, str]] = (),
    ) -> None:
        self._client = client
        self._demultiplexer = Demultiplexer()
        self._rest = b""
        self.asked_at = time.time()
        made = client.create_container(
            image=IMAGE,
            entrypoint=list(entrypoint) if entrypoint else None,
            environment=dict(environment or {}),
            labels={INSTALL_LABEL: bare.install},
            user=USER,
            stdin_open=True,
            host_config=_limits(client, bare, mounts),
        )
        self.ref = str(made["Id"])
        wires = client.attach_socket(self.ref, {"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1})
        self._wires = wires
        self._socket: socket.socket = wires._sock  # noqa: SLF001 - docker-py gives no other way to write
        self._socket.settimeout(READ_SECONDS)
        client.start(self.ref)

    def write(self, line: str) -> None:
        self._socket.sendall(line.encode() + b"\n")

    def line(self) -> str:
        """The next line of stdout. Raises `EOFError` when there is none any more."""
        while b"\n" not in self._rest:
            chunk = self._socket.recv(65536)
            if not chunk:
                raise EOFError(self._rest.decode(errors="replace"))
            for piece in self._demultiplexer.feed(chunk):
                self._rest += b"" if piece.is_stderr else piece.data
        line, _, self._rest = self._rest.partition(b"\n")
        return line.decode()

    def lines_to_end(self) -> list[str]:
        lines = []
        with suppress(EOFError):
            while True:
                lines.append(self.line())
        return lines

    def remove(self) -> None:
        self._wires.close()
        with suppress(NotFound):
            self._client.remove_container(self.ref, force=True, v=True)

    def wait(self) -> int:
        return int(self._client.wait(self.ref)["StatusCode"])


def _limits(client: docker.APIClient, bare: Bare, mounts: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """The same cage as Andy's, or the two could not be compared."""
    uid, _, gid = USER.partition(":")
    config: dict[str, Any] = client.create_host_config(
        mounts=[Mount(target, source, type="bind") for source, target in mounts],
        init=True,
        read_only=True,
        tmpfs={
            "/tmp": f"{SCRATCH},mode=1777",
            "/home/andy": f"{SCRATCH},mode=0755,uid={uid},gid={gid}",
            **({} if mounts else {"/workspace": f"{SCRATCH},mode=0755,uid={uid},gid={gid}"}),
        },
        cap_drop=["ALL"],
        security_opt=["no-new-privileges"],
        mem_limit=2 * 1024**3,
        memswap_limit=2 * 1024**3,
        nano_cpus=2 * 10**9,
        pids_limit=512,
        network_mode=f"andy-{bare.install}",
        dns=["127.0.0.1"],
        log_config=LogConfig(type="json-file", config={"max-size": "16m", "max-file": "4"}),
    )
    return config
