"""The composition root: build every feature once, pass each what it needs, and own every task."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial

import structlog

from agent_runner.wire.files import write_whole
from agent_runner.wire.order import TurnOrder
from orchestrator import __version__
from orchestrator.backup.retention_job import Retention
from orchestrator.backup.write_ahead_log import WriteAheadLog
from orchestrator.base.clock import SystemClock
from orchestrator.base.event_bus import EventBus
from orchestrator.base.supervision import Loop, Supervisor
from orchestrator.calendars.feature import CalendarFeature
from orchestrator.channels.registry import build_channels
from orchestrator.containers.feature import ContainersFeature
from orchestrator.context.feature import ContextFeature
from orchestrator.dashboard.feature import DashboardFeature
from orchestrator.domain.values import Group, RunId, Turn, TurnKind
from orchestrator.groups import registration
from orchestrator.groups.failed_parts import (
    CHANNEL_PREFIX,
    ESSENTIAL_LOOPS,
    WEB_LOOP,
    is_endless,
    report_failed_part,
)
from orchestrator.groups.host_context import HostContext
from orchestrator.home import lock as home_lock
from orchestrator.home.directory import Home
from orchestrator.home.settings import Settings
from orchestrator.inbound import prompt
from orchestrator.inbound.intake import build_intake
from orchestrator.inbound.search_index import fill_search_index
from orchestrator.ipc.feature import IpcFeature
from orchestrator.loop.feature import LoopFeature
from orchestrator.notices.feature import NoticeFeature
from orchestrator.outbound.feature import OutboundFeature
from orchestrator.proxies.feature import ContainerProxies
from orchestrator.proxies.model.credentials import CredentialSource
from orchestrator.queue.feature import QueueFeature
from orchestrator.queue.stop_requests import StopRequests
from orchestrator.reports.event_history import recall_events
from orchestrator.scheduler.loop import Scheduler
from orchestrator.store import database as store_database
from orchestrator.store.database import Tx
from orchestrator.undo.feature import UndoFeature
from orchestrator.web.feature import HOST, WebFeature, listen_locally

log = structlog.get_logger(__name__)

DRAIN_SECONDS = 30.0
"""Seconds that a shutdown waits for running turns."""
DELIVER_SECONDS = 5.0
"""Seconds that a shutdown then waits until the replies of these turns are sent."""


class Orchestrator:
    """One host process on one home."""

    def __init__(
        self,
        home: Home,
        settings: Settings,
        *,
        credentials: CredentialSource,
        say: Callable[[str], None],
        restart: Callable[[], None] | None = None,
    ) -> None:
        """`say` shows a line to a person; `restart` ends the host and starts it again, None if it cannot."""
        self._home, self._settings = home, settings
        self._credentials = credentials
        self._say = say
        self._clock = SystemClock()
        self._started_ms = self._clock.now_ms()
        self._has_stopped_waiting = False
        """Whether a shutdown has ended its wait for turns and replies: nothing is answered any more."""
        self._restart = restart
        self.bus = EventBus(self._clock)
        self._supervisor = Supervisor(
            clock=self._clock,
            essential=ESSENTIAL_LOOPS,
            endless=is_endless,  # whether a loop that returns by itself has failed
            report=lambda failure: report_failed_part(self._host, failure),
        )

    async def run(
        self, *, stop: asyncio.Event, on_ready: Callable[[str], None], leaves_containers: bool = True
    ) -> None:
        """Serve until `stop` is set; then take no new work, give running turns some time to end, and return.

        The home is created if it is missing, and locked until the end. The group `main` is registered if
        there is no group. `on_ready` is called with the host's address once it serves. Docker's containers
        keep running for the next start to take over, unless `leaves_containers` is false.

        Raises:
            AndyError: it cannot start; one line says why and what to do.
        """
        async with AsyncExitStack() as stack:
            self._home.make()
            stack.callback(home_lock.acquire(self._home).release)
            await asyncio.to_thread(store_database.check, self._home.database)
            self._token = self._home.token()
            listeners = stack.enter_context(listen_locally(self._settings.andy_port))
            self._host = await HostContext.open(
                stack, home=self._home, settings=self._settings, clock=self._clock, bus=self.bus
            )
            async with self._host.database.transaction() as tx:
                await registration.ensure_main(tx, now_ms=self._clock.now_ms())
                await recall_events(tx, self.bus)
            self._containers = ContainersFeature(
                self._host, say=self._say, leaves_containers=leaves_containers
            )
            await self._containers.open(stack)
            await self._open_proxies(stack)
            self._build_features()
            await self._ipc.open(stack)
            async with asyncio.TaskGroup() as tasks:
                await self._serve(tasks, listeners, stop, on_ready)
        log.info("host.ended")

    async def _open_proxies(self, stack: AsyncExitStack) -> None:
        """Start the proxies that containers reach the internet and models by; `stack` closes them.

        `connect` blocks the host's other ports for containers, where the runtime has a firewall for that, and
        sets `orders` and `redactor` of `self._containers`, which `_build_features` needs.
        """
        self._proxies = ContainerProxies(
            self._host,
            credentials=self._credentials,
            address=self._containers.selected.host_address,
            listen_address=self._containers.selected.listen_address,
            on_runaway=self._containers.stop_run,
        )
        await self._proxies.open(stack)
        await self._containers.connect(self._proxies, self._credentials)

    def _build_features(self) -> None:
        """Build the features that can be built before the pool of containers, each only from those before it.

        No task is started here. `_serve` builds those that need the pool or a group of tasks.
        """
        host, orders, redactor = self._host, self._containers.orders, self._containers.redactor
        self._channels = build_channels(host)
        self._dashboards = DashboardFeature(
            host,
            has_model=lambda group: orders.agent(group) == "claude",
            can_deliver=lambda group: self._channels.owner(group.jid) is not None,
        )
        self._loops = LoopFeature(host, summary=self._dashboards.brief, stop_run=self._containers.stop_run)
        self._notices = NoticeFeature(host)
        self._calendars = CalendarFeature(host, secret=self._credentials.value)
        self._contexts = ContextFeature(
            host, ask_model=self._proxies.ask_model, agent_of=orders.chosen_agent, redactor=redactor
        )
        self._ipc = IpcFeature(
            host,
            containers=self._containers,
            dashboards=self._dashboards.service,
            loops=self._loops,
            contexts=self._contexts.commands,
            notices=self._notices.service,
            proxies=self._proxies,
            channel_for=self._channels.owner,
        )
        self._undo = UndoFeature(host, channel_for=self._channels.owner)
        self._intake = build_intake(
            host,
            at_once=self._dashboards.instant_reply,
            stop=StopRequests(host, stop_run=self._containers.stop_run_soon).answer,
            undo=self._undo.requests.answer,
            forget=self._contexts.forget_requests.answer,
            answer_poll=self._dashboards.answer_poll,
        )

    async def _serve(
        self,
        tasks: asyncio.TaskGroup,
        listeners: tuple[socket.socket, ...],
        stop: asyncio.Event,
        on_ready: Callable[[str], None],
    ) -> None:
        """Take over the containers of an earlier start, run all loops until `stop` is set, then shut down.

        The loops run as tasks of `tasks`. `listeners` are the sockets of the console and the HTTP API, all at
        the same port. The address with this port is written to a file in the home, as is the time zone, and
        then passed to `on_ready`.
        """
        ports = self._ipc.run_ports(
            compose=self._compose,
            on_success=self._loops.on_turn_success,
            restore=self._contexts.restorer.restore,
            before_turn=self._undo.before_turn,
        )
        pool = self._containers.start_pool(ports, tasks)
        self._queue = QueueFeature(self._host, self._containers)
        hooks = self._dashboards.delivery_hooks
        self._outbound = OutboundFeature(self._host, self._channels, hooks=hooks, tasks=tasks)
        await pool.adopt()
        running = [
            tasks.create_task(self._supervisor.run(name, loop), name=name)
            for name, loop in self._all_loops(listeners).items()
        ]
        address = f"http://{HOST}:{listeners[0].getsockname()[1]}"
        await asyncio.to_thread(write_whole, self._home.zone_file, self._host.settings.tz)
        await asyncio.to_thread(write_whole, self._home.address_file, address)
        log.info("host.started", address=address, version=__version__)
        on_ready(address)
        # Loads what the first turn needs; only now, so that it does not delay the start.
        prepare = self._supervisor.run("prepare", self._containers.prepare)
        running.append(tasks.create_task(prepare, name="prepare"))
        await stop.wait()
        log.info("host.stopping")
        await self._shut_down()
        # The group of tasks ends only with the last of its tasks: the loops, and the readers of containers.
        for task in running + pool.tasks():
            task.cancel()

    def _all_loops(self, listeners: tuple[socket.socket, ...]) -> dict[str, Loop]:
        """Return every loop of the host by its name. Each runs as a task that is restarted if it fails.

        `listeners` are the sockets of the console and the HTTP API.
        """
        host, receive = self._host, self._intake.receive
        return {
            **self._outbound.loops(),
            "scheduler": Scheduler.of(host).run,
            "retention": Retention.of(host).run,
            "write-ahead-log": WriteAheadLog(host).run,
            "search-index": partial(fill_search_index, host.database),
            **self._containers.loops(),
            **self._ipc.loops(),
            **self._proxies.loops(),
            **self._dashboards.loops(),
            **self._loops.loops(),
            **self._contexts.loops(),
            **self._notices.loops(),
            **self._calendars.loops(),
            **self._undo.loops(),
            WEB_LOOP: partial(self._web().serve, listeners, self._containers.selected.published_address),
            **{
                f"{CHANNEL_PREFIX}{channel.name}": partial(channel.run, receive)
                for channel in self._channels.all
            },
            **self._queue.loops(),
        }

    def _web(self) -> WebFeature:
        """Return the feature that serves the console and the HTTP API."""
        return WebFeature(
            host=self._host,
            token=self._token,
            intake=self._intake,
            channels=self._channels,
            dashboards=self._dashboards,
            loops=self._loops,
            undo=self._undo,
            contexts=self._contexts,
            containers=self._containers,
            proxies=self._proxies,
            queue=self._queue,
            started_ms=self._started_ms,
            is_hopeless=self._is_hopeless,
            restart=self._restart,
            failing=self._supervisor.failing,
        )

    async def _shut_down(self) -> None:
        """Take no new work, let turns end and replies be sent within limits of time, and stop containers.

        Containers that the next start of the host shall take over are left running. The event `host.stopping`
        is published before the wait, and `host.drained` after it. At the end the file with the host's address
        is deleted.
        """
        self._queue.stop_taking_work()
        self.bus.publish("host.stopping")
        await self._containers.pool.drain(seconds=DRAIN_SECONDS)
        await self._outbound.drain(seconds=DELIVER_SECONDS)
        self._has_stopped_waiting = True
        self.bus.publish("host.drained")
        await self._containers.shut_down()
        await asyncio.to_thread(self._home.address_file.unlink, True)  # noqa: FBT003 - missing_ok

    def _is_hopeless(self, outcome: str) -> bool:
        """Return whether a message with this outcome will not be answered, because the host ends first.

        While the host stops, that is a message whose turn is still queued; once the turns have had their time
        to end, it is any message.
        """
        return self._has_stopped_waiting or (outcome == "queued" and not self._queue.is_taking_work)

    async def _compose(self, tx: Tx, turn: Turn, group: Group, run_id: RunId) -> TurnOrder:
        """Return all that a container gets to run a turn: its prompt and settings (a `TurnOrder`).

        `tx` is the transaction that assigns the turn to its run. It also records that the turn starts, and
        which notices (texts for the agent) the order contains, so that no other turn gets them. A turn of the
        dashboard's worker, in which a model updates the dashboard, has a prompt of its own and no notices.
        """
        await self._loops.begin(tx, turn)
        if turn.kind is TurnKind.WORKER:
            return await self._dashboards.compose(tx, turn, group, run_id)
        # The brief shows the agent the dashboard and, beside it, the next events of the group's calendars.
        brief = self._calendars.beside(self._dashboards.brief)
        order = await prompt.compose_on(self._host, tx, turn, group, run_id=run_id, brief=brief)
        return await self._notices.add(tx, turn, order)
