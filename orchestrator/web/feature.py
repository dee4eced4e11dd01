"""The HTTP API and the console, served to people and programs on this machine only."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from agent_runner.wire.listeners import listen
from orchestrator.base.asgi_server import BoundedConfig, Server, listening_also_at
from orchestrator.base.supervision import LoopFailure
from orchestrator.channels.local.channel import new_message
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

    from orchestrator.undo.feature import UndoFeature
    from orchestrator.web.api.routes import ApiServices
    from orchestrator.web.chat_service import ChatService
    from orchestrator.web.console.sessions import SessionService
    from orchestrator.web.refusals import OnRefusal

HEAD_SECONDS = 10.0
"""Seconds within which the headers of a request must arrive, counted from its first byte; for the first
request of a connection, from the opening of the connection.
"""
KEEP_ALIVE_SECONDS = 30.0
"""Seconds after which an idle connection is closed. Clients close theirs after 5 s; a server that closed it
first could abort a request on its way, and the client would not know whether it was carried out."""
MAX_PORT = 65_535
HOST, HOST6 = "127.0.0.1", "::1"
NO_IPV6 = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
"""Error numbers that the system returns if this machine has no IPv6."""
TRIES = 20
"""The number of ports that are tried if the system's choice is taken on the other loopback address."""


@contextmanager
def listen_locally(port: int) -> Iterator[tuple[socket.socket, ...]]:
    """Yield sockets that listen on both loopback addresses of this machine, at the same port.

    Port 0 lets the system choose. Browsers connect to `andy.localhost` on ::1 first: another program that
    listened there would receive the cookie. A machine without IPv6 has one socket. The sockets are closed
    after the block.

    Raises:
        AndyError: the port is taken.
    """
    with ExitStack() as stack:
        listeners = _loopback_pair(port)
        for listener in listeners:
            stack.enter_context(listener)
        yield listeners


def _loopback_pair(port: int) -> tuple[socket.socket, ...]:
    """Return sockets that listen on 127.0.0.1 and ::1 at the same port; only the first without IPv6.

    Raises:
        AndyError: the port is taken; for port 0, `TRIES` ports that the system chose are.
    """
    tries = 1 if port else TRIES
    for _ in range(tries):
        try:
            first = listen(HOST, port)
        except OSError as error:
            raise _taken(HOST, port, error) from error
        # For port 0, the system chose this number for IPv4 alone: on IPv6 it may be taken. Then the system
        # chooses another one in the next round.
        number = first.getsockname()[1]
        try:
            return first, listen(HOST6, number)
        except OSError as error:
            if error.errno in NO_IPV6:
                return (first,)
            first.close()
            refusal = _taken(f"[{HOST6}]", number, error)
    raise refusal


