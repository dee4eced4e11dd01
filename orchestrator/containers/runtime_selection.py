"""Choose the runtime of agents: Docker, a Docker Swarm or ordinary processes.

The agent image, which Docker and a swarm need, is built here if it is missing; `push_image` pushes it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Collection
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

from agent_runner.wire import document
from orchestrator.base import installation
from orchestrator.base.installation import COMPOSE_HOME
from orchestrator.compose.self_inspect import is_behind_filter
from orchestrator.containers.docker import client as docker_client
from orchestrator.containers.docker import host_paths, network
from orchestrator.containers.docker import runtime as docker_engine
from orchestrator.containers.docker.container import OnLog
from orchestrator.containers.docker.group_networks import ALIAS, GroupNetworks
from orchestrator.containers.docker.host_paths import HostPaths
from orchestrator.containers.docker.runtime import DockerRuntime
from orchestrator.containers.firewall import Firewall, FirewallOutOfReach
from orchestrator.containers.process.runtime import ProcessRuntime
from orchestrator.domain.errors import ContainerError
from orchestrator.domain.protocols import ContainerRuntime

if TYPE_CHECKING:
    from docker import APIClient

    from orchestrator.containers.image.context import ImageSources
    from orchestrator.containers.swarm.group_files import LastFrame

Say = Callable[[str], None]
OnNodeProblem = Callable[[str], Awaitable[None]]
AGENT_UID = 1000
"""The user and group id that agents get instead of root's, where the host runs as root."""
BUILD_SECONDS = 600
"""Seconds that the engine may take for one answer while an image is built or pushed."""
ENGINE_SECONDS = 5.0
"""Seconds that an engine may take to answer a request for its status."""
EVERY_ADDRESS = "0.0.0.0"  # noqa: S104  # Andy's own container has another address on each agent's network


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectedRuntime:
    """The runtime that was chosen, and how its containers and the host reach each other."""

    runtime: ContainerRuntime
    host_address: str
    """The address at which containers reach the host, or a name that they resolve to it."""
    listen_address: str
    """The address on which the host listens for containers."""
    uid: int
    """The user id that agents run as, which owns the files that they may write."""
    forget: Callable[[], Awaitable[None]]
    """Remove the install's networks and other objects from the engine, when no agent of it is to go on."""
    image: str | None = None
    """The name of the agent image; None for ordinary processes."""
    firewall: Firewall | None = None
    """The rule that blocks agents from other ports of the host.

    None if none is needed, because the agents' networks do not lead to the host, and for ordinary processes,
    which nothing isolates.
    """
    own_paths: HostPaths | None = None
    """The path mapping of the container in which this process runs; None if it runs in none."""
    room: Callable[[], int | None] = lambda: None
    """Return how many containers the machines can run in total; None if only the setting limits them."""
    problem: str | None = None
    """One line on why no agent could start at the start of the host, with the fix; None if one could."""
    admit: Callable[[frozenset[int]], Awaitable[frozenset[int]]] | None = None
    """Let agents on other machines reach these ports of the host, by a program that forwards connections.

    Return the ports of the host to which that program connects. None if agents connect to the ports
    themselves.
    """

    @property
    def published_address(self) -> str | None:
        """The address to which Docker publishes the ports of Andy's own container; None if there is none.

        Agents cannot reach this address.
        """
        return self.own_paths.address if self.own_paths is not None else None

    async def block_other_ports(self, ports: Collection[int], say: Say) -> None:
        """Let agents reach these ports of the host, and block its other ports for them by the firewall.

        Where a program forwards agents' connections (`admit`), it is set up first; the firewall then leaves
        only the ports open to which that program connects. Without a `firewall`, nothing is blocked here. If
        the firewall cannot be set, `say` shows a warning.
        """
        if self.admit is not None:
            ports = await self.admit(frozenset(ports))
        if self.firewall is None:  # none is needed, or nothing isolates the agents
            return
        try:
            await asyncio.to_thread(self.firewall.apply, ports)
        except FirewallOutOfReach as error:
            # 127.0.0.1 in a container is the container itself, so what listens there alone is out of reach.
            say(
                "⚠️  Agents may reach what this machine serves on addresses other than 127.0.0.1: Andy cannot"
                f" set its firewall ({error}). 'andy doctor' shows what root may type instead."
            )

    async def remove_port_block(self) -> None:
        """Remove the firewall rule that blocks agents from the host's ports.

        Call it when no agent runs any more. Nothing is done without a `firewall`. If this user may not change
        the firewall, the rule stays.
        """
        if self.firewall is not None:
            with suppress(FirewallOutOfReach):
                await asyncio.to_thread(self.firewall.remove)

    async def has_engine(self) -> bool:
        """Return whether the engine answers; always True where agents are ordinary processes."""
        return self.runtime.name == "process" or await docker_engine.answers(seconds=ENGINE_SECONDS)

    async def is_image_there(self) -> bool | None:
        """Return whether the engine has the agent image; None if no engine answers.

        Return True also for runtimes other than Docker, for which this is not checked.
        """
        if self.image is None or self.runtime.name != "docker":
            return True
        try:
            return await asyncio.to_thread(has_image, self.image)
        except ContainerError:
            return None

    async def image_problem(self) -> str | None:
        """Return one line with the fix if the agent image is missing now, else None."""
        return _no_image(self.image) if self.image and await self.is_image_there() is False else None

    def mount_hindrance(self, path: Path) -> str | None:
        """Return why a folder of the owner cannot be mounted in containers; None when it can."""
        return self.own_paths.mount_hindrance(path) if self.own_paths is not None else None


