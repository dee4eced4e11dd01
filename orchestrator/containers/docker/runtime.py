"""Run agents in containers of the Docker engine."""

from __future__ import annotations

import asyncio
import re
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.containers.docker import client as docker_client
from orchestrator.containers.docker.client import EngineCalls
from orchestrator.containers.docker.container import DockerContainer, OnLog, remove_container
from orchestrator.containers.docker.streams import AttachedStreams
from orchestrator.domain.errors import AndyError, ContainerError, EngineGone
from orchestrator.domain.protocols import ContainerSpec
from orchestrator.domain.values import Folder, RunId

if TYPE_CHECKING:
    from docker import APIClient

PING_SECONDS = 2.0
"""Seconds that the engine's socket may take to accept a connection."""
ANSWER_SECONDS = 20.0
"""Seconds that an engine which accepts connections may take to answer.

Long, because without an engine agents might run without isolation.
"""
DISCARD_SECONDS = 20.0
"""Seconds that removing the container of a cancelled start may take."""
INSTALL_LABEL, GROUP_LABEL, RUN_LABEL = "andy.install", "andy.group", "andy.run"
TASK_LABEL = "com.docker.swarm.task.id"
"""The label that Docker puts on containers of a swarm, which this runtime must not remove."""
# The engine stores the output, so that a restarted host can read it from the start. The limits prevent a
# flood of output from filling the disk.
LOG_DRIVER, LOG_LIMITS = "json-file", {"max-size": "16m", "max-file": "4"}
# No DNS server for containers. The engine's resolver would pass their queries to the host's servers, which
# would be a way to send data out of an internal network.
NO_NAMES = ("127.0.0.1",)


async def probe() -> None:
    """Check that an engine answers: wait up to 2 s for a connection and 20 s for the answer.

    Raises:
        EngineGone: no engine answers.
    """
    try:
        async with asyncio.timeout(PING_SECONDS + ANSWER_SECONDS):
            await asyncio.to_thread(_ping)
    except (AndyError, TimeoutError) as error:
        raise EngineGone from error


async def answers(*, seconds: float) -> bool:
    """Return whether a Docker engine answers within `seconds`."""
    try:
        async with asyncio.timeout(seconds):
            await probe()
    except (EngineGone, TimeoutError):
        return False
    return True


def _ping() -> None:
    """Check that an engine answers a request. Blocks. Raises `EngineGone`."""
    # First only the socket is tried, which fails quickly and needs no import of docker-py.
    docker_client.ping(seconds=PING_SECONDS)
    # This asks the engine for its API version.
    with docker_client.translated():
        docker_client.connect(seconds=ANSWER_SECONDS).close()


def _no_log(run_id: RunId, data: bytes) -> None:
    """Drop a container's stderr; its last bytes are still recorded with the exit."""


@dataclass(frozen=True, slots=True)
class _Launched:
    ref: str
    attached: AttachedStreams


@dataclass(frozen=True, slots=True, kw_only=True)
class _ListedContainer:
    ref: str
    run_id: RunId
    folder: Folder
    is_outdated: bool