def _taken(host: str, port: int, error: OSError) -> AndyError:
    """Return the error that says that a port of `host` is taken, and how to choose another."""
    return AndyError(
        f"Port {port} of {host} is taken ({error.strerror}): choose another with ANDY_PORT"
        f" or 'andy up --port {port + 1 if port < MAX_PORT else port - 1}'."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class WebFeature:
    """The web server with the services that its routes use. It loads the web libraries when it is served."""

    host: HostContext
    token: str
    intake: Intake
    channels: Channels
    dashboards: DashboardFeature
    loops: LoopFeature
    undo: UndoFeature
    contexts: ContextFeature
    containers: ContainersFeature
    proxies: ContainerProxies
    queue: QueueFeature
    started_ms: int
    """The time when the host began to start, in epoch milliseconds."""
    is_hopeless: Callable[[str], bool]
    """Returns whether a message with this outcome will not be answered, because the host is ending."""
    restart: Callable[[], None] | None
    """Restarts the host gracefully; None if that is not possible."""
    failing: Callable[[], Mapping[str, LoopFailure]]
    """Returns the loops that fail at the moment, by name."""

    async def serve(self, listeners: Sequence[socket.socket], published_address: str | None) -> None:
        """Serve HTTP until cancelled, at `listeners` and at the published address, if there is one."""
        # The first listener and, if there is a published address, one at the same port of that address.
        with listening_also_at(listeners[0], published_address) as first_and_published:
            await self._serve((*listeners[1:], *first_and_published))

    async def _serve(self, listeners: Sequence[socket.socket]) -> None:
        """Serve HTTP at `listeners` until cancelled, and write refused requests to the audit meanwhile."""
        from orchestrator.web.connections import WebProtocol
        from orchestrator.web.refusals import RefusalAudit

        refused = RefusalAudit(
            self.host.database, clock=self.host.clock, on_added=partial(self.host.bus.publish, "audit.added")
        )
        config = BoundedConfig(
            self._app(refused.note),
            http=WebProtocol,
            head_seconds=HEAD_SECONDS,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
        )
        async with asyncio.TaskGroup() as task_group:
            writing_refusals = task_group.create_task(refused.run(), name="web:refusals")
            await Server(config).serve_on(*listeners)
            # Only after the server's end, since the task, once cancelled, writes the refusals that came until
            # then. If this is cancelled, `serve_on` ends the server first, and the group cancels the task.
            writing_refusals.cancel()

    def _app(self, on_refusal: OnRefusal) -> ASGIApp:
        """Return the web application; routes that are needed later are loaded at their first request.

        `on_refusal` is called for each refused request.
        """
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

        async def is_session(cookie: str, agent: str) -> bool:
            """Return whether a cookie is that of a browser, by its `User-Agent`, that is signed in."""
            return await sessions.find(cookie, agent=agent) is not None

        def more_routes() -> list[BaseRoute]:
            """Return all routes that are not among `first_routes`.

            They are loaded at the first request for one of them, because their import takes long.
            """
            from orchestrator.web.api import routes

            services = self._services(chat, status)
            console = self._console_routes(services, sessions, on_refusal)
            return [*routes.more_routes(services), *self._secret_routes(services, on_refusal), *console]

        return web_app(
            first_routes(chat, new_message, status.status, host.bus),
            token=self.token,
            on_refusal=on_refusal,
            more_routes=more_routes,
            web_origin=host.settings.andy_web_origin,
            is_session=is_session,
        )

    def _services(self, chat: ChatService, status: StatusService) -> ApiServices:
        """Return the services that the routes of the HTTP API call."""
        from orchestrator.web.api.dashboards import DashboardApi
        from orchestrator.web.api.groups import GroupApi
        from orchestrator.web.api.lists import ApiSource
        from orchestrator.web.api.loops import LoopApi
        from orchestrator.web.api.metrics import Metrics
        from orchestrator.web.api.reminders import ReminderHandler
        from orchestrator.web.api.routes import ApiServices
        from orchestrator.web.api.tasks import TaskApi
        from orchestrator.web.api.undo import UndoApi

        reminders = self.dashboards.service.reminders
        return ApiServices(
            chat=chat,
            groups=GroupApi(
                self.host.database, clock=self.host.clock, has_gateway=self.proxies.models.has_gateway
            ),
            tasks=TaskApi(
                self.host.database,
                times=schedule_reader(self.host.zone_of, read_time=read_time),
                clock=self.host.clock,
            ),
            reminders=ReminderHandler(self.host.database, service=reminders, clock=self.host.clock),
            loops=LoopApi(self.host.database, act=self.loops.act),
            undos=UndoApi(self.host.database, self.undo),
            pairings=self.channels.pairings,
            dashboards=DashboardApi(
                show=self.dashboards.show,
                use=self.dashboards.call_tool,
                ask_worker=self.dashboards.ask_worker,
            ),
            write=new_message,
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

    def _secret_routes(self, services: ApiServices, on_refusal: OnRefusal) -> list[BaseRoute]:
        """Return the routes for programs that know a secret address: to read calendars and to post texts."""
        from orchestrator.web.calendars import CalendarService, calendar_routes
        from orchestrator.web.hooks import HookService, hook_routes

        calendars = CalendarService(
            database=self.host.database, source=services.lists, zone_of=self.host.zone_of
        )
        hooks = HookService(
            database=self.host.database,
            reader=self.host.reader,
            intake=self.intake,
            clock=self.host.clock,
        )
        return [*calendar_routes(calendars), *hook_routes(hooks, on_refusal)]

    def _console_routes(
        self, services: ApiServices, sessions: SessionService, on_refusal: OnRefusal
    ) -> list[BaseRoute]:
        """Return the routes of the console; its pages are built at the first request for one of them."""
        from orchestrator.web.console.mount import console_routes

        def build() -> ASGIApp:
            """Return the application of the console's pages. Blocks while their modules are imported."""
            from orchestrator.web.console.app import build_console
            from orchestrator.web.console.page import ConsoleServices

            console_services = ConsoleServices(
                host=self.host,
                api=services,
                channels=self.channels,
                containers=self.containers,
                contexts=self.contexts,
                undo=self.undo.service,
                models=self.proxies.models,
                restart=self.restart,
            )
            return build_console(
                console_services, sessions, started_ms=self.started_ms, on_refusal=on_refusal
            )

        return console_routes(build, sessions)