async def choose(
    requested: Literal["auto", "docker", "process", "swarm"],
    *,
    home: Path,
    install: str,
    tag: str,
    used_runtimes: Collection[str],
    last_frame: LastFrame,
    on_log: OnLog,
    on_node_problem: OnNodeProblem,
    slots_per_node: int,
    say: Say,
) -> SelectedRuntime:
    """Return the requested runtime; with `auto`, Docker if an engine answers, else ordinary processes.

    With `auto`, a missing image does not lead to ordinary processes: no agent starts then, and
    `SelectedRuntime.problem` has the reason. In Andy's container of Docker Compose, `auto` means Docker.

    `home` is the host's directory, `install` the id of this installation, and `tag` the agent image.
    `used_runtimes` contains the names of the runtimes with containers of an earlier host, which may still
    run. Containers of another runtime than the returned one are ended. `on_log` receives containers' stderr.
    `last_frame` returns the number of a run's last frame (a line of its output) that the store has. `say`
    shows a line to the person who started the host. On a swarm, `on_node_problem` is called with the reason
    when a node cannot start containers, and `slots_per_node` limits the containers of a node unless it is 0.

    Raises:
        ContainerError: the requested runtime cannot be used; or, with `auto`, Docker cannot be used, although
            by `used_runtimes` containers may still run there.
    """
    if is_behind_filter():  # Andy runs in a container of Docker Compose
        if requested == "process":
            raise ContainerError(
                "With Docker Compose agents never run in Andy's own container: set ANDY_RUNTIME=docker (or"
                " swarm) in .env, then 'docker compose up -d'."
            )
        requested = "swarm" if requested == "swarm" else "docker"
    if requested == "swarm":
        chosen = await _swarm(
            home,
            install,
            tag,
            say,
            on_log=on_log,
            last_frame=last_frame,
            on_problem=on_node_problem,
            slots_per_node=slots_per_node,
        )
    elif requested == "process":
        chosen = _process(home, say, on_log=on_log, reason="as you asked")
    else:
        chosen = await _docker_if_there(
            requested, home, install, tag, say, on_log=on_log, used_runtimes=used_runtimes
        )
    await _end_in_runtimes(
        {*used_runtimes} - {chosen.runtime.name}, home=home, install=install, own_paths=chosen.own_paths
    )
    return chosen


