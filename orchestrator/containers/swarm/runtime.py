"""Run agents in containers on the nodes of a Docker Swarm, which the engine of this machine manages."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import structlog

from agent_runner.wire.arrivals import new_observer
from agent_runner.wire.files import write_whole
from agent_runner.wire.gate import open_gate
from orchestrator.containers.swarm.container import SwarmContainer, SwarmEngine
from orchestrator.containers.swarm.door import CarrierDoor
from orchestrator.containers.swarm.group_files import (
    MAILBOXES,
    LastFrame,
    RunFiles,
    Stages,
    settle_stages,
    shared_trees,
)
from orchestrator.containers.swarm.nodes import Node, NodeMemory, NodeRefused, NodeSlow, Placement
from orchestrator.containers.swarm.services import ALIAS, RunService, TaskState, refuse_failed
from orchestrator.containers.swarm.session import CarrierSession, OnLog
from orchestrator.domain.errors import AndyError, ContainerError, EngineGone
from orchestrator.domain.protocols import ContainerSpec
from orchestrator.domain.values import Folder, RunId

log = structlog.get_logger(__name__)

START_SECONDS = 120.0
"""Seconds that a node may take to start a container; after them another node is tried."""
LOOK_SECONDS = 0.5
"""Seconds between two looks at a container that starts, and at nodes that are full."""
CONNECT_SECONDS = 8.0
"""Seconds that a carrier on a node with the image may take to connect.

