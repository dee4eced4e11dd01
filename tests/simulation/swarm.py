"""A simulated Docker Swarm: nodes, services and tasks as its manager shows them, and real carriers.

`orchestrator/containers/swarm/` is all real, to its calls of docker-py, in whose place `ManagerClient` is. In
a container runs the real carrier, and below it the real agent runner; their connections are those of
`network.py`. Containers outlive the host, and a node that is cut off goes on for itself.
"""

from __future__ import annotations

import asyncio
import contextvars
import json
import os
import shutil
import signal
import sys
import types
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import docker.errors
import requests

from agent_runner import runner
from agent_runner.carrier.carrier import BROKEN_CODE, REFUSED_CODE, Carrier
from agent_runner.carrier.dial import CarrierOrder
from agent_runner.carrier.waiting_runner import start
from agent_runner.wire.frames import FailureFrame, Ready
from agent_runner.wire.order import RunOrder
from agent_runner.workspace import Workspace
from orchestrator.containers.docker.runtime import GROUP_LABEL, RUN_LABEL
from orchestrator.containers.runtime_selection import SelectedRuntime
from orchestrator.containers.swarm.runtime import SwarmRuntime
from orchestrator.containers.swarm.services import ManagerEngine, SwarmServices
from orchestrator.domain.protocols import Exit
from tests.simulation.engine import (
    CONTAINER,
    KILLED,
    Engine,
    MemoryPipe,
    Note,
    death_at_frame,
    is_out_before_death,
)
from tests.simulation.loop import PROCESS, Process, SimulatedLoop
from tests.simulation.network import Link, Network
from tests.simulation.surroundings import Observer

TERM_SECONDS = 10.0
"""Seconds between SIGTERM and SIGKILL of a container whose service is removed."""
LEAST_PID = 1_000_000
NODE_FAULTS = ("node", "cut off", "broken", "broken at an end", "slow node", "carrier")
"""Kinds of faults that only a swarm has."""
NODE: contextvars.ContextVar[NodeContainer] = contextvars.ContextVar("node container")
"""The container whose carrier the running step belongs to."""


@dataclass(slots=True, eq=False)
class Machine:
    """One node."""

    id: str
    root: Path
    is_up: bool = True
    is_cut_off: bool = False
    slow_until_s: float = 0.0
    """Until when its containers take long to be set up."""
    users: dict[str, NodeContainer] = field(default_factory=dict)
    """The container that has each volume."""

    @property
    def is_reachable(self) -> bool:
        return self.is_up and not self.is_cut_off


@dataclass(slots=True, eq=False)
class Service:
    """A service with its only task."""

    id: str
    name: str
    labels: dict[str, str]
    template: dict[str, Any]
    machine: Machine
    state: str = "new"
    error: str = ""
    container: NodeContainer | None = None
    has_files: bool = False
    """Whether its group has had a container on this node before."""

    @property
    def is_over(self) -> bool:
        """Whether its container has ended."""
        return self.container is not None and self.container.exit is not None


@dataclass(frozen=True, slots=True)
class TurnEnded:
    """The end of a turn as a runner has written it; whether the host has heard it is another thing."""

    run_id: str
    place: str
    turn: int
    frame: int
    is_good: bool


class _CarrierLog:
    """In the place of the carrier's log, which goes to the stderr of its container."""

    def warning(self, text: str, *given: object) -> None:
        NODE.get().warning = text % given

    def exception(self, text: str) -> None:
        error = sys.exc_info()[1]
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        NODE.get().warning = f"{text}: {error!r}"


class CarrierProcess(Process):
    """The process of a carrier: its connections depend on its machine."""

    def __init__(self, name: str, machine: Machine) -> None:
        super().__init__(name)
        self.machine = machine

    @property
    def is_cut_off(self) -> bool:
        return not self.machine.is_reachable


class RunnerLife(Process):
    """The runner's process, which is frozen and slow with its container, and can end alone."""

    def __init__(self, name: str, container: Process) -> None:
        self._container = container
        super().__init__(name)

    @property
    def is_frozen(self) -> bool:
        return self._container.is_frozen

    @is_frozen.setter
    def is_frozen(self, _: bool) -> None:
        """Nothing: the container's counts."""

    @property
    def slowness(self) -> int:
        return self._container.slowness

    @slowness.setter
    def slowness(self, _: int) -> None:
        """Nothing: the container's counts."""