async def _docker_if_there(
    requested: Literal["auto", "docker"],
    home: Path,
    install: str,
    tag: str,
    say: Say,
    *,
    on_log: OnLog,
    used_runtimes: Collection[str],
) -> SelectedRuntime:
    """Return the Docker runtime; with `auto` and no engine, the runtime of ordinary processes.

    Raises:
        ContainerError: Docker cannot be used, but was requested, or earlier containers may live on there.
    """
    try:
        await docker_engine.probe()
    except ContainerError as error:
        if requested == "docker":
            raise
        if {"docker", "swarm"} & {*used_runtimes}:
            raise ContainerError(
                f"Containers of this home may live on in Docker, and it cannot be used: {error}"
                " Fix that, or give them up with ANDY_RUNTIME=process."
            ) from error
        return _process(home, say, on_log=on_log, reason=str(error))
    return await _docker(home, install, tag, say, on_log=on_log, may_lack_image=requested == "auto")


async def _end_in_runtimes(
    runtimes: Collection[str], *, home: Path, install: str, own_paths: HostPaths | None
) -> None:
    """End the agents that an earlier host left in the runtimes of these names.

    They must not live on, because they would read the input files of their groups' next agents. The networks
    on a swarm are removed, too. `own_paths` are set if this host is a container itself: then the groups'
    networks on this engine are removed as well. If no engine answers, its agents are given up.
    """
    if "process" in runtimes:
        await ProcessRuntime(home=home).adopt()  # ends the processes of an earlier host
    with suppress(ContainerError):  # if no engine answers, its containers are given up
        if "docker" in runtimes:
            await asyncio.to_thread(_with_client, partial(docker_engine.remove_runs, install=install))
            if own_paths is not None:
                networks = GroupNetworks(install=install, own_id=own_paths.own_id)
                await asyncio.to_thread(_with_client, networks.remove)
        if "swarm" in runtimes:
            await asyncio.to_thread(
                _with_client, partial(_remove_swarm, install=install, own_paths=own_paths)
            )


async def remove_all(home: Path, install: str) -> None:
    """End every agent of a home, and remove its networks and its firewall rule.

    The rule stays if this user may not change the firewall.

    Raises:
        EngineGone: no engine answers. Agents that are processes of this machine have been ended before.
    """
    await ProcessRuntime(home=home).adopt()  # ends the processes of an earlier host
    await docker_engine.probe()
    await _end_in_runtimes({"docker", "swarm"}, home=home, install=install, own_paths=None)
    with docker_client.translated(), closing(docker_client.connect()) as client:
        joined_network = await asyncio.to_thread(network.find_network, client, install)
    if joined_network is not None:
        with suppress(FirewallOutOfReach):
            rule = Firewall(install=install, bridge=joined_network.bridge, gateway=joined_network.gateway)
            await asyncio.to_thread(rule.remove)
    await network.remove_network(install)


def _remove_swarm(client: APIClient, *, install: str, own_paths: HostPaths | None) -> None:
    """Remove everything of this install from the swarm. Blocks.

    `own_paths` are set if this host is a container itself.
    """
    from orchestrator.containers.swarm.services import SwarmServices, remove_all

    services = SwarmServices(install=install, image="")
    remove_all(
        client, install=install, services=services, own_id=None if own_paths is None else own_paths.own_id
    )