class DockerRuntime:
    """A `ContainerRuntime` on the Docker engine that the environment names.

    `install` distinguishes its containers from those of other installs. `network` is the name of an existing
    network, or None for no network. If `network_for` is passed, it is used instead: it finds or creates the
    network of a group. `open_network` finds or creates the second network of open containers. `on_host` maps
    a path of this process to the path that the engine knows. `user` is `uid:gid`. `command` replaces the
    image's entrypoint.
    """

    name = "docker"
    is_isolated = True

    def __init__(
        self,
        *,
        install: str,
        image: str,
        network: str | None,
        network_for: Callable[[APIClient, Folder], str] | None = None,
        open_network: Callable[[APIClient], str] | None = None,
        on_host: Callable[[Path], Path] = Path,
        user: str,
        command: Sequence[str] | None = None,
        on_log: OnLog = _no_log,
    ) -> None:
        """`install` is the id of this installation, which labels its containers.

        `network` is the name of the containers' network; None for none. `network_for` returns it for a group,
        and is used instead if passed. `open_network` returns the name of a second network, for containers
        that may reach the internet. `on_host` maps a path of this process to the one that the engine knows.
        `user` is `uid:gid`. `command` replaces the image's entrypoint. `on_log` receives pieces of stderr.
        """
        self._install = install
        self._image = image
        self._network = network
        self._network_for = network_for
        self._open_network = open_network
        self._on_host = on_host
        self._user = user
        self._command = command
        self._on_log = on_log
        self._calls = EngineCalls()
        self._starting: set[RunId] = set()
        """The runs whose container is being created: `adopt` leaves those out."""
        self._containers: weakref.WeakSet[DockerContainer] = weakref.WeakSet()
        """The containers in use, whose threads and connections `close` ends."""

    async def start(self, spec: ContainerSpec, order: str) -> DockerContainer:
        """Start a container and write `order`, one line that says what it has to do, to its stdin.

        The start runs in a thread, which cannot be cancelled. If this call is cancelled, the container is
        removed. After an error none is left, either.

        Raises:
            EngineGone: no engine answers.
            ImageMissing: the image does not exist.
            ContainerError: the engine refused.
        """
        abandoned = threading.Event()
        self._starting.add(spec.run_id)  # before the call, because `adopt` may list the container at once
        launch = self._calls.submit(
            partial(self._launch, spec=spec, order=order, abandoned=abandoned),
        )
        launch.add_done_callback(lambda _: self._starting.discard(spec.run_id))
        try:
            launched = await asyncio.shield(launch)
        except asyncio.CancelledError:
            abandoned.set()
            await self._remove_cancelled(launch)
            raise
        return self._container(spec.run_id, spec.folder, launched.ref, launched.attached)

    async def adopt(self) -> Sequence[DockerContainer]:
        """Return the containers of this install, also those that an earlier process of the host has started.

        Raises:
            EngineGone: no engine answers.
        """
        return [
            self._container(listed.run_id, listed.folder, listed.ref, is_outdated=listed.is_outdated)
            for listed in await self._calls.call(self._list)
        ]

    async def close(self) -> None:
        """Close all connections; the containers go on."""
        for container in tuple(self._containers):
            container.release()
        await self._calls.close()

    def _container(
        self,
        run_id: RunId,
        folder: Folder,
        ref: str,
        attached: AttachedStreams | None = None,
        *,
        is_outdated: bool = False,
    ) -> DockerContainer:
        """Return a new handle of the container with the id `ref`, and register it for `close`.

        `attached` are the container's open streams; without them, the handle opens its own. `is_outdated`
        says whether a new container would be made of another image.
        """
        container = DockerContainer(
            run_id=run_id,
            folder=folder,
            ref=ref,
            calls=self._calls,
            on_log=self._on_log,
            attached=attached,
            is_outdated=is_outdated,
        )
        self._containers.add(container)
        return container

    def _launch(
        self, client: APIClient, *, spec: ContainerSpec, order: str, abandoned: threading.Event
    ) -> _Launched:
        """Create a container, attach to its streams, start it and begin to write its order. Blocks.

        `order` is the line that tells the container's program what to do. A thread writes it, perhaps after
        this has returned. The streams are attached before the start, so that no output is lost. After an
        error the container is removed, if there is one.

        Raises docker-py's errors, and `ContainerError` if `abandoned` was set: then the start was given up.
        """
        name = container_name(spec)
        _raise_if_abandoned(abandoned)
        ref = _create(client, name, self._container_options(client, spec))
        attached: AttachedStreams | None = None
        try:
            attached = AttachedStreams(client, ref)
            _raise_if_abandoned(abandoned)
            if spec.is_open:
                self._join_open(client, ref)
            client.start(ref)
            attached.write_order(order, name=f"order-{spec.run_id}")
            _raise_if_abandoned(abandoned)
        except BaseException:
            if attached is not None:
                attached.close()
            _remove_quietly(client, ref)
            raise
        return _Launched(ref, attached)

    def _join_open(self, client: APIClient, ref: str) -> None:
        """Connect a container to a second network, over which it reaches the internet.

        Raises:
            ContainerError: this runtime has no such network.
        """
        if self._open_network is None:
            raise ContainerError("This engine has no open network: set 'egress' to \"none\" or a list.")
        client.connect_container_to_network(ref, self._open_network(client))

    async def _remove_cancelled(self, launch: asyncio.Future[_Launched]) -> None:
        """Wait for a cancelled start to end, and remove its container.

        `launch` is the start, which goes on in its thread. If it fails, the thread removes the container
        itself.
        """
        with suppress(AndyError, TimeoutError):  # `adopt` finds a container that is left
            async with asyncio.timeout(DISCARD_SECONDS):
                launched = await asyncio.shield(launch)
                launched.attached.close()
                await asyncio.shield(self._calls.submit(partial(remove_container, ref=launched.ref)))

    def _list(self, client: APIClient) -> list[_ListedContainer]:
        """List the containers of this install that were started, also those that have ended. Blocks.

        Containers that were created but not started, because the host died in between, are removed.
        Containers whose start is in progress in this process, or that the engine is removing, are left out.
        """
        started = []
        descriptions = _containers(client, self._install)
        image_id = _image_id(client, self._image) if descriptions else None
        for description in descriptions:
            if description["Labels"][RUN_LABEL] in self._starting:
                continue  # a start of this process is in progress
            if description["State"] == "created":
                _remove_unless_started(client, description["Id"])
            elif description["State"] not in {"removing", "dead"}:
                started.append(
                    _ListedContainer(
                        ref=description["Id"],
                        run_id=RunId(description["Labels"][RUN_LABEL]),
                        folder=Folder(description["Labels"][GROUP_LABEL]),
                        # Without the image none counts as outdated: no new container could be started.
                        is_outdated=image_id is not None and description["ImageID"] != image_id,
                    )
                )
        return started

    def _container_options(self, client: APIClient, spec: ContainerSpec) -> dict[str, Any]:
        """Return the arguments with which docker-py creates the container."""
        return {
            "image": self._image,
            "entrypoint": self._command,
            "hostname": "andy",
            "user": self._user,
            "environment": spec.environment,
            "labels": {
                INSTALL_LABEL: self._install,
                GROUP_LABEL: spec.folder,
                RUN_LABEL: spec.run_id,
            },
            "stdin_open": True,
            "stop_signal": "SIGTERM",
            "host_config": self._host_config(client, spec),
        }

    def _host_config(self, client: APIClient, spec: ContainerSpec) -> dict[str, Any]:
        """Return docker-py's `host_config`, the options that limit the container.

        They are its mounts, rights, memory, processors, processes, network and log.
        """
        from docker.types import LogConfig, Mount

        return client.create_host_config(
            mounts=[
                Mount(
                    mount.target,
                    str(self._on_host(mount.source)),
                    type="bind",
                    read_only=not mount.is_writable,
                    propagation="private",
                )
                for mount in spec.mounts
            ],
            init=True,
            read_only=True,
            tmpfs=_tmpfs_mounts(self._user),
            cap_drop=["ALL"],
            security_opt=["no-new-privileges"],
            mem_limit=spec.memory_bytes,
            memswap_limit=spec.memory_bytes,  # memory and swap together, so there is no swap
            nano_cpus=round(spec.cpus * 1e9),
            pids_limit=spec.pids,
            network_mode=self._network_of(client, spec.folder) or "none",
            # None leaves the engine's own name server to an open container; any other gets none that answers.
            dns=None if spec.is_open else list(NO_NAMES),
            log_config=LogConfig(type=LOG_DRIVER, config=LOG_LIMITS),
        )

    def _network_of(self, client: APIClient, folder: Folder) -> str | None:
        """Return the name of the network for a group's containers; None for no network."""
        return self._network_for(client, folder) if self._network_for is not None else self._network