class RunnerProcess:
    """The waiting runner as `subprocess.Popen` gives it. It begins once its order is written."""

    def __init__(self, container: NodeContainer) -> None:
        self._container = container
        self.folder = container.folder
        loop = container.engine.loop
        self.pid = LEAST_PID + container.number
        self.stdin = _Stdin(self)
        self.stdout, self.stderr = (asyncio.StreamReader(limit=1 << 30, loop=loop) for _ in range(2))
        self.terminated = asyncio.Event()
        self.environment: Mapping[str, str] = {}
        self.code: int | None = None
        self.life = RunnerLife(f"container {container.ref} of {container.folder}", container.process)
        self.frames = 0
        self._ended: asyncio.Future[int] = loop.create_future()
        self._task: asyncio.Task[None] | None = None

    def begin(self, text: bytes) -> None:
        """Begin with an environment and an order, or end where nothing was written."""
        if not text:
            self.end(0)
            return
        environment, _, order = text.partition(b"\n")
        self.environment = json.loads(environment)
        context = contextvars.Context()
        context.run(PROCESS.set, self.life)
        context.run(CONTAINER.set, self)  # type: ignore[arg-type]  # it has what a runner asks of a container
        loop = self._container.engine.loop
        self._task = loop.create_task(
            self._live(order), name=f"runner:{self._container.ref}", context=context
        )

    async def _live(self, order: bytes) -> None:
        await asyncio.sleep(self._container.engine.chance.uniform(0.05, 0.5) * self.life.slowness)
        pipe = MemoryPipe(self.write)
        try:
            parsed = RunOrder.parse(order.strip())
        except Exception as error:  # noqa: BLE001  # as the runner does
            pipe.put(FailureFrame, code="order", error=f"The order cannot be read: {error}")
            self.end(2)
            return
        pipe.put(Ready)
        self.end(await runner.live(parsed, Workspace(self._container.root), pipe))

    def write(self, data: bytes) -> None:
        if self.code is not None:
            return
        self.frames += 1
        container = self._container
        if container.dies_at and self.frames >= container.dies_at:
            is_out = is_out_before_death(container.dies_at)
            if is_out:
                self.stdout.feed_data(data)
            container.engine.note("fault", death_at_frame(container.process, self.frames, is_out=is_out))
            container.end(KILLED)
            return
        self.stdout.feed_data(data)
        if b'"turn_end"' in data:
            container.engine.note_turn_end(container, data)
        container.engine.on_frame()

    def wait(self) -> Any:
        """Return the exit code, or a future of it: the loop lets its thread wait for that."""
        return self._ended if self.code is None else self.code

    def send_signal(self, number: int) -> None:
        if self.code is not None:
            raise ProcessLookupError
        if number == signal.SIGTERM:
            self.terminated.set()
        else:
            self.end(-number)

    def end(self, code: int) -> None:
        if self.code is None:
            self.code = code
            self.life.is_dead = True
            self.stdout.feed_eof()
            self.stderr.feed_eof()
            if not self._ended.done():
                self._ended.set_result(code)


class _Stdin:
    """The runner's stdin, which is written to once and closed."""

    def __init__(self, process: RunnerProcess) -> None:
        self._process = process
        self._text = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.begin(self._text)

    def write(self, text: bytes) -> None:
        if self._process.code is not None:
            raise BrokenPipeError
        self._text += text


