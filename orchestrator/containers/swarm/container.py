"""One container on a node of a swarm, and the calls to the engine that manages the swarm."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from typing import Protocol

from orchestrator.containers.swarm.nodes import Node
from orchestrator.containers.swarm.services import RunService, TaskState
from orchestrator.containers.swarm.session import CarrierSession
from orchestrator.domain.errors import AndyError
from orchestrator.domain.protocols import ContainerSpec, Exit

CHECK_GONE_SECONDS = 2.0
"""Seconds between two checks whether the container of a run without a connection is gone."""
END_SECONDS = 5.0
"""Seconds after its grace period that an agent may take to end before its container is removed."""
BYE_SECONDS = 2.0
"""Seconds to send a carrier the notice that its container is removed."""


class SwarmEngine(Protocol):
    """The calls that the runtime makes to the engine of a swarm's manager.

    Each raises `EngineGone` when the engine does not answer, and `ContainerError` when it refuses.
    """

    async def nodes(self) -> list[Node]:
        """Return the machines of the swarm."""
        ...

    async def create(
        self,
        spec: ContainerSpec,
        *,
        secret: dict[str, object],
        token_hash: str,
        node_id: str,
        keeps_files: bool,
    ) -> str:
        """Have a node start the container of a run; return the id of the engine's service for it.

        `secret` is written to a file that only the container can read, and `token_hash` identifies the run
        after a restart of the host. With `keeps_files` the container works in the group's volume on that
        node, else in a volume that is removed with it.
        """
        ...

    async def remove(self, ref: str) -> None:
        """Kill and remove the container of the service `ref`. A missing one is no error."""
        ...

    async def run_services(self) -> list[RunService]:
        """List the runs of this install that the engine has."""
        ...

    async def task(self, ref: str) -> TaskState:
        """Return the engine's progress with the run of the service `ref`."""
        ...

    async def keep_gate(self) -> None:
        """Make sure that the gate runs, through which agents reach the host, and is on the runs' networks."""
        ...

    async def close(self) -> None:
        """Close threads and connections."""
        ...


class SwarmContainer:
    """A `RunningContainer` on a node of the swarm."""

    def __init__(
        self, session: CarrierSession, ref: str, engine: SwarmEngine, forget: Callable[[], None]
    ) -> None:
        """`ref` is the id of the run's service; `forget` is called once the container was removed.

        A task begins to watch whether the container is gone.
        """
        self.run_id = session.run_id
        self.folder = session.folder
        self.ref = ref
        self.is_outdated = False
        self.session = session
        self._engine = engine
        self._forget = forget
        self._watch = asyncio.create_task(self._watch_task(), name=f"swarm-task:{self.run_id}")

    async def _watch_task(self) -> None:
        """Watch the run until it ends, and give it up when the engine reports that its container is gone.

        The engine is only asked while the container is not connected. This is faster than to wait until it
        has been silent for too long.
        """
        while not self.session.ended.is_set():
            await asyncio.sleep(CHECK_GONE_SECONDS)
            if self.session.is_connected:
                continue
            with suppress(AndyError):  # if the engine does not answer, it is asked again later
                task = await self._engine.task(self.ref)
                if task.has_ended and not self.session.is_connected:
                    self.session.give_up(f"its container is gone: {task.error or task.state}")

    def close(self) -> None:
        """Stop this object's task, and end the connection to the container; the container itself goes on."""
        self._watch.cancel()
        self.session.close()

    def output(self) -> AsyncGenerator[bytes, None]:
        """Return an asynchronous generator of the agent's stdout, which arrives over the connection."""
        return self.session.output()

    async def wait(self) -> Exit:
        """Wait until the run has ended or was given up, and return its exit."""
        await self.session.ended.wait()
        return self.session.exit

    async def stop(self, *, grace_seconds: float = 2.0) -> None:
        """Tell the program in the container to end the agent within the grace period.

        If that takes too long, the run is given up, and its container is removed.
        """
        try:
            async with asyncio.timeout(grace_seconds + END_SECONDS):
                await self.session.send("stop", milliseconds=round(grace_seconds * 1000))
                await self.session.ended.wait()
        except TimeoutError:
            self.session.give_up("it did not end when it was told to")
            await self._engine.remove(self.ref)

    async def remove(self) -> None:
        """Kill and remove the container, and put the files in place that its completed turns left."""
        with suppress(TimeoutError):  # a carrier that does not read is removed nevertheless
            async with asyncio.timeout(BYE_SECONDS):
                await self.session.send("bye")
        await self._engine.remove(self.ref)
        self.session.give_up("it was removed")
        await self._settle_and_drop_files()
        self._forget()

    async def _settle_and_drop_files(self) -> None:
        """Put the files of the run's completed turns in place, and then remove all its files from the disk.

        If some cannot be put in place now, nothing is removed, and the next start of a container tries again.
        """
        await self.session.settle()
        if not await self.session.has_files_to_settle():
            await asyncio.to_thread(self.session.files.stages.drop)