def _tmpfs_mounts(user: str) -> dict[str, str]:
    """Return the options of the mounts in memory (tmpfs), by path, for a container whose root is read-only.

    They are `/tmp`, and the home, where the CLI stores its caches. `user` is `uid:gid`. A tmpfs takes over
    the mode of the directory below it, so owner and mode of the home are set explicitly.
    """
    uid, _, gid = user.partition(":")
    limits = "rw,exec,nosuid,nodev,size=256m"
    return {
        "/tmp": f"{limits},mode=1777",  # noqa: S108  # the container's own
        "/home/andy": f"{limits},mode=0755,uid={uid},gid={gid or uid}",
    }


def container_name(spec: ContainerSpec) -> str:
    """Return the container's name, `andy-{run id}`, with only characters that the engine allows.

    It does not contain the group's folder, because containers of one network can look up each other's names.
    """
    return re.sub(r"[^A-Za-z0-9_.-]", "-", f"andy-{spec.run_id}")


def _create(client: APIClient, name: str, options: dict[str, Any]) -> str:
    """Create a container and return its id. Raises docker-py's errors.

    If the engine's response is lost, the container is removed in case it exists.
    """
    import docker.errors

    try:
        return str(client.create_container(name=name, **options)["Id"])
    except docker.errors.APIError:  # the engine refused, so there is no container
        raise
    except BaseException:
        # The response was lost, but the container may exist. Its name contains the run's id, so that this
        # removes no other container.
        _remove_quietly(client, name)
        raise


