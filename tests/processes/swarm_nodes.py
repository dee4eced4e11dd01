"""Several Docker engines on this machine, each in a network of its own, joined to one swarm.

A node can be cut off, healed and killed. A thread that `enter`s the first node's network sees what a program
on that machine would see.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import docker
import psutil
import requests
from docker.errors import DockerException

from orchestrator.containers.docker.client import DEFAULT_ENGINE
from tests.processes.andy import until

CLONE_NEWNET = 0x40000000
ENGINE_SECONDS = 120
_OWN_NETWORK = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
ON_MACHINE = ("nsenter", f"--net=/proc/{os.getpid()}/fd/{_OWN_NETWORK}")
"""Begins a command on the network of the machine, also while the caller has `entered` a node."""
MANAGER_PORT = "2377"
API = "1.41"
"""Told, so that making a client asks nothing of an engine that may not answer."""


class SwarmNode:
    """One engine in its own network namespace, at `address`."""

    def __init__(self, root: Path, number: int, bridge: str) -> None:
        self.network = _network(bridge)
        self.root = root / f"node{number}"
        self.namespace = f"{bridge}n{number}"
        self.link = f"{bridge}v{number}"
        self.address = f"{self.network}.{number}"
        self._bridge = bridge
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def docker_host(self) -> str:
        """Where its engine listens, as `DOCKER_HOST` has it."""
        return f"unix://{self.root / 'docker.sock'}"

    def start(self) -> None:
        """Start its engine; programs in its containers can gain no privileges."""
        _ip("netns", "add", self.namespace)
        _ip("link", "add", self.link, "type", "veth", "peer", "name", "eth0", "netns", self.namespace)
        _ip("link", "set", self.link, "master", self._bridge, "up")
        for command in (
            ["addr", "add", f"{self.address}/24", "dev", "eth0"],
            ["link", "set", "eth0", "up"],
            ["link", "set", "lo", "up"],
            ["route", "add", "default", "via", f"{self.network}.254"],
        ):
            _ip("-n", self.namespace, *command)
        self._start_engine()

    def _start_engine(self) -> None:
        shutil.rmtree(self.root / "exec", ignore_errors=True)
        (self.root / "exec").mkdir(parents=True)
        (self.root / "pid").unlink(missing_ok=True)
        engine = (
            f"hostname {self.root.name}; mkdir -p /run/docker; mount -t tmpfs tmpfs /run/docker;"
            f" exec dockerd --host {self.docker_host} --data-root {self.root}/data"
            f" --exec-root {self.root}/exec --pidfile {self.root}/pid --no-new-privileges"
            f" --insecure-registry {self.network}.0/24"
        )
        with (self.root / "log").open("ab") as log:
            # 'ip netns exec' would mount another /sys, without the cgroups that an engine needs.
            self._process = subprocess.Popen(
                ["nsenter", f"--net=/run/netns/{self.namespace}", "unshare", "-m", "-u", "sh", "-c", engine],
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def answers(self) -> bool:
        """Whether its engine answers."""
        assert self._process is not None
        assert self._process.poll() is None, (self.root / "log").read_text()[-2_000:]
        return self.listens()

    def listens(self) -> bool:
        """Whether its engine takes connections. Asked by a bare socket, for docker-py leaks one in vain."""
        with socket.socket(socket.AF_UNIX) as connection:
            try:
                connection.connect(str(self.root / "docker.sock"))
            except OSError:
                return False
        return True

    def client(self) -> docker.APIClient:
        """A client of its engine."""
        return docker.APIClient(base_url=self.docker_host, version=API, timeout=ENGINE_SECONDS)

    def cut(self) -> None:
        """Take it off the network; what runs there goes on."""
        _ip("link", "set", self.link, "down", check=False)

    def heal(self) -> None:
        """Put it back on the network."""
        _ip("link", "set", self.link, "up")

    @contextmanager
    def without_manager(self) -> Iterator[None]:
        """Have its engine hear nothing of the manager, while the networks of containers stay open."""
        inside = ["nsenter", f"--net=/run/netns/{self.namespace}", "iptables", "-w"]
        rule = ["OUTPUT", "-p", "tcp", "--dport", MANAGER_PORT, "-j", "DROP"]
        subprocess.run([*inside, "-I", *rule], check=True)
        try:
            yield
        finally:
            subprocess.run([*inside, "-D", *rule], check=True)

    def kill(self) -> None:
        """End its engine and all its containers, as a power cut would."""
        self.cut()
        if self._process is None:
            return
        with suppress(psutil.NoSuchProcess):
            family = psutil.Process(self._process.pid).children(recursive=True)
            for one in [psutil.Process(self._process.pid), *family]:
                with suppress(psutil.NoSuchProcess):
                    one.kill()
        for process in psutil.process_iter(["cmdline"]):
            # Shims leave their engine, and what is in a container has one for its parent.
            if str(self.root) in " ".join(process.info["cmdline"] or ()):
                for one in [process, *_children(process)]:
                    with suppress(psutil.NoSuchProcess):
                        one.kill()
        self._process.wait(timeout=ENGINE_SECONDS)
        self._process = None

    def reboot(self) -> None:
        """Kill it and start it anew, with the disk that it had. Not for a node whose network was entered."""
        self.kill()
        _ip("netns", "delete", self.namespace, check=False)
        _ip("link", "delete", self.link, check=False)
        self.start()
        until(self.answers, what=f"the engine of {self.address} answers again")

    def restart_engine(self) -> None:
        """Restart its engine as an upgrade does, which ends its containers first."""
        assert self._process is not None
        self._process.terminate()
        self._process.wait(timeout=ENGINE_SECONDS)
        self._start_engine()
        until(self.answers, what=f"the engine of {self.address} answers again")

    def remove(self) -> None:
        """End it and remove its network and files."""
        self.kill()
        _ip("netns", "delete", self.namespace, check=False)
        for line in Path("/proc/mounts").read_text().splitlines():
            if line.split()[1].startswith(str(self.root)):
                subprocess.run(["umount", "-l", line.split()[1]], check=False, capture_output=True)


class SwarmNodes:
    """Enter it to start `count` nodes that form a swarm; the first one manages it."""

    def __init__(self, count: int = 3) -> None:
        self._root = Path(tempfile.mkdtemp(prefix="andy-swarm-"))
        self._bridge = _free_bridge()
        self.machine = os.environ.get("DOCKER_HOST", DEFAULT_ENGINE)
        """Where the engine of this machine listens, which has the images."""
        self.nodes = [SwarmNode(self._root, number, self._bridge) for number in range(1, count + 1)]

    def __enter__(self) -> Self:
        _ip("link", "add", self._bridge, "type", "bridge")
        _ip("addr", "add", f"{_network(self._bridge)}.254/24", "dev", self._bridge)
        _ip("link", "set", self._bridge, "up")
        self._filter("-I")  # where another engine forwards nothing that it does not know
        for node in self.nodes:
            node.start()
        for node in self.nodes:
            until(node.answers, what=f"the engine of {node.address} answers")
        self._join()
        return self

    def __exit__(self, *_: object) -> None:
        for node in self.nodes:
            node.remove()
        self._filter("-D")
        _ip("link", "delete", self._bridge, check=False)
        shutil.rmtree(self._root, ignore_errors=True)

    @property
    def manager(self) -> SwarmNode:
        """The node whose engine manages the swarm."""
        return self.nodes[0]

    def load(self, image: str, *, only: SwarmNode | None = None) -> None:
        """Give all nodes, or one only, an image that the engine of this machine has."""
        saved = self._root / "image.tar"
        subprocess.run(["docker", "--host", self.machine, "save", image, "--output", str(saved)], check=True)
        loading = [
            subprocess.Popen(["docker", "--host", node.docker_host, "load", "--quiet", "--input", str(saved)],
                             stdout=subprocess.DEVNULL)
            for node in ([only] if only else self.nodes)
        ]  # fmt: skip
        assert [one.wait() for one in loading] == [0] * len(loading)
        saved.unlink()

    def containers(self, label: str) -> dict[str, SwarmNode]:
        """The ids of running containers with a label, and the node of each."""
        found = {}
        for node in self.nodes:
            if not node.listens():
                continue
            with suppress(DockerException, requests.RequestException), closing(node.client()) as client:
                for one in client.containers(filters={"label": [label]}):
                    found[one["Id"]] = node
        return found

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Have this thread, and what it starts, on the manager's network."""
        with (
            Path("/proc/thread-self/ns/net").open("rb") as own,
            Path(f"/run/netns/{self.manager.namespace}").open("rb") as other,
        ):
            _set_namespace(other.fileno())
            try:
                yield
            finally:
                _set_namespace(own.fileno())

    def _join(self) -> None:
        with closing(self.manager.client()) as client:
            client.init_swarm(advertise_addr=self.manager.address, listen_addr=self.manager.address)
            token = client.inspect_swarm()["JoinTokens"]["Worker"]
        for node in self.nodes[1:]:
            with closing(node.client()) as client:
                client.join_swarm(
                    [f"{self.manager.address}:{MANAGER_PORT}"],
                    token,
                    advertise_addr=node.address,
                    listen_addr=node.address,
                )

    def _filter(self, action: str) -> None:
        for direction in ("-i", "-o"):
            subprocess.run(
                [
                    "nsenter",
                    ON_MACHINE[1],
                    "iptables",
                    "-w",
                    action,
                    "FORWARD",
                    direction,
                    self._bridge,
                    "-j",
                    "ACCEPT",
                ],
                check=False,
            )


