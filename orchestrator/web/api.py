"""The routes: `/chat`, `/messages/{id}`, `/events`, `/status`, `/healthz`; others are modules."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from orchestrator import __version__
from orchestrator.base.event_bus import EventBus
from orchestrator.domain.errors import AndyError, BadRequest
from orchestrator.domain.values import Group, Inbound
from orchestrator.web.bodies import BadBody, read_body
from orchestrator.web.chat_service import ChatService
from orchestrator.web.dashboards import DashboardApi, dashboard_routes
from orchestrator.web.groups import GroupApi, group_routes
from orchestrator.web.guard import AccessGuard
from orchestrator.web.loops import LoopApi, loop_routes
from orchestrator.web.metrics import Metrics, metrics_route
from orchestrator.web.pairing import PairingApi, pairing_routes
from orchestrator.web.refusals import OnRefusal
from orchestrator.web.reminders import ReminderHandler, reminder_routes
from orchestrator.web.stream import event_route
from orchestrator.web.tasks import TaskApi, task_routes

MAX_WAIT_SECONDS = 600.0

Body = TypeVar("Body", bound=BaseModel)
Write = Callable[..., Inbound]
"""`(group jid, text, *, sender, now_ms)`: make an inbound message."""


class ChatRequest(BaseModel):
    """The body of `POST /chat`."""

    model_config = ConfigDict(extra="forbid")

    group: str = Field(min_length=1, max_length=64)
    text: str
    sender: str = Field("you", min_length=1, max_length=80)
    wait: float = Field(120.0, ge=0, le=MAX_WAIT_SECONDS)


def web_app(
    door: ChatService,
    *,
    desk: GroupApi,
    tasks: TaskApi,
    reminders: ReminderHandler,
    loops: LoopApi,
    pairing: PairingApi,
    dashboards: DashboardApi,
    write: Write,
    status: Callable[[], Awaitable[dict[str, Any]]],
    metrics: Metrics,
    bus: EventBus,
    token: str,
    on_refusal: OnRefusal,
) -> Starlette:
    """Build the app; everything but `/healthz` needs the token. `on_refusal` hears of who is not let in."""

    async def chat(request: Request) -> Response:
        asked = _parsed(ChatRequest, await read_body(request))

        def message(group: Group, now_ms: int) -> Inbound:
            return write(group.jid, asked.text, sender=asked.sender, now_ms=now_ms)

        place = await door.say(message, asked.group, wait_seconds=asked.wait)
        return JSONResponse(place.to_json_dict(), status_code=200 if place.is_settled else 202)

    async def message(request: Request) -> Response:
        place = await door.find(request.path_params["id"])
        return JSONResponse(place.to_json_dict())

    async def parse(request: Request, model: type[Body]) -> Body:
        return _parsed(model, await read_body(request))

    async def tell_status(_: Request) -> Response:
        return JSONResponse(await status())

    async def healthz(_: Request) -> Response:
        return JSONResponse({"ok": True, "version": __version__})

    return Starlette(
        routes=[
            Route("/chat", chat, methods=["POST"]),
            Route("/messages/{id}", message),
            event_route(bus),
            Route("/status", tell_status),
            metrics_route(metrics),
            Route("/healthz", healthz),
            *group_routes(desk, parse),
            *task_routes(tasks, parse),
            *reminder_routes(reminders, parse),
            *loop_routes(loops),
            *pairing_routes(pairing),
            *dashboard_routes(dashboards),
        ],
        middleware=[Middleware(AccessGuard, token=token, on_refusal=on_refusal)],
        exception_handlers={AndyError: _explain, RecursionError: _refuse_depth},
    )


def _parsed(model: type[Body], body: bytes) -> Body:
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise BadBody(f"{place}: {first['msg']}" if place else first["msg"]) from error


async def _explain(_: Request, error: Exception) -> Response:
    code = error.code if isinstance(error, BadRequest) else "unavailable"
    status = error.http_status if isinstance(error, BadRequest) else 503
    return JSONResponse({"error": {"code": code, "message": str(error)}}, status_code=status)


async def _refuse_depth(request: Request, _: Exception) -> Response:
    """Whatever a body holds so deeply nested that a part of the host cannot follow it is nothing it means."""
    return await _explain(request, BadBody("The body is nested too deeply."))
