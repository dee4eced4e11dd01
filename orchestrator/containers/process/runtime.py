"""Run agents as ordinary processes in place of containers, for demos and tests. They are not isolated."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Container, Sequence
from contextlib import suppress
from pathlib import Path

from orchestrator.containers.process.container import OnLog, ProcessContainer
from orchestrator.containers.process.identity import DEATH_SECONDS, ProcessIdentity, kill_group, kill_marked
from orchestrator.containers.process.layout import ProcessLayout
from orchestrator.domain.errors import ContainerError
from orchestrator.domain.protocols import ContainerSpec
from orchestrator.domain.values import RunId


def _no_log(run_id: RunId, data: bytes) -> None:
    """Drop a process's stderr; its last bytes are still recorded with the exit."""


class ProcessRuntime:
    """A `ContainerRuntime` of subprocesses. Each has a directory `data/process/{run}` under `home`.

    `command` replaces `python -m agent_runner`. A process is not restricted: it runs as the host's user, the
    limits of the spec are not enforced, and it can write to read-only mounts.
    """

    name = "process"
    is_isolated = False

    def __init__(self, *, home: Path, command: Sequence[str] | None = None, on_log: OnLog = _no_log) -> None:
        """`home` is the host's home; `on_log` receives pieces of the processes' stderr.

        `command` starts the runner; without it, that is this Python with `agent_runner`.
        """
        self._runs = home.absolute() / "data" / "process"
        self._command = tuple(command or (sys.executable, "-m", "agent_runner"))
        self._on_log = on_log
        self._live: dict[RunId, ProcessContainer] = {}

    async def start(self, spec: ContainerSpec, order: str) -> ProcessContainer:
        """Start a process, and write `order`, one line that tells it what to do, to its stdin.

        If this fails or is cancelled, the process is removed.

        Raises:
            ContainerError: the process cannot be started, does not read its order, or exists already.
        """
        if spec.run_id in self._live:
            raise ContainerError(f"The run {spec.run_id} has a process already.")
        running = ProcessContainer(
            spec, ProcessLayout(self._runs / spec.run_id), on_log=self._on_log, forget=self._forget
        )
        self._live[spec.run_id] = running
        try:
            await running.begin(self._command)
            await running.write_order(order)
        except BaseException:
            await asyncio.shield(asyncio.create_task(running.remove(), name=f"discard:{spec.run_id}"))
            raise
        return running

    async def adopt(self) -> Sequence[ProcessContainer]:
        """End the processes of an earlier host, and return nothing to adopt.

        Their pipes ended with that host, so their output is lost.
        """
        await asyncio.to_thread(_end_earlier, self._runs, self._live)
        return ()

    async def close(self) -> None:
        """End the running processes, because a later host could not read their output."""
        for running in tuple(self._live.values()):
            await running.remove()

    def _forget(self, run_id: RunId) -> None:
        """Forget a run whose process was removed."""
        self._live.pop(run_id, None)


def _end_earlier(runs: Path, live: Container[str]) -> None:
    """End the processes that an earlier host left, and remove their directories. Blocks.

    `runs` is the folder with a directory for each run, named by the run's id. `live` contains the ids of this
    host's runs, which are left alone.
    """
    for run in runs.iterdir() if runs.is_dir() else ():
        # `live` is read after the listing: a run is in it before its directory is created, so none is missed.
        if run.name not in live:
            layout = ProcessLayout(run)
            # Without a readable identity, the process is not killed by its number, which may be another's by
            # now. A file of another program, as a file manager leaves one, has none.
            with suppress(OSError, ValueError):
                _end_process(ProcessIdentity.parse(layout.identity.read_text(encoding="utf-8")))
            # All processes of a run have its mark in their environment, so this ends its children, too.
            kill_marked(layout.mark)
            layout.remove()


def _end_process(process: ProcessIdentity) -> None:
    """Kill a process group by its leader, and wait up to `DEATH_SECONDS` until the leader is gone. Blocks."""
    deadline = time.monotonic() + DEATH_SECONDS
    if process.is_alive():
        kill_group(process.pid)
    while process.is_alive() and time.monotonic() < deadline:
        time.sleep(0.01)
