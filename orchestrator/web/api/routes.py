"""Every route of the HTTP API, and the services that they use."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from orchestrator import __version__
from orchestrator.base.event_bus import EventBus
from orchestrator.web.api.chat import Write, chat_routes
from orchestrator.web.api.events import event_route
from orchestrator.web.chat_service import ChatService

if TYPE_CHECKING:
    from orchestrator.channels.registry import PairingService
    from orchestrator.reports.status import StatusView
    from orchestrator.web.api.dashboards import DashboardApi
    from orchestrator.web.api.groups import GroupApi
    from orchestrator.web.api.lists import ApiSource
    from orchestrator.web.api.loops import LoopApi
    from orchestrator.web.api.metrics import Metrics
    from orchestrator.web.api.reminders import ReminderHandler
    from orchestrator.web.api.tasks import TaskApi
    from orchestrator.web.api.undo import UndoApi

Status = Callable[[], Awaitable["StatusView"]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiServices:
    """The services that the routes read from and change."""

    chat: ChatService
    write: Write
    groups: GroupApi
    tasks: TaskApi
    reminders: ReminderHandler
    loops: LoopApi
    undos: UndoApi
    pairings: Mapping[str, PairingService]
    """The pairing services, by the name of the channel."""
    dashboards: DashboardApi
    status: Status
    metrics: Metrics
    lists: ApiSource
    bus: EventBus


def api_routes(services: ApiServices) -> list[Route]:
    """Return every route of the HTTP API."""
    return [
        *first_routes(services.chat, services.write, services.status, services.bus),
        *more_routes(services),
    ]


def first_routes(chat: ChatService, write: Write, status: Status, bus: EventBus) -> list[Route]:
    """Return the routes that a client of the chat calls first; their modules are loaded with the host.

    `write` makes an inbound message from a text, `status` returns the state of the host.
    """
    return [*chat_routes(chat, write), event_route(bus), *_host_routes(status)]


def more_routes(services: ApiServices) -> list[Route]:
    """Return all routes but those of `first_routes`. Loads their modules, which blocks for some 50 ms."""
    from orchestrator.web.api.dashboards import dashboard_routes
    from orchestrator.web.api.groups import group_routes
    from orchestrator.web.api.lists import list_routes
    from orchestrator.web.api.loops import loop_routes
    from orchestrator.web.api.metrics import metrics_route
    from orchestrator.web.api.openapi import openapi_route
    from orchestrator.web.api.pairing import pairing_routes
    from orchestrator.web.api.reminders import reminder_routes
    from orchestrator.web.api.tasks import task_routes
    from orchestrator.web.api.undo import undo_routes
    from orchestrator.web.downloads import file_routes

    return [
        metrics_route(services.metrics),
        *group_routes(services.groups),
        *task_routes(services.tasks),
        *reminder_routes(services.reminders),
        *loop_routes(services.loops),
        *undo_routes(services.undos),
        *(route for name, service in services.pairings.items() for route in pairing_routes(name, service)),
        *dashboard_routes(services.dashboards),
        *list_routes(services.lists),
        *file_routes(services.lists),
        openapi_route(),
    ]


def _host_routes(status: Status) -> list[Route]:
    """Return the routes that report on the host itself; `status` returns its state."""

    async def show_status(_: Request) -> Response:
        """Answer with the state of the host."""
        return JSONResponse(await status())

    async def healthz(_: Request) -> Response:
        """Answer that Andy runs, with the version."""
        return JSONResponse({"ok": True, "version": __version__})

    return [Route("/status", show_status), Route("/healthz", healthz)]