class NodeContainer:
    """A container on a node: a carrier with its runner. With the carrier, all of it ends."""

    def __init__(self, engine: SwarmedEngine, service: Service, secret: Mapping[str, Any]) -> None:
        engine.started += 1
        self.engine, self.service, self.machine = engine, service, service.machine
        self.number = engine.started
        self.ref = f"c{self.number}"
        self.run_id, self.folder = service.labels[RUN_LABEL], service.labels[GROUP_LABEL]
        (mount, *_) = service.template["ContainerSpec"]["Mounts"]
        self._volume = mount.get("Source", "")
        self.root = self.machine.root / (self._volume or f".{self.ref}")
        self.process = CarrierProcess(
            f"carrier {self.ref} of {self.folder} on {self.machine.id}", self.machine
        )
        self.exit: Exit | None = None
        self.runner: RunnerProcess | None = None
        self.is_stopping = False
        self.carrier: Carrier | None = None
        self.dies_at = engine.dies_at.pop(0) if engine.dies_at else 0
        self.warning = ""
        """The last words of its carrier."""
        self._secret = secret
        context = contextvars.Context()
        context.run(PROCESS.set, self.process)
        context.run(NODE.set, self)
        name = f"carrier-process:{self.ref}"
        self.task = engine.loop.create_task(self._live(), name=name, context=context)

    async def _live(self) -> None:
        await asyncio.sleep(self.engine.chance.uniform(0.1, 1.0) * self.process.slowness)
        self.root.mkdir(parents=True, exist_ok=True)
        users = self.machine.users
        # As `lock_workspace`, whose lock is of the kernel.
        while (user := users.get(self._volume, self)) is not self and user.exit is None:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        if self._volume:
            users[self._volume] = self
        waiting = start(self.root, ())
        order = CarrierOrder(**self._secret)
        self.carrier = Carrier(order, self.root, waiting)
        code = await self.carrier.run()
        self.engine.note_own_end(self, code)
        self.end(code)

    def stop(self) -> None:
        """Do as SIGTERM does, and SIGKILL after a while."""
        if self.is_stopping or self.exit is not None:
            return
        self.is_stopping = True
        if self.carrier is None:
            self.end(KILLED)
        else:
            self.engine.loop.call_soon(self.carrier.stop, 2.0, context=_context_of(self))
            self.engine.loop.call_later(TERM_SECONDS, self.end, KILLED, context=contextvars.Context())

    def end(self, code: int, *, is_silent: bool = False) -> None:
        """End all of it; `is_silent` where its machine is gone, so that nobody hears of it."""
        if self.exit is not None:
            return
        self.exit = Exit(code=code)
        self.process.is_dead = True
        if self.runner is not None:
            self.runner.end(-signal.SIGKILL)
        self.engine.network.note_death(self.process, is_silent=is_silent or not self.machine.is_up)
        self.engine.note("container", f"{self.process.name} has ended with {code}")
        if not self._volume:
            shutil.rmtree(self.root, ignore_errors=True)
        self.engine.note_state(self)

    def wake(self) -> None:
        """Nothing: who waits for it waits at its connection."""


def _context_of(container: NodeContainer) -> contextvars.Context:
    context = contextvars.Context()
    context.run(PROCESS.set, container.process)
    context.run(NODE.set, container)
    return context


FILES_ARE_WORTH = 2
"""Containers by which a node that has a group's files may have more than the emptiest and is still chosen."""


