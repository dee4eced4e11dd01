"""`POST /tasks/{id}/{action}`: pause, resume, cancel, run, by the rules of `agenda`."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from orchestrator import agenda, task_reports
from orchestrator.clock import Clock
from orchestrator.events import Bus
from orchestrator.hints import Hints
from orchestrator.store.database import Database


class TaskDesk:
    """Changes a task in a transaction, then tells those who have to act on it."""

    def __init__(
        self, database: Database, *, times: agenda.Times, clock: Clock, hints: Hints, bus: Bus
    ) -> None:
        self._database = database
        self._times = times
        self._clock = clock
        self._hints = hints
        self._bus = bus

    async def act(self, task_id: str, action: str) -> dict[str, Any]:
        """Raises what the functions of `agenda` raise."""
        async with self._database.transaction() as tx:
            task = await agenda.act(tx, task_id, action, self._times, now_ms=self._clock.now_ms())
        self._bus.publish("task.changed", group=task.folder, detail=task.id)
        self._hints.scheduler.give()
        self._hints.lanes.give()
        return task_reports.row(task)


def task_routes(desk: TaskDesk) -> list[Route]:
    async def act(request: Request) -> Response:
        return JSONResponse(await desk.act(request.path_params["id"], request.path_params["action"]))

    return [Route("/tasks/{id}/{action}", act, methods=["POST"])]