After them the run is started again, on another node if one is free. The second try has `START_SECONDS`.
"""
SETTING_UP_SECONDS = 5.0
"""Seconds that setting up one container may delay the next one on the same node."""
CHECK_SETTING_UP_SECONDS = 0.05
"""Seconds between two looks at a container that is being set up."""
NODES_SECONDS = 10.0
"""Seconds between two updates of the list of nodes."""
LOOPBACK = "127.0.0.1"
FULL_SECONDS = 30.0
"""Seconds to wait for a free slot when all nodes are full."""


class SwarmRuntime:
    """A `ContainerRuntime` that starts containers on the nodes of a swarm.

    The host is a single process on a manager of the swarm. A carrier in each container connects to it.
    """

    name = "swarm"
    is_isolated = True

    def __init__(
        self,
        engine: SwarmEngine,
        *,
        data: Path,
        last_frame: LastFrame,
        on_log: OnLog,
        address: str,
        is_gate: bool = False,
        host_name: str = ALIAS,
        on_problem: Callable[[str], Awaitable[None]],
        slots_per_node: int = 0,
    ) -> None:
        """`data` is the host's own directory. The host listens at `address`; carriers call it `host_name`.

        `last_frame` returns the number of the last frame of a run that the store has recorded, and `on_log`
        receives pieces of containers' stderr. With `is_gate` the host itself is on the networks of agents and
        forwards their connections. `slots_per_node` limits the containers of a node, unless it is 0.
        `on_problem` is called with the reason when a node could not start a container, unless its last start
        failed for the same reason.
        """
        self._engine = engine
        self._on_problem = on_problem
        self.placement = Placement(NodeMemory(data), slots=slots_per_node)
        self._nodes_task: asyncio.Task[None] | None = None
        self._data = data
        self._last_frame = last_frame
        self._on_log = on_log
        self._address = address
        self._is_gate = is_gate
        self._gate: asyncio.Server | None = None
        self._port = 0
        """The port at which carriers connect: that of the door, or of the gate before it."""
        self._host_name = host_name
        self._sessions: dict[str, CarrierSession] = {}
        self._containers: dict[RunId, SwarmContainer] = {}
        self._starting: dict[RunId, Folder | None] = {}
        """The runs that are being started, each with the group whose volume it uses; None if it uses none."""
        self._proven: set[str] = set()
        """The ids of the nodes that have started a container for this host, so that they have the image."""
        self._setting_up: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        """The lock of each node, by its id, that is held while a container is set up there."""
        self._opening = asyncio.Lock()
        self._observer = new_observer()
        """Watches the folders to which the host writes while agents work."""
        self._observer.daemon = True
        self.ports: frozenset[int] = frozenset()
        """The ports of the host's proxies that agents may connect to."""
        self.door = CarrierDoor(data, find=self._find)

    async def open(self) -> None:
        """Listen for carriers, the programs by which containers connect, unless this was done before.

        Raises `OSError`.
        """
        async with self._opening:
            if not self.door.port:  # it is 0 before the door is open
                await self._listen()

    async def _listen(self) -> None:
        """Open the port at which containers connect, and start to watch the nodes.

        It is the port of an earlier host if that is free, because containers that live on connect there.
        """
        port_file = self._data / "carrier-port"
        preferred = await asyncio.to_thread(_stored_port, port_file)
        if self._is_gate:
            # The host's own container is the gate, which passes connections on to the door. It counts those
            # of each container, as the door does not: one container could use up all that the door accepts.
            await self.door.open(LOOPBACK)
            self._gate = await open_gate(self.door.port, LOOPBACK, self._address, preferred)
            self._port = int(self._gate.sockets[0].getsockname()[1])
        else:
            await self.door.open(self._address, preferred)
            self._port = self.door.port
        await asyncio.to_thread(write_whole, port_file, str(self._port))
        self._observer.start()
        self._nodes_task = asyncio.create_task(self._watch_nodes(), name="swarm-nodes")

    async def _watch_nodes(self) -> None:
        """Update the list of nodes, whose slots limit what the queue starts, at intervals until cancelled.

        The gate, through which containers reach the host, is kept running, too.
        """
        while True:
            with suppress(AndyError):  # the engine does not answer now
                self.placement.nodes = await self._engine.nodes()
                await self._engine.keep_gate()
            await asyncio.sleep(NODES_SECONDS)

    async def start(self, spec: ContainerSpec, order: str) -> SwarmContainer:
        """Start a container on one of the nodes, and send it `order`, which tells it what to do.

        After an error or a cancellation nothing is left behind.

        Raises:
            EngineGone: the engine does not answer.
            ContainerError: no node can start the container; the text has the reason.
            OSError: the host's disk refuses the record of the run.
        """
        if spec.is_open:
            # The container would be on a closed network. Refused here, so that this does not look to the
            # agent like a failure of the internet.
            raise ContainerError("A swarm has no open network: set 'egress' to \"none\" or a list.")
        await self.open()
        # Only one run at a time uses the group's volume: two that wrote the group's files to it would undo
        # each other's changes. If another run uses it, this one gets a volume of its own (None).
        self._starting[spec.run_id] = None if self._is_volume_in_use(spec.folder) else spec.folder
        try:
            return await self._start_somewhere(spec, order)
        finally:
            del self._starting[spec.run_id]

    def _is_volume_in_use(self, folder: Folder) -> bool:
        """Return whether some run uses the group's volume on a node now, or is being started to use it."""
        is_used = any(
            session.files.uses_group_volume and session.folder == folder
            for session in self._sessions.values()
        )
        return is_used or folder in self._starting.values()

    async def _start_somewhere(self, spec: ContainerSpec, order: str) -> SwarmContainer:
        """Start a container on the most suitable node; if that node cannot start it, try the others.

        A node that is only slow is tried once more, after the others and with more time. If that is not
        enough either, it counts as one that cannot start the container.

        Raises:
            ContainerError: no node can start the container, or all are full.
            EngineGone: the engine does not answer.
            OSError: the host's disk refuses the record of the run.
        """
        # Ids of nodes.
        refusing: set[str] = set()
        slow: set[str] = set()
        refusal: NodeRefused | None = None
        while True:
            node = await self._choose(spec, excluded=refusing, avoided=slow)
            if node is None:
                raise refusal or ContainerError(
                    "All nodes are full: MAX_CONTAINERS_PER_NODE says of how many."
                )
            # A node that has started nothing yet may have to fetch the image. Once one node was too slow, any
            # further try gets more time, too. With `is_patient`, no `NodeSlow` is raised.
            is_patient = bool(slow) or node.id not in self._proven
            try:
                container = await self._start(spec, order, node, is_patient=is_patient)
            except NodeSlow as error:
                log.warning("node.slow", run=spec.run_id, node=node.name, reason=str(error))
                slow.add(node.id)
            except NodeRefused as error:
                log.warning("node.refused", run=spec.run_id, node=node.name, reason=str(error))
                refusing.add(node.id)
                refusal = error
                await self._note_problem(node, str(error))
            except BaseException:  # after the two errors above, `_start` has released the slot
                self.placement.release(spec.run_id)
                raise
            else:
                self._proven.add(node.id)
                return container

    async def _choose(
        self, spec: ContainerSpec, *, excluded: Collection[str], avoided: Collection[str]
    ) -> Node | None:
        """Choose a node for a container, and reserve a slot on it.

        Nodes whose ids are in `excluded` are left out; those in `avoided` are chosen only if the others are
        full. While all are full, this waits. Return None when no node is left, or when all are still full
        after `FULL_SECONDS`.

        Raises:
            ContainerError: no node of the swarm accepts containers.
        """
        deadline = asyncio.get_running_loop().time() + FULL_SECONDS
        while True:
            self.placement.nodes = await self._engine.nodes()
            usable_nodes = self.placement.usable_nodes(spec.node_label, excluded=excluded)
            preferred = [node for node in usable_nodes if node.id not in avoided]
            reserve = partial(self.placement.reserve, spec.run_id, spec.folder)
            node = reserve(preferred) or reserve(usable_nodes)
            if node is not None or not usable_nodes or asyncio.get_running_loop().time() > deadline:
                return node
            await asyncio.sleep(LOOK_SECONDS)  # a run that is ending may free its slot soon

    async def _note_problem(self, node: Node, text: str) -> None:
        """Record why a node could not start a container, and report the reason to the owner if it is new."""
        is_new = self.placement.memory.problem_of(node.id) != text
        await asyncio.to_thread(self.placement.memory.note_problem, node.id, text)
        if is_new:
            await self._on_problem(text)

    async def _start(
        self, spec: ContainerSpec, order: str, node: Node, *, is_patient: bool
    ) -> SwarmContainer:
        """Start a container on a node, and wait until its agent runs. After an error nothing is left of it.

        Before that, files that ended runs have left are put into the host's folders, from which the container
        gets its files. With `is_patient` it gets `START_SECONDS` in place of `CONNECT_SECONDS` to connect.

        Raises:
            NodeSlow: the container has not connected in time; not raised if `is_patient`.
            NodeRefused: the node cannot start the container.
            ContainerError: the container ended before the agent began, or files of an earlier turn cannot be
                put into a folder of this container.
            EngineGone: the engine does not answer.
            OSError: the host's disk refuses the record of the run.
        """
        try:
            await self._finish_ended_runs(
                {session.run_id for session in self._sessions.values()},
                needed={mount.source for mount in spec.mounts if mount.is_writable},
            )
        except OSError as error:
            raise ContainerError(f"The files of an earlier turn cannot be put in place: {error}") from error
        token = secrets.token_urlsafe(32)
        token_hash = hashlib.sha256(token.encode()).hexdigest()
        files = await asyncio.to_thread(self._new_files, spec)
        session = self._session(spec.run_id, spec.folder, files)
        session.order = order.encode()
        session.environment = dict(spec.environment)
        session.ports = self.ports
        self._sessions[token_hash] = session
        secret: dict[str, object] = {
            "address": self._host_name,
            "port": self._port,
            "certificate": self.door.certificate,
            "token": token,
        }
        creating: asyncio.Task[str] | None = None
        try:
            async with self._setting_up[node.id]:
                creating = asyncio.create_task(
                    self._engine.create(
                        spec,
                        secret=secret,
                        token_hash=token_hash,
                        node_id=node.id,
                        keeps_files=files.uses_group_volume,
                    ),
                    name=f"swarm-start:{spec.run_id}",
                )
                ref = await asyncio.shield(creating)
                await self._wait_until_set_up(session, ref)
            await self._wait_until_started(session, ref, node, is_patient=is_patient)
            await asyncio.to_thread(self.placement.memory.note_started, spec.folder, node.id)
        except BaseException as error:
            session.give_up("its start failed")
            self._forget(token_hash, spec.run_id)
            await asyncio.to_thread(files.stages.drop)
            if creating is not None:
                await self._remove_failed(creating, error)
            raise
        return self._container(session, ref, token_hash)

    async def _remove_failed(self, creating: asyncio.Task[str], error: BaseException) -> None:
        """Remove the engine's service that `creating` creates, because the start failed with `error`.

        The caller raises `error` afterwards. So an `AndyError` of the creation or the removal is ignored, but
        for one:

        Raises:
            EngineGone: no engine answers, and `error` is a `ContainerError`. It takes the place of `error`,
                because it makes the caller treat the container as an orphan and look for it later. If `error`
                is of another class, such as a cancellation, `EngineGone` is ignored, too.
        """
        try:
            await self._engine.remove(await creating)
        except EngineGone:
            if isinstance(error, ContainerError):
                raise
        except AndyError:
            pass

    async def adopt(self) -> Sequence[SwarmContainer]:
        """Return the containers of this install's runs, also those of an earlier host.

        Other runs that have files on disk are over: the changed files of their completed turns are put into
        the host's folders, and the rest is removed. Carriers can connect from now on; one with an unknown
        token is refused. Raises `EngineGone` and `OSError`.
        """
        await self.open()
        containers = []
        run_services = await self._engine.run_services()
        for service in run_services:
            container = self._containers.get(RunId(service.run_id))
            if container is None and RunId(service.run_id) not in self._starting:
                container = await self._adopt_one(service)
            if container is not None:
                containers.append(container)
        self.door.knows_all_runs.set()  # an unknown token cannot be that of an earlier run any more
        await self._finish_ended_runs({service.run_id for service in run_services})
        return containers

    async def close(self) -> None:
        """Close all connections, tasks and ports; the containers go on."""
        if self._nodes_task is not None:
            self._nodes_task.cancel()
        for container in tuple(self._containers.values()):
            container.close()
        for session in tuple(self._sessions.values()):
            session.close()
        if self._gate is not None:
            self._gate.close()
        await self.door.close()
        self._observer.stop()  # even without any watch, it has a thread and open files
        await self._engine.close()

    def _find(self, token_hash: str) -> CarrierSession | None:
        """Return the session of the run whose token has this hash; None if unknown or given up."""
        session = self._sessions.get(token_hash)
        return None if session is None or session.is_given_up else session

    async def _wait_until_set_up(self, session: CarrierSession, ref: str) -> None:
        """Wait until a node has set up a container's network or has failed, for `SETTING_UP_SECONDS` at most.

        The caller holds the node's lock meanwhile, so that one container at a time is set up there. A node
        that joins two networks at once forgets that it asked about the first one, and waits 30 s for the
        answer: https://github.com/moby/moby/issues/47396.
        """
        with suppress(TimeoutError, EngineGone):
            async with asyncio.timeout(SETTING_UP_SECONDS):
                while not session.is_connected and (await self._engine.task(ref)).is_being_set_up:  # noqa: ASYNC110  # Swarm publishes no event for it
                    await asyncio.sleep(CHECK_SETTING_UP_SECONDS)

    async def _wait_until_started(
        self, session: CarrierSession, ref: str, node: Node, *, is_patient: bool
    ) -> None:
        """Wait until the agent runs on its node.

        `ref` is the id of the engine's service for the run. `is_patient` says not to raise `NodeSlow`.

        Raises:
            NodeSlow: the carrier has not connected within `CONNECT_SECONDS`.
            NodeRefused: the node cannot start the container, or has not within `START_SECONDS`; the text has
                the reason and the fix.
            ContainerError: the container ended before the agent began.
        """
        loop = asyncio.get_running_loop()
        started_at = loop.time()
        task = TaskState(state="new")
        while not session.has_started.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await session.has_started.wait()
                return
            if session.is_hardened is False:
                raise NodeRefused(
                    f'{node.name} lets programs gain privileges: set "no-new-privileges": true in its'
                    " /etc/docker/daemon.json and restart its engine."
                )
            if session.problem is not None:
                raise NodeRefused(f"{node.name} cannot take the group's files: {session.problem}.")
            with suppress(EngineGone):  # the node may start the container even if the manager is silent
                task = await self._engine.task(ref)
            refuse_failed(task, node=node.name)
            if not self.placement.is_open(node.id):
                raise NodeRefused(f"{node.name} takes no containers any more.")
            if not is_patient and not session.is_connected and loop.time() > started_at + CONNECT_SECONDS:
                raise NodeSlow(f"{node.name} is slow: its task is '{task.state}'.")
            if loop.time() > started_at + START_SECONDS:
                why = task.error or f"its task is '{task.state}'"
                raise NodeRefused(f"{node.name} started nothing in {START_SECONDS:g} s: {why}.")

    async def _adopt_one(self, service: RunService) -> SwarmContainer | None:
        """Return the container of a run that an earlier host started, and count it as one of its node.

        The files of turns whose ends are recorded are put in place. The container's carrier connects again
        soon, without a request. If this host has no record of the run's folders, or the engine none of its
        token, the container is removed; return None.
        """
        files = await asyncio.to_thread(self._stored_files, RunId(service.run_id))
        if files is None or not service.token_hash:
            await self._engine.remove(service.ref)
            return None
        session = self._session(RunId(service.run_id), Folder(service.folder), files, is_adopted=True)
        session.ports = self.ports
        self.placement.occupied[session.run_id] = service.node_id
        await session.settle()
        self._sessions[service.token_hash] = session
        container = self._container(session, service.ref, service.token_hash)
        container.is_outdated = service.is_outdated
        return container

    def _session(
        self, run_id: RunId, folder: Folder, files: RunFiles, *, is_adopted: bool = False
    ) -> CarrierSession:
        """Return a new session, the host's side of the connection to a run's container.

        `is_adopted` says whether an earlier host has started the run.
        """
        return CarrierSession(
            run_id,
            folder,
            files,
            observer=self._observer,
            last_frame=self._last_frame,
            on_log=self._on_log,
            is_adopted=is_adopted,
        )

    def _container(self, session: CarrierSession, ref: str, token_hash: str) -> SwarmContainer:
        """Return a new handle of the container that a session belongs to, and register it by its run.

        `ref` is the id of the engine's service for the run.
        """
        container = SwarmContainer(
            session, ref, self._engine, partial(self._forget, token_hash, session.run_id)
        )
        self._containers[session.run_id] = container
        return container

    def _forget(self, token_hash: str, run_id: RunId) -> None:
        """Close a run's session, which serves its carrier, and the handle of its container; free its slot.

        Unknown ones are no error.
        """
        session = self._sessions.pop(token_hash, None)
        if session is not None:
            session.close()
        self.placement.release(run_id)
        container = self._containers.pop(run_id, None)
        if container is not None:
            container.close()

    # The files on disk by which a restarted host knows a run

    def _directory(self, run_id: str) -> Path:
        """Return the directory in which the host records a run and stores the files that it sends back."""
        return self._data / "swarm" / run_id

    def _new_files(self, spec: ContainerSpec) -> RunFiles:
        """Return the folders that a new run shares with the host, after recording them on disk. Blocks.

        `start` has decided before whether the run uses its group's volume, which is recorded, too.

        Raises:
            ContainerError: the source of a mount is missing.
            OSError: the disk refuses the record; nothing is left of it.
        """
        try:
            shared = shared_trees(spec.mounts)
        except OSError as error:
            raise ContainerError(f"A folder of the group cannot be sent to a node: {error}") from error
        directory = self._directory(spec.run_id)
        directory.mkdir(parents=True)
        mailboxes = {
            MAILBOXES[mount.target]: mount.source for mount in spec.mounts if mount.target in MAILBOXES
        }
        uses_group_volume = self._starting[spec.run_id] is not None  # None: a volume of its own
        files = RunFiles(
            shared=shared, mailboxes=mailboxes, stages=Stages(directory), uses_group_volume=uses_group_volume
        )
        try:
            files.write_record()
        except OSError:
            files.stages.drop()
            raise
        return files

    def _stored_files(self, run_id: RunId) -> RunFiles | None:
        """Return the shared folders of a run that an earlier host recorded; None if unreadable. Blocks."""
        return RunFiles.read(self._directory(run_id))

    async def _finish_ended_runs(self, known: set[str], *, needed: Collection[Path] = ()) -> None:
        """Put the files of ended runs in the host's folders, as far as their turns were completed.

        All other files of these runs are removed.

        A run has ended if its id is neither in `known` nor that of a container or of a start in progress.
        Files that cannot be put in place now go on waiting. `needed` are the folders of the host that a
        container which is being started may write.

        Raises:
            OSError: the files of a run that could write one of the folders `needed` cannot be put in place.
        """
        root = self._data / "swarm"
        for directory in await asyncio.to_thread(lambda: list(root.iterdir()) if root.is_dir() else []):
            run_id = RunId(directory.name)
            if run_id in known or run_id in self._containers or run_id in self._starting:
                continue
            files = await asyncio.to_thread(self._stored_files, run_id)
            if files is not None:
                try:
                    await settle_stages(files, run_id, self._last_frame)
                except OSError as error:
                    if not {*needed}.isdisjoint(files.writable.values()):
                        raise
                    # Another group's folder that is gone stops neither this host nor other groups.
                    log.warning("run.files_wait", run=run_id, reason=str(error))
                    continue
            await asyncio.to_thread(Stages(directory).drop)


def _stored_port(file: Path) -> int:
    """Return the port at which an earlier host listened; 0 if it is not known. Blocks."""
    try:
        port = int(file.read_text(encoding="ascii"))
    except (OSError, ValueError):  # there was none, or the machine lost its power as the file was written
        return 0
    return port if 0 < port < 2**16 else 0
