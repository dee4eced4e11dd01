"""The composition root: ties the stages together and owns every task. Nothing else joins two stages."""

from __future__ import annotations

import asyncio
import secrets
import shutil
import socket
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import Any
from zoneinfo import ZoneInfo

import structlog

from agent_runner.wire.order import TurnOrder
from orchestrator import __version__
from orchestrator.backup.retention import Retention
from orchestrator.base.asgi_server import fronted, listen
from orchestrator.base.clock import Clock, SystemClock
from orchestrator.base.event_bus import EventBus
from orchestrator.base.redaction import Redactor
from orchestrator.base.supervision import supervise
from orchestrator.base.wakeups import Wakeups
from orchestrator.channels import registry
from orchestrator.channels.context import ChannelContext
from orchestrator.channels.registry import Channels
from orchestrator.containers import runtime_selection, set_id, timeouts
from orchestrator.containers.logs.run_log import RunLogs
from orchestrator.containers.pool import RunPool, RunPorts
from orchestrator.containers.run_orders import RunOrders
from orchestrator.context.feature import ContextFeature
from orchestrator.dashboard.feature import DashboardFeature
from orchestrator.domain.errors import AndyError
from orchestrator.domain.home import Home
from orchestrator.domain.settings import Settings
from orchestrator.domain.values import Folder, Group, RunId, Turn, TurnKind
from orchestrator.groups import memory_templates, owner, registration
from orchestrator.groups import settings as group_config
from orchestrator.groups.reconciler import GroupReconciler
from orchestrator.inbound import prompt, senders
from orchestrator.inbound.intake import Intake
from orchestrator.ipc import input_files
from orchestrator.ipc.command_dispatcher import CommandDispatcher
from orchestrator.ipc.handlers.files import OutgoingFiles
from orchestrator.ipc.mailbox_worker import MailboxWorker
from orchestrator.ipc.snapshots import SnapshotWriter
from orchestrator.ipc.watcher import MailboxWatcher
from orchestrator.loop.feature import LoopFeature
from orchestrator.notices.feature import NoticeFeature
from orchestrator.outbound.delivery import Delivery
from orchestrator.outbound.reactions import sign_loops
from orchestrator.proxies import run_tokens
from orchestrator.proxies.feature import ContainerProxies
from orchestrator.proxies.model.credentials import CredentialSource, KnownSecrets
from orchestrator.queue.availability import Availability
from orchestrator.queue.dispatcher import Containers, Dispatcher
from orchestrator.queue.retries import requeue_or_fail
from orchestrator.reports.event_history import recall_events
from orchestrator.reports.status import HostFacts, gather
from orchestrator.scheduler.loop import Scheduler
from orchestrator.scheduler.timing import schedule_reader
from orchestrator.scheduler.when import point_ms
from orchestrator.store import database as store_database
from orchestrator.store import groups, runs
from orchestrator.store.database import Database, Tx
from orchestrator.web.feature import WebFeature

log = structlog.get_logger(__name__)

DRAIN_SECONDS = 30.0
"""How long a shutdown waits for turns that run."""
DELIVER_SECONDS = 5.0
"""How long it waits for what they said to be sent."""
HOST = "127.0.0.1"