class SwarmedEngine(Engine):
    """The swarm of a world: its nodes, what its manager knows, and the connections to it."""

    def __init__(self, loop: SimulatedLoop, root: Path, seed: str, note: Note, *, nodes: int) -> None:
        super().__init__(loop, root, seed, note)
        self.network = Network(loop, seed)
        self.machines = [Machine(f"node{number + 1}", root / f"node{number + 1}") for number in range(nodes)]
        self.services: dict[str, Service] = {}
        self.secrets: dict[str, dict[str, Any]] = {}
        self.networks: dict[str, dict[str, Any]] = {}
        self.own_ends: list[tuple[NodeContainer, int, float]] = []
        """The carriers that gave up by themselves, with their exit codes and when."""
        self.turn_ends: list[TurnEnded] = []
        self.breaks_at_ends = 0
        """For turns to come: the ends of so many have their connection broken in the moment after them."""
        self.crowded_choices: list[str] = []
        """The containers that were put on a node with too many."""
        self._names: set[str] = set()
        """The names of all services that there ever were."""
        self._have_run: set[tuple[str, str]] = set()
        """The nodes on which each group has had a container."""
        self.most_apart = 0
        """The largest difference of containers between two nodes, looked at with each start of one."""
        self._made = 0

    # -- what the manager is asked ----------------------------------------------------------------------

    def number(self) -> int:
        self._made += 1
        return self._made

    def add_service(self, name: str, labels: dict[str, str], template: dict[str, Any]) -> Service:
        (constraint,) = template["Placement"]["Constraints"]
        node = constraint.partition("==")[2]
        machine = next(one for one in self.machines if one.id == node)
        service = Service(f"s{self.number()}", name, labels, template, machine)
        service.has_files = (labels[GROUP_LABEL], node) in self._have_run
        self._have_run.add((labels[GROUP_LABEL], node))
        self.services[service.id] = service
        # A run that starts again avoids the node on which its start has failed.
        is_first = service.name not in self._names
        self._names.add(service.name)
        if is_first and self._is_ill_placed(service):
            # Another container may have been promised a place on another node, and gets it only now.
            self.loop.call_later(3.0, self._note_choice, service, context=contextvars.Context())
        self.loop.create_task(self._set_up(service), name=f"task:{service.id}", context=contextvars.Context())
        return service

    def _is_ill_placed(self, service: Service) -> bool:
        """Return whether a service's node has more than another, beyond what its group's files are worth."""
        # The host may know of the end of a container or not yet: its choice has to be wrong either way.
        counts = [
            Counter(one.machine.id for one in self.services.values() if with_ended or not one.is_over)
            for with_ended in (True, False)
        ]
        apart = min(
            held[service.machine.id]
            - 1
            - min((held[one.id] for one in self.machines if one.is_reachable), default=0)
            for held in counts
        )
        return apart > (FILES_ARE_WORTH if service.has_files else 0)

    def _note_choice(self, service: Service) -> None:
        """Note a choice that was wrong a moment ago and is wrong still."""
        if service.id in self.services and not service.is_over and self._is_ill_placed(service):
            self.crowded_choices.append(f"{service.name} on {service.machine.id}")

    def remove_service(self, service_id: str) -> None:
        service = self.services.pop(service_id, None)
        if service is not None and service.container is not None and service.machine.is_reachable:
            service.container.stop()

    async def _set_up(self, service: Service) -> None:
        """Bring the task of a service onto its node, step by step."""
        chance, machine = self.chance, service.machine
        for state, most in (("pending", 0.05), ("assigned", 0.2), ("preparing", 0.4), ("starting", 0.2)):
            service.state = state
            seconds = chance.uniform(0.005, most)
            if state == "preparing" and self.loop.time() < machine.slow_until_s:
                seconds = chance.uniform(5.0, 60.0)
            await asyncio.sleep(seconds)
            while not machine.is_reachable and service.id in self.services:  # noqa: ASYNC110
                await asyncio.sleep(1.0)
            if service.id not in self.services:
                return
        (secret,) = service.template["ContainerSpec"]["Secrets"]
        service.state = "running"
        given = self.secrets[secret["SecretID"]]["Data"]
        service.container = container = NodeContainer(self, service, given)
        self.containers[service.labels[RUN_LABEL]] = container  # type: ignore[assignment]
        self.most_working = max(self.most_working, len(self.working))
        self._note_balance()

    def note_state(self, container: NodeContainer) -> None:
        """Have the manager know how a container ended, where its node can say so."""
        service = container.service
        if container.machine.is_reachable and container.exit is not None:
            code = container.exit.code
            service.state = "complete" if code == 0 else "failed"
            service.error = "" if code == 0 else f"task: non-zero exit ({code})"
        self.forget_over()

    def forget_over(self) -> None:
        """Let go of the containers that have ended and whose service is removed."""
        for run_id, one in list(self.containers.items()):
            service = one.service  # type: ignore[attr-defined]
            if one.exit is not None and service.id not in self.services:
                del self.containers[run_id]

    def note_own_end(self, container: NodeContainer, code: int) -> None:
        if code in (BROKEN_CODE, REFUSED_CODE):
            self.own_ends.append((container, code, self.loop.time()))

    def note_turn_end(self, container: NodeContainer, data: bytes) -> None:
        """Note which container has ended a turn, and with which frame."""
        frame = json.loads(data[data.index(b"{") : data.rindex(b"}") + 1])
        is_good = frame.get("status") == "success"
        place = container.process.name
        self.turn_ends.append(TurnEnded(container.run_id, place, frame["turn"], frame["n"], is_good))
        if self.breaks_at_ends:
            self.breaks_at_ends -= 1
            for link in self.network.of(container.process):
                seconds = self.chance.uniform(0.0, 0.01)
                self.loop.call_later(seconds, link.reset, context=contextvars.Context())

    def _note_balance(self) -> None:
        held = {one.id: 0 for one in self.machines if one.is_reachable}
        for container in self.working:
            if container.machine.id in held:  # type: ignore[attr-defined]
                held[container.machine.id] += 1  # type: ignore[attr-defined]
        if held:
            self.most_apart = max(self.most_apart, max(held.values()) - min(held.values()))

    # -- misfortune -------------------------------------------------------------------------------------

    def take_fault(self, kind: str, amount: int) -> bool:
        """Let a misfortune of a swarm happen; return whether it was one."""
        if kind not in NODE_FAULTS:
            return False
        if kind == "broken":
            self.network.break_one(amount)
            return True
        if kind == "broken at an end":
            self.breaks_at_ends += amount
            return True
        if kind == "carrier":
            if working := self.working:
                self.chance.choice(working).end(KILLED)
            return True
        busy = {one.machine.id for one in self.working}  # type: ignore[attr-defined]
        machine = self.chance.choice([one for one in self.machines if one.id in busy] or self.machines)
        self.note("fault", f"{machine.id}: {kind}")
        if kind == "node":
            self.kill_machine(machine)
            self.loop.call_later(amount, self.revive, machine, context=contextvars.Context())
        elif kind == "cut off":
            self.cut_off(machine)
            self.loop.call_later(amount, self.revive, machine, context=contextvars.Context())
        else:
            machine.slow_until_s = self.loop.time() + amount
        return True

    def kill_machine(self, machine: Machine) -> None:
        """End all on a machine without a word."""
        machine.is_up = False
        for container in [one for one in self.working if one.machine is machine]:  # type: ignore[attr-defined]
            container.end(KILLED)

    def cut_off(self, machine: Machine) -> None:
        """Cut a machine off: what runs there goes on."""
        machine.is_cut_off = True
        for container in [one for one in self.working if one.machine is machine]:  # type: ignore[attr-defined]
            for link in self.network.of(container.process):
                link.hold()

    def revive(self, machine: Machine) -> None:
        """Bring a machine back, and have it do what its manager wants since."""
        if machine.is_reachable:
            return
        self.note("fault", f"{machine.id} is back")
        machine.is_up, machine.is_cut_off = True, False
        for link in self.network.links:
            if link.held is not None and link.client.process.machine is machine:  # type: ignore[attr-defined]
                link.release()
        for one in list(self.containers.values()):
            if one.machine is not machine:  # type: ignore[attr-defined]
                continue
            if one.service.id not in self.services:  # type: ignore[attr-defined]
                one.stop()  # type: ignore[attr-defined]
            if one.exit is not None:
                self.note_state(one)  # type: ignore[arg-type]

    def end_faults(self) -> None:
        self.breaks_at_ends = 0
        for machine in self.machines:
            machine.slow_until_s = 0.0
            self.revive(machine)

    def lose_power(self, *, are_gone: bool) -> None:
        """End nothing: the host's machine, the manager, takes no containers here."""

    def note_host_death(self, process: Process) -> None:
        self.network.note_death(process)


