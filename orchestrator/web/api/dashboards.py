"""Dashboards by HTTP: their contents, tools and worker, with the same services as for agents."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from orchestrator.dashboard.feature import ToolAnswerView, WorkerQueued
from orchestrator.dashboard.views.board import BoardData
from orchestrator.web.bodies import parse_object, read_body


@dataclass(frozen=True, slots=True, kw_only=True)
class DashboardApi:
    """The operations on dashboards for requests from outside; each raises `UnknownGroup`."""

    show: Callable[[str], Awaitable[BoardData]]
    use: Callable[..., Awaitable[ToolAnswerView]]
    """`(folder, tool, arguments, expect_version=None)`: returns the answer of the tool."""
    ask_worker: Callable[[str], Awaitable[WorkerQueued]]


def dashboard_routes(service: DashboardApi) -> list[Route]:
    """Return the routes that show a dashboard, call its tools and start its worker."""

    async def show(request: Request) -> Response:
        """Answer with the contents of the dashboard of a group."""
        return JSONResponse(await service.show(request.path_params["folder"]))

    async def use(request: Request) -> Response:
        """Call a tool of a dashboard with the arguments in the body, and answer with its result.

        The status is 409 if the tool refuses.
        """
        arguments = parse_object(await read_body(request))
        path = request.path_params
        result = await service.use(path["folder"], path["tool"], arguments)
        return JSONResponse(result, status_code=200 if result["ok"] else 409)

    async def ask_worker(request: Request) -> Response:
        """Queue a turn in which a model looks at a dashboard now."""
        return JSONResponse(await service.ask_worker(request.path_params["folder"]), status_code=202)

    return [
        Route("/dashboards/{folder}", show),
        Route("/dashboards/{folder}/worker", ask_worker, methods=["POST"]),
        Route("/dashboards/{folder}/tools/{tool}", use, methods=["POST"]),
    ]