async def _docker(
    home: Path, install: str, tag: str, say: Say, *, on_log: OnLog, may_lack_image: bool
) -> SelectedRuntime:
    """Return the Docker runtime, after the agent image was built if it is missing or outdated.

    If this host runs in a container itself, its agents are sibling containers (`_for_container_host`).
    Otherwise they share a network, and the result has a firewall. With `may_lack_image` a missing image that
    cannot be built is no error but the `problem` of the result. `say` shows the progress.

    Raises:
        ContainerError: the image or the network cannot be made.
    """
    own_paths = await asyncio.to_thread(host_paths.find)
    problem = None
    try:
        await asyncio.to_thread(ensure_image, tag, say)
    except ContainerError as error:
        if not may_lack_image or await asyncio.to_thread(has_image, tag):
            raise
        problem = _no_image(tag)
        say(f"{error}\n⚠️  {problem}")
    uid = os.getuid() or AGENT_UID  # never root's, which is 0
    make = partial(
        DockerRuntime,
        install=install,
        image=tag,
        user=f"{uid}:{os.getgid() or AGENT_UID}",
        on_log=on_log,
    )
    if own_paths is not None:
        return replace(
            await _for_container_host(own_paths, make, home=home, install=install, tag=tag, uid=uid),
            problem=problem,
        )
    joined_network = await network.ensure_network(install)
    return SelectedRuntime(
        runtime=make(
            network=joined_network.name, open_network=partial(network.open_network, install=install)
        ),
        host_address=joined_network.gateway,
        listen_address=joined_network.gateway,
        uid=uid,
        forget=partial(network.remove_network, install),
        image=tag,
        problem=problem,
        firewall=Firewall(install=install, bridge=joined_network.bridge, gateway=joined_network.gateway),
    )


async def _for_container_host(
    own_paths: HostPaths, make: Callable[..., DockerRuntime], *, home: Path, install: str, tag: str, uid: int
) -> SelectedRuntime:
    """Return the Docker runtime for a host that runs in a container itself, described by `own_paths`.

    Agents are then sibling containers: their folders are mounted from the machine's paths, and each group has
    a network of its own. `make` builds the runtime.

    Raises:
        ContainerError: the home is not mounted from the machine, or the engine refuses.
    """
    own_paths.check_home(home)
    networks = GroupNetworks(install=install, own_id=own_paths.own_id)
    await asyncio.to_thread(_with_client, networks.tidy)
    return SelectedRuntime(
        runtime=make(
            network=None,
            network_for=networks.join,
            open_network=partial(network.open_network, install=install, suffix="out"),
            on_host=own_paths.on_host,
        ),
        host_address=ALIAS,
        listen_address=EVERY_ADDRESS,
        uid=uid,
        forget=partial(asyncio.to_thread, _with_client, networks.remove),
        image=tag,
        own_paths=own_paths,
    )