def _remove_quietly(client: APIClient, ref: str) -> None:
    """Remove a container without raising the engine's errors, because the caller raises a more important one.

    A container that could not be removed is found by `adopt` later.
    """
    import docker.errors
    import requests

    with suppress(docker.errors.DockerException, requests.RequestException):
        remove_container(client, ref=ref)


def remove_runs(client: APIClient, *, install: str) -> None:
    """Kill and remove the containers of an install on this engine, except those of a Docker Swarm. Blocks."""
    for description in _containers(client, install):
        remove_container(client, ref=description["Id"])


def _containers(client: APIClient, install: str) -> list[dict[str, Any]]:
    """Return the engine's descriptions of an install's agent containers, also of those that have ended.

    Containers of a Docker Swarm, which have the label `TASK_LABEL`, are left out.
    """
    # Filtered by one label only: Compose's Docker socket filter accepts no more.
    of_install = client.containers(all=True, filters={"label": [f"{INSTALL_LABEL}={install}"]})
    return [
        container
        for container in of_install
        if RUN_LABEL in container["Labels"] and TASK_LABEL not in container["Labels"]
    ]


def _image_id(client: APIClient, image: str) -> str | None:
    """Return the id of the image that has this name now, or None when there is none. Blocks."""
    import docker.errors

    try:
        return str(client.inspect_image(image)["Id"])  # type: ignore[no-untyped-call]
    except docker.errors.NotFound:
        return None  # without an image no new container could be started, so none counts as outdated


def _remove_unless_started(client: APIClient, ref: str) -> None:
    """Remove a container that was created and never started, unless it was started since it was listed."""
    import docker.errors

    with suppress(docker.errors.NotFound):
        if client.inspect_container(ref)["State"]["Status"] == "created":
            remove_container(client, ref=ref)


def _raise_if_abandoned(abandoned: threading.Event) -> None:
    """Raise `ContainerError` if the start was cancelled, so that its thread goes no further."""
    if abandoned.is_set():
        raise ContainerError("The start was cancelled.")