class ManagerClient:
    """Docker's client for the engine of the swarm's manager: the calls that the host makes."""

    def __init__(self, engine: SwarmedEngine) -> None:
        self._engine = engine

    def _check(self) -> SwarmedEngine:
        if self._engine.is_away:
            raise requests.ConnectionError("the engine is away")
        return self._engine

    def close(self) -> None:
        pass

    def nodes(self) -> list[dict[str, Any]]:
        return [
            {
                "ID": one.id,
                "Description": {"Hostname": one.id},
                "Status": {"State": "ready" if one.is_reachable else "down", "Addr": "10.0.0.2"},
                "Spec": {"Availability": "active", "Labels": {}},
            }
            for one in self._check().machines
        ]

    def create_secret(self, name: str, data: bytes, labels: dict[str, str]) -> dict[str, str]:
        engine = self._check()
        if any(one["Spec"]["Name"] == name for one in engine.secrets.values()):
            raise _conflict(name)
        secret_id = f"x{engine.number()}"
        spec = {"Name": name, "Labels": labels}
        engine.secrets[secret_id] = {"ID": secret_id, "Spec": spec, "Data": json.loads(data)}
        return {"ID": secret_id}

    def secrets(self, filters: Mapping[str, Any]) -> list[dict[str, Any]]:
        return [one for one in self._check().secrets.values() if _has(one["Spec"]["Labels"], filters)]

    def remove_secret(self, secret_id: str) -> None:
        if self._check().secrets.pop(secret_id, None) is None:
            raise _missing(secret_id)

    def create_service(
        self, template: dict[str, Any], *, name: str, labels: dict[str, str], **_: Any
    ) -> dict[str, str]:
        engine = self._check()
        if any(one.name == name for one in engine.services.values()):
            raise _conflict(name)
        return {"ID": engine.add_service(name, labels, template).id}

    def services(self, filters: Mapping[str, Any]) -> list[dict[str, Any]]:
        return [
            {"ID": one.id, "Spec": {"Name": one.name, "Labels": one.labels, "TaskTemplate": one.template}}
            for one in self._check().services.values()
            if filters.get("id", one.id) == one.id
            and one.name.startswith(filters.get("name", ""))
            and _has(one.labels, filters)
        ]

    def remove_service(self, service_id: str) -> None:
        engine = self._check()
        if service_id not in engine.services:
            raise _missing(service_id)
        engine.remove_service(service_id)
        engine.forget_over()

    def tasks(self, filters: Mapping[str, Any]) -> list[dict[str, Any]]:
        service = self._check().services.get(filters["service"])
        if service is None or service.state == "new":
            return []
        status = {"State": service.state, "Err": service.error}
        return [{"CreatedAt": "1", "ServiceID": service.id, "NodeID": service.machine.id, "Status": status}]

    def networks(self, names: list[str] | None = None, filters: Mapping[str, Any] | None = None) -> list[Any]:
        found = self._check().networks.values()
        if names is not None:
            return [one for one in found if one["Name"].startswith(names[0])]
        return [one for one in found if _has(one["Labels"], filters or {})]

    def create_network(self, name: str, *, labels: dict[str, str], **_: Any) -> dict[str, str]:
        engine = self._check()
        network_id = f"n{engine.number()}"
        network = {"Id": network_id, "Name": name, "Driver": "overlay", "Labels": labels, "Containers": {}}
        engine.networks[network_id] = network
        return {"Id": network_id}

    def inspect_network(self, network_id: str) -> dict[str, Any]:
        return self._found(network_id)

    def connect_container_to_network(self, container: str, network_id: str, **_: Any) -> None:
        self._found(network_id)["Containers"][container] = {}

    def disconnect_container_from_network(self, container: str, network_id: str, **_: Any) -> None:
        self._found(network_id)["Containers"].pop(container, None)

    def remove_network(self, network_id: str) -> None:
        self._found(network_id)
        del self._engine.networks[network_id]

    def _found(self, network_id: str) -> dict[str, Any]:
        found = self._check().networks.get(network_id)
        if found is None:
            raise _missing(network_id)
        return found