async def _swarm(
    home: Path,
    install: str,
    tag: str,
    say: Say,
    *,
    on_log: OnLog,
    last_frame: LastFrame,
    on_problem: OnNodeProblem,
    slots_per_node: int,
) -> SelectedRuntime:
    """Return the runtime that runs agents on the nodes of the swarm that this machine's engine manages.

    In each container on a node a program, the carrier, connects the agent with the host. It reaches the host
    through the gate, which is a container on the swarm's networks. If the host itself runs in a container,
    that is the gate; otherwise a container is started that only passes connections on to the host.

    `say` shows the progress. `last_frame` returns the number of the last frame that was stored of a run.
    `on_problem` is called with the reason when a node cannot start containers.

    Raises:
        ContainerError: the engine manages no swarm, or the image cannot be had.
    """
    # Imported here, because most hosts have no swarm and start faster without these modules.
    from orchestrator.containers.swarm.runtime import SwarmRuntime
    from orchestrator.containers.swarm.services import (
        ManagerEngine,
        SwarmServices,
        ensure_gate,
        remove_all,
        swarm_image,
    )

    await docker_engine.probe()
    own_paths = await asyncio.to_thread(host_paths.find)
    await asyncio.to_thread(ensure_image, tag, say)
    image = await asyncio.to_thread(_with_client, partial(swarm_image, tag=tag))
    services = SwarmServices(install=install, image=image)
    engine = ManagerEngine(services)
    # `own_paths` are None if the host runs in no container. Then it needs a gate, which joins this network.
    joined_network = None if own_paths is not None else await network.ensure_network(install)
    runtime = SwarmRuntime(
        engine,
        data=home / "data",
        last_frame=last_frame,
        on_log=on_log,
        address=EVERY_ADDRESS if joined_network is None else joined_network.gateway,
        is_gate=joined_network is None,
        slots_per_node=slots_per_node,
        on_problem=on_problem,
    )

    async def admit(ports: frozenset[int]) -> frozenset[int]:
        """Accept connections that forward agents' requests to these ports of the host.

        They come from other nodes through the gate, a container on the swarm's networks, and arrive at the
        door, one port of the host. The gate is started, unless the host runs in a container itself, which
        then is the gate. Then the secrets and networks that no run needs any more are removed from the
        swarm. Return the door's port.
        """
        runtime.ports = ports
        await runtime.open()
        if joined_network is not None:
            services.make_gate = partial(
                ensure_gate,
                install=install,
                image=image,
                network=joined_network.name,
                port=runtime.door.port,
                address=joined_network.gateway,
            )
        elif own_paths is not None:  # always true without a joined network; tested for the type checker
            # Andy runs in a container, which is the gate. After an upgrade it is a new one, which is not on
            # the networks of the live runs yet, so `keep_gate` has to connect it.
            services.make_gate = lambda _: own_paths.own_id
        await engine.keep_gate()
        await engine.tidy()
        return frozenset({runtime.door.port})

    async def forget() -> None:
        """Remove everything of this install from the swarm, and the network that the host has joined, if any.

        Called at the host's end, unless containers are left running.
        """
        own_id = None if own_paths is None else own_paths.own_id
        removing = partial(remove_all, install=install, services=services, own_id=own_id)
        await asyncio.to_thread(_with_client, removing)
        if joined_network is not None:
            await network.remove_network(install)

    return SelectedRuntime(
        runtime=runtime,
        # In the agent's container, the carrier listens on the ports of the host's proxies and forwards to
        # them.
        host_address="127.0.0.1",
        listen_address="127.0.0.1",
        uid=os.getuid(),
        forget=forget,
        image=tag,
        firewall=None
        if joined_network is None
        else Firewall(install=install, bridge=joined_network.bridge, gateway=joined_network.gateway),
        own_paths=own_paths,
        admit=admit,
        room=lambda: runtime.placement.room,
    )


T = TypeVar("T")


def _with_client(work: Callable[[APIClient], T]) -> T:
    """Call `work` with a new client of the engine, close the client, and return the result. Blocks.

    docker-py's errors are raised as this project's, such as `EngineGone` and `ContainerError`.
    """
    with docker_client.translated(), closing(docker_client.connect()) as client:
        return work(client)


def _process(home: Path, say: Say, *, on_log: OnLog, reason: str) -> SelectedRuntime:
    """Return the runtime of ordinary processes. `say` shows a warning that they are not isolated, and why."""
    say(f"⚠️  Agents run as ordinary processes of this user, NOT isolated: {reason}")
    return SelectedRuntime(
        runtime=ProcessRuntime(home=home, on_log=on_log),
        host_address="127.0.0.1",
        listen_address="127.0.0.1",
        uid=os.getuid(),
        forget=_forget_nothing,
    )


async def _forget_nothing() -> None:
    """Do nothing: ordinary processes leave nothing on an engine."""


