"""What people and programs reach of the host: the HTTP API, served on this machine alone."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from orchestrator.base.asgi_server import BoundedConfig, Server, fronted, listen
from orchestrator.base.supervision import LoopFailure
from orchestrator.channels.local.channel import written
from orchestrator.channels.registry import Channels
from orchestrator.containers.feature import ContainersFeature
from orchestrator.context.feature import ContextFeature
from orchestrator.dashboard.feature import DashboardFeature, read_time
from orchestrator.domain.errors import AndyError
from orchestrator.domain.turn_signs import Sign
from orchestrator.groups.host_context import HostContext
from orchestrator.inbound.intake import Intake
from orchestrator.loop.feature import LoopFeature
from orchestrator.proxies.feature import ContainerProxies
from orchestrator.queue.feature import QueueFeature
from orchestrator.reports.status import StatusService
from orchestrator.scheduler.timing import schedule_reader

if TYPE_CHECKING:
    from starlette.routing import BaseRoute
    from starlette.types import ASGIApp

    from orchestrator.web.api.routes import ApiServices
    from orchestrator.web.chat_service import ChatService
    from orchestrator.web.console.sessions import SessionService

HEAD_SECONDS = 10.0
"""From the first byte of a request, or the connection, to the end of its headers."""
HOST = "127.0.0.1"


def listen_locally(port: int) -> socket.socket:
    """Listen on this machine's loopback; port 0 lets the system choose.

    Raises:
        AndyError: the port is taken.
    """
    try:
        return listen(HOST, port)
    except OSError as error:
        raise AndyError(
            f"Port {port} of {HOST} is taken ({error.strerror}): choose another with ANDY_PORT or --port."
        ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class WebFeature:
    """What its routes show and change. The web libraries are loaded when it is served."""

    host: HostContext
    token: str
    intake: Intake
    channels: Channels
    dashboards: DashboardFeature
    loops: LoopFeature
    contexts: ContextFeature
    containers: ContainersFeature
    proxies: ContainerProxies
    queue: QueueFeature
    started_ms: int
    """When the host began to start, in epoch milliseconds."""
    is_hopeless: Callable[[str], bool]
    """Whether a message with this outcome will get no further, because the host ends."""
    restart: Callable[[], None] | None
    """Ends the host gracefully and starts it anew; None where nothing would do that."""
    failing: Callable[[], Mapping[str, LoopFailure]]
    """Returns the loops that fail at the moment, by name."""

    async def serve(self, listener: socket.socket, published_address: str | None) -> None:
        """Serve until cancelled at `listener`, and at the port of `published_address` if there is one."""
        with fronted(listener, published_address) as listeners:
            await self._serve(listeners)

    async def _serve(self, listeners: Sequence[socket.socket]) -> None:
        from orchestrator.web.connections import WebProtocol
        from orchestrator.web.refusals import RefusalAudit

        refused = RefusalAudit(
            self.host.database, clock=self.host.clock, on_added=partial(self.host.bus.publish, "audit.added")
        )
        config = BoundedConfig(self._app(refused.note), http=WebProtocol, head_seconds=HEAD_SECONDS)
        async with asyncio.TaskGroup() as beside:
            noting = beside.create_task(refused.run(), name="web:refusals")
            await Server(config).serve_on(*listeners)
            noting.cancel()

    def _app(self, on_refusal: Callable[..., None]) -> Any:
        from orchestrator.web.api.routes import first_routes
        from orchestrator.web.app import web_app
        from orchestrator.web.chat_service import ChatService
        from orchestrator.web.console.sessions import SessionService

        host = self.host
        status = StatusService(
            host,
            started_ms=self.started_ms,
            containers=self.containers,
            proxies=self.proxies,
            queue=self.queue,
            channels=self.channels,
            failing=self.failing,
        )
        chat = ChatService(
            host.database,
            intake=self.intake,
            is_hopeless=self.is_hopeless,
            clock=host.clock,
            bus=host.bus,
            on_opened=lambda folder: host.signs.note(Sign.OPENED, folder=folder),
        )
        sessions = SessionService(host.database, host.reader, token=self.token, clock=host.clock)

        async def is_session(cookie: str) -> bool:
            return await sessions.find(cookie) is not None

        def more_routes() -> list[BaseRoute]:
            from orchestrator.web.api.routes import more_routes

            services = self._services(chat, status)
            return [*more_routes(services), *self._console(services, sessions, on_refusal)]

        return web_app(
            first_routes(chat, written, status.status, host.bus),
            token=self.token,
            on_refusal=on_refusal,
            more_routes=more_routes,
            web_origin=host.settings.andy_web_origin,
            is_session=is_session,
        )

    def _services(self, chat: ChatService, status: StatusService) -> ApiServices:
        from orchestrator.web.api.dashboards import DashboardApi
        from orchestrator.web.api.groups import GroupApi
        from orchestrator.web.api.lists import ApiSource
        from orchestrator.web.api.loops import LoopApi
        from orchestrator.web.api.metrics import Metrics
        from orchestrator.web.api.reminders import ReminderHandler
        from orchestrator.web.api.routes import ApiServices
        from orchestrator.web.api.tasks import TaskApi

        reminders = self.dashboards.service.reminders
        return ApiServices(
            chat=chat,
            groups=GroupApi(
                self.host.database, clock=self.host.clock, wakeups=self.host.wakeups, bus=self.host.bus
            ),
            tasks=TaskApi(
                self.host.database,
                times=schedule_reader(self.host.zone_of, read_time=read_time),
                clock=self.host.clock,
                wakeups=self.host.wakeups,
                bus=self.host.bus,
            ),
            reminders=ReminderHandler(
                self.host.database,
                service=reminders,
                clock=self.host.clock,
                wakeups=self.host.wakeups,
                bus=self.host.bus,
            ),
            loops=LoopApi(self.host.database, act=self.loops.act, bus=self.host.bus),
            pairings=self.channels.pairings,
            dashboards=DashboardApi(
                show=self.dashboards.show,
                use=self.dashboards.call_tool,
                ask_worker=self.dashboards.ask_worker,
            ),
            write=written,
            status=status.status,
            metrics=Metrics(
                self.host.database,
                live=self.containers.pool.live,
                refusals=lambda: self.proxies.proxy.refusals,
                foresight=lambda: self.containers.pool.foresight,
            ),
            lists=ApiSource(
                home=self.host.home,
                clock=self.host.clock,
                zone=self.host.settings.zone,
                reminders=reminders,
                context_of=self.contexts.manager,
                draft=self.containers.pool.draft,
                nodes=self.containers.nodes,
            ),
            bus=self.host.bus,
        )

    def _console(
        self, services: ApiServices, sessions: SessionService, on_refusal: Callable[..., None]
    ) -> list[BaseRoute]:
        from orchestrator.web.console.mount import console_routes

        def build() -> ASGIApp:
            from orchestrator.web.console.app import build_console

            return build_console(self, services, sessions, on_refusal=on_refusal)

        return console_routes(build, sessions)
