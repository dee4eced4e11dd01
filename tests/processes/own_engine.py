"""A Docker engine of a test's own, beside the one of the machine: it can be stopped, killed and started."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
from contextlib import closing, suppress
from pathlib import Path
from typing import Self

import docker
import psutil
import requests
from docker.errors import APIError

from orchestrator.containers.docker.client import already_so
from tests.processes.andy import until

STOP_SECONDS = 300
API = "1.41"
ALONE = (
    # Nothing of it is shared with the other engine: no packet filter, no names in containerd.
    "--iptables=false",
    "--ip-forward=false",
    "--ip-masq=false",
    "--userland-proxy=false",
    "--containerd-namespace=own",
    "--containerd-plugins-namespace=own-plugins",
)


def why_not() -> str | None:
    """What keeps a second engine from being started here, if anything does."""
    if shutil.which("dockerd") is None:
        return "no dockerd to start an engine with"
    if shutil.which("ip") is None:
        return "no ip to make it a bridge with: apt-get install iproute2"
    if os.geteuid() != 0:
        return "an engine is started by root only"
    return None


class OwnEngine:
    """Enter it to start; leave it to end it with all that is in it."""

    def __init__(self) -> None:
        self._root = Path(tempfile.mkdtemp(prefix="andy-engine-"))
        self.address = f"unix://{self._root / 'docker.sock'}"
        self._bridge = f"andy{secrets.token_hex(4)}"
        """Its default one. An engine that is told to have none removes that of the other engine."""
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        _ip("link", "add", self._bridge, "type", "bridge")
        # Outside of 10.213, where each swarm of `swarm_nodes.py` takes a network, perhaps at the same time.
        _ip("addr", "add", "10.212.77.1/24", "dev", self._bridge)
        _ip("link", "set", self._bridge, "up")
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._empty()
            self.stop()
        finally:
            _kill(self._left())
            self._clear()
            _ip("link", "delete", self._bridge)

    def start(self) -> None:
        """Start it and wait until it answers."""
        places = {"data-root": "data", "exec-root": "exec", "pidfile": "pid"}
        options = [f"--{name}={self._root / place}" for name, place in places.items()]
        (self._root / "pid").unlink(missing_ok=True)
        with (self._root / "log").open("ab") as log:
            self._process = subprocess.Popen(
                ["dockerd", *options, f"--host={self.address}", f"--bridge={self._bridge}", *ALONE],
                stdout=log,
                stderr=log,
            )
        until(self._answers, what="the engine answers")

    def stop(self) -> None:
        """End it as a service is ended: it ends its containers first."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it where it stands: its containers go on."""
        self._end(signal.SIGKILL)
        # Its containerd dies with it, a moment later; one started before then would wait for it in vain.
        _kill([process for process in self._left() if _name_of(process) == "containerd"])
        (self._root / "exec/containerd/containerd.pid").unlink(missing_ok=True)

    def load(self, source: docker.APIClient, image: str) -> None:
        """Give it an image of another engine."""
        with closing(docker.APIClient(base_url=self.address, timeout=300)) as client:
            for _ in client.load_image(source.get_image(image)):
                pass

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self._root / "log").read_text()[-2000:]
        with socket.socket(socket.AF_UNIX) as door:
            return door.connect_ex(self.address.removeprefix("unix://")) == 0 and self._is_ready()

    def _is_ready(self) -> bool:
        with closing(docker.APIClient(base_url=self.address, version=API, timeout=STOP_SECONDS)) as client:
            try:
                return bool(client.ping())
            except (APIError, requests.RequestException):  # it listens before it answers
                return False

    def _empty(self) -> None:
        """Remove its containers, and its networks: their bridges would stay on the machine."""
        with closing(docker.APIClient(base_url=self.address, timeout=STOP_SECONDS)) as client:
            for one in client.containers(all=True):
                with already_so():
                    client.remove_container(one["Id"], force=True)
            until(lambda: not client.containers(all=True), what="its containers are gone")
            for one in client.networks():
                if one["Name"] not in ("none", "host", "bridge"):
                    client.remove_network(one["Id"])

    def _end(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)
        self._process.wait(timeout=STOP_SECONDS)

    def _left(self) -> list[psutil.Process]:
        """What a killed engine has left running: its containerd and the parents of containers."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.NoSuchProcess):
                if any(str(self._root) in word for word in process.cmdline()):
                    found.append(process)
        return found

    def _clear(self) -> None:
        mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
        for mount in sorted((one for one in mounts if one.startswith(f"{self._root}/")), reverse=True):
            # Its owner may take it away at the same time: what stays is in the way of the next line.
            subprocess.run(["umount", "--lazy", mount], check=False, capture_output=True)
        shutil.rmtree(self._root)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


def _name_of(process: psutil.Process) -> str:
    """Empty, once it has ended."""
    try:
        return str(process.name())
    except psutil.NoSuchProcess:
        return ""


def _kill(processes: list[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(processes, timeout=STOP_SECONDS)
