"""What people and programs reach of the host: the HTTP API, served on this machine alone."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any
from zoneinfo import ZoneInfo

from orchestrator.base.asgi_server import BoundedConfig, Server
from orchestrator.base.clock import Clock
from orchestrator.base.event_bus import EventBus
from orchestrator.base.wakeups import Wakeups
from orchestrator.channels.local import written
from orchestrator.channels.registry import Channels
from orchestrator.dashboard.feature import DashboardFeature, read_time
from orchestrator.domain.values import Group, LiveRun
from orchestrator.inbound.intake import Intake
from orchestrator.loop.feature import LoopFeature
from orchestrator.scheduler.reminder_service import ReminderService
from orchestrator.scheduler.timing import schedule_reader
from orchestrator.store.database import Database

HEAD_SECONDS = 10.0
"""From the first byte of a request, or the connection, to the end of its headers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WebFeature:
    """What its routes show and change. The web libraries are loaded when it is served."""

    database: Database
    clock: Clock
    hints: Wakeups
    bus: EventBus
    token: str
    intake: Intake
    channels: Channels
    boards: DashboardFeature
    waking: LoopFeature
    zone_of: Callable[[Group], ZoneInfo]
    live: Callable[[], Sequence[LiveRun]]
    refusals: Callable[[], Any]
    is_hopeless: Callable[[str], bool]
    """Whether a message that is so far will get no further: the host ends."""
    status: Callable[[], Awaitable[dict[str, Any]]]

    async def serve(self, listeners: Sequence[socket.socket]) -> None:
        """Serve until cancelled."""
        from orchestrator.web.connections import WebProtocol
        from orchestrator.web.refusals import RefusalAudit

        refused = RefusalAudit(self.database, clock=self.clock)
        config = BoundedConfig(self._app(refused.note), http=WebProtocol, head_seconds=HEAD_SECONDS)
        async with asyncio.TaskGroup() as beside:
            noting = beside.create_task(refused.run(), name="web:refusals")
            await Server(config).serve_on(*listeners)
            noting.cancel()

    def _app(self, on_refusal: Callable[..., None]) -> Any:
        from orchestrator.web.api import web_app
        from orchestrator.web.chat_service import ChatService
        from orchestrator.web.dashboards import DashboardApi
        from orchestrator.web.groups import GroupApi
        from orchestrator.web.loops import LoopApi
        from orchestrator.web.metrics import Metrics
        from orchestrator.web.reminders import ReminderHandler
        from orchestrator.web.tasks import TaskApi

        return web_app(
            ChatService(
                self.database,
                accept=self.intake.accept,
                is_hopeless=self.is_hopeless,
                clock=self.clock,
                bus=self.bus,
            ),
            desk=GroupApi(self.database, clock=self.clock, hints=self.hints, bus=self.bus),
            tasks=TaskApi(
                self.database,
                times=schedule_reader(self.zone_of, read_time=read_time),
                clock=self.clock,
                hints=self.hints,
                bus=self.bus,
            ),
            reminders=ReminderHandler(
                self.database,
                service=ReminderService(read_time=read_time, zone_of=self.zone_of),
                clock=self.clock,
                hints=self.hints,
                bus=self.bus,
            ),
            loops=LoopApi(self.database, act=self.waking.act, bus=self.bus),
            pairing=self.channels.whatsapp.pairing,
            dashboards=DashboardApi(
                show=self.boards.show, use=self.boards.call_tool, ask_worker=self.boards.ask_worker
            ),
            write=written,
            status=self.status,
            metrics=Metrics(self.database, live=self.live, refusals=self.refusals),
            bus=self.bus,
            token=self.token,
            on_refusal=on_refusal,
        )
