"""Every route of the HTTP API, and the services that they stand on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from orchestrator import __version__
from orchestrator.base.event_bus import EventBus
from orchestrator.channels.registry import PairingService
from orchestrator.web.api.chat import Write, chat_routes
from orchestrator.web.api.dashboards import DashboardApi, dashboard_routes
from orchestrator.web.api.events import event_route
from orchestrator.web.api.groups import GroupApi, group_routes
from orchestrator.web.api.lists import ApiSource, list_routes
from orchestrator.web.api.loops import LoopApi, loop_routes
from orchestrator.web.api.metrics import Metrics, metrics_route
from orchestrator.web.api.openapi import openapi_route
from orchestrator.web.api.pairing import pairing_routes
from orchestrator.web.api.reminders import ReminderHandler, reminder_routes
from orchestrator.web.api.tasks import TaskApi, task_routes
from orchestrator.web.chat_service import ChatService


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiServices:
    """What the routes show and change."""

    chat: ChatService
    write: Write
    groups: GroupApi
    tasks: TaskApi
    reminders: ReminderHandler
    loops: LoopApi
    pairings: Mapping[str, PairingService]
    """Who pairs, by the name of the channel."""
    dashboards: DashboardApi
    status: Callable[[], Awaitable[dict[str, Any]]]
    metrics: Metrics
    lists: ApiSource
    bus: EventBus


def api_routes(services: ApiServices) -> list[Route]:
    return [
        *chat_routes(services.chat, services.write),
        event_route(services.bus),
        *_host_routes(services.status),
        metrics_route(services.metrics),
        *group_routes(services.groups),
        *task_routes(services.tasks),
        *reminder_routes(services.reminders),
        *loop_routes(services.loops),
        *(route for name, one in services.pairings.items() for route in pairing_routes(name, one)),
        *dashboard_routes(services.dashboards),
        *list_routes(services.lists),
        openapi_route(),
    ]


def _host_routes(status: Callable[[], Awaitable[dict[str, Any]]]) -> list[Route]:
    async def tell_status(_: Request) -> Response:
        return JSONResponse(await status())

    async def healthz(_: Request) -> Response:
        return JSONResponse({"ok": True, "version": __version__})

    return [Route("/status", tell_status), Route("/healthz", healthz)]