class Orchestrator:
    """One host process on one home."""

    def __init__(
        self,
        home: Home,
        settings: Settings,
        *,
        credentials: CredentialSource,
        say: Callable[[str], None],
        clock: Clock | None = None,
    ) -> None:
        self._home = home
        self._settings = settings
        self._credentials = credentials
        self._say = say
        self._clock = clock or SystemClock()
        self._attachment_bytes = settings.andy_attachment_mb * 1024 * 1024
        self._hints = Wakeups()
        self._senders = owner.OwnerFile(owner.owner_directory() / senders.FILE, senders.SenderRules)
        self.bus = EventBus(self._clock)
        self._is_drained = False
        self._started_ms = self._clock.now_ms()
        self._run_logs = RunLogs(home.logs, clock=self._clock)
        self.bus.taps.append(self._run_logs.take_event)

    async def run(
        self,
        *,
        stop: asyncio.Event,
        on_ready: Callable[[str], None],
        leaves_containers: bool = True,
    ) -> None:
        """Serve until `stop`; then take no new work, let turns end for a while, and leave.

        Containers of Docker stay for the next start to adopt, unless `leaves_containers` is false.

        Raises:
            AndyError: it cannot start; one line says why and what to do.
        """
        async with AsyncExitStack() as stack:
            self._home.make()
            stack.callback(self._home.lock().release)
            await asyncio.to_thread(store_database.check, self._home.database)
            self._token = self._home.token()
            listener = stack.enter_context(_bound(self._settings.andy_port))
            self._database = await Database.open(self._home.database)
            stack.push_async_callback(self._database.close)
            async with self._database.transaction() as tx:
                await registration.ensure_main(tx, now_ms=self._clock.now_ms())
                left = any(run.runtime == "docker" for run in await runs.live(tx))
                await recall_events(tx, self.bus)
            stack.push_async_callback(self._run_logs.close)
            await asyncio.to_thread(self._lay_shared)
            self._chosen = await runtime_selection.choose(
                self._settings.andy_runtime,
                home=self._home.root,
                install=self._home.install_id(),
                tag=self._settings.andy_image,
                has_containers=left,
                on_log=self._run_logs.take_stderr,
                say=self._say,
            )
            # What is not Compose's own, 'docker compose down' would leave: there agents end with the host.
            leaves_containers = leaves_containers and self._chosen.siblings is None
            self._run_logs.about = {"image": self._chosen.image}
            stack.push_async_callback(self._chosen.runtime.close)
            if not leaves_containers:
                stack.push_async_callback(self._chosen.forget)
            await self._serve(stack, listener, stop, on_ready, leaves_containers=leaves_containers)
        log.info("host.ended")

    async def _serve(
        self,
        stack: AsyncExitStack,
        listener: socket.socket,
        stop: asyncio.Event,
        on_ready: Callable[[str], None],
        *,
        leaves_containers: bool,
    ) -> None:
        reader = await Database.open_readonly(self._home.database)
        stack.push_async_callback(reader.close)
        self._doors = ContainerProxies(
            self._database,
            reader=reader,
            clock=self._clock,
            zone=self._settings.zone,
            credentials=self._credentials,
            address=self._chosen.host_address,
            listen_address=self._chosen.listen_address,
            data=self._home.data,
            on_queued=self._hints.outbox.give,
            on_runaway=self._stop_run,
            on_outage=self._hints.outages.give,
            model_of=partial(group_config.model_of, settings=self._settings),
            prices=self._settings.andy_prices,
        )
        await self._doors.open(stack)
        await self._chosen.shut_host(self._doors.ports, self._say)
        self._provision = RunOrders(
            self._home,
            self._settings,
            database=self._database,
            credentials=self._credentials,
            doors=self._doors,
            uid=self._chosen.uid,
            clock=self._clock,
            on_told=self._hints.outbox.give,
            hindrance=self._chosen.hindrance,
        )
        self._watcher = await stack.enter_async_context(MailboxWatcher(self._home.ipc))
        async with asyncio.TaskGroup() as tasks:
            loops = self._loops(tasks, listener)
            await self._pool.adopt()
            running = [
                tasks.create_task(supervise(name, loop, clock=self._clock), name=name)
                for name, loop in loops.items()
            ]
            address = f"http://{HOST}:{listener.getsockname()[1]}"
            await asyncio.to_thread(self._home.address_file.write_text, address)
            log.info("host.started", address=address, version=__version__)
            on_ready(address)
            await stop.wait()
            log.info("host.stopping")
            await self._shut_down(leaves_containers=leaves_containers)
            for task in running + self._pool.tasks():
                task.cancel()

    async def _shut_down(self, *, leaves_containers: bool) -> None:
        self._dispatcher.is_taking_work = False
        self.bus.publish("host.stopping")
        await self._pool.drain(seconds=DRAIN_SECONDS)
        await self._delivery.drain(seconds=DELIVER_SECONDS)
        self._is_drained = True
        self.bus.publish("host.drained")
        if not (leaves_containers and self._chosen.runtime.is_isolated):
            await self._pool.stop_all()
        if not self._pool.live():
            await self._chosen.open_host()
        await asyncio.to_thread(self._home.address_file.unlink, True)  # noqa: FBT003 - missing_ok

    def _is_hopeless(self, outcome: str) -> bool:
        """Whether whoever waits for a message waits in vain: the host ends before it gets any further."""
        return self._is_drained or (outcome == "queued" and not self._dispatcher.is_taking_work)

    def _loops(self, tasks: asyncio.TaskGroup, listener: socket.socket) -> dict[str, Callable[[], Any]]:
        settings, clock, hints, bus = self._settings, self._clock, self._hints, self.bus
        self._channels = channels = Channels(registry.build(self._channel_context()))
        self._boards = DashboardFeature(
            self._database,
            settings,
            clock=clock,
            hints=hints,
            bus=bus,
            zone_of=self._zone_of,
            home=self._home.root,
            has_model=lambda group: self._provision.agent(group) == "claude",
            can_deliver=lambda group: channels.owner(group.jid) is not None,
        )
        intake = Intake(
            self._database,
            clock=clock,
            name=settings.assistant_name,
            hints=hints,
            bus=bus,
            read_senders=self._senders.read,
            at_once=self._boards.instant_reply,
        )
        self._snapshots = SnapshotWriter(
            self._home.data / "env", self._database, clock=clock, bus=bus, zone_of=self._zone_of
        )
        self._waking = LoopFeature(
            self._database,
            groups=self._home.groups,
            clock=clock,
            hints=hints,
            bus=bus,
            zone=settings.zone,
            zone_of=self._zone_of,
            summary=self._boards.brief,
            stop_run=self._stop_run,
        )
        self._noticing = NoticeFeature(self._database, clock=clock, bus=bus)
        self._remembering = ContextFeature(
            self._database,
            settings,
            data=self._home.data,
            clock=clock,
            hints=hints,
            bus=bus,
            ask_model=self._doors.ask_model,
            asked=self._provision.asked,
            redactor=Redactor(KnownSecrets(self._credentials, own=[self._token])),
        )
        self._pool = RunPool(
            self._database,
            self._chosen.runtime,
            self._run_ports(),
            limits=timeouts.RunTimeouts(
                idle_ms=settings.idle_timeout,
                age_ms=settings.container_timeout,
                turn_ms=settings.container_timeout,
            ),
            logs=self._run_logs,
            clock=clock,
            tasks=tasks,
            wakeups=hints,
            bus=bus,
        )
        available = Availability(
            self._database, clock=clock, hints=hints, bus=bus, refusal=self._provision.refusal
        )
        self._dispatcher = Dispatcher(
            self._database,
            Containers(
                live=self._pool.live,
                start=self._pool.start,
                hand_over=self._pool.hand_over,
                close=self._pool.close,
            ),
            cap=settings.max_concurrent_containers,
            clock=clock,
            hints=hints,
            turn_away=available.turn_away,
        )
        self._delivery = Delivery(
            self._database,
            clock=clock,
            name=settings.assistant_name,
            channel_for=channels.owner,
            tasks=tasks,
            wakeup=hints.outbox,
            bus=bus,
            hooks=self._boards.origin,
        )
        return {
            "delivery": self._delivery.run,
            **sign_loops(self._database, channel_for=channels.owner, bus=bus),
            "scheduler": Scheduler(
                self._database, clock=clock, hints=hints, bus=bus, zone_of=self._zone_of
            ).run,
            "snapshots": self._snapshots.run,
            "reaper": self._pool.reap,
            "run-logs": self._run_logs.run,
            "retention": Retention(
                self._database, self._home.archive, days=settings.andy_retention, clock=clock
            ).run,
            **GroupReconciler(
                self._database,
                ensure_folder=self._provision.lay,
                clear=partial(set_id.clear_group, home=self._home.root),
                live=self._pool.live,
                retire=self._pool.retire,
                bus=bus,
            ).loops(),
            "post": self._post().run,
            **self._doors.loops(),
            **self._boards.loops(),
            **self._waking.loops(),
            **self._remembering.loops(),
            **self._noticing.loops(),
            "web": partial(self._web, intake, listener),
            **{f"channel:{one.name}": partial(one.run, intake.receive) for one in channels.all},
            "availability": available.run,
            "dispatcher": self._dispatcher.run,
        }

    def _channel_context(self) -> ChannelContext:
        return ChannelContext(
            home=self._home.root,
            database=self._database,
            clock=self._clock,
            bus=self.bus,
            assistant=self._settings.assistant_name,
            has_own_number=self._settings.assistant_has_own_number,
            attachment_bytes=self._attachment_bytes,
            wake_outbox=self._hints.outbox.give,
        )

    async def _web(self, intake: Intake, listener: socket.socket) -> None:
        front = WebFeature(
            database=self._database,
            clock=self._clock,
            hints=self._hints,
            bus=self.bus,
            token=self._token,
            intake=intake,
            channels=self._channels,
            boards=self._boards,
            waking=self._waking,
            zone_of=self._zone_of,
            live=self._pool.live,
            refusals=lambda: self._doors.proxy.refusals,
            is_hopeless=self._is_hopeless,
            status=self.status,
        )
        with fronted(listener, self._chosen.front_address) as listeners:
            await front.serve(listeners)

    def _post(self) -> MailboxWorker:
        files = OutgoingFiles(self._home.root, limit=self._attachment_bytes)
        commands = CommandDispatcher(
            self._database,
            clock=self._clock,
            read_time=point_ms,
            times=schedule_reader(self._zone_of),
            zone_of=self._zone_of,
            wakeups=self._hints,
            bus=self.bus,
            copy_file=files.copy,
            dashboards=self._boards.service,
            loops=self._waking,
            contexts=self._remembering.recorder,
            notices=self._noticing.service,
        )
        return MailboxWorker(
            self._home.ipc,
            database=self._database,
            dispatcher=commands,
            watcher=self._watcher,
            owner_uids=lambda: frozenset({self._chosen.uid}),
            sweep_files=files.sweep,
        )

    async def _open_mailbox(self, folder: Folder) -> None:
        """What is done for a container that is about to live: its mailbox heard, its snapshots true."""
        await self._watcher.watch(folder)
        await asyncio.gather(self._snapshots.write(folder), self._remembering.recorder.show(folder))

    def _zone_of(self, group: Group) -> ZoneInfo:
        return group_config.zone_of(group, default=self._settings.zone)

    # What the pool needs of other stages

    def _run_ports(self) -> RunPorts:
        inputs = input_files.InputFiles(self._home.ipc)
        return RunPorts(
            compose=self._compose,
            order=self._provision.order,
            token=run_tokens.new_token_and_hash,
            environment=self._provision.environment,
            prepare=self._provision.prepare,
            watch=self._open_mailbox,
            unwatch=self._watcher.unwatch,
            write_turn=inputs.write_turn,
            write_close=inputs.write_close,
            remove_turn=inputs.remove_turn,
            remove_run_files=inputs.remove_run_files,
            remove_files_of_others=inputs.remove_files_of_others,
            requeue=requeue_or_fail,
            new_run_id=_new_run_id,
            on_success=self._waking.hear,
            restore=self._remembering.restoring.restore,
        )

    async def _compose(self, tx: Tx, turn: Turn, group: Group, run_id: RunId) -> TurnOrder:
        await self._waking.begin(tx, turn)
        if turn.kind is TurnKind.WORKER:
            return await self._boards.compose(tx, turn, group, run_id)
        order = await prompt.compose(
            tx,
            turn,
            group,
            run_id=run_id,
            name=self._settings.assistant_name,
            zone=self._zone_of(group),
            now_ms=self._clock.now_ms(),
            brief=self._boards.brief,
        )
        return await self._noticing.add(tx, turn, order)

    def _lay_shared(self) -> None:
        try:
            memory_templates.ensure_shared_memory(self._home.root, assistant=self._settings.assistant_name)
        except OSError as error:
            log.warning("shared_memory.not_made", reason=str(error))

    async def _stop_run(self, run_id: RunId, reason: str) -> None:
        await self._pool.stop(run_id, reason)

    async def status(self) -> dict[str, Any]:
        """What runs, waits and is stuck: for `/status` and `andy status`."""
        free_bytes = (await asyncio.to_thread(shutil.disk_usage, self._home.root)).free
        credential = await asyncio.to_thread(self._doors.credential)
        has_engine = await self._chosen.has_engine()
        async with self._database.reading() as tx:
            first = next(iter(await groups.every(tx)), None)
            host = HostFacts(
                version=__version__,
                home=str(self._home.root),
                runtime=self._chosen.runtime.name,
                is_isolated=self._chosen.runtime.is_isolated,
                image=self._chosen.image,
                agent=self._provision.agent(first)
                if first and not credential.problem
                else self._settings.andy_agent,
                credential=credential,
                slots=self._settings.max_concurrent_containers,
                live=self._pool.live(),
                is_stopping=not self._dispatcher.is_taking_work,
                started_ms=self._started_ms,
                now_ms=self._clock.now_ms(),
                steady_ms=self._clock.steady_ms(),
                disk_free_bytes=free_bytes,
                channels={one.name: told for one in self._channels.all if (told := one.status())},
                has_engine=has_engine,
            )
            return await gather(tx, host)


def _new_run_id() -> RunId:
    return RunId(secrets.token_hex(6))


def _bound(port: int) -> socket.socket:
    try:
        return listen(HOST, port)
    except OSError as error:
        raise AndyError(
            f"Port {port} of {HOST} is taken ({error.strerror}): choose another with ANDY_PORT or --port."
        ) from error