def why_not() -> str | None:
    """What keeps nodes from being started here, if anything does."""
    for program in ("dockerd", "ip", "nsenter", "iptables", "unshare"):
        if shutil.which(program) is None:
            return f"no {program} to start nodes with"
    return None if os.geteuid() == 0 else "nodes are started by root only"


def has_overlays() -> bool:
    """Whether the kernel makes what overlay networks are of; tried in a network that goes with it."""
    command = [
        "unshare",
        "--net",
        "ip",
        "link",
        "add",
        "probe",
        "type",
        "vxlan",
        "id",
        "1",
        "dstport",
        "4789",
    ]
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


def _free_bridge() -> str:
    """The name of a bridge whose network no other swarm of this machine has: tests may run side by side."""
    links = _ip("-o", "link").stdout.decode()
    names = (f"sw{secrets.token_hex(2)}" for _ in range(1_000))
    return next(name for name in names if name[:4] not in links)


def _network(bridge: str) -> str:
    return f"10.213.{int(bridge[2:4], 16)}"


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _set_namespace(descriptor: int) -> None:
    libc: Any = ctypes.CDLL(None, use_errno=True)
    if libc.setns(descriptor, CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns")


def _ip(*arguments: str, check: bool = True) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([*ON_MACHINE, "ip", *arguments], check=check, capture_output=True)