def ensure_image(tag: str, say: Say) -> None:
    """Build the agent image if it is missing or was built from other sources. Blocks for up to minutes.

    An image that is named by its digest is pulled and never built.

    Raises:
        EngineGone: no engine answers.
        ContainerError: the image cannot be built or pulled here, or the pulled one is of another version.
    """
    from orchestrator.containers.image import build, registry

    sources = image_sources()
    with docker_client.translated():
        client = docker_client.connect(seconds=BUILD_SECONDS)
        try:
            if is_pinned := "@" in tag:
                registry.fetch(client, tag, say=say)
            # Without sources there is nothing to compare the image with.
            if build.is_present(client, tag) and (sources is None or build.is_current(client, tag, sources)):
                return
            if is_pinned:
                raise ContainerError(
                    f"ANDY_IMAGE names the image {tag}, which is of another version than this Andy:"
                    f" {version_fix(tag)}."
                )
        finally:
            client.close()
    say(f"The agent image {tag} is missing or older than its sources: building it (first time: 2 minutes).")
    build_image(tag, base="auto", say=say)


def has_image(tag: str) -> bool:
    """Return whether the engine has an image of that name. Blocks. Raises `EngineGone`."""
    from orchestrator.containers.image import build

    return bool(_with_client(partial(build.is_present, tag=tag)))


def image_fix(tag: str = "") -> str:
    """Return the command by which the owner of this install gets the agent image onto this machine.

    An image whose name `tag` has a digest is pulled, since none that is built here would have the digest.
    With Docker Compose, another image is built if Andy's own folder is a clone of the repository, else it is
    pulled.
    """
    if "@" in tag:
        return f"docker pull {tag}"
    if not is_behind_filter():
        return "andy image build"
    is_clone = (Path(COMPOSE_HOME) / installation.DOCKERFILE).is_file()
    return f"docker compose {'build' if is_clone else 'pull'} agent"


def version_fix(tag: str) -> str:
    """Return what the owner types where the agent image `tag` is of another version than this Andy.

    One whose name has a digest is replaced by another image with another digest.
    """
    if "@" in tag:
        return (
            "'andy image build --tag andy-agent:latest', push that with 'andy image push REGISTRY"
            " --tag andy-agent:latest', and write the digest that it says to ANDY_IMAGE"
        )
    return f"'{image_fix()}' makes its image anew"


def _no_image(tag: str) -> str:
    """Return one line that says that the image is missing, with the command that gets it."""
    return (
        f"No agent starts, for the image {tag} is missing: get it with '{image_fix(tag)}';"
        " what waits is answered then."
    )


def build_image(tag: str, *, base: str, say: Say, layers: Collection[str] | None = None) -> None:
    """Build the agent image from this install's sources. Blocks for up to minutes; `say` shows the progress.

    `base` says where the base image comes from: `auto`, `pull` or `debian`. `layers` are names of optional
    parts of the image; None takes those of the present image.

    Raises:
        EngineGone: no engine answers.
        ContainerError: the image cannot be built here; the text names the fix.
    """
    from orchestrator.containers.image import build

    sources = image_sources()
    if sources is None:
        raise ContainerError(
            f"There is no source here to build {tag} from: "
            + (f"type '{image_fix()}' on the host." if is_behind_filter() else "install Andy again.")
        )
    with docker_client.translated():
        client = docker_client.connect(seconds=BUILD_SECONDS)
        try:
            build.build(client, tag=tag, base=build.BaseImage(base), sources=sources, say=say, layers=layers)
        finally:
            client.close()


def push_image(image: str, to: str, *, say: Say) -> str:
    """Push the agent image to the registry `to`, and return its name there with the digest. Blocks.

    Raises:
        EngineGone: no engine answers.
        ImageMissing: this machine does not have the image.
        ContainerError: the registry did not accept it; the text has the fix.
    """
    from orchestrator.containers.image import registry

    with docker_client.translated(), closing(docker_client.connect(seconds=BUILD_SECONDS)) as client:
        return registry.push(client, image, to, say=say)


def image_sources() -> ImageSources | None:
    """Return the sources of the agent image, or None in Andy's own image, which does not contain them."""
    from orchestrator.containers.image.context import ImageSources

    container = installation.container_folder()
    if container is None:
        return None
    # `document` is a module of the runner's package, which is the folder above the module's own.
    return ImageSources(runner=Path(document.__file__).resolve().parents[1], container=container)