def _has(labels: Mapping[str, str], filters: Mapping[str, Any]) -> bool:
    return all(f"{key}={value}" in [f"{k}={v}" for k, v in labels.items()] for key, value in _wanted(filters))


def _wanted(filters: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(one.partition("=")[0], one.partition("=")[2]) for one in filters.get("label", ())]


def _missing(name: str) -> Exception:
    return docker.errors.NotFound(f"no such: {name}", response=_Response(404))


def _conflict(name: str) -> Exception:
    return docker.errors.APIError(f"name conflicts: {name}", response=_Response(409))


class _Response(requests.Response):
    def __init__(self, status: int) -> None:
        super().__init__()
        self.status_code = status


class TreeObserver(Observer):
    """In the place of watchdog's, with a handler for each watch."""

    def schedule(self, handler: Any, path: str, **_: Any) -> _Watch:
        watch = _Watch(handler, self.context)
        self.signals.add(os.path.realpath(path), watch)  # type: ignore[arg-type]
        return watch

    def unschedule(self, watch: _Watch) -> None:  # type: ignore[override]
        self.signals.remove(watch)  # type: ignore[arg-type]

    def start(self) -> None:
        pass

    def stop(self) -> None:
        pass


class _Watch:
    def __init__(self, handler: Any, context: contextvars.Context) -> None:
        self._handler = handler
        self.context = context

    def signal(self) -> None:
        if not PROCESS.get().is_dead:
            self._handler.dispatch(None)


# -- the runtime of a host, and what is put in the place of the real world ------------------------------


def swarm_runtime(
    *, home: Path, install: str, last_frame: Any, on_log: Any, on_node_problem: Any, slots_per_node: int
) -> SelectedRuntime:
    """Return the swarm's runtime as `runtime_selection` builds it, for one life of the host."""
    services = SwarmServices(install=install, image="agent", gate_id="gate")
    engine = ManagerEngine(services)
    runtime = SwarmRuntime(
        engine,
        data=home / "data",
        last_frame=last_frame,
        on_log=on_log,
        address="10.0.0.1",
        slots_per_node=slots_per_node,
        on_problem=on_node_problem,
    )

    async def admit(_: frozenset[int]) -> frozenset[int]:
        await runtime.open()
        await engine.keep_gate()
        await engine.tidy()
        return frozenset()

    return SelectedRuntime(
        runtime=runtime,
        host_address="127.0.0.1",
        listen_address="127.0.0.1",
        uid=os.getuid(),
        forget=_forget,
        admit=admit,
        room=lambda: runtime.placement.room,
    )


