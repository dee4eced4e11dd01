"""Build the parts of containers: the runtime, the orders of runs, the pool, the run logs, the reconciler."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

import structlog

from agent_runner.wire import frames
from orchestrator.base.redaction import Redactor
from orchestrator.containers import runtime_selection, set_id, timeouts
from orchestrator.containers.logs.run_log import RunLogs
from orchestrator.containers.pool import RunPool
from orchestrator.containers.ports import RunPorts
from orchestrator.containers.run_orders import RunOrders
from orchestrator.containers.runtime_selection import SelectedRuntime
from orchestrator.domain.failures import Outage
from orchestrator.domain.values import RunId
from orchestrator.groups import memory_templates, owner
from orchestrator.groups.host_context import HostContext
from orchestrator.groups.reconciler import GroupReconciler
from orchestrator.proxies.feature import ContainerProxies
from orchestrator.proxies.model.credentials import CredentialSource, KnownSecrets
from orchestrator.store.runs import runs, turn_outages

if TYPE_CHECKING:
    from orchestrator.containers.swarm.nodes import NodeView

log = structlog.get_logger(__name__)

DAY_MS = 24 * 3_600_000
IMAGE_SECONDS = 5.0
"""Seconds between two checks for a missing image."""
IMAGE_IS_THERE = "✅ The image is there: agents start again, and what waited is answered now."


class ContainersFeature:
    """The containers of one host, built in the order of its start.

    `open` selects the runtime, `connect` joins it with the proxies that its containers use, and `start_pool`
    makes the pool, which needs the features above this package.
    """

    selected: SelectedRuntime
    orders: RunOrders
    redactor: Redactor
    """Removes every secret that this host knows from the texts of agents."""
    pool: RunPool

    def __init__(self, host: HostContext, *, say: Callable[[str], None], leaves_containers: bool) -> None:
        """`say` shows a line to the person who started the host.

        With `leaves_containers`, Docker's containers go on when the host ends. Otherwise they end with it.
        From now on, the events of the host's event bus are written to the logs of their runs.
        """
        self._host = host
        self._say = say
        self._leaves_containers = leaves_containers
        self._logs = RunLogs(host.home.logs, clock=host.clock)
        host.bus.taps.append(self._logs.take_event)

    async def open(self, stack: AsyncExitStack) -> None:
        """Select what runs the agents' containers, by the settings. `stack` will close it and the run logs.

        If containers end with the host, `stack` will also remove this install's networks and other objects
        from the engine. The files that all groups share are written first, where they are missing.

        Raises:
            ContainerError: the runtime that the settings name cannot be used.
        """
        stack.push_async_callback(self._logs.close)
        settings, home = self._host.settings, self._host.home
        await asyncio.to_thread(self._ensure_shared_files)
        async with self._host.reader.reading() as tx:
            # An earlier host may have left containers, which this one has to find or to end.
            used_runtimes = {run.runtime for run in await runs.live(tx)}
        self.selected = await runtime_selection.choose(
            settings.andy_runtime,
            home=home.root,
            install=home.install_id(),
            tag=settings.andy_image,
            used_runtimes=used_runtimes,
            last_frame=self._last_frame,
            on_log=self._logs.take_stderr,
            on_node_problem=self._report_node_problem,
            slots_per_node=settings.max_containers_per_node,
            say=self._say,
        )
        self._image_watch = ImageWatch(self._host, self.selected)
        # Compose removes only its own containers: 'docker compose down' would leave agents running. So they
        # always end with a host that runs in a container itself, as under Compose (`own_paths` is set then).
        self._leaves_containers = self._leaves_containers and self.selected.own_paths is None
        self._logs.about = {"image": self.selected.image}
        stack.push_async_callback(self.selected.runtime.close)
        if not self._leaves_containers:
            stack.push_async_callback(self.selected.forget)

    async def _last_frame(self, run_id: RunId) -> int:
        """Return the number of the last frame of a run that the store has applied; 0 for an unknown run.

        A frame is one numbered line of a container's output.
        """
        run = await self._host.reader.read(lambda tx: runs.get(tx, run_id))
        return 0 if run is None else run.last_frame

    async def _report_node_problem(self, problem: str) -> None:
        """Queue a message to the owner's group about a node that cannot start containers.

        The swarm's runtime calls this unless the node's last start failed for the same reason. So a problem
        that comes back is reported again.
        """
        now_ms = self._host.clock.now_ms()
        # With the time in the subject, because the same problem may be reported again later.
        await self._host.database.write(
            lambda tx: owner.notify(tx, f"⚠️ {problem}", about=f"node:{now_ms}", now_ms=now_ms)
        )
        self._host.wakeups.outbox.set()

    async def nodes(self) -> list[NodeView]:
        """Return the machines of the swarm and their containers; none if agents run on this machine.

        Raises:
            ContainerError: the engine does not answer.
        """
        if self.selected.runtime.name != "swarm":
            return []
        from orchestrator.containers.swarm.nodes import inspect_nodes

        home, slots = self._host.home, self._host.settings.max_containers_per_node
        return await asyncio.to_thread(inspect_nodes, home.data, install=home.install_id(), slots=slots)

    def cap(self) -> int:
        """Return how many containers may live at once now: by the setting and by the nodes, at least 1."""
        cap, room = self._host.settings.max_concurrent_containers, self.selected.room()
        return cap if room is None else max(1, min(cap, room))

    async def connect(self, proxies: ContainerProxies, credentials: CredentialSource) -> None:
        """Let containers reach the ports of the host's proxies, and block all its other ports for them.

        This also sets `orders`, which describes containers to start, and `redactor`, which removes the host's
        secrets from texts.
        """
        self._proxies = proxies
        await self.selected.block_other_ports(proxies.ports, self._say)
        api_token = await asyncio.to_thread(self._host.home.token)
        self.redactor = Redactor(KnownSecrets(credentials, own=[api_token]))
        self.orders = RunOrders(
            self._host,
            credentials=credentials,
            proxies=proxies,
            uid=self.selected.uid,
            mount_hindrance=self.selected.mount_hindrance,
        )

    async def prepare(self) -> None:
        """Build the validators of frames and prepare the proxies, because the first turn needs both.

        Called after the host's start, so that the start is not delayed.
        """
        await asyncio.to_thread(_build_frame_validators)
        await self._proxies.prepare()

    def start_pool(self, ports: RunPorts, tasks: asyncio.TaskGroup) -> RunPool:
        """Build the pool of live containers, and return it. Each container is served by a task of `tasks`."""
        settings = self._host.settings
        self.pool = RunPool(
            self._host.database,
            self.selected.runtime,
            ports,
            limits=timeouts.RunTimeouts(
                idle_ms=settings.idle_timeout,
                # One setting for both: the age at which a container is replaced, and the length of a turn.
                age_ms=settings.container_timeout,
                turn_ms=settings.container_timeout,
            ),
            logs=self._logs,
            clock=self._host.clock,
            tasks=tasks,
            wakeups=self._host.wakeups,
            bus=self._host.bus,
            image=self.selected.image or "",
        )
        return self.pool

    def loops(self) -> dict[str, Callable[[], Any]]:
        """Return the functions that the host runs as long as it lives, by name.

        Call it after `start_pool`.
        """
        reconciler = GroupReconciler(
            self._host.database,
            ensure_folder=self.orders.ensure_memory_files,
            # Clears the setuid and setgid bits of the files that agents have written.
            clear=partial(set_id.clear_group, home=self._host.home.root),
            live=self.pool.live,
            retire=self.pool.retire,
            bus=self._host.bus,
        )
        return {
            "reaper": self.pool.reap,
            "run-logs": self._logs.run,
            "image": self._image_watch.run,
            **reconciler.loops(),
        }

    def _ensure_shared_files(self) -> None:
        """Write the missing files of the memory that all groups share, and of the prompt of their agents.

        Files of the prompt that nobody has changed are updated. Blocks. A failure is only logged.
        """
        settings, home = self._host.settings, self._host.home.root
        try:
            memory_templates.ensure_shared_memory(home, assistant=settings.assistant_name)
            # The prompt names the interval at which the dashboard's worker runs.
            minutes = max(1, settings.heartbeat_interval_s // 60)
            written = memory_templates.ensure_prompt(
                home, assistant=settings.assistant_name, worker_minutes=minutes
            )
            if written:
                log.info("prompt.written", files=written)
        except OSError as error:  # agents then work without these files
            log.warning("shared_memory.not_made", reason=str(error))

    async def stop_run(self, run_id: RunId, reason: str) -> None:
        """Stop a run, because a person asked for that or it exceeded a limit.

        `reason` is the text that its group reads.
        """
        await self.pool.stop(run_id, reason)

    def stop_run_soon(self, run_id: RunId, reason: str) -> None:
        """Stop a run as `stop_run` does, but in a task of its own: this returns at once."""
        self.pool.stop_soon(run_id, reason)

    def end_all_at_shutdown(self) -> None:
        """Make `shut_down` stop every container, because the next start of the host has another database."""
        self._leaves_containers = False

    async def shut_down(self) -> None:
        """Stop all containers, or leave them running for the next start of the host to take over.

        Only isolated containers (not ordinary processes) can be left. The port block, the firewall rule that
        keeps agents away from the host's ports, is removed if no container is left.
        """
        if not (self._leaves_containers and self.selected.runtime.is_isolated):
            await self.pool.stop_all()
        # As long as an agent lives on, the firewall has to keep it away from the host.
        if not self.pool.live():
            await self.selected.remove_port_block()


class ImageWatch:
    """Checks whether the agents' image is missing, and notifies the owner of each change."""

    def __init__(self, host: HostContext, selected: SelectedRuntime) -> None:
        """`selected` is the runtime whose image is watched."""
        self._host = host
        self._selected = selected
        self.is_missing: bool | None = None
        """Whether the image was missing at the last check; None before the first."""

    async def run(self) -> None:
        """Check the image once, then again after each container that could not be started for lack of it.

        While it is missing, check every `IMAGE_SECONDS`. Runs until cancelled.
        """
        while True:
            await self.check()
            await self._host.wakeups.image.wait(at_most_seconds=IMAGE_SECONDS if self.is_missing else None)

    async def check(self) -> None:
        """Look for the agents' image once, and notify the owner if it has become missing or is there again.

        At the first check, only a missing image is reported. Once it is there, turns that wait for the engine
        are tried again at once. Nothing is done if no engine answers.
        """
        is_there = await self._selected.is_image_there()
        if is_there is None:
            return  # no engine answers
        problem = None if is_there else await self._selected.image_problem()
        if not is_there and problem is None:
            return  # the image has appeared since, or the engine has gone
        was_missing, is_missing = self.is_missing, not is_there
        if was_missing is is_missing:
            return
        now_ms = self._host.clock.now_ms()
        if is_missing:
            log.warning("image.missing", image=self._selected.image)
            async with self._host.database.transaction() as tx:
                # Once a day: a host that restarts again and again does not repeat the message.
                await owner.notify(tx, f"⚠️ {problem}", about=f"image:{now_ms // DAY_MS}", now_ms=now_ms)
        else:
            async with self._host.database.transaction() as tx:
                await turn_outages.try_at_once(tx, Outage.ENGINE, now_ms=now_ms)
                if was_missing:  # it is None at the first check of a host
                    log.info("image.is_there", image=self._selected.image)
                    # In place of the same message if that was not sent yet; the one about the missing image
                    # stays.
                    await owner.notify_replacing_unsent(tx, IMAGE_IS_THERE, about="image", now_ms=now_ms)
        # Only once it is stored: otherwise the owner would never read of it.
        self.is_missing = is_missing
        self._host.wakeups.outbox.set()
        self._host.wakeups.lanes.set()


def _build_frame_validators() -> None:
    """Build the validators of frames, the lines by which containers report, before the first one arrives."""
    frames.build()