async def _forget() -> None:
    """Leave everything to the swarm."""


class _Context:
    """In the place of `ssl.SSLContext`: connections are in memory, and the certificate is a word."""

    minimum_version = check_hostname = None

    def __init__(self, _: object) -> None:
        pass

    def load_cert_chain(self, *_: object) -> None:
        pass

    def load_verify_locations(self, *_: object, **__: object) -> None:
        pass


SSL = types.SimpleNamespace(
    SSLContext=_Context,
    PROTOCOL_TLS_SERVER=1,
    PROTOCOL_TLS_CLIENT=2,
    TLSVersion=types.SimpleNamespace(TLSv1_3=3),
)
SUBPROCESS = types.SimpleNamespace(Popen=lambda *_, **__: _runner_of(NODE.get()), PIPE=-1)


def _runner_of(container: NodeContainer) -> RunnerProcess:
    container.runner = RunnerProcess(container)
    return container.runner


class _Listener:
    """In the place of the door's listening socket: connections are in memory."""

    def __init__(self, address: str, port: int) -> None:
        network = asyncio.get_running_loop().network  # type: ignore[attr-defined]
        self._waiting: asyncio.Queue[Link] = asyncio.Queue()
        self._server = network.listen(self._waiting.put_nowait, port)
        self.accept = self._waiting.get
        self.close = self._server.close

    def settimeout(self, seconds: int) -> None:
        pass

    def getsockname(self) -> tuple[str, int]:
        return self._server.sockets[0].getsockname()  # type: ignore[no-any-return]


class _Accepted:
    """In the place of the door's accepted socket."""

    bytes_left = None

    def __init__(self, link: Link) -> None:
        self.link = link
        self.close = self.end = link.server.close

    def fileno(self) -> int:
        return -1 if self.link.server.is_closing() else 3


async def _begin_tls(accepted: _Accepted, _: object) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """In the place of the door's handshake, which is over at once."""
    if accepted.link.server.is_lost:
        raise ConnectionResetError(104, "Connection reset by peer")
    reader = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    accepted.link.accept(protocol)
    loop = asyncio.get_running_loop()
    return reader, asyncio.StreamWriter(accepted.link.server, protocol, reader, loop)


def _write_certificate(certificate: Path, key: Path) -> None:
    certificate.write_text("a certificate", encoding="ascii")
    key.write_text("a key", encoding="ascii")


@asynccontextmanager
async def _reading(pipe: Any) -> AsyncIterator[Any]:
    yield pipe


def replaced_by(engine: SwarmedEngine) -> list[tuple[str, Any]]:
    """Return what a world with a swarm puts in the place of the real world, besides all others."""

    def killpg(pid: int, number: int) -> None:
        for one in engine.working:
            process = one.runner  # type: ignore[attr-defined]
            if process is not None and process.pid == pid:
                process.send_signal(number)
                return
        raise ProcessLookupError

    carrier, door = "agent_runner.carrier", "orchestrator.containers.swarm.door"
    return [
        (f"{carrier}.waiting_runner.subprocess", SUBPROCESS),
        (f"{carrier}.carrier._reading", _reading),
        (f"{carrier}.carrier.log", _CarrierLog()),
        (f"{carrier}.carrier.is_hardened", lambda: True),
        (f"{carrier}.carrier.was_oom_killed", lambda: False),
        (f"{carrier}.dial.ssl", SSL),
        (f"{door}.ssl", SSL),
        (f"{door}.ensure_certificate", _write_certificate),
        (f"{door}.listen", _Listener),
        (f"{door}.AcceptedSocket", _Accepted),
        (f"{door}.begin_tls", _begin_tls),
        # The processor's time says something of this machine, and nothing of the world's.
        (f"{door}.time", types.SimpleNamespace(thread_time=lambda: 0.0)),
        ("orchestrator.containers.swarm.runtime.new_observer", TreeObserver),
        ("orchestrator.containers.docker.client.EngineCalls._client", lambda _: ManagerClient(engine)),
        ("os.killpg", killpg),
    ]
